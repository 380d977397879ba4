"""A local model: a server on loopback that speaks the protocol of chat completions, and streams its replies."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from openai import AsyncOpenAI

from holdfast.agents import openai
from tests.agents.libraries.openai import streamed
from tests.agents.world import Step

Reply = Callable[[str, str], str | Step]
"""Makes the reply of the model from its instructions and the last message."""


class LocalModel(ThreadingHTTPServer):
    """Replies by a function, counts what it is asked, and is out of order while ``down`` has its instructions."""

    daemon_threads = True

    def __init__(self, reply: Reply) -> None:
        super().__init__(("127.0.0.1", 0), _ChatCompletions)
        self.reply = reply
        self.asked: list[tuple[str, str]] = []
        """The instructions and the last message of each request."""
        self.conversations: list[list[str]] = []
        """The texts of each request, without instructions."""
        self.bodies: list[dict[str, Any]] = []
        """Each request as it came."""
        self.down: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def agent(self, name: str, instructions: str, **options: Any) -> openai.OpenAIAgent:
        """Return an agent of this model."""
        http = httpx2.AsyncClient(trust_env=False)
        client = AsyncOpenAI(api_key="none", base_url=self.url, http_client=http)
        return openai.wrap(client, model="local", name=name, instructions=instructions, **options)


class _ChatCompletions(BaseHTTPRequestHandler):
    server: LocalModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = [(message["role"], message.get("content") or "") for message in body["messages"]]
        instructions = next((text for role, text in texts if role == "system"), "")
        self.server.bodies.append(body)
        self.server.asked.append((instructions, texts[-1][1]))
        self.server.conversations.append([text for role, text in texts if role != "system"])
        if instructions in self.server.down:
            self._send(400, "application/json", b'{"error": {"message": "out of order"}}')
            return
        said = self.server.reply(instructions, texts[-1][1])
        self._send(
            200, "text/event-stream", streamed(Step(text=said) if isinstance(said, str) else said, " ")
        )

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_model(reply: Reply) -> Iterator[LocalModel]:
    """Serve a model until the block is left."""
    with LocalModel(reply) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
