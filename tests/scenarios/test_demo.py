"""The demo, run as ``make demo`` runs it, without a terminal and at a pseudo-terminal."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.programs import ROOT

PYTHON = [sys.executable, "-W", "error", "-X", "utf8", "-m"]


def run(module: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, module, *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the demo keeps its checkpoints: not where another test, or a person, runs it."""
    return tmp_path / "demo"


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run("examples.incident_triage", "--folder", str(folder), *options)


def lines_of(folder: Path, *options: str) -> list[str]:
    done = demo(folder, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def worker(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The process that the demo starts, without the one that watches over it."""
    (folder / "checkout").mkdir(parents=True, exist_ok=True)
    return run("examples.incident_triage.worker", "--folder", str(folder), *options)


# Killed, and started again


def test_the_worker_kills_itself_in_the_middle_of_triage_and_the_next_goes_on(folder: Path) -> None:
    first = worker(folder)
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.splitlines()[-1] == "[2] TriageAgent: 50% of the log read"
    assert "TriageAgent completed" not in first.stdout
    assert first.stdout.count("FetchTelemetry has its turn") == 1
    fetches = (folder / "checkout" / "fetches.log").read_text()
    assert len(fetches.splitlines()) == 1

    second = worker(folder)
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[0] == "Going on from the start of superstep 2"
    assert "FetchTelemetry has its turn" not in second.stdout
    assert "[2] TriageAgent: 100% of the log read" in lines
    assert any(re.match(r"Decision: +PAGE on-call for checkout: P0", line) for line in lines)
    assert (folder / "checkout" / "fetches.log").read_text() == fetches  # nothing was fetched again
    (told,) = [line for line in lines if line.startswith("Fetched:")]
    assert told.endswith(f"once: {fetches.strip()}")


def test_the_demo_tells_of_the_kill_goes_on_and_ends_with_the_checkpoints(folder: Path) -> None:
    lines = lines_of(folder, "--yes")
    killed = lines.index(
        "The process is gone: it was killed (SIGKILL) in the middle of triage. What it left:"
    )
    again = lines.index("The same command, again:")
    assert checkpoints_in(lines[killed:again]) == [
        (1, 1, "start", "running"),
        (2, 1, "end", "running"),
        (3, 2, "start", "running"),
    ]
    assert sum("FetchTelemetry has its turn" in line for line in lines) == 1
    assert sum("TriageAgent has its turn" in line for line in lines) == 2

    listed = checkpoints_in(lines[again:])
    assert [seq for seq, *_ in listed] == list(range(1, 13))
    assert listed[-1] == (12, 6, "end", "completed")
    sizes = [row.split()[-4:-2] for row in rows_of(lines[again:])]
    assert [unit for _, unit in sizes] == ["B", "MB"] + ["B"] * 10  # only one holds the telemetry
    assert all(int(amount) < 1000 for amount, unit in sizes if unit == "B")
    total = r"12 checkpoints added \d\.\d MB to .*checkpoints\.db; written whole, their state is 550\.0 MB"
    assert re.fullmatch(total, lines[-1])
    assert not folder.exists()  # so that the next start begins anew


def rows_of(lines: list[str]) -> list[str]:
    return [line for line in lines if re.match(r" *\d+ +\d+  (start|end) ", line)]


def checkpoints_in(lines: list[str]) -> list[tuple[int, int, str, str]]:
    """Seq, superstep, phase and status of each line of a list of checkpoints."""
    rows = [row.split() for row in rows_of(lines)]
    return [(int(row[0]), int(row[1]), row[2], row[4]) for row in rows]


def test_a_fresh_start_forgets_what_was_left(folder: Path) -> None:
    assert worker(folder).returncode == -signal.SIGKILL
    lines = lines_of(folder, "--fresh", "--no-kill")
    assert lines[0] == "[0] workflow IncidentTriage started"
    assert not any("killed" in line for line in lines)
    assert len(checkpoints_in(lines)) == 12


def test_an_incident_pages_and_its_log_stays_in_shared_state(folder: Path) -> None:
    lines = lines_of(folder, "--yes", "--no-kill")

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


def test_without_a_terminal_the_page_is_approved_and_a_line_says_so(folder: Path) -> None:
    lines = lines_of(folder)
    assert "Page on-call? [y/n] yes (no terminal to ask at, so --yes is taken as given)" in lines
    assert any(re.match(r"Decision: +PAGE on-call for checkout: P0", line) for line in lines)


def test_a_declined_page_becomes_a_ticket(folder: Path) -> None:
    lines = lines_of(folder, "--no")
    assert "Page on-call? [y/n] no (by option)" in lines
    assert "[4] Approve asks a person (request Approve.4.1)" in lines
    assert any(re.match(r"Decision: +TICKET for checkout: P0, ", line) for line in lines)
    assert not any("PageOnCall" in line for line in lines)


def test_a_calm_log_becomes_a_ticket(folder: Path) -> None:
    lines = lines_of(folder, "--calm", "--service", "search", "--fast")
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
def test_bad_options_are_named(options: list[str], complaint: str, folder: Path) -> None:
    done = demo(folder, *options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


# At a terminal

PROMPT = "Page on-call? [y/n] "
END_OF_INPUT = "\x04"
_PATIENCE_SECONDS = 60
_STUCK = b"(nothing more comes)"


def demo_at_terminal(
    folder: Path, typed: Sequence[str | signal.Signals], terminal: str = "dumb"
) -> tuple[int, str]:
    """Run the demo at a pseudo-terminal, giving it one of ``typed`` at each prompt; its exit code and its screen.

    A dumb terminal shows the plain view, a better one the live view.
    """
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PYTHON, "examples.incident_triage", "--folder", str(folder), "--fast"],
        cwd=ROOT,
        start_new_session=True,  # a signal goes to the whole group, as that of a terminal does
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
                os.killpg(process.pid, signal.SIGKILL)
                pytest.fail(f"the demo neither went on nor ended:\n{screen.decode()}")
            screen += part
            if answers and screen.decode(errors="ignore").count(PROMPT) > len(typed) - len(answers):
                match answers.pop(0):
                    case signal.Signals() as sent:
                        time.sleep(
                            0.3
                        )  # a signal between the prompt and the read would not interrupt the read
                        os.killpg(process.pid, sent)
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
def test_a_person_decides(typed: list[str], decision: str, terminal: str, folder: Path) -> None:
    code, screen = demo_at_terminal(folder, [], terminal)
    assert code == 0, screen
    assert PROMPT not in screen
    assert screen.splitlines()[-1] == "Now run the same command again: it goes on from there."

    code, screen = demo_at_terminal(folder, typed, terminal)
    assert code == 0, screen
    asked, _, after = screen.rpartition(PROMPT)
    assert "24864 of 548271 lines" in asked  # the report is shown first
    assert asked.count("Please answer y or n.") == len(typed) - 1
    assert decision in after
    assert "Fetched" in after
    assert "once: process" in after
    assert "12 checkpoints added" in after
    assert "Traceback" not in screen
    assert not folder.exists()


@pytest.mark.parametrize(
    ("leaves", "code", "message"),
    [
        (
            END_OF_INPUT,
            1,
            "incident_triage: nobody answered, so nobody was paged; the same command asks again",
        ),
        (
            signal.SIGINT,
            130,
            "incident_triage: stopped before a decision, so nobody was paged; the same command goes on",
        ),
    ],
)
def test_a_person_leaves_and_is_asked_again(
    leaves: str | signal.Signals, code: int, message: str, folder: Path
) -> None:
    demo_at_terminal(folder, [])
    ended, screen = demo_at_terminal(folder, [leaves])
    assert screen.splitlines()[-1] == message
    assert ended == code
    assert "Traceback" not in screen

    ended, screen = demo_at_terminal(folder, ["y\n"])
    assert ended == 0, screen
    assert "Going on from the end of superstep 4" in screen
    assert "TriageAgent has its turn" not in screen
    assert "PAGE on-call for checkout" in screen
