"""The same run gives the same durable events, whoever is faster."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Case,
    Default,
    Executor,
    HoldfastError,
    Limits,
    Merge,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
    handler,
)
from tests.support.graphs import Description, descriptions, inputs
from tests.support.parts import Snapshot
from tests.support.runs import shape
from tests.support.seeded_loop import run_seeded

TIMES = 100
SCOPE = "Scope"


@dataclass
class Progress(WorkflowEvent):
    """An event of a user."""

    who: str = ""


class Chance:
    """How long handlers take, and in which order they ended; new for each run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.ended: list[str] = []

    async def work(self, who: str) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(self._random.choice([0, 0, 0.5, 3.0]))
        self.ended.append(who)


class Worker(Executor):
    """Does all that a handler can do, with pauses in between."""

    def __init__(self, id: str, chance: Chance, fails: bool = False) -> None:
        super().__init__(id)
        self.chance, self.fails = chance, fails

    @handler
    async def work(self, number: int, ctx: WorkflowContext[Any, Any]) -> int:
        await ctx.append_state("log", f"{self.id}{number}", scope_name=SCOPE)
        await self.chance.work(self.id)
        await ctx.add_event(Progress(who=self.id))
        await ctx.add_event(Progress(who=self.id, provisional=True))
        await ctx.queue_state_update("total", number, scope_name="Totals")
        await ctx.queue_state_update("last", self.id, scope_name="Last")
        await self.chance.work(self.id)
        rows = [str(self.id)]
        await ctx.send_message(rows)
        rows.append("late")
        await ctx.yield_output((self.id, await ctx.read_state("log", scope_name=SCOPE)))
        await ctx.send_message(2.5)
        if self.fails and number == 1:
            raise ValueError(self.id)
        return number


class Loop(Executor):
    """Goes round until its number is used up."""

    @handler
    async def begin(self, number: int, ctx: WorkflowContext[int]) -> int:
        return number

    @handler
    async def again(self, parts: list, ctx: WorkflowContext[int, Any]) -> int | None:
        await ctx.yield_output(parts)
        await ctx.yield_output(await ctx.read_state("log", scope_name=SCOPE))
        numbers = [part for part in parts if isinstance(part, int)]
        return min(numbers) - 1 if numbers and min(numbers) > 0 else None


@executor
async def odd(number: int) -> None: ...


def build(chance: Chance, failing: str = "", at_once: int = 1000) -> Workflow:
    workers = [Worker.bind(id=name, chance=chance, fails=name in failing) for name in "cabde"]
    return (
        WorkflowBuilder(name="Busy", limits=Limits(max_concurrent_turns=at_once))
        .set_start_executor(Loop)
        .add_fan_out_edges(Loop, workers)
        .add_fan_in_edges(workers, Loop)
        .add_switch_case_edge_group("a", [Case(lambda n: n % 2 == 1, odd, label="odd"), Default("b")])
        .with_state_merge("Totals", None, Merge.ADD)
        .with_state_merge("Last", None, Merge.LAST_WRITE)
        .build()
    )


class Seen:
    """What one run showed."""

    def __init__(self, events: list[WorkflowEvent], snapshot: Snapshot, error: str, ended: list[str]) -> None:
        self.durable = [shape(event) for event in events if not event.provisional]
        self.all = [shape(event) for event in events]
        self.snapshot = snapshot
        self.error = error
        self.ended = tuple(ended)


def seen(make: Callable[[Chance], Workflow], message: object, seed: int) -> Seen:
    chance = Chance(seed)

    async def run() -> Seen:
        stream = make(chance).run_stream(message)
        events, failure = [], ""
        try:
            async for event in stream:
                events.append(event)
        except HoldfastError as error:
            notes = [note.partition(" of run")[0] for note in getattr(error, "__notes__", [])]
            failure = f"{error.__cause__!r} {notes}"
        return Seen(events, stream.run.snapshot, failure, chance.ended)

    return run_seeded(run, seed)


def check_same(make: Callable[[Chance], Workflow], message: object) -> list[Seen]:
    runs = [seen(make, message, seed) for seed in range(TIMES)]
    for other in runs[1:]:
        assert without_run(other.durable) == without_run(runs[0].durable)
        assert other.snapshot == runs[0].snapshot
        assert other.error == runs[0].error
    return runs


def without_run(events: list[Any]) -> list[str]:
    """Errors tell the id of their run; what is left is the same."""
    shown = [repr(event) for event in events]
    return [text.partition(" of run ")[0] for text in shown]


def test_same_durable_events_a_hundred_times() -> None:
    runs = check_same(build, 2)
    kinds = {event[0] for event in runs[0].durable}
    assert kinds >= {
        *(
            "SuperStepStartedEvent",
            "ExecutorInvokedEvent",
            "ExecutorCompletedEvent",
            "SuperStepCompletedEvent",
        ),
        *("WorkflowOutputEvent", "WorkflowWarningEvent", "WorkflowStatusEvent", "Progress"),
    }
    assert runs[0].snapshot.superstep >= 6


def test_handlers_do_finish_in_differing_order() -> None:
    """Planted: were this not so, the tests beside this one would show nothing."""
    runs = [seen(build, 2, seed) for seed in range(TIMES)]
    assert len({run.ended for run in runs}) > TIMES / 2


def test_order_of_provisional_events_does_differ() -> None:
    """Planted: these come as they happen, and the comparison sees that."""
    runs = [seen(build, 2, seed) for seed in range(20)]
    assert len({repr(run.all) for run in runs}) > 1
    assert len({repr(run.durable) for run in runs}) == 1


def test_same_durable_events_with_few_turns_at_once() -> None:
    few = check_same(lambda chance: build(chance, at_once=2), 1)
    assert without_run(few[0].durable) == without_run(seen(build, 1, seed=0).durable)


def test_same_failure_a_hundred_times() -> None:
    runs = check_same(lambda chance: build(chance, failing="dae"), 2)
    assert "ValueError('a')" in runs[0].error
    assert "ValueError('d')" in runs[0].error
    assert "ValueError('e')" in runs[0].error


@settings(max_examples=30)
@given(descriptions(), inputs(), st.integers(0, 2**32))
def test_random_workflows_do_not_depend_on_the_order_of_callbacks(
    description: Description, message: int, seed: int
) -> None:
    def make(chance: Chance) -> Workflow:
        return description.build()

    first, second = seen(make, message, seed), seen(make, message, seed + 1)
    assert first.durable == second.durable
    assert first.snapshot == second.snapshot
