"""A run that nobody holds any more is gone at once, with all that it held: no garbage collector is waited for."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    Run,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from tests.support.durable import Place
from tests.support.inside import recorder_of, runner_of
from tests.support.modules import runner
from tests.support.parts import Claim
from tests.support.runs import soon

Durability = Literal["sync", "async", "exit"]
DURABILITIES: list[Durability] = ["sync", "async", "exit"]


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Work(Executor):
    """Keeps something, calls something once, and then does what it is told."""

    @handler
    async def work(self, told: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.queue_state_update("large", "x" * 10_000)
        if told == "twice":
            await ctx.once("effect", lambda: 1)
            await ctx.send_message("end")
        elif told == "fail":
            raise ValueError("told to")
        elif told == "hang":
            await asyncio.Event().wait()
        elif told == "ask":
            await ctx.request_info("and now?", str)
        elif told == "sleep":
            await ctx.sleep(3600)
        await ctx.yield_output(told)

    @response_handler
    async def answered(self, question: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(answer)


def working(durability: Durability = "sync") -> Workflow:
    work = Work.bind(id="work")
    builder = WorkflowBuilder(name="Work").set_start_executor(work).add_edge(work, work)
    return builder.with_durability(durability).build()


async def ends(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("twice", storage=place.storage)
    await soon(run.wait_for_completion())
    return run


async def fails(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("fail", storage=place.storage)
    try:
        await soon(run.wait_for_completion())
    except ExecutorFailed as error:
        _without_frames(error)
    return run


def _without_frames(error: BaseException | None) -> None:
    """The frames of an error hold what was used in them, that of this test too."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__


async def is_cancelled(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("hang", storage=place.storage)
    await asyncio.sleep(0)
    await soon(run.cancel())
    return run


async def waits(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("ask", storage=place.storage)
    await soon(run.wait_for_completion())
    return run


async def waits_and_goes_on(place: Place, durability: Durability) -> Run:
    run = await waits(place, durability)
    (request,) = run.pending_requests
    await run.send_response(request.request_id, "on")
    await soon(run.wait_for_completion())
    return run


async def sleeps(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("sleep", storage=place.storage)
    await soon(run.close())
    return run


async def is_resumed(place: Place, durability: Durability) -> Run:
    run_id = (await sleeps(place, durability)).run_id
    run = await working(durability).resume(run_id=run_id, storage=place.storage)
    await soon(run.close())
    return run


async def goes_back(place: Place, durability: Durability) -> Run:
    run = await ends(place, durability)
    await run.restore_checkpoint(run.checkpoints[0])
    await soon(run.wait_for_completion())
    return run


async def is_streamed(place: Place, durability: Durability) -> Run:
    run = await working(durability).start("twice", storage=place.storage)
    async for _ in run.watch_stream():
        pass
    return run


async def is_nested(place: Place, durability: Durability) -> Run:
    inner = WorkflowExecutor(working(), id="inner")
    outer = WorkflowBuilder(name="Outer").set_start_executor(inner).with_durability(durability).build()
    run = await outer.start("twice", storage=place.storage)
    await soon(run.wait_for_completion())
    return run


WAYS: dict[str, Callable[[Place, Durability], Awaitable[Run]]] = {
    way.__name__.replace("_", " "): way
    for way in (
        ends,
        fails,
        is_cancelled,
        waits,
        waits_and_goes_on,
        sleeps,
        is_resumed,
        goes_back,
        is_streamed,
        is_nested,
    )
}


async def gone(
    way: Callable[[Place, Durability], Awaitable[Run]],
    place: Place,
    durability: Durability,
    looks: int = 20_000,
) -> bool:
    """Whether a run of this kind, and what drove it, is gone once it is let go."""
    run = await way(place, durability)
    parts: list[weakref.ref[Any]] = [weakref.ref(run), weakref.ref(runner_of(run))]
    recorder = recorder_of(run)
    parts += [weakref.ref(recorder), weakref.ref(recorder.journal)]
    del run, recorder
    for _ in range(looks):  # a task that is over, or a thread that just wrote, may hold it for a moment
        if all(part() is None for part in parts):
            return True
        await asyncio.sleep(0.001)
    return False


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_of_a_run_stays(way: str, durability: Durability, place: Place) -> None:
    assert await gone(WAYS[way], place, durability)


async def test_a_run_that_nobody_holds_goes_on_and_can_be_found(place: Place) -> None:
    started = await working().start("hang", run_id="r", storage=place.storage)
    number = id(started)
    del started
    gc.collect()
    found = await working().start("hang", run_id="r", storage=place.storage, if_exists="attach")
    assert id(found) == number
    await soon(found.cancel())


# -- these tests would notice ----------------------------------------------------------------------


def _claims_keep(patch: pytest.MonkeyPatch) -> None:
    def release(self: Claim) -> None:
        self.held = False

    patch.setattr(Claim, "release", release)


def _runners_are_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runner, "weak_callback", lambda method: method)


@pytest.mark.parametrize("bug", [_claims_keep, _runners_are_held])
async def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        assert not await gone(ends, Place("memory", tmp_path), "sync", looks=100)
    gc.collect()
