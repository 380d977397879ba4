"""Budgets: agents side by side, failures, people and restarts do not let a run use more than it may."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ExecutorFailed,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunStatus,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
)
from holdfast.agents import (
    AgentExecutor,
    AgentReply,
    AgentRequest,
    AgentSettings,
    AgentUsage,
    Budget,
    BudgetExceeded,
    Calls,
    Price,
    RateLimited,
    RunUsage,
    ToolApproval,
    usage_key,
)
from tests.agents.agents import ScriptedAgent, workflow_of

# A call of ``ScriptedAgent`` takes 12 tokens.
TWO_ROUNDS: list[Any] = [[("c1", "look", {})], "done"]


async def look() -> str:
    return "seen"


class Spender:
    """Asks its model once, in an own way for each test."""

    def __init__(self, name: str, asked: list[str], tokens: int = 10, pause: float = 0.0) -> None:
        self.name = name
        self.asked = asked
        self.tokens = tokens
        self.pause = pause

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        async def ask() -> str:
            self.asked.append(self.name)
            await asyncio.sleep(self.pause)
            return "spent"

        usage = AgentUsage(self.tokens, 0, 1)
        return AgentReply(await calls.model({}, ask, usage=lambda _: usage, model_name="m"), usage=usage)


def side_by_side(agents: list[Any], *budgets: Budget) -> Workflow:
    """Return a workflow in which all agents work in one superstep."""

    @executor
    async def begin(task: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(task)

    placed = [
        AgentExecutor(agent, f"a{number}", output_type=str, settings=AgentSettings(budgets=budgets))
        for number, agent in enumerate(agents)
    ]
    return (
        WorkflowBuilder(name="Side").set_start_executor(begin).add_fan_out_edges(begin, list(placed)).build()
    )


async def usage_of(storage: Any, run_id: str, name: str = "run") -> RunUsage:
    head = await storage.load((await storage.get_latest(run_id=run_id)).checkpoint_id)
    usage = head.scopes["holdfast.agents"][usage_key(name).name]
    assert isinstance(usage, RunUsage)
    return usage


async def test_a_run_that_used_up_its_budget_fails_and_goes_on_with_a_larger_one() -> None:
    agent, storage = ScriptedAgent(TWO_ROUNDS, {"look": look}), InMemoryCheckpointStorage()
    small = workflow_of(agent, storage, budgets=(Budget(tokens=12),))
    with pytest.raises(ExecutorFailed, match=r"used up their budget 'run': 12 of 12 tokens") as failed:
        await small.run("x", run_id="r")
    assert isinstance(failed.value.__cause__, BudgetExceeded)
    assert (failed.value.__cause__.limit, failed.value.__cause__.allowed) == ("tokens", 12)
    with pytest.raises(ExecutorFailed, match="used up"):
        await (await small.resume(run_id="r")).wait_for_completion()
    large = workflow_of(agent, storage, budgets=(Budget(tokens=13),))
    result = await (await large.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert len(agent.asked) == 2
    assert (await usage_of(storage, "r")).total == AgentUsage(20, 4, 2)


@pytest.mark.parametrize(
    ("budget", "allowed"),
    [
        (Budget(calls=3), 3),
        (Budget(tokens=25), 3),
        (Budget(tokens=30), 3),
        (Budget(tokens=31), 4),
        (Budget(cost=25e-6, prices={"m": Price(1.0, 1.0)}), 3),
    ],
)
async def test_agents_side_by_side_use_no_more_than_one_alone(budget: Budget, allowed: int) -> None:
    asked: list[str] = []
    agents = [Spender(f"s{number}", asked, pause=0.001 * (number % 3)) for number in range(8)]
    with pytest.raises(ExecutorFailed, match="used up"):
        await side_by_side(agents, budget).run("x")
    assert len(asked) == allowed


async def test_budgets_of_several_names_count_apart() -> None:
    asked: list[str] = []
    agent = AgentExecutor(
        Spender("a", asked), "a", settings=AgentSettings(budgets=(Budget(calls=1, name="one"),))
    )
    other = AgentExecutor(Spender("b", asked), "b", settings=AgentSettings(budgets=(Budget(calls=2),)))
    storage = InMemoryCheckpointStorage()
    builder = WorkflowBuilder(name="Two").set_start_executor(agent).add_edge(agent, other)
    workflow = builder.with_checkpointing(storage).build()
    await workflow.run("x", run_id="r")
    assert (await usage_of(storage, "r", "one")).total.calls == 1
    assert (await usage_of(storage, "r")).total.calls == 2
    with pytest.raises(ExecutorFailed, match="budget 'one': 1 of 1 model calls"):
        await workflow.run("y", run_id="r", if_exists="continue")


async def test_calls_of_a_turn_that_failed_count_in_the_next_process(tmp_path: Path) -> None:
    """The journal tells what they used: no commit did."""
    broken = True

    async def shaky() -> str:
        if broken:
            raise LookupError("gone")
        return "back"

    script: list[Any] = [[("c1", "shaky", {})], [("c2", "shaky", {})], "done"]
    agent = ScriptedAgent(script, {"shaky": shaky})
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        with pytest.raises(ExecutorFailed, match="gone"):
            await workflow_of(agent, storage, budgets=(Budget(calls=2),)).run("x", run_id="r")
    broken = False
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        run = await workflow_of(agent, storage, budgets=(Budget(calls=2),)).resume(run_id="r")
        with pytest.raises(ExecutorFailed, match="2 of 2 model calls"):
            await run.wait_for_completion()
    assert len(agent.asked) == 2


async def test_usage_is_counted_once_over_questions_to_people() -> None:
    agent, storage = ScriptedAgent(TWO_ROUNDS, {"look": look}), InMemoryCheckpointStorage()
    workflow = workflow_of(agent, storage, tool_approval=ToolApproval(["look"]), budgets=(Budget(calls=2),))
    result = await workflow.run("x", run_id="r")
    assert (await usage_of(storage, "r")).total.calls == 1
    result = await result.respond({result.pending_requests[0].request_id: True})
    assert result.outputs == ["done"]
    assert (await usage_of(storage, "r")).total == AgentUsage(20, 4, 2)


async def test_usage_is_counted_once_over_a_sleep_for_a_rate_limit() -> None:
    limited = [True]

    def second(messages: Any) -> str:
        if limited and limited.pop():
            raise RateLimited("status 429", retry_after=0.2)
        return "done"

    agent = ScriptedAgent([[("c1", "look", {})], second], {"look": look})
    storage = InMemoryCheckpointStorage()
    workflow = workflow_of(agent, storage, longest_pause=0.0, budgets=(Budget(calls=2),))
    result = await workflow.run("x", run_id="r")
    while result.status is RunStatus.WAITING:
        result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert len(agent.requests) == 2, "it should be called again after the sleep"
    assert (await usage_of(storage, "r")).total == AgentUsage(20, 4, 2)


async def test_agents_in_nested_workflows_use_the_budget_of_the_run() -> None:
    """A nested workflow is over after each message, and its own state is gone then."""
    asked: list[str] = []
    settings = AgentSettings(budgets=(Budget(calls=2),))
    agent = AgentExecutor(Spender("a", asked), "a", output_type=str, settings=settings)
    inner = WorkflowBuilder(name="Inner").set_start_executor(agent).build()
    storage = InMemoryCheckpointStorage()
    builder = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="inner"))
    await builder.with_checkpointing(storage).build().run("x", run_id="r")
    assert (await usage_of(storage, "r")).total.calls == 1
    workflow = builder.build()
    await workflow.run("y", run_id="r", if_exists="continue")
    assert (await usage_of(storage, "r")).total.calls == 2
    with pytest.raises(ExecutorFailed, match="2 of 2 model calls"):
        await builder.build().run("z", run_id="r", if_exists="continue")
    assert len(asked) == 2


async def test_a_budget_in_money_needs_the_price_of_each_model() -> None:
    budget = Budget(cost=1.0, prices={"large": Price(2.0, 8.0)})
    with pytest.raises(ExecutorFailed, match="no price for model 'm', only for 'large'"):
        await side_by_side([Spender("s", [])], budget).run("x")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "give it a limit"),
        ({"tokens": -1}, "at least 0"),
        ({"calls": True}, "must be a number"),
        ({"cost": 1.0}, "prices of the models"),
        ({"tokens": "10"}, "must be a number"),
    ],
)
def test_wrong_budgets_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        Budget(**arguments)
    with pytest.raises(InvalidArgument, match="tuple of budgets"):
        AgentSettings(budgets=[Budget(tokens=1)])  # type: ignore[arg-type]
