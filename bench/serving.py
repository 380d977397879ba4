"""What a service costs: run-and-wait over HTTP, and streams on which nothing happens, each server in a process."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.client import Sample, clean_environment
from bench.environments import ROOT, interpreter
from bench.failing import Failed
from bench.measure import Row, Table
from bench.progress import Progress
from bench.workloads import Params, Workload

SERVERS = Path(__file__).parent / "servers"
TOKEN = secrets.token_hex(16)
OURS_SERVED, BARE, PEER = "holdfast serve, sqlite", "bare fastapi", "langgraph dev"
_START_SECONDS = 90.0
_TICKS = os.sysconf("SC_CLK_TCK")


# -- a client that costs little --------------------------------------------------------------------


class HttpConnection:
    """A connection of a client, kept alive: a library would cost more than the servers do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(port: int) -> HttpConnection:
        return HttpConnection(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, method: str, path: str, body: Any = None, headers: str = "") -> tuple[int, Any]:
        """Send a request, and return the status and the JSON of the reply."""
        is_chunked, length, status = await self.begin(method, path, body, headers)
        data = b""
        while is_chunked and (size := int(await self._reader.readline(), 16)):
            data += (await self._reader.readexactly(size + 2))[:-2]
        data = data if is_chunked else await self._reader.readexactly(length)
        if is_chunked:
            await self._reader.readline()
        return status, json.loads(data) if data.strip()[:1] in (b"{", b"[") else data.decode()

    async def begin(self, method: str, path: str, body: Any, headers: str) -> tuple[bool, int, int]:
        """Send a request and read the head of the reply: whether it comes in chunks, its length and status."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n{headers}"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)
        status = int((await self._reader.readline()).split()[1])
        is_chunked, length = False, 0
        while (line := (await self._reader.readline()).strip().lower()) != b"":
            name, _, value = line.partition(b":")
            is_chunked = is_chunked or (name == b"transfer-encoding" and b"chunked" in value)
            length = int(value) if name == b"content-length" else length
        return is_chunked, length, status

    async def read_until(self, *marks: bytes) -> None:
        """Read what comes until a line has one of these."""
        while line := await self._reader.readline():
            if any(mark in line for mark in marks):
                return
        raise ConnectionError("the server ended a stream")

    async def close(self) -> None:
        """Leave."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def _connected(port: int, count: int) -> AsyncIterator[list[HttpConnection]]:
    connections = [await HttpConnection.open(port) for _ in range(count)]
    try:
        yield connections
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


# -- the servers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServerSide:
    """A server: how it is started, asked to run and wait, and watched."""

    name: str
    how: str
    command: Callable[[int, Path], list[str]]
    """Takes the port and a folder for its files."""
    ready: str
    run: tuple[str, Any, str]
    """Path, body and headers of a run-and-wait."""
    expected: Callable[[Any], bool]
    watch: Callable[[HttpConnection, float], Any]
    """Starts something that can be watched, which may end by itself after some seconds; gives its path."""
    end: Callable[[HttpConnection, str], Any]
    """Lets what is watched end, where it does not by itself."""
    end_mark: bytes = b"event: end"
    is_peer: bool = False


def _holdfast_command(port: int, folder: Path) -> list[str]:
    program = "from holdfast.cli.entry import main; raise SystemExit(main())"
    names = [f"bench.servers.holdfast_flows:{name}" for name in ("greeting", "asking")]
    store = ["--store", f"sqlite:///{folder / 'runs.db'}"]
    return [sys.executable, "-c", program, "serve", *names, *store, "--port", str(port), "--token", TOKEN]


async def _holdfast_watch(connection: HttpConnection, _: float) -> str:
    body, headers = {"input": "Why?", "run_id": "watched"}, "Prefer: wait=30\r\n"
    await connection.call("POST", "/v1/workflows/Ask/runs", body, headers)
    return "/v1/runs/watched/events"


async def _holdfast_end(connection: HttpConnection, _: str) -> None:
    run = (await connection.call("GET", "/v1/runs/watched"))[1]
    answer = {"responses": {run["requests"][0]["request_id"]: "Because."}}
    await connection.call("POST", "/v1/runs/watched/responses", answer)


def _bare_command(port: int, _: Path) -> list[str]:
    return [sys.executable, str(SERVERS / "fastapi_server.py"), str(port)]


async def _bare_watch(connection: HttpConnection, seconds: float) -> str:
    return "/events"


async def _bare_end(connection: HttpConnection, _: str) -> None:
    await connection.call("POST", "/answer")


def _langgraph_command(python: Path) -> Callable[[int, Path], list[str]]:
    def command(port: int, folder: Path) -> list[str]:
        for name in ("langgraph.json", "langgraph_flows.py"):
            shutil.copy(SERVERS / name, folder)
        program = "from langgraph_cli.cli import cli; cli()"
        options = ["--no-browser", "--no-reload", "--n-jobs-per-worker", "64", "--port", str(port)]
        return [str(python), "-c", program, "dev", "--config", str(folder / "langgraph.json"), *options]

    return command


async def _langgraph_watch(connection: HttpConnection, seconds: float) -> str:
    _, thread = await connection.call("POST", "/threads", {})
    here = f"/threads/{thread['thread_id']}/runs"
    order = {"assistant_id": "wait", "input": {"seconds": seconds}}
    _, run = await connection.call("POST", here, order)
    return f"{here}/{run['run_id']}/stream"


async def _nothing(_: HttpConnection, __: str) -> None:
    """It ends by itself."""


def own_sides() -> list[ServerSide]:
    """Return the service, and what HTTP alone costs."""
    wait = "Prefer: wait=30\r\n"
    return [
        ServerSide(
            OURS_SERVED,
            "`POST /v1/workflows/Greet/runs` with `Prefer: wait=30`; each run is durable before it moves",
            _holdfast_command,
            "/readyz",
            ("/v1/workflows/Greet/runs", {"input": "kelp"}, wait),
            lambda reply: reply["outputs"] == ["hello kelp"],
            _holdfast_watch,
            _holdfast_end,
        ),
        ServerSide(
            BARE,
            "the same handler behind a route of FastAPI; stores nothing, has no keys and no runs",
            _bare_command,
            "/ready",
            ("/greet", {"input": "kelp"}, ""),
            lambda reply: reply["outputs"] == ["hello kelp"],
            _bare_watch,
            _bare_end,
        ),
    ]


def _peer(say: Callable[[str], None]) -> ServerSide:
    return ServerSide(
        PEER,
        "`POST /runs/wait` of `langgraph dev`, whose runs stand in memory; streams are those of a node that sleeps",
        _langgraph_command(interpreter("langgraph-server", say)),
        "/ok",
        ("/runs/wait", {"assistant_id": "greet", "input": {"name": "kelp"}}, ""),
        lambda reply: reply["greeting"] == "hello kelp",
        _langgraph_watch,
        _nothing,
        b'"late"',
        is_peer=True,
    )


class RunningServer:
    """A server in a process group of its own."""

    def __init__(self, side: ServerSide, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._log = folder / "server.log"
        quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", "LOG_LEVEL": "error"}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                side.command(self.port, folder),
                cwd=folder if side.is_peer else ROOT,  # a peer looks for its graphs there
                env={**clean_environment(), **quiet},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def wait_until_ready(self, path: str) -> None:
        """Wait until the server answers there."""
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                async with _connected(self.port, 1) as [connection]:
                    if (await connection.call("GET", path))[0] == 200:
                        return
            except (OSError, IndexError, asyncio.IncompleteReadError):
                pass  # it does not listen yet
            await asyncio.sleep(0.1)
        raise RuntimeError(f"it did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def used(self) -> tuple[float, int]:
        """Return the CPU seconds and the resident bytes of all processes of the group."""
        seconds, held = 0.0, 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(fields[2]) == self.process.pid:
                seconds += (int(fields[11]) + int(fields[12])) / _TICKS
                held += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        return seconds, held

    def end(self) -> None:
        """End the group."""
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@asynccontextmanager
async def _running(side: ServerSide) -> AsyncIterator[RunningServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = await _start(side, Path(folder))
        try:
            yield server
        finally:
            server.end()


async def _start(side: ServerSide, folder: Path, tries: int = 3) -> RunningServer:
    """Return a server that is ready; try again with another port if something else took the first meanwhile."""
    server = RunningServer(side, folder)
    try:
        await server.wait_until_ready(side.ready)
    except RuntimeError:
        server.end()
        if tries == 1:
            raise
        return await _start(side, folder, tries - 1)
    except BaseException:
        server.end()
        raise
    return server


# -- the measurements ------------------------------------------------------------------------------


def measure_serving(workload: Workload, params: Params, rounds: int, progress: Progress) -> Table:
    """One server after the other, each round with new ones."""
    sides = [*own_sides(), _peer(progress.say)]
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    failed = Failed(progress.say)
    measure = run_and_wait if workload.id == "serve" else fan_out
    for number in range(1, rounds + 1):
        for side in sides:
            if side.name not in failed:
                with failed.noted(side.name):
                    sample = asyncio.run(measure(side, params))
                    samples[side.name].append(sample)
                    progress(f"{workload.id} round {number}/{rounds}: {side.name} {sample.value:,.2f} ms")
    rows = [
        Row(side.name, samples[side.name], side.is_peer, side.how)
        for side in sides
        if side.name not in failed
    ]
    return Table(workload, params, rounds, rows, failed.reasons)


async def run_and_wait(side: ServerSide, params: Params) -> Sample:
    """Return the time from one reply to the next, and what single clients see."""
    async with _running(side) as server, _connected(server.port, params["clients"]) as connections:
        path, body, headers = side.run
        latencies: list[float] = []

        async def visit(connection: HttpConnection, count: int) -> None:
            for _ in range(count):
                begin = time.perf_counter()
                status, reply = await connection.call("POST", path, body, headers)
                latencies.append(time.perf_counter() - begin)
                if status != 200 or not side.expected(reply):
                    raise RuntimeError(f"{side.name} replied {status}: {str(reply)[:300]}")

        await asyncio.gather(*(visit(connection, 2) for connection in connections))
        latencies.clear()
        before, _ = server.used()
        begin = time.perf_counter()
        each = max(1, params["requests"] // params["clients"])
        await asyncio.gather(*(visit(connection, each) for connection in connections))
        seconds, (after, held) = time.perf_counter() - begin, server.used()
    cuts = statistics.quantiles(latencies, n=100, method="inclusive")
    figures = {
        "latency, median": cuts[49],
        "latency, 99 %": cuts[98],
        "CPU of the server": (after - before) / len(latencies),
    }
    in_ms = {name: value * 1e3 for name, value in figures.items()}
    return Sample(seconds / len(latencies) * 1e3, in_ms, peak=held)


async def fan_out(side: ServerSide, params: Params) -> Sample:
    """Return the CPU that streams take in a second in which nothing happens, and how long an end takes to reach all."""
    async with _running(side) as server:
        _, empty = server.used()
        async with _connected(server.port, 1) as [control]:
            path = await side.watch(control, params["seconds"] * 4)
        ends: list[float] = []

        async def watch(connection: HttpConnection) -> None:
            await connection.read_until(side.end_mark)
            ends.append(time.perf_counter())

        async with _connected(server.port, params["watchers"]) as connections:
            await asyncio.gather(*(one.begin("GET", path, None, "") for one in connections))
            watching = [asyncio.create_task(watch(connection)) for connection in connections]
            await asyncio.sleep(params["seconds"] / 2)  # they read what is there
            before, _ = server.used()
            await asyncio.sleep(params["seconds"])
            after, held = server.used()
            async with _connected(server.port, 1) as [control]:
                await side.end(control, path)
            await asyncio.gather(*watching)
    figures = {"first to last watcher": (max(ends) - min(ends)) * 1e3}
    return Sample((after - before) / params["seconds"] * 1e3, figures, peak=held - empty)
