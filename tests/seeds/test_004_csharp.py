"""Every C# listing of "Checkpointing and Resuming Workflows" in its Python form, and what that page says about it."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointInfo,
    CheckpointNotFound,
    CheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RequestInfoEvent,
    RequestInfoExecutor,
    RunStatus,
    SuperStepStartedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowEvent,
    WorkflowOutputEvent,
)
from holdfast.compat import (
    Checkpointed,
    CheckpointManager,
    ExternalRequest,
    ExternalResponse,
    InProcessExecution,
    StreamingRun,
)
from tests.programs import ROOT
from tests.programs import run as run_script
from tests.seeds.csharp import (
    FOUND,
    GUESSES,
    SUPERSTEPS,
    TARGET,
    JudgeExecutor,
    NumberSignal,
    WorkflowHelper,
    check_all_are_run,
)
from tests.seeds.listing_runner import listing, run_listing
from tests.seeds.storages import OpenStorage
from tests.support.parts import FileStore


def test_every_listing_is_run_here() -> None:
    check_all_are_run("004", 12, Path(__file__))


async def started(storage: CheckpointStorage) -> Checkpointed[StreamingRun]:
    workflow = await WorkflowHelper.get_workflow()
    return await InProcessExecution.stream(workflow, NumberSignal.INIT, storage)


async def finished(storage: CheckpointStorage) -> Checkpointed[StreamingRun]:
    run = await started(storage)
    assert (await run.run.wait_for_completion()).outputs == [FOUND]
    return run


def ends(checkpoints: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Those at the end of a superstep, which the page collects from the events."""
    return [checkpoint for checkpoint in checkpoints if checkpoint.phase == "end"]


async def begun(run: StreamingRun) -> list[int]:
    """The supersteps that a run went through since it was started, resumed or restored."""
    return [event.superstep async for event in run.watch_stream() if isinstance(event, SuperStepStartedEvent)]


# Key components


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


async def test_01_the_default_manager_is_in_memory_and_there_is_one(tmp_path: Path) -> None:
    frames = [
        await run_listing("csharp/004_01_checkpoint_manager", store=tmp_path, custom_options=None)
        for _ in range(2)
    ]
    assert frames[0]["checkpoint_manager"] is frames[1]["checkpoint_manager"]
    assert files(tmp_path) == []


async def test_01_a_json_manager_keeps_documents_that_survive(tmp_path: Path) -> None:
    frame = await run_listing("csharp/004_01_checkpoint_manager", store=tmp_path, custom_options=None)
    manager = frame["json_checkpoint_manager"]
    run = await finished(manager)
    await manager.close()
    assert any(name.endswith(".json") for name in files(tmp_path))

    given = {"store": FileStore(tmp_path), "custom_options": [NumberSignal]}
    again = (await run_listing("csharp/004_01_checkpoint_manager", **given))["json_checkpoint_manager"]
    assert await again.list_checkpoints() == run.checkpoints
    await again.close()


async def test_02_a_run_with_checkpointing_enabled() -> None:
    frame = await run_listing(
        "csharp/004_02_enabling_checkpointing", WorkflowHelper=WorkflowHelper, NumberSignal=NumberSignal
    )
    run = frame["checkpointed_run"].run
    assert (await run.wait_for_completion()).outputs == [FOUND]
    kept = await CheckpointManager.default.list_checkpoints(run_id=run.run_id)
    assert len(kept) == 2 * SUPERSTEPS


# State persistence


async def test_03_the_listing_guesses_in_the_middle_of_its_bounds() -> None:
    frame = await run_listing("csharp/004_03_executor_state", NumberSignal=NumberSignal)
    guess = frame["GuessNumberExecutor"].bind(lower_bound=40, upper_bound=44)
    workflow = WorkflowBuilder(name="Guess").set_start_executor(guess).add_edge(guess, JudgeExecutor).build()
    assert (await workflow.run(NumberSignal.INIT)).outputs == [f"{TARGET} found in 1 tries"]


async def test_03_the_bounds_are_in_each_checkpoint_and_come_back(open_again: OpenStorage) -> None:
    run = await finished(open_again())
    bounds = []
    for checkpoint in ends(run.checkpoints)[::2]:
        states = (await open_again().load(checkpoint)).executor_states
        bounds.append(states["GuessNumber"]["GuessNumberExecutor.State"])
    assert [(low + high) // 2 for low, high in bounds] == GUESSES
    assert {type(pair) for pair in bounds} == {tuple}

    for checkpoint in run.checkpoints:
        workflow = await WorkflowHelper.get_workflow()
        resumed = await workflow.run_from_checkpoint(checkpoint, open_again())
        assert resumed.outputs == [FOUND], f"from {checkpoint!r}"


async def test_04_checkpoints_are_created_at_each_superstep(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await started(storage)
    frame = await run_listing("csharp/004_04_automatic_checkpoint_creation", checkpointed_run=run)
    assert frame["checkpoints"] == ends(run.checkpoints)
    lines = [f"Checkpoint created at step {step}." for step in range(1, SUPERSTEPS + 1)]
    lines.insert(-1, f"Workflow completed with result: {FOUND}")
    assert capsys.readouterr().out.splitlines() == lines


# Working with checkpoints


async def test_05_checkpoint_information(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await finished(storage)
    frame = await run_listing(
        "csharp/004_05_accessing_checkpoint_information", checkpointed_run=run, checkpoints=run.checkpoints
    )
    listed = frame["all_checkpoints"]
    assert listed == await storage.list_checkpoints()
    assert frame["latest_checkpoint"] == listed[-1] == await storage.get_latest()

    printed = re.findall(
        r"Checkpoint ID: (\w+)\nStep Number: (\d+)\nParent ID: (\w+)\n", capsys.readouterr().out
    )
    parents = ["None", *(checkpoint.checkpoint_id for checkpoint in listed[:-1])]
    steps = [str(step) for step in range(1, SUPERSTEPS + 1) for _ in ("start", "end")]
    ids = [checkpoint.checkpoint_id for checkpoint in listed]
    assert printed == list(zip(ids, steps, parents, strict=True))


async def test_06_a_checkpoint_is_looked_up_with_its_values(tmp_path: Path) -> None:
    manager = CheckpointManager.create_file_storage(tmp_path)
    run = await finished(manager)
    checkpoint = ends(run.checkpoints)[2]
    frame = await run_listing(
        "csharp/004_06_checkpoint_storage",
        checkpoint_manager=manager,
        run_id=run.run.run_id,
        checkpoint=checkpoint,
    )
    assert frame["checkpoint_info"] == checkpoint
    assert type(frame["checkpoint_info"]) is CheckpointInfo
    (message,) = frame["restored_checkpoint"].messages
    assert (message.target_id, message.data) == ("Judge", GUESSES[1])
    assert len(await manager.list_checkpoints()) == 2 * SUPERSTEPS, "nothing was committed again"
    await manager.close()


async def test_06_a_checkpoint_of_another_run_or_manager_is_refused() -> None:
    manager, other = CheckpointManager(), CheckpointManager()
    run, stranger = await finished(manager), await finished(other)
    checkpoint = run.checkpoints[0]
    for call in (manager.commit_checkpoint, manager.lookup_checkpoint):
        with pytest.raises(InvalidArgument, match=f"belongs to run '{run.run.run_id}'"):
            await call(stranger.run.run_id, checkpoint)
    for call in (other.commit_checkpoint, other.lookup_checkpoint):
        with pytest.raises(CheckpointNotFound):
            await call(run.run.run_id, checkpoint)


# Resuming


@pytest.mark.parametrize("index", [0, 5, SUPERSTEPS - 2])
async def test_07_streaming_resume(
    index: int, open_again: OpenStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await finished(open_again())
    await run_listing(
        "csharp/004_07_streaming_resume",
        workflow=await WorkflowHelper.get_workflow(),
        checkpoints=ends(run.checkpoints),
        checkpoint_index=index,
        checkpoint_manager=open_again(),
        run_id=run.run.run_id,
    )
    supersteps = range(index + 2, SUPERSTEPS + 1)
    lines = [f"Executor {'GuessNumber' if step % 2 else 'Judge'} completed." for step in supersteps]
    assert capsys.readouterr().out.splitlines() == [*lines, f"Workflow completed with result: {FOUND}"]


async def test_07_the_id_of_another_run_is_refused_and_nothing_happens(storage: CheckpointStorage) -> None:
    run = await finished(storage)
    workflow = await WorkflowHelper.get_workflow()
    saved = run.checkpoints[3]
    for resume in (
        InProcessExecution.resume,
        InProcessExecution.resume_stream,
        InProcessExecution.resume_streaming,
    ):
        with pytest.raises(InvalidArgument, match="not to 'another'; give that run's id, or leave it out"):
            await resume(workflow, saved, storage, "another")
    assert await storage.list_checkpoints() == run.checkpoints


async def test_08_non_streaming_resume(open_again: OpenStorage) -> None:
    run = await finished(open_again())
    frame = await run_listing(
        "csharp/004_08_non_streaming_resume",
        workflow=await WorkflowHelper.get_workflow(),
        saved_checkpoint=run.checkpoints[7],
        checkpoint_manager=open_again(),
        run_id=run.run.run_id,
    )
    assert frame["result"].outputs == [FOUND]
    assert frame["result"].status is RunStatus.COMPLETED
    assert await begun(frame["resumed_run"].run) == list(range(5, SUPERSTEPS + 1))


async def test_09_in_place_restoration(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await started(storage)
    made = [event async for event in run.run.watch_stream()]
    assert [event.data for event in made if isinstance(event, WorkflowOutputEvent)] == [FOUND]
    saved = run.checkpoints[5]

    await run_listing("csharp/004_09_in_place_restoration", checkpointed_run=run, saved_checkpoint=saved)

    assert capsys.readouterr().out == f"Resumed workflow result: {FOUND}\n"
    assert (await run.run.wait_for_completion()).status is RunStatus.COMPLETED
    assert await begun(run.run) == list(range(4, SUPERSTEPS + 1)), "only what follows the checkpoint"


async def test_10_a_new_workflow_instance_goes_on(
    open_again: OpenStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await finished(open_again())
    frame = await run_listing(
        "csharp/004_10_new_workflow_instance",
        WorkflowHelper=WorkflowHelper,
        saved_checkpoint=run.checkpoints[9],
        checkpoint_manager=open_again(),
        original_run_id=run.run.run_id,
    )
    assert capsys.readouterr().out == f"Rehydrated workflow result: {FOUND}\n"
    rehydrated = frame["new_checkpointed_run"].run
    assert (await rehydrated.wait_for_completion()).run_id == run.run.run_id
    assert await begun(rehydrated) == list(range(6, SUPERSTEPS + 1))


# A person who guesses


class Person:
    """Guesses as the executor of the other listings does, by what the judge says."""

    def __init__(self, last: int | None = None) -> None:
        self.lower, self.upper = 1, 100
        self.last = last
        self.guesses: list[int] = []

    def __call__(self, request: ExternalRequest) -> ExternalResponse:
        match request.data:
            case NumberSignal.ABOVE if self.last is not None:
                self.upper = self.last - 1
            case NumberSignal.BELOW if self.last is not None:
                self.lower = self.last + 1
        self.last = (self.lower + self.upper) // 2
        self.guesses.append(self.last)
        return request.create_response(self.last)


def asking() -> Workflow:
    ask = RequestInfoExecutor(id="GuessNumber", response_type=int)
    judge = JudgeExecutor()
    return (
        WorkflowBuilder(name="AskNumber")
        .set_start_executor(ask)
        .add_edge(ask, judge)
        .add_edge(judge, ask)
        .build()
    )


async def test_11_a_person_is_asked_and_asked_again_after_going_back(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    run = await InProcessExecution.stream(asking(), NumberSignal.INIT, storage)
    person, again = Person(), Person(last=GUESSES[0])
    outputs = []

    async def remaining(event: WorkflowEvent) -> None:
        match event:
            case RequestInfoEvent():
                await run.run.send_response(again(event.request))
            case WorkflowOutputEvent():
                outputs.append(event.data)

    frame = await run_listing(
        "csharp/004_11_human_in_the_loop",
        checkpointed_run=run,
        handle_external_request=person,
        handle_remaining=remaining,
    )

    assert person.guesses == GUESSES
    *interactions, last = capsys.readouterr().out.splitlines()
    assert last == f"Workflow completed: {FOUND}"
    assert interactions == ["Checkpoint created after human interaction."] * len(frame["checkpoints"])
    selected = frame["checkpoints"][1]
    assert (selected.superstep, selected.message_count) == (2, 1), (
        "the first guess is on its way to the judge"
    )
    assert again.guesses == GUESSES[1:]
    assert outputs == [FOUND], "the judge went back with the run: it counted seven tries, not more"


async def test_11_the_questions_that_wait_are_in_the_checkpoint() -> None:
    storage = InMemoryCheckpointStorage()
    run = await InProcessExecution.stream(asking(), NumberSignal.INIT, storage)
    waiting = await run.run.wait_for_completion()
    assert waiting.status is RunStatus.WAITING
    assert run.latest_checkpoint is not None
    (asked,) = (await storage.load(run.latest_checkpoint)).pending_requests
    assert (asked.data, asked.response_type) == (NumberSignal.INIT, int)

    other = await InProcessExecution.resume_stream(asking(), run.latest_checkpoint, storage)
    await other.run.send_response(ExternalResponse(asked.request_id, TARGET))
    assert (await other.run.wait_for_completion()).outputs == [f"{TARGET} found in 1 tries"]


# The complete example


COLLECTED = [
    line
    for step in range(1, SUPERSTEPS)
    for line in (
        f"Executor {'GuessNumber' if step % 2 else 'Judge'} completed.",
        f"Checkpoint {step} created.",
    )
]
PRINTED = [
    "Starting workflow with checkpointing...",
    *COLLECTED,
    "Executor Judge completed.",
    f"Workflow completed: {FOUND}",
    f"Total checkpoints created: {SUPERSTEPS - 1}",
    "Resuming from checkpoint 6...",
    f"Resumed workflow result: {FOUND}",
    "Rehydrating from checkpoint 4 with new workflow instance...",
    f"Rehydrated workflow result: {FOUND}",
]


async def test_12_complete_example(capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {"WorkflowHelper": WorkflowHelper, "NumberSignal": NumberSignal}
    frame = await run_listing("csharp/004_12_complete_example", **given)
    await frame["CheckpointingExample"].run()
    assert capsys.readouterr().out.splitlines() == PRINTED


def test_12_complete_example_as_a_program(tmp_path: Path) -> None:
    prelude = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    prelude += "from tests.seeds.csharp import NumberSignal, WorkflowHelper\n"
    script = tmp_path / "complete_example.py"
    script.write_text(prelude + listing("csharp/004_12_complete_example"), encoding="utf-8")
    done = run_script(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == PRINTED
