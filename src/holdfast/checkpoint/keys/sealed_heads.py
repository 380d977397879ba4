"""The heads of a store under keys: read, compared with an anchor, and remembered for the next commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from holdfast.checkpoint.keys.cipher import NotSealed
from holdfast.checkpoint.keys.sealed_items import (
    OpenedHead,
    SealedPosition,
    codes_of,
    digest_journal,
    open_head,
    untrusted,
)
from holdfast.checkpoint.keys.store_lock import StoreLock
from holdfast.checkpoint.store import Damage, Expected, Head, Note, Store
from holdfast.errors import CheckpointCorrupt, CheckpointUntrusted, HeadMoved
from holdfast.ids import RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import AnchorCheck

_POSITIONS = 10_000
"""The number of runs whose heads are remembered."""
_AT_A_TIME = 256
"""The number of heads that are opened before others have their turn."""


class OpenedHeads(NamedTuple):
    """Heads that could be opened, and those that are refused."""

    opened: list[OpenedHead]
    refused: list[Damage]


class SealedJournal(NamedTuple):
    """The sealed notes of a run, and the head that covers them."""

    opened: OpenedHead
    notes: Sequence[Note]


class SealedHeads:
    """Reads heads of a store, and knows those that were read or written last."""

    def __init__(self, inner: Store, lock: StoreLock, anchor: AnchorCheck | None) -> None:
        self._inner, self._lock, self._anchor = inner, lock, anchor
        self._positions: dict[RunId, SealedPosition] = {}

    def forget(self, run_id: RunId | None = None) -> None:
        """Forget the head of a run, or all."""
        if run_id is None:
            self._positions.clear()
        else:
            self._positions.pop(run_id, None)

    def moved(self, run_id: RunId, position: SealedPosition) -> None:
        """Remember a head that is durable now."""
        self._positions[run_id] = position
        if self._anchor is not None:
            self._anchor.moved(run_id, position.version)

    def may_go(self, run_id: RunId, version: int) -> None:
        """Let the anchor know that a run which stands there is about to be removed."""
        if self._anchor is not None:
            self._anchor.may_go(run_id, version)

    def gone(self, run_id: RunId, version: int) -> None:
        """Forget a run that was removed; the anchor does not."""
        self.forget(run_id)
        if self._anchor is not None:
            self._anchor.gone(run_id, version)

    def first_version(self, run_id: RunId) -> int:
        """Return the version of a run that begins: behind those of an earlier run of its id, if they are known."""
        return 1 if self._anchor is None else self._anchor.last_version(run_id) + 1

    async def read(self, run_id: RunId) -> OpenedHead | None:
        """Return the head of a run; raise ``CheckpointUntrusted`` if it is refused, or an anchor misses a newer one."""
        if self._anchor is None:
            return await self._look(run_id)
        if self._lock.cipher is None:
            await self._lock.unlock()  # the anchor may be that of another store
        while True:
            least = self._anchor.load(run_id)
            opened = await self._look(run_id)
            version = None if opened is None else opened.position.version
            if self._anchor.accepts(version, least):
                if opened is None:
                    self._anchor.missing(run_id, least)
                return opened
            if least is not None and self._anchor.load(run_id) == least:  # else it was changed meanwhile
                self.forget(run_id)
                raise self._anchor.refusal(run_id, version, least)

    async def _look(self, run_id: RunId) -> OpenedHead | None:
        stored = await self._inner.head(run_id)
        if stored is None:
            self._positions.pop(run_id, None)
            return None
        opened = await self.open(stored)
        if stored.run_id != run_id:
            raise untrusted(f"the head of run {run_id!r}", NotSealed("it is that of another run"))
        self.remember(run_id, opened.position)
        return opened

    async def find_incarnation(self, run_id: RunId) -> bytes | None:
        """Return the incarnation that a run had when its head was read or written last; None if there is no run."""
        position, anchor = self._positions.get(run_id), self._anchor
        if position is None or (
            anchor is not None and not anchor.accepts(position.version, anchor.load(run_id))
        ):
            opened = await self.read(run_id)
            position = None if opened is None else opened.position
        return None if position is None else position.incarnation

    async def open(self, stored: Head) -> OpenedHead:
        return await self._lock.open_items(
            f"the head of run {stored.run_id!r}",
            lambda cipher: open_head(cipher.run(stored.run_id), stored),
        )

    def remember(self, run_id: RunId, position: SealedPosition) -> None:
        known = self._positions.get(run_id)
        if known is not None and known[:2] == position[:2] and known.version > position.version:
            return  # a commit was made while this was read
        if known is not None and known.notes is not None and position.journal == known.journal:
            position = position._replace(notes=known.notes)
        if len(self._positions) >= _POSITIONS:
            self._positions.clear()
        self._positions[run_id] = position

    async def find_position(
        self, run_id: RunId, expected: Expected | None, anew: bool = False
    ) -> SealedPosition | None:
        """Return the position of a run that stands where a writer expects it; raise ``HeadMoved`` if it does not.

        With ``anew`` it is read, for the one that is remembered turned out to be old.
        """
        if expected is None:
            if self._anchor is not None and not self._anchor.accepts(None, self._anchor.load(run_id)):
                await self.read(run_id)  # somebody removed it, or was faster
            return None
        position = self._positions.get(run_id)
        if anew or position is None or position[:2] != expected:
            opened = await self.read(run_id)
            position = None if opened is None else opened.position
        if position is None or position[:2] != expected:
            raise HeadMoved(_explain(run_id, expected, position))
        return position

    async def open_all(self, stored: Iterable[Head]) -> OpenedHeads:
        """Open heads that were read just now."""
        found = OpenedHeads([], [])
        if self._lock.cipher is None:
            await self._lock.unlock()  # an error of which is none of the heads
        for number, one in enumerate(stored, 1):
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)  # others are not kept waiting while a large store is listed
            run_id = one.run_id
            try:
                opened: OpenedHead | None = await self.open(one)
                if self._anchor is not None:
                    assert opened is not None
                    if not self._anchor.accepts(opened.position.version, self._anchor.load(run_id)):
                        opened = await self.read(run_id)  # perhaps it was only moved on meanwhile
            except CheckpointUntrusted as error:
                found.refused.append(Damage(run_id, str(error)))
            else:
                if opened is not None:
                    found.opened.append(opened)
        return found

    async def read_journal(self, run_id: RunId) -> SealedJournal | None:
        """Read the sealed notes of a run with the head that covers them; None if there is no such run.

        Raise ``CheckpointUntrusted`` if notes are missing or were added: not only because the run moved meanwhile.
        """
        before = await self.read(run_id)
        while before is not None:
            notes = await self._inner.notes(run_id)
            digest = digest_journal(codes_of(notes))
            if digest == before.position.journal:
                return SealedJournal(before, notes)
            after = await self.read(run_id)
            if after is not None and after.position.version == before.position.version:
                raise _other_notes(run_id)
            before = after
        return None

    async def find_lost_runs(self, there: Set[RunId | None]) -> list[Damage]:
        """Return the runs that an anchor remembers and the store does not have."""
        found: list[Damage] = []
        for run_id in () if self._anchor is None else sorted(self._anchor.runs() - there):
            try:
                await self.read(run_id)
            except CheckpointCorrupt as error:
                found.append(Damage(run_id, str(error)))
        return found


def _explain(run_id: RunId, expected: Expected, position: SealedPosition | None) -> str:
    where = "is not there"
    if position is not None:
        where = f"stands at checkpoint {position.checkpoint_id[:12]} (token {position.token})"
    return (
        f"run {run_id!r} {where}, but its writer left it at checkpoint {expected.checkpoint_id[:12]} "
        f"(token {expected.token}); nothing was written. Another writer moved it on or removed it: this one must stop, "
        f"or resume from where the run stands now"
    )


def _other_notes(run_id: RunId) -> CheckpointUntrusted:
    return untrusted(
        f"the journal of run {run_id!r}", NotSealed("its head says that it has other notes than are there")
    )
