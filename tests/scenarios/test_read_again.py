"""A value that is read again: what did not change is not decoded again, and every reader still has its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel, PrivateAttr

from holdfast import (
    Codec,
    Counters,
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
)
from tests.properties.test_codec import CODEC, VALUES
from tests.support.modules import slices
from tests.support.parts import CopiedValue, Encoder, is_immutable
from tests.support.runs import soon
from tests.unit.test_codec_exact import exact

LONG = 2_000


@dataclass
class Said:
    role: str
    content: str
    calls: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    role: str
    content: str
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fixed:
    role: str
    content: str


@dataclass(frozen=True)
class Measured:
    """Keeps what it computed, so that it is not what it was."""

    role: str
    content: str

    @cached_property
    def words(self) -> list[str]:
        return self.content.split()


class Chat(BaseModel):
    role: str
    content: str
    calls: list[dict[str, Any]] = []
    _seen: list[str] = PrivateAttr(default_factory=list)


Kinds = Said | Slotted | Fixed | Measured | Chat

MESSAGES: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text,
    "dict": lambda text: {"role": "user", "content": text, "calls": [{"name": "look", "of": {"a"}}]},
    "tuple": lambda text: ("user", text, [1]),
    "dataclass": lambda text: Said("user", text, [{"name": "look"}]),
    "slots": lambda text: Slotted("user", text, ["look"]),
    "frozen": lambda text: Fixed("user", text),
    "cached": lambda text: Measured("user", text),
    "model": lambda text: Chat(role="user", content=text, calls=[{"name": "look"}]),
}


def message(kind: str, number: int) -> Any:
    return MESSAGES[kind](f"{number:04} " + "kelp " * (LONG // 5))


def spoil(value: Any) -> None:
    """Change all that can be changed in a value."""
    if isinstance(value, Measured):
        value.words.append("changed")
    elif isinstance(value, list | tuple):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.append("changed")
    elif isinstance(value, dict):
        for part in value.values():
            spoil(part)
        value["changed"] = True
    elif isinstance(value, set):
        value.add("changed")
    elif isinstance(value, Said | Slotted | Chat):
        spoil(value.calls)
        value.content = "changed"
        if isinstance(value, Chat):
            value._seen.append("changed")
            value.__pydantic_fields_set__.add("changed")
    else:
        assert isinstance(value, str | Fixed | int | bool), value


class Agent(Executor):
    """Reads all that was said in each round, spoils what it got, and says one thing more."""

    way = "append"
    kind = "text"

    @handler(input=int, output=int, workflow_output=Kinds | object)
    async def speak(self, left: int, ctx: WorkflowContext[Any, Any]) -> None:
        first = await ctx.read_state("history", [])
        spoil(first)
        history = await ctx.read_state("history", [])
        assert exact(history) == exact([message(self.kind, number) for number in range(len(history))])
        said = message(self.kind, len(history))
        if self.way == "append":
            await ctx.append_state("history", said)
        else:
            history.append(said)
            await ctx.queue_state_update("history", history)
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(await ctx.read_state("history"))


def agent(way: str, kind: str) -> Workflow:
    cls: Any = type("Agent", (Agent,), {"way": way, "kind": kind})
    return (
        WorkflowBuilder(name="Agent", max_iterations=1_000).set_start_executor(cls).add_edge(cls, cls).build()
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all that is decoded."""
    sizes: list[int] = []
    decode = Codec.decode

    def counting(self: Codec, data: bytes, place: str = "value") -> Any:
        sizes.append(len(data))
        return decode(self, data, place)

    monkeypatch.setattr(Codec, "decode", counting)
    return sizes


WAYS = pytest.mark.parametrize("way", ["append", "queue again"])
KINDS = pytest.mark.parametrize("kind", list(MESSAGES))


@WAYS
@KINDS
async def test_history_that_is_read_in_each_round_is_decoded_once(
    way: str, kind: str, decoded: list[int]
) -> None:
    """The cost of a round that reads it twice follows what was said in the last: not how much was said before."""
    most = []
    for rounds in (12, 24):
        decoded.clear()
        result = await soon(agent(way, kind).run(rounds, storage=InMemoryCheckpointStorage()))
        assert exact(result.outputs[0]) == exact([message(kind, number) for number in range(rounds)])
        most.append(sum(decoded) / rounds)
    assert most[1] <= most[0] * 1.2 + 100
    assert most[1] <= 5 * (LONG + 200)


@WAYS
@KINDS
@pytest.mark.parametrize("stored", [False, True])
async def test_readers_spoil_nothing_for_others(way: str, kind: str, stored: bool) -> None:
    """Without storage, too; and after a resume a run reads what one reads that was not stopped."""
    storage = InMemoryCheckpointStorage() if stored else None
    workflow = agent(way, kind)
    run = await workflow.start(5, storage=storage)
    whole = (await soon(run.wait_for_completion())).outputs[0]
    assert exact(whole) == exact([message(kind, number) for number in range(5)])
    if storage is not None:
        third = [c for c in await storage.list_checkpoints(run_id=run.run_id) if c.superstep == 3][-1]
        again = await workflow.resume(third.checkpoint_id, storage=storage)
        assert exact((await soon(again.wait_for_completion())).outputs[0]) == exact(whole)


# -- what makes the copies -------------------------------------------------------------------------


def encoder() -> Encoder:
    return Encoder(CODEC, 1_000_000, Counters())


def mutable_parts(value: Any) -> Iterator[int]:
    """The identities of all parts that can be changed."""
    if is_immutable(value):
        return
    yield id(value)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset) or hasattr(value, "maxlen"):
        parts += value
    if isinstance(value, BaseException):
        parts += value.args
    parts += getattr(value, "__dict__", {}).values()
    for part in parts:
        yield from mutable_parts(part)


@given(VALUES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_copies_of_every_value_are_exact_and_share_nothing_that_can_change(value: Any) -> None:
    wanted = exact(value)
    for captured in (
        encoder()(value, "value"),
        encoder()([value, "a" * 2_000], "value"),
        CopiedValue([value]),
    ):
        copies = [captured.load() for _ in range(4)]
        for copy in copies:
            found = copy if captured.type is type(value) and exact(copy) == wanted else copy[0]
            assert exact(found) == wanted
        parts = [part for copy in copies for part in mutable_parts(copy)]
        assert len(parts) == len(set(parts))


def test_list_goes_on_in_two_ways() -> None:
    """A list that was read, and two longer ones that began with it: each keeps to its own."""
    capture = encoder()
    base = capture([["a" * 100], "b" * 100], "value")
    for _ in range(3):
        assert base.load() == [["a" * 100], "b" * 100]
    longer = []
    for last in ("one", "other"):
        value: Any = capture([*base.load(), [last]], "value")
        tail = slices.tail_of(base.data, value.data)
        assert tail is not None
        value.grew_from(base, tail)
        longer.append(value)
    for _ in range(3):
        one, other = (value.load() for value in longer)
        assert (one[2], other[2], len(one), len(other)) == (["one"], ["other"], 3, 3)
        assert base.load() == base.peek() == [["a" * 100], "b" * 100]
        spoil(one)
        spoil(other)


def test_small_nested_data_is_decoded_where_that_is_faster(decoded: list[int]) -> None:
    """The native reader makes a hundred small lists in less time than a loop here copies them."""
    many = encoder()([[number] for number in range(100)], "value")
    for _ in range(5):
        many.load()
    assert len(decoded) == 6  # the one more found out
