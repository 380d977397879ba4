"""The calls of one activation: an agent's work on one message, over all turns that it takes.

A call is named by the agent's place in the activation, the round and the call id, never by order alone: tools of one
round may end in any order, and providers use call ids again in later rounds. Its outcome is kept in the journal of the
turn, and in the state of the executor once a question to a person ended the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, NoReturn

from holdfast.agents.decisions import AgentQuestion, ToolApprovalRequest, ToolDecision, check_arguments
from holdfast.agents.port import AgentReply, AgentRequest, AgentUsage, Json, TellModel, tell_as_text
from holdfast.agents.settings import AgentSettings
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.events.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.errors import (
    AgentError,
    AgentLoop,
    ChangedRequest,
    HoldfastWarning,
    InvalidArgument,
    ModelUnavailable,
    RateLimited,
    RecordedError,
    ReplayDiffers,
    UnrecordedCalls,
)
from holdfast.graph.context import WorkflowContext

# So often other tasks may begin before a question is asked: tools of one round are asked about together.
_YIELDS_BEFORE_QUESTION = 10
_INSIDE = " > "
# Seconds before a call is tried again, where the provider does not say: doubled each time.
_FIRST_PAUSE, _LONGEST_GUESS = 0.5, 60.0


@checkpointable(name="holdfast.AgentActivation")
@dataclass
class Activation:
    """The work of an agent on one message, as the state of its executor keeps it while a person is asked."""

    key: str
    """Its name, which is the same in all its turns."""
    request: AgentRequest
    outcomes: dict[str, Any] = field(default_factory=dict)
    """The outcomes of calls, by their names."""
    asked: dict[str, str] = field(default_factory=dict)
    """The ids of the requests that were asked, by the names of their calls."""
    decisions: dict[str, Any] = field(default_factory=dict)
    """The answers of people, by the names of the calls: ``ToolDecision`` or text."""
    reply: AgentReply | None = None
    """The reply about which a person is asked."""


@dataclass
class AgentCallEvent(WorkflowEvent):
    """An agent's call of a model or a tool is over.

    It is provisional: shown while the agent works, and again with ``replayed=True`` when a turn runs again.

    >>> AgentCallEvent("triage", "tool", "search", "c1").kind
    'tool'
    """

    executor_id: str = ""
    kind: Literal["model", "tool"] = "model"
    name: str = ""
    """The name of the tool; empty for a model."""
    call: str = ""
    """The name of the call in the activation: ``"model 2"``, ``"tool 1.c1"``."""
    usage: AgentUsage | None = None
    replayed: bool = False
    """True if the outcome was recorded before, and nothing was called."""
    error: str | None = None


@dataclass
class RateLimitEvent(WorkflowEvent):
    """A provider refused a model call for some time: calls with this key wait, in all runs of the process.

    >>> RateLimitEvent("triage", "openai/gpt", 20.0).seconds
    20.0
    """

    executor_id: str = ""
    limit_key: str = ""
    seconds: float = 0.0


class ToolCall(NamedTuple):
    """The tool call under way, for the code of a tool.

    >>> ToolCall("refund", "c1", "9f86d081").idempotency_key
    '9f86d081'
    """

    name: str
    call_id: str
    idempotency_key: str
    """Stays the same whenever this call is tried again; for services that take one."""


class Suspended(BaseException):
    """Ends the work of an agent for this turn: a person is asked, or the run sleeps. Not an error of any library."""


class Question(NamedTuple):
    """A question that ends the turn."""

    call: str
    data: ToolApprovalRequest | AgentQuestion


def digest_of(request: Json) -> str:
    """Return the digest of a request, by which a replay that asks something else is noticed.

    >>> digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    True
    """
    text = json.dumps(
        request,
        sort_keys=True,
        ensure_ascii=False,
        separators=(",", ":"),
        default=lambda value: type(value).__name__,
    )
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class Pauses:
    """The pauses by the key that a provider limits: provider, model and account.

    >>> pauses = Pauses()
    >>> pauses.begin("openai/gpt", 60)
    True
    >>> pauses.begin("openai/gpt", 60), pauses.seconds_left("openai/gpt") > 59, pauses.seconds_left("other")
    (False, True, 0.0)
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()  # runs may be driven in several threads

    def begin(self, key: str, seconds: float) -> bool:
        """Let calls with this key wait; return False if they wait already, though then perhaps for longer."""
        now = time.monotonic()
        with self._lock:
            before = self._ends.get(key, now)
            self._ends[key] = max(before, now + seconds)
            return before <= now

    def seconds_left(self, key: str) -> float:
        """Return how long calls with this key have to wait."""
        end = self._ends.get(key)
        return 0.0 if end is None else max(0.0, end - time.monotonic())


PAUSES = Pauses()
"""The pauses of this process."""


class ActivationLog:
    """Records and replays the calls of one activation during one turn."""

    def __init__(
        self, ctx: WorkflowContext[Any, Any], activation: Activation, agent: str, settings: AgentSettings
    ) -> None:
        self.ctx = ctx
        self.activation = activation
        self.agent = agent
        self.settings = settings
        self.questions: list[Question] = []
        """New questions for people."""
        self.sleep_until: datetime.datetime | None = None
        """The end of a rate limit for which the run should sleep."""
        self.suspended = False
        """True if the turn should end though the agent is not done."""
        self.broken: Exception | None = None
        """The error for which outcomes can no longer be recorded."""
        self._raised: Exception | None = None
        self.events: list[WorkflowEvent] = []
        """Events that are stored with the turn."""
        self._active: set[str] = set()
        self._blocked: set[str] = set()
        self._moved = asyncio.Event()

    # Outcomes.

    async def outcome_of(
        self, name: str, digest: str, perform: Callable[[], Awaitable[Json]]
    ) -> tuple[Json, bool]:
        """Return the outcome of a call, and True if it was recorded before."""
        if self.broken is not None:
            raise self.broken
        replayed = name in self.activation.outcomes
        if not replayed:
            replayed = True  # if the journal has it

            async def record() -> Json:
                nonlocal replayed
                replayed = False
                return {"digest": digest, "ok": await self._performed(perform)}

            try:
                self.activation.outcomes[name] = await self.ctx.once(name, record)
            except Exception as error:
                if error is not self._raised:
                    self.broken = error  # nothing that a library or a model should be told
                raise
        kept = self.activation.outcomes[name]
        if kept["digest"] != digest:
            self._tell_changed(name, kept["digest"], digest)
        return kept, replayed

    async def _performed(self, perform: Callable[[], Awaitable[Json]]) -> Json:
        try:
            return await perform()
        except Exception as error:
            self._raised = error
            raise

    async def keep_error(self, name: str, digest: str, error: Exception) -> None:
        """Record that a call failed: the model is about to be told, so the call must not be repeated."""
        outcome = {"digest": digest, "error": [type(error).__name__, str(error)]}
        self.activation.outcomes[name] = await self.ctx.once(name, lambda: outcome)

    def _tell_changed(self, name: str, recorded: str, asked: str) -> None:
        text = (
            f"agent {self.agent!r} of executor {self.ctx.executor_id!r} asks something else in {name!r} than was "
            f"recorded (digest {asked[:12]} instead of {recorded[:12]}); the recorded outcome"
        )
        if self.settings.strict_replay:
            raise ReplayDiffers(
                f"{text} is not used, because strict_replay is on: run the code that recorded it, or go back to the "
                f"checkpoint before this turn"
            )
        self.warn(
            ChangedRequest(f"{text} is used: something in the prompt changes with each run, or was edited")
        )

    def warn(self, warning: HoldfastWarning) -> None:
        """Add a warning to the events of the turn."""
        self.events.append(WorkflowWarningEvent(warning, self.ctx.executor_id))

    async def show(self, event: WorkflowEvent) -> None:
        """Show watchers an event at once."""
        event.provisional = True
        await self.ctx.add_event(event)

    # Rate limits.

    async def unlimited(
        self, name: str, key: str, call: Callable[[], Awaitable[tuple[Json, bool]]]
    ) -> tuple[Json, bool]:
        """Return the outcome of a model call, after the pauses that its provider asks for."""
        for attempt in range(1, self.settings.model_attempts + 1):
            if name not in self.activation.outcomes:
                await self._wait_for(name, key)
            guess = min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_GUESS)
            try:
                return await call()
            except RateLimited as limited:
                if attempt == self.settings.model_attempts:
                    raise
                seconds = guess if limited.retry_after is None else limited.retry_after
                PAUSES.begin(key, seconds)
                await self.show(RateLimitEvent(self.ctx.executor_id, key, seconds))
            except ModelUnavailable as outage:
                await self.show(AgentCallEvent(self.ctx.executor_id, "model", "", name, error=str(outage)))
                if attempt == self.settings.model_attempts:
                    raise
                await asyncio.sleep(guess)
        raise AssertionError("the last attempt returns or raises")

    async def _wait_for(self, name: str, key: str) -> None:
        while (left := PAUSES.seconds_left(key)) > 0:
            if left > self.settings.longest_pause:
                self.sleep_until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left)
                await self.suspend(name)
            await asyncio.sleep(left)

    # Calls under way, and the end of the turn.

    @contextlib.contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """Note that a call is under way."""
        self._active.add(name)
        try:
            yield
        finally:
            self._active.discard(name)
            self._blocked.discard(name)
            self._moved.set()

    async def suspend(self, name: str) -> NoReturn:
        """Let all other calls under way settle, then raise ``Suspended``; ``name`` is the call that cannot go on."""
        self._blocked.add(name)
        self._moved.set()
        await self.settled("")
        self.suspended = True
        raise Suspended

    async def settled(self, path: str) -> None:
        """Wait until each call below ``path`` is over, or waits for a person itself."""
        for _ in range(_YIELDS_BEFORE_QUESTION):
            await asyncio.sleep(0)
        while any(name.startswith(path) and not self._waits(name) for name in self._active):
            self._moved.clear()
            await self._moved.wait()

    def _waits(self, name: str) -> bool:
        return name in self._blocked or any(other.startswith(name + _INSIDE) for other in self._blocked)

    async def answer_to(self, question: Question) -> Any:
        """Return the answer of a person; raise ``Suspended`` if there is none yet, and ask unless it was asked."""
        decisions = self.activation.decisions
        if question.call in decisions:
            return decisions[question.call]
        if question.call not in self.activation.asked:
            self.questions.append(question)
        with self.under_way(question.call):
            return await self.suspend(question.call)


class RecordedCalls:
    """The ``Calls`` of one agent in an activation; ``path`` is the place of a sub-agent."""

    def __init__(self, log: ActivationLog, path: str = "") -> None:
        self._log = log
        self._path = path
        self._round = 0
        self._asks_model = False
        self._errors: dict[str, tuple[str, Exception]] = {}
        self._names: set[str] = set()
        self._branches: set[str] = set()
        self._questions = 0

    async def model(
        self,
        request: Json,
        call: Callable[[], Awaitable[Json]],
        *,
        usage: Callable[[Json], AgentUsage] | None = None,
        limit_key: str = "",
    ) -> Json:
        log, number = self._log, self._round + 1
        name = f"{self._path}model {number}"
        if self._asks_model:
            raise AgentError(
                f"agent {log.agent!r} asks a model while another call is under way ({name!r}): give agents that work "
                f"side by side calls of their own, by calls.branch('name')"
            )
        if number > log.settings.max_rounds:
            raise AgentLoop(
                "max_rounds",
                log.settings.max_rounds,
                f"agent {log.agent!r} called its model {log.settings.max_rounds} times for one message without coming "
                f"to an end; allow more with AgentSettings(max_rounds=...), or find out which tool it calls again and "
                f"again",
            )
        self._asks_model = True
        try:
            await self._keep_errors()
            digest = digest_of(request)
            with log.under_way(name):
                kept, replayed = await log.unlimited(
                    name, limit_key or log.agent, lambda: log.outcome_of(name, digest, call)
                )
            # Counted by successes: a library that tries again itself asks for the same number.
            self._round = number
        finally:
            self._asks_model = False
        response = kept["ok"]
        used = usage(response) if usage is not None else None
        await log.show(AgentCallEvent(log.ctx.executor_id, "model", "", name, used, replayed))
        return response

    async def _keep_errors(self) -> None:
        for name, (digest, error) in self._errors.items():
            await self._log.keep_error(name, digest, error)
        self._errors.clear()

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
        log = self._log
        key = self._take_name(call_id)
        digest = digest_of([name, arguments])
        try:
            with log.under_way(key):
                kept, replayed = await log.outcome_of(
                    key, digest, lambda: self._perform(key, call_id, name, arguments, call, tell)
                )
        except Exception as error:
            self._names.discard(key)
            self._errors[key] = digest, error
            await log.show(
                AgentCallEvent(
                    log.ctx.executor_id, "tool", name, key, error=f"{type(error).__name__}: {error}"
                )
            )
            # What goes on beside it keeps its outcome, though the library may end it for this error.
            await log.settled(f"{self._path}tool {self._round}.")
            raise
        failed = kept.get("error")
        text = None if failed is None else f"{failed[0]}: {failed[1]}"
        await log.show(AgentCallEvent(log.ctx.executor_id, "tool", name, key, None, replayed, text))
        if failed is None:
            return kept["ok"]
        for known in errors:
            if known.__name__ == failed[0]:
                raise known(failed[1])
        raise RecordedError(failed[1], error_name=failed[0])

    def _take_name(self, call_id: str) -> str:
        name = base = f"{self._path}tool {self._round}.{call_id}"
        number = 1
        while name in self._names:  # a provider that gave one id to two calls of one round
            number += 1
            name = f"{base}#{number}"
        self._names.add(name)
        return name

    async def _perform(
        self,
        key: str,
        call_id: str,
        name: str,
        arguments: Json,
        call: Callable[[Json], Awaitable[Json]],
        tell: TellModel,
    ) -> Json:
        log, note = self._log, None
        decision = await self._decide(key, name, arguments)
        if decision.action == "deny":
            reason = f": {decision.reason}" if decision.reason else ""
            return tell(f"A person denied this call{reason}", None)
        if decision.action == "answer":
            return tell(tell_as_text("A person answered in place of the tool:", decision.result), None)
        if decision.arguments is not None and decision.arguments != arguments:
            check_arguments(decision, name)
            arguments = decision.arguments
            note = (
                f"A person changed the arguments of this call to {json.dumps(arguments, ensure_ascii=False)}."
            )
        own_key = digest_of([log.ctx.run_id, log.activation.key, key, arguments])
        calls = _CALLS.set(RecordedCalls(log, f"{key}{_INSIDE}"))
        tool = _TOOL.set(ToolCall(name, call_id, own_key))
        try:
            result = await call(arguments)
        finally:
            _CALLS.reset(calls)
            _TOOL.reset(tool)
        return result if note is None else tell(note, result)

    async def _decide(self, key: str, name: str, arguments: Json) -> ToolDecision:
        log, rule = self._log, self._log.settings.tool_approval
        if rule is None or not rule.asks_about(name, arguments):
            return ToolDecision.approve()
        data = ToolApprovalRequest(log.agent, name, arguments, rule.message, log.activation.key, key)
        decision = await log.answer_to(Question(key, data))
        if not isinstance(decision, ToolDecision):
            raise AgentError(
                f"the decision about {key!r} of agent {log.agent!r} is no ToolDecision: {decision!r}"
            )
        return decision

    async def delta(self, text: str) -> None:
        await self._log.ctx.stream(text)

    def branch(self, name: str) -> RecordedCalls:
        if name in self._branches:
            raise InvalidArgument(
                f"agent {self._log.agent!r} has two sub-agents {name!r}; give each a name of its own"
            )
        self._branches.add(name)
        return RecordedCalls(self._log, f"{self._path}agent {name}{_INSIDE}")

    def warn_unrecorded(self, what: str) -> None:
        self._log.warn(
            UnrecordedCalls(
                f"agent {self._log.agent!r} of executor {self._log.ctx.executor_id!r}: {what}; it may happen again "
                f"after a crash"
            )
        )

    async def ask(self, question: str) -> str:
        """Ask a person; see ``ask_person``."""
        self._questions += 1
        log, call = self._log, f"{self._path}question {self._questions}"
        return str(
            await log.answer_to(Question(call, AgentQuestion(log.agent, question, log.activation.key, call)))
        )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Let code that is called from here find these calls by ``current_calls``."""
        token = _CALLS.set(self)
        try:
            yield
        finally:
            _CALLS.reset(token)


_CALLS: ContextVar[RecordedCalls | None] = ContextVar("holdfast_calls", default=None)
_TOOL: ContextVar[ToolCall | None] = ContextVar("holdfast_tool", default=None)


def current_calls() -> RecordedCalls:
    """Return the calls of the agent at work, for a tool that is or has an agent itself.

    >>> current_calls()
    Traceback (most recent call last):
    ...
    holdfast.errors.AgentError: no agent is at work here: this is for tools of an agent in a workflow
    """
    calls = _CALLS.get()
    if calls is None:
        raise AgentError("no agent is at work here: this is for tools of an agent in a workflow")
    return calls


def current_tool_call() -> ToolCall:
    """Return the tool call under way, with its idempotency key.

    >>> current_tool_call()
    Traceback (most recent call last):
    ...
    holdfast.errors.AgentError: no tool is called here: this is for tools of an agent in a workflow
    """
    call = _TOOL.get()
    if call is None:
        raise AgentError("no tool is called here: this is for tools of an agent in a workflow")
    return call


async def ask_person(question: str) -> str:
    """Ask a person from inside a tool, and return the answer, which may take weeks.

    The turn ends with the question; with the answer the tool is called again, and this returns at once. So what stands
    before the call runs twice.

    >>> async def lookup_account(name: str) -> str:
    ...     number = await ask_person(f"Which account of {name}?")
    ...     return f"account {number}"
    """
    return await current_calls().ask(question)
