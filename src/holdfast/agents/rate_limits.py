"""Rate limits of providers: how long calls wait, and for which of them, in all runs of the process.

``provider_errors`` reads from a refusal how long a provider wants to be left alone; ``activation`` lets a call wait.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from holdfast.checkpoint.events.events import WorkflowEvent

_FIRST_PAUSE, _LONGEST_GUESS = 0.5, 60.0


@dataclass
class RateLimitEvent(WorkflowEvent):
    """A provider refused a model call for some time: calls with this key wait, in all runs of the process.

    >>> RateLimitEvent("triage", "openai/gpt", 20.0).seconds
    20.0
    """

    executor_id: str = ""
    limit_key: str = ""
    seconds: float = 0.0


def guess_pause(attempt: int) -> float:
    """Return the seconds before a call is tried again where the provider does not say, doubled with each attempt.

    >>> guess_pause(1), guess_pause(2), guess_pause(20)
    (0.5, 1.0, 60.0)
    """
    return min(_FIRST_PAUSE * 2.0 ** (attempt - 1), _LONGEST_GUESS)


class Pauses:
    """The pauses by the key that a provider limits: provider, model and account.

    >>> pauses = Pauses()
    >>> pauses.begin("openai/gpt", 60)
    True
    >>> pauses.begin("openai/gpt", 60), pauses.seconds_left("openai/gpt") > 59, pauses.seconds_left("other")
    (False, True, 0.0)
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._lock = threading.Lock()  # runs may be driven in several threads

    def begin(self, key: str, seconds: float) -> bool:
        """Let calls with this key wait; return False if they wait already, though then perhaps for longer."""
        now = time.monotonic()
        with self._lock:
            before = self._ends.get(key, now)
            self._ends[key] = max(before, now + seconds)
            return before <= now

    def seconds_left(self, key: str) -> float:
        """Return how long calls with this key have to wait."""
        end = self._ends.get(key)
        return 0.0 if end is None else max(0.0, end - time.monotonic())


PAUSES = Pauses()
"""The pauses of this process."""
