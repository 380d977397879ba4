"""What a checkpoint captures, capturing and rehydrating, the hooks of executors, and the incident of the tutorial."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    CheckpointInfo,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    NotLoaded,
    RequestInfoEvent,
    RunStatus,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowOutputEvent,
    executor,
    handler,
    open_storage,
    response_handler,
)
from tests.programs import run as run_script
from tests.seeds.storages import OpenStorage

# What a checkpoint captures


@dataclass
class Order:
    item: str
    count: int


@dataclass
class Approval:
    order: Order
    reasons: list[str] = field(default_factory=list)


class Take(Executor):
    """Keeps a state, a field and shared state, and sends the order to two executors."""

    checkpointed = ("taken",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.taken: list[str] = []

    @handler
    async def take(self, order: Order, ctx: WorkflowContext[Order]) -> None:
        self.taken.append(order.item)
        await ctx.set_shared_state("order", order)
        await ctx.queue_state_update("items", {order.item: order.count}, scope_name="Stock")
        await ctx.send_message(order)


class Count(Executor):
    @handler
    async def count(self, order: Order, ctx: WorkflowContext[str]) -> None:
        await ctx.set_state({"counted": order.count})
        await ctx.send_message(f"{order.count} counted")


class Approve(Executor):
    @handler
    async def ask(self, order: Order, ctx: WorkflowContext[str]) -> None:
        await ctx.request_info(Approval(order, ["large"]), response_type=bool, request_id="approve")

    @response_handler
    async def answered(self, request: Approval, response: bool, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{request.order.item} approved: {response}")


class Book(Executor):
    @handler
    async def book(self, line: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.append_state("lines", line, scope_name="Book")
        await ctx.yield_output(line)


def ordering(storage: CheckpointStorage) -> Workflow:
    return (
        WorkflowBuilder(name="Order")
        .set_start_executor(Take)
        .add_fan_out_edges(Take, [Count, Approve])
        .add_edge(Count, Book)
        .add_edge(Approve, Book)
        .with_checkpointing(storage)
        .build()
    )


async def captured(
    storage: CheckpointStorage, workflow: Workflow, message: object
) -> dict[int, CheckpointInfo]:
    """The checkpoints at the end of each superstep, as the overview collects them."""
    checkpoints: dict[int, CheckpointInfo] = {}
    async for event in workflow.run_stream(message):
        if isinstance(event, SuperStepCompletedEvent):
            checkpoint = event.completion_info.checkpoint
            if checkpoint is not None:
                checkpoints[event.superstep] = checkpoint
    return checkpoints


def pending(checkpoint: Checkpoint) -> list[tuple[str, Any]]:
    return [(str(message.target_id), message.data) for message in checkpoint.messages]


async def test_a_checkpoint_captures_the_entire_state_of_the_workflow(open_again: OpenStorage) -> None:
    storage = open_again()
    checkpoints = await captured(storage, ordering(storage), Order("pump", 3))
    assert list(checkpoints) == [1, 2, 3]

    storage = open_again()
    ordering(storage)  # what a new process builds, so that its types are known
    taken, asked, booked = [await storage.load(checkpoint) for checkpoint in checkpoints.values()]

    order = Order("pump", 3)
    assert pending(taken) == [("Count", order), ("Approve", order)]
    assert dict(taken.executor_states["Take"]) == {"taken": ["pump"]}
    assert taken.shared_state == {"order": order}
    assert taken.scopes["Stock"] == {"items": {"pump": 3}}
    assert taken.pending_requests == []

    assert pending(asked) == [("Book", "3 counted")]
    assert set(asked.executor_states) == {"Take", "Count"}
    assert asked.executor_states["Count"] == {"counted": 3}
    (request,) = asked.pending_requests
    assert (request.request_id, request.executor_id) == ("approve", "Approve")
    assert request.data == Approval(order, ["large"])
    assert request.response_type is bool
    assert asked.status is RunStatus.RUNNING

    assert pending(booked) == []
    assert list(booked.outputs) == ["3 counted"]
    assert booked.scopes["Book"] == {"lines": ["3 counted"]}
    assert [request.request_id for request in booked.pending_requests] == ["approve"]
    assert booked.status is RunStatus.WAITING


async def test_a_response_is_captured_before_anything_acts_on_it(open_again: OpenStorage) -> None:
    storage = open_again()
    waiting = await ordering(storage).run(Order("pump", 3))
    await waiting.respond({"approve": True})

    storage = open_again()
    ordering(storage)
    listed = await storage.list_checkpoints()
    (answered,) = [await storage.load(cp) for cp in listed if cp.cause == "response"]
    assert pending(answered) == [("Approve", True)]
    assert answered.pending_requests == []
    assert list(answered.outputs) == ["3 counted"], "nothing acted on it yet"

    resumed = await ordering(open_again()).run_from_checkpoint(answered.checkpoint_id)
    assert resumed.outputs == ["3 counted", "pump approved: True"], "the response is in the checkpoint"


async def test_counts_are_known_without_reading_values(storage: CheckpointStorage) -> None:
    checkpoints = await captured(storage, ordering(storage), Order("pump", 3))
    counts = [(cp.message_count, cp.request_count) for cp in checkpoints.values()]
    assert counts == [(2, 0), (1, 1), (0, 1)]
    listed = [cp for cp in await storage.list_checkpoints() if cp.phase == "end"]
    assert [(len(cp.messages), len(cp.pending_requests)) for cp in listed] == counts
    assert list(listed[0].shared_state) == ["order"]
    with pytest.raises(NotLoaded, match=r"storage\.load"):
        listed[0].shared_state["order"]


@pytest.mark.parametrize("answer", [True, False])
@pytest.mark.parametrize("superstep", [1, 2, 3])
async def test_a_newly_built_workflow_goes_on_from_any_captured_checkpoint(
    superstep: int, answer: bool, open_again: OpenStorage
) -> None:
    storage = open_again()
    checkpoints = await captured(storage, ordering(storage), Order("pump", 3))

    run = await ordering(open_again()).resume(checkpoints[superstep])
    asked = [event async for event in run.watch_stream() if isinstance(event, RequestInfoEvent)]
    assert [event.request_id for event in asked] == ["approve"], "a pending request is emitted again, once"
    await run.send_response(asked[0].request.create_response(answer))
    result = await run.wait_for_completion()

    assert result.outputs == ["3 counted", f"pump approved: {answer}"]
    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    assert (await storage.load(latest.checkpoint_id)).scopes["Book"] == {"lines": result.outputs}


async def test_leaving_at_a_question_leaves_a_waiting_run(storage: CheckpointStorage) -> None:
    """The checkpoint with the question says WAITING; whoever lists waiting runs must find it."""

    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool)

        @response_handler
        async def answered(self, request: str, response: bool, ctx: WorkflowContext[None, bool]) -> None:
            await ctx.yield_output(response)

    workflow = WorkflowBuilder(name="Ask").set_start_executor(Ask).with_checkpointing(storage).build()
    async with workflow.run_stream("Deploy?") as stream:
        async for event in stream:
            if isinstance(event, RequestInfoEvent):
                break
    latest = await storage.get_latest()
    assert latest is not None
    assert latest.status is RunStatus.WAITING
    assert [run.run_id for run in await storage.list_runs(status=RunStatus.WAITING)] == [latest.run_id]


# Save executor states: the hooks


class CustomExecutor(Executor):
    """The executor of the overview, in Python: a list that is saved under a key and restored."""

    state_key = "CustomExecutorState"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.messages: list[str] = []

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str, list[str]]) -> None:
        self.messages.append(message)
        if len(self.messages) < 4:
            await ctx.send_message(f"{message}{len(self.messages)}")
        else:
            await ctx.yield_output(self.messages)

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.queue_state_update(self.state_key, self.messages)

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        self.messages = await ctx.read_state(self.state_key)


def looping(storage: CheckpointStorage, placed: Any) -> Workflow:
    return (
        WorkflowBuilder(name="Loop")
        .set_start_executor(placed)
        .add_edge(placed, placed)
        .with_checkpointing(storage)
        .build()
    )


MESSAGES = ["a", "a1", "a12", "a123"]


@pytest.mark.parametrize("make", [lambda: CustomExecutor, CustomExecutor], ids=["class", "instance"])
async def test_a_list_survives_by_the_two_hooks(make: Callable[[], Any], open_again: OpenStorage) -> None:
    storage = open_again()
    result = await looping(storage, make()).run("a")
    assert result.outputs == [MESSAGES]
    assert result.warnings == []

    listed = await storage.list_checkpoints(run_id=result.run_id)
    for checkpoint in listed:
        done = checkpoint.superstep - (checkpoint.phase == "start")
        states = (await storage.load(checkpoint.checkpoint_id)).executor_states
        kept = states["CustomExecutor"]["CustomExecutorState"] if done else []
        assert kept == MESSAGES[:done]

        resumed = await looping(open_again(), make()).run_from_checkpoint(checkpoint.checkpoint_id)
        assert resumed.outputs == [MESSAGES], f"from {checkpoint!r}"


async def test_the_same_workflow_with_its_instance_can_go_back_anywhere(storage: CheckpointStorage) -> None:
    """The instance still has the fields of the run's end; going back must not see them."""
    workflow = looping(storage, CustomExecutor())
    result = await workflow.run("a")
    for checkpoint in await storage.list_checkpoints(run_id=result.run_id):
        resumed = await workflow.run_from_checkpoint(checkpoint.checkpoint_id)
        assert resumed.outputs == [MESSAGES], f"from {checkpoint!r}"


async def test_an_executor_that_never_ran_is_not_asked_to_restore(open_again: OpenStorage) -> None:
    asked: list[str] = []

    class Witness(Executor):
        @handler
        async def pass_on(self, message: str, ctx: WorkflowContext[str, str]) -> str:
            return message

        async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.queue_state_update("ran", True)

        async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
            assert await ctx.read_state("ran") is True
            asked.append(self.id)

    def build(storage: CheckpointStorage) -> Workflow:
        chain = [Witness.bind(id=name) for name in ("first", "second", "third")]
        builder = WorkflowBuilder(name="Chain").set_start_executor(chain[0]).add_chain(chain)
        return builder.with_checkpointing(storage).build()

    storage = open_again()
    result = await build(storage).run("a")
    assert asked == [], "a run that begins restores nothing"
    for checkpoint in await storage.list_checkpoints(run_id=result.run_id):
        asked.clear()
        await build(open_again()).run_from_checkpoint(checkpoint.checkpoint_id)
        ran = checkpoint.superstep - (checkpoint.phase == "start")
        expected = ["first", "second", "third"][:ran] if ran < 3 else []
        assert asked == expected, f"from {checkpoint!r}"


class SharedKeeper(Executor):
    """Its hooks keep the field where others can see it too, in a shared scope."""

    scope_name = "Counts"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.count = 0

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str, int]) -> None:
        self.count += 1
        if self.count < 3:
            await ctx.send_message(message)
        else:
            await ctx.yield_output(self.count)

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.queue_state_update("count", self.count, scope_name=self.scope_name)

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        self.count = await ctx.read_state("count", 0, scope_name=self.scope_name)


async def test_hooks_that_keep_a_field_in_a_shared_scope_restore_it(open_again: OpenStorage) -> None:
    storage = open_again()
    result = await looping(storage, SharedKeeper).run("a")
    listed = await storage.list_checkpoints(run_id=result.run_id)
    assert [cp.superstep for cp in listed] == [1, 1, 2, 2, 3, 3]
    for checkpoint in listed:
        resumed = await looping(open_again(), SharedKeeper).run_from_checkpoint(checkpoint.checkpoint_id)
        latest = await storage.get_latest(run_id=result.run_id)
        assert latest is not None
        assert (resumed.outputs, latest.superstep) == ([3], 3), f"from {checkpoint!r}"


# The incident of the tutorial


class TriageSyncExecutor(Executor):
    """Counts what it processed, in a field that the two hooks save and restore."""

    state_key = "TriageSyncState"

    def __init__(self, id: str = "TriageSync") -> None:
        super().__init__(id)
        self._messages_processed = 0

    @handler
    async def handle(self, message: str, ctx: WorkflowContext[str]) -> str:
        self._messages_processed += 1
        return "Processed"

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.queue_state_update(self.state_key, self._messages_processed)

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        self._messages_processed = await ctx.read_state(self.state_key)


def syncing(storage: CheckpointStorage) -> Workflow:
    """The sync gets each of three reports, one after the other."""

    @executor(id="reports")
    async def reports(message: str, ctx: WorkflowContext[str]) -> None:
        done = await ctx.get_state() or 0
        await ctx.set_state(done + 1)
        if done < 3:
            await ctx.send_message(f"report {done + 1}")
        else:
            await ctx.yield_output(message)

    return (
        WorkflowBuilder(name="Sync")
        .set_start_executor(reports)
        .add_edge(reports, TriageSyncExecutor)
        .add_edge(TriageSyncExecutor, reports)
        .with_checkpointing(storage)
        .build()
    )


async def test_the_triage_sync_goes_on_counting(open_again: OpenStorage) -> None:
    storage = open_again()
    result = await syncing(storage).run("begin")
    assert result.outputs == ["Processed"]
    assert result.warnings == []
    assert await processed(storage) == 3
    for checkpoint in await storage.list_checkpoints(run_id=result.run_id):
        resumed = await syncing(open_again()).run_from_checkpoint(checkpoint.checkpoint_id)
        assert resumed.outputs == ["Processed"]
        assert await processed(storage) == 3, f"from {checkpoint!r}"


async def processed(storage: CheckpointStorage) -> int:
    latest = await storage.get_latest(workflow_name="Sync")
    assert latest is not None
    states = (await storage.load(latest.checkpoint_id)).executor_states
    count = states["TriageSync"]["TriageSyncState"]
    assert isinstance(count, int)
    return count


RAW_LOGS = "2026-03-11T12:00:00Z checkout ERROR 500\n" * 50_000


class Telemetry:
    """The service outside: counts how often it is asked, and can be away."""

    def __init__(self) -> None:
        self.fetched = 0
        self.agent_down = False


def triage(storage: CheckpointStorage, telemetry: Telemetry) -> Workflow:
    """The two executors of the tutorial: the log stays in shared state, only its id is passed on."""

    class FetchTelemetry(Executor):
        @handler
        async def fetch(self, service: str, ctx: WorkflowContext[str]) -> str:
            telemetry.fetched += 1
            log_id = uuid.uuid4().hex
            await ctx.queue_state_update(log_id, RAW_LOGS, scope_name="IncidentLogs")
            return log_id

    class TriageAgent(Executor):
        @handler
        async def triage(self, log_id: str, ctx: WorkflowContext[None, str]) -> str:
            if telemetry.agent_down:
                raise ConnectionError("the model is away")
            logs = await ctx.read_state(log_id, scope_name="IncidentLogs")
            return f"PRIORITY: P0 ({logs.count('ERROR')} errors)"

    return (
        WorkflowBuilder(name="IncidentTriage")
        .set_start_executor(FetchTelemetry)
        .add_edge(FetchTelemetry, TriageAgent)
        .with_checkpointing(storage)
        .build()
    )


VERDICT = "PRIORITY: P0 (50000 errors)"


async def test_a_large_payload_stays_in_shared_state_and_its_id_is_passed_on(open_again: OpenStorage) -> None:
    storage = open_again()
    checkpoints = await captured(storage, triage(storage, Telemetry()), "checkout failures")

    storage = open_again()
    fetched = await storage.load(checkpoints[1])
    (message,) = fetched.messages
    assert len(message.data) == 32, "the id and nothing else"
    assert fetched.scopes["IncidentLogs"] == {message.data: RAW_LOGS}
    assert fetched.shared_state == {}, "it is in a scope of its own"

    listed = {cp.checkpoint_id: cp for cp in await storage.list_checkpoints()}
    (shown,) = [cp for cp in listed.values() if (cp.superstep, cp.phase) == (2, "start")]
    assert repr(shown.scopes["IncidentLogs"]) == f"{{{message.data!r}: <str, 2.0 MB>}}"
    assert await shown.read_state(message.data, scope_name="IncidentLogs") == RAW_LOGS
    later = [cp for cp in listed.values() if cp.seq > fetched.seq]
    assert all(cp.new_bytes < 10_000 for cp in later), "it is stored once"


async def test_a_resume_does_not_fetch_the_telemetry_again(open_again: OpenStorage) -> None:
    telemetry = Telemetry()
    telemetry.agent_down = True
    with pytest.raises(ExecutorFailed, match="the model is away"):
        await triage(open_again(), telemetry).run("checkout failures")
    assert telemetry.fetched == 1

    telemetry.agent_down = False
    storage = open_again()
    last = await storage.get_latest("IncidentTriage")
    assert last is not None
    events = [event async for event in triage(storage, telemetry).run_stream_from_checkpoint(last)]
    assert [event.data for event in events if isinstance(event, WorkflowOutputEvent)] == [VERDICT]
    assert [event.data for event in events if isinstance(event, WorkflowCompletedEvent)] == [VERDICT]
    assert telemetry.fetched == 1


async def test_going_back_before_the_fetch_does_fetch_again(open_again: OpenStorage) -> None:
    telemetry = Telemetry()
    storage = open_again()
    await triage(storage, telemetry).run("checkout failures")
    first, *_ = await storage.list_checkpoints()
    result = await triage(open_again(), telemetry).run_from_checkpoint(first.checkpoint_id)
    assert result.outputs == [VERDICT]
    assert telemetry.fetched == 2


async def test_concurrent_incidents_do_not_see_each_other(storage: CheckpointStorage) -> None:
    telemetry = Telemetry()
    workflow = triage(storage, telemetry)
    runs = [await workflow.start(f"incident {number}") for number in range(3)]
    results = [await run.wait_for_completion() for run in runs]
    assert [result.outputs for result in results] == [[VERDICT]] * 3
    for run in runs:
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        assert len(latest.scopes["IncidentLogs"]) == 1


# A server that dies during an incident

SERVER = """
import asyncio
import os
from pathlib import Path

from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler, open_storage

FETCHED = Path("fetched")


class FetchTelemetry(Executor):
    @handler
    async def fetch(self, service: str, ctx: WorkflowContext[str]) -> str:
        with FETCHED.open("a") as file:
            file.write("once\\n")
        await ctx.queue_state_update("log-1", "ERROR\\n" * 100_000, scope_name="IncidentLogs")
        return "log-1"


class TriageAgent(Executor):
    @handler
    async def triage(self, log_id: str, ctx: WorkflowContext[None, str]) -> str:
        if "CRASH" in os.environ:
            os._exit(7)  # as a power cut would: nothing is cleaned up
        logs = await ctx.read_state(log_id, scope_name="IncidentLogs")
        return f"PRIORITY: P0 ({logs.count('ERROR')} errors)"


async def main() -> None:
    async with open_storage(os.environ["INCIDENTS"]) as storage:
        workflow = (
            WorkflowBuilder(name="IncidentTriage")
            .set_start_executor(FetchTelemetry)
            .add_edge(FetchTelemetry, TriageAgent)
            .with_checkpointing(storage)
            .build()
        )
        latest = await storage.get_latest("IncidentTriage")
        if latest is None:
            result = await workflow.run("checkout failures")
        else:
            result = await workflow.run_from_checkpoint(latest.checkpoint_id)
        print(result.outputs[0])


asyncio.run(main())
"""


@pytest.mark.parametrize("url", ["file:incidents", "sqlite:incidents.db"])
async def test_a_server_that_died_goes_on_in_a_new_process(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INCIDENTS", url)
    script = tmp_path / "server.py"
    script.write_text(SERVER, encoding="utf-8")

    with monkeypatch.context() as crashing:
        crashing.setenv("CRASH", "yes")
        died = run_script(script, tmp_path)
    assert (died.returncode, died.stdout, died.stderr) == (7, "", "")

    scheme, name = url.split(":")
    async with open_storage(f"{scheme}:///{tmp_path / name}") as storage:
        (interrupted,) = await storage.list_runs(interrupted=True)
        latest = await storage.get_latest(run_id=interrupted.run_id)
        assert latest is not None
        assert (latest.superstep, latest.phase) == (2, "start")

    done = run_script(script, tmp_path)
    assert done.stderr == ""
    assert done.stdout == "PRIORITY: P0 (100000 errors)\n"
    assert (tmp_path / "fetched").read_text().splitlines() == ["once"]
    async with open_storage(f"{scheme}:///{tmp_path / name}") as storage:
        (finished,) = await storage.list_runs()
        assert (finished.run_id, finished.status) == (interrupted.run_id, RunStatus.COMPLETED)
        assert len(await storage.list_checkpoints()) == 4
