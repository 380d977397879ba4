"""The pages on containers and systemd: their commands are run, and what they say of times and checks holds."""

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import ROOT
from tests.service.processes import PATIENCE, ServerProcess

CONTAINER = (ROOT / "docs" / "how-to" / "serve-in-a-container.md").read_text()
SYSTEMD = (ROOT / "docs" / "how-to" / "serve-with-systemd.md").read_text()
USUAL_GRACE = 30


def block(page: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def instructions(name: str) -> list[str]:
    """Return the arguments of an instruction of the image, which may have continued lines."""
    text = block(CONTAINER, "dockerfile").replace("\\\n", " ")
    return [line.split(None, 1)[1] for line in text.splitlines() if line.startswith(f"{name} ")]


def composed() -> dict[str, Any]:
    return dict(yaml.safe_load(block(CONTAINER, "yaml"))["services"]["runs"])


def check_of(text: str, url: str) -> int:
    """Run a health check against this service; return its exit code."""
    program, *arguments = json.loads(text.partition("CMD")[2])
    assert program == "python"
    assert "http://127.0.0.1:8123/readyz" in arguments[-1]
    here = arguments[-1].replace("http://127.0.0.1:8123", url)
    done = subprocess.run([sys.executable, *arguments[:-1], here], stderr=subprocess.DEVNULL, check=False)
    return done.returncode


@pytest.fixture
def started(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the options of the image, at a free port and on a store of the test."""
    (entry,) = (json.loads(text) for text in instructions("ENTRYPOINT"))
    assert entry[:2] == ["holdfast", "serve"]
    assert entry[-2:] == ["--store", "sqlite:////data/runs.db"]
    one = ServerProcess(tmp_path / "runs.db", *entry[2:-2], workflows="greeting")
    yield one
    one.end()


def test_the_image_is_checked_by_its_health_check(started: ServerProcess) -> None:
    assert json.loads(instructions("CMD")[0]) == ["shop:workflow"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    url = started.url.replace("0.0.0.0", "127.0.0.1")
    (check,) = instructions("HEALTHCHECK")
    assert check_of(check, url) == 0
    assert started.end(signal.SIGTERM) == 0
    assert check_of(check, url) != 0


def test_the_composition_agrees_with_the_image() -> None:
    service = composed()
    assert service["healthcheck"]["test"] == [
        "CMD",
        *json.loads(instructions("HEALTHCHECK")[0].partition("CMD")[2]),
    ]
    assert int(service["stop_grace_period"].removesuffix("s")) > USUAL_GRACE
    assert service["ports"][0].startswith("127.0.0.1:")
    assert service["environment"]["HOLDFAST_TOKEN"].startswith("${HOLDFAST_TOKEN:?")
    assert service["volumes"] == [f"runs:{instructions('VOLUME')[0]}"]
    user = instructions("USER")[0]
    assert any(f"-o {user} {instructions('VOLUME')[0]}" in text for text in instructions("RUN"))


def test_the_unit_starts_a_server_with_the_key_that_the_page_adds(tmp_path: Path) -> None:
    unit = dict(line.split("=", 1) for line in block(SYSTEMD, "ini").splitlines() if re.match(r"\w+=", line))
    assert int(unit["TimeoutStopSec"]) > int(unit["ExecStart"].rpartition("--grace ")[2])
    adds = next(line for line in block(SYSTEMD, "sh").splitlines() if "--add-key" in line).partition("#")[0]
    keys = tmp_path / "keys.json"
    command = [part.replace("/etc/shop/keys.json", str(keys)) for part in shlex.split(adds)[2:]]
    program = "from holdfast.cli.entry import main; raise SystemExit(main())"
    added = subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=True,
    )
    options = shlex.split(unit["ExecStart"].replace("${CREDENTIALS_DIRECTORY}/keys", str(keys)))[3:]
    one = ServerProcess(tmp_path / "runs.db", *options, workflows="greeting")
    try:
        headers = {"Authorization": f"Bearer {added.stdout.strip()}"}
        assert one.client.get("/v1/runs", headers=headers).status_code == 200
        assert one.end(getattr(signal, unit["KillSignal"])) == 0
    finally:
        one.end()
