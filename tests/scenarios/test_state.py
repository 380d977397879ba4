"""State as handlers see it: scopes, isolation until the barrier, merges, appends, and values that never leak."""

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from holdfast import (
    Executor,
    Merge,
    StateConflict,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    executor,
    handler,
)
from tests.support.runs import cause_of_failure, events_of, warnings_of

Work = Callable[[WorkflowContext], Awaitable[None]]
SCOPE = "Scope"


class Step(Executor):
    """Does what it is told, then sends its message on."""

    def __init__(self, id: str, work: Work) -> None:
        super().__init__(id)
        self.work = work

    @handler
    async def step(self, message: str, ctx: WorkflowContext[str]) -> str:
        await self.work(ctx)
        return message


async def nothing(ctx: WorkflowContext) -> None: ...


class Look(Executor):
    """Yields what a reader sees."""

    def __init__(self, id: str, look: Callable[[WorkflowContext], Awaitable[Any]]) -> None:
        super().__init__(id)
        self.look = look

    @handler
    async def report(self, message: str, ctx: WorkflowContext) -> None:
        await ctx.yield_output(await self.look(ctx))

    @handler
    async def report_once(self, messages: list, ctx: WorkflowContext) -> None:
        await ctx.yield_output(await self.look(ctx))


def sequence(*works: Work, look: Callable[[WorkflowContext], Awaitable[Any]]) -> Workflow:
    """Each of the works in a superstep and an executor of its own, one after the other."""
    steps = [Step.bind(id=f"step{number}", work=work) for number, work in enumerate(works)]
    reader = Look.bind(id="look", look=look)
    return WorkflowBuilder().set_start_executor(steps[0]).add_chain([*steps, reader]).build()


def siblings(builder: WorkflowBuilder, before: Work, *works: Work, look: Any = None) -> Workflow:
    """``before`` in one superstep, then all works in the next, then one reader."""
    first = Step.bind(id="before", work=before)
    named = [Step.bind(id=name, work=work) for name, work in zip("abcdefgh", works, strict=False)]
    join = Look.bind(id="look", look=look or (lambda ctx: ctx.read_state("key", scope_name=SCOPE)))
    return (
        builder.set_start_executor(first)
        .add_fan_out_edges(first, named)
        .add_fan_in_edges(named, join)
        .build()
    )


def put(value: Any, key: Any = "key", scope_name: str | None = SCOPE) -> Work:
    async def work(ctx: WorkflowContext) -> None:
        await ctx.queue_state_update(key, value, scope_name=scope_name)

    return work


def append(*items: Any, key: str = "key", scope_name: str | None = SCOPE) -> Work:
    async def work(ctx: WorkflowContext) -> None:
        for item in items:
            await ctx.append_state(key, item, scope_name=scope_name)

    return work


def clear(key: str | None = "key", scope_name: str | None = SCOPE) -> Work:
    async def work(ctx: WorkflowContext) -> None:
        await ctx.clear_state(key, scope_name=scope_name)

    return work


def read(key: str = "key", scope_name: str | None = SCOPE) -> Callable[[WorkflowContext], Awaitable[Any]]:
    async def look(ctx: WorkflowContext) -> Any:
        return await ctx.read_state(key, scope_name=scope_name)

    return look


async def outputs(workflow: Workflow) -> list[Any]:
    return (await workflow.run("go")).outputs


# -- scopes ----------------------------------------------------------------------------------------


async def test_shared_scope_is_seen_by_all() -> None:
    assert await outputs(sequence(put("value"), nothing, look=read())) == ["value"]


async def test_private_scope_is_seen_by_its_owner_only() -> None:
    assert await outputs(sequence(put("value", scope_name=None), look=read(scope_name=None))) == [None]


async def test_scopes_do_not_mix() -> None:
    async def write(ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("key", "private")
        await ctx.queue_state_update("key", "one", scope_name="One")
        await ctx.set_state("own")
        await ctx.set_shared_state("key", "default")

    async def look(ctx: WorkflowContext) -> list[Any]:
        return [
            await ctx.read_state("key"),
            await ctx.get_state(),
            await ctx.read_state("key", scope_name="One"),
            await ctx.get_shared_state("key"),
            await ctx.read_state("key", scope_name="Two"),
        ]

    assert await outputs(sequence(write, look=look)) == [[None, None, "one", "default", None]]


async def test_private_state_lasts_and_is_kept_apart_by_executor() -> None:
    class Count(Executor):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int]) -> int | None:
            seen = await ctx.read_state("seen", default=0)
            own = await ctx.get_state() or []
            await ctx.queue_state_update("seen", seen + 1)
            await ctx.set_state([*own, number])
            if number == 0:
                await ctx.yield_output((ctx.executor_id, seen, own))
                return None
            return number - 1

    workflow = (
        WorkflowBuilder()
        .set_start_executor(Count.bind(id="ping"))
        .add_edge("ping", Count.bind(id="pong"))
        .add_edge("pong", "ping")
        .build()
    )
    assert await outputs_of(workflow, 5) == [("pong", 2, [4, 2])]
    assert await outputs_of(workflow, 4) == [("ping", 2, [4, 2])], "nothing is left of the run before"


async def outputs_of(workflow: Workflow, message: object) -> list[Any]:
    return (await workflow.run(message)).outputs


async def test_two_concurrent_runs_share_nothing() -> None:
    class Count(Executor):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int, int]) -> int | None:
            await ctx.append_state("numbers", number, scope_name=SCOPE)
            if number % 10 == 0:
                await ctx.yield_output(len(await ctx.read_state("numbers", scope_name=SCOPE)))
                return None
            return number - 1

    workflow = WorkflowBuilder().set_start_executor(Count).add_edge(Count, Count).build()
    runs = [await workflow.start(number) for number in (3, 17)]
    results = [await run.wait_for_completion() for run in runs]
    assert [result.outputs for result in results] == [[4], [8]]


# -- own writes and isolation ----------------------------------------------------------------------


async def test_read_your_own_writes() -> None:
    async def look(ctx: WorkflowContext) -> list[Any]:
        seen = []

        async def note() -> None:
            seen.append((await ctx.read_state("key", scope_name=SCOPE), await ctx.read_state_keys(SCOPE)))

        await note()
        await put("new")(ctx)
        await note()
        await clear()(ctx)
        await note()
        await append(1, 2)(ctx)
        await note()
        await put("text")(ctx)
        await append("ual")(ctx)
        await note()
        await put(5, key="other")(ctx)
        await note()
        await clear(None)(ctx)
        await note()
        return seen

    assert await outputs(sequence(put("old"), look=look)) == [
        [
            ("old", ["key"]),
            ("new", ["key"]),
            (None, []),
            ([1, 2], ["key"]),
            ("textual", ["key"]),
            ("textual", ["key", "other"]),
            (None, []),
        ]
    ]


async def test_own_write_is_seen_by_the_next_message_of_the_same_turn() -> None:
    @executor
    async def send(count: int, ctx: WorkflowContext[str]) -> None:
        for number in range(count):
            await ctx.send_message(str(number))

    @executor
    async def collect(text: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("all", (await ctx.read_state("all", "")) + text)
        await ctx.yield_output(await ctx.read_state("all"))

    workflow = WorkflowBuilder().set_start_executor(send).add_edge(send, collect).build()
    assert await outputs_of(workflow, 3) == ["0", "01", "012"]


async def test_siblings_see_the_last_committed_value_until_the_barrier() -> None:
    seen: dict[str, list[Any]] = {}

    def write_and_look(name: str) -> Work:
        async def work(ctx: WorkflowContext) -> None:
            await ctx.queue_state_update(name, name, scope_name=SCOPE)
            await ctx.append_state("log", name, scope_name=SCOPE)
            seen[name] = [
                await ctx.read_state_keys(SCOPE),
                await ctx.read_state("a", scope_name=SCOPE),
                await ctx.read_state("b", scope_name=SCOPE),
                await ctx.read_state("log", scope_name=SCOPE),
            ]

        return work

    workflow = siblings(
        WorkflowBuilder(),
        put("old", key="a"),
        write_and_look("a"),
        write_and_look("b"),
        look=lambda ctx: ctx.read_state_keys(SCOPE),
    )
    assert await outputs(workflow) == [["a", "b", "log"]]
    assert seen == {
        "a": [["a", "log"], "a", None, ["a"]],
        "b": [["a", "b", "log"], "old", "b", ["b"]],
    }


async def test_writes_of_a_failed_superstep_are_not_there() -> None:
    async def fail(ctx: WorkflowContext) -> None:
        raise RuntimeError("no")

    run = await siblings(WorkflowBuilder(), put("old"), put("new"), fail).start("go")
    with pytest.raises(Exception, match="executor 'b' failed"):
        await run.wait_for_completion()
    assert run.snapshot.superstep == 1
    assert [value.load() for keys in run.snapshot.state.values() for value in keys.values()] == ["old"]


ADDED = StateKey("key", object, SCOPE, merge=Merge.ADD)
LAST = StateKey("key", object, SCOPE, merge=Merge.LAST_WRITE)


# -- conflicts -------------------------------------------------------------------------------------

HINT = (
    "let one of them write it, use append_state in both, or declare for all writers how writes combine: "
    "with_state_merge('Scope', 'key', Merge.LAST_WRITE)"
)


@pytest.mark.parametrize(
    ("works", "told"),
    [
        ([put(1), put(2)], "'a' set and 'b' set"),
        ([put(1), put(1)], "'a' set and 'b' set"),
        ([put(1), clear()], "'a' set and 'b' cleared"),
        ([clear(), clear(), put(1)], "'a' cleared and 'c' set"),
        ([append(1), put([1])], "'a' appended to and 'b' set"),
        ([put([1]), nothing, append(1)], "'a' set and 'c' appended to"),
        ([append(1), append(2), put([])], "'a' appended to and 'c' set"),
        ([append(1), append(2), clear()], "'a' appended to and 'c' cleared"),
        ([put(1, key=ADDED), put(2)], "'a' updated (merge add) and 'b' set"),
        ([put(1, key=ADDED), put(2, key=LAST)], "'a' updated (merge add) and 'b' updated (merge last_write)"),
    ],
)
async def test_conflict_names_two_that_disagree_and_what_they_did(works: list[Work], told: str) -> None:
    with pytest.raises(StateConflict) as caught:
        await siblings(WorkflowBuilder(), put([0]), *works).run("go")
    conflict = caught.value
    assert str(conflict) == f"{told} key 'key' of shared scope 'Scope' in one superstep; {HINT}"
    assert conflict.executor_ids == (told[1], told[told.index(" and ") + 6])
    assert (conflict.scope_name, conflict.key) == (SCOPE, "key")


@pytest.mark.parametrize(
    "works",
    [
        [put(1), put(2, key="other")],
        [put(1), put(2, scope_name="Other")],
        [put(1, scope_name=None), put(2, scope_name=None)],
        [clear(), clear()],
        [append(1), append(2)],
        [put(1), nothing],
    ],
    ids=["keys", "scopes", "private", "clear clear", "append append", "one"],
)
async def test_what_is_no_conflict(works: list[Work]) -> None:
    await siblings(WorkflowBuilder(), put([0]), *works).run("go")


# -- merges ----------------------------------------------------------------------------------------


def longest(current: str, update: str) -> str:
    return max(current, update, key=len)


@pytest.mark.parametrize(
    ("merge", "before", "updates", "expected"),
    [
        (Merge.LAST_WRITE, None, [1, 2, 3], 3),
        (Merge.LAST_WRITE, 0, [1, 2], 2),
        (Merge.APPEND, None, [["a"], ["b"]], ["a", "b"]),
        (Merge.APPEND, ["x"], [["a"], [], ["b", "c"]], ["x", "a", "b", "c"]),
        (Merge.APPEND, "x", ["a", "b"], "xab"),
        (Merge.APPEND, b"x", [b"a"], b"xa"),
        (Merge.ADD, None, [1, 2], 3),
        (Merge.ADD, 10, [1, 2, 3], 16),
        (Merge.ADD, 10, [5], 15),
        (Merge.UNION, None, [{1}, {2}], {1, 2}),
        (Merge.UNION, {"a": 1}, [{"a": 2}, {"b": 3}], {"a": 2, "b": 3}),
        ("add", 1, [1, 1], 3),
        (longest, None, ["a", "abc", "xyz"], "abc"),
        (longest, "current", ["a"], "current"),
        (lambda current, update: [*current, update], [], [2, 1], [2, 1]),
    ],
)
@pytest.mark.parametrize("declared", ["key", "scope", "state key"])
async def test_declared_merge(
    merge: Any, before: Any, updates: list[Any], expected: Any, declared: str
) -> None:
    builder = WorkflowBuilder()
    key: Any = "key"
    if declared == "key":
        builder.with_state_merge(SCOPE, "key", merge)
    elif declared == "scope":
        builder.with_state_merge(SCOPE, None, merge)
    else:
        key = StateKey("key", object, scope_name=SCOPE, merge=merge)
    works = [put(update, key=key) for update in updates]
    first = nothing if before is None else put(before, key=key)
    assert await outputs(siblings(builder, first, *works)) == [expected]


async def test_merge_of_a_key_wins_over_that_of_its_scope() -> None:
    builder = WorkflowBuilder().with_state_merge(SCOPE, None, "add").with_state_merge(SCOPE, "key", max)
    works = [put(2), put(5), put(3)]
    other = [put(2, key="other"), put(3, key="other")]

    async def look(ctx: WorkflowContext) -> Any:
        return [await ctx.read_state(key, scope_name=SCOPE) for key in ("key", "other")]

    workflow = siblings(builder, nothing, *works, *other, look=look)
    assert await outputs(workflow) == [[5, 5]]


async def test_merge_follows_graph_order_and_the_order_within_a_turn() -> None:
    async def two(ctx: WorkflowContext) -> None:
        await put(["a1"])(ctx)
        await put(["a2"])(ctx)

    builder = WorkflowBuilder().with_state_merge(SCOPE, None, Merge.APPEND)
    workflow = siblings(builder, put(["0"]), two, put(["b"]), put(["c"]))
    assert await outputs(workflow) == [["0", "a1", "a2", "b", "c"]]


async def test_own_updates_are_read_merged() -> None:
    async def look(ctx: WorkflowContext) -> list[Any]:
        seen = []
        for number in (1, 2, 3):
            await put(number)(ctx)
            seen.append(await ctx.read_state("key", scope_name=SCOPE))
        await clear()(ctx)
        await put(100)(ctx)
        return [*seen, await ctx.read_state("key", scope_name=SCOPE)]

    async def later(ctx: WorkflowContext) -> Any:
        return await ctx.read_state("key", scope_name=SCOPE)

    builder = WorkflowBuilder().with_state_merge(SCOPE, "key", "add")
    first, second = Step.bind(id="first", work=put(10)), Look.bind(id="look", look=look)
    workflow = builder.set_start_executor(first).add_edge(first, second).build()
    assert await outputs(workflow) == [[11, 13, 16, 100]]


async def test_merge_that_cannot_combine_names_the_executor() -> None:
    builder = WorkflowBuilder().with_state_merge(SCOPE, "key", Merge.ADD)
    with pytest.raises(StateConflict) as caught:
        await siblings(builder, put(1), put(2), put("x")).run("go")
    assert str(caught.value) == (
        "key 'key' of shared scope 'Scope': its merge add cannot combine a int with the str that 'b' queued: "
        "TypeError(\"unsupported operand type(s) for +: 'int' and 'str'\"); "
        "queue a value that the merge takes, or declare another merge"
    )
    assert caught.value.executor_ids == ("b",)
    assert isinstance(caught.value.__cause__, TypeError)


async def test_merge_function_may_change_its_arguments() -> None:
    def extend(current: list[int], update: list[int]) -> list[int]:
        current.extend(update)
        update.clear()
        return current

    builder = WorkflowBuilder().with_state_merge(SCOPE, None, extend)
    assert await outputs(siblings(builder, put([0]), put([1]), put([2]))) == [[0, 1, 2]]


# -- append_state ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "items", "expected"),
    [
        (None, [1, "x", [2]], [1, "x", [2]]),
        ([0], [1, None], [0, 1, None]),
        ("text", ["u", "al"], "textual"),
        (b"by", [b"tes"], b"bytes"),
        ("", ["a"], "a"),
        ([], [[]], [[]]),
    ],
)
async def test_append(before: Any, items: list[Any], expected: Any) -> None:
    first = nothing if before is None else put(before)
    assert await outputs(siblings(WorkflowBuilder(), first, append(*items))) == [expected]
    each = [append(item) for item in items]
    assert await outputs(siblings(WorkflowBuilder(), first, *each)) == [expected], "by several turns"
    assert await outputs(sequence(first, *each, look=read())) == [expected], "in several supersteps"


@pytest.mark.parametrize(
    ("before", "item", "kinds"),
    [
        (5, 1, ("int", "int")),
        ("text", b"x", ("str", "bytes")),
        (b"x", "text", ("bytes", "str")),
        ({1}, 2, ("set", "int")),
        ("text", 5, ("str", "int")),
    ],
)
async def test_append_to_what_does_not_grow(before: Any, item: Any, kinds: tuple[str, str]) -> None:
    workflow = sequence(put(before), append(item), look=read())
    cause = await cause_of_failure(workflow, "go", WrongType)
    assert str(cause) == (
        f"append_state: key 'key' of shared scope 'Scope' holds a {kinds[0]}, to which a {kinds[1]} cannot be "
        "appended; items are appended to a list, str to str, bytes to bytes"
    )


async def test_append_and_set_in_one_turn_follow_their_order() -> None:
    async def mixed(ctx: WorkflowContext) -> None:
        await append(1)(ctx)
        await put([2])(ctx)
        await append(3)(ctx)

    assert await outputs(sequence(put([0]), mixed, look=read())) == [[2, 3]]


async def test_appends_of_concurrent_turns_come_in_graph_order() -> None:
    works = [append(f"{name}1", f"{name}2") for name in "abc"]
    assert await outputs(siblings(WorkflowBuilder(), put(["0"]), *works)) == [
        ["0", "a1", "a2", "b1", "b2", "c1", "c2"]
    ]


async def test_appended_item_is_captured_and_each_reader_has_its_own() -> None:
    async def careless(ctx: WorkflowContext) -> None:
        item = [1]
        await append(item)(ctx)
        item.append(2)

    async def spoil(ctx: WorkflowContext) -> None:
        (await ctx.read_state("key", scope_name=SCOPE))[0].append(3)

    assert await outputs(sequence(careless, spoil, look=read())) == [[[1]]]


# -- typed keys, clearing, listing -----------------------------------------------------------------


async def test_state_key_stands_for_name_and_scope() -> None:
    raw = StateKey("raw", str, scope_name="Logs")
    mine = StateKey("mine", int)

    async def write(ctx: WorkflowContext) -> None:
        await ctx.queue_state_update(raw, "text")
        await ctx.queue_state_update(mine, 5)
        await ctx.append_state(raw, "ual")

    async def look(ctx: WorkflowContext) -> list[Any]:
        before = [
            await ctx.read_state(raw),
            await ctx.read_state("raw", scope_name="Logs"),
            await ctx.read_state(raw, scope_name="Logs"),
            await ctx.read_state(mine),
            await ctx.read_state(mine, 7),
        ]
        await ctx.clear_state(raw)
        return [*before, await ctx.read_state(raw, "gone"), await ctx.read_state_keys("Logs")]

    assert await outputs(sequence(write, look=look)) == [
        ["textual", "textual", "textual", None, 7, "gone", []]
    ]


@pytest.mark.parametrize(
    ("declared", "right", "wrong"),
    [
        (str, "a", 1),
        (int, True, "1"),
        (float, 1.5, 1),
        (list[int], [1, 2], ["1"]),
        (dict[str, int], {"a": 1}, {"a": "1"}),
        (object, None, ...),
        (int | None, None, "x"),
    ],
)
async def test_state_key_checks_its_type(declared: Any, right: Any, wrong: Any) -> None:
    key: StateKey[Any] = StateKey("key", declared, scope_name=SCOPE)
    assert await outputs(sequence(put(right, key, None), look=read())) == [right]
    if declared is not object:
        cause = await cause_of_failure(sequence(put(wrong, key, None), look=read()), "go", WrongType)
        assert str(cause).startswith("state key 'key' of scope 'Scope' is declared as ")
        assert ", but a value was queued that does not fit: " in str(cause)


async def test_clear_state() -> None:
    async def write(ctx: WorkflowContext) -> None:
        for key in ("b", "a", "c"):
            await ctx.queue_state_update(key, key, scope_name=SCOPE)

    seen: list[list[str]] = []

    async def keys(ctx: WorkflowContext) -> None:
        seen.append(await ctx.read_state_keys(SCOPE))

    async def add_then_clear(ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("d", 1, scope_name=SCOPE)
        await ctx.clear_state(scope_name=SCOPE)
        await ctx.queue_state_update("e", 1, scope_name=SCOPE)

    workflow = sequence(
        write,
        keys,
        clear("b"),
        keys,
        clear("missing"),
        keys,
        add_then_clear,
        look=lambda c: c.read_state_keys(SCOPE),
    )
    assert await outputs(workflow) == [["e"]]
    assert seen == [["a", "b", "c"], ["a", "c"], ["a", "c"]]


async def test_cleared_key_gives_the_default() -> None:
    async def look(ctx: WorkflowContext) -> list[Any]:
        return [
            await ctx.read_state("key", "default", scope_name=SCOPE),
            await ctx.read_state("none", "default", scope_name=SCOPE),
        ]

    workflow = sequence(put(1), clear(), put(None, key="none"), look=look)
    assert await outputs(workflow) == [["default", None]], "a key that holds None is there"


async def test_get_and_set_state() -> None:
    async def look(ctx: WorkflowContext) -> list[Any]:
        before = await ctx.get_state()
        await ctx.set_state({"a": [1]})
        return [before, await ctx.get_state(), await ctx.read_state_keys()]

    assert await outputs(sequence(nothing, look=look)) == [[None, {"a": [1]}, []]]


async def test_get_and_set_shared_state() -> None:
    async def write(ctx: WorkflowContext) -> None:
        await ctx.set_shared_state("key", 5)

    async def look(ctx: WorkflowContext) -> list[Any]:
        return [await ctx.get_shared_state("key"), await ctx.get_shared_state("missing", 7)]

    assert await outputs(sequence(write, look=look)) == [[5, 7]]


async def test_event_says_whether_state_was_updated() -> None:
    events = await events_of(sequence(put(1), nothing, clear(), look=read()), "go")
    updated = [getattr(event, "state_updated") for event in events if hasattr(event, "state_updated")]  # noqa: B009
    assert updated == [True, False, True, False]


# -- capture ---------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class Money:
    amount: int
    unit: str = "EUR"


@dataclass
class Order:
    rows: list[int] = field(default_factory=list)


@dataclass
class Labelled(list):
    label: str = ""


@dataclass
class Problem(Exception):
    code: int = 0


@dataclass(frozen=True)
class FrozenLabelled(list):
    label: str = ""


class Legacy:
    def __init__(self) -> None:
        self.rows = [1]


async def passed_through(value: object, how: str) -> Any:
    """What a reader gets of ``value``."""
    got: list[Any] = []

    @executor
    async def give(text: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("key", value, scope_name=SCOPE)
        await ctx.append_state("list", value, scope_name=SCOPE)
        await ctx.send_message(value)

    @executor
    async def take(message: object, ctx: WorkflowContext) -> None:
        if how == "message":
            got.append(message)
        elif how == "state":
            got.append(await ctx.read_state("key", scope_name=SCOPE))
        else:
            got.append((await ctx.read_state("list", scope_name=SCOPE))[0])

    await WorkflowBuilder().set_start_executor(give).add_edge(give, take).build().run("go")
    return got[0]


@pytest.mark.parametrize("how", ["message", "state", "append"])
@pytest.mark.parametrize(
    "value",
    [
        "text" * 100,
        b"bytes" * 100,
        10**30,
        3.5,
        (1, ("a", b"b")),
        frozenset({1, "a"}),
        Money(5),
        Point(1, 2),
        Colour.RED,
        range(10),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_immutable_values_are_shared(value: object, how: str) -> None:
    assert await passed_through(value, how) is value


@pytest.mark.parametrize("how", ["message", "state", "append"])
@pytest.mark.parametrize(
    "value",
    [
        [1, [2]],
        {"a": {"b": 1}},
        {1, 2},
        bytearray(b"x"),
        (1, [2]),
        Order([1]),
        Money([1]),  # type: ignore[arg-type]
        Point([1], 2),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
async def test_other_values_are_copied_equal_for_each_reader(value: object, how: str) -> None:
    got = await passed_through(value, how)
    assert got == value
    assert type(got) is type(value)
    assert got is not value


async def test_plain_objects_are_copied() -> None:
    legacy = Legacy()
    got = await passed_through(legacy, "message")
    assert (type(got), got.rows) == (Legacy, [1])
    assert got.rows is not legacy.rows


@pytest.mark.parametrize("kind", [Labelled, FrozenLabelled])
async def test_dataclass_that_is_a_list_keeps_its_items(kind: type) -> None:
    value = kind("label")
    value.extend([1, 2])
    got = await passed_through(value, "message")
    assert (list(got), got.label) == ([1, 2], "label")
    assert got is not value


async def test_dataclass_that_is_an_error_keeps_its_arguments() -> None:
    problem = Problem(5)
    problem.args = ("broken", 5)
    got = await passed_through(problem, "message")
    assert (got.args, got.code) == (("broken", 5), 5)


async def test_enum_members_stay_the_same_inside_copies() -> None:
    assert (await passed_through([Colour.RED], "message"))[0] is Colour.RED


@pytest.mark.parametrize("how", ["message", "state", "append"])
async def test_text_of_50_mb_is_passed_by_reference(how: str) -> None:
    text = "x" * 50_000_000
    assert await passed_through(text, how) is text


async def test_output_of_50_mb_is_given_out_by_reference() -> None:
    text = "x" * 50_000_000

    @executor
    async def give(message: str, ctx: WorkflowContext) -> None:
        await ctx.yield_output(text)

    result = await WorkflowBuilder().set_start_executor(give).build().run("go")
    assert result.outputs[0] is text


async def test_values_changed_after_the_call_do_not_leak() -> None:
    seen = {}

    @executor
    async def give(order: Order, ctx: WorkflowContext) -> None:
        order.rows.append(1)
        await ctx.send_message(order)
        await ctx.queue_state_update("order", order, scope_name=SCOPE)
        await ctx.yield_output(order)
        order.rows.append(2)
        seen["own"] = await ctx.read_state("order", scope_name=SCOPE)

    @executor
    async def take(order: Order, ctx: WorkflowContext) -> None:
        seen["message"] = order
        seen["state"] = await ctx.read_state("order", scope_name=SCOPE)

    given = Order([0])
    result = await WorkflowBuilder().set_start_executor(give).add_edge(give, take).build().run(given)
    assert seen == dict.fromkeys(("own", "message", "state"), Order([0, 1]))
    assert result.outputs == [Order([0, 1])]
    assert given == Order([0]), "the caller's input is not touched"


async def test_each_reader_has_its_own_copy() -> None:
    got: dict[str, list[Any]] = {}

    class Take(Executor):
        @handler
        async def take(self, rows: list, ctx: WorkflowContext) -> None:
            first = await ctx.read_state("rows", scope_name=SCOPE)
            first.append(ctx.executor_id)
            second = await ctx.read_state("rows", scope_name=SCOPE)
            got[ctx.executor_id] = [list(rows), first, second]
            rows.append("spoilt")

    @executor
    async def give(text: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("rows", [0], scope_name=SCOPE)
        await ctx.send_message([text])

    targets = [Take.bind(id="a"), Take.bind(id="b")]
    workflow = WorkflowBuilder().set_start_executor(give).add_fan_out_edges(give, targets).build()
    await workflow.run("go")
    assert got == {"a": [["go"], [0, "a"], [0]], "b": [["go"], [0, "b"], [0]]}


async def test_reading_then_changing_is_no_write() -> None:
    async def spoil(ctx: WorkflowContext) -> None:
        (await ctx.read_state("key", scope_name=SCOPE)).append("spoilt")

    workflow = sequence(put([0]), spoil, look=read())
    assert await outputs(workflow) == [[0]]
    assert await warnings_of(workflow, "go") == []


async def test_condition_cannot_change_the_message() -> None:
    def spoil(rows: list[int]) -> bool:
        rows.append(1)
        return True

    @executor
    async def give(text: str) -> list:
        return [0]

    @executor
    async def take(rows: list) -> list:
        return rows

    workflow = WorkflowBuilder().set_start_executor(give).add_edge(give, take, condition=spoil).build()
    assert await outputs(workflow) == [[0]]


async def test_results_and_events_do_not_share_their_outputs() -> None:
    @executor
    async def give(text: str) -> list:
        return [text]

    run = await WorkflowBuilder().set_start_executor(give).build().start("go")
    first = await run.wait_for_completion()
    first.outputs[0].append("spoilt")
    events = [event async for event in run.watch_stream() if hasattr(event, "data")]
    assert [getattr(event, "data") for event in events] == [["go"], ["go"]]  # noqa: B009
    assert run.result().outputs == [["go"]]
