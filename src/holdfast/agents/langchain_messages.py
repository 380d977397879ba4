"""Messages and tool results of LangChain as JSON and back, and what the adapter reads of model responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, messages_from_dict
from langgraph.types import Command, Send

from holdfast.agents.port import AgentUsage, Json
from holdfast.errors import AgentError

_KIND = "langchain kind"

Warn: TypeAlias = Callable[[str], None]
"""Warns once of something that cannot be recorded as it is."""


def message_to_json(message: BaseMessage, unknown: Callable[[Any], Any] = str) -> dict[str, Any]:
    """Return a message in LangChain's own JSON; ``unknown`` is given values that are no JSON."""
    return {"type": message.type, "data": message.model_dump(mode="json", fallback=unknown)}


def kept_message(message: BaseMessage) -> dict[str, Any]:
    """Return a message for the history, without an id that LangGraph made; those of models are the providers'."""
    return message_to_json(
        message if isinstance(message, AIMessage) else message.model_copy(update={"id": None})
    )


def result_to_json(result: Any, name: str, warn: Warn) -> Json:
    """Return the result of a tool as JSON: a message, commands to the graph, or a list of these."""

    def as_text(value: Any) -> str:
        kind = type(value).__name__
        warn(f"tool {name!r} gives a value of {kind} that is no JSON, and is recorded as text")
        return str(value)

    def pack(value: Any) -> Json:
        if isinstance(value, BaseMessage):
            return {_KIND: "message", "message": message_to_json(value, as_text)}
        if isinstance(value, Command):
            parts = ("graph", "update", "resume", "goto")
            return {_KIND: "command", **{part: pack(getattr(value, part)) for part in parts}}
        if isinstance(value, Send):
            return {_KIND: "send", "node": value.node, "arg": pack(value.arg)}
        if isinstance(value, tuple):
            return {_KIND: "tuple", "items": [pack(item) for item in value]}
        if isinstance(value, list):
            return [pack(item) for item in value]
        if isinstance(value, dict) and _KIND not in value and all(isinstance(key, str) for key in value):
            return {key: pack(item) for key, item in value.items()}
        if value is None or isinstance(value, str | int | float):
            return value
        raise AgentError(
            f"tool {name!r} gives a Command with a {type(value).__name__}, which cannot be recorded: put JSON, "
            f"messages, lists, tuples or dicts with text keys into it"
        )

    return pack(result)


def result_from_json(packed: Json) -> Any:
    """Return the result of a tool that ``result_to_json`` wrote; nothing in it can name a class to be imported."""
    if isinstance(packed, list):
        return [result_from_json(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    kind = packed.get(_KIND)
    if kind == "message":
        return messages_from_dict([packed["message"]])[0]
    values = {name: result_from_json(item) for name, item in packed.items() if name != _KIND}
    if kind == "command":
        return Command(**values)
    if kind == "send":
        return Send(**values)
    return tuple(values["items"]) if kind == "tuple" else values


def add_text(warn: Warn, wanted: Any, text: str, result: Json | None) -> Json:
    """Put a text for the model before the result of a tool; without a result the text is the message."""
    if result is None:
        return result_to_json(
            ToolMessage(text, name=wanted["name"], tool_call_id=wanted["id"]), wanted["name"], warn
        )
    found = result_from_json(result)
    for part in found if isinstance(found, list) else [found]:
        update = part.update if isinstance(part, Command) and isinstance(part.update, dict) else {}
        for message in [part, *update.get("messages", [])]:
            if isinstance(message, ToolMessage) and isinstance(message.content, str):
                message.content = f"{text}\n{message.content}"
            elif isinstance(message, ToolMessage):
                message.content = [{"type": "text", "text": text}, *message.content]
    return result_to_json(found, wanted["name"], warn)


def call_ids_of(response: Json) -> list[str]:
    """Return the ids of the tool calls in a response, or their names where they have none."""
    return [call["id"] or call["name"] for call in response["data"].get("tool_calls", ())]


def usage_of(response: Json) -> AgentUsage:
    """Return the tokens of a response, and one call."""
    used = response["data"].get("usage_metadata") or {}
    return AgentUsage(used.get("input_tokens", 0), used.get("output_tokens", 0), 1)
