"""Runs that are pruned at any moment, by any policy, and stopped after any commit come to the same end."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    Retention,
    SqliteCheckpointStorage,
    Store,
)
from holdfast.checkpoint.store import Blob, Keyframe
from holdfast.errors import HoldfastError
from tests.properties.test_resume import MANNERS, some
from tests.support.durable import Wrapped
from tests.support.going_on import (
    ONE_BY_ONE,
    Story,
    _dies,
    answers_left,
    compare,
    lived,
    matches_the_store,
)
from tests.support.living import Living, answer, inputs, livings
from tests.support.modules import prune as pruning
from tests.support.modules import refs as named
from tests.support.parts import (
    BlobReader,
    Changes,
    CheckpointId,
    Commit,
    Digest,
    Letter,
    Manifest,
    MortalStore,
    Record,
    Ref,
    Removal,
)
from tests.support.small_limits import small_limits

POLICIES = st.one_of(
    st.just(Retention.latest_only()),
    st.just(Retention.latest_only()),
    st.integers(1, 3).map(Retention.keep_last),
    st.sampled_from([timedelta(0), timedelta(days=1)]).map(Retention.keep_for),
    st.just(Retention.full_history()),
)


class Moments(NamedTuple):
    """When a run is pruned beside what its own retention says, and how."""

    every: int
    policy: Retention | None


MOMENTS = st.builds(Moments, st.integers(1, 5), st.none() | POLICIES)


class Pruned(Wrapped):
    """A store in which somebody prunes after some of the commits."""

    def __init__(self, inner: Store, moments: Moments) -> None:
        super().__init__(inner)
        self.moments = moments
        self.commits = 0

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await self.inner.commit(commit)
        self.commits += 1
        if self.commits % self.moments.every == 0:
            storage = CheckpointStorage(self.inner)
            foreseen = await storage.prune(self.moments.policy, dry_run=True)
            report = await storage.prune(self.moments.policy)
            assert report == replace(foreseen, dry_run=False)
        return waiting


async def assert_same_ends(
    living: Living, message: int, manner: str, make_storage: Callable[[], CheckpointStorage]
) -> None:
    """Stop a run after every commit, and go on: it must come to the end of one that nobody stopped or pruned."""
    async with InMemoryCheckpointStorage() as storage:
        expected = await lived(await living.build().start(message, storage=storage), answer, manner)
    commits = 1
    while await _stopped(commits, living, message, _without_events(expected), manner, make_storage):
        commits += 1


def _without_events(story: Story) -> Story:
    """The turns of a superstep tell their events as they come to them; that is not what is asked here."""
    return story._replace(ending=replace(story.ending, events=[]))


async def _stopped(
    commits: int,
    living: Living,
    message: int,
    expected: Story,
    manner: str,
    make_storage: Callable[[], CheckpointStorage],
) -> bool:
    """Let the store die after so many commits and go on; whether the run was stopped at all."""
    async with make_storage() as storage:
        store = storage.catalog.store
        storage.catalog.store = mortal = MortalStore(store, commits)
        run = await living.build().start(message, storage=storage)
        stopped = await _dies(run, answer, manner, mortal.death)
        storage.catalog.store = store
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        assert [one.seq for one in await storage.list_checkpoints()][-1] == latest.seq
        left = await answers_left(storage, run.run_id)
        resumed = await living.build().resume(run_id=run.run_id, storage=storage)
        story = _without_events(await lived(resumed, answer, manner))
        compare(expected, story, latest, f"stopped after commit {commits}", manner, left)
        await matches_the_store(resumed, storage)
        await storage.prune()
        for checkpoint in await storage.list_checkpoints():
            await storage.load(checkpoint)
        report = await storage.verify()
        assert report.ok, report.problems
    return stopped


def storages(
    make: Callable[[], CheckpointStorage], policy: Retention, moments: Moments
) -> Callable[[], CheckpointStorage]:
    """Storages with a policy, in which somebody prunes."""

    def make_storage() -> CheckpointStorage:
        return CheckpointStorage(Pruned(make().store, moments), policy)

    return make_storage


@some(25)
@given(livings(), inputs(), MANNERS, POLICIES, MOMENTS)
def test_pruned_runs_come_to_the_same_end(
    living: Living, message: int, manner: str, policy: Retention, moments: Moments
) -> None:
    make_storage = storages(InMemoryCheckpointStorage, policy, moments)
    with small_limits():
        asyncio.run(assert_same_ends(living, message, manner, make_storage))


@pytest.mark.parametrize("kind", [SqliteCheckpointStorage, FileCheckpointStorage])
def test_pruned_runs_come_to_the_same_end_on_disk(
    kind: type[SqliteCheckpointStorage | FileCheckpointStorage], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, number = tmp_path_factory.mktemp("pruned"), itertools.count()

    @some(3)
    @given(livings(levels=2), inputs(2), MANNERS, POLICIES, MOMENTS)
    def come_to_the_same_end(
        living: Living, message: int, manner: str, policy: Retention, moments: Moments
    ) -> None:
        make_storage = storages(lambda: kind(folder / f"{next(number)}.store"), policy, moments)
        with small_limits():
            asyncio.run(assert_same_ends(living, message, manner, make_storage))

    come_to_the_same_end()


# -- what is kept ----------------------------------------------------------------------------------

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class One(NamedTuple):
    """What retention has to know of a checkpoint."""

    checkpoint_id: str
    seq: int
    parent_id: str | None
    superstep: int
    timestamp: datetime
    tags: tuple[str, ...]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[One], One]:
    """The checkpoints of a run that went back now and then, some of them gone; and where it stands."""
    made: list[One] = []
    for seq in range(1, draw(st.integers(1, 14)) + 1):
        parent = (
            made[draw(st.integers(0, len(made) - 1)) if draw(st.integers(0, 3)) == 0 else -1]
            if made
            else None
        )
        superstep = 1 if parent is None else parent.superstep + draw(st.integers(0, 1))
        age = timedelta(minutes=draw(st.integers(0, 5)) + 15 - seq)
        tags = ("t",) if draw(st.integers(0, 9)) == 0 else ()
        name = None if parent is None else parent.checkpoint_id
        made.append(One(f"c{seq}", seq, name, superstep, NOON - age, tags))
    head = made[-1]
    gone = draw(st.sets(st.integers(1, len(made)), max_size=3)) - {head.seq}
    return [one for one in made if one.seq not in gone], head


def model(policy: str, number: int, checkpoints: list[One], head: One) -> set[int]:
    """What is kept, by the words of the documentation for each checkpoint alone."""
    by_id = {one.checkpoint_id: one for one in checkpoints}

    def way_to(target: One) -> list[One] | None:
        """From the head back to a checkpoint; None if it is on another branch, or what lies between is gone."""
        way = [head]
        while way[-1] is not target:
            parent = by_id.get(way[-1].parent_id or "")
            if parent is None:
                return None
            way.append(parent)
        return way

    def is_kept(one: One) -> bool:
        if one is head or one.tags:
            return True
        way = way_to(one)
        match policy:
            case "keep_last":
                return way is not None and len({passed.superstep for passed in way}) <= number
            case "keep_for":
                return NOON - one.timestamp <= timedelta(minutes=number)
        return policy == "full_history"

    return {one.seq for one in checkpoints if is_kept(one)}


@given(
    histories(), st.sampled_from(["full_history", "latest_only", "keep_last", "keep_for"]), st.integers(1, 16)
)
def test_what_is_kept_is_what_the_words_say(history: tuple[list[One], One], policy: str, number: int) -> None:
    checkpoints, head = history
    retention = {
        "full_history": Retention.full_history(),
        "latest_only": Retention.latest_only(),
        "keep_last": Retention.keep_last(number),
        "keep_for": Retention.keep_for(timedelta(minutes=number)),
    }[policy]
    kept = retention.kept(checkpoints, head.checkpoint_id, NOON)
    assert kept == model(policy, number, checkpoints, head)
    again = Retention.of_text(retention.text())
    assert again == retention
    rest = [one for one in checkpoints if one.seq in kept]
    assert again.kept(rest, head.checkpoint_id, NOON) == kept, (
        "what was kept is not kept when the rest is gone"
    )


# -- the properties would notice -------------------------------------------------------------------

# Far more than are needed: even for a given seed, what is drawn depends on the modules that are loaded.
PLANTED = settings(
    max_examples=2000, database=None, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False
)


def _no_cut_keyframes(patch: pytest.MonkeyPatch) -> None:
    """Records go, and what follows them gets no keyframe."""
    patch.setattr(
        pruning, "Removal", lambda run, at, seqs, keyframes, blobs, tags: Removal(run, at, seqs, tags=tags)
    )


def _keyframes_name_nothing(patch: pytest.MonkeyPatch) -> None:
    """A sweep does not look at keyframes."""
    straight = pruning._digests_in

    async def without(store: Store, record: Record, blobs: BlobReader) -> set[Digest]:
        return await straight(store, record._replace(keyframe=None), blobs)

    patch.setattr(pruning, "_digests_in", without)


def _forgetful_keyframes(patch: pytest.MonkeyPatch) -> None:
    straight = pruning.make_keyframe

    def make_keyframe(checkpoint_id: CheckpointId, manifest: Manifest) -> tuple[Keyframe, list[Blob]]:
        manifest.outputs.clear()
        manifest.requests.clear()
        return straight(checkpoint_id, manifest)

    patch.setattr(pruning, "make_keyframe", make_keyframe)


def _answered_questions_are_swept(patch: pytest.MonkeyPatch) -> None:
    """A sweep does not look at the question that a message answers."""
    straight = named.refs_in

    def refs_in(changes: Changes) -> Iterable[Ref]:
        bare = [delivered._replace(request=None) for delivered in changes.deliveries or ()]
        return straight(changes._replace(deliveries=bare))

    patch.setattr(pruning, "refs_in", refs_in)


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "no cut keyframes": _no_cut_keyframes,
    "keyframes are not looked at": _keyframes_name_nothing,
    "cut keyframes forget": _forgetful_keyframes,
    "answered questions are swept": _answered_questions_are_swept,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    @PLANTED
    @given(livings(), inputs(), POLICIES, MOMENTS)
    def same_ends(living: Living, message: int, policy: Retention, moments: Moments) -> None:
        make_storage = storages(InMemoryCheckpointStorage, policy, moments)
        with small_limits():
            asyncio.run(assert_same_ends(living, message, ONE_BY_ONE, make_storage))

    with pytest.MonkeyPatch.context() as patch:
        BUGS[bug](patch)
        with pytest.raises((AssertionError, HoldfastError, KeyError)):
            same_ends()
