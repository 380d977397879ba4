"""The adapter for agent-framework: the real library, with a chat client that answers in this process."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatContext,
    ChatMiddlewareLayer,
    Content,
    ContextProvider,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    Message,
    MiddlewareTermination,
    chat_middleware,
    function_middleware,
    tool,
)
from agent_framework.exceptions import ChatClientException
from pydantic import BaseModel

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
    RetryPolicy,
    RunStatus,
    SqliteCheckpointStorage,
    WorkflowWarningEvent,
)
from holdfast.agents import (
    AgentCallEvent,
    AgentExecutor,
    AgentHistory,
    AgentMessage,
    AgentQuestion,
    AgentReply,
    AgentRequest,
    Handoff,
    ToolApproval,
    ToolDecision,
    agent_framework,
    ask_person,
    current_calls,
    current_tool_call,
)
from holdfast.errors import (
    AgentError,
    ChangedRequest,
    ModelUnavailable,
    RateLimited,
    ReplayDiffers,
    UnrecordedCalls,
)
from tests.agents.adapter_rules import check_history_is_refused, check_tried_again, reply_of
from tests.agents.agents import workflow_of
from tests.agents.libraries.agent_framework import ScriptedChatClient
from tests.agents.world import Step, WantedTool


@dataclass
class Verdict:
    priority: str
    services: list[str]


@dataclass
class Nothing:
    reason: str


class Ticket(BaseModel):
    number: int


class Model:
    """Answers by a script: steps, texts, errors, or functions of the messages."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[list[Message]] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, messages: list[Message], options: dict[str, Any]) -> Step:
        self.asked.append(list(messages))
        self.options.append(dict(options))
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, Exception):
            raise said
        if callable(said):
            said = said(messages)
        return said if isinstance(said, Step) else Step(text=said)

    def agent(self, *tools: Any, stream: bool = True, **settings: Any) -> agent_framework.AgentFrameworkAgent:
        agent = Agent(ScriptedChatClient(self), name="triage", tools=list(tools), **settings)
        return agent_framework.wrap(agent, stream=stream)

    def told(self) -> list[Any]:
        """Return the results of tools that the model was told last."""
        return [content.result for content in self.asked[-1][-1].contents]


def wants(*tools: tuple[str, dict[str, Any]]) -> Step:
    return Step(tuple(WantedTool(f"c{number}", *one) for number, one in enumerate(tools, 1)))


async def watched(run: Any) -> list[Any]:
    events = []
    try:
        async for event in run.watch_stream():
            events.append(event)
    except ExecutorFailed:
        pass
    return events


async def warnings_of(agent: Any, *, given: Any = "x") -> list[Any]:
    run = await workflow_of(agent).start(given)
    return [event.warning for event in await watched(run) if isinstance(event, WorkflowWarningEvent)]


# -- text, tools, outputs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_text_and_usage(stream: bool) -> None:
    agent = Model("hello there you").agent(stream=stream)
    (reply,) = (await workflow_of(agent, output_type=AgentReply).run("hi")).outputs
    assert reply.text == "hello there you"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.calls) == (10, 2, 1)
    assert (reply.history.adapter, reply.history.version) == ("agent-framework", "1.23.0")
    assert [message["role"] for message in reply.history.messages] == ["user", "assistant"]


@pytest.mark.parametrize("stream", [True, False])
async def test_text_is_streamed(stream: bool) -> None:
    workflow = workflow_of(Model("one two three").agent(stream=stream))
    deltas = [event.data async for event in workflow.run_stream("x") if isinstance(event, OutputDeltaEvent)]
    assert deltas == (["one", " two", " three"] if stream else [])


async def test_an_agent_of_the_library_is_wrapped_by_its_executor() -> None:
    agent: Any = Agent(ScriptedChatClient(Model("hi")), name="triage")
    executor = AgentExecutor(agent)
    assert (executor.id, type(executor.agent)) == ("triage", agent_framework.AgentFrameworkAgent)


async def test_tools_run_side_by_side() -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> list[str]:
        """Meet the other."""
        await both.wait()
        return [name]

    model = Model(wants(("meet", {"name": "a"}), ("meet", {"name": "b"})), "done")
    (reply,) = (await workflow_of(model.agent(meet), output_type=AgentReply).run("x")).outputs
    assert reply.text == "done"
    assert reply.usage.calls == 2
    assert reply.usage.input_tokens == 20
    assert model.told() == ['["a"]', '["b"]']
    assert [message["role"] for message in reply.history.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


@pytest.mark.parametrize("detailed", [False, True])
async def test_errors_are_told_in_the_words_of_the_library_and_not_tried_again(detailed: bool) -> None:
    tried: list[int] = []

    def charge(amount: int) -> str:
        tried.append(amount)
        raise ValueError("unlucky")

    step = wants(("charge", {"amount": 13}), ("charge", {"amount": "many"}), ("nothing", {}))
    model = Model(step, KeyError("gone"), "done")
    agent = Agent(ScriptedChatClient(model), name="triage", tools=[charge])
    agent.client.function_invocation_configuration["include_detailed_errors"] = detailed  # type: ignore[attr-defined]
    workflow = workflow_of(agent, InMemoryCheckpointStorage())
    with pytest.raises(ExecutorFailed, match="gone"):
        await workflow.run("x", run_id="r")
    first = model.told()
    run = await workflow.resume(run_id="r")
    assert not [event for event in await watched(run) if isinstance(event, WorkflowWarningEvent)]
    assert (await run.wait_for_completion()).outputs == ["done"]
    assert tried == [13]
    assert model.told() == first
    assert first[0] == "Error: Function failed." + (" Exception: unlucky" if detailed else "")
    assert first[1].startswith("Error: Argument parsing failed.")
    assert first[2] == 'Error: Requested function "nothing" not found.'


async def test_a_resumed_run_repeats_no_recorded_call() -> None:
    charged: list[str] = []

    async def charge(amount: int) -> str:
        charged.append(current_tool_call().call_id)
        return f"charged {amount}"

    model = Model(wants(("charge", {"amount": 5})), KeyError("away"), lambda messages: "done")
    workflow = workflow_of(model.agent(charge), InMemoryCheckpointStorage(), output_type=AgentReply)
    with pytest.raises(ExecutorFailed, match="away"):
        await workflow.run("x", run_id="r")
    run = await workflow.resume(run_id="r")
    events = await watched(run)
    calls = [(event.call, event.replayed) for event in events if isinstance(event, AgentCallEvent)]
    assert calls == [("model 1", True), ("tool 1.c1", True), ("model 2", False)]
    assert not [event for event in events if isinstance(event, WorkflowWarningEvent)]
    (reply,) = (await run.wait_for_completion()).outputs
    assert charged == ["c1"]
    assert reply.usage.calls == 2
    # The ids that the library would generate are recorded with the call.
    assert model.asked[1][1].contents[0].id == model.asked[2][1].contents[0].id


async def test_one_agent_serves_many_runs_at_once() -> None:
    model = Model(
        lambda messages: (
            wants(("echo", {"text": messages[0].text}))
            if len(messages) == 1
            else messages[-1].contents[0].result
        )
    )

    async def echo(text: str) -> str:
        await asyncio.sleep(0)
        return text

    agent = Agent(ScriptedChatClient(model), name="triage", tools=[echo])
    before = (list(agent.context_providers), dict(agent.default_options), agent.middleware)
    workflow = workflow_of(agent)
    results = await asyncio.gather(*(workflow.run(f"{number}") for number in range(20)))
    assert [result.outputs for result in results] == [[f"{number}"] for number in range(20)]
    assert (list(agent.context_providers), dict(agent.default_options), agent.middleware) == before


async def test_structured_output() -> None:
    model = Model(json.dumps({"result": {"priority": "P0", "services": ["a"]}}))
    (verdict,) = (await workflow_of(model.agent(), output_type=Verdict).run("x")).outputs
    assert verdict == Verdict("P0", ["a"])


async def test_a_model_of_pydantic_is_the_format_itself() -> None:
    model = Model('{"number": 3}')
    assert (await workflow_of(model.agent(), output_type=Ticket).run("x")).outputs == [Ticket(number=3)]
    assert model.options[0]["response_format"] is Ticket


@pytest.mark.parametrize("form", [Verdict | Nothing, Ticket | Nothing])
async def test_a_union_of_outputs(form: Any) -> None:
    model = Model(json.dumps({"result": {"reason": "calm"}}))
    assert (await workflow_of(model.agent(), output_type=form).run("x")).outputs == [Nothing("calm")]


async def test_several_output_types() -> None:
    model = Model(json.dumps({"result": {"reason": "calm"}}))
    request = AgentRequest("x", output_types=(Verdict, Nothing))
    assert (await reply_of(model.agent(), request)).value == Nothing("calm")


@pytest.mark.parametrize("text", ["{}", "no JSON", ""])
async def test_an_output_that_does_not_fit_fails(text: str) -> None:
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(Model(text).agent(), output_type=Verdict).run("x")
    assert isinstance(failed.value.__cause__, AgentError)


async def test_the_format_of_the_agent_itself_gives_a_value() -> None:
    agent = Model('{"number": 3}').agent(default_options={"response_format": Ticket})
    (reply,) = (await workflow_of(agent, output_type=AgentReply).run("x")).outputs
    assert reply.value == Ticket(number=3)


# -- the conversation -------------------------------------------------------------------------------------------------


async def test_the_history_is_carried_on() -> None:
    def search(text: str) -> str:
        """Search the log."""
        return f"found {text}"

    model = Model(wants(("search", {"text": "kelp"})), "one", "two")
    workflow = workflow_of(model.agent(search), InMemoryCheckpointStorage(), remembers=True)
    await workflow.run("a", run_id="chat")
    assert (await workflow.run("b", run_id="chat", if_exists="continue")).outputs == ["two"]
    assert [message.role for message in model.asked[-1]] == ["user", "assistant", "tool", "assistant", "user"]
    assert model.asked[-1][2].contents[0].result == "found kelp"
    assert [content.call_id for content in model.asked[-1][1].contents] == ["c1"]


async def test_neutral_messages_come_before_the_prompt() -> None:
    model = Model("x")
    earlier = (AgentMessage("user", "a"), AgentMessage("assistant", "b"))
    await workflow_of(model.agent()).run(AgentRequest("c", earlier))
    assert [(message.role, message.text) for message in model.asked[0]] == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ]


async def test_instructions_are_added_to_those_of_the_agent() -> None:
    model = Model("x")
    workflow = workflow_of(model.agent(instructions="Be brief."), output_type=AgentReply)
    (reply,) = (await workflow.run(AgentRequest("a", instructions="Be kind."))).outputs
    assert model.options[0]["instructions"] == "Be brief.\nBe kind."
    assert "Be kind." not in json.dumps(reply.history.messages)


@pytest.mark.parametrize(
    "history",
    [
        AgentHistory("langchain", "1.4", []),
        AgentHistory("agent-framework", "9.0", [{"type": "letter", "role": "user"}]),
        AgentHistory("agent-framework", "9.0", [{"role": "user", "words": []}]),
        AgentHistory("agent-framework", "9.0", ["text"]),
    ],
)
async def test_a_history_that_cannot_be_read_is_refused(history: AgentHistory) -> None:
    await check_history_is_refused(Model("x").agent(), history)


# -- handoffs ---------------------------------------------------------------------------------------------------------


async def test_a_handoff_is_a_required_choice_in_each_round() -> None:
    def search() -> str:
        """Search the log."""
        return "nothing"

    model = Model(wants(("search", {})), wants(("hand_over_to_billing", {})), "never")
    request = AgentRequest("invoice?", handoffs=(Handoff("billing", "Invoices"), Handoff("sales")))
    workflow = workflow_of(model.agent(search), output_type=AgentReply)
    (reply,) = (await workflow.run(request)).outputs
    assert reply.handoff == "billing"
    assert [options["tool_choice"] for options in model.options] == ["required", "required"]
    assert [tool.name for tool in model.options[0]["tools"]] == [
        "search",
        "hand_over_to_billing",
        "hand_over_to_sales",
    ]
    # The conversation is whole: the next request may go on with it.
    assert reply.history.messages[-1]["role"] == "tool"
    following = Model("fine")
    await workflow_of(following.agent(search)).run(AgentRequest("thanks", history=reply.history))
    assert [message.role for message in following.asked[0]][-2:] == ["tool", "user"]


async def test_no_handoff() -> None:
    request = AgentRequest("x", handoffs=(Handoff("billing"),))
    (reply,) = (await workflow_of(Model("I do it").agent(), output_type=AgentReply).run(request)).outputs
    assert (reply.handoff, reply.text) == (None, "I do it")


@pytest.mark.parametrize("replies", [True, False])
async def test_an_agent_that_may_hand_over_may_also_reply(replies: bool) -> None:
    model = Model("mine" if replies else wants(("hand_over_to_billing", {})))
    request = AgentRequest("x", handoffs=(Handoff("billing"),), handoff_required=False)
    (reply,) = (await workflow_of(model.agent(), output_type=AgentReply).run(request)).outputs
    assert (reply.handoff, reply.text) == ((None, "mine") if replies else ("billing", ""))
    assert model.options[0].get("tool_choice") != "required"


# -- people -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "charged", "told"),
    [
        (ToolDecision.approve(), [50], "charged 50"),
        (
            ToolDecision.approve({"amount": 5}),
            [5],
            'A person changed the arguments of this call to {"amount": 5}.\ncharged 5',
        ),
        (ToolDecision.deny("too much"), [], "A person denied this call: too much"),
        (ToolDecision.answer("paid"), [], "A person answered in place of the tool:\npaid"),
        (True, [50], "charged 50"),
    ],
)
async def test_a_person_decides_about_a_tool(decision: Any, charged: list[int], told: str) -> None:
    done: list[int] = []
    looked: list[str] = []

    async def charge(amount: int) -> str:
        done.append(amount)
        return f"charged {amount}"

    async def look() -> str:
        looked.append("looked")
        return "seen"

    model = Model(wants(("charge", {"amount": 50}), ("look", {})), "done")
    workflow = workflow_of(
        model.agent(charge, look), InMemoryCheckpointStorage(), tool_approval=ToolApproval(["charge"])
    )
    result = await workflow.run("x")
    assert result.status is RunStatus.WAITING
    assert (done, looked, len(model.asked)) == ([], ["looked"], 1)
    result = await result.respond({result.pending_requests[0].request_id: decision})
    assert result.outputs == ["done"]
    assert (done, looked, len(model.asked)) == (charged, ["looked"], 2)
    assert model.told() == [told, "seen"]


@pytest.mark.parametrize(
    ("answer", "charged", "told"),
    [
        (
            {"action": "approve", "arguments": {"amount": 5}},
            [5],
            'A person changed the arguments of this call to {"amount": 5}.\ncharged 5',
        ),
        ({"action": "deny", "reason": "too much"}, [], "A person denied this call: too much"),
        ({"action": "answer", "result": "paid"}, [], "A person answered in place of the tool:\npaid"),
    ],
)
async def test_a_decision_as_json_from_another_process(
    tmp_path: Path, answer: Any, charged: list[int], told: str
) -> None:
    done: list[int] = []

    async def charge(amount: int) -> str:
        done.append(amount)
        return f"charged {amount}"

    rule = ToolApproval(["charge"])
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        first = Model(wants(("charge", {"amount": 50})))
        result = await workflow_of(first.agent(charge), storage, tool_approval=rule).run("x", run_id="r")
        await storage.respond("r", {result.pending_requests[0].request_id: answer})
    second = Model("done")
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        run = await workflow_of(second.agent(charge), storage, tool_approval=rule).resume(run_id="r")
        assert (await run.wait_for_completion()).outputs == ["done"]
    assert done == charged
    assert second.told() == [told]


async def test_arguments_of_a_person_that_do_not_fit_are_told_to_the_model() -> None:
    model = Model(wants(("charge", {"amount": 50})), "done")
    workflow = workflow_of(
        model.agent(_charge), InMemoryCheckpointStorage(), tool_approval=ToolApproval(["charge"])
    )
    result = await workflow.run("x")
    decision = ToolDecision.approve({"amount": "many"})
    assert (await result.respond({result.pending_requests[0].request_id: decision})).outputs == ["done"]
    assert model.told() == ["Error: Argument parsing failed."]


@tool(name="charge")
async def _charge(amount: int) -> str:
    """Charge an amount."""
    return f"charged {amount}"


async def test_a_tool_asks_a_person(tmp_path: Path) -> None:
    async def account(name: str) -> str:
        return f"account {await ask_person(f'Which account of {name}?')}"

    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        first = Model(wants(("account", {"name": "Bo"})))
        result = await workflow_of(first.agent(account), storage).run("x", run_id="r")
        (request,) = result.pending_requests
        assert isinstance(request.data, AgentQuestion)
        await storage.respond("r", {request.request_id: "17"})
    second = Model("done")
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        run = await workflow_of(second.agent(account), storage).resume(run_id="r")
        assert (await run.wait_for_completion()).outputs == ["done"]
    assert second.told() == ["account 17"]


def test_approval_by_the_library_is_refused_at_once() -> None:
    with pytest.raises(GraphError, match=r"ToolApproval\(\['refund'\]\)"):
        Model("x").agent(_refund())


async def test_approval_of_a_tool_that_comes_later_is_refused_when_it_is_called() -> None:
    class Refunds(ContextProvider):
        async def before_run(self, *, context: Any, **_: Any) -> None:
            context.extend_tools(self.source_id, [_refund()])

    model = Model(wants(("refund", {})), "never")
    with pytest.raises(ExecutorFailed, match="'refund' waits for an approval"):
        await workflow_of(model.agent(context_providers=[Refunds("refunds")])).run("x")
    assert len(model.asked) == 1


def _refund() -> Any:
    @tool(approval_mode="always_require")
    def refund() -> str:
        """Refund all."""
        return "refunded"

    return refund


# -- the library's own control flow -----------------------------------------------------------------------------------


async def test_middleware_of_the_agent_is_kept() -> None:
    seen: list[str] = []

    @chat_middleware
    async def watch_model(context: ChatContext, call_next: Callable[[], Any]) -> None:
        await call_next()
        seen.append(f"model {context.stream} {type(context.result).__name__}")

    @function_middleware
    async def watch_tool(context: FunctionInvocationContext, call_next: Callable[[], Any]) -> None:
        await call_next()
        seen.append(f"tool {context.function.name}")

    model = Model(wants(("charge", {"amount": 1})), "done")
    await workflow_of(model.agent(_charge, middleware=[watch_model, watch_tool])).run("x")
    assert seen == ["model False ChatResponse", "tool charge", "model False ChatResponse"]


async def test_a_tool_that_ends_the_loop_ends_it_in_a_replay_too() -> None:
    ended: list[str] = []
    fails = [True]

    async def finish(context: FunctionInvocationContext) -> str:
        ended.append("finish")
        raise MiddlewareTermination("enough", result="the end")

    async def flaky() -> str:
        raise RuntimeError("flaky")

    class Fails(ContextProvider):
        async def before_run(self, **_: Any) -> None: ...

        async def after_run(self, **_: Any) -> None:
            if fails.pop() if fails else False:
                raise ConnectionError("gone")

    model = Model(wants(("finish", {}), ("flaky", {})), "never")
    agent = model.agent(finish, flaky, context_providers=[Fails("fails")])
    workflow = workflow_of(agent, output_type=AgentReply, retry=RetryPolicy(attempts=2, backoff=0.0))
    (reply,) = (await workflow.run("x")).outputs
    assert ended == ["finish"]
    assert len(model.asked) == 1
    assert reply.history.messages[-1]["contents"][0]["result"] == "the end"


async def test_the_most_rounds_of_the_library_are_kept() -> None:
    model = Model(wants(("charge", {"amount": 1})), wants(("charge", {"amount": 2})), "done")
    agent = Agent(ScriptedChatClient(model), name="triage", tools=[_charge])
    agent.client.function_invocation_configuration["max_iterations"] = 2  # type: ignore[attr-defined]
    assert (await workflow_of(agent).run("x")).outputs == ["done"]
    assert model.options[-1]["tool_choice"] == "none"


async def test_a_replay_that_differs_in_a_tool_is_not_told_to_the_model() -> None:
    changed: list[str] = []

    @function_middleware
    async def stamp(context: FunctionInvocationContext, call_next: Callable[[], Any]) -> None:
        if changed:
            context.arguments = {"amount": 99}
        await call_next()

    model = Model(wants(("charge", {"amount": 1})), KeyError("away"), "never")
    agent = model.agent(_charge, middleware=[stamp])
    workflow = workflow_of(agent, InMemoryCheckpointStorage(), strict_replay=True)
    with pytest.raises(ExecutorFailed, match="away"):
        await workflow.run("x", run_id="r")
    changed.append("now")
    with pytest.raises(ExecutorFailed) as failed:
        await (await workflow.resume(run_id="r")).wait_for_completion()
    assert isinstance(failed.value.__cause__, ReplayDiffers)
    assert len(model.asked) == 2


async def test_a_clock_in_the_instructions_is_noticed() -> None:
    class Clock(ContextProvider):
        time = 0

        async def before_run(self, *, context: Any, **_: Any) -> None:
            self.time += 1
            context.extend_instructions(self.source_id, f"It is {self.time} o'clock.")

    model = Model(wants(("charge", {"amount": 1})), KeyError("away"), "done")
    workflow = workflow_of(
        model.agent(_charge, context_providers=[Clock("clock")]), InMemoryCheckpointStorage()
    )
    with pytest.raises(ExecutorFailed, match="away"):
        await workflow.run("x", run_id="r")
    events = await watched(await workflow.resume(run_id="r"))
    warned = [type(event.warning) for event in events if isinstance(event, WorkflowWarningEvent)]
    assert warned == [UnrecordedCalls, ChangedRequest]


# -- limits and outages -----------------------------------------------------------------------------------------------


class Refusal(Exception):
    """An error of an SDK, with a status and headers."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"refused with {status}")
        self.status_code = status
        self.response = type("Response", (), {"headers": headers or {}, "status_code": status})()


def wrapped(cause: Exception) -> Exception:
    """Return an error as the library's chat clients raise it."""
    error = ChatClientException("service failed to complete the prompt", cause)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "kind", "retry_after"),
    [
        (lambda: wrapped(Refusal(429, {"Retry-After": "0"})), RateLimited, 0.0),
        (lambda: Refusal(429), RateLimited, None),
        (lambda: wrapped(Refusal(503, {"Retry-After": "0"})), RateLimited, 0.0),
        (lambda: wrapped(Refusal(500)), ModelUnavailable, None),
        (lambda: wrapped(ConnectionResetError("reset")), ModelUnavailable, None),
        (lambda: TimeoutError("slow"), ModelUnavailable, None),
    ],
    ids=["429 in 0 s", "429", "503 in 0 s", "500", "no connection", "timeout"],
)
async def test_limits_and_outages_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
    kind: type[Exception],
    retry_after: float | None,
    stream: bool,
) -> None:
    model = Model(error(), "fine")
    agents = Model(error()).agent(stream=stream), model.agent(stream=stream)
    await check_tried_again(monkeypatch, *agents, kind, retry_after)
    assert len(model.asked) == 2


async def test_a_stream_that_breaks_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.rate_limits._FIRST_PAUSE", 0.0)
    model = Model("one two")
    breaks = [True]

    class Breaking(ScriptedChatClient):
        async def _updates(self, messages: Any, options: Any) -> Any:
            async for update in super()._updates(messages, options):
                if update.text == " two" and breaks:
                    breaks.pop()
                    raise ConnectionResetError("reset")
                yield update

    agent = agent_framework.wrap(Agent(Breaking(model), name="triage"))
    assert (await workflow_of(agent).run("x")).outputs == ["one two"]
    assert len(model.asked) == 2


async def test_a_refused_request_is_not_tried_again() -> None:
    model = Model(wrapped(Refusal(400)))
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(model.agent()).run("x")
    assert isinstance(failed.value.__cause__, ChatClientException)
    assert len(model.asked) == 1


# -- what cannot be recorded ------------------------------------------------------------------------------------------


async def test_tools_of_the_provider_are_warned_of() -> None:
    (warning,) = await warnings_of(Model("x").agent({"type": "web_search"}))
    assert isinstance(warning, UnrecordedCalls)
    assert "'web_search' is called by the provider" in str(warning)


async def test_agents_as_tools_are_warned_of_once() -> None:
    helper = Agent(ScriptedChatClient(Model("helped")), name="helper", description="Helps.")
    model = Model(wants(("helper", {"task": "a"})), "done")
    (warning,) = await warnings_of(model.agent(helper.as_tool()))
    assert isinstance(warning, UnrecordedCalls)
    assert "'helper' is recorded as one call" in str(warning)
    assert model.told() == ["helped"]


async def test_a_wrapped_agent_inside_a_tool_is_recorded() -> None:
    helper = Model("helped")

    async def ask_helper(task: str) -> str:
        return (await helper.agent().run(AgentRequest(task), current_calls())).text

    model = Model(wants(("ask_helper", {"task": "a"})), "done")
    run = await workflow_of(model.agent(ask_helper)).start("x")
    calls = [event.call for event in await watched(run) if isinstance(event, AgentCallEvent)]
    assert calls == ["model 1", "tool 1.c1 > model 1", "tool 1.c1", "model 2"]


async def test_context_providers_are_warned_of() -> None:
    class Memory(ContextProvider):
        """Remembers nothing."""

    (warning,) = await warnings_of(Model("x").agent(context_providers=[Memory("memory")]))
    assert isinstance(warning, UnrecordedCalls)
    assert "context provider Memory" in str(warning)


@pytest.mark.filterwarnings("ignore:.*PROGRESSIVE_TOOLS")
async def test_tools_that_change_the_tools_are_warned_of() -> None:
    async def more(context: FunctionInvocationContext) -> str:
        assert context.tools is not None
        context.tools.append(_charge)
        return "more"

    model = Model(wants(("more", {})), wants(("charge", {"amount": 3})), "done")
    (warning,) = await warnings_of(model.agent(more))
    assert isinstance(warning, UnrecordedCalls)
    assert "'more' changes the tools" in str(warning)
    assert model.told() == ["charged 3"]


# -- what can be wrapped ----------------------------------------------------------------------------------------------


class PlainClient(FunctionInvocationLayer[Any], BaseChatClient[Any]):
    """Has no layer for chat middleware."""

    def _inner_get_response(self, **_: Any) -> Any: ...


class NamelessClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    def _inner_get_response(self, **_: Any) -> Any: ...


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        (object(), "takes an agent_framework.Agent"),
        (Agent(PlainClient(), name="plain"), "has no ChatMiddlewareLayer"),
        (Agent(NamelessClient()), "give the agent a name"),
    ],
)
def test_what_cannot_be_wrapped_is_refused(agent: Any, complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        agent_framework.wrap(agent)


async def test_rich_results_of_tools_are_kept() -> None:
    async def picture() -> list[Content]:
        return [
            Content.from_text("a cat"),
            Content.from_uri("https://x.test/cat.png", media_type="image/png"),
        ]

    model = Model(wants(("picture", {})), KeyError("away"), "done")
    workflow = workflow_of(model.agent(picture), InMemoryCheckpointStorage())
    with pytest.raises(ExecutorFailed, match="away"):
        await workflow.run("x", run_id="r")
    await (await workflow.resume(run_id="r")).wait_for_completion()
    first, second = (asked[-1].contents[0] for asked in model.asked[1:])
    assert first == second
    assert [item.type for item in second.items or ()] == ["text", "uri"]
