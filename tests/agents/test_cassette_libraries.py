"""A recorded run of each library is replayed without a model and a tool, and fails where it asks something else."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast import ExecutorFailed, InMemoryCheckpointStorage
from holdfast.agents import AgentReply, Cassette, ReplayDiffers
from tests.agents.agents import workflow_of
from tests.agents.world import INPUT, World

LIBRARIES = ["agent_framework", "direct", "langchain", "openai", "openai_agents", "pydantic_ai"]


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_library_is_replayed(library: str, tmp_path: Path) -> None:
    adapter: Any = import_module(f"tests.agents.libraries.{library}")
    storage, path = InMemoryCheckpointStorage(), tmp_path / "cassette.json"
    agent = adapter.make_agent(World(tmp_path))
    recorded = await workflow_of(agent, storage, AgentReply, record=True).run(INPUT, run_id="r")
    (await Cassette.from_run(storage, "r")).save(path)
    cassette = Cassette.load(path)
    names = sorted(call.name for call in cassette.calls)
    assert names == ["model 1", "model 2", "model 3", "tool 1.c1", "tool 1.c2", "tool 2.c1", "tool 2.c3"]

    silent = World(
        tmp_path / "nowhere"
    )  # it fails if anything is asked of it, because there is no such folder
    workflow = workflow_of(adapter.make_agent(silent), output_type=AgentReply)
    with cassette.replay():
        replayed = await workflow.run(INPUT)
    (one,), (other,) = recorded.outputs, replayed.outputs
    assert (one.text, one.usage) == (other.text, other.usage)
    assert adapter.comparable(one.history.messages) == adapter.comparable(other.history.messages)

    with pytest.raises(ExecutorFailed) as failed, cassette.replay():
        await workflow.run("pay nobody")
    assert isinstance(failed.value.__cause__, ReplayDiffers)
    assert "'pay nobody', recorded was 'pay and tell'" in str(failed.value.__cause__)
