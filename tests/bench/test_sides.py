"""Our own sides and the limits do every workload that they enter, small, with the right result."""

import asyncio
import json
from pathlib import Path

import pytest

from bench.__main__ import parse
from bench.contestants import Contestant, Job, agents, holdfast, limits
from bench.contestants.limits import rows
from bench.resuming import AFTER_W3, LIST, OPEN, PAGE, Resumer
from bench.sides import ENVIRONMENTS, OURS_STORED, SIDES
from bench.worker import perform
from bench.workloads import WORKLOADS, Timed
from holdfast.stores.sqlite import SqliteStore
from tests.stores.sqlite_programs import execute
from tests.support.store_parts import DatabaseConnection, DatabaseLocation

SMALL = {
    "supersteps": 12,
    "size": 20_000,
    "message": 100,
    "runs": 3,
    "keys": 50,
    "rounds": 3,
    "width": 4,
    "result": 500,
    "count": 10,
}

HERE = [
    (side.name, module.contestant(side.variant))
    for module, name in ((holdfast, "holdfast"), (agents, "agents"), (limits, "limits"))
    for side in SIDES
    if side.module == name
]


@pytest.mark.parametrize(("name", "contestant"), HERE, ids=[name for name, _ in HERE])
@pytest.mark.parametrize("count", [False, True], ids=["timed", "counted"])
async def test_every_entry_gives_the_right_answer(
    tmp_path: Path, name: str, contestant: Contestant, count: bool
) -> None:
    done = 0
    for workload in WORKLOADS:
        if workload.id not in contestant.entries or (count and not workload.counted):
            continue
        params = {key: SMALL.get(key, value) for key, value in workload.params.items()}
        job = Job(workload.id, params, tmp_path / workload.id)
        request = {"fresh": True, "count": count}
        found = await perform(contestant.entries[workload.id], job, request)
        assert workload.answer is not None
        assert json.dumps(found["result"]) == json.dumps(workload.answer(params)), workload.id
        if workload.supersteps is not None:
            assert found["supersteps"] == workload.supersteps(params), workload.id
        if not count:
            timed = Timed(found["seconds"], tuple(found["marks"]), found["own"])
            assert workload.value(timed, params) > 0
            assert all(figure(timed, params) > 0 for figure in workload.figures.values())
        done += 1
    assert done or count or contestant.missing


async def test_the_limit_of_rows_writes_what_our_store_writes(tmp_path: Path) -> None:
    """All that is bound: heads, records, keyframes, seals."""
    commits = await rows.commits_of({"supersteps": 40})
    ours = SqliteStore(tmp_path / "ours.db")
    theirs = tmp_path / "theirs.db"
    handle = DatabaseConnection(DatabaseLocation(theirs, 60.0), reads_only=False)
    for commit, statements in zip(commits, rows.statements_of(commits), strict=True):
        await ours.commit(commit)
        for sql, values in statements:
            handle.open().executemany(sql, values)
    await ours.close()
    handle.close()
    for table in ("runs", "checkpoints", "keyframes", "families", "blobs", "notes", "letters", "tags"):
        written = execute(ours.path, f"SELECT * FROM {table}")
        assert execute(theirs, f"SELECT * FROM {table}") == written, table
        assert written or table not in ("runs", "checkpoints")


async def test_the_limit_of_many_runs_writes_what_our_store_writes(tmp_path: Path) -> None:
    runs = await rows.commits_of_many(
        Job("W7", {"runs": 3, "supersteps": 5, "young": 700}, tmp_path / "unused")
    )
    ours = SqliteStore(tmp_path / "ours.db")
    theirs = tmp_path / "theirs.db"
    handle = DatabaseConnection(DatabaseLocation(theirs, 60.0), reads_only=False)
    for commits, group in zip(zip(*runs, strict=True), rows.groups_of(runs), strict=True):
        await asyncio.gather(*map(ours.commit, commits))
        for sql, values in group:
            handle.open().executemany(sql, values)
    await ours.close()
    handle.close()
    for table in ("runs", "checkpoints"):
        written = execute(ours.path, f"SELECT * FROM {table}")
        assert execute(theirs, f"SELECT * FROM {table}") == written, table
        assert len(written) >= 3


def test_sides_have_pinned_packages_and_names_of_their_own() -> None:
    assert len({side.name for side in SIDES}) == len(SIDES)
    assert {side.environment for side in SIDES if side.is_peer} == {*ENVIRONMENTS} - {
        "plots",
        "langgraph-server",
    }
    assert all("==" in package for packages in ENVIRONMENTS.values() for package in packages)


def test_new_process_goes_on_and_lists(tmp_path: Path) -> None:
    """W6, with our side and small sizes: processes that are killed, and new ones."""

    class Ours:
        side = next(side for side in SIDES if side.name == OURS_STORED)
        entries = holdfast.contestant("sqlite").entries
        python = Path(__import__("sys").executable)

    params = {"size": 20_000, "log_supersteps": 5, "supersteps": 12, "message": 100}
    resumer = Resumer(Ours(), params, tmp_path)  # type: ignore[arg-type]
    resumer.build()
    sample = resumer.sample(1.0)
    assert sample.value > 0
    assert {*sample.figures} == {OPEN, AFTER_W3, LIST, PAGE}
    # Two for each of ten supersteps that ended, and the start of the next; or as many as there are supersteps.
    assert resumer.counts == {21, 12}


@pytest.mark.parametrize("name", [one.id for one in WORKLOADS if one.supersteps is not None])
def test_each_workload_of_ours_can_be_profiled(name: str) -> None:
    assert parse(["--profile", name.lower()]).profiled.id == name


@pytest.mark.parametrize("name", ["W6", "limits", "W1,W2", "W77"])
def test_what_cannot_be_profiled_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--profile", name])
    assert name in capsys.readouterr().err
