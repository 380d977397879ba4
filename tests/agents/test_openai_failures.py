"""The openai SDK against a server on loopback that limits, fails and breaks off; the server counts what it is asked."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import agents
import httpx2
import pydantic_ai
import pytest
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast import ExecutorFailed, InMemoryCheckpointStorage, WorkflowWarningEvent
from holdfast.agents import AgentCallEvent, ChangedRequest, RateLimitEvent, ToolApproval, openai
from holdfast.agents.rate_limits import PAUSES
from tests.agents.agents import workflow_of
from tests.agents.libraries.openai import streamed
from tests.agents.world import Step, WantedTool

ERROR = json.dumps({"error": {"message": "no"}}).encode()


class ModelServer(ThreadingHTTPServer):
    """Answers by the number of assistant messages it is shown: a tool call, then text."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.lock = threading.Lock()
        self.asked: list[int] = []
        """For each request, the number of the model's messages in it."""
        self.refused = 0
        self.limit_seconds = 0.0
        self.limited_until: float | None = None
        self.failure = ""
        """The failure of each request that has a message of the model."""
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def limits(self) -> bool:
        """Return True if this request comes too early; the first one begins the limit."""
        with self.lock:
            now = time.monotonic()
            if self.limit_seconds and self.limited_until is None:
                self.limited_until = now + self.limit_seconds
            limited = self.limited_until is not None and now < self.limited_until
            self.refused += limited
            return limited


class Answer(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answered = sum(message["role"] == "assistant" for message in body["messages"])
        server.asked.append(answered)
        if server.limits():
            self.send(429, ERROR, {"retry-after": str(server.limit_seconds)})
            return
        failure = server.failure if answered else ""
        if failure == "500":
            self.send(500, ERROR)
        elif failure == "hangs":
            server.released.wait(60)
        else:
            tool = WantedTool("c1", "charge", {"amount": 5})
            text = streamed(Step(text="all done") if answered or "tools" not in body else Step((tool,)))
            self.send(200, text[: len(text) // 2] if failure == "breaks" else text, length=len(text))

    def send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if status == 200 else "application/json")
        self.send_header("content-length", str(len(body) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


def client_of(server: ModelServer, seconds: float = 60.0) -> AsyncOpenAI:
    http = httpx2.AsyncClient(trust_env=False)
    return AsyncOpenAI(api_key="none", base_url=server.url, http_client=http, timeout=seconds)


def make_agent(library: str, client: AsyncOpenAI) -> Any:
    """Return an agent of a library that asks by a client of the openai SDK, which tries twice again by itself."""
    if library == "openai":
        return openai.wrap(client, model="small", name="a")
    if library == "openai_agents":
        return agents.Agent(name="a", model=agents.OpenAIChatCompletionsModel("small", client))
    return pydantic_ai.Agent(
        OpenAIChatModel("small", provider=OpenAIProvider(openai_client=client)), name="a"
    )


@pytest.mark.parametrize("library", ["openai", "openai_agents", "pydantic_ai"])
async def test_one_pause_holds_back_twenty_runs_that_share_a_key(server: ModelServer, library: str) -> None:
    server.limit_seconds = 1.0
    async with client_of(server) as client:
        assert client.max_retries == 2
        workflow = workflow_of(make_agent(library, client))
        paused: list[RateLimitEvent] = []
        begun = asyncio.Event()

        async def drive(number: int) -> list[Any]:
            run = await workflow.start(f"run {number}")
            async for event in run.watch_stream():
                if isinstance(event, RateLimitEvent):
                    paused.append(event)
                    begun.set()
            return (await run.wait_for_completion()).outputs

        first = asyncio.create_task(drive(0))
        told = asyncio.create_task(begun.wait())
        await asyncio.wait({first, told}, return_when=asyncio.FIRST_COMPLETED)
        assert told.done(), "the pause was not told"
        others = await asyncio.gather(*(drive(number) for number in range(1, 20)))
        assert [await first, *others] == [["alldone"]] * 20
    # The server refuses whoever comes too early: nobody else did.
    assert [event.seconds for event in paused] == [1.0]
    assert (len(server.asked), server.refused) == (21, 1)


async def test_a_pause_that_is_not_kept_is_caught(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the pause is told, but nobody waits for it."""
    monkeypatch.setattr(PAUSES, "begin", lambda key, seconds: True)
    server.limit_seconds = 600.0
    async with client_of(server) as client:
        workflow = workflow_of(openai.wrap(client, model="small", name="a"), model_attempts=3)
        with pytest.raises(ExecutorFailed, match="429"):
            await workflow.run("x")
    assert server.refused == 3


@pytest.mark.parametrize(
    ("failure", "told"),
    [("500", "status 500"), ("breaks", "the stream of .* broke"), ("hangs", "timed out")],
)
async def test_a_failure_is_told_and_loses_nothing(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, failure: str, told: str
) -> None:
    monkeypatch.setattr("holdfast.agents.rate_limits._FIRST_PAUSE", 0.0)
    charged: list[int] = []

    async def charge(amount: int) -> str:
        charged.append(amount)
        return "charged"

    server.failure = failure
    storage = InMemoryCheckpointStorage()
    async with client_of(server, 2.0 if failure == "hangs" else 60.0) as client:
        agent = openai.wrap(client, model="small", name="a", tools=[charge])
        workflow = workflow_of(agent, storage, model_attempts=2)
        run = await workflow.start("x", run_id="r")
        errors: list[str] = []

        async def watch() -> None:
            async for event in run.watch_stream():
                if isinstance(event, AgentCallEvent) and event.error is not None:
                    errors.append(f"{event.call}: {event.error}")

        with pytest.raises(ExecutorFailed, match=told):
            await watch()
        assert len(errors) == 2, "each attempt is told"
        assert all(error.startswith("model 2: ") for error in errors)
        server.failure = ""
    async with client_of(server) as client:
        agent = openai.wrap(client, model="small", name="a", tools=[charge])
        run = await workflow_of(agent, storage).resume(run_id="r")
        assert (await run.wait_for_completion()).outputs == ["alldone"]
    assert charged == [5]
    assert server.asked == [
        0,
        1,
        1,
        1,
    ]  # the first call was paid once, the second tried twice and once after resume


@pytest.mark.parametrize("changed", ["model", "instructions"])
async def test_another_prompt_or_model_behind_a_node_is_told_on_resume(
    server: ModelServer, changed: str
) -> None:
    async def charge(amount: int) -> str:
        return "charged"

    storage = InMemoryCheckpointStorage()
    async with client_of(server) as client:

        def build(**other: Any) -> Any:
            settings = {"model": "small", "instructions": "Be brief.", **other}
            agent = openai.wrap(client, name="a", tools=[charge], **settings)
            return workflow_of(agent, storage, tool_approval=ToolApproval(["charge"]))

        result = await build().run("x", run_id="r")
        await storage.respond("r", {result.pending_requests[0].request_id: True})
        run = await build(**{changed: "other"}).resume(run_id="r")
        events = [event async for event in run.watch_stream() if isinstance(event, WorkflowWarningEvent)]
        assert (await run.wait_for_completion()).outputs == ["alldone"]
    assert [type(event.warning) for event in events] == [ChangedRequest]
    assert "digest" in events[0].message
