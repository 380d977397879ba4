"""Tags given to checkpoints of a run, by others than those who drive it: nothing of the run is ever lost by one."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from holdfast import (
    Checkpoint,
    CheckpointStorage,
    InMemoryCheckpointStorage,
    Run,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.support.durable import KINDS, storage_at
from tests.support.retained import assert_sound
from tests.support.runs import soon

STEPS = 30


class Tagged:
    """A run that makes a superstep when it is told to, the storages that drive it, and the tags that it was given."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._in_memory = InMemoryCheckpointStorage()
        self._opened: list[CheckpointStorage] = []
        self._steps = asyncio.Queue[None]()
        self._began = asyncio.Event()
        self._run: Run | None = None
        self._run_id = "r"
        self._tags: dict[str, tuple[str, ...]] = {}
        """Those of each checkpoint that has any."""

    def another(self) -> CheckpointStorage:
        """A storage that knows nothing yet, as another process has it."""
        if self._kind == "memory":
            return CheckpointStorage(self._in_memory.store)
        self._opened.append(storage_at(self._kind, self._folder))
        return self._opened[-1]

    def build(self) -> Workflow:
        @executor(id="count")
        async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
            self._began.set()
            await self._steps.get()
            await (ctx.send_message(number + 1) if number < STEPS else ctx.yield_output(number))

        return WorkflowBuilder(name="C").set_start_executor(count).add_edge(count, count).build()

    async def begin(self) -> None:
        """Start the run."""
        self._run = await self.build().start(1, run_id="r", storage=self.another())
        await soon(self._began.wait())

    async def step(self) -> None:
        """Let the run make a superstep, and begin the next."""
        self._began.clear()
        self._steps.put_nowait(None)
        await soon(self._began.wait())

    async def tag(self, index: int = 2) -> None:
        """Give a checkpoint one more tag from a storage that does not drive the run."""
        checkpoint = await self._listed(index)
        known = self._tags.get(checkpoint.checkpoint_id, ())
        await self.another().tag(checkpoint, f"tag {len(known)}")
        self._tags[checkpoint.checkpoint_id] = (*known, f"tag {len(known)}")

    async def take_over(self) -> None:
        """Let another storage go on with the run."""
        await self._go_on(self.build().resume(run_id=self._run_id, storage=self.another(), take_over=True))

    async def restore(self, index: int = 1) -> None:
        """Let another storage go back to an earlier checkpoint."""
        await self.close_run()
        await self._go_on(self.build().resume(await self._listed(index), storage=self.another()))

    async def fork(self, index: int = 1) -> None:
        """Go on in a fork of an earlier checkpoint."""
        await self.close_run()
        await self._go_on(self.build().fork(await self._listed(index), storage=self.another()))

    async def _go_on(self, resuming: Awaitable[Run]) -> None:
        before, self._run = self._run, None
        self._began.clear()
        self._run = await resuming
        self._run_id = self._run.run_id
        await soon(self._began.wait())
        if before is not None:
            await before.close()

    async def _listed(self, index: int) -> Checkpoint:
        made = await self.another().list_checkpoints(run_id=self._run_id)
        return made[index % len(made)]

    async def look(self) -> None:
        """See that one who comes anew can list the checkpoints, and finds all tags and where the run stands."""
        storage = self.another()
        made = await storage.list_checkpoints()
        assert {one.checkpoint_id: one.tags for one in made if one.tags} == self._tags
        latest = await storage.get_latest(run_id=self._run_id)
        assert latest is not None
        await storage.load(latest)

    async def look_closely(self) -> None:
        """See that nothing is missing of any run, and that there is nothing to be repaired."""
        await assert_sound(storage := self.another())
        assert (await storage.repair(dry_run=True)).repairs == []

    async def close_run(self) -> None:
        """Leave the run where it stands."""
        run, self._run = self._run, None
        if run is not None:
            await run.close()

    async def close(self) -> None:
        await self.close_run()
        for storage in self._opened:
            await storage.close()


@pytest.fixture(params=KINDS)
async def tagged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tagged]:
    tagged = Tagged(request.param, tmp_path)
    yield tagged
    await tagged.close()


@pytest.mark.parametrize(
    "doing",
    [
        "step tag step step step",
        "step tag step take_over step step",
        "step step tag restore step step step",
        "step tag take_over step tag step take_over step step",
        "step tag fork step tag take_over step restore step step",
        "step step tag restore take_over step take_over step",
    ],
)
async def test_a_tag_takes_nothing_from_a_run(tagged: Tagged, doing: str) -> None:
    await tagged.begin()
    for name in doing.split():
        await getattr(tagged, name)()
        await tagged.look()
    await tagged.look_closely()


async def test_tags_between_whatever_is_done_to_a_run(tagged: Tagged) -> None:
    chance = random.Random()
    seed = chance.randrange(1 << 32)
    print("seed", seed)
    chance.seed(seed)
    await tagged.begin()
    for name in chance.choices(["step", "tag", "take_over", "restore", "fork"], [6, 4, 2, 1, 1], k=25):
        print(name)
        index = () if name in ("step", "take_over") else (chance.randrange(1000),)
        await getattr(tagged, name)(*index)
        await tagged.look()
    await tagged.look_closely()
