"""Answers as plain JSON, from processes that do not have the types of the workflow that asks."""

import asyncio
import datetime
import decimal
import enum
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    HoldfastError,
    Host,
    InMemoryCheckpointStorage,
    InvalidResponse,
    LimitExceeded,
    RequestAlreadyAnswered,
    RequestExpired,
    RequestInfoEvent,
    Retention,
    Run,
    RunStatus,
    SubWorkflowRequest,
    UnknownRequest,
    UnknownType,
    UnusableAnswer,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowWarningEvent,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import VirtualTime
from tests.support.durable import (
    ON_DISK,
    Place,
    Wrapped,
    die,
    everything,
    head_of,
    info_of_run,
    killed_by_itself,
    outputs_of,
    storage_at,
    watched,
    wrapped,
)
from tests.support.parts import Commit, Depth, Letter, RunId, changes_of, stored_form
from tests.support.runs import soon

T = TypeVar("T")


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Ratio(enum.Enum):
    HALF = 0.5
    WHOLE = 1.0


@dataclass
class Line:
    article: str
    amount: int = 1
    price: decimal.Decimal = decimal.Decimal("0")
    color: Color = Color.RED
    due: datetime.date | None = None
    label: bytes = b""


@dataclass
class Box(Generic[T]):
    content: T


class Point(NamedTuple):
    x: int
    y: int = 0


class Movie(TypedDict):
    title: str
    stars: list[Color]


class Model(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2)
    day: datetime.date
    lines: list[Line] = []

    @pydantic.field_validator("name")
    @classmethod
    def is_no_joke(cls, name: str) -> str:
        if name == "joke":
            raise ValueError("that is a joke")
        return name


class Struct(msgspec.Struct):
    count: int
    when: datetime.datetime | None = None
    data: bytes = b""


class Celsius:
    def __init__(self, degrees: float) -> None:
        if degrees < -273.15:
            raise ValueError("colder than cold")
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and self.degrees == other.degrees

    __hash__ = None  # type: ignore[assignment]


checkpointable(Celsius, encode=lambda value: value.degrees, decode=Celsius)


@checkpointable(name="json-answers-money")
class Money:
    def __init__(self, cents: int, currency: str = "EUR") -> None:
        self.cents, self.currency = cents, currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Vote:
    """Takes numbers up to ten, which its schema does not say."""

    number: int
    remark: str = ""

    def __post_init__(self) -> None:
        if self.number > 10:
            raise ValueError("more than ten")


UTC = datetime.UTC
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=UTC)

# A type, an answer in its JSON form, and the value that it becomes.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "dataclass": (
        Line,
        {"article": "nail", "price": "0.10", "color": "g", "due": "2026-03-01", "label": "aGVsbG8="},
        Line("nail", 1, decimal.Decimal("0.10"), Color.GREEN, datetime.date(2026, 3, 1), b"hello"),
    ),
    "generic": (Box[Line], {"content": {"article": "nail"}}, Box(Line("nail"))),
    "model": (
        Model,
        {"name": "ab", "day": "2026-03-01", "lines": [{"article": "nail"}]},
        Model(name="ab", day=datetime.date(2026, 3, 1), lines=[Line("nail")]),
    ),
    "struct": (
        Struct,
        {"count": 1, "when": "2026-03-01T12:00:00Z", "data": "aGVsbG8="},
        Struct(1, NOON, b"hello"),
    ),
    "enum": (Color, "g", Color.GREEN),
    "enum of fractions": (Ratio, 1, Ratio.WHOLE),
    "literal": (Literal[Color.RED], "r", Color.RED),
    "named tuple": (Point, {"x": 3}, Point(3)),
    "typed dict": (Movie, {"title": "M", "stars": ["r"]}, {"title": "M", "stars": [Color.RED]}),
    "union": (Line | Vote | None, {"number": 3}, Vote(3)),
    "nothing of a union": (Line | None, None, None),
    "list": (list[Line], [{"article": "nail"}], [Line("nail")]),
    "set": (set[Color], ["r", "g"], {Color.RED, Color.GREEN}),
    "tuple": (tuple[Color, int], ["r", 1], (Color.RED, 1)),
    "dict": (dict[Color, list[Point]], {"g": [{"x": 1}]}, {Color.GREEN: [Point(1)]}),
    "registered": (Money, {"cents": 250}, Money(250)),
    "given decode": (Celsius, 21.5, Celsius(21.5)),
    "many given decode": (dict[str, Celsius], {"here": 21.5}, {"here": Celsius(21.5)}),
    "time": (datetime.datetime, "2026-03-01T12:00:00+00:00", NOON),
    "bytes": (bytes, "aGVsbG8=", b"hello"),
    "big number": (Box[int], {"content": 10**5000}, Box(10**5000)),
}


def asking(form: Any, name: str = "Asking", count: int = 1, **options: Any) -> Workflow:
    """A workflow that asks for something of a type, and gives out the answers."""

    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[None, Any]) -> None:
            for _ in range(count):
                await ctx.request_info(text, response_type=form, **options)

        @response_handler
        async def answered(self, text: str, answer: form, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output(answer)

        @response_handler
        async def late(self, text: str, answer: RequestExpired, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output("late")

    return WorkflowBuilder(name=name).set_start_executor(Ask).build()


Q, R = "Ask.1.1", "Ask.1.2"


async def waiting(storage: CheckpointStorage, workflow: Workflow, run_id: str = "mine") -> Run:
    run = await workflow.start("?", run_id=run_id, storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    return run


async def letters_of(storage: CheckpointStorage) -> Sequence[Letter]:
    return await storage.store.inbox(RunId("mine"))


async def causes(storage: CheckpointStorage) -> list[str]:
    return [f"{one.phase} {one.cause}" for one in await storage.list_checkpoints(run_id="mine")]


async def stored_warnings(storage: CheckpointStorage) -> list[tuple[str | None, tuple[str, str]]]:
    """The warnings that the checkpoints of the run keep, with their executors."""
    records = await storage.store.records(RunId("mine"), 1, 100, Depth.ALL)
    told = [one for record in records for one in changes_of(record, Depth.ALL).happened]
    return [(one.executor_id, one.warning) for one in told if one.warning is not None]


# -- every type ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_of_each_type(place: Place, stranger: CheckpointStorage, name: str) -> None:
    form, given, value = CASES[name]
    await waiting(place.storage, asking(form))
    await stranger.respond("mine", {Q: given}, by="kim")
    storage = await place.reopened()
    run = await asking(form).resume(run_id="mine", storage=storage)
    (made,) = (await soon(run.wait_for_completion())).outputs
    assert made == value
    assert type(made) is type(value)
    assert (await storage.verify()).ok
    response = (await storage.list_checkpoints(run_id="mine"))[-2]
    assert (response.cause, response.by) == ("response", "kim")


ANSWER = """
import asyncio, json, sys
from holdfast import open_storage

async def main():
    answers = json.load(sys.stdin)
    async with open_storage(sys.argv[1]) as storage:
        for record in await storage.list_requests():
            answer = answers[record.run_id]
            await storage.respond(record.run_id, {record.request_id: answer}, by="a stranger")
            checkpoint = await storage.get_latest(run_id=record.run_id)
            plain = await storage.load(checkpoint, plain=True)
            json.dumps([one.response_schema for one in plain.pending_requests])
        print(len(await storage.list_requests()))
    wanted = ("tests", "conftest", "pydantic", "msgspec", "numpy", "jsonschema")
    assert not any(name.startswith(wanted) for name in sys.modules), "the classes are here"

asyncio.run(main())
"""


def answered_elsewhere(kind: str, folder: Path, answers: dict[str, Any]) -> str:
    """What a process prints that has no class of this module, and answers all requests."""
    url = f"{kind}:///{folder / ('runs.db' if kind == 'sqlite' else 'runs')}"
    done = subprocess.run(
        [sys.executable, "-I", "-c", ANSWER, url],
        input=json.dumps(answers), capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ON_DISK)
async def test_another_process_without_the_types_answers(kind: str, tmp_path: Path) -> None:
    cases = {name: case for name, case in CASES.items() if name != "big number"}
    async with storage_at(kind, tmp_path) as storage:
        for name, (form, _, _) in cases.items():
            await waiting(storage, asking(form), name)
    answers = {name: given for name, (_, given, _) in cases.items()}
    assert answered_elsewhere(kind, tmp_path, answers) == "0\n"
    async with storage_at(kind, tmp_path) as storage:
        for name, (form, _, value) in cases.items():
            assert await outputs_of(asking(form).resume(run_id=name, storage=storage)) == [value]


# -- what is refused at once -----------------------------------------------------------------------

MISFITS: dict[str, tuple[Any, Any, str]] = {
    "kind": (Line, "yes", r"response: a string, not an object: 'yes'"),
    "missing": (Line, {"amount": 1}, r"response: needs 'article', which is missing"),
    "unknown": (Line, {"article": "a", "size": 1}, r"response: has no 'size'; it has 'article', 'amount'"),
    "deep": (list[Line], [{"article": "a"}, {"article": 3}], r"response\[1\]\.article: a number, not a string: 3"),
    "bool": (Line, {"article": "a", "amount": True}, r"response\.amount: a boolean, not an integer: True"),
    "float": (Line, {"article": "a", "amount": 1.0}, r"response\.amount: a number, not an integer: 1\.0"),
    "date": (Line, {"article": "a", "due": "tomorrow"}, r"response\.due: 'tomorrow' is no date"),
    "base64": (Line, {"article": "a", "label": "?"}, r"response\.label: '\?' is no base64"),
    "pattern": (Line, {"article": "a", "price": "much"}, r"response\.price: 'much' does not have the form"),
    "enum": (Color, "blue", r"'blue' is none of 'r', 'g'"),
    "enum in a line": (Line, {"article": "a", "color": "b"}, r"response\.color: 'b' is none of 'r', 'g'"),
    "twice": (set[Color], ["r", "r"], r"response: an item is there twice"),
    "key": (dict[Color, int], {"blue": 1}, r"response key 'blue': 'blue' is none of"),
    "odd key": (dict[str, Line], {"a b": {}}, r"response\['a b'\]: needs 'article'"),
    "too short": (Model, {"name": "a", "day": "2026-03-01"}, r"response\.name: has 1 characters, not at least 2"),
    "length": (tuple[Color, int], ["r"], r"response: has 1 items, not at least 2"),
    "union": (Line | Vote | None, 3, r"response: 3 fits none of its forms"),
    "nan": (Line, {"article": "a", "amount": float("nan")}, r"response\.amount: nan is no number of JSON"),
    "infinite": (Box[float], {"content": float("-inf")}, r"response\.content: -inf is no number of JSON"),
    "number as key": (dict[Color, int], {1: 1}, "the key 1 is a int; in JSON keys are texts"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
async def test_an_answer_that_does_not_fit_is_refused_at_once(
    place: Place, stranger: CheckpointStorage, name: str
) -> None:
    form, given, message = MISFITS[name]
    await waiting(place.storage, asking(form))
    before = await everything(place.storage, "mine")
    with pytest.raises(InvalidResponse, match=message) as caught:
        await stranger.respond("mine", {Q: given})
    assert "request 'Ask.1.1' of executor 'Ask'" in str(caught.value)
    assert "'response_schema' in 'storage.list_requests' describes it" in str(caught.value)
    assert await letters_of(place.storage) == []
    assert await everything(place.storage, "mine") == before


def circle() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


def nested(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "given", [circle(), nested(100_000), {"content": nested(5_000)}], ids=["a", "b", "c"]
)
async def test_an_answer_without_end_is_refused(
    stranger: CheckpointStorage, place: Place, given: Any
) -> None:
    await waiting(place.storage, asking(Box[Any]))
    with pytest.raises(HoldfastError, match="deep"):
        await stranger.respond("mine", {Q: given})
    with pytest.raises(HoldfastError):
        await place.storage.respond("mine", {Q: given})
    assert await letters_of(place.storage) == []


async def test_an_answer_of_a_type_needs_the_type(place: Place, stranger: CheckpointStorage) -> None:
    await waiting(place.storage, asking(Line))
    for given in (Line("nail"), {"article": "nail", "due": datetime.date(2026, 3, 1)}):
        with pytest.raises(UnknownType, match="not known here, Line: give plain JSON") as caught:
            await stranger.respond("mine", {Q: given})
    assert "response.due: a date, which JSON does not have" in str(caught.value)
    assert await letters_of(place.storage) == []


async def test_all_answers_of_a_call_are_left_or_none(place: Place, stranger: CheckpointStorage) -> None:
    await waiting(place.storage, asking(Vote, count=2))
    with pytest.raises(InvalidResponse, match=R):
        await stranger.respond("mine", {Q: {"number": 1}, R: {"number": "two"}})
    with pytest.raises(UnknownRequest, match=r"'Ask\.9\.9'"):
        await stranger.respond("mine", {Q: {"number": 1}, "Ask.9.9": {"number": 1}})
    assert await letters_of(place.storage) == []


async def test_a_big_answer_is_refused_like_any_value(place: Place, stranger: CheckpointStorage) -> None:
    await waiting(place.storage, asking(Box[str]))
    stranger.catalog._largest["Asking"] = 1000
    with pytest.raises(LimitExceeded):
        await stranger.respond("mine", {Q: {"content": "a" * 2000}})


async def test_the_answer_is_as_it_was_when_given(place: Place, stranger: CheckpointStorage) -> None:
    await waiting(place.storage, asking(Vote))
    given = {"number": 3}
    await stranger.respond("mine", {Q: given})
    given["number"] = 4
    assert await outputs_of(asking(Vote).resume(run_id="mine", storage=place.storage)) == [Vote(3)]


# -- where the types are ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", [Vote(3), {"number": 3}], ids=repr)
async def test_where_the_types_are_both_forms_are_taken(place: Place, given: Any) -> None:
    run = await waiting(place.storage, asking(Vote))
    with pytest.raises(InvalidResponse, match="more than ten"):
        await place.storage.respond("mine", {Q: {"number": 11}})
    with pytest.raises(InvalidResponse, match="more than ten"):
        await run.respond({Q: {"number": 11}})
    await place.storage.respond("mine", {Q: given})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


async def test_a_run_that_is_held_takes_json(place: Place) -> None:
    run = await waiting(place.storage, asking(Vote))
    await run.respond({Q: {"number": 3}})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


# -- answers that their type refuses ---------------------------------------------------------------

BAD, GOOD = {"number": 11}, {"number": 3}


async def test_an_answer_that_its_type_refuses_is_asked_for_again(
    place: Place, stranger: CheckpointStorage
) -> None:
    await waiting(place.storage, asking(Vote))
    (asked,) = await stranger.list_requests()
    await stranger.respond("mine", {Q: BAD}, by="kim")
    assert await stranger.list_requests() == []
    with pytest.raises(RequestAlreadyAnswered):
        await stranger.respond("mine", {Q: GOOD})
    run = await asking(Vote).resume(run_id="mine", storage=place.storage)
    events = await watched(run)
    assert run.status is RunStatus.WAITING
    assert [one.request_id for one in run.pending_requests] == [Q]
    (warning,) = [one for one in events if isinstance(one, WorkflowWarningEvent)]
    assert isinstance(warning.warning, UnusableAnswer)
    text = str(warning.warning)
    for part in ("request 'Ask.1.1' of executor 'Ask'", "more than ten", "given by 'kim'", "asked again"):
        assert part in text
    assert [one.request.request_id for one in events if isinstance(one, RequestInfoEvent)] == [Q, Q]
    assert await stored_warnings(place.storage) == [("Ask", ("UnusableAnswer", text))]
    assert await causes(place.storage) == ["start input", "end superstep", "end request"]
    assert await letters_of(place.storage) == []
    info = await info_of_run(place.storage, "mine")
    assert (info.status, info.waiting_for) == (RunStatus.WAITING, ("answers",))
    (again,) = await stranger.list_requests()
    assert (again.request_id, again.data, again.response_schema) == (Q, asked.data, asked.response_schema)
    assert again.asked_at > asked.asked_at
    await stranger.respond("mine", {Q: GOOD}, by="lee")
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]
    made = await place.storage.list_checkpoints(run_id="mine")
    assert [(one.cause, one.by) for one in made[-2:]] == [("response", "lee"), ("superstep", None)]
    assert (await place.storage.verify()).ok


async def test_answers_may_be_refused_again_and_again(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage, asking(Vote))
    for number in range(11, 16):
        await stranger.respond("mine", {Q: {"number": number}})
        assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert len(run.warnings) == 5
    storage = await place.reopened()
    run = await asking(Vote).resume(run_id="mine", storage=storage)
    await run.respond({Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


@dataclass
class Echo:
    """Its errors repeat what was given."""

    text: str

    def __post_init__(self) -> None:
        if not self.text.isprintable():
            raise ValueError(f"{self.text} cannot be printed")


async def test_an_answer_with_half_a_character_may_be_refused(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, asking(Echo))
    await stranger.respond("mine", {Q: {"text": "\ud800"}})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    (stored,) = await stored_warnings(place.storage)
    assert "\\ud800 cannot be printed" in stored[1][1]
    await stranger.respond("mine", {Q: {"text": "kelp"}})
    assert (await soon(run.wait_for_completion())).outputs == [Echo("kelp")]
    warnings = [
        event async for event in place.storage.watch("mine") if isinstance(event, WorkflowWarningEvent)
    ]
    assert [str(event.warning) for event in warnings] == [stored[1][1]]


async def test_who_gave_a_useless_answer_did_not_give_the_next(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, asking(Vote))
    await stranger.respond("mine", {Q: BAD}, by="kim")
    await soon(run.wait_for_completion())
    await stranger.respond("mine", {Q: GOOD})
    await soon(run.wait_for_completion())
    made = await place.storage.list_checkpoints(run_id="mine")
    assert [one.by for one in made] == [None] * len(made)


async def test_a_superstep_under_way_is_finished_before_a_request_is_asked_again(
    place: Place, stranger: CheckpointStorage
) -> None:
    """Another checkpoint would take away its journal, and what was done once would be done twice."""
    done: list[str] = []

    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, Any]) -> None:
            await ctx.request_info(text, response_type=Vote)
            await ctx.send_message(text)

        @response_handler
        async def answered(self, text: str, answer: Vote, ctx: WorkflowContext[str, Any]) -> None:
            await ctx.yield_output(answer)

    @executor(id="pay")
    async def pay(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.once("pay", lambda: done.append("paid"))
        done.append("tried")
        if done.count("tried") == 1:
            raise RuntimeError("the network is down")

    workflow = WorkflowBuilder(name="Paying").set_start_executor(Ask).add_edge(Ask, pay).build()
    run = await workflow.start("?", run_id="mine", storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    await stranger.respond("mine", {Q: BAD})
    run = await workflow.resume(run_id="mine", storage=place.storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert done == ["paid", "tried", "tried"]
    assert (await causes(place.storage))[-2:] == ["end superstep", "end request"]
    await stranger.respond("mine", {Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


async def test_the_good_ones_of_several_answers_are_used(place: Place, stranger: CheckpointStorage) -> None:
    workflow = asking(Vote, count=4)
    await waiting(place.storage, workflow)
    ids = [f"Ask.1.{number}" for number in range(1, 5)]
    numbers = dict(zip(ids, [1, 11, 3, 12], strict=True))
    await stranger.respond("mine", {known: {"number": number} for known, number in numbers.items()}, by="kim")
    run = await workflow.resume(run_id="mine", storage=place.storage)
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.WAITING, [Vote(1), Vote(3)])
    assert [one.request_id for one in await stranger.list_requests()] == [ids[1], ids[3]]
    assert len(result.warnings) == 2
    await stranger.respond("mine", {ids[1]: {"number": 2}, ids[3]: {"number": 4}})
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs[2:]) == (RunStatus.COMPLETED, [Vote(2), Vote(4)])
    assert await letters_of(place.storage) == []
    assert (await place.storage.verify()).ok


async def test_a_host_asks_again_and_goes_on_with_the_next_answer(
    place: Place, stranger: CheckpointStorage
) -> None:
    await (await waiting(place.storage, asking(Model))).close()
    storage = await place.reopened()
    host = Host(storage, asking(Model))
    await stranger.respond("mine", {Q: {"name": "joke", "day": "2026-03-01"}}, by="kim")
    assert await soon(host.wake_due()) == 1
    assert isinstance(host.problems["mine"], UnusableAnswer)
    assert "that is a joke" in str(host.problems["mine"])
    assert await soon(host.wake_due()) == 0
    assert [one.request_id for one in await stranger.list_requests()] == [Q]
    await stranger.respond("mine", {Q: {"name": "no joke", "day": "2026-03-01"}})
    assert await soon(host.wake_due()) == 1
    assert (await info_of_run(storage, "mine")).status is RunStatus.COMPLETED


class Work:
    """Lets a branch of a workflow work as long as the test wants."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()


async def test_a_run_that_moves_asks_again(place: Place, stranger: CheckpointStorage) -> None:
    work = Work()

    @executor(id="count")
    async def count(number: int, ctx: WorkflowContext[int]) -> None:
        if number == 2:
            work.entered.set()
            await work.go_on.wait()
        if number < 6:
            await ctx.send_message(number + 1)

    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext[int, Vote]) -> None:
            await ctx.request_info("?", response_type=Vote)
            await ctx.send_message(number)

        @response_handler
        async def answered(self, text: str, answer: Vote, ctx: WorkflowContext[int, Vote]) -> None:
            await ctx.yield_output(answer)

    builder = WorkflowBuilder(name="Moving").set_start_executor(Ask).add_edge(Ask, count)
    workflow = builder.add_edge(count, count).build()
    run = await workflow.start(1, run_id="mine", storage=place.storage)
    await soon(work.entered.wait())
    await stranger.respond("mine", {Q: BAD})
    work.go_on.set()
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert "start request" in await causes(place.storage)
    await stranger.respond("mine", {Q: GOOD})
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, [Vote(3)])
    # Each checkpoint of it can be gone back to, also the one that asks again.
    for made in await place.storage.list_checkpoints(run_id="mine"):
        fork = await workflow.fork(made, run_id=f"fork-{made.seq}", storage=place.storage)
        await soon(fork.wait_for_completion())
        if fork.pending_requests:
            await fork.respond({Q: Vote(4)})
            await soon(fork.wait_for_completion())
        assert fork.status is RunStatus.COMPLETED


async def test_a_request_of_a_nested_workflow_is_asked_again(
    place: Place, stranger: CheckpointStorage
) -> None:
    def outer() -> Workflow:
        inner = WorkflowExecutor(asking(Vote), id="inner")
        return WorkflowBuilder(name="Outer").set_start_executor(inner).build()

    run = await waiting(place.storage, outer())
    (asked,) = await stranger.list_requests()
    assert asked.request_id.startswith("inner#1/")
    with pytest.raises(InvalidResponse, match=r"response\.number"):
        await stranger.respond("mine", {asked.request_id: {"number": "one"}})
    await stranger.respond("mine", {asked.request_id: BAD})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    await stranger.respond("mine", {asked.request_id: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


@pytest.mark.parametrize("knows", [True, False])
async def test_a_useless_answer_to_a_request_that_is_offered_to_an_executor(
    place: Place, stranger: CheckpointStorage, knows: bool
) -> None:
    work = Work()

    class Rule(Executor):
        @handler
        async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext[None, Any]) -> None:
            work.entered.set()
            await work.go_on.wait()
            if knows:
                await ctx.respond_to(request, Vote(5))

    inner = WorkflowExecutor(asking(Vote), id="inner")
    workflow = WorkflowBuilder(name="Outer").set_start_executor(inner).add_edge(inner, Rule).build()
    run = await workflow.start("?", run_id="mine", storage=place.storage)
    await soon(work.entered.wait())
    (asked,) = await stranger.list_requests()
    await stranger.respond("mine", {asked.request_id: BAD})
    work.go_on.set()
    result = await soon(run.wait_for_completion())
    assert await letters_of(place.storage) == []
    if knows:
        assert (result.status, result.warnings) == (RunStatus.COMPLETED, [])
        return
    assert (result.status, len(result.warnings)) == (RunStatus.WAITING, 1)
    await stranger.respond("mine", {asked.request_id: GOOD})
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED


async def test_a_request_that_is_asked_again_survives_retention_and_copies(
    place: Place, stranger: CheckpointStorage
) -> None:
    workflow = asking(Vote, count=2)
    place.storage.retention = Retention.latest_only()
    run = await waiting(place.storage, workflow)
    await stranger.respond("mine", {Q: BAD})
    await soon(run.wait_for_completion())
    await run.respond({R: GOOD})
    await soon(run.wait_for_completion())
    await place.storage.prune()
    storage = await place.reopened()
    await stranger.respond("mine", {Q: GOOD})
    run = await workflow.resume(run_id="mine", storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED
    assert (await storage.verify()).ok


async def test_a_request_that_expires_with_a_useless_answer(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    workflow = asking(Vote, expires=datetime.timedelta(hours=1))
    await (await workflow.start("?", run_id="mine", storage=storage)).driven()
    stranger = CheckpointStorage(storage.store)
    await stranger.respond("mine", {Q: BAD})
    await time.advance(datetime.timedelta(hours=2))
    host = Host(storage, workflow)
    await soon(host.wake_due())
    info = await info_of_run(storage, "mine")
    assert info.status is RunStatus.COMPLETED
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == ["late"]
    with pytest.raises(RequestAlreadyAnswered):
        await stranger.respond("mine", {Q: GOOD})


class Sealed(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class Picky:
    """Its errors cannot be shown."""

    number: float

    def __post_init__(self) -> None:
        if self.number > 10:
            raise Sealed


class Exact(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def is_small(cls, number: int) -> int:
        if number > 10:
            raise ValueError("more than ten")
        return number


@dataclass
class Tree:
    children: "list[Tree]"


def deep_tree(depth: int) -> Any:
    made: dict[str, Any] = {"children": []}
    for _ in range(depth):
        made = {"children": [made]}
    return made


HARD: dict[str, tuple[Any, Any, Any]] = {
    "an error without a text": (Picky, {"number": 11}, {"number": 1}),
    "a number that no float can be": (Picky, {"number": 10**400}, {"number": 1}),
    "a number of 5,000 digits": (Exact, {"number": 10**5000}, {"number": 1}),
    "decode that raises": (Box[Celsius], {"content": -300}, {"content": 20}),
    "decode of another kind": (Box[Celsius], {"content": {"a": [None]}}, {"content": 20}),
}


@pytest.mark.parametrize("name", HARD)
async def test_no_answer_makes_a_run_fail(place: Place, stranger: CheckpointStorage, name: str) -> None:
    form, bad, good = HARD[name]
    run = await waiting(place.storage, asking(form))
    await stranger.respond("mine", {Q: bad})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert isinstance(run.warnings[-1], UnusableAnswer)
    await stranger.respond("mine", {Q: good})
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED


@pytest.mark.parametrize("depth", [20, 60, 90, 120, 200, 400])
async def test_a_deep_answer_is_taken_or_refused(
    place: Place, stranger: CheckpointStorage, depth: int
) -> None:
    run = await waiting(place.storage, asking(Tree))
    try:
        await stranger.respond("mine", {Q: deep_tree(depth)})
    except HoldfastError:
        assert depth > 60
        assert await letters_of(place.storage) == []
    status = (await soon(run.wait_for_completion())).status
    assert status is (RunStatus.COMPLETED if depth <= 60 else status)
    if status is not RunStatus.COMPLETED:
        await stranger.respond("mine", {Q: deep_tree(3)})
        assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_requests_are_asked_again_however_durable_a_run_is(place: Place, durability: Any) -> None:
    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext[int, Vote]) -> None:
            if number == 1:
                await ctx.request_info("?", response_type=Vote)
            if number < 8:
                await asyncio.sleep(0.002)
                await ctx.send_message(number + 1)

        @response_handler
        async def answered(self, text: str, answer: Vote, ctx: WorkflowContext[int, Vote]) -> None:
            await ctx.yield_output(answer)

    builder = WorkflowBuilder(name="Moving").set_start_executor(Ask).add_edge(Ask, Ask)
    workflow = builder.with_durability(durability).build()
    run = await workflow.start(1, run_id="mine", storage=place.storage)
    stranger = CheckpointStorage(place.storage.store)
    for _ in range(3):
        while not await stranger.list_requests(run_id="mine"):
            await asyncio.sleep(0.001)
            await run.wait_for_completion()
        await stranger.respond("mine", {Q: BAD})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert len(run.warnings) == 3
    await stranger.respond("mine", {Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]
    assert len(await stored_warnings(place.storage)) == 3


async def test_several_hosts_find_one_useless_answer(place: Place, stranger: CheckpointStorage) -> None:
    await (await waiting(place.storage, asking(Vote))).close()
    hosts = [Host(CheckpointStorage(place.storage.store), asking(Vote)) for _ in range(4)]
    for answer in (BAD, BAD, GOOD):
        await stranger.respond("mine", {Q: answer})
        await soon(asyncio.gather(*(host.wake_due() for host in hosts)))
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.COMPLETED
    assert len(await stored_warnings(place.storage)) == 2
    assert (await place.storage.verify()).ok


async def test_a_useless_answer_waits_for_a_run_that_sleeps(
    time: VirtualTime, storage: CheckpointStorage
) -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str, Any]) -> None:
            await ctx.request_info(text, response_type=Vote)
            await ctx.send_message(text)

        @response_handler
        async def answered(self, text: str, answer: Vote, ctx: WorkflowContext[str, Any]) -> None:
            await ctx.yield_output(answer)

    @executor(id="nap")
    async def nap(text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.sleep(datetime.timedelta(hours=1))
        await ctx.yield_output("awake")

    workflow = WorkflowBuilder(name="Sleepy").set_start_executor(Ask).add_edge(Ask, nap).build()
    await (await workflow.start("?", run_id="mine", storage=storage)).driven()
    stranger, host = CheckpointStorage(storage.store), Host(storage, workflow)
    await stranger.respond("mine", {Q: BAD})
    await soon(host.wake_due())
    assert await stored_warnings(storage) == []
    await time.advance(datetime.timedelta(hours=2))
    await soon(host.wake_due())
    assert len(await stored_warnings(storage)) == 1
    await stranger.respond("mine", {Q: GOOD})
    await soon(host.wake_due())
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == ["awake", Vote(3)]


async def test_an_answer_goes_with_a_run_to_another_store(place: Place, stranger: CheckpointStorage) -> None:
    await (await waiting(place.storage, asking(Vote, count=2))).close()
    await stranger.respond("mine", {Q: GOOD, R: BAD}, by="kim")
    other = InMemoryCheckpointStorage()
    await stranger.copy_to(other)
    run = await asking(Vote, count=2).resume(run_id="mine", storage=other)
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.WAITING, [Vote(3)])
    assert "given by 'kim'" in str(result.warnings[0])
    await CheckpointStorage(other.store).respond("mine", {R: GOOD})
    assert (await soon(run.wait_for_completion())).status is RunStatus.COMPLETED


# -- several who answer ----------------------------------------------------------------------------


async def test_the_first_of_many_answers_counts(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage, asking(Vote))
    answers = [stranger.respond("mine", {Q: {"number": number}}) for number in range(10)]
    came = await asyncio.gather(*answers, return_exceptions=True)
    refused = [one for one in came if isinstance(one, RequestAlreadyAnswered)]
    assert len(refused) == 9
    (first,) = [number for number, one in enumerate(came) if not isinstance(one, Exception)]
    assert (await soon(run.wait_for_completion())).outputs == [Vote(first)]


class AskedMeanwhile(Wrapped):
    """A store in which the run asks again right before a letter is left."""

    def __init__(self, inner: Any, go_on: Any) -> None:
        super().__init__(inner)
        self.go_on = go_on

    async def leave(self, *args: Any) -> Any:
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            await go_on()
        return await self.inner.leave(*args)


async def test_an_answer_that_is_left_while_its_request_is_asked_again_is_told_so(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, asking(Vote))
    await stranger.respond("mine", {Q: BAD})

    async def ask_again() -> None:
        assert (await run.wait_for_completion()).status is RunStatus.WAITING

    racing = wrapped(stranger, lambda inner: AskedMeanwhile(inner, ask_again))
    with pytest.raises(RequestAlreadyAnswered):
        await soon(racing.respond("mine", {Q: GOOD}))
    assert await letters_of(place.storage) == []
    await racing.respond("mine", {Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


async def test_an_answer_to_another_run_or_an_old_question(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage, asking(Vote))
    await waiting(place.storage, asking(Line), "other")
    with pytest.raises(InvalidResponse, match="needs 'article'"):
        await stranger.respond("other", {Q: GOOD})
    await stranger.respond("mine", {Q: GOOD})
    await soon(run.wait_for_completion())
    with pytest.raises(RequestAlreadyAnswered):
        await stranger.respond("mine", {Q: GOOD})


# -- letters that cannot be read -------------------------------------------------------------------


async def test_a_damaged_letter_does_not_use_up_the_question(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, asking(Vote))
    head = await head_of(place.storage, "mine")
    asked_by = (await place.storage.list_checkpoints(run_id="mine"))[-1].seq
    letter = Letter(json.dumps(["answer", asked_by, Q]), stored_form(b"\xc1 no MessagePack"))
    assert not (await place.storage.store.leave(head.run_id, head.seq, [letter])).refused
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert "its letter is damaged" in str(run.warnings[-1])
    await stranger.respond("mine", {Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


def other_vote() -> Any:
    """The class of another build: it has the same name and another field."""
    known = Vote

    def make() -> Any:
        @dataclass
        class Vote:
            number: int
            weight: float

        Vote.__qualname__, Vote.__module__ = known.__qualname__, known.__module__
        return Vote

    return make()


async def test_an_answer_of_another_build_that_cannot_be_read_here(place: Place) -> None:
    """Its answers are bytes of which the class here can make nothing."""
    theirs = other_vote()
    run = await waiting(place.storage, asking(Vote))
    elsewhere = CheckpointStorage(place.storage.store)
    await waiting(elsewhere, asking(theirs), "other")  # so that the storage knows their types
    await elsewhere.respond("mine", {Q: theirs(3, 0.5)})
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert isinstance(run.warnings[-1], UnusableAnswer)
    await run.respond({Q: GOOD})
    assert (await soon(run.wait_for_completion())).outputs == [Vote(3)]


async def test_a_request_is_asked_again_with_the_schema_of_now(place: Place) -> None:
    """The class got another field since it was asked: who answers by the old schema could not know."""
    await (await waiting(place.storage, asking(Vote))).close()
    changed = other_vote()
    storage = CheckpointStorage(place.storage.store)
    stranger = CheckpointStorage(place.storage.store)
    await stranger.respond("mine", {Q: GOOD})
    run = await asking(changed).resume(run_id="mine", storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert "needs 'weight'" in str(run.warnings[-1])
    (record,) = await stranger.list_requests()
    assert record.response_schema["required"] == ["number", "weight"]
    with pytest.raises(InvalidResponse, match="needs 'weight'"):
        await stranger.respond("mine", {Q: GOOD})
    await stranger.respond("mine", {Q: {"number": 3, "weight": 0.5}})
    assert (await soon(run.wait_for_completion())).outputs == [changed(3, 0.5)]


# -- crashes ---------------------------------------------------------------------------------------


class Deadly(Wrapped):
    """A store with which the process dies, right before or right after one of its commits."""

    def __init__(self, inner: Any, nth: int, after: bool) -> None:
        super().__init__(inner)
        self.left, self.after = nth, after

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self.left -= 1
        if not self.left and not self.after:
            die()
        letters = await self.inner.commit(commit)
        if not self.left:
            die()
        return letters


def crashing() -> Workflow:
    return asking(Vote, count=2)


def die_over_answers(kind: str, folder: str, nth: int, after: bool) -> None:
    """Go on with a run for which a good and a bad answer were left, and die at a commit."""

    async def main() -> None:
        storage = storage_at(kind, Path(folder))
        storage.catalog.store = Deadly(storage.catalog.store, nth, after)
        run = await crashing().resume(run_id="mine", storage=storage)
        await run.wait_for_completion()
        print("nobody died", flush=True)
        die()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_process_that_dies_over_answers_loses_nothing(kind: str, after: bool, tmp_path: Path) -> None:
    for nth in range(1, 10):
        folder = tmp_path / str(nth)
        folder.mkdir()
        async with storage_at(kind, folder) as storage:
            await waiting(storage, crashing())
            stranger = CheckpointStorage(storage.store)
            await stranger.respond("mine", {Q: {"number": 1}, R: BAD}, by="kim")
        said = killed_by_itself(die_over_answers, kind, str(folder), nth, after)
        async with storage_at(kind, folder) as storage:
            run = await crashing().resume(run_id="mine", storage=storage)
            result = await soon(run.wait_for_completion())
            assert (result.status, result.outputs) == (RunStatus.WAITING, [Vote(1)])
            assert [one.request_id for one in await storage.list_requests()] == [R]
            assert len(await stored_warnings(storage)) == 1
            await CheckpointStorage(storage.store).respond("mine", {R: GOOD})
            assert (await soon(run.wait_for_completion())).outputs == [Vote(1), Vote(3)]
            assert (await storage.verify()).ok
        if said:
            assert nth > 3, "it dies before and after more than one commit"
            break
    else:
        raise AssertionError("the run never came to rest")


# -- looking without the types ---------------------------------------------------------------------


async def test_a_store_with_refused_answers_is_looked_at_without_the_types(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, asking(Vote, count=2))
    await stranger.respond("mine", {Q: BAD, R: GOOD})
    await soon(run.wait_for_completion())
    made = await stranger.list_checkpoints(run_id="mine")
    for one in made:
        plain = await stranger.load(one, plain=True)
        json.dumps(plain.to_dict())
        for other in made:
            str(await stranger.diff(one, other))
    assert "request" in await stranger.draw_tree("mine")
    (record,) = await stranger.list_requests()
    json.dumps(record.to_dict())
