"""The difference of two checkpoints of any runs and branches, and what it costs to tell it."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import (
    CheckpointCorrupt,
    CheckpointDiff,
    CheckpointNotFound,
    CheckpointStorage,
    Difference,
    Executor,
    InMemoryCheckpointStorage,
    RequestInfoExecutor,
    Run,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import Place, Wrapped
from tests.support.modules import comparison as planning
from tests.support.modules import tree_diff as parts
from tests.support.parts import Digest, RunId
from tests.support.runs import soon
from tests.support.small_limits import small_limits
from tests.unit.test_codec_exact import exact

# -- workflows that leave something to compare -----------------------------------------------------


@dataclass
class Report:
    priority: str
    rows: list[int]


class Triage(Executor):
    """Keeps something in every way there is, asks, and gives out what it is told."""

    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def triage(self, service: str, ctx: WorkflowContext[None, str]) -> None:
        self.seen += 1
        await ctx.set_state({"service": service})
        await ctx.queue_state_update("mine", service)
        await ctx.queue_state_update("report", Report("P3", [1, 2, 3]), scope_name="Reports")
        await ctx.queue_state_update("log", "".join(f"line {n}\n" for n in range(1000)), scope_name="Logs")
        await ctx.request_info(Report("P3", [1]), response_type=str)

    @response_handler
    async def answered(self, asked: Report, answer: str, ctx: WorkflowContext[None, str]) -> None:
        self.seen += 1
        await ctx.set_state({"service": answer})
        await ctx.clear_state("mine")
        await ctx.queue_state_update("report", Report("P0", [1, 3, 4]), scope_name="Reports")
        log = await ctx.read_state("log", scope_name="Logs")
        await ctx.queue_state_update("log", log.replace("line 500\n", "error\n"), scope_name="Logs")
        await ctx.yield_output(answer)


def triage() -> Workflow:
    return WorkflowBuilder(name="Triage").set_start_executor(Triage).build()


async def answered(storage: CheckpointStorage, answer: str = "checkout", run_id: str = "r1") -> Run:
    run = await triage().start("search", run_id=run_id, storage=storage)
    await soon(run.wait_for_completion())
    await run.send_response(run.pending_requests[0].request_id, answer)
    await soon(run.wait_for_completion())
    return run


def doing(steps: Sequence[list[Any]]) -> Workflow:
    """Does to state what is said, one superstep after the other."""

    @executor
    async def do(number: int, ctx: WorkflowContext[int]) -> None:
        for what, key, value in steps[number]:
            if what == "put":
                await ctx.queue_state_update(key, value, scope_name="S")
            elif what == "append":
                await ctx.append_state(key, value, scope_name="S")
            else:
                await ctx.clear_state(key, scope_name="S")
        if number + 1 < len(steps):
            await ctx.send_message(number + 1)

    return WorkflowBuilder(name="Do").set_start_executor(do).add_edge(do, do).build()


async def done(storage: CheckpointStorage, *steps: list[Any], run_id: str | None = None) -> Run:
    run = await doing(steps).start(0, storage=storage, run_id=run_id)
    await soon(run.wait_for_completion())
    return run


async def forked(
    storage: CheckpointStorage, made: Any, *steps: list[Any], edits: Any = None, run_id: str | None = None
) -> Run:
    run = await doing(steps).fork(made, edits=edits or {}, run_id=run_id, storage=storage)
    await soon(run.wait_for_completion())
    return run


def puts(**values: Any) -> list[Any]:
    return [["put", key, value] for key, value in values.items()]


async def of_states(storage: CheckpointStorage, old: Any, new: Any) -> Difference | None:
    """The difference of two values of one key."""
    run = await done(storage, puts(x=old), puts(x=new))
    diff = await storage.diff(run.checkpoints[1], run.checkpoints[3])
    assert len(diff.state) < 2
    return diff.state[0] if diff.state else None


def places(found: tuple[Difference, ...]) -> list[tuple[str, Any]]:
    return [(one.kind, one.place) for one in found]


# -- what is told ----------------------------------------------------------------------------------

TOLD = """\
--- run r1, checkpoint 2, end 1, waiting
+++ run r1, checkpoint 4, end 2, completed
state
  ~ Logs['log']: str, 8.9 kB -> 8.9 kB
    @@ -498,7 +498,7 @@
     line 497
     line 498
     line 499
    -line 500
    +error
     line 501
     line 502
     line 503
  ~ Reports['report']: Report, 34 B -> 34 B
    ~ .priority: 'P3' -> 'P0'
    - .rows[1]: 2
    + .rows[2]: 4
executor states
  ~ Triage.seen: 1 -> 2
  - Triage['mine']: 'search'
  ~ state of Triage: dict, 16 B -> 18 B
    ~ ['service']: 'search' -> 'checkout'
pending requests
  - Triage.1.1 of Triage: Report(priority='P3', rows=[1])
outputs
  + [0] of Triage: 'checkout'"""


async def test_everything_that_differs_is_told(place: Place) -> None:
    run = await answered(place.storage)
    storage = await place.reopened()
    _, waiting, response, end = run.checkpoints
    diff = await storage.diff(waiting.checkpoint_id, end)
    assert str(diff) == TOLD, "also where no workflow has declared its types"
    assert places(diff.executor_states) == [
        ("changed", ("Triage", "field", "seen")),
        ("removed", ("Triage", "private", "mine")),
        ("changed", ("Triage", "state", "state")),
    ]
    assert places(diff.pending_requests) == [("removed", ("Triage.1.1", "Triage"))]
    assert places(diff.outputs) == [("added", (0, "Triage"))]
    diff = await storage.diff(waiting, response)
    assert str(diff).splitlines()[2:] == [
        "messages",
        "  + response to 'Triage.1.1' -> Triage: 'checkout'",
        "pending requests",
        "  - Triage.1.1 of Triage: Report(priority='P3', rows=[1])",
    ]
    assert places(diff.messages) == [("added", ("Triage", None, "Triage.1.1"))]


async def test_values_of_types_that_are_not_declared_stand_for_themselves(place: Place) -> None:
    run = await answered(place.storage)
    waiting, end = run.checkpoints[1], run.checkpoints[3]
    (known,) = [one for one in (await place.storage.diff(waiting, end)).state if one.place[0] == "Reports"]
    assert (known.old, known.new) == (Report("P3", [1, 2, 3]), Report("P0", [1, 3, 4]))
    storage = await place.reopened()
    (found,) = [one for one in (await storage.diff(waiting, end)).state if one.place[0] == "Reports"]
    assert repr(found.new) == "<Report, 34 B>"
    assert found.after is not None
    assert not found.after.is_read
    assert [str(part) for part in found.parts] == [str(part) for part in known.parts]


async def test_nothing_differs_between_a_checkpoint_and_itself_or_an_end_and_the_next_start() -> None:
    storage = InMemoryCheckpointStorage()
    run = await done(storage, puts(a=1), puts(a=2))
    for one in run.checkpoints:
        diff = await storage.diff(one, one.checkpoint_id)
        assert not diff
        assert diff == CheckpointDiff(one, one)
    diff = await storage.diff(run.checkpoints[1], run.checkpoints[2])
    assert not diff
    assert str(diff).splitlines() == [
        f"--- run {run.run_id}, checkpoint 2, end 1",
        f"+++ run {run.run_id}, checkpoint 3, start 2",
        "nothing differs in what they hold",
    ]


async def test_forks_and_branches_are_compared_across_runs(place: Place) -> None:
    storage = place.storage
    steps = [puts(a=1, log="x" * 10_000), puts(a=2)]
    run = await done(storage, *steps, run_id="r1")
    fork = await forked(storage, run.checkpoints[2], *steps, edits={("S", "b"): 5}, run_id="r2")
    left = run.checkpoints[-1]
    await run.restore_checkpoint(run.checkpoints[0])
    await soon(run.wait_for_completion())
    before = storage.counters.blobs_read
    diff = await storage.diff(left, fork.checkpoints[-1])
    assert str(diff).splitlines() == [
        "--- run r1, checkpoint 4, end 2, completed",
        "+++ run r2, checkpoint 3, end 2, completed",
        "(of different runs of workflow Do)",
        "state",
        "  + S['b']: 5",
    ]
    assert not await storage.diff(left, run.checkpoints[-1]), "two branches came to the same"
    assert storage.counters.blobs_read == before


async def test_runs_of_different_workflows_are_compared() -> None:
    storage = InMemoryCheckpointStorage()
    run = await answered(storage)
    other = await done(storage, puts(a=1), run_id="r2")
    diff = await storage.diff(other.checkpoints[0], run.checkpoints[0])
    assert str(diff).splitlines()[2:] == [
        "(of different workflows: Do and Triage)",
        "messages",
        "  + -> Triage: 'search'",
        "  - -> do: 0",
        "graph",
        "  workflow 'Do' and workflow 'Triage'",
    ]


async def test_what_a_fan_in_holds_and_who_gets_what_is_compared() -> None:
    @executor
    async def start(number: int) -> int:
        return number

    @executor
    async def fast(number: int) -> int:
        return number

    @executor
    async def slow(number: int, ctx: WorkflowContext[int]) -> int:
        return number

    @executor
    async def slower(number: int) -> int:
        return number + 1

    @executor
    async def join(numbers: list[int]) -> list[int]:
        return numbers

    builder = WorkflowBuilder(name="Join").set_start_executor(start).add_fan_out_edges(start, [fast, slow])
    workflow = builder.add_edge(slow, slower).add_fan_in_edges([fast, slower], join).build()
    storage = InMemoryCheckpointStorage()
    runs = [await workflow.start(number, storage=storage, run_id=f"r{number}") for number in (1, 2)]
    for run in runs:
        await soon(run.wait_for_completion())
    one, other = (run.checkpoints for run in runs)
    assert str(await storage.diff(one[2], one[3])).splitlines()[2:] == [
        "messages",
        "  - start -> fast: 1",
        "  - start -> slow: 1",
        "  + slow -> slower: 1",
        "fan-ins",
        "  + 'fast', 'slower' -> 'join', from fast: 1",
    ]
    diff = await storage.diff(one[3], other[3])
    assert str(diff).splitlines()[3:] == [
        "messages",
        "  ~ slow -> slower: 1 -> 2",
        "fan-ins",
        "  ~ 'fast', 'slower' -> 'join', from fast: 1 -> 2",
    ]
    assert diff.fan_ins[0].place == ("'fast', 'slower' -> 'join'", "fast")


async def test_messages_are_told_apart_by_who_sent_them_and_their_order_counts() -> None:
    class Send(Executor):
        @handler
        async def send(self, numbers: list[int], ctx: WorkflowContext[int]) -> None:
            for number in numbers:
                await ctx.send_message(number)

    @executor
    async def take(number: int) -> None: ...

    workflow = WorkflowBuilder(name="Send").set_start_executor(Send).add_edge(Send, take).build()
    storage = InMemoryCheckpointStorage()

    async def sent(*numbers: int) -> Any:
        run = await workflow.start(list(numbers), storage=storage)
        await soon(run.wait_for_completion())
        return run.checkpoints[1]

    async def told(one: Any, other: Any) -> list[str]:
        return [str(found) for found in (await storage.diff(one, other)).messages]

    one = await sent(1, 2, 3)
    assert await told(one, await sent(1, 2, 3)) == []
    assert await told(one, await sent(1, 7, 3)) == ["~ Send -> take: 2 -> 7"]
    assert await told(one, await sent(1, 3)) == ["- Send -> take: 2"]
    assert await told(one, await sent(1, 2, 2, 3)) == ["+ Send -> take: 2"]
    came, went = sorted(await told(one, await sent(2, 1, 3)))
    assert came.replace("+", "-") == went, "one of the two has moved"


async def test_what_nested_workflows_hold_is_under_their_path() -> None:
    @executor
    async def note(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.queue_state_update("number", number, scope_name="Notes")
        await ctx.set_state(number)
        await ctx.send_message(number)

    ask = RequestInfoExecutor(id="ask", response_type=int)
    inner = WorkflowBuilder(name="Inner").set_start_executor(note).add_edge(note, ask).build()
    outer = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="legal")).build()
    storage = InMemoryCheckpointStorage()
    run = await outer.start(1, storage=storage)
    await soon(run.wait_for_completion())
    diff = await storage.diff(run.checkpoints[0], run.checkpoints[-1])
    assert places(diff.state) == [("added", ("legal#1/Notes", "number"))]
    assert places(diff.executor_states) == [("added", ("legal#1/note", "state", "state"))]
    assert [one.place[1] for one in diff.pending_requests] == ["legal#1/ask"]


async def test_a_request_whose_answer_has_another_type_differs() -> None:
    def asking(form: type) -> Workflow:
        ask = RequestInfoExecutor(id="ask", response_type=form)
        return WorkflowBuilder(name="Ask").set_start_executor(ask).build()

    storage = InMemoryCheckpointStorage()
    results = [await asking(form).run("fine?", storage=storage, run_id=form.__name__) for form in (bool, int)]
    one, other = [await storage.get_latest(run_id=result.run_id) for result in results]
    assert one is not None
    assert other is not None
    (found,) = (await storage.diff(one, other)).pending_requests
    assert [str(part) for part in found.parts] == ["~ type of the answer: bool -> int"]
    assert (found.parts[0].old, found.parts[0].new) == (bool, int)


async def test_a_type_of_answers_that_is_not_declared_is_told_all_the_same() -> None:
    storage = InMemoryCheckpointStorage()
    made: list[Any] = []
    for form in (Report, int):
        ask = RequestInfoExecutor(id="ask", response_type=form)
        workflow = WorkflowBuilder(name="Ask").set_start_executor(ask).build()
        result = await workflow.run("fine?", storage=storage)
        made.append(await storage.get_latest(run_id=result.run_id))
    (found,) = (await CheckpointStorage(storage.store).diff(*made)).pending_requests
    (part,) = map(str, found.parts)  # how the class is called depends on what else the program has registered
    assert part.startswith("~ type of the answer: ")
    assert part.endswith(" -> int")


async def test_a_graph_that_changed_is_told() -> None:
    ask = RequestInfoExecutor(id="ask", response_type=str)

    @executor
    async def notify(text: str) -> None: ...

    storage = InMemoryCheckpointStorage()
    before = WorkflowBuilder(name="Ask").set_start_executor(ask).build()
    after = WorkflowBuilder(name="Ask").set_start_executor(ask).add_edge(ask, notify).build()
    result = await before.run("fine?", storage=storage, run_id="r1")
    run = await after.resume(run_id=result.run_id, storage=storage, allow_graph_change=True)
    await soon(run.wait_for_completion())
    *_, old, new = await storage.list_checkpoints(run_id="r1")
    diff = await storage.diff(old, new)
    assert diff
    assert not any(diff.sections.values())
    assert diff.graph == ("executor 'notify' was added", "edge 'ask' -> 'notify' was added")


# -- exactly ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (1, True, "~ S['x']: 1 -> True"),
        (1, 1.0, "~ S['x']: 1 -> 1.0"),
        (0.0, -0.0, "~ S['x']: 0.0 -> -0.0"),
        (math.nan, math.nan, None),
        ([math.nan, -0.0, 1], [math.nan, -0.0, 1], None),
        ([1], (1,), "~ S['x']: [1] -> (1,)"),
        ("", [], "~ S['x']: '' -> []"),
        ({"a": 1}, {"a": True}, "~ S['x']: dict, 4 B -> 4 B\n  ~ ['a']: 1 -> True"),
        ("a" * 99, "a" * 98 + "b", f"~ S['x']: '…{'a' * 21}' -> '…{'a' * 20}b'"),
        ("a\x1b[2J\nb\n", "a\x1b[2J\nc\n", "~ S['x']: str, 9 B -> 9 B\n  @@ -1,2 +1,2 @@\n   a\\x1b[2J\n  -b\n  +c"),
    ],
)  # fmt: skip
async def test_values_are_compared_exactly(old: Any, new: Any, told: str | None) -> None:
    found = await of_states(InMemoryCheckpointStorage(), old, new)
    assert (found and str(found)) == told


async def test_the_difference_is_data_for_json(place: Place) -> None:
    run = await answered(place.storage)
    await done(place.storage, puts(a=math.inf, b=[1, {"c": None}], c={1: 2}, d="\ud800", e=b"x"), run_id="r2")
    last = await place.storage.get_latest(run_id="r2")
    assert last is not None
    for one, other in [(run.checkpoints[0], run.checkpoints[3]), (run.checkpoints[1], last)]:
        told = json.loads(json.dumps((await place.storage.diff(one, other)).to_dict(), allow_nan=False))
        assert told["checkpoint_a"]["checkpoint_id"] == one.checkpoint_id
        assert told["checkpoint_b"]["run_id"] == other.run_id
    values = {entry["place"][1]: entry["new"] for entry in told["state"] if entry["kind"] == "added"}
    assert values["b"]["value"] == [1, {"c": None}]
    assert {key: value["text"] for key, value in values.items() if "value" not in value} == {
        "a": "inf",
        "c": "{1: 2}",
        "d": "'\\ud800'",
        "e": "b'x'",
    }


async def test_what_is_said_of_many_differences_is_bounded() -> None:
    storage = InMemoryCheckpointStorage()
    many = {f"k{number}": number for number in range(500)}
    run = await done(storage, puts(x=list(range(3000))), puts(x=list(range(3000, 6000)), **many))
    diff = await storage.diff(run.checkpoints[1], run.checkpoints[3])
    assert len(diff.state) == 501
    assert len(diff.state[-1].parts) == parts.MOST
    assert not diff.state[-1].complete
    assert len(str(diff.state[-1]).splitlines()) < 50
    assert str(diff).splitlines()[-3:] == ["  ... and 451 more", "messages", "  - do -> do: 1"]


# -- what is read ----------------------------------------------------------------------------------


async def read_for(storage: CheckpointStorage, one: Any, other: Any) -> tuple[CheckpointDiff, int]:
    """The difference, and how many blobs were read for it."""
    before = storage.counters.blobs_read
    diff = await storage.diff(one, other)
    return diff, storage.counters.blobs_read - before


async def test_a_value_that_both_have_costs_nothing() -> None:
    storage = InMemoryCheckpointStorage()
    run = await done(storage, puts(log="error\n" * (50_000_000 // 6), a=1), puts(a=2))
    fork = await forked(storage, run.checkpoints[3], edits={("S", "a"): 3})
    for other in (run.checkpoints[3], fork.latest_checkpoint):
        diff, read = await read_for(storage, run.checkpoints[1], other)
        assert [one.place for one in diff.state] == [("S", "a")]
        assert read == 0
    again = await done(storage, puts(log="error\n" * (50_000_000 // 6)))
    diff, read = await read_for(storage, run.checkpoints[3], again.checkpoints[1])
    assert [(one.kind, one.place) for one in diff.state] == [("removed", ("S", "a"))]
    assert read == 0, "of another family: the blob has the same name there"


async def test_of_a_big_value_that_grew_only_the_end_is_read() -> None:
    storage = InMemoryCheckpointStorage()
    log = "".join(f"line {number}\n" for number in range(200_000))
    run = await done(
        storage,
        [*puts(log=log), ["append", "items", ["x" * 2_000_000]]],
        [["append", "log", "last\nof all\n"], ["append", "items", 1]],
        [["append", "items", "y" * 5000]],
    )
    first, second, third = (run.checkpoints[index] for index in (1, 3, 5))
    diff, read = await read_for(storage, first, second)
    items, text = diff.state
    assert read == 0
    assert text.lines == ("@@ at the end @@", "+last", "+of all")
    assert [(part.kind, part.new) for part in text.parts] == [("appended", "last\nof all\n")]
    assert [(part.kind, part.new) for part in items.parts] == [("appended", [1])]
    assert str(items).splitlines()[1:] == ["  + at the end: [1]"]
    assert str(text).splitlines()[1:] == ["  @@ at the end @@", "  +last", "  +of all"]
    assert repr(text.new) == "<str, 2.3 MB>"

    diff, read = await read_for(storage, third, second)
    assert read == 1
    assert [(part.kind, part.old) for part in diff.state[0].parts] == [("cut", ["y" * 5000])]

    fork = await forked(storage, run.checkpoints[2], [], [["append", "log", "other\n"]])
    diff, read = await read_for(storage, second, fork.latest_checkpoint)
    assert read == 0
    (text,) = [one for one in diff.state if one.place[1] == "log"]
    assert text.lines == ("@@ at the end @@", "-last", "-of all", "+other")


@pytest.mark.parametrize("whole", [parts.WHOLE, 30], ids=["whole values", "their ends"])
async def test_how_a_value_came_to_be_makes_no_difference(
    whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that was cut into other pieces, by other supersteps and by keyframes, is still the same."""
    monkeypatch.setattr(planning, "WHOLE", whole)
    items = [{"turn": turn, "text": "x" * 40} for turn in range(12)]
    texts = [f"{turn}\n" * 20 for turn in range(12)]
    steps = [[["append", "items", items[turn]], ["append", "text", texts[turn]]] for turn in range(1, 12)]
    whole_text = "".join(texts)
    with small_limits():
        storage = InMemoryCheckpointStorage()
        grown = await done(storage, puts(items=items[:1], text=texts[0]), *steps)
        other = await done(
            storage, puts(items=items[:5], text=whole_text[:500]), puts(items=items, text=whole_text)
        )
        assert not await storage.diff(grown.checkpoints[-1], other.checkpoints[-1])
        assert not await storage.diff(other.checkpoints[-1], grown.checkpoints[-1])
        assert len((await storage.diff(grown.checkpoints[-3], other.checkpoints[-1])).state) == 2


async def test_a_blob_that_both_need_is_read_once() -> None:
    storage = InMemoryCheckpointStorage()
    one, other = [
        await done(storage, [["append", "x", "y" * 5000]], [["append", "x", number]]) for number in (1, 2)
    ]
    diff, read = await read_for(storage, one.checkpoints[-1], other.checkpoints[-1])
    assert [str(part) for part in diff.state[0].parts] == ["~ [1]: 1 -> 2"]
    assert read == 1


async def test_a_big_value_that_is_new_is_not_read_but_one_that_changed_is() -> None:
    storage = InMemoryCheckpointStorage()
    log = [f"line {number}\n" for number in range(150_000)]
    run = await done(
        storage, puts(a=1), puts(log="".join(log)), puts(log="".join(log).replace("line 70000\n", ""))
    )
    diff, read = await read_for(storage, run.checkpoints[1], run.checkpoints[3])
    assert read == 0
    assert str(diff.state[0]) == "+ S['log']: <str, 1.7 MB>"
    diff, read = await read_for(storage, run.checkpoints[3], run.checkpoints[5])
    assert read == 2
    assert diff.state[0].lines[0] == "@@ -69998,7 +69998,6 @@"
    assert diff.state[0].lines[4] == "-line 70000"
    assert repr(diff.state[0].new) == "<str, 1.7 MB>"


async def test_values_that_are_too_big_together_are_said_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LARGEST", 20_000)
    storage = InMemoryCheckpointStorage()
    run = await done(storage, puts(x="a" * 15_000), puts(x="b" * 15_000))
    diff, read = await read_for(storage, run.checkpoints[1], run.checkpoints[3])
    assert read == 0
    assert str(diff.state[0]).splitlines() == [
        "~ S['x']: <str, 15.0 kB> -> <str, 15.0 kB> (not the same)",
        "  too big to be compared part by part",
    ]


async def test_many_values_are_read_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_BATCH", 50_000)
    storage = InMemoryCheckpointStorage()
    texts = {f"k{number:02}": str(number) * 5000 for number in range(40)}
    run = await done(storage, puts(**texts), puts(**{key: f"{text}!" for key, text in texts.items()}))
    diff, read = await read_for(storage, run.checkpoints[1], run.checkpoints[3])
    assert [one.new for one in diff.state] == [f"{text}!" for text in texts.values()]
    assert read == 40, "what they begin with is the same, and their ends stand in the records"


# -- what goes wrong -------------------------------------------------------------------------------


async def test_a_checkpoint_that_is_not_there_is_refused() -> None:
    storage = InMemoryCheckpointStorage()
    run = await done(storage, puts(a=1))
    with pytest.raises(CheckpointNotFound, match="'nothing'"):
        await storage.diff(run.checkpoints[0], "nothing")
    with pytest.raises(WrongType, match="a checkpoint is given by its id"):
        await storage.diff(1, run.checkpoints[0])  # type: ignore[arg-type]


async def test_a_blob_that_is_missing_is_told_only_if_it_is_needed() -> None:
    class Forgetful(Wrapped):
        async def blobs(self, family: RunId, digests: list[Digest]) -> dict[Digest, bytes]:
            return {}

    storage = InMemoryCheckpointStorage()
    run = await done(storage, puts(x="a" * 9000, a=1), puts(a=2), puts(x="b" * 9000))
    damaged = CheckpointStorage(Forgetful(storage.store))  # type: ignore[arg-type]
    assert [one.new for one in (await damaged.diff(run.checkpoints[1], run.checkpoints[3])).state] == [2]
    with pytest.raises(CheckpointCorrupt, match=r"blob [0-9a-f]+ is missing"):
        await damaged.diff(run.checkpoints[1], run.checkpoints[5])


# -- any two checkpoints of random runs ------------------------------------------------------------

TEXTS = st.text("ab\n", max_size=4).map(lambda text: text * 20)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from([0.0, -0.0, math.nan]), TEXTS, st.just("\ud800")
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("ab"), VALUES),
    st.tuples(st.just("append"), st.just("list"), VALUES),
    st.tuples(st.just("append"), st.just("text"), TEXTS),
    st.tuples(st.just("put"), st.just("list"), st.lists(VALUES, max_size=4)),
    st.tuples(st.just("put"), st.just("text"), TEXTS),
    st.tuples(st.just("clear"), st.sampled_from(["a", "list", "text"]), st.none()),
)
STEP = st.lists(OPERATIONS.map(list), max_size=3, unique_by=lambda operation: operation[1])
STEPS = st.lists(STEP, min_size=2, max_size=6)
MIRRORED = {"added": "removed", "removed": "added", "appended": "cut", "cut": "appended"}


def led_there(found: Difference, old: Any) -> Any:
    """The value that a difference leads to; where it was not given, by what was cut and appended."""
    assert found.after is not None
    if found.after.is_read:
        return found.new
    for part in found.parts:
        if part.kind == "cut":
            old = old[: len(old) - len(part.old)]
        else:
            assert part.kind == "appended"
            old = old + part.new
    return old


async def is_right(storage: CheckpointStorage, one: Any, other: Any) -> None:
    there, back = await storage.diff(one, other), await storage.diff(other, one)
    before, after = [dict((await storage.load(made)).scopes.get("S", {})) for made in (one, other)]
    for found in there.state:
        key = found.place[1]
        if found.kind == "removed":
            del before[key]
        elif found.kind == "added":
            before[key] = found.new if found.after is not None and found.after.is_read else after[key]
        else:
            before[key] = led_there(found, before[key])
    assert exact(dict(sorted(before.items()))) == exact(dict(sorted(after.items())))
    mirrored = [(MIRRORED.get(entry.kind, entry.kind), entry.place) for entry in back.state]
    assert mirrored == places(there.state)
    assert [(exact(entry.old), exact(entry.new)) for entry in there.state if entry.parts == ()] == [
        (exact(entry.new), exact(entry.old)) for entry in back.state if entry.parts == ()
    ]
    assert bool(there) == bool(back)
    assert not await storage.diff(one, one)
    json.dumps(there.to_dict(), allow_nan=False)
    assert str(there)


@pytest.mark.parametrize("whole", [parts.WHOLE, 30], ids=["whole values", "their ends"])
def test_the_difference_leads_from_one_checkpoint_to_the_other(
    whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of values cut into pieces, in blobs and in records, on branches and in forks."""
    monkeypatch.setattr(planning, "WHOLE", whole)

    async def check(steps: list[Any], others: list[Any], picks: tuple[int, int]) -> None:
        storage = InMemoryCheckpointStorage()
        run = await done(storage, *steps)
        fork = await forked(storage, run.checkpoints[picks[0] % len(run.checkpoints)], *steps)
        other = await done(storage, *others)
        made = [*run.checkpoints, *fork.checkpoints, *other.checkpoints]
        one = made[picks[0] % len(made)]
        for pick in (picks[1], picks[1] + 1, -1):
            await is_right(storage, one, made[pick % len(made)])

    with asyncio.Runner() as runner, small_limits():

        @given(STEPS, STEPS, st.tuples(st.integers(0, 30), st.integers(0, 30)))
        @settings(max_examples=25)
        def checked(steps: list[Any], others: list[Any], picks: tuple[int, int]) -> None:
            runner.run(check(steps, others, picks))

        checked()
