"""An agent of pydantic-ai with a model that answers at once: called directly, or in a workflow of Holdfast."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydantic_ai
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Run
from holdfast import CheckpointStorage, InMemoryCheckpointStorage, SqliteCheckpointStorage, WorkflowBuilder
from holdfast.agents import AgentExecutor
from holdfast.agents.pydantic_ai import wrap

DIRECT = "direct"
HOW = {
    DIRECT: "`await agent.run(...)` of pydantic-ai, `FunctionModel`; nothing is recorded",
    "memory": "`AgentExecutor` with `InMemoryCheckpointStorage()`; the same agent",
    "sqlite": '`AgentExecutor` with `SqliteCheckpointStorage("x.db")` (WAL, synchronous=FULL); the same agent, each '
    "call durable before the next",
}


def agent_of(rounds: int) -> pydantic_ai.Agent[None, str]:
    """Return an agent that calls a tool in each of so many rounds, and then says that it is done."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        number = sum(isinstance(message, ModelResponse) for message in messages)
        if number == rounds:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("look", {"place": number}, f"call-{number}")])

    async def look(place: int) -> str:
        return f"nothing at {place}"

    return pydantic_ai.Agent(FunctionModel(answer), name="seeker", tools=[look])


@asynccontextmanager
async def called_directly(job: Job) -> AsyncIterator[Run]:
    """The library alone."""
    agent = agent_of(job.params["rounds"])

    async def run() -> Outcome:
        return Outcome((await agent.run("seek")).output, 1)

    yield run


def in_workflow(kind: str) -> Prepare:
    """The same agent in a workflow."""

    def storage_at(folder: Path) -> CheckpointStorage:
        folder.mkdir(parents=True, exist_ok=True)
        return (
            InMemoryCheckpointStorage() if kind == "memory" else SqliteCheckpointStorage(folder / "runs.db")
        )

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        executor = AgentExecutor(wrap(agent_of(job.params["rounds"])), output_type=str)
        async with storage_at(job.folder) as storage:
            builder = WorkflowBuilder(name="Seek").set_start_executor(executor)
            workflow = builder.with_checkpointing(storage).build()
            assert workflow.fingerprint  # made once, and otherwise by the first run

            async def run() -> Outcome:
                (said,) = (await workflow.run("seek")).outputs
                return Outcome(said, 1)

            yield run

    return prepare


def contestant(variant: str) -> Contestant:
    """One of the three."""
    prepare: Any = called_directly if variant == DIRECT else in_workflow(variant)
    lost = "nothing whose outcome was used" if variant == "sqlite" else "all"
    packages = ("pydantic-ai-slim",) if variant == DIRECT else ("holdfast", "pydantic-ai-slim")
    missing = {"*": "it is for agents only"}
    return Contestant(packages, {"W11": Entry(prepare, HOW[variant])}, lost, lost, missing)
