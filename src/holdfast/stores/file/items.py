"""What stands in the lists of a commit file: records, notes, letters, each with its seal."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.format.record import COMPRESSED, ELSEWHERE, RAW
from holdfast.checkpoint.store import Depth, Keyframe, Record
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.seals import seal_entry, seal_record, seal_record_parts
from holdfast.stores.file.parts import (
    list_in,
    packed_in,
    part_in,
    put_packed,
    put_part,
    text_document,
    text_from,
)
from holdfast.stores.file.readable import Unreadable, packed_from, shown


def record_document(record: Record) -> dict[str, Any]:
    """A record as it stands in a file."""
    document: dict[str, Any] = {"checkpoint_id": record.checkpoint_id, "seq": record.seq}
    put_packed(document, "header", record.header)
    put_part(document, "changes", record.changes)
    put_part(document, "values", record.values)
    document["new_bytes"] = record.new_bytes
    if record.keyframe is not None:
        document["keyframe"] = keyframe_document(record.keyframe)
    if record.tags:
        document["tags"] = [text_document(tag) for tag in record.tags]
    document["seal"] = seal_record(record)
    return document


def seal_of_record(document: dict[str, Any]) -> int:
    """The seal that a record should have; raises whatever broken data raises."""
    keyframe = document.get("keyframe")
    return seal_record_parts(
        document["checkpoint_id"],
        document["seq"],
        document["new_bytes"],
        list(map(text_from, list_in(document, "tags"))),
        None if keyframe is None else keyframe["cut"],
    )


def is_sound(document: dict[str, Any]) -> bool:
    """Whether what the id of a record does not cover is what was written."""
    try:
        return bool(document["seal"] == seal_of_record(document))
    except Exception:
        return False


def keyframe_document(keyframe: Keyframe) -> dict[str, Any]:
    """A keyframe as it stands in a file."""
    document: dict[str, Any] = {"cut": keyframe.cut}
    put_part(document, "changes", keyframe.changes)
    put_part(document, "values", keyframe.values)
    return document


def record_from(document: dict[str, Any], run_id: RunId, depth: Depth) -> Record:
    """As much of a record as asked for; raises whatever broken data raises."""
    keyframe = document.get("keyframe")
    return Record(
        CheckpointId(document["checkpoint_id"]),
        run_id,
        document["seq"],
        packed_in(document, "header"),
        part_in(document, "changes") if depth >= Depth.CHANGES else b"",
        part_in(document, "values") if depth >= Depth.ALL else b"",
        document["new_bytes"],
        _keyframe_from(keyframe, depth) if keyframe is not None and depth >= Depth.CHANGES else None,
        tuple(map(text_from, list_in(document, "tags"))),
        depth < Depth.ALL or is_sound(document),
    )


def _keyframe_from(document: dict[str, Any], depth: Depth) -> Keyframe:
    values = part_in(document, "values") if depth >= Depth.ALL else b""
    return Keyframe(part_in(document, "changes"), values, document["cut"])


def keyed_document(run_id: RunId, kind: str, key: str, data: bytes) -> dict[str, Any]:
    """A note or a letter as it stands in a file."""
    document: dict[str, Any] = {"key": text_document(key), "seal": seal_entry(run_id, kind, key, data)}
    if data[:1] not in (RAW, COMPRESSED, ELSEWHERE):
        try:
            document["data_packed"] = shown(data)
            return document
        except Unreadable:
            pass
    put_part(document, "data", data)
    return document


def keyed_from(document: dict[str, Any]) -> tuple[str, bytes]:
    """The key of a note or letter, with its data; raises whatever broken data raises."""
    packed = "data_packed" in document
    return text_from(document["key"]), packed_from(document["data_packed"]) if packed else part_in(
        document, "data"
    )


def is_sound_keyed(run_id: RunId, kind: str, item: dict[str, Any]) -> bool:
    """Whether a note or letter is what was written."""
    try:
        return bool(item["seal"] == seal_entry(run_id, kind, *keyed_from(item)))
    except Exception:
        return False
