"""A file store that somebody began to repair, and checkpoints that are found beside damaged files."""

from pathlib import Path

import pytest

from holdfast import FileCheckpointStorage
from holdfast.checkpoint.store import RunQuery
from holdfast.ids import RunId
from holdfast.stores.common.locks import Locks
from holdfast.stores.file import FileStore
from holdfast.testing.store_suite.actions import begin_with_records, read_run
from tests.support.retained import assert_sound, counting, listed


async def _taken_away(folder: Path) -> None:
    """A store of which a repair took the folder of a run away, and was killed before it put another into its place."""
    store = FileStore(folder)
    await begin_with_records(store, "r", 3)
    await store.close()
    (folder / "mending").mkdir()
    (folder / "runs" / "r").rename(folder / "mending" / "r")


async def _runs_in(folder: Path) -> list[str]:
    store = FileStore(folder)
    try:
        return [head.run_id for head in await store.runs(RunQuery())]
    finally:
        await store.close()


async def test_whoever_opens_a_store_puts_a_run_into_its_place(tmp_path: Path) -> None:
    await _taken_away(tmp_path)
    assert await _runs_in(tmp_path) == ["r"]
    assert not any((tmp_path / "mending").iterdir())


async def test_a_repair_that_goes_on_is_not_disturbed(tmp_path: Path) -> None:
    await _taken_away(tmp_path)
    with Locks(tmp_path / "locks").try_alone("r.run") as handle:
        assert handle is not None
        assert await _runs_in(tmp_path) == []
        assert (tmp_path / "mending" / "r").is_dir()
    assert await _runs_in(tmp_path) == ["r"]


async def test_a_repair_that_is_about_to_take_a_run_away_keeps_what_it_made(tmp_path: Path) -> None:
    """What lies there ready beside a run is removed only when whoever made it is gone."""
    await _taken_away(tmp_path)
    assert await _runs_in(tmp_path) == ["r"]
    (tmp_path / "mending" / "r").mkdir()
    with Locks(tmp_path / "locks").try_alone("r.run"):
        assert await _runs_in(tmp_path) == ["r"]
        assert (tmp_path / "mending" / "r").is_dir()
    assert await _runs_in(tmp_path) == ["r"]
    assert not (tmp_path / "mending" / "r").exists()


async def test_a_run_that_is_in_use_keeps_no_other_from_being_repaired(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for run in ("busy", "hurt"):
        await begin_with_records(store, run, 2)
        (tmp_path / "runs" / run / "00000002-0.json").write_text("torn")
    with Locks(tmp_path / "locks").hold_shared("busy.run"):
        mended = {done.run_id: done for done in await store.mend(None)}
    assert "is in use by others, and was not repaired; try again" in mended[RunId("busy")].lost
    assert mended[RunId("hurt")].what.startswith("00000002-0.json was put aside")
    assert [damage.run_id for damage in await store.inspect()] == ["busy"]
    await store.close()


async def test_a_checkpoint_is_found_though_another_file_that_names_it_is_damaged(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await begin_with_records(store, "r", 2)
    _, records = await read_run(store, "r")
    second = records[1].checkpoint_id
    await store.close()
    for link in (tmp_path / "ids").rglob(second):
        link.unlink()
    torn = f'{{"parent": "{second}", torn'
    (tmp_path / "runs" / "r" / "00000003-0.json").write_text(torn)
    store = FileStore(tmp_path)
    assert await store.find(second) == (RunId("r"), 2)
    await store.close()


@pytest.mark.parametrize("damage", ["emptied", "garbled", "gone"])
async def test_a_run_whose_tags_cannot_be_read_is_repaired(tmp_path: Path, damage: str) -> None:
    """The file with a tag, which the newest file lists, is damaged before anyone carried it out."""
    async with FileCheckpointStorage(tmp_path) as storage:
        run = await counting().start(3, run_id="r", storage=storage)
        await run.wait_for_completion()
        made = await listed(storage, "r")
        with Locks(tmp_path / "locks").try_alone("r.tidy"):
            await storage.tag(made[2], "gold")
            await run.restore_checkpoint(made[4])
            await run.wait_for_completion()
    (tagging,) = [path for path in (tmp_path / "runs" / "r").iterdir() if b"gold" in path.read_bytes()]
    content = {"emptied": b"", "garbled": tagging.read_bytes().replace(b"gold", b"gild"), "gone": None}[
        damage
    ]
    tagging.unlink()
    if content is not None:
        tagging.write_bytes(content)
    async with FileCheckpointStorage(tmp_path) as storage:
        report = await storage.repair()
        assert report.ok
        assert any("tags" in repair.lost for repair in report.losses)
        assert {one.checkpoint_id for one in made} <= {
            one.checkpoint_id for one in await listed(storage, "r")
        }
        await assert_sound(storage)
