"""The ``openai`` SDK with a transport that answers in this process, as a stream."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
from openai import AsyncOpenAI

from holdfast.agents import openai
from tests.agents.world import Step, World


def make_agent(world: World) -> openai.OpenAIAgent:
    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        step = world.ask(sum(message["role"] == "assistant" for message in body["messages"]))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=streamed(step))

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    client = AsyncOpenAI(api_key="none", base_url="http://model.test/v1", http_client=http)
    tools: list[Callable[..., Any]] = [world.charge, world.mail, world.fail]
    return openai.wrap(client, model="scripted", name="payer", instructions="Pay and tell.", tools=tools)


def streamed(step: Step, between: str = "") -> bytes:
    """Return the chunks of a chat completion, as a server streams them; ``between`` stands behind each word."""
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    for index, tool in enumerate(step.tools):
        arguments = tool.text
        function = {"name": tool.name, "arguments": arguments[:5]}
        deltas.append(
            {"tool_calls": [{"index": index, "id": tool.call_id, "type": "function", "function": function}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[5:]}}]})
    words = [word for word in step.text.split(" ") if word]
    deltas += [{"content": word + between} for word in words[:-1]] + [
        {"content": word} for word in words[-1:]
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    chunks.append({"choices": [], "usage": usage})
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    lines = [f"data: {json.dumps(head | chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def comparable(messages: list[Any]) -> list[Any]:
    return messages
