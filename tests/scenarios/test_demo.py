"""The demo, run as ``make demo`` runs it but with no terminal."""

import re
import subprocess
import sys

import pytest

from tests.programs import ROOT


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", "-m", "examples.incident_triage", *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def lines_of(*options: str) -> list[str]:
    done = demo(*options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_an_incident_pages_and_its_log_stays_in_shared_state() -> None:
    lines = lines_of()

    assert any(
        re.match(r"Decision: +PAGE on-call for checkout: P0, burst 09:12 to 09:16", line) for line in lines
    )
    assert any(re.match(r"Supersteps: +4$", line) for line in lines)

    (stored,) = [line for line in lines if line.startswith("[1]   state ")]
    log_id = re.fullmatch(r"\[1\]   state IncidentLogs/([0-9a-f]{32}): 50\.0 MB", stored)
    assert log_id, stored
    messages = [
        found.groups()
        for line in lines
        if (found := re.fullmatch(r"\[\d\]   message (.+) -> (.+): (.+) B", line))
    ]
    assert [(source, target) for source, target, _ in messages] == [
        ("input", "FetchTelemetry"),
        ("FetchTelemetry", "TriageAgent"),
        ("TriageAgent", "Parse"),
        ("Parse", "PageOnCall"),
    ]
    sizes = [int(size.replace(",", "")) for _, _, size in messages]
    assert sizes[1] == len(log_id[1])  # the id and nothing else
    assert max(sizes) < 1000


def test_a_calm_log_becomes_a_ticket() -> None:
    lines = lines_of("--calm", "--service", "search", "--fast")
    assert any(re.match(r"Decision: +TICKET for search: P3, ", line) for line in lines)
    assert not any("PageOnCall" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--service", "No Such"], "'No Such' is no service name: use at most 30 of a-z"),
        (["--service"], "expected one argument"),
        (["--clam"], "unrecognized arguments: --clam"),
    ],
)
def test_bad_options_are_named(options: list[str], complaint: str) -> None:
    done = demo(*options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
