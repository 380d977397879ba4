"""Helpers that adapters share: pauses that providers ask for, and histories that may be another library's."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from holdfast.agents.port import AgentHistory, Json
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
