"""The commits of one run, one after the other: awaited, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import RunLog
from holdfast.errors import HeadMoved
from holdfast.runtime._async import run_uncancelled
from holdfast.runtime.durable.run_owner import run_taken

T = TypeVar("T")


class CommitQueue:
    """Makes the commits of one run, never two at a time.

    A cancellation cuts no commit, because what was committed counts. It is kept until ``raise_if_cancelled``, when the
    caller has taken note of what was committed.
    """

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self.busy = False
        """True while a commit is under way."""
        self.count = 0
        """The number of commits that began so far."""
        self.behind = False
        """True while a commit goes on in the background: the last superstep may yet come to nothing."""
        self.failure: BaseException | None = None
        """The error of a commit that nobody awaited; no other commit can follow it."""
        self.on_background_end: Callable[[BaseException | None], None] = lambda error: None
        """Called when a commit in the background is over, with its error if it failed."""
        self._waiting: list[asyncio.Future[None]] = []
        """Those who wait until no commit is under way."""
        self._next_holders: set[asyncio.Future[None]] = set()
        """Those of them who let all other commits wait then."""
        self._background: asyncio.Task[None] | None = None
        """The commit in the background; the event loop keeps only a weak reference to it."""
        # Its class must say so: an object that passes calls on to another store may do more than that one.
        self._in_any_task: bool = hasattr(type(log.store), "in_any_task") and bool(
            getattr(log.store, "in_any_task", False)
        )
        self._cancelled: asyncio.CancelledError | None = None

    async def idle(self) -> None:
        """Wait until no commit is under way."""
        while self.busy:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ended)
            try:
                await ended
            except asyncio.CancelledError as error:
                self._keep_cancellation(error)

    async def settle(self) -> None:
        """Wait until no commit is under way; raise if a commit that nobody awaited failed."""
        if self.busy:
            await self.idle()
        if self.failure is not None:
            raise self.failure

    async def run(self, commit: Coroutine[Any, Any, T]) -> T:
        """Make a commit and return its result; raise ``RunTaken`` if another process owns the run by now."""
        if self.busy:
            await self.idle()
        self._begin()
        try:
            if self._in_any_task:
                return await run_uncancelled(commit, self._keep_cancellation)
            task = asyncio.ensure_future(commit)
            await self.wait_for(task)
            return task.result()
        except HeadMoved as error:
            explained = self.explain(error)
            raise explained from explained.__cause__
        finally:
            self._end()

    @asynccontextmanager
    async def stand_still(self) -> AsyncIterator[None]:
        """Let all further commits wait until this context ends."""
        if self.busy:
            # Others who wait learn that the last commit is over after the run has begun its next one.
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._next_holders.add(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._end()
                raise
            finally:
                self._next_holders.discard(turn)
        else:
            self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        self.busy = True
        self.count += 1

    def _end(self) -> None:
        self.busy = False
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for ended in waiting:
                if ended not in self._next_holders:
                    _wake(ended)
                elif self.busy:
                    self._waiting.append(ended)
                elif not ended.done():
                    self._begin()
                    ended.set_result(None)

    async def run_in_background(
        self,
        entries: Sequence[CheckpointDraft],
        taken: Sequence[str],
        done: Callable[[Sequence[CheckpointInfo]], None],
    ) -> Sequence[CheckpointInfo]:
        """Give checkpoints their ids and commit them while the caller goes on; call ``done`` when they are durable."""
        await self.settle()
        ready: asyncio.Future[Sequence[CheckpointInfo]] = asyncio.get_running_loop().create_future()
        self._begin()
        task = self._background = asyncio.ensure_future(self._commit_behind(entries, taken, done, ready))
        await self.wait_for(ready)
        made = ready.result()
        self.behind = not task.done()
        if self.failure is not None:
            raise self.failure
        return made

    async def _commit_behind(
        self,
        entries: Sequence[CheckpointDraft],
        taken: Sequence[str],
        done: Callable[[Sequence[CheckpointInfo]], None],
        ready: asyncio.Future[Sequence[CheckpointInfo]],
    ) -> None:
        failure: BaseException | None = None
        try:
            prepared = await self._log.prepare(entries, taken)
            ready.set_result(prepared.made)
            await self.explaining(self._log.commit(prepared))
            done(prepared.made)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
                return
            self.failure = failure = error
        finally:
            self._end()
        behind, self.behind = self.behind, False
        if behind:  # else the caller of run_in_background sees for itself
            self.on_background_end(failure)

    async def explaining(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``; raise ``RunTaken`` if another process owns the run by now."""
        try:
            return await work
        except HeadMoved as error:
            explained = self.explain(error)
            raise explained from explained.__cause__

    def explain(self, error: BaseException) -> BaseException:
        """Return the error that the driver of a run gets for a commit that failed: ``RunTaken`` for ``HeadMoved``."""
        if not isinstance(error, HeadMoved) or not self._log.head.checkpoint_id:  # the run has yet to begin
            return error
        taken = run_taken(self._log)
        taken.__cause__ = error
        return taken

    async def wait_for(self, future: asyncio.Future[Any]) -> None:
        """Wait until a future is done, also while being cancelled."""
        while not future.done():
            # asyncio.wait does the same and costs more.
            ended = asyncio.get_running_loop().create_future()
            future.add_done_callback(partial(_wake, ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                self._keep_cancellation(error)

    def _keep_cancellation(self, error: asyncio.CancelledError) -> None:
        # Its traceback tells nobody anything, but would keep alive all that was used there.
        self._cancelled = error.with_traceback(None)

    def raise_if_cancelled(self) -> None:
        """Raise the cancellation that came during a commit, if one came."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled


def _wake(ended: asyncio.Future[None], _: object = None) -> None:
    if not ended.done():
        ended.set_result(None)
