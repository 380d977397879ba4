"""What the turns of one run have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.engine.limits import Limits
from holdfast.engine.value import Captor
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.durable.journal import Journal
from holdfast.runtime.environment import Environment
from holdfast.runtime.events.events import WorkflowEvent


class Surroundings(NamedTuple):
    """What the turns of one run have in common."""

    limits: Limits
    capture: Captor
    run_id: RunId
    emit: Callable[[Sequence[WorkflowEvent]], None]
    journal: Journal
    durable: bool = False
    """Whether events are stored."""
    begun: Callable[[ExecutorId], tuple[str, str]] = lambda address: ("", address)
    """The id of the checkpoint at which the superstep under way began, and what an executor was called there.

    The id is empty where nothing is stored.
    """
    environment: Environment = Environment()
