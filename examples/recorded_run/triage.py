"""A triage by a model with a tool; ``python triage.py`` records a run of it for ``test_triage.py``.

The model is the one behind ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.
"""

import asyncio
import sys
from pathlib import Path

from openai import AsyncOpenAI

from holdfast import InMemoryCheckpointStorage, Workflow, WorkflowBuilder
from holdfast.agents import AgentExecutor, AgentSettings, Cassette, openai

CASSETTE = Path(__file__).with_name("triage.cassette.json")
INSTRUCTIONS = "Say how urgent it is: P0 or P3, and why."


def search_log(text: str) -> int:
    """Count the lines of the log that have a text."""
    return Path("/var/log/shop.log").read_text().count(text)


def build_workflow(client: AsyncOpenAI, record: bool = False) -> Workflow:
    agent = openai.wrap(
        client, model="gpt-5-mini", name="triage", instructions=INSTRUCTIONS, tools=[search_log]
    )
    triage = AgentExecutor(agent, output_type=str, settings=AgentSettings(record=record))
    return WorkflowBuilder(name="Triage").set_start_executor(triage).build()


async def record_run(client: AsyncOpenAI) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = build_workflow(client, record=True)
    result = await workflow.run("checkout fails", storage=storage)
    cassette = await Cassette.from_run(storage, result.run_id)
    cassette.save(CASSETTE)
    sys.stdout.write(f"{result.outputs[0]}\n{cassette!r} is in {CASSETTE.name}\n")


if __name__ == "__main__":
    asyncio.run(record_run(AsyncOpenAI()))
