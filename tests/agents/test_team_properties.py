"""Random teams: every run ends, counts are what happened, no join hangs, and a stop anywhere changes nothing."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from holdfast import GraphError, InMemoryCheckpointStorage, RunStatus, SuperstepLimit
from holdfast.agents import (
    AgentRunResult,
    AgentWorkflow,
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
)
from holdfast.agents.workflow.team_node import TeamNode
from holdfast.agents.workflow.team_plan import TeamPlan
from holdfast.checkpoint.events.events import WorkflowCompletedEvent
from holdfast.errors import StorageError
from holdfast.testing.resumable import MortalStore
from tests.agents.team_graph_kills import plant_join_in_memory
from tests.agents.team_graphs import DIGITS, RandomNode, RandomTeam, answer_to, digest, random_teams

thorough = settings(
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


async def finish(workflow: AgentWorkflow, run: Any) -> AgentRunResult:
    result = await workflow.result_of(run)
    while result.pending_requests:
        await run.respond({one.request_id: answer_to(one) for one in result.pending_requests})
        result = await workflow.result_of(run)
    await run.close()
    return result


def build(team: RandomTeam, storage: Any = None) -> AgentWorkflow:
    try:
        return team.build(storage)
    except GraphError as error:
        assume("cross each other" not in str(error))
        raise


def may_fail(team: RandomTeam) -> bool:
    return any(node.policy == "stop" and node.fails_below for node in team.nodes)


async def check_ends(team: RandomTeam) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = build(team, storage)
    result = await finish(workflow, await workflow.start("", run_id="r"))
    if result.status is RunStatus.FAILED:
        cause = getattr(result.error, "__cause__", None)
        assert (isinstance(cause, SuperstepLimit) and team.back) or may_fail(team), result.error
        return
    assert result.status is RunStatus.COMPLETED, result
    events = [event async for event in storage.watch("r")]
    (completed,) = [event for event in events if isinstance(event, WorkflowCompletedEvent)]
    started = Counter(event.agent for event in events if isinstance(event, WorkflowAgentStartedEvent))
    done = [event for event in events if isinstance(event, WorkflowAgentCompletedEvent)]
    skipped = [event for event in events if isinstance(event, WorkflowAgentSkippedEvent)]
    assert started == Counter(event.agent for event in done)
    assert completed.succeeded == sum(event.success for event in done)
    assert completed.failed == sum(not event.success for event in done)
    assert completed.skipped == len(skipped)
    settled = {event.agent for event in done} | {event.agent for event in skipped}
    assert settled == {f"n{number}" for number in range(len(team.nodes))}
    opened = Counter(event.index for event in events if isinstance(event, WorkflowLayerStartedEvent))
    closed = Counter(event.index for event in events if isinstance(event, WorkflowLayerCompletedEvent))
    assert opened == closed
    assert completed.success == result.success
    infos = await storage.list_checkpoints(run_id="r")
    for info in infos[:: max(1, len(infos) // 4)]:
        again = build(team, storage)
        forked = await finish(again, await again.fork(info))
        assert (forked.final_answer, forked.outputs) == (result.final_answer, result.outputs), info
    commits = len({info.timestamp for info in infos if info.phase == "end"})
    for count in range(1, commits, max(1, commits // 4)):
        await check_dies_and_goes_on(team, count, result, completed)


async def check_dies_and_goes_on(
    team: RandomTeam, commits: int, expected: AgentRunResult, counted: WorkflowCompletedEvent
) -> None:
    """Let the store die after so many commits, and go on with all that was made anew, as another process would."""
    storage = InMemoryCheckpointStorage()
    store = storage.catalog.store
    storage.catalog.store = MortalStore(store, commits)
    workflow = build(team, storage)
    with contextlib.suppress(StorageError):
        await finish(workflow, await workflow.start("", run_id="r"))
    storage.catalog.store = store
    again = build(team, storage)
    result = await finish(again, await again.resume(run_id="r"))
    assert (result.final_answer, result.outputs) == (expected.final_answer, expected.outputs), commits
    told = [event async for event in storage.watch("r") if isinstance(event, WorkflowCompletedEvent)]
    assert [counts(event) for event in told] == [counts(counted)]


def counts(event: WorkflowCompletedEvent) -> tuple[Any, ...]:
    return event.succeeded, event.failed, event.skipped, event.success


@thorough
@given(random_teams())
async def test_every_run_ends_and_counts_what_happened(team: RandomTeam) -> None:
    await check_ends(team)


def expected_runs(team: RandomTeam) -> tuple[dict[int, str | None], str | None]:
    """Compute without any engine which agents of a team without loops do their work, and the answer."""
    texts: dict[int, str | None] = {}
    taken: dict[tuple[int, int], str | None] = {}
    ends: list[tuple[int, str | None]] = []
    for number, node in enumerate(team.nodes):
        links = {(source, target) for source, target, _ in team.forward} | {*team.fallbacks}
        incoming = sorted(link for link in links if link[1] == number)
        messages = [taken[link] for link in incoming if link in taken]
        if incoming and not messages:
            continue
        prompt = next((text for text in messages if text), "")
        own = digest(f"n{number}", prompt)
        failed = DIGITS.index(own[0]) < node.fails_below
        text: str | None = own[::-1]
        if not failed and DIGITS.index(own[-1]) < node.asks_below:
            failed = DIGITS.index(digest(f"n{number}", str(text))[0]) >= 12
        texts[number] = None if failed else text
        outgoing = [edge for edge in team.forward if edge[0] == number]
        if failed and node.policy != "isolate":
            if (number, number + 1) in team.fallbacks:
                taken[number, number + 1] = None
            continue
        text = None if failed else text
        if node.is_router and outgoing:
            targets = list(dict.fromkeys(target for _, target, _ in outgoing))
            chosen = DIGITS.index(own[1]) % (len(targets) + 1)
            target = targets[chosen] if chosen < len(targets) else targets[-1]
            if not failed:
                taken[number, target] = text
            continue
        matched = False
        for _, target, below in outgoing:
            if below == 16 or (below >= 0 and text is not None and DIGITS.index(text[0]) < below):
                taken[number, target] = text
                matched = matched or below < 16
        for _, target, below in outgoing:
            if below < 0 and not matched:
                taken[number, target] = text
        if not outgoing:
            ends.append((number, text))
    said = [text for _, text in ends if text is not None]
    return texts, "\n\n".join(said) if said else None


async def check_as_computed(team: RandomTeam) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = team.build(storage)
    result = await finish(workflow, await workflow.start("", run_id="r"))
    texts, answer = expected_runs(team)
    events = [event async for event in storage.watch("r")]
    done = {event.agent: event for event in events if isinstance(event, WorkflowAgentCompletedEvent)}
    assert set(done) == {f"n{number}" for number in texts}
    assert {int(name[1:]) for name, event in done.items() if event.success} == {
        number for number, text in texts.items() if text is not None
    }
    assert result.final_answer == answer


@thorough
@given(random_teams(loops=False))
async def test_a_team_without_loops_does_what_its_edges_say(team: RandomTeam) -> None:
    assume(not may_fail(team))
    await check_as_computed(team)


DIAMOND = RandomTeam(
    (RandomNode("skip", 0, 0, False),) * 4, ((0, 1, 16), (0, 2, 0), (1, 3, 16), (2, 3, 16)), ()
)
"""A join behind a branch that is never taken."""
LOOP = RandomTeam((RandomNode("skip", 0, 0, False),) * 3, ((0, 1, 16), (1, 2, 8)), ((1, 0, 8),))
"""A loop with a way out whose edge is refused in each round that leads back."""
UNEVEN = RandomTeam(
    (RandomNode("skip", 0, 0, False),) * 4, ((0, 1, 16), (0, 3, 16), (1, 2, 16), (2, 3, 16)), ()
)
"""A join that waits long for one of its edges."""


async def test_a_join_and_a_loop() -> None:
    await check_as_computed(DIAMOND)
    await check_ends(UNEVEN)
    await check_ends(LOOP)


def kill_campaign(folder: Path, *arguments: str) -> tuple[int, list[Any]]:
    command = [sys.executable, "-m", "tests.agents.team_graph_kills", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.stdout, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_random_teams_are_killed_and_go_on(tmp_path: Path) -> None:
    code, report = kill_campaign(tmp_path, "--teams", "4", "--kills", "3")
    assert (code, report[-1]["wrong"]) == (0, 0), report
    assert report[-1]["kills"] >= 8


def test_a_killed_join_that_forgets_is_caught(tmp_path: Path) -> None:
    code, report = kill_campaign(tmp_path, "--teams", "2", "--kills", "2", "--plant", "join-in-memory")
    assert code == 1
    assert report[-1]["wrong"] > 0


async def test_a_join_that_gets_no_skip_marks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: refused edges tell nobody."""
    serve = TeamNode._serve

    async def serve_taken(node: Any, taken: Any, result: Any, rounds: Any, reason: Any, ctx: Any) -> None:
        class Silent:
            async def send_message(self, token: Any, target: str) -> None:
                if token.kind != "skip":
                    await ctx.send_message(token, target)

        await serve(node, taken, result, rounds, reason, Silent())  # type: ignore[arg-type]

    monkeypatch.setattr(TeamNode, "_serve", serve_taken)
    with pytest.raises(AssertionError):
        await check_as_computed(DIAMOND)


async def test_tokens_that_are_kept_in_memory_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: what came to a join is in its process alone, so it hangs after a restart."""
    plant_join_in_memory(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        await check_ends(UNEVEN)


async def test_a_skip_that_leaves_a_loop_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: agents behind a loop do not wait until it is over."""
    incoming = TeamPlan.incoming
    monkeypatch.setattr(
        TeamPlan,
        "incoming",
        lambda plan, node: tuple(one._replace(gate=None) for one in incoming(plan, node)),
    )
    with pytest.raises(AssertionError):
        await check_ends(LOOP)
