"""The executor of an agent in a team: counts its edges, lets the agent work, and serves the edges behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.agents.activation import turn_of
from holdfast.agents.decisions import AgentQuestion, ToolApprovalRequest, ToolDecision
from holdfast.agents.executor import AgentExecutor
from holdfast.agents.port import AgentReply, AgentRequest
from holdfast.agents.workflow.conditions import ERROR_KEY, HANDOFF_KEY, TYPE_KEY, EdgeCondition
from holdfast.agents.workflow.node_options import (
    TEMPLATE_FIELD,
    ApprovalDecision,
    NodeApprovalRequest,
    NodeOptions,
)
from holdfast.agents.workflow.team_events import (
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent,
)
from holdfast.agents.workflow.team_messages import TeamJoin, TeamReport, TeamTask, TeamToken
from holdfast.agents.workflow.team_plan import END, TeamPlan
from holdfast.errors import (
    AgentError,
    AgentLoop,
    ExecutorTimeout,
    HoldfastError,
    ReplayDiffers,
    SuperstepLimit,
    TeamTimeout,
)
from holdfast.graph.context import RequestExpired, WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import Handler, Policy, handler, handlers_of, response_handler
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.match import matches
from holdfast.graph.typing.types import type_name

OUTPUTS_SCOPE, TEAM_SCOPE = "agents.outputs", "agents.team"
"""The shared scopes that have the outputs of each agent, and the state of the team as a whole."""
REQUEST = StateKey("request", AgentRequest, TEAM_SCOPE)


def _later(first: float, second: float) -> float:
    return max(first, second)


DRIVEN = StateKey("driven", float, TEAM_SCOPE, _later)
"""The seconds in which agents worked, those that worked side by side counted once."""

_JOIN, _TASK, _PENDING = "join", "task", "pending"
_CONTAINED = (AgentError, AgentLoop, ExecutorTimeout)


class EdgeRule(NamedTuple):
    """An edge out of an agent: with a condition, without one, as default, or for its errors."""

    target: str
    condition: EdgeCondition | None = None
    is_default: bool = False
    on_error: bool = False

    @property
    def words(self) -> str | None:
        """The condition in words; None for an edge without one."""
        if self.on_error:
            return "on error"
        return "default" if self.is_default else None if self.condition is None else str(self.condition)


class TeamLimits(NamedTuple):
    """The limits of a whole team."""

    max_rounds: int = 25
    timeout: float | None = None


class WorkResult(NamedTuple):
    """The end of an agent's work on a task."""

    outputs: dict[str, Any]
    text: str | None = None
    error: str | None = None


def choose_edges(
    rules: Sequence[EdgeRule], result: WorkResult, options: NodeOptions
) -> dict[str, str | None]:
    """Return the targets of the edges that are taken, each with its condition in words."""
    if result.error is not None and options.on_error != "isolate":
        return {rule.target: rule.words for rule in rules if rule.on_error}
    taken: dict[str, str | None] = {}
    has_chosen = False
    for rule in rules:
        if rule.is_default or rule.on_error:
            continue
        if rule.condition is None or rule.condition.holds(result.outputs):
            taken.setdefault(rule.target, rule.words)
            has_chosen = has_chosen or rule.condition is not None
    if not has_chosen:
        for rule in rules:
            if rule.is_default:
                taken.setdefault(rule.target, rule.words)
    return taken


class TeamNode(Executor):
    """An agent of a team."""

    shareable = True

    def __init__(
        self,
        agent: AgentExecutor,
        options: NodeOptions,
        rules: Sequence[EdgeRule],
        plan: TeamPlan,
        limits: TeamLimits,
    ) -> None:
        super().__init__(agent.id)
        self.agent = agent
        self.options = options
        self.rules = tuple(rules)
        self.plan = plan
        self.limits = limits
        incoming = plan.incoming(self.id)
        self._forward = tuple(edge for edge in incoming if not edge.is_back)
        self._back = tuple(edge for edge in incoming if edge.is_back)
        self._nest = plan.nest_of(self.id)
        self._layer = plan.layers[self.id]
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def own_handlers(self) -> tuple[Handler, ...]:
        """Return the handlers with the types of the agent's outputs, and its retries where it works."""
        policy = Policy(self.options.retry).check(f"agent {self.id!r}")
        sends = (TeamToken, TeamTask, TeamReport, *self.options.output_types)
        return tuple(
            found._replace(
                signature=found.signature._replace(sends=sends, yields=(), returns=()),
                policy=Policy() if found.name == "take" else policy,
            )
            for found in handlers_of(type(self))
        )

    # Edges into the agent.

    @handler
    async def take(self, token: TeamToken, ctx: WorkflowContext[Any, Any]) -> None:
        """Count a token; once all edges are settled, let the agent begin, skip it, or end its loop."""
        join = await ctx.read_state(_JOIN) or TeamJoin()
        join.take(token)
        found = join.settled(self._back if join.in_loop else self._forward)
        if found is not None:
            await self._settle(join, found, ctx)
        await ctx.queue_state_update(_JOIN, join)

    async def _settle(
        self, join: TeamJoin, found: Sequence[TeamToken], ctx: WorkflowContext[Any, Any]
    ) -> None:
        messages = tuple(token for token in found if token.kind == "message")
        if join.in_loop:
            if not messages:
                await self._end_loop(join, ctx)
                return
            join.rounds[self.id] += 1
            self._check_rounds(join.rounds[self.id])
            await ctx.send_message(TeamReport(self.id, "round"), END)
        elif self._back:
            join.in_loop = True
            join.rounds[self.id] = 1
        rounds = {header: join.rounds.get(header, 1) for header in self._nest}
        if messages:
            current = rounds[self._nest[-1]] if self._nest else 1
            await ctx.add_event(WorkflowAgentStartedEvent(self.id, self._layer, current))
            await ctx.send_message(TeamReport(self.id, "started"), END)
            await ctx.send_message(TeamTask(messages, rounds, turn_of(ctx).now().timestamp()), self.id)
            return
        reason = "; ".join(dict.fromkeys(token.reason for token in found if token.reason))
        await ctx.add_event(
            WorkflowAgentSkippedEvent(self.id, self._layer, reason or "a loop before it gave nothing")
        )
        await ctx.send_message(TeamReport(self.id, "skipped"), END)
        await self._serve({}, WorkResult({}), rounds, f"agent {self.id!r} was skipped", ctx)

    def _check_rounds(self, number: int) -> None:
        most = self.limits.max_rounds
        if number > most:
            raise SuperstepLimit(
                "max_iterations",
                most,
                f"the loop that begins at agent {self.id!r} took {most} rounds and wants another; allow more with "
                f"with_max_iterations(...) and resume the run, or look at the condition that leads back",
            )

    async def _end_loop(self, join: TeamJoin, ctx: WorkflowContext[Any, Any]) -> None:
        join.in_loop = False
        rounds = {header: join.rounds.get(header, 1) for header in self._nest if header != self.id}
        for target in self.plan.exits_of(self.id):
            await ctx.send_message(TeamToken(self.id, "over", rounds=rounds), target)

    # The work of the agent.

    @handler
    async def work(self, task: TeamTask, ctx: WorkflowContext[Any, Any]) -> None:
        """Let the agent work on its task."""
        request = await self._request(task, ctx)
        await self._go_on(task, lambda: self.agent.take(request, ctx), ctx)

    @response_handler
    async def decided(
        self, request: ToolApprovalRequest, decision: bool | ToolDecision, ctx: WorkflowContext[Any, Any]
    ) -> None:
        """Go on with the decision of a person about a tool call."""
        task = await ctx.require_state(_TASK)
        await self._go_on(task, lambda: self.agent.decided(request, decision, ctx), ctx)

    @response_handler
    async def undecided(
        self, request: ToolApprovalRequest, expired: RequestExpired, ctx: WorkflowContext[Any, Any]
    ) -> None:
        """Go on after nobody decided about a tool call in time."""
        task = await ctx.require_state(_TASK)
        await self._go_on(task, lambda: self.agent.undecided(request, expired, ctx), ctx)

    @response_handler
    async def told(self, question: AgentQuestion, answer: str, ctx: WorkflowContext[Any, Any]) -> None:
        """Go on with the answer of a person to a question of the agent."""
        task = await ctx.require_state(_TASK)
        await self._go_on(task, lambda: self.agent.told(question, answer, ctx), ctx)

    async def _go_on(
        self, task: TeamTask, call: Callable[[], Awaitable[Any]], ctx: WorkflowContext[Any, Any]
    ) -> None:
        try:
            reply = await self._in_time(call, ctx)
            result = None if reply is None else self._result_of(reply)
        except Exception as error:
            if not self._contains(error, ctx):
                raise
            result = self._failed(f"{type(error).__name__}: {error}")
            await self._diagnose("errors", f"{result.error}; its option: {self.options.on_error}", ctx)
        else:
            if reply is not None and self.options.handoffs and reply.handoff not in self._targets:
                chosen = f"the agent {self._chose(reply)}, so its default goes on: {self.options.default_handoff!r}"
                await self._diagnose("router", chosen, ctx)
        if result is None:
            await ctx.queue_state_update(_TASK, task)
        elif (
            result.error is None
            and self.options.approval
            and self.options.approval.asks_about(result.outputs)
        ):
            await ctx.queue_state_update(_TASK, task)
            await ctx.queue_state_update(_PENDING, [result.outputs, result.text])
            await self._ask(result, self.options.approval.timeout, ctx)
        else:
            await self._finish(task, result, ctx)

    def _contains(self, error: Exception, ctx: WorkflowContext[Any, Any]) -> bool:
        """Return True if the options say what to do about an error, and it is none of the run itself."""
        if self.options.on_error == "stop" or isinstance(error, ReplayDiffers | TeamTimeout):
            return False
        if isinstance(error, HoldfastError) and not isinstance(error, _CONTAINED):
            return False
        retry = self.options.retry
        return retry is None or not retry.allows(ctx.attempt, error)

    def _failed(self, error: str) -> WorkResult:
        return WorkResult({ERROR_KEY: error} if self.options.on_error == "isolate" else {}, None, error)

    async def _in_time(self, call: Callable[[], Awaitable[Any]], ctx: WorkflowContext[Any, Any]) -> Any:
        """Return the reply of the agent, in the time that it and the team have."""
        most = self.limits.timeout
        spent = 0.0 if most is None else await ctx.read_state(DRIVEN, 0.0)
        if most is not None and spent >= most:
            raise self._team_timeout()
        begun = monotonic()
        team_limit = asyncio.timeout(None if most is None else most - spent)
        failure: Exception | None = None
        reply = None
        try:
            async with team_limit, self._place():
                reply = await self._in_own_time(call)
        except Exception as error:  # not that the turn sleeps: then nothing more can be written
            failure = self._team_timeout() if team_limit.expired() else error
        if most is not None:
            await ctx.queue_state_update(DRIVEN, spent + monotonic() - begun)
        if failure is not None:
            raise failure
        return reply

    async def _in_own_time(self, call: Callable[[], Awaitable[Any]]) -> Any:
        limit = asyncio.timeout(self.options.timeout)
        try:
            async with limit:
                return await call()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ExecutorTimeout(
                f"agent {self.id!r} took longer than {self.options.timeout:g} s; allow more with with_timeout(...)"
            ) from error

    def _team_timeout(self) -> TeamTimeout:
        return TeamTimeout(
            f"the agents of this team worked longer than {self.limits.timeout:g} s; agent {self.id!r} was at work; "
            f"allow more with AgentWorkflow.create().with_timeout(...) and resume the run"
        )

    def _place(self) -> Any:
        """Return a place among the runs for which the agent may work at a time."""
        if self.options.max_concurrent is None:
            return _NoLimit()
        loop = asyncio.get_running_loop()
        return self._places.setdefault(loop, asyncio.Semaphore(self.options.max_concurrent))

    # The task.

    async def _request(self, task: TeamTask, ctx: WorkflowContext[Any, Any]) -> AgentRequest:
        """Return what the agent is asked: its template, else its input key, the request, the first text before it."""
        options = self.options
        original = await ctx.read_state(REQUEST)
        if options.input_template is not None:
            known = await self._known(task, original, ctx)
            prompt = TEMPLATE_FIELD.sub(lambda found: self._filled(found[1], known), options.input_template)
            request = AgentRequest(prompt)
        elif options.input_key is not None:
            known = await self._known(task, original, ctx)
            request = AgentRequest(self._filled(options.input_key, known))
        elif original is not None and original.prompt:
            request = original
        else:
            request = AgentRequest(next((token.text for token in task.tokens if token.text), ""))
        facts = "\n".join(f"{key}: {_text_of(value)}" for key, value in options.context.items())
        instructions = "\n\n".join(filter(None, (request.instructions, facts)))
        return dataclasses.replace(
            request,
            instructions=instructions or None,
            output_types=options.output_types,
            handoffs=options.handoffs,
            session_id=None if original is None else original.session_id,
        )

    async def _known(
        self, task: TeamTask, original: AgentRequest | None, ctx: WorkflowContext[Any, Any]
    ) -> dict[str, Any]:
        """Return all that templates may name: outputs of the agents before it come first."""
        known: dict[str, Any] = {"request": original.prompt if original is not None else ""}
        known |= self.options.context
        for node in self.plan.agents:
            outputs = await ctx.read_state(node, scope_name=OUTPUTS_SCOPE)
            for key, value in (outputs or {}).items():
                known[key] = known[f"{node}.{key}"] = value
        for token in reversed(task.tokens):
            known |= token.outputs
            known |= {f"{token.source}.{key}": value for key, value in token.outputs.items()}
        return known

    def _filled(self, key: str, known: Mapping[str, Any]) -> str:
        if key not in known:
            raise AgentError(
                f"agent {self.id!r} wants the output {key!r}, which no agent before it gave; there are "
                f"{', '.join(map(repr, sorted(known)))}"
            )
        return _text_of(known[key])

    # The reply.

    def _result_of(self, reply: AgentReply) -> WorkResult:
        key, types = self.options.answer_key, self.options.output_types
        if self.options.handoffs:
            return WorkResult({key: reply.text, HANDOFF_KEY: self._handoff_of(reply)}, reply.text)
        if not types:
            return WorkResult({key: reply.text}, reply.text)
        found = next((form for form in types if matches(reply.value, form)), None)
        if found is None:
            wanted = " or ".join(map(type_name, types))
            raise AgentError(
                f"agent {self.id!r} should give out a {wanted}, but its value is {reply.value!r}"
            )
        fields = fields_of(reply.value)
        outputs = {key: reply.value, **fields, TYPE_KEY: type_name(found)}
        return WorkResult(outputs, _text_of(reply.value))

    @property
    def _targets(self) -> list[str]:
        return [handoff.target for handoff in self.options.handoffs]

    def _chose(self, reply: AgentReply) -> str:
        return "chose none" if reply.handoff is None else f"chose {reply.handoff!r}"

    def _handoff_of(self, reply: AgentReply) -> str:
        if reply.handoff in self._targets:
            return str(reply.handoff)
        if self.options.default_handoff is not None:
            return self.options.default_handoff
        raise AgentError(
            f"router {self.id!r} should choose one of {', '.join(map(repr, self._targets))}, but "
            f"{self._chose(reply)}; give it default='...' for that"
        )

    # Approval.

    async def _ask(self, result: WorkResult, expires: float | None, ctx: WorkflowContext[Any, Any]) -> None:
        rule = self.options.approval
        message = "" if rule is None else rule.message
        data = NodeApprovalRequest(self.id, result.text or "", result.outputs, message)
        await ctx.request_info(data, response_type=bool | ApprovalDecision, expires=expires)

    @response_handler
    async def approved(
        self, request: NodeApprovalRequest, answer: bool | ApprovalDecision, ctx: WorkflowContext[Any, Any]
    ) -> None:
        """Pass the outputs on, or do not, as a person decided."""
        if isinstance(answer, bool):
            answer = ApprovalDecision("approve" if answer else "deny")
        await self._decide(answer, ctx)

    @response_handler
    async def unapproved(
        self, request: NodeApprovalRequest, expired: RequestExpired, ctx: WorkflowContext[Any, Any]
    ) -> None:
        """Decide as the rule says after nobody answered in time."""
        rule = self.options.approval
        action = "approve" if rule is None else rule.on_timeout
        await self._diagnose("approval", f"nobody answered in time; the rule says: {action}", ctx)
        if action == "wait":
            outputs, text = await ctx.require_state(_PENDING)
            await self._ask(WorkResult(outputs, text), None, ctx)
        else:
            await self._decide(ApprovalDecision(action, "nobody answered in time"), ctx)

    async def _decide(self, decision: ApprovalDecision, ctx: WorkflowContext[Any, Any]) -> None:
        outputs, text = await ctx.require_state(_PENDING)
        task = await ctx.require_state(_TASK)
        await ctx.clear_state(_PENDING)
        if decision.action == "approve":
            result = WorkResult(outputs, text)
        else:
            reason = f": {decision.reason}" if decision.reason else ""
            result = self._failed(f"a person denied what agent {self.id!r} gave out{reason}")
        await self._finish(task, result, ctx)

    async def _diagnose(self, source: str, message: str, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.add_event(WorkflowDiagnosticEvent("warning", source, message, self.id))

    # Edges out of the agent.

    async def _finish(self, task: TeamTask, result: WorkResult, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.clear_state(_TASK)
        success = result.error is None
        seconds = max(0.0, turn_of(ctx).now().timestamp() - task.started)
        progress = (self._layer + 1) / self.plan.layer_count
        await ctx.add_event(
            WorkflowAgentCompletedEvent(
                self.id, self._layer, success, seconds, progress, result.outputs, result.error
            )
        )
        await ctx.queue_state_update(self.id, result.outputs, scope_name=OUTPUTS_SCOPE)
        try:
            taken = choose_edges(self.rules, result, self.options)
        except Exception as error:
            raise AgentError(
                f"a condition of an edge from agent {self.id!r} raised {type(error).__name__}: {error}; it must give "
                f"an answer for all outputs, which were {', '.join(map(repr, result.outputs))}"
            ) from error
        await ctx.send_message(TeamReport(self.id, "succeeded" if success else "failed", result.error), END)
        for target, words in taken.items():
            await ctx.add_event(WorkflowEdgeTraversedEvent(self.id, target, words))
        await self._serve(taken, result, task.rounds, None if success else f"agent {self.id!r} failed", ctx)

    async def _serve(
        self,
        taken: Mapping[str, str | None],
        result: WorkResult,
        rounds: dict[str, int],
        reason: str | None,
        ctx: WorkflowContext[Any, Any],
    ) -> None:
        """Send a message along each edge that is taken, and a skip along each other that an agent waits for."""
        for edge in self.plan.outgoing(self.id):
            if edge.target in taken:
                token = TeamToken(self.id, "message", result.outputs, result.text, rounds=rounds)
            elif edge.leaves_loop and not edge.is_back:
                continue
            else:
                words = ", ".join(rule.words or "" for rule in self.rules if rule.target == edge.target)
                why = reason or f"edge {self.id!r} -> {edge.target!r} was refused: {words}"
                token = TeamToken(self.id, "skip", reason=why, rounds=rounds)
            await ctx.send_message(token, edge.target)


class _NoLimit:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a structured output.

    >>> fields_of({"score": 7})
    {'score': 7}
    """
    if isinstance(value, Mapping):
        return {str(key): part for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    kind = type(value)
    names: Any = getattr(kind, "model_fields", None) or getattr(kind, "_fields", None)
    names = names or getattr(kind, "__struct_fields__", ())
    return {name: getattr(value, name) for name in names}


def _text_of(value: Any) -> str:
    """Return a value as an agent reads it: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=lambda part: fields_of(part) or str(part), ensure_ascii=False)
