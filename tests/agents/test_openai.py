"""The adapter for the openai SDK: the real SDK, with a transport that answers in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
    SqliteCheckpointStorage,
    WorkflowOutputEvent,
)
from holdfast.agents import (
    AgentCallEvent,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    Handoff,
    ToolApproval,
    ToolDecision,
    openai,
)
from holdfast.errors import AgentError, ModelUnavailable, RateLimited
from tests.agents.adapter_rules import check_history_is_refused, check_tried_again, reply_of
from tests.agents.agents import workflow_of
from tests.agents.libraries.openai import streamed
from tests.agents.world import Step, WantedTool


@dataclass
class Verdict:
    priority: str
    services: list[str]


@dataclass
class Nothing:
    reason: str


class Server:
    """Answers chat completions by a script: steps, responses, or functions of the body."""

    def __init__(self, *script: Any, stream: bool = True) -> None:
        self.script = list(script)
        self.bodies: list[Any] = []
        self.stream = stream

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, httpx2.Response | Exception):
            if isinstance(said, Exception):
                raise said
            return said
        if isinstance(said, str):
            said = Step(text=said)
        if body.get("stream"):
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=streamed(said))
        return httpx2.Response(200, json=completion(said))

    def agent(self, *tools: Callable[..., Any], **options: Any) -> openai.OpenAIAgent:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self))
        client = AsyncOpenAI(api_key="none", base_url="http://model.test/v1", http_client=http)
        return openai.wrap(
            client, model="scripted", name="triage", tools=tools, stream=self.stream, **options
        )


def completion(step: Step) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.tools:
        message["tool_calls"] = [
            {
                "id": tool.call_id,
                "type": "function",
                "function": {"name": tool.name, "arguments": json.dumps(tool.arguments)},
            }
            for tool in step.tools
        ]
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_text_and_usage(stream: bool) -> None:
    server = Server(Step(text="hello there you"), stream=stream)
    (reply,) = (await workflow_of(server.agent(), output_type=AgentReply).run("hi")).outputs
    assert reply.text.replace(" ", "") == "hellothereyou"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.calls) == (10, 2, 1)
    assert reply.history.adapter == "openai"
    assert [message["role"] for message in reply.history.messages] == ["user", "assistant"]


async def test_text_is_streamed() -> None:
    server = Server(Step(text="one two three"))
    deltas = [
        event.data
        async for event in workflow_of(server.agent()).run_stream("x")
        if isinstance(event, OutputDeltaEvent)
    ]
    assert deltas == ["one", "two", "three"]


async def test_tools_get_typed_arguments_and_give_json() -> None:
    got: list[Any] = []

    def search(verdict: Verdict, most: int = 3) -> list[str]:
        """Search the log."""
        got.append((verdict, most))
        return ["a", "b"]

    arguments: dict[str, object] = {"verdict": {"priority": "P0", "services": ["x"]}}
    server = Server(Step((WantedTool("c1", "search", arguments),)), "done")
    assert (await workflow_of(server.agent(search)).run("x")).outputs == ["done"]
    assert got == [(Verdict("P0", ["x"]), 3)]
    declared = server.bodies[0]["tools"][0]["function"]
    assert (declared["name"], declared["description"]) == ("search", "Search the log.")
    assert declared["parameters"]["required"] == ["verdict"]
    assert server.bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": '["a", "b"]'}


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("nothing", "{}", "Error: there is no tool 'nothing'; there are: charge"),
        ("charge", "{", "Error: the arguments are no JSON"),
        ("charge", '{"amount": "many"}', "Error: charge: amount: a str, not int"),
        ("charge", '{"sum": 1}', "Error: charge takes ['amount'], not ['sum']"),
        ("charge", "{}", "Error: charge needs ['amount']"),
        ("charge", "[1]", "Error: the arguments of charge must be a JSON object"),
        ("charge", '{"amount": 13}', "Error: ValueError: unlucky"),
    ],
)
async def test_what_is_wrong_with_a_call_is_told_to_the_model(name: str, arguments: str, told: str) -> None:
    async def charge(amount: int) -> str:
        if amount == 13:
            raise ValueError("unlucky")
        return "charged"

    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    first = httpx2.Response(200, json={**completion(Step()), "choices": [choice]})
    server = Server(first, "done", stream=False)
    events = [event async for event in workflow_of(server.agent(charge)).run_stream("x")]
    assert server.bodies[1]["messages"][-1]["content"].startswith(told)
    (failed,) = [event for event in events if isinstance(event, AgentCallEvent) and event.error]
    assert (failed.name, failed.call) == (name, "tool 1.c1")
    assert str(failed.error).removeprefix("ToolFailed: ").startswith(told.removeprefix("Error: "))
    assert [event.data for event in events if isinstance(event, WorkflowOutputEvent)] == ["done"]


async def test_structured_output_is_asked_for_and_corrected() -> None:
    good = json.dumps({"priority": "P0", "services": ["a"]})
    server = Server("no JSON", good, stream=False)
    (verdict,) = (await workflow_of(server.agent(), output_type=Verdict).run("x")).outputs
    assert verdict == Verdict("P0", ["a"])
    schema = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert set(schema["properties"]) == {"priority", "services"}
    assert server.bodies[1]["messages"][-1]["content"].startswith("That does not fit: it is no JSON")


async def test_an_output_that_never_fits_fails() -> None:
    with pytest.raises(ExecutorFailed, match="gave no output that fits"):
        await workflow_of(Server("{}", stream=False).agent(), output_type=Verdict).run("x")


async def test_a_union_of_outputs() -> None:
    server = Server(json.dumps({"result": {"reason": "calm"}}), stream=False)
    assert (await workflow_of(server.agent(), output_type=Verdict | Nothing).run("x")).outputs == [
        Nothing("calm")
    ]


async def test_a_number_as_output() -> None:
    server = Server('{"result": 42}', stream=False)
    assert (await workflow_of(server.agent(), output_type=int).run("x")).outputs == [42]


async def test_instructions_come_first_and_are_no_part_of_the_history() -> None:
    server = Server("one", "two", stream=False)
    storage = InMemoryCheckpointStorage()
    workflow = workflow_of(server.agent(instructions="Be brief."), storage, remembers=True)
    await workflow.run("a", run_id="chat")
    await workflow.run("b", run_id="chat", if_exists="continue")
    roles = [
        [(message["role"], message["content"]) for message in body["messages"]] for body in server.bodies
    ]
    assert roles == [
        [("system", "Be brief."), ("user", "a")],
        [("system", "Be brief."), ("user", "a"), ("assistant", "one"), ("user", "b")],
    ]


async def test_neutral_messages_come_before_the_prompt() -> None:
    server = Server("x", stream=False)
    earlier = (AgentMessage("user", "a"), AgentMessage("assistant", "b"))
    await workflow_of(server.agent()).run(AgentRequest("c", earlier))
    assert [message["content"] for message in server.bodies[0]["messages"]] == ["a", "b", "c"]


async def test_a_handoff_is_a_required_choice() -> None:
    server = Server(Step((WantedTool("c1", "hand_over_to_billing", {}),)), stream=False)
    request = AgentRequest("invoice?", handoffs=(Handoff("billing", "Invoices"), Handoff("sales")))
    reply = await reply_of(server.agent(), request)
    assert reply.handoff == "billing"
    assert server.bodies[0]["tool_choice"] == "required"
    names = [tool["function"]["name"] for tool in server.bodies[0]["tools"]]
    assert names == ["hand_over_to_billing", "hand_over_to_sales"]


async def test_an_agent_that_may_hand_over_may_also_reply() -> None:
    server = Server("I do it", stream=False)
    request = AgentRequest("invoice?", handoffs=(Handoff("billing"),), handoff_required=False)
    (reply,) = (await workflow_of(server.agent(), output_type=AgentReply).run(request)).outputs
    assert (reply.handoff, reply.text) == (None, "I do it")
    assert "tool_choice" not in server.bodies[0]
    assert [tool["function"]["name"] for tool in server.bodies[0]["tools"]] == ["hand_over_to_billing"]


async def test_a_tool_is_approved_with_other_arguments_from_another_process(tmp_path: Path) -> None:
    charged: list[int] = []

    async def charge(amount: int) -> str:
        charged.append(amount)
        return f"charged {amount}"

    rule = ToolApproval(["charge"])
    wanted = Step((WantedTool("c1", "charge", {"amount": 50}),))
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        result = await workflow_of(Server(wanted).agent(charge), storage, tool_approval=rule).run(
            "x", run_id="r"
        )
        assert charged == []
        await storage.respond(
            "r", {result.pending_requests[0].request_id: {"action": "approve", "arguments": {"amount": 5}}}
        )
    server = Server("done")
    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        run = await workflow_of(server.agent(charge), storage, tool_approval=rule).resume(run_id="r")
        assert (await run.wait_for_completion()).outputs == ["done"]
    assert charged == [5]
    told = server.bodies[0]["messages"][-1]["content"]
    assert told == 'A person changed the arguments of this call to {"amount": 5}.\ncharged 5'
    assert ToolDecision.approve({"amount": 5}).arguments == {"amount": 5}


ERROR = {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("response", "kind", "retry_after"),
    [
        (lambda: httpx2.Response(429, json=ERROR, headers={"retry-after": "0"}), RateLimited, 0.0),
        (lambda: httpx2.Response(429, json=ERROR), RateLimited, None),
        (lambda: httpx2.Response(503, json=ERROR, headers={"retry-after": "0"}), RateLimited, 0.0),
        (lambda: httpx2.Response(500, json=ERROR), ModelUnavailable, None),
        (lambda: httpx2.ConnectError("no route"), ModelUnavailable, None),
        (
            lambda: httpx2.Response(
                200, headers={"content-type": "text/event-stream"}, content=streamed(Step(text="a b"))[:300]
            ),
            ModelUnavailable,
            None,
        ),
    ],
    ids=["429 in 0 s", "429", "503 in 0 s", "500", "no connection", "broken stream"],
)
async def test_limits_and_outages_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, response: Any, kind: type[Exception], retry_after: float | None
) -> None:
    server = Server(response(), "fine")
    await check_tried_again(monkeypatch, Server(response()).agent(), server.agent(), kind, retry_after)
    assert len(server.bodies) == 2


async def test_a_refused_request_is_not_tried_again() -> None:
    server = Server(httpx2.Response(400, json={"error": {"message": "bad schema"}}))
    with pytest.raises(ExecutorFailed, match="bad schema"):
        await workflow_of(server.agent()).run("x")
    assert len(server.bodies) == 1


async def test_a_reply_that_was_cut_fails() -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Once"}, "finish_reason": "length"}
    server = Server(httpx2.Response(200, json={**completion(Step()), "choices": [choice]}), stream=False)
    with pytest.raises(ExecutorFailed) as failed:
        await workflow_of(server.agent()).run("x")
    assert isinstance(failed.value.__cause__, AgentError)
    assert "max_completion_tokens" in str(failed.value.__cause__)


async def test_a_history_of_another_library_is_refused() -> None:
    await check_history_is_refused(Server("x").agent(), AgentHistory("langchain", "1.4", []))


def untyped(amount):
    return amount


def doubled(amount: int) -> int:
    return 2 * amount


def starred(*amounts: int) -> int:
    return sum(amounts)


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([untyped], "annotate its parameter 'amount'"),
        ([starred], "cannot be filled"),
        ([doubled, doubled], "two tools are named 'doubled'"),
        ([3], "a tool is a function"),
    ],
)
def test_tools_that_a_model_cannot_call_are_refused(tools: list[Any], complaint: str) -> None:
    with pytest.raises(GraphError, match=complaint):
        Server("x").agent(*tools)


def test_only_an_async_client_is_taken() -> None:
    with pytest.raises(GraphError, match="AsyncOpenAI"):
        openai.wrap(object(), model="m")  # type: ignore[arg-type]
