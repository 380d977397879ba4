"""A module that is run as a program and one that is imported read each other's checkpoints."""

import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import asyncio
import sys
from dataclasses import dataclass

from holdfast import Executor, SqliteCheckpointStorage, WorkflowBuilder, WorkflowContext, handler, response_handler


@dataclass
class Report:
    text: str
    tags: list[str]


@dataclass
class Verdict:
    report: Report
    good: bool


class Ask(Executor):
    @handler
    async def ask(self, report: Report, ctx: WorkflowContext) -> None:
        await ctx.set_shared_state("asked", report)
        await ctx.request_info(report, response_type=bool)

    @response_handler
    async def answered(self, report: Report, good: bool, ctx: WorkflowContext[None, Verdict]) -> None:
        assert await ctx.get_shared_state("asked") == report
        await ctx.yield_output(Verdict(report, good))


def build(storage):
    return WorkflowBuilder(name="App").set_start_executor(Ask).with_checkpointing(storage).build()


async def begin():
    async with SqliteCheckpointStorage("app.db") as storage:
        result = await build(storage).run(Report("smoke", ["eu"]), run_id="r")
        print(result.status)


async def go_on():
    async with SqliteCheckpointStorage("app.db") as storage:
        run = await build(storage).resume(run_id="r", responses={"Ask.1.1": True})
        result = await run.wait_for_completion()
        print(result.outputs == [Verdict(Report("smoke", ["eu"]), True)])


if __name__ == "__main__":
    asyncio.run(begin() if sys.argv[1] == "begin" else go_on())
"""

AS_PROGRAM = {"begin": ["app.py", "begin"], "go_on": ["app.py", "go_on"]}
IMPORTED = {
    "begin": ["-c", "import app, asyncio; asyncio.run(app.begin())"],
    "go_on": ["-c", "import app, asyncio; asyncio.run(app.go_on())"],
}


@pytest.mark.parametrize(
    ("first", "second"),
    [(AS_PROGRAM, IMPORTED), (IMPORTED, AS_PROGRAM)],
    ids=["program first", "import first"],
)
def test_each_reads_what_the_other_wrote(
    first: dict[str, list[str]], second: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    assert run(first["begin"], tmp_path) == "waiting\n"
    assert run(second["go_on"], tmp_path) == "True\n"


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
