"""The adapter for plain functions: each call of the function is one model call.

>>> from holdfast.agents import function
>>> function.wrap(lambda prompt: prompt.upper(), name="shout").name
'shout'
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, get_type_hints

from holdfast.agents.port import AgentHistory, AgentReply, AgentRequest, AgentUsage, Calls, Json
from holdfast.agents.provider_errors import history_for
from holdfast.errors import GraphError

_ADAPTER, _VERSION = "function", "1"


def wrap(function: Callable[..., Any], name: str | None = None) -> FunctionAgent:
    """Make an agent of a function that takes the prompt, or an ``AgentRequest`` if it is annotated so.

    It may be sync (it runs in a thread), async, a generator or an async generator: the text that those yield is shown
    as it comes, and joined. What it returns is the reply: text, or a value.

    >>> def shout(prompt: str) -> str:
    ...     return prompt.upper()
    >>> wrap(shout).name
    'shout'
    """
    if not callable(function):
        raise GraphError(f"function.wrap takes a function, not {function!r}")
    found = name if name is not None else getattr(function, "__name__", "")
    if not found or (found == "<lambda>" and name is None):
        raise GraphError(f"give the agent a name: function.wrap({function!r}, name='...')")
    return FunctionAgent(function, found)


class FunctionAgent:
    """An agent that is a function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._function = function
        self._takes_request = _takes_request(function)

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        """Call the function once."""
        earlier = history_for(_ADAPTER, request.history, self.name)
        said = [{"role": message.role, "content": message.text} for message in request.messages]
        earlier = [*said, *(earlier or ())]
        messages = [*earlier, {"role": "user", "content": request.prompt}]
        argument = request if self._takes_request else request.prompt
        asked: Json = {"messages": messages, "instructions": request.instructions}
        result = await calls.model(asked, lambda: self._call(argument, calls))
        if isinstance(result, AgentReply):
            return result
        text = result if isinstance(result, str) else str(result)
        history = AgentHistory(_ADAPTER, _VERSION, [*messages, {"role": "assistant", "content": text}])
        return AgentReply(text, None if isinstance(result, str) else result, history, AgentUsage(calls=1))

    async def _call(self, argument: Any, calls: Calls) -> Any:
        function = self._function
        if inspect.isasyncgenfunction(function):
            return await _joined(function(argument), calls)
        if inspect.iscoroutinefunction(function):
            return await function(argument)
        if inspect.isgeneratorfunction(function):
            return await _joined(_in_thread(function(argument)), calls)
        result = await asyncio.to_thread(function, argument)
        if inspect.isawaitable(result):  # a callable object, or a function that returns a coroutine
            return await result
        return result


async def _joined(parts: AsyncIterator[str], calls: Calls) -> str:
    text = []
    async for part in parts:
        text.append(part)
        await calls.delta(part)
    return "".join(text)


async def _in_thread(parts: Iterator[str]) -> AsyncIterator[str]:
    end = object()
    while (part := await asyncio.to_thread(next, parts, end)) is not end:
        yield part  # type: ignore[misc]


def _takes_request(function: Callable[..., Any]) -> bool:
    """Return True if the first parameter of a function is annotated as an ``AgentRequest``."""
    try:
        parameters = list(inspect.signature(function).parameters)
        hints = get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (NameError, TypeError, ValueError):
        return False
    first = next((one for one in parameters if one in hints), None)
    return first is not None and hints[first] is AgentRequest
