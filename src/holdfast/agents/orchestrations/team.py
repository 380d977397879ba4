"""The parts that orchestrations share: agents by their names, the conversation of a leader, the turns of people."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from holdfast.agents.executor import AgentExecutor, agent_of, request_of
from holdfast.agents.port import Agent, AgentMessage, AgentReply, AgentRequest, Transcript
from holdfast.agents.settings import AgentSettings
from holdfast.agents.workflow_agent import set_speakers
from holdfast.builder import WorkflowBuilder
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import GraphError
from holdfast.graph.context import WorkflowContext
from holdfast.graph.typing.types import TypeForm
from holdfast.workflow import Workflow

TeamSettings: TypeAlias = AgentSettings | Mapping[str, AgentSettings] | None
"""The settings of all agents, or of some by their names."""

Task: TypeAlias = str | AgentRequest | AgentMessage | Transcript | list[Any]
"""The messages that begin a conversation, or go on with it."""

_SAID, _HEARD, _ROUNDS, _GIVEN = "said", "heard", "rounds", "given"


@checkpointable(name="holdfast.TurnReview")
@dataclass(frozen=True)
class TurnReview:
    """Asks a person after the turn of an agent how to go on.

    Answered by text, which is said to the agents, by true to go on without a word, or by false to end here.

    >>> TurnReview("writer", "Kelp is an alga.").author
    'writer'
    """

    author: str
    """The agent who spoke."""
    text: str


def agents_by_name(agents: Iterable[object], function: str) -> dict[str, Agent]:
    """Return agents of any library by their names."""
    found: dict[str, Agent] = {}
    for thing in agents:
        agent = agent_of(thing)
        if agent.name in found:
            raise GraphError(
                f"{function}: two agents are called {agent.name!r}; wrap one of them with another name, like "
                f"function.wrap(..., name='...')"
            )
        found[agent.name] = agent
    if not found:
        raise GraphError(f"{function}: give it at least one agent")
    return found


def seat(
    name: str, agent: Agent, settings: TeamSettings, output_type: TypeForm, *, remembers: bool = False
) -> AgentExecutor:
    """Return the executor of an agent."""
    own = settings.get(name) if isinstance(settings, Mapping) else settings
    own = own if own is not None else AgentSettings()
    return AgentExecutor(
        agent, name, output_type=output_type, settings=replace(own, remembers=True) if remembers else own
    )


def check_names(names: Iterable[str], known: Collection[str], function: str, option: str) -> None:
    """Raise for a name that no agent has."""
    for name in names:
        if name not in known:
            raise GraphError(
                f"{function}({option}=...): there is no agent {name!r}, only {', '.join(map(repr, known))}"
            )


def check_settings(settings: TeamSettings, known: Collection[str], function: str) -> None:
    """Raise for settings of an agent that is not there."""
    if isinstance(settings, Mapping):
        check_names(settings, known, function, "settings")


def build(
    builder: WorkflowBuilder, storage: CheckpointStorage | None, speakers: Iterable[str] | None = None
) -> Workflow:
    """Return the workflow, with checkpoints if there is a storage; the words of ``speakers`` are its reply."""
    workflow = (builder if storage is None else builder.with_checkpointing(storage)).build()
    if speakers is not None:
        set_speakers(workflow, speakers)
    return workflow


async def awaited(result: Any) -> Any:
    """Return the result of a function of the user, which may be sync or async."""
    return await result if inspect.isawaitable(result) else result


def local_name(address: str | None) -> str:
    """Return the name of an executor in its own workflow.

    >>> local_name("desk#1/billing")
    'billing'
    """
    return (address or "").rpartition("/")[2]


class Floor:
    """The conversation that a leading executor keeps in its state, and how much of it each agent has heard."""

    def __init__(self, ctx: WorkflowContext[Any, Any]) -> None:
        self._ctx = ctx

    async def open(self, task: Task) -> None:
        """Add what a person says, and begin to count rounds anew."""
        request = request_of(task)
        for message in request.messages:
            await self._ctx.append_state(_SAID, message)
        await self.add(request.prompt)
        await self._ctx.queue_state_update(_ROUNDS, 0)

    async def add(self, text: str, author: str = "") -> None:
        """Add a message."""
        (message,) = Transcript().add(text, author).messages
        await self._ctx.append_state(_SAID, message)

    async def transcript(self) -> Transcript:
        """Return the whole conversation."""
        return Transcript(tuple(await self._ctx.read_state(_SAID, [])))

    async def give_out(self) -> None:
        """Give out what was said since the last output, so that a long conversation costs no more than a short one."""
        talk = await self.transcript()
        given = await self._ctx.read_state(_GIVEN, 0)
        await self._ctx.queue_state_update(_GIVEN, len(talk.messages))
        await self._ctx.yield_output(Transcript(talk.messages[given:]))

    async def count_round(self) -> int:
        """Count a round since the last word of a person; return the number of rounds."""
        rounds: int = await self._ctx.read_state(_ROUNDS, 0) + 1
        await self._ctx.queue_state_update(_ROUNDS, rounds)
        return rounds

    async def request_to(self, name: str) -> AgentRequest:
        """Return a request with all that an agent has not heard yet; its own words it remembers."""
        said = (await self.transcript()).messages
        heard = await self._ctx.read_state(_HEARD, {})
        news = [message for message in said[heard.get(name, 0) :] if message.author != name]
        await self._ctx.queue_state_update(_HEARD, {**heard, name: len(said)})
        words = (f"{message.author}: {message.text}" if message.author else message.text for message in news)
        return AgentRequest("\n\n".join(words) or "Go on.")


async def ask_for_turn(reply: AgentReply, author: str, ctx: WorkflowContext[Any, Any]) -> None:
    """Ask a person how to go on after the turn of an agent."""
    await ctx.request_info(TurnReview(author, reply.text), response_type=bool | str)
