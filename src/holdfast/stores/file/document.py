"""What stands in a commit file.

``{"head": {...}, "expected": {...}, "records": [...], "notes": [...], "letters": [...], "taken": [...]}``, the last
three only where there are any; besides what removing and tagging need: ``edits`` (see ``edits``), ``unsettled``,
``base`` and ``gone``. What is MessagePack stands there as JSON (see ``readable``) if that gives back the same bytes, in
base64 otherwise. Keys that begin with ``#`` are for people: nothing reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from holdfast.checkpoint.info import moment
from holdfast.checkpoint.store import Commit, Depth, Head, Letter, Note, Record
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.common.disk import IrregularFile, read_regular
from holdfast.stores.common.seals import MODULUS, seal_document
from holdfast.stores.file.items import (
    is_sound_keyed,
    keyed_document,
    keyed_from,
    record_document,
    record_from,
)
from holdfast.stores.file.layout import laid_out
from holdfast.stores.file.parts import list_in, text_document, text_from
from holdfast.stores.file.place import Place

_T = TypeVar("_T")


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
        return _checked(self.path, lambda: record_from(document, self.head.run_id, depth))

    def trusted(self) -> CommitFile:
        """The file, if all of it but its records is what was written; raises ``CheckpointCorrupt``."""
        if self.unsound:
            raise damaged(self.path, self.unsound)
        return self

    def notes(self) -> list[Note]:
        """The notes; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: [Note(*keyed_from(document)) for document in self.noted])

    def used(self) -> list[str]:
        """The keys of letters that were taken before it, where it removed records; raises ``CheckpointCorrupt``."""
        return _checked(self.path, lambda: list(map(text_from, self.edits.get("used", ()))))


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
        "records": [record_document(record) for record in commit.records],
    }
    if commit.notes:
        document["notes"] = [keyed_document(run_id, "note", *note) for note in commit.notes]
    if letters:
        document["letters"] = [keyed_document(run_id, "letter", *letter) for letter in letters]
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
    document["seal"] = seal_document(document)
    return laid_out(document)


def rewritten(path: Path, content: bytes, records: Sequence[dict[str, Any]]) -> bytes:
    """The content of a commit file, with these records instead of its own; one that is damaged is not touched."""
    parsed(path, content).trusted()
    document = {**_json(content), "records": list(records)}
    return laid_out({**document, "seal": seal_document(document)})


def relisted(path: Path, content: bytes, unsettled: Sequence[Place]) -> bytes:
    """The content of a commit file that lists these files as unsettled; one that is damaged is not touched."""
    parsed(path, content).trusted()
    document = {**_json(content), "unsettled": [place.text for place in unsettled]}
    return laid_out({**document, "seal": seal_document(document)})


def salvaged(file: CommitFile, head: Head, before: Outline | None) -> bytes:
    """A file that is damaged, with another head: its records as they are, and what else in it is what was written.

    What it says of earlier files is not believed: that comes from the one ``before``.
    """
    shown: dict[str, Any] = {"head": _head_document(head), "expected": None, "records": file.records}
    shown["place"] = file.path.name.partition(".")[0]
    journal = [note for note in file.noted if is_sound_keyed(head.run_id, "note", note)]
    letters = [letter for letter in file.lettered if is_sound_keyed(head.run_id, "letter", letter)]
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
    return laid_out({**shown, "seal": seal_document(shown)})


def content_of(path: Path) -> bytes:
    """The content of a commit file; raises ``CheckpointCorrupt`` where something else lies there."""
    try:
        return read_regular(path)
    except IrregularFile as error:
        raise damaged(path, str(error.strerror)) from error


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
    noted = list_in(document, "notes")
    outline = Outline(
        head,
        expected is None or expected["checkpoint_id"] != head.checkpoint_id,
        max((record["seq"] for record in records), default=0),
        tuple(Letter(*keyed_from(letter)) for letter in list_in(document, "letters")),
        tuple(map(text_from, list_in(document, "taken"))),
        bool(noted),
        tuple(map(Place.of_text, list_in(document, "unsettled"))),
        Place.of_text(document["base"]) if "base" in document else None,
        document["content"],
        document.get("journal", 0),
        document.get("gone", False) is True,
    )
    letters = list_in(document, "letters")
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
        if document["seal"] != seal_document(document):
            return "it is not what was written"
        for name, kind in (("notes", "note"), ("letters", "letter")):
            for item in list_in(document, name):
                if not is_sound_keyed(run_id, kind, item):
                    return f"the {kind} {item['key']} is not what was written"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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
