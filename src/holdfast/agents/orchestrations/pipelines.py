"""Sequential and concurrent teams: agents one after the other, or side by side with one result."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from holdfast.agents.executor import AgentExecutor, agent_of
from holdfast.agents.orchestrations.team import (
    Task,
    TeamSettings,
    TurnReview,
    agents_by_name,
    ask_for_turn,
    awaited,
    build,
    check_names,
    check_settings,
    seat,
)
from holdfast.agents.port import Agent, AgentReply, AgentRequest, Transcript
from holdfast.builder import WorkflowBuilder
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import GraphError
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler, response_handler
from holdfast.workflow import Workflow


def sequential(
    *agents: object,
    name: str = "Sequential",
    storage: CheckpointStorage | None = None,
    settings: TeamSettings = None,
    ask_after: Collection[str] = (),
) -> Workflow:
    """Return a workflow in which each agent works on what the one before it replied, and knows what was said before.

    The output is the whole ``Transcript``. After the agents in ``ask_after`` a person is asked with a ``TurnReview``.

    >>> from holdfast.agents import function
    >>> draft = function.wrap(lambda prompt: f"a draft about {prompt}", name="draft")
    >>> review = function.wrap(lambda prompt: f"{prompt}, reviewed", name="review")
    >>> sequential(draft, review).run_sync("kelp").outputs[0].text
    'a draft about kelp, reviewed'
    """
    found = agents_by_name(agents, "sequential")
    check_settings(settings, found, "sequential")
    check_names(ask_after, found, "sequential", "ask_after")
    chain: list[Any] = []
    for agent_name, agent in found.items():
        chain.append(seat(agent_name, agent, settings, Transcript))
        if agent_name in ask_after:
            chain.append(Interlude(f"after {agent_name}", is_last=agent_name == list(found)[-1]))
    builder = WorkflowBuilder(name=name).set_start_executor(chain[0])
    if len(chain) > 1:
        builder.add_chain(chain)
    return build(builder, storage, list(found)[-1:])


def concurrent(
    *agents: object,
    aggregate: Callable[[list[AgentReply]], Any] | object = None,
    name: str = "Concurrent",
    storage: CheckpointStorage | None = None,
    settings: TeamSettings = None,
    ask_after: Collection[str] = (),
) -> Workflow:
    """Return a workflow in which all agents work on the same task side by side.

    ``aggregate`` makes the output of their replies, which come in the order of the agents: a function of the list, or
    an agent. Without one, the output is a ``Transcript`` with all replies. After the agents in ``ask_after`` a person
    is asked with a ``TurnReview``: a text lets that agent reply again, true takes its reply, false leaves it out, so
    that an empty one comes in its place.

    >>> from holdfast.agents import function
    >>> north = function.wrap(lambda prompt: f"north of {prompt}", name="north")
    >>> south = function.wrap(lambda prompt: f"south of {prompt}", name="south")
    >>> joined = concurrent(north, south, aggregate=lambda replies: " and ".join(one.text for one in replies))
    >>> joined.run_sync("kelp").outputs
    ['north of kelp and south of kelp']
    """
    found = agents_by_name(agents, "concurrent")
    last = _aggregator(aggregate, tuple(found))
    check_settings(settings, (*found, last.id), "concurrent")
    check_names(ask_after, found, "concurrent", "ask_after")
    seats = {
        agent_name: seat(agent_name, agent, settings, AgentReply, remembers=agent_name in ask_after)
        for agent_name, agent in found.items()
    }
    spread = Spread("spread")
    builder = WorkflowBuilder(name=name).set_start_executor(spread)
    ends: list[Any] = []
    for agent_name, placed in seats.items():
        ends.append(placed)
        if agent_name in ask_after:
            ends[-1] = Feedback(f"after {agent_name}", agent_name)
            builder.add_edge(placed, ends[-1])
            builder.add_edge(ends[-1], placed, condition=_is_request, label="feedback")
    if len(seats) == 1:
        builder.add_edge(spread, next(iter(seats.values()))).add_edge(ends[0], last)
    else:
        builder.add_fan_out_edges(spread, list(seats.values())).add_fan_in_edges(ends, last)
    return build(builder, storage, [last.id] if isinstance(last, AgentExecutor) else [])


def _is_request(message: AgentReply | AgentRequest) -> bool:
    return isinstance(message, AgentRequest)


def _aggregator(aggregate: object, names: tuple[str, ...]) -> Executor:
    if aggregate is None or (callable(aggregate) and not isinstance(aggregate, Agent)):
        return Aggregate("aggregate", names, aggregate)
    agent = agent_of(aggregate)
    if agent.name in names:
        raise GraphError(f"concurrent(aggregate=...): an agent beside it is called {agent.name!r}, too")
    return AgentExecutor(agent, agent.name, output_type=str)


class Interlude(Executor):
    """Asks a person how to go on after the turn of an agent in a sequence."""

    shareable = True

    def __init__(self, id: str, is_last: bool) -> None:
        super().__init__(id)
        self._is_last = is_last

    @handler
    async def ask(self, talk: Transcript, ctx: WorkflowContext[None, None]) -> None:
        """Ask about the last words."""
        await ctx.queue_state_update("talk", talk)
        await ctx.request_info(TurnReview(talk.author, talk.text), response_type=bool | str)

    @response_handler
    async def answered(
        self, review: TurnReview, answer: bool | str, ctx: WorkflowContext[Transcript, Transcript]
    ) -> None:
        """Pass the conversation on, with the word of the person, or end here."""
        talk: Transcript = await ctx.read_state("talk")
        await ctx.clear_state("talk")
        if isinstance(answer, str):
            talk = talk.add(answer)
        if answer is False or self._is_last:
            await ctx.yield_output(talk)
        else:
            await ctx.send_message(talk)


class Feedback(Executor):
    """Asks a person about the reply of one of several agents who work side by side."""

    shareable = True

    def __init__(self, id: str, author: str) -> None:
        super().__init__(id)
        self._author = author

    @handler
    async def ask(self, reply: AgentReply, ctx: WorkflowContext[None, None]) -> None:
        """Ask about the reply."""
        await ctx.queue_state_update("reply", reply)
        await ask_for_turn(reply, self._author, ctx)

    @response_handler
    async def answered(
        self, review: TurnReview, answer: bool | str, ctx: WorkflowContext[AgentReply | AgentRequest]
    ) -> None:
        """Pass the reply on, leave it out, or let the agent reply again."""
        if isinstance(answer, str):
            await ctx.send_message(AgentRequest(answer), self._author)
            return
        reply: AgentReply = await ctx.require_state("reply")
        await ctx.clear_state("reply")
        await ctx.send_message(reply if answer else AgentReply(""))


class Spread(Executor):
    """Gives all agents the same task."""

    shareable = True

    @handler
    async def spread(self, task: Task, ctx: WorkflowContext[Task]) -> None:
        """Send the task along all edges."""
        await ctx.send_message(task)


class Aggregate(Executor):
    """Makes one output of the replies of all agents."""

    shareable = True

    def __init__(self, id: str, names: tuple[str, ...], function: Callable[..., Any] | None) -> None:
        super().__init__(id)
        self._names = names
        self._function = function

    @handler
    async def aggregate(self, replies: list[AgentReply], ctx: WorkflowContext[None, Any]) -> None:
        """Give the replies to the function, or put them into one conversation."""
        if self._function is not None:
            await ctx.yield_output(await awaited(self._function(replies)))
            return
        talk = Transcript()
        for name, reply in zip(self._names, replies, strict=True):
            talk = talk.add(reply.text, name) if reply.text else talk
        await ctx.yield_output(talk)

    @handler
    async def take_one(self, reply: AgentReply, ctx: WorkflowContext[None, Any]) -> None:
        """Take the reply of the only agent."""
        await self.aggregate([reply], ctx)
