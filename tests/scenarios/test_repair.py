"""Repairing a storage: which runs are touched, what is told, and what an interruption leaves."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    HoldfastError,
    LostValue,
    Problem,
    RepairReport,
    RunNotFound,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    WrongType,
    handler,
)
from holdfast.ids import RunId
from tests.support.corruption_world import asking, failing, limits
from tests.support.durable import ON_DISK, storage_at
from tests.support.durable_damage import FileDamage, SqliteDamage, damage_of
from tests.support.fault_processes import play
from tests.support.parts import Depth, RunQuery

RUNS = ("a", "b", "c")


class Count(Executor):
    """Counts down; with an event it waits for that in its last turn."""

    checkpointed = ("turns",)
    waits: asyncio.Event | None = None
    began: asyncio.Event | None = None

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns: list[bytes] = []

    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, bytes]) -> None:
        self.turns = [bytes([left]) * 6_000]
        await ctx.queue_state_update("big", bytes([left]) * 5_000, scope_name="S")
        await ctx.queue_state_update("mine", bytes([left]) * 5_001)
        if left == 1 and Count.waits is not None and Count.began is not None:
            Count.began.set()
            await Count.waits.wait()
        await (ctx.send_message(left - 1) if left > 1 else ctx.yield_output(b"x" * 7_000))


def counting() -> Any:
    return WorkflowBuilder(name="Count").set_start_executor(Count).add_edge(Count, Count).build()


async def filled(kind: str, folder: Path) -> None:
    async with storage_at(kind, folder) as storage:
        for run_id in RUNS:
            await counting().run(4, run_id=run_id, storage=storage)


def lose_last(kind: str, folder: Path, *runs: str) -> None:
    """Damage the checkpoint on which runs stand."""
    for run_id in runs:
        damage = damage_of(kind, folder, run_id)
        if isinstance(damage, SqliteDamage):
            damage.record(8)
        else:
            damage.tear(8)


async def state_of(storage: CheckpointStorage, run_id: str) -> Any:
    head = await storage.catalog.head(run_id)
    return head, list(await storage.store.records(head.run_id, 1, 99, Depth.ALL))


# -- how far it is, and interruptions --------------------------------------------------------------


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("kind", ON_DISK)
async def test_progress_is_told_run_by_run(kind: str, dry_run: bool, tmp_path: Path) -> None:
    await filled(kind, tmp_path)
    told: list[tuple[int, int]] = []
    async with storage_at(kind, tmp_path) as storage:
        report = await storage.repair(progress=lambda *way: told.append(way), dry_run=dry_run)
        assert (report.runs, report.ok) == (3, True)
        assert told == [(1, 3), (2, 3), (3, 3)]
        told.clear()
        assert (await storage.repair("b", progress=lambda *way: told.append(way), dry_run=dry_run)).runs == 1
        assert told == [(1, 1)]


class Enough(Exception):
    pass


def raises(done: int, total: int) -> None:
    raise Enough


def cancels(done: int, total: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.parametrize(("stop", "error"), [(raises, Enough), (cancels, asyncio.CancelledError)])
@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_repair_that_is_interrupted_is_done_for_some_runs(
    kind: str, stop: Callable[[int, int], None], error: type[BaseException], tmp_path: Path
) -> None:
    await filled(kind, tmp_path)
    lose_last(kind, tmp_path, *RUNS)
    async with storage_at(kind, tmp_path) as storage:
        with pytest.raises(error):
            await storage.repair(progress=stop, dry_run=True)
        worst = {problem.run_id for problem in (await storage.verify()).problems}
        with pytest.raises(error):
            await storage.repair(progress=stop)
        left = {problem.run_id for problem in (await storage.verify()).problems}
        assert worst == set(RUNS)
        assert left < worst
        assert (await storage.repair()).ok
        assert (await storage.verify()).ok
        assert not (await storage.repair()).repairs
        assert {(await storage.catalog.head(run_id)).seq for run_id in RUNS} == {7}


# -- runs that are driven --------------------------------------------------------------------------


@asynccontextmanager
async def driven(storage: CheckpointStorage) -> AsyncIterator[Any]:
    """A run that stands in the middle of its last superstep."""
    Count.waits, Count.began = asyncio.Event(), asyncio.Event()
    try:
        run = await counting().start(4, run_id="driven", storage=storage)
        await Count.began.wait()
        yield run
    finally:
        Count.waits.set()
        await run.wait_for_completion()
        Count.waits = Count.began = None


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_run_that_is_driven_is_left_alone(kind: str, tmp_path: Path) -> None:
    async with storage_at(kind, tmp_path) as storage:
        async with driven(storage):
            damage = damage_of(kind, tmp_path, "driven")
            if isinstance(damage, SqliteDamage):
                damage.record(2)
            else:
                damage.tear(2)
            before = await storage.catalog.head("driven")
            for dry_run in (True, False):
                report = await storage.repair(dry_run=dry_run)
                assert (report.driven, report.ok, report.repairs) == (["driven"], False, [])
                assert "run driven is driven: stop it, then repair it" in str(report)
            assert await storage.catalog.head("driven") == before
        assert (await storage.repair()).repairs
        assert (await storage.verify()).ok or not await storage.list_runs()


@pytest.mark.parametrize("kind", ON_DISK)
def test_a_run_that_another_process_drives_is_left_alone(kind: str, tmp_path: Path) -> None:
    code, said = play(tmp_path, "repairs", "--store", kind, "--driven")
    assert code == 0, said


# -- one run of several ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ON_DISK)
async def test_only_the_run_that_is_named_is_touched(kind: str, tmp_path: Path) -> None:
    await filled(kind, tmp_path)
    lose_last(kind, tmp_path, "a", "b")
    if kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
            connection.execute("UPDATE runs SET token = token + 1 WHERE run IN ('a', 'b')")
    async with storage_at(kind, tmp_path) as storage:
        whole = await state_of(storage, "c")
        problems = [problem for problem in (await storage.verify()).problems if problem.run_id == "b"]
        foreseen = await storage.repair("a", dry_run=True)
        report = await storage.repair("a")
        assert replace(foreseen, dry_run=False) == report
        assert {repair.run_id for repair in report.repairs} == {"a"}
        assert (await storage.verify("a")).ok
        assert [p for p in (await storage.verify()).problems if p.run_id == "b"] == problems != []
        assert await state_of(storage, "c") == whole
        assert (await storage.repair("b")).repairs
        assert (await storage.verify()).ok


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_damaged_run_is_tried_without_copying_others(kind: str, tmp_path: Path) -> None:
    await filled(kind, tmp_path)
    lose_last(kind, tmp_path, "a", "b")
    async with storage_at(kind, tmp_path) as storage:
        async with storage.store.rehearsal(RunId("a")) as (copy, _):
            found = {head.run_id for head in await copy.runs(RunQuery())}
            assert found | {damage.run_id for damage in await copy.inspect()} == {"a"}
        foreseen = await storage.repair("a", dry_run=True)
        assert foreseen.repairs
        assert replace(foreseen, dry_run=False) == await storage.repair("a")


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_run_that_is_not_there(kind: str, tmp_path: Path) -> None:
    await filled(kind, tmp_path)
    async with storage_at(kind, tmp_path) as storage:
        for call in (storage.verify("nope"), storage.repair("nope"), storage.repair("nope", dry_run=True)):
            with pytest.raises(RunNotFound, match="there is no run 'nope' in this storage"):
                await call


async def test_a_run_of_which_only_the_row_is_lost_is_there(tmp_path: Path) -> None:
    await filled("sqlite", tmp_path)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM runs WHERE run = 'b'")
    async with storage_at("sqlite", tmp_path) as storage:
        assert [problem.run_id for problem in (await storage.verify("b")).problems] == ["b"]
        assert (await storage.repair("a")).repairs == []
        assert [repair.run_id for repair in (await storage.repair("b")).repairs] == ["b"]
        assert (await storage.verify()).ok


async def test_indexes_are_those_of_all_runs(tmp_path: Path) -> None:
    """They are made anew whichever run is named, and the report says that it was not one run."""
    await filled("sqlite", tmp_path)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        index = "type = 'index' AND name = 'checkpoints_by_id'"
        row = connection.execute(f"SELECT * FROM sqlite_master WHERE {index}").fetchone()
        connection.execute(f"DELETE FROM sqlite_master WHERE {index}")
        connection.execute("PRAGMA schema_version = 99")
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        connection.execute("UPDATE checkpoints SET find = find + 1 WHERE seq = 4")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", row)
        connection.execute("PRAGMA schema_version = 100")
    async with storage_at("sqlite", tmp_path) as storage:
        foreseen = await storage.repair("a", dry_run=True)
        report = await storage.repair("a")
        assert replace(foreseen, dry_run=False) == report
        assert report.repairs[0].run_id is None
        assert "indexes of the database were made anew" in report.repairs[0].what
        assert {repair.run_id for repair in report.repairs[1:]} == {"a"}
        assert {problem.run_id for problem in (await storage.verify()).problems} == {"b", "c"}
        assert (await storage.repair()).ok


# -- what is told ----------------------------------------------------------------------------------


async def test_lost_values_are_told_by_what_they_were(tmp_path: Path) -> None:
    async with limits():
        await filled("sqlite", tmp_path)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        family = "(SELECT id FROM families WHERE family = 'b')"
        connection.execute(f"DELETE FROM blobs WHERE family = {family}")
    async with storage_at("sqlite", tmp_path) as storage:
        report = await storage.repair()
        assert {problem.run_id for problem in report.lost_values} == {"b"}
        assert all(problem.checkpoint_id and problem.value for problem in report.lost_values)
        told = {replace(problem.value, blob="") for problem in report.lost_values if problem.value}
        assert told >= {
            LostValue("state", "", None, "S", "big"),
            LostValue("executor", "", "Count", None, "mine"),
            LostValue("executor", "", "Count", None, "turns"),
            LostValue("output", "", "Count"),
        }
        text = str(report)
        assert "state 'big' in scope 'S': blob" in text
        assert "storage.verify" not in text
        assert "storage.repair" not in text
        assert replace(await storage.repair(dry_run=True), dry_run=False) == report


async def test_a_lost_note_says_who_did_what(tmp_path: Path) -> None:
    async with limits(), storage_at("sqlite", tmp_path) as storage:
        with suppress(HoldfastError):
            await failing().run("x", run_id="failed", storage=storage)
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM blobs")
    async with storage_at("sqlite", tmp_path) as storage:
        told = {problem.value for problem in (await storage.verify()).problems if problem.value}
        noted = {(lost.executor_id, lost.key) for lost in told if lost.kind == "journal"}
        assert ("second", "n39") in noted
        dropped = [repair for repair in (await storage.repair()).losses if "note" in repair.what]
        assert any("second" in repair.what and "n39" in repair.what for repair in dropped)
        assert (await storage.verify()).problems == [p for p in (await storage.verify()).problems if p.value]


def test_a_report_is_read_by_people() -> None:
    lost = LostValue("message", "ab12", "Count")
    report = RepairReport(unrepaired=[Problem("r", "cd34", f"{lost}: blob ab12 is missing", 3, lost)])
    assert str(report).splitlines()[1] == (
        "  left: run r: checkpoint cd34: a message to 'Count': blob ab12 is missing"
    )
    assert report.lost_values == report.unrepaired


@pytest.mark.parametrize("origin_is_there", [True, False])
@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_fork_still_says_where_it_began(kind: str, origin_is_there: bool, tmp_path: Path) -> None:
    await filled(kind, tmp_path)
    async with storage_at(kind, tmp_path) as storage:
        point = (await storage.list_checkpoints(run_id="a"))[1]
        fork = await counting().fork(point, run_id="fork", storage=storage)
        await fork.wait_for_completion()
        seq = (await storage.catalog.head("fork")).seq
        if not origin_is_there:
            await storage.delete_run("a")
    damage = damage_of(kind, tmp_path, "fork")
    if isinstance(damage, SqliteDamage):
        damage.run("status", "?")
    else:
        damage.tear(seq)
    async with storage_at(kind, tmp_path) as storage:
        assert "made anew" in str(await storage.repair())
        (found,) = [run for run in await storage.list_runs() if run.run_id == "fork"]
        assert found.forked_from == ("a", point.checkpoint_id)


async def test_a_torn_file_gives_no_stale_advice(tmp_path: Path) -> None:
    await filled("file", tmp_path)
    damage = damage_of("file", tmp_path, "a")
    assert isinstance(damage, FileDamage)
    damage.tear(8)
    async with storage_at("file", tmp_path) as storage:
        text = str(await storage.repair())
        assert "the head in a.jsonl was made anew: " in text
        assert "storage.repair" not in text
        assert "backup" not in text


async def test_a_damaged_line_with_letters_or_notes_is_not_passed_over(tmp_path: Path) -> None:
    """Without them effects would be repeated, or an answer lost: nobody goes on before a repair says so."""
    async with limits(), storage_at("file", tmp_path) as storage:
        with suppress(HoldfastError):
            await failing().run("x", run_id="failed", storage=storage)
        await asking().run("go", run_id="asks", storage=storage)
        for request_id in ("one", "two"):
            await storage.respond("asks", {request_id: "yes"})
    for run_id, member in (("failed", b'"noted"'), ("asks", b'"left"')):
        damage = damage_of("file", tmp_path, run_id)
        assert isinstance(damage, FileDamage)
        content = damage.path.read_bytes()
        place = content.index(member)
        assert b"\n" in content[place:-1]
        damage.path.write_bytes(content[:place] + b"?" + content[place + 1 :])
    async with storage_at("file", tmp_path) as storage:
        for resumed in (
            failing().resume(run_id="failed", storage=storage),
            storage.respond("asks", {"one": "no"}),
        ):
            with pytest.raises(CheckpointCorrupt, match=r"is damaged: line \d+ is not what was written"):
                await resumed
        assert {problem.run_id for problem in (await storage.verify()).problems} == {"failed", "asks"}
        report = await storage.repair()
        assert {repair.run_id for repair in report.losses} == {"failed", "asks"}
        assert (await storage.verify()).ok
        await storage.respond("asks", {"one": "yes", "two": "no"})
        run = await asking().resume(run_id="asks", storage=storage)
        assert len((await run.wait_for_completion()).outputs) == 2


# -- what is given ---------------------------------------------------------------------------------


async def test_what_is_no_progress_or_path_is_refused(tmp_path: Path) -> None:
    async with storage_at("sqlite", tmp_path) as storage:
        five: Any = 5
        for call in (
            storage.verify(progress=five),
            storage.repair(progress=five),
            storage.statistics(progress=five),
            storage.prune(progress=five),
            storage.export_run("r", tmp_path / "file", progress=five),
            storage.import_run(tmp_path / "file", progress=five),
            storage.backup(tmp_path / "copy", progress=five),  # type: ignore[attr-defined]
        ):
            with pytest.raises(WrongType, match="progress=5: give a function of two numbers"):
                await call
        with pytest.raises(WrongType, match="dry_run=1: must be True or False"):
            await storage.repair(dry_run=1)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="path=None: give the path"):
        SqliteCheckpointStorage(None)  # type: ignore[arg-type]
    with pytest.raises(WrongType, match="storage_path=7: give the path"):
        FileCheckpointStorage(7)  # type: ignore[arg-type]


async def test_a_file_without_content_is_no_sound_storage(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    async with SqliteCheckpointStorage(path) as storage:
        for report in ((await storage.verify()).problems, (await storage.repair()).unrepaired):
            assert "had 0 bytes when it was opened" in report[0].what
        await counting().run(1, storage=storage)
        assert (await storage.verify()).ok
    async with SqliteCheckpointStorage(tmp_path / "new.db") as storage:
        assert (await storage.verify()).ok
    async with SqliteCheckpointStorage(tmp_path / "new.db") as storage:
        assert (await storage.verify()).ok
