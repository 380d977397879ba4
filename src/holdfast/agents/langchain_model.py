"""Calls of LangChain's models through ``Calls``: the run that makes them, the model that stands in, and its errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, message_chunk_to_message, messages_from_dict
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import SecretStr

from holdfast.agents.calls import current_calls
from holdfast.agents.langchain_messages import call_ids_of, message_to_json, usage_of
from holdfast.agents.port import AgentRequest, AgentUsage, Calls, Json
from holdfast.agents.provider_errors import pause_of
from holdfast.errors import AgentError, ModelUnavailable, RateLimited


@dataclass
class LangChainRun:
    """A run of an agent, as the middleware finds it."""

    calls: Calls
    request: AgentRequest
    stream: bool
    usage: AgentUsage = field(default_factory=AgentUsage)
    handoff: str | None = None
    warned: set[str] = field(default_factory=set)

    def warn(self, what: str) -> None:
        """Warn once of something that is not recorded."""
        if what not in self.warned:
            self.warned.add(what)
            self.calls.warn_unrecorded(what)


RUN: ContextVar[LangChainRun | None] = ContextVar("holdfast_langchain_run", default=None)
"""The run that works now."""
_IN_CALL: ContextVar[bool] = ContextVar("holdfast_langchain_in_call", default=False)
"""True inside of a call that is recorded as a whole."""


@contextlib.contextmanager
def at_work(run: LangChainRun | None, in_call: bool = False) -> Iterator[None]:
    """Let ``RUN`` be this run for a while."""
    run_token, call_token = RUN.set(run), _IN_CALL.set(in_call)
    try:
        yield
    finally:
        RUN.reset(run_token)
        _IN_CALL.reset(call_token)


def run_in_tool(run: LangChainRun) -> LangChainRun | None:
    """Return the run of an agent that a tool has inside; its calls are recorded as parts of the tool call."""
    try:
        return LangChainRun(current_calls(), AgentRequest(""), run.stream)
    except AgentError:
        return None  # calls of another kind, which record the tool as a whole


class ModelWatch(AsyncCallbackHandler):
    """Warns of models that are asked past the middleware."""

    async def on_chat_model_start(self, serialized: Any, messages: Any, **more: Any) -> None:
        run = RUN.get()
        if run is not None and not _IN_CALL.get():
            node = (more.get("metadata") or {}).get("langgraph_node")
            run.warn(f"a middleware asks a model by itself, in node {node!r}")


def record_model(model: BaseChatModel, run: LangChainRun) -> RecordedChatModel:
    """Return a stand-in with the name and profile by which LangChain chooses a way to structured output."""
    names = (getattr(model, key, None) for key in ("model_name", "model", "model_id"))
    name = str(next((name for name in names if name), ""))
    return RecordedChatModel(
        inner=model, agent_run=run, model_name=name, profile=getattr(model, "profile", None)
    )


class RecordedChatModel(BaseChatModel):
    """Stands in for a chat model: LangChain binds tools to it, and asks it, through ``Calls``."""

    inner: Any
    agent_run: Any
    model_name: str
    bound: Any = None
    options: Any = None

    @property
    def _llm_type(self) -> str:
        return "holdfast"

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("agents in workflows ask models by ainvoke")

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Bind tools to the model itself."""
        declared = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
        bound = self.inner.bind_tools(tools, **kwargs)
        return self.model_copy(update={"bound": bound, "options": {"tools": declared, **kwargs}})

    def bind(self, **kwargs: Any) -> Any:
        """Bind settings to the model itself."""
        return self.model_copy(update={"bound": self.inner.bind(**kwargs), "options": kwargs})

    async def ainvoke(self, input: Any, *args: Any, **kwargs: Any) -> AIMessage:
        """Return the response: the recorded one, else that of the model."""
        # Without ids, which LangGraph makes anew in each run.
        shown = [message_to_json(message.model_copy(update={"id": None})) for message in input]
        secrets = [found for found in vars(self.inner).values() if isinstance(found, SecretStr)]
        response = await self.agent_run.calls.model(
            {"messages": shown, "options": self.options},
            partial(self._ask, input),
            usage=usage_of,
            limit_key=f"{type(self.inner).__name__}|{self.model_name}|{hash(tuple(secrets)):x}",
            model_name=self.model_name,
            call_ids=call_ids_of,
        )
        self.agent_run.usage += usage_of(response)
        (message,) = messages_from_dict([response])
        assert isinstance(message, AIMessage)
        for call in message.invalid_tool_calls:
            name = call["name"] or ""
            why = f"the arguments are no JSON: {call['args']!r:.200}"
            await self.agent_run.calls.refuse(call["id"] or name, name, why)
        return message

    async def _ask(self, messages: list[BaseMessage]) -> Json:
        with at_work(self.agent_run, in_call=True):
            try:
                if not self.agent_run.stream:
                    return message_to_json(await self.bound.ainvoke(messages))
                whole: Any = None
                async for part in self.bound.astream(messages):
                    whole = part if whole is None else whole + part
                    if text := str(part.text):
                        await self.agent_run.calls.delta(text)
                return message_to_json(message_chunk_to_message(whole))
            except Exception as error:
                if (ours := _as_ours(error, self.model_name)) is None:
                    raise
                raise ours from error


# Exceptions of LangChain, of the SDKs of providers, and of HTTP clients.
_LIMITS = {"ModelRateLimitError", "RateLimitError"}
_OUTAGES = {"ModelAPIError", "ModelConnectionError", "ModelTimeoutError"} | {
    "APIConnectionError",
    "TransportError",
}


def _as_ours(error: Exception, model: str) -> Exception | None:
    """Return a rate limit or an outage as the port has them; None for any other error."""
    names = {base.__name__ for base in type(error).__mro__}
    response = getattr(error, "response", None)
    found = [
        getattr(error, "status_code", None),
        getattr(response, "status_code", None),
        getattr(error, "code", None),
    ]
    status = next((one for one in found if isinstance(one, int)), 0)
    headers = {
        key.lower(): str(value) for key, value in dict(getattr(response, "headers", None) or {}).items()
    }
    text = f"model {model!r}: {type(error).__name__}: {error}"
    if names & _LIMITS or status == 429 or (status in (503, 529) and "retry-after" in headers):
        return RateLimited(text, retry_after=pause_of(headers))
    empty = isinstance(error, ValueError) and str(error) == "No generation chunks were returned"
    unreachable = isinstance(error, ConnectionError | TimeoutError) or empty or bool(names & _OUTAGES)
    return ModelUnavailable(text) if unreachable or status >= 500 or status in (408, 409) else None
