"""The adapter for pydantic-ai: real agents, with the models that the library has for tests."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, ToolReturn
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.native_tools import WebSearchTool

from holdfast import (
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
)
from holdfast.agents import (
    AgentExecutor,
    AgentHistory,
    AgentReply,
    AgentRequest,
    Handoff,
    ask_person,
    pydantic_ai,
)
from holdfast.errors import ModelUnavailable, RateLimited
from tests.agents.adapter_rules import (
    EARLIER,
    charge,
    check_decision,
    check_failed_tool_is_tried_alone,
    check_history_is_refused,
    check_tried_again,
    for_each_decision,
    reply_of,
    unrecorded,
)
from tests.agents.agents import workflow_of

Said = Callable[[list[ModelMessage], AgentInfo], Any]


class Verdict(BaseModel):
    priority: str


@dataclass
class Nothing:
    reason: str


class ScriptedModel:
    """Says what its script has for each response; an entry is text, tool calls, an error, or a function."""

    def __init__(self, *script: Any) -> None:
        self.script = script
        self.asked: list[list[ModelMessage]] = []
        self.infos: list[AgentInfo] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.infos.append(info)
        said = self.script[min(len(self.asked), len(self.script)) - 1]
        if isinstance(said, Exception):
            raise said
        if callable(said):
            said = said(messages, info)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        return ModelResponse(parts=[ToolCallPart(name, args, tool_call_id=id) for id, name, args in said])

    def agent(self, *tools: Callable[..., Any], **options: Any) -> pydantic_ai.PydanticAIAgent:
        agent = Agent(FunctionModel(self), name="triage", tools=tools, **options)
        return pydantic_ai.wrap(agent)


def last_result(messages: list[ModelMessage], info: AgentInfo) -> str:
    parts = [part for part in messages[-1].parts if part.part_kind in ("tool-return", "retry-prompt")]
    return " | ".join(str(part.content) for part in parts)


async def test_text_usage_and_history() -> None:
    model = ScriptedModel("hello")
    (reply,) = (await workflow_of(model.agent(), output_type=AgentReply).run("hi")).outputs
    assert reply.text == "hello"
    assert reply.usage.calls == 1
    assert reply.usage.output_tokens > 0
    assert reply.history.adapter == "pydantic-ai"
    assert [message["kind"] for message in reply.history.messages] == ["request", "response"]


async def test_an_agent_is_found_without_wrap() -> None:
    executor = AgentExecutor(Agent(TestModel(custom_output_text="hi"), name="triage"), output_type=str)
    assert executor.id == "triage"
    assert isinstance(executor.agent, pydantic_ai.PydanticAIAgent)


async def test_text_is_streamed() -> None:
    async def words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one", " two", " three"):
            yield word

    agent = pydantic_ai.wrap(Agent(FunctionModel(stream_function=words), name="triage"))
    events = [event async for event in workflow_of(agent).run_stream("x")]
    assert [event.data for event in events if isinstance(event, OutputDeltaEvent)] == [
        "one",
        " two",
        " three",
    ]


async def test_tools_side_by_side_and_their_results() -> None:
    async def report() -> Verdict:
        """Give a model of pydantic."""
        return Verdict(priority="P1")

    async def rich() -> ToolReturn[str]:
        """Give more than a value."""
        return ToolReturn("short", content="and long", metadata={"seen": 1})

    model = ScriptedModel(
        [("c1", "charge", {"amount": 5}), ("c2", "report", {}), ("c3", "rich", {})], last_result
    )
    result = await workflow_of(model.agent(charge, report, rich)).run("x")
    assert result.outputs == ["charged 5 | {'priority': 'P1'} | short"]


async def test_a_tool_that_asks_for_another_try_is_told_to_the_model() -> None:
    async def pick(number: int) -> str:
        """Pick a number."""
        raise ModelRetry(f"not {number}")

    model = ScriptedModel([("c1", "pick", {"number": 3})], last_result)
    assert (await workflow_of(model.agent(pick)).run("x")).outputs == ["not 3"]


async def test_a_tool_that_fails_ends_the_turn_and_is_tried_again_alone() -> None:
    model = ScriptedModel([("c1", "first", {}), ("c2", "second", {})], last_result)
    await check_failed_tool_is_tried_alone(model.agent)
    assert len(model.asked) == 2


async def test_structured_output_and_a_union() -> None:
    def give(messages: list[ModelMessage], info: AgentInfo) -> Any:
        tool = info.output_tools[0]
        return [("c1", tool.name, {"priority": "P0"})]

    assert (await workflow_of(ScriptedModel(give).agent(), output_type=Verdict).run("x")).outputs == [
        Verdict(priority="P0")
    ]

    def give_second(messages: list[ModelMessage], info: AgentInfo) -> Any:
        return [("c1", info.output_tools[1].name, {"reason": "calm"})]

    request = AgentRequest("x", output_types=(Verdict, Nothing))
    reply = await reply_of(ScriptedModel(give_second).agent(), request)
    assert reply.value == Nothing("calm")
    assert json.loads(reply.text) == {"reason": "calm"}


async def test_a_handoff_is_a_choice_of_one_target() -> None:
    def choose(messages: list[ModelMessage], info: AgentInfo) -> Any:
        assert [tool.name for tool in info.output_tools] == ["hand_over_to_billing", "hand_over_to_sales"]
        assert not info.allow_text_output
        return [("c1", "hand_over_to_sales", {})]

    request = AgentRequest("buy", handoffs=(Handoff("billing", "Invoices"), Handoff("sales")))
    reply = await reply_of(ScriptedModel(choose).agent(), request)
    assert reply.handoff == "sales"


@pytest.mark.parametrize("replies", [True, False])
async def test_an_agent_that_may_hand_over_may_also_reply(replies: bool) -> None:
    def choose(messages: list[ModelMessage], info: AgentInfo) -> Any:
        assert [tool.name for tool in info.output_tools] == ["hand_over_to_billing"]
        assert info.allow_text_output
        return "I do it" if replies else [("c1", "hand_over_to_billing", {})]

    request = AgentRequest("buy", handoffs=(Handoff("billing", "Invoices"),), handoff_required=False)
    (reply,) = (await workflow_of(ScriptedModel(choose).agent(), output_type=AgentReply).run(request)).outputs
    assert (reply.handoff, reply.text) == ((None, "I do it") if replies else ("billing", ""))


async def test_a_conversation_goes_on_with_the_next_message() -> None:
    storage, model = InMemoryCheckpointStorage(), ScriptedModel("one", "two")
    workflow = workflow_of(model.agent(), storage, remembers=True)
    await workflow.run("a", run_id="chat")
    await workflow.run("b", run_id="chat", if_exists="continue")
    assert [len(asked) for asked in model.asked] == [1, 3]


async def test_neutral_messages_and_instructions() -> None:
    model = ScriptedModel("x")
    workflow = workflow_of(model.agent(instructions="Be kind."), instructions="Be brief.")
    await workflow.run(AgentRequest("c", EARLIER))
    (asked,) = model.asked
    texts = [part.content for message in asked for part in message.parts]  # type: ignore[union-attr]
    assert texts == ["s", "a", "b", "c"]
    assert model.infos[0].instructions == "Be kind.\n\nBe brief."


@for_each_decision
async def test_a_person_decides_about_a_tool_call(tmp_path: Path, decision: Any, told: str) -> None:
    model = ScriptedModel([("c1", "charge", {"amount": 50})], last_result)
    await check_decision(model.agent(charge), tmp_path, decision, told)
    assert len(model.asked) == 2


async def test_a_tool_asks_a_person() -> None:
    async def account() -> str:
        """Find the account."""
        return f"account {await ask_person('Which?')}"

    storage, model = InMemoryCheckpointStorage(), ScriptedModel([("c1", "account", {})], last_result)
    result = await workflow_of(model.agent(account), storage).run("x", run_id="r")
    result = await result.respond({result.pending_requests[0].request_id: "17"})
    assert result.outputs == ["account 17"]


@pytest.mark.parametrize(
    ("error", "kind", "retry_after"),
    [
        (ModelHTTPError(429, "m", headers={"retry-after": "0"}), RateLimited, 0.0),
        (ModelHTTPError(500, "m"), ModelUnavailable, None),
    ],
    ids=["429", "500"],
)
async def test_limits_and_outages_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], retry_after: float | None
) -> None:
    agents = ScriptedModel(error).agent(), ScriptedModel(error, "fine").agent()
    await check_tried_again(monkeypatch, *agents, kind, retry_after)


async def test_tools_that_a_provider_runs_are_warned_of() -> None:
    agent = Agent(TestModel(custom_output_text="found"), name="triage")
    model = pydantic_ai._RecordedModel(TestModel(), NoCalls(), stream=False)  # type: ignore[arg-type]
    from pydantic_ai.models import ModelRequestParameters

    model._warn_of_native(ModelRequestParameters(native_tools=[WebSearchTool()]))
    assert NoCalls.warned == ["its provider runs tools by itself (web_search), inside of a model call"]
    assert agent.name == "triage"


class NoCalls:
    warned: list[str] = []  # noqa: RUF012

    def warn_unrecorded(self, what: str) -> None:
        self.warned.append(what)


async def test_a_warning_of_unrecorded_calls_is_an_event() -> None:
    class Warns:
        name = "warns"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            calls.warn_unrecorded("it does something unseen")
            return AgentReply("done")

    assert await unrecorded(Warns()) == ["it does something unseen"]


@pytest.mark.parametrize(
    "history",
    [AgentHistory("openai", "3.51.0", []), AgentHistory("pydantic-ai", "9.0", [{"kind": "telepathy"}])],
    ids=["another library", "another form"],
)
async def test_a_history_that_cannot_be_read_is_refused(history: AgentHistory) -> None:
    await check_history_is_refused(ScriptedModel("x").agent(), history)


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        (object(), "takes a pydantic_ai.Agent"),
        (Agent(name="x"), "has no model"),
        (Agent(TestModel()), "has no name"),
    ],
    ids=["no agent", "no model", "no name"],
)
def test_agents_that_cannot_be_wrapped_are_refused(agent: Any, complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        pydantic_ai.wrap(agent)
