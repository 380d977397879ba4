"""``pydantic-ai`` with its own model for tests, which streams what the script says."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast.agents import pydantic_ai
from tests.agents.world import World


def make_agent(world: World) -> pydantic_ai.PydanticAIAgent:
    async def answer(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        step = world.ask(sum(message.kind == "response" for message in messages))
        for index, tool in enumerate(step.tools):
            yield {index: DeltaToolCall(tool.name, tool.text, tool_call_id=tool.call_id)}
        for word in step.text.split(" "):
            if word:
                yield word

    agent = Agent(FunctionModel(stream_function=answer), name="payer", instructions="Pay and tell.")
    agent.tool_plain(world.charge)
    agent.tool_plain(world.mail)

    @agent.tool_plain
    async def fail(why: str) -> str:
        """Fail always."""
        try:
            return await world.fail(why)
        except ValueError as error:
            raise ModelRetry(str(error)) from error

    return pydantic_ai.wrap(agent)


def comparable(messages: list[Any]) -> list[Any]:
    """Return messages without what differs between any two runs."""
    passing = {"timestamp", "run_id", "conversation_id"}

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key not in passing}
        return [without(inner) for inner in value] if isinstance(value, list) else value

    return [without(message) for message in messages]
