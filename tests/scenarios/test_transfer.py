"""Runs move between storages through files: equal ids, equal listings, equal resume; or nothing happens at all."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunExists,
    RunStatus,
    SqliteCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.golden import make as golden
from tests.support.durable import in_child, run_alone
from tests.support.parts import MemoryStore, RunId
from tests.support.runs import soon
from tests.support.transfer import (
    KINDS,
    SCENES,
    Storages,
    listed,
    make_answered,
    make_completed,
    make_failed,
    make_fork,
    make_waiting,
    noise,
    take_the_answer,
)


@pytest_asyncio.fixture
async def storages(tmp_path: Path) -> AsyncIterator[Storages]:
    made = Storages(tmp_path)
    yield made
    await made.close()


async def runs_of(storage: CheckpointStorage) -> list[Any]:
    return [run for run in await storage.list_runs() if run.run_id == "r"]


# ---------------------------------------------------------------- all ways


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_a_run_is_the_same_wherever_it_goes(
    source: str, target: str, scene: str, storages: Storages, tmp_path: Path
) -> None:
    make, go_on = SCENES[scene]
    here, there = storages(source), storages(target)
    await make(here)
    exported = await here.export_run("r", tmp_path / "run")
    imported = await there.import_run(tmp_path / "run")

    assert [exported] == [imported] == await runs_of(here) == await runs_of(there)
    assert await listed(here) == await listed(there)
    assert len(await listed(there)) >= 2
    assert (await there.verify()).problems == []
    await there.export_run("r", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "run").read_bytes()

    assert await go_on(there) == await go_on(here) != []
    shapes = [
        [
            (one["seq"], one["superstep"], one["phase"], one["cause"], one["status"])
            for one in await listed(each)
        ]
        for each in (here, there)
    ]
    assert shapes[0] == shapes[1]
    assert (await there.verify()).problems == []


async def test_every_checkpoint_has_its_values(storages: Storages, tmp_path: Path) -> None:
    here, there = storages("sqlite"), storages("file")
    await make_completed(here)
    await here.export_run("r", tmp_path / "run")
    await there.import_run(tmp_path / "run")
    for one in await here.list_checkpoints(run_id="r"):
        mine, other = await here.load(one.checkpoint_id), await there.load(one.checkpoint_id)
        assert {name: dict(scope) for name, scope in mine.scopes.items()} == {
            name: dict(scope) for name, scope in other.scopes.items()
        }
        assert [message.data for message in mine.messages] == [message.data for message in other.messages]
        assert list(mine.outputs) == list(other.outputs)


async def test_a_fork_needs_nothing_of_the_run_that_it_came_from(storages: Storages, tmp_path: Path) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_fork(here)
    await here.export_run("r", tmp_path / "fork")
    await there.import_run(tmp_path / "fork")
    assert "follows a checkpoint that is not here" in await there.draw_tree("r")
    await here.export_run("origin", tmp_path / "origin")
    await there.import_run(tmp_path / "origin")
    assert await there.draw_tree("r") == await here.draw_tree("r")
    assert (await there.verify()).problems == []


async def test_a_run_of_many_checkpoints_comes_whole(storages: Storages, tmp_path: Path) -> None:
    @executor
    async def step(number: int, ctx: WorkflowContext[int, int]) -> None:
        await (ctx.send_message(number + 1) if number < 120 else ctx.yield_output(number))

    def workflow(storage: CheckpointStorage) -> Any:
        builder = WorkflowBuilder(name="Steps", max_iterations=200).set_start_executor(step)
        return builder.add_edge(step, step).with_checkpointing(storage).build()

    here = storages("memory")
    await workflow(here).run(1, run_id="r")
    await here.export_run("r", tmp_path / "run")
    for kind in ("file", "sqlite"):
        there = storages(kind)
        await there.import_run(tmp_path / "run")
        assert await listed(there) == await listed(here)
        run = await workflow(there).resume((await there.list_checkpoints())[150])
        assert (await soon(run.wait_for_completion())).outputs == [120]
        assert (await there.verify()).problems == []


@pytest.mark.parametrize("kind", [SqliteCheckpointStorage, FileCheckpointStorage])
async def test_runs_of_every_kind_move(kind: Any, storages: Storages, tmp_path: Path) -> None:
    database, directory = golden.copied(tmp_path)
    there = storages("memory")
    async with kind(database if kind is SqliteCheckpointStorage else directory) as here:
        for run in await here.list_runs():
            await here.export_run(run.run_id, tmp_path / run.run_id)
            await there.import_run(tmp_path / run.run_id)
            assert await listed(here, run.run_id) == await listed(there, run.run_id)
            assert (await here.catalog.head(run.run_id)).retention == (
                await there.catalog.head(run.run_id)
            ).retention
    assert len(await there.list_runs()) > 10
    assert (await there.verify()).problems == []


# ---------------------------------------------------------------- runs that move


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_is_exported_while_it_writes(kind: str, storages: Storages, tmp_path: Path) -> None:
    here = storages(kind)
    exported, went_on = asyncio.Event(), asyncio.Event()

    @executor
    async def step(number: int, ctx: WorkflowContext[int, int]) -> None:
        went_on.set()
        await ctx.append_state("line", noise(5000, number), scope_name="Grown")
        await ctx.once("effect", lambda: number)
        if number > 10 and exported.is_set():
            await ctx.yield_output(len(await ctx.read_state("line", scope_name="Grown")) - number)
        else:
            await asyncio.sleep(0)
            await ctx.send_message(number + 1)

    def workflow(storage: CheckpointStorage) -> Any:
        builder = WorkflowBuilder(name="Steps", max_iterations=100_000).set_start_executor(step)
        return builder.add_edge(step, step).with_checkpointing(storage).build()

    run = await workflow(here).start(1, run_id="r")
    stood = []
    for number in range(3):
        went_on.clear()
        await soon(went_on.wait())
        stood.append(await here.export_run("r", tmp_path / f"{number}"))
    exported.set()
    assert (await soon(run.wait_for_completion())).outputs == [0]
    assert all(one.seq < other.seq for one, other in pairwise(stood))
    assert {one.status for one in stood} == {RunStatus.RUNNING}

    for number, one in enumerate(stood):
        there = storages("memory")
        arrived = await there.import_run(tmp_path / f"{number}")
        assert arrived == replace(one, status=RunStatus.STOPPED, interrupted=False)
        assert (await there.verify()).problems == []
        assert await there.list_runs(interrupted=True) == []
        # It is resumed at once, though this process drives the run in the other storage, or did.
        resumed = await workflow(there).resume(run_id="r")
        assert (await soon(resumed.wait_for_completion())).outputs == [0]


async def test_a_run_that_moves_is_looked_at_until_it_stands_still(
    storages: Storages, tmp_path: Path
) -> None:
    """The journal and the inbox are those of the head, though it moves between the looks."""
    here = storages("memory")
    await make_failed(here)
    before = await here.store.head(RunId("r"))
    assert before is not None

    class Moving(MemoryStore):
        looks = 0

        async def notes(self, run_id: RunId) -> Any:
            self.looks += 1
            if self.looks == 1:
                notes = list(self._notes.pop(run_id).values())
                head = self._heads[run_id]
                self._heads[run_id] = head._replace(token=head.token + 1)
                return notes
            return await super().notes(run_id)

    moving = Moving()
    vars(moving).update(vars(here.store))
    await CheckpointStorage(moving).export_run("r", tmp_path / "run")
    there = storages("memory")
    await there.import_run(tmp_path / "run")
    head = await there.store.head(RunId("r"))
    assert head is not None
    assert (head.token, list(await there.store.notes(RunId("r")))) == (before.token + 1, [])


# ---------------------------------------------------------------- the same run twice


async def test_what_is_there_already_is_left_as_it_is(storages: Storages, tmp_path: Path) -> None:
    here, there = storages("sqlite"), storages("file")
    await make_answered(here)
    await here.export_run("r", tmp_path / "run")
    first = await there.import_run(tmp_path / "run")
    assert await there.import_run(tmp_path / "run") == first
    assert await here.import_run(tmp_path / "run") == first
    assert await take_the_answer(there) == await take_the_answer(here)


async def test_a_run_that_stands_elsewhere_is_not_written_over(storages: Storages, tmp_path: Path) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_waiting(here)
    await here.export_run("r", tmp_path / "waiting")
    await here.respond("r", {"q": True})
    await here.export_run("r", tmp_path / "answered")
    await there.import_run(tmp_path / "waiting")

    for path in ("answered", "cancelled"):
        if path == "cancelled":
            await here.cancel("r")
            await here.export_run("r", tmp_path / path)
        with pytest.raises(
            RunExists, match=r"'r' is in this storage already, .* waiting, and .* import it into"
        ):
            await there.import_run(tmp_path / path)
        assert list(await there.store.inbox(RunId("r"))) == []
        assert [run.status for run in await there.list_runs()] == [RunStatus.WAITING]


async def test_a_run_keeps_its_id(storages: Storages, tmp_path: Path) -> None:
    here, there = storages("memory"), storages("memory")
    await make_waiting(here)
    await here.export_run("r", tmp_path / "run")
    with pytest.raises(InvalidArgument, match="holds run 'r', and a run keeps its id"):
        await there.import_run(tmp_path / "run", run_id="other")
    with pytest.raises(InvalidArgument, match=r"run id '\.\./x' contains '/'"):
        await there.import_run(tmp_path / "run", run_id="../x")
    assert await there.list_runs() == []
    assert (await there.import_run(tmp_path / "run", run_id="r")).run_id == "r"


# ---------------------------------------------------------------- large values


async def test_large_values_are_moved_one_by_one(storages: Storages, tmp_path: Path) -> None:
    size, many = 4_000_000, 8

    @executor
    async def load(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.queue_state_update(f"{number}", noise(size, number), scope_name="Large")
        if number < many:
            await ctx.send_message(number + 1)

    here, there = storages("sqlite"), storages("file")
    builder = WorkflowBuilder(name="Load").set_start_executor(load).add_edge(load, load)
    await builder.with_checkpointing(here).build().run(1, run_id="r")
    tracemalloc.start()
    try:
        await here.export_run("r", tmp_path / "run")
        await there.import_run(tmp_path / "run")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "run").stat().st_size > many * size
    # One at a time, and for a moment the one before it.
    assert peak < 3 * size
    assert len((await there.list_checkpoints())[-1].scopes["Large"]) == many


# ---------------------------------------------------------------- other processes


def import_and_answer(folder: str) -> None:
    async def main() -> None:
        async with SqliteCheckpointStorage(Path(folder) / "other.db") as storage:
            await storage.import_run(Path(folder) / "run")
            print(await take_the_answer(storage))

    run_alone(main())


async def test_a_run_goes_on_in_another_process(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    await make_answered(storage)
    await storage.export_run("r", tmp_path / "run")
    assert in_child(import_and_answer, str(tmp_path)) == f"{await take_the_answer(storage)}\n"
