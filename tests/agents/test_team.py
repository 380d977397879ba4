"""Teams of agents: what each agent is given and gives, which edges are taken, what is kept and told."""

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    FileCheckpointStorage,
    GraphError,
    Host,
    InMemoryCheckpointStorage,
    Retention,
    RunStatus,
    SuperstepLimit,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
)
from holdfast.agents import (
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentWorkflow,
    AgentWorkflowBuilder,
    ApprovalDecision,
    Budget,
    BudgetExceeded,
    Cassette,
    Conversation,
    EdgeCondition,
    JsonSessionStore,
    NodeApprovalRequest,
    ToolApprovalRequest,
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
    append_messages,
    read_messages,
)
from holdfast.errors import ExecutorTimeout, TeamTimeout
from tests.agents.agents import ScriptedAgent


@dataclass
class Refund:
    amount: int


@dataclass
class Complaint:
    about: str


def echo(prompt: str) -> str:
    return f"<{prompt}>"


def fail(prompt: str) -> str:
    raise ValueError("no")


def team() -> AgentWorkflowBuilder:
    return AgentWorkflow.create().with_name("Team")


def durable_review(folder: Path, retention: Retention = Retention.latest_only()) -> AgentWorkflow:  # noqa: B008
    return (
        AgentWorkflow.create()
        .with_name("DurableReview")
        .with_checkpointing()
        .with_json_workflow_store(folder, retention)
        .add_agent("draft", lambda p: f"draft of {p}", lambda node: node.with_output_key("draft"))
        .add_agent("review", lambda p: f"review of {p}", lambda node: node.with_input_key("draft"))
        .from_("draft")
        .to("review")
        .build()
    )


# -- seed 003's DurableReview ---------------------------------------------------------------------------------------


async def test_durable_review(tmp_path: Path) -> None:
    result = await durable_review(tmp_path).run("kelp", run_id="r1")
    assert result.final_answer == "review of draft of kelp"
    assert result.outputs == {"draft.draft": "draft of kelp", "review.answer": "review of draft of kelp"}
    assert (result.success, result.error, result.status) == (True, None, RunStatus.COMPLETED)
    assert result.duration > 0
    assert sorted(os.listdir(tmp_path)) == ["checkpoints", "definitions"]
    saved = json.loads((tmp_path / "definitions" / "DurableReview" / "0001.json").read_text())
    assert list(saved["agents"]) == ["draft", "review"]
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        assert len(await storage.list_checkpoints(run_id="r1")) == 1


async def test_a_definition_is_saved_anew_only_if_it_changed(tmp_path: Path) -> None:
    for _ in range(2):
        durable_review(tmp_path)
    durable_review(tmp_path, Retention.full_history())
    folder = tmp_path / "definitions" / "DurableReview"
    assert sorted(path.name for path in folder.iterdir()) == ["0001.json", "0002.json"]


async def test_checkpoints_are_switched_off_again(tmp_path: Path) -> None:
    builder = team().with_checkpointing().with_json_workflow_store(tmp_path).add_agent("echo", echo)
    workflow = builder.with_checkpointing(enabled=False).build()
    assert (await workflow.run("kelp")).success
    assert os.listdir(tmp_path) == []


async def test_full_history_keeps_every_checkpoint(tmp_path: Path) -> None:
    workflow = durable_review(tmp_path, Retention.full_history())
    await workflow.run("kelp", run_id="r1")
    async with FileCheckpointStorage(tmp_path / "checkpoints") as storage:
        infos = await storage.list_checkpoints(run_id="r1")
        assert len(infos) > 6
    for info in infos:
        forked = await workflow.result_of(await workflow.fork(info))
        assert forked.final_answer == "review of draft of kelp"


async def test_a_run_that_failed_is_resumed_and_repeats_nothing(tmp_path: Path) -> None:
    drafts, down = [], [True]

    def draft(prompt: str) -> str:
        drafts.append(prompt)
        return "a draft"

    def review(prompt: str) -> str:
        if down[0]:
            raise ConnectionError("the model is down")
        return prompt.upper()

    def build() -> AgentWorkflow:
        return (
            team()
            .with_json_workflow_store(tmp_path)
            .add_agent("draft", draft)
            .add_agent("review", review, input_key="answer")
            .from_("draft")
            .to("review")
            .build()
        )

    failed = await build().run("kelp", run_id="r")
    assert (failed.success, failed.final_answer, failed.status) == (False, None, RunStatus.FAILED)
    assert isinstance(failed.error, Exception)
    assert isinstance(failed.error.__cause__, ConnectionError)
    down[0] = False
    workflow = build()
    result = await workflow.result_of(await workflow.resume(run_id="r"))
    assert (result.final_answer, drafts) == ("A DRAFT", ["kelp"])


async def test_the_other_verbs_of_a_workflow_work() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = team().with_checkpointing(storage).add_agent("echo", echo).build()
    await workflow.submit("a", run_id="a")
    await Host(storage, workflow).wake_due()
    assert (await storage.list_runs())[0].status is RunStatus.COMPLETED
    run = await workflow.start("b", run_id="b")
    await run.send("c")
    result = await run.wait_for_completion()
    assert result.outputs[-1] == "<c>"
    again = await workflow.run("d", run_id="b", if_exists="continue")
    assert again.final_answer == "<d>"
    outer = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(workflow, id="team")).build()
    assert (await outer.run("e")).outputs == ["<e>"]


def test_the_schema_of_the_input_has_requests_only() -> None:
    schema = json.dumps(team().add_agent("a", echo).build().input_schema)
    assert "AgentRequest" in schema
    assert "TeamReport" not in schema


async def test_inputs_that_come_while_the_team_works_wait() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        begun.set()
        await go.wait()
        return prompt.upper()

    storage = InMemoryCheckpointStorage()
    workflow = (
        team()
        .with_checkpointing(storage)
        .add_agent("slow", slow)
        .add_agent("last", echo, input_key="answer")
        .from_("slow")
        .to("last")
        .build()
    )
    run = await workflow.start("a", run_id="r")
    await begun.wait()
    for text in ("b", "c"):
        await run.send(text)
    go.set()
    await run.wait_for_completion()
    outputs = [e.data async for e in storage.watch("r") if isinstance(e, WorkflowOutputEvent)]
    assert outputs == ["<A>", "<B>", "<C>"]


# -- inputs and outputs of agents -----------------------------------------------------------------------------------


async def test_an_agent_sees_the_request_unless_it_names_an_output() -> None:
    workflow = (
        team()
        .add_agent("a", lambda p: f"a {p}", output_key="first")
        .add_agent("b", lambda p: f"b {p}", input_template="{{first}} and {{ a.first }} for {{request}}")
        .add_agent("c", lambda p: f"c {p}")
        .add_agent("d", lambda p: f"d {p}", input_key="b.answer")
        .from_("a")
        .to("b", "c")
        .from_("b", "c")
        .to("d")
        .build()
    )
    result = await workflow.run("q")
    assert result.outputs["b.answer"] == "b a q and a q for q"
    assert result.outputs["c.answer"] == "c q"
    assert result.final_answer == "d b a q and a q for q"


async def test_an_output_that_nobody_gave_is_named() -> None:
    builder = team().add_agent("a", echo).add_agent("b", echo, output_key="draft")
    builder.add_agent("c", echo, input_key="draft").from_("a").to("b").when_empty("answer")
    assert "agent 'c' wants the output 'draft', which no agent before it gave" in str(
        (await builder.build().run("q")).error
    )


async def test_outputs_that_only_replies_tell_are_not_asked_for_at_build() -> None:
    builder = team().add_agent("a", lambda p: {"said": p}, structured_output=dict)
    builder.add_agent("b", echo, input_key="said").add_agent("c", echo, input_template="{{a.said}}!")
    assert (await builder.from_("a").to("b", "c").build().run("q")).final_answer == "<q>\n\n<q!>"


async def test_context_fills_templates_and_instructions() -> None:
    asked: list[AgentRequest] = []

    def agent(request: AgentRequest) -> str:
        asked.append(request)
        return "ok"

    workflow = (
        team()
        .add_agent(
            "a",
            agent,
            lambda node: (
                node.with_input_template("{{request}} in {{tone}}")
                .with_context({"tone": "rhyme"})
                .with_instructions("Be brief.")
            ),
        )
        .build()
    )
    assert (await workflow.run("q")).success
    assert asked[0].prompt == "q in rhyme"
    assert asked[0].instructions == "tone: rhyme\n\nBe brief."


async def test_structured_and_union_outputs_are_flattened_and_routed() -> None:
    def judge(prompt: str) -> Refund | Complaint:
        return Refund(int(prompt)) if prompt.isdigit() else Complaint(prompt)

    workflow = (
        team()
        .add_agent("judge", judge, lambda node: node.union_output(Refund, Complaint))
        .add_agent("pay", lambda p: f"pay {p}", input_key="amount")
        .add_agent("sorry", lambda p: f"sorry for {p}", input_key="about")
        .from_("judge")
        .route_by_type()
        .when(Refund, "pay")
        .when(Complaint, "sorry")
        .no_default()
        .with_in_memory_workflow_store()
        .build()
    )
    paid = await workflow.run("20")
    assert paid.final_answer == "pay 20"
    assert paid.outputs["judge.amount"] == 20
    assert paid.outputs["judge.answer"] == Refund(20)
    assert (await workflow.run("noise")).final_answer == "sorry for noise"


async def test_an_output_of_another_type_fails() -> None:
    workflow = team().add_agent("a", lambda p: 7, lambda node: node.structured_output(Refund)).build()
    result = await workflow.run("x")
    assert "should give out a Refund, but its value is 7" in str(result.error)


# -- edges ----------------------------------------------------------------------------------------------------------

TESTS = [
    ("equals", "P0", "P0", "P1"),
    ("not_equals", "P0", "P1", "P0"),
    ("greater_than", 3, 4, 3),
    ("less_than", 3, 2, "x"),
    ("at_least", 3, 3, 2),
    ("at_most", 3, 3, 4),
    ("contains", "x", "axb", "ab"),
    ("contains", 2, [1, 2], [1]),
    ("starts_with", "a", "ab", "ba"),
    ("ends_with", "a", "ba", 7),
    ("matches", "^a+$", "aaa", "aab"),
    ("contains_any", ["x", "y"], "ay", "ab"),
    ("contains_all", ["x", "y"], ["x", "y", "z"], ["x"]),
]


@pytest.mark.parametrize(("name", "value", "right", "wrong"), TESTS)
def test_conditions(name: str, value: Any, right: Any, wrong: Any) -> None:
    condition = EdgeCondition.test(name, "field", value)
    assert condition.holds({"field": right})
    assert not condition.holds({"field": wrong})
    assert condition.holds({}) is (name == "not_equals")
    assert EdgeCondition.from_data(json.loads(json.dumps(condition.to_data()))) == condition
    assert (~condition).holds({"field": wrong})
    assert (condition & EdgeCondition.always()).holds({"field": right})
    assert (condition | EdgeCondition.always()).holds({"field": wrong})


def test_conditions_of_presence() -> None:
    for name, present, empty, absent in (
        ("exists", True, True, False),
        ("not_exists", False, False, True),
        ("empty", False, True, True),
        ("not_empty", True, False, False),
    ):
        condition = EdgeCondition.test(name, "field")
        assert [condition.holds(outputs) for outputs in ({"field": "x"}, {"field": ""}, {})] == [
            present,
            empty,
            absent,
        ]
    assert EdgeCondition.test("equals", "refund.amount", 5).holds({"refund": Refund(5)})


async def test_a_router_hands_over_and_its_default_is_reached() -> None:
    def route(request: AgentRequest) -> AgentReply:
        wanted = {"bill": "billing", "crash": "tech"}.get(request.prompt)
        return AgentReply("routed", handoff=wanted)

    def build(default: str | None) -> AgentWorkflow:
        return (
            team()
            .add_router_agent("router", route, {"billing": "invoices", "tech": "errors"}, default=default)
            .add_agent("billing", lambda p: f"billing {p}")
            .add_agent("tech", lambda p: f"tech {p}")
            .add_agent("person", lambda p: f"person {p}")
            .from_("START")
            .to("router")
            .from_("router")
            .to("person")
            .when_not_exists("handoff")
            .build()
        )

    workflow = build("tech")
    assert (await workflow.run("bill")).final_answer == "billing bill"
    result = await workflow.run("hello")
    assert (result.final_answer, result.outputs["router.handoff"]) == ("tech hello", "tech")
    assert "should choose one of 'billing', 'tech', but chose none" in str(
        (await build(None).run("hello")).error
    )


async def test_a_loop_goes_on_until_the_review_is_content() -> None:
    def write(request: AgentRequest) -> str:
        return request.prompt + "!"

    def review(prompt: str) -> dict[str, Any]:
        return {"text": prompt, "done": prompt.count("!") >= 3}

    workflow = (
        team()
        .add_agent("facts", lambda p: "facts")
        .add_agent(
            "write",
            write,
            lambda node: node.with_input_template("{{request}}{{text}}").with_context({"text": ""}),
        )
        .add_agent("review", review, lambda node: node.structured_output(dict).with_input_key("write.answer"))
        .add_agent("publish", lambda p: f"published {p}", input_key="text")
        .from_("START")
        .to("write")
        .from_("facts")
        .to("review")
        .from_("write")
        .to("review")
        .from_("review")
        .to("write")
        .when_equals("done", False)
        .from_("review")
        .to("publish")
        .when_equals("done", True)
        .build()
    )
    events = [event async for event in workflow.run_stream("a")]
    rounds = [e.round for e in events if isinstance(e, WorkflowAgentStartedEvent) and e.agent == "write"]
    assert rounds == [1, 2, 3]
    (completed,) = [event for event in events if isinstance(event, WorkflowCompletedEvent)]
    assert completed.data == "published aaa!!!"
    assert (completed.succeeded, completed.skipped) == (8, 0)
    opened = [(e.index, e.node_count) for e in events if isinstance(e, WorkflowLayerStartedEvent)]
    assert opened == [(0, 2), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1), (2, 1)]


async def test_a_condition_that_raises_names_its_agent() -> None:
    def wants(outputs: Any) -> bool:
        return bool(outputs["nothing"])

    error = (await two().from_("a").to("b").when(wants).build().run("x")).error
    assert "a condition of an edge from agent 'a' raised KeyError: 'nothing'" in str(error)


async def test_a_function_may_make_the_agent() -> None:
    def make() -> ScriptedAgent:
        return ScriptedAgent(["made"])

    assert (await team().add_agent("a", make).build().run("x")).final_answer == "made"


async def test_a_loop_without_end_is_stopped() -> None:
    workflow = (
        team()
        .with_max_iterations(3)
        .add_agent("a", echo)
        .add_agent("b", echo)
        .from_("START")
        .to("a")
        .from_("a")
        .to("b")
        .from_("b")
        .to("a")
        .when_exists("answer")
        .build()
    )
    result = await workflow.run("x")
    assert isinstance(result.error, Exception)
    assert isinstance(result.error.__cause__, SuperstepLimit)
    assert "the loop that begins at agent 'a' took 3 rounds" in str(result.error)


# -- errors ---------------------------------------------------------------------------------------------------------


def with_error(policy: Any) -> AgentWorkflow:
    return (
        team()
        .add_agent("bad", fail, policy)
        .add_agent("good", lambda p: "good")
        .add_agent("spare", lambda p: "spare")
        .add_agent("last", lambda p: p, input_template="{{known}}", context={"known": "last"})
        .from_("START")
        .to("bad", "good")
        .from_("bad", "good", "spare")
        .to("last")
        .build()
        if policy is not None
        else team().add_agent("bad", fail).build()
    )


async def test_errors_stop_skip_isolate_or_fall_back() -> None:
    stopped = await with_error(None).run("x")
    assert (stopped.status, stopped.success) == (RunStatus.FAILED, False)

    async def outcome(policy: Any) -> tuple[Any, ...]:
        events = [event async for event in with_error(policy).run_stream("x")]
        done = {e.agent: e.success for e in events if isinstance(e, WorkflowAgentCompletedEvent)}
        taken = {(e.source, e.target) for e in events if isinstance(e, WorkflowEdgeTraversedEvent)}
        skipped = [e.agent for e in events if isinstance(e, WorkflowAgentSkippedEvent)]
        return done["bad"], ("bad", "last") in taken, ("bad", "spare") in taken, skipped

    # Without a fallback, nothing leads to 'spare' but START.
    assert await outcome(lambda node: node.on_error_skip()) == (False, False, False, [])
    assert await outcome(lambda node: node.on_error_isolate()) == (False, True, False, [])
    assert await outcome(lambda node: node.on_error_fallback("spare")) == (False, False, True, [])


async def test_retries_and_timeouts() -> None:
    calls: list[str] = []

    async def flaky(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) < 3:
            raise ConnectionError("gone")
        return "ok"

    workflow = team().add_agent("flaky", flaky, lambda node: node.with_retry(3, transient_only=True)).build()
    assert (await workflow.run("x")).final_answer == "ok"

    async def slow(prompt: str) -> str:
        await asyncio.sleep(60)
        return "late"

    def build(policy: str) -> AgentWorkflow:
        return team().add_agent("slow", slow, timeout=0.01, on_error=policy).add_agent("other", echo).build()

    stopped = (await build("stop").run("x")).error
    assert isinstance(stopped, Exception)
    assert isinstance(stopped.__cause__, ExecutorTimeout)
    assert (await build("skip").run("x")).final_answer == "<x>"


async def test_the_time_of_the_team_is_no_error_of_an_agent() -> None:
    async def slow(prompt: str) -> str:
        await asyncio.sleep(60)
        return "late"

    workflow = team().with_timeout(0.05).add_agent("slow", slow, on_error="skip").build()
    error = (await workflow.run("x")).error
    assert isinstance(error, Exception)
    assert isinstance(error.__cause__, TeamTimeout)


async def test_the_time_of_the_team_counts_work_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("holdfast.agents.workflow.team_node.monotonic", lambda: clock[0])

    def busy(prompt: str) -> str:
        clock[0] += 5
        return prompt

    async def outcome(seconds: float) -> Any:
        workflow = (
            team()
            .with_in_memory_workflow_store()
            .with_timeout(seconds)
            .add_agent("a", busy, requires_approval=True)
            .add_agent("b", busy)
            .add_agent("c", busy)
            .from_("a").to("b")
            .from_("b").to("c")
            .build()
        )  # fmt: skip
        asked = await workflow.run("x")
        clock[0] += 1000
        return await asked.respond({asked.pending_requests[0].request_id: True})

    assert (await outcome(20)).success
    error = (await outcome(9)).error
    assert isinstance(error.__cause__, TeamTimeout)
    assert "agent 'c' was at work" in str(error)


# -- approval -------------------------------------------------------------------------------------------------------


async def test_people_approve_or_deny_what_agents_give_out() -> None:
    workflow = (
        team()
        .with_in_memory_workflow_store()
        .add_agent("refund", echo, lambda node: node.requires_approval(field="answer", message="Really?"))
        .add_agent("mail", lambda p: f"mail {p}", input_key="answer")
        .from_("refund")
        .to("mail")
        .build()
    )
    asked = await workflow.run("20")
    assert (asked.status, asked.success) == (RunStatus.WAITING, False)
    (request,) = asked.pending_requests
    assert request.data == NodeApprovalRequest("refund", "<20>", {"answer": "<20>"}, "Really?")
    assert (await asked.respond({request.request_id: True})).final_answer == "mail <20>"
    asked = await workflow.run("30")
    (request,) = asked.pending_requests
    denied = await asked.respond({request.request_id: ApprovalDecision.deny("too much")})
    assert (denied.status, denied.success) == (RunStatus.COMPLETED, False)
    assert denied.error == "a person denied what agent 'refund' gave out: too much"


@pytest.mark.parametrize("action", ["deny", "approve", "wait"])
async def test_nobody_answers_in_time(action: Any) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = (
        team()
        .with_checkpointing(storage)
        .add_agent("a", echo, lambda node: node.requires_approval(timeout=0.01, on_timeout=action))
        .build()
    )
    run = await workflow.start("x", run_id="r")
    async for event in storage.watch("r", follow=True):
        if isinstance(event, WorkflowDiagnosticEvent):
            break
    result = await workflow.result_of(run)
    assert result.success is (action == "approve")
    assert len(result.pending_requests) == (action == "wait")
    await run.close()


async def test_tools_are_approved_and_budgets_hold() -> None:
    async def refund(amount: int) -> str:
        return f"paid {amount}"

    agent = ScriptedAgent([[("c1", "refund", {"amount": 5})], "done"], {"refund": refund})
    workflow = (
        team()
        .with_in_memory_workflow_store()
        .add_agent("pay", agent, lambda node: node.requires_tool_approval(["refund"]))
        .build()
    )
    asked = await workflow.run("x")
    (request,) = asked.pending_requests
    assert isinstance(request.data, ToolApprovalRequest)
    assert (await asked.respond({request.request_id: True})).final_answer == "done"
    poor = team().with_budget(Budget(calls=1)).add_agent("a", echo).add_agent("b", echo, on_error="skip")
    error = (await poor.from_("a").to("b").build().run("x")).error
    assert isinstance(error, Exception)
    assert isinstance(error.__cause__, BudgetExceeded)


async def test_at_most_so_many_runs_at_a_time() -> None:
    now, most = [0], [0]

    async def busy(prompt: str) -> str:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        return prompt

    workflow = team().add_agent("busy", busy, max_concurrent=2).build()
    await asyncio.gather(*(workflow.run(str(number)) for number in range(6)))
    assert most == [2]


# -- events ---------------------------------------------------------------------------------------------------------


WATCHER = """
import asyncio, sys
from holdfast import FileCheckpointStorage, WorkflowStartedEvent

async def main():
    async with FileCheckpointStorage(sys.argv[1]) as storage:
        async for event in storage.watch("r1"):
            if isinstance(event, WorkflowStartedEvent):
                print(event.node_count, event.layer_count)

asyncio.run(main())
"""


async def test_a_process_that_has_not_built_the_team_tells_its_size(tmp_path: Path) -> None:
    await durable_review(tmp_path).run("kelp", run_id="r1")
    command = [sys.executable, "-c", WATCHER, str(tmp_path / "checkpoints")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2 2\n", done.stderr


async def test_a_submitted_team_tells_its_size_when_it_moves() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = team().with_checkpointing(storage).add_agent("a", echo).build()
    await workflow.submit("x", run_id="r")
    await Host(storage, workflow).wake_due()
    started = [e async for e in storage.watch("r") if isinstance(e, WorkflowStartedEvent)]
    assert [(event.node_count, event.layer_count) for event in started] == [(1, 1)]


async def test_events_are_the_same_live_and_from_the_storage() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = (
        team()
        .with_checkpointing(storage)
        .add_agent("a", echo)
        .add_agent("b", echo)
        .add_agent("c", echo)
        .from_("a")
        .to("b")
        .when_equals("answer", "<x>")
        .from_("a")
        .to("c")
        .as_default()
        .build()
    )
    live = [event async for event in workflow.run_stream("x", run_id="r") if not event.provisional]
    stored = [event async for event in storage.watch("r")]
    family = (
        WorkflowStartedEvent,
        WorkflowAgentStartedEvent,
        WorkflowAgentCompletedEvent,
        WorkflowAgentSkippedEvent,
        WorkflowEdgeTraversedEvent,
        WorkflowLayerStartedEvent,
        WorkflowLayerCompletedEvent,
        WorkflowCompletedEvent,
    )

    def told(events: list[Any]) -> list[tuple[str, Any]]:
        keep = [event for event in events if isinstance(event, family)]
        return [(type(e).__name__, {**e.to_dict(), "event_id": 0, "timestamp": 0}) for e in keep]

    assert told(live) == told(stored)
    started = live[0]
    assert isinstance(started, WorkflowStartedEvent)
    assert (started.node_count, started.layer_count) == (3, 2)
    (skipped,) = [event for event in stored if isinstance(event, WorkflowAgentSkippedEvent)]
    assert (skipped.agent, skipped.layer) == ("c", 1)
    assert skipped.reason == "edge 'a' -> 'c' was refused: default"
    edges = [(e.source, e.target, e.condition) for e in stored if isinstance(e, WorkflowEdgeTraversedEvent)]
    assert edges == [("START", "a", None), ("a", "b", "answer is '<x>'"), ("b", "END", None)]
    assert "-.->|\"answer is '#lt;x#gt;'\"|" in workflow.to_mermaid()


async def test_what_went_by_a_rule_is_told() -> None:
    def route(request: AgentRequest) -> AgentReply:
        return AgentReply("", handoff="nobody")

    workflow = (
        team()
        .add_router_agent("router", route, {"bad": ""}, default="bad")
        .add_agent("bad", fail, on_error="isolate")
        .build()
    )
    events = [event async for event in workflow.run_stream("x")]
    told = [
        (event.source, event.node, event.message)
        for event in events
        if isinstance(event, WorkflowDiagnosticEvent)
    ]
    assert told == [
        ("router", "router", "the agent chose 'nobody', so its default goes on: 'bad'"),
        ("errors", "bad", "ValueError: no; its option: isolate"),
        ("end", None, "no agent before END gave a text"),
    ]
    assert isinstance(events[-1], WorkflowCompletedEvent)
    assert (events[-1].failed, events[-1].success) == (1, False)


# -- conversations ----------------------------------------------------------------------------------------------


def speaker(name: str) -> Any:
    def speak(request: AgentRequest) -> str:
        said = [*(message.text for message in request.messages)]
        if request.history is not None:
            said += [message["content"] for message in request.history.messages]
        return f"{name} after {len(said)}"

    return speak


async def chat(conversation: Conversation, folder: Path) -> tuple[dict[str, Any], JsonSessionStore]:
    store = JsonSessionStore(folder / "sessions")
    for run_id in ("r1", "r2"):
        workflow = (
            team()
            .with_json_workflow_store(folder / "workflows")
            .with_session_store(store)
            .with_conversation(conversation)
            .add_agent("a", speaker("a"))
            .add_agent("b", speaker("b"))
            .from_("a")
            .to("b")
            .build()
        )
        result = await workflow.run("hello", run_id=run_id)
        assert result.success, result.error
    return result.outputs, store


async def test_agents_share_a_thread_or_have_their_own(tmp_path: Path) -> None:
    outputs, store = await chat(Conversation.shared_thread("kim"), tmp_path / "shared")
    assert outputs == {"a.answer": "a after 4", "b.answer": "b after 6"}
    said = [message.text for message in await read_messages(store, "kim")]
    assert said == ["hello", "a after 0", "hello", "b after 2", "hello", "a after 4", "hello", "b after 6"]
    outputs, store = await chat(Conversation.thread_per_agent("kim"), tmp_path / "own")
    assert outputs == {"a.answer": "a after 2", "b.answer": "b after 2"}
    store = JsonSessionStore(tmp_path / "fork" / "sessions")
    await append_messages(store, "kim", [AgentMessage("user", "before")])
    outputs, _ = await chat(Conversation.fork_thread_per_agent("kim"), tmp_path / "fork")
    assert outputs == {"a.answer": "a after 3", "b.answer": "b after 3"}
    outputs, store = await chat(Conversation.shared_thread(), tmp_path / "runs")
    assert outputs == {"a.answer": "a after 0", "b.answer": "b after 2"}


async def test_agents_of_one_thread_work_one_after_the_other(tmp_path: Path) -> None:
    at_work, most = 0, 0

    async def speak(request: AgentRequest) -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        return f"after {len(request.messages) + len(request.history.messages if request.history else ())}"

    async def outcome(conversation: Conversation) -> tuple[int, set[str]]:
        nonlocal most
        most = 0
        builder = team().with_in_memory_session_store().with_conversation(conversation)
        for name in ("a", "b", "c"):
            builder.add_agent(name, speak)
        result = await builder.with_in_memory_workflow_store().build().run("x")
        return most, set(result.outputs.values())

    assert await outcome(Conversation.shared_thread()) == (1, {"after 0", "after 2", "after 4"})
    assert await outcome(Conversation.thread_per_agent()) == (3, {"after 0"})


async def test_a_recorded_team_needs_no_model() -> None:
    storage = InMemoryCheckpointStorage()

    def build(agent: Any) -> AgentWorkflow:
        return (
            team()
            .with_recording()
            .add_agent("a", agent)
            .add_agent("b", agent, input_key="answer")
            .from_("a")
            .to("b")
            .build()
        )

    await build(echo).run("x", run_id="r", storage=storage)
    cassette = await Cassette.from_run(storage, "r")
    with cassette.replay() as replay:
        result = await build(fail).run("x")
    assert (result.final_answer, replay.unused()) == ("<<x>>", [])


# -- what is refused ------------------------------------------------------------------------------------------------


def two() -> AgentWorkflowBuilder:
    return team().add_agent("a", echo).add_agent("b", echo)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: team().build(), "the team has no agent"),
        (lambda: two().add_agent("a", echo), "two agents 'a'"),
        (lambda: two().add_agent("END", echo), "cannot be called 'END'"),
        (lambda: two().add_agent("c", echo, color="red"), "agent 'c' has no option 'color'"),
        (lambda: two().add_agent("c", echo, timeout=0), "agent 'c': with_timeout\\(0\\) must be"),
        (lambda: two().from_("a").to("z").build(), "edge 'a' -> 'z' names the agent 'z'"),
        (lambda: two().from_("END").to("a").build(), "nothing leads away from END"),
        (lambda: two().from_("a").to("b").from_("a").to("b").build(), "was added twice"),
        (lambda: two().from_("a").to("b").as_default().build(), "no edge with a condition"),
        (lambda: two().from_("a").to("b").from_("b").to("a").build(), "'a' cannot be reached from START"),
        (
            lambda: two().from_("START").to("a").from_("a").to("b").from_("b").to("a").build(),
            "the loop never ends",
        ),
        (lambda: two().add_agent("c", echo, fallback="z").build(), "on_error_fallback names the agent 'z'"),
        (lambda: two().from_("a").to("b").when_matches("x", "("), "is no regular expression"),
        (lambda: two().from_("a").to("b").when_exists("x").as_default(), "it is no default"),
        (
            lambda: two().from_("a").route_by_type().when(Refund, "b").no_default().build(),
            "gives out text, never a",
        ),
        (lambda: two().with_checkpointing().build(), "needs a store"),
        (
            lambda: two().with_conversation(Conversation.shared_thread()).build(),
            "Conversation.shared_thread.* needs a session store",
        ),
        (lambda: two().with_in_memory_session_store().build(), "a session store that nobody uses"),
        (lambda: two().with_max_iterations(0), "must be a whole number"),
        (lambda: team().add_router_agent("r", echo, {}), "at least one target"),
        (
            lambda: two().add_agent("c", echo, input_key="drfat").build(),
            "agent 'c': with_input_key names .*'drfat'",
        ),
        (
            lambda: two().add_agent("c", echo, input_template="{{a.text}}").build(),
            "agent 'c': with_input_template names the output 'a.text', which no agent gives; there are 'a.answer'",
        ),
        (
            lambda: team().add_agent("c", echo, structured_output=Refund, input_key="c.amout").build(),
            "the output 'c.amout'.*'c.amount'",
        ),
        (
            lambda: team().add_agent("a", two().build()).build(),
            "agent 'a': <.*'Team' .* is a workflow; make an agent",
        ),
        (lambda: team().add_agent("a", 5).build(), "agent 'a': 5 is no agent"),
        (
            lambda: team().add_agent("a", lambda: 1 // 0).build(),
            "agent 'a': the function that makes it raised Zero",
        ),
        (lambda: team().add_agent("a", echo, "fast"), "agent 'a': options are set by a function"),  # type: ignore[arg-type]
        (lambda: team().add_agent("a", echo, on_error="explode"), "agent 'a': on_error='explode' must be"),
        (
            lambda: team().add_agent("a", echo, structured_output=5),
            "agent 'a': structured_output\\(5\\) must be a type",
        ),
        (
            lambda: team().add_agent("a", echo, requires_tool_approval=5),
            "agent 'a': requires_tool_approval\\(5\\) must be a list",
        ),
        (lambda: team().with_rate_limit(longest_pause=-1), "longest_pause=-1\\) must be"),
        (lambda: team().with_json_workflow_store(), "needs the folder"),
        (lambda: team().with_in_memory_workflow_store(3), "give a Retention"),  # type: ignore[arg-type]
    ],
)
def test_mistakes_are_told_when_the_team_is_built(make: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        make()
