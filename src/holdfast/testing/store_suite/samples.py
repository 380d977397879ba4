"""Sample heads, records, blobs and commits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Expected,
    Head,
    Keyframe,
    Letter,
    Note,
    Record,
    Removal,
)
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, RunId

NOON, HOUR = 1_767_268_800_000_000, 3_600_000_000
"""An instant and a span, in microseconds."""
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
FAMILY = RunId("r")
"""The family of most sample runs."""
KINDS = (b"small", b"s" * 5000, LARGE)
"""Contents of blobs that stores keep in different places: small, in between, and large."""
SEQS_OF_ARRIVAL = [seq for seq in range(3, 1250) if seq % 100]
"""The seqs of a run that arrives from another store: many, with gaps."""


def sample_id(*parts: object) -> CheckpointId:
    """Return an id that is unique for ``parts``."""
    return CheckpointId(hashlib.sha256(repr(parts).encode()).hexdigest())


def sample_blob(data: bytes, *parts: object) -> Blob:
    """Return a blob whose digest is unique for ``parts``, or for its data if there are none."""
    return Blob(Digest(hashlib.sha256(repr(parts).encode() if parts else data).digest()), data)


def sample_record(run: str, seq: int, **fields: Any) -> Record:
    """Return a record that differs from all others."""
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
    """Return a keyframe that differs from all others."""
    return Keyframe(b"all changes to %d" % seq, b"all values to %d" % seq, cut)


def sample_head(run: str, seq: int = 1, **fields: Any) -> Head:
    """Return the head of a run whose last record is ``sample_record(run, seq)``."""
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
    """Return the commit that begins a run, with one record."""
    return Commit(sample_head(run, **head_fields), None, (sample_record(run, 1),), tuple(blobs))


def next_commit(after: Head, blobs: Sequence[Blob] = (), **head_fields: Any) -> Commit:
    """Return the commit that moves a run on from ``after``, by one record."""
    seq = after.seq + 1
    kept = after._replace(checkpoint_id=sample_id(after.run_id, seq), seq=seq, updated=after.updated + 1)
    expected = Expected(after.checkpoint_id, after.token)
    return Commit(kept._replace(**head_fields), expected, (sample_record(after.run_id, seq),), tuple(blobs))


def rival_commit(after: Head, rival: object) -> Commit:
    """Return one of several commits that move a run on from ``after``, each to a checkpoint of its own."""
    commit = next_commit(after, checkpoint_id=sample_id(after.run_id, after.seq + 1, rival))
    return commit._replace(
        records=(
            commit.records[0]._replace(checkpoint_id=commit.head.checkpoint_id, values=repr(rival).encode()),
        )
    )


def staying_commit(
    at: Head, notes: Sequence[Note] = (), taken: Sequence[str] = (), **head_fields: Any
) -> Commit:
    """Return a commit that leaves a run on its checkpoint."""
    expected = Expected(at.checkpoint_id, at.token)
    return Commit(at._replace(**head_fields), expected, notes=tuple(notes), taken=tuple(taken))


def sample_notes(*keys: str) -> tuple[Note, ...]:
    """Return a note for each key."""
    return tuple(Note(key, b"note " + repr(key).encode()) for key in keys)


def sample_letters(*keys: str) -> tuple[Letter, ...]:
    """Return a letter for each key."""
    return tuple(Letter(key, b"letter " + repr(key).encode()) for key in keys)


def add_needs(commit: Commit, *blobs: Blob) -> Commit:
    """Return a commit that also needs these blobs."""
    return commit._replace(needs=tuple(blob.digest for blob in blobs))


def sample_blobs(*parts: object) -> list[Blob]:
    """Return a blob of each kind, with digests that are unique for ``parts``."""
    return [sample_blob(data, number, *parts) for number, data in enumerate(KINDS)]


def expect_head(head: Head) -> Expected:
    """Return what a writer expects that knows this head."""
    return Expected(head.checkpoint_id, head.token)


def make_removal(
    head: Head, seqs: Sequence[int], keyframes: Sequence[tuple[int, Keyframe]] = (), **fields: object
) -> Removal:
    """Return the removal of records of a run that stands on ``head``."""
    removal = Removal(head.run_id, expect_head(head), tuple(seqs), tuple(keyframes))
    return removal._replace(**fields)  # type: ignore[arg-type]


# Some are missing, as after their removal.


def make_arrival(run: str = "r") -> Commit:
    """Return the commit with which a whole run arrives from another store."""
    records = [sample_record(run, seq) for seq in SEQS_OF_ARRIVAL]
    records[0] = records[0]._replace(keyframe=sample_keyframe(SEQS_OF_ARRIVAL[0], cut=True), tags=("b", "a"))
    return Commit(
        sample_head(run, SEQS_OF_ARRIVAL[-1], owner=""),
        None,
        tuple(records),
        notes=sample_notes("a", "b"),
        letters=sample_letters("c", "d"),
    )
