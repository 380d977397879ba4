"""A process that hosts the runs of a store until all of them are over, for tests that kill it or start several.

    python -m tests.support.host_programs sqlite FOLDER

It says "ready", waits for a line, and says at last how many runs it was given to go on with.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import (
    CheckpointStorage,
    Executor,
    Host,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.durable import Wrapped, storage_at
from tests.support.parts import ClaimRequest, Head

LOG, HANGS = "log", "hangs"
"""A file with a line for each time a run went on, and one that lets handlers hang as long as it is there."""


def asking(folder: Path) -> Workflow:
    """Return a workflow that asks, and then says in the log which process drives it."""

    class Ask(Executor):
        @handler
        async def ask(self, question: str, ctx: WorkflowContext[None, str]) -> None:
            await ctx.request_info(question, bool, request_id="q")

        @response_handler
        async def answered(self, question: str, answer: bool, ctx: WorkflowContext[None, str]) -> None:
            handle = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, f"{ctx.run_id} {os.getpid()}\n".encode())
            os.close(handle)
            while (folder / HANGS).exists():  # noqa: ASYNC110 - another process removes it
                await asyncio.sleep(0.01)
            await ctx.yield_output("done")

    return WorkflowBuilder(name="Asking").set_start_executor(Ask).build()


def read_log(folder: Path) -> list[tuple[str, str]]:
    """Return the run and the process of each line of the log."""
    try:
        lines = (folder / LOG).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(run, process) for run, _, process in (line.partition(" ") for line in lines)]


class Counting(Wrapped):
    """A store that counts the runs that were claimed."""

    claimed = 0

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        found: Sequence[Head] = await self.inner.claim(request)
        self.claimed += len(found) if request.lease else 0
        return found


async def _host(kind: str, folder: Path) -> None:
    async with storage_at(kind, folder / "store") as opened:
        store = Counting(opened.store)
        storage = CheckpointStorage(store)
        await storage.list_runs()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        async with Host(storage, asking(folder), poll=0.02, concurrency=10):
            while await storage.count_runs() > await storage.count_runs(status=RunStatus.COMPLETED):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        print(store.claimed, flush=True)


if __name__ == "__main__":
    asyncio.run(_host(sys.argv[1], Path(sys.argv[2])))
