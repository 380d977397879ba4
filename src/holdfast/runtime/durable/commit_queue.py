"""The commits of one run, one after the other: awaited, or in the background; and whether they still may be made."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from holdfast.checkpoint.checkpoint_info import CheckpointInfo
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import RunLog
from holdfast.errors import HeadMoved, HoldfastError, RunTaken
from holdfast.runtime._async import run_uncancelled

T = TypeVar("T")
# A note that was committed so lately says who drives the run as well as a read does, whose answer may be as old when it
# comes. A process that stood still meanwhile finds that more time has passed.
_CONFIRMED_SECONDS = 0.005


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


def run_taken(log: RunLog) -> RunTaken:
    """Return the error for a run that another process owns by now."""
    return RunTaken(
        f"run {log.run_id} was taken over, or cancelled, by someone else; what was done here since its "
        f"last checkpoint is not part of it. Let its new owner go on, or take it back with "
        f"'workflow.resume(run_id=..., take_over=True)'"
    )


def _wake(ended: asyncio.Future[None], _: object = None) -> None:
    if not ended.done():
        ended.set_result(None)


class OwnerCheck:
    """Reads from the store who drives a run.

    It syncs nothing: a commit in its place would leave the same window, from its end to what follows. So where the note
    of the effect before was committed right now, nothing is read. Effects that begin together share one read, so that
    their results can share a commit.
    """

    def __init__(self, log: RunLog, commits: CommitQueue) -> None:
        self._log = log
        self._commits = commits
        self._read: asyncio.Task[bool | HoldfastError] | None = None
        """The read that is about to begin."""
        self._confirmed = 0
        """The number of the commit of the last note, which the store refuses to whoever does not drive the run."""
        self._confirmed_at = -math.inf

    def confirm(self) -> None:
        """Take note that a note was committed right now."""
        if not self._commits.busy:  # else another commit began, and the last number is that of this one
            self._confirmed, self._confirmed_at = self._commits.count, monotonic()

    async def check(self) -> None:
        """Raise ``RunTaken`` if another process drives the run by now."""
        if self._is_confirmed():
            return
        if self._read is None:
            self._read = asyncio.ensure_future(self._is_owned())
        owned = await asyncio.shield(self._read)
        if isinstance(owned, HoldfastError):
            raise owned
        if not owned:
            raise run_taken(self._log)

    def _is_confirmed(self) -> bool:
        """Return True if a note was committed right now, and nothing since: a later commit may give the run up."""
        is_fresh = monotonic() - self._confirmed_at < _CONFIRMED_SECONDS
        return is_fresh and self._confirmed == self._commits.count

    async def _is_owned(self) -> bool | HoldfastError:
        """Return True if this process owns the run, or the error: those who wait for it may be gone by then."""
        self._read = None  # who asks from now on needs a read that begins later
        try:
            return await self._log.is_owned()
        except HoldfastError as error:
            return error
