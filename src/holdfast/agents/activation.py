"""The record of an activation, which is an agent's work on one message, over all turns that it takes.

A call is named by the agent's place in the activation, the round and the call id, never by order alone: tools of one
round may end in any order, and providers use call ids again in later rounds. Its outcome is kept in the journal of the
turn, and in the state of the executor once a question to a person ended the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import ormsgpack

from holdfast.agents.budget import USAGE_SCOPE, RunUsage, UsageCounter, budget_name_of, is_usage, usage_key
from holdfast.agents.call_tape import CallTape
from holdfast.agents.decisions import AgentQuestion, ToolApprovalRequest
from holdfast.agents.port import (
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Json,
    Transcript,
)
from holdfast.agents.rate_limits import PAUSES, RateLimitEvent, guess_pause
from holdfast.agents.sessions.policy import ThreadStanding
from holdfast.agents.settings import AgentSettings
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.events.events import WorkflowEvent, WorkflowWarningEvent
from holdfast.errors import (
    BudgetExceeded,
    ChangedRequest,
    HoldfastWarning,
    ModelUnavailable,
    RateLimited,
    ReplayDiffers,
)
from holdfast.graph.context import WorkflowContext
from holdfast.runtime.step.context import TurnContext
from holdfast.runtime.step.shared_objects import RunView

# So often other tasks may begin before a question is asked: tools of one round are asked about together.
_YIELDS_BEFORE_QUESTION = 10
# So long a question waits for tool calls that were announced and do not begin: some are answered by the library itself.
_LONGEST_WAIT_FOR_CALLS = 2.0
INSIDE = " > "
"""Stands between the name of a tool call and those of the calls that are made in it."""
# Whole conversations are digested with each call: this takes a fifth of the time that their text as JSON took.
_DIGESTED = (
    ormsgpack.OPT_SORT_KEYS
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_REPLACE_SURROGATES
)


@checkpointable(name="holdfast.AgentCallOutcome")
@dataclass(frozen=True)
class CallOutcome:
    """The recorded outcome of a call of a model or a tool."""

    digest: str
    """The digest of the request."""
    ok: Json = None
    error: tuple[str, str] | None = None
    """The name and the text of the error, if the call failed."""
    usage: RunUsage | None = None
    budgets: tuple[str, ...] = ()
    """The names of the budgets for which the usage counts."""


@checkpointable(name="holdfast.AgentActivation")
@dataclass
class Activation:
    """The work of an agent on one message, as the state of its executor keeps it while a person is asked."""

    key: str
    """Its name, which is the same in all its turns."""
    request: AgentRequest
    outcomes: dict[str, CallOutcome] = field(default_factory=dict)
    """The outcomes of calls, by their names."""
    asked: dict[str, str] = field(default_factory=dict)
    """The ids of the requests that were asked, by the names of their calls."""
    decisions: dict[str, Any] = field(default_factory=dict)
    """The answers of people, by the names of the calls: ``ToolDecision`` or text."""
    reply: AgentReply | None = None
    """The reply about which a person is asked."""
    transcript: Transcript | None = None
    """The conversation to which the reply is added."""
    standing: ThreadStanding | None = None
    """The conversation that the agent was given, if it is kept in a session."""
    said: tuple[AgentMessage, ...] = ()
    """Messages before the request that no session has yet."""
    number: str = ""
    """Its number among those of its executor, for recordings: ``"2"``, and ``"2.2"`` after its reply was revised."""

    def recorded_calls(self, answered: str | None) -> set[str]:
        """Return the names of calls and questions that turns before recorded; ``answered`` is one of this turn."""
        questions = {name for name, answer in self.decisions.items() if isinstance(answer, str)}
        return {*self.outcomes, *questions} - {answered}

    def next_number(self) -> str:
        """Return the number of the activation that revises the reply of this one."""
        first, _, revision = self.number.partition(".")
        return f"{first}.{int(revision or 1) + 1}" if first else ""


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
    try:
        content = ormsgpack.packb(request, _name_type, _DIGESTED)
    except TypeError:  # keys that are no text, or a nesting that is too deep for that format
        content = _make_text(request).encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16).hexdigest()


def _make_text(request: Json) -> str:
    return json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=_name_type)


def _name_type(value: object) -> str:
    """Return what stands in a digest for a value that is no JSON, or for a number of more than 64 bits."""
    return str(value) if isinstance(value, int) else type(value).__name__


UsageReader: TypeAlias = Callable[[Json], AgentUsage]


async def count_usage(run: RunView) -> UsageCounter:
    """Return the counter of a run, with what its state and its journal tell of calls before."""
    spent: dict[str, RunUsage] = {}
    for key, usage in await run.values_of(USAGE_SCOPE, is_usage):
        spent[budget_name_of(key)] = usage
    for outcome in await run.journaled(lambda name: "model " in name):
        if isinstance(outcome, CallOutcome) and outcome.usage is not None:
            for name in outcome.budgets:
                spent[name] = spent.get(name, RunUsage()) + outcome.usage
    return UsageCounter(spent)


def turn_of(ctx: WorkflowContext[Any, Any]) -> TurnContext:
    """Return a context as the runtime made it."""
    assert isinstance(ctx, TurnContext), "handlers get no other context"
    return ctx


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
        self.usage = RunUsage()
        """The usage of calls whose outcomes no turn before committed."""
        self.tape = CallTape(turn_of(ctx), activation, agent, settings.record)
        """Records calls for a cassette, or gives those of one."""
        self._announced: set[str] = set()
        """The names of tool calls that a model asked for and that have yet to begin."""
        self._active: set[str] = set()
        self._blocked: set[str] = set()
        self._moved = asyncio.Event()

    # Outcomes.

    async def outcome_of(
        self, name: str, digest: str, perform: Callable[[], Awaitable[CallOutcome]]
    ) -> tuple[CallOutcome, bool]:
        """Return the outcome of a call, and True if it was recorded before."""
        if self.broken is not None:
            raise self.broken
        replayed = name in self.activation.outcomes
        if not replayed:
            replayed = True  # if the journal has it

            async def record() -> CallOutcome:
                nonlocal replayed
                outcome = await self._performed(perform)
                replayed = self.tape.answers_for(name)
                return outcome

            try:
                self.activation.outcomes[name] = await self.ctx.once(name, record)
            except Exception as error:
                if error is not self._raised or isinstance(error, BudgetExceeded | ReplayDiffers):
                    self.broken = error  # nothing that a library or a model should be told
                raise
            self.usage = self.usage + (self.activation.outcomes[name].usage or RunUsage())
        kept = self.activation.outcomes[name]
        if kept.digest != digest:
            self._tell_changed(name, kept.digest, digest)
        return kept, replayed

    async def _performed(self, perform: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome:
        try:
            return await perform()
        except Exception as error:
            self._raised = error
            raise

    async def keep_error(self, name: str, digest: str, error: Exception) -> None:
        """Record that a call failed: the model is about to be told, so the call must not be repeated."""
        outcome = CallOutcome(digest, error=(type(error).__name__, str(error)))

        async def keep() -> CallOutcome:  # a plain function would be called in a thread
            return outcome

        self.activation.outcomes[name] = await self.ctx.once(name, keep)

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

    # Budgets.

    def keep_usage(self) -> None:
        """Add the usage of this turn to that of the run."""
        for name in self.budget_names if self.usage.by_model else ():
            turn_of(self.ctx).add_to_run(usage_key(name), self.usage)

    @property
    def budget_names(self) -> tuple[str, ...]:
        """The names under which the usage of this agent is counted: for the whole run, and for its budgets."""
        return tuple(dict.fromkeys(("run", *(budget.name for budget in self.settings.budgets))))

    async def paid(
        self, digest: str, call: Callable[[], Awaitable[Json]], usage: UsageReader, model_name: str
    ) -> CallOutcome:
        """Ask a model, if the budgets have room for it."""
        counter = await turn_of(self.ctx).share(count_usage)
        async with counter.admit(self.settings.budgets, model_name) as charge:
            response = await call()
            used = usage(response)
            charge(used)
        return CallOutcome(digest, response, usage=RunUsage({model_name: used}), budgets=self.budget_names)

    # Rate limits.

    async def unlimited(
        self, name: str, key: str, call: Callable[[], Awaitable[tuple[CallOutcome, bool]]]
    ) -> tuple[CallOutcome, bool]:
        """Return the outcome of a model call, after the pauses that its provider asks for."""
        for attempt in range(1, self.settings.model_attempts + 1):
            if name not in self.activation.outcomes and not self.tape.replays:
                await self._wait_for(name, key)
            guess = guess_pause(attempt)
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

    def announce(self, below: str, names: Iterable[str]) -> None:
        """Note which tool calls come in the round of an agent, in place of those of its round before."""
        self._announced = {name for name in self._announced if not name.startswith(below)}.union(names)

    @contextlib.contextmanager
    def under_way(self, name: str) -> Iterator[None]:
        """Note that a call is under way."""
        self._active.add(name)
        self._announced.discard(name)
        self._moved.set()
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
        await self._announced_begin()
        await self.settled("")
        self.suspended = True
        raise Suspended

    async def _announced_begin(self) -> None:
        """Wait until the announced calls have begun, so that people are asked about all of a round together."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_WAIT_FOR_CALLS):
                while self._announced:
                    self._moved.clear()
                    await self._moved.wait()

    async def settled(self, path: str) -> None:
        """Wait until each call below ``path`` is over, or waits for a person itself."""
        for _ in range(_YIELDS_BEFORE_QUESTION):
            await asyncio.sleep(0)
        while any(name.startswith(path) and not self._waits(name) for name in self._active):
            self._moved.clear()
            await self._moved.wait()

    def _waits(self, name: str) -> bool:
        return name in self._blocked or any(other.startswith(name + INSIDE) for other in self._blocked)

    async def answer_to(self, question: Question) -> Any:
        """Return the answer of a person; raise ``Suspended`` if there is none yet, and ask unless it was asked."""
        decisions = self.activation.decisions
        if question.call in decisions:
            return decisions[question.call]
        if question.call not in self.activation.asked:
            self.questions.append(question)
        with self.under_way(question.call):
            return await self.suspend(question.call)
