"""Scripts that change shared state."""

from __future__ import annotations

from typing import Any

from bench import marks
from bench.scripts import Again, AppendItem, AppendText, Operation, Put, Script, Set
from holdfast import CheckpointStorage, WorkflowBuilder, WorkflowContext, executor

SCOPE = "bench"
KEYS = "keys"


async def play(operation: Operation, ctx: WorkflowContext[int, int]) -> None:
    """Do one thing to the state."""
    match operation:
        case Set(key, value):
            await ctx.queue_state_update(key, value, scope_name=SCOPE)
        case AppendItem(key, item):
            await ctx.append_state(key, item, scope_name=SCOPE)
        case AppendText(key, text):
            await ctx.append_state(key, text, scope_name=SCOPE)
        case Again(key, text):
            whole = await ctx.read_state(key, scope_name=SCOPE)
            await ctx.queue_state_update(key, marks.grown(whole, text), scope_name=SCOPE)
        case Put(entries):
            for key, value in entries.items():
                await ctx.queue_state_update(key, value, scope_name=KEYS)


def scripted(script: Script, roles: int = 1) -> WorkflowBuilder:
    """So many executors in a ring play a script, one superstep each."""

    async def step(index: int, ctx: WorkflowContext[int, int]) -> None:
        marks.enter()
        for operation in script[index]:
            await play(operation, ctx)
        if index + 1 < len(script):
            await ctx.send_message(index + 1)
        else:
            await ctx.yield_output(index + 1)

    ring = [executor(id=f"role-{number}")(step) for number in range(roles)]
    builder = WorkflowBuilder(name="script", max_iterations=len(script) + 1).set_start_executor(ring[0])
    for number, role in enumerate(ring):
        builder.add_edge(role, ring[(number + 1) % roles])
    return builder


async def stored_state(storage: CheckpointStorage, run_id: str) -> dict[str, Any]:
    """All of a run's shared state, as it is stored."""
    latest = await storage.get_latest(run_id=run_id)
    assert latest is not None
    loaded = await storage.load(latest)
    state: dict[str, Any] = dict(loaded.scopes.get(SCOPE, {}))
    if many := dict(loaded.scopes.get(KEYS, {})):
        state["keys"] = many
    return state
