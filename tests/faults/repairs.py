"""Kills those who repair a damaged storage, at every step and at random times: what can be read stays as it is.

    python -m tests.faults.repairs --store sqlite --kills 200 --seed 0

Several runs are damaged. A repair is killed before one of its operations, or at a random time. Then everything must be
readable that was, verify must name no other run, and a second repair must come to what an uninterrupted one comes to.
The damage and the steps follow from the seed, one number for each round; the random times are the machine's.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from holdfast import CheckpointStorage, Executor, HoldfastError, WorkflowBuilder, WorkflowContext, handler
from tests.support.corruption import damage
from tests.support.corruption_world import (
    asking,
    failing,
    growing,
    inbox_of,
    journal_of,
    limits,
    loaded,
    opened,
)
from tests.support.durable import ON_DISK
from tests.support.durable_damage import SqliteDamage, damage_of
from tests.support.fault_processes import Child, Parent, Wrong, answer, ask, expect, warm_up
from tests.support.parts import RunQuery
from tests.support.repair_bugs import PLANTED, planted
from tests.support.stepping import count_steps

# Damages that leave something to be repaired; a damaged page does not.
_KINDS = {"sqlite": ("row", "keyframe", "find", "row"), "file": ("lines", "head", "json", "blob")}
_KILLS_EACH = 10


class Trial(NamedTuple):
    """A storage that is damaged anew for each kill, always in the same folder: reports name paths."""

    kind: str
    folder: Path
    planted: str = ""

    @property
    def damaged(self) -> Path:
        """The damaged storage, which nobody touches."""
        return self.folder / "damaged"

    @property
    def work(self) -> Path:
        """Where it is repaired."""
        return self.folder / "work"

    def begin(self) -> None:
        """Let it be damaged again."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.damaged, self.work, symlinks=True)

    def child(self, doing: Callable[..., Any], *arguments: Any) -> Child:
        """A process that does something with it."""
        return Child(lambda parent: doing(parent, self, *arguments))

    def ask(self, doing: Callable[..., Any], *arguments: Any) -> Any:
        """What a process answers that does something with it."""
        return ask(lambda parent: doing(parent, self, *arguments))


# -- what children do ------------------------------------------------------------------------------


async def fill(parent: Parent, trial: Trial) -> None:
    """Make runs of several kinds; answers with the ids of all checkpoints."""
    trial.damaged.mkdir()
    async with opened(trial.kind, trial.damaged) as storage, limits():
        await growing().run(5, run_id="grown", storage=storage)
        made = await storage.list_checkpoints(run_id="grown")
        await (await growing().fork(made[4], run_id="fork", storage=storage)).wait_for_completion()
        await growing("Other").run(3, run_id="other", storage=storage)
        await asking().run("pay", run_id="waiting", storage=storage)
        await storage.respond("waiting", {"one": "yes"})
        with suppress(HoldfastError):
            await failing().run("x", run_id="failed", storage=storage)
        await storage.tag(made[2], "gold")
        answer(parent, [made.checkpoint_id for made in await storage.list_checkpoints()])


async def look(parent: Parent, trial: Trial, ids: list[str]) -> None:
    """Answer with what can be read, and with the runs of which something is wrong."""
    async with opened(trial.kind, trial.work) as storage:
        answer(parent, [await _readable(storage, ids), await _named(storage)])


async def repair(parent: Parent, trial: Trial, ids: list[str], last: int | None) -> None:
    """Repair, and die before the step ``last``; else answer with what came of it, and with the number of steps."""
    with planted(trial.planted):
        steps = count_steps(trial.work, last)
        async with opened(trial.kind, trial.work) as storage:
            parent.tell("ready")
            await storage.repair()
            taken = steps.taken
            answer(parent, [await _all_of(storage, ids), taken])


async def check(parent: Parent, trial: Trial, ids: list[str], before: list[Any], whole: Any) -> None:
    """After a repair was killed: nothing is worse, and another one comes to the same."""
    async with opened(trial.kind, trial.work) as storage:
        now, named = await _readable(storage, ids), await _named(storage)
        lost = [name for name, content in before[0].items() if now.get(name) != content]
        expect(not lost, f"{len(lost)} checkpoints could be read before, not now: {lost[:3]}")
        expect(set(named) <= set(before[1]), f"verify names {named}, not {before[1]}")
        await storage.repair()
        after = await _all_of(storage, ids)
        for name, part in whole.items():
            expect(after[name] == part, f"{name}: {after[name]!r:.300} is not {part!r:.300}")
        again = await storage.repair()
        expect(not again.repairs, f"it repairs once more: {again}")
    answer(parent, "well")


async def _readable(storage: CheckpointStorage, ids: Sequence[str]) -> dict[str, str]:
    found = {}
    for checkpoint_id in ids:
        with suppress(HoldfastError):
            found[checkpoint_id] = await loaded(storage, checkpoint_id)
    return found


async def _named(storage: CheckpointStorage) -> list[str]:
    return sorted({str(problem.run_id) for problem in (await storage.verify()).problems})


async def _all_of(storage: CheckpointStorage, ids: Sequence[str]) -> dict[str, Any]:
    """What a repair comes to; how often a run was taken over, and when, is not part of it."""
    found: dict[str, Any] = {"readable": await _readable(storage, ids)}
    for head in await storage.store.runs(RunQuery()):
        seen = [await _or_error(look(storage, head.run_id)) for look in (_listed, journal_of, inbox_of)]
        found[f"run {head.run_id}"] = [repr(head._replace(token=0, updated=0)), *seen]
    found["problems"] = sorted(problem.what for problem in (await storage.verify()).problems)
    return found


async def _listed(storage: CheckpointStorage, run_id: str) -> str:
    return repr([made.checkpoint_id for made in await storage.list_checkpoints(run_id=run_id)])


async def _or_error(reading: Awaitable[str]) -> str:
    """What is read; of a run that nothing can save, what is said of it."""
    try:
        return await reading
    except HoldfastError as error:
        return str(error)


# -- beside a process that drives a run ------------------------------------------------------------


class Pass(Executor):
    """Lets the run move once."""

    @handler
    async def hand_on(self, message: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(message)


class Hold(Executor):
    """Waits until the one that started its process says something."""

    parent: ClassVar[Parent]

    @handler
    async def hold(self, message: str, ctx: WorkflowContext[None, str]) -> None:
        self.parent.tell("holding")
        await ctx.yield_output(await self.parent.hear())


async def drive(parent: Parent, trial: Trial) -> None:
    """Drive a run until told to end it."""
    Hold.parent = parent
    async with opened(trial.kind, trial.work) as storage:
        builder = WorkflowBuilder(name="Hold").set_start_executor(Pass).add_edge(Pass, Hold)
        await builder.build().run("x", run_id="held", storage=storage)
    parent.tell("done")


async def repair_beside(parent: Parent, trial: Trial) -> None:
    """Answer which runs were found damaged and driven, and how much was repaired, in a dry run and without."""
    async with opened(trial.kind, trial.work) as storage:
        reports = [await storage.repair(dry_run=dry_run) for dry_run in (True, False)]
        answer(parent, [[report.driven, len(report.repairs)] for report in reports])


def beside(kind: str, folder: Path) -> None:
    """A run that a living process drives is left alone, also if it is damaged; one that is not is repaired."""
    trial = Trial(kind, folder)
    trial.work.mkdir()
    with trial.child(drive) as child:
        child.until("holding")
        hurt = damage_of(kind, trial.work, "held")
        hurt.remove_record(1) if isinstance(hurt, SqliteDamage) else hurt.tear(1)
        expect(trial.ask(repair_beside) == [[["held"], 0]] * 2, "a run that is driven was touched")
        child.say("go on")
        child.until("done", "wrong")
    expect(trial.ask(repair_beside)[1][0] == [], "a run is driven after its process ended")


# -- the campaign ----------------------------------------------------------------------------------


def damaged(trial: Trial, original: Path, ids: list[str], seed: int) -> list[Any]:
    """Damage several runs; gives what can still be read, and the runs that are named."""
    shutil.rmtree(trial.damaged, ignore_errors=True)
    shutil.copytree(original, trial.damaged, symlinks=True)
    for number, kind in enumerate(_KINDS[trial.kind]):
        damage(trial.kind, trial.damaged, 1000 * seed + number, kind)
    trial.begin()
    seen: list[Any] = trial.ask(look, ids)
    return seen


def killed(trial: Trial, ids: list[str], step: int | None, seconds: float) -> bool:
    """Kill a repair, at a step or after a time; whether it was not over by then."""
    trial.begin()
    with trial.child(repair, ids, step) as child:
        child.until("ready", "answer")
        if step is None:
            child.ended_within(seconds)
        else:
            expect(child.ended_within(100.0), "a repair hangs")
        child.kill()
        return not any(line.startswith("answer") for line in child.told)


def campaign(kind: str, folder: Path, kills: int, seed: int, bug: str = "", each_step: bool = False) -> int:
    """How many repairs were killed; raises ``Wrong``. With ``each_step`` one is killed at each step that there is."""
    trial = Trial(kind, folder, bug)
    ids = trial.ask(fill)
    original = folder / "original"
    trial.damaged.rename(original)
    chance, done, tried = random.Random(seed), 0, 0
    while tried < kills:
        before = damaged(trial, original, ids, seed)
        trial.begin()
        whole, steps = trial.ask(repair, ids, None)
        many = min(_KILLS_EACH, kills - tried)
        if each_step:
            many = kills = steps
        for number in range(many):
            timed = number % 3 == 2 and not each_step
            step = None if timed else 1 + (number * steps + chance.randrange(steps)) // many % steps
            step = steps - number if each_step else step
            try:
                done += killed(trial, ids, step, chance.uniform(0, 0.03) if timed else 0)
                trial.ask(check, ids, before, whole)
            except Wrong as wrong:
                raise Wrong(f"seed {seed}, killed at step {step} of {steps}: {wrong}") from wrong
        tried += many
        seed += 1
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Kill those who repair a storage.")
    parser.add_argument("--store", choices=ON_DISK, default="sqlite")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    parser.add_argument("--each-step", action="store_true", help="instead: one kill at each step of a repair")
    parser.add_argument("--driven", action="store_true", help="instead: beside a process that drives a run")
    given = parser.parse_args(arguments)
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        try:
            if given.driven:
                beside(given.store, Path(folder))
                return 0
            done = campaign(
                given.store, Path(folder), given.kills, given.seed, given.planted, given.each_step
            )
        except Wrong as wrong:
            print(f"WRONG: {wrong}")
            return 1
    print(f"{given.store}: {done} of {given.kills} repairs were killed before they were over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
