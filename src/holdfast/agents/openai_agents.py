"""The adapter for ``openai-agents``: its own runner works, over copies of its agents whose calls are recorded."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import operator
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import agents
import openai
from agents.items import ItemHelpers, ModelResponse, TResponseOutputItem
from agents.models.interface import Model, ModelProvider
from agents.tool import FunctionTool, Tool, invoke_function_tool
from agents.tool_context import ToolContext
from agents.usage import Usage, _response_usage_to_usage, deserialize_usage, serialize_usage
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from holdfast.agents.port import AgentHistory, AgentReply, AgentRequest, AgentUsage, Calls, Handoff, Json
from holdfast.agents.provider_errors import WantedCall, history_for, pause_of, show_unusable
from holdfast.errors import AgentError, GraphError, HistoryUnreadable, ModelUnavailable, RateLimited

_ADAPTER = "openai-agents"
_VERSION = version(_ADAPTER)
_HANDOFF = "hand_over_to_"
_ASKED = inspect.signature(Model.get_response)
_OUTPUT: TypeAdapter[list[TResponseOutputItem]] = TypeAdapter(list[TResponseOutputItem])
_OWN_APPROVAL = (
    "a tool waits for an approval of the library's own; leave needs_approval out, and let people approve with "
    "AgentSettings(tool_approval=ToolApproval(...))"
)
# The packages whose errors mean that a stream broke.
_TRANSPORTS = ("httpx", "httpx2", "httpcore", "httpcore2", "h11", "json")


_DEFAULT_CONFIG = agents.RunConfig(tracing_disabled=True, tool_not_found_behavior="return_error_to_model")


def wrap(
    agent: agents.Agent[Any],
    *,
    context: Any = None,
    max_turns: int | None = agents.run.DEFAULT_MAX_TURNS,
    hooks: agents.RunHooks[Any] | None = None,
    run_config: agents.RunConfig | None = None,
    stream: bool = True,
) -> OpenAIAgentsAgent:
    """Make an agent of an ``Agent`` of openai-agents, which stays as it is and may serve many runs at once.

    ``context``, ``max_turns``, ``hooks`` and ``run_config`` are those of ``Runner.run``; without a ``run_config``
    tracing is off, and a call of a tool that is not there is told to the model: by the library's own choice it ends the
    run, and a recorded response would end it again whenever the turn is tried again. Hooks are called again when a
    turn is replayed. ``stream=False`` is for models that cannot stream.

    >>> import agents
    >>> wrap(agents.Agent(name="triage", instructions="Be brief.")).name
    'triage'
    """
    if not isinstance(agent, agents.Agent):
        raise GraphError(f"openai_agents.wrap takes an agents.Agent, not a {type(agent).__name__}")
    config = run_config if run_config is not None else _DEFAULT_CONFIG
    return OpenAIAgentsAgent(agent, _RunnerOptions(context, max_turns, hooks, config, stream))


@dataclass(frozen=True)
class _RunnerOptions:
    """The arguments of the library's runner, besides agent and input."""

    context: Any
    max_turns: int | None
    hooks: agents.RunHooks[Any] | None
    config: agents.RunConfig
    stream: bool


class OpenAIAgentsAgent:
    """An agent of openai-agents, with the agents to which it may hand over."""

    def __init__(self, agent: agents.Agent[Any], options: _RunnerOptions) -> None:
        self.name = agent.name
        self._agent = agent
        self._options = options

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Let the library's runner work, with models and tools recorded."""
        options, conversation = self._options, self._conversation(request)
        run = _DurableRun(options, request, calls)
        result = await agents.Runner.run(
            run.copy_of(self._agent),
            conversation,
            context=options.context,
            max_turns=options.max_turns,
            hooks=options.hooks,
            run_config=run.config(),
        )
        if result.interruptions:
            raise AgentError(f"agent {self.name!r}: {_OWN_APPROVAL}")
        output = result.final_output
        if result.last_agent.output_type in (None, str) and isinstance(output, str) and not run.chosen:
            text, value = output, None
        else:
            text, value = _last_text(result), None if run.chosen else output
        messages = to_jsonable_python(result.to_input_list(mode="normalized"))
        used = [response.usage for response in result.raw_responses]
        usage = AgentUsage(
            sum(one.input_tokens for one in used), sum(one.output_tokens for one in used), len(used)
        )
        return AgentReply(text, value, AgentHistory(_ADAPTER, _VERSION, messages), usage, run.chosen)

    def _conversation(self, request: AgentRequest) -> list[Any]:
        earlier = history_for(_ADAPTER, request.history, self.name)
        said = [{"role": message.role, "content": message.text} for message in request.messages]
        earlier = [*said, *(earlier or ())]
        for item in earlier:
            if not isinstance(item, dict) or not item.keys() & {"role", "type"}:
                assert request.history is not None
                raise HistoryUnreadable(
                    f"agent {self.name!r}: openai-agents {_VERSION} cannot read a conversation that "
                    f"{request.history.version} wrote ({item!r:.80} is none of its items); install that version again, "
                    f"or begin a new conversation with AgentRequest(prompt, messages=...)"
                )
        return [*earlier, {"role": "user", "content": request.prompt}]


def _last_text(result: agents.RunResult) -> str:
    """Return the text of the last response; that of the output if a tool gave it."""
    said = [item for item in result.raw_responses[-1].output if item.type == "message"]
    return "".join(ItemHelpers.extract_text(item) or "" for item in said) or str(result.final_output)


class _DurableRun:
    """One run of the library: the copies of agents, tools and models whose calls are recorded."""

    def __init__(self, options: _RunnerOptions, request: AgentRequest, calls: Calls) -> None:
        self.calls = calls
        self.stream = options.stream
        self.chosen: str | None = None
        """The target of the request's handoffs that was chosen."""
        self._config = options.config
        self._request = request
        self._copies: dict[int, tuple[agents.Agent[Any], agents.Agent[Any]]] = {}
        self._given_ids: dict[str, str] = {}  # by the ids under which the library knows the calls
        self._warned: set[str] = set()

    def config(self) -> agents.RunConfig:
        """Return the configuration of the run, with recorded models."""
        config = self._config
        self._warn_of_guardrails(config.input_guardrails, config.output_guardrails)
        return replace(
            config,
            model=self._model(config.model),
            model_provider=_DurableProvider(config.model_provider, self),
        )

    def copy_of(self, agent: agents.Agent[Any]) -> agents.Agent[Any]:
        """Return the copy of an agent for this run."""
        if id(agent) in self._copies:
            return self._copies[id(agent)][1]
        if type(agent).__module__.startswith("agents.sandbox"):
            self._warn(f"agent {agent.name!r} works in a sandbox, whose tools are not recorded")
        self._warn_of_guardrails(agent.input_guardrails, agent.output_guardrails)
        request, settings = self._request, agent.model_settings
        changes: dict[str, Any] = {}
        if (
            settings.retry is None
        ):  # attempts are made by Calls, so that a pause holds for all runs and is told
            settings = replace(settings, retry=agents.ModelRetrySettings(max_retries=0))
        if request.instructions:
            changes["instructions"] = _with_instructions(agent.instructions, request.instructions)
        if request.output_types:
            changes["output_type"] = _schema_of(request.output_types)
        if request.handoffs:
            changes["tool_use_behavior"] = self._stop_if_chosen
        if request.handoffs and request.handoff_required:
            settings = replace(settings, tool_choice="required")
            changes["reset_tool_choice"] = False
        tools = [*map(self._tool, agent.tools), *map(_declared_handoff, request.handoffs)]
        durable = agent.clone(
            model=self._model(agent.model), model_settings=settings, tools=tools, handoffs=[], **changes
        )
        self._copies[id(agent)] = agent, durable  # before its handoffs, which may lead back to it
        durable.handoffs = [self._handoff(target) for target in agent.handoffs]

        async def mcp_tools(run_context: agents.RunContextWrapper[Any]) -> list[Tool]:
            return [self._tool(tool) for tool in await type(durable).get_mcp_tools(durable, run_context)]

        if agent.mcp_servers:
            durable.get_mcp_tools = mcp_tools  # type: ignore[method-assign]
        return durable

    def _model(self, model: str | Model | None) -> str | Model | None:
        return _DurableModel(model, self) if isinstance(model, Model) else model

    def _handoff(self, target: agents.Agent[Any] | agents.Handoff[Any, Any]) -> Any:
        if isinstance(target, agents.Agent):
            return self.copy_of(target)
        if _has_callback(target):
            self._warn(f"the callback of handoff {target.tool_name!r} is not recorded")

        async def invoke(context: agents.RunContextWrapper[Any], arguments: str) -> Any:
            return self.copy_of(await target.on_invoke_handoff(context, arguments))

        durable = copy.copy(target)
        durable.on_invoke_handoff = invoke
        return durable

    def _stop_if_chosen(
        self, context: agents.RunContextWrapper[Any], results: list[agents.FunctionToolResult]
    ) -> agents.ToolsToFinalOutputResult:
        """End the run if a target was chosen; where a choice is required, nothing else ends it."""
        targets = {_HANDOFF + handoff.target: handoff.target for handoff in self._request.handoffs}
        self.chosen = next((targets[one.tool.name] for one in results if one.tool.name in targets), None)
        return agents.ToolsToFinalOutputResult(self.chosen is not None, "")

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self.calls.warn_unrecorded(what)

    def _warn_of_guardrails(self, *lists: Any) -> None:
        for guardrail in [one for some in lists for one in some or ()]:
            self._warn(f"guardrail {guardrail.get_name()!r} is not recorded")

    # Tools.

    def _tool(self, tool: Tool) -> Tool:
        if not isinstance(tool, FunctionTool):
            self._warn(f"tool {tool.name!r}, a {type(tool).__name__}, is not called by recorded calls")
            return tool
        self._warn_of_guardrails(tool.tool_input_guardrails, tool.tool_output_guardrails)
        if tool._is_agent_tool:
            self._warn(
                f"tool {tool.name!r} is recorded as a whole, but not the calls of the agent that it is"
            )

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await self._call_tool(tool, context, arguments)

        durable = copy.copy(tool)
        durable.on_invoke_tool = invoke
        durable.timeout_seconds = None  # the tool itself has it, so that its end is recorded
        return durable

    async def _call_tool(self, tool: FunctionTool, context: ToolContext[Any], text: str) -> Any:
        try:
            arguments = json.loads(text or "{}")
        except ValueError:
            arguments = text  # the library tells the model what is wrong with it

        async def call(given: Json) -> Json:
            given_text = text if given == arguments else json.dumps(given, ensure_ascii=False)
            context.tool_arguments = given_text
            context.run_config = self._config  # its models are asked by an agent that is a tool
            output = await invoke_function_tool(function_tool=tool, context=context, arguments=given_text)
            if tool._is_agent_tool and output is None:
                raise AgentError(f"tool {tool.name!r}: {_OWN_APPROVAL}")
            return _result_as_json(output, tool)

        call_id = self._given_ids.get(context.tool_call_id, context.tool_call_id)
        result = await self.calls.tool(call_id, tool.qualified_name, arguments, call, tell=_tell)
        if tool.output_json_schema is not None and isinstance(result, str) and result[:1] != "{":
            # Words about a call that failed, which the library does not hold against the schema.
            setattr(context, "_function_tool_default_failure_handled", True)  # noqa: B010
        return result

    def rename_calls(self, output: list[Json], conversation: Json) -> list[Json]:
        """Return the items of a response with call ids that are new in the conversation, as the library needs them."""
        items = conversation if isinstance(conversation, list) else []
        known = {item.get("call_id") for item in items if isinstance(item, dict)}
        return [self._renamed(item, known) if item["type"] == "function_call" else item for item in output]

    def _renamed(self, item: Json, known: set[Any]) -> Json:
        given, number = item["call_id"], 1
        call_id = given
        while call_id in known or call_id in self._given_ids:
            number += 1
            call_id = f"{given}_{number}"
        self._given_ids[call_id] = given
        return {**item, "call_id": call_id}


def _with_instructions(own: Any, further: str) -> Any:
    """Return the instructions of an agent, text or a function, with further ones."""
    if not callable(own):
        return f"{own}\n\n{further}" if own else further

    async def instructions(context: agents.RunContextWrapper[Any], agent: agents.Agent[Any]) -> str:
        text = own(context, agent)
        text = await text if inspect.isawaitable(text) else text
        return f"{text}\n\n{further}" if text else further

    return instructions


def _schema_of(forms: tuple[Any, ...]) -> agents.AgentOutputSchema:
    """Return the library's schema of an output that is of one of these types: strict if they allow it."""
    form = functools.reduce(operator.or_, forms)
    try:
        return agents.AgentOutputSchema(form)
    except agents.UserError:
        return agents.AgentOutputSchema(form, strict_json_schema=False)


def _declared_handoff(handoff: Handoff) -> FunctionTool:
    async def choose(context: ToolContext[Any], arguments: str) -> str:
        return "done"

    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    return FunctionTool(_HANDOFF + handoff.target, handoff.description, schema, choose)


def _has_callback(handoff: agents.Handoff[Any, Any]) -> bool:
    """Return True unless a handoff is known to call no code of the user."""
    function = (getattr(handoff.on_invoke_handoff, "args", None) or (None,))[0]
    return (
        not inspect.isfunction(function)
        or inspect.getclosurevars(function).nonlocals.get("on_handoff", 0) is not None
    )


def _result_as_json(output: Any, tool: FunctionTool) -> Json:
    """Return the result of a tool as JSON of which the library makes the same words for the model."""
    if isinstance(output, str):
        return output
    if tool.output_json_schema is not None:
        return (tool._output_type_adapter or TypeAdapter(Any)).dump_python(output, mode="json", by_alias=True)
    if ItemHelpers._convert_tool_output_as_structured(output) is not None:
        return to_jsonable_python(output, exclude_none=True)
    try:
        plain = json.loads(json.dumps(output))
    except (TypeError, ValueError):
        return str(output)
    return plain if str(plain) == str(output) else str(output)


def _tell(note: str, result: Json | None) -> Json:
    if result is None:
        return note
    if ItemHelpers._convert_tool_output_as_structured(result) is not None:
        return [{"type": "text", "text": note}, *(result if isinstance(result, list) else [result])]
    return f"{note}\n{result}"


class _DurableProvider(ModelProvider):
    """Gives recorded models by name."""

    def __init__(self, provider: ModelProvider, run: _DurableRun) -> None:
        self._provider = provider
        self._run = run

    def get_model(self, model_name: str | None) -> Model:
        return _DurableModel(self._provider.get_model(model_name), self._run)


class _DurableModel(Model):
    """A model for one run: each of its responses is recorded."""

    def __init__(self, model: Model, run: _DurableRun) -> None:
        self._model = model
        self._run = run
        client = getattr(model, "_client", None)
        self._name = str(getattr(model, "model", type(model).__name__))
        key = hash(str(getattr(client, "api_key", "")))
        self._limit_key = f"{getattr(client, 'base_url', '')}|{self._name}|{key:x}"

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the recorded response, else that of the model; its text is shown as it comes."""
        asked = _ASKED.bind(self, *args, **kwargs).arguments
        del asked["self"]
        kept = await self._run.calls.model(
            _request_of(self._name, asked),
            lambda: self._ask(asked),
            usage=_usage_of,
            limit_key=self._limit_key,
            model_name=self._name,
        )
        items = self._run.rename_calls(kept["output"], asked["input"])
        await show_unusable(self._run.calls, _wanted_in(kept["output"]), _offered(asked))
        return ModelResponse(
            _OUTPUT.validate_python(items),
            deserialize_usage(kept["usage"]),
            kept["response_id"],
            kept["request_id"],
            kept["raw_usage"],
        )

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise AgentError("a recorded model streams by itself: it is asked by Runner.run, not by run_streamed")

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)

    async def _ask(self, asked: dict[str, Any]) -> Json:
        try:
            response = await (
                self._streamed(asked) if self._run.stream else self._model.get_response(**asked)
            )
        except Exception as error:
            ours = _as_ours(error)
            if ours is error:
                raise
            raise ours from error
        return {
            "output": _OUTPUT.dump_python(
                response.output, mode="json", exclude_unset=True, by_alias=True, warnings=False
            ),
            "usage": serialize_usage(response.usage),
            "response_id": response.response_id,
            "request_id": response.request_id,
            "raw_usage": to_jsonable_python(response.raw_usage),
        }

    async def _streamed(self, asked: dict[str, Any]) -> ModelResponse:
        items: list[Any] = []
        async with contextlib.aclosing(self._model.stream_response(**asked)) as events:  # type: ignore[type-var]
            async for event in events:
                if event.type == "response.output_text.delta":
                    await self._run.calls.delta(event.delta)
                elif event.type == "response.output_item.done":
                    items.append(event.item)
                elif event.type == "response.completed":
                    whole, used = event.response, event.response.usage
                    output = whole.output or items
                    if not output and used is None:
                        break  # the library takes a stream for complete that was cut before it said anything
                    usage = Usage() if used is None else _response_usage_to_usage(used)
                    return ModelResponse(output, usage, whole.id, getattr(whole, "_request_id", None))
                elif event.type in ("response.failed", "response.incomplete", "error"):
                    raise _failure_of(event)
        raise ModelUnavailable(f"the stream of model {self._name!r} ended before the response did")


def _usage_of(response: Json) -> AgentUsage:
    return AgentUsage(response["usage"]["input_tokens"], response["usage"]["output_tokens"], 1)


def _request_of(model: str, asked: dict[str, Any]) -> Json:
    """Return what a model is asked, as JSON that is the same in a replay."""
    schema, settings = asked["output_schema"], asked["model_settings"].to_traceable_dict()
    return {
        "model": model,
        "instructions": asked["system_instructions"],
        "input": to_jsonable_python(asked["input"], serialize_unknown=True),
        "tools": [[tool.name, getattr(tool, "params_json_schema", None)] for tool in asked["tools"]],
        "handoffs": [[handoff.tool_name, handoff.input_json_schema] for handoff in asked["handoffs"]],
        "output": None if schema is None or schema.is_plain_text() else schema.json_schema(),
        "settings": {name: value for name, value in settings.items() if value is not None},
        "prompt": to_jsonable_python(asked["prompt"], serialize_unknown=True),
    }


def _offered(asked: dict[str, Any]) -> set[str]:
    return {tool.name for tool in asked["tools"]} | {handoff.tool_name for handoff in asked["handoffs"]}


def _wanted_in(output: list[Json]) -> list[WantedCall]:
    """Return the calls of functions in a response; the provider itself finds those that have a namespace."""
    return [
        WantedCall(item["call_id"], item["name"], item["arguments"])
        for item in output
        if item["type"] == "function_call" and not item.get("namespace")
    ]


def _failure_of(event: Any) -> Exception:
    """Return the error that the last event of a stream means."""
    error = event if event.type == "error" else event.response.error
    text = f"the response ended with {event.type}: {getattr(error, 'message', None) or event!s:.200}"
    if (code := getattr(error, "code", None)) == "rate_limit_exceeded":
        return RateLimited(text)
    return ModelUnavailable(text) if code == "server_error" else agents.ModelBehaviorError(text)


def _as_ours(error: Exception) -> Exception:
    """Return a rate limit or an outage as the port has them; any other error as it is."""
    status, response = getattr(error, "status_code", None), getattr(error, "response", None)
    headers = getattr(response, "headers", None) or {}
    if status == 429 or (status in (503, 529) and "retry-after" in headers):
        return RateLimited(f"status {status}: {error}", retry_after=pause_of(headers))
    if isinstance(status, int):
        outage = status >= 500 or status in (408, 409)
        return ModelUnavailable(f"status {status}: {error}") if outage else error
    broken = type(error) is openai.APIError or type(error).__module__.partition(".")[0] in _TRANSPORTS
    if broken or isinstance(error, openai.APIConnectionError | ConnectionError):
        return ModelUnavailable(f"the model cannot be reached, or its response broke off: {error!r}")
    return error
