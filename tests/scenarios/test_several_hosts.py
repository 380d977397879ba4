"""Several hosts on one store: each run is driven once, runs of the dead are taken over, and looking costs little."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointStorage, Executor, Host, RunStatus, WorkflowBuilder, WorkflowContext, handler
from holdfast import host as host_module
from tests.support.durable import ON_DISK, Wrapped, storage_at
from tests.support.host_programs import HANGS, asking, read_log
from tests.support.parts import ClaimRequest, Head
from tests.support.runs import soon

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def hosting(kind: str, folder: Path) -> AsyncIterator["asyncio.subprocess.Process"]:
    """A process that is ready to host the runs of a store."""
    program = [sys.executable, "-m", "tests.support.host_programs", kind, str(folder)]
    process = await asyncio.create_subprocess_exec(
        *program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=os.environ
    )
    try:
        assert process.stdout is not None
        assert (await soon(process.stdout.readline())).strip() == b"ready"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def go(process: "asyncio.subprocess.Process") -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def start_answered(kind: str, folder: Path, names: Sequence[str]) -> None:
    """Leave runs behind that have something to do: each asked, and was answered when nobody held it any more."""
    async with storage_at(kind, folder / "store") as storage:
        for name in names:
            await asking(folder).run("Go on?", run_id=name, storage=storage)
            await storage.respond(name, {"q": True})


@pytest.mark.parametrize("kind", ON_DISK)
async def test_each_run_is_driven_once_by_one_of_two_hosts(kind: str, tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(200)]
    await start_answered(kind, tmp_path, names)
    async with hosting(kind, tmp_path) as one, hosting(kind, tmp_path) as two:
        go(one)
        go(two)
        said = [await asyncio.wait_for(process.communicate(), 60) for process in (one, two)]
    claimed = [int(out.split()[-1]) for out, _ in said]
    assert sum(claimed) == 200, "a host was given a run that the other was about to go on with"
    assert Counter(run for run, _ in read_log(tmp_path)) == dict.fromkeys(names, 1)
    async with storage_at(kind, tmp_path / "store") as storage:
        assert await storage.count_runs(status=RunStatus.COMPLETED) == 200


@pytest.mark.parametrize("kind", ON_DISK)
async def test_runs_of_a_killed_host_are_taken_over(kind: str, tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(5)]
    await start_answered(kind, tmp_path, names)
    (tmp_path / HANGS).touch()
    async with hosting(kind, tmp_path) as process:
        go(process)
        while len(read_log(tmp_path)) < 5:  # noqa: ASYNC110 - the other process writes it
            await asyncio.sleep(0.01)
        process.kill()
        await process.wait()
        (tmp_path / HANGS).unlink()
        async with storage_at(kind, tmp_path / "store") as storage:
            host = Host(storage, asking(tmp_path))
            assert await soon(host.wake_due()) == 5
            assert (await storage.count_runs(status=RunStatus.COMPLETED), host.problems) == (5, {})
            for name in names:
                assert (await storage.catalog.head(name)).takeovers == 0, "it went on since it was taken over"
    assert Counter(run for run, _ in read_log(tmp_path)) == dict.fromkeys(names, 2)


class Hang(Executor):
    @handler
    async def hang(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await asyncio.Event().wait()


class Watched(Wrapped):
    """A store that counts how often each method is called, and the heads that come back."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # a store may lack some
        self.calls[name] += 1
        return found

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found: Sequence[Head] = await self.inner.claim(request)
        self.calls["claim"] += 1
        self.calls["heads"] += len(found)
        return found


@pytest.mark.parametrize("kind", ON_DISK)
async def test_an_idle_host_reads_no_runs_that_others_drive(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_module, "_RESCUE_SECONDS", 0.0)
    workflow = WorkflowBuilder(name="Hang").set_start_executor(Hang).build()
    async with storage_at(kind, tmp_path) as storage:
        runs = [await workflow.start("x", run_id=f"r{number}", storage=storage) for number in range(20)]
        store = Watched(storage.store)
        host = Host(CheckpointStorage(store), workflow, poll=0.001)
        await host.wake_due()
        assert await storage.count_runs(status=RunStatus.RUNNING) == 20
        store.calls.clear()
        async with host:
            while store.calls["claim"] < 20:  # noqa: ASYNC110 - as often as it looks
                await asyncio.sleep(0.001)
        assert ({*store.calls}, store.calls["heads"]) == ({"claim", "heads"}, 0)
        for run in runs:
            await run.cancel()
