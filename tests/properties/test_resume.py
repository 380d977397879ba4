"""Random workflows that are stopped after any commit, or taken back to any checkpoint, come to the same end."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from holdfast.errors import HoldfastError
from holdfast.testing import assert_resumable
from tests.support.exploring import shows_all
from tests.support.going_on import AT_ONCE, ONE_BY_ONE, TOGETHER, assert_goes_on
from tests.support.graphs import Description, descriptions
from tests.support.graphs import inputs as any_inputs
from tests.support.living import Living, Question, answer, inputs, livings
from tests.support.modules import checkpoint_drafts, executors, manifest, recorder
from tests.support.parts import Changes, Grow, Manifest, check_durability
from tests.support.small_limits import small_limits

MANNERS = st.sampled_from([TOGETHER, ONE_BY_ONE, AT_ONCE])


# Each example is a run for each commit and one for each checkpoint: making a failing one smaller takes minutes.
SEARCH = [Phase.explicit, Phase.reuse, Phase.generate]


def some(percent: int) -> settings:
    """A share of what the profile asks for."""
    return settings(max_examples=max(settings().max_examples * percent // 100, 1), phases=SEARCH)


@pytest.fixture(scope="module", params=[SqliteCheckpointStorage, FileCheckpointStorage])
def make_storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], CheckpointStorage]:
    """Storages on disk, each in a place of its own."""
    folder, number = tmp_path_factory.mktemp("resumed"), itertools.count()
    return lambda: request.param(folder / f"{next(number)}.store")


# -- in memory -------------------------------------------------------------------------------------


DURABILITIES = st.sampled_from(["sync", "async", "exit"])


def durable(build: Callable[[], Workflow], durability: str) -> Callable[[], Workflow]:
    def make() -> Workflow:
        workflow = build()
        config = workflow._definition.config._replace(durability=check_durability(durability))
        workflow._definition = workflow._definition._replace(config=config)
        return workflow

    return make


@some(25)
@given(livings(), inputs(), DURABILITIES)
def test_any_workflow_is_resumable(living: Living, message: int, durability: str) -> None:
    asyncio.run(assert_resumable(durable(living.build, durability), message, answer))


@some(15)
@given(descriptions(), any_inputs())
def test_any_graph_is_resumable(description: Description, message: int) -> None:
    asyncio.run(assert_resumable(description.build, message))


@some(25)
@given(livings(), inputs(), MANNERS, DURABILITIES)
def test_answers_are_never_lost_or_asked_for_again(
    living: Living, message: int, manner: str, durability: str
) -> None:
    make = durable(living.build, durability)
    asyncio.run(assert_goes_on(make, message, answer, manner, InMemoryCheckpointStorage))


@some(25)
@given(livings(), inputs(), MANNERS)
def test_with_blobs_keyframes_and_parts_elsewhere(living: Living, message: int, manner: str) -> None:
    with small_limits():
        asyncio.run(assert_goes_on(living.build, message, answer, manner, InMemoryCheckpointStorage))


class AskThrice(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        for _ in range(3):
            await ctx.request_info(Question("AskThrice", number), response_type=int)

    @response_handler
    async def answered(self, question: Question, number: int, ctx: WorkflowContext[None, int]) -> None:
        await ctx.yield_output(number)


@pytest.mark.parametrize("manner", [TOGETHER, ONE_BY_ONE, AT_ONCE])
async def test_questions_that_were_asked_again_are_not_asked_with_each_answer(manner: str) -> None:
    def make() -> Workflow:
        return WorkflowBuilder(name="AskThrice").set_start_executor(AskThrice).build()

    await assert_goes_on(make, 9, answer, manner, InMemoryCheckpointStorage)


# -- on disk ---------------------------------------------------------------------------------------


@some(4)
@given(living=livings(levels=2), message=inputs(2))
def test_any_workflow_is_resumable_on_disk(
    make_storage: Callable[[], CheckpointStorage], living: Living, message: int
) -> None:
    asyncio.run(assert_resumable(living.build, message, answer, make_storage))


@some(4)
@given(living=livings(levels=2), message=inputs(2), manner=MANNERS)
def test_any_workflow_goes_on_with_small_limits_on_disk(
    make_storage: Callable[[], CheckpointStorage], living: Living, message: int, manner: str
) -> None:
    with small_limits():
        asyncio.run(assert_goes_on(living.build, message, answer, manner, make_storage))


# -- the properties would notice -------------------------------------------------------------------


Patch = pytest.MonkeyPatch


def _folding(patch: Patch, bent: Callable[[Changes], Changes]) -> None:
    straight = Manifest.fold
    patch.setattr(Manifest, "fold", lambda self, changes, *rest: straight(self, bent(changes), *rest))


def _forgetting(patch: Patch, forget: Callable[[Manifest], Any]) -> None:
    straight = Manifest.fold

    def fold(self: Manifest, changes: Changes, *rest: Any) -> None:
        straight(self, changes, *rest)
        forget(self)

    patch.setattr(Manifest, "fold", fold)


def _without_tails(patch: Patch) -> None:
    straight = manifest._grown
    patch.setattr(manifest, "_grown", lambda before, written: straight(before, Grow(written.label, ())))


def _answers_without_responses(patch: Patch) -> None:
    straight = checkpoint_drafts.draft_answers
    patch.setattr(recorder, "draft_answers", lambda *given: straight(*given)._replace(responses={}))


def _newest_request_first(held: Manifest) -> None:
    held.requests = dict(sorted(held.requests.items(), reverse=True))


BUGS: dict[str, Callable[[Patch], Any]] = {
    "fan-ins forget what they hold": lambda patch: _folding(patch, lambda c: c._replace(buffers=())),
    "nested workflows are counted anew": lambda patch: _folding(patch, lambda c: c._replace(instances=())),
    "what nested workflows held stays": lambda patch: _folding(patch, lambda c: c._replace(dropped=())),
    "outputs are lost": lambda patch: _folding(patch, lambda c: c._replace(outputs=())),
    "writes are lost": lambda patch: _folding(patch, lambda c: c._replace(writes=c.writes[:1])),
    "what was answered is forgotten": lambda patch: _forgetting(patch, lambda held: held.answered.clear()),
    "requests change their order": lambda patch: _forgetting(patch, _newest_request_first),
    "what is appended is lost": _without_tails,
    "a start is committed without its responses": _answers_without_responses,
    "private fields are not restored": lambda patch: patch.setattr(
        executors, "keeps_something", lambda snapshot, address: False
    ),
}


# Far more than are needed: even for a given seed, what is drawn depends on the modules that are loaded.
PLANTED = settings(
    max_examples=3000, database=None, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False
)


@contextmanager
def planted(bug: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        BUGS[bug](patch)
        yield


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    @PLANTED
    @given(livings(), inputs())
    def goes_on(living: Living, message: int) -> None:
        asyncio.run(assert_goes_on(living.build, message, answer, ONE_BY_ONE, InMemoryCheckpointStorage))

    with planted(bug), pytest.raises((AssertionError, HoldfastError, KeyError)):
        goes_on()


# What ``assert_resumable`` finds by itself; it answers again what was forgotten, and looks only at the store.
FOUND_BY_ASSERT_RESUMABLE = [
    "fan-ins forget what they hold",
    "outputs are lost",
    "a start is committed without its responses",
    "private fields are not restored",
]


@pytest.mark.parametrize("bug", FOUND_BY_ASSERT_RESUMABLE)
def test_assert_resumable_finds_a_planted_bug(bug: str) -> None:
    @PLANTED
    @given(livings(), inputs())
    def resumable(living: Living, message: int) -> None:
        asyncio.run(assert_resumable(living.build, message, answer))

    with planted(bug), pytest.raises((AssertionError, HoldfastError, KeyError)):
        resumable()


def test_random_workflows_show_all_that_is_claimed() -> None:
    """The properties above would hold for workflows in which nothing happens; these are not such."""

    async def explore(living: Living, message: int, manner: str) -> set[str]:
        seen: set[str] = set()
        async with InMemoryCheckpointStorage() as storage:
            with small_limits():
                run = await living.build().start(message, storage=storage)
                waited = 0
                while run.pending_requests or not run.status.ended:
                    result = await run.wait_for_completion()
                    if not result.pending_requests:
                        break
                    waited += 1
                    asked = run.pending_requests
                    await run.respond(
                        {r.request_id: answer(r) for r in asked[: 1 if manner == ONE_BY_ONE else None]}
                    )
            for checkpoint in await storage.list_checkpoints():
                held = checkpoint._manifest
                scopes = {scope.name for scope in held.state}
                seen.update(
                    name
                    for name, there in {
                        "several rounds": waited > 1,
                        "several questions": len(held.requests) > 1,
                        "answers": held.answered,
                        "buffers": held.buffers,
                        "instances": held.instances,
                        "questions inside": any("/" in asked for asked in held.requests),
                        "state inside": any(scope.path for scope in held.state),
                        "events": any(event.event for event in held.happened),
                        "warnings": any(event.warning for event in held.happened),
                        "blobs": held.digests,
                        "grown": any(ref.parts for keys in held.state.values() for ref in keys.values()),
                        "merges": scopes >= {"Trail", "Seen", "Longest", "Totals", "Log"},
                        "long": checkpoint.superstep >= 5,
                        "response": checkpoint.cause == "response",
                    }.items()
                    if there
                )
        return seen

    def shown(living: Living, message: int, manner: str) -> set[str]:
        return asyncio.run(explore(living, message, manner))

    claimed = {
        *("several rounds", "several questions", "answers", "buffers", "instances", "questions inside"),
        *("state inside", "events", "warnings", "blobs", "grown", "merges", "long", "response"),
    }
    shows_all(claimed, shown, livings(), inputs(), MANNERS)
