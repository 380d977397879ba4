"""What stands in a commit file.

``{"head": {...}, "expected": {...}, "records": [...]}``. The parts of a record that are MessagePack stand there as
JSON (see ``readable``) if that gives back the same bytes, in base64 otherwise. Keys that begin with ``#`` are for
people: nothing reads them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zstandard

from holdfast.checkpoint.info import moment
from holdfast.checkpoint.record import COMPRESSED, ELSEWHERE, RAW, plain_form
from holdfast.checkpoint.store import Commit, Depth, Head, Keyframe, Record
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file.layout import laid_out
from holdfast.stores.file.readable import Unreadable, packed_from, shown

_T = TypeVar("_T")
_DIGEST_BYTES = 32
# Larger compressed parts are not also shown.
_LARGEST_SHOWN = 256 * 1024


class CommitFile(NamedTuple):
    """What was read from a commit file; its records are still JSON, because rarely all of each is needed."""

    path: Path
    head: Head
    records: list[dict[str, Any]]

    def record(self, document: dict[str, Any], depth: Depth) -> Record:
        """One of the records, as much of it as asked for; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: _record_from(document, self.head.run_id, depth))

    @property
    def last_seq(self) -> int:
        """The greatest seq of its records; 0 without any."""
        return max((document["seq"] for document in self.records), default=0)


def written(commit: Commit) -> bytes:
    """The content of a commit file."""
    expected = commit.expected
    return laid_out(
        {
            "head": _head_document(commit.head),
            "expected": expected._asdict() if expected is not None else None,
            "records": [_record_document(record) for record in commit.records],
        }
    )


def read(path: Path) -> CommitFile:
    """What stands in a commit file; raises ``CheckpointCorrupt``, or ``OSError``."""
    return parsed(path, path.read_bytes())


def parsed(path: Path, content: bytes) -> CommitFile:
    """What the content of a commit file says; raises ``CheckpointCorrupt``."""
    return _checked(path, lambda: _commit_file(path, json.loads(content)))


def _checked(path: Path, reading: Callable[[], _T]) -> _T:
    try:
        return reading()
    except MemoryError:
        raise
    except Exception as error:
        raise CheckpointCorrupt(
            f"{path} is damaged: {type(error).__name__}: {error}. Put back a copy from a backup; or, if it is the last "
            f"file of its run, move it out of the folder, and the run stands where it stood one commit earlier"
        ) from error


def _commit_file(path: Path, document: Any) -> CommitFile:
    records = document["records"]
    for record in records:
        if not isinstance(record["seq"], int) or not isinstance(record["checkpoint_id"], str):
            raise ValueError("a record has no seq or no checkpoint_id")
    return CommitFile(path, _head_from(document["head"]), records)


def _head_document(head: Head) -> dict[str, Any]:
    return {**head._asdict(), "status": head.status.value, "#updated": _time(head.updated)}


def _time(microseconds: int) -> str:
    try:
        return moment(microseconds).isoformat()
    except OverflowError:
        return "not in this calendar"


def _head_from(document: dict[str, Any]) -> Head:
    head = Head(**{name: document[name] for name in Head._fields if name in document})
    for name, value in head._asdict().items():
        if not isinstance(value, _HEAD_TYPES.get(name, str)):
            raise ValueError(f"{name} of the head is {value!r}")
    return head._replace(status=RunStatus(head.status))


_HEAD_TYPES: dict[str, Any] = {
    **dict.fromkeys(("seq", "token", "created", "updated", "takeovers"), int),
    "wake_at": int | None,
}


def _record_document(record: Record) -> dict[str, Any]:
    document: dict[str, Any] = {"checkpoint_id": record.checkpoint_id, "seq": record.seq}
    _put_packed(document, "header", record.header)
    _put_part(document, "changes", record.changes)
    _put_part(document, "values", record.values)
    document["new_bytes"] = record.new_bytes
    if record.keyframe is not None:
        keyframe: dict[str, Any] = {"cut": record.keyframe.cut}
        _put_part(keyframe, "changes", record.keyframe.changes)
        _put_part(keyframe, "values", record.keyframe.values)
        document["keyframe"] = keyframe
    return document


def _record_from(document: dict[str, Any], run_id: RunId, depth: Depth) -> Record:
    keyframe = document.get("keyframe")
    return Record(
        CheckpointId(document["checkpoint_id"]),
        run_id,
        document["seq"],
        _packed(document, "header"),
        _part(document, "changes") if depth >= Depth.CHANGES else b"",
        _part(document, "values") if depth >= Depth.ALL else b"",
        document["new_bytes"],
        _keyframe_from(keyframe, depth) if keyframe is not None and depth >= Depth.CHANGES else None,
    )


def _keyframe_from(document: dict[str, Any], depth: Depth) -> Keyframe:
    values = _part(document, "values") if depth >= Depth.ALL else b""
    return Keyframe(_part(document, "changes"), values, document["cut"])


def _put_packed(document: dict[str, Any], name: str, packed: bytes) -> None:
    try:
        document[name] = shown(packed)
    except Unreadable:
        document[f"{name}_base64"] = b64encode(packed).decode()


def _packed(document: dict[str, Any], name: str) -> bytes:
    encoded = document.get(f"{name}_base64")
    return packed_from(document[name]) if encoded is None else b64decode(encoded, validate=True)


def _put_part(document: dict[str, Any], name: str, part: bytes) -> None:
    """Add a part in its stored form; an empty one is left out."""
    if part[:1] == RAW:
        try:
            document[name] = shown(part[1:])
            return
        except Unreadable:
            pass
    if part[:1] == ELSEWHERE and len(part) == 1 + _DIGEST_BYTES:
        document[f"{name}_blob"] = part[1:].hex()
    elif part:
        document[f"{name}_base64"] = b64encode(part).decode()
        _put_comment(document, name, part)


def _put_comment(document: dict[str, Any], name: str, part: bytes) -> None:
    """Show what is compressed; it is not read back, for another compressor would make other bytes of it."""
    if part[:1] != COMPRESSED:
        return
    try:
        if zstandard.frame_content_size(part[1:]) <= _LARGEST_SHOWN:
            document[f"#{name}"] = shown(plain_form(part))
    except (ValueError, zstandard.ZstdError):
        pass


def _part(document: dict[str, Any], name: str) -> bytes:
    if name in document:
        return RAW + packed_from(document[name])
    blob = document.get(f"{name}_blob")
    if blob is not None:
        return ELSEWHERE + bytes.fromhex(blob)
    return b64decode(document.get(f"{name}_base64", ""), validate=True)


def quoted(text: str) -> bytes:
    """How a text stands in a commit file."""
    return json.dumps(text, ensure_ascii=False).encode()
