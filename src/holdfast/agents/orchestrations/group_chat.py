"""Group chats: agents speak one at a time, and a function or a manager chooses who is next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.agents.executor import agent_of
from holdfast.agents.orchestrations.team import (
    Floor,
    Task,
    TeamSettings,
    TurnReview,
    agents_by_name,
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
from holdfast.errors import AgentError, GraphError, InvalidArgument
from holdfast.graph.context import WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import handler, response_handler
from holdfast.workflow import Workflow

END = "end"
"""The choice of a manager that ends the chat."""

Select = Callable[[Transcript], str | Awaitable[str | None] | None]
Until = Callable[[Transcript], bool | Awaitable[bool]]


@dataclass(frozen=True)
class ChatRules:
    """The rules of a group chat."""

    select: Select | None = None
    """Returns the name of the next speaker, None to end; without it agents speak in their order."""
    until: Until | None = None
    max_rounds: int = 20
    ask_after: Collection[str] = ()
    manager: str | None = None
    """The agent who chooses the next speaker."""


def group_chat(
    agents: Sequence[object],
    *,
    select: Select | object = None,
    until: Until | None = None,
    max_rounds: int = 20,
    storage: CheckpointStorage | None = None,
    settings: TeamSettings = None,
    ask_after: Collection[str] = (),
    name: str = "GroupChat",
) -> Workflow:
    """Return a workflow in which agents speak one at a time, each hearing all that was said.

    ``select`` is a function of the ``Transcript`` that returns the name of the next speaker, or None to end; or an
    agent that manages the chat and chooses by itself. Without it agents speak in turn. The chat ends when ``until`` is
    true of the transcript, or after ``max_rounds`` turns since the last word of a person. The output is the
    ``Transcript`` of what was said since the last output; functions see the whole one.

    >>> from holdfast.agents import function
    >>> writer = function.wrap(lambda prompt: "Kelp is an alga.", name="writer")
    >>> critic = function.wrap(lambda prompt: "APPROVED", name="critic")
    >>> chat = group_chat([writer, critic], until=lambda talk: "APPROVED" in talk.text)
    >>> [message.author for message in chat.run_sync("Write about kelp").outputs[0].messages]
    ['', 'writer', 'critic']
    """
    found = agents_by_name(agents, "group_chat")
    if type(max_rounds) is not int or max_rounds < 1:
        raise InvalidArgument(f"group_chat(max_rounds={max_rounds!r}): must be a whole number of at least 1")
    check_names(ask_after, found, "group_chat", "ask_after")
    rules = ChatRules(until=until, max_rounds=max_rounds, ask_after=frozenset(ask_after))
    manager: Agent | None = None
    if callable(select) and not isinstance(select, Agent):
        rules = replace(rules, select=select)
    elif select is not None:
        manager = agent_of(select)
        rules = replace(rules, manager=manager.name)
        for taken in (manager.name, END):
            if taken in found:
                raise GraphError(f"group_chat: an agent cannot be called {taken!r} beside a manager")
    check_settings(settings, (*found, *((manager.name,) if manager else ())), "group_chat")
    chair = Chair("chat chair", tuple(found), rules)
    builder = WorkflowBuilder(name=name).set_start_executor(chair)
    placed = [seat(one, agent, settings, AgentReply, remembers=True) for one, agent in found.items()]
    if manager is not None:
        placed.append(seat(manager.name, manager, settings, AgentReply, remembers=True))
    for executor in placed:
        builder.add_edge(chair, executor).add_edge(executor, chair)
    return build(builder, storage)


class Chair(Executor):
    """Leads a group chat: it keeps the conversation and gives the word."""

    shareable = True

    def __init__(self, id: str, names: tuple[str, ...], rules: ChatRules) -> None:
        super().__init__(id)
        self._names = names
        self._rules = rules

    @handler
    async def begin(self, task: Task, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take a task, or a further word of a person."""
        await Floor(ctx).open(task)
        await self._go_on(ctx)

    @handler
    async def heard(self, reply: AgentReply, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        """Take what an agent said, or the choice of the manager."""
        speaker = local_name(ctx.source_executor_id)
        if speaker == self._rules.manager:
            await self._give_word(reply.handoff, ctx)
            return
        await Floor(ctx).add(reply.text, speaker)
        if speaker in self._rules.ask_after:
            await ask_for_turn(reply, speaker, ctx)
        else:
            await self._go_on(ctx)

    @response_handler
    async def answered(
        self, review: TurnReview, answer: bool | str, ctx: WorkflowContext[AgentRequest, Transcript]
    ) -> None:
        """Go on with the word of a person, or end."""
        if isinstance(answer, str):
            await Floor(ctx).open(answer)
        if answer is False:
            await Floor(ctx).give_out()
        else:
            await self._go_on(ctx)

    async def _go_on(self, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        rules, talk = self._rules, await Floor(ctx).transcript()
        round_number = await Floor(ctx).count_round()
        spoken = bool(talk.author)
        if round_number > rules.max_rounds or (
            spoken and rules.until is not None and await awaited(rules.until(talk))
        ):
            await Floor(ctx).give_out()
        elif rules.manager is not None:
            request = await Floor(ctx).request_to(rules.manager)
            choices = (*map(Handoff, self._names), Handoff(END, "The task is done."))
            await ctx.send_message(replace(request, handoffs=choices), rules.manager)
        elif rules.select is not None:
            await self._give_word(await awaited(rules.select(talk)), ctx)
        else:
            turns = sum(bool(message.author) for message in talk.messages)
            await self._give_word(self._names[turns % len(self._names)], ctx)

    async def _give_word(self, name: Any, ctx: WorkflowContext[AgentRequest, Transcript]) -> None:
        if name is None or (name == END and self._rules.manager is not None):
            await Floor(ctx).give_out()
        elif name in self._names:
            await ctx.send_message(await Floor(ctx).request_to(name), name)
        else:
            raise AgentError(
                f"group chat {self.id!r}: {name!r} was chosen to speak, but there are only "
                f"{', '.join(map(repr, self._names))}"
            )
