"""A service on a real socket in the process of the tests, and clients of it."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from holdfast import FileCheckpointStorage, SqliteCheckpointStorage
from holdfast.server import AccessKeys, ServerOptions, create_app
from tests.service.shop import all_workflows

# Nothing here takes so long: only a test that would hang is ended by it.
PATIENCE = 30.0


class Served:
    """An app that uvicorn serves in a thread, with a key for each scope."""

    def __init__(self, path: Path, **options: object) -> None:
        self.keys = AccessKeys()
        self.tokens = {scope: self.keys.add(scope, [scope]) for scope in ("read", "run", "answer", "admin")}
        self.path = path
        self._options = ServerOptions(**{"poll": 0.05, **options})  # type: ignore[arg-type]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the command does
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.app: FastAPI | None = None

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        kind = SqliteCheckpointStorage if self.path.suffix == ".db" else FileCheckpointStorage
        async with kind(self.path) as storage:
            self.app = create_app(all_workflows(), storage, self.keys, self._options)
            config = uvicorn.Config(self.app, log_level="error", timeout_graceful_shutdown=5)
            self._server = uvicorn.Server(config)
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._server.serve([self._socket])

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        with self.client() as client:
            assert client.get("/healthz").text == "ok\n"

    def stop(self) -> None:
        assert self.app is not None
        self._loop.call_soon_threadsafe(self.app.state.service.announce_stop)
        self._server.should_exit = True
        self._thread.join(PATIENCE)

    def client(self, scope: str = "admin") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[scope]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for the tests of a module: each uses runs of its own."""
    one = Served(tmp_path_factory.mktemp("service") / "runs.db")
    one.start()
    yield one
    one.stop()


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with served.client() as found:
        yield found


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start further services, each with other options, on the same store."""
    begun: list[Served] = []

    def start(**options: object) -> Served:
        one = Served(tmp_path / "own.db", **options)
        one.start()
        begun.append(one)
        return one

    yield start
    for one in begun:
        one.stop()
