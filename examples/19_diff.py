"""Comparing: what is different between any two checkpoints, and what takes the room in a storage.

Two checkpoints may be of one run, of two branches, of a run and its fork, or of runs that have nothing to do with each
other. What both have is not read, however big it is: here the log, which is compared by its name alone.
"""

import asyncio
import random

from holdfast import (
    InMemoryCheckpointStorage,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)

INPUT = "checkout"
SETTINGS = StateKey("settings", dict[str, int], scope_name="Settings")
REPORT = StateKey("report", str, scope_name="Reports")


@executor
async def fetch(service: str, ctx: WorkflowContext[str]) -> str:
    requests = random.Random(service)
    log = "".join(f"error in {service}: {requests.getrandbits(64):016x}\n" for _ in range(10_000))
    await ctx.queue_state_update("log", log, scope_name="Logs")
    await ctx.queue_state_update(SETTINGS, {"tolerated": 20_000, "pages": 1})
    return service


@executor
async def report(service: str, ctx: WorkflowContext[str]) -> str:
    await ctx.queue_state_update(REPORT, f"Service: {service}\nErrors: ?\nDecision: ?\n")
    return service


@executor
async def decide(service: str, ctx: WorkflowContext[None, str]) -> None:
    log: str = await ctx.read_state("log", scope_name="Logs")
    errors = log.count("error")
    settings = await ctx.read_state(SETTINGS, {})
    decision = "PAGE" if errors > settings["tolerated"] else "TICKET"
    await ctx.queue_state_update(REPORT, f"Service: {service}\nErrors: {errors}\nDecision: {decision}\n")
    await ctx.yield_output(decision)


def make_workflow() -> Workflow:
    return WorkflowBuilder(name="Triage").set_start_executor(fetch).add_chain([fetch, report, decide]).build()


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = make_workflow()
    run = await workflow.start(INPUT, run_id="night", storage=storage)
    await run.wait_for_completion()
    before_decision, end = run.checkpoints[-2:]

    print(f"{await storage.diff(before_decision, end)}\n")

    edits = {SETTINGS: {"tolerated": 20, "pages": 1}}
    strict = await workflow.fork(before_decision, edits=edits, run_id="strict", storage=storage)
    await strict.wait_for_completion()
    read_before = storage.counters.blobs_read
    diff = await storage.diff(end, strict.checkpoints[-1])
    print(f"{diff}\n")
    for found in diff.state:
        print(found.kind, found.place, [part.place for part in found.parts])
    print(f"{storage.counters.blobs_read - read_before} blobs were read for it")

    room = await storage.statistics()
    print(f"{room.total.checkpoints} checkpoints of {room.total.runs} runs, {room.total.blobs} blob")
    print("held:", {scope: f"{size / 1000:.0f} kB" for scope, size in room.by_scope.items() if size > 1000})
    print(f"saved by the fork: {room.total.saved_bytes / 1000:.0f} kB")


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# --- run night, checkpoint 5, start 3
# +++ run night, checkpoint 6, end 3, completed
# state
#   ~ Reports['report']: str, 42 B -> 51 B
#     @@ -1,3 +1,3 @@
#      Service: checkout
#     -Errors: ?
#     -Decision: ?
#     +Errors: 10000
#     +Decision: TICKET
# messages
#   - report -> decide: 'checkout'
# outputs
#   + [0] of decide: 'TICKET'
#
# --- run night, checkpoint 6, end 3, completed
# +++ run strict, checkpoint 3, end 3, completed
# (of different runs of workflow Triage)
# state
#   ~ Reports['report']: str, 51 B -> 49 B
#     @@ -1,3 +1,3 @@
#      Service: checkout
#      Errors: 10000
#     -Decision: TICKET
#     +Decision: PAGE
#   ~ Settings['settings']: dict, 21 B -> 19 B
#     ~ ['tolerated']: 20000 -> 20
# outputs
#   ~ [0] of decide: 'TICKET' -> 'PAGE'
#
# changed ('Reports', 'report') []
# changed ('Settings', 'settings') [('tolerated',)]
# 0 blobs were read for it
# 9 checkpoints of 2 runs, 1 blob
# held: {'Logs': '720 kB'}
# saved by the fork: 360 kB
