"""The port between workflows and agent libraries: what an agent is asked, what it replies, how its calls are made.

An adapter is a class with the methods of ``Agent``; it does each model call and each tool call through ``Calls``,
which records the outcome and gives it back in place of the call when the turn runs again.

A new adapter is a module with ``wrap``, a line in ``_LIBRARIES`` of ``executor.py`` by which its agents are recognized,
an extra in pyproject.toml, and a program in tests/agents/libraries that the tests of kills and cassettes name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.graph.typing.types import TypeForm

Json: TypeAlias = Any
"""A value of JSON: what a library's own messages, requests and results are written as."""

Role: TypeAlias = Literal["system", "user", "assistant"]


@checkpointable(name="holdfast.AgentMessage")
@dataclass(frozen=True)
class AgentMessage:
    """A message of a conversation in words that every library understands: who said what.

    >>> AgentMessage("user", "Where is order 17?").text
    'Where is order 17?'
    """

    role: Role
    text: str
    author: str = ""
    """The agent who said it, where several speak; empty for a person."""


@checkpointable(name="holdfast.Transcript")
@dataclass(frozen=True)
class Transcript:
    """A conversation of people and agents, oldest message first.

    >>> talk = Transcript().add("Write about kelp").add("Kelp is an alga.", "writer")
    >>> talk.text, talk.author, len(talk.messages)
    ('Kelp is an alga.', 'writer', 2)
    """

    messages: tuple[AgentMessage, ...] = ()

    @property
    def text(self) -> str:
        """The last text; empty if nothing was said."""
        return self.messages[-1].text if self.messages else ""

    @property
    def author(self) -> str:
        """The agent who spoke last; empty for a person."""
        return self.messages[-1].author if self.messages else ""

    def add(self, text: str, author: str = "") -> Transcript:
        """Return the conversation with one more message."""
        return Transcript((*self.messages, AgentMessage("assistant" if author else "user", text, author)))


def heard_by(name: str, message: AgentMessage) -> AgentMessage:
    """Return a message as an agent hears it: what other agents said comes from the user.

    >>> heard_by("reviewer", AgentMessage("assistant", "Kelp is an alga.", "writer"))
    AgentMessage(role='user', text='writer: Kelp is an alga.', author='writer')
    """
    if message.role != "assistant" or message.author in ("", name):
        return message
    return AgentMessage("user", f"{message.author}: {message.text}", message.author)


@checkpointable(name="holdfast.AgentHistory")
@dataclass(frozen=True)
class AgentHistory:
    """A conversation in the JSON of the library that led it, which alone can go on with it.

    A neutral form would lose signatures, reasoning and ids that the library needs.

    >>> AgentHistory("openai", "3.51.0", [{"role": "user", "content": "hello"}]).adapter
    'openai'
    """

    adapter: str
    """The name of the adapter: ``"openai"``, ``"pydantic-ai"``."""
    version: str
    """The version of the library that wrote the messages."""
    messages: list[Json] = field(default_factory=list)


@checkpointable(name="holdfast.AgentUsage")
@dataclass(frozen=True)
class AgentUsage:
    """The tokens and model calls of an agent; usages can be added.

    >>> AgentUsage(input_tokens=100, output_tokens=5, calls=1) + AgentUsage(output_tokens=7, calls=1)
    AgentUsage(input_tokens=100, output_tokens=12, calls=2)
    """

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    """The number of model calls; one that was replayed counts once."""

    def __add__(self, other: AgentUsage) -> AgentUsage:
        return AgentUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.calls + other.calls,
        )


@checkpointable(name="holdfast.Handoff")
@dataclass(frozen=True)
class Handoff:
    """Another agent to which an agent may hand its task over.

    >>> Handoff("billing", "Questions about invoices").target
    'billing'
    """

    target: str
    description: str = ""


@checkpointable(name="holdfast.AgentRequest")
@dataclass(frozen=True)
class AgentRequest:
    """The task of an agent.

    >>> AgentRequest("Where is order 17?", instructions="Be brief.").prompt
    'Where is order 17?'
    """

    prompt: str
    messages: tuple[AgentMessage, ...] = ()
    """Earlier messages of the conversation, oldest first; they come before ``history``."""
    history: AgentHistory | None = None
    """The conversation so far, as the same library left it."""
    instructions: str | None = None
    """Instructions besides those that the agent has."""
    output_types: tuple[TypeForm, ...] = ()
    """The types of which the reply's value is one; empty for text. An ``AgentExecutor`` with a type sets it."""
    handoffs: tuple[Handoff, ...] = ()
    """The agents of which one may be chosen to go on."""
    handoff_required: bool = True
    """False if the agent may also reply itself, and hand over to none."""
    session_id: str | None = None
    """The session in which the conversation is kept, for an executor with a ``SessionPolicy``."""


@checkpointable(name="holdfast.AgentReply")
@dataclass(frozen=True)
class AgentReply:
    """The reply of an agent.

    >>> AgentReply("It left on Monday.").text
    'It left on Monday.'
    """

    text: str
    value: Any = None
    """The structured output, where types were asked for."""
    history: AgentHistory | None = None
    """The whole conversation, for the next request."""
    usage: AgentUsage = AgentUsage()
    handoff: str | None = None
    """The agent that should go on, if this one chose to hand over."""


TellModel: TypeAlias = Callable[[str, Json | None], Json]
"""Makes a tool result of a text for the model; the second argument is the result to which the text is added."""


def tell_as_text(text: str, result: Json | None) -> Json:
    """Make a tool result of a text, for libraries whose tool results are text.

    >>> tell_as_text("changed by a person", "sent")
    'changed by a person\\nsent'
    """
    if result is None:
        return text
    if not isinstance(result, str):
        import json

        result = json.dumps(result, ensure_ascii=False)
    return f"{text}\n{result}"


class Calls(Protocol):
    """Does the calls of an agent: records each outcome, and replays what is recorded.

    Model calls of one ``Calls`` follow each other. Agents that work side by side get one each, from ``branch``.

    >>> class Shout:
    ...     name = "shout"
    ...
    ...     async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
    ...         async def ask() -> Json:
    ...             return request.prompt.upper()
    ...
    ...         return AgentReply(await calls.model({"prompt": request.prompt}, ask))
    """

    async def model(
        self,
        request: Json,
        call: Callable[[], Awaitable[Json]],
        *,
        usage: Callable[[Json], AgentUsage] | None = None,
        limit_key: str = "",
        model_name: str = "",
        call_ids: Callable[[Json], Sequence[str]] | None = None,
    ) -> Json:
        """Return the response of the model to ``request``: the recorded one, else that of ``call``.

        ``usage`` reads the tokens from a response; ``model_name`` is the name by which a budget finds its price.
        ``limit_key`` names what a provider limits, such as provider, model and key: if ``call`` raises ``RateLimited``,
        all calls of this process with that name wait. ``call_ids`` reads from a response the ids of tool calls that run
        side by side, but may begin at different times: a person is asked about all of them together.
        """
        ...

    async def tool(
        self,
        call_id: str,
        name: str,
        arguments: Json,
        call: Callable[[Json], Awaitable[Json]],
        *,
        tell: TellModel = tell_as_text,
        errors: tuple[type[Exception], ...] = (),
    ) -> Json:
        """Return the result of a tool: the recorded one, else that of ``call``, which takes the arguments.

        The arguments may have been changed by a person who approved the call. A recorded error is raised as the one of
        ``errors`` that has its name, made of its text, else as a ``RecordedError``.
        """
        ...

    async def refuse(self, call_id: str, name: str, why: str) -> None:
        """Show that a tool call was not made: there is no such tool, or its arguments cannot be read."""
        ...

    async def delta(self, text: str) -> None:
        """Show a part of the reply while it is being made."""
        ...

    def branch(self, name: str) -> Calls:
        """Return the calls of a sub-agent; names are unique among the sub-agents of an agent."""
        ...

    def warn_unrecorded(self, what: str) -> None:
        """Warn of calls that cannot be recorded, and so may be repeated after a crash."""
        ...


@runtime_checkable
class Agent(Protocol):
    """An agent of any library, behind an adapter.

    Agents are not stored: a workflow finds them again by the executor that has them.

    >>> from holdfast.agents import function
    >>> isinstance(function.wrap(lambda prompt: prompt.upper(), name="shout"), Agent)
    True
    """

    @property
    def name(self) -> str:
        """The name of the agent."""
        ...

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Do the task; every model call and every tool call goes through ``calls``."""
        ...
