"""Helpers that adapters share: what is wrong with the responses of providers, and with histories of other libraries."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from holdfast.agents.port import AgentHistory, Calls, Json
from holdfast.errors import HistoryUnreadable


def pause_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait, by its ``Retry-After``; None if it does not say.

    >>> pause_of({"retry-after": "20"}), pause_of({"retry-after-ms": "1500"}), pause_of({})
    (20.0, 1.5, None)
    """
    if milliseconds := headers.get("retry-after-ms"):
        try:
            return max(0.0, float(milliseconds) / 1000)
        except ValueError:
            pass
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at - datetime.datetime.now(datetime.UTC)).total_seconds())


class WantedCall(NamedTuple):
    """A tool call in the response of a model; arguments that are text are JSON, or should be.

    >>> WantedCall("c1", "search", '{"text": "timeout"}').name
    'search'
    """

    call_id: str
    name: str
    arguments: Json


async def show_unusable(calls: Calls, wanted: Iterable[WantedCall], offered: Collection[str]) -> None:
    """Show the calls of a response for which there is no tool, or whose arguments are no JSON.

    Their library tells the model, and calls nothing that could be recorded.
    """
    for call in wanted:
        if call.name not in offered:
            names = ", ".join(sorted(offered)) or "none"
            await calls.refuse(call.call_id, call.name, f"there is no tool {call.name!r}; there are: {names}")
        elif isinstance(call.arguments, str) and (why := _find_no_json(call.arguments)):
            await calls.refuse(call.call_id, call.name, f"the arguments are no JSON: {why}")


def _find_no_json(text: str) -> str:
    try:
        json.loads(text or "{}")
    except ValueError as error:
        return str(error)
    return ""


def history_for(adapter: str, history: AgentHistory | None, agent: str) -> list[Json] | None:
    """Return the messages of a history; raise ``HistoryUnreadable`` if another library wrote them.

    >>> history_for("openai", None, "triage") is None
    True
    """
    if history is None:
        return None
    if history.adapter != adapter:
        raise HistoryUnreadable(
            f"agent {agent!r} is one of {adapter}, but its history was written by {history.adapter} "
            f"{history.version}: a conversation stays with its library. Give the agent that began it, or begin a new "
            f"conversation with the texts, as AgentRequest(prompt, messages=...)"
        )
    return history.messages
