"""Tool calls that no tool can take, in all libraries: each is shown with its reason, and the model is told."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from holdfast import InMemoryCheckpointStorage
from holdfast.agents import AgentCallEvent
from holdfast.agents.calls import RecordedCalls
from tests.agents.agents import workflow_of
from tests.agents.world import INPUT, Step, WantedTool, World

GOOD = WantedTool("c1", "charge", {"amount": 5})
WRONG = {
    "unknown": (WantedTool("c9", "nowhere", {"amount": 1}), "nowhere"),
    "no-json": (WantedTool("c9", "charge", '{"amount": '), "JSON|amount"),
    "not-fitting": (WantedTool("c9", "charge", {"amount": "many"}), "amount"),
}
LIBRARIES = ["agent_framework", "langchain", "openai", "openai_agents", "pydantic_ai"]
# openai-agents makes a result of arguments that do not fit: its tool is called, and gives what the model is told.
CASES = [
    (one, wrong) for one in LIBRARIES for wrong in WRONG if (one, wrong) != ("openai_agents", "not-fitting")
]


class MistakenWorld(World):
    """The model wants a good call and a wrong one, and then says that it is done."""

    def __init__(self, folder: Path, wrong: WantedTool) -> None:
        super().__init__(folder)
        self._wrong = wrong

    def ask(self, answered: int) -> Step:
        self.happen(f"model {answered + 1}")
        return Step(text="done") if answered else Step((GOOD, self._wrong))


async def check(library: str, wrong: str, folder: Path) -> None:
    call, why = WRONG[wrong]
    world = MistakenWorld(folder, call)
    agent = import_module(f"tests.agents.libraries.{library}").make_agent(world)
    run = await workflow_of(agent, InMemoryCheckpointStorage()).start(INPUT)
    shown = [event async for event in run.watch_stream() if isinstance(event, AgentCallEvent)]
    assert (await run.wait_for_completion()).outputs == ["done"]
    refused = [event for event in shown if event.error is not None]
    assert refused
    assert {(event.call, event.name) for event in refused} == {("tool 1.c9", call.name)}
    assert all(re.search(why, event.error or "") for event in refused)
    assert world.lines() == ["model 1", "begin charge 5", "end charge 5", "model 2"]


@pytest.mark.parametrize(("library", "wrong"), CASES)
async def test_a_call_that_no_tool_can_take_is_shown_and_told(
    library: str, wrong: str, tmp_path: Path
) -> None:
    await check(library, wrong, tmp_path)


@pytest.mark.parametrize(("library", "wrong"), [("openai", "unknown"), ("pydantic_ai", "not-fitting")])
async def test_a_refusal_that_is_not_shown_is_caught(
    library: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: nobody is told."""

    async def refuse(calls: RecordedCalls, call_id: str, name: str, why: str) -> None:
        pass

    monkeypatch.setattr(RecordedCalls, "refuse", refuse)
    with pytest.raises(AssertionError):
        await check(library, wrong, tmp_path)
