"""agent-framework with a chat client that answers in this process, as a stream."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
)

from holdfast.agents import agent_framework
from tests.agents.world import Step, World

Answer = Callable[[list[Message], dict[str, Any]], Step]


class ScriptedChatClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """Answers each request by a function of its messages and options."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        if stream:
            return ResponseStream(self._updates(messages, options), finalizer=ChatResponse.from_updates)
        return self._response(messages, options)

    async def _response(self, messages: Any, options: Any) -> ChatResponse[Any]:
        return ChatResponse.from_updates(updates_of(self._answer(messages, options)))

    async def _updates(self, messages: Any, options: Any) -> AsyncIterator[ChatResponseUpdate]:
        for update in updates_of(self._answer(messages, options)):
            yield update


def updates_of(step: Step) -> list[ChatResponseUpdate]:
    """Return what a model says, in parts as it is streamed."""
    parts: list[list[Content]] = []
    for tool in step.tools:
        arguments = tool.text
        parts.append([Content.from_function_call(tool.call_id, tool.name, arguments=arguments)])
    words = step.text.split(" ") if step.text else []
    parts += [[Content.from_text(word if not number else f" {word}")] for number, word in enumerate(words)]
    parts.append([Content.from_usage({"input_token_count": 10, "output_token_count": 2})])
    return [ChatResponseUpdate(role="assistant", contents=contents) for contents in parts]


def make_agent(world: World) -> agent_framework.AgentFrameworkAgent:
    def answer(messages: list[Message], options: dict[str, Any]) -> Step:
        return world.ask(sum(message.role == "assistant" for message in messages))

    tools = [world.charge, world.mail, world.fail]
    agent = Agent(ScriptedChatClient(answer), "Pay and tell.", name="payer", tools=tools)
    return agent_framework.wrap(agent)


def comparable(messages: list[Any]) -> list[Any]:
    """Return messages without the ids that the library generates."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if key != "id"}
        return [without(inner) for inner in value] if isinstance(value, list) else value

    return [without(message) for message in messages]
