"""START and END of a team: one gives the request to the first agents, the other counts, and gives the answer out."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.agents.activation import turn_of
from holdfast.agents.executor import AgentInput, request_of
from holdfast.agents.port import AgentRequest
from holdfast.agents.workflow.team_events import (
    WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
)
from holdfast.agents.workflow.team_messages import TeamJoin, TeamReport, TeamToken
from holdfast.agents.workflow.team_node import OUTPUTS_SCOPE, REQUEST, TEAM_SCOPE
from holdfast.agents.workflow.team_plan import END, START, TeamPlan
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.events.events import COMPLETION_KEY, RUN_SCOPE, WorkflowCompletedEvent, WorkflowEvent
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler

_BEGUN, _BEGUN_AT, _OVER = "begun", "begun at", "over"
_QUEUE, _BOOK = "queue", "book"
SUMMARY = "summary"
"""The key of the team's scope that has the ``TeamSummary``."""


@checkpointable(name="holdfast.TeamSummary")
@dataclass(frozen=True)
class TeamSummary:
    """The end of a team's work on one request."""

    answer: str | None
    duration: float
    error: str | None = None


class TeamStart(Executor):
    """Gives each request to the first agents, one after the other: a further one waits until the team is done."""

    shareable = True

    def __init__(self, plan: TeamPlan) -> None:
        super().__init__(START)
        self.plan = plan

    @handler
    async def begin(
        self, message: AgentInput, ctx: WorkflowContext[TeamToken | TeamReport | AgentRequest]
    ) -> None:
        """Begin with a request, or let it wait."""
        request = request_of(message)
        begun = await ctx.read_state(_BEGUN, 0, TEAM_SCOPE)
        if begun > await ctx.read_state(_OVER, 0, TEAM_SCOPE):
            await ctx.append_state(_QUEUE, request)
            await ctx.send_message(TeamReport(START, "waiting"), END)
        else:
            await self._start(request, begun, ctx)

    @handler
    async def follow(
        self, report: TeamReport, ctx: WorkflowContext[TeamToken | TeamReport | AgentRequest]
    ) -> None:
        """Begin with the next request that waits."""
        queue = await ctx.read_state(_QUEUE, [])
        begun = await ctx.read_state(_BEGUN, 0, TEAM_SCOPE)
        if not queue or begun > await ctx.read_state(_OVER, 0, TEAM_SCOPE):
            return
        await ctx.queue_state_update(_QUEUE, queue[1:])
        await self._start(queue[0], begun, ctx)
        if queue[1:]:
            await ctx.send_message(TeamReport(START, "waiting"), END)

    async def _start(
        self, request: AgentRequest, begun: int, ctx: WorkflowContext[TeamToken | TeamReport | AgentRequest]
    ) -> None:
        await ctx.queue_state_update(REQUEST, request)
        await ctx.queue_state_update(_BEGUN, begun + 1, TEAM_SCOPE)
        await ctx.queue_state_update(_BEGUN_AT, turn_of(ctx).now().timestamp(), TEAM_SCOPE)
        await ctx.clear_state(scope_name=OUTPUTS_SCOPE)
        first = sum(layer == 0 for layer in self.plan.layers.values())
        await ctx.add_event(WorkflowLayerStartedEvent(0, first))
        for edge in self.plan.outgoing(START):
            await ctx.add_event(WorkflowEdgeTraversedEvent(START, edge.target))
            await ctx.send_message(TeamToken(START, "message"), edge.target)


@checkpointable(name="holdfast.TeamBook")
@dataclass
class TeamBook:
    """The count of a team's work on one request, layer by layer."""

    request: int
    """The number of the request."""
    pending: dict[int, list[str]]
    """The agents of each layer that are not done."""
    opened: dict[int, float]
    """The times at which layers began that are not done."""
    successes: dict[int, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def begin(cls, plan: TeamPlan, request: int, now: float) -> TeamBook:
        """Return the book of a request, of which the first layer has begun."""
        pending: dict[int, list[str]] = {}
        for agent, layer in plan.layers.items():
            pending.setdefault(layer, []).append(agent)
        return cls(request, pending, {0: now})

    def note(self, report: TeamReport, plan: TeamPlan, now: float) -> list[WorkflowEvent]:
        """Note the end of an agent, or another round of a loop; return the events of layers."""
        layer = plan.layers[report.agent]
        if report.outcome == "round":
            for agent in plan.loops[report.agent].body:
                again = self.pending[plan.layers[agent]]
                if agent not in again:
                    again.append(agent)
        if report.outcome in ("round", "started"):
            return self._open(layer, now)
        self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
        self.error = self.error or report.error
        events = self._open(layer, now)
        self.pending[layer].remove(report.agent)
        self.successes[layer] = self.successes.get(layer, 0) + (report.outcome == "succeeded")
        if not self.pending[layer]:
            seconds = max(0.0, now - self.opened.pop(layer))
            events.append(WorkflowLayerCompletedEvent(layer, seconds, self.successes.pop(layer)))
        return events

    def _open(self, layer: int, now: float) -> list[WorkflowEvent]:
        if layer in self.opened:
            return []
        self.opened[layer] = now
        return [WorkflowLayerStartedEvent(layer, len(self.pending[layer]))]


class TeamEnd(Executor):
    """Counts how the agents end, and gives the answer out once every edge to END is settled."""

    shareable = True

    def __init__(self, plan: TeamPlan) -> None:
        super().__init__(END)
        self.plan = plan
        self._edges = plan.incoming(END)

    @handler
    async def note(self, report: TeamReport, ctx: WorkflowContext[TeamReport, str]) -> None:
        """Note the report of an agent, or that a request waits at START."""
        if report.outcome == "waiting":
            await ctx.queue_state_update("waits", True)
            await self._release(ctx)
            return
        book = await self._book(ctx)
        for event in book.note(report, self.plan, turn_of(ctx).now().timestamp()):
            await ctx.add_event(event)
        await ctx.queue_state_update(_BOOK, book)

    @handler
    async def take(self, token: TeamToken, ctx: WorkflowContext[TeamReport, str]) -> None:
        """Count a token; once all edges are settled, the team is done."""
        join = await ctx.read_state("join") or TeamJoin()
        join.take(token)
        found = join.settled(self._edges)
        await ctx.queue_state_update("join", join)
        if found is not None:
            await self._finish([one for one in found if one.kind == "message"], found, ctx)

    async def _finish(
        self, messages: list[TeamToken], found: tuple[TeamToken, ...], ctx: WorkflowContext[TeamReport, str]
    ) -> None:
        book = await self._book(ctx)
        begun_at = await ctx.read_state(_BEGUN_AT, 0.0, TEAM_SCOPE)
        seconds = max(0.0, turn_of(ctx).now().timestamp() - begun_at)
        texts = [token.text for token in messages if token.text is not None]
        answer = "\n\n".join(texts) if texts else None
        if answer is None:
            reasons = "; ".join(dict.fromkeys(token.reason for token in found if token.reason))
            why = "no agent before END gave a text" if messages else f"no edge to END was taken: {reasons}"
            await ctx.add_event(WorkflowDiagnosticEvent("warning", "end", why))
            book.error = book.error or why
        count = book.outcomes.get
        completed = WorkflowCompletedEvent(
            None, seconds, count("succeeded", 0), count("failed", 0), count("skipped", 0), answer is not None
        )
        if ctx.executor_id == END:  # not that of a team inside of another workflow, which goes on
            await ctx.add_event(completed)
        await ctx.queue_state_update(COMPLETION_KEY, completed, RUN_SCOPE)
        await ctx.queue_state_update(SUMMARY, TeamSummary(answer, seconds, book.error), TEAM_SCOPE)
        await ctx.queue_state_update(_OVER, book.request, TEAM_SCOPE)
        if answer is not None:
            await ctx.yield_output(answer)
        await self._release(ctx)

    async def _release(self, ctx: WorkflowContext[TeamReport, str]) -> None:
        """Tell START to go on with a request that waits, if the team is done with the one before."""
        done = await ctx.read_state(_OVER, 0, TEAM_SCOPE) >= await ctx.read_state(_BEGUN, 0, TEAM_SCOPE)
        if done and await ctx.read_state("waits", False):
            await ctx.queue_state_update("waits", False)
            await ctx.send_message(TeamReport(END, "waiting"), START)

    async def _book(self, ctx: WorkflowContext[TeamReport, str]) -> TeamBook:
        begun = await ctx.read_state(_BEGUN, 0, TEAM_SCOPE)
        book = await ctx.read_state(_BOOK)
        if isinstance(book, TeamBook) and book.request == begun:
            return book
        return TeamBook.begin(self.plan, begun, await ctx.read_state(_BEGUN_AT, 0.0, TEAM_SCOPE))
