"""Bundles of many or big notes, so that every backend can take the commit with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import ormsgpack

from holdfast.checkpoint.format.record import digest_of
from holdfast.checkpoint.format.stored_form import ELSEWHERE, RAW, elsewhere, plain_form, stored_form
from holdfast.checkpoint.store import Note
from holdfast.checkpoint.values import BlobSource
from holdfast.checkpoint.write.encode import ValueNamer
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import Digest

# More notes than this, or more bytes, become a bundle; one that is too big for a commit becomes a blob.
_MOST = 32
_LARGEST = 256 * 1024
_KEY = '["bundle", "'


def bundle_notes(notes: Sequence[Note], namer: ValueNamer) -> tuple[Note, ...]:
    """Put notes into one if they are many or big; its key is used once, so that it replaces no other."""
    if len(notes) <= _MOST and sum(len(note.data) for note in notes) <= _LARGEST:
        return tuple(notes)
    plain = ormsgpack.packb([list(note) for note in notes])
    stored = stored_form(plain)
    data = stored if len(stored) <= _LARGEST else ELSEWHERE + namer.store_blob(plain)
    return (Note(f'{_KEY}{digest_of(plain).hex()[:16]}"]', data),)


class Unbundled(NamedTuple):
    """Notes as they were made, in order, and the blobs in which bundles lay."""

    notes: list[Note]
    digests: set[Digest]


async def unbundled(notes: Sequence[Note], blobs: BlobSource) -> Unbundled:
    """Return notes as they were before they were bundled; raise ``CheckpointCorrupt`` if they cannot be read."""
    found = Unbundled([], set())
    for note in notes:
        if not note.key.startswith(_KEY):
            found.notes.append(note)
            continue
        try:
            digest = elsewhere(note.data)
            if digest is not None:
                found.digests.add(digest)
                note = note._replace(data=RAW + (await blobs.read([digest]))[digest])
            found.notes.extend(Note(key, data) for key, data in ormsgpack.unpackb(plain_form(note.data)))
        except (ValueError, TypeError) as error:
            raise CheckpointCorrupt(
                f"the note {note.key} in the journal of a run cannot be read: {error!r}"
            ) from error
    return found
