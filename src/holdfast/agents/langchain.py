"""The adapter for agents of LangChain's ``create_agent``: a middleware next to the model and the tools does the calls.

The middleware finds the run that it works for by a context variable, so one agent may serve many runs at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, is_dataclass, make_dataclass
from functools import partial
from importlib.metadata import version
from types import UnionType
from typing import Any, Union, get_args, get_origin, is_typeddict

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.structured_output import ToolStrategy
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
)
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import ToolException
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, TypeAdapter

from holdfast.agents.langchain_messages import add_text, kept_message, result_from_json, result_to_json
from holdfast.agents.langchain_model import RUN, LangChainRun, ModelWatch, at_work, record_model, run_in_tool
from holdfast.agents.port import AgentHistory, AgentReply, AgentRequest, Calls, Handoff, Json
from holdfast.agents.provider_errors import history_for
from holdfast.agents.workflow_agent import WorkflowAgent
from holdfast.errors import (
    AgentError,
    GraphError,
    HistoryUnreadable,
    RecordedError,
)
from holdfast.graph.typing.types import TypeForm

_ADAPTER = "langchain"
_REFUSED = ("checkpointer", "interrupt_before", "interrupt_after")
_NO_CHECKPOINTER = (
    "the workflow keeps the conversation and asks people; leave it out, and use AgentSettings(remembers=True), "
    "ToolApproval or ask_person"
)
_ROLES: dict[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def wrap(
    model: str | BaseChatModel | CompiledStateGraph[Any, Any, Any, Any],
    tools: Sequence[Any] | None = None,
    *,
    name: str | None = None,
    stream: bool = True,
    context: Any = None,
    **options: Any,
) -> LangChainAgent:
    """Make an agent of what ``create_agent`` takes: a model, tools, ``system_prompt``, ``middleware`` and so on.

    An agent that ``create_agent`` returned is taken, too, if ``DurableCalls()`` is the last of its middleware.
    ``context`` goes to tools and middleware, as in ``agent.ainvoke(context=...)``. ``stream=False`` is for models that
    cannot stream.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> wrap(FakeListChatModel(responses=["hello"]), system_prompt="Be brief.", name="triage").name
    'triage'
    >>> made = create_agent(FakeListChatModel(responses=["hello"]), middleware=[DurableCalls()], name="triage")
    >>> wrap(made).name
    'triage'
    """
    if isinstance(model, CompiledStateGraph):
        if tools is not None or options:
            raise GraphError(
                "langchain.wrap takes an agent of create_agent, or the arguments of create_agent; not both"
            )
        _check_compiled(model)
        known = "agent" if model.name == "LangGraph" else model.name
        return LangChainAgent(name or known, model, None, stream, context)
    if isinstance(model, str):
        model = init_chat_model(model)
    if not isinstance(model, BaseChatModel):
        raise GraphError(
            f"langchain.wrap takes the arguments of create_agent, or an agent that it returned, not a "
            f"{type(model).__name__}"
        )
    if refused := [option for option in _REFUSED if options.get(option)]:
        raise GraphError(f"langchain.wrap({refused[0]}=...): {_NO_CHECKPOINTER}")
    middleware = list(options.pop("middleware", ()))
    if not any(isinstance(each, DurableCalls) for each in middleware):
        middleware.append(DurableCalls())
    arguments = {"model": model, "tools": tools, "name": name, **options, "middleware": middleware}
    return LangChainAgent(name or "agent", create_agent(**arguments), arguments, stream, context)


def to_runnable(agent: WorkflowAgent) -> WorkflowRunnable:
    """Make a runnable of LangChain of a workflow; ``configurable.thread_id`` is its session, as with LangGraph.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import as_agent, function, sequential
    >>> team = sequential(function.wrap(lambda prompt: prompt.upper(), name="shout"))
    >>> runnable = to_runnable(as_agent(team, "team", storage=InMemoryCheckpointStorage()))
    >>> asyncio.run(runnable.ainvoke("kelp", {"configurable": {"thread_id": "t1"}}))
    'KELP'
    """

    return WorkflowRunnable(agent)


class WorkflowRunnable(Runnable[str, str]):
    """A runnable of LangChain that is a workflow of Holdfast; ``to_runnable`` makes it.

    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import as_agent, function, sequential
    >>> team = sequential(function.wrap(lambda prompt: prompt.upper(), name="shout"))
    >>> WorkflowRunnable(as_agent(team, "team", storage=InMemoryCheckpointStorage())).invoke("kelp")
    'KELP'
    """

    def __init__(self, agent: WorkflowAgent) -> None:
        self.name = agent.name
        self._agent = agent

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Say something in a session, in a program without an event loop, and return the reply."""
        return self._call_with_config(lambda message: asyncio.run(self._ask(message, config)), input, config)

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Say something in a session, and return the reply."""

        async def ask(message: str) -> str:
            return await self._ask(message, config)

        return await self._acall_with_config(ask, input, config)

    async def astream(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[str]:
        """Say something in a session, and give the text of the reply as it comes."""
        async for part in self._agent.stream(input, _thread_of(config)):
            yield part

    async def _ask(self, message: str, config: RunnableConfig | None) -> str:
        return (await self._agent.ask(message, _thread_of(config))).text


def _thread_of(config: RunnableConfig | None) -> str | None:
    thread = (config or {}).get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def _check_compiled(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    if f"{DurableCalls.__name__}.after_model" not in graph.nodes:
        raise GraphError(
            f"langchain.wrap cannot catch the calls of graph {graph.name!r}, to which nothing can be added now: "
            f"make it with create_agent(..., middleware=[..., holdfast.agents.langchain.DurableCalls()]), or give "
            f"langchain.wrap the arguments of create_agent"
        )
    if graph.checkpointer or graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise GraphError(f"agent {graph.name!r} has a checkpointer or interrupts: {_NO_CHECKPOINTER}")


@dataclass(frozen=True)
class LangChainAgent:
    """An agent of LangChain; ``arguments`` made its graph, if they are known."""

    name: str
    graph: CompiledStateGraph[Any, Any, Any, Any]
    arguments: dict[str, Any] | None
    stream: bool
    context: Any

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Run the graph once, from the conversation so far to its end."""
        graph, wrapped = self._graph_for(request)
        run = LangChainRun(calls, request, self.stream)
        asked = {"messages": [*self._earlier(request), HumanMessage(request.prompt)]}
        with at_work(run):
            state = await graph.ainvoke(asked, {"callbacks": [ModelWatch()]}, context=self.context)
        if state.get("__interrupt__"):
            raise AgentError(
                f"agent {self.name!r} was interrupted by LangGraph's interrupt(): ask with holdfast.agents.ask_person, "
                f"or with ToolApproval in place of HumanInTheLoopMiddleware"
            )
        value = state.get("structured_response")
        value = value.result if wrapped and value is not None else value
        text = str(state["messages"][-1].text) if value is None else _ANYTHING.dump_json(value).decode()
        kept = [kept_message(message) for message in state["messages"]]
        history = AgentHistory(_ADAPTER, version("langchain"), kept)
        return AgentReply("" if run.handoff else text, value, history, run.usage, run.handoff)

    def _graph_for(self, request: AgentRequest) -> tuple[CompiledStateGraph[Any, Any, Any, Any], bool]:
        """Return the graph that gives the output types, and True if they are wrapped in a field ``result``."""
        arguments = self.arguments
        own = arguments is None or arguments.get("response_format") is not None
        if own or request.handoffs or not request.output_types:
            return self.graph, False
        response_format, wrapped = _response_format(request.output_types)
        return create_agent(**{**(arguments or {}), "response_format": response_format}), wrapped

    def _earlier(self, request: AgentRequest) -> list[BaseMessage]:
        kept = history_for(_ADAPTER, request.history, self.name)
        said = [_ROLES[message.role](message.text) for message in request.messages]
        if kept is None:
            return said
        try:
            return [*said, *messages_from_dict(kept)]
        except (ValueError, TypeError, KeyError) as error:
            assert request.history is not None
            raise HistoryUnreadable(
                f"agent {self.name!r}: langchain {version('langchain')} cannot read a conversation that "
                f"{request.history.version} wrote ({error}); install that version again, or begin a new conversation "
                f"with AgentRequest(prompt, messages=...)"
            ) from error


def _response_format(forms: Sequence[TypeForm]) -> tuple[Any, bool]:
    members: list[Any] = []
    for form in forms:
        kind: Any = get_origin(form)
        members += get_args(form) if kind in (Union, UnionType) else [form]
    whole: Any = Union[tuple(members)]  # noqa: UP007
    names = {one.__name__ for one in members if _is_object(one)}
    if len(names) == len(members):
        return (whole if len(members) == 1 else ToolStrategy(whole)), False
    output = make_dataclass("Output", [("result", whole)])
    output.__doc__ = "The output."
    return output, True


def _is_object(form: Any) -> bool:
    """Return True if LangChain takes a type as it is."""
    return (
        is_dataclass(form) or is_typeddict(form) or (isinstance(form, type) and issubclass(form, BaseModel))
    )


class DurableCalls(AgentMiddleware[Any, Any]):
    """Does the model calls and tool calls of a LangChain agent through the workflow in which it runs.

    It must be the last of the agent's middleware, next to model and tools. Outside of workflows it does nothing.
    ``errors`` are exceptions of tools, made of a text, that other middleware catches; common ones are known.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> agent = create_agent(FakeListChatModel(responses=["hello"]), middleware=[DurableCalls()])
    >>> agent.invoke({"messages": ["hi"]})["messages"][-1].text
    'hello'
    """

    def __init__(self, errors: tuple[type[Exception], ...] = ()) -> None:
        super().__init__()
        self._errors = errors

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Ask the model, outside of workflows."""
        return handler(request)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Call the tool, outside of workflows."""
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Let the model be asked through ``Calls``; the library reads its response as ever."""
        run = RUN.get()
        if run is None:
            return await handler(request)
        for tool in request.tools:
            if isinstance(tool, dict) and tool.get("type", "function") not in ("function", "custom"):
                run.warn(f"tool {tool['type']!r} is called by the provider, inside of a model call")
        changes: dict[str, Any] = {"model": record_model(request.model, run)}
        if run.request.instructions:
            changes["system_message"] = _joined(request.system_message, run.request.instructions)
        if run.request.handoffs:
            choices = [_handoff_tool(handoff) for handoff in run.request.handoffs]
            changes["tools"] = [*request.tools, *choices]
        if run.request.handoffs and run.request.handoff_required:
            changes |= {"tool_choice": "any", "response_format": None}
        elif run.request.output_types and request.response_format is None:
            raise AgentError(
                "the agent has no response_format for its output type: give create_agent one, or give langchain.wrap "
                "the arguments of create_agent in place of the agent"
            )
        return await handler(request.override(**changes))

    @hook_config(can_jump_to=["end"])
    def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """End the run if the model chose to hand over."""
        run = RUN.get()
        if run is None:
            return None
        targets = {_handoff_name(handoff): handoff.target for handoff in run.request.handoffs}
        wanted = getattr(state["messages"][-1], "tool_calls", [])
        run.handoff = next((targets[call["name"]] for call in wanted if call["name"] in targets), None)
        if run.handoff is None:
            return None
        text = f"The task is handed over to {run.handoff}."
        told = [ToolMessage(text, name=call["name"], tool_call_id=call["id"]) for call in wanted]
        return {"jump_to": "end", "messages": told}

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call a tool through ``Calls``."""
        run, wanted = RUN.get(), request.tool_call
        if run is None:
            return await handler(request)

        async def call(arguments: Json) -> Json:
            with at_work(run_in_tool(run), in_call=True):
                result = await handler(request.override(tool_call={**wanted, "args": arguments}))
            return result_to_json(result, wanted["name"], run.warn)

        call_id, name, tell = (
            wanted["id"] or wanted["name"],
            wanted["name"],
            partial(add_text, run.warn, wanted),
        )
        errors = (*self._errors, *_PLAIN_ERRORS)
        try:
            result = result_from_json(
                await run.calls.tool(call_id, name, wanted["args"], call, tell=tell, errors=errors)
            )
        except RecordedError as error:
            # Under the name that it had, which middleware may tell the model.
            named = type(error.error_name, (RecordedError,), {})
            raise named(str(error), error_name=error.error_name) from None
        if isinstance(result, ToolMessage) and result.status == "error":
            # LangGraph's own words: there is no such tool, or its arguments do not fit.
            await run.calls.refuse(call_id, name, result.text)
        return result


def _joined(system: SystemMessage | None, instructions: str) -> SystemMessage:
    if system is None:
        return SystemMessage(instructions)
    if isinstance(system.content, str):
        return SystemMessage(f"{system.content}\n\n{instructions}")
    return SystemMessage([*system.content, {"type": "text", "text": instructions}])


def _handoff_name(handoff: Handoff) -> str:
    return "hand_over_to_" + re.sub(r"[^A-Za-z0-9_-]", "_", handoff.target)


def _handoff_tool(handoff: Handoff) -> dict[str, Any]:
    function = {
        "name": _handoff_name(handoff),
        "description": handoff.description or f"Hand over to {handoff.target}.",
        "parameters": {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


_PLAIN_ERRORS = (
    *(ToolException, ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError, IndexError),
    *(OSError, ConnectionError, TimeoutError, PermissionError, FileNotFoundError, ZeroDivisionError),
)
"""Errors of tools that a middleware may look for: made again of their text when they are replayed."""
