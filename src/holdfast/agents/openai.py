"""The adapter for the ``openai`` SDK: a loop of chat completions and tools, each call of which is durable.

It works with every server that speaks the protocol of chat completions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openai
from openai import AsyncOpenAI

from holdfast.agents.model_schema import FunctionTool, OutputSchema, as_text, tools_of
from holdfast.agents.port import (
    AgentHistory,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Calls,
    Handoff,
    Json,
)
from holdfast.agents.provider_errors import history_for, pause_of
from holdfast.errors import AgentError, GraphError, ModelUnavailable, RateLimited, RecordedError, ToolFailed

_ADAPTER = "openai"
_HANDOFF = "hand_over_to_"
_CORRECTIONS = 2
"""So often a model may give a structured output that does not fit, before the turn fails."""


def wrap(
    client: AsyncOpenAI,
    *,
    model: str,
    name: str = "agent",
    instructions: str | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    stream: bool = True,
    options: Mapping[str, Any] | None = None,
) -> OpenAIAgent:
    """Make an agent of a client of the ``openai`` SDK, a model, instructions and functions as tools.

    ``options`` goes to each chat completion: ``{"temperature": 0}``. The client does not try again by itself: rate
    limits and outages are waited for as ``AgentSettings`` says.

    >>> from openai import AsyncOpenAI
    >>> client = AsyncOpenAI(api_key="secret", base_url="http://127.0.0.1:1/v1")
    >>> wrap(client, model="small", name="triage", instructions="Be brief.").name
    'triage'
    """
    if not isinstance(client, AsyncOpenAI):
        raise GraphError(f"openai.wrap takes an AsyncOpenAI client, not a {type(client).__name__}")
    completions = ChatCompletions(client.with_options(max_retries=0), model, stream, dict(options or {}))
    return OpenAIAgent(name, instructions, completions, tools_of(tools))


class ChatCompletions:
    """Asks one model of one client for chat completions."""

    def __init__(self, client: AsyncOpenAI, model: str, stream: bool, options: dict[str, Any]) -> None:
        self._client = client
        self._stream = stream
        self._options = options
        self.model = model
        self.limit_key = f"{client.base_url}|{model}|{hash(client.api_key):x}"
        """Names what the provider limits."""

    def body_of(self, messages: list[Json], tools: list[Json], further: dict[str, Json]) -> dict[str, Json]:
        """Return the body of a request."""
        body: dict[str, Json] = {"model": self.model, "messages": messages, **self._options, **further}
        if tools:
            body["tools"] = tools
        return body

    async def complete(self, body: dict[str, Json], calls: Calls) -> Json:
        """Return a chat completion as JSON; text is shown as it comes."""
        try:
            if not self._stream:
                completion = await self._client.chat.completions.create(**body)
                return completion.model_dump(mode="json", exclude_none=True)
            return await self._streamed(body, calls)
        except openai.APIStatusError as error:
            raise _as_ours(error) from error
        except openai.APIConnectionError as error:
            raise ModelUnavailable(f"{self._client.base_url} cannot be reached: {error}") from error

    async def _streamed(self, body: dict[str, Json], calls: Calls) -> Json:
        parts = _StreamedMessage()
        stream = await self._client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
        try:
            async for chunk in stream:
                if text := parts.add(chunk.model_dump(mode="json", exclude_none=True)):
                    await calls.delta(text)
        except openai.APIConnectionError as error:
            cause = error if error.__cause__ is None else error.__cause__
            raise ModelUnavailable(f"the stream of {self._client.base_url} broke: {cause}") from error
        except (openai.APIError, RateLimited, ModelUnavailable):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "h11", "json"):
                raise ModelUnavailable(f"the stream of {self._client.base_url} broke: {error!r}") from error
            raise
        if not parts.finished:
            raise ModelUnavailable(f"the stream of {self._client.base_url} ended before the message did")
        return parts.completion()


class _StreamedMessage:
    """Puts the chunks of a stream together."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._rest: dict[str, Json] = {}
        self.finished = False
        """True if the model said that it is done."""

    def add(self, chunk: Json) -> str:
        """Add a chunk; return the text in it."""
        for name in ("id", "model", "usage"):
            if chunk.get(name):
                self._rest[name] = chunk[name]
        text = ""
        for choice in chunk.get("choices", ())[:1]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            self._content.append(text)
            self._refusal.append(delta.get("refusal") or "")
            for part in delta.get("tool_calls") or ():
                self._add_call(part)
            if choice.get("finish_reason"):
                self.finished = True
                self._rest["finish_reason"] = choice["finish_reason"]
        return text

    def _add_call(self, part: Json) -> None:
        call = self._calls.setdefault(
            part.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = part.get("id") or call["id"]
        function = part.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def completion(self) -> Json:
        """Return the whole as a chat completion."""
        message: dict[str, Json] = {"role": "assistant", "content": "".join(self._content)}
        if refusal := "".join(self._refusal):
            message["refusal"] = refusal
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        reason = self._rest.pop("finish_reason", "stop")
        return {**self._rest, "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


class OpenAIAgent:
    """A model with instructions and tools, behind the protocol of chat completions."""

    def __init__(
        self,
        name: str,
        instructions: str | None,
        completions: ChatCompletions,
        tools: dict[str, FunctionTool],
    ) -> None:
        self.name = name
        self._instructions = instructions
        self._completions = completions
        self._tools = tools

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Ask the model, call the tools that it wants, and ask again, until it replies."""
        schema = OutputSchema(request.output_types) if request.output_types else None
        further = {} if schema is None else {"response_format": schema.response_format()}
        tools = [_declared(tool) for tool in self._tools.values()]
        if request.handoffs:
            tools = [*tools, *map(_declared_handoff, request.handoffs)]
            if request.handoff_required:
                further["tool_choice"] = "required"
        messages = self._conversation(request)
        usage, wrong = AgentUsage(), 0
        while True:
            body = self._completions.body_of(self._with_instructions(messages, request), tools, further)
            response = await calls.model(
                body,
                lambda body=body: self._completions.complete(body, calls),  # type: ignore[misc]
                usage=_usage_of,
                limit_key=self._completions.limit_key,
                model_name=self._completions.model,
            )
            usage += _usage_of(response)
            message = self._message_of(response)
            messages.append(message)
            wanted = message.get("tool_calls") or []
            if handoff := _handoff_in(wanted, request.handoffs):
                messages += [_result(call["id"], "done") for call in wanted]
                return AgentReply(message.get("content") or "", None, self._history(messages), usage, handoff)
            if wanted:
                messages += await asyncio.gather(*(self._call_tool(call, calls) for call in wanted))
                continue
            text = message.get("content") or ""
            if schema is None:
                return AgentReply(text, None, self._history(messages), usage)
            value, complaint = schema.read(text)
            if complaint is None:
                return AgentReply(text, value, self._history(messages), usage)
            wrong += 1
            if wrong > _CORRECTIONS:
                raise AgentError(f"agent {self.name!r} gave no output that fits: {complaint}")
            messages.append({"role": "user", "content": f"That does not fit: {complaint}. Reply again."})

    def _conversation(self, request: AgentRequest) -> list[Json]:
        earlier = history_for(_ADAPTER, request.history, self.name)
        said = [{"role": message.role, "content": message.text} for message in request.messages]
        earlier = [*said, *(earlier or ())]
        return [*earlier, {"role": "user", "content": request.prompt}]

    def _with_instructions(self, messages: list[Json], request: AgentRequest) -> list[Json]:
        """Put the instructions before the conversation; they are no part of it, so that they can be changed."""
        words = "\n\n".join(text for text in (self._instructions, request.instructions) if text)
        return [{"role": "system", "content": words}, *messages] if words else list(messages)

    def _message_of(self, response: Json) -> Json:
        choices = response.get("choices") or []
        if not choices:
            raise AgentError(
                f"agent {self.name!r}: the model's response has no choices: {as_text(response)[:200]}"
            )
        message = choices[0]["message"]
        if refusal := message.get("refusal"):
            raise AgentError(f"agent {self.name!r}: the model refused: {refusal}")
        if choices[0].get("finish_reason") == "length" and not message.get("tool_calls"):
            raise AgentError(
                f"agent {self.name!r}: the reply was cut at its longest; allow more with "
                f"options={{'max_completion_tokens': ...}}"
            )
        return {key: value for key, value in message.items() if value is not None}

    def _history(self, messages: list[Json]) -> AgentHistory:
        return AgentHistory(_ADAPTER, openai.__version__, messages)

    async def _call_tool(self, call: Json, calls: Calls) -> Json:
        """Return the message with a tool's result; what is wrong with the call or fails in the tool is told there."""
        name, given = call["function"]["name"], call["function"]["arguments"]
        try:
            tool, arguments = self._wanted(name, given)
        except ToolFailed as error:
            await calls.refuse(call["id"], name, str(error))
            return _result(call["id"], f"Error: {error}")
        try:
            return _result(
                call["id"], await calls.tool(call["id"], name, arguments, tool.call, errors=(ToolFailed,))
            )
        except (ToolFailed, RecordedError) as error:
            return _result(call["id"], f"Error: {error}")

    def _wanted(self, name: str, given: str) -> tuple[FunctionTool, Json]:
        if name not in self._tools:
            raise ToolFailed(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}")
        try:
            return self._tools[name], json.loads(given or "{}")
        except json.JSONDecodeError as error:
            raise ToolFailed(f"the arguments are no JSON: {error}") from error


def _declared(tool: FunctionTool) -> Json:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema()}
    return {"type": "function", "function": function}


def _declared_handoff(handoff: Handoff) -> Json:
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    function = {
        "name": _HANDOFF + handoff.target,
        "description": handoff.description,
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _handoff_in(wanted: Sequence[Json], handoffs: Sequence[Handoff]) -> str | None:
    targets = {_HANDOFF + handoff.target: handoff.target for handoff in handoffs}
    return next(
        (targets[call["function"]["name"]] for call in wanted if call["function"]["name"] in targets), None
    )


def _result(call_id: str, result: Json) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": as_text(result)}


def _usage_of(response: Json) -> AgentUsage:
    usage = response.get("usage") or {}
    return AgentUsage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), 1)


def _as_ours(error: openai.APIStatusError) -> Exception:
    """Return a rate limit or an outage as the port has them; any other error as it is."""
    status = error.status_code
    if status == 429 or (status in (503, 529) and "retry-after" in error.response.headers):
        return RateLimited(f"status {status}: {error.message}", retry_after=pause_of(error.response.headers))
    if status >= 500 or status in (408, 409):
        return ModelUnavailable(f"status {status}: {error.message}")
    return error
