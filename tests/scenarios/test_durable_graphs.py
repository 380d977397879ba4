"""Going on with a workflow that was built anew: the same graph, another one, another name."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    GraphChanged,
    GraphError,
    InMemoryCheckpointStorage,
    RunStatus,
    SqliteCheckpointStorage,
    UnnamedWorkflow,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from tests.support.durable import Place, everything, outputs_of
from tests.support.runs import soon

broken: list[bool] = []


@pytest.fixture(autouse=True)
def nothing_broken() -> Any:
    yield
    broken.clear()


@executor(id="first")
async def first(text: str, ctx: WorkflowContext[str]) -> str:
    await ctx.set_shared_state("first", text)
    return text + "1"


@executor(id="second")
async def second(text: str) -> str:
    if broken:
        raise RuntimeError("broken")
    return text + "2"


@executor(id="third")
async def third(text: str, ctx: WorkflowContext[None, str]) -> str:
    return text + "3 " + await ctx.get_shared_state("first")


def chain(*placed: Any, name: str | None = "Chain", **options: Any) -> Workflow:
    return WorkflowBuilder(name=name, **options).set_start_executor(placed[0]).add_chain(list(placed)).build()


async def stop_at_second(storage: CheckpointStorage, workflow: Workflow | None = None) -> None:
    broken.append(True)
    with pytest.raises(ExecutorFailed):
        await soon((workflow or chain(first, second, third)).run("x", run_id="mine", storage=storage))
    broken.clear()


async def test_another_graph_is_refused_readably_and_changes_nothing(place: Place) -> None:
    await stop_at_second(place.storage)
    before = await everything(place.storage, "mine")
    other = chain(first, second)
    with pytest.raises(GraphChanged) as caught:
        await other.resume(run_id="mine", storage=place.storage)
    said = str(caught.value)
    assert "'Chain'" in said
    assert other.fingerprint[:8] in said
    assert chain(first, second, third).fingerprint[:8] in said
    assert "allow_graph_change=True" in said
    assert await everything(place.storage, "mine") == before


async def test_allowed_change_goes_on_with_an_added_executor(place: Place) -> None:
    @executor(id="between")
    async def between(text: str) -> str:
        return text + "(between)"

    await stop_at_second(place.storage)
    storage = await place.reopened()
    changed = chain(first, second, between, third)
    run = await changed.resume(run_id="mine", storage=storage, allow_graph_change=True)
    assert (await soon(run.wait_for_completion())).outputs == ["x12(between)3 x"]
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    assert latest.fingerprint == changed.fingerprint
    # From now on it is a run of the new graph.
    assert (
        await soon((await changed.resume(run_id="mine", storage=storage)).wait_for_completion())
    ).outputs == ["x12(between)3 x"]
    with pytest.raises(GraphChanged):
        await chain(first, second, third).resume(run_id="mine", storage=storage)


async def test_allowed_change_without_a_home_for_kept_fields_is_refused(storage: CheckpointStorage) -> None:
    class Keeping(Executor):
        checkpointed = ("seen",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.seen = 0

        @handler
        async def work(self, text: str, ctx: WorkflowContext[str]) -> str:
            self.seen += 1
            return text

    await stop_at_second(storage, chain(Keeping, second))
    with pytest.raises(GraphChanged, match="Keeping"):
        await chain(first, second).resume(run_id="mine", storage=storage, allow_graph_change=True)


async def test_limits_and_names_of_functions_are_not_part_of_the_graph(storage: CheckpointStorage) -> None:
    async def renamed(text: str) -> str:
        return text + "(renamed)"

    await stop_at_second(storage)
    changed = chain(first, executor(id="second")(renamed), third, max_iterations=7)
    assert await outputs_of(changed.resume(run_id="mine", storage=storage)) == ["x1(renamed)3 x"]


async def test_run_of_another_workflow_is_refused(storage: CheckpointStorage) -> None:
    await stop_at_second(storage)
    before = await everything(storage, "mine")
    other = chain(first, second, third, name="Other")
    for allowed in (False, True):
        with pytest.raises(GraphError, match="belongs to workflow 'Chain', not to 'Other'"):
            await other.resume(run_id="mine", storage=storage, allow_graph_change=allowed)
    assert await everything(storage, "mine") == before


async def test_unnamed_workflow_is_found_again_after_a_rebuild(place: Place) -> None:
    await stop_at_second(place.storage, chain(first, second, third, name=None))
    rebuilt = chain(first, second, third, name=None)
    assert rebuilt.name.startswith("first")
    storage = await place.reopened()
    latest = await storage.get_latest(rebuilt.name)
    assert latest is not None
    assert latest.run_id == "mine"
    assert len(await storage.list_checkpoints(workflow_name=rebuilt.name)) == 3
    result = await soon(rebuilt.run_from_checkpoint(latest, storage))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["x123 x"])


async def test_unnamed_workflow_with_a_storage_on_disk_says_that_its_name_changes(tmp_path: Path) -> None:
    unnamed, named = chain(first, second, name=None), chain(first, second)
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        stream = unnamed.run_stream("x", storage=storage)
        events = [event async for event in stream]
        assert [type(event).__name__ for event in events[:3]] == [
            "WorkflowStartedEvent",
            "WorkflowStatusEvent",
            "WorkflowWarningEvent",
        ]
        (warning,) = (await unnamed.run("x", storage=storage)).warnings
        assert isinstance(warning, UnnamedWorkflow)
        assert repr(unnamed.name) in str(warning)
        assert "WorkflowBuilder(name='...')" in str(warning)
        assert (await named.run("x", storage=storage)).warnings == []
        # A run that goes on was told of before.
        run = await unnamed.resume(run_id=str(stream.run.run_id), storage=storage)
        assert run.warnings == []
    assert (await unnamed.run("x")).warnings == []
    assert (await unnamed.run("x", storage=InMemoryCheckpointStorage())).warnings == []
