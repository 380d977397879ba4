"""Whoever looks at a run, goes back in it or forks it while checkpoints are removed sees no damage, and does none."""

import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    CheckpointCorrupt,
    CheckpointNotFound,
    CheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    Retention,
    Run,
    RunNotFound,
    RunTaken,
    Store,
    VerifyReport,
)
from tests.support.durable import Wrapped
from tests.support.modules import browser, catalog, comparison, pages, stored_runs
from tests.support.modules import prune as pruning
from tests.support.modules import run_transfer as transfer
from tests.support.modules import storage as storage_module
from tests.support.modules import verify as verify_module
from tests.support.parts import Commit, Depth, Head, Letter, MemoryStore, Page
from tests.support.retained import assert_sound, counted, counting, listed
from tests.support.small_limits import small_limits

LATEST = Retention.latest_only()
SIZES = [6_000, 40]
"""Of values that are blobs, and of values that are not."""


class Meanwhile(Wrapped):
    """A store to which something happens before the nth thing that it is asked for."""

    def __init__(self, inner: Store, nth: int, happen: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self.nth, self.happen, self.calls = nth, happen, 0

    async def _called(self) -> None:
        self.calls += 1
        if self.calls == self.nth:
            await self.happen()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await self._called()
        return await self.inner.commit(commit)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*arguments: Any) -> Any:
            await self._called()
            return await method(*arguments)

        return call


class World:
    """A run that is over, and moves on and is pruned when it is told to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.storage = InMemoryCheckpointStorage()
        self.run: Run
        self.made: list[Any] = []

    async def begin(self, retention: Retention | None) -> None:
        self.run = await counting(retention, self.size).start(6, run_id="r", storage=self.storage)
        await self.run.wait_for_completion()
        self.made = list(self.run.checkpoints)

    async def move_on(self) -> None:
        await self.run.restore_checkpoint(self.run.checkpoints[-1])
        await self.run.wait_for_completion()
        await self.storage.prune(LATEST)

    async def prune(self) -> None:
        await self.storage.prune(LATEST)

    def watched(self, nth: int, happen: Callable[[], Awaitable[Any]]) -> tuple[CheckpointStorage, Meanwhile]:
        meanwhile = Meanwhile(self.storage.store, nth, happen)
        return CheckpointStorage(meanwhile), meanwhile


Look = Callable[[CheckpointStorage, World], Awaitable[Any]]


async def resume(storage: CheckpointStorage, world: World) -> Any:
    run = await counting(LATEST, world.size).resume(run_id="r", storage=storage)
    return (await run.wait_for_completion()).outputs


async def verify(storage: CheckpointStorage, world: World) -> VerifyReport:
    report = await storage.verify()
    assert report.ok, report.problems
    return report


async def list_and_read(storage: CheckpointStorage, world: World) -> Any:
    (checkpoint,) = await listed(storage, "r")
    try:
        return await checkpoint.read_state("newest", scope_name="S")
    except CheckpointNotFound:
        return None


async def keys_of_latest(storage: CheckpointStorage, world: World) -> Any:
    latest = await storage.get_latest(run_id="r")
    assert latest is not None
    return latest.scopes["S"].sizes()


async def keys_of_a_page(storage: CheckpointStorage, world: World) -> Any:
    page = await storage.list_checkpoints(run_id="r", limit=4, after=world.made[5])
    return [checkpoint.scopes["S"].sizes() for checkpoint in page]


async def statistics(storage: CheckpointStorage, world: World) -> Any:
    found = await storage.statistics(measure_blobs=True)
    assert not found.unreadable
    return found


LOOKS: dict[str, Look] = {
    "get_latest": lambda storage, world: storage.get_latest(run_id="r"),
    "newest": lambda storage, world: storage.get_latest("Count"),
    "keys of the latest": keys_of_latest,
    "list": lambda storage, world: storage.list_checkpoints(),
    "a page": lambda storage, world: storage.list_checkpoints(run_id="r", limit=1),
    "draw_tree": lambda storage, world: storage.draw_tree("r"),
    "list and read": list_and_read,
    "resume": resume,
    "verify": verify,
    "statistics": statistics,
}
BY_ID: dict[str, Look] = {
    "load": lambda storage, world: storage.load(world.made[-1]),
    "diff": lambda storage, world: storage.diff(world.made[-1], world.made[-1]),
    "tag": lambda storage, world: storage.tag(world.made[-1], "gold"),
}


async def at_every_moment(look: Look, size: int, retention: Retention | None = LATEST) -> tuple[int, int]:
    """Look while the run moves on at every moment of it; how many there were, and at how many it was not found."""
    nth = missed = 0
    with small_limits(inline=512, keyframe=900, largest_part=200, compress=1 << 20):
        while True:
            nth += 1
            world = World(size)
            await world.begin(retention)
            storage, meanwhile = world.watched(nth, world.move_on)
            try:
                assert await look(storage, world) is not False
            except CheckpointNotFound:
                missed += 1
            await assert_sound(world.storage)
            assert not storage.catalog.left_out.runs
            if meanwhile.calls < nth:
                return nth - 1, missed


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LOOKS)
async def test_who_looks_at_a_run_that_moves_on_sees_it(name: str, size: int) -> None:
    moments, missed = await at_every_moment(LOOKS[name], size)
    assert moments > 1
    assert not missed


@pytest.mark.parametrize("name", BY_ID)
async def test_who_asks_for_a_checkpoint_that_goes_hears_that_it_is_gone(name: str) -> None:
    moments, missed = await at_every_moment(BY_ID[name], SIZES[0])
    assert moments > 2
    assert 0 < missed <= moments


@pytest.mark.parametrize("size", SIZES)
async def test_a_page_has_what_it_follows_from_though_that_is_removed(size: int) -> None:
    moments, missed = await at_every_moment(keys_of_a_page, size, None)
    assert moments > 3
    assert 0 < missed < moments  # where what the page comes after was gone before it was looked for


async def test_an_export_has_the_run_as_it_stands(tmp_path: Path) -> None:
    moments = 0

    async def export(storage: CheckpointStorage, world: World) -> None:
        nonlocal moments
        moments += 1
        await storage.export_run("r", tmp_path / f"{moments}")
        there = InMemoryCheckpointStorage()
        await there.import_run(tmp_path / f"{moments}")
        await assert_sound(there)
        latest = await there.get_latest(run_id="r")
        assert latest is not None
        assert (await there.load(latest)).outputs == counted(6)

    found, missed = await at_every_moment(export, SIZES[0])
    assert (found + 1, missed) == (moments, 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["resume", "fork"])
async def test_who_goes_back_to_a_checkpoint_that_goes(how: str, size: int) -> None:
    async def back(storage: CheckpointStorage, world: World) -> None:
        run = await getattr(counting(None, size), how)(world.made[4], storage=storage)
        assert (await run.wait_for_completion()).outputs == counted(6)

    async def sound(storage: CheckpointStorage, world: World) -> None:
        try:
            await back(storage, world)
        finally:
            await assert_sound(world.storage)
            resumed = await counting(None, size).resume(run_id="r", storage=world.storage)
            assert (await resumed.wait_for_completion()).outputs == counted(6)

    nth = gone = 0
    while True:
        nth += 1
        world = World(size)
        await world.begin(None)
        storage, meanwhile = world.watched(nth, world.prune)
        try:
            await sound(storage, world)
        except CheckpointNotFound:
            gone += 1
        if meanwhile.calls < nth:
            break
    assert 1 < gone < nth - 1


async def test_a_run_that_is_imported_while_its_family_is_swept_is_whole(tmp_path: Path) -> None:
    first = World(6_000)
    await first.begin(None)
    fork = await counting().fork(first.made[6], storage=first.storage)
    await fork.wait_for_completion()
    await first.storage.export_run("r", tmp_path / "origin")
    await first.storage.export_run(fork.run_id, tmp_path / "fork")
    nth = 0
    while True:
        nth += 1
        world = World(6_000)
        await world.storage.import_run(tmp_path / "origin")
        await world.storage.prune(LATEST)
        told: list[tuple[int, int]] = []
        storage, meanwhile = world.watched(nth, world.prune)
        await storage.import_run(tmp_path / "fork", progress=lambda *now, told=told: told.append(now))
        assert told[-1][0] == told[-1][1]
        await assert_sound(world.storage)
        resumed = await counting().resume(run_id=fork.run_id, storage=world.storage)
        assert (await resumed.wait_for_completion()).outputs == counted(6)
        if meanwhile.calls < nth:
            break
    assert nth > 3


async def test_a_tag_that_is_set_while_others_prune_keeps_its_checkpoint() -> None:
    nth = tagged = 0
    while True:
        nth += 1
        world = World(6_000)
        await world.begin(None)
        kept: list[Checkpoint] = []

        async def tag(world: World = world, kept: list[Checkpoint] = kept) -> None:
            try:
                await world.storage.tag(world.made[4], "gold")
            except CheckpointNotFound:
                return
            kept.append(await world.storage.load(world.made[4]))

        storage, meanwhile = world.watched(nth, tag)
        await storage.prune(LATEST)
        for checkpoint in kept:
            tagged += 1
            assert (await world.storage.load(checkpoint)).tags == ("gold",)
        await assert_sound(world.storage)
        assert not storage.catalog.left_out.runs
        if meanwhile.calls < nth:
            break
    assert 1 < tagged < nth


async def test_a_checkpoint_is_deleted_though_its_run_is_taken_back() -> None:
    nth = done = refused = 0
    while True:
        nth += 1
        world = World(6_000)
        await world.begin(None)
        await world.storage.tag(world.made[4], "gold")

        async def take_back(world: World = world) -> None:
            await world.run.restore_checkpoint(world.made[5])
            await world.run.wait_for_completion()

        storage, meanwhile = world.watched(nth, take_back)
        await storage.delete(world.made[4])
        done += 1
        await assert_sound(world.storage)
        assert not storage.catalog.left_out.runs
        with pytest.raises(CheckpointNotFound):
            await world.storage.load(world.made[4])
        with pytest.raises(InvalidArgument):
            await world.storage.delete(world.run.checkpoints[-1])
        refused += 1
        if meanwhile.calls < nth:
            break
    assert done == refused == nth > 4


async def export(storage: CheckpointStorage, world: World) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await storage.export_run("r", Path(folder) / "exported")


async def fork(storage: CheckpointStorage, world: World) -> Any:
    run = await counting(None, world.size).fork(world.made[4], run_id="fork", storage=storage)
    return (await run.wait_for_completion()).outputs


async def verify_alone(storage: CheckpointStorage, world: World) -> None:
    report = await storage.verify(run_id="r")
    assert report.ok, report.problems


async def repair(storage: CheckpointStorage, world: World) -> None:
    report = await storage.repair()
    assert (report.ok, report.repairs) == (True, []), report


OF_GONE: dict[str, Look] = {
    **{name: look for name, look in LOOKS.items() if name not in ("list and read", "keys of the latest")},
    **BY_ID,
    "verify the run": verify_alone,
    "repair": repair,
    "prune": lambda storage, world: storage.prune(LATEST),
    "prune the run": lambda storage, world: storage.prune(LATEST, run_id="r"),
    "delete": lambda storage, world: storage.delete(world.made[3]),
    "export": export,
    "fork": fork,
}


REMOVING = ["verify", "repair", "prune", "delete"]


@pytest.mark.parametrize(
    ("name", "then"),
    [
        *((name, "it is gone") for name in OF_GONE),
        *((name, "another has its id") for name in REMOVING),
        *((name, "it is pruned") for name in REMOVING),
    ],
)
async def test_who_looks_at_a_run_that_is_deleted_sees_no_damage(name: str, then: str) -> None:
    """Whatever was read of it before."""
    nth = 0
    while True:
        nth += 1
        world = World(SIZES[0])
        await world.begin(None)

        async def happen(world: World = world) -> None:
            if then == "it is pruned":
                await world.prune()
                return
            await world.storage.delete_run("r")
            if then == "another has its id":
                await counting(None, SIZES[0]).run(6, run_id="r", storage=world.storage)

        storage, meanwhile = world.watched(nth, happen)
        with contextlib.suppress(RunNotFound, CheckpointNotFound, RunTaken):
            await OF_GONE[name](storage, world)
        await assert_sound(world.storage)
        assert not storage.catalog.left_out.runs
        if meanwhile.calls < nth:
            break
    assert nth > 2


async def test_damage_is_told_though_it_may_be_a_removal() -> None:
    world = World(6_000)
    await world.begin(None)
    store = world.storage.store
    assert isinstance(store, MemoryStore)
    missing = list(store._blobs)[1]
    whole = dict(store._blobs)
    del store._blobs[missing]
    report = await world.storage.verify()
    assert {problem.run_id for problem in report.problems} == {"r"}
    last = (await listed(world.storage, "r"))[-1]
    with pytest.raises(CheckpointCorrupt, match="missing"):
        await world.storage.load(last)
    store._blobs.update(whole)
    assert (await world.storage.verify()).ok


# -- these tests would notice ----------------------------------------------------------------------


def _looks_once(patch: pytest.MonkeyPatch) -> None:
    async def once(look: Callable[[], Awaitable[Any]]) -> Any:
        return await look()

    for module in (storage_module, browser, catalog, comparison, stored_runs, transfer, pruning):
        patch.setattr(module, "steadily", once)


def _reads_a_page_in_parts(patch: pytest.MonkeyPatch) -> None:
    straight = pages.page_of

    async def page_of(store: Store, head: Head, first: int, limit: int | None, depth: Depth) -> Page:
        page = await straight(store, head, first, limit, depth)
        before = await store.records(head.run_id, 1, first - 1, depth)
        return Page([*before, *page.records[page.begins :]], len(before))

    patch.setattr(browser, "page_of", page_of)


def _verifies_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verify_module, "LOOKS", 1)


def _needs_nothing(patch: pytest.MonkeyPatch) -> None:
    straight = MemoryStore.commit

    async def commit(self: MemoryStore, commit: Commit) -> Sequence[Letter]:
        return await straight(self, commit._replace(needs=()))

    patch.setattr(MemoryStore, "commit", commit)


def _removes_what_has_tags(patch: pytest.MonkeyPatch) -> None:
    straight = MemoryStore.remove

    async def remove(self: MemoryStore, removal: Any) -> bool:
        for seq in removal.seqs:
            await self.tag(removal.run_id, seq, ())
        return await straight(self, removal)

    patch.setattr(MemoryStore, "remove", remove)


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (_looks_once, lambda _: test_who_looks_at_a_run_that_moves_on_sees_it("get_latest", SIZES[0])),
        (_looks_once, lambda _: test_who_looks_at_a_run_that_moves_on_sees_it("resume", SIZES[0])),
        (_looks_once, lambda _: test_who_asks_for_a_checkpoint_that_goes_hears_that_it_is_gone("load")),
        (_looks_once, test_an_export_has_the_run_as_it_stands),
        (
            _reads_a_page_in_parts,
            lambda _: test_a_page_has_what_it_follows_from_though_that_is_removed(SIZES[0]),
        ),
        (_verifies_once, lambda _: test_who_looks_at_a_run_that_moves_on_sees_it("verify", SIZES[0])),
        (
            _verifies_once,
            lambda _: test_who_looks_at_a_run_that_is_deleted_sees_no_damage("verify", "it is gone"),
        ),
        (
            _looks_once,
            lambda _: test_who_looks_at_a_run_that_is_deleted_sees_no_damage("prune", "another has its id"),
        ),
        (_needs_nothing, lambda _: test_who_goes_back_to_a_checkpoint_that_goes("resume", SIZES[0])),
        (_needs_nothing, lambda _: test_who_goes_back_to_a_checkpoint_that_goes("fork", SIZES[0])),
        (_needs_nothing, test_a_run_that_is_imported_while_its_family_is_swept_is_whole),
        (_removes_what_has_tags, lambda _: test_a_tag_that_is_set_while_others_prune_keeps_its_checkpoint()),
    ],
    ids=[
        "get_latest",
        "resume",
        "load",
        "export",
        "page",
        "verify",
        "gone",
        "prune",
        "restore",
        "fork",
        "import",
        "tag",
    ],
)
async def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], test: Callable[[Path], Awaitable[None]], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises((AssertionError, CheckpointCorrupt, CheckpointNotFound)):
            await test(tmp_path)
