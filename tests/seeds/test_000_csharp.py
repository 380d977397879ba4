"""Every C# listing of "State & Checkpoints" in its Python form, and what that page says about it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    ExecutorFailed,
    RequestInfoEvent,
    RequestInfoExecutor,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    executor,
)
from holdfast.compat import CheckpointManager, InProcessExecution
from tests.programs import run as run_script
from tests.seeds.csharp import check_all_are_run
from tests.seeds.listing_runner import LISTINGS, run_listing
from tests.seeds.storages import OpenStorage

PAYLOAD = "[Massive log payload...]"


def test_every_listing_is_run_here() -> None:
    check_all_are_run("000", 5, Path(__file__))


class Seen:
    """What the triage read; it can be away."""

    def __init__(self) -> None:
        self.logs: list[str] = []
        self.away = False

    def __call__(self, logs: str) -> None:
        if self.away:
            raise ConnectionError("the model is away")
        self.logs.append(logs)


async def builder(seen: Seen | None = None) -> WorkflowBuilder:
    frame = await run_listing("csharp/000_01_shared_state", seen=seen or Seen())
    fetch, triage = frame["FetchTelemetryExecutor"], frame["TriageAgentExecutor"]
    return WorkflowBuilder(name="IncidentTriage").set_start_executor(fetch).add_edge(fetch, triage)


# Shared state


async def test_01_the_payload_stays_in_shared_state_and_only_its_id_is_passed(
    open_again: OpenStorage,
) -> None:
    seen = Seen()
    run = await InProcessExecution.run_streaming(
        (await builder(seen)).build(), "checkout failures", open_again()
    )
    assert (await run.wait_for_completion()).outputs == ["PRIORITY: P0"]
    assert seen.logs == [PAYLOAD]

    _, fetched, *_ = run.checkpoints
    loaded = await open_again().load(fetched)
    (message,) = loaded.messages
    assert (message.target_id, len(message.data)) == ("TriageAgent", 32)
    assert loaded.scopes["IncidentLogs"] == {message.data: PAYLOAD}


async def test_01_requests_at_the_same_time_do_not_see_each_others_state(storage: CheckpointStorage) -> None:
    workflow = (await builder()).build()
    runs = [await InProcessExecution.run_streaming(workflow, f"{n}", storage) for n in range(3)]
    ids = set()
    for run in runs:
        assert (await run.wait_for_completion()).outputs == ["PRIORITY: P0"]
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        (log_id,) = latest.scopes["IncidentLogs"]
        ids.add(log_id)
    assert len(ids) == 3


# The checkpoint manager


async def test_02_a_checkpoint_is_saved_after_each_superstep(capsys: pytest.CaptureFixture[str]) -> None:
    frame = await run_listing("csharp/000_02_checkpoint_manager", workflow=(await builder()).build())

    manager = frame["checkpoint_manager"]
    listed = await manager.list_checkpoints(run_id=frame["run"].run_id)
    ends = [checkpoint for checkpoint in listed if checkpoint.phase == "end"]
    assert [checkpoint.superstep for checkpoint in ends] == [1, 2]
    assert capsys.readouterr().out.splitlines() == [
        f"[CHECKPOINT] Step complete. Saved state: {checkpoint.checkpoint_id}" for checkpoint in ends
    ]
    assert frame["run"].status is RunStatus.COMPLETED


# Executors that save their own state


async def syncing(storage: CheckpointStorage) -> Workflow:
    """The sync gets three reports, one after the other."""
    frame = await run_listing("csharp/000_03_checkpoint_aware_executor")
    sync = frame["TriageSyncExecutor"]

    @executor(id="reports")
    async def reports(message: str, ctx: WorkflowContext[str, str]) -> None:
        sent = await ctx.get_state() or 0
        await ctx.set_state(sent + 1)
        if sent < 3:
            await ctx.send_message(f"report {sent + 1}")
        else:
            await ctx.yield_output(message)

    return (
        WorkflowBuilder(name="Sync")
        .set_start_executor(reports)
        .add_edge(reports, sync)
        .add_edge(sync, reports)
        .with_checkpointing(storage)
        .build()
    )


async def test_03_the_count_is_saved_and_restored(open_again: OpenStorage) -> None:
    result = await (await syncing(open_again())).run("begin")
    assert (result.outputs, result.warnings) == (["Processed"], [])
    for checkpoint in await open_again().list_checkpoints(run_id=result.run_id):
        storage = open_again()
        resumed = await (await syncing(storage)).run_from_checkpoint(checkpoint.checkpoint_id)
        latest = await storage.get_latest(run_id=result.run_id)
        assert latest is not None
        states = (await storage.load(latest)).executor_states
        assert resumed.outputs == ["Processed"]
        assert states["TriageSync"]["TriageSyncState"] == 3, f"from {checkpoint!r}"


# Resuming on the same instance


async def test_04_a_paused_run_is_asked_again_and_goes_on(storage: CheckpointStorage) -> None:
    ask = RequestInfoExecutor(id="ask", response_type=str)
    workflow = WorkflowBuilder(name="Ask").set_start_executor(ask).build()
    run = await InProcessExecution.run_streaming(workflow, "Page whom?", storage)
    assert [e.data async for e in run.watch_stream() if isinstance(e, RequestInfoEvent)] == ["Page whom?"]

    events: list[WorkflowEvent] = []
    await run_listing("csharp/000_04_resuming_on_the_same_instance", run=run, handle=events.append)
    (asked,) = [event for event in events if isinstance(event, RequestInfoEvent)]
    await run.send_response(asked.request.create_response("Taylor"))
    assert (await run.wait_for_completion()).outputs == ["Taylor"]


async def test_04_a_finished_run_gives_its_result_again(storage: CheckpointStorage) -> None:
    seen = Seen()
    run = await InProcessExecution.run_streaming((await builder(seen)).build(), "checkout", storage)
    first = [event async for event in run.watch_stream()]

    again: list[WorkflowEvent] = []
    await run_listing("csharp/000_04_resuming_on_the_same_instance", run=run, handle=again.append)
    assert [[e.data for e in events if isinstance(e, WorkflowOutputEvent)] for events in (first, again)] == [
        ["PRIORITY: P0"],
        ["PRIORITY: P0"],
    ]
    assert seen.logs == [PAYLOAD], "nothing was run again"


# Rehydrating


async def rehydrated(folder: Path, built: WorkflowBuilder) -> dict[str, Any]:
    return await run_listing(
        "csharp/000_05_rehydrating_into_a_new_instance", {"/path/to/checkpoints": str(folder)}, builder=built
    )


async def test_05_a_new_instance_goes_on_and_fetches_nothing_again(tmp_path: Path) -> None:
    seen = Seen()
    seen.away = True
    manager = CheckpointManager.create_file_storage(tmp_path)
    run = await InProcessExecution.run_streaming(
        (await builder(seen)).build(), "checkout failures", manager, run_id="incident-17"
    )
    with pytest.raises(ExecutorFailed, match="the model is away"):
        await run.wait_for_completion()
    await manager.close()

    seen.away = False
    frame = await rehydrated(tmp_path, await builder(seen))
    events = [event async for event in frame["resumed_run"].watch_stream()]
    assert frame["resumed_run"].run_id == "incident-17"
    assert {event.superstep for event in events} == {1, 2}
    assert [e.data for e in events if isinstance(e, WorkflowOutputEvent)] == ["PRIORITY: P0"]
    assert seen.logs == [PAYLOAD]
    assert len(await frame["manager"].list_checkpoints()) == 4
    await frame["manager"].close()


SERVER = """
import asyncio
import os
import sys


def seen(logs):
    os._exit(7)  # as a power cut would: nothing is cleaned up


{executors}

from holdfast import WorkflowBuilder
from holdfast.compat import CheckpointManager, InProcessExecution


async def main():
    manager = CheckpointManager.create_file_storage("checkpoints")
    workflow = (
        WorkflowBuilder(name="IncidentTriage")
        .set_start_executor(FetchTelemetryExecutor)
        .add_edge(FetchTelemetryExecutor, TriageAgentExecutor)
        .build()
    )
    run = await InProcessExecution.run_streaming(workflow, "checkout failures", manager)
    await run.wait_for_completion()


asyncio.run(main())
"""


async def test_05_a_server_that_died_goes_on_in_another_process(tmp_path: Path) -> None:
    text = (LISTINGS / "csharp/000_01_shared_state.py.txt").read_text(encoding="utf-8")
    script = tmp_path / "server.py"
    script.write_text(SERVER.format(executors=text), encoding="utf-8")
    died = run_script(script, tmp_path)
    assert (died.returncode, died.stderr) == (7, "")

    seen = Seen()
    frame = await rehydrated(tmp_path / "checkpoints", await builder(seen))
    assert frame["last_cp"].superstep == 2
    result = await frame["resumed_run"].wait_for_completion()
    assert (result.outputs, seen.logs) == (["PRIORITY: P0"], [PAYLOAD])
    await frame["manager"].close()
