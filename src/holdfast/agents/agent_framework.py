"""The adapter for agents of ``agent-framework``: each of their model and tool calls is durable.

Calls are caught by chat and function middleware that is made for one run, so the agent stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from inspect import isawaitable
from typing import Any
from uuid import uuid4

import agent_framework
from agent_framework import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseAgent,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    InMemoryHistoryProvider,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    ResponseStream,
    _tools,
)
from pydantic import BaseModel, ValidationError, create_model
from pydantic_core import to_jsonable_python

from holdfast.agents.port import AgentHistory, AgentReply, AgentRequest, AgentUsage, Calls, Handoff, Json
from holdfast.agents.provider_errors import WantedCall, history_for, pause_of, show_unusable
from holdfast.agents.workflow_agent import WorkflowAgent
from holdfast.errors import (
    AgentError,
    GraphError,
    HistoryUnreadable,
    ModelUnavailable,
    RateLimited,
    ReplayDiffers,
)
from holdfast.graph.typing.types import TypeForm

_ADAPTER = "agent-framework"
_HANDOFF = "hand_over_to_"
_INVALID_ARGUMENTS: type[Exception] = getattr(_tools, "_FunctionArgumentValidationError", TypeError)
"""The library tells the model of wrong arguments in other words than of a tool that failed."""
_NO_CONNECTION = {
    *("APIConnectionError", "TransportError", "ClientConnectionError", "ClientPayloadError"),
    *(
        "ServiceRequestError",
        "ServiceResponseError",
        "IncompleteReadError",
        "ConnectionError",
        "TimeoutError",
    ),
}
"""The classes, of the SDKs and HTTP libraries that chat clients use, of errors that a broken connection causes."""


def wrap(agent: Agent[Any], *, name: str | None = None, stream: bool = True) -> AgentFrameworkAgent:
    """Make an agent for workflows of an ``Agent`` of agent-framework; its name is that of the agent by default.

    With ``stream`` the model's text is shown as it comes; turn it off for chat clients that cannot stream.

    >>> from agent_framework import Agent, BaseChatClient, ChatMiddlewareLayer, FunctionInvocationLayer
    >>> class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    ...     def _inner_get_response(self, *, messages, stream, options, **kwargs): ...
    >>> wrap(Agent(Client(), "Be brief.", name="triage")).name
    'triage'
    """
    if not isinstance(agent, Agent):
        raise GraphError(
            f"agent_framework.wrap takes an agent_framework.Agent, not a {type(agent).__name__}: only the calls of an "
            f"agent with a chat client can be recorded"
        )
    if not isinstance(agent.client, ChatMiddlewareLayer):
        raise GraphError(
            f"the chat client {type(agent.client).__name__} has no ChatMiddlewareLayer, by which its calls are "
            f"recorded; let its class inherit from FunctionInvocationLayer, ChatMiddlewareLayer and BaseChatClient"
        )
    found = name if name is not None else agent.name
    if not found:
        raise GraphError("give the agent a name: agent_framework.wrap(agent, name='...')")
    for tool in agent.default_options.get("tools") or ():
        if getattr(tool, "approval_mode", None) == "always_require":
            raise GraphError(
                f"tool {tool.name!r} of agent {found!r} asks for approval by approval_mode='always_require', which "
                f"only the library's own sessions can answer; leave it out, and set "
                f"AgentSettings(tool_approval=ToolApproval([{tool.name!r}]))"
            )
    return AgentFrameworkAgent(agent, found, stream)


class AgentFrameworkAgent:
    """An agent of agent-framework."""

    def __init__(self, agent: Agent[Any], name: str, stream: bool) -> None:
        self.name = name
        self._agent = agent
        self._stream = stream

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Let the agent work, with middleware of this run between it and its model and tools."""
        for provider in self._agent.context_providers:
            if not isinstance(provider, InMemoryHistoryProvider):
                calls.warn_unrecorded(
                    f"context provider {type(provider).__name__} is called outside of the record"
                )
        earlier = self._earlier(request)
        messages = [*map(self._read, earlier), Message("user", [request.prompt])]
        chat = ChatRecorder(calls, self._stream, bool(request.handoffs) and request.handoff_required)
        functions = FunctionRecorder(calls, request.handoffs)
        model = _output_model(request.output_types)
        options = {"instructions": request.instructions, "response_format": model}
        try:
            response = await self._agent.run(
                messages,
                middleware=[chat, functions],
                tools=[_handoff_tool(handoff) for handoff in request.handoffs],
                options=options,
            )
        except _Aborted as aborted:
            raise aborted.error from None
        self._check(response)
        said = [*messages[len(earlier) :], *response.messages]
        history = AgentHistory(
            _ADAPTER,
            agent_framework.__version__,
            [*earlier, *(_as_json(message.to_dict()) for message in said)],
        )
        value = None if functions.handoff is not None else self._value(response, model)
        return AgentReply(_text_of(response), value, history, chat.usage, functions.handoff)

    def _earlier(self, request: AgentRequest) -> list[Json]:
        known = history_for(_ADAPTER, request.history, self.name)
        said = [_as_json(Message(message.role, [message.text]).to_dict()) for message in request.messages]
        return [*said, *(known or ())]

    def _read(self, message: Json) -> Message:
        try:
            return Message.from_dict(message)
        except Exception as error:
            raise HistoryUnreadable(
                f"agent {self.name!r}: agent-framework {agent_framework.__version__} cannot read a message of the "
                f"history ({error}). Use the version of the library that wrote it, or begin a new conversation with "
                f"the texts, as AgentRequest(prompt, messages=...)"
            ) from error

    def _check(self, response: AgentResponse[Any] | None) -> None:
        if response is None:
            raise AgentError(
                f"agent {self.name!r}: a middleware of the agent ended its run without a response"
            )
        for content in response.user_input_requests:
            call = content.function_call or content
            raise AgentError(
                f"agent {self.name!r}: {call.name or content.type!r} waits for an approval or a result by "
                f"agent-framework's own means ({content.type}); let people approve with "
                f"AgentSettings(tool_approval=ToolApproval(...)), or ask with ask_person"
            )

    def _value(self, response: AgentResponse[Any], model: type[BaseModel] | None) -> Any:
        try:
            value = response.value
        except (ValidationError, ValueError) as error:
            raise AgentError(f"agent {self.name!r} gave no output that fits: {error}") from error
        if model is None:
            return value
        if value is None:
            raise AgentError(f"agent {self.name!r} gave no output, but one of {model.__name__} was asked for")
        return value.result if issubclass(model, _WrappedOutput) else value


class ChatRecorder(ChatMiddleware):
    """Does the model calls of one run through its ``Calls``."""

    def __init__(self, calls: Calls, stream: bool, hands_over: bool) -> None:
        self._calls = calls
        self._stream = stream
        self._hands_over = hands_over
        self._warned: set[str] = set()
        self.usage = AgentUsage()
        """The usage of all calls."""

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Put the recorded response in place, or that of the model."""
        options = dict(context.options or {})
        if self._hands_over and options.get("tool_choice") != "none":
            # The library requires a tool in the first round only.
            options["tool_choice"] = "required"
            context.options = options
        self._warn_of(options.get("tools") or ())
        found = await self._calls.model(
            {"messages": list(map(_asked, context.messages)), "options": _options_as_json(options)},
            lambda: self._ask(context, call_next),
            usage=_usage_of,
            limit_key=_limit_key(context.client, options.get("model")),
            model_name=str(options.get("model") or getattr(context.client, "model", "")),
        )
        self.usage += _usage_of(found)
        context.result = response = ChatResponse.from_dict(found)
        await show_unusable(self._calls, _wanted_in(response), _offered(options))

    async def _ask(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> Json:
        streamed = context.stream
        try:
            context.stream = self._stream
            await call_next()
            response = context.result
            if isinstance(response, ResponseStream):
                async with response:
                    async for update in response:
                        if update.text:
                            await self._calls.delta(update.text)
                    response = await response.get_final_response()
        except Exception as error:
            ours = _as_ours(error)
            if ours is error:
                raise
            raise ours from error
        finally:
            context.stream = streamed
        if not isinstance(response, ChatResponse):
            raise AgentError(
                f"chat client {type(context.client).__name__} gave no ChatResponse: {response!r}"
            )
        return _response_as_json(response)

    def _warn_of(self, tools: Sequence[Any]) -> None:
        for tool in tools:
            name = getattr(tool, "name", None) or (
                (tool.get("name") or tool.get("type")) if isinstance(tool, Mapping) else type(tool).__name__
            )
            if not isinstance(tool, FunctionTool):
                what = f"tool {name!r} is called by the provider of the model"
            elif "as_tool.<locals>" in getattr(tool.func, "__qualname__", ""):
                what = (
                    f"agent tool {name!r} is recorded as one call, not the calls inside; make it a function that runs "
                    f"the wrapped agent with holdfast.agents.current_calls()"
                )
            else:
                continue
            if what not in self._warned:
                self._warned.add(what)
                self._calls.warn_unrecorded(what)


class FunctionRecorder(FunctionMiddleware):
    """Does the tool calls of one run through its ``Calls``."""

    def __init__(self, calls: Calls, handoffs: Sequence[Handoff]) -> None:
        self._calls = calls
        self._targets = {_HANDOFF + handoff.target: handoff.target for handoff in handoffs}
        self.handoff: str | None = None
        """The target that the model chose."""

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        """Put the recorded result in place, or that of the tool."""
        name = context.function.name
        if name in self._targets:
            self.handoff = self.handoff or self._targets[name]
            context.result = "done"
            raise MiddlewareTermination("handed over")
        arguments = _as_json(context.arguments)

        async def call(given: Json) -> Json:
            if given != arguments:
                context.arguments = dict(given)
            return await self._call(context, call_next)

        try:
            found = await self._calls.tool(
                context.metadata["call_id"],
                name,
                arguments,
                call,
                tell=_tell,
                errors=(_INVALID_ARGUMENTS, MiddlewareFailure),
            )
        except ReplayDiffers as error:
            raise _Aborted(error) from error
        context.result = [Content.from_dict(content) for content in found["contents"]]
        if found.get("terminated") is not None:
            raise MiddlewareTermination(found["terminated"])

    async def _call(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> Json:
        offered = None if context.tools is None else list(context.tools)
        try:
            await call_next()
        except MiddlewareTermination as end:
            # While the tool runs, the library keeps the call itself in the place of its result.
            so_far = None if isawaitable(context.result) else context.result
            result = so_far if end.result is None else end.result
            return {**_result_as_json(result), "terminated": str(end)}
        if offered is not None and offered != context.tools:
            self._calls.warn_unrecorded(
                f"tool {context.function.name!r} changes the tools of the run, which is not repeated with its result"
            )
        return _result_as_json(context.result)


class _Aborted(BaseException):
    """Ends the run of the library for an error that no model should be told."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class _WrappedOutput(BaseModel):
    """The base of models for outputs that are no pydantic model themselves; each has the field ``result``."""


def _output_model(forms: Sequence[TypeForm]) -> type[BaseModel] | None:
    """Return the model that the library is given as the format of the response."""
    if not forms:
        return None
    if len(forms) == 1 and isinstance(forms[0], type) and issubclass(forms[0], BaseModel):
        return forms[0]
    form: Any = forms[0]
    for other in forms[1:]:
        form = form | other
    return create_model("Output", __base__=_WrappedOutput, result=(form, ...))


def _handoff_tool(handoff: Handoff) -> FunctionTool:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return FunctionTool(
        name=_HANDOFF + handoff.target,
        description=handoff.description,
        func=lambda: "done",
        input_model=schema,
    )


def _text_of(response: AgentResponse[Any]) -> str:
    """Return the text of the last message, without what the model said between its tool calls."""
    last = response.messages[-1] if response.messages else None
    if last is None or last.role != "assistant":
        return ""
    return "".join(content.text or "" for content in last.contents if content.type == "text")


# JSON.


def _as_json(value: Any) -> Json:
    return to_jsonable_python(value, fallback=str)


def _response_as_json(response: ChatResponse[Any]) -> Json:
    for message in response.messages:
        for content in message.contents:
            if content.type == "function_call" and content.id is None:
                # The library would give it another one at each replay.
                content.id = f"af-call-{uuid4().hex}"
    found = response.to_dict()
    if response.additional_properties:
        found["additional_properties"] = response.additional_properties
    return _as_json(found)


def _result_as_json(result: Any) -> Json:
    """Return the result of a tool as the contents that the library makes of it."""
    contents = Content.from_function_result("", result=result).items or []
    return {"contents": [_as_json(content.to_dict()) for content in contents]}


def _tell(text: str, result: Json | None) -> Json:
    told = Content.from_text(text).to_dict()
    if result is None:
        return {"contents": [told]}
    return {**result, "contents": [told, *result["contents"]]}


def _asked(message: Message) -> Json:
    """Return a message as a model sees it."""
    contents = [content.to_dict(exclude={"additional_properties"}) for content in message.contents]
    return {"role": message.role, "contents": _as_json(contents)}


def _options_as_json(options: Mapping[str, Any]) -> Json:
    found = {key: value for key, value in options.items() if key not in ("tools", "response_format")}
    form = options.get("response_format")
    if form is not None:
        found["response_format"] = form if isinstance(form, Mapping) else form.model_json_schema()
    found["tools"] = [
        tool.to_json_schema_spec() if isinstance(tool, FunctionTool) else tool
        for tool in options.get("tools") or ()
    ]
    return to_jsonable_python(found, fallback=lambda value: type(value).__name__)


def _offered(options: Mapping[str, Any]) -> set[str]:
    return {tool.name for tool in options.get("tools") or () if isinstance(tool, FunctionTool)}


def _wanted_in(response: ChatResponse[Any]) -> list[WantedCall]:
    contents = [content for message in response.messages for content in message.contents]
    return [
        WantedCall(content.call_id or "", content.name or "", content.arguments)
        for content in contents
        if content.type == "function_call"
    ]


def _usage_of(response: Json) -> AgentUsage:
    usage = response.get("usage_details") or {}
    return AgentUsage(usage.get("input_token_count") or 0, usage.get("output_token_count") or 0, 1)


# Providers.


def _limit_key(client: Any, model: Any) -> str:
    """Return the name of what the provider limits: its address, the model, and the key if it can be seen."""
    address = client.service_url() if hasattr(client, "service_url") else ""
    key = getattr(getattr(client, "client", None), "api_key", None)
    model = model or getattr(client, "model", None) or ""
    return f"{type(client).__qualname__}|{address}|{model}|{hash(key) if isinstance(key, str) else 0:x}"


def _as_ours(error: Exception) -> Exception:
    """Return a rate limit or an outage as the port has them; any other error as it is.

    Chat clients wrap the errors of their SDKs, so causes are looked at.
    """
    for cause in _causes(error):
        status, headers = _status_of(cause)
        if status == 429 or (status in (503, 529) and "retry-after" in headers):
            return RateLimited(f"status {status}: {error}", retry_after=pause_of(headers))
        if status is not None and (status >= 500 or status in (408, 409)):
            return ModelUnavailable(f"status {status}: {error}")
        if status is not None:
            return error
        if any(base.__name__ in _NO_CONNECTION for base in type(cause).__mro__):
            return ModelUnavailable(f"the model cannot be reached, or its stream broke: {error}")
    return error


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _status_of(error: BaseException) -> tuple[int | None, dict[str, str]]:
    """Return the HTTP status and the headers of an error, by the attributes that SDKs have for them."""
    response = getattr(error, "response", None)
    found = (
        getattr(error, "status_code", None),
        getattr(error, "status", None),
        getattr(error, "code", None),
    )
    status = next((one for one in (*found, getattr(response, "status_code", None)) if type(one) is int), None)
    headers = getattr(response, "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return status, {}
    return status, {str(name).lower(): str(value) for name, value in headers.items()}


# A workflow as an agent of the library.


class ServedAgent(BaseAgent):
    """An agent of agent-framework that is a workflow of Holdfast; a session of it is a run.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import as_agent, function, sequential
    >>> team = sequential(function.wrap(lambda prompt: prompt.upper(), name="shout"))
    >>> served = ServedAgent(as_agent(team, "team", storage=InMemoryCheckpointStorage()))
    >>> asyncio.run(served.run("kelp", session=served.create_session(session_id="s1"))).text
    'KELP'
    """

    def __init__(self, agent: WorkflowAgent, description: str | None = None) -> None:
        super().__init__(name=agent.name, description=description)
        self._agent = agent

    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **_: Any
    ) -> Any:
        """Say something in a session, and return the reply, or a stream of it."""
        said = messages if isinstance(messages, list | tuple) else [messages]
        text = "\n\n".join(one.text if isinstance(one, Message) else str(one) for one in said)
        run_id = None if session is None else session.session_id
        if not stream:
            return self._answer(text, run_id, None)
        replies: list[AgentResponse[Any]] = []
        return ResponseStream(self._updates(text, run_id, replies), finalizer=lambda _: replies[0])

    async def _answer(
        self, text: str, run_id: str | None, shown: asyncio.Queue[str | None] | None
    ) -> AgentResponse[Any]:
        async def show(part: str) -> None:
            if shown is not None:
                await shown.put(part)

        try:
            reply = await self._agent.ask(text, run_id, show)
        finally:
            if shown is not None:
                await shown.put(None)
        return AgentResponse(messages=[Message("assistant", [reply.text], author_name=self.name)])

    async def _updates(
        self, text: str, run_id: str | None, replies: list[AgentResponse[Any]]
    ) -> AsyncIterator[AgentResponseUpdate]:
        shown: asyncio.Queue[str | None] = asyncio.Queue()
        answer, any_shown = asyncio.ensure_future(self._answer(text, run_id, shown)), False
        try:
            while (part := await shown.get()) is not None:
                any_shown = True
                yield AgentResponseUpdate(contents=[Content.from_text(part)], role="assistant")
            replies.append(await answer)
        finally:
            answer.cancel()
        if not any_shown:
            yield AgentResponseUpdate(contents=[Content.from_text(replies[0].text)], role="assistant")
