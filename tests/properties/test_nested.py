"""Supersteps over random workflows in random workflows: nesting is inlining, and nothing but it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Executor,
    Merge,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
    executor,
    handler,
)
from tests.support.exploring import shows_all
from tests.support.graphs import (
    _CLASSES,
    LEVELS,
    TOTALS,
    Description,
    Link,
    Node,
    _add,
    descriptions,
)
from tests.support.parts import ancestors, path_of
from tests.support.pure_run import (
    check_deltas,
    check_prefixes,
    check_purity,
    run_and_take_snapshots,
    whole,
)

EXAMPLES = settings(max_examples=40)


# -- workflows in workflows ------------------------------------------------------------------------


@dataclass(frozen=True)
class Nest:
    """A random workflow some of whose executors are nested workflows."""

    description: Description
    inside: tuple[tuple[str, "Nest"], ...] = ()

    @property
    def depth(self) -> int:
        return 1 + max((nest.depth for _, nest in self.inside), default=0)

    @property
    def takes_lists(self) -> bool:
        start = self.description.nodes[0]
        nested = dict(self.inside).get(start.id)
        return nested.takes_lists if nested is not None else "list" in start.takes

    def build(self) -> Workflow:
        """The workflow, new each time."""
        builder = WorkflowBuilder(name=f"Level{self.depth}", max_iterations=200)
        builder.with_state_merge(TOTALS, None, Merge.ADD)
        nests = dict(self.inside)
        placed: dict[str, Any] = {}
        for node in self.description.nodes:
            if node.id in nests:
                placed[node.id] = WorkflowExecutor(nests[node.id].build(), id=node.id)
            else:
                targets = self.description.reachable_from(node.id)
                placed[node.id] = _CLASSES[node.takes].bind(id=node.id, node=node, targets=targets)
        builder.set_start_executor(placed[self.description.nodes[0].id])
        for link in self.description.links:
            _add(builder, link, placed)
        return builder.build()

    def at(self, path: str) -> Description:
        """The description of the workflow at a path."""
        nest = self
        for segment in path.split("/")[:-1]:
            nest = dict(nest.inside)[segment.partition("#")[0]]
        return nest.description


OUT = Node("out", frozenset({"int", "str", "list"}), sends=1, returns=True)


def _giving(description: Description, sources: list[Node]) -> Description:
    """The same, giving out what the sources send, with less energy; of several it waits for all."""
    ids = tuple(node.id for node in sources)
    out = Link("direct", ids, ("out",), (None,)) if len(ids) == 1 else Link("fan-in", ids, ("out",))
    nodes = [node._replace(sends=max(node.sends, int(node in sources))) for node in description.nodes]
    return Description((*nodes, OUT), (*description.links, out))


def _quiet(description: Description) -> Description:
    """The same, yielding nothing on the way: what it gives out are messages that others can work on with."""
    return replace(description, nodes=tuple(node._replace(yields=False) for node in description.nodes))


@st.composite
def nests(draw: Callable[[Any], Any], levels: int = 3) -> Nest:
    """Workflows with nested ones, some levels deep."""
    description: Description = draw(descriptions(most_nodes=3))
    some = st.lists(st.sampled_from(description.nodes), min_size=1, max_size=2, unique=True)
    description = _giving(description, draw(some))
    if levels == 1:
        return Nest(description)
    inside = []
    for host in draw(st.lists(st.sampled_from(description.nodes), min_size=1, max_size=2, unique=True)):
        inner = draw(nests(levels=draw(st.integers(1, levels - 1))))
        inner = replace(inner, description=_quiet(inner.description))
        joins = any(link.kind == "fan-in" and host.id in link.targets for link in description.links)
        if inner.takes_lists or not joins:
            inside.append((host.id, inner))
    return Nest(description, tuple(inside))


def inputs() -> st.SearchStrategy[int]:
    return st.builds(lambda salt, energy: salt * LEVELS + energy, st.integers(0, 4), st.integers(0, 5))


# -- properties of plan and apply ------------------------------------------------------------------


@EXAMPLES
@given(nests(), inputs())
def test_plan_and_apply_are_pure(nest: Nest, message: int) -> None:
    check_purity(*whole(nest, message))


@EXAMPLES
@given(nests(), inputs())
def test_delta_leads_to_the_next_snapshot(nest: Nest, message: int) -> None:
    check_deltas(whole(nest, message)[1])


@EXAMPLES
@given(nests(), inputs())
def test_going_on_from_any_prefix_equals_the_whole(nest: Nest, message: int) -> None:
    check_prefixes(nest, whole(nest, message)[1])


@EXAMPLES
@given(nests(), inputs())
def test_turns_come_in_graph_order(nest: Nest, message: int) -> None:
    workflow, run = whole(nest, message)
    for stage in run:
        positions = [workflow.graph.position(turn.executor_id) for turn in stage.turns]
        assert positions == sorted(set(positions))
        for turn in stage.turns:
            mine = [delivery for delivery in stage.before.deliveries if delivery.target == turn.executor_id]
            assert list(turn.deliveries) == mine


@EXAMPLES
@given(nests(), inputs())
def test_nothing_is_kept_of_instances_that_are_over(nest: Nest, message: int) -> None:
    _, run = whole(nest, message)
    ever_finished: set[str] = set()
    for stage in run:
        after = stage.applied.snapshot
        alive = {path for delivery in after.deliveries for path in ancestors(path_of(delivery.target))}
        alive |= {path for key in after.buffers for path in ancestors(key.path)}
        assert {scope.path for scope in after.state} <= {"", *alive}
        assert {path_of(address) for address in after.instances} <= {"", *alive}
        assert not alive & stage.applied.finished
        ever_finished |= stage.applied.finished
        assert not alive & ever_finished, "an instance that is over does not come back"


# -- the runtime and a model -----------------------------------------------------------------------


@settings(max_examples=40)
@given(nests(), inputs())
def test_runtime_does_what_the_pure_functions_say(nest: Nest, message: int) -> None:
    _, run = whole(nest, message)
    taken, last = run_and_take_snapshots(nest.build(), message)
    assert taken == [stage.applied.snapshot for stage in run]
    assert last == run[-1].applied.snapshot


@executor(id="feed")
async def feed(numbers: list, ctx: WorkflowContext) -> None:
    for number in numbers:
        await ctx.send_message(number)


class Record(Executor):
    @handler
    async def record(self, message: object, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((ctx.superstep, message))


class Separate(NamedTuple):
    """What a workflow does when it is run by itself."""

    outputs: list[tuple[int, Any]]
    warnings: int


async def separately(workflow: Workflow, message: int) -> Separate:
    outputs: list[tuple[int, Any]] = []
    warnings = 0
    async for event in workflow.run_stream(message):
        if isinstance(event, WorkflowOutputEvent):
            outputs.append((event.superstep, event.data))
        warnings += isinstance(event, WorkflowWarningEvent)
    return Separate(outputs, warnings)


@settings(max_examples=40)
@given(nests(levels=2), st.lists(inputs(), min_size=1, max_size=4))
def test_nested_workflow_gives_what_it_gives_by_itself(nest: Nest, messages: list[int]) -> None:
    """Each delivery is a run of its own, begun in superstep 2; what it gives out is recorded one later."""
    outer = (
        WorkflowBuilder(name="Outer", max_iterations=400)
        .set_start_executor(feed)
        .add_edge(feed, WorkflowExecutor(nest.build(), id="sub"))
        .add_edge("sub", Record)
        .build()
    )

    async def both() -> tuple[Separate, list[Separate]]:
        inner = nest.build()
        return await separately(outer, messages), [await separately(inner, message) for message in messages]  # type: ignore[arg-type]

    nested, alone = asyncio.run(both())
    expected = [
        (superstep + 2, instance, data)
        for instance, separate in enumerate(alone)
        for superstep, data in separate.outputs
    ]
    expected.sort(key=lambda given: given[:2])
    assert [data for _, data in nested.outputs] == [(superstep, data) for superstep, _, data in expected]
    assert nested.warnings == sum(separate.warnings for separate in alone)


def test_random_workflows_show_all_that_is_claimed() -> None:
    """The properties above would hold for workflows in which nothing happens; these are not such."""

    def shown(nest: Nest, message: int) -> set[str]:
        workflow, run = whole(nest, message)
        seen: set[str] = set()
        for stage in run:
            after = stage.applied.snapshot
            addresses = [turn.executor_id for turn in stage.turns]
            seen.update(
                name
                for name, there in {
                    "nested": any("/" in address for address in addresses),
                    "two deep": any(address.count("/") > 1 for address in addresses),
                    "several instances": any("#2/" in address for address in addresses),
                    "finished": stage.applied.finished,
                    "state inside": any(scope.path for scope in after.state),
                    "dropped": stage.applied.delta.dropped,
                    "buffered inside": any(key.path for key in after.buffers),
                    "waiting inside": not after.deliveries and any(key.path for key in after.buffers),
                    "unrouted inside": any("/" in lost.source for lost in stage.applied.unrouted),
                    "given out": any("/" in output.executor_id for output in after.outputs),
                    "handed on": any(
                        delivery.source is not None
                        and workflow.graph.locate(delivery.source).spec.nested is not None
                        for delivery in after.deliveries
                    ),
                }.items()
                if there
            )
        return seen

    claimed = {
        *("nested", "two deep", "several instances", "finished", "state inside", "dropped"),
        *("buffered inside", "waiting inside", "unrouted inside", "given out", "handed on"),
    }
    shows_all(claimed, shown, nests(), inputs())
