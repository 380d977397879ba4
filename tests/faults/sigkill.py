"""Kills processes in the middle of their runs, and looks whether anything that was acknowledged is lost.

    python -m tests.faults.sigkill --store sqlite --kills 1000
    python -m tests.faults.sigkill --store sqlite --kills 1000 --durability async

This process never opens a storage and never has a second thread: it forks one child after the other. Each goes on
with a run, tells every checkpoint that it was told of, and is killed at a random moment. After each kill another
child looks at what is stored. Chance comes from a seed, which is printed; the moments themselves are the machine's.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    Run,
    RunPoisoned,
    RunStatus,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from holdfast.runtime.durable import recorder
from tests.support.durable import Wrapped, storage_at
from tests.support.fault_processes import Child, Doing, Parent, warm_up
from tests.support.parts import Commit, Durability, EventLog, Letter

recorder.BACKGROUND_SECONDS = -1.0  # supersteps take no time here, but their commits should go on beside them
ROUNDS = 25
WORKERS = 6


# -- the workflow ----------------------------------------------------------------------------------


@executor(id="start")
async def start(left: int, ctx: WorkflowContext[int]) -> int:
    await ctx.append_state("rounds", left, scope_name="Log")
    if left % 5 == 0:  # a file of its own beside a SQLite database
        await ctx.queue_state_update("big", random.Random(left).randbytes(300_000), scope_name="Log")
    return left


class Work(Executor):
    checkpointed = ("total",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.total = 0

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int]) -> int:
        self.total += left
        await ctx.queue_state_update(str(self.id), random.Random(left).randbytes(5_000), scope_name="Blobs")
        await asyncio.sleep(0)
        return self.total


@executor(id="join")
async def join(totals: list[int], ctx: WorkflowContext[int, Any]) -> None:
    await ctx.append_state("totals", sum(totals), scope_name="Log")
    rounds = await ctx.read_state("rounds", scope_name="Log")
    if rounds[-1] > 1:
        await ctx.send_message(rounds[-1] - 1)
        return
    big = await ctx.read_state("big", scope_name="Log")
    totals = await ctx.read_state("totals", scope_name="Log")
    await ctx.yield_output([len(rounds), sum(totals), big == random.Random(5).randbytes(300_000)])


def rounds(durability: Durability) -> Workflow:
    workers = [Work.bind(id=f"w{number}") for number in range(WORKERS)]
    return (
        WorkflowBuilder(name="Rounds", max_iterations=1_000)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .add_edge(join, start)
        .with_durability(durability)
        .build()
    )


def expected() -> list[Any]:
    """What a run gives out if nothing of it is lost or done twice."""
    running, total = 0, 0
    for left in range(ROUNDS, 0, -1):
        running += left
        total += running * WORKERS
    return [[ROUNDS, total, True]]


# -- a store with a planted bug --------------------------------------------------------------------


class Hasty(Wrapped):
    """Acknowledges a commit at once and makes it durable 20 ms later."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._waiting: list[Commit] = []
        self._taken: set[str] = set()
        self._flushing: asyncio.Task[None] | None = None

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._waiting.append(commit)
        self._taken.update(commit.taken)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        await asyncio.sleep(0.001)
        inbox = await self.inner.inbox(commit.head.run_id)
        return [letter for letter in inbox if letter.key not in self._taken]

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(0.02)
            waiting, self._waiting = self._waiting, []
            for commit in waiting:
                await self.inner.commit(commit)

    async def close(self) -> None:
        if self._flushing is not None:
            await self._flushing
        await self.inner.close()


class Late(Wrapped):
    """Takes its time before it commits, so that a run with durability "async" is ahead of it."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await asyncio.sleep(0.01)
        return await self.inner.commit(commit)


ON_SQLITE = ("hasty", "late", "early")


def opened(kind: str, folder: Path) -> CheckpointStorage:
    """The storage of this kind: "hasty" and "early" are SQLite with a planted bug, "late" is SQLite that is slow."""
    if kind not in ON_SQLITE:
        return storage_at(kind, folder)
    if kind == "early":  # nothing is held back until it is durable
        EventLog.hold_back = lambda self: None  # type: ignore[method-assign]
    store = storage_at("sqlite", folder).store
    return CheckpointStorage(Hasty(store) if kind == "hasty" else Late(store))


# -- what children do ------------------------------------------------------------------------------


async def go_on(parent: Parent, kind: str, folder: Path, run_id: str, durability: Durability) -> None:
    """Start the run or go on with it; tell each checkpoint that is acknowledged, and what comes of the run."""
    async with opened(kind, folder) as storage:
        parent.tell("ready")
        if await storage.catalog.head_or_none(run_id) is None:
            run = await rounds(durability).start(ROUNDS, run_id=run_id, storage=storage)
        else:
            run = await _resumed(rounds(durability), storage, run_id)
        async for event in run.watch_stream():
            if isinstance(event, CheckpointSavedEvent):
                parent.tell(f"saved {event.checkpoint.checkpoint_id}")
        outputs = (await run.wait_for_completion()).outputs
    parent.tell(f"done {json.dumps(outputs)}")


async def _resumed(workflow: Workflow, storage: CheckpointStorage, run_id: str) -> Run:
    try:
        return await workflow.resume(run_id=run_id, storage=storage)
    except (
        RunPoisoned
    ):  # so many were killed in a row before their first checkpoint; who knows better goes on
        return await workflow.resume(run_id=run_id, storage=storage)


async def look(parent: Parent, kind: str, folder: Path, run_id: str, acknowledged: list[str]) -> None:
    """Tell what is wrong with what is stored of a run."""
    async with storage_at("sqlite" if kind in ON_SQLITE else kind, folder) as storage:
        head = await storage.catalog.head_or_none(run_id)
        if head is None:
            if acknowledged:
                parent.tell(
                    f"wrong the run is not there, but {len(acknowledged)} checkpoints were acknowledged"
                )
            parent.tell("looked 0")
            return
        listed = await storage.list_checkpoints(run_id=run_id)
        there = {checkpoint.checkpoint_id for checkpoint in listed}
        lost = [checkpoint_id for checkpoint_id in acknowledged if checkpoint_id not in there]
        if lost:
            parent.tell(f"wrong {len(lost)} acknowledged checkpoints are lost, the first is {lost[0]}")
        await verify(parent, storage, run_id)
        newest = await storage.load(listed[-1].checkpoint_id)
        if newest.checkpoint_id != head.checkpoint_id:
            parent.tell("wrong the run does not stand on its newest checkpoint")
        (info,) = [run for run in await storage.list_runs(limit=None) if run.run_id == run_id]
        well = (info.status, info.interrupted) in ((RunStatus.RUNNING, True), (RunStatus.COMPLETED, False))
        if not well and not info.reason.startswith("RunPoisoned"):
            parent.tell(f"wrong the run is {info.status}, interrupted={info.interrupted}")
        parent.tell(f"looked {len(listed)}")


async def verify(parent: Parent, storage: CheckpointStorage, run_id: str | None) -> None:
    """Tell what is damaged of a run, or of all."""
    for problem in (await storage.verify(run_id)).problems[:3]:
        parent.tell(f"wrong {problem.checkpoint_id}: {problem.what}")


async def look_at_all(parent: Parent, kind: str, folder: Path) -> None:
    """Tell what is damaged of a store, once: to look at all runs after each kill would take longer and longer."""
    async with storage_at("sqlite" if kind in ON_SQLITE else kind, folder) as storage:
        await verify(parent, storage, None)
        parent.tell("looked")


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Kills so many children, and says what went wrong."""

    kind: str
    folder: Path
    kills: int
    seed: int
    durability: Durability = "sync"
    killed: int = 0
    runs: int = 0
    acknowledged: int = 0
    idle: int = 0
    """Kills before the child told of any checkpoint."""
    wrong: list[str] = field(default_factory=list)

    def play(self) -> "Campaign":
        """Kill, look and go on; the last run goes on to its end."""
        chance = random.Random(self.seed)
        warm_up()
        while self.killed < self.kills and not self.wrong:
            self._one_run(chance)
        self._look(partial(look_at_all, kind=self.kind, folder=self.folder))
        return self

    def _one_run(self, chance: random.Random) -> None:
        run_id = f"run{self.runs}"
        self.runs += 1
        acknowledged: list[str] = []
        while not self.wrong:
            last = self.killed >= self.kills
            told, ended = _life(
                lambda parent: go_on(parent, self.kind, self.folder, run_id, self.durability),
                None if last else _moment(chance),
            )
            saved = [line.split()[1] for line in told if line.startswith("saved ")]
            acknowledged += saved
            self.acknowledged += len(saved)
            self._note(told)
            done = [json.loads(line.partition(" ")[2]) for line in told if line.startswith("done ")]
            if not ended and not done:
                self.killed += 1
                self.idle += not saved
            place = partial(look, kind=self.kind, folder=self.folder)
            self._look(partial(place, run_id=run_id, acknowledged=acknowledged))
            if done:
                if done[0] != expected():
                    self.wrong.append(f"{run_id} gave out {done[0]}, not {expected()}")
                return
            if ended:
                self.wrong.append(f"{run_id} ended by itself without a result: {told[-3:]}")

    def _look(self, looking: Doing) -> None:
        told, _ = _life(looking, None)
        self._note(told)
        if not [line for line in told if line.startswith("looked")]:
            self.wrong.append(f"nobody could look at what is stored: {told[-3:]}")

    def _note(self, told: list[str]) -> None:
        self.wrong += [line.partition(" ")[2] for line in told if line.startswith("wrong ")]


@dataclass(frozen=True)
class Moment:
    """When a child is killed: so long after it was born, or after it told that word for the first time."""

    seconds: float
    after: str


def _moment(chance: random.Random) -> Moment:
    after = chance.choices(["", "ready", "saved"], [1, 2, 5])[0]
    return Moment(chance.expovariate(1 / 0.02), after)


def _life(doing: Doing, moment: Moment | None) -> tuple[list[str], bool]:
    """What a child tells until it ends or is killed; whether it ended by itself."""
    with Child(doing) as child:
        if moment is None:
            child.finish()
            return child.told, True
        early = bool(moment.after) and child.ended_before(moment.after)
        ended = early or child.ended_within(moment.seconds)
        child.kill()
        return child.told, ended


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line; 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Kill processes in the middle of their runs.")
    parser.add_argument("--store", choices=["sqlite", "file", *ON_SQLITE], default="sqlite")
    parser.add_argument("--durability", choices=["sync", "async", "exit"], default="sync")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        campaign = Campaign(given.store, folder, given.kills, seed, given.durability).play()
    print(
        f"seed {seed}: {campaign.killed} kills, {campaign.idle} of them before a checkpoint was told of, "
        f"{campaign.runs} runs, {campaign.acknowledged} checkpoints acknowledged"
    )
    for wrong in campaign.wrong:
        print(f"WRONG: {wrong}")
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
