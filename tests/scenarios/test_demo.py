"""The demo, run as ``make demo`` runs it, without a terminal and at a pseudo-terminal."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

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
    lines = lines_of("--yes")

    assert any(
        re.match(r"Decision: +PAGE on-call for checkout: P0, burst 09:12 to 09:16", line) for line in lines
    )
    assert any(re.match(r"Supersteps: +6$", line) for line in lines)

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
        ("Parse", "Approve"),
        ("Approve", "PageOnCall"),
    ]
    sizes = [int(size.replace(",", "")) for _, _, size in messages]
    assert sizes[1] == len(log_id[1])  # the id and nothing else
    assert max(sizes) < 1000


def test_without_a_terminal_the_page_is_approved_and_a_line_says_so() -> None:
    lines = lines_of()
    assert "Page on-call? [y/n] yes (no terminal to ask at, so --yes is taken as given)" in lines
    assert any(re.match(r"Decision: +PAGE on-call for checkout: P0", line) for line in lines)


def test_a_declined_page_becomes_a_ticket() -> None:
    lines = lines_of("--no")
    assert "Page on-call? [y/n] no (by option)" in lines
    assert "[4] Approve asks a person (request Approve.4.1)" in lines
    assert any(re.match(r"Decision: +TICKET for checkout: P0, ", line) for line in lines)
    assert not any("PageOnCall" in line for line in lines)


def test_a_calm_log_becomes_a_ticket() -> None:
    lines = lines_of("--calm", "--service", "search", "--fast")
    assert any(re.match(r"Decision: +TICKET for search: P3, ", line) for line in lines)
    assert not any("PageOnCall" in line or "[y/n]" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--service", "No Such"], "'No Such' is no service name: use at most 30 of a-z"),
        (["--service"], "expected one argument"),
        (["--clam"], "unrecognized arguments: --clam"),
        (["--yes", "--no"], "--no: not allowed with argument --yes"),
    ],
)
def test_bad_options_are_named(options: list[str], complaint: str) -> None:
    done = demo(*options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


PROMPT = "Page on-call? [y/n] "
END_OF_INPUT = "\x04"
_PATIENCE_SECONDS = 60
_STUCK = b"(nothing more comes)"


def demo_at_terminal(typed: Sequence[str | signal.Signals], terminal: str = "dumb") -> tuple[int, str]:
    """Run the demo at a pseudo-terminal, giving it one of ``typed`` at each prompt; its exit code and its screen.

    A dumb terminal shows the plain view, a better one the live view.
    """
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "utf8", "-m", "examples.incident_triage", "--fast"],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": terminal, "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    screen, answers = b"", list(typed)
    with process:
        while part := _read(ours):
            if part == _STUCK:
                process.kill()
                pytest.fail(f"the demo neither went on nor ended:\n{screen.decode()}")
            screen += part
            if answers and screen.decode(errors="ignore").count(PROMPT) > len(typed) - len(answers):
                match answers.pop(0):
                    case signal.Signals() as sent:
                        time.sleep(
                            0.3
                        )  # a signal between the prompt and the read would not interrupt the read
                        process.send_signal(sent)
                    case str() as keys:
                        os.write(ours, keys.encode())
    os.close(ours)
    return process.returncode, screen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    if not select.select([terminal], [], [], _PATIENCE_SECONDS)[0]:
        return _STUCK
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that nobody is left at the other end
        return b""


@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color"])
@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        (["y\n"], "PAGE on-call for checkout"),
        (["maybe\n", "\n", " No \n"], "TICKET for checkout"),
    ],
)
def test_a_person_decides(typed: list[str], decision: str, terminal: str) -> None:
    code, screen = demo_at_terminal(typed, terminal)
    assert code == 0, screen
    asked, _, after = screen.rpartition(PROMPT)
    assert "24864 of 548271 lines" in asked  # the report is shown first
    assert asked.count("Please answer y or n.") == len(typed) - 1
    assert decision in after
    assert "Traceback" not in screen


@pytest.mark.parametrize(
    ("leaves", "code", "message"),
    [
        (END_OF_INPUT, 1, "incident_triage: nobody answered, so nobody was paged"),
        (signal.SIGINT, 130, "incident_triage: stopped before a decision, so nobody was paged"),
    ],
)
def test_a_person_leaves(leaves: str | signal.Signals, code: int, message: str) -> None:
    ended, screen = demo_at_terminal([leaves])
    assert screen.splitlines()[-1] == message
    assert ended == code
    assert "Traceback" not in screen
