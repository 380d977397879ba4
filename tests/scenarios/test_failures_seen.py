"""A run that failed keeps where it failed, for people who look later."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    executor,
    open_storage,
)
from tests.support.parts import traceback_text

LONGEST = 8_000


@pytest.fixture(params=["memory", "file", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStorage]:
    urls = {"memory": "memory:", "file": f"file:{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    async with open_storage(urls[request.param]) as storage:
        yield storage


def look_up(password: str) -> str:
    return {"a": "b"}[password[:3]]


broken = [True]


@executor(id="flaky")
async def flaky(text: str) -> str:
    try:
        return look_up(text) if broken[0] else text
    except KeyError as error:
        raise ConnectionError("nobody answers") from error


def flow() -> Workflow:
    return WorkflowBuilder(name="Flaky").set_start_executor(flaky).build()


@pytest.fixture(autouse=True)
def is_broken() -> Any:
    broken[0] = True


async def test_a_failed_run_keeps_its_traceback_until_it_goes_on(storage: CheckpointStorage) -> None:
    with pytest.raises(ExecutorFailed):
        await flow().run("abc secret", run_id="r", storage=storage)
    (run,) = await storage.list_runs(status="failed")
    lines = run.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert f'File "{__file__}", line ' in run.traceback
    names = [line.rpartition(", in ")[2] for line in lines if line.startswith("  File ")]
    assert names[:3] == ["flaky", "look_up", "flaky"]
    assert "KeyError: 'abc'" in lines
    assert "ConnectionError: nobody answers" in lines
    assert lines[-1].startswith("ExecutorFailed: executor 'flaky' failed in superstep 1 of run r: ")
    assert "secret" not in run.traceback
    assert "password" not in run.traceback  # a line of code
    assert "runtime/step" not in run.traceback
    assert run.to_dict()["traceback"] == run.traceback
    assert "Traceback" not in repr(run)
    broken[0] = False
    await (await flow().resume(run_id="r", storage=storage)).wait_for_completion()
    (run,) = await storage.list_runs()
    assert (run.status, run.reason, run.traceback) == (RunStatus.COMPLETED, "", "")


async def test_a_failed_run_that_is_cancelled_has_no_traceback() -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(ExecutorFailed):
        await flow().run("abc", run_id="r", storage=storage)
    run = await flow().resume(run_id="r", storage=storage)
    await run.cancel()
    (info,) = await storage.list_runs()
    assert (info.status, info.traceback) == (RunStatus.CANCELLED, "")


def raised(make: Any) -> BaseException:
    try:
        make()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def recurse(depth: int) -> None:
    if not depth:
        raise ValueError("deep")
    recurse(depth - 1)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_long_tracebacks_are_bounded() -> None:
    text = traceback_text(raised(lambda: recurse(500)))
    assert len(text) <= LONGEST
    assert text.endswith("ValueError: deep")
    assert " more ..." in text
    long = ValueError("x" * 100_000)
    for _ in range(50):
        long.add_note("y" * 5_000)
    assert len(traceback_text(long)) <= LONGEST
    group = ExceptionGroup("many", [ValueError("z" * 3_000) for _ in range(100)])
    assert len(traceback_text(group)) <= LONGEST


def test_odd_errors_have_a_traceback() -> None:
    assert traceback_text(ValueError()) == "ValueError"
    assert traceback_text(Unspeakable()) == "Unspeakable: (it has no text)"
    assert traceback_text(OSError("caf\udce9")) == "OSError: caf\udce9"
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert traceback_text(one).splitlines()[-1] == "ValueError: one"
    both = traceback_text(ExceptionGroup("both", [ValueError("left"), TypeError("right")]))
    assert "ValueError: left" in both
    assert "TypeError: right" in both
    noted = ValueError("with")
    noted.add_note("a note")
    assert traceback_text(noted) == "ValueError: with\na note"
    hidden = ValueError("shown")
    hidden.__context__, hidden.__suppress_context__ = TypeError("hidden"), True
    assert traceback_text(hidden) == "ValueError: shown"
    hidden.__suppress_context__ = False
    assert traceback_text(hidden) == "TypeError: hidden\n\nand then:\n\nValueError: shown"


async def test_text_that_no_disk_takes_as_it_is_comes_back(storage: CheckpointStorage) -> None:
    @executor(id="odd")
    async def odd(text: str) -> str:
        raise OSError("caf\udce9 \x00 ü")

    workflow = WorkflowBuilder(name="Odd").set_start_executor(odd).build()
    with pytest.raises(ExecutorFailed):
        await workflow.run("x", storage=storage)
    (run,) = await storage.list_runs()
    assert "OSError: caf\udce9 \x00 ü" in run.traceback.split("\n")
