"""Checkpoints that are listed with their values: the same as those that are loaded one by one, read in one pass."""

from typing import Any

import pytest

from holdfast import (
    Checkpoint,
    InMemoryCheckpointStorage,
    NotLoaded,
    RequestInfoExecutor,
    Retention,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.support.durable import Place
from tests.support.modules import loader
from tests.support.parts import fold_record
from tests.support.runs import soon


@executor
async def grow(left: int, ctx: WorkflowContext[int | str, str]) -> None:
    """Writes small and large values, lists that grow, and passes large messages."""
    await ctx.set_shared_state("left", left)
    await ctx.set_shared_state("big", f"{left} " * 5_000)
    await ctx.append_state("lines", f"line {left} " * 800)
    await ctx.append_state("lines", left, scope_name="Shared")
    await ctx.set_state({"left": left})
    if left:
        await ctx.send_message(left - 1)
    else:
        await ctx.yield_output("done " * 2_000)
        await ctx.send_message("done? " * 2_000)


def growing(retention: Retention | None = None) -> Workflow:
    ask = RequestInfoExecutor(id="ask", response_type=str)
    builder = WorkflowBuilder(name="Grow", max_iterations=10_000)
    builder.set_start_executor(grow).add_edge(grow, grow).add_edge(grow, ask)
    if retention is not None:
        builder.with_retention(retention)
    return builder.build()


def seen(checkpoint: Checkpoint) -> dict[str, Any]:
    """All values that a checkpoint shows."""
    return {
        "id": checkpoint.checkpoint_id,
        "shared": dict(checkpoint.shared_state),
        "scopes": {name: dict(scope) for name, scope in checkpoint.scopes.items()},
        "executors": {name: repr(state) for name, state in checkpoint.executor_states.items()},
        "messages": [(message.target_id, message.data) for message in checkpoint.messages],
        "requests": [(request.request_id, request.data) for request in checkpoint.pending_requests],
        "outputs": list(checkpoint.outputs),
    }


@pytest.mark.parametrize("retention", [None, Retention.keep_last(2)], ids=["all", "kept"])
async def test_listed_values_are_those_that_are_loaded(place: Place, retention: Retention | None) -> None:
    for run_id in ("one", "two"):
        await soon(growing(retention).run(4, run_id=run_id, storage=place.storage))
    storage = await place.reopened()
    for options in (
        {},
        {"run_id": "one"},
        {"run_id": "two", "limit": 3},
        {"workflow_id": "Grow", "limit": 5},
    ):
        listed = await storage.list_checkpoints(**options, values=True)
        plain = await storage.list_checkpoints(**options)
        assert [made.info for made in listed] == [made.info for made in plain]
        loaded = [await storage.load(made) for made in plain]
        assert [seen(made) for made in listed] == [seen(made) for made in loaded]
        assert [seen(made) for made in reversed(listed)] == [seen(made) for made in reversed(loaded)]
        assert await listed[-1].read_state("big") == loaded[-1].shared_state["big"]
    page = await storage.list_checkpoints(
        run_id="one", after=listed[0] if retention is None else None, values=True
    )
    assert [seen(made) for made in page] == [seen(await storage.load(made)) for made in page]


async def test_views_of_earlier_ones_stay_as_they_were(place: Place) -> None:
    await soon(growing().run(3, run_id="one", storage=place.storage))
    ends = [made for made in await place.storage.list_checkpoints(values=True) if made.phase == "end"]
    views = [made.shared_state for made in ends]
    assert [view["left"] for view in views] == [3, 2, 1, 0, 0][: len(views)]
    assert [len(made.executor_states) for made in ends] == [1] * len(ends)


async def test_without_values_nothing_is_read_that_is_not_asked_for() -> None:
    storage = InMemoryCheckpointStorage()
    await soon(growing().run(3, storage=storage))
    before = storage.counters.blobs_read
    (first, *_) = [made for made in await storage.list_checkpoints() if "big" in made.shared_state]
    with pytest.raises(NotLoaded, match="values=True"):
        first.shared_state["big"]
    assert storage.counters.blobs_read == before


async def test_each_record_and_blob_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = InMemoryCheckpointStorage()
    await soon(growing().run(120, storage=storage))
    folds, fold = 0, fold_record

    def counted(*given: Any) -> None:
        nonlocal folds
        folds += 1
        fold(*given)

    monkeypatch.setattr(loader, "fold_record", counted)
    storage.counters.blobs_read = 0
    made = await storage.list_checkpoints(values=True)
    blobs = storage.counters.blobs_read
    assert sum(len(checkpoint.shared_state.get("big", "")) for checkpoint in made) > 0
    assert folds <= len(made), "not the whole way to each of them"
    assert blobs <= (await storage.statistics()).total.blobs
