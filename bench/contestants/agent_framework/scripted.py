"""Scripts that change shared state, with `ctx.set_state` and `ctx.get_state`."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from typing import Any

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from bench import marks
from bench.scripts import Again, AppendItem, AppendText, Operation, Put, Script, Set


def play(operation: Operation, ctx: Any) -> None:
    """Do one thing to the state."""
    match operation:
        case Set(key, value):
            ctx.set_state(key, value)
        case AppendItem(key, item):
            ctx.set_state(key, [*ctx.get_state(key, []), item])
        case AppendText(key, text) | Again(key, text):
            ctx.set_state(key, ctx.get_state(key) + text)
        case Put(entries):
            for key, value in entries.items():
                ctx.set_state(key, value)


class Player(Executor):
    """Plays one superstep of a script and passes on."""

    def __init__(self, id: str, script: Script) -> None:
        super().__init__(id=id)
        self.script = script

    @handler
    async def step(self, index: int, ctx: WorkflowContext[int, int]) -> None:
        """One superstep."""
        marks.enter()
        for operation in self.script[index]:
            play(operation, ctx)
        if index + 1 < len(self.script):
            await ctx.send_message(index + 1)
        else:
            await ctx.yield_output(index + 1)


def scripted(script: Script, storage: Any, roles: int = 1, name: str = "script") -> Any:
    """So many executors in a ring play a script, one superstep each."""
    ring = [Player(f"role-{number}", script) for number in range(roles)]
    builder = WorkflowBuilder(
        name=name, start_executor=ring[0], max_iterations=len(script) + 1, checkpoint_storage=storage
    )
    for number, role in enumerate(ring):
        builder.add_edge(role, ring[(number + 1) % roles])
    return builder.build()


def state_of(checkpoint: Any) -> dict[str, Any]:
    """All of a checkpoint's shared state."""
    state = {key: value for key, value in checkpoint.state.items() if not key.startswith("_")}
    many = {key: state.pop(key) for key in [*state] if key.startswith("key")}
    return {**state, "keys": many} if many else state
