"""Looking at checkpoints: what a storage has, how big it is, and whether it is what was stored.

Listing reads no values: keys and sizes are there, values come with ``load``, or one by one with ``read_state``. Each
checkpoint costs what changed, not what there is.
"""

import asyncio
import random
import tempfile
from pathlib import Path

from holdfast import (
    FileCheckpointStorage,
    NotLoaded,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)

INPUT = "checkout"


@executor
async def fetch(service: str, ctx: WorkflowContext[str]) -> str:
    requests = random.Random(service)
    log = "".join(f"error in {service}: {requests.getrandbits(64):016x}\n" for _ in range(10_000))
    await ctx.queue_state_update("log", log, scope_name="Logs")
    return service


@executor
async def look(service: str, ctx: WorkflowContext[int]) -> int:
    log: str = await ctx.read_state("log", scope_name="Logs")
    return log.count("error")


@executor
async def report(errors: int, ctx: WorkflowContext[None, str]) -> None:
    await ctx.queue_state_update("errors", errors, scope_name="Logs")
    await ctx.yield_output(f"{errors} errors")


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Look").set_start_executor(fetch).add_chain([fetch, look, report]).build()


def rounded(size: int) -> str:
    return "under 1 kB" if size < 1_000 else "over 50 kB" if size > 50_000 else "more"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with FileCheckpointStorage(Path(folder, "checkpoints")) as storage:
            await make_workflow().run(INPUT, storage=storage)
            await look_at(storage)


async def look_at(storage: FileCheckpointStorage) -> None:
    listed = await storage.list_checkpoints("Look")
    for made in listed:
        print(f"{made.seq} {made.phase} {made.superstep}: {rounded(made.new_bytes)}, {made.scopes}")
    last = listed[-1]
    print(last.outputs, len(last.outputs))
    try:
        print(last.scopes["Logs"]["log"])
    except NotLoaded:
        print("not read yet")

    print(await last.read_state("errors", scope_name="Logs"))
    loaded = await storage.load(last.checkpoint_id)
    print(loaded.outputs, len(loaded.scopes["Logs"]["log"]))

    checked = await storage.verify()
    print(f"{checked.checkpoints} checkpoints, {checked.blobs} blob, all well: {checked.ok}")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# 1 start 1: under 1 kB, {}
# 2 end 1: over 50 kB, {'Logs': {'log': <str, 360.0 kB>}}
# 3 start 2: under 1 kB, {'Logs': {'log': <str, 360.0 kB>}}
# 4 end 2: under 1 kB, {'Logs': {'log': <str, 360.0 kB>}}
# 5 start 3: under 1 kB, {'Logs': {'log': <str, 360.0 kB>}}
# 6 end 3: under 1 kB, {'Logs': {'log': <str, 360.0 kB>, 'errors': <int, 3 B>}}
# [<str, 13 B>] 1
# not read yet
# 10000
# ['10000 errors'] 360000
# 6 checkpoints, 1 blob, all well: True
