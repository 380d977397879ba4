"""A process that dies at any await point: what the journal has does not happen again, and all comes to the same end.

The run has two supersteps of several turns, with pauses, effects by ``once``, state of all kinds, fields, messages to
one target and to a fan-in. A seed decides in which order callbacks run, how long everything takes, and before which
step the process dies: its event loop is left where it is. Another process goes on with another workflow object on the
same store. ``HYPOTHESIS_PROFILE=thorough`` takes many more seeds.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorCompletedEvent,
    ExecutorFailed,
    ExecutorInvokedEvent,
    HoldfastError,
    Merge,
    RetryPolicy,
    Run,
    RunStatus,
    RunTaken,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    executor,
    handler,
)
from tests.support import modules
from tests.support.going_on import picture
from tests.support.journals import RUN
from tests.support.modules import notices
from tests.support.mortal import (
    Go,
    Left,
    Mortal,
    Process,
    Turn,
    World,
    at_once,
    bury,
    silent_deaths,
    try_seeds,
    worlds,
)
from tests.support.parts import (
    Commit,
    Durability,
    ExecutorId,
    Journal,
    Letter,
    MemoryStore,
    Recorder,
    RunExecutors,
    RunId,
    StoredJournal,
    Value,
    select_durable_events,
)
from tests.support.thorough import MORE


@pytest.fixture(autouse=True, scope="module")
def deaths() -> Iterator[None]:
    with silent_deaths():
        for make in (ten, ten_nested):
            undisturbed(make)  # before any bug is planted
        yield


# -- what is cut short -----------------------------------------------------------------------------


@dataclass
class ToldByATurn(WorkflowEvent):
    text: str = ""


class Work(Executor):
    """Has a turn in superstep 2, and every other one in superstep 3 too."""

    checkpointed = ("seen",)

    def __init__(self, id: str, number: int) -> None:
        super().__init__(id)
        self.number = number
        self.seen: list[int] = []

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int | str, str]) -> None:
        world, me, superstep = worlds[-1], str(ctx.executor_id), ctx.superstep
        turn = Turn(world.process, superstep, me)
        if ctx.attempt == 1:
            world.began.append(turn)
        self.seen.append(left)
        await ctx.append_state("log", f"{me} {superstep}", scope_name="Shared")
        await world.pause()
        if world.broken == me:
            raise ConnectionError(me)
        results = []
        for name in ("first", "second")[: self.number % 3]:
            results.append(await ctx.once(name, world.effect, superstep, me, name, ctx.idempotency_key))
            world.returns(superstep, me, name)
            await world.pause()
        await ctx.add_event(ToldByATurn(f"{me} {results}"))
        await ctx.queue_state_update("total", left + self.number, scope_name="Shared")
        await ctx.queue_state_update("turns", await ctx.read_state("turns", 0) + 1)
        await world.pause()
        if left and self.number % 2:
            await ctx.send_message(left - 1, target_id=str(self.id))
            await ctx.yield_output(f"{me} {results}")
        else:
            await ctx.send_message(f"{me} {self.seen} {results}", target_id="join")
        world.ended.append(turn)


class Persistent(Work):
    """The same, and tries again."""

    @handler(retry=RetryPolicy(attempts=5, backoff=0.001, jitter=0, retry_on=HoldfastError))
    async def work(self, left: int, ctx: WorkflowContext[int | str, str]) -> None:
        await super().work(left, ctx)


@executor(id="start")
async def start(number: int, ctx: WorkflowContext[int]) -> int:
    worlds[-1].began.append(Turn(worlds[-1].process, ctx.superstep, str(ctx.executor_id)))
    await worlds[-1].pause()
    return number


@executor(id="join")
async def join(parts: list[str], ctx: WorkflowContext[None, list[str]]) -> None:
    worlds[-1].began.append(Turn(worlds[-1].process, ctx.superstep, str(ctx.executor_id)))
    await worlds[-1].pause()
    await ctx.yield_output(parts)


TEN = [f"w{number}" for number in range(10)]


def working(name: str, work: type[Work], numbers: range, durability: Durability = "sync") -> Workflow:
    workers = [work.bind(id=TEN[number], number=number) for number in numbers]
    builder = (
        WorkflowBuilder(name=name)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .with_state_merge("Shared", "total", Merge.ADD)
    )
    for worker in workers:
        builder.add_edge(worker, worker)
    return builder.with_durability(durability).build()


@executor(id="joined")
async def joined(parts: list[Any], ctx: WorkflowContext[None, list[Any]]) -> None:
    worlds[-1].began.append(Turn(worlds[-1].process, ctx.superstep, str(ctx.executor_id)))
    await ctx.yield_output(parts)


def nesting(durability: Durability) -> Workflow:
    """The same ten in two nested workflows, side by side."""
    halves = [
        WorkflowExecutor(working(f"Half {half}", Work, range(half * 5, half * 5 + 5)), id=f"half{half}")
        for half in range(2)
    ]
    return (
        WorkflowBuilder(name="Nesting")
        .set_start_executor(start)
        .add_fan_out_edges(start, halves)
        .add_fan_in_edges(halves, joined)
        .with_durability(durability)
        .build()
    )


# Another workflow for each process than for the one before; they are built once, because that takes as long as a run.


@cache
def _built(which: str, even: bool, durability: Durability) -> Workflow:
    if which == "nested":
        return nesting(durability)
    return working("Ten", Work if which == "ten" else Persistent, range(10), durability)


def _now(which: str) -> Workflow:
    return _built(which, worlds[-1].process % 2 == 1, worlds[-1].durability)


def ten() -> Workflow:
    return _now("ten")


def ten_that_try_again() -> Workflow:
    return _now("persistent")


def ten_nested() -> Workflow:
    return _now("nested")


# -- what must come of it --------------------------------------------------------------------------


class Ending(NamedTuple):
    """What came of a run: its outputs, all that it holds, and what it told."""

    outputs: list[Any]
    held: dict[str, Any]
    told: list[tuple[int, str, dict[str, Any]]]
    invoked: list[tuple[int, str]]
    replayed: list[tuple[int, str]]


async def ending(run: Run) -> Ending:
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.warnings == []
    events = [event async for event in run.watch_stream()]
    return Ending(
        result.outputs,
        await picture(run.snapshot),
        select_durable_events(events),
        [(e.superstep, str(e.executor_id)) for e in events if isinstance(e, ExecutorInvokedEvent)],
        [
            (e.superstep, str(e.executor_id))
            for e in events
            if isinstance(e, ExecutorCompletedEvent) and e.replayed
        ],
    )


Make = Callable[[], Workflow]


@cache
def undisturbed(make: Make) -> Ending:
    world = World(0)
    found = Process(world, make, 0, None).live(ending)
    assert found is not None
    assert len(found.outputs) > 1
    assert found.replayed == []
    superstep = 3 if make is ten_nested else 2
    at_work = sorted(turn.executor for turn in world.began if turn.superstep == superstep)
    assert [name.rpartition("/")[2] for name in at_work] == TEN
    return found


def same_end(found: Ending, before: Left, make: Make) -> None:
    """Whether a run that was taken up where ``before`` says came to the right end."""
    expected = undisturbed(make)
    assert found.outputs == expected.outputs, "the run came to another end"
    assert found.held == expected.held, "the run came to another end"
    rest = [told for told in expected.told if told[0] >= before.superstep]
    assert [told for told in found.told if told[0] >= before.superstep] == rest, "it told something else"
    assert sorted(found.replayed) == sorted((before.superstep, name) for name in before.turns)
    again = [turn for turn in expected.invoked if turn[0] >= before.superstep]
    assert found.invoked == [turn for turn in again if turn not in found.replayed]


def nothing_twice(world: World) -> None:
    """Whether the promise was kept, whatever happened."""
    for end in world.ends:
        for turn in world.began:
            if turn.process > end.process:
                assert turn.superstep >= end.superstep, f"{turn} ran again, its superstep was over: {end}"
                over = turn.superstep == end.superstep and turn.executor in end.turns
                assert not over, f"{turn} ran again, its outcome was durable: {end}"
        for call in world.calls:
            known = call.superstep == end.superstep and (call.executor, call.name) in end.effects
            assert not (known and call.process > end.process), f"{call} happened again, it was durable: {end}"
    for one in world.returned:
        for other in world.calls:
            again = one[1:4] == other[1:4] and other.process > one.process
            assert not again, f"{other} happened again, though its turn had gone on behind it: {one}"
    keys = {call[1:3]: call.key for call in world.calls}
    assert len(set(keys.values())) == len(keys), "two turns had the same key"
    for call in world.calls:
        assert keys[call[1:3]] == call.key, f"{call} was repeated with another key"
    assert max(Counter(world.began).values()) == 1
    assert max(Counter(world.calls).values(), default=1) == 1


def empty(world: World) -> None:
    """Whether nothing is left in the journal of a run that is over."""
    assert at_once(world.store.notes(RunId(RUN))) == [], "the journal of a run that is over is not empty"


class Seen(NamedTuple):
    """What happened under some seeds, so that they are known to have tried it."""

    died: int = 0
    turns: int = 0
    """Turns that were taken from the journal."""
    effects: int = 0
    """Effects whose results were, in turns that ran again."""
    repeated: int = 0
    """Effects that happened once more, with the same key."""


def seen_in(world: World) -> Seen:
    ran = {turn[1:] for turn in world.began if turn.process > 1}
    called = Counter(call[1:4] for call in world.calls)
    return Seen(
        len(world.ends) - 1,
        sum(len(end.turns) for end in world.ends[:-1]),
        sum((end.superstep, who) in ran for end in world.ends[:-1] for who, _ in end.effects),
        sum(count > 1 for count in called.values()),
    )


# -- dying -----------------------------------------------------------------------------------------

# A run that nothing happens to takes about so many steps.
STEPS = 330

MakeStore = Callable[[], MemoryStore]


def die_and_go_on(seed: int, times: int, make_store: MakeStore = MemoryStore, make: Make = ten) -> Seen:
    """Let processes die so many times, one after the other; the next one brings the run to its end."""
    world = World(seed, make_store())
    chance = random.Random(f"{seed} {times}")
    for number in range(times + 1):
        step = None if number == times else chance.randrange(1, STEPS // (number + 1))
        found = Process(world, make, chance.randrange(1 << 30), step).live(ending)
        if found is not None:
            break
    assert found is not None
    nothing_twice(world)
    if len(world.ends) > 1:
        same_end(found, world.ends[-2], make)
    empty(world)
    return seen_in(world)


def in_parts(count: int) -> pytest.MarkDecorator:
    """The seeds are spread over so many tests, which may run side by side."""
    return pytest.mark.parametrize("part", range(count * MORE))


def seeds_of(part: int, count: int) -> range:
    return range(part * count, (part + 1) * count)


@in_parts(4)
def test_a_process_dies_at_any_await_point(part: int) -> None:
    seeds = seeds_of(part, 125)
    seen = try_seeds(Seen(), seeds, lambda seed: die_and_go_on(seed, 1))
    assert seen.died > len(seeds) * 0.8, seen
    assert seen.turns > len(seeds), seen
    assert seen.effects > len(seeds) * 0.3, seen
    assert seen.repeated > len(seeds) * 0.2, seen


@in_parts(2)
def test_another_process_dies_while_it_goes_on(part: int) -> None:
    seeds = seeds_of(part, 90)
    seen = try_seeds(Seen(), seeds, lambda seed: die_and_go_on(seed, 2))
    assert seen.died > len(seeds) * 1.3, seen
    assert seen.turns > len(seeds), seen
    assert seen.repeated > len(seeds) * 0.2, seen


@in_parts(2)
def test_a_process_dies_in_nested_workflows(part: int) -> None:
    seeds = seeds_of(part, 75)
    seen = try_seeds(Seen(), seeds, lambda seed: die_and_go_on(seed, 1, make=ten_nested))
    assert seen.died > len(seeds) * 0.8, seen
    assert seen.turns > len(seeds), seen
    assert seen.repeated > len(seeds) * 0.2, seen


@in_parts(1)
def test_many_die(part: int) -> None:
    """No more than five in a row without a note, though: then the run is taken for poisoned."""
    assert try_seeds(Seen(), seeds_of(part, 20), lambda seed: die_and_go_on(seed, 5)).died > 20


# -- left, or failed -------------------------------------------------------------------------------


def leave_and_go_on(seed: int, how: str, times: int = 1) -> Seen:
    """Leave the run before some step. When it is left, whatever was over is in the journal."""
    world = World(seed)
    chance = random.Random(f"{seed} {how}")
    for number in range(times):
        process = Process(world, ten, chance.randrange(1 << 30), None)
        status = process.live(leaving(process, how, chance.randrange(1, STEPS // (number + 1))))
        if status is RunStatus.COMPLETED:
            return Seen()
        assert status is (RunStatus.STOPPED if how == "close" else RunStatus.CANCELLED)
        end = world.ends[-1]
        over = {turn.executor for turn in world.ended if turn.superstep == end.superstep}
        assert end.turns == over, "what was over when the run was left is not in its journal"
    found = Process(world, ten, seed, None).live(ending)
    assert found is not None
    nothing_twice(world)
    same_end(found, world.ends[-2], ten)
    return seen_in(world)


def leaving(process: Process, how: str, step: int) -> Go[RunStatus]:
    async def leave(run: Run) -> RunStatus:
        loop = process.loop
        left: list[asyncio.Task[None]] = []
        loop.steps, loop.step = 0, step
        loop.happens = lambda: left.append(loop.create_task(getattr(run, how)()))
        result = await run.wait_for_completion()
        loop.step = None
        for task in left:
            await task
        assert result.status is run.status
        return result.status

    return leave


@in_parts(1)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_run_is_left_at_any_await_point(how: str, times: int, part: int) -> None:
    seeds = seeds_of(part, 50)
    seen = try_seeds(Seen(), seeds, lambda seed: leave_and_go_on(seed, how, times))
    assert seen.turns > len(seeds), seen
    assert seen.effects > len(seeds) * 0.2, seen


def fail_and_go_on(seed: int) -> Seen:
    """One turn of ten fails. When the run has failed, the other nine are in the journal."""
    world = World(seed)
    world.broken = TEN[seed % 10]

    async def failing(run: Run) -> RunStatus:
        with pytest.raises(ExecutorFailed):
            await run.wait_for_completion()
        assert world.left(1).turns == {*TEN} - {world.broken}
        return run.status

    assert Process(world, ten, seed, None).live(failing) is RunStatus.FAILED
    (broken, world.broken) = (world.broken, None)
    found = Process(world, ten, seed + 1, None).live(ending)
    assert found is not None
    nothing_twice(world)
    same_end(found, world.ends[0], ten)
    assert [turn.executor for turn in world.began if turn.process > 1 and turn.superstep == 2] == [broken]
    return seen_in(world)


@in_parts(1)
def test_a_turn_of_ten_fails(part: int) -> None:
    seeds = seeds_of(part, 80)
    assert try_seeds(Seen(), seeds, fail_and_go_on).turns == 9 * len(seeds)


# -- taken over ------------------------------------------------------------------------------------


def take_over(seed: int, make_store: MakeStore = MemoryStore) -> Seen:
    """Another process takes the run while the first goes on, which from then on notes nothing."""
    world = World(seed, make_store())
    chance = random.Random(seed)
    process = Process(world, ten, seed, None)

    async def rival() -> Ending:
        world.begin()
        while True:
            try:
                storage = CheckpointStorage(Mortal(world))
                run = await ten().resume(run_id=RUN, storage=storage, take_over=True)
                break
            except RunTaken:  # the first was faster once more
                pass
        if run.status is RunStatus.RUNNING:
            world.ends.append(world.left(1))
        return await ending(run)

    async def first(run: Run) -> Ending | None:
        reached = asyncio.Event()
        process.loop.steps, process.loop.step = 0, chance.randrange(1, STEPS)
        process.loop.happens = reached.set
        over = asyncio.ensure_future(run.wait_for_completion())
        waiting = asyncio.ensure_future(reached.wait())
        await asyncio.wait([over, waiting], return_when=asyncio.FIRST_COMPLETED)
        process.loop.step = None
        waiting.cancel()
        found = await asyncio.ensure_future(rival())
        await asyncio.wait([over])
        if over.exception() is not None:
            assert isinstance(over.exception(), RunTaken)
            return found
        assert found.outputs == undisturbed(ten).outputs
        return None

    found = process.live(first)
    nothing_twice(world)
    empty(world)
    if found is not None:
        same_end(found, world.ends[0], ten)
    return seen_in(world)


@in_parts(1)
def test_a_run_is_taken_over_at_any_await_point(part: int) -> None:
    seeds = seeds_of(part, 90)
    seen = try_seeds(Seen(), seeds, take_over)
    assert seen.turns > len(seeds), seen
    assert seen.repeated > len(seeds) * 0.2, seen


# -- notes that cannot be written ------------------------------------------------------------------


def be_unlucky(seed: int, make: Make) -> Seen:
    """Many a commit of notes fails, before it happened or after. Some processes die as well."""
    world = World(seed)
    world.flaky = 0.4
    chance = random.Random(seed)

    async def ending_or_failing(run: Run) -> Ending | None:
        try:
            return await ending(run)
        except HoldfastError:
            assert run.status is RunStatus.FAILED
            return None

    found = None
    for _ in range(30):
        if found is not None:
            break
        step = chance.randrange(1, STEPS) if chance.random() < 0.5 else None
        found = Process(world, make, chance.randrange(1 << 30), step).live(ending_or_failing)
        world.flaky *= 0.8
    assert found is not None
    nothing_twice(world)
    empty(world)
    assert (found.outputs, found.held) == (undisturbed(ten).outputs, undisturbed(ten).held)
    return seen_in(world)


@in_parts(1)
def test_notes_that_cannot_be_written(part: int) -> None:
    seeds = seeds_of(part, 50)
    seen = try_seeds(Seen(), seeds, lambda seed: be_unlucky(seed, ten))
    assert seen.turns > len(seeds), seen


@in_parts(1)
def test_notes_that_cannot_be_written_and_turns_that_are_tried_again(part: int) -> None:
    """What ``once`` gave is durable when it returns, also in another attempt."""
    seeds = seeds_of(part, 50)
    seen = try_seeds(Seen(), seeds, lambda seed: be_unlucky(seed, ten_that_try_again))
    assert seen.turns > len(seeds), seen


# -- planted ---------------------------------------------------------------------------------------
# Bugs that the tests above must notice; were they not noticed, those tests would show nothing.


def caught(match: str, make_store: MakeStore = MemoryStore) -> None:
    """Whether a bug is noticed, for this reason among others."""
    for seed in range(200):
        try:
            die_and_go_on(seed, 1, make_store)
        except AssertionError as error:
            if re.search(match, str(error)):
                return
        finally:
            bury()
    pytest.fail("nobody noticed")


def test_planted_notes_that_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of a superstep that was committed meanwhile are noted at the next one, where they are not fenced."""

    async def note(self: Recorder, drafts: Any, count: Callable[[], bool]) -> None:
        await self._commits.idle()
        await self._commits.run(self._log.note(drafts))

    def clear(self: StoredJournal) -> None:
        self.turns, self._results = {}, {}

    monkeypatch.setattr(Recorder, "note", note)
    monkeypatch.setattr(StoredJournal, "clear", clear)
    caught("came to another end")
    caught("is not empty")


def test_planted_notes_that_are_not_stored() -> None:
    class Forgetful(MemoryStore):
        async def commit(self, commit: Commit) -> Sequence[Letter]:
            return await super().commit(commit._replace(notes=()))

    caught("though its turn had gone on behind it", make_store=Forgetful)


def test_planted_notes_of_one_who_lost_the_run() -> None:
    class Unfenced(MemoryStore):
        async def commit(self, commit: Commit) -> Sequence[Letter]:
            there = self._heads.get(commit.head.run_id)
            if there is None or commit.records or commit.head.token >= there.token:
                return await super().commit(commit)
            self._notes.setdefault(commit.head.run_id, {}).update({note.key: note for note in commit.notes})
            return ()

    with pytest.raises(AssertionError, match="though its turn had gone on behind it"):
        try_seeds(Seen(), range(100), lambda seed: take_over(seed, Unfenced))


def test_planted_journal_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredJournal, "found", lambda self, superstep, contents: None)
    caught("its outcome was durable")


def test_planted_results_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    found = StoredJournal.found

    def found_turns(self: StoredJournal, superstep: int, contents: Any) -> None:
        found(self, superstep, contents._replace(results={}))

    monkeypatch.setattr(StoredJournal, "found", found_turns)
    caught("it was durable|had gone on")


def test_planted_once_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(
        self: StoredJournal, superstep: int, executor_id: ExecutorId, name: str, result: Value
    ) -> None:
        await Journal.keep(self, superstep, executor_id, name, result)
        self._pending.append(partial(self._by.draft_result, executor_id, name, result))
        _ = self._write()

    monkeypatch.setattr(StoredJournal, "keep", keep)
    caught("though its turn had gone on behind it")


def test_planted_journal_that_outlives_its_superstep() -> None:
    class Sticky(MemoryStore):
        async def commit(self, commit: Commit) -> Sequence[Letter]:
            kept = dict(self._notes.get(commit.head.run_id, {}))
            waiting = await super().commit(commit)
            self._notes[commit.head.run_id] = {**kept, **self._notes.get(commit.head.run_id, {})}
            return waiting

    caught("came to another end", make_store=Sticky)
    caught("is not empty", make_store=Sticky)


def test_planted_executors_that_are_as_before_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunExecutors, "restore_before_next_turn", lambda self, address, snapshot: None)
    caught("came to another end")


def test_planted_keys_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "begun", lambda self, address: (f"{self.head.token}", address))
    caught("with another key|had the same key")


def test_planted_turns_that_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn told is not replayed with it."""
    replay = notices.replay_turn
    monkeypatch.setattr(modules.runner, "replay_turn", lambda turn: replay(turn._replace(events=())))
    caught("told something else")


def test_planted_outcomes_that_are_lost_when_a_run_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    take = StoredJournal.take_pending

    def lost(self: StoredJournal) -> list[Any]:
        take(self)
        return []

    monkeypatch.setattr(StoredJournal, "take_pending", lost)
    with pytest.raises(AssertionError, match="not in its journal"):
        try_seeds(Seen(), range(60), lambda seed: leave_and_go_on(seed, "close"))
    with pytest.raises(AssertionError):
        try_seeds(Seen(), range(20), fail_and_go_on)
