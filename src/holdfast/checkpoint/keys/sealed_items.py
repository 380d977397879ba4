"""The items of the port under keys: heads, records, notes, letters and events, sealed and opened again.

All columns by which stores find and order runs stay plain, and are authenticated with what is sealed. What tells
people or programs more than that is sealed: headers, changes, values, the reason, traceback and ``by`` of a head, tags,
and the keys of notes and letters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import ormsgpack

from holdfast.checkpoint.format.record import hash_bytes
from holdfast.checkpoint.keys.cipher import (
    NotSealed,
    RunCipher,
    UnknownEpoch,
    decode_any,
    decode_piece,
    encode_any,
)
from holdfast.checkpoint.store import Depth, EventRow, Head, Keyframe, Letter, Note, Record
from holdfast.errors import CheckpointUntrusted
from holdfast.ids import CheckpointId

_pack, _unpack = ormsgpack.packb, ormsgpack.unpackb
_HAS_CHANGES, _HAS_VALUES = 1, 2
_NOTE, _LETTER = b"note", b"letter"
_UNTRUSTED = "\x00untrusted:"
"""Begins the key of a letter, or a tag, that nobody with the keys wrote; the rest is its name in the store."""
_DIGEST_BYTES = 16
_MAC_BYTES = 16
_INCARNATION_BYTES = 12
_BEFORE_HEADER = 1 + _INCARNATION_BYTES
"""The bytes that are sealed before a header: a flag for each part that the record has, and the incarnation."""


def new_incarnation() -> bytes:
    """Draw the number of a run that begins.

    What is sealed for a run is bound to it, so that nothing of an earlier run of the same id is believed. It stands in
    the sealed head, and in the sealed header of each record, from which a lost head is made anew.
    """
    return os.urandom(_INCARNATION_BYTES)


def untrusted(what: str, error: Exception) -> CheckpointUntrusted:
    """Return the error for something that was not sealed with the keys of the storage."""
    made = CheckpointUntrusted(
        f"{what} is refused: {error}. Somebody without the keys of this storage changed it or put it there, or it is "
        f"damaged: 'await storage.verify()' lists what is affected"
    )
    made.__cause__ = error
    return made


# Heads.


class SealedPosition(NamedTuple):
    """The head of a run as a sealing layer has to know it to replace it."""

    checkpoint_id: CheckpointId
    token: int
    version: int
    """Counts the changes of the head; it is the token of the sealed head."""
    incarnation: bytes
    """Tells the run from others that had its id before."""
    journal: bytes
    """A digest of the notes that the journal has, empty if there are none."""
    notes: Mapping[str, bytes] | None = None
    """By the blinded keys of notes, the codes that authenticate them; None if they were not read."""


class OpenedHead(NamedTuple):
    """A head in plain, and the position that it has."""

    head: Head
    position: SealedPosition


def seal_head(cipher: RunCipher, head: Head, version: int, incarnation: bytes, journal: bytes) -> Head:
    """Return a head as a store keeps it: its token counts the changes, and all private fields are its reason."""
    texts = map(encode_any, (head.reason, head.by, head.traceback, head.owner))
    private = [head.token, *texts, incarnation, journal]
    plain = head._replace(token=version, reason="", by="", traceback="")
    return plain._replace(reason=cipher.seal_text_of(_head_place(plain), _pack(private)))


def open_head(cipher: RunCipher, stored: Head) -> OpenedHead:
    """Return a head in plain; raise ``CheckpointUntrusted`` if it was not sealed for its run and all its columns.

    That no process owns the run may be said by whoever copied the store.
    """
    try:
        packed = cipher.open(_head_place(stored), decode_piece(stored.reason))
        token, reason, by, traceback, owner, incarnation, journal = _unpack(packed)
        if stored.by or stored.traceback or stored.owner not in (decode_any(owner), ""):
            raise NotSealed("a column beside it was changed")
    except UnknownEpoch:
        raise
    except NotSealed as error:
        raise untrusted(f"the head of run {stored.run_id!r}", error) from error
    head = stored._replace(
        token=token, reason=decode_any(reason), by=decode_any(by), traceback=decode_any(traceback)
    )
    return OpenedHead(head, SealedPosition(head.checkpoint_id, token, stored.token, incarnation, journal))


def _head_place(head: Head) -> bytes:
    fields = (
        *(head.run_id, head.workflow_name, head.family, head.checkpoint_id, head.seq, head.token),
        *(head.status._value_, head.created, head.updated, head.wake_at, head.takeovers, head.retention),
        *(head.waiting_for, head.letters_known, head.fingerprint, head.origin, head.restored),
    )
    try:
        return b"head" + _pack(fields)
    except TypeError:  # half a character somewhere
        return b"head" + _pack([encode_any(part) if isinstance(part, str) else part for part in fields])


# Records.


def seal_record(cipher: RunCipher, incarnation: bytes, record: Record) -> Record:
    """Return a record as a store keeps it: each part is sealed for the run, the seq and the id."""
    seal, name, seq = cipher.seal, record.checkpoint_id, record.seq
    has = (_HAS_CHANGES if record.changes else 0) | (_HAS_VALUES if record.values else 0)
    sealed = record._replace(
        header=seal(_header_place(record), bytes((has,)) + incarnation + record.header),
        changes=seal(_pack(("changes", seq, name)), record.changes) if record.changes else b"",
        values=seal(_pack(("values", seq, name)), record.values) if record.values else b"",
    )
    if record.keyframe is not None:
        sealed = sealed._replace(keyframe=seal_keyframe(cipher, incarnation, seq, record.keyframe))
    if record.tags:
        place = _tag_place(incarnation, seq)
        givers = {
            cipher.seal_tag(place, tag): seal_giver(cipher, incarnation, seq, by)
            for tag, by in record.tagged_by.items()
        }
        sealed = sealed._replace(tags=seal_tags(cipher, incarnation, seq, record.tags), tagged_by=givers)
    return sealed


def _header_place(record: Record) -> bytes:
    return _pack(("header", record.seq, record.checkpoint_id, record.new_bytes))


def read_incarnation(cipher: RunCipher, stored: Record) -> bytes:
    """Return the number of the run that a record is of; raise ``NotSealed`` if the record was not sealed."""
    return cipher.open(_header_place(stored), stored.header)[1:_BEFORE_HEADER]


def open_record(cipher: RunCipher, incarnation: bytes | None, stored: Record, depth: Depth) -> Record:
    """Return a record in plain; raise ``CheckpointUntrusted`` if a part of it was not sealed for it.

    ``incarnation`` is that of the run; None if its head is lost, and any will do.
    """
    open_part, name, seq = cipher.open, stored.checkpoint_id, stored.seq
    try:
        header = open_part(_header_place(stored), stored.header)
        has, its_incarnation, changes, values = header[0], header[1:_BEFORE_HEADER], b"", b""
        if incarnation not in (None, its_incarnation):
            raise NotSealed("it is that of another run, which had this id before")
        if depth >= Depth.CHANGES and (has & _HAS_CHANGES or stored.changes):
            changes = open_part(_pack(("changes", seq, name)), stored.changes)
        if depth >= Depth.ALL and (has & _HAS_VALUES or stored.values):
            values = open_part(_pack(("values", seq, name)), stored.values)
        keyframe = stored.keyframe
        if keyframe is not None:
            keyframe = _open_keyframe(cipher, its_incarnation, seq, keyframe, depth)
    except UnknownEpoch:
        raise
    except NotSealed as error:
        raise untrusted(f"checkpoint {name} of run {stored.run_id!r}", error) from error
    opened = stored._replace(
        header=header[_BEFORE_HEADER:], changes=changes, values=values, keyframe=keyframe
    )
    return _open_tags(cipher, its_incarnation, opened) if stored.tags else opened


def seal_keyframe(cipher: RunCipher, incarnation: bytes, seq: int, keyframe: Keyframe) -> Keyframe:
    """Return a keyframe as a store keeps it; what it holds names the checkpoint to which it belongs."""
    return Keyframe(
        cipher.seal(_pack(("keyframe changes", incarnation, seq, keyframe.cut)), keyframe.changes),
        cipher.seal(_pack(("keyframe values", incarnation, seq)), keyframe.values),
        keyframe.cut,
    )


def _open_keyframe(
    cipher: RunCipher, incarnation: bytes, seq: int, stored: Keyframe, depth: Depth
) -> Keyframe:
    changes = cipher.open(_pack(("keyframe changes", incarnation, seq, stored.cut)), stored.changes)
    if depth < Depth.ALL:
        return stored._replace(changes=changes)
    values = cipher.open(_pack(("keyframe values", incarnation, seq)), stored.values)
    return Keyframe(changes, values, stored.cut)


# Tags: the same tag of a record is always the same text, for stores compare tags.


def _tag_place(incarnation: bytes, seq: int) -> bytes:
    return incarnation + seq.to_bytes(8, "big")


def seal_tags(cipher: RunCipher, incarnation: bytes, seq: int, tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags as a store keeps them."""
    place = _tag_place(incarnation, seq)
    return tuple(
        tag.removeprefix(_UNTRUSTED) if tag.startswith(_UNTRUSTED) else cipher.seal_tag(place, tag)
        for tag in tags
    )


def seal_giver(cipher: RunCipher, incarnation: bytes, seq: int, by: str) -> str:
    """Return the name of whoever gave tags as a store keeps it."""
    return cipher.seal_text_of(_pack(("by", incarnation, seq)), encode_any(by)) if by else ""


def open_tag(cipher: RunCipher, incarnation: bytes, seq: int, stored: str) -> str:
    """Return a tag in plain; one that was not sealed for its record has a name that says so, and can be dropped."""
    try:
        return cipher.open_tag(_tag_place(incarnation, seq), stored)
    except NotSealed:
        return _UNTRUSTED + stored


def _open_tags(cipher: RunCipher, incarnation: bytes, stored: Record) -> Record:
    sound, tags, givers = stored.sound, [], {}
    for sealed in stored.tags:
        tag = open_tag(cipher, incarnation, stored.seq, sealed)
        sound = sound and not tag.startswith(_UNTRUSTED)
        tags.append(tag)
        if sealed in stored.tagged_by:
            try:
                place = _pack(("by", incarnation, stored.seq))
                givers[tag] = decode_any(cipher.open(place, decode_piece(stored.tagged_by[sealed])))
            except UnknownEpoch:
                raise
            except NotSealed:
                sound = False
    return stored._replace(tags=tuple(tags), tagged_by=givers, sound=sound)


# Notes and letters.


def seal_note(cipher: RunCipher, checkpoint_id: CheckpointId, note: Note) -> Note:
    """Return a note as a store keeps it: under a blinded key, sealed for the checkpoint of the journal."""
    key = cipher.blind(_NOTE, note.key)
    place = _pack(("note", checkpoint_id, key))
    return Note(key, cipher.seal(place, _pack([encode_any(note.key), note.data])))


def open_note(cipher: RunCipher, checkpoint_id: CheckpointId, stored: Note) -> Note:
    """Return a note in plain; raise ``NotSealed`` if it was not sealed for this journal."""
    key, data = _unpack(cipher.open(_pack(("note", checkpoint_id, stored.key)), stored.data))
    return Note(decode_any(key), data)


def codes_of(notes: Iterable[Note]) -> dict[str, bytes]:
    """Return the codes that authenticate sealed notes, by their blinded keys."""
    return {note.key: note.data[-_MAC_BYTES:] for note in notes}


def digest_journal(codes: Mapping[str, bytes]) -> bytes:
    """Return a digest of the notes of a journal by their codes; nothing for an empty journal."""
    if not codes:
        return b""
    return hash_bytes(_pack(sorted(codes.items())), _DIGEST_BYTES)


def blind_letter(cipher: RunCipher, incarnation: bytes, key: str) -> str:
    """Return the key of a letter as a store keeps it."""
    if key.startswith(_UNTRUSTED):
        return key.removeprefix(_UNTRUSTED)
    return cipher.blind(_LETTER + incarnation, key)


def seal_letter(cipher: RunCipher, incarnation: bytes, letter: Letter) -> Letter:
    """Return a letter as a store keeps it, under a blinded key, sealed for one incarnation of the run."""
    key = cipher.blind(_LETTER + incarnation, letter.key)
    place = _pack(("letter", incarnation, key))
    return Letter(key, cipher.seal(place, _pack([encode_any(letter.key), letter.data])))


def open_letter(cipher: RunCipher, incarnation: bytes, stored: Letter) -> Letter:
    """Return a letter in plain; one that was not sealed for its run has no content, so that nobody acts on it.

    It is shown all the same, for whoever drives the run has to take it: else the run would be due for ever.
    """
    try:
        key, data = _unpack(cipher.open(_pack(("letter", incarnation, stored.key)), stored.data))
        return Letter(decode_any(key), data)
    except UnknownEpoch:
        raise
    except NotSealed:
        return refused_letter(stored)


def refused_letter(stored: Letter) -> Letter:
    """Return the letter that is shown for one which was not sealed for its run."""
    return Letter(_UNTRUSTED + stored.key, b"")


def is_refused(letter: Letter) -> bool:
    """Return True if a letter stands for one that was not sealed for its run."""
    return letter.key.startswith(_UNTRUSTED)


# Events.


def seal_event(cipher: RunCipher, incarnation: bytes, row: EventRow) -> EventRow:
    """Return a row of events as a store keeps it."""
    return row._replace(data=cipher.seal(_pack(("event", incarnation, row.seq)), row.data))


def open_event(cipher: RunCipher, incarnation: bytes, stored: EventRow) -> EventRow:
    """Return a row of events in plain; one that was not sealed for its run and seq is not sound, and empty."""
    try:
        return stored._replace(data=cipher.open(_pack(("event", incarnation, stored.seq)), stored.data))
    except UnknownEpoch:
        raise
    except NotSealed:
        return stored._replace(data=b"", sound=False)
