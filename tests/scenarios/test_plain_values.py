"""Checkpoints in a process that has none of the workflow's classes: loaded plain, compared, with big values."""

import enum
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    SqliteCheckpointStorage,
    StateKey,
    UnknownType,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.parts import plain_value


class Mood(enum.Enum):
    GOOD = "good"


@dataclass
class Report:
    title: str
    rows: list[tuple[int, float]]
    mood: Mood = Mood.GOOD


@dataclass
class Verdict:
    approved: bool


BIG = Report("big", [(number, number / 2) for number in range(2000)])
LONG = "kelp " * 200_000
DATA = bytes(range(256)) * 40


class Ask(Executor):
    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen: Report | None = None

    @handler
    async def ask(self, report: Report, ctx: WorkflowContext[None, Any]) -> None:
        self.seen = report
        await ctx.set_state({"last": report})
        await ctx.set_shared_state("big", BIG)
        await ctx.set_shared_state("long", LONG)
        await ctx.set_shared_state("data", DATA)
        await ctx.set_shared_state("$odd", {"$type": 1})
        for number in range(3):
            await ctx.append_state("grown", Report(f"{number}", []), scope_name="Log")
        await ctx.yield_output(report)
        await ctx.request_info(report, response_type=Verdict | None)
        await ctx.request_info("Sure?", response_type=list[bool])

    @response_handler
    async def sure(self, request: str, answer: list[bool], ctx: WorkflowContext[None, Any]) -> None:
        await ctx.append_state("grown", Report("late", [(1, 1.0)]), scope_name="Log")
        await ctx.set_shared_state("long", LONG + "more")
        await ctx.set_shared_state("data", DATA + b"more")
        await ctx.set_shared_state("big", Report("small", []))

    @response_handler
    async def judged(
        self, request: Report, answer: Verdict | None, ctx: WorkflowContext[None, Any]
    ) -> None: ...


REPORT = Report("Q3", [(1, 0.5)])
EXPECTED = {
    "big": plain_value(Report("small", [])),
    "long": LONG + "more",
    "data": plain_value(DATA + b"more"),
    "$odd": {"$$type": 1},
}
GROWN = plain_value([*(Report(f"{number}", []) for number in range(3)), Report("late", [(1, 1.0)])])

SHOW = """
import asyncio, json, sys
from holdfast import open_storage

async def main():
    async with open_storage(sys.argv[1]) as storage:
        first, *_, last = [one for one in await storage.list_checkpoints() if one.request_count]
        checkpoint = await storage.load(last.checkpoint_id, plain=True)
        listed = await storage.load(last.checkpoint_id, values=False, plain=True)
        shown = {
            "state": dict(checkpoint.shared_state),
            "grown": checkpoint.scopes["Log"]["grown"],
            "grown alone": await listed.read_state("grown", scope_name="Log"),
            "one by one": {key: await listed.read_state(key) for key in listed.shared_state},
            "executors": {key: _plain(part) for key, part in checkpoint.executor_states.items()},
            "outputs": list(checkpoint.outputs),
            "requests": [
                [one.request_id, one.data, repr(one.response_type), one.response_schema["title"]]
                for one in checkpoint.pending_requests
            ],
        }
        before = await storage.load(first.checkpoint_id, plain=True)
        difference = await storage.diff(first, last)
        shown["before"] = before.shared_state["big"]
        shown["diff"] = str(difference)
        print(json.dumps(shown))
        assert not any(name.startswith(("tests", "conftest")) for name in sys.modules), "the classes are here"

def _plain(part):
    return dict(part) if not isinstance(part, dict) and hasattr(part, "sizes") else part

asyncio.run(main())
"""


async def run_there(storage: CheckpointStorage) -> Any:
    workflow = WorkflowBuilder(name="Ask").set_start_executor(Ask).with_checkpointing(storage).build()
    result = await workflow.run(REPORT)
    (sure,) = (request for request in result.pending_requests if request.data == "Sure?")
    await result.respond({sure.request_id: [True]})
    return workflow


def seen_elsewhere(url: str, folder: Path) -> dict[str, Any]:
    """What a process without the classes of this module sees."""
    shown = subprocess.run(
        [sys.executable, "-I", "-c", SHOW, url], capture_output=True, text=True, cwd=folder, check=False
    )
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_a_process_without_the_classes_sees_all_values(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    opened = SqliteCheckpointStorage(path) if kind == "sqlite" else FileCheckpointStorage(path)
    async with opened as storage:
        await run_there(storage)
    shown = seen_elsewhere(f"{kind}:///{path}", tmp_path)
    assert shown["state"] == EXPECTED
    assert shown["one by one"] == EXPECTED
    assert shown["grown"] == shown["grown alone"] == GROWN
    assert shown["before"] == plain_value(BIG)
    report = plain_value(REPORT)
    assert shown["outputs"] == [report]
    assert shown["executors"]["Ask"]["seen"] == report
    ((request_id, data, form, title),) = shown["requests"]
    assert (request_id, data, form, title) == ("Ask.1.1", report, "Verdict | None", "Verdict | None")
    assert "Report" in shown["diff"]
    assert "late" in shown["diff"]


async def test_plain_values_do_not_need_the_classes_that_are_here() -> None:
    async with InMemoryCheckpointStorage() as storage:
        await run_there(storage)
        latest = await storage.get_latest()
        assert latest is not None
        plain = await storage.load(latest, plain=True)
        assert dict(plain.shared_state) == EXPECTED
        assert (await storage.load(latest)).shared_state["big"] == Report("small", [])
        assert await plain.read_state(StateKey("big", Report)) == EXPECTED["big"]
        assert await plain.read_state("missing", 3) == 3
        assert "Report" in repr(plain.shared_state)
        stranger = CheckpointStorage(storage.store)
        with pytest.raises(UnknownType):
            _ = (await stranger.load(latest.checkpoint_id)).shared_state["big"]
        assert dict((await stranger.load(latest.checkpoint_id, plain=True)).shared_state) == EXPECTED


async def test_messages_are_plain_too() -> None:
    async with InMemoryCheckpointStorage() as storage:
        await run_there(storage)
        first = (await storage.list_checkpoints())[0]
        (message,) = (await storage.load(first, plain=True)).messages
        assert message.data == plain_value(REPORT)
