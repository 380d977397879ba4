"""Threads that make commits: those of many runs side by side, so that the system shares their syncs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from holdfast.checkpoint.store import Commit, Letter
from holdfast.checkpoint.threads import upkeep_threads
from holdfast.stores.common.worker_thread import PendingCall, WorkerThread, settle_calls
from holdfast.stores.file.open_files import most_runs_at_once
from holdfast.stores.file.run_file import PendingCommit
from holdfast.stores.file.run_lock import LockBusy

# They wait for the disk nearly all the time.
_THREADS = 8
_Call = PendingCall[Commit]


class CommitMaker(Protocol):
    """Makes commits, alone or together with others; waits for other processes only if it is told to be patient."""

    def make(self, commit: Commit, is_patient: bool, is_doubtful: bool) -> list[Letter]:
        """Make a commit and return the letters that wait; raise ``LockBusy``, having done nothing, if not patient.

        One that is doubtful may have been made already, by a thread that was interrupted.
        """
        ...

    def begin(self, commit: Commit) -> PendingCommit | None:
        """Write a commit without syncing it; None if it has to be made alone. Raises ``LockBusy``."""
        ...

    def finish(self, commit: Commit, pending: PendingCommit) -> list[Letter]:
        """Make a commit count that was synced, in the thread that began it; return the letters that wait."""
        ...


class CommitThreads:
    """Makes commits for coroutines. Of those that are asked for at once, one thread writes and several sync.

    So the system shares their syncs, and threads get in each other's way only where they wait for the disk anyway.
    """

    def __init__(self, maker: CommitMaker) -> None:
        self._maker = maker
        self._gathering: WorkerThread[Commit] = WorkerThread(
            "holdfast-file", self._make_in_thread, work_at_once=self._make_at_once
        )
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def commit(self, commit: Commit) -> Any:
        """Make a commit, and return the letters that wait."""
        return await self._gathering.call(commit)

    async def close(self) -> None:
        """Let the threads end when they have done what they were given so far, and wait for them."""
        await self._gathering.close()
        self._stop_others()
        await upkeep_threads.call(self._join_others)

    def _join_others(self) -> None:
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Let the threads end, without waiting."""
        self._gathering.stop()
        self._stop_others()

    def _stop_others(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _make_at_once(self, calls: list[_Call]) -> bool:
        """Make commits in the thread of the event loop, while nobody else needs it; leave large ones to threads."""
        if any(call.task.blobs for call in calls):
            return False
        if len(calls) > 1:
            for call in self._make_together(calls):
                call.postponed = True
            return True
        (call,) = calls
        try:
            call.result = self._maker.make(call.task, False, False)
        except LockBusy:
            return False
        except Exception as error:
            call.error = error
        return True

    def _make_in_thread(self, calls: list[_Call]) -> None:
        """Make commits together as far as that is possible, and the others each alone, in several threads."""
        alone = self._make_together(calls) if len(calls) > 1 else calls
        left = set(alone)
        done = [call for call in calls if call not in left]
        if done:
            settle_calls(done)
        share = -(-len(alone) // _THREADS)
        for begin in range(share, len(alone), share or 1):
            self._put(partial(self._make_each, alone[begin : begin + share]))
        if alone:
            self._make_each(alone[:share])

    def _make_together(self, calls: list[_Call]) -> list[_Call]:
        """Write lines one after the other, sync them side by side, then mark them as durable.

        Returns the calls that have to be made alone: those that bring much, or have to wait for another process.
        """
        alone: list[_Call] = []
        most = most_runs_at_once()
        for start in range(0, len(calls), most):
            batch = _Batch(self._maker)
            try:
                alone += [call for call in calls[start : start + most] if not batch.begin(call)]
                batch.sync(self._put)
                batch.finish()
            except BaseException as error:  # a signal
                batch.abandon(error)
                raise
        return alone

    def _put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if len(self._threads) < _THREADS:
            thread = threading.Thread(target=self._work, name="holdfast-file", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # who waits for the next one must not keep the last one alive

    def _make_each(self, calls: list[_Call]) -> None:
        """Make commits one after the other; those that have to wait for other processes come last."""
        later, done = [], []
        for call in calls:
            try:
                call.result = self._maker.make(call.task, False, call.doubtful)
                done.append(call)
            except LockBusy:
                later.append(call)
            except BaseException as error:
                call.error = error
                done.append(call)
        if done:
            settle_calls(done)
        for call in later:
            try:
                call.result = self._maker.make(call.task, True, call.doubtful)
            except BaseException as error:
                call.error = error
            settle_calls([call])


class _Batch:
    """Commits that are written one after the other, synced side by side, and then finished."""

    def __init__(self, maker: CommitMaker) -> None:
        self._maker = maker
        self._begun: list[tuple[_Call, PendingCommit]] = []

    def begin(self, call: _Call) -> bool:
        """Write a commit; return False if it has to be made alone."""
        if call.doubtful or call.postponed:
            return False
        try:
            pending = self._maker.begin(call.task)
        except LockBusy:
            return False
        except Exception as error:
            call.error = error
            return True
        if pending is None:
            return False
        self._begun.append((call, pending))
        return True

    def sync(self, put: Callable[[Callable[[], None]], None]) -> None:
        """Sync all lines, in this thread and in those to which ``put`` gives jobs.

        Not while lines are written: threads that come back from the disk would take turns with the one that writes.
        """
        pending = [one for _, one in self._begun]
        share = -(-len(pending) // _THREADS)
        synced: SimpleQueue[None] = SimpleQueue()
        others = range(share, len(pending), share or 1)
        for begin in others:
            put(partial(_sync_and_tell, pending[begin : begin + share], synced))
        _sync_all(pending[:share])
        for _ in others:
            synced.get()
        _sync_names([one for one in pending if one.begins_file and one.error is None])

    def finish(self) -> None:
        """Make the commits count that were synced."""
        for call, pending in self._begun:
            try:
                call.result = self._maker.finish(call.task, pending)
            except Exception as error:
                call.error = error

    def abandon(self, error: BaseException) -> None:
        """Let go of the locks that are still held; the next one who looks finds out what became of the lines."""
        for _, pending in self._begun:
            pending.abandon(error)


def _sync_names(pending: list[PendingCommit]) -> None:
    """Sync the names of new files, all of which lie in one folder."""
    if pending:
        pending[0].sync_name()
        for one in pending[1:]:
            one.error = pending[0].error


def _sync_and_tell(pending: list[PendingCommit], synced: SimpleQueue[None]) -> None:
    try:
        _sync_all(pending)
    finally:
        synced.put(None)


def _sync_all(pending: list[PendingCommit]) -> None:
    """Sync lines one after the other, when the system writes all of them already.

    Then one commit of the journal of the file system has the lengths of many files; else each sync needs another one.
    """
    for one in pending:
        one.begin_sync()
    for one in pending:
        one.sync()
