"""Kills a process at every step of a conversation that is kept in a session store, and lets another one go on.

``python -m tests.agents.session_kills STORE FOLDER [PLANT]`` forks for each kill. It prints one line of JSON for each
kill that went wrong, and how many there were.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import SqliteCheckpointStorage, WorkflowBuilder
from holdfast.agents import (
    AgentExecutor,
    AgentHistory,
    AgentReply,
    AgentRequest,
    AgentSettings,
    Calls,
    JsonSessionStore,
    SessionPolicy,
    SessionStore,
    SqliteSessionStore,
    read_messages,
    settle_sessions,
)
from holdfast.agents.sessions.turn import SessionTurn
from tests.agents.world import World


class Witnessed:
    """A session store that tells the world before and after each change."""

    def __init__(self, store: SessionStore, world: World) -> None:
        self._store = store
        self._world = world

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in ("stage", "publish"):
            return method

        async def change(*args: Any) -> Any:
            self._world.happen(f"before {name}")
            result = await method(*args)
            self._world.happen(f"after {name}")
            return result

        return change


class Heard:
    """An agent that says how many turns of the conversation it was given."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self._world = world

    async def run(self, request: AgentRequest, calls: Calls) -> AgentReply:
        earlier = len(request.messages) // 2
        if request.history is not None:
            earlier += len(request.history.messages)

        async def ask() -> str:
            self._world.happen(f"begin {self.name}")
            return f"{self.name} {request.prompt} ({earlier})"

        text = await calls.model({"prompt": request.prompt, "earlier": earlier}, ask)
        before = [None] * len(request.messages) + (request.history.messages if request.history else [])
        return AgentReply(text, history=AgentHistory("heard", "1", [*before, text]))


def open_store(kind: str, folder: Path) -> SessionStore:
    return (
        JsonSessionStore(folder / "sessions")
        if kind == "json"
        else SqliteSessionStore(folder / "sessions.db")
    )


async def live(kind: str, folder: Path, world: World) -> dict[str, Any]:
    """Do what is left of two inputs to one run; return the conversation."""
    plain = open_store(kind, folder)
    policy = SessionPolicy(Witnessed(plain, world), "kim")
    first, second = (
        AgentExecutor(Heard(name, world), output_type=str, settings=AgentSettings(session=policy))
        for name in ("ask", "tell")
    )
    async with SqliteCheckpointStorage(folder / "store.db") as storage:
        builder = WorkflowBuilder(name="Killed").set_start_executor(first).add_edge(first, second)
        workflow = builder.with_checkpointing(storage).build()
        if not await storage.list_runs():
            await workflow.run("one", run_id="r")
        else:
            await (await workflow.resume(run_id="r")).wait_for_completion()
        world.happen("done one")
        await storage.send("r", "two", key="two")
        await (await workflow.resume(run_id="r")).wait_for_completion()
        world.happen("done two")
        await settle_sessions(plain, storage)
        assert await plain.staged() == []
    return {"said": [message.text for message in await read_messages(plain, "kim")]}


def in_child(live: Callable[[], Any], place: Path) -> tuple[int, Any]:
    """Let a forked process live; return how it ended, and what it gave."""
    with contextlib.suppress(FileNotFoundError):
        place.unlink()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            place.write_text(json.dumps(asyncio.run(live())))
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status, json.loads(place.read_text()) if place.exists() else None


def plant_entries_without_key() -> None:
    """Plant a bug: each attempt at a turn gives its entry another id."""
    from uuid import uuid4

    def make_entry_id(turn: Any) -> str:
        return uuid4().hex

    setattr(SessionTurn, "_make_entry_id", make_entry_id)  # noqa: B010


def plant_publish_at_once() -> None:
    """Plant a bug: an entry is published before its turn is committed, under a key of its own."""
    plant_entries_without_key()
    stage = SessionTurn.stage

    async def publish_at_once(turn: Any, reply: AgentReply) -> None:
        await stage(turn, reply)
        await turn._policy.store.publish(turn._session_id, turn._entry_id)

    setattr(SessionTurn, "stage", publish_at_once)  # noqa: B010


PLANTS = {"entries-without-key": plant_publish_at_once}


def main(kind: str, root: Path, plant: str = "") -> int:
    if plant:
        PLANTS[plant]()
    whole = root / "whole"
    whole.mkdir(parents=True)
    status, expected = in_child(lambda: live(kind, whole, World(whole)), whole / "result.json")
    assert status == 0, "the run without a kill failed"
    assert expected["said"][:4] == ["one", "ask one (0)", "ask one (0)", "tell ask one (0) (1)"], expected
    assert len(expected["said"]) == 8, expected
    count = len(World(whole).lines())
    wrong = 0
    for kill_at in range(1, count + 1):
        folder = root / f"kill-{kill_at}"
        folder.mkdir()
        place = folder / "result.json"
        killed, _ = in_child(lambda: live(kind, folder, World(folder, kill_at)), place)  # noqa: B023
        ended, found = in_child(lambda: live(kind, folder, World(folder)), place)  # noqa: B023
        complaints = []
        if killed != 9:
            complaints.append(f"the first process ended with {killed}, not by the kill")
        if ended != 0 or found != expected:
            complaints.append(f"ended {ended} with {found}, not with {expected}")
        if complaints:
            wrong += 1
            print(json.dumps({"kill_at": kill_at, "wrong": complaints, "lines": World(folder).lines()}))
    print(json.dumps({"kills": count, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
