"""Every Python listing of the tutorial "Checkpointing and Resuming Workflows" runs, with another import line only."""

import ast
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidResponse,
    RequestInfoEvent,
    RequestInfoExecutor,
    RunStatus,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.programs import run
from tests.seeds.listing_runner import LISTINGS, compiled, listing, run_listing
from tests.seeds.storages import OpenStorage

NAMES = [path.name.removesuffix(".py.txt") for path in sorted(LISTINGS.glob("004_*.py.txt"))]


# The listings themselves


def test_there_are_eleven_listings_in_order() -> None:
    assert [name[:7] for name in NAMES] == [f"004_{number:02}_" for number in range(1, 12)]


@pytest.mark.parametrize("name", NAMES)
def test_each_listing_is_run_below(name: str) -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert re.search(rf'(run_listing|listing)\(\s*"{name}"', source)


@pytest.mark.parametrize("name", NAMES)
def test_a_listing_compiles_and_finds_what_it_imports(name: str) -> None:
    compiled(name)
    tree = ast.parse(listing(name))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "holdfast"]
    for imported in (alias.name for node in imports for alias in node.names):
        assert imported in holdfast.__all__
    assert "agent_framework" not in listing(name)


# What the listings use and do not define


@executor
async def executor1(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.set_shared_state("original_input", text)
    await ctx.set_state({"seen": text})
    await ctx.send_message(text.upper())


@executor
async def executor2(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text[::-1])


def two_steps(storage: CheckpointStorage, name: str | None = None) -> Workflow:
    builder = WorkflowBuilder(name=name).add_edge(executor1, executor2).set_start_executor(executor1)
    return builder.with_checkpointing(storage).build()


class Ask(Executor):
    """Asks the two questions whose ids the tutorial names, and joins the answers."""

    @handler
    async def ask(self, topic: str, ctx: WorkflowContext) -> None:
        for number in (1, 2):
            await ctx.request_info(f"{topic} {number}?", response_type=str, request_id=f"request-id-{number}")

    @response_handler
    async def answered(self, request: str, response: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{request} {response}")


def asking(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).with_checkpointing(storage).build()


class _Answers:
    """Answers ``input()`` from a list, and remembers what it was asked."""

    def __init__(self, *answers: str) -> None:
        self._answers: Iterator[str] = iter(answers)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return next(self._answers)


# Key components


async def test_01_file_checkpoint_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = await run_listing("004_01_file_checkpoint_storage")
    storage = frame["checkpoint_storage"]
    assert isinstance(storage, FileCheckpointStorage)

    await two_steps(storage).run("abc")
    await storage.close()
    assert any(path.suffix == ".json" for path in (tmp_path / "checkpoints").rglob("*"))

    reopened = FileCheckpointStorage("checkpoints")
    assert len(await reopened.list_checkpoints()) == 4
    await reopened.close()


async def test_02_enabling_checkpointing(storage: CheckpointStorage) -> None:
    frame = await run_listing(
        "004_02_enabling_checkpointing", executor1=executor1, executor2=executor2, checkpoint_storage=storage
    )
    workflow = frame["workflow"]
    result = await workflow.run("abc")
    assert result.get_outputs() == ["CBA"]
    checkpoints = await storage.list_checkpoints(run_id=result.run_id)
    assert [(cp.superstep, str(cp.phase)) for cp in checkpoints] == [
        (1, "start"),
        (1, "end"),
        (2, "start"),
        (2, "end"),
    ]


# State persistence


@executor(id="again")
async def again(text: str, ctx: WorkflowContext[str, str]) -> None:
    """Send the text back twice, with one more mark each time."""
    if text.endswith("!!"):
        await ctx.yield_output(text)
    else:
        await ctx.send_message(f"{text.lower()}!")


async def counting(storage: CheckpointStorage) -> Workflow:
    """Built anew each time, class and all, as a new process would."""
    frame = await run_listing("004_03_executor_state")
    upper = frame["UpperCaseExecutor"](id="upper")
    return (
        WorkflowBuilder(name="Count")
        .set_start_executor(upper)
        .add_edge(upper, again)
        .add_edge(again, upper)
        .with_checkpointing(storage)
        .build()
    )


async def test_03_executor_state_survives_into_checkpoints(open_again: OpenStorage) -> None:
    storage = open_again()
    result = await (await counting(storage)).run("hey")
    assert result.outputs == ["HEY!!"]

    counts = []
    for listed in await open_again().list_checkpoints():
        loaded = await storage.load(listed.checkpoint_id)
        states = loaded.executor_states
        counts.append(states["upper"]["count"] if "upper" in states else 0)
    assert counts == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]

    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    loaded = await storage.load(latest.checkpoint_id)
    assert loaded.executor_states["upper"] == {"count": 3, "last_input": "hey!!", "last_output": "HEY!!"}


async def test_03_a_rehydrated_run_goes_on_counting(open_again: OpenStorage) -> None:
    result = await (await counting(open_again())).run("hey")
    for checkpoint in await open_again().list_checkpoints(run_id=result.run_id):
        storage = open_again()
        rehydrated = await counting(storage)
        again_result = await rehydrated.run_from_checkpoint(checkpoint.checkpoint_id)
        assert again_result.outputs == ["HEY!!"]
        latest = await storage.get_latest(run_id=result.run_id)
        assert latest is not None
        loaded = await storage.load(latest.checkpoint_id)
        assert loaded.executor_states["upper"]["count"] == 3


@executor(id="compare")
async def compare(text: str, ctx: WorkflowContext[None, str]) -> None:
    original = await ctx.get_shared_state("original_input")
    processed = await ctx.get_shared_state("processed_output")
    await ctx.yield_output(f"{original} -> {processed} ({text})")


async def sharing(storage: CheckpointStorage) -> Workflow:
    frame = await run_listing(
        "004_04_shared_state", Executor=Executor, handler=handler, WorkflowContext=WorkflowContext
    )
    processor = frame["ProcessorExecutor"]
    return (
        WorkflowBuilder(name="Share")
        .set_start_executor(processor)
        .add_edge(processor, compare)
        .with_checkpointing(storage)
        .build()
    )


async def test_04_shared_state_is_seen_by_others_and_kept(open_again: OpenStorage) -> None:
    storage = open_again()
    result = await (await sharing(storage)).run("abc")
    assert result.outputs == ["abc -> ABC (ABC)"]

    before, after, *_ = await storage.list_checkpoints(run_id=result.run_id)
    assert (await storage.load(before.checkpoint_id)).shared_state == {}
    kept = (await storage.load(after.checkpoint_id)).shared_state
    assert kept == {"original_input": "abc", "processed_output": "ABC"}

    rehydrated = await sharing(open_again())
    resumed = await rehydrated.run_from_checkpoint(after.checkpoint_id)
    assert resumed.outputs == ["abc -> ABC (ABC)"]


# Working with checkpoints


async def test_05_listing_checkpoints(storage: CheckpointStorage) -> None:
    mine = await two_steps(storage, "my-workflow").run("abc")
    other = await two_steps(storage, "another").run("abc")
    more = await two_steps(storage, "my-workflow").run("xyz")

    frame = await run_listing("004_05_listing_checkpoints", checkpoint_storage=storage)

    assert len(frame["all_checkpoints"]) == 12
    assert {cp.run_id for cp in frame["all_checkpoints"]} == {mine.run_id, other.run_id, more.run_id}
    assert {cp.run_id for cp in frame["workflow_checkpoints"]} == {mine.run_id, more.run_id}
    assert len(frame["workflow_checkpoints"]) == 8
    assert {cp.workflow_name for cp in frame["workflow_checkpoints"]} == {"my-workflow"}

    for run_id in (mine.run_id, other.run_id, more.run_id):
        seqs = [cp.seq for cp in frame["sorted_checkpoints"] if cp.run_id == run_id]
        assert seqs == [1, 2, 3, 4]
    assert [cp.checkpoint_id for cp in frame["all_checkpoints"]] == [
        cp.checkpoint_id for cp in frame["sorted_checkpoints"]
    ], "they are listed oldest first"


async def test_05_an_unknown_workflow_has_no_checkpoints(storage: CheckpointStorage) -> None:
    await two_steps(storage, "another").run("abc")
    frame = await run_listing("004_05_listing_checkpoints", checkpoint_storage=storage)
    assert len(frame["all_checkpoints"]) == 4
    assert frame["workflow_checkpoints"] == []


async def test_06_checkpoint_information(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    await two_steps(storage).run("abc")
    checkpoints = await storage.list_checkpoints()

    await run_listing("004_06_checkpoint_information", checkpoints=checkpoints)

    nothing, kept = "{}", "{'original_input': <str, 4 B>}"
    expected = [
        ("1", "running", "1", nothing, "[]"),
        ("1", "running", "1", kept, "['executor1']"),
        ("2", "running", "1", kept, "['executor1']"),
        ("2", "completed", "0", kept, "['executor1']"),
    ]
    lines = []
    for checkpoint, (iteration, status, messages, shared, states) in zip(checkpoints, expected, strict=True):
        lines += [
            f"Checkpoint: {checkpoint.checkpoint_id}",
            f"Iteration: {iteration}",
            f"Status: {status}",
            f"Messages: {messages}",
            f"Shared State: {shared}",
            f"Executor States: {states}",
        ]
    assert capsys.readouterr().out.splitlines() == lines


async def test_06_checkpoints_listed_with_values_show_them(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    await two_steps(storage).run("abc")
    listed = await storage.list_checkpoints(values=True)
    await run_listing("004_06_checkpoint_information", checkpoints=listed)
    assert "Shared State: {'original_input': 'abc'}" in capsys.readouterr().out.splitlines()


async def test_06_the_summary_of_a_waiting_checkpoint_names_its_requests(storage: CheckpointStorage) -> None:
    result = await asking(storage).run("Deploy")
    asked, waiting = await storage.list_checkpoints(run_id=result.run_id)

    summary = RequestInfoExecutor.checkpoint_summary(asked)
    assert (summary.iteration_count, summary.status, summary.targets) == (1, RunStatus.RUNNING, ["Ask"])
    assert summary.pending_requests == []

    summary = RequestInfoExecutor.checkpoint_summary(waiting)
    assert summary.checkpoint_id == waiting.checkpoint_id
    assert (summary.iteration_count, summary.status, summary.targets) == (1, RunStatus.WAITING, [])
    assert [r.request_id for r in summary.pending_requests] == ["request-id-1", "request-id-2"]
    assert summary.timestamp == waiting.timestamp


# Resuming from checkpoints


@pytest.mark.parametrize("index", range(4))
async def test_07_streaming_resume(
    index: int, open_again: OpenStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_again()
    result = await two_steps(storage).run("abc")
    checkpoint = (await storage.list_checkpoints())[index]
    storage = open_again()

    frame = await run_listing(
        "004_07_streaming_resume",
        {"checkpoint-id": checkpoint.checkpoint_id},
        workflow=two_steps(storage),
        checkpoint_storage=storage,
        WorkflowOutputEvent=WorkflowOutputEvent,
    )

    *events, last = capsys.readouterr().out.splitlines()
    assert last == "Final Result: CBA"
    assert all(line.startswith("Resumed Event: ") for line in events)
    assert isinstance(frame["event"], WorkflowOutputEvent)
    assert frame["event"].replayed is (index == 3), "a finished run gives its outputs again"
    assert frame["event"].run_id == result.run_id


async def test_07_leaving_at_the_last_output_leaves_a_completed_run(storage: CheckpointStorage) -> None:
    """The last superstep's checkpoint says COMPLETED; leaving after it must not make the run less than that."""
    result = await two_steps(storage).run("abc")
    first, *_ = await storage.list_checkpoints()
    async with two_steps(storage).run_stream_from_checkpoint(first.checkpoint_id) as events:
        async for event in events:
            if isinstance(event, WorkflowOutputEvent):
                break
    latest = await storage.get_latest(run_id=result.run_id)
    assert latest is not None
    assert latest.status is RunStatus.COMPLETED
    (listed,) = await storage.list_runs()
    assert listed.status is RunStatus.COMPLETED


async def test_07_breaking_off_early_leaves_a_run_that_can_be_resumed(storage: CheckpointStorage) -> None:
    async for event in two_steps(storage).run_stream("abc"):
        if isinstance(event, holdfast.SuperStepCompletedEvent):
            break
    latest = await storage.get_latest()
    assert latest is not None
    assert latest.superstep == 2
    assert latest.phase == "start"
    result = await two_steps(storage).run_from_checkpoint(latest.checkpoint_id)
    assert result.outputs == ["CBA"]


SCRIPT = """
import asyncio

from holdfast import FileCheckpointStorage, WorkflowBuilder, WorkflowOutputEvent, executor


@executor
def executor1(text: str) -> str:
    return text.upper()


async def main():
    checkpoint_storage = FileCheckpointStorage("checkpoints")
    workflow = (
        WorkflowBuilder(name="Script").set_start_executor(executor1).with_checkpointing(checkpoint_storage).build()
    )
    await workflow.run("abc", run_id="r1")
    first, last = await checkpoint_storage.list_checkpoints()
LISTING


asyncio.run(main())
"""


def test_07_a_program_may_end_right_after_the_break(tmp_path: Path) -> None:
    """Nothing is said of a stream that was left without closing it."""
    body = textwrap.indent(listing("004_07_streaming_resume"), "    ")
    body = body.replace('"checkpoint-id"', "first.checkpoint_id")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("LISTING", body), encoding="utf-8")
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "Final Result: ABC"


@pytest.mark.parametrize("index", range(4))
async def test_08_non_streaming_resume(
    index: int, open_again: OpenStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_again()
    result = await two_steps(storage).run("abc")
    checkpoint = (await storage.list_checkpoints())[index]
    storage = open_again()

    frame = await run_listing(
        "004_08_non_streaming_resume",
        {"checkpoint-id": checkpoint.checkpoint_id},
        workflow=two_steps(storage),
        checkpoint_storage=storage,
    )

    assert frame["outputs"] == ["CBA"]
    assert frame["result"].run_id == result.run_id
    assert frame["result"].status is RunStatus.COMPLETED
    assert capsys.readouterr().out == "Final outputs: ['CBA']\n"


async def test_08_the_storage_may_be_given_at_the_resume_only(storage: CheckpointStorage) -> None:
    workflow = (
        WorkflowBuilder(name="Bare").add_edge(executor1, executor2).set_start_executor(executor1).build()
    )
    await workflow.run("abc", storage=storage)
    first, *_ = await storage.list_checkpoints()
    frame = await run_listing(
        "004_08_non_streaming_resume",
        {"checkpoint-id": first.checkpoint_id},
        workflow=workflow,
        checkpoint_storage=storage,
    )
    assert frame["outputs"] == ["CBA"]


async def test_09_resume_with_responses(open_again: OpenStorage, capsys: pytest.CaptureFixture[str]) -> None:
    storage = open_again()
    waiting = await asking(storage).run("Deploy")
    assert waiting.status is RunStatus.WAITING
    latest = await storage.get_latest(run_id=waiting.run_id)
    assert latest is not None
    storage = open_again()

    await run_listing(
        "004_09_resume_with_responses",
        {"checkpoint-id": latest.checkpoint_id},
        workflow=asking(storage),
        checkpoint_storage=storage,
    )

    printed = capsys.readouterr().out
    assert all(line.startswith("Event: ") for line in printed.splitlines())
    assert "RequestInfoEvent" not in printed, "what was answered is not asked again"
    latest = await storage.get_latest(run_id=waiting.run_id)
    assert latest is not None
    assert latest.status is RunStatus.COMPLETED
    outputs = list((await storage.load(latest.checkpoint_id)).outputs)
    assert outputs == ["Deploy 1? user response data", "Deploy 2? another response"]


async def test_09_responses_for_request_info_executors(
    open_again: OpenStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    @executor
    async def split(text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)

    @executor
    async def note(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"noted: {text}")

    def build(storage: CheckpointStorage) -> Workflow:
        legal = RequestInfoExecutor(id="legal", response_type=str)
        press = RequestInfoExecutor(id="press", response_type=str)
        return (
            WorkflowBuilder(name="Sign")
            .set_start_executor(split)
            .add_fan_out_edges(split, [legal, press])
            .add_edge(legal, note)
            .add_edge(press, note)
            .with_checkpointing(storage)
            .build()
        )

    storage = open_again()
    waiting = await build(storage).run("statement")
    first, second = waiting.pending_requests
    latest = await storage.get_latest(run_id=waiting.run_id)
    assert latest is not None
    storage = open_again()

    await run_listing(
        "004_09_resume_with_responses",
        {
            "checkpoint-id": latest.checkpoint_id,
            "request-id-1": first.request_id,
            "request-id-2": second.request_id,
        },
        workflow=build(storage),
        checkpoint_storage=storage,
    )

    printed = capsys.readouterr().out
    assert "noted: user response data" in printed
    assert "noted: another response" in printed


@pytest.mark.parametrize(
    ("responses", "error"),
    [
        ({"request-id-3": "unasked"}, UnknownRequest),
        ({"request-id-1": "good", "request-id-2": 2}, InvalidResponse),
    ],
)
async def test_09_responses_are_taken_all_or_none(
    responses: dict[str, Any], error: type[Exception], storage: CheckpointStorage
) -> None:
    waiting = await asking(storage).run("Deploy")
    latest = await storage.get_latest(run_id=waiting.run_id)
    assert latest is not None
    with pytest.raises(error):
        await asking(storage).run_from_checkpoint(latest.checkpoint_id, responses=responses)
    assert await storage.get_latest(run_id=waiting.run_id) == latest, "nothing was written"
    answers = {"request-id-1": "yes", "request-id-2": "no"}
    result = await asking(storage).run_from_checkpoint(latest.checkpoint_id, responses=answers)
    assert result.outputs == ["Deploy 1? yes", "Deploy 2? no"]


async def test_09_what_is_not_answered_is_asked_again(storage: CheckpointStorage) -> None:
    waiting = await asking(storage).run("Deploy")
    latest = await storage.get_latest(run_id=waiting.run_id)
    assert latest is not None
    stream = asking(storage).run_stream_from_checkpoint(latest.checkpoint_id, None, {"request-id-2": "yes"})
    events = [event async for event in stream]
    assert [e.request_id for e in events if isinstance(e, RequestInfoEvent)] == ["request-id-1"]
    assert [e.data for e in events if isinstance(e, WorkflowOutputEvent)] == ["Deploy 2? yes"]
    assert stream.run.status is RunStatus.WAITING


# Interactive checkpoint selection


async def selection(answers: Callable[[str], str]) -> Any:
    frame = await run_listing(
        "004_10_interactive_selection", RequestInfoExecutor=RequestInfoExecutor, input=answers
    )
    return frame["select_and_resume_checkpoint"]


@pytest.mark.parametrize("index", range(4))
async def test_10_interactive_selection(
    index: int, storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    await two_steps(storage).run("abc")
    checkpoints = await storage.list_checkpoints()
    answers = _Answers(str(index))

    await (await selection(answers))(two_steps(storage), storage)

    assert answers.prompts == ["Enter checkpoint index: "]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Available checkpoints:"
    assert lines[1:5] == [
        f"[{place}] {checkpoint.checkpoint_id[:8]}... iter={iteration}"
        for place, (checkpoint, iteration) in enumerate(zip(checkpoints, [1, 1, 2, 2], strict=True))
    ]
    assert lines[5] == f"Resuming from checkpoint: {checkpoints[index].checkpoint_id}"
    assert all(line.startswith("Event: ") for line in lines[6:])
    assert sum("WorkflowOutputEvent" in line and "'CBA'" in line for line in lines[6:]) == 1
    assert "WorkflowCompletedEvent" in lines[-1]


@pytest.mark.parametrize("answer", ["4", "-5", "one", ""])
async def test_10_an_invalid_selection_is_told(
    answer: str, storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    await two_steps(storage).run("abc")
    await (await selection(_Answers(answer)))(two_steps(storage), storage)
    assert capsys.readouterr().out.splitlines()[-1] == "Invalid selection"
    assert len(await storage.list_checkpoints()) == 4, "nothing was resumed"


async def test_10_there_may_be_nothing_to_select(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = _Answers()
    await (await selection(answers))(two_steps(storage), storage)
    assert capsys.readouterr().out == "No checkpoints available\n"
    assert answers.prompts == []


async def test_10_a_selection_among_the_branches_of_a_run(
    storage: CheckpointStorage, capsys: pytest.CaptureFixture[str]
) -> None:
    """After one resume there are more checkpoints to select from, and each still gives the same result."""
    await two_steps(storage).run("abc")
    select = await selection(_Answers("0", "4", "1"))
    for _ in range(3):
        await select(two_steps(storage), storage)
    printed = capsys.readouterr().out
    assert printed.count("WorkflowOutputEvent") == 3
    assert printed.count("'CBA', executor_id='executor2'") == 3


# The complete example

FUNCTIONS = """
from holdfast import WorkflowContext, executor


@executor
def executor1(text: str) -> str:
    return text.upper()


@executor
async def executor2(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(text[::-1])
"""

INSTANCES = """
from holdfast import Executor, WorkflowContext, handler


class Upper(Executor):
    checkpointed = ("count",)

    def __init__(self, id):
        super().__init__(id)
        self.count = 0

    @handler
    async def upper(self, text: str, ctx: WorkflowContext[str]) -> None:
        self.count += 1
        await ctx.set_shared_state("original_input", text)
        await ctx.send_message(text.upper())


class Reverse(Executor):
    @handler
    async def reverse(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        previous = await ctx.get_state() or {}
        await ctx.set_state({"count": previous.get("count", 0) + 1})
        await ctx.yield_output(text[::-1])


executor1 = Upper("upper")
executor2 = Reverse("reverse")
"""

CLASSES = INSTANCES.replace('executor1 = Upper("upper")', "executor1 = Upper.bind(id='upper')").replace(
    'executor2 = Reverse("reverse")', "executor2 = Reverse"
)

ASKING = """
from holdfast import RequestInfoExecutor, executor


@executor
def executor1(text: str) -> str:
    return f"{text}: is it good?"


executor2 = RequestInfoExecutor(id="ask", response_type=bool)
"""


def complete_example(prelude: str, cwd: Path) -> list[str]:
    """Run the complete example in a process of its own; the lines that it prints."""
    script = cwd / "complete_example.py"
    script.write_text(prelude + listing("004_11_complete_example"), encoding="utf-8")
    done = run(script, cwd)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def kinds(lines: list[str], prefix: str) -> list[str]:
    """The kinds of the events that were printed after ``prefix``.

    >>> kinds(["Event: WorkflowStartedEvent(run_id='r')", "Running workflow..."], "Event")
    ['WorkflowStartedEvent']
    """
    return [found[1] for line in lines if (found := re.match(rf"{prefix}: (\w+)\(", line))]


@pytest.mark.parametrize(
    "prelude", [FUNCTIONS, INSTANCES, CLASSES], ids=["functions", "instances", "classes"]
)
def test_11_complete_example(prelude: str, tmp_path: Path) -> None:
    lines = complete_example(prelude, tmp_path)

    assert lines[0] == "Running workflow..."
    assert kinds(lines, "Event").count("SuperStepStartedEvent") == 2
    assert kinds(lines, "Event").count("SuperStepCompletedEvent") == 2
    assert kinds(lines, "Event")[-1] == "WorkflowCompletedEvent"
    (output,) = [line for line in lines if line.startswith("Event: WorkflowOutputEvent")]
    assert "data='ATAD TUPNI'" in output

    checkpoints = [re.fullmatch(r"Checkpoint: ([0-9a-f]{8})\.\.\. iter=(\d+)", line) for line in lines]
    listed = [found.groups() for found in checkpoints if found]
    assert [iteration for _, iteration in listed] == ["1", "1", "2", "2"]

    (resuming,) = [found for line in lines if (found := re.fullmatch(r"Resuming from: ([0-9a-f]+)", line))]
    assert resuming[1].startswith(listed[-1][0])
    assert lines.index(resuming.string) == len(lines) - 1 - len(kinds(lines, "Resumed"))
    assert kinds(lines, "Resumed") == [
        "WorkflowStatusEvent",
        "WorkflowOutputEvent",
        "WorkflowStatusEvent",
        "WorkflowCompletedEvent",
    ]
    (replayed,) = [line for line in lines if line.startswith("Resumed: WorkflowOutputEvent")]
    assert "data='ATAD TUPNI'" in replayed
    assert "replayed=True" in replayed


def test_11_the_complete_example_runs_again_where_it_ran_before(tmp_path: Path) -> None:
    first = complete_example(INSTANCES, tmp_path)
    second = complete_example(INSTANCES, tmp_path)
    listed = [[line for line in lines if line.startswith("Checkpoint: ")] for lines in (first, second)]
    assert len(listed[0]) == 4
    assert listed[1][:4] == listed[0], "those of the first process are still there"
    assert len(listed[1]) == 8
    (resuming,) = [line for line in second if line.startswith("Resuming from: ")]
    assert resuming.removeprefix("Resuming from: ")[:8] in listed[1][-1]


def test_11_a_run_that_asks_is_asked_again_at_the_resume(tmp_path: Path) -> None:
    lines = complete_example(ASKING, tmp_path)
    assert kinds(lines, "Event").count("RequestInfoEvent") == 1
    assert "WorkflowCompletedEvent" not in kinds(lines, "Event")
    assert [line for line in lines if line.startswith("Checkpoint: ")][-1].endswith("iter=2")
    assert kinds(lines, "Resumed").count("RequestInfoEvent") == 1
    (asked,) = [line for line in lines if line.startswith("Resumed: RequestInfoEvent")]
    assert "input data: is it good?" in asked


async def test_11_another_process_goes_on_where_the_complete_example_ended(tmp_path: Path) -> None:
    complete_example(ASKING, tmp_path)
    frame: dict[str, Any] = {"__name__": "rebuilt"}
    exec(compile(ASKING, "rebuilt.py", "exec", dont_inherit=True), frame)
    storage = FileCheckpointStorage(tmp_path / "checkpoints")
    workflow = (
        WorkflowBuilder()
        .add_edge(frame["executor1"], frame["executor2"])
        .set_start_executor(frame["executor1"])
        .with_checkpointing(storage)
        .build()
    )
    latest = await storage.get_latest()
    assert latest is not None
    assert latest.workflow_name == workflow.name
    asked = [e async for e in workflow.run_stream_from_checkpoint(latest) if isinstance(e, RequestInfoEvent)]
    result = await workflow.run_from_checkpoint(latest, responses={asked[0].request_id: True})
    assert result.outputs == [True]
    await storage.close()


async def test_there_is_a_summary_of_a_checkpoint_without_storage_left() -> None:
    """A listed checkpoint is a value: it can be looked at after its storage was closed."""
    storage = InMemoryCheckpointStorage()
    await two_steps(storage).run("abc")
    checkpoints = await storage.list_checkpoints()
    await storage.close()
    assert [RequestInfoExecutor.checkpoint_summary(cp).iteration_count for cp in checkpoints] == [1, 1, 2, 2]
