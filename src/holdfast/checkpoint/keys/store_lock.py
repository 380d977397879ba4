"""The lock of a store under keys: its own keys, read from its key box, made there, and replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holdfast.checkpoint.keys.cipher import NotSealed, StoreCipher, UnknownEpoch
from holdfast.checkpoint.keys.key_box import close_box, new_store_keys, open_box
from holdfast.checkpoint.keys.keyring import Keyring
from holdfast.checkpoint.keys.sealed_items import untrusted
from holdfast.checkpoint.store import KEYS, RunQuery, Store, StoreInfo
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import CheckpointUntrusted

_T = TypeVar("_T")


class StoreLock:
    """Opens what a store holds with a keyring; ``cipher`` is None until the store is unlocked."""

    def __init__(self, inner: Store, keys: Keyring) -> None:
        self._inner = inner
        self.keyring = keys
        self.cipher: StoreCipher | None = None

    @property
    def name(self) -> str:
        """The store as errors call it."""
        path = getattr(self._inner, "path", None)
        return "the store in memory" if path is None else f"the store {str(path)!r}"

    async def unlock(self) -> StoreCipher:
        """Read the keys of the store, and make them if it is new."""
        info = await self._inner.open()
        if KEYS not in info.features:
            raise CheckpointUntrusted(
                f"{self.name} is not under keys, so nothing in it can be trusted; open it without keys=, or copy its "
                f"runs to a new store that has keys: 'await storage.copy_to(other)'"
            )
        box = await self._inner.key_box()
        if not box:
            box = await self._make_box(info)
        keys = await upkeep_threads.call(partial(open_box, box, self.keyring, info.store_id, self.name))
        known = self.cipher
        if known is None or known.keys != keys:
            namespace = getattr(self._inner, "namespace", "")
            self.cipher = known = StoreCipher(keys, info.store_id, namespace)
        return known

    async def rekey(self, keys: Keyring) -> None:
        """Lock the store with another keyring from now on, and seal new data with a new key, in one step."""
        while True:
            info, box = await self._inner.open(), await self._inner.key_box()
            known = await upkeep_threads.call(partial(open_box, box, self.keyring, info.store_id, self.name))
            closed = await upkeep_threads.call(partial(close_box, known.begin_epoch(), keys, info.store_id))
            if await self._inner.set_key_box(closed, box):
                break
        self.keyring = keys
        await self.unlock()

    async def _make_box(self, info: StoreInfo) -> str:
        if await self._inner.count_runs(RunQuery()):
            if box := await self._inner.key_box():  # another process was faster
                return box
            raise CheckpointUntrusted(
                f"the keys of {self.name} are gone, though it has runs; restore it from a backup"
            )
        make = partial(close_box, new_store_keys(), self.keyring, info.store_id)
        box = await upkeep_threads.call(make)
        if await self._inner.set_key_box(box, ""):
            return box
        return await self._inner.key_box()

    async def open_items(self, what: str, read: Callable[[StoreCipher], _T]) -> _T:
        """Return what ``read`` makes of sealed items; read the keys again if somebody rekeyed the store meanwhile."""
        cipher = self.cipher or await self.unlock()
        try:
            return read(cipher)
        except UnknownEpoch:
            cipher = await self.unlock()
            latest = StoreCipher(cipher.keys, cipher.store_id, cipher.namespace, is_latest=True)
            try:
                return read(latest)
            except NotSealed as error:
                raise untrusted(what, error) from error
        except NotSealed as error:
            raise untrusted(what, error) from error
