"""Heads, records and commits to put into a store."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from typing import Any

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    Expected,
    Head,
    Keyframe,
    Letter,
    Note,
    Record,
    RunQuery,
    Store,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved
from holdfast.ids import CheckpointId, Digest, RunId

NOON = 1_767_268_800_000_000
EVERY_BYTE = bytes(range(256))
LARGE = EVERY_BYTE * 1200
"""300 KB."""
GREATEST = 2**62
ANYTHING = 0, GREATEST
"""The first and last of all seqs."""

ODD_IDS = [
    *("..", ".", "...", "~", "-", "CON", "con", "nul", "Aux.txt", "COM1", "head", "HEAD", "runs.db", "tmp"),
    *(
        "a b",
        " ",
        " a",
        "a ",
        "a.",
        ".a",
        "a",
        "A",
        "aa",
        "aA",
        "Aa",
        "a\\b",
        "a:b",
        "a*b?",
        "a|b<c>d",
        '"',
        "'",
    ),
    *(
        "%",
        "_",
        "%25",
        "a%2Fb",
        "'; DROP TABLE runs; --",
        "$HOME",
        "${x}",
        "$(id)",
        "`id`",
        "null",
        "None",
        "0",
        "00",
    ),
    # One letter in two spellings, and a letter whose upper case is two.
    *("\u00e9", "e\u0301", "ß", "SS", "ss", "İ", "i", "\u212a", "k"),
    *("😀", "日本語", "😀" * 200, "x" * 200, "x" * 199, "X" * 200),
]
ODD_KEYS = [
    *ODD_IDS,
    *(
        "",
        "/",
        "//",
        "a/b",
        "../../a",
        "a/",
        "\n",
        "a\r\nb",
        "\t",
        "\x1b[0m",
        "\x7f",
        "\u2028",
        "\u202e",
        "\ufeff",
    ),
    *("\x00", "\x00\x00", "a\x00", "a\x00b", "a\x00B"),
    # Halves of a character, and two that are not the character that they would make.
    *("\udc80", "\ud83d", "\ud83d\ude00", "a\udfff"),
    *("x" * 1000, "X" * 1000, "x" * 1001, "😀" * 1000, "\x00" * 1000),
]
"""Keys of notes and letters: unlike ids they are any text."""


def sample_id(*parts: object) -> CheckpointId:
    """An id of its own for each ``parts``."""
    return CheckpointId(hashlib.sha256(repr(parts).encode()).hexdigest())


def sample_blob(data: bytes, *parts: object) -> Blob:
    """A blob, under a name of its own for each ``parts`` or else for its data."""
    return Blob(Digest(hashlib.sha256(repr(parts).encode() if parts else data).digest()), data)


def sample_record(run: str, seq: int, **fields: Any) -> Record:
    """A record that differs from all others."""
    mark = f"{run}:{seq}".encode()
    record = Record(
        sample_id(run, seq),
        RunId(run),
        seq,
        b"header " + mark,
        b"changes " + mark,
        b"values " + mark,
        100 + seq,
    )
    return record._replace(**fields)


def sample_keyframe(seq: int, *, cut: bool = False) -> Keyframe:
    """A keyframe that differs from all others."""
    return Keyframe(b"all changes to %d" % seq, b"all values to %d" % seq, cut)


def sample_head(run: str, seq: int = 1, **fields: Any) -> Head:
    """The head of a run whose last record is ``sample_record(run, seq)``."""
    head = Head(
        RunId(run),
        "Flow",
        RunId(run),
        sample_id(run, seq),
        seq,
        1,
        RunStatus.RUNNING,
        NOON,
        NOON + seq,
        "host:1",
    )
    return head._replace(**fields)


def first_commit(run: str, blobs: Sequence[Blob] = (), **head_fields: Any) -> Commit:
    """The commit that begins a run, with one record."""
    return Commit(sample_head(run, **head_fields), None, (sample_record(run, 1),), tuple(blobs))


def next_commit(after: Head, blobs: Sequence[Blob] = (), **head_fields: Any) -> Commit:
    """The commit that moves a run on from ``after``, by one record."""
    seq = after.seq + 1
    kept = after._replace(checkpoint_id=sample_id(after.run_id, seq), seq=seq, updated=after.updated + 1)
    expected = Expected(after.checkpoint_id, after.token)
    return Commit(kept._replace(**head_fields), expected, (sample_record(after.run_id, seq),), tuple(blobs))


def rival_commit(after: Head, rival: object) -> Commit:
    """One of several commits that want to move a run on from ``after``: each with a checkpoint of its own."""
    commit = next_commit(after, checkpoint_id=sample_id(after.run_id, after.seq + 1, rival))
    return commit._replace(
        records=(
            commit.records[0]._replace(checkpoint_id=commit.head.checkpoint_id, values=repr(rival).encode()),
        )
    )


def staying_commit(
    at: Head, notes: Sequence[Note] = (), taken: Sequence[str] = (), **head_fields: Any
) -> Commit:
    """A commit that leaves a run on its checkpoint."""
    expected = Expected(at.checkpoint_id, at.token)
    return Commit(at._replace(**head_fields), expected, notes=tuple(notes), taken=tuple(taken))


def sample_notes(*keys: str) -> tuple[Note, ...]:
    """A note for each key."""
    return tuple(Note(key, b"note " + repr(key).encode()) for key in keys)


def sample_letters(*keys: str) -> tuple[Letter, ...]:
    """A letter for each key."""
    return tuple(Letter(key, b"letter " + repr(key).encode()) for key in keys)


async def begin(store: Store, run: str, blobs: Sequence[Blob] = (), **head_fields: Any) -> Head:
    """Begin a run."""
    commit = first_commit(run, blobs, **head_fields)
    await store.commit(commit)
    return commit.head


async def move_on(store: Store, after: Head, blobs: Sequence[Blob] = (), **head_fields: Any) -> Head:
    """Move a run on by one record."""
    commit = next_commit(after, blobs, **head_fields)
    await store.commit(commit)
    return commit.head


async def all_of(store: Store, run: str) -> tuple[Head | None, list[Record]]:
    """The head and the whole records of a run."""
    return await store.head(RunId(run)), list(await store.records(RunId(run), *ANYTHING, Depth.ALL))


async def names_of_runs(store: Store, query: RunQuery) -> list[str]:
    """The run ids that a query gives."""
    return [head.run_id for head in await store.runs(query)]


async def wins(store: Store, commit: Commit) -> bool:
    """Whether a commit is taken, not refused."""
    try:
        await store.commit(commit)
    except HeadMoved:
        return False
    return True


async def refusal(commit: Awaitable[object]) -> HeadMoved:
    """What a commit is refused with; it must be."""
    try:
        await commit
    except HeadMoved as error:
        return error
    raise AssertionError("the commit was taken, but it had to be refused with HeadMoved")
