"""The example of a recorded run: recorded over HTTP, replayed by pytest, failing where the code asks something else."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agents.libraries.openai import streamed
from tests.agents.world import Step, WantedTool
from tests.programs import ROOT

EXAMPLE = ROOT / "examples" / "recorded_run"
LOG = "timeout in checkout\n" * 17


class Model(BaseHTTPRequestHandler):
    """Wants the tool first, then replies with what the tool found."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        last = body["messages"][-1]
        if last["role"] == "tool":
            step = Step(text=f"P0: {last['content']} timeouts.")
        else:
            step = Step((WantedTool("c1", "search_log", {"text": "timeout"}),))
        answer = streamed(step, " ")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "examples" / "recorded_run"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "examples" / "__init__.py").touch()
    return folder


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def run_pytest(example: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        "test_triage.py",
    ]
    return subprocess.run(
        command, cwd=example, capture_output=True, text=True, check=False, timeout=100, env=environment()
    )


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}


def test_the_shipped_cassette_is_what_the_example_records(example: Path, model_url: str) -> None:
    (example / "shop.log").write_text(LOG)
    shipped = (example / "triage.cassette.json").read_text()
    (example / "triage.cassette.json").unlink()
    change(example / "triage.py", "/var/log/shop.log", str(example / "shop.log"))
    done = subprocess.run(
        [sys.executable, "triage.py"],
        cwd=example,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=environment(OPENAI_BASE_URL=model_url, OPENAI_API_KEY="none"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "P0: 17 timeouts.\n<Cassette with 3 calls> is in triage.cassette.json\n"
    assert json.loads((example / "triage.cassette.json").read_text()) == json.loads(shipped)


def test_the_example_passes_without_a_model(example: Path) -> None:
    done = run_pytest(example)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_example_fails_where_the_code_asks_something_else(example: Path) -> None:
    change(example / "triage.py", "P0 or P3", "P0 to P4")
    done = run_pytest(example)
    assert done.returncode == 1
    assert "ReplayDiffers: agent 'triage' asks something else than was recorded in 'model 1'" in done.stdout
    changed = "request['messages'][0]['content'] is 'Say how urgent it is: P0 to P4, and why.'"
    assert changed in done.stdout
