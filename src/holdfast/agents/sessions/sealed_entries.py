"""Session entries under keys: a store keeps what was said sealed, beside the ids by which it finds it.

An entry is sealed for the one that it follows, so nobody without the keys can change the order of a conversation. It is
sealed anew when it is published, which may be after another one; so one that is staged only cannot pass for it.
The keys of a session store lie in it as entries of a session of their own, each a key box; the newest one counts.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from holdfast.agents.port import AgentMessage
from holdfast.agents.sessions.entry import (
    EntryAuthor,
    PlaceEntry,
    SessionEntry,
    StoredEntry,
    pack_entry,
    place_entry,
    unpack_entry,
)
from holdfast.agents.sessions.store import MAIN, SessionStore
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import CheckpointUntrusted, InvalidArgument

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.cipher import StoreCipher
    from holdfast.checkpoint.keys.key_box import StoreKeys
    from holdfast.checkpoint.keys.keyring import Keyring

T = TypeVar("T")

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
        """Return an entry as a store keeps it aside: its ids, the run, the time, and all else sealed in one message."""
        check_not_keys(self, entry.session_id)
        return _seal(self._cipher or await self._unlock(), StoredEntry(entry, False))

    async def open(self, stored: list[StoredEntry]) -> list[SessionEntry]:
        """Return entries as they were; raise ``CheckpointUntrusted`` if one was not sealed for its place."""

        async def open_all(cipher: StoreCipher) -> list[SessionEntry]:
            return [_open(cipher, one) for one in stored if one.entry.session_id != KEY_SESSION]

        return await self._with_cipher(open_all)

    async def publish(self, publish: Callable[[PlaceEntry], Awaitable[T]]) -> T:
        """Let a store publish entries, each sealed anew for the place that it gets."""

        async def publish_with(cipher: StoreCipher) -> T:
            def place(stored: SessionEntry, after: str | None) -> SessionEntry:
                entry = _open(cipher, StoredEntry(stored, False))
                return _seal(cipher, StoredEntry(place_entry(entry, after), True))

            return await publish(place)

        return await self._with_cipher(publish_with)

    async def _with_cipher(self, work: Callable[[StoreCipher], Awaitable[T]]) -> T:
        from holdfast.checkpoint.keys.cipher import StoreCipher, UnknownEpoch

        try:
            return await work(self._cipher or await self._unlock())
        except UnknownEpoch:  # perhaps the store was rekeyed
            return await work(StoreCipher((await self._unlock()).keys, _STORE_ID, "", is_latest=True))

    async def rekey(self, keys: Keyring) -> None:
        """Lock the store with another keyring from now on, and seal what is new with a new key."""
        from holdfast.checkpoint.keys.keyring import check_keys

        check_keys(keys)
        number = 0
        while True:
            boxes = await self._boxes()
            if len(boxes) < number:  # nobody else added the one that could not be added
                raise CheckpointUntrusted(
                    f"the session store has {len(boxes)} of its {number} key boxes: somebody cut them off, or it is "
                    f"damaged; restore it from a backup"
                )
            known, number = await self._open_box(boxes[-1]), len(boxes) + 1
            if await self._add_box(known.begin_epoch(), keys, number):
                break
        self._keys = keys
        await self._unlock()

    async def _unlock(self) -> StoreCipher:
        from holdfast.checkpoint.keys.cipher import StoreCipher

        boxes = await self._boxes()
        self._cipher = made = StoreCipher(await self._open_box(boxes[-1]), _STORE_ID, "")
        return made

    async def _boxes(self) -> list[str]:
        """Return the key boxes of the store, oldest first; make the first one if the store is new."""
        from holdfast.checkpoint.keys.key_box import new_store_keys

        if boxes := await self._read_boxes():
            return boxes
        is_used = await self._has_sessions()
        boxes = await self._read_boxes()  # another process may have been faster
        if is_used and not boxes:
            raise CheckpointUntrusted(
                "the session store has sessions and no keys of its own: it was made without keys, or they were "
                "removed. Open it without keys=, or restore it from a backup"
            )
        if not boxes:
            await self._add_box(new_store_keys(), self._keys, 1)
            boxes = await self._read_boxes()
        return boxes

    async def _read_boxes(self) -> list[str]:
        return [entry.messages[0].text for entry in await self._store.entries(KEY_SESSION)]

    async def _open_box(self, box: str) -> StoreKeys:
        from holdfast.checkpoint.keys.key_box import open_box

        opened = partial(open_box, box, self._keys, _STORE_ID, "the session store")
        return await upkeep_threads.call(opened)

    async def _add_box(self, keys: StoreKeys, ring: Keyring, number: int) -> bool:
        """Add a box behind the others; return False if somebody else added the one of that number."""
        from holdfast.checkpoint.keys.key_box import close_box

        box, name = await upkeep_threads.call(partial(close_box, keys, ring, _STORE_ID)), f"box-{number}"
        await self._store.stage(SessionEntry(KEY_SESSION, MAIN, name, (AgentMessage("system", box),)))
        await self._store.publish(KEY_SESSION, name)
        boxes = await self._read_boxes()
        return len(boxes) >= number and boxes[number - 1] == box

    async def _has_sessions(self) -> bool:
        """Tell whether anybody said something here, sealed or not."""
        try:
            staged = await self._store.staged()
        except CheckpointUntrusted:  # the store is asked as one without keys, and refuses what is sealed
            return True
        said = [entry for entry in staged if entry.session_id != KEY_SESSION]
        return bool(said or await self._store.sessions(limit=1))


async def seal_entry(seals: EntrySeals | None, entry: SessionEntry) -> SessionEntry:
    """Return an entry as a store keeps it, with keys or without."""
    return entry if seals is None else await seals.seal(entry)


async def open_entries(seals: EntrySeals | None, stored: list[StoredEntry]) -> list[SessionEntry]:
    """Return entries as they were given to a store, without those that hold its keys."""
    if seals is not None:
        return await seals.open(stored)
    if any(_is_sealed(one.entry) for one in stored):
        raise CheckpointUntrusted(
            "the session store is under keys, and none were given; open it with keys=Keyring.from_env(), or with the "
            "keyring that it was made with"
        )
    return [one.entry for one in stored]


async def publish_placed(seals: EntrySeals | None, publish: Callable[[PlaceEntry], Awaitable[T]]) -> T:
    """Let a store publish entries, with keys or without."""
    return await publish(place_entry) if seals is None else await seals.publish(publish)


def check_not_keys(seals: EntrySeals | None, session_id: str) -> None:
    """Raise for the session in which a store under keys has its keys: nobody can talk there, or delete it."""
    if seals is not None and session_id == KEY_SESSION:
        raise InvalidArgument(
            f"the session {KEY_SESSION!r} holds the keys of the session store; choose another session id"
        )


def _is_sealed(entry: SessionEntry) -> bool:
    said = entry.messages
    return len(said) == 1 and said[0].role == "system" and said[0].text.startswith(_SEALED)


def _place(stored: StoredEntry) -> bytes:
    """Return what a seal is bound to, besides the session: the entry, the one before it, and if it is published."""
    return json.dumps([stored.entry.entry_id, stored.entry.after, stored.is_published]).encode()


def _seal(cipher: StoreCipher, opened: StoredEntry) -> SessionEntry:
    entry = opened.entry
    sealed = cipher.run(entry.session_id).seal(_place(opened), pack_entry(entry).encode())
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


def _open(cipher: StoreCipher, stored: StoredEntry) -> SessionEntry:
    from holdfast.checkpoint.keys.cipher import NotSealed, UnknownEpoch, decode_piece

    entry = stored.entry
    try:
        if not _is_sealed(entry):
            raise NotSealed("it is not sealed")
        piece = decode_piece(entry.messages[0].text.removeprefix(_SEALED))
        opened = unpack_entry(cipher.run(entry.session_id).open(_place(stored), piece))
        if _plain_part(opened) != _plain_part(entry):
            raise NotSealed("what stands beside it was changed")
    except UnknownEpoch:
        raise
    except NotSealed as error:
        raise CheckpointUntrusted(
            f"entry {entry.entry_id!r} of session {entry.session_id!r} is refused: {error}. Somebody without the keys "
            f"of this session store changed it, put it there or in another order, or it is damaged: restore it from a "
            f"backup, or delete the session"
        ) from error
    return opened


def _plain_part(entry: SessionEntry) -> tuple[object, ...]:
    author = entry.author.run_id, entry.author.family
    return entry.session_id, entry.thread, entry.entry_id, entry.after, entry.created, entry.rewinds, author
