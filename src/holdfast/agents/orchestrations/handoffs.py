"""Handoffs: each agent answers by itself, or hands the conversation over to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.agents.executor import agent_of
from holdfast.agents.orchestrations.group_chat import Until
from holdfast.agents.orchestrations.team import (
    Floor,
    Task,
    TeamSettings,
    TurnReview,
    ask_for_turn,
    awaited,
    build,
    check_names,
    check_settings,
    local_name,
    seat,
)
from holdfast.agents.port import Agent, AgentReply, AgentRequest, Handoff, Transcript
from holdfast.builder import WorkflowBuilder
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import AgentError, AgentLoop, GraphError, InvalidArgument
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler, response_handler
from holdfast.workflow import Workflow

_CURRENT, _ALONE = "current", "alone"


@dataclass(frozen=True)
class DeskRules:
    """The rules of a desk at which agents hand over to each other."""

    start: str
    routes: Mapping[str, tuple[Handoff, ...]]
    until: Until | None = None
    max_handoffs: int = 20
    asks_user: bool = False
    returns_to_start: bool = False
    autonomous_turns: int = 0


def handoff(
    start: object,
    routes: Mapping[str, Sequence[object]],
    *,
    until: Until | None = None,
    max_handoffs: int = 20,
    asks_user: bool = False,
    returns_to_start: bool = False,
    autonomous_turns: int = 0,
    storage: CheckpointStorage | None = None,
    settings: TeamSettings = None,
    name: str = "Handoff",
) -> Workflow:
    """Return a workflow in which an agent answers by itself, or hands the conversation over to another.

    ``routes`` says to whom each agent, by its name, may hand over: agents, names of agents, or ``Handoff`` with a
    description for the model. The first reply without a handoff is the end; the output is the ``Transcript`` of what
    was said since the last output. With ``asks_user`` the person is asked for the next word after such a reply
    (``TurnReview``), until ``until`` is true of the transcript or the person answers false; the agent who replied goes
    on, or the first one with ``returns_to_start``. Before any of this, an agent who replied goes on by itself for
    ``autonomous_turns`` turns, unless ``until`` is true. More than ``max_handoffs`` without a reply fail the run with
    ``AgentLoop``.

    >>> from holdfast.agents import AgentReply, function
    >>> triage = function.wrap(lambda prompt: AgentReply("", handoff="billing"), name="triage")
    >>> billing = function.wrap(lambda prompt: "Your invoice is paid.", name="billing")
    >>> handoff(triage, {"triage": [billing]}).run_sync("Where is my invoice?").outputs[0].text
    'Your invoice is paid.'
    """
    if type(max_handoffs) is not int or max_handoffs < 1:
        raise InvalidArgument(f"handoff(max_handoffs={max_handoffs!r}): must be a whole number of at least 1")
    if type(autonomous_turns) is not int or autonomous_turns < 0:
        raise InvalidArgument(
            f"handoff(autonomous_turns={autonomous_turns!r}): must be a whole number, and not negative"
        )
    first = agent_of(start)
    found, paths = _read_routes(first, routes)
    check_settings(settings, found, "handoff")
    rules = DeskRules(first.name, paths, until, max_handoffs, asks_user, returns_to_start, autonomous_turns)
    desk = Desk("handoff desk", rules)
    builder = WorkflowBuilder(name=name).set_start_executor(desk)
    for one, agent in found.items():
        placed = seat(one, agent, settings, AgentReply, remembers=True)
        builder.add_edge(desk, placed).add_edge(placed, desk)
    return build(builder, storage)


def _read_routes(
    first: Agent, routes: Mapping[str, Sequence[object]]
) -> tuple[dict[str, Agent], dict[str, tuple[Handoff, ...]]]:
    found = {first.name: first}
    paths: dict[str, tuple[Handoff, ...]] = {}
    for source, targets in routes.items():
        if isinstance(targets, str | Handoff) or not isinstance(targets, Sequence):
            raise GraphError(f"handoff(routes={{{source!r}: ...}}): give a list of agents or their names")
        choices = []
        for target in targets:
            if isinstance(target, str | Handoff):
                choices.append(target if isinstance(target, Handoff) else Handoff(target))
                continue
            agent = agent_of(target)
            if found.setdefault(agent.name, agent) is not agent and agent is target:
                raise GraphError(f"handoff: two agents are called {agent.name!r}; give one another name")
            choices.append(Handoff(agent.name, str(getattr(target, "description", None) or "")))
        paths[source] = tuple(choices)
    check_names(paths, found, "handoff", "routes")
    for path in paths.values():
        check_names((choice.target for choice in path), found, "handoff", "routes")
    return found, paths


class Desk(Executor):
    """Keeps the conversation, and passes it to the agent whose turn it is."""

    shareable = True

    def __init__(self, id: str, rules: DeskRules) -> None:
        super().__init__(id)
        self._rules = rules

    @handler
    async def begin(self, task: Task, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take a task, or a further word of a person."""
        await Floor(ctx).open(task)
        await ctx.queue_state_update(_ALONE, 0)
        current = await ctx.read_state(_CURRENT)
        await self._pass_to(
            self._rules.start if self._rules.returns_to_start else current or self._rules.start, ctx
        )

    @handler
    async def heard(self, reply: AgentReply, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take the reply of an agent, or its choice of another."""
        speaker, rules = local_name(ctx.source_executor_id), self._rules
        if reply.text or reply.handoff is None:
            await Floor(ctx).add(reply.text, speaker)
        if reply.handoff is not None:
            await ctx.queue_state_update(_ALONE, 0)
            await self._hand_over(speaker, reply.handoff, ctx)
            return
        talk = await Floor(ctx).transcript()
        is_over = rules.until is not None and await awaited(rules.until(talk))
        alone = await ctx.read_state(_ALONE, 0)
        if not is_over and alone < rules.autonomous_turns:
            await ctx.queue_state_update(_ALONE, alone + 1)
            await self._pass_to(speaker, ctx)
        elif is_over or not rules.asks_user:
            await Floor(ctx).give_out()
        else:
            await ask_for_turn(reply, speaker, ctx)

    @response_handler
    async def answered(
        self, review: TurnReview, answer: bool | str, ctx: WorkflowContext[AgentRequest, Transcript]
    ) -> None:
        """Go on with the word of a person; true or false ends."""
        if isinstance(answer, str):
            await self.begin(answer, ctx)
        else:
            await Floor(ctx).give_out()

    async def _hand_over(
        self, speaker: str, target: str, ctx: WorkflowContext[AgentRequest, Transcript]
    ) -> None:
        rules = self._rules
        if target not in {choice.target for choice in rules.routes.get(speaker, ())}:
            raise AgentError(f"agent {speaker!r} hands over to {target!r}, but has no such route")
        if await Floor(ctx).count_round() > rules.max_handoffs:
            raise AgentLoop(
                "max_handoffs",
                rules.max_handoffs,
                f"the agents of {self.id!r} handed over {rules.max_handoffs} times without a reply, last {speaker!r} "
                f"to {target!r}; allow more with handoff(max_handoffs=...), or give them descriptions that tell them "
                f"apart",
            )
        await self._pass_to(target, ctx)

    async def _pass_to(self, name: str, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        await ctx.queue_state_update(_CURRENT, name)
        request = await Floor(ctx).request_to(name)
        choices = self._rules.routes.get(name, ())
        await ctx.send_message(replace(request, handoffs=choices, handoff_required=False), name)
