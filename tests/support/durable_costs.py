"""Programs whose costs are counted; each runs in a process of its own and prints what it counted as JSON."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    RunResult,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from tests.support.durable import storage_at

FIFTY_MB = 50_000_000
KILOBYTE = 1_000


def passed_to_write() -> int:
    """How many bytes this process has passed to write() and the like so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/io has no wchar")


def peak_memory() -> int:
    """The most memory that this process has held so far, in bytes."""
    # Not getrusage: its figure is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def on_disk(folder: Path) -> int:
    """The bytes of all files in a folder; a file with several names counts once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


class Meter:
    """Counts at each superstep what was done until then."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self.readings: list[dict[str, int]] = []

    def read(self) -> None:
        # Room in the log is made for many supersteps to come; it counts with the whole, not with one of them.
        room = getattr(self._storage.store, "log_room", 0)
        self.readings.append({**asdict(self._storage.counters), "written": passed_to_write() - room})

    def report(self) -> list[dict[str, int]]:
        """What each superstep did: from one reading to the next."""
        pairs = zip(self.readings, self.readings[1:], strict=False)
        return [{name: after[name] - before[name] for name in after} for before, after in pairs]


meters: list[Meter] = []
"""The meter of this process; executors read it."""


def measured(
    kind: str, folder: str, workflow: Callable[[], Workflow], message: object, readings: bool = True
) -> None:
    """Run a workflow and print what each superstep cost, and what lies on the disk afterwards."""

    async def main() -> tuple[RunResult, list[int]]:
        async with storage_at(kind, Path(folder)) as storage:
            meters.append(Meter(storage))
            result = await workflow().run(message, run_id="mine", storage=storage)
            meters[0].read()
            listed = await storage.list_checkpoints(run_id="mine") if readings else []
            return result, [c.new_bytes for c in listed]

    result, new_bytes = asyncio.run(main())
    print(
        json.dumps(
            {
                "status": result.status.value,
                "supersteps": meters[0].report(),
                "new_bytes": new_bytes,
                "disk": on_disk(Path(folder)),
            }
        )
    )


def _looping(cls: Any) -> Workflow:
    return (
        WorkflowBuilder(name=cls.__name__, max_iterations=100_000)
        .set_start_executor(cls)
        .add_edge(cls, cls)
        .build()
    )


# -- a value of 50 MB that nobody touches ----------------------------------------------------------


class Hold(Executor):
    """Puts the value into state in its first superstep; then only a counter changes."""

    @handler
    async def hold(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        if meters:
            meters[0].read()
        if not await ctx.read_state_keys(scope_name="Logs"):
            await ctx.queue_state_update("raw", random.Random(1).randbytes(FIFTY_MB), scope_name="Logs")
        await ctx.queue_state_update("count", left, scope_name="Counts")
        if left:
            await ctx.send_message(left - 1)
        elif meters:
            raise RuntimeError("so that the next process has something to do")
        else:
            arrived.append(peak_memory())
            await ctx.yield_output(0)


arrived: list[int] = []


def hold(folder: str, supersteps: int) -> None:
    """Hold the value for so many supersteps, then fail."""

    async def main() -> list[int]:
        async with storage_at("sqlite", Path(folder)) as storage:
            meters.append(Meter(storage))
            try:
                await _looping(Hold).run(supersteps, run_id="mine", storage=storage)
            except ExecutorFailed:
                pass
            return [c.new_bytes for c in await storage.list_checkpoints(run_id="mine")]

    new_bytes = asyncio.run(main())
    print(json.dumps({"supersteps": meters[0].report(), "new_bytes": new_bytes}))


def hold_on(kind: str, folder: str, supersteps: int) -> None:
    """The same, called as others are."""
    assert kind == "sqlite"
    hold(folder, supersteps)


def go_on_holding(folder: str) -> None:
    """Go on in a new process; say what was read, and how much memory was needed until the executor ran."""

    async def main() -> None:
        async with storage_at("sqlite", Path(folder)) as storage:
            before = peak_memory()
            run = await _looping(Hold).resume(run_id="mine", storage=storage)
            result = await run.wait_for_completion()
            counted = asdict(storage.counters)
            print(json.dumps([result.outputs, counted, arrived[0] - before, peak_memory() - before]))

    asyncio.run(main())


def read_what_is_held(folder: str) -> None:
    """Read the value in a new process; say what was read, and how much memory that needed."""

    async def main() -> None:
        async with storage_at("sqlite", Path(folder)) as storage:
            before = peak_memory()
            latest = await storage.get_latest(run_id="mine")
            assert latest is not None
            assert len(await latest.read_state("raw", scope_name="Logs")) == FIFTY_MB
            print(json.dumps([storage.counters.blobs_read, peak_memory() - before]))

    asyncio.run(main())


# -- a history that grows --------------------------------------------------------------------------


class Append(Executor):
    """Appends a kilobyte that cannot be compressed."""

    @handler
    async def append(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        meters[0].read()
        await ctx.append_state("history", random.Random(left).randbytes(KILOBYTE), scope_name="Logs")
        if left > 1:
            await ctx.send_message(left - 1)


class QueueAgain(Executor):
    """Reads the whole list, adds a kilobyte and queues all of it again."""

    @handler
    async def again(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        meters[0].read()
        history = await ctx.read_state("history", [], scope_name="Logs")
        history.append(random.Random(left).randbytes(KILOBYTE))
        await ctx.queue_state_update("history", history, scope_name="Logs")
        if left > 1:
            await ctx.send_message(left - 1)


def append(kind: str, folder: str, supersteps: int) -> None:
    measured(kind, folder, lambda: _looping(Append), supersteps)


def queue_again(kind: str, folder: str, supersteps: int) -> None:
    measured(kind, folder, lambda: _looping(QueueAgain), supersteps)


# -- small state -----------------------------------------------------------------------------------


class Small(Executor):
    """Changes one small number in each superstep."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        if meters:
            meters[0].read()
        await ctx.queue_state_update("left", left, scope_name="Counts")
        if left > 1:
            await ctx.send_message(left - 1)


def small(kind: str, folder: str, supersteps: int) -> None:
    measured(kind, folder, lambda: _looping(Small), supersteps, readings=False)


@executor(id="start")
async def start(left: int) -> int:
    meters[0].read()
    return left


class Worker(Executor):
    @handler
    async def work(self, left: int, ctx: WorkflowContext[int]) -> int:
        return left


@executor(id="join")
async def join(parts: list[int], ctx: WorkflowContext[int]) -> None:
    meters[0].read()
    if parts[0] > 1:
        await ctx.send_message(parts[0] - 1)


def _fanned() -> Workflow:
    workers = [Worker.bind(id=f"w{number}") for number in range(100)]
    return (
        WorkflowBuilder(name="Fanned", max_iterations=10_000)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .add_edge(join, start)
        .build()
    )


def fan_out(kind: str, folder: str, rounds: int) -> None:
    """So many rounds of one, a hundred, one."""
    measured(kind, folder, _fanned, rounds, readings=False)


# -- one of many keys ------------------------------------------------------------------------------


class Many(Executor):
    """Writes 10,000 keys, then one of them in each superstep."""

    @handler
    async def work(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        meters[0].read()
        if not await ctx.read_state_keys(scope_name="Many"):
            for number in range(10_000):
                await ctx.queue_state_update(f"key{number}", f"value {number}", scope_name="Many")
        else:
            await ctx.queue_state_update(f"key{left * 37}", f"changed {left}", scope_name="Many")
        if left:
            await ctx.send_message(left - 1)


def many(kind: str, folder: str, supersteps: int) -> None:
    measured(kind, folder, lambda: _looping(Many), supersteps)


# -- many runs -------------------------------------------------------------------------------------


def side_by_side(folder: str, runs: int, supersteps: int) -> None:
    """Many runs on one store; says how many commits there were, and how many transactions."""

    async def main() -> None:
        async with storage_at("sqlite", Path(folder)) as storage:
            workflow = _looping(Small)
            await asyncio.gather(*(workflow.run(supersteps, storage=storage) for _ in range(runs)))
            transactions = storage.store.transactions  # type: ignore[attr-defined]
            listed = await storage.list_runs(limit=None)
            assert [run.status.value for run in listed] == ["completed"] * runs
            print(json.dumps([storage.counters.commits, transactions]))

    asyncio.run(main())
