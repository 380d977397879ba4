"""Kills a process each time its agent waits for a person, lets a command answer, and another process go on.

``python -m tests.agents.approvals ADAPTER FOLDER [PLANT]`` imports the library once and forks for each process that
drives the run. The command that answers knows neither the library nor the workflow. It prints one line of JSON.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast import RunStatus, SqliteCheckpointStorage
from holdfast.agents import ToolApproval, calls
from tests.agents.agents import workflow_of
from tests.agents.world import INPUT, World

RUN = "asked"
ANSWERS: tuple[dict[str, object], ...] = (
    {"action": "approve", "arguments": {"amount": 3}},
    {"action": "deny", "reason": "too late"},
)
# Each call once: the first charge with the arguments of the person, and the second not at all.
ONCE = ["begin model 1", "begin charge 3", "begin mail bo", "begin model 2", "begin model 3"]


async def live(adapter: Any, folder: Path) -> str | None:
    """Begin the run, or go on with it; return its output, None if it waits for a person."""
    async with SqliteCheckpointStorage(folder / "store.db") as storage:
        agent, rule = adapter.make_agent(World(folder)), ToolApproval(["charge"])
        workflow = workflow_of(agent, storage, tool_approval=rule)
        known = bool(await storage.list_runs())
        run = await (workflow.resume(run_id=RUN) if known else workflow.start(INPUT, run_id=RUN))
        result = await run.wait_for_completion()
        if result.status is RunStatus.WAITING:
            return None
        (text,) = result.outputs
        return str(text)


def live_in_child(adapter: Any, folder: Path) -> str | None:
    """Let a forked process live, and be killed when the run waits; return the output of the run."""
    place = folder / "output.txt"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            text = asyncio.run(live(adapter, folder))
            if text is None:
                os.kill(os.getpid(), signal.SIGKILL)
            place.write_text(str(text))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"the process ended with {status}"
    return place.read_text() if status == 0 else None


def answer(folder: Path, value: dict[str, object]) -> None:
    begin = "import sys; from holdfast.cli.entry import main; sys.exit(main())"
    command = [sys.executable, "-c", begin, "requests", "answer", RUN, "--value", json.dumps(value)]
    store = ["--store", f"sqlite:///{folder / 'store.db'}"]
    done = subprocess.run([*command, *store], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def plant_arguments_not_used() -> None:
    """Plant a bug: a tool is called as the model wanted it, whatever a person changed."""
    decide = calls.RecordedCalls._decide

    async def decide_without(self: Any, *args: Any) -> Any:
        decision = await decide(self, *args)
        return type(decision).approve() if decision.action == "approve" else decision

    setattr(calls.RecordedCalls, "_decide", decide_without)  # noqa: B010


PLANTS = {"arguments-not-used": plant_arguments_not_used}


def main(adapter_name: str, folder: Path, plant: str = "") -> int:
    if plant:
        PLANTS[plant]()
    adapter = import_module(f"tests.agents.libraries.{adapter_name}")
    folder.mkdir(parents=True)
    wrong: list[str] = []
    for value in ANSWERS:
        if live_in_child(adapter, folder) is not None:
            wrong.append("the run did not wait")
        answer(folder, value)
    output = live_in_child(adapter, folder)
    if output is None or output.replace(" ", "") != "alldone":
        wrong.append(f"it ended with {output!r}")
    begun = [line for line in World(folder).lines() if line.startswith("begin ")]
    failing = "begin fail closed"  # its error is told, and it may be called again until then
    if sorted(set(begun) - {failing}) != sorted(ONCE) or len(begun) - begun.count(failing) != len(ONCE):
        wrong.append(f"it called {begun}")
    print(json.dumps({"wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
