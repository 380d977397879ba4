"""Commits of one run, one after the other: waited for, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.log import RunLog
from holdfast.errors import HeadMoved, HoldfastError, RunTaken
from holdfast.runtime._async import run_uncancelled

T = TypeVar("T")


class Commits:
    """Makes commits, never two at a time. None of them is cut by a cancellation: what was committed counts."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self.behind = False
        """Whether a commit goes on in the background: what the run did last may yet come to nothing."""
        self.committed: Callable[[BaseException | None], None] = lambda error: None
        """Told when a commit in the background is over, and what it failed with."""
        self._under_way = False
        self._begun = 0
        """How many commits began so far."""
        self._waiting: list[asyncio.Future[None]] = []
        """Those who wait until no commit is under way."""
        self._heirs: set[asyncio.Future[None]] = set()
        """Those among them who let the run stand still then."""
        self._background: asyncio.Task[None] | None = None
        """What commits in the background; the event loop itself would let it go."""
        self._look: asyncio.Task[bool | HoldfastError] | None = None
        """What reads who drives the run, until it begins to."""
        self._in_any_task: bool = getattr(type(log.store), "in_any_task", False)
        self._cancelled: asyncio.CancelledError | None = None
        self._failure: BaseException | None = None
        """What a commit in the background failed with: nothing more can follow."""

    async def _idle(self) -> None:
        """Wait for commits that are under way: a run may be left while it commits."""
        while self._under_way:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ended)
            try:
                await ended
            except asyncio.CancelledError as error:
                self._be_cancelled(error)

    async def _sound(self) -> None:
        """The same; raises what a commit in the background failed with."""
        await self._idle()
        if self._failure is not None:
            raise self._failure

    async def _shielded(self, commit: Coroutine[Any, Any, T]) -> T:
        """Wait for a commit to end, also while being cancelled: what was committed counts.

        The cancellation is raised by ``raise_if_cancelled``, once the caller has taken what was committed.
        """
        if self._under_way:
            await self._idle()
        self._commit_begins()
        try:
            if self._in_any_task:
                return await run_uncancelled(commit, self._be_cancelled)
            task = asyncio.ensure_future(commit)
            await self._over(task)
            return task.result()
        except HeadMoved as error:
            meaning = self._meaning(error)
            raise meaning from meaning.__cause__
        finally:
            self._commit_ends()

    @asynccontextmanager
    async def stand_still(self) -> AsyncIterator[None]:
        """Let all further commits wait for a while."""
        if self._under_way:
            # Not as others wait, for the run would begin its next commit before this one is told that the last is over.
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self._heirs.add(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._commit_ends()
                raise
            finally:
                self._heirs.discard(turn)
        else:
            self._commit_begins()
        try:
            yield
        finally:
            self._commit_ends()

    def _commit_begins(self) -> None:
        self._under_way = True
        self._begun += 1

    def _commit_ends(self) -> None:
        self._under_way = False
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for ended in waiting:
                if ended not in self._heirs:
                    _tell(ended)
                elif self._under_way:
                    self._waiting.append(ended)
                elif not ended.done():
                    self._commit_begins()
                    ended.set_result(None)

    def _be_cancelled(self, error: asyncio.CancelledError) -> None:
        # Where it came from tells nobody anything, but would hold all that was used there.
        self._cancelled = error.with_traceback(None)

    async def _in_background(
        self, entries: Sequence[Entry], taken: Sequence[str], done: Callable[[Sequence[CheckpointInfo]], None]
    ) -> Sequence[CheckpointInfo]:
        """Give checkpoints their ids and let them be committed while the caller goes on; then ``done`` is told."""
        await self._sound()
        ready: asyncio.Future[Sequence[CheckpointInfo]] = asyncio.get_running_loop().create_future()
        self._commit_begins()
        task = self._background = asyncio.ensure_future(self._commit_behind(entries, taken, done, ready))
        await self._over(ready)
        made = ready.result()
        self.behind = not task.done()
        if self._failure is not None:
            raise self._failure
        return made

    async def _commit_behind(
        self,
        entries: Sequence[Entry],
        taken: Sequence[str],
        done: Callable[[Sequence[CheckpointInfo]], None],
        ready: asyncio.Future[Sequence[CheckpointInfo]],
    ) -> None:
        failure: BaseException | None = None
        try:
            prepared = await self.log.prepare(entries, taken)
            ready.set_result(prepared.made)
            await self._unless_taken(self.log.commit(prepared))
            done(prepared.made)
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
                return
            self._failure = failure = error
        finally:
            self._commit_ends()
        behind, self.behind = self.behind, False
        if behind:  # else whoever makes it will see for itself
            self.committed(failure)

    async def _unless_taken(self, commit: Awaitable[T]) -> T:
        """What a commit gives; one that another writer prevented raises ``RunTaken``."""
        try:
            return await commit
        except HeadMoved as error:
            meaning = self._meaning(error)
            raise meaning from meaning.__cause__

    def _meaning(self, error: BaseException) -> BaseException:
        """What a commit failed with, as those who drive a run are told it."""
        if not isinstance(error, HeadMoved) or not self.log.head.checkpoint_id:  # that of a run that begins
            return error
        taken = self._taken()
        taken.__cause__ = error
        return taken

    def _taken(self) -> RunTaken:
        return RunTaken(
            f"run {self.log.run_id} was taken over, or cancelled, by someone else; what was done here since its "
            f"last checkpoint is not part of it. Let its new owner go on, or take it back with "
            f"'workflow.resume(run_id=..., take_over=True)'"
        )

    async def check_owned(self) -> None:
        """Read from the store who drives the run; raise ``RunTaken`` if that is another by now.

        Reads, and syncs nothing: a commit in its place would leave the same window, from its end to what follows.
        Effects that begin together share one read, so that their results can share a commit.
        """
        if self._look is None:
            self._look = asyncio.ensure_future(self._is_owned())
        owned = await asyncio.shield(self._look)
        if isinstance(owned, HoldfastError):
            raise owned
        if not owned:
            raise self._taken()

    async def _is_owned(self) -> bool | HoldfastError:
        """Read who drives the run; give the error where that fails, for those who wait may be gone by then."""
        self._look = None  # who asks from now on must not be told what was read before
        try:
            return await self.log.is_owned()
        except HoldfastError as error:
            return error

    async def _over(self, future: asyncio.Future[Any]) -> None:
        while not future.done():
            # What asyncio.wait does, without its ceremony.
            ended = asyncio.get_running_loop().create_future()
            future.add_done_callback(partial(_tell, ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                self._be_cancelled(error)

    def raise_if_cancelled(self) -> None:
        """Be cancelled, if that was asked for during a commit."""
        cancelled, self._cancelled = self._cancelled, None
        if cancelled is not None:
            raise cancelled


def _tell(ended: asyncio.Future[None], _: object = None) -> None:
    if not ended.done():
        ended.set_result(None)
