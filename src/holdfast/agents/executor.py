"""``AgentExecutor``: an agent as an executor of a workflow."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeAlias

from holdfast.agents.activation import Activation, ActivationLog, turn_of
from holdfast.agents.call_tape import CallTape, current_replay
from holdfast.agents.calls import RecordedCalls
from holdfast.agents.decisions import (
    AgentQuestion,
    OutputApprovalRequest,
    OutputDecision,
    ToolApprovalRequest,
    ToolDecision,
    output_decision_of,
    tool_decision_of,
)
from holdfast.agents.port import (
    Agent,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    Transcript,
    heard_by,
)
from holdfast.agents.sessions.turn import SessionTurn, said_in
from holdfast.agents.settings import AgentSettings
from holdfast.errors import AgentError, GraphError
from holdfast.graph.context import PassOn, RequestExpired, WorkflowContext
from holdfast.graph.executor import Executor
from holdfast.graph.handler import Handler, Policy, handler, handlers_of, response_handler
from holdfast.graph.typing.match import matches
from holdfast.graph.typing.types import TypeForm, type_name

AgentInput: TypeAlias = str | AgentRequest | AgentReply | AgentMessage | Transcript | list[Any]
"""The messages that an ``AgentExecutor`` takes; a list has several of them, as a fan-in gives it."""

_HISTORY, _HISTORY_KIND, _ACTIVATIONS = "history", "history kind", "activations"

_LIBRARIES = {
    "pydantic_ai": "pydantic_ai",
    "agents": "openai_agents",
    "agent_framework": "agent_framework",
    "langgraph": "langchain",
}
"""The adapters by the packages whose agents they wrap."""


class AgentExecutor(Executor):
    """An agent of any library in a workflow; each of its model and tool calls is durable.

    It takes text, an ``AgentRequest``, the reply of another agent, messages, or a list of these, and sends what
    ``output_type`` says: the whole ``AgentReply`` by default, its text for ``str``, the conversation with the reply
    for ``Transcript``, and a structured output for any other type. A plain function is an agent, too. Agents of
    libraries are wrapped by their adapter.

    >>> from holdfast import WorkflowBuilder
    >>> from holdfast.agents import AgentExecutor
    >>> def shout(prompt: str) -> str:
    ...     return prompt.upper()
    >>> agent = AgentExecutor(shout, id="shout", output_type=str)
    >>> WorkflowBuilder(name="Shout").set_start_executor(agent).build().run_sync("hello").outputs
    ['HELLO']
    """

    shareable = True

    def __init__(
        self,
        agent: object,
        id: str | None = None,
        *,
        output_type: TypeForm = AgentReply,
        settings: AgentSettings | None = None,
    ) -> None:
        self.agent = agent_of(agent)
        super().__init__(id if id is not None else self.agent.name)
        self.output_type = output_type
        self.settings = settings if settings is not None else AgentSettings()
        if not isinstance(self.settings, AgentSettings):
            raise GraphError(
                f"AgentExecutor {self.id!r}: settings must be AgentSettings(...), not {settings!r}"
            )

    def own_handlers(self) -> tuple[Handler, ...]:
        """Return the handlers with the types and the policy of this agent."""
        policy = Policy(self.settings.retry, self.settings.timeout).check(f"AgentExecutor {self.id!r}")
        return tuple(
            found._replace(
                signature=found.signature._replace(sends=(), yields=(), returns=(self.output_type,)),
                policy=policy,
            )
            for found in handlers_of(type(self))
        )

    # Handlers.

    @handler
    async def take(self, message: AgentInput, ctx: WorkflowContext[Any, Any]) -> Any:
        """Let the agent work on a message."""
        request = request_of(message)
        if request.history is None and self.settings.remembers:
            request = replace(request, history=await self._recall(ctx))
        talk = message if isinstance(message, Transcript) else None
        number = await self._next_number(ctx)
        return await self._work(Activation(ctx.idempotency_key, request, transcript=talk, number=number), ctx)

    @response_handler
    async def decided(
        self, request: ToolApprovalRequest, decision: bool | ToolDecision, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        """Go on with the decision of a person about a tool call."""
        return await self._answered(request.activation, request.call, tool_decision_of(decision), ctx)

    @response_handler
    async def undecided(
        self, request: ToolApprovalRequest, expired: RequestExpired, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        """Go on after nobody decided about a tool call in time."""
        rule = self.settings.tool_approval
        decision = ToolDecision.deny("nobody answered in time") if rule is None else rule.on_expiry
        return await self._answered(request.activation, request.call, decision, ctx)

    @response_handler
    async def told(self, question: AgentQuestion, answer: str, ctx: WorkflowContext[Any, Any]) -> Any:
        """Go on with the answer of a person to a question of the agent."""
        return await self._answered(question.activation, question.call, answer, ctx)

    @response_handler
    async def reviewed(
        self, request: OutputApprovalRequest, decision: bool | OutputDecision, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        """Go on with the decision of a person about the reply."""
        return await self._review(request, output_decision_of(decision), ctx)

    @response_handler
    async def unreviewed(
        self, request: OutputApprovalRequest, expired: RequestExpired, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        """Go on after nobody reviewed the reply in time."""
        rule = self.settings.output_approval
        return await self._review(request, OutputDecision.approve() if rule is None else rule.on_expiry, ctx)

    # The work on one message.

    async def _next_number(self, ctx: WorkflowContext[Any, Any]) -> str:
        """Return the number of a new activation, if it is recorded or replayed."""
        if not self.settings.record and current_replay() is None:
            return ""
        number = await ctx.read_state(_ACTIVATIONS, 0) + 1
        await ctx.queue_state_update(_ACTIVATIONS, number)
        return str(number)

    async def _work(
        self, activation: Activation, ctx: WorkflowContext[Any, Any], answered: str | None = None
    ) -> Any:
        """Let the agent work; ``answered`` is the call about which a person answered just now."""
        async with self._session(activation, ctx) as session:
            return await self._work_in(session, activation, ctx, answered)

    def _session(
        self, activation: Activation, ctx: WorkflowContext[Any, Any]
    ) -> AbstractAsyncContextManager[SessionTurn | None]:
        """Return the turn in the session of the agent; one that gives None if it has none."""
        policy = self.settings.session
        if policy is None:
            return nullcontext()
        return SessionTurn(policy, self.agent.name, activation, ctx)

    async def _work_in(
        self,
        session: SessionTurn | None,
        activation: Activation,
        ctx: WorkflowContext[Any, Any],
        answered: str | None,
    ) -> Any:
        known = activation.recorded_calls(answered)
        while True:
            log = ActivationLog(ctx, activation, self.agent.name, self.settings)
            request = activation.request if session is None else await session.request()
            try:
                reply = await self._run_agent(log, request)
            finally:  # also of an error that a team goes on after
                for event in log.events:
                    await ctx.add_event(event)
                log.keep_usage()
            if log.sleep_until is not None:
                await ctx.sleep(until=log.sleep_until)
                continue
            log.tape.keep(known)
            if reply is not None:
                return await self._replied(session, activation, reply, ctx)
            await self._ask(log, ctx)
            return None

    async def _run_agent(self, log: ActivationLog, request: AgentRequest) -> AgentReply | None:
        """Return the reply; None if the turn should end before there is one."""
        calls = RecordedCalls(log)
        instructions = "\n\n".join(
            text for text in (request.instructions, self.settings.instructions) if text
        )
        asked = replace(
            request,
            messages=tuple(heard_by(self.id, message) for message in request.messages),
            instructions=instructions or None,
            output_types=self._output_types() or request.output_types,
        )
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            with calls.current():
                reply = await self.agent.run(asked, calls)
        except BaseException:
            # Libraries may wrap what ends the turn, or raise something else for it: the log knows.
            if log.broken is not None:
                raise log.broken from None
            if not log.suspended or (task is not None and task.cancelling() > cancelled):
                raise
            return None
        if log.broken is not None:
            raise log.broken
        if log.suspended:
            return None
        if not isinstance(reply, AgentReply):
            raise AgentError(
                f"agent {self.agent.name!r} of executor {self.id!r} must return an AgentReply, not a "
                f"{type(reply).__name__}"
            )
        return reply

    def _output_types(self) -> tuple[TypeForm, ...]:
        return () if self.output_type in (AgentReply, Transcript, str) else (self.output_type,)

    async def _ask(self, log: ActivationLog, ctx: WorkflowContext[Any, Any]) -> None:
        """Ask people what the log has questions about, and keep the outcomes for the turn that has the answers."""
        rule = self.settings.tool_approval
        for question in log.questions:
            if isinstance(question.data, AgentQuestion):
                asked = await ctx.request_info(question.data, response_type=str)
            else:
                expires = None if rule is None else rule.expires
                asked = await ctx.request_info(
                    question.data, response_type=bool | ToolDecision, expires=expires
                )
            log.activation.asked[question.call] = asked
        await ctx.queue_state_update(_key_of(log.activation.key), log.activation)

    async def _answered(
        self, activation_key: str, call: str, answer: Any, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        activation = await self._activation(activation_key, ctx)
        activation.decisions[call] = answer
        return await self._work(activation, ctx, call)

    async def _activation(self, key: str, ctx: WorkflowContext[Any, Any]) -> Activation:
        activation = await ctx.read_state(_key_of(key))
        if not isinstance(activation, Activation):
            raise AgentError(
                f"executor {self.id!r} has no task {key!r} of agent {self.agent.name!r} that waits for this answer; "
                f"its state was edited, or the question comes from another executor"
            )
        return activation

    # The reply.

    async def _replied(
        self,
        session: SessionTurn | None,
        activation: Activation,
        reply: AgentReply,
        ctx: WorkflowContext[Any, Any],
    ) -> Any:
        rule = self.settings.output_approval
        if rule is None or not rule.asks_about(reply.text, reply.value):
            return await self._pass_on(session, activation, reply, ctx)
        activation.reply = reply
        activation.outcomes, activation.decisions, activation.asked = {}, {}, {}
        data = OutputApprovalRequest(self.agent.name, reply.text, reply.value, rule.message, activation.key)
        await ctx.request_info(data, response_type=bool | OutputDecision, expires=rule.expires)
        await ctx.queue_state_update(_key_of(activation.key), activation)
        return None

    async def _review(
        self, request: OutputApprovalRequest, decision: OutputDecision, ctx: WorkflowContext[Any, Any]
    ) -> Any:
        activation = await self._activation(request.activation, ctx)
        reply = activation.reply
        if reply is None:
            raise AgentError(f"executor {self.id!r} has no reply of agent {self.agent.name!r} to be reviewed")
        tape = CallTape(turn_of(ctx), activation, self.agent.name, self.settings.record)
        tape.keep_review(reply.text, decision)
        if decision.action == "revise":
            task = AgentRequest(
                decision.reason or "", history=reply.history, instructions=activation.request.instructions
            )
            await ctx.clear_state(_key_of(activation.key))
            revision = Activation(
                ctx.idempotency_key,
                task,
                transcript=activation.transcript,
                number=activation.next_number(),
                standing=activation.standing,
                said=(*activation.said, *said_in(activation.request, reply)),
            )
            return await self._work(revision, ctx)
        if decision.action == "edit":
            reply = replace(
                reply,
                text=reply.text if decision.text is None else decision.text,
                value=reply.value if decision.value is None else decision.value,
            )
        async with self._session(activation, ctx) as session:
            return await self._pass_on(session, activation, reply, ctx)

    async def _pass_on(
        self,
        session: SessionTurn | None,
        activation: Activation,
        reply: AgentReply,
        ctx: WorkflowContext[Any, Any],
    ) -> Any:
        if session is not None:
            await session.stage(reply)
        if await ctx.read_state(_key_of(activation.key)) is not None:
            await ctx.clear_state(_key_of(activation.key))
        if self.settings.remembers and reply.history is not None:
            await self._remember(reply.history, ctx)
            # A second copy in each message would grow with the conversation.
            reply = replace(reply, history=None)
        if self.output_type is Transcript:
            talk = activation.transcript or Transcript().add(activation.request.prompt)
            return talk.add(reply.text, self.id)
        if self.output_type is AgentReply:
            return reply
        if self.output_type is str:
            return reply.text
        if not matches(reply.value, self.output_type):
            raise AgentError(
                f"agent {self.agent.name!r} of executor {self.id!r} should give out a "
                f"{type_name(self.output_type)}, but its value is {reply.value!r}"
            )
        return PassOn(reply.value)

    async def _recall(self, ctx: WorkflowContext[Any, Any]) -> AgentHistory | None:
        kind = await ctx.read_state(_HISTORY_KIND)
        if kind is None:
            return None
        return AgentHistory(kind[0], kind[1], await ctx.read_state(_HISTORY, []))

    async def _remember(self, history: AgentHistory, ctx: WorkflowContext[Any, Any]) -> None:
        """Keep the conversation; what was added to it is appended, so that a long one costs no more than a short."""
        known = await ctx.read_state(_HISTORY, [])
        if known and history.messages[: len(known)] == known:
            for message in history.messages[len(known) :]:
                await ctx.append_state(_HISTORY, message)
        else:
            await ctx.queue_state_update(_HISTORY, history.messages)
        await ctx.queue_state_update(_HISTORY_KIND, [history.adapter, history.version])


def _key_of(activation: str) -> str:
    """Return the key of state under which an activation is kept."""
    return f"activation {activation}"


def request_of(message: AgentInput) -> AgentRequest:
    """Return the request that a message means; of several, the last is the prompt and the others come before it.

    >>> request_of([AgentReply("a draft"), "Make it shorter"]).prompt
    'a draft\\n\\nMake it shorter'
    """
    if isinstance(message, AgentRequest):
        return message
    if isinstance(message, list):
        spoken = [one for one in message if isinstance(one, AgentMessage)]
        if len(spoken) == len(message) and spoken:
            return AgentRequest(spoken[-1].text, tuple(spoken[:-1]))
        return AgentRequest("\n\n".join(request_of(one).prompt for one in message))
    if isinstance(message, str):
        return AgentRequest(message)
    if isinstance(message, AgentReply | AgentMessage):
        return AgentRequest(message.text)
    if isinstance(message, Transcript):
        return AgentRequest(message.text, message.messages[:-1])
    raise AgentError(
        f"an agent takes text, an AgentRequest, an AgentReply or AgentMessages, not a {type(message).__name__}; "
        f"make text of it before"
    )


def agent_of(thing: Any) -> Agent:
    """Return an agent as the port has it: the thing itself, or wrapped by the adapter of its library.

    >>> agent_of(len).name
    'len'
    """
    if isinstance(thing, Agent) and not isinstance(thing, type):
        library = _library_of(thing)
        if library is None:
            return thing
    else:
        library = _library_of(thing)
    if library is not None:
        wrapped: Agent = import_module(f"holdfast.agents.{_LIBRARIES[library]}").wrap(thing)
        return wrapped
    if callable(thing) and not isinstance(thing, type):
        from holdfast.agents import function

        return function.wrap(thing)
    raise GraphError(
        f"{thing!r} is no agent: give a function, an agent of pydantic-ai, openai-agents, agent-framework, LangChain, "
        f"holdfast.agents.openai.wrap(...), or an object with a name and 'async def run(self, request, calls)'"
    )


def _library_of(thing: Any) -> str | None:
    """Return the package of a known library that a class of ``thing`` comes from."""
    for base in type(thing).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _LIBRARIES:
            return package
    return None
