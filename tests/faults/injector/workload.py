"""A whole life of a storage: runs with small and large values, and all that people do with them.

Whatever is acknowledged is marked in the log of system calls, at the moment at which it is; ``Promises`` reads that.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from holdfast import (
    CheckpointInfo,
    CheckpointSavedEvent,
    CheckpointStorage,
    Executor,
    HoldfastError,
    Retention,
    Run,
    RunExists,
    RunPoisoned,
    RunStatus,
    SqliteCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from holdfast.stores.file import run_file
from holdfast.stores.sqlite import database_file
from tests.faults.injector.interposer import mark
from tests.support.durable import storage_at

_ROUNDS = 4
_WORKERS = 2
_TAG = "gold"
_LIVES = 2


class DiskWorld(NamedTuple):
    """Where all of it lies."""

    kind: str
    root: Path
    """What is watched, and nothing else."""
    guest: Path
    """A run that comes from elsewhere."""

    def storage(self) -> CheckpointStorage:
        """The storage; the log of a SQLite database is copied into it often, as if much were written.

        So are the files of runs written anew often.
        """
        database_file.WAL_PAGES = 60
        run_file._WASTE = 2_000
        run_file._MANY = 4
        return storage_at(self.kind, self.root)

    @property
    def exported(self) -> Path:
        """Where the main run is exported to."""
        return self.root / "main.run"

    @property
    def copy(self) -> Path:
        """Where the database is backed up to."""
        return self.root / "copy.db"


# -- the workflow ----------------------------------------------------------------------------------


def big_value(left: int) -> bytes:
    """A value that has a file of its own also beside a SQLite database."""
    return random.Random(left).randbytes(300_000)


def middle_value(left: int) -> bytes:
    """A value that is a blob."""
    return random.Random(left).randbytes(6_000)


@executor(id="begin")
async def begin(left: int, ctx: WorkflowContext[int]) -> int:
    await ctx.append_state("rounds", left, scope_name="Log")
    await ctx.queue_state_update("middle", middle_value(left), scope_name="Log")
    if left % 2 == 0:
        await ctx.queue_state_update("big", big_value(left), scope_name="Log")
    return left


async def pay(key: str) -> str:
    """An effect outside of the storage."""
    mark(f"effect {key}")
    return key


class PayingWorker(Executor):
    """Adds up what it gets, and has an effect."""

    checkpointed = ("total",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.total = 0

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int]) -> int:
        self.total += left
        key = ctx.idempotency_key
        await ctx.once("pay", pay, key)
        mark(f"once {ctx.run_id} {key}")
        return self.total


@executor(id="join")
async def join(totals: list[int], ctx: WorkflowContext[int, Any]) -> None:
    await ctx.append_state("totals", sum(totals), scope_name="Log")
    rounds = await ctx.read_state("rounds", scope_name="Log")
    if rounds[-1] > 1:
        await ctx.send_message(rounds[-1] - 1)
        return
    sums = await ctx.read_state("totals", scope_name="Log")
    big = await ctx.read_state("big", scope_name="Log")
    await ctx.yield_output([rounds, sums, big == big_value(2)])


_SHORT = "Short"


def workflow_named(name: str) -> Workflow:
    """The workflow; under one of its names it keeps only the newest checkpoint."""
    workers = [PayingWorker.bind(id=f"w{number}") for number in range(_WORKERS)]
    builder = (
        WorkflowBuilder(name=name, max_iterations=1_000)
        .set_start_executor(begin)
        .add_fan_out_edges(begin, workers)
        .add_fan_in_edges(workers, join)
        .add_edge(join, begin)
    )
    return (builder.with_retention(Retention.latest_only()) if name == _SHORT else builder).build()


def expected() -> list[Any]:
    """The outputs of each run, if nothing of it is lost or done twice."""
    rounds = list(range(_ROUNDS, 0, -1))
    return [[rounds, [_WORKERS * sum(rounds[: index + 1]) for index in range(_ROUNDS)], True]]


async def resumed(storage: CheckpointStorage, name: str, run_id: str) -> Run:
    """The run, which goes on; who knows better also goes on with one that let many processes die."""
    try:
        return await workflow_named(name).resume(run_id=run_id, storage=storage)
    except RunPoisoned:
        return await workflow_named(name).resume(run_id=run_id, storage=storage)


async def follow(run: Run) -> list[Any]:
    """Go with a run to its end, and mark each checkpoint that is acknowledged; gives the outputs."""
    async for event in run.watch_stream():
        if isinstance(event, CheckpointSavedEvent):
            _mark_saved(event)
    outputs = (await run.wait_for_completion()).outputs
    mark(f"done {run.run_id}")
    return outputs


def _mark_saved(event: CheckpointSavedEvent) -> None:
    checkpoint = event.checkpoint
    mark(f"saved {checkpoint.run_id} {checkpoint.seq} {checkpoint.checkpoint_id}")


# -- what is done ----------------------------------------------------------------------------------


Act: TypeAlias = Callable[[DiskWorld, CheckpointStorage], Awaitable[None]]
"""Can be done again, however far it came."""


async def _begun(storage: CheckpointStorage, name: str, run_id: str) -> Run:
    if await storage.catalog.head_or_none(run_id) is None:
        return await workflow_named(name).start(_ROUNDS, run_id=run_id, storage=storage)
    return await resumed(storage, name, run_id)


async def _run(storage: CheckpointStorage, name: str, run_id: str) -> None:
    await follow(await _begun(storage, name, run_id))


async def run_guest(storage: CheckpointStorage) -> None:
    """The run that comes from elsewhere."""
    await _run(storage, "Main", "guest")


async def run_main(world: DiskWorld, storage: CheckpointStorage) -> None:
    """A run whose checkpoints all stay."""
    await _run(storage, "Main", "main")


async def tag(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Give a checkpoint a name."""
    checkpoint = (await _checkpoints(storage))[2]
    await storage.tag(checkpoint, _TAG)
    mark(f"tagged {checkpoint.checkpoint_id} {_TAG}")


async def restore(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Go back in the main run to before its last superstep, and on from there."""
    mark("back main")
    await follow(await workflow_named("Main").resume((await _checkpoints(storage))[-2], storage=storage))


async def fork(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Let another run begin where the main run was."""
    checkpoint = (await _checkpoints(storage))[6]
    try:
        run = await workflow_named("Main").fork(checkpoint, run_id="fork", storage=storage)
    except RunExists:
        run = await resumed(storage, "Main", "fork")
    await follow(run)


async def tag_beside(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Give some checkpoints of a run a name while it goes on, as another process would."""
    async with world.storage() as beside:
        run = await _begun(storage, "Main", "beside")
        try:
            async for event in run.watch_stream():
                if not isinstance(event, CheckpointSavedEvent):
                    continue
                _mark_saved(event)
                if event.checkpoint.seq % 5 == 0:
                    await beside.tag(event.checkpoint, _TAG)
                    mark(f"tagged {event.checkpoint.checkpoint_id} {_TAG}")
            await run.wait_for_completion()
        finally:
            await run.close()
    mark("done beside")


async def retain(world: DiskWorld, storage: CheckpointStorage) -> None:
    """A run of which only the newest checkpoint stays."""
    mark("retains short")
    await _run(storage, _SHORT, "short")


async def import_guest(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Bring in a run from elsewhere."""
    await storage.import_run(world.guest)
    mark("done guest")


async def export(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Write the main run to a file, which stays if it is there: then it is complete."""
    if not world.exported.exists():
        await storage.export_run("main", world.exported)
    mark("exported")


async def back_up(world: DiskWorld, storage: CheckpointStorage) -> None:
    """Copy a SQLite database, unless the copy is there: then it is complete."""
    assert isinstance(storage, SqliteCheckpointStorage)
    mark("backing")
    if not world.copy.exists():
        await storage.backup(world.copy)
    mark("backed")


async def _checkpoints(storage: CheckpointStorage) -> Sequence[CheckpointInfo]:
    return await storage.list_checkpoints(run_id="main")


_ACTS: dict[str, Act] = {
    "run": run_main,
    "tag": tag,
    "restore": restore,
    "fork": fork,
    "tag-beside": tag_beside,
    "retain": retain,
    "import": import_guest,
    "export": export,
    "backup": back_up,
}


def acts_of(kind: str) -> dict[str, Act]:
    """What is done with a storage of this kind, in this order."""
    return {name: act for name, act in _ACTS.items() if kind == "sqlite" or act is not back_up}


async def act_all(world: DiskWorld) -> None:
    """Do all of it. What fails is tried once more, then by a storage that is opened anew, and then given up."""
    waiting = list(acts_of(world.kind).items())
    for _ in range(_LIVES):
        try:
            async with world.storage() as storage:
                while waiting:
                    await _try_twice(waiting[0], world, storage)
                    del waiting[0]
        except HoldfastError as error:
            mark(f"failed for good: {_in_one_line(error)}")
        if not waiting:
            return


async def _try_twice(named: tuple[str, Act], world: DiskWorld, storage: CheckpointStorage) -> None:
    name, act = named
    try:
        await act(world, storage)
    except HoldfastError as error:
        mark(f"failed {name}: {_in_one_line(error)}")
        await act(world, storage)


def _in_one_line(error: HoldfastError) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


async def go_on(world: DiskWorld) -> None:
    """Go on with all runs that are not over."""
    async with world.storage() as storage:
        for run in await storage.list_runs(limit=None):
            if run.status is not RunStatus.COMPLETED:
                await follow(await resumed(storage, run.workflow_name, run.run_id))


# -- what was promised -----------------------------------------------------------------------------


@dataclass
class Promises:
    """What was acknowledged."""

    saved: dict[str, dict[str, int]] = field(default_factory=dict)
    """The checkpoints of each run, with their numbers."""
    retained: set[str] = field(default_factory=set)
    """The runs of which only the newest checkpoint stays."""
    done: set[str] = field(default_factory=set)
    tags: set[tuple[str, str]] = field(default_factory=set)
    journaled: dict[str, set[str]] = field(default_factory=dict)
    """The keys of effects that must not be repeated, by run."""
    exported: bool = False
    backed: dict[str, list[str]] | None = None
    """The checkpoints that the backup holds, by run."""

    @classmethod
    def of(cls, marks: Sequence[str]) -> "Promises":
        """Read marks, in their order."""
        promises = cls()
        begun: dict[str, list[str]] = {}
        for line in marks:
            match line.split():
                case ["saved", run_id, seq, checkpoint_id]:
                    promises.saved.setdefault(run_id, {})[checkpoint_id] = int(seq)
                case ["retains", run_id]:
                    promises.retained.add(run_id)
                case ["back", run_id]:  # effects of what comes again come again
                    promises.done.discard(run_id)
                    promises.journaled.pop(run_id, None)
                case ["done", run_id]:
                    promises.done.add(run_id)
                case ["tagged", checkpoint_id, name]:
                    promises.tags.add((checkpoint_id, name))
                case ["once", run_id, key]:
                    promises.journaled.setdefault(run_id, set()).add(key)
                case ["exported"]:
                    promises.exported = True
                case ["backing"]:
                    begun = {run: list(saved) for run, saved in promises.saved.items()}
                case ["backed"]:
                    promises.backed = begun
        return promises

    def kept(self, run_id: str) -> list[str]:
        """The checkpoints of a run that must be there, oldest first."""
        return [] if run_id in self.retained else list(self.saved.get(run_id, ()))

    def repeated(self, marks: Sequence[str]) -> list[str]:
        """The effects among marks of a later process that must not have been repeated."""
        keys = {key for journaled in self.journaled.values() for key in journaled}
        return [line for line in marks if line.startswith("effect ") and line.split()[1] in keys]


def repeated_at_once(marks: Sequence[str]) -> list[str]:
    """The effects that one process repeated although it had been told that they are noted."""
    repeated = []
    for place, line in enumerate(marks):
        if line.startswith("effect "):
            repeated += Promises.of(marks[:place]).repeated([line])
    return repeated
