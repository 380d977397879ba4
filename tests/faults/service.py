"""Load on ``holdfast serve`` while it is killed: what was accepted completes once, streams have no gap or double.

::

    python -m tests.faults.service --clients 200 --seconds 60 --kills 5
    python -m tests.faults.service --clients 6 --seconds 4 --kills 2 --planted gap      # is found
    python -m tests.faults.service --stopped        # a server that stands still is replaced, and does no harm later
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.faults.planted_service import BUGS, planting
from tests.service.processes import TOKEN, ServerProcess, check_checkpoints, check_takeover

_PATIENCE = 60.0
# How often the memory of each server is looked at, the share by which it may grow after the first half, and the seconds
# that a server lives at least that is looked at so: one that has just begun grows.
_SAMPLES = 20
_MOST_GROWTH = 0.1
_SHORTEST_LIFE = 2.5


@dataclass
class Tally:
    """Counts what clients did, and keeps what went wrong."""

    accepted: dict[str, str] = field(default_factory=dict)
    """By run id, the output that the run has to have."""
    streams: dict[str, list[str]] = field(default_factory=dict)
    """By run id, the ids of events as its client saw them, over all its connections."""
    lost_connections: int = 0
    memory: list[list[int]] = field(default_factory=lambda: [[]])
    """The bytes that each server held, one after the other, by times."""
    problems: list[str] = field(default_factory=list)


class Load:
    """Clients that start, watch and answer runs at a server that is killed and started again."""

    def __init__(self, path: Path, seed: int, planted: str = "") -> None:
        self._path = path
        self._chance = random.Random(seed)
        self._prelude = planting(planted) if planted else ""
        self.server = self._serve()
        self.tally = Tally()
        self._is_over = False
        self._life = 0.0
        # One for all: each would make a context of TLS of its own, which takes longer than most calls.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self._client = httpx.AsyncClient(headers=headers, timeout=_PATIENCE, limits=limits)

    def _serve(self) -> ServerProcess:
        return ServerProcess(self._path, workflows="refunds", prelude=self._prelude)

    def kill(self) -> None:
        """Kill the server and start another on the store."""
        self.server.end(signal.SIGKILL)
        self.tally.memory.append([])
        self.server = self._serve()

    async def _call(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Call the server until it replies; a call is repeated with its key if no reply came."""
        while True:
            try:
                reply = await self._client.request(method, self.server.url + path, **given)
                if reply.status_code != 503:
                    return reply
            except httpx.TransportError:
                self.tally.lost_connections += 1
            await asyncio.sleep(0.05)

    async def visit(self, number: int) -> None:
        """Start runs one after the other, watch each, and answer what it asks."""
        count = 0
        while not self._is_over:
            count += 1
            name, amount = f"client-{number}-{count}", self._chance.randrange(1000)
            order = {"input": {"customer": name, "amount": amount}}
            started = await self._call(
                "POST", "/v1/workflows/Refunds/runs", json=order, headers={"Idempotency-Key": name}
            )
            if started.status_code not in (200, 202):
                self.tally.problems.append(f"start of {name}: {started.status_code} {started.text}")
                return
            run_id = started.json()["run_id"]
            self.tally.accepted[run_id] = f"{name} gets {amount}"
            await self._watch(run_id)

    async def _watch(self, run_id: str) -> None:
        """Follow a run to its end over any number of connections, and answer its request."""
        seen = self.tally.streams.setdefault(run_id, [])
        while True:
            headers = {"Last-Event-ID": seen[-1]} if seen else {}
            try:
                url = f"{self.server.url}/v1/runs/{run_id}/events"
                async with self._client.stream("GET", url, headers=headers) as response:
                    if response.status_code == 204:
                        return
                    if response.status_code not in (200, 503):
                        self.tally.problems.append(f"stream of {run_id}: {response.status_code}")
                        return
                    if await self._read(run_id, response, seen):
                        return
            except httpx.TransportError:
                self.tally.lost_connections += 1
            await asyncio.sleep(0.05)

    async def _read(self, run_id: str, response: httpx.Response, seen: list[str]) -> bool:
        """Take the events of one connection; return True if the run is over."""
        mark = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                mark = value
            elif line == "event: end":
                return True
            elif name == "data" and mark:
                seen.append(mark)
                mark = ""
                event = json.loads(value)
                if event["event"] == "RequestInfoEvent":
                    await self._answer(run_id, event["request"]["request_id"])
        return False

    async def _answer(self, run_id: str, request_id: str) -> None:
        body = {"responses": {request_id: {"approved": True}}}
        reply = await self._call(
            "POST",
            f"/v1/runs/{run_id}/responses",
            json=body,
            headers={"Idempotency-Key": f"answer {request_id}"},
        )
        if reply.status_code not in (200, 202):
            self.tally.problems.append(f"answer to {run_id}: {reply.status_code} {reply.text}")

    async def run(self, clients: int, seconds: float, kills: int) -> None:
        """Let clients work for some time, in which the server is killed so often; then let all runs end."""
        tasks = [asyncio.create_task(self.visit(number)) for number in range(clients)]
        self._life = seconds / (kills + 1)
        for number in range(kills + 1):
            for _ in range(_SAMPLES):
                await asyncio.sleep(self._life / _SAMPLES)
                self.tally.memory[-1].append(resident_bytes(self.server.process.pid))
            if number < kills:
                await asyncio.to_thread(self.kill)
        self._is_over = True
        await asyncio.wait_for(asyncio.gather(*tasks), 10 * _PATIENCE)
        await self._client.aclose()

    def check(self) -> list[str]:
        """Return what is wrong with the runs and streams."""
        found = list(self.tally.problems)
        for run_id, wanted in self.tally.accepted.items():
            run = self.server.client.get(f"/v1/runs/{run_id}").json()
            if (run["status"], run["outputs"]) != ("completed", [wanted]):
                found.append(f"{run_id}: {run['status']} {run['outputs']}, not {wanted}")
            check_checkpoints(self.server, run_id)
            listed = self.server.client.get(f"/v1/runs/{run_id}/event-list", params={"limit": 1000}).json()
            ids = [event["event_id"] for event in listed["events"]]
            found += compare_stream(run_id, self.tally.streams.get(run_id, []), ids)
        for held in self.tally.memory if self._life >= _SHORTEST_LIFE else ():
            found += check_flat(held)
        count = sum(self.server.client.get("/v1/store").json()["runs"].values())
        if count != len(self.tally.accepted):
            found.append(f"{count} runs are in the store, {len(self.tally.accepted)} were accepted")
        return found


def compare_stream(run_id: str, seen: list[str], stored: list[str]) -> list[str]:
    """Return how a stream differs from the events that are stored."""
    if seen == stored:
        return []
    missing = [one for one in stored if one not in seen]
    doubled = sorted({one for one in seen if seen.count(one) > 1})
    return [f"{run_id}: the stream misses {missing}, and has twice {doubled}"]


def check_flat(held: list[int]) -> list[str]:
    """Return how the memory of a server grew from the third quarter of its life to the last one, if it did."""
    quarter = len(held) // 4
    before, after = statistics.mean(held[-2 * quarter : -quarter]), statistics.mean(held[-quarter:])
    if after <= before * (1 + _MOST_GROWTH):
        return []
    return [
        f"the memory of a server grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB in a quarter of its life"
    ]


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def campaign(
    folder: Path, clients: int, seconds: float, kills: int, seed: int, planted: str = ""
) -> list[str]:
    """Run the load and return what went wrong."""
    load = Load(folder / "runs.db", seed, planted)
    try:
        asyncio.run(load.run(clients, seconds, kills))
        found = load.check()
    finally:
        load.server.end()
    memory = ", ".join(
        f"{held[len(held) // 2] / 1e6:.0f} to {held[-1] / 1e6:.0f} MB" for held in load.tally.memory
    )
    print(
        f"{clients} clients, {seconds:g} s, {kills} kills: {len(load.tally.accepted)} runs accepted, "
        f"{load.tally.lost_connections} connections lost, memory {memory}, {len(found)} problems"
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--planted", default="", choices=["", *BUGS], help="a bug that has to be found")
    parser.add_argument("--stopped", action="store_true", help="stop a server in place of the load")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.stopped:
            one, two = (ServerProcess(Path(folder) / "runs.db") for _ in range(2))
            try:
                check_takeover(one, two, signal.SIGSTOP)
            finally:
                one.end()
                two.end()
            print("a server that stood still was replaced")
            return 0
        print(f"seed {given.seed}")
        load = given.clients, given.seconds, given.kills, given.seed, given.planted
        found = campaign(Path(folder), *load)
    for problem in found[:20]:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
