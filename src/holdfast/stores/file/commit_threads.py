"""Threads that make commits: those of many runs side by side, so that the system shares their syncs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from holdfast.checkpoint.store import Commit, Letter
from holdfast.stores.common.worker_thread import PendingCall, WorkerThread, settle_calls
from holdfast.stores.file.run_lock import LockBusy

# They wait for the disk nearly all the time.
_THREADS = 8
_Call = PendingCall[Commit]


class CommitThreads:
    """Makes commits for coroutines. What many runs ask for at once is spread over several threads.

    ``make`` makes a commit and returns the letters that wait; with ``patient`` false it raises ``LockBusy`` where it
    would have to wait for another process, and nothing happened. ``doubtful`` tells it that the commit may have been
    made already, by a thread that was interrupted.
    """

    def __init__(self, make: Callable[[Commit, bool, bool], list[Letter]]) -> None:
        self._make = make
        self._gathering: WorkerThread[Commit] = WorkerThread(
            "holdfast-file", self._spread, work_at_once=self._make_at_once
        )
        self._queue: SimpleQueue[list[_Call] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def commit(self, commit: Commit) -> Any:
        """Make a commit, and return the letters that wait."""
        return await self._gathering.call(commit)

    async def close(self) -> None:
        """Let the threads end when they have done what they were given so far, and wait for the first."""
        await self._gathering.close()
        self._stop_others()

    def stop(self) -> None:
        """Let the threads end, without waiting."""
        self._gathering.stop()
        self._stop_others()

    def _stop_others(self) -> None:
        for _ in self._threads:
            self._queue.put(None)

    def _make_at_once(self, calls: list[_Call]) -> bool:
        """Make a commit in the thread of the event loop, if it is the only one there is."""
        if len(calls) > 1 or calls[0].task.blobs:
            return False
        (call,) = calls
        try:
            call.result = self._make(call.task, False, False)
        except LockBusy:
            return False
        except Exception as error:
            call.error = error
        return True

    def _spread(self, calls: list[_Call]) -> None:
        """Give each thread its share; this one is the first."""
        share = -(-len(calls) // _THREADS)
        for begin in range(share, len(calls), share):
            self._put(calls[begin : begin + share])
        self._make_all(calls[:share])

    def _put(self, calls: list[_Call]) -> None:
        self._queue.put(calls)
        if len(self._threads) < _THREADS - 1:
            thread = threading.Thread(target=self._work, name="holdfast-file", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (calls := self._queue.get()) is not None:
            self._make_all(calls)
            del calls  # who waits for the next ones must not keep the last ones alive

    def _make_all(self, calls: list[_Call]) -> None:
        """Make commits one after the other; those that have to wait for other processes come last."""
        later, done = [], []
        for call in calls:
            try:
                call.result = self._make(call.task, False, call.doubtful)
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
                call.result = self._make(call.task, True, call.doubtful)
            except BaseException as error:
                call.error = error
            settle_calls([call])
