"""Servers in processes of their own, started by the command and ended by their ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import httpx

from tests.programs import ROOT

TOKEN = "hf_a-token-for-tests"
# Nothing here takes so long: only a test that would hang is ended by it.
PATIENCE = 60.0
_COMMAND = "from holdfast.cli.entry import main; raise SystemExit(main())"


# A process that stands still counts as dead after two seconds in place of a minute.
SHORT_LEASE = """
import holdfast.host
from holdfast.stores.common import presence
presence.RENEW_SECONDS, presence.LEASE_SECONDS, holdfast.host._RESCUE_SECONDS = 0.2, 2.0, 0.2
"""


def command(*arguments: str, prelude: str = "") -> list[str]:
    """Return the command line of ``holdfast``; the lines of ``prelude`` are run in the process before."""
    return [sys.executable, "-W", "error", "-c", f"{prelude}\n{_COMMAND}", *arguments]


class ServerProcess:
    """``holdfast serve`` in a process, and a client of it."""

    def __init__(
        self,
        path: Path,
        *options: str,
        workflows: str = "refunds greeting spelling waiting",
        prelude: str = "",
    ) -> None:
        names = [f"tests.service.shop:{name}" for name in workflows.split()]
        # A file, not a pipe: nobody has to read it, and a failed test shows it.
        with open(path.with_suffix(f".{os.urandom(4).hex()}.log"), "w") as self.log:
            self.process = subprocess.Popen(
                [
                    *command("serve", *names, "--store", f"sqlite:///{path}", prelude=prelude),
                    "--port",
                    "0",
                    "--json",
                    *options,
                ],
                cwd=ROOT,
                env={**os.environ, "HOLDFAST_TOKEN": TOKEN},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self.log,
                encoding="utf-8",
            )
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, Path(self.log.name).read_text()
            text += line
        self.told = json.loads(text)
        self.url = str(self.told["url"])
        self.client = self.connect()
        while not self.is_ready():
            assert self.process.poll() is None, Path(self.log.name).read_text()

    def connect(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def is_ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def post(self, path: str, body: Any, wait: int | None = None, key: str | None = None) -> Any:
        headers = {} if wait is None else {"Prefer": f"wait={wait}"}
        headers |= {} if key is None else {"Idempotency-Key": key}
        reply = self.client.post(path, json=body, headers=headers)
        assert reply.status_code in (200, 202), reply.text
        return reply.json()

    def wait_for(self, run_id: str, **wanted: Any) -> dict[str, Any]:
        """Return a run as soon as its fields are these."""
        while True:
            run = self.client.get(f"/v1/runs/{run_id}").json()
            if all(run[name] == value for name, value in wanted.items()):
                return dict(run)
            assert self.process.poll() is None, Path(self.log.name).read_text()
            sleep(0.02)

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, and return the exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def check_takeover(one: ServerProcess, two: ServerProcess, number: int) -> None:
    """End or stop a server that drives runs; another one completes each, and commits no superstep twice."""
    ids = [one.post("/v1/workflows/Wait/runs", {"input": 3.0})["run_id"] for _ in range(6)]
    for run_id in ids:
        two.wait_for(run_id, status="running")
    one.process.send_signal(number)
    counts = {}
    for run_id in ids:
        assert two.wait_for(run_id, status="completed")["outputs"] == ["waited 3"]
        counts[run_id] = check_checkpoints(two, run_id)
    if number == signal.SIGSTOP:
        one.process.send_signal(signal.SIGCONT)
        while one.client.get("/v1/store").json()["active"]:  # it finds out at its next commit
            sleep(0.02)
        for run_id in ids:  # what the zombie does counts no more
            run = one.client.get(f"/v1/runs/{run_id}").json()
            assert (run["status"], run["outputs"]) == ("completed", ["waited 3"]), (
                f"changed afterwards: {run}"
            )
            count = check_checkpoints(two, run_id)
            assert count == counts[run_id], f"{run_id} has {count} checkpoints, not {counts[run_id]}"


def check_checkpoints(server: ServerProcess, run_id: str) -> int:
    """Check that each superstep of a run was committed once; return the number of checkpoints."""
    page = server.client.get(f"/v1/runs/{run_id}/checkpoints", params={"limit": 1000}).json()["checkpoints"]
    ends = [one["superstep"] for one in page if one["phase"] == "end" and one["cause"] == "superstep"]
    assert sorted(set(ends)) == sorted(ends), f"{run_id} has a superstep twice: {ends}"
    return len(page)
