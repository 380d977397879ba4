"""Events are compared and shown as dataclasses are."""

import datetime
from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import Any

import pytest

from holdfast import WorkflowEvent, WorkflowOutputEvent
from holdfast.checkpoint.events import events
from tests.support.parts import ExecutorId

KINDS: list[Any] = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, WorkflowEvent)
]
REPORT = ExecutorId("report")


def _event(kind: Any) -> Any:
    """An event in which every field has a value of its own."""
    return kind(**{one.name: f"the {one.name}" for one in fields(kind)})


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_equal_to_one_of_its_kind_with_the_same_fields(kind: Any) -> None:
    event = _event(kind)
    assert event == _event(kind)
    for one in fields(kind):
        assert event != replace(event, **{one.name: "another"}), one.name
    with pytest.raises(TypeError, match="unhashable"):
        hash(event)


def test_events_of_different_kinds_are_different() -> None:
    base: dict[str, Any] = {"superstep": 1, "timestamp": datetime.datetime.now(datetime.UTC)}

    class Later(WorkflowOutputEvent):
        pass

    event = WorkflowOutputEvent("done", REPORT, **base)
    assert event != Later("done", REPORT, **base)
    assert event != "done"


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_is_shown_as_a_dataclass_is(kind: Any) -> None:
    shown = [(one.name, Any, field(kw_only=True, repr=one.repr)) for one in fields(kind)]
    event = _event(kind)
    twin = make_dataclass(kind.__name__, shown)(**{name: getattr(event, name) for name, _, _ in shown})
    assert repr(event) == repr(twin)


def test_an_event_of_ones_own_is_compared_by_its_own_fields() -> None:
    @dataclass
    class Progress(WorkflowEvent):
        percent: int = 0

    assert Progress(40) == Progress(40)
    assert Progress(40) != Progress(41)
    assert "percent=40" in repr(Progress(40))
