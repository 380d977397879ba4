"""Fan-ins with other sources after a deploy: what was under way comes to its end, and so does the next."""

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    Executor,
    ExecutorFailed,
    GraphChanged,
    InMemoryCheckpointStorage,
    Retention,
    RunResult,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from tests.support.modules import resume_point

NAMES = ["a", "b", "c", "d", "e"]


class Deploy(NamedTuple):
    """The sources of a fan-in before and after; each is so many steps behind the fan-out, and one step fails."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    steps: dict[str, int]
    failing: str
    nested: bool
    retention: Retention


@st.composite
def deploys(draw: st.DrawFn) -> Deploy:
    sources = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True).map(tuple)
    before, after = draw(sources), draw(sources)
    steps = {name: draw(st.integers(0, 3)) for name in NAMES}
    failing = draw(st.sampled_from(["split", *(step for name in before for step in way_to(name, steps))]))
    retention = draw(st.sampled_from([Retention.full_history(), Retention.latest_only()]))
    return Deploy(before, after, steps, failing, draw(st.booleans()), retention)


def way_to(source: str, steps: dict[str, int]) -> list[str]:
    """The executors between the fan-out and the fan-in; the last is the source."""
    return [*(f"{source}{step}" for step in range(steps[source])), source]


def passing(name: str, failing: str) -> Any:
    @executor(id=name)
    async def passed(order: str) -> str:
        if name == failing:
            raise ConnectionError(name)
        return order if name not in NAMES else f"{order} {name}"

    return passed


def build(sources: tuple[str, ...], deploy: Deploy, failing: str) -> Workflow:
    """Two rounds of the fan-in: the first of A, the second of B."""

    class Split(Executor):
        @handler
        async def first(self, order: str, ctx: WorkflowContext[str]) -> None:
            if failing == "split":
                raise ConnectionError("split")
            await ctx.send_message(order)

        @handler
        async def second(self, number: int, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message("B")

    @executor(id="join")
    async def join(parts: list[str], ctx: WorkflowContext[int, list]) -> None:
        await ctx.yield_output(parts)
        if parts[0].startswith("A"):
            await ctx.send_message(2)

    builder = WorkflowBuilder(name="Rounds").set_start_executor(Split.bind(id="split"))
    for source in sources:
        builder.add_chain(["split", *(passing(name, failing) for name in way_to(source, deploy.steps))])
    workflow = builder.add_fan_in_edges(list(sources), join).add_edge(join, "split").build()
    if not deploy.nested:
        return workflow
    return WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(workflow, id="sub")).build()


async def deployed(deploy: Deploy) -> RunResult | None:
    """What comes of a run that fails in one graph and goes on in the other; None if that is refused."""
    storage = InMemoryCheckpointStorage(retention=deploy.retention)
    try:
        await build(deploy.before, deploy, deploy.failing).run("A", run_id="r", storage=storage)
    except ExecutorFailed:
        pass
    workflow = build(deploy.after, deploy, "")
    try:
        run = await workflow.resume(run_id="r", storage=storage, allow_graph_change=True)
    except GraphChanged:
        return None
    result = await run.wait_for_completion()
    assert (await storage.verify()).ok
    return result


@settings(max_examples=40)
@given(deploys())
def test_rounds_end_whatever_the_deploy_changed(deploy: Deploy) -> None:
    result = asyncio.run(deployed(deploy))
    if result is None:
        assert not set(deploy.before) <= set(deploy.after), "what only gained sources always goes on"
        return
    assert (result.status, result.warnings) == (RunStatus.COMPLETED, [])
    first, second = ([part.split()[-1] for part in output] for output in result.outputs)
    assert set(deploy.before) & set(deploy.after) <= set(first) <= set(deploy.before) | set(deploy.after)
    assert second == list(deploy.after), "the next round is that of the graph of now"
    if deploy.failing == "split":
        assert set(first) == set(deploy.after), "the fan-out was yet to come"


def test_a_round_that_expects_what_the_graph_says_is_stranded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the test above would find it."""
    monkeypatch.setattr(resume_point, "rounds_under_way", lambda graph, before, snapshot: {})
    deploy = Deploy(
        ("a", "b"), ("a", "b", "c"), dict.fromkeys(NAMES, 0), "b", False, Retention.full_history()
    )
    result = asyncio.run(deployed(deploy))
    assert result is not None
    assert (result.status, result.waiting_for) == (RunStatus.WAITING, ("messages",))
