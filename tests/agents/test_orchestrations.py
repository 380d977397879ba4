"""Teams of agents: who hears what, who is next, where people come in, and how a team ends."""

import asyncio
from typing import Any

import pytest

from holdfast import (
    ExecutorFailed,
    GraphError,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunStatus,
    WorkflowBuilder,
    WorkflowExecutor,
)
from holdfast.agents import (
    AgentLoop,
    AgentReply,
    AgentRequest,
    AgentSettings,
    Budget,
    Handoff,
    OutputApproval,
    OutputDecision,
    Transcript,
    function,
)
from holdfast.agents.orchestrations import (
    PlanDecision,
    PlanReview,
    ProgressLedger,
    TurnReview,
    concurrent,
    group_chat,
    handoff,
    planner,
    sequential,
)


def agent(name: str, *answers: Any, heard: list[Any] | None = None) -> function.FunctionAgent:
    """Return an agent that says its answers one after the other, the last for ever."""
    left = list(answers)

    def act(request: AgentRequest) -> Any:
        if heard is not None:
            heard.append(request)
        said = left.pop(0) if len(left) > 1 else left[0]
        return said(request.prompt) if callable(said) else said

    return function.wrap(act, name=name)


def said(talk: Any) -> list[tuple[str, str]]:
    assert isinstance(talk, Transcript)
    return [(message.author, message.text) for message in talk.messages]


# -- sequential and concurrent ----------------------------------------------------------------------------------------


async def test_a_sequence_passes_the_whole_conversation_on() -> None:
    heard: list[AgentRequest] = []
    team = sequential(
        agent("draft", "a draft"), agent("review", "a review"), agent("edit", "final", heard=heard)
    )
    (talk,) = (await team.run("kelp")).outputs
    assert said(talk) == [("", "kelp"), ("draft", "a draft"), ("review", "a review"), ("edit", "final")]
    assert heard[0].prompt == "a review"
    assert [(one.role, one.text) for one in heard[0].messages] == [
        ("user", "kelp"),
        ("user", "draft: a draft"),
    ]


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (True, [("review", "fine")]),
        ("shorter", [("", "shorter"), ("review", "fine")]),
        (False, []),
    ],
)
async def test_a_person_speaks_between_two_agents(answer: Any, end: list[tuple[str, str]]) -> None:
    storage = InMemoryCheckpointStorage()
    team = sequential(
        agent("draft", "a draft"), agent("review", "fine"), storage=storage, ask_after=["draft"]
    )
    result = await team.run("kelp", run_id="r")
    (request,) = result.pending_requests
    assert request.data == TurnReview("draft", "a draft")
    result = await result.respond({request.request_id: answer})
    assert said(result.outputs[0]) == [("", "kelp"), ("draft", "a draft"), *end]


@pytest.mark.parametrize(("answer", "end"), [(True, []), ("thanks", [("", "thanks")]), (False, [])])
async def test_a_person_speaks_after_the_last_agent(answer: Any, end: list[tuple[str, str]]) -> None:
    result = await sequential(agent("draft", "a draft"), ask_after=["draft"]).run("kelp")
    result = await result.respond({result.pending_requests[0].request_id: answer})
    assert said(result.outputs[0]) == [("", "kelp"), ("draft", "a draft"), *end]


async def test_settings_of_one_agent_of_a_team() -> None:
    settings = {"draft": AgentSettings(output_approval=OutputApproval())}
    team = sequential(agent("draft", "a draft"), agent("review", "fine"), settings=settings)
    result = await team.run("kelp")
    decision = OutputDecision.edit("another draft")
    result = await result.respond({result.pending_requests[0].request_id: decision})
    assert said(result.outputs[0]) == [("", "kelp"), ("draft", "another draft"), ("review", "fine")]


async def test_agents_side_by_side_come_together_in_their_order() -> None:
    async def slow(prompt: str) -> str:
        await asyncio.sleep(0.01)
        return "slow"

    team = concurrent(function.wrap(slow), agent("quick", "quick"))
    assert said((await team.run("x")).outputs[0]) == [("slow", "slow"), ("quick", "quick")]
    counted = concurrent(
        agent("a", "1"), agent("b", "2"), aggregate=lambda replies: sum(int(one.text) for one in replies)
    )
    assert (await counted.run("x")).outputs == [3]
    judge = concurrent(
        agent("a", "1"), agent("b", "2"), aggregate=agent("judge", lambda prompt: f"judged {prompt!r}")
    )
    assert (await judge.run("x")).outputs == ["judged '1\\n\\n2'"]
    alone = concurrent(agent("a", "1"))
    assert said((await alone.run("x")).outputs[0]) == [("a", "1")]


async def test_a_person_speaks_between_agents_side_by_side_and_their_result() -> None:
    heard: list[AgentRequest] = []
    team = concurrent(
        agent("a", "1", "more", heard=heard),
        agent("b", "2"),
        agent("c", "3"),
        ask_after=["a", "b"],
        storage=InMemoryCheckpointStorage(),
    )
    result = await team.run("x")
    asked = {request.data.author: request.request_id for request in result.pending_requests}
    assert set(asked) == {"a", "b"}
    result = await result.respond({asked["a"]: "say more", asked["b"]: False})
    (request,) = result.pending_requests
    assert request.data == TurnReview("a", "more")
    result = await result.respond({request.request_id: True})
    assert said(result.outputs[0]) == [("a", "more"), ("c", "3")]
    assert heard[1].prompt == "say more"
    assert heard[1].history is not None
    assert [message["content"] for message in heard[1].history.messages] == ["x", "1"]
    alone = await concurrent(agent("a", "1"), ask_after=["a"]).run("x")
    alone = await alone.respond({alone.pending_requests[0].request_id: True})
    assert said(alone.outputs[0]) == [("a", "1")]


# -- group chat -------------------------------------------------------------------------------------------------------


async def test_agents_of_a_chat_hear_what_they_have_not_heard() -> None:
    heard: list[AgentRequest] = []
    team = group_chat(
        [agent("writer", "one", "two", heard=heard), agent("critic", "hm", "APPROVED")],
        until=lambda talk: "APPROVED" in talk.text,
        storage=InMemoryCheckpointStorage(),
    )
    (talk,) = (await team.run("kelp")).outputs
    assert said(talk) == [
        ("", "kelp"),
        ("writer", "one"),
        ("critic", "hm"),
        ("writer", "two"),
        ("critic", "APPROVED"),
    ]
    assert [request.prompt for request in heard] == ["kelp", "critic: hm"]
    assert heard[1].history is not None
    assert [message["content"] for message in heard[1].history.messages] == ["kelp", "one"]


async def test_a_function_or_a_manager_chooses_who_speaks() -> None:
    async def choose(talk: Transcript) -> str | None:
        return {"": "b", "b": "a"}.get(talk.author)

    chosen = await group_chat([agent("a", "A"), agent("b", "B")], select=choose).run("x")
    assert [author for author, _ in said(chosen.outputs[0])] == ["", "b", "a"]
    choices: list[AgentRequest] = []
    boss = agent("boss", AgentReply("", handoff="b"), AgentReply("", handoff="end"), heard=choices)
    managed = await group_chat([agent("a", "A"), agent("b", "B")], select=boss).run("x")
    assert [author for author, _ in said(managed.outputs[0])] == ["", "b"]
    assert [one.target for one in choices[0].handoffs] == ["a", "b", "end"]
    wrong = group_chat([agent("a", "A")], select=lambda talk: "nobody")
    with pytest.raises(ExecutorFailed, match="'nobody' was chosen to speak, but there are only 'a'"):
        await wrong.run("x")


async def test_a_chat_ends_after_so_many_turns_and_goes_on_with_a_further_word() -> None:
    storage = InMemoryCheckpointStorage()
    team = group_chat([agent("a", "A"), agent("b", "B")], max_rounds=3, storage=storage)
    result = await team.run("x", run_id="r")
    assert [author for author, _ in said(result.outputs[0])] == ["", "a", "b", "a"]
    result = await team.run("and now", run_id="r", if_exists="continue")
    assert [text for _, text in said(result.outputs[-1])] == ["and now", "B", "A", "B"]


async def test_a_person_speaks_in_a_chat() -> None:
    heard: list[AgentRequest] = []
    team = group_chat(
        [agent("a", "A", heard=heard)], ask_after=["a"], storage=InMemoryCheckpointStorage(), max_rounds=5
    )
    result = await team.run("x")
    result = await result.respond({result.pending_requests[0].request_id: "more"})
    result = await result.respond({result.pending_requests[0].request_id: False})
    assert said(result.outputs[0]) == [("", "x"), ("a", "A"), ("", "more"), ("a", "A")]
    assert [request.prompt for request in heard] == ["x", "more"]


# -- handoff ----------------------------------------------------------------------------------------------------------


async def test_an_agent_hands_over_and_the_other_one_hears_all() -> None:
    heard: list[AgentRequest] = []
    triage = agent("triage", AgentReply("One moment.", handoff="billing"))
    team = handoff(triage, {"triage": [agent("billing", "Paid.", heard=heard), Handoff("triage")]})
    (talk,) = (await team.run("My invoice?")).outputs
    assert said(talk) == [("", "My invoice?"), ("triage", "One moment."), ("billing", "Paid.")]
    assert heard[0].prompt == "My invoice?\n\ntriage: One moment."
    assert heard[0].handoffs == ()


@pytest.mark.parametrize("returns", [True, False])
async def test_a_person_goes_on_with_the_agent_who_replied_or_with_the_first(returns: bool) -> None:
    first, second = agent("first", AgentReply("", handoff="second")), agent("second", "done")
    heard: list[AgentRequest] = []
    first = agent("first", AgentReply("", handoff="second"), "mine", heard=heard)
    team = handoff(
        first,
        {"first": [second]},
        asks_user=True,
        returns_to_start=returns,
        storage=InMemoryCheckpointStorage(),
    )
    result = await team.run("a")
    assert result.status is RunStatus.WAITING
    result = await result.respond({result.pending_requests[0].request_id: "b"})
    assert result.pending_requests[0].data.author == ("first" if returns else "second")
    result = await result.respond({result.pending_requests[0].request_id: False})
    assert said(result.outputs[0])[-1] == (("first", "mine") if returns else ("second", "done"))
    assert len(heard) == 1 + returns


@pytest.mark.parametrize(("most", "end"), [(1, ["one", "two"]), (9, ["one", "two", "done"])])
async def test_an_agent_goes_on_by_itself(most: int, end: list[str]) -> None:
    heard: list[AgentRequest] = []
    desk = agent("desk", AgentReply("", handoff="worker"))
    worker = agent("worker", "one", "two", "done", heard=heard)
    team = handoff(desk, {"desk": [worker]}, autonomous_turns=most, until=lambda talk: talk.text == "done")
    result = await team.run("a task")
    assert [text for _, text in said(result.outputs[0])] == ["a task", *end]
    assert [request.prompt for request in heard] == ["a task", *["Go on."] * (len(end) - 1)]


async def test_handing_over_without_end_fails_clearly() -> None:
    one, two = agent("one", AgentReply("", handoff="two")), agent("two", AgentReply("", handoff="one"))
    team = handoff(one, {"one": [two], "two": ["one"]}, max_handoffs=3)
    with pytest.raises(ExecutorFailed, match="handed over 3 times without a reply") as failed:
        await team.run("x")
    assert isinstance(failed.value.__cause__, AgentLoop)
    stray = handoff(agent("one", AgentReply("", handoff="nobody")), {})
    with pytest.raises(ExecutorFailed, match="hands over to 'nobody', but has no such route"):
        await stray.run("x")


# -- planner ----------------------------------------------------------------------------------------------------------


def manager(*ledgers: ProgressLedger, asked: list[str] | None = None) -> function.FunctionAgent:
    left = list(ledgers)

    def manage(request: AgentRequest) -> Any:
        if asked is not None:
            asked.append(request.prompt)
        if request.output_types:
            return left.pop(0) if len(left) > 1 else left[0]
        return "the plan" if "plan" in request.prompt.rpartition("\n\n")[2] else "the answer"

    return function.wrap(manage, name="manager")


GO = ProgressLedger(False, True, "a", "do it")
DONE = ProgressLedger(True, True)


async def test_a_planner_instructs_watches_and_answers() -> None:
    heard: list[AgentRequest] = []
    asked: list[str] = []
    team = planner(manager(GO, DONE, asked=asked), [agent("a", "did it", heard=heard)])
    (talk,) = (await team.run("a task")).outputs
    assert said(talk) == [("", "a task"), ("a", "did it"), ("answer", "the answer")]
    assert heard[0].prompt == "a task\n\ndo it"
    assert "The plan:\nthe plan" in asked[2]
    assert "a: did it" in asked[2]


@pytest.mark.parametrize(
    ("ledger", "plans", "turns"),
    [
        (ProgressLedger(False, False, "a", "again"), 3, 6),
        (ProgressLedger(False, True, "nobody"), 3, 0),
    ],
    ids=["no progress", "unknown agent"],
)
async def test_a_planner_that_stalls_plans_anew_and_then_answers(ledger: Any, plans: int, turns: int) -> None:
    asked: list[str] = []
    heard: list[AgentRequest] = []
    team = planner(manager(ledger, asked=asked), [agent("a", "hm", heard=heard)], max_stalls=2, max_resets=2)
    (talk,) = (await team.run("a task")).outputs
    assert talk.text == "the answer"
    assert sum("Make" in prompt for prompt in asked) == plans
    assert len(heard) == turns
    assert "There is no more time" in asked[-1]


async def test_a_planner_stops_after_so_many_rounds() -> None:
    heard: list[AgentRequest] = []
    team = planner(manager(GO), [agent("a", "hm", heard=heard)], max_rounds=4)
    assert (await team.run("a task")).outputs[0].text == "the answer"
    assert len(heard) == 4


async def test_a_person_reviews_the_plan() -> None:
    asked: list[str] = []
    team = planner(
        manager(DONE, asked=asked), [agent("a", "-")], review_plan=True, storage=InMemoryCheckpointStorage()
    )
    result = await team.run("a task")
    assert result.pending_requests[0].data == PlanReview("a task", "the plan")
    result = await result.respond({result.pending_requests[0].request_id: PlanDecision.revise("faster")})
    assert "Their words: faster" in asked[-1]
    result = await result.respond({result.pending_requests[0].request_id: PlanDecision.edit("my plan")})
    assert result.outputs[0].text == "the answer"
    assert "The plan:\nmy plan" in asked[-1]


@pytest.mark.parametrize(
    ("answer", "words"), [("hurry", "person: hurry"), (True, "a: did it"), (False, "There is no")]
)
async def test_a_person_speaks_between_the_agents_of_a_planner(answer: Any, words: str) -> None:
    asked: list[str] = []
    team = planner(manager(GO, DONE, asked=asked), [agent("a", "did it")], ask_after=["a"])
    result = await team.run("a task")
    assert result.pending_requests[0].data == TurnReview("a", "did it")
    result = await result.respond({result.pending_requests[0].request_id: answer})
    assert result.outputs[0].text == "the answer"
    assert words in asked[2]


# -- all of them ------------------------------------------------------------------------------------------------------


def teams() -> dict[str, Any]:
    return {
        "sequential": sequential(agent("a", "A"), agent("b", "B")),
        "concurrent": concurrent(agent("a", "A"), agent("b", "B")),
        "group_chat": group_chat([agent("a", "A"), agent("b", "B")], max_rounds=2),
        "handoff": handoff(agent("a", AgentReply("", handoff="b")), {"a": [agent("b", "B")]}),
        "planner": planner(manager(GO, DONE), [agent("a", "A")]),
    }


@pytest.mark.parametrize("kind", list(teams()))
async def test_a_team_is_a_workflow_that_can_be_drawn_nested_and_limited(kind: str) -> None:
    drawn = teams()[kind].to_mermaid()
    assert "a" in drawn
    outer = (
        WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(teams()[kind], id="team")).build()
    )
    (talk,) = (await outer.run("x")).outputs
    assert talk.text in ("A", "B", "the answer")


async def test_one_budget_holds_for_a_whole_team() -> None:
    settings = AgentSettings(budgets=(Budget(calls=3),))
    team = group_chat([agent("a", "A"), agent("b", "B")], max_rounds=10, settings=settings)
    with pytest.raises(ExecutorFailed, match="3 of 3 model calls"):
        await team.run("x")


@pytest.mark.parametrize(
    ("build", "error", "complaint"),
    [
        (lambda: sequential(), GraphError, "at least one agent"),
        (lambda: sequential(agent("a", ""), agent("a", "")), GraphError, "two agents are called 'a'"),
        (
            lambda: sequential(agent("a", ""), ask_after=["b"]),
            GraphError,
            r"ask_after=...\): there is no agent 'b'",
        ),
        (
            lambda: concurrent(agent("a", ""), settings={"b": AgentSettings()}),
            GraphError,
            "no agent 'b', only 'a'",
        ),
        (lambda: concurrent(agent("a", ""), aggregate=agent("a", "")), GraphError, "called 'a', too"),
        (lambda: concurrent(agent("a", ""), aggregate=5), GraphError, "5 is no agent"),
        (lambda: group_chat([agent("a", "")], max_rounds=0), InvalidArgument, "at least 1"),
        (
            lambda: group_chat([agent("end", "")], select=agent("boss", "")),
            GraphError,
            "cannot be called 'end'",
        ),
        (lambda: handoff(agent("a", ""), {"a": ["b"]}), GraphError, "no agent 'b'"),
        (lambda: handoff(agent("a", ""), {"x": []}), GraphError, "no agent 'x'"),
        (lambda: handoff(agent("a", ""), {"a": "b"}), GraphError, "list of agents"),
        (lambda: handoff(agent("a", ""), {}, autonomous_turns=-1), InvalidArgument, "autonomous_turns=-1"),
        (lambda: planner(agent("m", ""), [agent("plan", "")]), GraphError, "cannot be called 'plan'"),
        (lambda: planner(agent("m", ""), [agent("a", "")], max_stalls=-1), InvalidArgument, "max_stalls=-1"),
    ],
)
def test_wrong_teams_are_refused(build: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        build()
