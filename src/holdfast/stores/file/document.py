"""What stands in a commit file.

``{"head": {...}, "expected": {...}, "records": [...], "notes": [...], "letters": [...], "taken": [...]}``, the last
three only where there are any; besides what removing and tagging need: ``edits`` (see ``edits``), ``unsettled``,
``base`` and ``gone``. What is MessagePack stands there as JSON (see ``readable``) if that gives back the same bytes, in
base64 otherwise. Keys that begin with ``#`` are for people: nothing reads them.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zstandard

from holdfast.checkpoint.info import moment
from holdfast.checkpoint.record import COMPRESSED, ELSEWHERE, RAW, plain_form
from holdfast.checkpoint.store import Commit, Depth, Head, Keyframe, Letter, Note, Record
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file.layout import laid_out
from holdfast.stores.file.place import Place
from holdfast.stores.file.readable import Unreadable, packed_from, shown
from holdfast.stores.seals import MODULUS, document_seal, keyed_seal, record_seal, seal_of_parts

_T = TypeVar("_T")
_DIGEST_BYTES = 32
# Larger compressed parts are not also shown.
_LARGEST_SHOWN = 256 * 1024


class Outline(NamedTuple):
    """What a commit file says, but for the content of records and notes."""

    head: Head
    moved: bool
    """Whether it moved the head to another checkpoint, and so began a journal."""
    last_seq: int
    """The greatest seq of its records; 0 without any."""
    letters: tuple[Letter, ...] = ()
    """All that wait after it, oldest first."""
    taken: tuple[str, ...] = ()
    """The keys that were taken by it, and by the commits without records right before it: they may be emptied."""
    noted: bool = False
    """Whether it has notes."""
    unsettled: tuple[Place, ...] = ()
    """The files, up to this one, with edits that may not be carried out yet, oldest first."""
    base: Place | None = None
    """The last file, up to this one, that removed records: it names every letter taken before it."""
    content: int = 0
    """The sum of the seals of all records of the run after it."""
    journal: int = 0
    """The sum of the seals of all notes since the head came to its checkpoint."""
    gone: bool = False
    """Whether it removed the run."""


class CommitFile(NamedTuple):
    """What was read from a commit file; records and notes are still JSON, because rarely all of each is needed."""

    path: Path
    outline: Outline
    records: list[dict[str, Any]]
    noted: list[dict[str, Any]]
    lettered: list[dict[str, Any]]
    edits: dict[str, Any]
    """What it changes in earlier records."""
    unsound: str = ""
    """What in it, beside records, is not what was written."""

    @property
    def head(self) -> Head:
        """Where the run stood after it."""
        return self.outline.head

    def record(self, document: dict[str, Any], depth: Depth) -> Record:
        """One of the records, as much of it as asked for; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: _record_from(document, self.head.run_id, depth))

    def trusted(self) -> CommitFile:
        """The file, if all of it but its records is what was written; raises ``CheckpointCorrupt``."""
        if self.unsound:
            raise damaged(self.path, self.unsound)
        return self

    def notes(self) -> list[Note]:
        """The notes; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: [Note(*_keyed_from(document)) for document in self.noted])

    def used(self) -> list[str]:
        """The keys of letters that were taken before it, where it removed records; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: list(map(_text_from, self.edits.get("used", ()))))


def written(
    commit: Commit,
    letters: Sequence[Letter] = (),
    taken: Sequence[str] = (),
    edits: dict[str, Any] | None = None,
    unsettled: Sequence[Place] = (),
    base: Place | None = None,
    content: int = 0,
    journal: int = 0,
    gone: bool = False,
    place: Place | None = None,
) -> bytes:
    """The content of a commit file at a place; the rest but ``commit`` and ``edits`` is that of its ``Outline``."""
    expected, run_id = commit.expected, commit.head.run_id
    document: dict[str, Any] = {
        "head": _head_document(commit.head),
        "expected": expected._asdict() if expected is not None else None,
        "records": [_record_document(record) for record in commit.records],
    }
    if commit.notes:
        document["notes"] = [_keyed_document(run_id, "note", *note) for note in commit.notes]
    if letters:
        document["letters"] = [_keyed_document(run_id, "letter", *letter) for letter in letters]
    if taken:
        document["taken"] = [text_document(key) for key in taken]
    if edits:
        document["edits"] = edits
    if unsettled:
        document["unsettled"] = [place.text for place in unsettled]
    if base is not None:
        document["base"] = base.text
    if place is not None:
        document["place"] = place.text
    document["content"] = content
    if journal:
        document["journal"] = journal
    if gone:
        document["gone"] = True
    document["seal"] = document_seal(document)
    return laid_out(document)


def rewritten(path: Path, content: bytes, records: Sequence[dict[str, Any]]) -> bytes:
    """The content of a commit file, with these records instead of its own; one that is damaged is not touched."""
    parsed(path, content).trusted()
    document = {**_json(content), "records": list(records)}
    return laid_out({**document, "seal": document_seal(document)})


def salvaged(file: CommitFile, head: Head, before: Outline | None) -> bytes:
    """A file that is damaged, with another head: its records as they are, and what else in it is what was written.

    What it says of earlier files is not believed: that comes from the one ``before``.
    """
    shown: dict[str, Any] = {"head": _head_document(head), "expected": None, "records": file.records}
    shown["place"] = file.path.name.partition(".")[0]
    journal = [note for note in file.noted if _is_sound_item(head.run_id, "note", note)]
    letters = [letter for letter in file.lettered if _is_sound_item(head.run_id, "letter", letter)]
    if journal:
        shown |= {"notes": journal, "journal": sum(note["seal"] for note in journal) % MODULUS}
    if letters:
        shown["letters"] = letters
    content = sum(record["seal"] for record in file.records if isinstance(record.get("seal"), int))
    if before is not None:
        content += before.content
        if before.unsettled:
            shown["unsettled"] = [place.text for place in before.unsettled]
        if before.base is not None:
            shown["base"] = before.base.text
    shown["content"] = content % MODULUS
    return laid_out({**shown, "seal": document_seal(shown)})


def parsed(path: Path, content: bytes) -> CommitFile:
    """What the content of a commit file says; raises ``CheckpointCorrupt``."""
    return _checked(path, lambda: _commit_file(path, _json(content)))


def _json(content: bytes) -> Any:
    if not content:
        raise ValueError("it is empty")
    return json.loads(content)


def _checked(path: Path, reading: Callable[[], _T]) -> _T:
    try:
        return reading()
    except MemoryError:
        raise
    except Exception as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: Path, what: str) -> CheckpointCorrupt:
    """The error for a commit file that is not what was written."""
    return CheckpointCorrupt(
        f"{path} is damaged: {what}. Put back a copy from a backup, or let 'await storage.repair()' save what is left; "
        f"or, if it is the last file of its run, move it out of the folder, and the run stands where it stood one "
        f"commit earlier"
    )


def _commit_file(path: Path, document: Any) -> CommitFile:
    records = document["records"]
    for record in records:
        if not isinstance(record["seq"], int) or not isinstance(record["checkpoint_id"], str):
            raise ValueError("a record has no seq or no checkpoint_id")
    head, expected = _head_from(document["head"]), document["expected"]
    noted = _items(document, "notes")
    outline = Outline(
        head,
        expected is None or expected["checkpoint_id"] != head.checkpoint_id,
        max((record["seq"] for record in records), default=0),
        tuple(Letter(*_keyed_from(letter)) for letter in _items(document, "letters")),
        tuple(map(_text_from, _items(document, "taken"))),
        bool(noted),
        tuple(map(Place.of_text, _items(document, "unsettled"))),
        Place.of_text(document["base"]) if "base" in document else None,
        document["content"],
        document.get("journal", 0),
        document.get("gone", False) is True,
    )
    letters = _items(document, "letters")
    return CommitFile(
        path,
        outline,
        records,
        noted,
        letters,
        dict(document.get("edits", {})),
        _unsound(path, head.run_id, document),
    )


def _unsound(path: Path, run_id: RunId, document: dict[str, Any]) -> str:
    """What is not what was written, beside records."""
    try:
        if document["place"] != path.name.partition(".")[0]:
            return f"it was written as {document['place']}.json"
        if document["seal"] != document_seal(document):
            return "it is not what was written"
        for name, kind in (("notes", "note"), ("letters", "letter")):
            for item in _items(document, name):
                if not _is_sound_item(run_id, kind, item):
                    return f"the {kind} {item['key']} is not what was written"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _is_sound_item(run_id: RunId, kind: str, item: dict[str, Any]) -> bool:
    try:
        return bool(item["seal"] == keyed_seal(run_id, kind, *_keyed_from(item)))
    except Exception:
        return False


def _items(document: Any, name: str) -> list[Any]:
    items = document.get(name, [])
    if not isinstance(items, list):
        raise ValueError(f"{name} is no list")
    return items


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
        document["keyframe"] = keyframe_document(record.keyframe)
    if record.tags:
        document["tags"] = [text_document(tag) for tag in record.tags]
    document["seal"] = record_seal(record)
    return document


def seal_of_record(document: dict[str, Any]) -> int:
    """The seal that a record should have; raises whatever broken data raises."""
    keyframe = document.get("keyframe")
    return seal_of_parts(
        document["checkpoint_id"],
        document["seq"],
        document["new_bytes"],
        list(map(_text_from, _items(document, "tags"))),
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
    _put_part(document, "changes", keyframe.changes)
    _put_part(document, "values", keyframe.values)
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
        tuple(map(_text_from, _items(document, "tags"))),
        depth < Depth.ALL or is_sound(document),
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


def _keyed_document(run_id: RunId, kind: str, key: str, data: bytes) -> dict[str, Any]:
    """A note or a letter."""
    document: dict[str, Any] = {"key": text_document(key), "seal": keyed_seal(run_id, kind, key, data)}
    if data[:1] not in (RAW, COMPRESSED, ELSEWHERE):
        try:
            document["data_packed"] = shown(data)
            return document
        except Unreadable:
            pass
    _put_part(document, "data", data)
    return document


def _keyed_from(document: dict[str, Any]) -> tuple[str, bytes]:
    packed = "data_packed" in document
    return _text_from(document["key"]), packed_from(document["data_packed"]) if packed else _part(
        document, "data"
    )


def text_document(text: str) -> str | dict[str, str]:
    """A text as it stands in a file."""
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # JSON would make one character of two halves that came apart
        return {"base64": b64encode(text.encode("utf-8", "surrogatepass")).decode()}


def _text_from(document: Any) -> str:
    if isinstance(document, str):
        return document
    return b64decode(document["base64"], validate=True).decode("utf-8", "surrogatepass")


def quoted(text: str) -> bytes:
    """How a text stands in a commit file."""
    return json.dumps(text, ensure_ascii=False).encode()
