"""Looks at what is stored after a fault: all that was promised must be there, and everything must go on."""

import tempfile
from pathlib import Path

from holdfast import CheckpointStorage, HoldfastError, InMemoryCheckpointStorage, SqliteCheckpointStorage
from tests.faults.injector import interposer
from tests.faults.injector.workload import (
    DiskWorld,
    Promises,
    acts_of,
    big_value,
    expected,
    follow,
    middle_value,
    resumed,
)
from tests.support.fault_processes import Parent, Wrong, answer, ask, expect


def judge(world: DiskWorld, marks: list[str], act: str = "") -> None:
    """Raise ``Wrong`` unless all that the marks promise is there, and all runs go on; then do the act once more."""
    promises = Promises.of(marks)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ask(lambda parent: _look(parent, world, promises, act, log))
        repeated = promises.repeated(_before_act(interposer.marks_of(interposer.read_calls(log))))
        expect(not repeated, f"noted effects were repeated: {repeated[:3]}")


def _before_act(marks: list[str]) -> list[str]:
    return marks[: marks.index("act")] if "act" in marks else marks


async def _look(parent: Parent, world: DiskWorld, promises: Promises, act: str, log: Path) -> None:
    interposer.arm(world.root, log, with_data=False)
    try:
        async with world.storage() as storage:
            await _check(storage, promises)
            await _go_on(storage, promises)
            if act:
                interposer.mark("act")
                await acts_of(world.kind)[act](world, storage)
                await _go_on(storage, promises)
            await _check(storage, promises)
        await _check_export(world, promises)
        await _check_copy(world, promises)
    except HoldfastError as error:
        raise Wrong(f"{type(error).__name__}: {error}") from error
    answer(parent, "well")


async def _check(storage: CheckpointStorage, promises: Promises) -> None:
    """Look whether all is there that was promised, and well."""
    for run_id in promises.saved:
        await _check_run(storage, run_id, promises)
    for checkpoint_id, tag in promises.tags:
        tags = (await storage.load(checkpoint_id, values=False)).tags
        expect(tag in tags, f"the tag {tag!r} was acknowledged and is not there")
    if promises.saved:  # a file that was made and has nothing in it is told, too
        report = await storage.verify()
        expect(report.ok, f"verify says: {[problem.what for problem in report.problems[:3]]}")


async def _check_run(storage: CheckpointStorage, run_id: str, promises: Promises) -> None:
    saved = promises.saved[run_id]
    head = await storage.catalog.head_or_none(run_id)
    if head is None:
        raise Wrong(f"run {run_id!r} is not there, though {len(saved)} of its checkpoints were acknowledged")
    if run_id in promises.retained:
        newest = max(saved.values())
        expect(
            head.seq >= newest,
            f"run {run_id!r} is at {head.seq}, though checkpoint {newest} was acknowledged",
        )
        await _check_values(storage, head.checkpoint_id)
        return
    there = {checkpoint.checkpoint_id for checkpoint in await storage.list_checkpoints(run_id=run_id)}
    lost = [checkpoint_id for checkpoint_id in promises.kept(run_id) if checkpoint_id not in there]
    expect(not lost, f"{len(lost)} of {len(saved)} acknowledged checkpoints of run {run_id!r} are lost")
    await _check_values(storage, promises.kept(run_id)[-1])


async def _check_values(storage: CheckpointStorage, checkpoint_id: str) -> None:
    """Read the values of a checkpoint: verify has looked at their bytes, not at what they are."""
    scopes = (await storage.load(checkpoint_id)).scopes
    if "Log" not in scopes:
        return
    log = scopes["Log"]
    rounds = list(log["rounds"])
    big = [left for left in rounds if left % 2 == 0]
    expect(log["middle"] == middle_value(rounds[-1]), f"{checkpoint_id}: 'middle' is another value")
    expect(log["big"] == big_value(big[-1]), f"{checkpoint_id}: 'big' is another value")


async def _go_on(storage: CheckpointStorage, promises: Promises) -> None:
    """Go on with all runs to their ends; those that are over say again what came of them."""
    runs = await storage.list_runs(limit=None)
    missing = promises.done - {run.run_id for run in runs}
    expect(not missing, f"runs are not there that were over: {sorted(missing)}")
    for run in runs:
        before = run.status.value
        expect(
            run.run_id not in promises.done or before == "completed",
            f"run {run.run_id!r} was over and is {before}",
        )
        outputs = await follow(await resumed(storage, run.workflow_name, run.run_id))
        expect(outputs == expected(), f"run {run.run_id!r}, which was {before}, gave out {outputs}")


async def _check_export(world: DiskWorld, promises: Promises) -> None:
    """Read the exported file if it has its name: then it is complete."""
    expect(world.exported.exists() or not promises.exported, "the file of an export is not there")
    if world.exported.exists():
        async with InMemoryCheckpointStorage() as storage:
            await storage.import_run(world.exported)
            expect((await storage.verify()).ok, "the file of an export is damaged")


async def _check_copy(world: DiskWorld, promises: Promises) -> None:
    """Open the backup if it has its name: then it is complete."""
    expect(world.copy.exists() or promises.backed is None, "the backup is not there")
    if not world.copy.exists():
        return
    async with SqliteCheckpointStorage(world.copy) as copy:
        report = await copy.verify()
        problems = [problem.what for problem in report.problems[:3]]
        expect(report.ok, f"the backup is damaged: {problems}")
        for run_id, saved in (promises.backed or {}).items():
            there = {checkpoint.checkpoint_id for checkpoint in await copy.list_checkpoints(run_id=run_id)}
            wanted = [] if run_id in promises.retained else saved
            expect(there >= set(wanted), f"the backup lacks checkpoints of run {run_id!r}")
        await _go_on(copy, Promises())
