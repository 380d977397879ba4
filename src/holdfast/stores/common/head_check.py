"""The compare of compare-and-swap: checks that a commit or removal fits the head in the store."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.store import Commit, Expected, Head, KnownMarks, Removal
from holdfast.errors import CheckpointNotFound, HeadMoved, StorageError
from holdfast.ids import Digest, RunId

HeadPosition: TypeAlias = tuple[str, int]
"""The checkpoint id and token of a head: an ``Expected``, or a plain tuple, which equals it."""


def check_head(commit: Commit, there: HeadPosition | None) -> None:
    """Raise ``HeadMoved`` unless the head in the store, ``there``, is the one that the commit expects."""
    if there != commit.expected:
        raise HeadMoved(f"run {commit.head.run_id!r} {_explain_difference(commit.expected, there)}")


def check_expected(run_id: RunId, expected: Expected, head: Head | None) -> None:
    """Raise ``HeadMoved`` unless the head of a run is the expected one."""
    there = None if head is None else Expected(head.checkpoint_id, head.token)
    if there != expected:
        raise HeadMoved(f"run {run_id!r} {_explain_difference(expected, there)}")


def check_needs(commit: Commit, there: Container[Digest]) -> None:
    """Raise ``CheckpointNotFound`` unless all blobs that a commit needs are in the store."""
    missing = [digest.hex() for digest in commit.needs if digest not in there]
    if missing:
        raise CheckpointNotFound(
            f"run {commit.head.run_id!r} cannot go on from the checkpoint that was loaded: it was removed meanwhile, "
            f"with {len(missing)} of its values (the first is blob {missing[0]}); nothing was written. "
            f"'await storage.list_checkpoints()' lists the checkpoints that are there"
        )


def check_removal(head: Head, removal: Removal) -> None:
    """Raise ``StorageError`` if the record of the head is to be removed."""
    if head.seq in removal.seqs:
        raise StorageError(
            f"run {head.run_id!r} stands on checkpoint {head.checkpoint_id[:12]}, which cannot be removed; nothing was"
        )


def tags_allow(removal: Removal, tags: Mapping[int, Sequence[str]]) -> bool:
    """Return True if no tag keeps a record that is to go, and those that get other tags have what they should have.

    ``tags`` are those of records, by seq; one that gets other tags is not there if it is not in it.
    """
    after = dict(tags)
    for seq, before, given in removal.tags:
        if seq not in tags or tuple(tags[seq]) != before:
            return False
        after[seq] = given
    return not any(after.get(seq) for seq in removal.seqs)


def _explain_difference(expected: HeadPosition | None, there: HeadPosition | None) -> str:
    if there is None:
        return (
            f"is not in the storage, but its writer left it at {_format_position(expected)}; nothing was written. "
            "It was removed, or this is not the storage that it was written to"
        )
    if expected is None:
        return (
            f"is in the storage already, at {_format_position(there)}; nothing was written. "
            "Resume it, or start under another run id"
        )
    return (
        f"stands at {_format_position(there)}, but its writer left it at {_format_position(expected)}; "
        "nothing was written. "
        "Another writer moved it on: this one must stop, or resume from where the run stands now"
    )


def _format_position(position: HeadPosition | None) -> str:
    return f"checkpoint {position[0][:12]} (token {position[1]})" if position is not None else "no checkpoint"


_TEXTS = (
    *("run_id", "workflow_name", "family", "checkpoint_id", "owner", "reason", "retention", "waiting_for"),
    *("fingerprint", "by", "traceback", "origin"),
)


def check_head_fields(head: Head) -> Head:
    """Return a head that was read; raise ``ValueError`` if one of its fields has a wrong type."""
    for name in ("seq", "token", "created", "updated", "takeovers", "letters_known", "restored"):
        number = getattr(head, name)
        if type(number) is not int or number < 0:
            raise ValueError(f"its {name} is {number!r}")
    for name in _TEXTS:
        if not isinstance(getattr(head, name), str):
            raise ValueError(f"its {name} is {getattr(head, name)!r}")
    if head.wake_at is not None and type(head.wake_at) is not int:
        raise ValueError(f"its wake_at is {head.wake_at!r}")
    return head


def marks_allow(known: KnownMarks | None, letters: int, tags: Mapping[int, Sequence[str]]) -> bool:
    """Return True if a run may be removed with the letters and tags that it has."""
    if known is None:
        return True
    there = {seq: tuple(given) for seq, given in tags.items() if given}
    return letters <= known.letters and there == known.tags


class TagChange(NamedTuple):
    """The arguments of ``Store.tag`` that say what changes."""

    tags: Sequence[str]
    drop: Sequence[str] | None
    by: str = ""

    def apply(
        self, known: Sequence[str], known_by: Mapping[str, str]
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the tags of a record after the change, and who gave them."""
        kept = [] if self.drop is None else [tag for tag in known if tag not in self.drop]
        added = [tag for tag in self.tags if tag not in kept] if self.by else []
        givers = {**select_givers(known_by, kept), **dict.fromkeys(added, self.by)}
        return tuple(dict.fromkeys([*kept, *self.tags])), givers


def select_givers(tagged_by: Mapping[str, str], tags: Iterable[str]) -> dict[str, str]:
    """Return who gave these tags, as far as that was said."""
    return {tag: tagged_by[tag] for tag in tags if tag in tagged_by}
