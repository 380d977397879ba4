"""Workflows as agents: a session is a run, and each message a further input of it, or the answer to its question."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from holdfast.agents.budget import RunUsage, usage_key
from holdfast.agents.model_schema import OutputSchema, as_text
from holdfast.agents.port import AgentHistory, AgentReply, AgentRequest, AgentUsage, Calls, Json, Transcript
from holdfast.agents.provider_errors import history_for
from holdfast.checkpoint.codec.plain import plain_value
from holdfast.checkpoint.events.events import OutputDeltaEvent
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import AgentError, RunNotFound
from holdfast.graph.typing.conversion import Unconvertible, convert
from holdfast.graph.typing.match import matches
from holdfast.graph.typing.types import TypeForm, type_name
from holdfast.runtime.run.result import RunResult
from holdfast.runtime.run.run import Run
from holdfast.workflow import Workflow

_ADAPTER, _VERSION = "holdfast", "1"
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")

ShowText = Callable[[str], Awaitable[None]]


async def _show_nobody(text: str) -> None:
    pass


_SPEAKERS: WeakKeyDictionary[Workflow, frozenset[str]] = WeakKeyDictionary()
_TURNS: WeakKeyDictionary[CheckpointStorage, WeakValueDictionary[tuple[int, str], asyncio.Lock]] = (
    WeakKeyDictionary()
)
"""The locks of sessions, by event loop and session: messages of one session are taken one after the other."""


def set_speakers(workflow: Workflow, speakers: Iterable[str]) -> None:
    """Say whose words are the reply of a workflow: its agent shows theirs as they come, and those of no others."""
    _SPEAKERS[workflow] = frozenset(speakers)


class _Shown:
    """Shows the words of a reply as they come."""

    def __init__(self, speakers: frozenset[str] | None, show: ShowText) -> None:
        self._speakers = speakers
        self._show = show
        self._speaker: str | None = None
        self._text = ""

    async def add(self, event: OutputDeltaEvent) -> None:
        """Show a part of a text; of agents who speak at once, only the words of the first."""
        if self._speakers is not None:
            if event.executor_id not in self._speakers:
                return
            self._speaker = self._speaker or event.executor_id
            if event.executor_id != self._speaker:
                return
        self._text += str(event.data)
        await self._show(str(event.data))

    async def finish(self, text: str) -> None:
        """Show the rest of a reply that began with what was shown."""
        if self._text and text != self._text and text.startswith(self._text):
            await self._show(text.removeprefix(self._text))


@dataclass(frozen=True)
class NextInput:
    """The way in which a message enters a run: decided once and recorded, so that no crash sends it twice."""

    run_id: str
    key: str
    """Makes a further message unique in the run."""
    begins: bool = False
    """True if the message begins the run."""
    answers: str | None = None
    """The id of the request that the message answers."""
    used: tuple[int, int, int] = (0, 0, 0)
    """The usage of the run's agents before."""


def as_agent(
    workflow: Workflow, name: str | None = None, *, storage: CheckpointStorage | None = None
) -> WorkflowAgent:
    """Make an agent of a workflow that takes text: for other workflows, for other libraries, or to talk to.

    A session is a run of the workflow in its storage; ``storage`` is needed unless the workflow has one. Each message
    goes on with that run, also in another process. If the run asks something, the reply is the question, and the next
    message its answer.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import function, group_chat
    >>> echo = function.wrap(lambda prompt: f"{prompt}?", name="echo")
    >>> agent = as_agent(group_chat([echo], max_rounds=1), "parrot", storage=InMemoryCheckpointStorage())
    >>> asyncio.run(agent.ask("Kelp", session="s1")).text
    'Kelp?'
    """
    found = storage if storage is not None else workflow.storage
    if found is None:
        raise AgentError(
            f"as_agent({workflow.name!r}): an agent keeps its sessions in a storage; give one with storage=..., like "
            f"InMemoryCheckpointStorage()"
        )
    return WorkflowAgent(workflow, name or workflow.name, found)


class WorkflowAgent:
    """An agent that is a workflow; ``as_agent`` makes it.

    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import function, sequential
    >>> team = sequential(function.wrap(lambda prompt: prompt, name="echo"))
    >>> as_agent(team, "parrot", storage=InMemoryCheckpointStorage()).name
    'parrot'
    """

    def __init__(self, workflow: Workflow, name: str, storage: CheckpointStorage) -> None:
        self.name = name
        self._workflow = workflow
        self._storage = storage
        self._turns = _TURNS.setdefault(storage, WeakValueDictionary())

    # For people and other libraries.

    async def ask(
        self, message: str, session: str | None = None, show: ShowText = _show_nobody
    ) -> AgentReply:
        """Say something in a session, and return the reply; ``show`` gets its text as it comes.

        The session is the id of a run; without one, a new run begins, whose id stands in the history of the reply.
        Messages that come to a session while it is at work wait for each other.
        """
        session = session if session is not None else uuid.uuid4().hex
        async with self._turn_of(session):
            planned = await self._plan(session)
            return self._reply(await self._take_turn(planned, message, show), planned)

    async def stream(self, message: str, session: str | None = None) -> AsyncIterator[str]:
        """Say something in a session, and give the text of the reply as it comes.

        >>> import asyncio
        >>> from holdfast import InMemoryCheckpointStorage
        >>> from holdfast.agents import function, sequential
        >>> team = sequential(function.wrap(lambda prompt: prompt, name="echo"))
        >>> agent = as_agent(team, "parrot", storage=InMemoryCheckpointStorage())
        >>> async def main():
        ...     return [part async for part in agent.stream("Kelp")]
        >>> asyncio.run(main())
        ['Kelp']
        """
        parts: asyncio.Queue[str | None] = asyncio.Queue()

        async def answer() -> AgentReply:
            try:
                return await self.ask(message, session, parts.put)
            finally:
                parts.put_nowait(None)

        answering, any_shown = asyncio.ensure_future(answer()), False
        try:
            while (part := await parts.get()) is not None:
                any_shown = True
                yield part
            reply = await answering
        finally:
            answering.cancel()
        if not any_shown:
            yield reply.text

    def _turn_of(self, session: str) -> asyncio.Lock:
        return self._turns.setdefault((id(asyncio.get_running_loop()), session), asyncio.Lock())

    def as_tool(self, description: str = "") -> Callable[[str], Awaitable[str]]:
        """Return a function that other libraries take as a tool; each call is a session of its own.

        >>> from holdfast import InMemoryCheckpointStorage
        >>> from holdfast.agents import function, sequential
        >>> team = sequential(function.wrap(lambda prompt: prompt, name="echo"))
        >>> as_agent(team, "echo", storage=InMemoryCheckpointStorage()).as_tool("Says it again.").__doc__
        'Says it again.'
        """

        async def tool(task: str) -> str:
            return (await self.ask(task)).text

        tool.__name__ = tool.__qualname__ = "".join(one if one.isalnum() else "_" for one in self.name)
        tool.__doc__ = description or f"Let {self.name} do a task."
        return tool

    # For workflows: the port.

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Go on with the run that the history names, or begin one; nothing that happened there happens twice."""
        known = history_for(_ADAPTER, request.history, self.name)
        session = known[0]["run_id"] if known else None

        async def plan() -> Json:
            return asdict(await self._plan(session))

        async with self._turn_of(session or uuid.uuid4().hex):
            recorded = await calls.model({"session": session}, plan, usage=lambda _: AgentUsage())
            planned = NextInput(**{**recorded, "used": tuple(recorded["used"])})
            outcome = await calls.model(
                {"message": request.prompt},
                partial(self._take_turn, planned, request.prompt, calls.delta),
                usage=lambda found: AgentUsage(*found["usage"]),
            )
        reply = self._reply(outcome, planned)
        if not request.output_types:
            return reply
        value, complaint = OutputSchema(request.output_types).read(reply.text)
        if complaint is not None:
            raise AgentError(f"agent {self.name!r} should give out {request.output_types}, but: {complaint}")
        return AgentReply(reply.text, value, reply.history, reply.usage)

    # A turn of the run.

    async def _plan(self, session: str | None) -> NextInput:
        key = uuid.uuid4().hex
        if session is None:
            return NextInput(key, key, begins=True)
        try:
            await self._storage.get_run(session)
        except RunNotFound:
            return NextInput(session, key, begins=True)
        asked = await self._storage.list_requests(run_id=session, limit=1)
        used = await self._usage_of(session)
        tokens = (used.input_tokens, used.output_tokens, used.calls)
        return NextInput(session, key, False, asked[0].request_id if asked else None, tokens)

    async def _take_turn(self, planned: NextInput, message: str, show: ShowText) -> Json:
        try:
            run = await self._enter(planned, message)
        except Unconvertible as error:
            return {"text": f"This is no answer: {error}", "usage": (0, 0, 0)}
        shown = _Shown(_SPEAKERS.get(self._workflow), show)
        async for event in run.watch_stream():
            if isinstance(event, OutputDeltaEvent):
                await shown.add(event)
        result = await run.wait_for_completion()
        text = _text_of(result)
        await shown.finish(text)
        used, before = await self._usage_of(planned.run_id), AgentUsage(*planned.used)
        usage = (
            used.input_tokens - before.input_tokens,
            used.output_tokens - before.output_tokens,
            used.calls - before.calls,
        )
        return {"text": text, "usage": usage}

    async def _enter(self, planned: NextInput, message: str) -> Run:
        """Return the run with the message in it, whichever part of this was done before a crash."""
        workflow, storage, run_id = self._workflow, self._storage, planned.run_id
        if planned.begins:
            return await workflow.start(message, run_id, storage, "attach")
        run = await workflow.resume(
            run_id=run_id, storage=storage
        )  # or RunTaken, before anything is left there
        if planned.answers is None:
            await run.send(message, key=planned.key)
            return run
        for request in run.pending_requests:
            if request.request_id == planned.answers:
                await run.send_response(request.request_id, _answer_of(message, request.response_type))
        return run

    async def _usage_of(self, run_id: str) -> AgentUsage:
        latest = await self._storage.get_latest(run_id=run_id)
        if latest is None:
            return AgentUsage()
        checkpoint = await self._storage.load(latest.checkpoint_id, values=False)
        used = await checkpoint.read_state(usage_key())
        return used.total if isinstance(used, RunUsage) else AgentUsage()

    def _reply(self, outcome: Json, planned: NextInput) -> AgentReply:
        history = AgentHistory(_ADAPTER, _VERSION, [{"run_id": planned.run_id}])
        return AgentReply(outcome["text"], None, history, AgentUsage(*outcome["usage"]))


def _answer_of(message: str, response_type: TypeForm) -> Any:
    """Return the answer that a text means: itself, yes or no, or JSON."""
    if matches(message, response_type):
        return message
    word = message.strip().lower().rstrip(".!")
    if matches(True, response_type) and word in (*_YES, *_NO):
        return word in _YES
    try:
        found = json.loads(message)
    except ValueError:
        wanted = (
            "say yes or no" if matches(True, response_type) else f"give JSON of a {type_name(response_type)}"
        )
        raise Unconvertible(wanted) from None
    return convert(found, response_type, "answer")


def _text_of(result: RunResult) -> str:
    """Return the question that a run asks, else all that it gave out since the last message."""
    if result.pending_requests:
        return _text(result.pending_requests[0].data)
    return "\n\n".join(_text(output) for output in result.outputs)


def _text(value: Any) -> str:
    if isinstance(value, AgentReply | Transcript):
        return value.text
    for name in ("question", "text"):
        if isinstance(found := getattr(value, name, None), str):
            message = getattr(value, "message", "")
            return f"{message}\n\n{found}" if isinstance(message, str) and message else found
    return as_text(value if isinstance(value, str) else plain_value(value))
