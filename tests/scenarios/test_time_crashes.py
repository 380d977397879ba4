"""A process dies at any await point of sleeping, waking and expiring: deadlines stay, and a question has one winner.

The run has a superstep in which some turns sleep, more than once, and others do not, while two questions wait that
expire; others answer them at random times. A seed decides in which order callbacks run, how long everything takes, when
the process dies and how long nobody lives. Time is that of the seeded event loop: hours cost nothing.
"""

import asyncio
import datetime
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    RequestAlreadyAnswered,
    RequestExpired,
    Run,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from holdfast.errors import UnknownRequest
from tests.support.inside import introduce
from tests.support.journals import RUN
from tests.support.modules import runner as runner_module
from tests.support.mortal import Mortal, Process, Turn, World, at_once, silent_deaths, try_seeds, worlds
from tests.support.parts import (
    Effects,
    Environment,
    Expiry,
    Journal,
    LeaveResult,
    Letter,
    Questions,
    RunId,
    Runner,
    as_time,
    in_microseconds,
    is_sleep,
    use,
    with_expiries,
)

HOUR = 3_600.0
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
# What the pauses of stores and handlers add up to at the most, in the time of the loop.
SLACK = 60.0
SPANS = (("q", 2), ("p", 30))
"""The questions, and for how many hours they wait."""


@pytest.fixture(autouse=True, scope="module")
def deaths() -> Iterator[None]:
    with silent_deaths():
        yield


# -- the world -------------------------------------------------------------------------------------


class Slept(NamedTuple):
    """A call of ``sleep``, or its return."""

    process: int
    executor: str
    number: int
    time: float


class Night(World):
    """A world with a clock, and questions."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.elapsed = 0.0
        """The time before the process that lives now."""
        self.called: list[Slept] = []
        self.woke: list[Slept] = []
        self.given: list[tuple[int, str, str]] = []
        """What response handlers were given, by process, question and outcome."""
        self.expires: dict[str, datetime.datetime] = {}
        """When the time of each question is over, as it was asked last: only that can have been committed."""
        self.accepted: dict[str, int] = {}
        """Questions whose answers were acknowledged."""
        self.refused: set[str] = set()
        self.plan = {"q": self.random.uniform(0, 5) * HOUR, "p": self.random.uniform(0, 45) * HOUR}

    def time(self) -> float:
        return self.elapsed + asyncio.get_running_loop().time()

    def now(self) -> datetime.datetime:
        return BEGIN + datetime.timedelta(seconds=self.time())


def night() -> Night:
    world = worlds[-1]
    assert isinstance(world, Night)
    return world


class Watchful(Mortal):
    """Takes its time with letters too."""

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        await self._world.pause()
        if self.dead:
            raise ConnectionError
        left: LeaveResult = await self.inner.leave(run_id, since, letters)
        await self._world.pause()
        return left


# -- what is cut short -----------------------------------------------------------------------------


class Nap(Executor):
    """Sleeps for one hour, then for two, with effects before, between and behind."""

    @handler
    async def nap(self, _: int, ctx: WorkflowContext[str]) -> str:
        world, me = night(), str(self.id)
        world.began.append(Turn(world.process, ctx.superstep, me))
        for number in range(3):
            await ctx.once(
                f"effect {number}", world.effect, ctx.superstep, me, f"effect {number}", ctx.idempotency_key
            )
            if number < 2:
                world.called.append(Slept(world.process, me, number, world.time()))
                await ctx.sleep((number + 1) * HOUR)
                world.woke.append(Slept(world.process, me, number, world.time()))
            await world.pause()
        return me


class Quick(Executor):
    @handler
    async def work(self, _: int, ctx: WorkflowContext[str]) -> str:
        world, me = night(), str(self.id)
        world.began.append(Turn(world.process, ctx.superstep, me))
        await ctx.once("effect", world.effect, ctx.superstep, me, "effect", ctx.idempotency_key)
        await world.pause()
        return me


class Ask(Executor):
    """Asks, and lets the others begin."""

    @handler
    async def ask(self, number: int, ctx: WorkflowContext[int]) -> int:
        night().expires = {name: night().now() + hours * datetime.timedelta(hours=1) for name, hours in SPANS}
        for name, hours in SPANS:
            await ctx.request_info(name, response_type=str, request_id=name, expires=hours * HOUR)
        await night().pause()
        return number

    @response_handler
    async def answered(self, name: str, answer: str, ctx: WorkflowContext[int, str]) -> None:
        night().given.append((night().process, name, answer))
        await night().pause()
        await ctx.yield_output(f"{name}: {answer}")

    @response_handler
    async def late(self, name: str, late: RequestExpired, ctx: WorkflowContext[int, str]) -> None:
        night().given.append((night().process, name, f"expired {late.expires}"))
        await night().pause()
        await ctx.yield_output(f"{name}: expired")


@executor(id="join")
async def join(parts: list[str], ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(" ".join(parts))


@cache
def _built(even: bool) -> Workflow:
    workers: list[Any] = [Nap.bind(id="n1"), Quick.bind(id="w"), Nap.bind(id="n2")]
    ask = Ask.bind(id="ask")
    builder = WorkflowBuilder(name="Night").set_start_executor(ask)
    builder.add_fan_out_edges(ask, workers).add_fan_in_edges(workers, join)
    end = use(Environment(now=lambda: night().now()))
    try:
        return builder.build()
    finally:
        end()


def make() -> Workflow:
    return _built(worlds[-1].process % 2 == 1)


# -- one life --------------------------------------------------------------------------------------


async def live(run: Run) -> list[Any]:
    """Follow the run to its end, while others answer its questions when they think fit."""
    world = night()
    others = [asyncio.ensure_future(answer(world, name)) for name in world.plan]
    try:
        while (result := await run.wait_for_completion()).status is not RunStatus.COMPLETED:  # noqa: ASYNC110
            await asyncio.sleep(HOUR / 4)
    finally:
        for other in others:
            other.cancel()
        await asyncio.wait(others)
    return result.outputs


async def answer(world: Night, name: str) -> None:
    """Answer a question from elsewhere, unless it was done in an earlier life."""
    await asyncio.sleep(max(world.plan[name] - world.time(), 0))
    storage = CheckpointStorage(Watchful(world))
    introduce(make(), storage)
    while name not in world.accepted and name not in world.refused:
        try:
            await storage.respond(RUN, {name: "yes"})
            world.accepted[name] = world.process
        except RequestAlreadyAnswered:
            world.refused.add(name)
        except UnknownRequest:  # it is not asked yet
            await asyncio.sleep(HOUR / 10)


class Life(Process):
    def __init__(self, world: Night, seed: int, step: int | None) -> None:
        super().__init__(world, make, seed, step)
        self._store = Watchful(world)

    def live(self, go: Callable[[Run], Coroutine[Any, Any, Any]]) -> Any:
        assert isinstance(self._world, Night)
        try:
            return super().live(go)
        finally:
            self._world.elapsed += self.loop.time()


# -- what must come of it --------------------------------------------------------------------------


class Seen(NamedTuple):
    """What happened under some seeds, so that they are known to have tried it."""

    died: int = 0
    kept: int = 0
    """Sleeps whose deadline was in the journal of a process that died."""
    answered: int = 0
    expired: int = 0
    late: int = 0
    """Sleeps that were over before anyone lived again."""


def die_and_go_on(seed: int, times: int) -> Seen:
    """Let processes die so many times, one after the other; the next one brings the run to its end."""
    world = Night(seed)
    chance = random.Random(f"{seed} {times}")
    begins: list[float] = []
    for number in range(times + 1):
        step = None if number == times else chance.randrange(1, STEPS // (number + 1))
        begins.append(world.elapsed)
        found = Life(world, chance.randrange(1 << 30), step).live(live)
        if found is not None:
            break
        world.elapsed += chance.choice([0, 0, HOUR / 2, 2 * HOUR, 40 * HOUR])
    assert found is not None
    nothing_twice(world)
    kept, late = deadlines_stayed(world, begins)
    one_winner(world, found)
    assert "n1 w n2" in found
    head = at_once(world.store.head(RunId(RUN)))
    assert head is not None
    assert (head.status, head.wake_at) == (RunStatus.COMPLETED, None)
    assert at_once(world.store.inbox(RunId(RUN))) == [], "a letter was left behind"
    return Seen(
        len(world.ends) - 1,
        kept,
        sum("yes" in out for out in found),
        sum("expired" in o for o in found),
        late,
    )


def nothing_twice(world: Night) -> None:
    """Whether nothing ran again that was journaled."""
    for end in world.ends:
        for turn in world.began:
            over = turn.superstep == end.superstep and turn.executor in end.turns
            assert not (over and turn.process > end.process), (
                f"{turn} ran again, its outcome was durable: {end}"
            )
        for call in world.calls:
            known = call.superstep == end.superstep and (call.executor, call.name) in end.effects
            assert not (known and call.process > end.process), f"{call} happened again, it was durable: {end}"
    again = Counter(call[:4] for call in world.calls)
    assert max(again.values()) == 1, f"an effect happened twice in one process: {again.most_common(1)}"
    keys = {(call.executor, call.superstep): call.key for call in world.calls}
    for call in world.calls:
        assert keys[call.executor, call.superstep] == call.key, f"{call} was repeated with another key"


def deadlines_stayed(world: Night, begins: list[float]) -> tuple[int, int]:
    """Whether each sleep lasted from the call whose deadline became durable, as long as it was to."""
    kept = late = 0
    returned: set[tuple[str, int]] = set()
    for woke in world.woke:
        first = woke[1:3] not in returned  # else it only comes by there again
        returned.add(woke[1:3])
        key = woke.executor, f"\x1fsleep\x1f1\x1f{woke.number}"
        known = [end.process for end in world.ends if key in end.effects and end.process < woke.process]
        life = known[0] if known else woke.process
        calls = [call for call in world.called if call[:3] == (life, woke.executor, woke.number)]
        deadline = calls[0].time + (woke.number + 1) * HOUR
        assert woke.time >= deadline - 0.001, f"{woke} was early, it was to be {deadline}"
        latest = max(deadline, begins[woke.process - 1]) + SLACK  # nobody lived before
        assert woke.time <= latest or not first, f"{woke} was late, it was to be {deadline}"
        kept += bool(known)
        late += begins[woke.process - 1] > deadline
    return kept, late


def one_winner(world: Night, outputs: list[Any]) -> None:
    for name in ("q", "p"):
        outcomes = {outcome for _, asked, outcome in world.given if asked == name}
        assert len(outcomes) == 1, f"{name} had several outcomes: {outcomes}"
        (outcome,) = outcomes
        if outcome != "yes":
            assert outcome == f"expired {world.expires[name]}", f"{name} {outcome}, not {world.expires[name]}"
        told = [output for output in outputs if output.startswith(f"{name}: ")]
        assert len(told) == 1, f"{name} had several outcomes: {told}"
        assert told[0] == f"{name}: {outcome.split()[0]}"
        if name in world.accepted:
            assert outcome == "yes", f"the answer to {name} was taken, but it had the outcome {outcome}"
        if name in world.refused and outcome == "yes":
            # Only if an answer was left by a process that died before it knew.
            assert len(world.ends) > 1, f"the answer to {name} was refused, but it counts"


STEPS = 420


def test_nobody_dies() -> None:
    seen = try_seeds(Seen(), range(30), lambda seed: die_and_go_on(seed, 0))
    assert seen.died == 0
    assert min(seen.answered, seen.expired) > 10, seen


@pytest.mark.parametrize("part", range(3))
def test_a_process_dies_at_any_await_point(part: int) -> None:
    seen = try_seeds(Seen(), range(part * 50, part * 50 + 50), lambda seed: die_and_go_on(seed, 1))
    assert seen.died > 30, seen
    assert seen.kept > 15, seen
    assert min(seen.answered, seen.expired) > 15, seen
    assert seen.late > 5, seen


def test_several_die_one_after_the_other() -> None:
    seen = try_seeds(Seen(), range(40), lambda seed: die_and_go_on(seed, 3))
    assert seen.died > 60, seen
    assert seen.kept > 20, seen


# -- bugs that must be found -----------------------------------------------------------------------


def _forget_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time until which a turn sleeps is not kept."""
    genuine = Journal.result

    def result(self: Journal, superstep: int, executor_id: Any, name: str) -> Any:
        return None if is_sleep(name) and name.endswith("0") else genuine(self, superstep, executor_id, name)

    monkeypatch.setattr(Journal, "result", result)
    monkeypatch.setattr(runner_module, "sleepers", lambda results, now: {})
    genuine_sleep = Effects.sleep

    async def sleep(self: Effects, delay: Any, until: Any, message_number: int) -> None:
        if self._sleeps == 0 and night().time() > night().called[0].time + delay:
            self._sleeps += 1
            return  # so that it comes to an end
        await genuine_sleep(self, delay, until, message_number)

    monkeypatch.setattr(Effects, "sleep", sleep)


def _wake_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed does not look whether its sleep is over."""
    genuine = Journal.result

    def result(self: Journal, superstep: int, executor_id: Any, name: str) -> Any:
        found = genuine(self, superstep, executor_id, name)
        if found is None or not is_sleep(name):
            return found

        class Over:
            @staticmethod
            def load() -> int:
                return 0

        return Over()

    monkeypatch.setattr(Journal, "result", result)
    monkeypatch.setattr(runner_module, "sleepers", lambda results, now: {})


def _expire_past_the_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a question expired is decided by the process alone."""

    async def expire(self: Questions, first: int) -> None:
        now = in_microseconds(self._now())
        for request in list(self._at.snapshot.requests.values()):
            expiry = request.expiry
            if expiry is not None and expiry.at <= now:
                expired = RequestExpired(request.request_id, as_time(expiry.at))
                self.answers[request.request_id] = self._capture(expired, "response")

    monkeypatch.setattr(Questions, "expire", expire)


def _run_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A woken run forgets which turns are over."""
    monkeypatch.setattr(runner_module, "replay_turn", lambda turn: turn)
    genuine = Runner.open

    async def opened(self: Runner) -> None:
        await genuine(self)
        self._steps.done = {}

    monkeypatch.setattr(Runner, "open", opened)


def _begin_spans_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resumes a run gives its questions more time."""
    genuine = Runner.open

    async def opened(self: Runner) -> None:
        first = not self._restored
        await genuine(self)
        if self.resumed and first:
            now = in_microseconds(self.environment.now())
            again = {
                key: Expiry(now + (request.expiry.span or 0), request.expiry.span)
                for key, request in self.at.snapshot.requests.items()
                if request.expiry is not None
            }
            self.at.snapshot = with_expiries(self.at.snapshot, again)

    monkeypatch.setattr(Runner, "open", opened)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (_forget_deadlines, "was late|was early"),
        (_wake_early, "was early"),
        (_expire_past_the_inbox, "was taken, but|several outcomes|letter was left behind"),
        (_run_the_others_again, "ran again"),
        (_begin_spans_anew, "expired .*, not "),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        try_seeds(Seen(), range(40), lambda seed: die_and_go_on(seed, 1))
