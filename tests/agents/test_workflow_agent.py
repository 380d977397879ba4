"""Workflows as agents: sessions over restarts, questions, agents in agents, other libraries."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import (
    Executor,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    OutputDeltaEvent,
    RunStatus,
    RunTaken,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from holdfast.agents import (
    AgentError,
    AgentExecutor,
    AgentReply,
    AgentRequest,
    AgentSettings,
    AgentUsage,
    AgentWorkflow,
    Conversation,
    JsonSessionStore,
    ProgressLedger,
    as_agent,
    concurrent,
    function,
    group_chat,
    handoff,
    planner,
    read_messages,
    sequential,
)
from holdfast.agents.agent_framework import ServedAgent
from holdfast.agents.langchain import to_runnable
from tests.agents.agents import ScriptedAgent, workflow_of


def chatting(storage: Any, heard: list[Any]) -> Any:
    """Return an agent that is a workflow whose own agent remembers."""

    def answer(request: AgentRequest) -> str:
        earlier = [] if request.history is None else request.history.messages
        heard.append([message["content"] for message in earlier])
        return f"re {request.prompt}"

    return as_agent(workflow_of(function.wrap(answer, name="answer"), storage, remembers=True), "chat")


async def test_a_chat_of_fifty_messages_restarted_every_fifth(tmp_path: Path) -> None:
    heard: list[Any] = []
    for first in range(0, 50, 5):
        async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
            agent = chatting(storage, heard)
            for number in range(first, first + 5):
                reply = await agent.ask(f"m{number}", session="chat")
                assert reply.text == f"re m{number}"
                assert reply.usage.calls == 1
            written = [info.new_bytes for info in await storage.list_checkpoints(run_id="chat")]
    assert heard[-1] == [text for number in range(49) for text in (f"m{number}", f"re m{number}")]
    assert [len(earlier) for earlier in heard] == [2 * number for number in range(50)]
    each = len(written) // 50
    early, late = sum(written[5 * each : 10 * each]), sum(written[-5 * each :])
    assert late < 1.5 * early


def word(number: int, name: str = "") -> str:
    """Return a long word that no compression shortens."""
    return "".join(sha256(f"{name} {number} {part}".encode()).hexdigest() for part in range(12))


def make_team(kind: str, storage: Any, folder: Path) -> Workflow:
    """Return a team of two agents, of which the second says the long word of its number."""
    said = {"first": 0, "second": 0}

    def speaker(name: str) -> function.FunctionAgent:
        def speak(request: AgentRequest) -> str:
            earlier = [] if request.history is None else request.history.messages
            said[name] = sum(message["role"] == "assistant" for message in earlier)
            return word(said[name], name)

        return function.wrap(speak, name=name)

    first, second = speaker("first"), speaker("second")
    if kind == "team":
        builder = AgentWorkflow.create().with_name("Team").with_checkpointing(storage)
        builder.with_json_session_store(folder).with_conversation(Conversation.thread_per_agent())
        return (
            builder.add_agent("first", first).add_agent("second", second).from_("first").to("second").build()
        )
    if kind == "group chat":
        return group_chat([first, second], max_rounds=2, storage=storage)
    return handoff(second, {}, asks_user=kind == "desk that asks", storage=storage)


@pytest.mark.parametrize("kind", ["team", "group chat", "desk", "desk that asks"])
async def test_the_cost_of_a_message_does_not_grow_with_the_chat(kind: str, tmp_path: Path) -> None:
    costs, known = [], 0
    for first in range(0, 50, 5):
        async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
            agent = as_agent(make_team(kind, storage, tmp_path / "sessions"), "chat")
            for number in range(first, first + 5):
                assert (await agent.ask(word(number), session="chat")).text == word(number, "second")
                written = sum(info.new_bytes for info in await storage.list_checkpoints(run_id="chat"))
                costs.append(written - known)
                known = written
    early, late = median(costs[:10]), median(costs[-10:])
    assert late < 1.1 * early, costs
    # Now and then a checkpoint says all anew: over the whole chat that is less than the messages cost.
    assert sum(costs) < 2 * 50 * late, costs


CHAT = """
import asyncio, sys
from holdfast.agents import AgentRequest, AgentWorkflow, Conversation

def answer(request: AgentRequest) -> str:
    earlier = [] if request.history is None else request.history.messages
    return f"{request.prompt} after {len(earlier)}"

agent = (
    AgentWorkflow.create().with_name("Chat").with_json_workflow_store("workflows")
    .with_json_session_store("sessions").with_conversation(Conversation.shared_thread())
    .add_agent("answer", answer).build().as_agent()
)

async def main():
    for number in range(int(sys.argv[1]), int(sys.argv[1]) + 5):
        print((await agent.ask(f"m{number}", session="chat")).text)

asyncio.run(main())
"""


async def test_a_chat_goes_on_in_ten_processes(tmp_path: Path) -> None:
    said: list[str] = []
    for first in range(0, 50, 5):
        command = [sys.executable, "-c", CHAT, str(first)]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        said += done.stdout.splitlines()
    assert said == [f"m{number} after {2 * number}" for number in range(50)]
    kept = await read_messages(JsonSessionStore(tmp_path / "sessions"), "chat")
    assert [message.text for message in kept] == [
        text for number in range(50) for text in (f"m{number}", said[number])
    ]


@pytest.mark.parametrize("same", [True, False], ids=["one agent", "an agent for each"])
async def test_messages_of_one_session_wait_for_each_other(same: bool) -> None:
    heard: list[Any] = []
    storage = InMemoryCheckpointStorage()
    agents = [chatting(storage, heard) for _ in range(4)]
    asked = [agents[0 if same else number].ask(f"m{number}", session="chat") for number in range(4)]
    assert [reply.text for reply in await asyncio.gather(*asked)] == [f"re m{number}" for number in range(4)]
    assert [len(earlier) for earlier in heard] == [0, 2, 4, 6]


async def test_a_message_to_a_session_that_is_at_work_elsewhere_is_refused_and_left_nowhere(
    tmp_path: Path,
) -> None:
    at_work, go = asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        at_work.set()
        await go.wait()
        return f"re {prompt}"

    async def ask(text: str) -> str:
        async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
            agent = as_agent(sequential(function.wrap(slow), name="Slow"), storage=storage)
            return (await agent.ask(text, session="chat")).text

    go.set()
    assert await ask("a") == "re a"
    go.clear()
    at_work.clear()
    second = asyncio.create_task(ask("b"))
    await at_work.wait()
    with pytest.raises(RunTaken):
        await ask("c")
    go.set()
    assert await second == "re b"
    assert await ask("d") == "re d"


# -- streams ----------------------------------------------------------------------------------------------------------


def streaming(cast: dict[str, str]) -> Callable[[str], Any]:
    """Return a function that makes agents which say their words one by one."""

    def agent(name: str) -> Any:
        class Speaker:
            def __init__(self) -> None:
                self.name = name

            async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
                async def ask() -> str:
                    for part in cast[name].split(" "):
                        await calls.delta(part + " ")
                        await asyncio.sleep(0)
                    return cast[name] + " "

                text = await calls.model({"prompt": request.prompt}, ask, usage=lambda _: AgentUsage())
                if ProgressLedger in request.output_types:
                    return AgentReply(text, ProgressLedger("did it" in request.prompt, True, "worker", "go"))
                return AgentReply(text)

        return Speaker()

    return agent


def streaming_teams(storage: Any) -> dict[str, Workflow]:
    make = streaming({"a": "a rough draft", "b": "the final text", "worker": "I did it", "boss": "the end"})
    return {
        "team": AgentWorkflow.create().with_name("Team").with_checkpointing(storage)
        .add_agent("a", make("a")).add_agent("b", make("b"), input_key="answer").from_("a").to("b").build(),
        "two answers": AgentWorkflow.create().with_name("Two").with_checkpointing(storage)
        .add_agent("a", make("a")).add_agent("b", make("b")).build(),
        "sequential": sequential(make("a"), make("b"), storage=storage),
        "concurrent": concurrent(make("a"), make("worker"), aggregate=make("b"), storage=storage),
        "planner": planner(make("boss"), [make("worker")], storage=storage),
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(streaming_teams(InMemoryCheckpointStorage())))
async def test_what_is_streamed_is_the_reply_and_no_draft(kind: str) -> None:
    agent = as_agent(streaming_teams(InMemoryCheckpointStorage())[kind])
    parts = [part async for part in agent.stream("go")]
    reply = (await agent.ask("go")).text
    assert "".join(parts) == reply
    assert len(parts) >= 2
    assert reply.endswith(("the final text ", "the end "))


@dataclass
class Order:
    amount: int


class Desk(Executor):
    @handler
    async def take(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.request_info(f"How many of {text}?", response_type=Order)

    @response_handler
    async def answered(self, question: str, order: Order, ctx: WorkflowContext[None, str]) -> None:
        await ctx.request_info(f"Really {order.amount}?", response_type=bool)

    @response_handler
    async def confirmed(self, question: str, sure: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output("ordered" if sure else "left")


async def test_a_question_of_the_run_is_the_reply_and_the_next_message_its_answer() -> None:
    workflow = WorkflowBuilder(name="Desk").set_start_executor(Desk).build()
    agent = as_agent(workflow, storage=InMemoryCheckpointStorage())
    said = [
        (await agent.ask(text, session="s")).text
        for text in ("kelp", "many", '{"amount": 3}', "Yes!", "dulse")
    ]
    assert said == [
        "How many of kelp?",
        "This is no answer: give JSON of a Order",
        "Really 3?",
        "ordered",
        "How many of dulse?",
    ]


async def test_an_approval_is_asked_for_and_given_in_the_chat() -> None:
    builder = AgentWorkflow.create().with_name("Desk").with_in_memory_workflow_store()
    builder.add_agent("pay", lambda p: f"pay {p}", requires_approval={"message": "Really?"})
    agent = (
        builder.add_agent("mail", lambda p: f"did {p}", input_key="answer").from_("pay").to("mail").build()
    )
    said = [(await agent.as_agent().ask(text, session="s")).text for text in ("20", "perhaps", "yes")]
    assert said == [
        "Really?\n\npay 20",
        "This is no answer: say yes or no",
        "did pay 20",
    ]


async def test_an_agent_without_a_storage_is_refused() -> None:
    with pytest.raises(AgentError, match="give one with storage="):
        as_agent(sequential(function.wrap(lambda prompt: prompt, name="a")))


# -- in other workflows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [1, 2], ids=["before its first turn", "before its second turn"])
async def test_nothing_that_happened_in_an_inner_run_happens_twice(tmp_path: Path, fails: int) -> None:
    """The outer turn fails right after the inner run took its message, before the outcome is recorded."""
    asked: list[str] = []
    turns = 0

    class Fragile:
        name = "fragile"

        async def run(self, request: AgentRequest, calls: Any) -> AgentReply:
            nonlocal turns
            reply = await inner.run(request, Losing(calls))
            turns += 1
            return reply

    class Losing:
        """Loses the outcome of one turn of the inner run, as a crash would."""

        def __init__(self, calls: Any) -> None:
            self.calls = calls

        def __getattr__(self, name: str) -> Any:
            return getattr(self.calls, name)

        async def model(self, request: Any, call: Any, **more: Any) -> Any:
            async def losing() -> Any:
                nonlocal fails
                found = await call()
                if "message" in request and turns == fails - 1:
                    fails = 0
                    raise LookupError("the process died")
                return found

            return await self.calls.model(request, losing, **more)

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"re {prompt}"

    async with SqliteCheckpointStorage(tmp_path / "s.db") as storage:
        inner = as_agent(workflow_of(function.wrap(answer, name="answer"), storage, remembers=True), "inner")
        outer = workflow_of(Fragile(), storage, remembers=True)
        for message in ("a", "b"):
            try:
                result = await outer.run(message, run_id="outer", if_exists="continue")
            except ExecutorFailed:
                result = await (await outer.resume(run_id="outer")).wait_for_completion()
            assert result.outputs == [f"re {message}"]
    assert asked == ["a", "b"]


async def test_a_workflow_in_a_workflow_keeps_its_session_streams_and_counts_usage() -> None:
    storage = InMemoryCheckpointStorage()
    scripted = ScriptedAgent(["one"])
    inner = as_agent(workflow_of(scripted, storage, remembers=True), "inner")
    outer = AgentExecutor(inner, "outer", settings=AgentSettings(remembers=True))
    builder = WorkflowBuilder(name="Outer").set_start_executor(outer).with_checkpointing(storage)
    workflow = builder.build()
    replies = []
    for message in ("a", "b"):
        result = await workflow.run(message, run_id="r", if_exists="continue")
        replies += result.outputs
    assert [len(request.history.messages) if request.history else 0 for request in scripted.requests] == [
        0,
        2,
    ]
    assert [(reply.usage.input_tokens, reply.usage.calls) for reply in replies] == [(10, 1), (10, 1)]

    @executor
    async def speak(text: str, ctx: WorkflowContext[None, str]) -> None:
        for word in ("one", "two"):
            await ctx.stream(word)
        await ctx.yield_output("one two")

    speaking = as_agent(WorkflowBuilder(name="Speak").set_start_executor(speak).build(), storage=storage)
    events = [event async for event in workflow_of(speaking).run_stream("x")]
    assert [event.data for event in events if isinstance(event, OutputDeltaEvent)] == ["one", "two"]


# -- in other libraries -----------------------------------------------------------------------------------------------


async def test_a_workflow_is_a_tool_of_pydantic_ai() -> None:
    team = sequential(function.wrap(lambda prompt: f"about {prompt}", name="research"))
    tool = as_agent(team, "research team", storage=InMemoryCheckpointStorage()).as_tool("Research a topic.")

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        (declared,) = info.function_tools
        assert (declared.name, declared.description) == ("research_team", "Research a topic.")
        last = messages[-1].parts[0]
        if last.part_kind == "tool-return":
            return ModelResponse(parts=[TextPart(f"found {last.content}")])
        return ModelResponse(parts=[ToolCallPart("research_team", {"task": "kelp"}, "c1")])

    assert (await Agent(FunctionModel(answer), tools=[tool]).run("x")).output == "found about kelp"


async def test_a_workflow_is_an_agent_of_agent_framework() -> None:
    heard: list[Any] = []
    served = ServedAgent(chatting(InMemoryCheckpointStorage(), heard), "Answers.")
    session = served.create_session(session_id="s")
    assert (await served.run("a", session=session)).text == "re a"
    stream = served.run("b", session=session, stream=True)
    assert "".join([update.text async for update in stream]) == "re b"
    assert (await stream.get_final_response()).messages[0].author_name == "chat"
    assert heard[-1] == ["a", "re a"]
    assert (await served.as_tool().invoke(arguments={"task": "c"}))[0].text == "re c"


async def test_a_workflow_is_a_runnable_of_langchain() -> None:
    heard: list[Any] = []
    runnable = to_runnable(chatting(InMemoryCheckpointStorage(), heard)) | (lambda text: AIMessage(text))
    config: Any = {"configurable": {"thread_id": "t"}}
    assert (await runnable.ainvoke("a", config)).text == "re a"
    assert (await asyncio.to_thread(runnable.invoke, "b", config)).text == "re b"
    assert heard[-1] == ["a", "re a"]


async def test_a_runnable_of_langchain_streams() -> None:
    runnable = to_runnable(as_agent(streaming_teams(InMemoryCheckpointStorage())["team"]))
    assert [part async for part in runnable.astream("go")] == ["the ", "final ", "text "]
    chain = runnable | (lambda text: text.upper())
    assert await chain.ainvoke("go") == "THE FINAL TEXT "


async def test_a_built_team_is_an_agent_and_a_tool() -> None:
    def build() -> AgentWorkflow:
        return (
            AgentWorkflow.create()
            .with_name("Review")
            .with_checkpointing(InMemoryCheckpointStorage())
            .add_agent("draft", lambda_agent("draft"), lambda node: node.with_output_key("draft"))
            .add_agent("review", lambda_agent("review"), input_key="draft")
            .from_("draft")
            .to("review")
            .build()
        )

    agent = build().as_agent("reviewer")
    said = [(await agent.ask(text, session="s")).text for text in ("kelp", "dulse")]
    assert said == ["review(draft(kelp))", "review(draft(dulse))"]
    assert await build().as_tool("Reviews.")("kelp") == "review(draft(kelp))"


def lambda_agent(name: str) -> function.FunctionAgent:
    return function.wrap(lambda prompt: f"{name}({prompt})", name=name)


async def test_a_team_without_a_store_is_a_tool() -> None:
    builder = AgentWorkflow.create().with_name("Echo team").add_agent("a", lambda_agent("a"))
    tool = builder.build().as_tool("Says it.")
    assert (await tool("x"), await tool("y")) == ("a(x)", "a(y)")
    assert (getattr(tool, "__name__", None), tool.__doc__) == ("Echo_team", "Says it.")


async def test_a_team_that_asks_its_user_is_an_agent_too() -> None:
    desk = handoff(
        function.wrap(lambda prompt: f"You said {prompt}. More?", name="desk"),
        {},
        asks_user=True,
        until=lambda talk: len(talk.messages) > 3,
    )
    storage = InMemoryCheckpointStorage()
    agent = as_agent(desk, storage=storage)
    assert (await agent.ask("a", session="s")).text == "You said a. More?"
    assert (await storage.get_run("s")).status is RunStatus.WAITING
    assert (await agent.ask("b", session="s")).text == "You said b. More?"
    assert (await storage.get_run("s")).status is RunStatus.COMPLETED
