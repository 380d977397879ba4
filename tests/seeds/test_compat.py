"""What programs that come from C# meet in ``holdfast.compat`` besides the listings of the seeds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    CheckpointNotFound,
    CheckpointStorage,
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    NotLoaded,
    RequestInfoExecutor,
    Retention,
    Run,
    RunStatus,
    RunTaken,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast.compat import (
    Checkpointed,
    CheckpointManager,
    Executor,
    IMessageHandler,
    InProcessExecution,
    IResettableExecutor,
    ReflectingExecutor,
    SuperStepCompletionInfo,
    SuperStepStartInfo,
)
from tests.support.parts import MemoryStore
from tests.support.runs import soon


@executor
def upper(text: str) -> str:
    return text.upper()


@executor
def exclaim(text: str) -> str:
    return f"{text}!"


def shouting() -> Workflow:
    return WorkflowBuilder(name="Shout").set_start_executor(upper).add_edge(upper, exclaim).build()


def run_of(made: Any) -> Run:
    """The run of what ``InProcessExecution`` gives, with its checkpoints or without."""
    run = made.run if isinstance(made, Checkpointed) else made
    assert isinstance(run, Run)
    return run


RESUMING: list[Callable[..., Awaitable[Any]]] = [
    InProcessExecution.resume,
    InProcessExecution.resume_stream,
    InProcessExecution.resume_streaming,
]
STARTING: list[Callable[..., Awaitable[Any]]] = [
    InProcessExecution.run,
    InProcessExecution.stream,
    InProcessExecution.run_streaming,
]


# Keys without a type


async def test_a_key_without_a_type_takes_anything(storage: CheckpointStorage) -> None:
    key = StateKey("GuessNumberExecutor.State")

    @executor
    async def note(number: int, ctx: WorkflowContext[int]) -> int:
        await ctx.queue_state_update(key, (number, "x"))
        await ctx.queue_state_update(key, [number], scope_name="Guesses")
        await ctx.append_state(StateKey("all", scope_name="Guesses"), number)
        return number

    @executor
    async def read(number: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(await ctx.read_state(key, scope_name="Guesses"))
        await ctx.yield_output(await ctx.read_state(key, "absent"))

    workflow = WorkflowBuilder(name="Keys").set_start_executor(note).add_edge(note, read).build()
    run = await workflow.start(5, storage=storage)
    assert (await run.wait_for_completion()).outputs == [[5], "absent"]
    resumed = await workflow.run_from_checkpoint(run.checkpoints[1], storage)
    assert resumed.outputs == [[5], "absent"]
    loaded = await storage.load(run.checkpoints[1])
    assert loaded.executor_states["note"] == {"GuessNumberExecutor.State": (5, "x")}
    assert await loaded.read_state(key, scope_name="Guesses") == [5]


# Managers


@dataclass
class Parcel:
    """Declared by no workflow."""

    weight: int


async def test_options_of_a_json_manager_are_classes_that_it_takes(tmp_path: Path) -> None:
    """Values of a class that no workflow declares are refused without them."""

    @executor
    async def weigh(number: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(Parcel(number))

    workflow = WorkflowBuilder(name="Weigh").set_start_executor(weigh).build()
    with pytest.raises(ExecutorFailed, match="Parcel is not declared"):
        await InProcessExecution.run(workflow, 1, CheckpointManager.create_json(tmp_path / "a"))
    run = await InProcessExecution.run(workflow, 1, CheckpointManager.create_json(tmp_path / "b", [Parcel]))
    assert run.result().outputs == [Parcel(1)]


@pytest.mark.parametrize("options", [{"indented": True}, Parcel, [1], "camelCase"], ids=str)
def test_options_that_are_no_classes_are_refused(options: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="the options are classes whose values may be stored"):
        CheckpointManager.create_json(tmp_path, options)


@pytest.mark.parametrize("store", [5, None, InMemoryCheckpointStorage], ids=str)
def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(WrongType, match=r"create_json\(.*\): give a directory, a storage, or a store"):
        CheckpointManager.create_json(store)


MANAGERS: dict[str, Callable[[Path, Retention], CheckpointManager]] = {
    "file": CheckpointManager.create_file_storage,
    "json": lambda path, retention: CheckpointManager.create_json(path, None, retention),
    "json, of a store": lambda path, retention: CheckpointManager.create_json(
        MemoryStore(), retention=retention
    ),
    "json, of a storage": lambda path, retention: CheckpointManager.create_json(
        InMemoryCheckpointStorage(retention)
    ),
    "memory": lambda path, retention: CheckpointManager.create_in_memory(retention),
    "new": lambda path, retention: CheckpointManager(MemoryStore(), retention),
}


@pytest.mark.parametrize("kind", MANAGERS)
async def test_managers_take_a_retention(kind: str, tmp_path: Path) -> None:
    async with MANAGERS[kind](tmp_path, Retention.latest_only()) as manager:
        await InProcessExecution.run(shouting(), "kelp", manager)
        assert len(await manager.list_checkpoints()) == 1


# Names and generic classes


class Word(Executor[str, str], IMessageHandler[str], IMessageHandler[int], IResettableExecutor):  # type: ignore[misc]
    """Takes two types, as a class does there that implements one interface twice."""

    def __init__(self, id: str = "word") -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def handle_text(self, text: str, context: WorkflowContext[str], ct: None = None) -> str:
        self.seen += 1
        return f"{text} {self.seen}"

    @handler
    async def handle_number(self, number: int, context: WorkflowContext[str], *, ct: None = None) -> str:
        return await self.handle_text(str(number), context)

    async def reset(self) -> None:
        self.seen = 0


async def test_generic_executors_run() -> None:
    workflow = WorkflowBuilder(name="Word").set_start_executor(Word()).build()
    assert [(await workflow.run(given)).outputs for given in ("kelp", 7)] == [["kelp 1"], ["7 1"]]
    assert isinstance(Word(), IMessageHandler)
    assert Executor[str, str]("fetch").id == "fetch"
    assert vars(Executor[str, str]("fetch")) == {"id": "fetch"}
    assert ReflectingExecutor["Word"]("triage").id == "triage"
    assert issubclass(ReflectingExecutor, holdfast.Executor)


def test_an_executor_that_is_to_be_reset_must_say_how() -> None:
    class Careless(Executor[str, str], IResettableExecutor):
        pass

    with pytest.raises(TypeError, match="reset"):
        Careless("careless")  # type: ignore[abstract]


def test_infos_of_supersteps_have_their_names() -> None:
    assert SuperStepStartInfo is holdfast.SuperStepStartedEvent
    assert SuperStepCompletionInfo is holdfast.SuperStepCompletedEvent


# Overloads


def test_two_handlers_of_one_name_are_refused_where_they_are_defined() -> None:
    """Overloads, as C# has them: Python would keep the last one only."""
    with pytest.raises(GraphError) as caught:

        class Overloaded(holdfast.Executor):
            @handler
            async def handle(self, text: str, ctx: WorkflowContext[str]) -> None: ...

            @handler(retry=None)  # type: ignore[no-redef]
            async def handle(self, number: int, ctx: WorkflowContext[str]) -> None: ...  # noqa: F811

    assert str(caught.value).partition("<locals>.")[2] == (
        "Overloaded.handle is defined twice in one class, of which Python keeps only the last; "
        "give each a name of its own: what a handler takes is said by its annotation"
    )


def test_two_response_handlers_of_one_name_are_refused() -> None:
    with pytest.raises(GraphError, match=r"^response handler .*Asking\.answered is defined twice"):

        class Asking(holdfast.Executor):
            @response_handler
            async def answered(self, plan: str, good: bool, ctx: WorkflowContext) -> None: ...

            @response_handler  # type: ignore[no-redef]
            async def answered(self, plan: str, mark: int, ctx: WorkflowContext) -> None: ...  # noqa: F811


def test_a_handler_may_be_overridden_and_defined_again_elsewhere() -> None:
    class First(holdfast.Executor):
        @handler
        async def handle(self, text: str, ctx: WorkflowContext[str]) -> None: ...

    class Second(First):
        @handler
        async def handle(self, number: int, ctx: WorkflowContext[str]) -> None: ...  # type: ignore[override]

    assert WorkflowBuilder().set_start_executor(Second).build().graph.executors


# Cancellation arguments


@pytest.mark.parametrize("start", STARTING)
async def test_a_cancellation_argument_may_be_passed(start: Callable[..., Awaitable[Any]]) -> None:
    manager = CheckpointManager()
    run = run_of(await start(shouting(), "kelp", manager, None, None))
    assert (await run.wait_for_completion()).outputs == ["KELP!"]
    latest = await manager.get_latest_checkpoint("Shout", None)
    assert latest is not None
    assert await manager.lookup_checkpoint(run.run_id, latest, None) == latest
    assert await manager.commit_checkpoint(run.run_id, latest, None) == latest
    await Checkpointed(run).restore_checkpoint(run.checkpoints[0], None)
    for resume in RESUMING:
        await run.wait_for_completion()
        again = run_of(await resume(shouting(), latest, manager, run.run_id, None))
        assert (await again.wait_for_completion()).outputs == ["KELP!"]


async def test_a_token_that_would_do_nothing_is_refused() -> None:
    """Whoever sets it later would wait for a cancellation that never comes."""
    with pytest.raises(InvalidArgument, match=r"there are no cancellation tokens .*; .*run\.cancel\(\)"):
        await InProcessExecution.run(shouting(), "kelp", CheckpointManager(), None, asyncio.Event())  # type: ignore[arg-type]


# Resuming


async def test_resume_waits_as_run_does() -> None:
    manager = CheckpointManager()
    first = await InProcessExecution.run(shouting(), "kelp", manager)
    resumed = await InProcessExecution.resume(shouting(), first.checkpoints[0], manager)
    assert resumed.run.status is RunStatus.COMPLETED
    assert resumed.run.result().outputs == ["KELP!"]


async def test_resume_raises_what_the_run_failed_with() -> None:
    @executor
    def fail(text: str) -> str:
        raise ValueError(text)

    manager = CheckpointManager()
    workflow = WorkflowBuilder(name="Fail").set_start_executor(fail).build()
    with pytest.raises(ExecutorFailed):
        await InProcessExecution.run(workflow, "no", manager, "mine")
    latest = await manager.get_latest_checkpoint("Fail")
    assert latest is not None
    with pytest.raises(ExecutorFailed, match="no"):
        await InProcessExecution.resume(workflow, latest, manager)


@pytest.mark.parametrize("resume", RESUMING)
async def test_ids_are_taken_where_infos_are(resume: Callable[..., Awaitable[Any]]) -> None:
    manager = CheckpointManager()
    run = await InProcessExecution.run(shouting(), "kelp", manager)
    first = run.checkpoints[0]
    again = run_of(await resume(shouting(), str(first.checkpoint_id), manager, run.run_id))
    assert (await again.wait_for_completion()).outputs == ["KELP!"]
    assert await manager.lookup_checkpoint(run.run_id, first.checkpoint_id) == first
    assert await manager.commit_checkpoint(run.run_id, first.checkpoint_id) == first
    await Checkpointed(again).restore_checkpoint(first.checkpoint_id)
    await again.wait_for_completion()
    with pytest.raises(InvalidArgument, match="belongs to run"):
        await resume(shouting(), first.checkpoint_id, manager, "another")
    with pytest.raises(CheckpointNotFound):
        await resume(shouting(), "0" * 64, manager, run.run_id)


@pytest.mark.parametrize("resume", RESUMING)
async def test_a_run_that_still_moves_can_be_taken_over(resume: Callable[..., Awaitable[Any]]) -> None:
    """As in the complete example: the first run goes on after the output at which nobody watches it any more."""
    begun, gate = asyncio.Event(), asyncio.Event()

    @executor
    async def hold(text: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(text)
        await ctx.send_message(text)

    @executor
    async def linger(text: str, ctx: WorkflowContext[None, str]) -> None:
        if not begun.is_set():
            begun.set()
            await gate.wait()
        await ctx.yield_output(f"{text} again")

    workflow = WorkflowBuilder(name="Linger").set_start_executor(hold).add_edge(hold, linger).build()
    manager = CheckpointManager()
    first = await InProcessExecution.stream(workflow, "kelp", manager)
    async for event in first.run.watch_stream():
        if isinstance(event, holdfast.WorkflowOutputEvent):
            break
    await soon(begun.wait())
    checkpoint = first.checkpoints[0]
    with pytest.raises(RunTaken):
        await resume(workflow, checkpoint, manager, first.run.run_id)
    made = await soon(resume(workflow, checkpoint, manager, first.run.run_id, take_over=True))
    assert (await soon(run_of(made).wait_for_completion())).outputs == ["kelp", "kelp again"]
    gate.set()
    with pytest.raises(RunTaken):
        await soon(first.run.wait_for_completion())


# Summaries


async def test_an_info_has_a_summary_that_says_what_it_does_not_know() -> None:
    """A list of infos comes from events and runs; only stored checkpoints know who gets a message next."""
    manager = CheckpointManager()
    run = await InProcessExecution.run(shouting(), "kelp", manager)
    for info in run.checkpoints:
        summary = RequestInfoExecutor.checkpoint_summary(info)
        stored = RequestInfoExecutor.checkpoint_summary(await manager.load(info))
        for known in ("checkpoint_id", "iteration_count", "timestamp", "status"):
            assert getattr(summary, known) == getattr(stored, known)
        for unknown in ("targets", "executor_states", "pending_requests"):
            assert isinstance(getattr(stored, unknown), list)
            with pytest.raises(
                NotLoaded, match=rf"^{unknown} .*await storage\.load\('{info.checkpoint_id[:12]}"
            ):
                getattr(summary, unknown)
        assert summary == info.summary()
        assert summary != stored
        assert repr(summary).startswith(
            f"CheckpointSummary(checkpoint_id='{info.checkpoint_id}', iteration_count="
        )
        assert "targets" in repr(stored)
        assert "targets" not in repr(summary)
        with pytest.raises(AttributeError):
            _ = summary.nothing
