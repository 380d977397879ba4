"""Random workflows whose runs hold all that a run can hold.

The executors of ``graphs`` send, write and yield. These also ask, keep private fields and hook state, queue whole
lists and texts again with something behind them, merge into shared state and tell of events of their own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from hypothesis import strategies as st

from holdfast import (
    Merge,
    PendingRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    response_handler,
)
from tests.properties.test_nested import Nest, nests
from tests.support.graphs import (
    LEVELS,
    TOTALS,
    Node,
    TakesAll,
    TakesInt,
    TakesIntAndList,
    TakesScalar,
    TakesText,
    _add,
    code_of,
    descriptions,
)

TRAIL = "Trail"
"""A shared scope whose lists are appended to by a declared merge."""
SEEN = "Seen"
"""A shared scope whose sets are united."""
LONGEST = "Longest"
"""A shared scope of which a function keeps the longest text."""


def longest(one: str, other: str) -> str:
    return max(one, other, key=len)


@dataclass(frozen=True)
class Question:
    asker: str
    message: Any


@dataclass
class Verdict:
    number: int
    why: str = ""


@dataclass
class Noted(WorkflowEvent):
    what: str


def answer(request: PendingRequest) -> Any:
    """The answer to a question: a message with less energy than the one that it is about."""
    salt, energy = divmod(code_of(request.data.message), LEVELS)
    number = (salt * 2 + 1) % 5 * LEVELS + max(energy - 1, 0)
    return number if request.response_type is int else Verdict(number, f"because of {request.data.asker}")


# -- executors -------------------------------------------------------------------------------------


class Habits(NamedTuple):
    """What an executor does beside what its node says; ``asks`` is the divisor of the codes that it asks about."""

    asks: int = 0
    keeps: str = ""
    grows: str = ""
    tells: bool = False
    merges: bool = False


_EMPTY: dict[str, Any] = {"list": [], "text": "", "bytes": b""}


async def _dawdle() -> None:
    """Let others have their turn, so that somebody can answer meanwhile."""
    for _ in range(4):
        await asyncio.sleep(0)


class _Living:
    checkpointed: ClassVar[tuple[str, ...]] = ("turns",)
    habits: Habits
    node: Node

    def __init__(self, id: str, node: Node, targets: list[str], habits: Habits) -> None:
        super().__init__(id, node, targets)  # type: ignore[call-arg]
        self.habits, self.turns, self.hooked = habits, 0, 0

    async def on_checkpointing(self, ctx: WorkflowContext) -> None:
        if self.habits.keeps == "hooks":
            await ctx.set_state({"hooked": self.hooked})

    async def on_checkpoint_restored(self, ctx: WorkflowContext) -> None:
        self.hooked = ((await ctx.get_state()) or {"hooked": 0})["hooked"]

    async def perform(self, message: object, ctx: WorkflowContext) -> object:
        await _dawdle()
        await self._live(message, ctx)
        asks, code = self.habits.asks, code_of(message)
        if asks and code % asks == 0 and code % LEVELS:
            question = Question(self.node.id, message)
            await ctx.request_info(question, response_type=int if code % 2 else Verdict)
            return None
        return await super().perform(message, ctx)  # type: ignore[misc]

    @response_handler
    async def number(self, question: Question, number: int, ctx: WorkflowContext) -> object:
        await _dawdle()
        return await super().perform(number, ctx)  # type: ignore[misc]

    @response_handler
    async def verdict(self, question: Question, verdict: Verdict, ctx: WorkflowContext) -> object:
        await _dawdle()
        await ctx.append_state("verdicts", verdict)
        return await super().perform(verdict.number, ctx)  # type: ignore[misc]

    async def _live(self, message: object, ctx: WorkflowContext) -> None:
        code = code_of(message)
        if self.habits.keeps == "field":
            self.turns += 1
            await ctx.add_event(Noted(f"turn {self.turns} of {self.node.id}"))
        elif self.habits.keeps == "hooks":
            self.hooked += 1
            await ctx.add_event(Noted(f"{self.node.id} was hooked {self.hooked} times"))
        if self.habits.grows:
            await self._grow(code, ctx)
        if self.habits.merges:
            await ctx.queue_state_update("all", [code, self.node.id], scope_name=TRAIL)
            await ctx.queue_state_update("ids", {self.node.id, f"{code}"}, scope_name=SEEN)
            await ctx.queue_state_update("text", "x" * code, scope_name=LONGEST)
        if self.habits.tells:
            await ctx.add_event(Noted(f"{self.node.id} got {message!r}"))

    async def _grow(self, code: int, ctx: WorkflowContext) -> None:
        """Queue the whole again with something behind it, or something else in its place."""
        empty = _EMPTY[self.habits.grows]
        before = await ctx.read_state("grown", empty)
        tail = {
            "list": [{"code": code}] * 3,
            "text": f"text {code} \u00e4\n" * 4,
            "bytes": bytes([code]) * 30,
        }
        after = before + tail[self.habits.grows] if code % 5 else before[len(before) // 2 :]
        await ctx.queue_state_update("grown", after)


class LivingInt(_Living, TakesInt):
    pass


class LivingText(_Living, TakesText):
    pass


class LivingScalar(_Living, TakesScalar):
    pass


class LivingIntAndList(_Living, TakesIntAndList):
    pass


class LivingAll(_Living, TakesAll):
    pass


_CLASSES: dict[frozenset[str], Any] = {
    frozenset({"int"}): LivingInt,
    frozenset({"str"}): LivingText,
    frozenset({"int", "str"}): LivingScalar,
    frozenset({"int", "list"}): LivingIntAndList,
    frozenset({"int", "str", "list"}): LivingAll,
}


# -- workflows -------------------------------------------------------------------------------------


class _Once(dict[str, Any]):
    """Gives each executor once, then its id: to look at a class again and again takes most of the time."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        self[name] = name
        return found


@dataclass(frozen=True)
class Living:
    """A random workflow as data, which can be built any number of times and anywhere."""

    nest: Nest
    habits: tuple[Habits, ...]

    def build(self) -> Workflow:
        """The workflow, new each time."""
        nest, nested = self.nest, dict(self.nest.inside)
        builder = WorkflowBuilder(name=f"Living{nest.depth}", max_iterations=1000)
        builder.with_state_merge(TOTALS, None, Merge.ADD).with_state_merge(TRAIL, None, Merge.APPEND)
        builder.with_state_merge(SEEN, None, Merge.UNION).with_state_merge(LONGEST, None, longest)
        placed = _Once()
        for position, node in enumerate(nest.description.nodes):
            if node.id in nested:
                inner = replace(self, nest=nested[node.id])
                placed[node.id] = WorkflowExecutor(inner.build(), id=node.id)
            else:
                habits = self.habits[(position + nest.depth) % len(self.habits)]
                targets = nest.description.reachable_from(node.id)
                placed[node.id] = _CLASSES[node.takes].bind(
                    id=node.id, node=node, targets=targets, habits=habits
                )
        builder.set_start_executor(placed[nest.description.nodes[0].id])
        for link in nest.description.links:
            _add(builder, link, placed)
        return builder.build()


def _habits() -> st.SearchStrategy[Habits]:
    return st.builds(
        Habits,
        asks=st.sampled_from([0, 0, 1, 2]),
        keeps=st.sampled_from(["", "field", "hooks"]),
        grows=st.sampled_from(["", "list", "text", "bytes"]),
        tells=st.booleans(),
        merges=st.booleans(),
    )


@st.composite
def livings(draw: Callable[[Any], Any], levels: int = 3) -> Living:
    """Flat workflows and nested ones, with every kind of edge and every habit."""
    flat = descriptions(most_nodes=5).map(Nest)
    nest = draw(st.one_of(flat, *(nests(levels=level) for level in range(2, levels + 1))))
    return Living(nest, tuple(draw(st.lists(_habits(), min_size=1, max_size=4))))


def inputs(most_energy: int = 4) -> st.SearchStrategy[int]:
    """Inputs whose runs end after some supersteps, not after hundreds of turns."""
    return st.builds(
        lambda salt, energy: salt * LEVELS + energy, st.integers(0, 4), st.integers(2, most_energy)
    )
