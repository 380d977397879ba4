"""Stops a process in the middle of a superstep, lets another go on with its run, and wakes it up.

    python -m tests.faults.zombies --store sqlite

What the process that was woken up commits or notes is refused: the store is as it was, and its run ends with
``RunTaken``. It does no effect any more, neither one that is journaled by now nor one that the other has yet to do, and
tells those who watch it of nothing that came of its superstep. It is stopped in a handler or between two effects; its
run is taken away from it, or its lease ran out; and it wakes up while the other is in the same superstep, or after that
one brought the run to its end.
"""

import asyncio
import contextlib
import itertools
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import (
    HoldfastError,
    Run,
    RunStatus,
    RunTaken,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    executor,
)
from holdfast.stores.common import presence
from tests.faults.playing import Case, Scenario, play_scenarios
from tests.support.fault_processes import (
    Child,
    Parent,
    answer,
    append_line,
    expect,
    lines_of,
)
from tests.support.parts import Depth, RunId

RUN = RunId("run")
WHERE = ["handler", "effects"]
HOW = ["takeover", "lease"]
WHEN = ["meanwhile", "afterwards"]


class _Here:
    """What the handlers of this process need to know."""

    parent: Parent
    name: str
    effects: Path
    where: str


@executor(id="start")
def start(number: int) -> int:
    return number


@executor(id="quick")
async def quick(number: int, ctx: WorkflowContext[int]) -> int:
    """Is over when the process stops, so that its outcome is journaled or about to be."""
    return await ctx.once("quick", _effect, "quick", ctx.idempotency_key, number)


@executor(id="slow")
async def slow(number: int, ctx: WorkflowContext[int]) -> int:
    key = ctx.idempotency_key
    first = await ctx.once("first", _effect, "first", key, number)
    _Here.parent.tell("inside")
    await _Here.parent.hear()
    if _Here.where == "handler":
        return first
    return first + await ctx.once("second", _effect, "second", key, number)


async def _effect(name: str, key: str, number: int) -> int:
    append_line(_Here.effects, f"{_Here.name} {name} {key}")
    return number


@executor(id="join")
async def join(numbers: list[int], ctx: WorkflowContext[Any, list[int]]) -> None:
    await ctx.yield_output(numbers)


def two_turns() -> Workflow:
    return (
        WorkflowBuilder(name="TwoTurns")
        .set_start_executor(start)
        .add_fan_out_edges(start, [quick, slow])
        .add_fan_in_edges([quick, slow], join)
        .build()
    )


# -- what children do ------------------------------------------------------------------------------


class Way(NamedTuple):
    """Where the process stops, how the run is taken from it, and when it wakes up."""

    where: str
    how: str
    when: str


def _effects(case: Case) -> Path:
    return case.folder / "effects"


async def drive(parent: Parent, case: Case, way: Way) -> None:
    """Begin the run, and tell how that ends."""
    _set_here(parent, case, way, "zombie")
    async with case.opened() as storage:
        run = await two_turns().start(7, run_id=RUN, storage=storage)
        watching = asyncio.create_task(_watch(run))
        await _tell_end(parent, run.wait_for_completion())
        parent.tell(f"watched {json.dumps(await watching)}")


async def _watch(run: Run) -> list[str]:
    """What a watcher was told that is true only if it is stored: supersteps that ended, and outputs."""
    told: list[str] = []
    with contextlib.suppress(HoldfastError):  # how the run ended is told already
        async for event in run.watch_stream():
            if isinstance(event, SuperStepCompletedEvent | WorkflowOutputEvent):
                told.append(type(event).__name__)
    return told


async def take(parent: Parent, case: Case, way: Way) -> None:
    """Go on with the run as soon as it may be, and tell how that ends."""
    _set_here(parent, case, way, "taker")
    async with case.whole() as storage:
        try:
            await two_turns().resume(run_id=RUN, storage=storage)
            parent.tell("wrong the run of a process that stands still for a moment was taken away from it")
        except RunTaken:
            pass
        if way.how == "takeover":
            run = await two_turns().resume(run_id=RUN, storage=storage, take_over=True)
        else:
            presence.LEASE_SECONDS = 0.2
            while True:
                try:
                    run = await two_turns().resume(run_id=RUN, storage=storage)
                    break
                except RunTaken:
                    await asyncio.sleep(0.01)
        await _tell_end(parent, run.wait_for_completion())


def _set_here(parent: Parent, case: Case, way: Way, name: str) -> None:
    _Here.parent, _Here.name, _Here.effects, _Here.where = parent, name, _effects(case), way.where


async def _tell_end(parent: Parent, ending: Any) -> None:
    try:
        outputs = (await ending).outputs
    except Exception as error:
        parent.tell(f"end {type(error).__name__}: {error}".replace("\n", " "))
    else:
        parent.tell(f"end {json.dumps(outputs)}")


async def look(parent: Parent, case: Case) -> None:
    """Answer all that is stored of the run, after checking it."""
    async with case.whole() as storage:
        report = await storage.verify()
        expect(report.ok, f"the storage has problems: {report.problems[:3]}")
        head = await storage.store.head(RUN)
        assert head is not None
        records = await storage.store.records(RUN, 1, head.seq + 10, Depth.ALL)
        notes = await storage.store.notes(RUN)
        letters = await storage.store.inbox(RUN)
        answer(
            parent, [repr(head), list(map(repr, records)), list(map(repr, notes)), list(map(repr, letters))]
        )


async def wait_for_notes(parent: Parent, case: Case) -> None:
    """Answer when all is journaled that was done before the process is inside."""
    async with case.whole() as storage:
        while len(notes := await storage.store.notes(RUN)) < 3:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.001)
        answer(parent, [note.key for note in notes])


async def end_of_run(parent: Parent, case: Case) -> None:
    """Answer what the run gave out."""
    async with case.whole() as storage:
        run = await two_turns().resume(run_id=RUN, storage=storage)
        result = await run.wait_for_completion()
        answer(parent, [result.status == RunStatus.COMPLETED, result.outputs])


# -- what is tried ---------------------------------------------------------------------------------


def try_it(case: Case, way: Way) -> None:
    """Stop, take over, wake up; raises ``Wrong``."""
    result = [7, 7] if way.where == "handler" else [7, 14]
    with case.child(drive, way) as zombie:
        zombie.until("inside")
        # One that stops in the middle of a transaction of SQLite keeps everybody from writing.
        case.ask(wait_for_notes)
        zombie.stop()
        with case.child(take, way) as taker:
            taker.until("inside")
            if way.when == "afterwards":
                taker.say("go")
                _ended_with(taker, [result])
            before = case.ask(look)
            zombie.say("go")
            zombie.go_on()
            told = zombie.until("end")
            watched = zombie.until("watched")
            zombie.finish()
            after = case.ask(look)
            expect(before == after, f"a process whose run was taken changed it from {before} to {after}")
            if way.when == "meanwhile":
                taker.say("go")
                _ended_with(taker, [result])
            taker.finish()
    expect(
        told.startswith("end RunTaken: "), f"the run of the process that was stopped ended with {told[4:]}"
    )
    expect(watched == f'watched ["{SuperStepCompletedEvent.__name__}"]', f"its watcher was told {watched}")
    completed, outputs = case.ask(end_of_run)
    expect(completed and outputs == [result], f"the run gave out {outputs}, not {[result]}")
    _check_effects(case)


def _ended_with(taker: Child, outputs: list[Any]) -> None:
    told = taker.until("end")
    expect(told == f"end {json.dumps(outputs)}", f"the one who took the run over ended with {told[4:]}")


def _check_effects(case: Case) -> None:
    done = [line.split() for line in lines_of(_effects(case))]
    for journaled in ("quick", "first"):
        who = [name for name, effect, _ in done if effect == journaled]
        expect(who == ["zombie"], f"effect {journaled!r} was journaled, but done by {who}")
    who = [name for name, effect, _ in done if effect == "second"]
    expect(who == ["taker"] * len(who), f"effect 'second' was done by {who}, after the run was taken over")
    expect(len(who) <= 1, f"effect 'second' was done {len(who)} times")
    keys = {key for _, effect, key in done if effect in ("first", "second")}
    expect(len(keys) == 1, f"the effects of one turn were done with the keys {keys}")


SCENARIOS: dict[str, Scenario] = {
    "-".join(way): partial(try_it, way=Way(*way)) for way in itertools.product(WHERE, HOW, WHEN)
}


def main(arguments: list[str] | None = None) -> int:
    """Try them from the command line; 0 if nothing went wrong."""
    return play_scenarios("Stop a process, take its run over, and wake it up.", SCENARIOS, arguments)


if __name__ == "__main__":
    sys.exit(main())
