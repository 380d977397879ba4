"""Messages on their way."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine.value import Value
from holdfast.ids import ExecutorId


class Sent(NamedTuple):
    """A message as a turn sent it: along all its edges, or only those that lead to ``target``."""

    value: Value
    target: ExecutorId | None = None


class Delivery(NamedTuple):
    """A message bound to the executor that will get it; the input of a run has no source."""

    target: ExecutorId
    value: Value
    source: ExecutorId | None = None


class Output(NamedTuple):
    """A value that the workflow gave out."""

    executor_id: ExecutorId
    value: Value


class Unrouted(NamedTuple):
    """A message that no edge took."""

    source: ExecutorId
    sent: Sent
