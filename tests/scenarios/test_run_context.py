"""``run_context``: values for handlers, given to each start and resume, and never stored."""

import copy
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    FileCheckpointStorage,
    HoldfastError,
    Host,
    InMemoryCheckpointStorage,
    NotCheckpointable,
    RequestInfoExecutor,
    RunContextMissing,
    RunInfo,
    RunStatus,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
)
from holdfast import host as host_module
from holdfast.testing import VirtualTime, assert_resumable
from tests.support.durable import files_with
from tests.support.runs import cause_of_failure, soon, taken

SECRET = "token-that-no-store-may-have"


@executor
async def who(text: str, ctx: WorkflowContext[str, str]) -> str:
    await ctx.yield_output(f"first {ctx.run_context['user']}")
    return text


@executor
async def again(yes: bool, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"then {ctx.run_context['user']}")


ask = RequestInfoExecutor(id="ask", response_type=bool)
QUESTION = "ask.2.1"


def asking(storage: CheckpointStorage | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Asking").set_start_executor(who).add_chain([who, ask, again])
    return (builder.with_checkpointing(storage) if storage is not None else builder).build()


def alone(work: Any) -> Workflow:
    return WorkflowBuilder(name="Alone").set_start_executor(work).build()


async def test_every_way_to_start() -> None:
    workflow = alone(who)
    given = {"user": "Kim"}
    assert (await soon(workflow.run("x", run_context=given))).outputs == ["first Kim", "x"]
    run = await soon(workflow.start("x", run_context=given))
    assert (await soon(run.wait_for_completion())).outputs == ["first Kim", "x"]
    async with workflow.run_stream("x", run_context=given) as stream:
        assert "first Kim" in [getattr(event, "data", None) async for event in stream]


def test_run_sync() -> None:
    assert alone(who).run_sync("x", run_context={"user": "Kim"}).outputs == ["first Kim", "x"]


async def test_every_way_to_go_on() -> None:
    workflow = asking(InMemoryCheckpointStorage())
    run = await soon(workflow.start("x", "r", run_context={"user": "Kim"}))
    await soon(run.wait_for_completion())
    asked = run.latest_checkpoint
    assert asked is not None
    answers = {QUESTION: True}
    fork = await soon(workflow.fork(asked, run_id="f", run_context={"user": "Fox"}))
    await fork.respond(answers)
    assert (await soon(fork.wait_for_completion())).outputs == ["first Kim", "then Fox"]
    result = await soon(workflow.run_from_checkpoint(asked, responses=answers, run_context={"user": "Ann"}))
    assert result.outputs == ["first Kim", "then Ann"]
    stream = workflow.run_stream_from_checkpoint(asked, responses=answers, run_context={"user": "Bob"})
    assert "then Bob" in [getattr(event, "data", None) async for event in stream]
    resumed = await soon(workflow.resume(asked, responses=answers, run_context={"user": "Zoe"}))
    assert (await soon(resumed.wait_for_completion())).outputs == ["first Kim", "then Zoe"]


@pytest.mark.parametrize("stored", [False, True])
async def test_run_that_is_held_keeps_what_it_was_given(stored: bool) -> None:
    workflow = asking(InMemoryCheckpointStorage() if stored else None)
    result = await soon(workflow.run("x", run_context={"user": "Kim"}))
    assert (await soon(result.respond({QUESTION: True}))).outputs == ["first Kim", "then Kim"]


async def test_going_back_keeps_what_was_given() -> None:
    workflow = asking(InMemoryCheckpointStorage())
    run = await soon(workflow.start("x", run_context={"user": "Kim"}))
    await soon(run.wait_for_completion())
    await soon(run.restore_checkpoint(run.checkpoints[0]))
    assert (await soon(run.wait_for_completion())).outputs == ["first Kim"]


async def test_attached_run_gets_it_if_nobody_drives_it() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    await soon(workflow.run("x", "r", run_context={"user": "Kim"}))
    await storage.respond("r", {QUESTION: True})
    run = await soon(workflow.start("x", "r", if_exists="attach", run_context={"user": "Ann"}))
    assert (await soon(run.wait_for_completion())).outputs == ["first Kim", "then Ann"]


async def test_resume_without_it_is_a_clear_error() -> None:
    workflow = asking(InMemoryCheckpointStorage())
    await soon(workflow.run("x", "r", run_context={"user": "Kim"}))
    run = await soon(workflow.resume(run_id="r", responses={QUESTION: True}, run_context={"other": 1}))
    with pytest.raises(ExecutorFailed) as caught:
        await soon(run.wait_for_completion())
    error = caught.value.__cause__
    assert isinstance(error, RunContextMissing)
    assert isinstance(error, HoldfastError)
    assert error.name == "user"
    for part in ("'user'", "run_context=", "resume", "Host"):
        assert part in str(error)
    assert str(copy.copy(error)) == str(error)
    # It is as it was: with what it needs, it goes on.
    mended = await soon(workflow.resume(run_id="r", run_context={"user": "Ann"}))
    assert (await soon(mended.wait_for_completion())).outputs == ["first Kim", "then Ann"]


async def test_it_is_a_read_only_mapping() -> None:
    client = object()
    given: dict[str, Any] = {"client": client}

    @executor
    async def look(text: str, ctx: WorkflowContext[None, Any]) -> None:
        context = ctx.run_context
        assert isinstance(context, Mapping)
        assert context["client"] is client, "the value itself, not a copy"
        assert (list(context), len(context), "client" in context, "late" in context) == (
            ["client"],
            1,
            True,
            False,
        )
        assert context.get("late", 5) == 5
        assert SECRET not in repr(context)
        with pytest.raises(KeyError):
            context["late"]
        with pytest.raises(TypeError):
            context["new"] = 1  # type: ignore[index]
        with pytest.raises(TypeError, match="never stored"):
            pickle.dumps(context)

    run = await soon(alone(look).start("x", run_context=given))
    given["late"] = SECRET
    await soon(run.wait_for_completion())


@pytest.mark.parametrize("stored", [False, True])
async def test_it_cannot_be_sent(stored: bool) -> None:
    @executor
    async def leak(text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(ctx.run_context)

    builder = WorkflowBuilder(name="Leak").set_start_executor(leak)
    if stored:
        builder = builder.with_checkpointing(InMemoryCheckpointStorage())
    await cause_of_failure(builder.build(), "x", NotCheckpointable)


@pytest.mark.parametrize("wrong", [5, "user", ["user"], {5: "user"}])
async def test_wrong_contexts_are_refused_before_anything_happens(wrong: Any) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    with pytest.raises(WrongType, match="run_context"):
        await workflow.start("x", run_context=wrong)
    with pytest.raises(WrongType, match="run_context"):
        workflow.run_stream("x", run_context=wrong)
    assert await storage.list_runs() == []


async def test_nested_workflows_see_the_same() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(who).build()
    workflow = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="in")).build()
    assert (await soon(workflow.run("x", run_context={"user": "Kim"}))).outputs == ["first Kim", "x"]


class Restored(Executor):
    checkpointed = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.client: Any = None

    transient = ("client",)

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, Any]) -> int | None:
        self.seen += 1
        if number:
            return number - 1
        await ctx.yield_output((self.client, self.seen))
        return None

    async def on_checkpoint_restored(self, ctx: WorkflowContext) -> None:
        self.client = ctx.run_context["client"]


async def test_executor_that_is_restored_sees_it() -> None:
    workflow = (
        WorkflowBuilder(name="Restored")
        .set_start_executor(Restored)
        .add_edge(Restored, Restored)
        .with_checkpointing(InMemoryCheckpointStorage())
        .build()
    )
    run = await soon(workflow.start(2))
    await soon(run.wait_for_completion())
    result = await soon(workflow.run_from_checkpoint(run.checkpoints[2], run_context={"client": "new"}))
    assert result.outputs[-1] == ("new", 3)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_no_store_no_event_and_no_export_has_it(kind: str, tmp_path: Path) -> None:
    storage: CheckpointStorage = (
        FileCheckpointStorage(tmp_path / "runs")
        if kind == "file"
        else SqliteCheckpointStorage(tmp_path / "r.db")
    )
    workflow = asking(storage)
    given = {"user": "Kim", SECRET: SECRET, "token": SECRET}
    run = await soon(workflow.start("x", "r", run_context=given))
    events = await soon(taken(run))
    await soon(storage.export_run("r", tmp_path / "waiting.export"))
    await run.respond({QUESTION: True})
    events += await soon(taken(run))
    fork = await soon(workflow.fork(run.checkpoints[2], run_id="f", run_context=given))
    events += await soon(taken(fork))
    failed = await soon(workflow.start("x", "failed", run_context={SECRET: SECRET}))
    with pytest.raises(ExecutorFailed):
        await soon(failed.wait_for_completion())
    assert (await storage.list_runs(status=RunStatus.FAILED))[0].run_id == "failed"
    await soon(storage.export_run("r", tmp_path / "over.export"))
    await storage.close()
    assert SECRET not in repr(events)
    assert files_with(SECRET, tmp_path) == []


async def test_host_takes_a_factory() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    for run_id in ("a", "b"):
        await soon(workflow.run("x", run_id, run_context={"user": "Kim"}))
        await storage.respond(run_id, {QUESTION: True})
    infos: list[RunInfo] = []

    async def context_of(run: RunInfo) -> dict[str, Any]:
        infos.append(run)
        return {"user": f"host of {run.run_id}"}

    host = Host(storage, workflow, run_context=context_of)
    assert await soon(host.wake_due()) == 2
    assert {(info.run_id, info.workflow_name, info.status) for info in infos} == {
        ("a", "Asking", RunStatus.WAITING),
        ("b", "Asking", RunStatus.WAITING),
    }
    for run_id in ("a", "b"):
        latest = await storage.get_latest(run_id=run_id)
        assert latest is not None
        assert list((await storage.load(latest.checkpoint_id)).outputs) == [
            "first Kim",
            f"then host of {run_id}",
        ]


async def test_factory_of_a_host_that_raises_leaves_the_run_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_module, "_CLAIM_MICROSECONDS", 1)  # else others wait until the claim is over
    storage = InMemoryCheckpointStorage()
    workflow = asking(storage)
    await soon(workflow.run("x", "r", run_context={"user": "Kim"}))
    await storage.respond("r", {QUESTION: True})

    def fail(run: RunInfo) -> dict[str, Any]:
        raise ValueError("no vault")

    host = Host(storage, workflow, run_context=fail)
    await soon(host.wake_due())
    assert isinstance(host.problems["r"], ValueError)
    assert "run_context" in host.problems["r"].__notes__[0]
    assert (await storage.list_runs())[0].status is RunStatus.WAITING
    assert await soon(host.wake_due()) == 0, "it leaves the run to others for a while"
    mended = Host(storage, workflow, run_context=lambda run: {"user": "Ann"})
    assert await soon(mended.wake_due()) == 1
    assert (await storage.list_runs())[0].status is RunStatus.COMPLETED


async def test_host_wants_a_function() -> None:
    with pytest.raises(WrongType, match="run_context"):
        Host(InMemoryCheckpointStorage(), asking(), run_context={"user": "Kim"})  # type: ignore[arg-type]


async def test_run_that_sleeps_is_woken_with_what_its_object_has() -> None:
    @executor
    async def sleepy(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.sleep(3_600)
        await ctx.yield_output(ctx.run_context["user"])

    with VirtualTime() as time:
        workflow = (
            WorkflowBuilder(name="Sleepy")
            .set_start_executor(sleepy)
            .with_checkpointing(InMemoryCheckpointStorage())
            .build()
        )
        result = await soon(time.pass_until(workflow.run("x", run_context={"user": "Kim"})))
    assert result.outputs == ["Kim"]


async def test_assert_resumable_gives_it_to_each_run() -> None:
    assert await soon(assert_resumable(lambda: alone(who), "x", run_context={"user": "Kim"})) == 4
