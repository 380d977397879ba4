"""A run by the pure functions alone: random executors interpreted without a runtime."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from holdfast import Limits, SuperStepCompletedEvent, Workflow
from tests.support.graphs import Append, Clear, Description, Put, Read, Send, Yield, act
from tests.support.parts import (
    Applied,
    Copier,
    ExecutorId,
    Outcome,
    Output,
    Scope,
    Sent,
    Snapshot,
    StagedState,
    Turn,
    advance,
    apply,
    begin,
    capture,
    plan,
)

LIMITS = Limits()


class Described(Protocol):
    """What says how the executors of a workflow behave, nested ones by the path of their graph."""

    def at(self, path: str) -> Description: ...

    def build(self) -> Workflow: ...


def captured(value: object) -> Any:
    return capture(value, "value", LIMITS.max_value_size)


def perform(described: Described, workflow: Workflow, snapshot: Snapshot, turn: Turn) -> Outcome:
    """What a turn produces, by the description of its executor and without asyncio."""
    graph, path, spec = workflow.graph.locate(turn.executor_id)
    description = described.at(path)
    node, targets = description.node(spec.id), description.reachable_from(spec.id)
    staging = StagedState(
        snapshot.state,
        turn.executor_id,
        lambda scope, key: graph.merge_for(scope.name, key) if scope.owner is None else None,
        Copier(LIMITS.max_value_size),
    )
    messages: list[Sent] = []
    outputs: list[Output] = []

    def scoped(name: str | None) -> Scope:
        return Scope(turn.executor_id, "", path) if name is None else Scope(None, name, path)

    for delivery in turn.deliveries:
        acting = act(node, targets, delivery.value.load())
        answer: Any = None
        while True:
            try:
                action = acting.send(answer)
            except StopIteration as end:
                returned = end.value
                break
            answer = None
            match action:
                case Send(value, target):
                    messages.append(Sent(captured(value), ExecutorId(target) if target else None))
                case Yield(value):
                    outputs.append(Output(turn.executor_id, captured(value)))
                case Read(scope, key):
                    found = staging.read(scoped(scope), key)
                    answer = None if found is None else found.load()
                case Put(scope, key, value):
                    staging.put(scoped(scope), key, captured(value))
                case Append(scope, key, item):
                    staging.append(scoped(scope), key, captured(item))
                case Clear(scope, key):
                    staging.drop(scoped(scope), key)
        if returned is not None and targets:
            messages.append(Sent(captured(returned)))
        elif returned is not None:
            outputs.append(Output(turn.executor_id, captured(returned)))
    return Outcome(turn.executor_id, messages, staging.changes, outputs)


class Stage(NamedTuple):
    """One superstep: what it began with, what was done, what came of it."""

    before: Snapshot
    turns: tuple[Turn, ...]
    outcomes: list[Outcome]
    applied: Applied


def stages(described: Described, workflow: Workflow, snapshot: Snapshot) -> Iterator[Stage]:
    while turns := plan(workflow.graph, snapshot):
        outcomes = [perform(described, workflow, snapshot, turn) for turn in turns]
        applied = apply(workflow.graph, snapshot, outcomes, LIMITS)
        yield Stage(snapshot, turns, outcomes, applied)
        snapshot = applied.snapshot


def whole(described: Described, message: object) -> tuple[Workflow, list[Stage]]:
    workflow = described.build()
    first = begin(workflow.graph, workflow.name, message, LIMITS)
    return workflow, list(stages(described, workflow, first))


def plain(thing: Any) -> Any:
    """A deep picture of snapshots, deltas and outcomes that shares nothing with them."""
    if hasattr(thing, "load"):
        return ("value", thing.type.__name__, repr(thing.load()))
    if isinstance(thing, tuple):
        return (type(thing).__name__, *(plain(part) for part in thing))
    if isinstance(thing, Mapping):
        return {repr(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, str | int | None):
        return thing
    if isinstance(thing, Iterable):
        return [plain(part) for part in thing]
    return repr(thing)


def check_purity(workflow: Workflow, run: list[Stage]) -> None:
    """Planning and applying again gives the same, and changes nothing of what it is given."""
    for stage in run:
        before = plain(stage.before), plain(stage.turns), plain(stage.outcomes)
        first = apply(workflow.graph, stage.before, stage.outcomes, LIMITS)
        again = apply(workflow.graph, stage.before, stage.outcomes, LIMITS)
        assert first == again == stage.applied
        assert plain(first) == plain(again) == plain(stage.applied)
        assert plan(workflow.graph, stage.before) == plan(workflow.graph, stage.before) == stage.turns
        assert (plain(stage.before), plain(stage.turns), plain(stage.outcomes)) == before


def check_prefixes(described: Described, run: list[Stage]) -> None:
    """Going on from any superstep, with a workflow that is built anew, gives the rest of the run."""
    for position, stage in enumerate(run):
        rest = [later.applied for later in stages(described, described.build(), stage.applied.snapshot)]
        expected = [later.applied for later in run[position + 1 :]]
        assert rest == expected
        assert plain(rest) == plain(expected)


def check_deltas(run: list[Stage]) -> None:
    """Each delta leads from a snapshot to the next one."""
    for number, stage in enumerate(run, start=1):
        following = advance(stage.before, stage.applied.delta)
        assert following == stage.applied.snapshot
        assert plain(following) == plain(stage.applied.snapshot)
        assert (following.superstep, following.since_input) == (number, number)


def run_and_take_snapshots(workflow: Workflow, message: object) -> tuple[list[Snapshot], Snapshot]:
    """Let the runtime run a workflow; return its snapshots after each superstep, and the last."""
    taken: list[Snapshot] = []

    async def stream() -> Snapshot:
        running = workflow.run_stream(message)
        async for event in running:
            if isinstance(event, SuperStepCompletedEvent):
                taken.append(running.run.snapshot)
        return running.run.snapshot

    last = asyncio.run(stream())
    return taken, last
