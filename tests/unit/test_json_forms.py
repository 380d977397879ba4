"""``to_dict`` of events, infos, requests and workflows: plain JSON, as the files in ``json_forms`` hold it.

A form that changes is a change for users: edit its file by hand, docs/reference/json-forms.md and the changelog.
"""

import datetime
import decimal
import enum
import json
import pathlib
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy
import pydantic
import pytest

import holdfast
from holdfast import (
    Case,
    CheckpointInfo,
    CheckpointSavedEvent,
    Codec,
    Default,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    InMemoryCheckpointStorage,
    InvalidArgument,
    OutputDeltaEvent,
    PendingRequest,
    PlainEvent,
    RequestInfoEvent,
    RequestRecord,
    RunInfo,
    RunStatus,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    UnroutedMessage,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowErrorEvent,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
    WorkflowStatusEvent,
    WorkflowWarningEvent,
    checkpointable,
    event_from_dict,
    executor,
    handler,
    response_handler,
)
from holdfast.ids import ExecutorId, RequestId, RunId
from tests.support.parts import info_from_dict, plain_of_bytes, plain_value, value_of_plain

FORMS = Path(__file__).parent / "json_forms"
NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=datetime.UTC)


class Mood(enum.Enum):
    GOOD = "good"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Report:
    title: str
    rows: list[tuple[int, float]]
    mood: Mood = Mood.GOOD


@checkpointable(name="PriceInCents", version=2, upgrade=lambda version, fields: fields)
@dataclass
class Amount:
    cents: int


class Point(NamedTuple):
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str
    _hidden: int = 1


class Struct(msgspec.Struct):
    count: int


class Broken(Exception):
    def __init__(self, place: str) -> None:
        super().__init__(f"broken at {place}")
        self.place = place


@dataclass
class Progress(WorkflowEvent):
    percent: int = 0
    report: Report | None = None


INFO = info_from_dict(
    {
        "checkpoint_id": "c0ffee00",
        "run_id": "run-1",
        "workflow_name": "Triage",
        "seq": 4,
        "superstep": 2,
        "phase": "end",
        "cause": "superstep",
        "parent_id": "c0ffed00",
        "timestamp": "2026-03-01T12:00:00.250000+00:00",
        "status": "waiting",
        "new_bytes": 812,
        "message_count": 0,
        "request_count": 1,
        "tags": ["before-deploy"],
        "tagged_by": {"before-deploy": "kim"},
        "superseded_by": None,
    }
)
REQUEST = PendingRequest(RequestId("ask.2.1"), Report("Q3", [(1, 0.5)]), bool | None, ExecutorId("ask"), NOON)
BASE: dict[str, Any] = {"run_id": RunId("run-1"), "superstep": 2, "timestamp": NOON}
TRIAGE = ExecutorId("triage")

EVENTS: list[WorkflowEvent] = [
    WorkflowEvent(**BASE),
    WorkflowStartedEvent("Triage", **BASE),
    WorkflowStatusEvent(RunStatus.WAITING, ("answers",), **BASE),
    WorkflowOutputEvent(Report("Q3", [(1, 0.5)]), TRIAGE, **BASE),
    OutputDeltaEvent(TRIAGE, "Q", **BASE, provisional=True),
    WorkflowCompletedEvent({"total": decimal.Decimal("1.50")}, **BASE),
    WorkflowErrorEvent(ValueError("no"), **BASE),
    WorkflowWarningEvent(UnroutedMessage("nobody takes it"), TRIAGE, **BASE),
    SuperStepStartedEvent(INFO, **BASE),
    SuperStepCompletedEvent(True, False, True, None, **BASE),
    CheckpointSavedEvent(INFO, **BASE),
    ExecutorInvokedEvent(TRIAGE, 2, **BASE),
    ExecutorCompletedEvent(TRIAGE, True, **BASE),
    ExecutorFailedEvent(TRIAGE, Broken("the pump"), 3, **BASE),
    RequestInfoEvent(REQUEST, **BASE),
    Progress(40, Report("Q3", []), **BASE),
]


def form(name: str) -> Any:
    return json.loads((FORMS / f"{name}.json").read_text(encoding="utf-8"))


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def test_every_event_has_a_form() -> None:
    public = {
        name
        for name in holdfast.__all__
        if isinstance(found := getattr(holdfast, name), type) and issubclass(found, WorkflowEvent)
    }
    assert public - {"PlainEvent"} == {type(event).__name__ for event in EVENTS} - {"Progress"}
    assert {path.stem for path in FORMS.glob("*Event.json")} == public - {"PlainEvent"}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_has_its_form_and_is_read_back(event: WorkflowEvent) -> None:
    written = through_json(event.to_dict())
    assert written == form(type(event).__name__)
    read = event_from_dict(written)
    assert type(read) is (PlainEvent if isinstance(event, Progress) else type(event))
    assert through_json(read.to_dict()) == written
    assert (read.run_id, read.superstep, read.timestamp) == ("run-1", 2, NOON)


def test_values_of_classes_come_back_as_dicts_with_the_name_of_their_class() -> None:
    (output,) = (event for event in EVENTS if isinstance(event, WorkflowOutputEvent))
    read = event_from_dict(through_json(output.to_dict()))
    assert isinstance(read, WorkflowOutputEvent)
    assert read.data == {
        "$type": "Report",
        "title": "Q3",
        "rows": [{"$type": "tuple", "$value": [1, 0.5]}],
        "mood": {"$type": "Mood", "$member": "GOOD"},
    }


def test_a_request_that_is_read_back_describes_its_answer() -> None:
    read = event_from_dict(through_json(RequestInfoEvent(REQUEST, **BASE).to_dict()))
    assert isinstance(read, RequestInfoEvent)
    assert read.request.response_schema == REQUEST.response_schema
    assert read.request.expires == NOON


def test_a_warning_comes_back_as_one_of_its_class() -> None:
    read = event_from_dict(WorkflowWarningEvent(UnroutedMessage("nobody"), None).to_dict())
    assert isinstance(read, WorkflowWarningEvent)
    assert type(read.warning) is UnroutedMessage
    assert (read.message, read.executor_id) == ("nobody", None)


def test_an_event_that_was_never_emitted_has_no_time() -> None:
    written = Progress(1).to_dict()
    assert written["timestamp"] is None
    assert event_from_dict(written).timestamp == Progress(1).timestamp


def test_attributes_of_an_event_that_is_no_dataclass_are_written() -> None:
    class Note(WorkflowEvent):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    assert Note("hello").to_dict()["fields"] == {"text": "hello"}


@pytest.mark.parametrize(
    "data",
    [None, {}, {"event": 3}, {"event": "Nothing"}, {"event": "WorkflowStatusEvent"}],
    ids=repr,
)
def test_what_is_no_event_is_refused(data: Any) -> None:
    with pytest.raises(InvalidArgument, match="event_from_dict"):
        event_from_dict(data)


@pytest.mark.parametrize(
    ("key", "wrong"), [("status", "asleep"), ("timestamp", "noon"), ("waiting_for", 3)], ids=repr
)
def test_an_event_with_a_wrong_field_is_refused(key: str, wrong: Any) -> None:
    written = WorkflowStatusEvent(RunStatus.WAITING, ("answers",), **BASE).to_dict()
    with pytest.raises(InvalidArgument, match=r"is no WorkflowStatusEvent that event\.to_dict\(\) gave"):
        event_from_dict({**written, key: wrong})


def test_keys_that_a_later_version_adds_are_ignored_and_those_it_lacks_have_their_defaults() -> None:
    written = {**ExecutorInvokedEvent(TRIAGE, 2).to_dict(), "later": 1}
    del written["message_count"]
    read = event_from_dict(written)
    assert isinstance(read, ExecutorInvokedEvent)
    assert read.message_count == 1


# -- infos, requests and workflows -----------------------------------------------------------------


def test_checkpoint_info() -> None:
    assert through_json(INFO.to_dict()) == form("CheckpointInfo")
    assert info_from_dict(form("CheckpointInfo")).to_dict() == INFO.to_dict()


def test_run_info() -> None:
    info = RunInfo(
        "run-1", "Triage", RunStatus.WAITING, "c0ffee00", 4, NOON, NOON, wake_at=NOON, restored_at=3
    )
    assert through_json(info.to_dict()) == form("RunInfo")


def test_pending_request() -> None:
    assert through_json(REQUEST.to_dict()) == form("PendingRequest")


def test_request_record() -> None:
    record = RequestRecord(
        "run-1", "Triage", "ask.2.1", "ask", plain_value(REQUEST.data), REQUEST.response_schema, NOON, None
    )
    assert through_json(record.to_dict()) == form("RequestRecord")


async def test_infos_of_a_storage_are_json() -> None:
    @executor
    def double(number: int) -> int:
        return number * 2

    async with InMemoryCheckpointStorage() as storage:
        workflow = (
            WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(storage).build()
        )
        async for event in (stream := workflow.run_stream(2)):
            assert through_json(event_from_dict(through_json(event.to_dict())).to_dict()) == event.to_dict()
        (info,) = await storage.list_runs()
        assert through_json(info.to_dict())["status"] == "completed"
        for checkpoint in await storage.list_checkpoints():
            written = through_json(checkpoint.to_dict())
            assert written == checkpoint.info.to_dict()
            again: CheckpointInfo = info_from_dict(written)
            assert (again, again.timestamp, again.status) == (
                checkpoint,
                checkpoint.timestamp,
                checkpoint.status,
            )
        assert stream.run.run_id == info.run_id


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext[str, None]) -> None: ...

    @response_handler
    async def answered(self, request: str, answer: bool, ctx: WorkflowContext[str, None]) -> None: ...


@executor
def begin(number: int) -> int:
    return number


@executor
def left(number: int) -> str:
    return ""


@executor
def right(number: int) -> str:
    return ""


@executor
def join(texts: list[str]) -> Report:
    return Report("", [])


@executor
def inner(number: int) -> str:
    return ""


def test_a_workflow() -> None:
    nested = WorkflowBuilder(name="Inner").set_start_executor(inner).build()
    workflow = (
        WorkflowBuilder(name="Triage")
        .set_start_executor(begin)
        .add_fan_out_edges(begin, [left, right])
        .add_fan_in_edges([left, right], join)
        .add_edge(begin, Ask, condition=lambda number: number > 1, label="many")
        .add_switch_case_edge_group(
            begin,
            [
                Case(
                    condition=lambda number: number > 2,
                    target=WorkflowExecutor(nested, id="nest"),
                    label="P0",
                ),
                Default(target=join_numbers),
            ],
        )
        .add_multi_selection_edge_group(begin, [last], selection_func=lambda number, targets: targets)
        .build()
    )
    assert through_json(workflow.to_dict()) == form("Workflow")


@executor
def join_numbers(number: int) -> None: ...


@executor
def last(number: int) -> None: ...


# -- values ----------------------------------------------------------------------------------------

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
# Values that come back as they were.
STANDARD: list[Any] = [
    None, True, 3, -(2**70), 1.5, "text", "\ud800", [1, [2]], {"a": {"b": 1}}, {"$type": "x", "$": 1, "a$": 2},
    b"\x00\xff", bytearray(b"ab"), (1, (2,)), {1, 2, 3}, frozenset({"a"}), {1: "a", (2, 3): "b"}, range(1, 9, 2),
    1 + 2j, ...,
    float("inf"), decimal.Decimal("1.50"), Fraction(-1, 3), uuid.UUID(int=7), NOON, NOON.replace(tzinfo=None),
    NOON.replace(tzinfo=BERLIN, fold=1), NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1), "CET")),
    NOON.date(), NOON.time(), NOON.time().replace(tzinfo=BERLIN), datetime.timedelta(days=-1, microseconds=3),
    datetime.timezone(datetime.timedelta(minutes=-90)), BERLIN, pathlib.Path("a/b"), pathlib.PureWindowsPath("a"),
    OrderedDict(a=1), Counter("aab"), defaultdict(list, a=[1]), deque([1, 2], 3), deque([1]),
]  # fmt: skip
# Values that come back as dicts.
INSTANCES: list[Any] = [
    Report("Q3", [(1, 0.5)]), Amount(250), Point(1, 2), Model(name="a"), Struct(1), Mood.GOOD, Rights(3), Broken("x"),
    ValueError("no", 3), numpy.arange(6.0).reshape(2, 3), numpy.float32(1.5), numpy.asfortranarray([[1, 2], [3, 4]]),
    numpy.zeros(2, [("a", "<i4"), ("b", "<f8")]),
]  # fmt: skip


@pytest.mark.parametrize("value", STANDARD, ids=ascii)
def test_a_value_of_the_language_comes_back(value: Any) -> None:
    plain = through_json(plain_value(value))
    again = value_of_plain(plain)
    assert again == value
    assert type(again) is type(value)
    assert getattr(again, "tzinfo", None) == getattr(value, "tzinfo", None)
    assert through_json(plain_value(again)) == plain


@pytest.mark.parametrize("value", INSTANCES, ids=ascii)
def test_an_instance_comes_back_as_a_dict(value: Any) -> None:
    plain = through_json(plain_value(value))
    again = value_of_plain(plain)
    assert again == plain
    assert through_json(plain_value(again)) == plain
    assert plain["$type"] != "Extension"


@pytest.mark.parametrize("value", [*STANDARD, *INSTANCES], ids=ascii)
def test_a_live_value_and_a_stored_one_have_the_same_form(value: Any) -> None:
    codec = Codec()
    for kind in (Report, Point, Model, Struct, Mood, Rights, Broken):
        codec.types.declare(kind, "here")
    holder = [{"value": value}]
    assert through_json(plain_of_bytes(codec.encode(holder))) == through_json(plain_value(holder))


def test_the_forms_of_values() -> None:
    shown = {
        f"{place} {type(value).__name__}": plain_value(value)
        for place, value in enumerate([*STANDARD, *INSTANCES])
    }
    assert through_json(shown) == form("values")


def test_what_cannot_be_stored_is_shown_as_text() -> None:
    plain = through_json(plain_value({"ok": 1, "stream": sys.stdout.buffer.__class__, "call": len}))
    assert plain["ok"] == 1
    assert plain["call"] == {"$type": "builtin_function_or_method", "$text": "<built-in function len>"}


def test_a_value_that_contains_itself_is_cut() -> None:
    @dataclass
    class Knot:
        others: list[Any] = field(default_factory=list)

    knot = Knot()
    knot.others += [knot, knot]
    plain = through_json(plain_value(knot))
    assert plain["others"][0] == {"$type": "Knot", "$text": "contains itself"}


def test_what_is_nested_very_deeply_is_cut() -> None:
    deep: Any = 1
    for _ in range(250):
        deep = [deep]
    assert "nested too deeply" in json.dumps(plain_value(deep))
    assert "nested too deeply" in json.dumps(plain_of_bytes(Codec().encode(deep)))
