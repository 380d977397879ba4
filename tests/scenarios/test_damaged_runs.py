"""One run that is damaged, or was tampered with: lists and upkeep of the whole store leave it out and go on."""

import logging
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import ormsgpack
import pytest

from holdfast import CheckpointCorrupt, CheckpointStorage, Host, InMemoryCheckpointStorage, Retention
from holdfast.checkpoint.store import RunQuery
from holdfast.ids import RunId
from tests.stores.keyed_world import KEYS, MAKERS, fill, make_workflow
from tests.support.durable_damage import flipped

Opened = Callable[[], CheckpointStorage]


@pytest.fixture(params=[(kind, keyed) for kind in MAKERS for keyed in (False, True)], ids=str)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens one storage again and again."""
    kind, keyed = request.param
    return lambda: MAKERS[kind](tmp_path, KEYS if keyed else None)


def damage(folder: Path, run_id: str, seq: int = 0) -> None:
    """Flip a bit in the header of a record, by default of the last one that has a row or a line of its own."""
    if (folder / "runs.db").exists():
        with closing(sqlite3.connect(folder / "runs.db")) as database, database:
            of_run = "run = (SELECT id FROM runs WHERE run = ?)"
            query = f"SELECT id, header FROM checkpoints WHERE {of_run} AND seq >= ? ORDER BY seq = ? DESC, seq DESC"
            row, header = database.execute(query, (run_id, seq, seq)).fetchone()
            changed = (flipped(header, len(header) // 2), row)
            database.execute("UPDATE checkpoints SET header = ? WHERE id = ?", changed)
        return
    path = folder / "store/runs" / f"{run_id}.jsonl"
    lines = path.read_bytes().splitlines(True)
    number = max(place for place, line in enumerate(lines[:-1]) if b'"new_bytes"' in line)
    lines[number] = flipped(lines[number], lines[number].index(b'"new_bytes"') - 20)
    path.write_bytes(b"".join(lines))


async def test_lists_of_all_runs_leave_out_one(
    opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as storage:
        await fill(storage)
        whole = await storage.list_checkpoints()
    damage(tmp_path, "first")
    async with opened() as storage:
        for limit in (None, 1):
            found = await storage.list_requests(limit=limit)
            assert [request.run_id for request in found] == ["second"]
        assert [one.run_id for one in await storage.list_requests("Walnuts")] == ["second"]
        listed = [one.checkpoint_id for one in await storage.list_checkpoints() if one.run_id != "first"]
        assert listed == [one.checkpoint_id for one in whole if one.run_id != "first"]
        paged: list[str] = []
        while page := await storage.list_checkpoints(limit=2, after=paged[-1] if paged else None):
            paged += [one.checkpoint_id for one in page]
        assert [one for one in paged if one in listed] == listed
        assert "second" in {run.run_id for run in await storage.list_runs(text="walnut-tag")}
        assert await storage.count_runs(text="failed") == 1
        assert {run.run_id for run in await storage.list_runs()} == {"first", "second", "failed"}
        with pytest.raises(CheckpointCorrupt):
            await storage.list_requests(run_id="first")
    (told,) = [one for one in caplog.records if one.name == "holdfast.storage"]
    assert told.levelno == logging.WARNING
    assert told.getMessage().startswith("run 'first' is left out, because what is stored of it is damaged: ")
    assert "storage.verify(" in told.getMessage()
    assert told.holdfast_run_id == "first"  # type: ignore[attr-defined]


async def test_prune_leaves_out_one(opened: Opened, tmp_path: Path) -> None:
    async with opened() as storage:
        await fill(storage)
    damage(tmp_path, "first")
    async with opened() as storage:
        would = await storage.prune(Retention.latest_only(), dry_run=True)
        report = await storage.prune(Retention.latest_only())
        for one in (would, report):
            assert one.runs == 3
            assert one.unreadable == ("first",)
            assert str(one).endswith("; not all could be read of first")
        assert report.checkpoints == would.checkpoints
        assert len(await storage.list_checkpoints(run_id="second")) == 2  # one has a tag
        assert (await storage.prune(run_id="second")).unreadable == ()
        with pytest.raises(CheckpointCorrupt):
            await storage.prune(Retention.latest_only(), run_id="first")


async def test_prune_runs_leaves_out_one(opened: Opened, tmp_path: Path) -> None:
    async with opened() as storage:
        await fill(storage, ())
        for name in ("over", "other"):
            await make_workflow(storage).run("begin", run_id=name)
            await storage.cancel(name)
    damage(tmp_path, "over")
    async with opened() as storage:
        would = await storage.prune_runs(timedelta(0), dry_run=True)
        report = await storage.prune_runs(timedelta(0))
        assert set(would.run_ids) == set(report.run_ids) >= {"other", "failed"}
        if report.unreadable:  # else it is removed as a whole, and nothing of it need be read
            assert (report.unreadable, report.skipped) == (("over",), 1)
            assert str(report).endswith("1 old runs stay; not all could be read of over")
        else:
            assert "over" in report.run_ids


async def test_other_calls_for_all_runs_go_on(opened: Opened, tmp_path: Path) -> None:
    async with opened() as storage:
        await fill(storage)
    damage(tmp_path, "first")
    async with opened() as storage:
        assert set((await storage.statistics()).by_run) == {"first", "second", "failed"}
        checked = await storage.check_upgrade(make_workflow(storage))
        assert [one.run_id for one in checked.runs if one.verdict == "cannot go on"] == ["first"]
        report = await storage.copy_to(InMemoryCheckpointStorage())
        assert [one.run_id for one in report.uncopied] == ["first"]
        assert "first" in {problem.run_id for problem in (await storage.verify()).problems}
        async with Host(storage, make_workflow(storage)) as host:
            await host.wake_due()
        assert (await storage.get_run("second")).seq > 7  # it has taken its letter


async def fill_family(storage: CheckpointStorage) -> None:
    """Store a run, a fork of it, and values that nobody needs any more."""
    await fill(storage, ["first"])
    made = await storage.list_checkpoints(run_id="first")
    run = await make_workflow(storage).fork(made[3].checkpoint_id, run_id="fork")
    await run.wait_for_completion()


async def blobs_of(storage: CheckpointStorage, family: str) -> set[bytes]:
    return set((await storage.store.mark(RunId(family))).sizes)


def damage_head_of_fork(folder: Path) -> None:
    if (folder / "runs.db").exists():
        with closing(sqlite3.connect(folder / "runs.db")) as database, database:
            database.execute("UPDATE runs SET status = 'elsewhere' WHERE run = 'fork'")
    else:
        path = folder / "store/runs/fork.jsonl"
        content = path.read_bytes()
        path.write_bytes(flipped(content, content.rindex(b'"head"')))


@pytest.mark.parametrize("what", ["record", "head"])
async def test_values_stay_that_a_damaged_run_may_need(opened: Opened, tmp_path: Path, what: str) -> None:
    async with opened() as storage:
        await fill_family(storage)
        blobs = await blobs_of(storage, "first")
        assert (await storage.prune(Retention.latest_only(), dry_run=True)).blobs
    if what == "record":
        damage(tmp_path, "fork")
    else:
        damage_head_of_fork(tmp_path)
    async with opened() as storage:
        for report in (
            await storage.prune(Retention.latest_only(), dry_run=True),
            await storage.prune(Retention.latest_only()),
        ):
            assert report.unreadable == ("fork",)
            assert (report.blobs, report.checkpoints > 0) == (0, True)
        assert await blobs_of(storage, "first") == blobs
        assert len(await storage.store.runs(RunQuery())) == (3 if what == "record" else 2)
        loaded = await storage.load((await storage.get_run("first")).checkpoint_id)
        assert loaded.checkpoint_id == (await storage.get_run("first")).checkpoint_id


async def prune_one(storage: CheckpointStorage) -> None:
    report = await storage.prune(Retention.latest_only(), run_id="first")
    assert report.checkpoints
    assert report.unreadable == ("fork",)


async def prune_while_driven(storage: CheckpointStorage) -> None:
    workflow = make_workflow(storage, retention=Retention.latest_only())
    result = await workflow.run("go on", run_id="first", if_exists="continue")
    await result.respond({result.pending_requests[0].request_id: "yes"})
    assert len(await storage.list_checkpoints(run_id="first")) == 2  # one has a tag


async def delete_one_checkpoint(storage: CheckpointStorage) -> None:
    for made in (await storage.list_checkpoints(run_id="first"))[:-1]:
        await storage.delete(made.checkpoint_id)


async def delete_its_run(storage: CheckpointStorage) -> None:
    await storage.cancel("first")
    await storage.delete_run("first")


@pytest.mark.parametrize("remove", [prune_one, prune_while_driven, delete_one_checkpoint, delete_its_run])
async def test_values_stay_for_a_run_that_is_lost(
    opened: Opened, tmp_path: Path, remove: Callable[[CheckpointStorage], Awaitable[None]]
) -> None:
    """Nobody knows of which family it is, until it is repaired."""
    async with opened() as storage:
        await fill_family(storage)
        before = await blobs_of(storage, "first")
    damage_head_of_fork(tmp_path)
    async with opened() as storage:
        await remove(storage)
        assert before <= await blobs_of(storage, "first")


@pytest.mark.parametrize("column", ["owner", "retention", "waiting_for", "fingerprint", "origin"])
async def test_an_empty_text_that_became_bytes_is_damage(tmp_path: Path, column: str) -> None:
    """One bit tells the two apart where they are stored, and what is sealed is the same."""
    async with MAKERS["sqlite"](tmp_path, None) as storage:
        await fill(storage, ["first"])
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        (text,) = database.execute(f"SELECT {column} FROM runs WHERE run = 'first'").fetchone()
        database.execute(f"UPDATE runs SET {column} = ? WHERE run = 'first'", (text.encode(),))
    async with MAKERS["sqlite"](tmp_path, None) as storage:
        assert "first" in {problem.run_id for problem in (await storage.verify()).problems}
        with pytest.raises(CheckpointCorrupt, match=f"its {column} is b'"):
            await storage.get_run("first")


@pytest.mark.parametrize("field", ["seq", "superstep", "time", "messages", "requests", "from"])
async def test_a_header_whose_number_is_none_is_damage(tmp_path: Path, field: str) -> None:
    """Numbers are compared before the id of the record is checked, for lists read headers alone."""
    async with MAKERS["sqlite"](tmp_path, None) as storage:
        await fill(storage, ["first"])
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        rows = database.execute("SELECT id, header FROM checkpoints").fetchall()
        for row, header in rows:
            changed = ormsgpack.packb(ormsgpack.unpackb(header) | {field: {}})
            database.execute("UPDATE checkpoints SET header = ? WHERE id = ?", (changed, row))
    async with MAKERS["sqlite"](tmp_path, None) as storage:
        assert await storage.list_requests() == []
        assert {problem.run_id for problem in (await storage.verify()).problems} >= {"first"}
        with pytest.raises(CheckpointCorrupt, match="its header cannot be read"):
            await storage.list_requests(run_id="first")
