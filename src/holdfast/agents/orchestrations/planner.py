"""Teams with a planner: a manager makes a plan, gives instructions, watches the progress and sums up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.agents.executor import agent_of
from holdfast.agents.orchestrations.team import (
    Floor,
    Task,
    TeamSettings,
    TurnReview,
    agents_by_name,
    ask_for_turn,
    build,
    check_names,
    check_settings,
    local_name,
    seat,
)
from holdfast.agents.port import AgentReply, AgentRequest, Transcript
from holdfast.builder import WorkflowBuilder
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import GraphError, InvalidArgument
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler, response_handler
from holdfast.workflow import Workflow

PLAN, LEDGER, ANSWER = "plan", "ledger", "answer"
"""The executors in which the manager works."""
_PLAN, _STALLS, _RESETS = "plan", "stalls", "resets"


@checkpointable(name="holdfast.ProgressLedger")
@dataclass(frozen=True)
class ProgressLedger:
    """The manager's view of the work so far, and its next instruction.

    >>> ProgressLedger(done=False, progressing=True, next_speaker="search", instruction="Find the log.").done
    False
    """

    done: bool
    """True if the task is solved."""
    progressing: bool
    """False if the last turns brought nothing new, or repeat each other."""
    next_speaker: str = ""
    """The agent who goes on."""
    instruction: str = ""
    """The words to that agent."""


@checkpointable(name="holdfast.PlanReview")
@dataclass(frozen=True)
class PlanReview:
    """Asks a person about the plan of a manager; answered by a ``PlanDecision``, or by true.

    >>> PlanReview("Count the errors", "1. search the log").plan
    '1. search the log'
    """

    task: str
    plan: str


@checkpointable(name="holdfast.PlanDecision")
@dataclass(frozen=True)
class PlanDecision:
    """The answer to a ``PlanReview``.

    >>> PlanDecision.revise("Look at the dashboard first.").text
    'Look at the dashboard first.'
    """

    action: Literal["approve", "edit", "revise"]
    text: str = ""
    """The plan to be used instead, for ``edit``; the words to the manager, for ``revise``."""

    @classmethod
    def approve(cls) -> PlanDecision:
        """Go on with the plan."""
        return cls("approve")

    @classmethod
    def edit(cls, plan: str) -> PlanDecision:
        """Go on with another plan."""
        return cls("edit", plan)

    @classmethod
    def revise(cls, text: str) -> PlanDecision:
        """Let the manager make another plan, about which is asked again."""
        return cls("revise", text)


@dataclass(frozen=True)
class PlanRules:
    """The rules of a team with a planner."""

    review_plan: bool = False
    max_rounds: int = 20
    max_stalls: int = 3
    max_resets: int = 2
    ask_after: Collection[str] = ()


def planner(
    manager: object,
    agents: Sequence[object],
    *,
    review_plan: bool = False,
    max_rounds: int = 20,
    max_stalls: int = 3,
    max_resets: int = 2,
    ask_after: Collection[str] = (),
    storage: CheckpointStorage | None = None,
    settings: TeamSettings = None,
    name: str = "Planner",
) -> Workflow:
    """Return a workflow in which a manager plans, instructs the other agents, and gives the final answer.

    After each turn the manager fills in a ``ProgressLedger``. After more than ``max_stalls`` turns without progress it
    makes a new plan, at most ``max_resets`` times; then, or after ``max_rounds`` turns, it answers with what there is.
    With ``review_plan`` a person is asked about each plan (``PlanReview``), and after the turns of the agents in
    ``ask_after`` how to go on (``TurnReview``): false lets the manager answer with what is known. The output is the
    ``Transcript`` with the answer at its end.

    >>> from holdfast.agents import AgentRequest, function
    >>> def lead(request: AgentRequest) -> object:
    ...     if request.output_types:
    ...         return ProgressLedger("17" in request.prompt, True, "counter", "Count the errors.")
    ...     return "There are 17 errors." if "17" in request.prompt else "1. counter: count"
    >>> counter = function.wrap(lambda prompt: "17", name="counter")
    >>> planner(function.wrap(lead), [counter]).run_sync("How many errors?").outputs[0].text
    'There are 17 errors.'
    """
    for option, number in (
        ("max_rounds", max_rounds),
        ("max_stalls", max_stalls),
        ("max_resets", max_resets),
    ):
        if type(number) is not int or number < (1 if option == "max_rounds" else 0):
            raise InvalidArgument(f"planner({option}={number!r}): must be a whole number, and not negative")
    found, leader = agents_by_name(agents, "planner"), agent_of(manager)
    for taken in (PLAN, LEDGER, ANSWER):
        if taken in found:
            raise GraphError(f"planner: an agent cannot be called {taken!r}, which is a task of the manager")
    check_settings(settings, (*found, PLAN, LEDGER, ANSWER), "planner")
    check_names(ask_after, found, "planner", "ask_after")
    rules = PlanRules(review_plan, max_rounds, max_stalls, max_resets, frozenset(ask_after))
    lead = Lead("team lead", tuple(found), rules)
    placed = [
        seat(PLAN, leader, settings, str),
        seat(LEDGER, leader, settings, ProgressLedger),
        seat(ANSWER, leader, settings, str),
        *(seat(one, agent, settings, AgentReply, remembers=True) for one, agent in found.items()),
    ]
    builder = WorkflowBuilder(name=name).set_start_executor(lead)
    for executor in placed:
        builder.add_edge(lead, executor).add_edge(executor, lead)
    return build(builder, storage, [ANSWER])


class Lead(Executor):
    """Keeps the plan and the conversation of a team, and asks its manager what to do next."""

    shareable = True

    def __init__(self, id: str, names: tuple[str, ...], rules: PlanRules) -> None:
        super().__init__(id)
        self._names = names
        self._rules = rules

    @handler
    async def begin(self, task: Task | str, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take a task, a plan or an answer of the manager: these are texts, too."""
        source = local_name(ctx.source_executor_id)
        if source == PLAN and isinstance(task, str):
            await self._planned(task, ctx)
        elif source == ANSWER and isinstance(task, str):
            await Floor(ctx).add(task, ANSWER)
            await Floor(ctx).give_out()
        else:
            await Floor(ctx).open(task)
            for counter in (_STALLS, _RESETS):
                await ctx.queue_state_update(counter, 0)
            await self._ask(PLAN, "Make a short plan for the team: who should do what, in which order.", ctx)

    @handler
    async def heard(self, reply: AgentReply, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take what an agent of the team said."""
        speaker = local_name(ctx.source_executor_id)
        await Floor(ctx).add(reply.text, speaker)
        if speaker in self._rules.ask_after:
            await ask_for_turn(reply, speaker, ctx)
        else:
            await self._ask_ledger(ctx)

    @response_handler
    async def answered(
        self, review: TurnReview, answer: bool | str, ctx: WorkflowContext[AgentRequest, Transcript]
    ) -> None:
        """Go on with the word of a person, or answer with what is known."""
        if answer is False:
            await self._give_up(ctx)
            return
        if isinstance(answer, str):
            await Floor(ctx).add(answer)
        await self._ask_ledger(ctx)

    @handler
    async def judged(self, ledger: ProgressLedger, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Go on as the manager says."""
        known = ledger.next_speaker in self._names
        stalls: int = await ctx.read_state(_STALLS, 0)
        stalls = max(0, stalls - 1) if ledger.progressing and known else stalls + 1
        if ledger.done:
            await self._ask(ANSWER, "The task is solved. Give the final answer to the person who asked.", ctx)
        elif await Floor(ctx).count_round() > self._rules.max_rounds:
            await self._give_up(ctx)
        elif stalls > self._rules.max_stalls:
            await self._plan_again(ctx)
        elif known:
            await ctx.queue_state_update(_STALLS, stalls)
            request = await Floor(ctx).request_to(ledger.next_speaker)
            words = f"{request.prompt}\n\n{ledger.instruction}" if ledger.instruction else request.prompt
            await ctx.send_message(AgentRequest(words), ledger.next_speaker)
        else:
            await ctx.queue_state_update(_STALLS, stalls)
            await self._ask_ledger(ctx, f"There is no agent {ledger.next_speaker!r} in the team. ")

    @response_handler
    async def reviewed(
        self, review: PlanReview, answer: bool | PlanDecision, ctx: WorkflowContext[AgentRequest, Transcript]
    ) -> None:
        """Go on with the plan that a person approved or wrote, or have another one made."""
        if answer is False:
            answer = PlanDecision.revise("This plan was not accepted.")
        if isinstance(answer, PlanDecision) and answer.action == "revise":
            words = f"A person wants this plan changed:\n{review.plan}\n\nTheir words: {answer.text}\n\n"
            await self._ask(PLAN, f"{words}Make another plan.", ctx)
            return
        edited = isinstance(answer, PlanDecision) and answer.action == "edit"
        await self._follow(answer.text if isinstance(answer, PlanDecision) and edited else review.plan, ctx)

    async def _planned(self, plan: str, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        if self._rules.review_plan:
            first = next((one.text for one in (await Floor(ctx).transcript()).messages if not one.author), "")
            await ctx.request_info(PlanReview(first, plan), response_type=bool | PlanDecision)
        else:
            await self._follow(plan, ctx)

    async def _follow(self, plan: str, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        await ctx.queue_state_update(_PLAN, plan)
        await ctx.queue_state_update(_STALLS, 0)
        await self._ask_ledger(ctx)

    async def _plan_again(self, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        resets: int = await ctx.read_state(_RESETS, 0) + 1
        await ctx.queue_state_update(_RESETS, resets)
        if resets > self._rules.max_resets:
            await self._give_up(ctx)
        else:
            await self._ask(PLAN, "The plan did not lead on. Make another one, and say what to avoid.", ctx)

    async def _give_up(self, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        await self._ask(
            ANSWER, "There is no more time. Answer with what is known, and say what is missing.", ctx
        )

    async def _ask_ledger(self, ctx: WorkflowContext[AgentRequest, Transcript], remark: str = "") -> None:
        await self._ask(LEDGER, f"{remark}Say how the work stands, and who should do what next.", ctx)

    async def _ask(self, task: str, words: str, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Ask the manager, with all that is known."""
        said = (await Floor(ctx).transcript()).messages
        plan = await ctx.read_state(_PLAN)
        parts = [
            f"The team: {', '.join(self._names)}.",
            *([f"The plan:\n{plan}"] if plan else []),
            "Said so far:",
            *(f"{message.author or 'person'}: {message.text}" for message in said),
            words,
        ]
        await ctx.send_message(AgentRequest("\n\n".join(parts)), task)
