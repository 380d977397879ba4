"""A run that keeps only its latest checkpoint takes little room, at every moment, however long it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    CheckpointNotFound,
    CheckpointSavedEvent,
    CheckpointStorage,
    Retention,
    RunStatus,
)
from tests.support import modules
from tests.support.durable import KINDS, Place
from tests.support.modules import database_file, prune_schedule
from tests.support.parts import Head, prune_run
from tests.support.retained import stored_seqs
from tests.support.room import ALLOWED, STATES, last_written, rewriting, room, state_held

STATE = STATES["200 kB in 8"]
# Without any upkeep it would take more than 2 MB, and the bound is less.
STEPS = 80


async def load_latest(storage: CheckpointStorage) -> Checkpoint:
    """The checkpoint on which the run stands; it may move on while it is loaded."""
    while True:
        (latest,) = await storage.list_checkpoints()
        try:
            return await storage.load(latest)
        except CheckpointNotFound:
            assert (await storage.catalog.head("r")).checkpoint_id != latest.checkpoint_id


async def keeps_to_its_room(kind: str, folder: Path) -> None:
    place = Place(kind, folder)
    storage = place.storage
    run = await rewriting(STATE).start(STEPS, run_id="r", storage=storage)
    bound, looked = 0, 0
    async for event in run.watch_stream():
        if not isinstance(event, CheckpointSavedEvent) or event.checkpoint.phase != "start":
            continue
        looked += 1
        bound = bound or (4 * await state_held(storage) + ALLOWED if looked > 1 else 0)
        assert looked == 1 or room(storage, folder) <= bound, f"superstep {looked}"
        if looked % 20 == 0:
            await load_latest(storage)
    assert run.status is RunStatus.COMPLETED
    assert looked == STEPS
    again = await place.reopened()
    assert room(again, folder) <= bound
    held = (await load_latest(again)).scopes["S"]
    assert {key: held[key] for key in held} == last_written(STATE, 0, STEPS)
    assert (await again.verify()).ok
    await again.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_keeps_its_latest_checkpoint_takes_little_room(kind: str, on_disk: Path) -> None:
    await keeps_to_its_room(kind, on_disk)


async def test_runs_that_keep_everything_have_the_log_that_they_had(on_disk: Path) -> None:
    storage = Place("sqlite", on_disk).storage
    run = await rewriting(STATE, None).start(40, storage=storage)
    await run.wait_for_completion()
    assert (on_disk / "runs.db-wal").stat().st_size > 900_000
    run = await rewriting(STATE).start(40, storage=storage)
    await run.wait_for_completion()
    assert (on_disk / "runs.db-wal").stat().st_size < 600_000
    await storage.close()


async def test_a_process_begins_with_what_others_left(on_disk: Path) -> None:
    place = Place("sqlite", on_disk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prune_schedule, "_LEAST", 1 << 40)
        stream = rewriting(STATE).run_stream(STEPS, run_id="r", storage=place.storage)
        async with stream:
            async for event in stream:
                if isinstance(event, CheckpointSavedEvent) and event.checkpoint.seq == 41:
                    break
    assert len(await stored_seqs(place.storage, "r")) >= 41
    again = await place.reopened()
    stream = rewriting(STATE).run_stream_from_checkpoint(
        (await again.catalog.head("r")).checkpoint_id, checkpoint_storage=again
    )
    async with stream:
        async for event in stream:
            if isinstance(event, CheckpointSavedEvent):
                break
    assert len(await stored_seqs(again, "r")) < 10
    await again.close()


async def test_many_records_are_not_looked_at_often() -> None:
    storage = Place("memory", Path()).storage
    looked: list[int] = []

    async def counted(catalog: Any, head: Head, now: Any) -> int:
        looked.append(await prune_run(catalog, head, now))
        return looked[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.run_logs, "prune_run", counted)
        run = await rewriting(STATE, Retention.keep_last(50)).start(500, storage=storage)
        await run.wait_for_completion()
    assert len(looked) > 4
    assert max(looked) < 220
    # What is looked at all the time together is not more than what was written, but for the first times.
    assert sum(looked) < 2 * 1000


async def test_what_goes_wrong_with_it_is_not_the_problem_of_the_run() -> None:
    storage = Place("memory", Path()).storage
    asked: list[Head] = []

    async def broken(catalog: Any, head: Head, now: Any) -> int:
        asked.append(head)
        raise KeyError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules.run_logs, "prune_run", broken)
        run = await rewriting(STATE).start(60, run_id="r", storage=storage)
        assert (await run.wait_for_completion()).outputs == ["done"]
    assert len(asked) > 1
    assert (await storage.prune()).checkpoints > 100


def _never_tidies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prune_schedule, "_LEAST", 1 << 40)


def _has_a_long_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database_file, "SMALL_WAL_PAGES", database_file.WAL_PAGES)


@pytest.mark.parametrize(
    ("bug", "kind"),
    [*((_never_tidies, kind) for kind in KINDS), (_has_a_long_log, "sqlite")],
)
async def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], kind: str, on_disk: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises(AssertionError, match="superstep"):
            await keeps_to_its_room(kind, on_disk)
