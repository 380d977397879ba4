"""The calls of an agent at work: each is looked up in the record of its activation, and made if it is not there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from holdfast.agents.activation import (
    INSIDE,
    ActivationLog,
    AgentCallEvent,
    CallOutcome,
    Question,
    digest_of,
)
from holdfast.agents.decisions import AgentQuestion, ToolApprovalRequest, ToolDecision, check_arguments
from holdfast.agents.port import (
    AgentUsage,
    Json,
    TellModel,
    tell_as_text,
)
from holdfast.checkpoint.events.events import WorkflowEvent
from holdfast.errors import (
    AgentError,
    AgentLoop,
    InvalidArgument,
    RecordedError,
    UnrecordedCalls,
)
from holdfast.graph.context import WorkflowContext


@dataclass(frozen=True)
class ToolCall:
    """The tool call under way, for the code of a tool.

    A tool reads the state of the run and shows events, but writes no state: a recorded call is not made again, and a
    turn that runs again would miss the write. What it returns is written by an executor.

    >>> ToolCall("refund", "c1", "9f86d081").idempotency_key
    '9f86d081'
    """

    name: str
    call_id: str
    idempotency_key: str
    """Stays the same whenever this call is tried again; for services that take one."""
    _ctx: WorkflowContext[Any, Any] | None = field(default=None, repr=False, compare=False)

    async def read_state(self, key: Any, default: Any = None, scope_name: str | None = None) -> Any:
        """Return a value of the state that the agent's executor sees.

        >>> async def search_log(text: str) -> int:
        ...     log = await current_tool_call().read_state("raw", scope_name="IncidentLogs")
        ...     return log.count(text)
        """
        return await self._turn.read_state(key, default, scope_name)

    async def show(self, event: WorkflowEvent) -> None:
        """Show watchers an event at once; it is provisional, hence never stored.

        >>> async def report(event: WorkflowEvent) -> None:
        ...     await current_tool_call().show(event)
        """
        event.provisional = True
        await self._turn.add_event(event)

    @property
    def _turn(self) -> WorkflowContext[Any, Any]:
        if self._ctx is None:
            raise AgentError(f"the call of tool {self.name!r} was made by hand: no agent is at work here")
        return self._ctx


class ToolTask(NamedTuple):
    """A tool call that an agent asks for."""

    call_id: str
    name: str
    arguments: Json
    call: Callable[[Json], Awaitable[Json]]
    tell: TellModel


def _count_call(response: Json) -> AgentUsage:
    return AgentUsage(calls=1)


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
        model_name: str = "",
        call_ids: Callable[[Json], Sequence[str]] | None = None,
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
            digest = digest_of([model_name, request])
            log.tape.note_asked(name, model_name, request)
            if log.tape.replays:
                call = partial(log.tape.response, name)
            with log.under_way(name):
                kept, replayed = await log.unlimited(
                    name,
                    limit_key or log.agent,
                    lambda: log.outcome_of(
                        name, digest, lambda: log.paid(digest, call, usage or _count_call, model_name)
                    ),
                )
            # Counted by successes: a library that tries again itself asks for the same number.
            self._round = number
        finally:
            self._asks_model = False
        tools = f"{self._path}tool "
        coming = () if call_ids is None else call_ids(kept.ok)
        log.announce(tools, [f"{tools}{number}.{call_id}" for call_id in coming])
        used = kept.usage.total if usage is not None and kept.usage is not None else None
        await log.show(AgentCallEvent(log.ctx.executor_id, "model", "", name, used, replayed))
        return kept.ok

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
        log.tape.note_asked(key, name, arguments)
        try:
            with log.under_way(key):
                kept, replayed = await log.outcome_of(
                    key,
                    digest,
                    lambda: self._perform(key, digest, ToolTask(call_id, name, arguments, call, tell)),
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
        failed = kept.error
        text = None if failed is None else f"{failed[0]}: {failed[1]}"
        await log.show(AgentCallEvent(log.ctx.executor_id, "tool", name, key, None, replayed, text))
        if failed is None:
            self._errors.pop(key, None)  # a library that tried again itself
            return kept.ok
        self._names.discard(key)
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

    async def _perform(self, key: str, digest: str, task: ToolTask) -> CallOutcome:
        log, note, arguments = self._log, None, task.arguments
        decision = await self._decide(key, task.name, arguments)
        if log.tape.answers_for(key):
            recorded = log.tape.find(key)
            return CallOutcome(digest, recorded.result, recorded.error)
        if decision.action == "deny":
            reason = f": {decision.reason}" if decision.reason else ""
            return CallOutcome(digest, task.tell(f"A person denied this call{reason}", None))
        if decision.action == "answer":
            told = tell_as_text("A person answered in place of the tool:", decision.result)
            return CallOutcome(digest, task.tell(told, None))
        if decision.arguments is not None and decision.arguments != arguments:
            check_arguments(decision, task.name)
            arguments = decision.arguments
            note = (
                f"A person changed the arguments of this call to {json.dumps(arguments, ensure_ascii=False)}."
            )
        own_key = digest_of([log.ctx.run_id, log.activation.key, key, arguments])
        calls = _CALLS.set(RecordedCalls(log, f"{key}{INSIDE}"))
        tool = _TOOL.set(ToolCall(task.name, task.call_id, own_key, log.ctx))
        try:
            result = await task.call(arguments)
        finally:
            _CALLS.reset(calls)
            _TOOL.reset(tool)
        return CallOutcome(digest, result if note is None else task.tell(note, result))

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

    async def refuse(self, call_id: str, name: str, why: str) -> None:
        call = f"{self._path}tool {self._round}.{call_id}"
        await self._log.show(AgentCallEvent(self._log.ctx.executor_id, "tool", name, call, error=why))

    async def delta(self, text: str) -> None:
        await self._log.ctx.stream(text)

    def branch(self, name: str) -> RecordedCalls:
        if name in self._branches:
            raise InvalidArgument(
                f"agent {self._log.agent!r} has two sub-agents {name!r}; give each a name of its own"
            )
        self._branches.add(name)
        return RecordedCalls(self._log, f"{self._path}agent {name}{INSIDE}")

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
        log.tape.note_asked(call, "", question)
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
