"""Budgets: the most tokens, model calls and money that the agents of a run may use together."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.agents.port import AgentUsage
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.errors import BudgetExceeded, InvalidArgument
from holdfast.graph.state_key import Merge, StateKey

USAGE_SCOPE = "holdfast.agents"
"""The shared scope that has the usage of a run."""
_KEY = "usage of "
_NONE = AgentUsage()
_PER_MILLION = 1_000_000


@dataclass(frozen=True)
class Price:
    """The price of a model for a million tokens, in any currency.

    >>> Price(input=2.0, output=8.0).of(AgentUsage(input_tokens=500_000, output_tokens=250_000))
    3.0
    """

    input: float
    output: float

    def of(self, usage: AgentUsage) -> float:
        """Return the price of a usage."""
        return (usage.input_tokens * self.input + usage.output_tokens * self.output) / _PER_MILLION


@checkpointable(name="holdfast.RunUsage")
@dataclass(frozen=True)
class RunUsage:
    """The usage of the agents of a run, by the names of their models; usages can be added.

    >>> (RunUsage({"small": AgentUsage(5, 2, 1)}) + RunUsage({"small": AgentUsage(1, 1, 1)})).total
    AgentUsage(input_tokens=6, output_tokens=3, calls=2)
    """

    by_model: dict[str, AgentUsage] = field(default_factory=dict)

    def __add__(self, other: RunUsage) -> RunUsage:
        names = {**self.by_model, **other.by_model}
        return RunUsage(
            {name: self.by_model.get(name, _NONE) + other.by_model.get(name, _NONE) for name in names}
        )

    @property
    def total(self) -> AgentUsage:
        """The usage of all models."""
        return sum(self.by_model.values(), _NONE)


class ReachedLimit(NamedTuple):
    """A limit of a budget that is used up."""

    name: str
    allowed: float
    words: str


@dataclass(frozen=True)
class Budget:
    """The most that the agents of a run may use; without one of the limits that is not limited.

    Agents of a run whose budgets have one name use it up together, over all their turns, retries and resumes. A call
    is refused with ``BudgetExceeded`` once a limit is reached; the call that reaches it is still paid.

    >>> Budget(tokens=100_000, cost=0.5, prices={"gpt-5": Price(input=1.25, output=10.0)}).name
    'run'
    """

    tokens: int | None = None
    """The most input and output tokens."""
    calls: int | None = None
    """The most model calls."""
    cost: float | None = None
    """The most money, in the currency of ``prices``."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The prices by the names of the models."""
    name: str = "run"

    def __post_init__(self) -> None:
        for name in ("tokens", "calls", "cost"):
            limit = getattr(self, name)
            if limit is not None and (
                isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 0
            ):
                raise InvalidArgument(f"Budget({name}={limit!r}): must be a number of at least 0")
        if self.tokens is None and self.calls is None and self.cost is None:
            raise InvalidArgument("Budget(): give it a limit: tokens=, calls= or cost=")
        if self.cost is not None and not self.prices:
            raise InvalidArgument(
                "Budget(cost=...): give it the prices of the models: prices={'gpt-5': Price(input=1.25, output=10)}"
            )

    def check_price(self, model_name: str) -> None:
        """Raise if the cost of a model cannot be told."""
        if self.cost is not None and model_name not in self.prices:
            known = ", ".join(map(repr, self.prices))
            raise InvalidArgument(
                f"budget {self.name!r} limits the cost, but has no price for model {model_name!r}, only for {known}; "
                f"add it to prices=, by the name under which the model is asked"
            )

    def limit_reached_by(self, usage: RunUsage) -> ReachedLimit | None:
        """Return the limit that a usage reaches; None if it reaches none."""
        total = usage.total
        tokens = total.input_tokens + total.output_tokens
        if self.tokens is not None and tokens >= self.tokens:
            return ReachedLimit("tokens", self.tokens, f"{tokens} of {self.tokens} tokens")
        if self.calls is not None and total.calls >= self.calls:
            return ReachedLimit("calls", self.calls, f"{total.calls} of {self.calls} model calls")
        if self.cost is not None and (cost := self.cost_of(usage)) >= self.cost:
            return ReachedLimit("cost", self.cost, f"a cost of {cost:.6g} of {self.cost:.6g}")
        return None

    def cost_of(self, usage: RunUsage) -> float:
        """Return the cost of a usage; models without a price, which were used before it was limited, cost nothing."""
        return sum(self.prices[name].of(used) for name, used in usage.by_model.items() if name in self.prices)

    @property
    def limits_unknown(self) -> bool:
        """True if it limits what only the response of a model tells."""
        return self.tokens is not None or self.cost is not None


def usage_key(budget_name: str = "run") -> StateKey[RunUsage]:
    """Return the key of shared state under which the usage of a run is kept.

    >>> usage_key().name, usage_key().scope_name
    ('usage of run', 'holdfast.agents')
    """
    return StateKey(f"{_KEY}{budget_name}", RunUsage, USAGE_SCOPE, Merge.ADD)


def budget_name_of(key: str) -> str:
    """Return the name of the budget whose usage is kept under a key.

    >>> budget_name_of(usage_key("night").name)
    'night'
    """
    return key.removeprefix(_KEY)


def is_usage(key: str) -> bool:
    """Return True for a key under which the usage of a run is kept.

    >>> is_usage(usage_key("night").name)
    True
    """
    return key.startswith(_KEY)


_IN_MODEL_CALL: ContextVar[bool] = ContextVar("holdfast_in_model_call", default=False)


class UsageCounter:
    """Counts what the agents of a run used, also in turns that are not committed, and admits their calls.

    A call under way counts as the largest so far. Before any is known, calls go one after the other, so that agents
    side by side use no more than one alone.
    """

    def __init__(self, spent: Mapping[str, RunUsage]) -> None:
        self._spent = dict(spent)
        self._under_way: Counter[str] = Counter()
        self._largest: dict[str, RunUsage] = {}
        self._moved = asyncio.Event()

    @contextlib.asynccontextmanager
    async def admit(
        self, budgets: Iterable[Budget], model_name: str
    ) -> AsyncIterator[Callable[[AgentUsage], None]]:
        """Wait until the budgets have room for a call, or raise; give the function that takes its usage."""
        budgets = tuple(budgets)
        for budget in budgets:
            budget.check_price(model_name)
        while not self._has_room(budgets):
            self._moved.clear()
            await self._moved.wait()
        names = {budget.name for budget in budgets}
        self._under_way.update(names)
        inside = _IN_MODEL_CALL.set(True)

        def charge(usage: AgentUsage) -> None:
            for name in names:
                self._charge(name, RunUsage({model_name: usage}))

        try:
            yield charge
        finally:
            _IN_MODEL_CALL.reset(inside)
            self._under_way.subtract(names)
            self._moved.set()

    def _has_room(self, budgets: tuple[Budget, ...]) -> bool:
        room = True
        for budget in budgets:
            spent, count = self._spent.get(budget.name, RunUsage()), self._under_way[budget.name]
            if reached := budget.limit_reached_by(spent):
                raise BudgetExceeded(
                    reached.name,
                    reached.allowed,
                    f"the agents of this run used up their budget {budget.name!r}: {reached.words}; nothing is lost: "
                    f"allow more with AgentSettings(budgets=(Budget(...),)) and resume the run",
                )
            # A call inside of a model call cannot wait for that.
            if count and not _IN_MODEL_CALL.get():
                room = room and self._fits(budget, spent, count)
        return room

    def _fits(self, budget: Budget, spent: RunUsage, count: int) -> bool:
        largest = self._largest.get(budget.name)
        if largest is None:
            if budget.limits_unknown:
                return False
            largest = RunUsage({"": AgentUsage(calls=1)})
        expected = spent
        for _ in range(count):
            expected = expected + largest
        return budget.limit_reached_by(expected) is None

    def _charge(self, name: str, usage: RunUsage) -> None:
        self._spent[name] = self._spent.get(name, RunUsage()) + usage
        largest = self._largest.get(name)
        if largest is None or _tokens(usage) > _tokens(largest):
            self._largest[name] = usage


def _tokens(usage: RunUsage) -> int:
    return usage.total.input_tokens + usage.total.output_tokens
