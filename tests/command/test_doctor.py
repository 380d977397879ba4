"""``holdfast doctor``: each thing that can be wrong is made wrong, and told with what to do."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import WorkflowBuilder, WorkflowContext, executor, open_storage
from holdfast.cli import doctor
from tests.command.conftest import Command, Done
from tests.command.test_reference import FORMS
from tests.command.test_store import damage

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


def found(done: Done, check: str) -> list[tuple[str, str, str]]:
    """The findings of one check: level, text and advice."""
    return [
        (one["level"], one["text"], one["advice"]) for one in done.json["findings"] if one["check"] == check
    ]


def test_a_healthy_store_has_no_problems(shopping: Command, url: str) -> None:
    done = shopping("doctor", "tests.support.shop:build", "--json")
    assert done.code == 0
    assert done.json["ok"]
    wanted = json.loads((FORMS / "doctor.json").read_text(encoding="utf-8"))
    if url.startswith("file"):
        wanted["findings"] = [one for one in wanted["findings"] if one["check"] != "settings"]
    told = {"level": "LEVEL", "text": "TEXT", "advice": "ADVICE"}
    assert {**done.json, "findings": [{**one, **told} for one in done.json["findings"]]} == wanted
    assert not any(one["level"] == "problem" for one in done.json["findings"])
    assert "0 problems" in shopping("doctor", "--quick").out


def test_the_probe_is_removed(shopping: Command, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert shopping("doctor").code == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_without_a_store_only_the_machine_is_checked(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("doctor", "--json")
    assert done.code == 0
    assert found(done, "store")[0][0] == "note"
    assert command("--store", "sqlite:///nothing.db", "doctor").code == 5


def test_damage_is_told_with_the_way_to_repair(shopping: Command, url: str, tmp_path: Path) -> None:
    damage(url)
    done = shopping("doctor", "--json")
    assert done.code == 7
    ((level, _, advice),) = found(done, "store")
    assert level == "problem"
    assert "store repair --dry-run" in advice
    assert found(shopping("doctor", "--quick", "--json"), "store") == []


DYING = """
import asyncio, os, sys
from holdfast import WorkflowBuilder, executor, open_storage

@executor
async def die(text: str) -> str:
    os._exit(9)

async def main():
    async with open_storage(sys.argv[1]) as storage:
        builder = WorkflowBuilder(name="Mortal").set_start_executor(die)
        await builder.with_checkpointing(storage).build().run("x", run_id="dead")

asyncio.run(main())
"""


@executor
async def nap(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.sleep(0.2)
    await ctx.yield_output(text)


def test_runs_that_nobody_drives_are_told(
    shopping: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert subprocess.run([sys.executable, "-c", DYING, url], check=False).returncode == 9

    async def leave_asleep() -> None:
        async with open_storage(url) as storage:
            napping = WorkflowBuilder(name="Nap").set_start_executor(nap).with_checkpointing(storage).build()
            run = await napping.start("x", run_id="asleep")
            async for _ in run.watch_stream():
                if run.wake_at is not None:
                    break
            await run.close()
            await asyncio.sleep(0.3)

    asyncio.run(leave_asleep())
    monkeypatch.setattr(doctor, "_LATE", timedelta(0))
    done = shopping("doctor", "--quick", "--json")
    assert done.code == 0
    dead, late = found(done, "driven")
    assert dead[1] == "1 run (dead): their process died"
    assert "runs resume" in dead[2]
    assert late[1].startswith("1 run (asleep)")
    assert "Host" in late[2]


def test_runs_that_no_build_can_run_are_told(
    shopping: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_build.py").write_text(
        "from holdfast import WorkflowBuilder, executor\n"
        "@executor\ndef price(item: str) -> str:\n    return item\n"
        "workflow = WorkflowBuilder(name='Shop').set_start_executor(price).build()\n"
        "other = WorkflowBuilder(name='Other').set_start_executor(price).build()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = shopping("doctor", "other_build:workflow", "--quick", "--json")
    assert done.code == 8
    assert {level for level, *_ in found(done, "builds")} == {"problem"}
    both = shopping("doctor", "other_build:workflow", "tests.support.shop:build", "--quick", "--json")
    assert both.code == 0  # each run has a build that fits
    other = shopping("doctor", "other_build:other", "--quick", "--json")
    assert other.code == 0
    assert "no build of it was given" in found(other, "builds")[0][1]


def test_locks_that_keep_nobody_out_are_found(shopping: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RIVAL", "")  # a process that is let in
    done = shopping("doctor", "--quick", "--json")
    assert done.code == 1
    assert found(done, "locks")[0][:2] == ("problem", "flock does not keep other processes out")


def test_a_place_that_cannot_be_written_is_found(url: str) -> None:
    """The limit on the size of files stands for a full disk: no process may write a byte more."""
    done = subprocess.run(
        [HOLDFAST, "--store", url, "doctor", "--quick"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "problem" in done.stdout
    assert "cannot be written" in done.stdout
