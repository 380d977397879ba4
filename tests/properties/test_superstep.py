"""Supersteps over random workflows: nothing is lost or doubled, nothing is changed, any point is a start."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import SuperStepCompletedEvent, Workflow
from tests.support.exploring import shows_all
from tests.support.graphs import (
    Description,
    descriptions,
    inputs,
    kind_of,
)
from tests.support.parts import Copier, Snapshot, begin, pass_on
from tests.support.pure_run import (
    LIMITS,
    Stage,
    check_deltas,
    check_prefixes,
    check_purity,
    plain,
    run_and_take_snapshots,
    stages,
    whole,
)

EXAMPLES = settings(max_examples=40)


# -- routing, written a second time ----------------------------------------------------------------


class Routed(NamedTuple):
    """What becomes of messages: who gets what from whom, what fan-ins hold, and what nobody takes."""

    deliveries: list[tuple[str, object, str | None]]
    held: dict[tuple[tuple[str, ...], str], list[tuple[str, object]]]
    unrouted: list[tuple[str, object]]


def naive(
    description: Description,
    held: Mapping[tuple[tuple[str, ...], str], list[tuple[str, object]]],
    sent: list[tuple[str, object, str | None]],
) -> Routed:
    """Route messages by the description alone, one by one, without any cleverness."""
    holding = {key: list(items) for key, items in held.items()}
    deliveries: list[tuple[str, object, str | None]] = []
    unrouted = []
    for source, message, only in sent:
        takers = {node.id for node in description.nodes if kind_of(message) in node.takes}
        reached = 0
        for link in description.links:
            if source not in link.sources:
                continue
            if link.kind == "fan-in":
                if only in (None, link.targets[0]):
                    holding.setdefault((link.sources, link.targets[0]), []).append((source, message))
                    reached += 1
                continue
            if link.kind == "direct":
                rule = link.rules[0]
                chosen = [t for t in link.targets if t in takers and (rule is None or rule(message))]
            elif link.kind == "switch":
                pairs = zip(link.targets, link.rules, strict=True)
                chosen = [t for t, rule in pairs if t in takers and (rule is None or rule(message))][:1]
            elif link.kind == "fan-out":
                chosen = [t for t in link.targets if t in takers]
            else:
                chosen = [t for t in link.selected(message) if t in takers]
            for target in chosen:
                if only in (None, target):
                    deliveries.append((target, message, source))
                    reached += 1
        if not reached:
            unrouted.append((source, message))
    for link in description.links:
        key = (link.sources, link.targets[0])
        if link.kind == "fan-in" and {source for source, _ in holding.get(key, [])} == set(link.sources):
            items = holding.pop(key)
            ordered = [message for name in link.sources for source, message in items if source == name]
            deliveries.append((link.targets[0], ordered, None))
    return Routed(deliveries, holding, unrouted)


def held_in(workflow: Workflow, snapshot: Snapshot) -> dict[tuple[tuple[str, ...], str], list[Any]]:
    """What the fan-ins of a snapshot hold, as the naive model says it."""
    fan_ins = {edge.buffer_key: edge for edge in workflow.graph.fan_ins}
    return {
        (fan_ins[key.fan_in].sources, fan_ins[key.fan_in].target): [
            (source, value.load()) for source, values in buffer.items() for value in values
        ]
        for key, buffer in snapshot.buffers.items()
    }


def by_source(held: Mapping[Any, list[tuple[str, object]]]) -> dict[Any, list[tuple[str, object]]]:
    """As sources are told apart and each keeps its order, the order between sources does not count."""
    return {key: sorted(items, key=lambda item: item[0]) for key, items in held.items()}


# -- properties ------------------------------------------------------------------------------------


@EXAMPLES
@given(descriptions(), inputs())
def test_no_message_is_lost_or_doubled(description: Description, message: int) -> None:
    workflow, run = whole(description, message)
    held: dict[Any, list[tuple[str, object]]] = {}
    for stage in run:
        sent = [
            (str(outcome.executor_id), sent.value.load(), sent.target and str(sent.target))
            for outcome in stage.outcomes
            for sent in outcome.messages
        ]
        expected = naive(description, held, sent)
        after = stage.applied.snapshot
        assert [(d.target, d.value.load(), d.source) for d in after.deliveries] == expected.deliveries
        assert len(stage.applied.unrouted) == len(expected.unrouted)
        assert [str(lost.source) for lost in stage.applied.unrouted] == [s for s, _ in expected.unrouted]
        assert by_source(held_in(workflow, after)) == by_source(expected.held)
        held = expected.held


@EXAMPLES
@given(descriptions(), inputs())
def test_each_delivery_is_handled_once_in_the_next_superstep(description: Description, message: int) -> None:
    workflow, run = whole(description, message)
    order = list(workflow.graph.executors)
    for stage in run:
        ids = [turn.executor_id for turn in stage.turns]
        assert ids == sorted(set(ids), key=order.index)
        for turn in stage.turns:
            mine = [delivery for delivery in stage.before.deliveries if delivery.target == turn.executor_id]
            assert list(turn.deliveries) == mine
        assert sum(len(turn.deliveries) for turn in stage.turns) == len(stage.before.deliveries)


@EXAMPLES
@given(descriptions(), inputs())
def test_plan_and_apply_are_pure(description: Description, message: int) -> None:
    check_purity(*whole(description, message))


@EXAMPLES
@given(descriptions(), inputs())
def test_the_short_way_equals_the_long_one(description: Description, message: int) -> None:
    """A turn that only passes one message on is applied by a function of its own."""
    _, fast = whole(description, message)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.engine.superstep.pass_on", lambda *_: None)
        _, long = whole(description, message)
    for one, other in zip(fast, long, strict=True):
        assert plain(one.applied.snapshot) == plain(other.applied.snapshot)
        assert plain(one.applied.delta) == plain(other.applied.delta)
        assert plain(list(one.applied.unrouted)) == plain(list(other.applied.unrouted))
        assert one.applied.finished == other.applied.finished


@EXAMPLES
@given(descriptions(), inputs())
def test_earlier_snapshots_stay_as_they_were(description: Description, message: int) -> None:
    workflow = description.build()
    first = begin(workflow.graph, workflow.name, message, LIMITS)
    seen: list[tuple[Snapshot, Any]] = [(first, plain(first))]
    for stage in stages(description, workflow, first):
        seen.append((stage.applied.snapshot, plain(stage.applied.snapshot)))
    for snapshot, picture in seen:
        assert plain(snapshot) == picture


@EXAMPLES
@given(descriptions(), inputs())
def test_going_on_from_any_prefix_equals_the_whole(description: Description, message: int) -> None:
    check_prefixes(description, whole(description, message)[1])


@EXAMPLES
@given(descriptions(), inputs())
def test_delta_leads_to_the_next_snapshot(description: Description, message: int) -> None:
    check_deltas(whole(description, message)[1])


@settings(max_examples=40)
@given(descriptions(), inputs())
def test_runtime_does_what_the_pure_functions_say(description: Description, message: int) -> None:
    _, run = whole(description, message)
    taken, last = run_and_take_snapshots(description.build(), message)
    assert taken == [stage.applied.snapshot for stage in run]
    assert last == run[-1].applied.snapshot


@settings(max_examples=40)
@given(descriptions(), inputs(), st.data())
def test_snapshot_that_the_runtime_left_goes_on_purely(
    description: Description, message: int, data: st.DataObject
) -> None:
    """A run is stopped in the middle; from its snapshot the pure functions reach the same end."""
    workflow, run = whole(description, message)
    stop_after = data.draw(st.integers(1, len(run)))

    async def prefix() -> Snapshot:
        async with description.build().run_stream(message) as running:
            async for event in running:
                if isinstance(event, SuperStepCompletedEvent) and event.superstep == stop_after:
                    break
            return running.run.snapshot

    snapshot = asyncio.run(prefix())
    rest = list(stages(description, workflow, snapshot))
    assert [later.applied for later in rest] == [later.applied for later in run[stop_after:]]


def is_passed_on(workflow: Workflow, stage: Stage) -> bool:
    if len(stage.outcomes) != 1 or workflow.graph.nests:
        return False
    capture = Copier(LIMITS.max_value_size)
    return pass_on(workflow.graph, stage.before, stage.outcomes[0], capture) is not None


def test_random_workflows_show_all_that_is_claimed() -> None:
    """The properties above would hold for workflows in which nothing happens; these are not such."""

    def shown(description: Description, message: int) -> set[str]:
        workflow, run = whole(description, message)
        seen: set[str] = {link.kind for link in description.links}
        if any(link.kind == "direct" and link.sources == link.targets for link in description.links):
            seen.add("self-edge")
        for stage in run:
            after = stage.applied.snapshot
            seen.update(
                name
                for name, there in {
                    "unrouted": stage.applied.unrouted,
                    "buffered": after.buffers,
                    "released": any(delivery.source is None for delivery in after.deliveries),
                    "output": after.outputs,
                    "state": after.state,
                    "several turns": len(stage.turns) > 1,
                    "several messages": any(len(turn.deliveries) > 1 for turn in stage.turns),
                    "passed on": is_passed_on(workflow, stage),
                    "aimed": any(sent.target for outcome in stage.outcomes for sent in outcome.messages),
                    "long": after.superstep >= 4,
                }.items()
                if there
            )
        return seen

    claimed = {
        *("direct", "fan-out", "fan-in", "switch", "multi-selection", "self-edge"),
        *("unrouted", "buffered", "released", "output", "state"),
        *("several turns", "several messages", "passed on", "aimed", "long"),
    }
    shows_all(claimed, shown, descriptions(), inputs())
