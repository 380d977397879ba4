"""Repairing a storage: what can be saved is saved, and what cannot is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from holdfast.checkpoint.driving import is_driven
from holdfast.checkpoint.loading import Blobs
from holdfast.checkpoint.problems import Problem
from holdfast.checkpoint.salvage import Planned, PlannedBlobs, Salvage
from holdfast.checkpoint.steps import Progress, Steps
from holdfast.checkpoint.store import Damage, Head, RunQuery, Store
from holdfast.checkpoint.verify import verified, verify_store
from holdfast.errors import HeadMoved, HoldfastError
from holdfast.ids import RunId

BlobsOf = Callable[[RunId], Blobs]


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
        where = [f"run {self.run_id}"] if self.run_id is not None else []
        where += [f"checkpoint {self.checkpoint_id}"] if self.checkpoint_id is not None else []
        return ": ".join([*where, self.what]) + (f"; lost: {self.lost}" if self.lost else "")


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

    def __str__(self) -> str:
        lines = [f"{self.runs} runs, {len(self.repairs)} repairs, {len(self.unrepaired)} problems left"]
        lines += [f"  {repair}" for repair in self.repairs]
        lines += [f"  run {run_id} is driven: stop it, then repair it" for run_id in self.driven]
        lines += [f"  left: run {problem.run_id}: {problem.what}" for problem in self.unrepaired]
        return "\n".join(lines)


async def repaired(
    store: Store, blobs_of: BlobsOf, run_id: RunId | None, progress: Progress | None, dry_run: bool
) -> RepairReport:
    """Repair a run, or all: heads and indexes first, then each run that is damaged, at once."""
    report = RepairReport(dry_run=dry_run)
    try:
        for run, what, lost in await store.mend(dry_run):
            if what:
                report.repairs.append(Repair(run, None, what, lost))
            else:
                report.unrepaired.append(Problem(run, None, lost))
        heads = await store.runs(RunQuery())
    except HoldfastError as error:  # nothing can be done here at all
        report.unrepaired.append(Problem(None, None, str(error)))
        report.unrepaired += (await verify_store(store, blobs_of, run_id, None)).problems
        return report
    heads = [head for head in heads if run_id in (None, head.run_id)]
    damages = await store.inspect()
    steps = Steps(progress)
    steps.more(len(heads))
    # What these hide is seen when they are made anew, and a dry run makes nothing.
    hidden = {repair.run_id for repair in report.repairs} if dry_run else set()
    for head in heads:
        report.runs += 1
        if None in hidden or head.run_id in hidden:
            steps.done(1)
            continue
        told = [damage for damage in damages if damage.run_id == head.run_id]
        await _repair_run(store, blobs_of(head.family), head, told, report)
        steps.done(1)
    if dry_run:
        left = [damage for damage in damages if damage.run_id is None and not hidden]
    else:
        left = [d for d in await store.inspect() if run_id is None or d.run_id in (None, run_id)]
    report.unrepaired += [Problem(damage.run_id, None, damage.what, damage.seq) for damage in left]
    return report


async def _repair_run(
    store: Store, blobs: Blobs, head: Head, told: list[Damage], report: RepairReport
) -> None:
    """Save what can be saved of a run, if anything is wrong with it; all at once."""
    found = await verified(store, [head], lambda _: blobs)
    if found.ok and not told:
        return
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
    if not report.dry_run:
        try:
            await store.replace(commit)
        except HeadMoved:
            report.driven.append(head.run_id)
            return
        except HoldfastError as error:
            report.unrepaired.append(Problem(head.run_id, None, str(error)))
            return
    report.repairs += [Repair(head.run_id, *step) for step in salvage.steps]
    if not salvage.steps:
        report.repairs += [
            Repair(head.run_id, problem.checkpoint_id, f"it was written anew: {problem.what}")
            for problem in gone
        ]
    report.repairs += [
        Repair(head.run_id, None, f"what is there was taken as it is: {damage.what}") for damage in told
    ]
