"""Kills a process at every model call and tool call of an agent, and lets another one go on.

``python -m tests.agents.kills ADAPTER FOLDER`` imports the library once and forks for each kill: importing an agent
library takes seconds. It prints one line of JSON for each kill that went wrong, and how many there were.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast import RunStatus, SqliteCheckpointStorage, WorkflowBuilder
from holdfast.agents import AgentCallEvent, AgentExecutor, AgentReply
from holdfast.agents.calls import RecordedCalls
from tests.agents.world import INPUT, World

RUN = "killed"


async def live(adapter: Any, folder: Path, world: World) -> dict[str, Any]:
    """Begin the run, or go on with it; return its reply."""
    async with SqliteCheckpointStorage(folder / "store.db") as storage:
        agent = AgentExecutor(adapter.make_agent(world), id="agent")
        workflow = (
            WorkflowBuilder(name="Killed").set_start_executor(agent).with_checkpointing(storage).build()
        )
        known = any(run.run_id == RUN for run in await storage.list_runs())
        run = await (workflow.resume(run_id=RUN) if known else workflow.start(INPUT, run_id=RUN))
        async for event in run.watch_stream():
            if isinstance(event, AgentCallEvent) and not event.replayed and event.error is None:
                world.happen(f"recorded {event.call}")
        result = await run.wait_for_completion()
        assert result.status is RunStatus.COMPLETED, result
        (reply,) = result.outputs
        assert isinstance(reply, AgentReply)
        assert reply.history is not None
        usage = reply.usage.calls
        return {"text": reply.text, "history": adapter.comparable(reply.history.messages), "calls": usage}


Live = Callable[[Path, World], Awaitable[dict[str, Any]]]
"""Begins the run in a folder, or goes on with it, and returns what it came to."""


def in_child(live: Live, folder: Path, kill_at: int | None) -> tuple[int, dict[str, Any] | None]:
    """Let a forked process live; return how it ended, and its reply."""
    place = folder / "reply.json"
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            reply = asyncio.run(_awaited(live(folder, World(folder, kill_at))))
            place.write_text(json.dumps(reply))
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status, json.loads(place.read_text()) if place.exists() else None


async def _awaited(reply: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    return await reply


def repeated(lines: list[str]) -> list[str]:
    """Return calls that were begun again though their outcome was recorded."""
    begun_as = {"model 1": "begin model 1", "model 2": "begin model 2", "model 3": "begin model 3"}
    begun_as |= {"tool 1.c1": "begin charge 5", "tool 1.c2": "begin mail bo", "tool 2.c1": "begin charge 7"}
    wrong = []
    for number, line in enumerate(lines):
        if line.startswith("recorded "):
            begin = begun_as.get(line.removeprefix("recorded "))
            if begin is not None and begin in lines[number:]:
                wrong.append(begin)
    told = lines.index("begin model 3") if "begin model 3" in lines else len(lines)
    if "begin fail closed" in lines[told:]:  # the model was told of its error
        wrong.append("begin fail closed")
    return wrong


def plant_names_by_order() -> None:
    """Plant a bug: calls of tools are named by the order in which they begin, not by their ids."""

    def take_name(calls: Any, call_id: str) -> str:
        name = f"{calls._path}tool {calls._round}.{len(calls._names)}"
        calls._names.add(name)
        return name

    setattr(RecordedCalls, "_take_name", take_name)  # noqa: B010


def plant_errors_not_recorded() -> None:
    """Plant a bug: what the model is told of a tool that failed is not recorded."""

    async def keep_errors(calls: Any) -> None:
        calls._errors.clear()

    setattr(RecordedCalls, "_keep_errors", keep_errors)  # noqa: B010


PLANTS = {"names-by-order": plant_names_by_order, "errors-not-recorded": plant_errors_not_recorded}


def campaign(root: Path, live: Live, repeated: Callable[[list[str]], list[str]]) -> int:
    """Kill a run at each line of its world, go on in another process, and judge; return 1 if anything went wrong."""
    whole = root / "whole"
    whole.mkdir(parents=True)
    status, expected = in_child(live, whole, None)
    assert status == 0, "the run without a kill failed"
    assert expected is not None
    count = len(World(whole).lines())
    wrong = 0
    for kill_at in range(1, count + 1):
        folder = root / f"kill-{kill_at}"
        folder.mkdir()
        killed, _ = in_child(live, folder, kill_at)
        ended, reply = in_child(live, folder, None)
        lines = World(folder).lines()
        complaints = repeated(lines)
        if killed != 9:
            complaints.append(f"the first process ended with {killed}, not by the kill")
        if ended != 0 or reply != expected:
            complaints.append(f"ended {ended} with {reply}, not with {expected}")
        if complaints:
            wrong += 1
            print(json.dumps({"kill_at": kill_at, "wrong": complaints, "lines": lines}))
    print(json.dumps({"kills": count, "wrong": wrong}))
    return 1 if wrong else 0


def main(adapter_name: str, root: Path, plant: str = "") -> int:
    if plant:
        PLANTS[plant]()
    adapter = import_module(f"tests.agents.libraries.{adapter_name}")
    return campaign(root, partial(live, adapter), repeated)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
