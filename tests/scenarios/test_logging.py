"""Log records say for which run, workflow and executor they were logged."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    Host,
    InMemoryCheckpointStorage,
    RunLogFilter,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from tests.support.runs import soon

logger = logging.getLogger("tests.shop")
Seen = tuple[str, str, str, str]


class Kept(logging.Handler):
    """Keeps the message and the fields of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.addFilter(RunLogFilter())

    def emit(self, record: Any) -> None:
        fields = record.holdfast_run_id, record.holdfast_workflow, record.holdfast_executor
        self.seen.append((record.getMessage(), *fields))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)


@executor(id="first")
async def first(text: str, ctx: WorkflowContext[str]) -> str:
    logger.info("first %s", text)
    await ctx.once("charge", lambda: logger.info("once"))

    async def later() -> None:
        await asyncio.sleep(0)
        logger.info("task")

    await asyncio.create_task(later())
    return text


@executor(id="second")
def second(text: str) -> str:
    logger.info("thread")
    return text


@executor(id="third")
async def third(text: str) -> str:
    await asyncio.sleep(0)
    logger.info("third")
    return text


def noting(text: str) -> bool:
    logger.info("condition")
    return True


def shop() -> Workflow:
    builder = WorkflowBuilder(name="Shop").set_start_executor(first)
    return builder.add_edge(first, second, condition=noting).add_edge(first, third).build()


async def test_records_of_handlers_have_their_run(kept: Kept) -> None:
    storage = InMemoryCheckpointStorage()
    logger.info("before")
    await soon(shop().run("x", run_id="r1", storage=storage))
    logger.info("after")
    of_first = [(text, "r1", "Shop", "first") for text in ("first x", "once", "task")]
    assert kept.seen[:5] == [("before", "", "", ""), *of_first, ("condition", "r1", "Shop", "")]
    assert sorted(kept.seen[5:-1]) == [("third", "r1", "Shop", "third"), ("thread", "r1", "Shop", "second")]
    assert kept.seen[-1] == ("after", "", "", "")


async def test_runs_side_by_side_are_apart(kept: Kept) -> None:
    storage = InMemoryCheckpointStorage()
    runs = [f"r{number}" for number in range(10)]
    await soon(asyncio.gather(*(shop().run(run, run_id=run, storage=storage) for run in runs)))
    assert sorted(found[:2] for found in kept.seen if found[0].startswith("first")) == [
        (f"first {run}", run) for run in runs
    ]
    assert {found[2] for found in kept.seen} == {"Shop"}


async def test_an_executor_of_a_nested_workflow_has_its_path(kept: Kept) -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(second).build()
    nested = WorkflowExecutor(inner, id="legal")
    await soon(WorkflowBuilder(name="Outer").set_start_executor(nested).build().run("x"))
    ((text, run_id, workflow, path),) = kept.seen
    assert (text, workflow) == ("thread", "Outer")
    assert run_id
    assert path.startswith("legal#")
    assert path.endswith("/second")


class Restored(Executor):
    checkpointed = ("seen",)

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        self.seen += 1
        if self.seen == 2:
            raise ConnectionError("nobody answers")
        await ctx.send_message(text)

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        logger.info("restored")


async def test_records_of_a_restore_have_their_run(kept: Kept, tmp_path: Path) -> None:
    builder = WorkflowBuilder(name="Restores").set_start_executor(Restored).add_edge(Restored, Restored)
    workflow = builder.build()
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        with pytest.raises(ExecutorFailed, match="nobody answers"):
            await workflow.run("x", run_id="r", storage=storage)
        run = await workflow.resume(run_id="r", storage=storage)
        logger.info("resumed")
        with pytest.raises(ExecutorFailed, match="nobody answers"):
            await run.wait_for_completion()
    assert kept.seen == [("restored", "r", "Restores", "Restored"), ("resumed", "", "", "")]


async def test_fields_that_a_record_has_stay(kept: Kept) -> None:
    logger.info("given", extra={"holdfast_run_id": "mine"})
    assert kept.seen == [("given", "mine", "", "")]


async def test_records_of_a_host_have_the_run_and_its_executor(caplog: pytest.LogCaptureFixture) -> None:
    """Also without the filter."""

    @executor(id="flaky")
    async def flaky(text: str, ctx: WorkflowContext[str, str]) -> str:
        await ctx.sleep(0.01)
        await ctx.send_message(text, target_id="flaky")
        raise ConnectionError("nobody answers")

    workflow = WorkflowBuilder(name="Flaky").set_start_executor(flaky).add_edge(flaky, flaky).build()
    storage = InMemoryCheckpointStorage()
    run = await workflow.start("x", run_id="r", storage=storage)
    async with asyncio.timeout(10):
        while run.status == "running":  # noqa: ASYNC110
            await asyncio.sleep(0)
    await run.close()
    with caplog.at_level(logging.INFO, "holdfast.host"):
        async with asyncio.timeout(10):
            while not caplog.records:
                await Host(storage, workflow).wake_due()
                await asyncio.sleep(0.01)
    (record,) = caplog.records
    fields = [vars(record)[f"holdfast_{name}"] for name in ("run_id", "workflow", "executor")]
    assert fields == ["r", "Flaky", "flaky"]
    assert record.exc_info is not None
    assert "nobody answers" in caplog.text
    assert "Traceback" in caplog.text
