"""The lock of a store under keys: its own keys, read from its key box, made there, and replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from holdfast.checkpoint.keys.cipher import NotSealed, StoreCipher, UnknownEpoch
from holdfast.checkpoint.keys.key_box import StoreKeys, close_box, new_store_keys, open_box
from holdfast.checkpoint.keys.keyring import Keyring
from holdfast.checkpoint.keys.sealed_items import untrusted
from holdfast.checkpoint.store import KEYS, RunQuery, Store, StoreInfo
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.errors import CheckpointUntrusted

_T = TypeVar("_T")


class StoreLock:
    """Opens what a store holds with a keyring; ``cipher`` is None until the store is unlocked."""

    def __init__(
        self, inner: Store, keys: Keyring, check: Callable[[str, Mapping[int, str]], None] | None = None
    ) -> None:
        """Make a lock; ``check`` is given the id of the store and the fingerprints of its keys, and may refuse them."""
        self._inner = inner
        self._check = check
        self.keyring = keys
        self.cipher: StoreCipher | None = None

    @property
    def name(self) -> str:
        """The store as errors call it."""
        path = getattr(self._inner, "path", None)
        return "the store in memory" if path is None else f"the store {str(path)!r}"

    async def unlock(self) -> StoreCipher:
        """Read the keys of the store, and make them if it is new."""
        info = await self._read_info()
        keys, _ = await self._read_keys(info)
        known = self.cipher
        if known is None or known.keys != keys:
            namespace = getattr(self._inner, "namespace", "")
            self.cipher = known = StoreCipher(keys, info.store_id, namespace)
        return known

    async def rekey(self, keys: Keyring) -> None:
        """Lock the store with another keyring from now on, and seal new data with a new key, in one step."""
        info = await self._read_info()
        while True:
            known, box = await self._read_keys(info)
            closed = await upkeep_threads.call(partial(close_box, known.begin_epoch(), keys, info.store_id))
            if await self._inner.set_key_box(closed, box):
                break
        self.keyring = keys
        await self.unlock()

    async def _read_info(self) -> StoreInfo:
        info = await self._inner.open()
        if KEYS not in info.features:
            raise CheckpointUntrusted(
                f"{self.name} is not under keys, so nothing in it can be trusted; open it without keys=, or copy its "
                f"runs to a new store that has keys: 'await storage.copy_to(other)'"
            )
        return info

    async def _read_keys(self, info: StoreInfo) -> tuple[StoreKeys, str]:
        """Return the keys of the store, and the box in which they lie; refuse those of an older copy."""
        keys, box = await self._open_box(info)
        try:
            self._check_keys(info, keys)
        except CheckpointUntrusted:  # unless somebody rekeyed the store after they were read
            keys, box = await self._open_box(info)
            self._check_keys(info, keys)
        return keys, box

    async def _open_box(self, info: StoreInfo) -> tuple[StoreKeys, str]:
        box = await self._inner.key_box() or await self._make_box(info)
        open_it = partial(open_box, box, self.keyring, info.store_id, self.name)
        return await upkeep_threads.call(open_it), box

    def _check_keys(self, info: StoreInfo, keys: StoreKeys) -> None:
        """Refuse keys without those that were there before: to rekey adds one, and takes none away."""
        if self.cipher is not None and not self.cipher.keys.epochs.items() <= keys.epochs.items():
            raise CheckpointUntrusted(
                f"{self.name} lacks keys that it had a moment ago: somebody put an older copy of them there, or keys "
                f"of their own; restore it from a backup"
            )
        if self._check is not None:
            self._check(info.store_id, keys.fingerprints)

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
