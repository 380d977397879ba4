"""Who may go on with a run: one process at a time, and the store decides which."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeAlias

from holdfast.checkpoint.ownership import (
    Claim,
    is_driven,
    is_held,
    process_of,
    this_process,
    wait_for_release,
)
from holdfast.checkpoint.store import Commit, Expected, Head, Store
from holdfast.engine.status import RunStatus
from holdfast.errors import HeadMoved, RunPoisoned, RunTaken

MOST_TAKEOVERS = 5
"""So many processes may die with a run, one after the other, none of them reaching its next checkpoint."""

_MOST_TRIES = 200
"""So often a take-over is tried anew, while an owner in another process commits; it takes two to five, as a rule."""

StandStill: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Lets the owner of a run in this event loop commit nothing for a while."""


async def free_to_drive(store: Store, head: Head, take_over: bool, resumed: str = "run_id=...") -> Head:
    """Where the run stands when nobody drives it, or when ``take_over`` says that this does not matter.

    Raises ``RunTaken`` if another goes on with the run, ``RunPoisoned`` if all who tried died. ``resumed`` is how
    ``resume`` is told what is wanted, for the error.
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
            f"run {head.run_id} is driven by {_shown(head.owner)}; wait until it is over, leave answers for it with "
            f"'storage.respond', or take it away from there with 'workflow.resume({resumed}, take_over=True)'"
        )
    if head.takeovers >= MOST_TAKEOVERS:
        await _poison(store, head)
    return head


async def take_away(store: Store, looked_at: Head, claim: Claim, stand_still: StandStill) -> bool:
    """Make a claim the owner of a run that moves, where it stands; whether it stands otherwise than it was looked at.

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
            owner = head.owner
            taken = head._replace(token=head.token + 1, owner=claim.name)
            try:
                await store.commit(Commit(taken, Expected(head.checkpoint_id, head.token)))
            except HeadMoved:
                continue
            return True
    raise RunTaken(
        f"run {looked_at.run_id} is driven by {_shown(owner)}, which committed {_MOST_TRIES} times while the run was "
        f"to be taken away from there; try again, or stop it there"
    )


async def _poison(store: Store, head: Head) -> None:
    reason = (
        f"{head.takeovers} processes that took the run over died, or were killed, before its next checkpoint"
    )
    failed = head._replace(
        status=RunStatus.FAILED, token=head.token + 1, owner="", takeovers=0, reason=f"RunPoisoned: {reason}"
    )
    try:
        await store.commit(Commit(failed, Expected(head.checkpoint_id, head.token)))
    except HeadMoved as error:
        raise RunTaken(f"run {head.run_id} was taken, or given up, by another process just now") from error
    raise RunPoisoned(
        f"run {head.run_id} is FAILED now: {reason}, so its next superstep probably kills whoever runs it (too much "
        f"memory, a crash in native code?). Find out why, then resume it once more, or from an earlier checkpoint"
    )


def _shown(owner: str) -> str:
    process = process_of(owner)
    if process == this_process():
        return (
            "another run object of this process ('workflow.start(..., if_exists=\"attach\")' gives that one)"
        )
    host, pid, _ = process.rsplit(":", 2) if process.count(":") >= 2 else (process, "?", "")
    return f"process {pid} on {host.rpartition('/')[2] or host}"
