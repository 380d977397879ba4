"""Events that are made without their constructors: the same as with them, once they are in the log."""

import datetime
from collections.abc import Callable

import pytest

from holdfast import WorkflowBuilder, executor
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.events.emitter import EventEmitter
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.events.events import (
    ExecutorCompletedEvent,
    ExecutorInvokedEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowEvent,
)
from holdfast.runtime.events.usual import (
    executor_completed,
    executor_invoked,
    superstep_completed,
    superstep_started,
)

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WHO = ExecutorId("who")


async def nothing(number: int) -> None:
    """Do nothing."""


PAIRS: dict[str, tuple[Callable[[], WorkflowEvent], Callable[[], WorkflowEvent]]] = {
    "started": (lambda: SuperStepStartedEvent(None), lambda: superstep_started(None)),
    "invoked": (lambda: ExecutorInvokedEvent(WHO, 3), lambda: executor_invoked(WHO, 3)),
    "completed": (lambda: ExecutorCompletedEvent(WHO, True), lambda: executor_completed(WHO, True)),
    "ended": (
        lambda: SuperStepCompletedEvent(True, False, True),
        lambda: superstep_completed(True, False, True),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_same_as_by_constructor(kind: str) -> None:
    make, make_usually = PAIRS[kind]
    workflow = WorkflowBuilder(name="One").set_start_executor(executor(id="who")(nothing)).build()
    emitter = EventEmitter(workflow.graph, RunId("run"), 7, lambda: NOW, EventLog())
    events = [make(), make_usually()]
    emitter.emit(events)
    assert events[0] == events[1]
    assert repr(events[0]) == repr(events[1])
    assert [events[1].run_id, events[1].superstep, events[1].timestamp] == ["run", 7, NOW]
