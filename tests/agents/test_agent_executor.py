"""Agents in workflows: what they take and give, what is recorded, what people decide, what limits them."""

import asyncio
import copy
import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    OutputDeltaEvent,
    RetryPolicy,
    RunStatus,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    executor,
)
from holdfast.agents import (
    AgentCallEvent,
    AgentExecutor,
    AgentHistory,
    AgentMessage,
    AgentQuestion,
    AgentReply,
    AgentRequest,
    AgentSettings,
    OutputApproval,
    OutputApprovalRequest,
    OutputDecision,
    RateLimitEvent,
    ToolApproval,
    ToolApprovalRequest,
    ToolCall,
    ToolDecision,
    ask_person,
    current_calls,
    current_tool_call,
    function,
)
from holdfast.agents.activation import digest_of
from holdfast.agents.rate_limits import PAUSES
from holdfast.errors import (
    AgentError,
    AgentLoop,
    ChangedRequest,
    ModelUnavailable,
    RateLimited,
    ReplayDiffers,
)
from holdfast.testing import VirtualTime
from tests.agents.agents import ScriptedAgent, workflow_of


@dataclass
class Verdict:
    priority: str


# -- what an agent takes and gives ----------------------------------------------------------------------------------


async def test_an_agent_takes_text_requests_replies_messages_and_lists() -> None:
    def echo(request: AgentRequest) -> str:
        return f"{request.prompt}|{[message.text for message in request.messages]}"

    workflow = workflow_of(echo)
    for given, expected in (
        ("a", "a|[]"),
        (AgentRequest("b", (AgentMessage("user", "x"),)), "b|['x']"),
        (AgentReply("c"), "c|[]"),
        (AgentMessage("user", "d"), "d|[]"),
        (
            [AgentMessage("user", "x"), AgentMessage("assistant", "y"), AgentMessage("user", "e")],
            "e|['x', 'y']",
        ),
        (["f", AgentReply("g")], "f\n\ng|[]"),
    ):
        assert (await workflow.run(given)).outputs == [expected]


async def test_replies_of_several_agents_are_joined_by_a_fan_in() -> None:
    def left(prompt: str) -> str:
        return f"left {prompt}"

    def right(prompt: str) -> str:
        return f"right {prompt}"

    def last(prompt: str) -> str:
        return prompt.upper()

    first, second = AgentExecutor(left), AgentExecutor(right)
    joined = AgentExecutor(last, output_type=str)
    workflow = (
        WorkflowBuilder(name="Joined")
        .set_start_executor(_pass)
        .add_fan_out_edges(_pass, [first, second])
        .add_fan_in_edges([first, second], joined)
        .build()
    )
    assert (await workflow.run("go")).outputs == ["LEFT GO\n\nRIGHT GO"]


@executor(id="begin")
def _pass(text: str) -> str:
    return text


async def test_the_output_type_says_what_is_sent(tmp_path: Path) -> None:
    def judge(prompt: str) -> Verdict:
        return Verdict("P0")

    @executor
    def page(verdict: Verdict) -> str:
        return f"page {verdict.priority}"

    triage = AgentExecutor(judge, id="triage", output_type=Verdict)
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        workflow = (
            WorkflowBuilder(name="Typed")
            .set_start_executor(triage)
            .add_edge(triage, page)
            .with_checkpointing(storage)
            .build()
        )
        assert (await workflow.run("log")).outputs == ["page P0"]
    reply = (await workflow_of(judge, output_type=AgentReply).run("log")).outputs[0]
    assert reply.value == Verdict("P0")


def test_an_edge_to_an_executor_that_takes_something_else_is_refused() -> None:
    @executor
    def count(number: int) -> int:
        return number

    agent = AgentExecutor(function.wrap(len, name="len"), output_type=str)
    with pytest.raises(GraphError, match=r"'len'.*str"):
        WorkflowBuilder(name="Wrong").set_start_executor(agent).add_edge(agent, count).build()


async def test_a_value_of_another_type_than_declared_fails() -> None:
    workflow = workflow_of(lambda_agent("no verdict"), output_type=Verdict)
    with pytest.raises(ExecutorFailed) as failed:
        await workflow.run("log")
    assert isinstance(failed.value.__cause__, AgentError)
    assert "should give out a Verdict" in str(failed.value.__cause__)


def lambda_agent(text: str) -> Any:
    return function.wrap(lambda prompt: text, name="says")


@pytest.mark.parametrize("thing", [3, object(), AgentExecutor, "agent"])
def test_what_is_no_agent_is_refused(thing: object) -> None:
    with pytest.raises(GraphError, match="is no agent"):
        AgentExecutor(thing)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(GraphError, match=r"name='\.\.\.'"):
        AgentExecutor(lambda prompt: prompt)


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "async generator"])
async def test_every_kind_of_function_is_an_agent(kind: str) -> None:
    def plain(prompt: str) -> str:
        return prompt + " there"

    async def awaited(prompt: str) -> str:
        return prompt + " there"

    def parts(prompt: str) -> Any:
        yield prompt
        yield " there"

    async def awaited_parts(prompt: str) -> Any:
        yield prompt
        yield " there"

    agent = {"sync": plain, "async": awaited, "generator": parts, "async generator": awaited_parts}[kind]
    deltas, outputs = [], []
    async for event in workflow_of(agent).run_stream("hello"):
        if isinstance(event, OutputDeltaEvent):
            deltas.append(event.data)
        if isinstance(event, WorkflowOutputEvent):
            outputs.append(event.data)
    assert outputs == ["hello there"]
    assert deltas == (["hello", " there"] if "generator" in kind else [])


async def test_an_agent_remembers_earlier_messages_of_a_run() -> None:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent([lambda messages: f"turn {len(messages)}"])
    workflow = workflow_of(agent, storage, remembers=True)
    for number in range(1, 6):
        result = await workflow.run(f"input {number}", run_id="chat", if_exists="continue")
        assert result.outputs == [f"turn {2 * number - 1}"]
    assert [len(asked) for asked in agent.asked] == [1, 3, 5, 7, 9]


async def test_without_remembering_each_message_is_new() -> None:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent(["hello"])
    workflow = workflow_of(agent, storage)
    for number in range(3):
        await workflow.run(f"input {number}", run_id="chat", if_exists="continue")
    assert [len(asked) for asked in agent.asked] == [1, 1, 1]


async def test_instructions_of_settings_and_request_come_together() -> None:
    agent = ScriptedAgent(["x"])
    await workflow_of(agent, instructions="Be brief.").run(AgentRequest("a", instructions="Be kind."))
    assert agent.requests[0].instructions == "Be kind.\n\nBe brief."


# -- what is recorded -----------------------------------------------------------------------------------------------


class Tools:
    """Counts its calls; ``flaky`` fails the first time."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.broken = True

    async def charge(self, amount: int) -> str:
        self.calls.append(f"charge {amount}")
        self.keys.append(current_tool_call().idempotency_key)
        return f"charged {amount}"

    async def flaky(self) -> str:
        self.calls.append("flaky")
        await asyncio.sleep(0)
        if self.broken:
            self.broken = False
            raise ConnectionError("gone")
        return "there"


async def test_a_resumed_run_repeats_no_recorded_call() -> None:
    tools, storage = Tools(), InMemoryCheckpointStorage()
    agent = ScriptedAgent(
        [[("c1", "charge", {"amount": 5}), ("c2", "flaky", {})], "done"],
        {"charge": tools.charge, "flaky": tools.flaky},
    )
    workflow = workflow_of(agent, storage)
    run = await workflow.start("pay", run_id="r")
    with pytest.raises(ExecutorFailed, match="gone"):
        await run.wait_for_completion()
    result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert tools.calls == ["charge 5", "flaky", "flaky"]
    assert len(agent.asked) == 2


async def test_a_retry_repeats_no_recorded_call() -> None:
    tools = Tools()
    agent = ScriptedAgent(
        [[("c1", "charge", {"amount": 5}), ("c2", "flaky", {})], "done"],
        {"charge": tools.charge, "flaky": tools.flaky},
    )
    workflow = workflow_of(agent, retry=RetryPolicy(attempts=2, backoff=0.0))
    assert (await workflow.run("pay")).outputs == ["done"]
    assert tools.calls == ["charge 5", "flaky", "flaky"]
    assert len(agent.asked) == 2


async def test_an_error_that_the_model_was_told_is_told_again_and_not_tried_again() -> None:
    tried: list[str] = []

    async def refuse() -> str:
        tried.append("refuse")
        raise ValueError("closed")

    fails = [True]

    def second(messages: list[Any]) -> Any:
        if fails.pop(0) if fails else False:
            raise ConnectionError("model away")
        return f"told {messages[-1]['tools']}"

    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent([[("c1", "refuse", {})], second], {"refuse": refuse})
    workflow = workflow_of(agent, storage)
    with pytest.raises(ExecutorFailed, match="model away"):
        await workflow.run("x", run_id="r")
    result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["told ['error: closed']"]
    assert tried == ["refuse"]


async def test_call_ids_may_be_used_again_in_later_rounds_and_twice_in_one() -> None:
    tools = Tools()
    agent = ScriptedAgent(
        [
            [("c1", "charge", {"amount": 1}), ("c1", "charge", {"amount": 2})],
            [("c1", "charge", {"amount": 3})],
            "done",
        ],
        {"charge": tools.charge},
    )
    assert (await workflow_of(agent).run("x")).outputs == ["done"]
    assert sorted(tools.calls) == ["charge 1", "charge 2", "charge 3"]
    assert len(set(tools.keys)) == 3


async def test_events_show_calls_and_tell_replayed_ones() -> None:
    tools, storage = Tools(), InMemoryCheckpointStorage()
    agent = ScriptedAgent([[("c2", "flaky", {})], "done"], {"flaky": tools.flaky})
    workflow = workflow_of(agent, storage)
    run = await workflow.start("x", run_id="r")
    events = [event async for event in watched(run)]
    run = await workflow.resume(run_id="r")
    events += [event async for event in watched(run)]
    seen = [
        (event.call, event.replayed, event.error, event.executor_id)
        for event in events
        if isinstance(event, AgentCallEvent)
    ]
    assert seen == [
        ("model 1", False, None, "agent"),
        ("tool 1.c2", False, "ConnectionError: gone", "agent"),
        ("model 1", True, None, "agent"),
        ("tool 1.c2", False, None, "agent"),
        ("model 2", False, None, "agent"),
    ]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_replay_that_asks_something_else_warns_or_fails(strict: bool) -> None:
    tools, storage = Tools(), InMemoryCheckpointStorage()
    agent = ScriptedAgent([[("c2", "flaky", {})], "done"], {"flaky": tools.flaky})
    workflow = workflow_of(agent, storage, strict_replay=strict)
    with pytest.raises(ExecutorFailed, match="gone"):
        await workflow.run("x", run_id="r")

    class Changed(ScriptedAgent):
        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            return await super().run(AgentRequest(request.prompt + " at noon"), calls)

    changed = Changed([[("c2", "flaky", {})], "done"], {"flaky": tools.flaky})
    workflow = workflow_of(changed, storage, strict_replay=strict)
    run = await workflow.resume(run_id="r")
    warned = [event async for event in watched(run) if isinstance(event, WorkflowWarningEvent)]
    if strict:
        with pytest.raises(ExecutorFailed) as failed:
            await run.wait_for_completion()
        assert isinstance(failed.value.__cause__, ReplayDiffers)
    else:
        assert (await run.wait_for_completion()).outputs == ["done"]
        assert [type(event.warning) for event in warned] == [ChangedRequest]
        assert "model 1" in warned[0].message


async def watched(run: Any) -> Any:
    try:
        async for event in run.watch_stream():
            yield event
    except ExecutorFailed:
        pass


async def test_agents_inside_tools_have_calls_of_their_own_side_by_side() -> None:
    asked: list[str] = []
    fails = [True]

    def helper(topic: str) -> Any:
        def ask(prompt: str) -> str:
            asked.append(prompt)
            return f"about {prompt}"

        return function.wrap(ask, name=topic)

    async def research(topic: str) -> str:
        calls = current_calls()
        replies = await asyncio.gather(
            *(
                helper(part).run(AgentRequest(f"{topic} {part}"), calls.branch(part))
                for part in ("north", "south")
            )
        )
        if topic == "sea" and fails and fails.pop():
            raise ConnectionError("gone")
        return ", ".join(reply.text for reply in replies)

    storage = InMemoryCheckpointStorage()
    script = [[("c1", "research", {"topic": "kelp"}), ("c2", "research", {"topic": "sea"})], "done"]
    agent = ScriptedAgent(script, {"research": research})
    workflow = workflow_of(agent, storage)
    with pytest.raises(ExecutorFailed, match="gone"):
        await workflow.run("x", run_id="r")
    result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert sorted(asked) == ["kelp north", "kelp south", "sea north", "sea south"]


async def test_two_model_calls_at_once_need_branches() -> None:
    class Hasty:
        name = "hasty"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            async def ask() -> str:
                await asyncio.sleep(0)
                return "x"

            await asyncio.gather(calls.model({}, ask), calls.model({}, ask))
            return AgentReply("never")

    with pytest.raises(ExecutorFailed, match=r"calls.branch\('name'\)"):
        await workflow_of(Hasty()).run("x")


async def test_a_key_is_the_same_after_a_failure_and_another_in_another_run() -> None:
    keys: list[str] = []

    async def pay() -> str:
        keys.append(current_tool_call().idempotency_key)
        if len(keys) % 2:
            raise ConnectionError("gone")
        return "paid"

    storage = InMemoryCheckpointStorage()
    workflow = workflow_of(ScriptedAgent([[("c1", "pay", {})], "done"], {"pay": pay}), storage)
    for run_id in ("one", "two"):
        with pytest.raises(ExecutorFailed):
            await workflow.run("x", run_id=run_id)
        await (await workflow.resume(run_id=run_id)).wait_for_completion()
    assert keys[0] == keys[1] != keys[2] == keys[3]


async def test_a_tool_reads_the_state_of_the_run_and_shows_events() -> None:
    @dataclass
    class Searched(WorkflowEvent):
        text: str

    async def search(text: str) -> int:
        call = current_tool_call()
        await call.show(Searched(text))
        log: str = await call.read_state("log", scope_name="Logs")
        return log.count(text)

    @executor
    async def fetch(log: str, ctx: WorkflowContext[str]) -> None:
        await ctx.queue_state_update("log", log, scope_name="Logs")
        await ctx.send_message("how many?")

    told = ScriptedAgent([[("c1", "search", {"text": "error"})], "done"], {"search": search})
    agent = AgentExecutor(told, output_type=str)
    workflow = WorkflowBuilder(name="Log").set_start_executor(fetch).add_edge(fetch, agent).build()
    events = [event async for event in workflow.run_stream("error, fine, error")]
    assert [event.text for event in events if isinstance(event, Searched) and event.provisional] == ["error"]
    assert told.asked[1][-1] == {"tools": [2]}


async def test_a_tool_call_made_by_hand_has_no_run() -> None:
    with pytest.raises(AgentError, match="no agent is at work"):
        await ToolCall("search", "c1", "key").read_state("log")


# -- people -----------------------------------------------------------------------------------------------------------


def payer(tools: Tools) -> ScriptedAgent:
    script = [
        [("c1", "charge", {"amount": 50}), ("c2", "charge", {"amount": 5})],
        lambda messages: f"told {messages[-1]['tools']}",
    ]
    return ScriptedAgent(script, {"charge": tools.charge})


@pytest.mark.parametrize(
    ("decision", "called", "told"),
    [
        (True, 50, "charged 50"),
        (False, None, "A person denied this call"),
        (ToolDecision.deny("too much"), None, "A person denied this call: too much"),
        (
            ToolDecision.approve({"amount": 10}),
            10,
            'A person changed the arguments of this call to {"amount": 10}.\ncharged 10',
        ),
        (
            ToolDecision.answer("was paid"),
            None,
            "A person answered in place of the tool:\nwas paid",
        ),
        ({"action": "approve", "arguments": {"amount": 11}}, 11, None),
    ],
)
async def test_a_person_decides_about_a_tool_call(
    tmp_path: Path, decision: Any, called: int | None, told: str | None
) -> None:
    tools = Tools()
    rule = ToolApproval(lambda tool, arguments: arguments["amount"] > 10, message="A lot?")
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        result = await workflow_of(payer(tools), storage, tool_approval=rule).run("pay", run_id="r")
        assert result.status is RunStatus.WAITING
        assert tools.calls == ["charge 5"]
        (request,) = result.pending_requests
        assert isinstance(request.data, ToolApprovalRequest)
        assert (request.data.tool, request.data.arguments, request.data.message) == (
            "charge",
            {"amount": 50},
            "A lot?",
        )
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        (asked,) = await storage.list_requests()
        await storage.respond("r", {asked.request_id: decision})
        agent = payer(tools)
        run = await workflow_of(agent, storage, tool_approval=rule).resume(run_id="r")
        result = await run.wait_for_completion()
    assert tools.calls == ["charge 5"] + ([] if called is None else [f"charge {called}"])
    assert len(agent.asked) == 1
    if told is not None:
        assert result.outputs == [f"told {[told, 'charged 5']}"]


async def test_several_calls_are_asked_about_together_and_answered_one_by_one() -> None:
    tools, storage = Tools(), InMemoryCheckpointStorage()
    workflow = workflow_of(payer(tools), storage, tool_approval=ToolApproval(["charge"]))
    result = await workflow.run("pay", run_id="r")
    first, second = result.pending_requests
    assert tools.calls == []
    result = await result.respond({second.request_id: True})
    assert result.status is RunStatus.WAITING
    assert [request.request_id for request in result.pending_requests] == [first.request_id]
    assert tools.calls == ["charge 5"]
    result = await result.respond({first.request_id: ToolDecision.deny()})
    assert result.outputs == ["told ['A person denied this call', 'charged 5']"]
    assert tools.calls == ["charge 5"]


async def test_both_answers_at_once() -> None:
    tools, storage = Tools(), InMemoryCheckpointStorage()
    workflow = workflow_of(payer(tools), storage, tool_approval=ToolApproval())
    result = await workflow.run("pay", run_id="r")
    result = await result.respond({request.request_id: True for request in result.pending_requests})
    assert result.outputs == ["told ['charged 50', 'charged 5']"]
    assert sorted(tools.calls) == ["charge 5", "charge 50"]


async def test_nobody_answers_in_time() -> None:
    tools = Tools()
    with VirtualTime() as time:
        storage = InMemoryCheckpointStorage()
        rule = ToolApproval(expires=datetime.timedelta(days=2))
        workflow = workflow_of(payer(tools), storage, tool_approval=rule)
        await workflow.run("pay", run_id="r")
        await time.advance(3 * 86_400)
        run = await workflow.resume(run_id="r")
        result = await run.wait_for_completion()
    denied = "A person denied this call: nobody answered in time"
    assert result.outputs == [f"told {[denied, denied]}"]
    assert tools.calls == []


async def test_a_tool_asks_a_person(tmp_path: Path) -> None:
    async def account(name: str) -> str:
        number = await ask_person(f"Which account of {name}?")
        return f"account {number}"

    def agent() -> ScriptedAgent:
        script = [[("c1", "account", {"name": "Bo"})], lambda messages: messages[-1]["tools"][0]]
        return ScriptedAgent(script, {"account": account})

    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        result = await workflow_of(agent(), storage).run("x", run_id="r")
        (request,) = result.pending_requests
        assert isinstance(request.data, AgentQuestion)
        assert request.data.question == "Which account of Bo?"
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        await storage.respond("r", {request.request_id: "17"})
        result = await (await workflow_of(agent(), storage).resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["account 17"]


async def test_helpers_of_tools_say_where_they_belong() -> None:
    with pytest.raises(AgentError, match="for tools of an agent in a workflow"):
        await ask_person("anyone?")
    with pytest.raises(AgentError, match="for tools of an agent in a workflow"):
        current_tool_call()


@pytest.mark.parametrize(
    ("decision", "output"),
    [
        (True, "draft 1"),
        (OutputDecision.edit("better"), "better"),
        (OutputDecision.revise("longer"), "draft 3"),
        ({"action": "edit", "text": "from JSON"}, "from JSON"),
    ],
)
async def test_a_person_decides_about_a_reply(decision: Any, output: str) -> None:
    storage = InMemoryCheckpointStorage()
    agent = ScriptedAgent([lambda messages: f"draft {len(messages)}"])
    workflow = workflow_of(agent, storage, output_approval=OutputApproval(message="Ready?"))
    result = await workflow.run("write", run_id="r")
    (request,) = result.pending_requests
    assert isinstance(request.data, OutputApprovalRequest)
    assert (request.data.text, request.data.message) == ("draft 1", "Ready?")
    result = await result.respond({request.request_id: decision})
    if output == "draft 3":
        assert agent.asked[-1][-1] == {"user": "longer"}
        (request,) = result.pending_requests
        result = await result.respond({request.request_id: True})
    assert result.outputs == [output]


def test_a_rule_for_one_name_wants_a_list() -> None:
    with pytest.raises(InvalidArgument, match=r"ToolApproval\(\['refund'\]\)"):
        ToolApproval("refund")


async def test_an_answer_after_the_state_was_lost_says_so() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = workflow_of(payer(Tools()), storage, tool_approval=ToolApproval())
    result = await workflow.run("pay", run_id="r")
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    (key,) = [
        key
        for key in (await storage.load(latest.checkpoint_id)).executor_states["agent"]
        if "activation" in key
    ]
    assert result.pending_requests[0].data.activation in key


# -- limits -----------------------------------------------------------------------------------------------------------


async def test_an_endless_loop_of_tools_ends_clearly() -> None:
    tools = Tools()
    agent = ScriptedAgent([[("c1", "charge", {"amount": 1})]] * 20, {"charge": tools.charge})
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(agent, max_rounds=7).run("x")
    assert isinstance(failed.value.__cause__, AgentLoop)
    assert failed.value.__cause__.allowed == 7
    assert len(agent.asked) == 7


async def test_a_limit_of_a_provider_pauses_all_runs_once_and_is_told() -> None:
    key = "test-shared-key"
    asked, limited_once = [0], [True]

    class Limited:
        name = "limited"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            async def ask() -> str:
                asked[0] += 1
                if limited_once and limited_once.pop():
                    raise RateLimited("status 429", retry_after=0.05)
                return "fine"

            return AgentReply(await calls.model({}, ask, limit_key=key))

    workflow = workflow_of(Limited())
    events = [event async for event in workflow.run_stream("first") if isinstance(event, RateLimitEvent)]
    assert [(event.limit_key, event.seconds) for event in events] == [(key, 0.05)]
    assert PAUSES.seconds_left(key) == 0
    PAUSES.begin(key, 0.05)
    results = await asyncio.gather(*(workflow.run(str(number)) for number in range(20)))
    assert [result.outputs for result in results] == [["fine"]] * 20
    assert asked[0] == 22


async def test_a_long_limit_lets_the_run_sleep(tmp_path: Path) -> None:
    limited_once = [True]

    class Limited:
        name = "limited"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            async def ask() -> str:
                if limited_once and limited_once.pop():
                    raise RateLimited("status 429", retry_after=0.2)
                return "fine"

            return AgentReply(await calls.model({}, ask, limit_key="test-long"))

    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        workflow = workflow_of(Limited(), storage, longest_pause=0.01)
        run = await workflow.start("x", run_id="r")
        waited = [
            event.waiting_for
            async for event in run.watch_stream()
            if isinstance(event, WorkflowStatusEvent) and event.status is RunStatus.WAITING
        ]
        assert waited == [("time",)]
        result = await run.wait_for_completion()
        while result.status is RunStatus.WAITING:
            result = await (await workflow.resume(run_id="r")).wait_for_completion()
        assert result.outputs == ["fine"]


async def test_a_model_that_is_away_is_asked_again_and_then_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.rate_limits._FIRST_PAUSE", 0.0)
    agent = ScriptedAgent([ModelUnavailable("status 500")])
    with pytest.raises(ExecutorFailed, match="status 500"):
        await workflow_of(agent, model_attempts=3).run("x")
    assert len(agent.asked) == 3


async def test_a_turn_that_takes_too_long_fails_and_goes_on_later() -> None:
    slow = [True]

    async def wait() -> str:
        if slow and slow.pop():
            await asyncio.sleep(30)
        return "waited"

    tools, storage = Tools(), InMemoryCheckpointStorage()
    agent = ScriptedAgent(
        [[("c1", "charge", {"amount": 5})], [("c2", "wait", {})], "done"],
        {"charge": tools.charge, "wait": wait},
    )
    with pytest.raises(ExecutorFailed, match=r"longer than 1 s"):
        await workflow_of(agent, storage, timeout=1).run("x", run_id="r")
    result = await (await workflow_of(agent, storage).resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert tools.calls == ["charge 5"]


async def test_a_cancelled_run_goes_on_where_it_was() -> None:
    reached = asyncio.Event()

    async def wait() -> str:
        if not reached.is_set():
            reached.set()
            await asyncio.sleep(30)
        return "waited"

    tools, storage = Tools(), InMemoryCheckpointStorage()
    agent = ScriptedAgent(
        [[("c1", "charge", {"amount": 5})], [("c2", "wait", {})], "done"],
        {"charge": tools.charge, "wait": wait},
    )
    workflow = workflow_of(agent, storage)
    run = await workflow.start("x", run_id="r")
    await reached.wait()
    await run.cancel()
    assert (await run.wait_for_completion()).status is RunStatus.CANCELLED
    result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == ["done"]
    assert tools.calls == ["charge 5"]


@pytest.mark.parametrize("field", ["max_rounds", "model_attempts"])
def test_settings_are_checked(field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        AgentSettings(**{field: 0})  # type: ignore[arg-type]


def test_agents_bring_no_agent_library(tmp_path: Path) -> None:
    import subprocess
    import sys

    libraries = [
        "openai",
        "pydantic_ai",
        "agents",
        "agent_framework",
        "langchain",
        "langchain_core",
        "pydantic",
    ]
    program = f"import sys, holdfast.agents; print([name for name in {libraries!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_history_of_another_library_is_refused() -> None:
    from holdfast.agents.provider_errors import history_for
    from holdfast.errors import HistoryUnreadable

    with pytest.raises(HistoryUnreadable, match=r"openai.*pydantic-ai 2\.66"):
        history_for("openai", AgentHistory("pydantic-ai", "2.66", []), "triage")


def _nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"amount": 2**70}, {"amount": 2**71}),
        ({"amount": 1}, {"amount": 1.0}),
        ({"1": "a"}, {1: "b"}),
        ([["a"], "b"], [["a", "b"]]),
        (_nested(400, "a"), _nested(400, "b")),
        ({"text": "\ud800"}, {"text": "a"}),
    ],
)
def test_digests_tell_requests_apart_and_know_them_again(one: Any, other: Any) -> None:
    assert digest_of(one) != digest_of(other)
    assert digest_of(one) == digest_of(copy.deepcopy(one))
    assert digest_of([{"b": one, "a": 1}]) == digest_of([{"a": 1, "b": one}])
