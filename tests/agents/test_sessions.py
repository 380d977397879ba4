"""Agents whose conversations are kept in sessions: forks, restores, crashes, several agents, several runs."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    ExecutorFailed,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    RetryPolicy,
    SqliteCheckpointStorage,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
)
from holdfast.agents import (
    AgentExecutor,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentSettings,
    Calls,
    InMemorySessionStore,
    JsonSessionStore,
    OutputApproval,
    OutputDecision,
    SessionNotFound,
    SessionPolicy,
    SessionStore,
    SqliteSessionStore,
    ThreadView,
    ToolApproval,
    UnpublishedEntry,
    append_messages,
    read_messages,
    settle_sessions,
)
from holdfast.errors import InvalidArgument, StorageError
from tests.agents.agents import ScriptedAgent, workflow_of


@pytest.fixture
def store() -> InMemorySessionStore:
    return InMemorySessionStore()


@pytest.fixture
def storage() -> InMemoryCheckpointStorage:
    return InMemoryCheckpointStorage()


def heard(messages: list[Any]) -> str:
    """Return how many messages the model was asked with."""
    return f"heard {len(messages)}"


def chat(
    store: SessionStore, storage: CheckpointStorage | None = None, script: Any = None, **settings: Any
) -> Workflow:
    policy = settings.pop("policy", None) or SessionPolicy(store, "kim")
    return workflow_of(ScriptedAgent(script or [heard]), storage, session=policy, **settings)


async def texts(store: SessionStore, session_id: str = "kim", thread: str = "main") -> list[str]:
    return [message.text for message in await read_messages(store, session_id, thread)]


async def test_runs_go_on_with_one_conversation(store: SessionStore, storage: CheckpointStorage) -> None:
    workflow = chat(store, storage)
    await workflow.run("one", run_id="r1")
    await workflow.run("two", run_id="r1", if_exists="continue")
    await workflow.run("three", run_id="r2")
    assert await texts(store) == ["one", "heard 1", "two", "heard 3", "three", "heard 5"]
    entries = await store.entries("kim")
    assert [entry.author.run_id for entry in entries] == ["r1", "r1", "r2"]
    assert entries[1].history is not None
    assert entries[1].history.messages == [{"user": "two"}, {"model": "heard 3"}]
    assert await store.staged() == []


async def test_runs_that_are_not_stored_keep_sessions(store: SessionStore) -> None:
    workflow = chat(store)
    await workflow.run("one")
    await workflow.run("two")
    assert await texts(store) == ["one", "heard 1", "two", "heard 3"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_entries_wait_for_late_commits(
    durability: Any, store: SessionStore, storage: CheckpointStorage
) -> None:
    a, b = counting("a", store), counting("b", store)
    builder = WorkflowBuilder(name="Late").set_start_executor(a).add_edge(a, b)
    workflow = builder.with_checkpointing(storage).with_durability(durability).build()
    await workflow.run("one", run_id="r")
    await workflow.run("two", run_id="r", if_exists="continue")
    assert (await texts(store))[1::2] == ["a heard 0+0", "b heard 2+0", "a heard 4+0", "b heard 6+0"]
    assert await store.staged() == []


async def test_agents_of_nested_workflows_stand_in_the_session_of_the_run(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    inner = WorkflowExecutor(
        WorkflowBuilder(name="Inner").set_start_executor(counting("a", store)).build(), id="inner"
    )
    workflow = WorkflowBuilder(name="Outer").set_start_executor(inner).with_checkpointing(storage).build()
    run = await workflow.start("one", run_id="r")
    await run.wait_for_completion()
    end = run.checkpoints[-1]
    await run.send("two")
    await run.wait_for_completion()
    assert await texts(store) == ["one", "a heard 0+0", "two", "a heard 0+2"]
    await run.restore_checkpoint(end)
    await run.wait_for_completion()
    await run.send("other")
    await run.wait_for_completion()
    assert await texts(store) == ["one", "a heard 0+0", "other", "a heard 0+2"]


async def test_a_failed_turn_leaves_nothing(store: SessionStore, storage: CheckpointStorage) -> None:
    script: list[Any] = [ValueError("broken")]
    workflow = chat(store, storage, script)
    with pytest.raises(ExecutorFailed):
        await workflow.run("one", run_id="r")
    assert await store.sessions() == []
    script[0] = heard
    await (await workflow.resume(run_id="r")).wait_for_completion()
    assert await texts(store) == ["one", "heard 1"]


async def test_a_fork_goes_on_in_a_thread_of_its_own(store: SessionStore, storage: CheckpointStorage) -> None:
    workflow = chat(store, storage)
    await workflow.run("one", run_id="r")
    one = (await storage.list_checkpoints(run_id="r"))[-1]
    await workflow.run("two", run_id="r", if_exists="continue")
    fork = await workflow.fork(one)
    await fork.wait_for_completion()
    for text in ("other", "more"):
        await fork.send(text)
        await fork.wait_for_completion()
    await workflow.run("three", run_id="r", if_exists="continue")
    main, own = await store.threads("kim")
    assert await texts(store) == ["one", "heard 1", "two", "heard 3", "three", "heard 5"]
    assert await texts(store, thread=own.thread) == ["one", "heard 1", "other", "heard 3", "more", "heard 5"]
    assert main.thread == "main"
    assert own.thread.startswith("main~")


async def test_a_fork_from_before_the_conversation_does_not_hear_it(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    workflow = chat(store, storage)
    await append_messages(store, "kim", [AgentMessage("user", "older")])
    await workflow.run("one", run_id="r")
    first = (await storage.list_checkpoints(run_id="r"))[0]
    fork = await workflow.fork(first)
    await fork.wait_for_completion()
    own = (await store.threads("kim"))[1].thread
    assert await texts(store) == await texts(store, thread=own) == ["older", "one", "heard 1"]
    main, forked = await store.entries("kim"), await store.entries("kim", own)
    assert main[0] == forked[0]
    assert main[1].entry_id != forked[1].entry_id


@pytest.mark.parametrize("begins", [True, False])
async def test_a_restore_moves_the_conversation(
    begins: bool, store: SessionStore, storage: CheckpointStorage
) -> None:
    workflow = chat(store, storage)
    run = await workflow.start("one", run_id="r")
    await run.wait_for_completion()
    for text in ("two", "three"):
        await run.send(text)
        await run.wait_for_completion()
    await run.restore_checkpoint(run.checkpoints[0 if begins else 1])
    await run.wait_for_completion()
    await run.send("other")
    await run.wait_for_completion()
    expected = ["one", "heard 1", "other", "heard 3"]
    assert await texts(store) == expected
    assert [info.thread for info in await store.threads("kim")] == ["main"]
    await workflow.run("next", run_id="r2")
    assert await texts(store) == [*expected, "next", "heard 5"]


async def test_a_restore_leaves_messages_of_other_runs(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    workflow = chat(store, storage)
    run = await workflow.start("one", run_id="r")
    await run.wait_for_completion()
    await run.send("two")
    await run.wait_for_completion()
    await workflow.run("someone else", run_id="r2")
    await run.restore_checkpoint(run.checkpoints[1])
    await run.wait_for_completion()
    await run.send("other")
    await run.wait_for_completion()
    assert await texts(store) == ["one", "heard 1", "two", "heard 3", "someone else", "heard 5"]
    own = (await store.threads("kim"))[1].thread
    assert await texts(store, thread=own) == ["one", "heard 1", "other", "heard 3"]


class Unpublished(InMemorySessionStore):
    """A store in which nothing is published for a while, as if the process died after the commit."""

    broken = True

    async def publish(self, session_id: str, entry_id: str) -> bool:
        if self.broken:
            raise StorageError("the disk is full")
        return await super().publish(session_id, entry_id)


async def test_what_was_not_published_is_published_later(storage: CheckpointStorage) -> None:
    store = Unpublished()
    workflow = chat(store, storage)
    result = await workflow.run("one", run_id="r1")
    (warning,) = result.warnings
    assert isinstance(warning, UnpublishedEntry)
    assert "disk is full" in str(warning)
    assert await texts(store) == []
    store.broken = False
    assert await settle_sessions(store, storage, "bo") == 0
    assert await settle_sessions(store, storage) == 1
    assert await settle_sessions(store, storage) == 0
    store.broken = True
    await workflow.run("two", run_id="r1", if_exists="continue")
    store.broken = False
    await workflow.run("three", run_id="r2")  # another run of the same storage does it, too
    assert await texts(store) == ["one", "heard 1", "two", "heard 3", "three", "heard 5"]


async def test_a_fork_carries_what_was_not_published(storage: CheckpointStorage) -> None:
    store = Unpublished()
    workflow = chat(store, storage)
    await workflow.run("one", run_id="r1")
    store.broken = False
    fork = await workflow.fork((await storage.list_checkpoints(run_id="r1"))[-1])
    await fork.wait_for_completion()
    await fork.send("two")
    await fork.wait_for_completion()
    assert await texts(store) == ["one", "heard 1"]
    own = (await store.threads("kim"))[1].thread
    assert await texts(store, thread=own) == ["one", "heard 1", "two", "heard 3"]


async def test_what_no_commit_has_is_never_published(storage: CheckpointStorage) -> None:
    """The superstep of a turn fails after the turn staged its entry."""
    store = InMemorySessionStore()
    agent = AgentExecutor(
        ScriptedAgent([heard]), id="agent", settings=AgentSettings(session=SessionPolicy(store, "kim"))
    )
    fails = True

    @executor
    async def other(text: str) -> None:
        if fails:
            raise ValueError("broken")

    @executor
    async def begin(text: str) -> str:
        return text

    builder = WorkflowBuilder(name="Both").set_start_executor(begin).add_fan_out_edges(begin, [agent, other])
    workflow = builder.with_checkpointing(storage).build()
    with pytest.raises(ExecutorFailed):
        await workflow.run("one", run_id="r")
    assert len(await store.staged()) == 1
    assert await settle_sessions(store, storage) == 0
    assert await texts(store) == []
    fails = False
    await (await workflow.resume(run_id="r")).wait_for_completion()
    assert await settle_sessions(store, storage) == 1  # the turn was over and is not run again
    assert await texts(store) == ["one", "heard 1"]


class Flaky(InMemorySessionStore):
    """A store that fails once after it staged."""

    failed = False

    async def stage(self, entry: Any) -> None:
        await super().stage(entry)
        if not self.failed:
            self.failed = True
            raise StorageError("no answer")


async def test_a_turn_that_is_tried_again_says_it_once(storage: CheckpointStorage) -> None:
    store = Flaky()
    await chat(store, storage, retry=RetryPolicy(attempts=2)).run("one")
    assert await texts(store) == ["one", "heard 1"]
    assert await store.staged() == []


class Counting:
    """An agent that says how many neutral messages and how many of its own it was given."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        own = [] if request.history is None else request.history.messages
        text = f"{self.name} heard {len(request.messages)}+{len(own)}"
        given = [f"{message.role}: {message.text}" for message in request.messages]
        asked = [*given, *own, request.prompt]
        text = await calls.model({"messages": asked}, partial(self._answer, text))
        return AgentReply(text, history=AgentHistory("counting", "1", [*asked, text]))

    async def _answer(self, text: str) -> str:
        return text


def counting(name: str, store: SessionStore, **policy: Any) -> AgentExecutor:
    settings = AgentSettings(session=SessionPolicy(store, "kim", **policy))
    return AgentExecutor(Counting(name), output_type=str, settings=settings)


async def test_agents_of_one_thread_hear_each_other(store: SessionStore, storage: CheckpointStorage) -> None:
    a, b, c = (counting(name, store) for name in "abc")
    builder = WorkflowBuilder(name="Team").set_start_executor(a).add_fan_out_edges(a, [b, c])
    workflow = builder.with_checkpointing(storage).build()
    await workflow.run("go", run_id="r")
    await workflow.run("again", run_id="r", if_exists="continue")
    replies = [entry.messages[-1].text for entry in await store.entries("kim")]
    assert [reply.partition("+")[0].split()[-1] for reply in replies] == ["0", "2", "4", "6", "8", "10"]
    assert {reply[0] for reply in replies[1:3]} == {"b", "c"}
    assert await store.staged() == []


async def test_an_agent_alone_in_a_thread_keeps_its_own_messages(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    a, b = counting("a", store, thread="a"), counting("b", store, thread="b", fork_of="a")
    builder = WorkflowBuilder(name="Apart").set_start_executor(a).add_edge(a, b)
    workflow = builder.with_checkpointing(storage).build()
    await workflow.run("one", run_id="r")
    await workflow.run("two", run_id="r", if_exists="continue")
    assert await texts(store, thread="a") == ["one", "a heard 0+0", "two", "a heard 0+2"]
    assert (await texts(store, thread="b"))[:4] == ["one", "a heard 0+0", "a heard 0+0", "b heard 2+0"]
    assert (await texts(store, thread="b"))[-1] == "b heard 4+0"


async def test_an_agent_goes_on_after_messages_of_nobody(store: SessionStore) -> None:
    await append_messages(store, "kim", [AgentMessage("user", "older")])
    workflow = WorkflowBuilder(name="Later").set_start_executor(counting("a", store)).build()
    for text in ("one", "two", "three"):
        await workflow.run(text)
    assert (await texts(store))[2::2] == ["a heard 1+0", "a heard 0+3", "a heard 0+5"]
    assert [entry.whole for entry in await store.entries("kim")] == [False, True, False, False]


def shorten(view: ThreadView) -> ThreadView:
    if len(view.entries) < 3:
        return view
    return view.keep_last(1, AgentMessage("user", f"left out {len(view.entries) - 1}"))


async def test_a_conversation_is_shortened_for_the_agent_only(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    calls = []

    def compact(view: ThreadView) -> ThreadView:
        calls.append(len(view.entries))
        return shorten(view)

    agent = counting("a", store, compact=compact)
    workflow = WorkflowBuilder(name="Long").set_start_executor(agent).with_checkpointing(storage).build()
    for number in range(6):
        await workflow.run(str(number), run_id="r", if_exists="continue")
    said = await texts(store)
    assert len(said) == 12
    assert said[1::2] == [
        "a heard 0+0",
        "a heard 0+2",
        "a heard 0+4",
        "a heard 1+2",
        "a heard 1+4",
        "a heard 1+2",
    ]
    assert calls == [1, 2, 3, 2, 3]


async def test_a_conversation_is_shortened_once(store: SessionStore, storage: CheckpointStorage) -> None:
    """A turn that fails and is resumed gives the agent what was recorded, though the function would do otherwise."""
    for text in "abc":
        await append_messages(store, "kim", [AgentMessage("user", text)])
    summaries = iter(["first", "second"])

    async def compact(view: ThreadView) -> ThreadView:
        return view.keep_last(0, AgentMessage("user", next(summaries)))

    script: list[Any] = [ValueError("broken")]
    agent = ScriptedAgent(script)
    workflow = workflow_of(agent, storage, session=SessionPolicy(store, "kim", compact=compact))
    with pytest.raises(ExecutorFailed):
        await workflow.run("d", run_id="r")
    script[0] = "done"
    await (await workflow.resume(run_id="r")).wait_for_completion()
    assert [request.messages[0].text for request in agent.requests] == ["first", "first"]


@pytest.mark.parametrize("wrong", [None, "order", "foreign"])
async def test_a_shorter_conversation_has_parts_of_the_long_one(
    wrong: str | None, store: SessionStore
) -> None:
    for text in "abc":
        await append_messages(store, "kim", [AgentMessage("user", text)])

    def compact(view: ThreadView) -> Any:
        if wrong is None:
            return list(view.entries)
        first, second, third = view.entries
        return ThreadView((), (second, first) if wrong == "order" else (replace(third, entry_id="x"),))

    with pytest.raises(ExecutorFailed, match="ThreadView" if wrong is None else "in their order"):
        await chat(store, policy=SessionPolicy(store, "kim", compact=compact)).run("d")


async def test_people_approve_in_the_middle_of_a_conversation(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    def build() -> Workflow:
        agent = ScriptedAgent([[("c1", "pay", {"amount": 5})], heard], {"pay": pay})
        return workflow_of(
            agent,
            storage,
            session=SessionPolicy(store, "kim"),
            tool_approval=ToolApproval(["pay"]),
            output_approval=OutputApproval(),
        )

    result = await build().run("one", run_id="r")
    assert await store.sessions() == []
    await chat(store, storage).run("meanwhile", run_id="r2")
    for answer in (True, OutputDecision.revise("shorter"), True, True):
        (request,) = result.pending_requests
        run = await build().resume(run_id="r", responses={request.request_id: answer})
        result = await run.wait_for_completion()
    assert result.outputs == ["heard 7"]
    assert await texts(store) == ["meanwhile", "heard 1", "one", "heard 3", "shorter", "heard 7"]
    assert [entry.author.run_id for entry in await store.entries("kim")] == ["r2", "r"]


async def test_sessions_come_from_requests_state_and_functions(
    store: SessionStore, storage: CheckpointStorage
) -> None:
    user = StateKey("user", str, scope_name="Chat")
    agent = AgentExecutor(
        ScriptedAgent([heard]), id="agent", settings=AgentSettings(session=SessionPolicy(store, user))
    )

    @executor
    async def begin(text: str, ctx: WorkflowContext[str]) -> str:
        await ctx.queue_state_update(user, "from state")
        return text

    await WorkflowBuilder(name="S").set_start_executor(begin).add_edge(begin, agent).build().run("hello")
    await chat(store, policy=SessionPolicy(store, lambda request: request.prompt)).run("from function")
    await chat(store).run(AgentRequest("hello", session_id="from request"))
    await chat(store, storage, policy=SessionPolicy(store)).run("hello", run_id="from run")
    assert await store.sessions() == ["from function", "from request", "from run", "from state"]


async def test_messages_of_a_request_are_part_of_the_conversation(store: SessionStore) -> None:
    given = (AgentMessage("user", "old"), AgentMessage("assistant", "very old"))
    workflow = chat(store)
    await workflow.run(AgentRequest("one", given))
    assert await texts(store) == ["old", "very old", "one", "heard 1"]


async def test_a_deleted_session_stops_its_run(store: SessionStore, storage: CheckpointStorage) -> None:
    workflow = chat(store, storage)
    await workflow.run("one", run_id="r")
    await store.delete("kim")
    with pytest.raises(ExecutorFailed) as failed:
        await workflow.run("two", run_id="r", if_exists="continue")
    assert isinstance(failed.value.__cause__, SessionNotFound)
    await workflow.run("new", run_id="r2")
    assert await texts(store) == ["new", "heard 1"]


def files_with(word: bytes, folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


def size_of_runs(folder: Path) -> int:
    parts = [path for part in folder.glob("c*") for path in (part, *part.rglob("*"))]
    return sum(path.stat().st_size for path in parts if path.is_file())


@pytest.mark.parametrize("kind", ["files", "sqlite"])
async def test_all_of_a_person_can_be_erased(kind: str, tmp_path: Path) -> None:
    """From the session, from the runs that took part in it, and from the blobs of these."""
    store: SessionStore = (
        SqliteSessionStore(tmp_path / "s.db") if kind == "sqlite" else JsonSessionStore(tmp_path / "s")
    )
    async with (
        SqliteCheckpointStorage(tmp_path / "c.db")
        if kind == "sqlite"
        else FileCheckpointStorage(tmp_path / "c")
    ) as storage:
        workflow = chat(store, storage, policy=SessionPolicy(store))
        large = "my secret word " + token_hex(400_000)
        await workflow.run(AgentRequest(large, session_id="kim"), run_id="r1")
        await workflow.run(AgentRequest("my weather", session_id="bo"), run_id="r2")
        assert files_with(b"secret", tmp_path)
        assert size_of_runs(tmp_path) > 400_000
        for entry in await store.entries("kim"):
            await storage.delete_run(entry.author.run_id)
        await store.delete("kim")
        await storage.vacuum()
        assert [run.run_id for run in await storage.list_runs()] == ["r2"]
    assert files_with(b"secret", tmp_path) == []
    assert size_of_runs(tmp_path) < 200_000  # the blob is gone, too, which is compressed
    assert files_with(b"weather", tmp_path)
    assert await store.sessions() == ["bo"]


def test_settings_that_cannot_be(store: SessionStore) -> None:
    with pytest.raises(InvalidArgument, match="session store"):
        SessionPolicy("sessions")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="SessionPolicy"):
        AgentSettings(session=store)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="remembers"):
        AgentSettings(session=SessionPolicy(store), remembers=True)


def campaign(store: str, folder: Path, *plant: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "tests.agents.session_kills", store, str(folder / "kills"), *plant]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("store", ["json", "sqlite"])
def test_kills_at_every_step(store: str, tmp_path: Path) -> None:
    code, report = campaign(store, tmp_path)
    assert report[-1] == {"kills": 22, "wrong": 0}, report
    assert code == 0


def test_entries_without_a_key_are_caught(tmp_path: Path) -> None:
    """A planted bug: an entry is published before the commit, and each attempt gives it another id."""
    code, report = campaign("sqlite", tmp_path, "entries-without-key")
    assert code == 1
    assert report[-1]["wrong"] > 5
