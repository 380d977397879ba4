"""The workflow stores of the multi-agent builder, as Holdfast has them, for its two steps: draft and review.

Agents stand as plain executors here: which store keeps the progress does not depend on what does the work.
"""

from pathlib import Path

import pytest

from holdfast import (
    CheckpointSavedEvent,
    CheckpointStorage,
    ExecutorFailed,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowStartedEvent,
    executor,
)
from holdfast.compat import MultiAgentCheckpointRetention
from tests.programs import run as run_script

away: list[bool] = []
"""While something is in here, the reviewer is away."""
drafted: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    away.clear()
    drafted.clear()


@executor(id="draft")
async def draft(topic: str, ctx: WorkflowContext[str]) -> str:
    drafted.append(topic)
    await ctx.set_shared_state("draft", f"On {topic}")
    return "draft"


@executor(id="review")
async def review(key: str, ctx: WorkflowContext[None, str]) -> str:
    if away:
        raise ConnectionError("the reviewer is away")
    return f"{await ctx.get_shared_state(key)}, reviewed"


def durable_review(storage: CheckpointStorage | None, retention: Retention | None = None) -> Workflow:
    builder = WorkflowBuilder(name="DurableReview").set_start_executor(draft).add_edge(draft, review)
    if retention is not None:
        builder = builder.with_retention(retention)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


async def test_checkpointing_is_opt_in() -> None:
    run = await durable_review(None).start("kelp")
    events = [event async for event in run.watch_stream()]
    assert run.checkpoints == []
    assert not any(isinstance(event, CheckpointSavedEvent) for event in events)


async def test_the_store_in_memory_keeps_the_progress_of_short_lived_runs() -> None:
    storage = InMemoryCheckpointStorage()
    away.append(True)
    with pytest.raises(ExecutorFailed, match="the reviewer is away"):
        await durable_review(storage).run("kelp", run_id="article")
    away.clear()
    run = await durable_review(storage).resume(run_id="article")
    assert (await run.wait_for_completion()).outputs == ["On kelp, reviewed"]
    assert drafted == ["kelp"]


PROGRAM = """
import asyncio
import os
import sys

from holdfast import FileCheckpointStorage, WorkflowBuilder, WorkflowContext, executor


@executor(id="draft")
async def draft(topic: str, ctx: WorkflowContext[str]) -> str:
    await ctx.set_shared_state("draft", f"On {topic}")
    return "draft"


@executor(id="review")
async def review(key: str, ctx: WorkflowContext[None, str]) -> str:
    os._exit(7)  # as a power cut would: nothing is cleaned up


async def main():
    storage = FileCheckpointStorage("App_Data/workflows")
    builder = WorkflowBuilder(name="DurableReview").set_start_executor(draft).add_edge(draft, review)
    await builder.with_checkpointing(storage).build().run("kelp", run_id="article")


asyncio.run(main())
"""


async def test_the_store_of_json_files_survives_a_restart(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(PROGRAM, encoding="utf-8")
    died = run_script(script, tmp_path)
    assert (died.returncode, died.stderr) == (7, "")
    folder = tmp_path / "App_Data" / "workflows"
    assert any(path.suffix == ".json" for path in folder.rglob("*"))

    async with FileCheckpointStorage(folder) as storage:
        (interrupted,) = await storage.list_runs(interrupted=True)
        assert interrupted.run_id == "article"
        run = await durable_review(storage).resume(run_id="article")
        result = await run.wait_for_completion()
    assert (result.outputs, result.status) == (["On kelp, reviewed"], RunStatus.COMPLETED)
    assert drafted == [], "the draft of the process that died is used"


async def test_saving_is_no_event_that_others_depend_on() -> None:
    """The events of a run are the same with and without a store, but for those that tell of checkpoints."""
    told = []
    for storage in (None, InMemoryCheckpointStorage()):
        run = await durable_review(storage).start("kelp")
        events = [event async for event in run.watch_stream()]
        told.append([type(event) for event in events if not isinstance(event, CheckpointSavedEvent)])
        assert isinstance(events[0], WorkflowStartedEvent)
        assert isinstance(events[-1], WorkflowCompletedEvent)
    assert told[0] == told[1]


RETENTIONS = [
    (MultiAgentCheckpointRetention.LATEST_ONLY, Retention.latest_only(), 1),
    (MultiAgentCheckpointRetention.FULL_HISTORY, Retention.full_history(), 4),
]


@pytest.mark.parametrize(("named", "natural", "kept"), RETENTIONS, ids=["LatestOnly", "FullHistory"])
async def test_the_store_of_json_files_keeps_the_latest_checkpoint_or_all(
    tmp_path: Path, named: Retention, natural: Retention, kept: int
) -> None:
    assert named == natural
    async with FileCheckpointStorage(tmp_path / "App_Data" / "workflows", retention=named) as storage:
        result = await durable_review(storage).run("kelp", run_id="article")
        assert result.outputs == ["On kelp, reviewed"]
        there = await storage.list_checkpoints(run_id="article")
        latest = await storage.get_latest(run_id="article")
    assert len(there) == kept
    assert latest is not None
    assert there[-1].checkpoint_id == latest.checkpoint_id


@pytest.mark.parametrize(("named", "natural", "kept"), RETENTIONS, ids=["LatestOnly", "FullHistory"])
async def test_the_builder_may_say_what_is_kept(named: Retention, natural: Retention, kept: int) -> None:
    other = next(one for one, _, _ in RETENTIONS if one != named)
    storage = InMemoryCheckpointStorage(retention=other)
    await durable_review(storage, named).run("kelp", run_id="article")
    assert len(await storage.list_checkpoints(run_id="article")) == kept


async def test_normal_durability_needs_only_the_latest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "App_Data" / "workflows"
    away.append(True)
    async with FileCheckpointStorage(folder, retention=MultiAgentCheckpointRetention.LATEST_ONLY) as storage:
        with pytest.raises(ExecutorFailed, match="the reviewer is away"):
            await durable_review(storage).run("kelp", run_id="article")
        await storage.prune()
    away.clear()
    async with FileCheckpointStorage(folder) as storage:
        run = await durable_review(storage).resume(run_id="article")
        assert (await run.wait_for_completion()).outputs == ["On kelp, reviewed"]
        assert (await storage.verify()).ok
    assert drafted == ["kelp"]
