"""Every listing of the page about multi-agent checkpointing, with agents of a local model, and what the page says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointSavedEvent,
    FileCheckpointStorage,
    OutputDeltaEvent,
    RunStatus,
)
from holdfast.agents import (
    AgentWorkflow,
    AgentWorkflowBuilder,
    Conversation,
    JsonSessionStore,
    WorkflowAgentCompletedEvent,
    WorkflowAgentStartedEvent,
    WorkflowCompletedEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
    WorkflowStartedEvent,
    read_messages,
)
from tests.agents.local_model import LocalModel, serve_model
from tests.seeds.csharp import check_all_are_run
from tests.seeds.listing_runner import run_listing

WORKFLOWS, SESSIONS = Path("App_Data/workflows"), Path("App_Data/sessions")
DRAFT, REVIEW = "Write about kelp, in one sentence.", "Write about kelp, in one sentence. It is good."


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model() -> Iterator[LocalModel]:
    def reply(instructions: str, said: str) -> str:
        return f"{said}, in one sentence." if instructions == "You draft." else f"{said} It is good."

    with serve_model(reply) as server:
        yield server


def configs(model: LocalModel) -> dict[str, Any]:
    return {
        "draft_config": model.agent("drafter", "You draft."),
        "review_config": model.agent("reviewer", "You review."),
    }


async def durable_review(model: LocalModel) -> AgentWorkflow:
    workflow = (await run_listing("csharp/003_01_durable_review", **configs(model)))["workflow"]
    assert isinstance(workflow, AgentWorkflow)
    return workflow


def two_agents(model: LocalModel) -> AgentWorkflowBuilder:
    """Return the team of the first listing without its store."""
    given = configs(model)
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .add_agent("draft", given["draft_config"], output_key="draft")
        .add_agent("review", given["review_config"], input_key="draft")
        .from_("draft")
        .to("review")
    )


def test_every_listing_is_run_here() -> None:
    check_all_are_run("003", 5, Path(__file__))


# Enable checkpointing


async def test_01_the_durable_review_streams_and_is_kept(model: LocalModel) -> None:
    workflow = await durable_review(model)
    events = [event async for event in workflow.run_stream("Write about kelp", run_id="r1")]
    shown: dict[str, str] = {}
    for event in events:
        if isinstance(event, OutputDeltaEvent):
            shown[event.executor_id] = shown.get(event.executor_id, "") + event.data
    assert shown == {"draft": DRAFT, "review": REVIEW}
    done = [event for event in events if isinstance(event, WorkflowAgentCompletedEvent)]
    assert [(event.agent, event.outputs) for event in done] == [
        ("draft", {"draft": DRAFT}),
        ("review", {"answer": REVIEW}),
    ]
    assert isinstance(events[-1], WorkflowCompletedEvent)
    assert (events[-1].data, events[-1].succeeded, events[-1].success) == (REVIEW, 2, True)
    assert model.asked == [("You draft.", "Write about kelp"), ("You review.", DRAFT)]
    assert (WORKFLOWS / "definitions" / "DurableReview" / "0001.json").is_file()


async def test_01_a_review_that_failed_goes_on_in_another_process_without_another_draft(
    model: LocalModel,
) -> None:
    """The page says: promise a resume only where it is exposed and tested. Here it is."""
    model.down.add("You review.")
    failed = await (await durable_review(model)).run("Write about kelp", run_id="r1")
    assert (failed.status, failed.outputs) == (RunStatus.FAILED, {"draft.draft": DRAFT})
    model.down.clear()
    again = await durable_review(model)
    result = await again.result_of(await again.resume(run_id="r1"))
    assert (result.success, result.final_answer) == (True, REVIEW)
    assert [instructions for instructions, _ in model.asked] == ["You draft.", "You review.", "You review."]


async def test_01_a_run_is_new_unless_it_is_named(model: LocalModel) -> None:
    workflow = await durable_review(model)
    assert (await workflow.run("a")).run_id != (await workflow.run("a")).run_id
    assert (await workflow.run("b", run_id="r1")).run_id == "r1"
    attached = await workflow.run("b", run_id="r1", if_exists="attach")
    assert (attached.final_answer, len(model.asked)) == ("b, in one sentence. It is good.", 6)


async def test_02_the_store_in_memory_leaves_nothing_on_disk(model: LocalModel) -> None:
    builder = (await run_listing("csharp/003_02_in_memory_store", builder=two_agents(model)))["builder"]
    workflow = builder.build()
    result = await workflow.run("Write about kelp", run_id="r1")
    assert result.final_answer == REVIEW
    assert len(await workflow.storage.list_checkpoints(run_id="r1")) == 1
    assert os.listdir() == []


# Retention


@pytest.mark.parametrize(
    ("listing", "keeps_all"),
    [
        ("csharp/003_03_json_store", False),
        ("csharp/003_04_latest_only", False),
        ("csharp/003_05_full_history", True),
    ],
)
async def test_the_json_store_keeps_the_latest_checkpoint_or_all(
    model: LocalModel, listing: str, keeps_all: bool
) -> None:
    builder = (await run_listing(listing, builder=two_agents(model)))["builder"]
    assert (await builder.build().run("Write about kelp", run_id="r1")).final_answer == REVIEW
    async with FileCheckpointStorage(WORKFLOWS / "checkpoints") as storage:
        there = await storage.list_checkpoints(run_id="r1")
    assert (len(there) > 1) is keeps_all


# "The workflow store is separate from the session store."


async def test_the_stores_are_separate_and_readable_on_disk(model: LocalModel) -> None:
    workflow = (
        two_agents(model)
        .with_checkpointing()
        .with_json_workflow_store(WORKFLOWS)
        .with_json_session_store(SESSIONS)
        .with_conversation(Conversation.thread_per_agent("kim"))
        .build()
    )
    for number in (1, 2):
        await workflow.run("Write about kelp", run_id=f"r{number}")
    definition = json.loads((WORKFLOWS / "definitions" / "DurableReview" / "0001.json").read_text("utf-8"))
    assert definition["conversation"] == {"kind": "thread_per_agent", "session_id": "kim"}
    runs = {path.stem: _lines(path) for path in (WORKFLOWS / "checkpoints" / "runs").iterdir()}
    assert set(runs) == {"r1", "r2"}
    assert all(line["head"]["workflow_name"] == "DurableReview" for line in runs["r1"] if "head" in line)
    kim = SESSIONS / "sessions" / "kim"
    threads = {path.stem: _lines(path) for path in kim.iterdir() if path.suffix == ".jsonl"}
    assert set(threads) == {"draft", "review"}
    kept = [[message["text"] for message in line["messages"]] for line in threads["review"][1:]]
    assert kept == [[DRAFT, REVIEW]] * 2
    # Each is whole without the other.
    said = await read_messages(JsonSessionStore(SESSIONS), "kim", "draft")
    assert [message.text for message in said] == ["Write about kelp", DRAFT] * 2
    assert model.conversations[2] == ["Write about kelp", DRAFT, "Write about kelp"]
    async with FileCheckpointStorage(WORKFLOWS / "checkpoints") as storage:
        assert (await storage.verify()).ok


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# Events


async def test_the_families_of_events_do_not_depend_on_a_store(model: LocalModel) -> None:
    """Saving is a side effect: without a store the same events are told, but for those about checkpoints."""
    told = []
    for workflow in (two_agents(model).build(), await durable_review(model)):
        stream = workflow.run_stream("Write about kelp")
        told.append([type(event) async for event in stream if not isinstance(event, CheckpointSavedEvent)])
    assert told[0] == told[1]
    assert {
        WorkflowStartedEvent,
        WorkflowAgentStartedEvent,
        WorkflowAgentCompletedEvent,
        WorkflowEdgeTraversedEvent,
        WorkflowLayerStartedEvent,
        WorkflowLayerCompletedEvent,
        WorkflowCompletedEvent,
    } <= set(told[0])
