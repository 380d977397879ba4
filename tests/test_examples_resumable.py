"""Every numbered example that builds a workflow comes to the same end wherever it is stopped.

An example shows its workflow as ``make_workflow`` and what it is given as ``INPUT``, or ``INPUTS`` if it is run
several times; one that asks may have an ``answer``. What cannot be told from the example stands in tables here.
"""

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from holdfast import (
    ExecutorFailed,
    InMemoryCheckpointStorage,
    PendingRequest,
    RunStatus,
    SuperstepLimit,
    SuperStepStartedEvent,
    Workflow,
)
from holdfast.testing import VirtualTime, assert_resumable
from tests.support.runs import soon
from tests.test_examples import examples

# -- what cannot be told from an example -----------------------------------------------------------

GIVEN: dict[str, tuple[Any, ...]] = {
    "07_visualisation.py": ("checkout",),  # it only draws the workflow
    "12_retry_and_timeout.py": ("flaky",),  # its other inputs fail, see below
}


def _approves_the_third(request: PendingRequest) -> str:
    return (
        "approved"
        if "until when" in request.data
        else f"say {'until when' if 'why' in request.data else 'why'}"
    )


ANSWERS: dict[str, Callable[[PendingRequest], Any]] = {
    "09_request_and_response.py": lambda request: {"approved": True},
    "10_approval_loop.py": _approves_the_third,
    "11_nesting.py": lambda request: f"{request.executor_id} says fine",
    "20_time.py": lambda request: True,
    "21_fastapi_host.py": lambda request: {"approved": True},
}

ELSEWHERE = {
    "13_cancel.py": "it never ends by itself; test_a_run_that_was_cancelled_goes_on goes on with it",
}


class Fails(NamedTuple):
    """A run of an example that fails on purpose: its input, with what it fails, and how its workflow is made."""

    example: str
    message: str
    error: type[Exception] = ExecutorFailed
    options: dict[str, Any] = {}  # noqa: RUF012

    def make(self) -> Workflow:
        workflow: Workflow = named(self.example).make_workflow(**self.options)
        return workflow


FAILURES = {
    "superstep limit": Fails("04_loop.py", "Checkout", SuperstepLimit, {"max_iterations": 2}),
    "wrong type": Fails("06_typed_state_keys.py", '{"priority": "urgent", "service": "checkout"}'),
    "timeout": Fails("12_retry_and_timeout.py", "slow"),
    "error": Fails("12_retry_and_timeout.py", "wrong"),
}


# -- the examples ----------------------------------------------------------------------------------


def module_of(example: Path) -> ModuleType:
    """An example as a module: what it does when it is run is not done."""
    name = f"examples.{example.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, example)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def named(name: str) -> ModuleType:
    return module_of(next(example for example in examples() if example.name == name))


def inputs_of(example: Path) -> Iterator[Any]:
    """What an example is run with."""
    module = module_of(example)
    if example.name in GIVEN:
        yield from GIVEN[example.name]
    elif hasattr(module, "INPUTS"):
        yield from module.INPUTS
    else:
        yield module.INPUT


def builds(example: Path) -> bool:
    """Whether an example builds a workflow."""
    return "WorkflowBuilder" in example.read_text(encoding="utf-8")


def complaint(example: Path) -> str | None:
    """Why an example is not covered here; None if it is."""
    if example.name in ELSEWHERE or not builds(example):
        return None
    module = module_of(example)
    if not callable(getattr(module, "make_workflow", None)):
        return "it builds a workflow, but not in a function make_workflow"
    if example.name not in GIVEN and not hasattr(module, "INPUT") and not hasattr(module, "INPUTS"):
        return "it has neither INPUT nor INPUTS, and there is no input for it in GIVEN"
    return None


def covered() -> list[Path]:
    return [example for example in examples() if builds(example) and example.name not in ELSEWHERE]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_no_example_is_left_out(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(example) is None
    assert capsys.readouterr().out == "", "an example does what it does only when it is run"


def test_an_example_that_cannot_be_covered_is_noticed(tmp_path: Path) -> None:
    workflow = "from holdfast import WorkflowBuilder\n"
    sources = {
        "a": "print\n",
        "b": workflow,
        "c": f"{workflow}def make_workflow(): ...\n",
        "d": f"{workflow}INPUT = 1\ndef make_workflow(): ...\n",
    }
    found = {}
    for name, source in sources.items():
        example = tmp_path / f"noticed_{name}.py"
        example.write_text(source, encoding="utf-8")
        found[name] = complaint(example) is not None
    assert found == {"a": False, "b": True, "c": True, "d": False}


def test_the_tables_name_examples_that_are_there() -> None:
    listed = {*GIVEN, *ANSWERS, *ELSEWHERE, *(failing.example for failing in FAILURES.values())}
    assert listed <= {example.name for example in examples()}


# -- resumed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", covered(), ids=lambda example: example.name)
async def test_example_is_resumable(example: Path) -> None:
    module = module_of(example)
    answer = ANSWERS.get(example.name) or getattr(module, "answer", None)
    for message in inputs_of(example):
        with VirtualTime() as time:
            result = await soon(time.pass_until(module.make_workflow().run(message)))
        if result.pending_requests:
            assert answer is not None, f"{example.name} asks; give an answer in it, or in ANSWERS"
        assert await assert_resumable(module.make_workflow, message, answer) > 2


@pytest.mark.parametrize("failing", FAILURES.values(), ids=FAILURES.keys())
async def test_an_example_that_fails_says_so_when_it_is_resumed(failing: Fails) -> None:
    """It fails with the same error in the same superstep, and the store knows of it."""
    with pytest.raises(failing.error):
        await assert_resumable(failing.make, failing.message)
    async with InMemoryCheckpointStorage() as storage:
        run = await failing.make().start(failing.message, storage=storage)
        with pytest.raises(failing.error) as first:
            await soon(run.wait_for_completion())
        (stored,) = await storage.list_runs(status="failed")
        assert stored.reason
        again = await failing.make().resume(run_id=run.run_id, storage=storage)
        if (
            failing.error is SuperstepLimit
        ):  # counted since the resume: so it can be let go on, some at a time
            while again.status is not RunStatus.COMPLETED:
                try:
                    await soon(again.wait_for_completion())
                except SuperstepLimit:
                    again = await failing.make().resume(run_id=run.run_id, storage=storage)
            return
        with pytest.raises(failing.error) as second:
            await soon(again.wait_for_completion())
        assert str(second.value) == str(first.value)
        assert repr(second.value.__cause__) == repr(first.value.__cause__)


async def test_a_run_that_was_cancelled_goes_on() -> None:
    module = named("13_cancel.py")

    async def cancelled(run: Any, superstep: int) -> list[Any]:
        async for event in run.watch_stream():
            if isinstance(event, SuperStepStartedEvent) and event.superstep == superstep:
                await asyncio.sleep(0)
                await run.cancel()
        return (await soon(run.wait_for_completion())).outputs

    async with InMemoryCheckpointStorage() as storage:
        run = await module.make_workflow().start(module.INPUT, storage=storage)
        assert await soon(cancelled(run, 3)) == [1, 2]
        assert [stored.status for stored in await storage.list_runs()] == [RunStatus.CANCELLED]
        for checkpoint in await storage.list_checkpoints(run_id=run.run_id):
            again = await module.make_workflow().resume(checkpoint.checkpoint_id, storage=storage)
            assert await soon(cancelled(again, 3)) == [1, 2]
        assert (await storage.verify()).ok
