"""The lines of a run's file: one JSON object for each commit, with a checksum.

``{"sum": ..., "at": ..., "kind": ..., "head": {...}, ..., "body": {...}}``. ``sum`` covers the rest of the line and the
id of the file, ``at`` is the position of the line in the file. What stands before ``body`` is enough to know where the
run stands; ``body`` holds records, notes and letters. MessagePack stands there as JSON (see ``readable``) if that gives
back the same bytes, and in base64 otherwise. Keys that begin with ``#`` are for people: nothing reads them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import zstandard

from holdfast.checkpoint.format.record import hash_bytes
from holdfast.checkpoint.format.stored_form import COMPRESSED, ELSEWHERE, RAW, plain_form
from holdfast.checkpoint.store import Depth, EventRow, Head, Keyframe, Letter, Note, Record
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.head_check import check_head_fields
from holdfast.stores.file.readable import (
    DECODER,
    NotReadable,
    encode_exactly,
    pack_value,
    to_json,
    unpack_exactly,
)

_DIGEST_BYTES = 32
# Larger compressed parts are not also shown in plain.
_LARGEST_SHOWN = 16 * 1024
# Of an event row in a line, besides its data: its seq, twice, and what stands around them.
_EVENT_BYTES = 32
_SUM = b'{"sum":"'
_SUM_BYTES = 8
_SUMMED: Final = len(_SUM) + 2 * _SUM_BYTES + 2
"""The position in a line from which on its checksum covers it."""
_BODY = b',"body":{'
_DEFAULTS: Final = tuple(Head._field_defaults.get(name, ...) for name in Head._fields)
"""The values of a head's fields with which they are left out: they say nothing then."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class LinePlace(NamedTuple):
    """The position of a line in its file."""

    offset: int
    length: int
    is_sound: bool = True
    """False if the checksum of the line is wrong, though the line can be read."""


class Line(NamedTuple):
    """A line without its body."""

    place: LinePlace
    meta: Mapping[str, Any]

    @property
    def head(self) -> Head | None:
        """The head of the run after this line, if the line states one; raises ``ValueError`` for a broken one."""
        document = self.meta.get("head")
        return None if document is None else _read_head(document)

    @property
    def ids(self) -> list[tuple[int, CheckpointId]]:
        """The seqs and ids of the records in its body."""
        return [(int(seq), CheckpointId(name)) for seq, name in self.meta.get("ids", {}).items()]


def decode_line(file_id: str, offset: int, line: bytes) -> Line:
    """Read a line without its newline; raise an ``Exception`` of some kind if it is not JSON of this form.

    A line whose checksum is wrong has a place that is not sound.
    """
    if line[: len(_SUM)] != _SUM:
        raise ValueError("it does not begin with a checksum")
    end = line.index(_BODY)
    meta = DECODER.decode(line[:end].decode() + "}")
    if type(meta["kind"]) is not str:
        raise ValueError("it does not say what it is for")
    is_sound = meta["at"] == offset and _sum_of(file_id, line[_SUMMED:]) == line[len(_SUM) : _SUMMED - 2]
    return Line(LinePlace(offset, len(line) + 1, is_sound), meta)


def decode_body(line: bytes) -> dict[str, Any]:
    """Read the body of a line; raise an ``Exception`` of some kind if it is not JSON."""
    body: dict[str, Any] = DECODER.decode(line.decode())["body"]
    return body


def explain_problem(error: Exception) -> str:
    """Say what is wrong with a line that raised an error when it was read."""
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _sum_of(file_id: str, summed: bytes) -> bytes:
    return hash_bytes(file_id.encode() + summed, _SUM_BYTES).hex().encode()


# Writing lines.


class LineDraft(NamedTuple):
    """A line that is to be written."""

    kind: str
    """Tells people what the line is for; only ``file`` and ``gone`` mean something to readers."""
    head: Head | None = None
    """The head of the run after this line."""
    records: Sequence[Record] = ()
    notes: Sequence[Note] = ()
    letters: Sequence[Letter] = ()
    taken: Sequence[str] = ()
    """The keys of letters that are used up."""
    keyframes: Sequence[tuple[int, Keyframe]] = ()
    """The keyframes that earlier records get, by seq."""
    tags: Mapping[int, Sequence[str]] = {}
    """The tags that earlier records have from now on, by seq."""
    tagged_by: Mapping[int, Mapping[str, str]] = {}
    """The persons or programs that gave tags of earlier records, by seq and tag."""
    events: Sequence[EventRow] = ()
    events_from: int = 0
    """Events of earlier seqs go."""
    inbox: int = 0
    """The number of letters that wait after this line."""
    further: Mapping[str, Any] = {}
    """Members that only lines of this kind have: ``removed``, ``used``, ``file``."""

    def encode(self, file_id: str, offset: int) -> tuple[bytes, Line]:
        """Return the line as it stands at ``offset``, and as ``decode_line`` would read it."""
        meta = self._meta()
        text = self._readable_text(offset, meta)
        if text is None:
            spelled = _encode(_spell_texts({"at": offset, **meta, **self._head_member()}))
            text = f'{spelled[1:-1]},"body":{{{self._body()}}}}}'.encode()
        content = b'%s%s",%s\n' % (_SUM, _sum_of(file_id, text), text)
        return content, Line(LinePlace(offset, len(content)), meta)

    def _meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = {"kind": self.kind, **self.further}
        if self.records:
            meta["ids"] = {str(record.seq): record.checkpoint_id for record in self.records}
        tags: dict[int, Sequence[str]] = {record.seq: record.tags for record in self.records if record.tags}
        tags.update(self.tags)
        if tags:
            meta["tags"] = {str(seq): list(given) for seq, given in tags.items()}
            givers = {record.seq: record.tagged_by for record in self.records} | dict(self.tagged_by)
            said = {str(seq): list(map(list, givers[seq].items())) for seq in tags if givers.get(seq)}
            if said:
                meta["tagged_by"] = said
        if self.notes:
            meta["noted"] = len(self.notes)
        if self.letters:
            meta["left"] = [letter.key for letter in self.letters]
        if self.taken:
            meta["taken"] = list(self.taken)
        if self.inbox:
            meta["inbox"] = self.inbox
        if self.keyframes:
            meta["cut"] = [seq for seq, _ in self.keyframes]
        if self.events:
            meta["events"] = [[row.seq, len(row.data) * 4 // 3 + _EVENT_BYTES] for row in self.events]
        if self.events_from:
            meta["events_from"] = self.events_from
        return meta

    def _head_member(self) -> dict[str, Any]:
        if self.head is None:
            return {}
        values = zip(Head._fields, self.head, _DEFAULTS, strict=True)
        head: dict[str, Any] = {name: value for name, value, default in values if value != default}
        head["status"] = self.head.status._value_
        head["#updated"] = _readable_time(self.head.updated // 1_000_000)
        return {"head": head}

    def _readable_text(self, offset: int, meta: dict[str, Any]) -> bytes | None:
        """Return the line without its checksum, made in one piece; None if some part needs a notation of its own.

        Most lines hold nothing but records of which JSON can say every part: they take half the time so.
        """
        if self.notes or self.letters or self.keyframes:
            return None
        try:
            body: dict[str, Any] = {}
            if self.records:
                body["records"] = list(map(_plain_document, self.records))
            if self.events:
                body["events"] = list(map(_event_pair, self.events))
            text = encode_exactly({"at": offset, **meta, **self._head_member(), "body": body})
            return None if text is None else text[1:].encode()
        except (NotReadable, UnicodeEncodeError):
            return None

    def _body(self) -> str:
        members = []
        if self.records:
            members.append(f'"records":[{",".join(map(_record_text, self.records))}]')
        if self.notes:
            members.append(f'"notes":[{",".join(_keyed_text(*note) for note in self.notes)}]')
        if self.letters:
            members.append(f'"letters":[{",".join(_keyed_text(*letter) for letter in self.letters)}]')
        if self.keyframes:
            given = (f'"{seq}":{{{_keyframe_members(keyframe)}}}' for seq, keyframe in self.keyframes)
            members.append(f'"keyframes":{{{",".join(given)}}}')
        if self.events:
            members.append(f'"events":{_encode(list(map(_event_pair, self.events)))}')
        return ",".join(members)


def _plain_document(record: Record) -> dict[str, Any]:
    """Return a record as a value for JSON; raise ``NotReadable`` if some part of it is not plain MessagePack."""
    if record.keyframe is not None:
        raise NotReadable("its keyframe may be long, or compressed")
    document: dict[str, Any] = {
        "checkpoint_id": record.checkpoint_id,
        "seq": record.seq,
        "new_bytes": record.new_bytes,
        "header": unpack_exactly(record.header),
    }
    for name, part in (("changes", record.changes), ("values", record.values)):
        if part:
            if part[:1] != RAW:
                raise NotReadable("it is compressed, or elsewhere")
            document[name] = unpack_exactly(part[1:])
    return document


def file_draft(file_id: str, run_id: RunId, namespace: str) -> LineDraft:
    """Return the first line of a file: which file it is, and of which run."""
    about = "A run of a Holdfast file store: each line is a commit, the last head says where the run stands."
    return LineDraft("file", further={"file": file_id, "run_id": run_id, "namespace": namespace, "#": about})


def quote(text: str) -> str:
    """Return any text as JSON, also one with half a character, which UTF-8 cannot say."""
    return _encode(_spell_texts(text))


def _spell_texts(value: Any) -> Any:
    """Return a value in which texts that UTF-8 cannot say have a notation."""
    if isinstance(value, dict):
        return {name: _spell_texts(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_texts(item) for item in value]
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"$text": b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


@lru_cache(16)
def _readable_time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "not in this calendar"


def _read_head(document: Mapping[str, Any]) -> Head:
    head = Head(**{name: document[name] for name in Head._fields if name in document})
    for name in ("reason", "retention", "checkpoint_id", "by", "traceback", "origin"):
        if not isinstance(getattr(head, name), str):
            raise ValueError(f"{name} of the head is no text")
    if head.wake_at is not None and type(head.wake_at) is not int:
        raise ValueError("wake_at of the head is no number")
    return check_head_fields(head._replace(status=RunStatus(head.status)))


# Bodies.


def _event_pair(row: EventRow) -> tuple[int, str]:
    # Not as JSON: nearly all that it says stands in the records, and making that readable takes most of the time.
    return row.seq, b64encode(row.data).decode()


def decode_event_rows(body: Mapping[str, Any]) -> list[EventRow]:
    """Read the events in the body of a line; raise an ``Exception`` of some kind for broken data."""
    return [EventRow(seq, b64decode(text, validate=True)) for seq, text in body.get("events", ())]


def _record_text(record: Record) -> str:
    text = (
        f'{{"checkpoint_id":{quote(record.checkpoint_id)},"seq":{record.seq},"new_bytes":{record.new_bytes},'
        f"{_packed_member('header', record.header)}"
        f"{_part_member('changes', record.changes)}{_part_member('values', record.values)}"
    )
    if record.keyframe is not None:
        text += f',"keyframe":{{{_keyframe_members(record.keyframe)}}}'
    return text + "}"


def _keyframe_members(keyframe: Keyframe) -> str:
    cut = "true" if keyframe.cut else "false"
    return f'"cut":{cut}{_part_member("changes", keyframe.changes)}{_part_member("values", keyframe.values)}'


def _keyed_text(key: str, data: bytes) -> str:
    if data[:1] in (RAW, COMPRESSED, ELSEWHERE):
        return f'{{"key":{quote(key)}{_part_member("data", data)}}}'
    return f'{{"key":{quote(key)},{_packed_member("packed", data)}}}'


def _packed_member(name: str, packed: bytes) -> str:
    """Return a member that holds MessagePack."""
    try:
        return f'"{name}":{to_json(packed)}'
    except NotReadable:
        return f'"{name}_base64":"{b64encode(packed).decode()}"'


def _part_member(name: str, part: bytes) -> str:
    """Return a member that holds a part in its stored form, to follow others; nothing for an empty part."""
    if not part:
        return ""
    if part[:1] == RAW:
        try:
            return f',"{name}":{to_json(part[1:])}'
        except NotReadable:
            pass
    if part[:1] == ELSEWHERE and len(part) == 1 + _DIGEST_BYTES:
        return f',"{name}_blob":"{part[1:].hex()}"'
    return f',"{name}_base64":"{b64encode(part).decode()}"{_comment(name, part)}'


def _comment(name: str, part: bytes) -> str:
    """Show a compressed part in plain. It is not read back: another compressor would make other bytes of it."""
    if part[:1] == COMPRESSED:
        try:
            if zstandard.frame_content_size(part[1:]) <= _LARGEST_SHOWN:
                return f',"#{name}":{to_json(plain_form(part))}'
        except (ValueError, zstandard.ZstdError):
            pass
    return ""


def decode_record(document: Mapping[str, Any], run_id: RunId, depth: Depth, is_sound: bool) -> Record:
    """Read a record without its tags, as much as ``depth`` says; raise some ``Exception`` for broken data."""
    keyframe = document.get("keyframe") if depth >= Depth.CHANGES else None
    return Record(
        _read_id(document),
        run_id,
        document["seq"],
        _read_packed(document, "header"),
        _read_part(document, "changes") if depth >= Depth.CHANGES else b"",
        _read_part(document, "values") if depth >= Depth.ALL else b"",
        document["new_bytes"],
        None if keyframe is None else decode_keyframe(keyframe, depth),
        (),
        is_sound,
    )


_DIGITS = frozenset("0123456789abcdef")


def _read_id(document: Mapping[str, Any]) -> CheckpointId:
    checkpoint_id: str = document["checkpoint_id"]
    if checkpoint_id[-1] not in _DIGITS:  # by its last digit an end is told from a start
        raise ValueError(f"{checkpoint_id!r} is no id of a checkpoint")
    return CheckpointId(checkpoint_id)


def decode_keyframe(document: Mapping[str, Any], depth: Depth) -> Keyframe:
    """Read as much of a keyframe as ``depth`` says; raise an ``Exception`` of some kind for broken data."""
    values = _read_part(document, "values") if depth >= Depth.ALL else b""
    return Keyframe(_read_part(document, "changes"), values, bool(document["cut"]))


def decode_keyed(document: Mapping[str, Any]) -> tuple[str, bytes]:
    """Read the key and the data of a note or a letter; raise an ``Exception`` of some kind for broken data."""
    if "packed" in document or "packed_base64" in document:
        return document["key"], _read_packed(document, "packed")
    return document["key"], _read_part(document, "data")


def _read_packed(document: Mapping[str, Any], name: str) -> bytes:
    encoded = document.get(f"{name}_base64")
    return pack_value(document[name]) if encoded is None else b64decode(encoded, validate=True)


def _read_part(document: Mapping[str, Any], name: str) -> bytes:
    if name in document:
        return RAW + pack_value(document[name])
    blob = document.get(f"{name}_blob")
    if blob is not None:
        return ELSEWHERE + bytes.fromhex(blob)
    return b64decode(document.get(f"{name}_base64", ""), validate=True)
