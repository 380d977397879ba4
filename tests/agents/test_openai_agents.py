"""The adapter for openai-agents: real agents under the library's runner, with the model that it has for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import agents
import httpx2
import pytest
from agents.mcp import MCPServer
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from agents.usage import Usage
from mcp import types as mcp_types
from openai import AsyncOpenAI
from openai.types.responses import ResponseErrorEvent
from pydantic import BaseModel

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
)
from holdfast.agents import (
    AgentExecutor,
    AgentHistory,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Handoff,
    ToolApproval,
    ToolDecision,
    ask_person,
    openai_agents,
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
from tests.agents.libraries.openai import streamed
from tests.agents.world import Step


class Verdict(BaseModel):
    priority: str


class Nothing(BaseModel):
    reason: str


def scripted(*script: Any) -> ScriptedModel:
    """Return a model that says what the script has: text, tool calls, an error, or a function of the call."""

    def said(entry: Any, call: ModelCall) -> Any:
        if callable(entry):
            entry = entry(call)
        if isinstance(entry, str):
            return [assistant_message(entry)]
        if isinstance(entry, list):
            return [function_call(name, arguments, call_id=id) for id, name, arguments in entry]
        return entry

    steps = [ModelStep.respond(lambda call, entry=entry: said(entry, call)) for entry in script]  # type: ignore[misc]
    return ScriptedModel(steps, default_usage=Usage(requests=1, input_tokens=10, output_tokens=2))


def agent_of(model: agents.Model, *tools: Any, **options: Any) -> openai_agents.OpenAIAgentsAgent:
    return openai_agents.wrap(plain_agent(model, *tools, **options))


def plain_agent(model: agents.Model, *tools: Any, **options: Any) -> agents.Agent[Any]:
    known = [agents.function_tool(tool) if isinstance(tool, Callable) else tool for tool in tools]  # type: ignore[arg-type]
    name = options.pop("name", "triage")
    return agents.Agent(name=name, model=model, tools=known, **options)


def results(call: ModelCall) -> str:
    return " | ".join(
        str(item["output"]) for item in call.input if item.get("type") == "function_call_output"
    )


async def by_the_library(agent: agents.Agent[Any]) -> str:
    """Return what the library alone makes of it."""
    result = await agents.Runner.run(agent, "x", run_config=agents.RunConfig(tracing_disabled=True))
    return str(result.final_output)


async def test_text_usage_and_history() -> None:
    agent = agent_of(scripted([("c1", "charge", {"amount": 5})], "hello"), charge)
    (reply,) = (await workflow_of(agent, output_type=AgentReply).run("hi")).outputs
    assert reply.text == "hello"
    assert reply.value is None
    assert reply.usage == AgentUsage(20, 4, 2)
    assert reply.history.adapter == "openai-agents"
    kinds = [message.get("type") or message["role"] for message in reply.history.messages]
    assert kinds == ["user", "function_call", "function_call_output", "message"]


async def test_an_agent_is_found_without_wrap() -> None:
    executor = AgentExecutor(plain_agent(scripted("hi")), output_type=str)
    assert executor.id == "triage"
    assert isinstance(executor.agent, openai_agents.OpenAIAgentsAgent)


async def test_an_agent_stays_as_it_is_and_serves_many_runs_at_once() -> None:
    agent = plain_agent(scripted(*["one"] * 4), charge)
    tools, instructions = list(agent.tools), agent.instructions
    workflow = workflow_of(openai_agents.wrap(agent), instructions="Be brief.")
    done = await asyncio.gather(*(workflow.run("x") for _ in range(4)))
    assert [result.outputs for result in done] == [["one"]] * 4
    assert (agent.tools, agent.instructions) == (tools, instructions)


def served(*responses: httpx2.Response | Exception) -> agents.Model:
    """Return a model of the library that asks a server, which gives one response after the other."""
    left = list(responses)

    def answer(request: httpx2.Request) -> httpx2.Response:
        response = left.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = AsyncOpenAI(api_key="x", base_url="http://model.test/v1", http_client=http, max_retries=0)
    return agents.OpenAIChatCompletionsModel("m", client)


def stream_of(text: str) -> httpx2.Response:
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=streamed(Step(text=text))
    )


async def test_text_is_streamed() -> None:
    workflow = workflow_of(agent_of(served(stream_of("one two three"))))
    events = [event async for event in workflow.run_stream("x")]
    deltas = [event.data for event in events if isinstance(event, OutputDeltaEvent)]
    assert deltas == ["one", "two", "three"]


async def test_a_model_by_name_comes_from_the_provider_and_is_asked_for_whole_responses() -> None:
    model = scripted("hello")

    class Provider(agents.ModelProvider):
        def get_model(self, model_name: str | None) -> agents.Model:
            assert model_name == "small"
            return model

    config = agents.RunConfig(model_provider=Provider(), tracing_disabled=True)
    agent = openai_agents.wrap(agents.Agent(name="a", model="small"), run_config=config, stream=False)
    assert (await workflow_of(agent).run("x")).outputs == ["hello"]
    assert [call.streamed for call in model.calls] == [False]


async def test_tools_side_by_side_and_their_results() -> None:
    async def report() -> Verdict:
        """Give a model of pydantic."""
        return Verdict(priority="P1")

    async def rows() -> list[dict[str, int]]:
        """Give plain data."""
        return [{"id": 1}]

    async def picture() -> agents.ToolOutputImage:
        """Give a picture."""
        return agents.ToolOutputImage(image_url="data:,x")

    wanted: list[Any] = [(f"c{i}", tool, {}) for i, tool in enumerate(("report", "rows", "picture"))]
    model = scripted([("c", "charge", {"amount": 5}), *wanted], results)
    (text,) = (await workflow_of(agent_of(model, charge, report, rows, picture)).run("x")).outputs
    image = [{"type": "input_image", "image_url": "data:,x"}]
    assert text == f"charged 5 | priority='P1' | [{{'id': 1}}] | {image}"


class Shop(MCPServer):
    """A server of tools without a connection."""

    name = "shop"
    sold: list[str] = []  # noqa: RUF012

    async def connect(self) -> None:
        pass

    cleanup = connect

    async def list_tools(self, *_: Any) -> list[mcp_types.Tool]:
        return [mcp_types.Tool(name="sell", input_schema={"type": "object", "properties": {}})]

    async def call_tool(self, tool_name: str, *_: Any) -> mcp_types.CallToolResult:
        self.sold.append(tool_name)
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text="sold")])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    get_prompt = list_prompts  # type: ignore[assignment]


async def test_tools_of_mcp_servers_are_recorded() -> None:
    async def account() -> str:
        """Find the account."""
        return await ask_person("Which?")

    model = scripted([("c1", "sell", {}), ("c2", "account", {})], results)
    agent = agent_of(model, account, mcp_servers=[Shop()])
    result = await workflow_of(agent, InMemoryCheckpointStorage()).run("x")
    result = await result.respond({result.pending_requests[0].request_id: "17"})
    assert Shop.sold == ["sell"]
    assert "sold" in result.outputs[0]


async def test_a_tool_may_give_the_output() -> None:
    agent = agent_of(
        scripted([("c1", "charge", {"amount": 5})]), charge, tool_use_behavior="stop_on_first_tool"
    )
    assert (await workflow_of(agent).run("x")).outputs == ["charged 5"]


async def test_a_failing_tool_and_wrong_arguments_are_told_as_the_library_words_it() -> None:
    async def fail() -> str:
        """Fail."""
        raise ValueError("closed")

    script = [("c1", "fail", {}), ("c2", "charge", {"amount": "many"}), ("c3", "charge", "{no")], results
    (ours,) = (await workflow_of(agent_of(scripted(*script), fail, charge)).run("x")).outputs
    assert ours == await by_the_library(plain_agent(scripted(*script), fail, charge))
    assert ours.count("An error occurred") == 3


async def test_words_about_a_failed_call_are_not_held_against_the_schema_of_a_tool() -> None:
    async def judge(fails: bool) -> Verdict:
        """Judge, or fail."""
        if fails:
            raise ValueError("closed")
        return Verdict(priority="P1")

    tool = agents.function_tool(judge, output_type=Verdict)
    script = [("c1", "judge", {"fails": True}), ("c2", "judge", {"fails": False})], results
    (ours,) = (await workflow_of(agent_of(scripted(*script), tool)).run("x")).outputs
    assert ours == await by_the_library(plain_agent(scripted(*script), tool))


async def test_a_tool_whose_error_is_not_told_ends_the_turn_and_is_tried_again_alone() -> None:
    model = scripted([("c1", "first", {}), ("c2", "second", {})], results)

    def agent_with(first: Any, second: Any) -> Any:
        return agent_of(model, first, agents.function_tool(second, failure_error_function=None))

    await check_failed_tool_is_tried_alone(agent_with)
    assert len(model.calls) == 2


async def test_structured_output_and_a_union() -> None:
    workflow = workflow_of(agent_of(scripted('{"priority": "P0"}')), output_type=Verdict)
    assert (await workflow.run("x")).outputs == [Verdict(priority="P0")]
    request = AgentRequest("x", output_types=(Verdict, Nothing))
    said = '{"response": {"reason": "calm"}}'
    reply = await reply_of(agent_of(scripted(said)), request)
    assert reply.value == Nothing(reason="calm")
    assert reply.text == said


async def test_a_handoff_is_a_choice_of_one_target() -> None:
    model = scripted([("c1", "charge", {"amount": 1})], [("c2", "hand_over_to_sales", {})])
    request = AgentRequest("buy", handoffs=(Handoff("billing", "Invoices"), Handoff("sales")))
    reply = await reply_of(agent_of(model, charge), request)
    assert (reply.handoff, reply.text, reply.value) == ("sales", "", None)
    for call in model.calls:
        assert [tool.name for tool in call.tools] == ["charge", "hand_over_to_billing", "hand_over_to_sales"]
        assert call.model_settings.tool_choice == "required"


@pytest.mark.parametrize("replies", [True, False])
async def test_an_agent_that_may_hand_over_may_also_reply(replies: bool) -> None:
    model = scripted(
        [("c1", "charge", {"amount": 1})], "mine" if replies else [("c2", "hand_over_to_billing", {})]
    )
    request = AgentRequest("buy", handoffs=(Handoff("billing", "Invoices"),), handoff_required=False)
    (reply,) = (await workflow_of(agent_of(model, charge), output_type=AgentReply).run(request)).outputs
    assert (reply.handoff, reply.text) == ((None, "mine") if replies else ("billing", ""))
    assert model.calls[0].model_settings.tool_choice is None


async def test_agents_to_which_the_library_hands_over_are_recorded() -> None:
    model = scripted([("c1", "charge", {"amount": 5})], [("c2", "transfer_to_triage", {})])
    first = scripted([("c0", "transfer_to_billing", {})], results)
    billing = agents.Agent[Any](name="billing", model=model, tools=[agents.function_tool(charge)])
    agent = plain_agent(first, handoffs=[agents.handoff(billing)])
    billing.handoffs = [agent]
    storage, rule = InMemoryCheckpointStorage(), ToolApproval(["charge"])
    workflow = workflow_of(openai_agents.wrap(agent), storage, tool_approval=rule, strict_replay=True)
    result = await workflow.run("x")
    result = await result.respond({result.pending_requests[0].request_id: ToolDecision.approve()})
    (text,) = result.outputs
    assert "charged 5" in text
    assert (len(model.calls), len(first.calls)) == (2, 2)


async def test_a_conversation_goes_on_with_the_next_message() -> None:
    # The same call id again, which the library takes for the same call.
    asks = [("c1", "charge", {"amount": 5})], "one", [("c1", "charge", {"amount": 7})], results
    model = scripted(*asks)
    workflow = workflow_of(agent_of(model, charge), InMemoryCheckpointStorage(), remembers=True)
    await workflow.run("a", run_id="chat")
    result = await workflow.run("b", run_id="chat", if_exists="continue")
    assert result.outputs[-1] == "charged 5 | charged 7"
    assert [len(call.input) for call in model.calls] == [1, 3, 5, 7]


@pytest.mark.parametrize("own", ["Be kind.", lambda context, agent: "Be kind."], ids=["text", "function"])
async def test_neutral_messages_and_instructions(own: Any) -> None:
    model = scripted("x")
    workflow = workflow_of(agent_of(model, instructions=own), instructions="Be brief.")
    await workflow.run(AgentRequest("c", EARLIER))
    (call,) = model.calls
    said = [(item["role"], item["content"]) for item in call.input]
    assert said == [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert call.system_instructions == "Be kind.\n\nBe brief."


@for_each_decision
async def test_a_person_decides_about_a_tool_call(tmp_path: Path, decision: Any, told: str) -> None:
    model = scripted([("c1", "charge", {"amount": 50})], results)
    await check_decision(agent_of(model, charge), tmp_path, decision, told, strict_replay=True)
    assert len(model.calls) == 2


async def test_a_tool_asks_a_person_while_another_one_works() -> None:
    async def account() -> str:
        """Find the account."""
        return f"account {await ask_person('Which?')}"

    model = scripted([("c1", "account", {}), ("c2", "charge", {"amount": 5})], results)
    result = await workflow_of(agent_of(model, account, charge), InMemoryCheckpointStorage()).run("x")
    assert len(model.calls) == 1
    result = await result.respond({result.pending_requests[0].request_id: "17"})
    assert result.outputs == ["account 17 | charged 5"]
    assert len(model.calls) == 2


@pytest.mark.parametrize("nested", [False, True], ids=["of a tool", "inside of an agent that is a tool"])
async def test_approval_of_the_librarys_own_is_refused(nested: bool) -> None:
    tool = agents.function_tool(charge, needs_approval=True)
    agent = plain_agent(scripted(*[[("c1", "charge", {"amount": 5})]] * 2), tool)
    if nested:
        agent = plain_agent(scripted([("c1", "ask", {"input": "x"})]), agent.as_tool("ask", "Ask."))
    workflow = workflow_of(openai_agents.wrap(agent), InMemoryCheckpointStorage())
    with pytest.raises(ExecutorFailed, match=r"tool_approval=ToolApproval\(...\)"):
        await workflow.run("x", run_id="r")
    with pytest.raises(ExecutorFailed, match=r"tool_approval=ToolApproval\(...\)"):
        await (await workflow.resume(run_id="r")).wait_for_completion()


async def cut_off() -> AsyncIterator[bytes]:
    yield streamed(Step(text="one two"))[:400]
    raise httpx2.ReadError("gone")


@pytest.mark.parametrize(
    ("trouble", "kind", "retry_after"),
    [
        (lambda: httpx2.Response(429, headers={"retry-after": "0"}), RateLimited, 0.0),
        (lambda: httpx2.Response(500), ModelUnavailable, None),
        (lambda: httpx2.ConnectError("gone"), ModelUnavailable, None),
        (lambda: httpx2.Response(200, content=cut_off()), ModelUnavailable, None),
        (lambda: httpx2.Response(200, content=b""), ModelUnavailable, None),
    ],
    ids=["429", "500", "no connection", "broken stream", "empty stream"],
)
async def test_limits_and_outages_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[], httpx2.Response | Exception],
    kind: type[Exception],
    retry_after: float | None,
) -> None:
    found = agent_of(served(trouble())), agent_of(served(trouble(), stream_of("fine")))
    await check_tried_again(monkeypatch, *found, kind, retry_after)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("rate_limit_exceeded", RateLimited),
        ("server_error", ModelUnavailable),
        ("other", agents.ModelBehaviorError),
    ],
)
async def test_an_error_in_a_stream_is_told_apart_by_its_code(code: str, kind: type[Exception]) -> None:
    event = ResponseErrorEvent(type="error", code=code, message="no", param=None, sequence_number=1)
    with pytest.raises(kind, match="the response ended with error: no"):
        await reply_of(agent_of(scripted(ModelStep.stream([event]))), AgentRequest("x"))


async def test_errors_of_a_model_stay_what_they_are() -> None:
    for error in (ValueError("odd"), agents.ModelBehaviorError("strange")):
        with pytest.raises(type(error), match=str(error)):
            await reply_of(agent_of(scripted(error)), AgentRequest("x"))


async def test_the_most_turns_are_those_of_the_library() -> None:
    model = scripted(*[[(f"c{number}", "charge", {"amount": 1})] for number in range(3)])
    agent = openai_agents.wrap(plain_agent(model, charge), max_turns=2)
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(agent).run("x")
    assert isinstance(failed.value.__cause__, agents.MaxTurnsExceeded)


@agents.input_guardrail(name="polite")
async def polite(context: Any, agent: Any, given: Any) -> agents.GuardrailFunctionOutput:
    return agents.GuardrailFunctionOutput(None, False)


async def test_calls_that_cannot_be_recorded_are_warned_of() -> None:
    other = plain_agent(scripted("inside"), name="other")
    callback = agents.handoff(agents.Agent(name="sales"), on_handoff=lambda context: None)
    tools = other.as_tool("ask_other", "Ask."), agents.WebSearchTool()
    model = scripted([("c1", "ask_other", {"input": "x"})], results)
    agent = agent_of(model, *tools, handoffs=[callback], input_guardrails=[polite])
    assert await unrecorded(agent) == [
        "guardrail 'polite' is not recorded",
        "tool 'ask_other' is recorded as a whole, but not the calls of the agent that it is",
        "tool 'web_search', a WebSearchTool, is not called by recorded calls",
        "the callback of handoff 'transfer_to_sales' is not recorded",
    ]


@pytest.mark.parametrize(
    "history",
    [AgentHistory("openai", "3.51.0", []), AgentHistory("openai-agents", "9.0", [{"kind": "telepathy"}])],
    ids=["another library", "another form"],
)
async def test_a_history_that_cannot_be_read_is_refused(history: AgentHistory) -> None:
    await check_history_is_refused(agent_of(scripted("x")), history)


def test_only_an_agent_of_the_library_is_taken() -> None:
    with pytest.raises(GraphError, match=r"takes an agents\.Agent"):
        openai_agents.wrap(object())  # type: ignore[arg-type]
