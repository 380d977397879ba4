"""LangChain with a chat model that answers in this process, as a stream."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from langchain.agents.middleware import wrap_tool_call
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolCallChunk, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from holdfast.agents import langchain
from tests.agents.world import World


class WorldModel(BaseChatModel):
    """Streams what the world says."""

    world: Any

    @property
    def _llm_type(self) -> str:
        return "world"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        step = self.world.ask(sum(message.type == "ai" for message in messages))
        for index, tool in enumerate(step.tools):
            arguments = tool.text
            for name, call_id, part in (
                (tool.name, tool.call_id, arguments[:5]),
                (None, None, arguments[5:]),
            ):
                chunk = ToolCallChunk(name=name, args=part, id=call_id, index=index)
                yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))
        for word in step.text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


@wrap_tool_call
async def tell_errors(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """Tell the model of an error of a tool, as LangChain's documentation does it."""
    try:
        return await handler(request)
    except ValueError as error:
        return ToolMessage(f"Tool error: {error}", tool_call_id=request.tool_call["id"])


def make_agent(world: World) -> langchain.LangChainAgent:
    return langchain.wrap(
        model=WorldModel(world=world),
        tools=[world.charge, world.mail, world.fail],
        system_prompt="Pay and tell.",
        name="payer",
        middleware=[tell_errors],
    )


def comparable(messages: list[Any]) -> list[Any]:
    """Return messages without ids, which differ between any two runs."""
    return [{**message, "data": {**message["data"], "id": None}} for message in messages]
