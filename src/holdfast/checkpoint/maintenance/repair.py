"""Repairing a storage: what can be saved is saved, and what cannot is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import cast

from holdfast.checkpoint.counters import Counters
from holdfast.checkpoint.maintenance.problems import Problem, briefly
from holdfast.checkpoint.maintenance.salvage import Planned, PlannedBlobs, Salvage, Step
from holdfast.checkpoint.maintenance.verify import LOOKS, heads_of, verified, verify_store
from holdfast.checkpoint.ownership import is_driven
from holdfast.checkpoint.progress import Progress, Steps
from holdfast.checkpoint.read.loading import Blobs
from holdfast.checkpoint.store import Damage, Head, RunQuery, Store
from holdfast.errors import HeadMoved, HoldfastError, RunNotFound, StorageError
from holdfast.ids import RunId


@dataclass(frozen=True)
class Repair:
    """Something that was repaired, or with ``dry_run`` would be.

    >>> str(Repair("r1", "ab12", "it has a new keyframe"))
    'run r1: checkpoint ab12: it has a new keyframe'
    """

    run_id: str | None
    checkpoint_id: str | None
    what: str
    lost: str = ""
    """What cannot be brought back by it; nothing, in most cases."""

    def __str__(self) -> str:
        return f"{_where(self)}{self.what}" + (f"; lost: {self.lost}" if self.lost else "")


def _where(told: Repair | Problem) -> str:
    run = f"run {told.run_id}: " if told.run_id is not None else ""
    return run + (f"checkpoint {told.checkpoint_id}: " if told.checkpoint_id is not None else "")


@dataclass
class RepairReport:
    """What ``storage.repair`` did, or with ``dry_run`` would do, and what is left to be done.

    >>> report = RepairReport(repairs=[Repair("r1", "ab12", "it is removed", "this checkpoint")])
    >>> [repair.lost for repair in report.losses], report.ok
    (['this checkpoint'], True)
    """

    runs: int = 0
    """How many were looked at."""
    repairs: list[Repair] = field(default_factory=list)
    unrepaired: list[Problem] = field(default_factory=list)
    """What ``verify`` still tells: lost values, and pages of a database that only a backup brings back."""
    driven: list[str] = field(default_factory=list)
    """Runs that are damaged and were left alone, because they are driven now."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is left to be repaired; something may be lost all the same."""
        return not self.unrepaired and not self.driven

    @property
    def losses(self) -> list[Repair]:
        """The repairs by which something was lost."""
        return [repair for repair in self.repairs if repair.lost]

    @property
    def lost_values(self) -> list[Problem]:
        """What is left because a value is lost: each says the run, the checkpoint, and what the value was there."""
        return [problem for problem in self.unrepaired if problem.value is not None]

    def as_dry_run(self, retold: Callable[[str], str]) -> RepairReport:
        """The same, of what was not done, with other words."""
        return RepairReport(
            self.runs,
            [replace(repair, what=retold(repair.what), lost=retold(repair.lost)) for repair in self.repairs],
            [replace(problem, what=retold(problem.what)) for problem in self.unrepaired],
            self.driven,
            dry_run=True,
        )

    def __str__(self) -> str:
        lines = [f"{self.runs} runs, {len(self.repairs)} repairs, {len(self.unrepaired)} problems left"]
        lines += [f"  {repair}" for repair in self.repairs]
        lines += [f"  run {run_id} is driven: stop it, then repair it" for run_id in self.driven]
        lines += [f"  left: {_where(problem)}{problem.what}" for problem in self.unrepaired]
        return "\n".join(lines)


async def repair_store(
    store: Store, counters: Counters, run_id: RunId | None, progress: Progress | None, dry_run: bool
) -> RepairReport:
    """Repair a run, or all: heads and indexes first, then each run that is damaged, at once.

    A dry run does the same to a copy, so that it tells what a repair would.
    """
    if not dry_run:
        return await _repair_all(store, counters, run_id, progress)
    async with AsyncExitStack() as stack:
        try:
            copy, retold = await stack.enter_async_context(store.rehearsal())
        except StorageError as error:  # nothing could be read by a repair, either
            return RepairReport(unrepaired=[Problem(None, None, str(error))], dry_run=True)
        return (await _repair_all(copy, counters, run_id, progress)).as_dry_run(retold)


async def _repair_all(
    store: Store, counters: Counters, run_id: RunId | None, progress: Progress | None
) -> RepairReport:
    report = RepairReport()

    def blobs_of(family: RunId) -> Blobs:
        return Blobs(store, family, counters)

    try:
        if run_id is not None:
            await heads_of(store, run_id)
        for run, what, lost in await store.mend(run_id):
            if what:
                report.repairs.append(Repair(run, None, what, lost))
            else:
                report.unrepaired.append(Problem(run, None, lost))
        heads = await store.runs(RunQuery()) if run_id is None else await heads_of(store, run_id)
        damages = await store.inspect()
    except RunNotFound:
        raise
    except HoldfastError as error:  # nothing can be done here at all
        told = Problem(None, None, str(error))
        left = (await verify_store(store, blobs_of, run_id, None)).problems
        report.unrepaired += [told, *(problem for problem in left if problem != told)]
        return report
    steps = Steps(progress)
    steps.more(len(heads))
    for head in heads:
        report.runs += 1
        of_run = [damage for damage in damages if damage.run_id == head.run_id]
        await _repair_run(store, blobs_of(head.family), head, of_run, report)
        steps.done(1)
    report.unrepaired += [
        Problem(damage.run_id, None, damage.what, damage.seq)
        for damage in await store.inspect()
        if run_id is None or damage.run_id in (None, run_id)
    ]
    return report


async def _repair_run(
    store: Store, blobs: Blobs, head: Head, told: list[Damage], report: RepairReport
) -> None:
    """Save what can be saved of a run, if anything is wrong with it; all at once."""
    found = await verified(store, [head], lambda _: blobs, looks=LOOKS)
    latest = None if found.ok and not told else await store.head(head.run_id)
    if latest is None:  # nothing is wrong, or it was removed meanwhile
        return
    head = latest
    if await is_driven(store, head):
        report.driven.append(head.run_id)
        return
    salvage = Salvage(store, blobs, head)
    commit = await salvage.commit()
    if commit is None:
        report.unrepaired.append(
            Problem(
                head.run_id,
                None,
                "no checkpoint of it can be loaded: restore it from a backup, or delete it with "
                f"'await storage.delete_run({head.run_id!r})'",
            )
        )
        report.unrepaired += found.problems
        return
    planned, brought = Planned(commit), PlannedBlobs(blobs, commit)
    left = await verified(cast(Store, planned), [commit.head], lambda _: brought)
    report.unrepaired += left.problems
    gone = [problem for problem in found.problems if problem not in left.problems]
    if not salvage.steps and not told and not gone:
        return  # values are lost, which nothing here can bring back
    try:
        await store.replace(commit)
    except HeadMoved:
        report.driven.append(head.run_id)
        return
    except HoldfastError as error:
        report.unrepaired.append(Problem(head.run_id, None, str(error)))
        return
    report.repairs += _done(head.run_id, salvage.steps, gone, told)


def _done(
    run_id: RunId, steps: Sequence[Step], gone: Sequence[Problem], told: Sequence[Damage]
) -> Iterator[Repair]:
    """What was done to a run: what salvage did, or else the problems that are gone, as all of it was written anew."""
    yield from (Repair(run_id, *step) for step in steps)
    for problem in () if steps else gone:
        yield Repair(run_id, problem.checkpoint_id, f"it was written anew: {briefly(problem.what)}")
    for damage in told:
        yield Repair(run_id, None, f"what is there was taken as it is: {briefly(damage.what)}")
