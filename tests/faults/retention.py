"""Kills those who prune and sweep, and lets others write and resume meanwhile: nothing that is kept is ever lost.

    python -m tests.faults.retention --store sqlite --kills 500 --seed 7
    python -m tests.faults.retention --store file --kills 100 --steps 10000 room

Chance comes from a seed, which is printed; the moments themselves are the machine's.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointSavedEvent,
    CheckpointStorage,
    EventRetention,
    Executor,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from tests.faults.playing import Case, Scenario
from tests.support.durable import ON_DISK, Wrapped, storage_at
from tests.support.fault_processes import Child, Parent, Wrong, expect, warm_up
from tests.support.parts import Commit, Digest, Letter, Removal, RunId
from tests.support.retained import content, stored_bytes, stored_seqs
from tests.support.room import ALLOWED, STATES, Room, rewriting, room_on_disk, state_held
from tests.support.small_limits import small_limits

LATEST = Retention.latest_only()
STEPS = 40
# Processes, and the runs that each of them drives at the same time; and runs that are left and resumed.
WRITERS, RUNS_EACH, RESUMED = 2, 25, 5


# -- the workflow ----------------------------------------------------------------------------------


class Toggle(Executor):
    """Counts down, and writes the same few values again and again: what was unused is used again."""

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        await ctx.append_state("seen", left, scope_name="S")
        size = 300_000 if left % 8 == 0 else 5_000  # a file of its own beside a SQLite database
        await ctx.queue_state_update(f"big{left % 2}", content(left % 2, size), scope_name="S")
        if left % 6 == 0:
            await ctx.queue_state_update("toggle", content(left // 6 % 2, 5_001), scope_name="S")
        await ctx.read_state("toggle", scope_name="S")  # whoever resumed has to find it
        await ctx.queue_state_update("newest", content(left, 5_002), scope_name="S")
        await asyncio.sleep(0)
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            seen = await ctx.read_state("seen", scope_name="S")
            toggle = await ctx.read_state("toggle", scope_name="S")
            await ctx.yield_output([len(seen), sum(seen), toggle == content(1, 5_001)])


def toggling(retention: Retention | None) -> Workflow:
    builder = WorkflowBuilder(name="Toggle", max_iterations=9_999).set_start_executor(Toggle)
    builder.add_edge(Toggle, Toggle)
    return (builder if retention is None else builder.with_retention(retention)).build()


def toggled(steps: int) -> list[Any]:
    return [[steps, steps * (steps + 1) // 2, True]]


# -- planted bugs ----------------------------------------------------------------------------------


class Cutless(Wrapped):
    """Removes records and gives no keyframes to those that follow."""

    async def remove(self, removal: Removal) -> bool:
        return await self.inner.remove(removal._replace(keyframes=()))


class ParentsFirst(Wrapped):
    """Removes records before those that follow have their keyframes."""

    async def remove(self, removal: Removal) -> bool:
        await self.inner.remove(removal._replace(keyframes=(), blobs=()))
        await asyncio.sleep(0.005)
        return await self.inner.remove(removal._replace(seqs=()))


class Boasts(Wrapped):
    """Says that a sweep freed more than it did."""

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return 1 + await self.inner.discard(family, mark, digests)


class Hoards(Wrapped):
    """Removes records of runs, but never sweeps."""

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        return 0


class Scatters(Wrapped):
    """Leaves folders with nothing in them, which take room all the same."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        for _ in range(3):
            tempfile.mkdtemp(dir=self.path.parent)
        return await self.inner.commit(commit)


PLANTED: dict[str, Callable[[Any], Any]] = {
    "cutless": Cutless,
    "parents-first": ParentsFirst,
    "boasts": Boasts,
    "hoards": Hoards,
    "scatters": Scatters,
}


@asynccontextmanager
async def storage_of(case: Case) -> AsyncIterator[CheckpointStorage]:
    """The storage with its planted bug; keyframes are small, so that much is removed."""
    with small_limits(inline=4096, keyframe=1200, largest_part=1 << 18, compress=1024):
        async with _planted_in(case) as storage:
            yield storage


def _planted_in(case: Case) -> CheckpointStorage:
    whole = storage_at(case.kind, case.folder)
    return CheckpointStorage(PLANTED[case.planted](whole.store) if case.planted else whole.store)


# -- what children do ------------------------------------------------------------------------------


async def go_on(parent: Parent, case: Case, run_id: str) -> None:
    """Start a run of which only the latest checkpoint is kept, or go on with it."""
    async with storage_of(case) as storage:
        parent.tell("ready")
        if await storage.catalog.head_or_none(run_id) is None:
            run = await toggling(LATEST).start(STEPS, run_id=run_id, storage=storage)
        else:
            run = await toggling(LATEST).resume(run_id=run_id, storage=storage)
        async for event in run.watch_stream():
            if isinstance(event, CheckpointSavedEvent):
                parent.tell(f"saved {event.checkpoint.seq}")
        parent.tell(f"done {json.dumps((await run.wait_for_completion()).outputs)}")


async def look(parent: Parent, case: Case, acknowledged: dict[str, int]) -> None:
    """Whatever is listed can be loaded, nothing that was acknowledged is lost, and everything is right."""
    async with case.whole() as storage:
        for run_id, seq in acknowledged.items():
            head = await storage.catalog.head(run_id)
            expect(head.seq >= seq, f"{run_id} stands on {head.seq}, but {seq} was acknowledged")
            latest = await storage.get_latest(run_id=run_id)
            expect(latest is not None, f"{run_id} has no latest checkpoint")
            assert latest is not None
            await storage.load(latest)
        for checkpoint in await storage.list_checkpoints():
            await storage.load(checkpoint)
        report = await storage.verify()
        expect(report.ok, f"verify: {report.problems[:3]}")
    parent.tell("looked")


async def write(parent: Parent, case: Case, number: int, steps: int) -> None:
    """Drive some runs at the same time; some of them keep only their latest checkpoint."""

    async def one(run: int) -> None:
        workflow = toggling(LATEST if run % 2 else None)
        started = await workflow.start(steps, run_id=f"w{number}-{run}", storage=storage)
        outputs = (await started.wait_for_completion()).outputs
        expect(outputs == toggled(steps), f"w{number}-{run} gave out {outputs}")

    async with storage_of(case) as storage:
        await asyncio.gather(*map(one, range(RUNS_EACH)))
    parent.tell("done")


async def stop_and_resume(parent: Parent, case: Case, steps: int) -> None:
    """Drive runs that are left every few supersteps, and resumed."""

    async def one(run: int) -> None:
        run_id = f"s{run}"
        workflow = toggling(LATEST if run % 2 else None)
        stream = workflow.run_stream(steps, run_id=run_id, storage=storage)
        while True:
            saved = 0
            async with stream:
                async for event in stream:
                    saved += isinstance(event, CheckpointSavedEvent)
                    if saved == 9:
                        break
            head = await storage.catalog.head(run_id)
            if head.status.ended and head.status != "stopped":
                break
            resumed = toggling(LATEST if run % 2 else None)
            stream = resumed.run_stream_from_checkpoint(head.checkpoint_id, checkpoint_storage=storage)
        checkpoint = await storage.get_latest(run_id=run_id)
        assert checkpoint is not None
        outputs = (await storage.load(checkpoint)).outputs
        expect(outputs == toggled(steps), f"{run_id} gave out {outputs}")

    async with storage_of(case) as storage:
        await asyncio.gather(*map(one, range(RESUMED)))
    parent.tell("done")


async def sweep(parent: Parent, case: Case) -> None:
    """Prune and sweep until told to stop; whether anything was removed is told."""
    asked = asyncio.ensure_future(parent.hear())
    rounds = checkpoints = blobs = 0
    async with storage_of(case) as storage:
        parent.tell("ready")
        while not asked.done():
            report = await storage.prune(Retention.keep_last(2))
            expect(not report.unreadable, f"a run seemed to be damaged: {report}")
            rounds += 1
            checkpoints += report.checkpoints
            blobs += report.blobs
            await asyncio.sleep(0)
    parent.tell(f"swept {json.dumps([rounds, checkpoints, blobs])}")


async def free(parent: Parent, case: Case) -> None:
    """Prune everything; what that frees is what the report says."""
    async with storage_of(case) as storage:
        before = await stored_bytes(storage)
        foreseen = await storage.prune(LATEST, dry_run=True)
        report = await storage.prune(LATEST)
        freed = before - await stored_bytes(storage)
        expect(not report.unreadable, f"a run seemed to be damaged: {report}")
        expect(report.checkpoints > 0 and freed > 0, f"there was nothing to be freed: {report}")
        expect(freed == report.bytes, f"{freed} bytes were freed, but the report says {report.bytes}")
        expect(freed == foreseen.bytes, f"{freed} bytes were freed, but {foreseen.bytes} were foreseen")
        again = await storage.prune(LATEST)
        expect(again.bytes == again.checkpoints == again.blobs == 0, f"something was left: {again}")
    parent.tell("freed")


async def rewrite(parent: Parent, case: Case, name: str, steps: int) -> None:
    """Start a run that writes one key of its state anew in each superstep, or go on with it."""
    async with _planted_in(case) as storage:
        storage.event_retention = EventRetention(100, timedelta(0))  # else those of seven days are kept
        workflow = rewriting(STATES[name])
        if await storage.catalog.head_or_none(name) is None:
            run = await workflow.start(steps, run_id=name, storage=storage)
        else:
            run = await workflow.resume(run_id=name, storage=storage)
        bound = 0
        async for event in run.watch_stream():
            if not isinstance(event, CheckpointSavedEvent) or event.checkpoint.superstep < 2:
                continue
            bound = bound or 4 * await state_held(storage) + ALLOWED
            taken = room_on_disk(case.folder)
            expect(taken.most <= bound, f"{taken} at {event.checkpoint}, not {bound}")
            parent.tell(f"saved {event.checkpoint.seq} {taken.apparent} {taken.allocated} {bound}")
        await run.wait_for_completion()
    parent.tell("done")


async def fill(parent: Parent, case: Case, round_number: int) -> None:
    """Make checkpoints and blobs that can be pruned: a run, a fork of it, and a branch."""
    async with storage_of(case) as storage:
        run = await toggling(None).start(24, run_id=f"f{round_number}", storage=storage)
        await run.wait_for_completion()
        fork = await toggling(None).fork(run.checkpoints[9], storage=storage)
        await fork.wait_for_completion()
        await run.restore_checkpoint(run.checkpoints[20])
        await run.wait_for_completion()
    parent.tell("filled")


async def sweep_once(parent: Parent, case: Case) -> None:
    async with storage_of(case) as storage:
        parent.tell("ready")
        await storage.prune(Retention.keep_last(3))
        parent.tell("swept")


async def resume_all(parent: Parent, case: Case) -> None:
    """Go back to the first checkpoint of every run that is there, and on from it."""
    async with storage_of(case) as storage:
        for run in await storage.list_runs(limit=None):
            first = (await storage.list_checkpoints(run_id=run.run_id))[0]
            resumed = await toggling(None).resume(first, storage=storage)
            outputs = (await resumed.wait_for_completion()).outputs
            expect(outputs == toggled(24), f"{run.run_id} gave out {outputs}")
            await storage.prune(LATEST, run_id=run.run_id)
            expect(len(await stored_seqs(storage, run.run_id)) == 1, "more than the latest is there")
    parent.tell("resumed")


# -- scenarios -------------------------------------------------------------------------------------


def told(child: Child, word: str) -> list[str]:
    return [line.partition(" ")[2] for line in child.told if line.split(" ")[0] == word]


def killed_writers(case: Case, kills: int, chance: random.Random) -> None:
    """Runs that keep only their latest checkpoint are killed at any moment."""
    killed = runs = 0
    while killed < kills:
        run_id, seen = f"run{runs}", 0
        runs += 1
        while True:
            with case.child(go_on, run_id) as child:
                last = killed >= kills
                if not last:
                    child.until(chance.choice(["ready", "saved", "saved", "saved"]), "done")
                    child.ended_within(chance.expovariate(1 / 0.03))
                    child.kill()
                else:
                    child.finish()
                expect(not told(child, "wrong"), f"{run_id}: {told(child, 'wrong')}")
                seen = max([seen, *map(int, told(child, "saved"))])
                done = [json.loads(outputs) for outputs in told(child, "done")]
            killed += not done
            with case.child(look, {run_id: seen} if seen else {}) as looking:
                looking.until("looked")
            if done:
                expect(done[0] == toggled(STEPS), f"{run_id} gave out {done[0]}")
                break


def killed_sweeps(case: Case, kills: int, chance: random.Random) -> None:
    """A sweep is killed at any moment; the next one goes on, and nothing that is kept is lost."""
    killed = rounds = 0
    while killed < kills:
        with case.child(fill, rounds) as child:
            child.until("filled")
        rounds += 1
        swept = False
        while not swept:
            with case.child(sweep_once) as child:
                child.until("ready")
                if killed < kills:
                    child.ended_within(chance.expovariate(1 / 0.02))
                    child.kill()
                else:
                    child.finish()
                expect(not told(child, "wrong"), f"the sweep failed: {told(child, 'wrong')}")
                swept = "swept" in child.told
            killed += not swept
            with case.child(look, {}) as looking:
                looking.until("looked")
    with case.child(resume_all) as child:
        child.until("resumed")
    with case.child(look, {}) as looking:
        looking.until("looked")


def killed_in_its_room(case: Case, kills: int, steps: int, chance: random.Random, name: str) -> None:
    """A run that keeps only its latest checkpoint is killed at any moment, and takes little room at every one."""
    killed, seen, bound = 0, 0, 0
    most = Room(0, 0)
    done = False
    while not done:
        with case.child(rewrite, name, steps) as child:
            told_last = child.until("saved", "done", "wrong")
            if killed < kills:
                child.ended_within(chance.random() * 2 * _PER_SUPERSTEP[case.kind] * steps / kills)
            else:
                while told_last.startswith(
                    "saved"
                ):  # it may take long as a whole, but not from one to the next
                    told_last = child.until("saved", "done", "wrong")
            child.kill()
            expect(not told(child, "wrong"), f"{name}: {told(child, 'wrong')}")
            done = "done" in child.told
            for line in told(child, "saved"):
                seen, *taken, bound = map(int, line.split())
                most = Room(*map(max, most, taken))
        killed += not done
        taken_now = room_on_disk(case.folder)
        expect(taken_now.most <= bound, f"after a kill: {taken_now}, not {bound}")
        with case.child(look, {name: seen}) as looking:
            looking.until("looked")
    print(
        f"{case.kind}, {name}, {steps} supersteps, {killed} kills: {most.apparent:,} bytes, {most.allocated:,} "
        f"allocated, of {bound:,}",
        flush=True,
    )


# Seconds, about: so that kills are spread over a run.
_PER_SUPERSTEP = {"sqlite": 0.004, "file": 0.012}


def beside_writers(case: Case, steps: int) -> None:
    """One prunes and sweeps while others write, stop and resume; no one ever misses anything.

    A run that moves while it is looked at is not pruned. Where all moved each time, others write again.
    """
    swept = []
    for attempt in range(_ATTEMPTS):
        folder = case.folder / str(attempt)
        folder.mkdir()
        rounds, checkpoints, blobs = swept_beside_writers(case._replace(folder=folder), steps)
        if rounds > 2 and checkpoints > 5 and blobs > 0:
            return
        swept.append((rounds, checkpoints, blobs))
    expect(False, f"little was swept: {swept}")


_ATTEMPTS = 5


def swept_beside_writers(case: Case, steps: int) -> tuple[int, int, int]:
    """The rounds of who sweeps, and the checkpoints and blobs that went, while others wrote."""
    with case.child(sweep) as sweeper:
        sweeper.until("ready")
        doing = [partial(write, number=number, steps=steps) for number in range(WRITERS)]
        others = [case.child(one) for one in [*doing, partial(stop_and_resume, steps=steps)]]
        try:
            for other in others:
                other.until("done")
        finally:
            for other in others:
                other.kill()
        sweeper.say("stop")
        rounds, checkpoints, blobs = json.loads(sweeper.until("swept").partition(" ")[2])
    with case.child(look, {}) as looking:
        looking.until("looked")
    with case.child(free) as freeing:
        freeing.until("freed")
    with case.child(look, {}) as looking:
        looking.until("looked")
    return rounds, checkpoints, blobs


SCENARIOS = ["killed-writers", "killed-sweeps", "beside-writers", "room"]
# A run of so many supersteps shows for every state how much room it takes.
_LONG = 1000


def scenario(name: str, kills: int, steps: int, seed: int) -> Scenario:
    chance = random.Random(seed)
    if name == "room":
        return lambda case: in_their_room(case, kills, steps, chance)
    if name == "killed-writers":
        return lambda case: killed_writers(case, kills, chance)
    if name == "killed-sweeps":
        return lambda case: killed_sweeps(case, kills, chance)
    return lambda case: beside_writers(case, max(16, kills))


def in_their_room(case: Case, kills: int, steps: int, chance: random.Random) -> None:
    for number, name in enumerate(STATES if steps >= _LONG else ["200 kB in 8"]):
        folder = case.folder / str(number)
        folder.mkdir()
        killed_in_its_room(Case(case.kind, folder, case.planted), kills, steps, chance, name)


def main(arguments: list[str] | None = None) -> int:
    """Play from the command line; 0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Prune and sweep beside writers, under kills.")
    parser.add_argument("--store", choices=ON_DISK, default="sqlite")
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=150, help="of each run that is killed in its room")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    warm_up()
    failed = False
    for name in given.names or SCENARIOS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            wrong = ""
            try:
                scenario(name, given.kills, given.steps, seed)(Case(given.store, Path(folder), given.planted))
            except Wrong as problem:
                wrong = str(problem) or "it says not what"
        failed = failed or bool(wrong)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"WRONG: {name}: {wrong}" if wrong else f"well: {name}, {took}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
