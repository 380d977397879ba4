"""Recorded runs: their code runs again without a model and a tool, and fails where it asks something else."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunNotFound,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowExecutor,
    executor,
)
from holdfast.agents import (
    AgentCallEvent,
    AgentError,
    AgentExecutor,
    AgentReply,
    AgentRequest,
    AgentSettings,
    Budget,
    BudgetExceeded,
    Cassette,
    OutputApproval,
    OutputDecision,
    ReplayDiffers,
    ToolApproval,
    ToolDecision,
    ask_person,
    current_calls,
    function,
)
from tests.agents.agents import ScriptedAgent, workflow_of


@dataclass
class Verdict:
    priority: str
    services: tuple[str, ...]


async def never(**_: Any) -> Any:
    raise AssertionError("a tool was called")


def silent(name: str = "silent") -> Any:
    """Return an agent whose model must not be asked."""

    def ask(prompt: str) -> str:
        raise AssertionError("a model was asked")

    return function.wrap(ask, name=name)


class Loop(ScriptedAgent):
    """A scripted agent whose model cannot be asked."""

    async def _ask(self, messages: list[Any], rounds: int) -> Any:
        raise AssertionError("a model was asked")


SCRIPT = [
    [("c1", "charge", {"amount": 5}), ("c2", "refuse", {"why": "closed"})],
    [("c1", "charge", {"amount": 7})],
    lambda messages: f"told {messages[-1]['tools']}",
]


async def charge(amount: int) -> str:
    return f"charged {amount}"


async def refuse(why: str) -> str:
    raise ValueError(f"it is {why}")


def recording(agent: Any, storage: CheckpointStorage, **settings: Any) -> Workflow:
    return workflow_of(agent, storage, record=True, **settings)


async def record(storage: CheckpointStorage, run_id: str = "r", script: Any = SCRIPT) -> Cassette:
    agent = ScriptedAgent(script, {"charge": charge, "refuse": refuse})
    await recording(agent, storage).run("pay", run_id=run_id)
    return await Cassette.from_run(storage, run_id)


LOOP = {"charge": never, "refuse": never}


async def test_a_recorded_run_is_replayed_without_models_and_tools(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        await record(storage)
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:  # as another process reads it
        cassette = await Cassette.from_run(storage, "r")
    calls = {call.name: call for call in cassette.calls}
    assert sorted(calls) == ["model 1", "model 2", "model 3", "tool 1.c1", "tool 1.c2", "tool 2.c1"]
    assert calls["tool 1.c2"].error == ("ValueError", "it is closed")
    assert calls["tool 2.c1"].asked.request == {"amount": 7}
    again = InMemoryCheckpointStorage()
    with cassette.replay():
        events = [event async for event in recording(Loop([], LOOP), again).run_stream("pay", run_id="again")]
    assert events[-1].data == "told ['charged 7']"  # type: ignore[attr-defined]
    assert [event.replayed for event in events if isinstance(event, AgentCallEvent)] == [True] * 6
    assert await Cassette.from_run(again, "again") == cassette


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        (
            "pay me",
            r"'model 1' in activation 1 .*request\['messages'\]\[0\]\['user'\] is 'pay me', recorded was 'pay'",
        ),
        ("x" * 300 + "pay", r"is 'x+\.\.\., recorded was 'pay'"),
    ],
)
async def test_code_that_asks_something_else_fails(prompt: str, told: str) -> None:
    cassette = await record(InMemoryCheckpointStorage())
    with pytest.raises(ExecutorFailed, match=told) as failed, cassette.replay():
        await workflow_of(Loop([], LOOP)).run(prompt)
    assert isinstance(failed.value.__cause__, ReplayDiffers)


async def test_the_difference_is_shown_where_long_texts_part() -> None:
    storage = InMemoryCheckpointStorage()
    words = "word " * 200
    await recording(ScriptedAgent(["done"]), storage).run(f"{words}at noon", run_id="r")
    cassette = await Cassette.from_run(storage, "r")
    with (
        pytest.raises(
            ExecutorFailed, match=r"from character 96\d is '.*word at night', recorded was '.*at noon'"
        ),
        cassette.replay(),
    ):
        await workflow_of(Loop([])).run(f"{words}at night")


async def test_a_call_that_was_never_recorded_fails_though_the_agent_catches_errors() -> None:
    cassette = await record(InMemoryCheckpointStorage())

    class Stubborn(Loop):
        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            reply = await super().run(request, calls)
            try:
                await calls.tool("c9", "charge", {"amount": 9}, lambda _: never())
            except Exception:
                pass
            return reply

    with (
        pytest.raises(
            ExecutorFailed, match=r"never recorded: 'tool 3.c9' .*'charge' with {'amount': 9}; recorded there"
        ),
        cassette.replay(),
    ):
        await workflow_of(Stubborn([], LOOP)).run("pay")


async def test_code_that_asks_for_less_fails_at_the_end() -> None:
    cassette = await record(InMemoryCheckpointStorage())

    class Short:
        name = "short"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            await calls.model({"messages": [{"user": request.prompt}]}, never)
            return AgentReply("enough")

    less = r"nobody asked for 'tool 1.c1' in activation 1 .* and 4 more"
    with pytest.raises(ReplayDiffers, match=less), cassette.replay():
        assert (await workflow_of(Short()).run("pay")).outputs == ["enough"]
    with cassette.replay(partial=True) as replay:
        await workflow_of(Short()).run("pay")
    assert len(replay.unused()) == 5


async def test_other_executors_and_further_messages_were_not_recorded() -> None:
    cassette = await record(InMemoryCheckpointStorage())
    other = AgentExecutor(silent(), id="other", output_type=str)
    with (
        pytest.raises(
            ExecutorFailed, match=r"has calls of 'agent': give this one AgentSettings\(record=True\)"
        ),
        cassette.replay(),
    ):
        await WorkflowBuilder(name="Other").set_start_executor(other).build().run("x")
    storage = InMemoryCheckpointStorage()
    workflow = workflow_of(Loop([], LOOP), storage)
    with cassette.replay():
        await workflow.run("pay", run_id="chat")
        with pytest.raises(ExecutorFailed, match="took fewer messages"):
            await workflow.run("pay", run_id="chat", if_exists="continue")


async def test_tools_may_be_called_while_models_are_replayed() -> None:
    cassette = await record(InMemoryCheckpointStorage())
    tools: dict[str, Any] = {"charge": charge, "refuse": refuse}
    with cassette.replay(call_tools=True):
        assert (await workflow_of(Loop([], tools)).run("pay")).outputs == ["told ['charged 7']"]

    async def overcharge(amount: int) -> str:
        return f"charged {amount + 1}"

    changed = r"'model 2' .* is 'charged 6', recorded was 'charged 5'"
    with pytest.raises(ExecutorFailed, match=changed), cassette.replay(call_tools=True):
        await workflow_of(Loop([], {**tools, "charge": overcharge})).run("pay")


async def test_each_message_has_a_recording_and_a_retried_turn_only_one() -> None:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent([lambda messages: f"re: {messages[0]['user']}"])
    workflow = recording(agent, storage)
    for prompt in ("one", "two"):
        await workflow.run(prompt, run_id="chat", if_exists="continue")
    cassette = await Cassette.from_run(storage, "chat")
    assert [call.activation for call in cassette.calls] == ["1", "2"]
    again = workflow_of(Loop([]), InMemoryCheckpointStorage())
    with cassette.replay():
        await again.run("one", run_id="chat")
        result = await again.run("two", run_id="chat", if_exists="continue")
    assert result.outputs[-1] == "re: two"


async def test_a_run_that_crashed_and_went_on_is_recorded_whole() -> None:
    storage = InMemoryCheckpointStorage()
    gone = [True]

    async def flaky(amount: int) -> str:
        if gone and gone.pop():
            raise ConnectionError("gone")
        return f"charged {amount}"

    def build() -> Workflow:
        return recording(ScriptedAgent(SCRIPT, {"charge": flaky, "refuse": refuse}), storage)

    with pytest.raises(ExecutorFailed):
        await build().run("pay", run_id="r")
    with pytest.raises(AgentError, match="no recorded calls"):
        await Cassette.from_run(storage, "r")
    await (await build().resume(run_id="r")).wait_for_completion()
    assert await Cassette.from_run(storage, "r") == await record(InMemoryCheckpointStorage())


async def test_a_replay_may_be_stopped_and_resumed(tmp_path: Path) -> None:
    cassette = await record(InMemoryCheckpointStorage())
    fails = [True]

    @executor(id="after")
    async def after(text: str) -> str:
        if fails and fails.pop():
            raise ConnectionError("gone")
        return text

    agent = AgentExecutor(Loop([], LOOP), id="agent", output_type=str)
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        builder = WorkflowBuilder(name="After").set_start_executor(agent).add_edge(agent, after)
        workflow = builder.with_checkpointing(storage).build()
        with cassette.replay():
            with pytest.raises(ExecutorFailed, match="gone"):
                await workflow.run("pay", run_id="r")
            result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["told ['charged 7']"]


# -- people -----------------------------------------------------------------------------------------------------------


async def recorded_decision(decision: Any) -> tuple[Cassette, Any]:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent(SCRIPT, {"charge": charge, "refuse": refuse})
    result = await recording(agent, storage, tool_approval=ToolApproval(["charge"])).run("pay", run_id="r")
    while result.pending_requests:  # one by one, so that several turns record
        result = await result.respond({result.pending_requests[0].request_id: decision})
    return await Cassette.from_run(storage, "r"), result.outputs


@pytest.mark.parametrize(
    "decision",
    [
        True,
        ToolDecision.deny("too much"),
        ToolDecision.approve({"amount": 1}),
        ToolDecision.answer("was paid"),
    ],
)
async def test_decisions_of_people_are_recorded(decision: Any) -> None:
    cassette, outputs = await recorded_decision(decision)
    assert len(cassette.calls) == 6
    rule = ToolApproval(["charge"])
    with cassette.replay() as replay:
        result = await workflow_of(Loop([], LOOP), tool_approval=rule).run("pay")
        while result.pending_requests:
            result = await result.respond(replay.answers_to(result.pending_requests))
    assert result.outputs == outputs


async def answered(workflow: Workflow, decision: ToolDecision) -> list[Any]:
    result = await workflow.run("pay")
    while result.pending_requests:
        result = await result.respond({result.pending_requests[0].request_id: decision})
    return result.outputs


async def test_a_test_may_give_answers_itself_and_another_answer_differs() -> None:
    cassette, outputs = await recorded_decision(ToolDecision.approve({"amount": 1}))
    workflow = workflow_of(Loop([], LOOP), tool_approval=ToolApproval(["charge"]))
    with cassette.replay():
        assert await answered(workflow, ToolDecision.approve({"amount": 1})) == outputs
    other = r"decision\['arguments'\]\['amount'\] is 2, recorded was 1"
    with pytest.raises(ExecutorFailed, match=other), cassette.replay():
        await answered(workflow, ToolDecision.approve({"amount": 2}))


async def test_an_answer_that_was_not_recorded_is_missed() -> None:
    cassette = await record(InMemoryCheckpointStorage())
    with cassette.replay(partial=True) as replay:
        result = await workflow_of(Loop([], LOOP), tool_approval=ToolApproval(["charge"])).run("pay")
        with pytest.raises(ReplayDiffers, match="no answer was recorded"):
            replay.answers_to(result.pending_requests)


async def test_questions_and_reviews_are_recorded(tmp_path: Path) -> None:
    async def lookup(name: str) -> str:
        first = await ask_person(f"Which account of {name}?")
        return first + await ask_person(f"Is {first} right?")

    def build(agent: Any, storage: Any = None) -> Workflow:
        rule = OutputApproval(message="Send?")
        return workflow_of(agent, storage, record=storage is not None, output_approval=rule)

    wanted = [("c1", "lookup", {"name": "bo"})]
    script = [
        lambda messages: "shorter" if len(messages) > 1 else wanted,
        lambda messages: f"told {messages[-1]}",
    ]
    storage = InMemoryCheckpointStorage()
    result = await build(ScriptedAgent(script, {"lookup": lookup}), storage).run("x", run_id="r")
    decisions = ["17", "yes", OutputDecision.revise("Shorter."), OutputDecision.edit("17.")]
    for answer in decisions:
        result = await result.respond({result.pending_requests[0].request_id: answer})
    assert result.outputs == ["17."]
    cassette = await Cassette.from_run(storage, "r")
    names = [(call.activation, call.name) for call in cassette.calls]
    assert len(names) == len(set(names))
    assert {("1", "tool 1.c1 > question 2"), ("1", "review"), ("1.2", "model 1"), ("1.2", "review")} < set(
        names
    )
    cassette.save(tmp_path / "cassette.json")
    for live in (False, True):
        loaded = Cassette.load(tmp_path / "cassette.json")
        assert loaded == cassette
        with loaded.replay(call_tools=live) as replay:
            result = await build(Loop([], {"lookup": lookup if live else never})).run("x")
            asked = 0
            while result.pending_requests:
                asked += 1
                result = await result.respond(replay.answers_to(result.pending_requests))
        assert result.outputs == ["17."]
        assert asked == (4 if live else 2)


# -- agents inside of tools, nested workflows, budgets ----------------------------------------------------------------


async def test_agents_inside_tools_are_recorded_and_replayed_with_their_tool() -> None:
    def research_with(ask: Any) -> Any:
        async def research(topic: str) -> str:
            calls = current_calls()
            replies = await asyncio.gather(
                *(
                    function.wrap(ask, name=part).run(AgentRequest(f"{topic} {part}"), calls.branch(part))
                    for part in ("north", "south")
                )
            )
            return ", ".join(reply.text for reply in replies)

        return research

    script = [[("c1", "research", {"topic": "kelp"}), ("c2", "research", {"topic": "sea"})], "done"]
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent(script, {"research": research_with(lambda prompt: f"about {prompt}")})
    await recording(agent, storage).run("x", run_id="r")
    cassette = await Cassette.from_run(storage, "r")
    assert len(cassette.calls) == 8

    async def no_model(prompt: str) -> str:
        raise AssertionError("a model was asked")

    with cassette.replay():
        assert (await workflow_of(Loop([], {"research": never})).run("x")).outputs == ["done"]
    with cassette.replay(call_tools=True):
        live = Loop([], {"research": research_with(no_model)})
        assert (await workflow_of(live).run("x")).outputs == ["done"]


async def test_agents_of_nested_workflows_are_recorded_in_the_run() -> None:
    def build(agent: Any, storage: Any = None) -> Workflow:
        settings = AgentSettings(record=storage is not None)
        inner = AgentExecutor(agent, id="inner", output_type=str, settings=settings)
        nested = WorkflowBuilder(name="Nested").set_start_executor(inner).build()
        child = WorkflowExecutor(nested, id="child")

        @executor(id="split")
        async def split(text: str, ctx: Any) -> None:
            for part in text.split():
                await ctx.send_message(part)

        builder = WorkflowBuilder(name="Outer").set_start_executor(split).add_edge(split, child)
        return (builder.with_checkpointing(storage) if storage is not None else builder).build()

    storage = InMemoryCheckpointStorage()
    shout = function.wrap(lambda prompt: prompt.upper(), name="inner")
    outputs = (await build(shout, storage).run("a b", run_id="r")).outputs
    assert sorted(outputs) == ["A", "B"]
    cassette = await Cassette.from_run(storage, "r")
    assert [call.executor_id for call in cassette.calls] == ["child#1/inner", "child#2/inner"]
    with cassette.replay():
        assert (await build(silent("inner")).run("a b")).outputs == outputs


async def test_budgets_hold_in_a_replay_and_usage_is_counted() -> None:
    cassette = await record(InMemoryCheckpointStorage())
    with cassette.replay(partial=True), pytest.raises(ExecutorFailed) as failed:
        await workflow_of(Loop([], LOOP), budgets=(Budget(calls=2),)).run("pay")
    assert isinstance(failed.value.__cause__, BudgetExceeded)


async def test_a_fork_has_the_recording_up_to_its_beginning() -> None:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent([lambda messages: f"re: {messages[0]['user']}"])
    workflow = recording(agent, storage)
    await workflow.run("one", run_id="chat")
    first = await storage.get_latest(run_id="chat")
    assert first is not None
    await workflow.run("two", run_id="chat", if_exists="continue")
    fork = await workflow.fork(first)
    await fork.send("three")
    await fork.wait_for_completion()
    cassette = await Cassette.from_run(storage, fork.run_id)
    assert [call.result for call in cassette.calls] == ["re: one", "re: three"]


# -- files ------------------------------------------------------------------------------------------------------------


async def test_a_cassette_is_a_readable_file(tmp_path: Path) -> None:
    cassette = await record(InMemoryCheckpointStorage())
    path = tmp_path / "cassette.json"
    cassette.save(path)
    calls = json.loads(path.read_text())["calls"]
    assert calls[1] == {
        "executor": "agent",
        "activation": "1",
        "call": "tool 1.c1",
        "of": "charge",
        "request": {"amount": 5},
        "result": "charged 5",
    }
    loaded = Cassette.load(path)
    assert loaded == cassette
    assert repr(loaded) == "<Cassette with 6 calls>"
    with loaded.replay():
        assert (await workflow_of(Loop([], LOOP)).run("pay")).outputs == ["told ['charged 7']"]


async def test_many_messages_are_in_order_and_odd_texts_are_kept(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = recording(ScriptedAgent([lambda messages: messages[0]["user"]]), storage)
    for number in range(1, 12):
        await workflow.run(f"\ud800 ü {number}", run_id="chat", if_exists="continue")
    cassette = await Cassette.from_run(storage, "chat")
    assert [call.activation for call in cassette.calls] == [str(number) for number in range(1, 12)]
    cassette.save(tmp_path / "cassette.json")
    assert Cassette.load(tmp_path / "cassette.json") == cassette


async def test_results_that_are_no_json_keep_their_classes(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    verdict = Verdict("P0", ("a", "b"))
    agent = function.wrap(lambda prompt: verdict, name="judge")
    await workflow_of(agent, storage, output_type=Verdict, record=True).run("x", run_id="r")
    cassette = await Cassette.from_run(storage, "r")
    path = tmp_path / "cassette.json"
    cassette.save(path)
    assert json.loads(path.read_text())["calls"][0]["shown"]["priority"] == "P0"
    loaded = Cassette.load(path, types=[Verdict])
    with loaded.replay():
        assert (await workflow_of(silent("judge"), output_type=Verdict).run("x")).outputs == [verdict]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no cassette: "),
        ("[]", "no cassette of format 1"),
        ('{"holdfast_cassette": 2, "calls": []}', "no cassette of format 1"),
        ('{"holdfast_cassette": 1, "calls": [{"call": "model 1"}]}', "cannot be read: KeyError"),
        ('{"holdfast_cassette": 1}', "cannot be read: KeyError"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "cassette.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=told):
        Cassette.load(path)


async def test_runs_that_recorded_nothing_are_told_apart() -> None:
    storage = InMemoryCheckpointStorage()
    await workflow_of(ScriptedAgent(["done"]), storage).run("x", run_id="r")
    with pytest.raises(AgentError, match=r"no recorded calls: .*record=True"):
        await Cassette.from_run(storage, "r")
    with pytest.raises(RunNotFound):
        await Cassette.from_run(storage, "other")
