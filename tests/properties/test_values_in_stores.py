"""Values of every kind through every storage: as messages, in state and as outputs, also in another process."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from holdfast import (
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    open_storage,
)
from tests.properties.test_codec import VALUES, Colour, Key, Pair, Point, Rights, Trouble
from tests.unit.test_codec_exact import exact

Kinds = Colour | Rights | Point | Key | Pair | Trouble
SEEN: list[Any] = []


class Keep(Executor):
    """Puts what it gets into state, sends it to itself in a list, then gives it out."""

    @handler(input=object, output=list, workflow_output=Kinds | object)
    async def keep(self, value: Any, ctx: WorkflowContext[Any, Any]) -> None:
        if isinstance(value, list) and value[:1] == ["again"]:
            SEEN.append((value[1], await ctx.read_state("value", scope_name="S")))
            await ctx.yield_output(value[1])
        else:
            await ctx.queue_state_update("value", value, scope_name="S")
            await ctx.send_message(["again", value])


def workflow() -> Workflow:
    return WorkflowBuilder(name="Keep").set_start_executor(Keep).add_edge(Keep, Keep).build()


def place(kind: str, folder: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{folder}/runs.db", "file": f"file:///{folder}/runs"}[
        kind
    ]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_every_value_comes_back_exactly_from_every_storage(kind: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        storages = [InMemoryCheckpointStorage()] if kind == "memory" else []

        def opened() -> CheckpointStorage:
            return storages[0] if storages else open_storage(place(kind, tmp_path))

        @given(VALUES)
        @settings(
            max_examples=60 if kind == "memory" else 25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        def check(value: Any) -> None:
            runner.run(comes_back(value, opened, bool(storages)))

        check()


async def comes_back(value: Any, opened: Any, stays: bool) -> None:
    wanted = exact(value)
    SEEN.clear()
    storage = opened()
    run = await workflow().start(value, storage=storage)
    result = await run.wait_for_completion()
    assert exact(result.outputs) == exact([value])
    if not stays:
        await storage.close()
        storage = opened()
    again = workflow()
    middle = run.checkpoints[2]
    resumed = await again.resume(middle.checkpoint_id, storage=storage)
    await resumed.wait_for_completion()
    assert [exact(seen) for seen in SEEN] == [exact((value, value))] * 2
    loaded = await storage.load(run.checkpoints[-1].checkpoint_id)
    assert exact(loaded.scopes["S"]["value"]) == wanted
    assert exact(loaded.outputs[0]) == wanted
    assert (await storage.verify(run_id=run.run_id)).ok
    if not stays:
        await storage.close()


WRITER = """
import asyncio, sys
from holdfast import open_storage
from tests.properties import test_values_in_stores as here

async def main():
    storage = open_storage(sys.argv[1])
    run = await here.workflow().start(here.sample(), storage=storage, run_id="written")
    await run.wait_for_completion()
    await storage.close()

asyncio.run(main())
"""

READER = """
import asyncio, sys
from holdfast import open_storage
from tests.properties import test_values_in_stores as here
from tests.unit.test_codec_exact import exact

async def main():
    storage = open_storage(sys.argv[1])
    workflow = here.workflow()
    first, *_ = await storage.list_checkpoints(run_id="written")
    result = await workflow.run_from_checkpoint(first.checkpoint_id, storage)
    assert exact(result.outputs) == exact([here.sample()])
    await storage.close()

asyncio.run(main())
"""


def sample() -> Any:
    """Values whose order or identity could depend on the process."""
    return {
        "set": {"one", "two", "three", "four", "five"},
        "frozen": frozenset({("a", 1), ("b", 2), ("c", 3)}),
        "records": [Point({"x"}, Colour.RED), Key("k"), Pair(Rights.READ | Rights.RUN, -0.0)],
        "error": Trouble("deep", 7),
        1: True,
        (1, "a"): float("nan"),
    }


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_processes_with_other_hash_seeds_read_each_other(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    for seed, program in (("1", WRITER), ("2", READER)):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, url],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
