"""A process that dies at any await point while its commits are behind: what is lost is what was promised, and no more.

A run of eight supersteps gives out something in each of them, tells of it, and has effects by ``once`` in some. A seed
decides in which order callbacks run, how long the store takes, and before which step the process dies. What a
watcher was shown outlives the process. ``HYPOTHESIS_PROFILE=thorough`` takes many more seeds.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest

from holdfast import (
    CheckpointSavedEvent,
    ExecutorFailed,
    Phase,
    Run,
    RunStatus,
    SuperStepCompletedEvent,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowOutputEvent,
    executor,
)
from tests.support import modules
from tests.support.going_on import picture
from tests.support.journals import RUN
from tests.support.mortal import Process, Sight, Turn, World, at_once, bury, silent_deaths, try_seeds, worlds
from tests.support.parts import (
    CheckpointTrail,
    CommitQueue,
    Durability,
    EventLog,
    ExecutorId,
    NoteDraft,
    RunId,
    Snapshot,
    StoredJournal,
    Value,
    find_checkpoint,
    result_draft,
    select_durable_events,
)
from tests.support.thorough import MORE

SUPERSTEPS = 8
# A run that nothing happens to takes about so many steps.
STEPS = 150


@pytest.fixture(autouse=True, scope="module")
def deaths() -> Iterator[None]:
    with silent_deaths():
        undisturbed()  # before any bug is planted
        yield


class Outside(World):
    """One whose run has a few more supersteps than those of the journal."""

    message = SUPERSTEPS

    def __init__(self, seed: int, durability: Durability = "sync") -> None:
        super().__init__(seed, durability=durability)
        self.keys: list[tuple[int, str, str]] = []
        """The keys that turns had: superstep, executor and key."""


@dataclass
class ToldAsItDies(WorkflowEvent):
    text: str = ""


@dataclass
class TypedAsItDies(WorkflowEvent):
    """What is shown at once, and never stored."""

    provisional: bool = True


async def work(number: int, ctx: WorkflowContext[Any, str]) -> None:
    world, me, superstep = worlds[-1], str(ctx.executor_id), ctx.superstep
    assert isinstance(world, Outside)
    world.began.append(Turn(world.process, superstep, me))
    world.keys.append((superstep, me, ctx.idempotency_key))
    await ctx.add_event(TypedAsItDies())
    await world.pause()
    effect = ""
    if (superstep + len(me)) % 3 == 0:
        effect = await ctx.once("pay", world.effect, superstep, me, "pay", ctx.idempotency_key)
        world.returns(superstep, me, "pay")
    await ctx.append_state("log", f"{me} {superstep} {effect}", scope_name="Shared")
    await ctx.queue_state_update("last", superstep)
    await ctx.add_event(ToldAsItDies(f"{me} in {superstep}"))
    await ctx.yield_output(f"{me} {superstep}")
    await world.pause()
    if world.broken == f"{me} {superstep}":
        raise ConnectionError(me)
    world.ended.append(Turn(world.process, superstep, me))


@executor(id="one")
async def one(number: int, ctx: WorkflowContext[int, str]) -> None:
    await work(number, ctx)
    if number > 1:
        await ctx.send_message(number - 1)


@executor(id="three")
async def three(number: int, ctx: WorkflowContext[int, str]) -> None:
    await work(number, ctx)


@cache
def _built(even: bool, durability: Durability) -> Workflow:
    """One executor goes on and on, and every other superstep another one works beside it."""
    return (
        WorkflowBuilder(name="Walk")
        .set_start_executor(one)
        .add_edge(one, one)
        .add_edge(one, three, condition=lambda number: number % 2 == 0)
        .with_durability(durability)
        .build()
    )


def walk() -> Workflow:
    return _built(worlds[-1].process % 2 == 1, worlds[-1].durability)


class Ending(NamedTuple):
    outputs: list[Any]
    held: dict[str, Any]
    told: list[tuple[int, str, dict[str, Any]]]


def watched(world: Outside) -> Callable[[Run], Any]:
    """Let someone watch until the run is over."""

    async def watch(run: Run) -> Ending:
        process, events = world.process, []
        async for event in run.watch_stream():
            world.seen.append(Sight(process, event))
            events.append(event)
        result = await run.wait_for_completion()
        assert result.status is RunStatus.COMPLETED
        told = [(s, kind, {**c, "checkpoint": None}) for s, kind, c in select_durable_events(events)]
        return Ending(result.outputs, await picture(run.snapshot), told)

    return watch


@cache
def undisturbed() -> Ending:
    world = Outside(0)
    found = Process(world, walk, 0, None).live(watched(world))
    assert found is not None
    assert len(found.outputs) == SUPERSTEPS + 3
    return found


# -- what must come of it --------------------------------------------------------------------------


def true_to_the_promise(world: Outside) -> None:
    """Whether what each process did and showed is what its durability allows, given what the store held then."""
    lost = {"sync": 0, "async": 1, "exit": SUPERSTEPS}[world.durability]
    assert world.most_in_flight <= 1, f"{world.most_in_flight} commits were in flight at the same time"
    for end in world.ends:
        for turn in world.began:
            if turn.process == end.process:
                assert turn.superstep - end.superstep <= lost, (
                    f"{turn}: more is lost than one superstep: {end}"
                )
            elif turn.process > end.process:
                assert turn.superstep >= end.superstep, f"{turn} ran again, its superstep was over: {end}"
        for call in world.calls:
            if call.process == end.process:
                assert call.superstep <= end.superstep, (
                    f"{call} before its superstep was sure to count: {end}"
                )
        for sight in world.seen:
            if sight.process == end.process and world.durability != "exit":
                _still_true(sight.event, end.superstep)
    for done in world.returned:
        for call in world.calls:
            again = done[1:4] == call[1:4] and call.process > done.process
            assert not again, f"{call} happened again, though its turn had gone on behind it: {done}"
    _same_keys([(call.superstep, call.executor, call.key) for call in world.calls])
    if world.durability != "async":  # there a turn can begin behind a superstep that is lost, and so its key
        _same_keys(world.keys)
    _there(world)


def _same_keys(given: Sequence[tuple[int, str, str]]) -> None:
    keys: dict[tuple[int, str], str] = {}
    for superstep, who, key in given:
        assert keys.setdefault((superstep, who), key) == key, f"{who} in {superstep} came with another key"
    assert len(set(keys.values())) == len(keys), "two turns had the same key"


def _still_true(event: WorkflowEvent, superstep: int) -> None:
    """Whether what was shown counts when the run goes on with ``superstep``."""
    ends = isinstance(event, WorkflowOutputEvent | SuperStepCompletedEvent) or (
        isinstance(event, CheckpointSavedEvent) and event.checkpoint.phase is Phase.END
    )
    assert event.superstep + ends <= superstep, f"{event} was shown, but the run goes on with {superstep}"


def _there(world: Outside) -> None:
    """Whether all checkpoints are there of which someone was told."""
    for _, event in world.seen:
        if isinstance(event, CheckpointSavedEvent):
            found = at_once(find_checkpoint(world.store, event.checkpoint.checkpoint_id))
            assert found is not None, f"{event.checkpoint} was shown and is not there"


def same_end(found: Ending, superstep: int) -> None:
    expected = undisturbed()
    assert found.outputs == expected.outputs, "the run came to another end"
    assert found.held == expected.held, "the run came to another end"
    rest = [told for told in expected.told if told[0] >= superstep]
    assert [told for told in found.told if told[0] >= superstep] == rest, "it told something else"


class Seen(NamedTuple):
    """What happened under some seeds, so that they are known to have tried it."""

    died: int = 0
    lost: int = 0
    """Supersteps that ran to their end and were lost."""
    repeated: int = 0
    """Effects that happened once more, with the same key."""


def die_and_go_on(seed: int, durability: Durability, times: int = 1) -> Seen:
    world = Outside(seed, durability)
    chance = random.Random(f"{seed} {durability}")
    found = None
    for number in range(times + 1):
        step = None if number == times else chance.randrange(1, STEPS // (number + 1))
        found = Process(world, walk, chance.randrange(1 << 30), step).live(watched(world))
        if found is not None:
            break
    assert found is not None
    true_to_the_promise(world)
    if len(world.ends) > 1:
        same_end(found, world.ends[-2].superstep)
    assert at_once(world.store.notes(RunId(RUN))) == []
    ran_again = {turn[1:] for turn in world.began if turn.process > 1}
    whole = {turn[1:] for turn in world.ended if turn.process == 1} & ran_again
    calls = [call[1:4] for call in world.calls]
    return Seen(len(world.ends) - 1, len(whole), len(calls) - len(set(calls)))


def fail_and_go_on(seed: int, durability: Durability) -> Seen:
    """A turn fails while the superstep before may not be durable yet; nothing of what was before is lost."""
    world = Outside(seed, durability)
    world.broken = f"one {seed % (SUPERSTEPS - 1) + 2}"
    superstep = int(world.broken.split()[1])

    async def failing(run: Run) -> None:
        with pytest.raises(ExecutorFailed) as failed:
            await run.wait_for_completion()
        assert run.status is RunStatus.FAILED
        assert failed.value.checkpoint == run.latest_checkpoint
        assert failed.value.checkpoint is not None
        assert (failed.value.checkpoint.phase, failed.value.checkpoint.superstep) == (Phase.START, superstep)
        assert run.snapshot.superstep == superstep - 1

    Process(world, walk, seed, None).live(failing)
    assert world.ends[0].superstep == superstep
    world.broken = None
    found = Process(world, walk, seed + 1, None).live(watched(world))
    assert found is not None
    true_to_the_promise(world)
    same_end(found, superstep)
    return Seen()


@pytest.mark.parametrize("part", range(2 * MORE))
@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_process_dies_at_any_await_point(durability: Durability, part: int) -> None:
    seeds = range(part * 120, part * 120 + 120)
    seen = try_seeds(Seen(), seeds, lambda seed: die_and_go_on(seed, durability))
    assert seen.died > len(seeds) * 0.8, seen
    assert seen.lost > len(seeds) * 0.1, seen
    assert seen.repeated > len(seeds) * 0.02, seen


@pytest.mark.parametrize("part", range(MORE))
@pytest.mark.parametrize("durability", ["async", "exit"])
def test_many_die(durability: Durability, part: int) -> None:
    seeds = range(part * 60, part * 60 + 60)
    assert try_seeds(Seen(), seeds, lambda seed: die_and_go_on(seed, durability, 4)).died > 100


@pytest.mark.parametrize("part", range(MORE))
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_turn_fails(durability: Durability, part: int) -> None:
    try_seeds(Seen(), range(part * 40, part * 40 + 40), lambda seed: fail_and_go_on(seed, durability))


def leave_and_go_on(seed: int, durability: Durability, how: str) -> Seen:
    """Leave the run before some step: then all supersteps that had ended are durable, in each mode."""
    world = Outside(seed, durability)
    chance = random.Random(f"{seed} {how}")
    process = Process(world, walk, chance.randrange(1 << 30), None)

    async def leave(run: Run) -> RunStatus:
        loop = process.loop
        left: list[Any] = []
        loop.steps, loop.step = 0, chance.randrange(1, STEPS)
        loop.happens = lambda: left.append(loop.create_task(getattr(run, how)()))
        result = await run.wait_for_completion()
        loop.step = None
        for task in left:
            await task
        return result.status

    if process.live(leave) is RunStatus.COMPLETED:
        return Seen()
    (end,) = world.ends
    assert max(turn.superstep for turn in world.began) <= end.superstep, f"something was lost: {end}"
    found = Process(world, walk, seed, None).live(watched(world))
    assert found is not None
    true_to_the_promise(world)
    same_end(found, end.superstep)
    return Seen(1)


@pytest.mark.parametrize("part", range(MORE))
@pytest.mark.parametrize("how", ["close", "cancel"])
@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_run_is_left_at_any_await_point(durability: Durability, how: str, part: int) -> None:
    seeds = range(part * 60, part * 60 + 60)
    assert try_seeds(Seen(), seeds, lambda seed: leave_and_go_on(seed, durability, how)).died > 40


# -- planted ---------------------------------------------------------------------------------------


def caught(match: str, durability: Durability) -> None:
    """Whether a bug is noticed, for this reason among others."""
    for seed in range(200):
        try:
            die_and_go_on(seed, durability)
        except AssertionError as error:
            if re.search(match, str(error)):
                return
        finally:
            bury()
    pytest.fail("nobody noticed")


def test_planted_events_that_are_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventLog, "hold_back", lambda self: None)
    caught("was shown, but the run goes on with", "async")


def test_planted_commits_that_overtake(monkeypatch: pytest.MonkeyPatch) -> None:
    async def settle(self: CommitQueue) -> None:
        pass

    monkeypatch.setattr(CommitQueue, "settle", settle)
    with pytest.raises(AssertionError, match="in flight"):
        true_to_the_promise(_overtaking())


def _overtaking() -> Outside:
    async def anyhow(run: Run) -> None:
        with pytest.raises(Exception, match="taken over"):
            await run.wait_for_completion()

    for seed in range(100):
        world = Outside(seed, "async")
        try:
            Process(world, walk, seed, None).live(anyhow)
        except BaseException:
            pass
        finally:
            bury(0)
        if world.most_in_flight > 1:
            return world
    return pytest.fail("nothing overtook anything")


def test_planted_effects_that_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready(self: StoredJournal) -> None:
        pass

    monkeypatch.setattr(StoredJournal, "ready", ready)
    caught("before its superstep was sure to count", "async")
    caught("with another key|before its superstep", "exit")


def test_planted_keys_that_depend_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    name, numbers = CheckpointTrail.name_beginning, itertools.count()

    def name_by_process(self: CheckpointTrail, before: Snapshot) -> str:
        return f"{vars(self).setdefault('number', next(numbers))} {name(self, before)}"

    monkeypatch.setattr(CheckpointTrail, "name_beginning", name_by_process)
    caught("with another key", "exit")


def test_planted_beginning_that_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def draft(executor_id: ExecutorId, name: str, result: Value) -> NoteDraft:
        return result_draft(executor_id, name if executor_id else "nothing", result)

    monkeypatch.setattr(modules.checkpoint_writer, "result_draft", draft)
    caught("with another key", "exit")
