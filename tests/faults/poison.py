"""Runs that kill whoever goes on with them, and who is seen as dead or alive.

    python -m tests.faults.poison --store sqlite

A superstep that ends its process every time must not be tried for ever; one in which each process comes a bit
further must.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast import (
    RunPoisoned,
    RunStatus,
    RunTaken,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.faults.playing import Case, Scenario, play_scenarios
from tests.support.durable import Wrapped
from tests.support.fault_processes import (
    Parent,
    answer,
    append_line,
    expect,
    lines_of,
)
from tests.support.parts import MOST_TAKEOVERS, Commit, RunId

RUN = RunId("run")
TURNS = MOST_TAKEOVERS + 4


class _Here:
    """What the handlers of this process need to know."""

    folder: Path
    parent: Parent
    fresh: bool = False
    one_at_a_time: asyncio.Lock


# -- a superstep that kills ------------------------------------------------------------------------


@executor(id="deadly")
async def deadly(number: int) -> int:
    append_line(_Here.folder / "lives", "one")
    if (_Here.folder / "cured").exists():
        return number
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@executor(id="end")
async def end(number: int, ctx: WorkflowContext[int, int]) -> None:
    await ctx.yield_output(number)


def deadly_workflow() -> Workflow:
    return WorkflowBuilder(name="Deadly").set_start_executor(deadly).add_edge(deadly, end).build()


async def try_deadly(parent: Parent, case: Case) -> None:
    """Start the run or go on with it, and tell how that ends, if it does."""
    _Here.folder = case.folder
    async with case.opened() as storage:
        try:
            if await storage.catalog.head_or_none(RUN) is None:
                run = await deadly_workflow().start(1, run_id=RUN, storage=storage)
            else:
                run = await deadly_workflow().resume(run_id=RUN, storage=storage)
        except RunPoisoned:
            parent.tell("poisoned")
            return
        await run.wait_for_completion()
        parent.tell("done")


async def stands(parent: Parent, case: Case) -> None:
    """Answer the status of the run, why it failed, and whether it is interrupted."""
    async with case.whole() as storage:
        (run,) = await storage.list_runs()
        listed = await storage.list_runs(interrupted=True)
        expect((listed == [run]) is run.interrupted, f"{run} and {listed} do not agree")
        expect((await storage.verify()).ok, "the storage is damaged")
        answer(parent, [run.status.value, run.reason, run.interrupted])


def _life(case: Case) -> str:
    with case.child(try_deadly) as child:
        told = child.finish()
    problems = [line for line in told if line.startswith("wrong ")]
    expect(not problems, f"a child failed: {problems}")
    return told[0] if told else "died"


def _lives(case: Case) -> int:
    """How many died until the run was seen as poisoned."""
    for number in range(MOST_TAKEOVERS + 5):
        if (came := _life(case)) == "poisoned":
            return number
        expect(came == "died", f"a process that should have died told {came}")
        status, reason, interrupted = case.ask(stands)
        expect((status, reason, interrupted) == ("running", "", True), f"after {number}: {status} {reason!r}")
    return -1


def deadly_superstep(case: Case) -> None:
    """After so many takeovers the run is FAILED; who knows better may try again."""
    for again in (False, True):
        died = _lives(case)
        expect(
            died == MOST_TAKEOVERS + 1, f"{died} processes died before the run was given up, again={again}"
        )
        expect(len(lines_of(case.folder / "lives")) == died * (1 + again), "it was tried once more, or not")
        status, reason, interrupted = case.ask(stands)
        expect((status, interrupted) == ("failed", False), f"a poisoned run is {status}, {interrupted}")
        expect("RunPoisoned" in reason and str(MOST_TAKEOVERS) in reason, f"it failed because of {reason!r}")
    (case.folder / "cured").touch()
    came = _life(case)
    expect(came == "done", f"the run was cured, but came to {came}")
    status, reason, interrupted = case.ask(stands)
    expect((status, reason) == ("completed", ""), f"the run was cured, but is {status} {reason!r}")


class Held(Wrapped):
    """Tells of each commit before it makes it, and waits until it may."""

    def __init__(self, inner: Store, parent: Parent) -> None:
        super().__init__(inner)
        self._parent = parent

    async def commit(self, commit: Commit):
        self._parent.tell("committing")
        await self._parent.hear()
        return await self.inner.commit(commit)


async def find_poisoned(parent: Parent, case: Case) -> None:
    """Go on with a poisoned run, with others who do the same; tell what came of it."""
    _Here.folder = case.folder
    async with case.whole() as storage:
        storage.catalog.store = Held(storage.store, parent)
        try:
            await deadly_workflow().resume(run_id=RUN, storage=storage)
        except (RunPoisoned, RunTaken) as error:
            parent.tell(f"end {type(error).__name__}")
        else:
            parent.tell("end resumed")


def found_by_two(case: Case) -> None:
    """Two find out at the same moment that a run is poisoned: both are told so, or that the other was faster."""
    for _ in range(MOST_TAKEOVERS + 1):
        expect(_life(case) == "died", "a process should have died")
    with (
        case.child(find_poisoned) as one,
        case.child(find_poisoned) as two,
    ):
        first = [child.until("committing", "end") for child in (one, two)]
        for child, told in zip((one, two), first, strict=True):
            if (
                told == "committing"
            ):  # else the other was so much faster that there is nothing to find any more
                child.say("go")
        ends = [
            told if told != "committing" else child.until("end")
            for child, told in zip((one, two), first, strict=True)
        ]
    expect("end RunPoisoned" in ends and "end resumed" not in ends, f"two found a poisoned run: {ends}")


# -- a superstep that comes further each time ------------------------------------------------------


@executor(id="begin")
def begin(number: int) -> int:
    return number


def _turn(number: int):
    @executor(id=f"t{number}")
    async def turn(given: int, ctx: WorkflowContext[int]) -> int:
        async with _Here.one_at_a_time:
            await ctx.once("step", _step, number)
            if _Here.fresh:
                os.kill(os.getpid(), signal.SIGKILL)
        return given

    return turn


def _step(number: int) -> int:
    append_line(_Here.folder / "lives", str(number))
    _Here.fresh = True
    return number


@executor(id="all")
async def all_of_them(numbers: list[int], ctx: WorkflowContext[int, int]) -> None:
    await ctx.yield_output(len(numbers))


def steps() -> Workflow:
    turns = [_turn(number) for number in range(TURNS)]
    return (
        WorkflowBuilder(name="Steps")
        .set_start_executor(begin)
        .add_fan_out_edges(begin, turns)
        .add_fan_in_edges(turns, all_of_them)
        .build()
    )


async def step(parent: Parent, case: Case) -> None:
    """Take one turn further and die, or come to the end and answer what it is."""
    _Here.folder, _Here.one_at_a_time = case.folder, asyncio.Lock()
    async with case.opened() as storage:
        if await storage.catalog.head_or_none(RUN) is None:
            run = await steps().start(1, run_id=RUN, storage=storage)
        else:
            run = await steps().resume(run_id=RUN, storage=storage)
        answer(parent, (await run.wait_for_completion()).outputs)


def a_bit_each_time(case: Case) -> None:
    """A run is not poisoned as long as each process that dies has journaled something new."""
    for number in range(TURNS):
        with case.child(step) as child:
            told = child.finish()
        expect(not told, f"process {number + 1} of {TURNS} should have died, but told {told}")
    outputs = case.ask(step)
    expect(outputs == [TURNS], f"the run gave out {outputs}")
    done = sorted(map(int, lines_of(case.folder / "lives")))
    expect(done == list(range(TURNS)), f"the effects that happened are {done}")


# -- who lives -------------------------------------------------------------------------------------


@executor(id="wait")
async def wait(number: int) -> int:
    _Here.parent.tell("inside")
    await _Here.parent.hear()
    return number


def waiting() -> Workflow:
    return WorkflowBuilder(name="Waiting").set_start_executor(wait).build()


async def be_inside(parent: Parent, case: Case, run_id: str) -> None:
    """Be in a superstep until the parent lets it end."""
    _Here.parent = parent
    async with case.whole() as storage:
        await (await waiting().start(1, run_id=run_id, storage=storage)).wait_for_completion()
        parent.tell("end")


async def see(parent: Parent, case: Case) -> None:
    """Answer which runs are interrupted, which are not, and whether the living one can be resumed."""
    async with case.opened() as storage:
        dead = [run.run_id for run in await storage.list_runs(interrupted=True)]
        alive = [
            run.run_id
            for run in await storage.list_runs(interrupted=False)
            if run.status is RunStatus.RUNNING
        ]
        try:
            await waiting().resume(run_id="alive", storage=storage)
            taken = False
        except RunTaken as error:
            taken = "take_over=True" in str(error)
        answer(parent, [dead, alive, taken])


def dead_and_alive(case: Case) -> None:
    """A run is interrupted as soon as its process is dead, and not as long as it lives."""
    with case.child(be_inside, "dead") as dead:
        dead.until("inside")
        dead.kill()
        with case.child(be_inside, "alive") as alive:
            alive.until("inside")
            seen = case.ask(see)
            expect(seen == [["dead"], ["alive"], True], f"one is dead and one alive, but seen was {seen}")
            alive.say("go")
            alive.until("end")


SCENARIOS: dict[str, Scenario] = {
    "deadly-superstep": deadly_superstep,
    "found-by-two": found_by_two,
    "a-bit-each-time": a_bit_each_time,
    "dead-and-alive": dead_and_alive,
}


def main(arguments: list[str] | None = None) -> int:
    """Try them from the command line; 0 if nothing went wrong."""
    return play_scenarios("Let runs kill their processes.", SCENARIOS, arguments)


if __name__ == "__main__":
    sys.exit(main())
