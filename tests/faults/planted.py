"""Bugs on purpose: each test of faults must find those that it is there for.

A child plants one in itself before it does anything; it is gone with the child.
"""

import asyncio
import os
import time
from collections.abc import Collection, Sequence, Set
from pathlib import Path
from typing import Any

from holdfast import CheckpointStorage, Host, Run, RunStatus, Store
from holdfast.errors import HeadMoved
from holdfast.runtime.durable import stored_runs
from holdfast.runtime.run.wakeup import Alarm
from holdfast.runtime.step.context import TurnContext
from holdfast.stores.file import run_lock
from holdfast.stores.file.line import LineDraft
from holdfast.stores.file.line_file import LineFile
from tests.support.durable import Wrapped, storage_at
from tests.support.parts import Commit, Expected, Head, LeaveResult, Letter, Note, Recorder, RunId


class Hasty(Wrapped):
    """Acknowledges notes at once and makes them durable 20 ms later."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._waiting: list[Commit] = []
        self._flushing: asyncio.Task[None] | None = None

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if commit.records or not commit.notes:
            await self._flushed()
            return await self.inner.commit(commit)
        self._waiting.append(commit)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return await self.inner.inbox(commit.head.run_id)

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(0.02)
            waiting, self._waiting = self._waiting, []
            for commit in waiting:
                await self.inner.commit(commit)

    async def _flushed(self) -> None:
        if self._flushing is not None:
            await self._flushing

    async def close(self) -> None:
        await self._flushed()
        await self.inner.close()


class NoJournal(Wrapped):
    """Lets a run go on as if nothing of its superstep had been done."""

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        return ()


class AnyToken(Wrapped):
    """Takes every commit of a run that is there, whoever took the run since."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        head = await self.inner.head(commit.head.run_id)
        if head is not None and commit.expected is not None:
            commit = commit._replace(expected=Expected(head.checkpoint_id, head.token))
        return await self.inner.commit(commit)


class AnyTokenAtLast(AnyToken):
    """The same, also for two that commit at the same moment."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        while True:
            try:
                return await super().commit(commit)
            except HeadMoved:
                if commit.expected is None:
                    raise


class NoCount(Wrapped):
    """Forgets how often a run was taken over."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await self.inner.commit(commit._replace(head=commit.head._replace(takeovers=0)))


class CountsOn(Wrapped):
    """Counts takeovers until the next checkpoint, whatever the journal says."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        head = await self.inner.head(commit.head.run_id)
        if head is not None and not commit.records:
            most = max(head.takeovers, commit.head.takeovers)
            commit = commit._replace(head=commit.head._replace(takeovers=most))
        return await self.inner.commit(commit)


class KeepsLetters(Wrapped):
    """Leaves letters in the inbox that were taken."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        return await self.inner.commit(commit._replace(taken=()))


class ManyAnswers(Wrapped):
    """Says that letters were left, also where their keys had been used."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        left = await self.inner.leave(run_id, since, letters)
        return LeaveResult(left.head)


class HastyLetters(Wrapped):
    """Acknowledges letters at once and leaves them 20 ms later."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        self._leaving = asyncio.create_task(self._leave(run_id, since, letters))
        return LeaveResult(await self.inner.head(run_id))

    async def _leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> None:
        await asyncio.sleep(0.02)
        await self.inner.leave(run_id, since, letters)


class NobodyLives(Wrapped):
    """Believes of every other process that it is dead."""

    async def living(self, processes: Collection[str]) -> Set[str]:
        return frozenset()


def _other_keys() -> None:
    """Give an effect that is repeated in another process another key."""
    genuine: Any = TurnContext.idempotency_key
    TurnContext.idempotency_key = property(  # type: ignore[assignment, method-assign]
        lambda self: f"{genuine.fget(self)}-{os.getpid()}"
    )


def _no_look() -> None:
    """Let an effect happen without looking who drives the run by now."""

    async def check_owned(self: Recorder) -> None:
        pass

    Recorder.check_owned = check_owned  # type: ignore[method-assign]


def _forget_runs() -> None:
    """Let a host pass over one sleeping run in a hundred, which no alarm of its own wakes either."""
    genuine = Host._may_begin

    def may_begin(self: Host, head: Head) -> bool:
        is_forgotten = head.status is RunStatus.WAITING and head.run_id.endswith("17")
        return genuine(self, head) and not is_forgotten

    Host._may_begin = may_begin  # type: ignore[method-assign]
    Alarm.set = lambda self, time: None  # type: ignore[method-assign]


def _wake_twice() -> None:
    """Let a host wake each run twice, and nobody stop it."""
    genuine = Host._begin

    def begin(self: Host, head: Head) -> bool:
        return genuine(self, head) and genuine(self, head)

    async def free(store: Store, head: Head, take_over: bool, resumed: str = "") -> Head:
        return head

    Host._begin = begin  # type: ignore[method-assign]
    vars(stored_runs)["check_undriven"] = free


def _hold_runs() -> None:
    """Keep all runs that sleep in memory."""
    genuine, held = Run.driven, []

    async def driven(self: Run) -> None:
        held.append(self)
        await genuine(self)

    Run.driven = driven  # type: ignore[method-assign]


def _no_lock() -> None:
    """Let several write to the file of a run at a time; each takes its time."""
    genuine = LineFile.append

    def append(self: LineFile, held: run_lock.HeldLock, draft: LineDraft) -> None:
        time.sleep(0.02)
        genuine(self, held, draft)

    run_lock.try_lock = lambda handle: True
    LineFile.append = append  # type: ignore[method-assign]


_AROUND_STORE = {
    "hasty": Hasty,
    "no-journal": NoJournal,
    "any-token": AnyToken,
    "no-count": NoCount,
    "counts-on": CountsOn,
    "keeps-letters": KeepsLetters,
    "many-answers": ManyAnswers,
    "hasty-letters": HastyLetters,
    "nobody-lives": NobodyLives,
    "wakes-twice": AnyTokenAtLast,
}
_IN_PROCESS = {
    "other-keys": _other_keys,
    "no-look": _no_look,
    "forgets-runs": _forget_runs,
    "wakes-twice": _wake_twice,
    "holds-runs": _hold_runs,
    "no-lock": _no_lock,
}
PLANTED = list(dict.fromkeys([*_AROUND_STORE, *_IN_PROCESS]))


def opened(kind: str, folder: Path, planted: str = "") -> CheckpointStorage:
    """The storage of this kind, with a bug if one is named."""
    storage = storage_at(kind, folder)
    if planted in _IN_PROCESS:
        _IN_PROCESS[planted]()
    if planted in _AROUND_STORE:
        return CheckpointStorage(_AROUND_STORE[planted](storage.store))
    return storage
