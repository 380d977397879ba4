"""Workflows in which one turn fails, what comes of them when they go on, and what their journals hold."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    ExecutorInvokedEvent,
    HoldfastError,
    InMemoryCheckpointStorage,
    Run,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from tests.support.durable import Place, info_of_run
from tests.support.going_on import matches_the_store, picture
from tests.support.parts import Note, RunId, differs, select_durable_events, unbundled
from tests.support.runs import soon

RUN = "mine"
"""The run that is taken up again and again."""


# -- looking ---------------------------------------------------------------------------------------


def keys_of(notes: Sequence[Note]) -> list[tuple[str, ...]]:
    """What notes are about: ``("turn", executor)`` or ``("once", executor, name)``."""
    return [tuple(json.loads(note.key)) for note in notes]


async def noted(storage: CheckpointStorage, run_id: str = RUN) -> list[tuple[str, ...]]:
    """What the journal of a run holds."""
    blobs = storage.catalog.blobs((await storage.catalog.head(run_id)).family)
    return keys_of((await unbundled(await storage.store.notes(RunId(run_id)), blobs)).notes)


async def noted_turns(storage: CheckpointStorage, run_id: str = RUN) -> list[str]:
    """The executors whose turns are over, as the journal of a run has it, sorted."""
    return sorted(key[1] for key in await noted(storage, run_id) if key[0] == "turn")


# -- workflows ---------------------------------------------------------------------------------------


ran: list[str] = []
"""The executors whose handlers were called, in order."""
broken: set[str] = set()
"""What raises: executors, merges, conditions."""
calls: list[Any] = []
"""What effects were called with."""


class Broken(Exception):
    """What is raised on purpose."""


def note(name: object) -> None:
    """A handler was called; it fails if it is broken."""
    ran.append(str(name))
    if str(name) in broken:
        raise Broken(f"{name} is broken")


@executor(id="start")
async def start(message: object) -> object:
    return message


class Trip(Executor):
    """The turn that fails, so that the superstep comes to nothing."""

    @handler
    async def work(self, message: object, ctx: WorkflowContext[object]) -> None:
        note(self.id)
        await ctx.append_state("trips", 1)


@executor(id="collect")
async def collect(parts: list) -> list:
    note("collect")
    return parts


def fan(workers: list[Any], name: str = "Fan") -> WorkflowBuilder:
    """All workers in superstep 2, and what they send in a list."""
    return (
        WorkflowBuilder(name=name)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, collect)
    )


class Part(Executor):
    """Takes what it gets to its own state, to shared state, and along."""

    checkpointed = ("seen",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.seen: list[Any] = []

    @handler
    async def work(self, message: int, ctx: WorkflowContext[str, str]) -> str:
        self.seen.append(message)
        await ctx.append_state("log", str(self.id), scope_name="Shared")
        await ctx.queue_state_update("last", message)
        await ctx.yield_output(f"output of {self.id}")
        note(self.id)
        return f"{self.id} {self.seen}"


def parts(count: int) -> Workflow:
    return fan([Part.bind(id=f"p{number}") for number in range(count)]).build()


class Again(Executor):
    """Has one turn after the other, and keeps count in a field."""

    checkpointed = ("rounds",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.rounds: list[int] = []

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        self.rounds.append(left)
        note(f"{self.id} {len(self.rounds)}")
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output((str(self.id), self.rounds))


def again_and_again(workers: list[Any]) -> Workflow:
    builder = WorkflowBuilder(name="Again").set_start_executor(start).add_fan_out_edges(start, workers)
    for worker in workers:
        builder.add_edge(worker, worker)
    return builder.build()


class Ending(NamedTuple):
    """What came of a run."""

    outputs: list[Any]
    held: dict[str, Any]
    told: list[tuple[int, str, dict[str, Any]]]
    warnings: list[tuple[type, str]]
    replayed: list[str]
    invoked: list[str]


async def ending(run: Run) -> Ending:
    """Let a run come to its end, which must be a good one."""
    events = [event async for event in run.watch_stream()]
    result = await run.wait_for_completion()
    assert result.status in (RunStatus.COMPLETED, RunStatus.WAITING)
    done = [event for event in events if isinstance(event, ExecutorCompletedEvent)]
    return Ending(
        result.outputs,
        await picture(run.snapshot),
        select_durable_events(events),
        [(type(warning), str(warning)) for warning in result.warnings],
        [str(event.executor_id) for event in done if event.replayed],
        [f"{e.superstep} {e.executor_id}" for e in events if isinstance(e, ExecutorInvokedEvent)],
    )


async def fails(make: Callable[[], Workflow], message: object, place: Place) -> HoldfastError:
    """What the run with this input fails with."""
    with pytest.raises(HoldfastError) as caught:
        await soon(make().run(message, run_id=RUN, storage=place.storage))
    assert (await info_of_run(place.storage, RUN)).status is RunStatus.FAILED
    report = await place.storage.verify()
    assert report.ok, report.problems
    return caught.value


async def goes_on(make: Callable[[], Workflow], place: Place) -> Ending:
    """What comes of the run when it is resumed as a new process would."""
    broken.clear()
    ran.clear()
    run = await make().resume(run_id=RUN, storage=await place.reopened())
    found = await soon(ending(run))
    await matches_the_store(run, place.storage)
    assert await noted(place.storage) == []
    report = await place.storage.verify()
    assert report.ok, report.problems
    return found


async def fails_and_goes_on(
    make: Callable[[], Workflow], message: object, place: Place, breaks: str = "Trip", superstep: int = 2
) -> Ending:
    """Let one turn fail and mend it: the others must not run again, and the end must be that of a run without that."""
    expected = await soon(ending(await make().start(message, storage=InMemoryCheckpointStorage())))
    broken.add(breaks)
    assert isinstance(await fails(make, message, place), ExecutorFailed)
    found = await goes_on(make, place)
    assert f"{superstep} {breaks}" in found.invoked
    assert breaks not in found.replayed
    assert not {f"{superstep} {who}" for who in found.replayed} & {*found.invoked}
    assert not differs(found.outputs, expected.outputs)
    for held in expected.held:
        assert not differs(found.held[held], expected.held[held]), held
    assert found.told == [told for told in expected.told if told[0] >= superstep]
    assert found.warnings == expected.warnings
    return found
