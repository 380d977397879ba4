"""The owner of a run: checks who drives it, takes it away, and says so when somebody else does.

One process at a time drives a run, and the store decides which. ``checkpoint/ownership.py`` knows which owners live. An
object that waits for its run says in ``run/wakeup.py`` that somebody else went on with it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias

from holdfast.checkpoint.ownership import (
    Claim,
    is_driven,
    is_held,
    process_of,
    this_process,
    wait_for_release,
)
from holdfast.checkpoint.store import Commit, Expected, Head, Store
from holdfast.checkpoint.write.event_rows import status_row
from holdfast.checkpoint.write.log import RunLog
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved, HoldfastError, RunPoisoned, RunTaken

if TYPE_CHECKING:
    from holdfast.runtime.durable.commit_queue import CommitQueue

MOST_TAKEOVERS = 5
"""The number of processes in a row that may die with a run before its next checkpoint; then it is given up."""

_MOST_TRIES = 200
"""The number of tries to take a run away from an owner that commits meanwhile; two to five are usual."""

StandStill: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Keeps the owner of a run in this event loop from committing for a while."""

# A note that was committed so lately says who drives the run as well as a read does, whose answer may be as old when it
# comes. A process that stood still meanwhile finds that more time has passed.
_CONFIRMED_SECONDS = 0.005


async def check_undriven(store: Store, head: Head, take_over: bool, resumed: str = "run_id=...") -> Head:
    """Return the head of a run that nobody drives; with ``take_over`` also of one that is driven.

    Raises ``RunTaken`` if another object or process drives the run, ``RunPoisoned`` if all that tried died.
    ``resumed`` is the argument of ``resume`` that the error shows.
    """
    if head.status is not RunStatus.RUNNING or take_over:
        return head
    if (
        process_of(head.owner) == this_process()
        and is_held(head.owner)
        and await wait_for_release(head.owner)
    ):
        head = await store.head(head.run_id) or head
    if await is_driven(store, head):
        raise RunTaken(
            f"run {head.run_id} is driven by {_name_owner(head.owner)}; wait until it is over, leave answers for it "
            f"with 'storage.respond', or take it away from there with 'workflow.resume({resumed}, take_over=True)'"
        )
    if head.takeovers >= MOST_TAKEOVERS:
        await _poison(store, head)
    return head


async def take_away(
    store: Store,
    looked_at: Head,
    claim: Claim,
    stand_still: StandStill,
    check: Callable[[], Awaitable[None]],
) -> bool:
    """Make a claim the owner of a run that moves; return True if the run moved since it was looked at.

    ``check`` raises if that is not to be, as far as can be told from the run as it stands.

    From then on its owner before commits nothing more, so that the run stands still for whoever goes on with it. To
    read all of a run first, and to become its owner with the first commit, would be too slow: an owner that lives
    commits again meanwhile. It may do so between the two calls here as well, but not every time; one in this event
    loop would, so it stands still for all tries but the first. That one waits for nobody: its commit may hang.
    """
    await store.join()
    owner = ""
    for number in range(_MOST_TRIES):
        async with stand_still() if number else nullcontext():
            head = await store.head(looked_at.run_id)
            if head is None or head.status is not RunStatus.RUNNING:  # perhaps it came to its end since
                known = (looked_at.checkpoint_id, looked_at.token, looked_at.status)
                return head is None or (head.checkpoint_id, head.token, head.status) != known
            await check()
            owner = head.owner
            taken = head._replace(token=head.token + 1, owner=claim.name)
            try:
                await store.commit(Commit(taken, Expected(head.checkpoint_id, head.token)))
            except HeadMoved:
                continue
            return True
    raise RunTaken(
        f"run {looked_at.run_id} is driven by {_name_owner(owner)}, which committed {_MOST_TRIES} times while the run "
        f"was to be taken away from there; try again, or stop it there"
    )


async def _poison(store: Store, head: Head) -> None:
    reason = (
        f"{head.takeovers} processes that took the run over died, or were killed, before its next checkpoint"
    )
    failed = head._replace(
        status=RunStatus.FAILED, token=head.token + 1, owner="", takeovers=0, reason=f"RunPoisoned: {reason}"
    )
    events = (await status_row(store, failed),)
    try:
        await store.commit(Commit(failed, Expected(head.checkpoint_id, head.token), events=events))
    except HeadMoved as error:
        raise RunTaken(f"run {head.run_id} was taken, or given up, by another process just now") from error
    raise RunPoisoned(
        f"run {head.run_id} is FAILED now: {reason}, so its next superstep probably kills whoever runs it (too much "
        f"memory, a crash in native code?). Find out why, then resume it once more, or from an earlier checkpoint"
    )


def _name_owner(owner: str) -> str:
    process = process_of(owner)
    if process == this_process():
        return (
            "another run object of this process ('workflow.start(..., if_exists=\"attach\")' gives that one)"
        )
    host, pid, _ = process.rsplit(":", 2) if process.count(":") >= 2 else (process, "?", "")
    return f"process {pid} on {host.rpartition('/')[2] or host}"


def run_taken(log: RunLog) -> RunTaken:
    """Return the error for a run that another process owns by now."""
    return RunTaken(
        f"run {log.run_id} was taken over, or cancelled, by someone else; what was done here since its "
        f"last checkpoint is not part of it. Let its new owner go on, or take it back with "
        f"'workflow.resume(run_id=..., take_over=True)'"
    )


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
