"""The adapter for LangChain: real agents, with chat models that follow a script."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
    wrap_tool_call,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.exceptions import ModelConnectionError, ModelRateLimitError
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
    RunStatus,
    SqliteCheckpointStorage,
)
from holdfast.agents import (
    AgentCallEvent,
    AgentExecutor,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Handoff,
    ToolApproval,
    ask_person,
    langchain,
)
from holdfast.errors import ModelUnavailable, RateLimited
from tests.agents.adapter_rules import (
    EARLIER,
    charge,
    check_failed_tool_is_tried_alone,
    check_history_is_refused,
    check_tried_again,
    for_each_decision,
    reply_of,
    unrecorded,
)
from tests.agents.agents import workflow_of


class Verdict(BaseModel):
    priority: str


@dataclass
class Nothing:
    """Nothing is to be done."""

    reason: str


class ScriptedChatModel(BaseChatModel):
    """Says what its script has for each response; an entry is text, tool calls, an error, or a function."""

    script: list[Any]
    asked: list[list[BaseMessage]] = []  # noqa: RUF012
    bound: list[dict[str, Any]] = []  # noqa: RUF012

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        self.bound.append({"tools": tools, **options})
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.asked.append(list(messages))
        said = self.script[min(len(self.asked), len(self.script)) - 1]
        if isinstance(said, Exception):
            raise said
        if callable(said):
            said = said(messages)
        text, wanted = (said, []) if isinstance(said, str) else ("", said)
        calls: Any = [{"id": id, "name": name, "args": args} for id, name, args in wanted]
        usage: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        message = AIMessage(text, tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


def model_of(*script: Any) -> ScriptedChatModel:
    return ScriptedChatModel(script=list(script), asked=[], bound=[])


def last_results(messages: list[BaseMessage]) -> str:
    count = next(n for n, message in enumerate(reversed(messages)) if not isinstance(message, ToolMessage))
    return " | ".join(message.text for message in messages[len(messages) - count :])


@wrap_tool_call
async def tell_errors(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """Tell the model of an error of a tool."""
    try:
        return await handler(request)
    except (ValueError, PaymentRefused) as error:
        return ToolMessage(f"{type(error).__name__}: {error}", tool_call_id=request.tool_call["id"])


class PaymentRefused(Exception):
    pass


async def test_text_usage_and_history() -> None:
    model = model_of([("c1", "charge", {"amount": 5})], "hello")
    (reply,) = (await workflow_of(langchain.wrap(model, [charge]), output_type=AgentReply).run("hi")).outputs
    assert reply.text == "hello"
    assert reply.value is None
    assert reply.usage == AgentUsage(20, 4, 2)
    assert reply.history.adapter == "langchain"
    assert [message["type"] for message in reply.history.messages] == ["human", "ai", "tool", "ai"]


@pytest.mark.parametrize("stream", [True, False])
async def test_text_is_streamed(stream: bool) -> None:
    model = GenericFakeChatModel(messages=iter(["one two three"]))
    workflow = workflow_of(langchain.wrap(model, stream=stream))
    events = [event async for event in workflow.run_stream("x")]
    deltas = [event.data for event in events if isinstance(event, OutputDeltaEvent)]
    assert deltas == (["one", " ", "two", " ", "three"] if stream else [])


async def test_a_compiled_agent_is_found_without_wrap() -> None:
    model = model_of([("c1", "charge", {"amount": 5})], last_results)
    agent = create_agent(model, [charge], middleware=[langchain.DurableCalls()], name="triage")
    executor = AgentExecutor(agent, output_type=str)
    assert executor.id == "triage"
    assert isinstance(executor.agent, langchain.LangChainAgent)
    events = [event async for event in workflow_of(agent).run_stream("x")]
    calls = [event.call for event in events if isinstance(event, AgentCallEvent)]
    assert calls == ["model 1", "tool 1.c1", "model 2"]


async def test_one_agent_serves_many_runs_at_once() -> None:
    def answer(messages: list[BaseMessage]) -> Any:
        if isinstance(messages[-1], ToolMessage):
            return last_results(messages)
        return [("c1", "charge", {"amount": int(messages[-1].text)})]

    workflow = workflow_of(langchain.wrap(model_of(answer), [charge]))
    results = await asyncio.gather(*(workflow.run(str(number)) for number in range(5)))
    assert [result.outputs for result in results] == [[f"charged {number}"] for number in range(5)]


async def test_tools_side_by_side_and_their_results() -> None:
    both = asyncio.Barrier(2)

    @tool(response_format="content_and_artifact")
    async def report(count: int) -> tuple[str, Any]:
        """Report, with more than a text."""
        await both.wait()
        return f"report {count}", {"rows": [1, 2]}

    @tool
    async def remember(what: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Change the state of the graph."""
        await both.wait()
        return Command(update={"messages": [ToolMessage(f"remembered {what}", tool_call_id=call_id)]})

    wanted = [
        ("c1", "report", {"count": 3}),
        ("c2", "remember", {"what": "it"}),
        ("c3", "charge", {"amount": "x"}),
    ]
    agent = langchain.wrap(model_of(wanted, last_results), [report, remember, charge])
    (reply,) = (await workflow_of(agent, output_type=AgentReply).run("x")).outputs
    assert reply.text.startswith("report 3 | remembered it | Error invoking tool 'charge'")
    assert reply.history.messages[2]["data"]["artifact"] == {"rows": [1, 2]}


async def test_commands_to_the_graph_are_replayed_as_they_were_or_refused() -> None:
    given: list[Any] = [
        Command(update=(("seen", [1, None]), ("messages", [ToolMessage("told", tool_call_id="c1")]))),
        Command(update={"seen": object(), "messages": [ToolMessage("told", tool_call_id="c1")]}),
    ]

    class SeenState(AgentState[Any]):
        seen: list[Any]

    seen: list[Any] = []

    class Watch(AgentMiddleware[SeenState, None]):
        state_schema = SeenState

        async def abefore_model(self, state: Any, runtime: Any) -> None:
            seen.append(state.get("seen"))

    @tool
    async def command() -> Any:
        """Change the state of the graph."""
        return given[0]

    script: Any = ([("c1", "command", {})], [("c2", "charge", {"amount": 1})], last_results)
    agent = langchain.wrap(model_of(*script), [command, charge], middleware=[Watch()])
    workflow = workflow_of(agent, InMemoryCheckpointStorage(), tool_approval=ToolApproval(["charge"]))
    result = await workflow.run("x")
    result = await result.respond({result.pending_requests[0].request_id: True})
    assert result.outputs == ["charged 1"]
    assert seen == [None, [1, None], None, [1, None], [1, None]]
    del given[0]
    with pytest.raises(ExecutorFailed, match="tool 'command' gives a Command with a object"):
        await workflow_of(langchain.wrap(model_of(*script), [command], middleware=[Watch()])).run("x")


@pytest.mark.parametrize("kind", [ValueError, PaymentRefused])
async def test_an_error_that_the_model_was_told_of_is_the_same_in_a_replay(kind: type[Exception]) -> None:
    happened: list[str] = []

    async def fail(why: str) -> str:
        """Fail always."""
        happened.append(why)
        raise kind(f"it failed: {why}")

    model = model_of([("c1", "fail", {"why": "closed"})], [("c2", "charge", {"amount": 5})], "done")
    middleware = [tell_errors, langchain.DurableCalls(errors=(PaymentRefused,))]
    agent = langchain.wrap(model, [fail, charge], middleware=middleware)
    storage, approval = InMemoryCheckpointStorage(), ToolApproval(["charge"])
    workflow = workflow_of(agent, storage, AgentReply, tool_approval=approval, strict_replay=True)
    result = await workflow.run("x", run_id="r")
    result = await result.respond({result.pending_requests[0].request_id: True})
    (reply,) = result.outputs
    told = [message["data"]["content"] for message in reply.history.messages if message["type"] == "tool"]
    assert told == [f"{kind.__name__}: it failed: closed", "charged 5"]
    assert happened == ["closed"]
    assert len(model.asked) == 3


async def test_a_tool_that_fails_ends_the_turn_and_is_tried_again_alone() -> None:
    model = model_of([("c1", "first", {}), ("c2", "second", {})], last_results)
    await check_failed_tool_is_tried_alone(lambda *tools: langchain.wrap(model, tools))
    assert len(model.asked) == 2


async def test_a_fallback_to_another_model_is_recorded_as_one_call() -> None:
    broken, spare = (
        model_of(LookupError("no such model")),
        model_of([("c1", "charge", {"amount": 5})], "done"),
    )
    agent = langchain.wrap(broken, [charge], middleware=[ModelFallbackMiddleware(spare)])
    approval, storage = ToolApproval(["charge"]), InMemoryCheckpointStorage()
    result = await workflow_of(agent, storage, tool_approval=approval, strict_replay=True).run(
        "x", run_id="r"
    )
    result = await result.respond({result.pending_requests[0].request_id: True})
    assert result.outputs == ["done"]
    assert len(spare.asked) == 2


async def test_a_tool_that_middleware_calls_again_is_recorded_once() -> None:
    tries: list[int] = []

    async def shaky() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("gone")
        return "came back"

    retry = ToolRetryMiddleware(initial_delay=0.0, jitter=False)
    agent = langchain.wrap(model_of([("c1", "shaky", {})], last_results), [shaky], middleware=[retry])
    assert (await workflow_of(agent).run("x")).outputs == ["came back"]
    assert len(tries) == 2


async def test_a_tool_that_failed_in_all_its_tries_is_not_called_in_a_replay() -> None:
    tries: list[int] = []

    async def fail() -> str:
        """Fail always."""
        tries.append(1)
        raise KeyError("gone")

    retry = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False)
    model = model_of([("c1", "fail", {})], [("c2", "charge", {"amount": 5})], "done")
    approval, storage = ToolApproval(["charge"]), InMemoryCheckpointStorage()
    agent = langchain.wrap(model, [fail, charge], middleware=[retry])
    result = await workflow_of(agent, storage, tool_approval=approval, strict_replay=True).run(
        "x", run_id="r"
    )
    result = await result.respond({result.pending_requests[0].request_id: True})
    assert result.outputs == ["done"]
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("output_type", "called", "arguments", "value"),
    [
        (Verdict, "Verdict", {"priority": "P0"}, Verdict(priority="P0")),
        (Verdict | Nothing, "Nothing", {"reason": "calm"}, Nothing("calm")),
        (Literal["low", "high"], "Output", {"result": "low"}, "low"),
        (list[int], "Output", {"result": [1, 2]}, [1, 2]),
    ],
    ids=["model", "union", "literal", "list"],
)
async def test_structured_output(output_type: Any, called: str, arguments: Any, value: Any) -> None:
    model = model_of([("c1", called, {"wrong": 1})], [("c2", called, arguments)])
    agent = langchain.wrap(model, [charge])
    assert (await workflow_of(agent, output_type=output_type).run("x")).outputs == [value]
    assert model.bound[0]["tool_choice"] == "any"
    assert "Please fix your mistakes" in last_results(model.asked[1])  # as LangChain words it


async def test_output_types_of_a_request_and_of_a_compiled_agent() -> None:
    request = AgentRequest("x", output_types=(Verdict, Nothing))
    given = [("c1", "Nothing", {"reason": "calm"})]
    reply = await reply_of(langchain.wrap(model_of(given)), request)
    assert reply.value == Nothing("calm")
    assert json.loads(reply.text) == {"reason": "calm"}
    durable = [langchain.DurableCalls()]
    strategy = ToolStrategy(Verdict | Nothing)
    typed: Any = create_agent(model_of(given), middleware=durable, response_format=strategy)
    assert (await reply_of(langchain.wrap(typed), request)).value == Nothing("calm")
    model = model_of("text")
    with pytest.raises(ExecutorFailed, match="has no response_format for its output type"):
        await workflow_of(create_agent(model, middleware=durable), output_type=Verdict).run("x")
    assert not model.asked


@pytest.mark.parametrize("compiled", [True, False])
async def test_a_handoff_is_a_choice_of_one_target(compiled: bool) -> None:
    model = model_of([("c1", "charge", {"amount": 5})], [("c2", "hand_over_to_sales_2", {})])
    durable = [langchain.DurableCalls()]
    agent = langchain.wrap(
        create_agent(model, [charge], middleware=durable) if compiled else model,
        None if compiled else [charge],
    )
    request = AgentRequest("buy", handoffs=(Handoff("billing", "Invoices"), Handoff("sales 2")))
    reply = await reply_of(agent, request)
    assert reply.handoff == "sales 2"
    assert reply.text == ""
    (_, first, second) = model.bound[0]["tools"]
    assert (first["function"]["name"], first["function"]["description"]) == (
        "hand_over_to_billing",
        "Invoices",
    )
    assert second["function"]["name"] == "hand_over_to_sales_2"
    assert model.bound[0]["tool_choice"] == "any"
    assert reply.history is not None
    assert reply.history.messages[-1]["data"]["content"] == "The task is handed over to sales 2."


@pytest.mark.parametrize("replies", [True, False])
async def test_an_agent_that_may_hand_over_may_also_reply(replies: bool) -> None:
    model = model_of(
        [("c1", "charge", {"amount": 5})], "mine" if replies else [("c2", "hand_over_to_billing", {})]
    )
    request = AgentRequest("buy", handoffs=(Handoff("billing"),), handoff_required=False)
    reply = await reply_of(langchain.wrap(model, [charge]), request)
    assert (reply.handoff, reply.text) == ((None, "mine") if replies else ("billing", ""))
    assert model.bound[0].get("tool_choice") is None


async def test_a_conversation_goes_on_with_the_next_message() -> None:
    storage, model = InMemoryCheckpointStorage(), model_of("one", "two", "three")
    workflow = workflow_of(langchain.wrap(model), storage, remembers=True)
    await workflow.run("a", run_id="chat")
    await workflow.run("b", run_id="chat", if_exists="continue")
    await workflow.run("c", run_id="chat", if_exists="continue")
    texts = [[message.text for message in asked] for asked in model.asked]
    assert texts == [["a"], ["a", "one", "b"], ["a", "one", "b", "two", "c"]]


async def test_neutral_messages_and_instructions() -> None:
    model = model_of("x")
    await workflow_of(langchain.wrap(model, system_prompt="Be kind."), instructions="Be brief.").run(
        AgentRequest("c", EARLIER)
    )
    (asked,) = model.asked
    assert [(message.type, message.text) for message in asked] == [
        ("system", "Be kind.\n\nBe brief."),
        ("system", "s"),
        ("human", "a"),
        ("ai", "b"),
        ("human", "c"),
    ]


@for_each_decision
async def test_a_person_decides_about_a_tool_call(tmp_path: Path, decision: Any, told: str) -> None:
    happened: list[str] = []

    async def mail() -> str:
        """Send a mail."""
        happened.append("mail")
        return "sent"

    wanted = [("c1", "charge", {"amount": 50}), ("c2", "mail", {}), ("c3", "charge", {"amount": 7})]
    model = model_of(wanted, last_results)
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        agent = langchain.wrap(model, [charge, mail])
        workflow = workflow_of(agent, storage, tool_approval=ToolApproval(["charge"]))
        result = await workflow.run("x", run_id="r")
        assert result.status is RunStatus.WAITING
        asked = {request.data.arguments["amount"]: request.request_id for request in result.pending_requests}
        await storage.respond("r", {asked[50]: decision, asked[7]: True})
        result = await (await workflow.resume(run_id="r")).wait_for_completion()
    assert result.outputs == [f"{told} | sent | charged 7"]
    assert len(model.asked) == 2
    assert happened == ["mail"]


async def test_a_person_is_asked_at_once_about_tools_that_begin_one_after_the_other() -> None:
    @wrap_tool_call
    async def begin_late(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        await asyncio.sleep(0.1 if request.tool_call["id"] == "c2" else 0)
        return await handler(request)

    model = model_of([("c1", "charge", {"amount": 50}), ("c2", "charge", {"amount": 7})], last_results)
    agent = langchain.wrap(model, [charge], middleware=[begin_late])
    result = await workflow_of(agent, tool_approval=ToolApproval(["charge"])).run("x")
    assert [request.data.arguments["amount"] for request in result.pending_requests] == [50, 7]
    result = await result.respond({request.request_id: True for request in result.pending_requests})
    assert result.outputs == ["charged 50 | charged 7"]


async def test_a_tool_asks_a_person_and_has_an_agent_inside() -> None:
    async def account() -> str:
        """Find the account."""
        return f"account {await ask_person('Which?')}"

    inner = model_of([("c1", "account", {})], last_results)
    expert = create_agent(inner, [account], middleware=[langchain.DurableCalls()])

    async def consult() -> str:
        """Ask an expert."""
        said = await expert.ainvoke({"messages": ["x"]})
        return str(said["messages"][-1].text)

    storage, model = InMemoryCheckpointStorage(), model_of([("c1", "consult", {})], last_results)
    result = await workflow_of(langchain.wrap(model, [consult]), storage).run("x", run_id="r")
    result = await result.respond({result.pending_requests[0].request_id: "17"})
    assert result.outputs == ["account 17"]
    assert len(inner.asked) == 2  # the first was not repeated for the answer


class ProviderError(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.response = httpx2.Response(status, headers=named)


@pytest.mark.parametrize(
    ("error", "kind", "retry_after"),
    [
        (ProviderError(429, retry_after="0"), RateLimited, 0.0),
        (ModelRateLimitError("slow"), RateLimited, None),
        (ProviderError(500), ModelUnavailable, None),
        (ModelConnectionError("gone"), ModelUnavailable, None),
        (httpx2.ReadError("broke off"), ModelUnavailable, None),
    ],
    ids=["429", "limit", "500", "connection", "stream"],
)
async def test_limits_and_outages_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], retry_after: float | None
) -> None:
    agents = langchain.wrap(model_of(error)), langchain.wrap(model_of(error, "fine"))
    await check_tried_again(monkeypatch, *agents, kind, retry_after)


async def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ProviderError, match="status 400"):
        await reply_of(langchain.wrap(model_of(ProviderError(400))), AgentRequest("x"))


async def test_calls_that_cannot_be_recorded_are_warned_of() -> None:
    @tool(response_format="content_and_artifact")
    async def report() -> tuple[str, Any]:
        """Report, with an object."""
        return "report", object()

    summary = SummarizationMiddleware(model_of("short"), trigger=("messages", 1), keep=("messages", 1))
    tools: list[Any] = [report, {"type": "web_search"}]
    model = model_of([("c1", "report", {})], "done")
    agent = langchain.wrap(model, tools, middleware=[summary])
    request = AgentRequest("x", (AgentMessage("user", "a"), AgentMessage("assistant", "b")))
    warnings = await unrecorded(agent, request)
    told = "\n".join(warnings)
    assert "asks a model by itself, in node 'SummarizationMiddleware.before_model'" in told
    assert "tool 'web_search' is called by the provider" in told
    assert "tool 'report' gives a value of object that is no JSON" in told
    assert len(warnings) == 3


@pytest.mark.parametrize(
    "history",
    [
        AgentHistory("openai", "3.51.0", []),
        AgentHistory("langchain", "9.0", [{"type": "telepathy", "data": {}}]),
    ],
    ids=["another library", "another form"],
)
async def test_a_history_that_cannot_be_read_is_refused(history: AgentHistory) -> None:
    await check_history_is_refused(langchain.wrap(model_of("x")), history)


async def test_an_interrupt_of_langgraph_is_refused() -> None:
    async def pause() -> str:
        """Wait."""
        return str(interrupt("Go on?"))

    with pytest.raises(ExecutorFailed, match=r"ask with holdfast\.agents\.ask_person"):
        await workflow_of(langchain.wrap(model_of([("c1", "pause", {})]), [pause])).run("x")


def other_graph() -> Any:
    return StateGraph(MessagesState).add_node("work", lambda state: {}).set_entry_point("work").compile()


@pytest.mark.parametrize(
    ("agent", "options", "complaint"),
    [
        (object(), {}, "takes the arguments of create_agent"),
        (model_of("x"), {"checkpointer": InMemorySaver()}, "the workflow keeps the conversation"),
        (
            create_agent(model_of("x")),
            {},
            r"middleware=\[\.\.\., holdfast\.agents\.langchain\.DurableCalls\(\)\]",
        ),
        (other_graph(), {}, "cannot catch the calls of graph"),
        (create_agent(model_of("x"), middleware=[langchain.DurableCalls()]), {"tools": []}, "not both"),
        (
            create_agent(model_of("x"), middleware=[langchain.DurableCalls()], checkpointer=InMemorySaver()),
            {},
            "has a checkpointer or interrupts",
        ),
    ],
    ids=[
        "no agent",
        "checkpointer",
        "not caught",
        "no agent of LangChain",
        "both",
        "compiled with checkpointer",
    ],
)
def test_agents_that_cannot_be_wrapped_are_refused(agent: Any, options: Any, complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        langchain.wrap(agent, **options)
