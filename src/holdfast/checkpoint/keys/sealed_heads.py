"""The heads of a store under keys: read, compared with an anchor, and remembered for the next commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
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
from holdfast.errors import CheckpointUntrusted, HeadMoved
from holdfast.ids import RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import AnchorCheck

_POSITIONS = 10_000
"""The number of runs whose heads are remembered."""


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
            self._anchor.save(run_id, position.version)

    def leave_anchor(self, run_id: RunId, version: int | None) -> None:
        """Let the anchor forget a run that is about to be removed, or remember it again if that failed."""
        if self._anchor is not None:
            self._anchor.save(run_id, version)

    async def read(self, run_id: RunId) -> OpenedHead | None:
        anchor = self._anchor
        least = None if anchor is None else anchor.load(run_id)
        stored = await self._inner.head(run_id)
        if stored is None:
            self._positions.pop(run_id, None)
            if anchor is not None:
                anchor.check(run_id, None, least)
            return None
        opened = await self.open(stored)
        if stored.run_id != run_id:
            raise untrusted(f"the head of run {run_id!r}", NotSealed("it is that of another run"))
        if anchor is not None:
            anchor.check(run_id, opened.position.version, least)
        self.remember(run_id, opened.position)
        return opened

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
            if self._anchor is not None:
                self._anchor.check(run_id, None, self._anchor.load(run_id))
            return None
        position = self._positions.get(run_id)
        if anew or position is None or position[:2] != expected:
            opened = await self.read(run_id)
            position = None if opened is None else opened.position
        if position is None or position[:2] != expected:
            raise HeadMoved(_explain(run_id, expected, position))
        return position

    def load_anchor(self) -> Mapping[RunId, int]:
        return {} if self._anchor is None else self._anchor.runs()

    async def open_all(self, stored: Iterable[Head], least: Mapping[RunId, int]) -> OpenedHeads:
        """Open heads that were read after ``least`` was loaded from the anchor."""
        found = OpenedHeads([], [])
        if self._lock.cipher is None:
            await self._lock.unlock()  # an error of which is none of the heads
        for one in stored:
            try:
                opened = await self.open(one)
                if self._anchor is not None:
                    self._anchor.check(one.run_id, opened.position.version, least.get(one.run_id))
            except CheckpointUntrusted as error:
                found.refused.append(Damage(one.run_id, str(error)))
            else:
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

    def find_lost_runs(self, least: Mapping[RunId, int], there: Set[RunId | None]) -> list[Damage]:
        """Return the runs that an anchor remembers and the store does not have."""
        found: list[Damage] = []
        for run_id in sorted(set(least) - there):
            try:
                assert self._anchor is not None
                self._anchor.check(run_id, None, least[run_id])
            except CheckpointUntrusted as error:
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
