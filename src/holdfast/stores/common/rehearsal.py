"""Rehearsals: a copy of a store on which a repair is tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, cast

from holdfast.checkpoint.store import Rehearsal, Store
from holdfast.ids import Digest, RunId


class _RehearsalStore:
    """A copy of a store that takes blobs and living processes from the original; all else it has itself."""

    def __init__(self, copy: Store, original: Store) -> None:
        self._copy, self._original = copy, original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copy, name)

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        here = await self._copy.blobs(family, digests)
        missing = [digest for digest in digests if digest not in here]
        return {**await self._original.blobs(family, missing), **here} if missing else here

    async def living(self, processes: Collection[str]) -> Set[str]:
        return await self._original.living(processes)


def make_rehearsal(copy: Store, original: Store, its_path: str, path: str) -> Rehearsal:
    """Return a rehearsal on a copy; texts about it name the path of the original."""
    return Rehearsal(cast(Store, _RehearsalStore(copy, original)), lambda text: text.replace(its_path, path))
