"""Faults that builders of teams are known for, each as a test that a planted fault of that kind fails.

The faults: each run has a fresh id and none is resumed; policies for errors are set and never consulted; an export
drops checkpoints and conversations; approvals are asked where no stream shows them; the answer of a run is that of a
key called ``answer``.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import InMemoryCheckpointStorage, RequestInfoEvent, RunStatus, WorkflowCompletedEvent
from holdfast.agents import (
    AgentWorkflow,
    AgentWorkflowBuilder,
    Conversation,
    NodeApprovalRequest,
    NodeBuilder,
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
)
from holdfast.agents.workflow.node_options import NodeApproval
from holdfast.agents.workflow.team_node import TeamNode


def echo(prompt: str) -> str:
    return f"<{prompt}>"


def fail(prompt: str) -> str:
    raise ConnectionError("the model is down")


def team() -> AgentWorkflowBuilder:
    return AgentWorkflow.create().with_name("Team")


# -- a run is gone on with --------------------------------------------------------------------------------------------


async def check_resumed(folder: Path) -> None:
    drafts: list[str] = []
    down = [True]

    def draft(prompt: str) -> str:
        drafts.append(prompt)
        return "a draft"

    def build() -> AgentWorkflow:
        review = lambda prompt: fail(prompt) if down[0] else prompt.upper()  # noqa: E731
        builder = team().with_json_workflow_store(folder).add_agent("draft", draft)
        return builder.add_agent("review", review, input_key="answer").from_("draft").to("review").build()

    failed = await build().run("kelp", run_id="r1")
    assert (failed.run_id, failed.status) == ("r1", RunStatus.FAILED)
    down[0] = False
    again = build()
    result = await again.result_of(await again.resume(run_id="r1"))
    assert (result.run_id, result.final_answer, drafts) == ("r1", "A DRAFT", ["kelp"])


def plant_fresh_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin_anew(workflow: AgentWorkflow, run_id: str) -> Any:
        return await workflow.start("kelp")

    monkeypatch.setattr(AgentWorkflow, "resume", begin_anew)


# -- policies for errors ----------------------------------------------------------------------------------------------

POLICIES: dict[str, tuple[Callable[[NodeBuilder], object], str | None, list[str]]] = {
    "stop": (lambda node: node.on_error_stop(), None, []),
    "skip": (lambda node: node.on_error_skip(), "<x>", ["spare"]),
    "isolate": (lambda node: node.on_error_isolate(), "ConnectionError: the model is down", ["spare"]),
    "fallback": (lambda node: node.on_error_fallback("spare"), "spare", []),
}


def with_policy(configure: Callable[[NodeBuilder], object]) -> AgentWorkflow:
    """Return a team in which 'bad' fails; the last agent says what came to it, and who."""
    return (
        team()
        .add_agent("bad", fail, configure)
        .add_agent("spare", lambda prompt: "spare")
        .add_agent("other", echo)
        .add_agent(
            "last",
            lambda prompt: prompt,
            lambda node: node.with_input_template("{{error}}").with_context({"error": "<x>"}),
        )
        .add_agent("spared", lambda prompt: prompt, input_key="spare.answer")
        .from_("bad").to("spare").when_equals("never", "so")
        .from_("bad", "other").to("last")
        .from_("spare").to("spared")
        .build()
    )  # fmt: skip


async def check_policies(folder: Path) -> None:
    for policy, (configure, answer, skipped) in POLICIES.items():
        workflow = with_policy(configure)
        storage = InMemoryCheckpointStorage()
        result = await workflow.run("x", run_id="r", storage=storage)
        assert result.success is (policy != "stop"), policy
        events = [event async for event in storage.watch("r")]
        ends = {event.agent: event for event in events if isinstance(event, WorkflowAgentCompletedEvent)}
        if answer is None:
            assert result.status is RunStatus.FAILED
            continue
        assert (ends["bad"].success, ends["bad"].error) == (False, "ConnectionError: the model is down")
        assert answer in str(result.final_answer).split("\n\n"), policy
        told = [event.agent for event in events if isinstance(event, WorkflowAgentSkippedEvent)]
        assert [agent for agent in told if agent != "spared"] == skipped, policy
        (completed,) = [event for event in events if isinstance(event, WorkflowCompletedEvent)]
        assert (completed.failed, completed.succeeded) == (1, len(ends) - 1), policy


def plant_no_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TeamNode, "_contains", lambda *_: False)


# -- exports ----------------------------------------------------------------------------------------------------------


async def check_export(folder: Path) -> None:
    workflow = (
        team()
        .with_json_workflow_store(folder)
        .with_json_session_store(folder / "sessions")
        .with_conversation(Conversation.shared_thread("kim"))
        .add_agent("echo", echo)
        .build()
    )
    exported = workflow.export_config()
    assert exported.get("store") == {"kind": "json", "root": str(folder), "retention": "latest_only"}
    assert exported.get("session_store") == {"kind": "json", "root": str(folder / "sessions")}
    assert exported.get("conversation") == {"kind": "shared_thread", "session_id": "kim"}


def plant_short_export(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AgentWorkflow.export_config
    kept = ("format", "name", "agents", "edges", "max_iterations")
    monkeypatch.setattr(
        AgentWorkflow, "export_config", lambda workflow: {key: whole(workflow)[key] for key in kept}
    )


# -- approvals --------------------------------------------------------------------------------------------------------


async def check_approvals(folder: Path) -> None:
    storage = InMemoryCheckpointStorage()
    builder = team().with_checkpointing(storage).add_agent("pay", echo, requires_approval=True)
    workflow = builder.add_agent("mail", echo, input_key="answer").from_("pay").to("mail").build()
    live = [event async for event in workflow.run_stream("x", run_id="r")]
    stored = [event async for event in storage.watch("r")]
    for events in (live, stored):
        requests = [event for event in events if isinstance(event, RequestInfoEvent)]
        assert len(requests) == 1
        asked = requests[0]
        assert asked.data == NodeApprovalRequest("pay", "<x>", {"answer": "<x>"})
        assert not any(isinstance(event, WorkflowCompletedEvent) for event in events)
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    responses = {asked.request_id: True}
    stream = workflow.run_stream_from_checkpoint(latest.checkpoint_id, responses=responses)
    assert [event.data async for event in stream if isinstance(event, WorkflowCompletedEvent)] == ["<<x>>"]


def plant_no_approvals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeApproval, "asks_about", lambda *_: False)


# -- the answer -------------------------------------------------------------------------------------------------------


async def check_answer(folder: Path) -> None:
    workflow = team().add_agent("report", echo, output_key="report").build()
    result = await workflow.run("x")
    assert (result.final_answer, result.outputs) == ("<x>", {"report.report": "<x>"})
    both = team().add_agent("a", echo, output_key="one").add_agent("b", echo, output_key="two").build()
    assert (await both.run("x")).final_answer == "<x>\n\n<x>"


def plant_answer_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TeamNode._result_of

    def by_key(node: TeamNode, reply: Any) -> Any:
        result = whole(node, reply)
        return result if "answer" in result.outputs else result._replace(text=None)

    monkeypatch.setattr(TeamNode, "_result_of", by_key)


FAULTS: dict[str, tuple[Callable[[Path], Awaitable[None]], Callable[[pytest.MonkeyPatch], None]]] = {
    "fresh runs": (check_resumed, plant_fresh_runs),
    "no policies": (check_policies, plant_no_policies),
    "short exports": (check_export, plant_short_export),
    "silent approvals": (check_approvals, plant_no_approvals),
    "answer by key": (check_answer, plant_answer_by_key),
}


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_a_team_has_not_the_fault(fault: str, tmp_path: Path) -> None:
    await FAULTS[fault][0](tmp_path)


@pytest.mark.parametrize("fault", list(FAULTS))
async def test_a_planted_fault_is_caught(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plant = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        await check(tmp_path)
