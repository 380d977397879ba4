"""Session entries under keys: a store keeps what was said sealed, beside the ids by which it finds it.

The keys of a session store lie in it as entries of a session of their own, each a key box; the newest one counts.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.agents.port import AgentMessage
from holdfast.agents.sessions.entry import EntryAuthor, SessionEntry, pack_entry, unpack_entry
from holdfast.agents.sessions.store import MAIN, SessionStore
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import CheckpointUntrusted

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.cipher import StoreCipher
    from holdfast.checkpoint.keys.keyring import Keyring

KEY_SESSION = "holdfast:keys"
"""The session in which a store keeps its own keys, wrapped by those of a keyring."""
_SEALED = "holdfast:sealed:"
"""Begins the text of the one message of a sealed entry."""
_STORE_ID = "sessions"
"""The place of session keys: the keys of each store are drawn by chance, so it need not be another for each."""


class EntrySeals:
    """Seals entries for one session store, and opens them again."""

    def __init__(self, store: SessionStore, keys: Keyring) -> None:
        from holdfast.checkpoint.keys.keyring import check_keys

        self._store, self._keys = store, check_keys(keys)
        self._cipher: StoreCipher | None = None

    async def seal(self, entry: SessionEntry) -> SessionEntry:
        """Return an entry as a store keeps it: its ids, the run, the time, and all else sealed in one message."""
        cipher = self._cipher or await self._unlock()
        sealed = cipher.run(entry.session_id).seal(_place(entry), pack_entry(entry).encode())
        return SessionEntry(
            entry.session_id,
            entry.thread,
            entry.entry_id,
            (AgentMessage("system", _SEALED + urlsafe_b64encode(sealed).decode()),),
            after=entry.after,
            rewinds=entry.rewinds,
            author=EntryAuthor(entry.author.run_id, entry.author.family),
            created=entry.created,
        )

    async def open(self, stored: SessionEntry) -> SessionEntry:
        """Return an entry as it was; raise ``CheckpointUntrusted`` if nobody with the keys sealed it for its place."""
        from holdfast.checkpoint.keys.cipher import NotSealed, UnknownEpoch

        cipher = self._cipher or await self._unlock()
        try:
            try:
                return _open(cipher, stored)
            except UnknownEpoch:  # perhaps the store was rekeyed
                return _open(await self._unlock(), stored)
        except NotSealed as error:
            raise CheckpointUntrusted(
                f"entry {stored.entry_id!r} of session {stored.session_id!r} is refused: {error}. Somebody without the "
                f"keys of this session store changed it or put it there, or it is damaged: restore it from a backup, "
                f"or delete the session"
            ) from error

    async def rekey(self, keys: Keyring) -> None:
        """Lock the store with another keyring from now on, and seal what is new with a new key."""
        from holdfast.checkpoint.keys.keyring import check_keys

        known = await self._unlock()
        boxes = await self._store.entries(KEY_SESSION)
        await self._add_box(known.keys.begin_epoch(), check_keys(keys), f"box-{len(boxes) + 1}")
        self._keys = keys
        await self._unlock()

    async def _unlock(self) -> StoreCipher:
        from holdfast.checkpoint.keys.cipher import StoreCipher
        from holdfast.checkpoint.keys.key_box import new_store_keys, open_box

        boxes = await self._store.entries(KEY_SESSION)
        if not boxes:
            is_used = await self._has_sessions()
            boxes = await self._store.entries(KEY_SESSION)  # another process may have been faster
            if is_used and not boxes:
                raise CheckpointUntrusted(
                    "the session store has sessions and no keys of its own: it was made without keys, or they were "
                    "removed. Open it without keys=, or restore it from a backup"
                )
        if not boxes:
            await self._add_box(new_store_keys(), self._keys, "box-1")
            boxes = await self._store.entries(KEY_SESSION)
        opened = partial(open_box, boxes[-1].messages[0].text, self._keys, _STORE_ID, "the session store")
        self._cipher = made = StoreCipher(await upkeep_threads.call(opened), _STORE_ID, "")
        return made

    async def _has_sessions(self) -> bool:
        """Tell whether anybody said something here, sealed or not."""
        try:
            staged = await self._store.staged()
        except CheckpointUntrusted:  # the store is asked as one without keys, and refuses what is sealed
            return True
        said = [entry for entry in staged if entry.session_id != KEY_SESSION]
        return bool(said or await self._store.sessions(limit=1))

    async def _add_box(self, keys: object, ring: Keyring, name: str) -> None:
        from holdfast.checkpoint.keys.key_box import StoreKeys, close_box

        assert isinstance(keys, StoreKeys)
        box = await upkeep_threads.call(partial(close_box, keys, ring, _STORE_ID))
        await self._store.stage(SessionEntry(KEY_SESSION, MAIN, name, (AgentMessage("system", box),)))
        await self._store.publish(KEY_SESSION, name)


async def seal_entry(seals: EntrySeals | None, entry: SessionEntry) -> SessionEntry:
    """Return an entry as a store keeps it, with keys or without."""
    return entry if seals is None else await seals.seal(entry)


async def open_entries(seals: EntrySeals | None, stored: list[SessionEntry]) -> list[SessionEntry]:
    """Return entries as they were given to a store."""
    if seals is not None:  # without those that hold its keys
        return [await seals.open(entry) for entry in stored if entry.session_id != KEY_SESSION]
    if any(map(_is_sealed, stored)):
        raise CheckpointUntrusted(
            "the session store is under keys, and none were given; open it with keys=Keyring.from_env(), or with the "
            "keyring that it was made with"
        )
    return stored


def _is_sealed(entry: SessionEntry) -> bool:
    said = entry.messages
    return len(said) == 1 and said[0].role == "system" and said[0].text.startswith(_SEALED)


def _place(entry: SessionEntry) -> bytes:
    return entry.entry_id.encode("utf-8", "surrogatepass")


def _open(cipher: StoreCipher, stored: SessionEntry) -> SessionEntry:
    from holdfast.checkpoint.keys.cipher import NotSealed, decode_piece

    if not _is_sealed(stored):
        raise NotSealed("it is not sealed")
    piece = decode_piece(stored.messages[0].text.removeprefix(_SEALED))
    opened = unpack_entry(cipher.run(stored.session_id).open(_place(stored), piece))
    # Where it stands is for the store to say; all else that it says beside the seal has to be true.
    opened = replace(opened, after=stored.after)
    if _plain_part(opened) != _plain_part(stored):
        raise NotSealed("what stands beside it was changed")
    return opened


def _plain_part(entry: SessionEntry) -> tuple[object, ...]:
    author = entry.author.run_id, entry.author.family
    return entry.session_id, entry.thread, entry.entry_id, entry.created, entry.rewinds, author
