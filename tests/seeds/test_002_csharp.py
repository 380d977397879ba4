"""Every C# listing of the overview of checkpoints in its Python form, and what that page says about it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    InMemoryCheckpointStorage,
    RunStatus,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
)
from holdfast.compat import (
    Checkpointed,
    CheckpointManager,
    InProcessExecution,
    IWorkflowContext,
    StreamingRun,
)
from tests.seeds.csharp import FOUND, SUPERSTEPS, NumberSignal, WorkflowHelper, check_all_are_run
from tests.seeds.listing_runner import run_listing
from tests.seeds.storages import OpenStorage


def test_every_listing_is_run_here() -> None:
    check_all_are_run("002", 5, Path(__file__))


async def captured() -> dict[str, Any]:
    """The names that there are after the first listing: a run that is over, and its checkpoints."""
    workflow = await WorkflowHelper.get_workflow()
    return await run_listing("csharp/002_01_capturing", workflow=workflow, input=NumberSignal.INIT)


# Capturing


async def test_01_there_is_a_checkpoint_at_the_end_of_each_superstep() -> None:
    frame = await captured()
    checkpoints = frame["checkpoints"]
    assert [(cp.superstep, str(cp.phase)) for cp in checkpoints] == [
        (superstep, "end") for superstep in range(1, SUPERSTEPS + 1)
    ]
    assert isinstance(frame["checkpoint_manager"], CheckpointStorage)
    listed = await frame["checkpoint_manager"].list_checkpoints()
    assert [cp for cp in listed if cp.phase == "end"] == checkpoints


async def test_01_a_manager_of_ones_own_shares_nothing() -> None:
    first, second = await captured(), await captured()
    assert len(await first["checkpoint_manager"].list_runs()) == 1
    assert len(await second["checkpoint_manager"].list_runs()) == 1


async def test_01_any_storage_is_a_manager(storage: CheckpointStorage) -> None:
    workflow = await WorkflowHelper.get_workflow()
    run = await InProcessExecution.stream(workflow, NumberSignal.INIT, storage)
    assert (await run.run.wait_for_completion()).outputs == [FOUND]
    assert len(await storage.list_checkpoints()) == 2 * SUPERSTEPS


# Resuming


async def test_02_the_same_run_goes_on_from_its_sixth_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    frame = await captured()
    run: Checkpointed[StreamingRun] = frame["checkpointed_run"]
    before = run.run
    capsys.readouterr()

    await run_listing("csharp/002_02_resuming", **_given(frame, "checkpoints", "checkpointed_run"))

    assert capsys.readouterr().out == f"Workflow completed with result: {FOUND}\n"
    assert (run.run, run.run.status) == (before, RunStatus.COMPLETED)
    restored = [cp for cp in run.checkpoints if cp.cause == "restore"]
    assert [cp.parent_id for cp in restored] == [frame["checkpoints"][5].checkpoint_id]


# Rehydrating


async def test_03_a_workflow_built_anew_goes_on_from_the_sixth_checkpoint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame = await captured()
    new_workflow = await WorkflowHelper.get_workflow()
    given = _given(frame, "checkpoints", "checkpoint_manager")

    after = await run_listing("csharp/002_03_rehydrating", new_workflow=new_workflow, **given)

    assert capsys.readouterr().out == f"Workflow completed with result: {FOUND}\n"
    new_run, old_run = after["new_checkpointed_run"].run, frame["checkpointed_run"].run
    assert new_run is not old_run
    assert new_run.run_id == old_run.run_id, "it is the same run"
    events = [event async for event in new_run.watch_stream()]
    begun = [event.superstep for event in events if isinstance(event, SuperStepStartedEvent)]
    assert begun == list(range(7, SUPERSTEPS + 1)), "the first six supersteps are not run again"


# Executor states


async def collect(messages: list[str], context: IWorkflowContext[str, list[str]]) -> None:
    """The logic of the executor: four messages, then it gives them out."""
    if len(messages) < 4:
        await context.send_message(f"{messages[-1]}{len(messages)}")
    else:
        await context.yield_output(messages)


async def collecting(storage: CheckpointStorage, restores: bool = True) -> Workflow:
    """The executor of the two listings, built anew; the second adds the hook to the class of the first."""
    saving = (await run_listing("csharp/002_04_saving_executor_state", logic=collect))["CustomExecutor"]
    added = await run_listing("csharp/002_05_restoring_executor_state", IWorkflowContext=IWorkflowContext)
    hook = {"on_checkpoint_restored": added["on_checkpoint_restored"]} if restores else {}
    custom = type("CustomExecutor", (saving,), hook)
    builder = WorkflowBuilder(name="Custom").set_start_executor(custom).add_edge(custom, custom)
    return builder.with_checkpointing(storage).build()


MESSAGES = ["a", "a1", "a12", "a123"]


async def test_04_what_the_hook_saves_is_in_the_checkpoint(open_again: OpenStorage) -> None:
    storage = open_again()
    run = await (await collecting(storage)).start("a")
    assert (await run.wait_for_completion()).outputs == [MESSAGES]
    ends = [cp for cp in run.checkpoints if cp.phase == "end"]
    for number, checkpoint in enumerate(ends, 1):
        states = (await open_again().load(checkpoint)).executor_states
        assert states["CustomExecutor"] == {"CustomExecutorState": MESSAGES[:number]}


async def test_05_what_was_saved_is_restored(open_again: OpenStorage) -> None:
    result = await (await collecting(open_again())).run("a")
    for checkpoint in await open_again().list_checkpoints(run_id=result.run_id):
        workflow = await collecting(open_again())
        resumed = await workflow.run_from_checkpoint(checkpoint)
        assert resumed.outputs == [MESSAGES], f"from {checkpoint!r}"


async def test_05_without_the_hook_it_is_not() -> None:
    """That page says that the executor must restore what it saved; a test that could not tell would be none."""
    storage = InMemoryCheckpointStorage()
    run = await (await collecting(storage, restores=False)).start("a")
    assert (await run.wait_for_completion()).outputs == [MESSAGES]
    workflow = await collecting(storage, restores=False)
    assert (await workflow.run_from_checkpoint(run.checkpoints[2])).outputs != [MESSAGES]


async def test_the_default_manager_is_not_the_one_that_is_made() -> None:
    assert CheckpointManager() is not CheckpointManager.default
    assert CheckpointManager.default is CheckpointManager.default


def _given(frame: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: frame[name] for name in names}
