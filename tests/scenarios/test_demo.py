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

from examples.incident_triage.other_decision import both_decisions
from examples.incident_triage.workflow import INCIDENT, OTHERWISE, build
from holdfast import CheckpointStorage, Run, SqliteCheckpointStorage, Workflow
from tests.programs import ROOT
from tests.support.runs import soon

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
    sizes = [row.split()[-4:-2] for row in rows_of(lines[again:]) + rows_of(lines[again:], "otherwise")]
    assert [unit for _, unit in sizes] == ["B", "MB"] + ["B"] * 15  # only one holds the telemetry
    assert all(int(amount.replace(",", "")) < 3000 for amount, unit in sizes if unit == "B")
    total = r"17 checkpoints added \d\.\d MB to .*checkpoints\.db; written whole, their state is 800\.0 MB"
    assert sum(re.fullmatch(total, line) is not None for line in lines) == 1
    assert not folder.exists()  # so that the next start begins anew


def rows_of(lines: list[str], run: str = "incident") -> list[str]:
    return [line for line in lines if re.match(rf"{run} +\d+ +\d+  (start|end) ", line)]


def checkpoints_in(lines: list[str], run: str = "incident") -> list[tuple[int, int, str, str]]:
    """Seq, superstep, phase and status of each line of a list of checkpoints."""
    rows = [row.split() for row in rows_of(lines, run)]
    return [(int(row[1]), int(row[2]), row[3], row[5]) for row in rows]


def test_a_fresh_start_forgets_what_was_left(folder: Path) -> None:
    assert worker(folder).returncode == -signal.SIGKILL
    lines = lines_of(folder, "--fresh", "--no-kill")
    assert lines[0] == "[0] workflow IncidentTriage started"
    assert not any("killed" in line for line in lines)
    assert len(checkpoints_in(lines)) == 12


# The other decision


TREE = """
● 1 start 1, input, run incident
┆ 2 to 7, supersteps 1 to 4, 6 checkpoints
● 8 end 4, waiting
├─● 1 end 4, fork, waiting, run otherwise
│ ● 2 start 5, response
│ ● 3 end 5
│ ● 4 start 6
│ ◉ 5 end 6, head, completed
● 9 start 5, response
● 10 end 5
● 11 start 6
◉ 12 end 6, head, completed
""".strip().splitlines()
PARTING = "Back to checkpoint 8, before the decision, and on from there with the other one, as a fork:"


def compared_in(lines: list[str]) -> dict[str, tuple[str, str]]:
    """What stands side by side: the rows by their names, each with its two cells."""
    first = lines.index(PARTING) + 2
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in lines[first : lines.index("", first)]:
        name = line[:15].strip().rstrip(":") or name
        decided, otherwise = found.get(name, ("", ""))
        found[name] = f"{decided} {line[15:57]}".strip(), f"{otherwise} {line[57:]}".strip()
    return found


@pytest.mark.parametrize("answer", ["--yes", "--no"])
def test_the_other_decision_is_taken_as_a_fork_and_the_tree_is_drawn(answer: str, folder: Path) -> None:
    lines = lines_of(folder, answer)
    assert lines[-len(TREE) :] == TREE
    shown = compared_in(lines)
    assert shown["Run"] == ("incident", "otherwise")
    assert shown["Answer"] == (("yes", "no") if answer == "--yes" else ("no", "yes"))
    page, ticket = shown["Decision"] if answer == "--yes" else shown["Decision"][::-1]
    assert page == (
        "PAGE on-call for checkout: P0, burst 09:12 to 09:16, up to 4616 errors a minute instead of 74"
    )
    assert ticket == (
        "TICKET for checkout: P0, errors in 24864 of 548271 lines; most in checkout 19306, search 1287, payments 1127"
    )
    assert shown["Shared state"] == ("50.0 MB", "50.0 MB")
    decided, otherwise = shown["Checkpoints"]
    assert re.fullmatch(r"12, which added \d\.\d MB", decided)
    assert re.fullmatch(r"5, which added \d,\d\d\d B", otherwise)  # it shares the telemetry
    assert checkpoints_in(lines, "otherwise") == [
        (1, 4, "end", "waiting"),
        (2, 5, "start", "running"),
        (3, 5, "end", "running"),
        (4, 6, "start", "running"),
        (5, 6, "end", "completed"),
    ]
    assert sum("FetchTelemetry has its turn" in line for line in lines) == 1


def test_the_readme_of_the_examples_shows_that_tree() -> None:
    assert "\n".join(TREE) in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


def test_where_nobody_was_asked_there_is_no_other_decision(folder: Path) -> None:
    lines = lines_of(folder, "--calm", "--no-kill")
    assert PARTING not in lines
    assert checkpoints_in(lines, "otherwise") == []
    assert lines[-3:] == [
        "● 1 start 1, input, run incident",
        "┆ 2 to 7, supersteps 1 to 4, 6 checkpoints",
        "◉ 8 end 4, head, completed",
    ]


def test_a_worker_that_comes_when_all_is_done_does_nothing_again(folder: Path) -> None:
    first = worker(folder, "--no-kill", "--yes")
    assert first.returncode == 0, first.stderr
    second = worker(folder, "--no-kill", "--no")  # it is too late to decide
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[0] == "Going on from the end of superstep 6"
    assert not any("has its turn" in line or "is durable" in line for line in lines)
    assert compared_in([*lines, ""]) == compared_in([*first.stdout.splitlines(), ""])
    assert len(lines_of(folder, "--no")) > len(TREE)
    assert not folder.exists()


def test_a_terminal_without_box_characters_gets_a_tree_of_ascii(folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "examples.incident_triage",
            "--folder",
            str(folder),
            "--no-kill",
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="ascii",
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(TREE) :] == [
        line.translate(str.maketrans("●◉┆│├─", "*@:||-")) for line in TREE
    ]


async def answered(workflow: Workflow, storage: CheckpointStorage) -> Run:
    run = await workflow.start("checkout", run_id=INCIDENT, storage=storage)
    (request,) = (await soon(run.wait_for_completion())).pending_requests
    await run.respond({request.request_id: True})
    await soon(run.wait_for_completion())
    return run


async def test_a_fork_that_an_earlier_process_began_is_gone_on_with(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "checkpoints.db") as storage:
        workflow = build(False, storage, tmp_path / "fetches.log")
        run = await answered(workflow, storage)
        begun = await workflow.fork(run.checkpoints[7], run_id=OTHERWISE)
        await soon(begun.wait_for_completion())
        await begun.close()
        for _ in range(2):
            outcomes = await soon(both_decisions(workflow, storage, run))
            assert outcomes is not None
            assert outcomes.before == run.checkpoints[7]
            assert (outcomes.decided.paged, outcomes.otherwise.paged) == (True, False)
            assert outcomes.otherwise.decision.startswith("TICKET")
            assert outcomes.otherwise.checkpoints == 5
        assert (await storage.verify()).ok
        assert len((tmp_path / "fetches.log").read_text().splitlines()) == 1


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
    assert not any("PageOnCall has its turn" in line for line in lines)  # the fork is not watched


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
    assert PARTING in after
    assert after.endswith("\n".join(["", *TREE, ""]))
    assert "17 checkpoints added" in after
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
