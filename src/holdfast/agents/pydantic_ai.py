"""The adapter for agents of ``pydantic-ai``: each run wraps the model, and catches tools by a capability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pydantic_ai
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import AgentRunResult, DeferredToolRequests, ModelRetry, ToolOutput, ToolReturn
from pydantic_ai import exceptions as library_errors
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from holdfast.agents.port import (
    AgentHistory,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Calls,
    Handoff,
    Json,
    tell_as_text,
)
from holdfast.agents.provider_errors import WantedCall, history_for, pause_of, show_unusable
from holdfast.errors import AgentError, GraphError, HistoryUnreadable, ModelUnavailable, RateLimited

_ADAPTER = "pydantic-ai"
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_TOOL_RETURN = TypeAdapter(ToolReturn)
# Different in each run, though nothing else is asked.
_PASSING_KEYS = {"timestamp": True, "run_id": True, "conversation_id": True}
_PASSING: Any = {"__all__": {**_PASSING_KEYS, "parts": {"__all__": _PASSING_KEYS}}}
"""Times and ids in messages, which are different in each run."""


def wrap(
    agent: pydantic_ai.Agent[Any, Any], name: str | None = None, *, deps: Any = None, stream: bool = True
) -> PydanticAIAgent:
    """Make an agent of an ``Agent`` of pydantic-ai, which stays as it is and may serve many runs at once.

    ``deps`` are given to each of its runs. ``stream=False`` is for models that cannot stream.

    >>> from pydantic_ai import Agent
    >>> from pydantic_ai.models.test import TestModel
    >>> wrap(Agent(TestModel(), name="triage")).name
    'triage'
    """
    if not isinstance(agent, pydantic_ai.Agent):
        raise GraphError(f"pydantic_ai.wrap takes a pydantic_ai.Agent, not a {type(agent).__name__}")
    if agent.model is None:
        raise GraphError("the agent has no model; give it one: Agent('openai:...', ...)")
    found = name if name is not None else agent.name
    if not found:
        raise GraphError(
            "the agent has no name; give it one: Agent(..., name='...'), or wrap(agent, name='...')"
        )
    return PydanticAIAgent(agent, found, deps, stream)


class PydanticAIAgent:
    """An agent of pydantic-ai."""

    def __init__(self, agent: pydantic_ai.Agent[Any, Any], name: str, deps: Any, stream: bool) -> None:
        self.name = name
        self._agent = agent
        self._deps = deps
        self._stream = stream

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Let the agent run, with its model and its tools recorded."""
        assert self._agent.model is not None
        result = await self._agent.run(
            request.prompt,
            message_history=self._earlier(request),
            model=_RecordedModel(infer_model(self._agent.model), calls, self._stream),
            instructions=request.instructions,
            deps=self._deps,
            capabilities=[_RecordedTools(calls)],
            output_type=_output_of(request),
        )
        return self._reply(result)

    def _earlier(self, request: AgentRequest) -> list[ModelMessage] | None:
        messages = history_for(_ADAPTER, request.history, self.name)
        said = [_neutral(message.role, message.text) for message in request.messages]
        if messages is None:
            return said or None
        try:
            return [*said, *ModelMessagesTypeAdapter.validate_python(messages)]
        except ValidationError as error:
            assert request.history is not None
            raise HistoryUnreadable(
                f"agent {self.name!r}: pydantic-ai {pydantic_ai.__version__} cannot read a conversation that "
                f"{request.history.version} wrote ({error.error_count()} problems, first: {error.errors()[0]['msg']}); "
                f"install that version again, or begin a new conversation with AgentRequest(prompt, messages=...)"
            ) from error

    def _reply(self, result: AgentRunResult[Any]) -> AgentReply:
        output, handoff = result.output, None
        if isinstance(output, DeferredToolRequests):
            raise AgentError(
                f"agent {self.name!r}: a tool waits for an approval or a result of pydantic-ai's own; let people "
                f"approve with AgentSettings(tool_approval=ToolApproval(...)), or ask with ask_person"
            )
        if isinstance(output, _HandedOver):
            handoff, output = output.target, ""
        text = output if isinstance(output, str) else _ANYTHING.dump_json(output).decode()
        used = result.usage
        messages = ModelMessagesTypeAdapter.dump_python(result.all_messages(), mode="json")
        return AgentReply(
            text,
            None if isinstance(output, str) else output,
            AgentHistory(_ADAPTER, pydantic_ai.__version__, messages),
            AgentUsage(used.input_tokens, used.output_tokens, used.requests),
            handoff,
        )


def _neutral(role: str, text: str) -> ModelMessage:
    if role == "assistant":
        return ModelResponse(parts=[TextPart(text)])
    return ModelRequest(parts=[SystemPromptPart(text) if role == "system" else UserPromptPart(text)])


@dataclass(frozen=True)
class _HandedOver:
    """The output of an agent that hands its task over."""

    target: str


def _output_of(request: AgentRequest) -> Any:
    """Return the output types for a run; None for those that the agent has."""
    if request.handoffs:
        choices = [_handoff_output(handoff) for handoff in request.handoffs]
        return choices if request.handoff_required else [*choices, *(request.output_types or (str,))]
    if not request.output_types:
        return None
    return request.output_types[0] if len(request.output_types) == 1 else list(request.output_types)


def _handoff_output(handoff: Handoff) -> Any:
    def hand_over() -> _HandedOver:
        return _HandedOver(handoff.target)

    return ToolOutput(
        hand_over, name=f"hand_over_to_{handoff.target}", description=handoff.description or None
    )


class _RecordedModel(WrapperModel):
    """The model of an agent for one run: each of its requests is recorded."""

    def __init__(self, wrapped: Model, calls: Calls, stream: bool) -> None:
        super().__init__(wrapped)
        self._calls = calls
        self._stream = stream and _can_stream(wrapped)
        self._warned = False
        key = hash(str(getattr(getattr(wrapped, "client", None), "api_key", "")))
        self._limit_key = f"{wrapped.system}|{wrapped.base_url}|{wrapped.model_name}|{key:x}"
        self._shown: dict[int, tuple[ModelMessage, Json]] = {}

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self._warn_of_native(model_request_parameters)
        asked = {
            "messages": [self._as_json(message) for message in messages],
            "tools": sorted(tool.name for tool in model_request_parameters.function_tools),
        }

        async def call() -> Json:
            response = await self._ask(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")[0]

        recorded = await self._calls.model(
            asked, call, usage=_usage_of, limit_key=self._limit_key, model_name=self.wrapped.model_name
        )
        (response,) = ModelMessagesTypeAdapter.validate_python([recorded])
        assert isinstance(response, ModelResponse)
        # Arguments are looked at by their validation.
        wanted = [WantedCall(call.tool_call_id, call.tool_name, None) for call in response.tool_calls]
        await show_unusable(self._calls, wanted, _offered(model_request_parameters) if wanted else ())
        return response

    def _as_json(self, message: ModelMessage) -> Json:
        """Return a message for the record; each round has those of the rounds before, which are kept."""
        shown = self._shown.get(id(message))
        if shown is None:
            (found,) = ModelMessagesTypeAdapter.dump_python([message], mode="json", exclude=_PASSING)
            shown = self._shown[id(message)] = (message, found)
        return shown[1]

    def _warn_of_native(self, parameters: ModelRequestParameters) -> None:
        if parameters.native_tools and not self._warned:
            self._warned = True
            kinds = ", ".join(sorted(tool.kind for tool in parameters.native_tools))
            self._calls.warn_unrecorded(
                f"its provider runs tools by itself ({kinds}), inside of a model call"
            )

    async def _ask(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> ModelResponse:
        if "max_retries" not in self.wrapped.unsupported_settings:
            # Attempts are made by Calls, so that a pause holds for all runs and is told.
            settings = {"max_retries": 0, **(self.wrapped.settings or {}), **(settings or {})}
        try:
            if not self._stream:
                return await self.wrapped.request(messages, settings, parameters)
            async with self.wrapped.request_stream(messages, settings, parameters) as stream:
                async for event in stream:
                    if text := _text_in(event):
                        await self._calls.delta(text)
                return stream.get()
        except library_errors.ModelRateLimitError as error:
            raise _limited(error) from error
        except library_errors.ModelOverloadedError as error:
            raise _limited(error) from error
        except (
            library_errors.ModelUnavailableError,
            library_errors.ModelServerError,
            library_errors.ModelConnectionError,
            library_errors.ModelRequestTimeout,
        ) as error:
            raise ModelUnavailable(str(error)) from error
        except library_errors.ModelHTTPError as error:
            if error.status_code == 429:
                raise _limited(error) from error
            if error.status_code >= 500:
                raise ModelUnavailable(str(error)) from error
            raise


def _offered(parameters: ModelRequestParameters) -> set[str]:
    return {tool.name for tool in (*parameters.function_tools, *parameters.output_tools)}


def _limited(error: Exception) -> RateLimited:
    headers = getattr(error, "headers", None) or {}
    seconds = pause_of(headers)
    return RateLimited(
        str(error), retry_after=getattr(error, "retry_after", None) if seconds is None else seconds
    )


def _can_stream(model: Model) -> bool:
    """Return False for a function in place of a model that gives its answer in one piece only."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return not isinstance(model, FunctionModel) or model.stream_function is not None


def _text_in(event: Any) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


def _usage_of(response: Json) -> AgentUsage:
    usage = response.get("usage") or {}
    return AgentUsage(usage.get("input_tokens", 0), usage.get("output_tokens", 0), 1)


class _RecordedTools(AbstractCapability[Any]):
    """Catches the tools of an agent for one run: functions, toolsets and those of MCP servers alike."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def on_tool_validate_error(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: Any, error: ValidationError | ModelRetry
    ) -> Any:
        await self._calls.refuse(call.tool_call_id, call.tool_name, f"the arguments do not fit: {error}")
        raise error

    async def wrap_tool_execute(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: Any, handler: Any
    ) -> Any:
        given = _ANYTHING.dump_python(args, mode="json")

        async def perform(arguments: Json) -> Json:
            try:
                return _result_as_json(await handler(args if arguments == given else arguments))
            except library_errors.ToolRetryError as error:
                raise ModelRetry(_words(error.tool_retry)) from error
            except library_errors.ToolFailedError as error:
                raise library_errors.ToolFailed(str(error.tool_failed.content)) from error

        recorded = await self._calls.tool(
            call.tool_call_id,
            call.tool_name,
            given,
            perform,
            tell=_tell,
            errors=(ModelRetry, library_errors.ToolFailed),
        )
        return _result_of(recorded)


def _words(retry: Any) -> str:
    content = retry.content
    return content if isinstance(content, str) else retry.model_response()


def _result_as_json(result: Any) -> Json:
    if isinstance(result, ToolReturn):
        return {"tool_return": _TOOL_RETURN.dump_python(result, mode="json")}
    return {"value": _ANYTHING.dump_python(result, mode="json")}


def _result_of(recorded: Json) -> Any:
    if "tool_return" in recorded:
        return _TOOL_RETURN.validate_python(recorded["tool_return"])
    return recorded["value"]


def _tell(text: str, result: Json | None) -> Json:
    if result is None:
        return {"value": text}
    if "tool_return" not in result:
        return {"value": tell_as_text(text, result["value"])}
    found = _TOOL_RETURN.validate_python(result["tool_return"])
    return _result_as_json(
        replace(found, return_value=tell_as_text(text, _ANYTHING.dump_python(found.return_value)))
    )
