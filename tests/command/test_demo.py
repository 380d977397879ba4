"""The demo, run as ``holdfast demo``, without a terminal and at a pseudo-terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from holdfast import CheckpointStorage, Run, SqliteCheckpointStorage, Workflow
from holdfast.demo.incident import DemoModel, DemoOptions, IncidentFolder, ModelBill
from holdfast.demo.model_server import ModelServer
from holdfast.demo.other_decision import both_decisions
from holdfast.demo.supervisor import open_model
from holdfast.demo.triage_agent import make_agent, open_client
from holdfast.demo.workflow import INCIDENT, OTHERWISE, build
from tests.command.test_reference import FORMS, normal
from tests.programs import ROOT
from tests.support.runs import soon
from tests.support.terminal import Terminal

PYTHON = [sys.executable, "-W", "error", "-X", "utf8"]
DEMO = [*PYTHON, str(Path(sys.executable).with_name("holdfast")), "demo"]


# A key alone is not enough to let the demo spend money.
ENVIRONMENT = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "unused", "OPENAI_MODEL": "unused"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **ENVIRONMENT, **environment},
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the demo keeps its checkpoints: not where another test, or a person, runs it."""
    return tmp_path / "demo"


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(*DEMO, "--folder", str(folder), *options)


def lines_of(folder: Path, *options: str) -> list[str]:
    done = demo(folder, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def worker(
    folder: Path,
    answer: bool | None = None,
    *,
    is_killed: bool = True,
    program: str = "holdfast.demo.worker",
) -> subprocess.CompletedProcess[str]:
    """The process that the demo starts, with the model, but without the process that watches over it."""
    options = DemoOptions(answer=answer, is_killed=is_killed, folder=str(folder))
    options.place.begin(is_fresh=False)
    with open_model(options) as ready:
        return run(*PYTHON, "-m", program, ready.to_json())


def bill_in(folder: Path, service: str = "checkout") -> ModelBill:
    """What the model's server counted."""
    return IncidentFolder(folder / service).read_bill()


# Killed, and started again


def test_the_worker_kills_itself_in_the_tool_loop_and_the_next_goes_on_there(folder: Path) -> None:
    first = worker(folder)
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.splitlines()[-1] == "[2] TriageAgent: 50% of the log searched for 'pool exhausted'"
    assert "[2] TriageAgent says: First the errors of the whole log." in first.stdout.splitlines()
    assert [bill_in(folder).calls, bill_in(folder).repeated] == [3, 0]
    assert "TriageAgent completed" not in first.stdout
    assert first.stdout.count("FetchTelemetry has its turn") == 1
    fetches = (folder / "checkout" / "fetches.log").read_text()
    assert len(fetches.splitlines()) == 1

    second = worker(folder, True)
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[0] == "Going on from the start of superstep 2"
    assert "FetchTelemetry has its turn" not in second.stdout
    calls = [line for line in lines if line.startswith("[2] TriageAgent: model call")]
    again = "is on record: not paid again"
    assert calls[:3] == [f"[2] TriageAgent: model call {n} {again}" for n in (1, 2, 3)]
    assert [line.partition(",")[0] for line in calls[3:]] == [
        "[2] TriageAgent: model call 4 is paid and on record"
    ]
    assert "[2] TriageAgent: tool look_up_service is on record: not called again" in lines
    assert not any("searched for 'ERROR'" in line for line in lines)
    assert "[2] TriageAgent: 100% of the log searched for 'pool exhausted'" in lines
    assert "[2] TriageAgent says: PRIORITY: P0" in lines
    assert any(re.match(r"Decision: +PAGE on-call for checkout: P0", line) for line in lines)
    assert (folder / "checkout" / "fetches.log").read_text() == fetches  # nothing was fetched again
    (told,) = [line for line in lines if line.startswith("Fetched:")]
    assert told.endswith(f"once: {fetches.strip()}")

    bill = bill_in(folder)
    assert list(bill.askers.values()) == [3, 1]  # by the count of the model's server
    assert bill.repeated == 0
    (told,) = [line for line in lines if line.startswith("Model:")]
    assert re.search(r"4 calls, none paid twice: 3 by process \d+, 1 by process \d+, as its server", told)


def test_the_count_of_the_server_tells_of_an_agent_whose_calls_are_not_recorded(folder: Path) -> None:
    program = "tests.support.forgetful_demo"
    assert worker(folder, program=program).returncode == -signal.SIGKILL
    second = worker(folder, True, program=program)
    assert second.returncode == 0, second.stderr
    assert bill_in(folder).repeated == 3
    assert "7 calls, 3 paid twice" in second.stdout


def test_the_demo_tells_of_the_kill_goes_on_and_ends_with_the_checkpoints(folder: Path) -> None:
    lines = lines_of(folder, "--yes")
    killed = lines.index(
        "The process is gone: it was killed (SIGKILL) inside the tool loop of the agent. "
        "The model was paid for 3 calls by then. What it left:"
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
    (total,) = [line for line in lines if line.startswith("17 checkpoints added")]
    assert re.fullmatch(r"17 checkpoints added \d\.\d MB to .*checkpoints\.db", total)
    assert "written whole, their state is 800.0 MB" in lines


def test_what_the_demo_names_at_its_end_is_there_until_it_begins_anew(folder: Path) -> None:
    lines = lines_of(folder, "--no", "--no-kill")
    (total,) = [line for line in lines if line.startswith("17 checkpoints added")]
    assert Path(total.partition(" to ")[2]).is_file()
    shown = lines[-1].strip()
    assert shown.startswith("holdfast --store sqlite:///")
    looked = run(*DEMO[:-1], *shown.split()[1:], "--json")
    assert [found["run_id"] for found in json.loads(looked.stdout)["runs"]] == ["otherwise", "incident"]
    again = demo(folder, "--yes", "--no-kill", "--json")
    assert "[0] workflow IncidentTriage started" in again.stderr
    wanted = json.loads((FORMS / "demo.json").read_text(encoding="utf-8"))
    assert normal(again.stdout.replace(str(folder), "FOLDER")) == wanted


def rows_of(lines: list[str], run: str = "incident") -> list[str]:
    return [line for line in lines if re.match(rf"{run} +\d+ +\d+  (start|end) ", line)]


def checkpoints_in(lines: list[str], run: str = "incident") -> list[tuple[int, int, str, str]]:
    """Seq, superstep, phase and status of each line of a list of checkpoints."""
    rows = [row.split() for row in rows_of(lines, run)]
    return [(int(row[1]), int(row[2]), row[3], row[5]) for row in rows]


def test_a_fresh_start_forgets_what_was_left(folder: Path) -> None:
    assert worker(folder).returncode == -signal.SIGKILL
    lines = lines_of(folder, "--fresh", "--no-kill", "--yes")
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


def tree_in(lines: list[str]) -> list[str]:
    """The tree, which comes last but for the words on how to look at it."""
    first = (
        len(lines) - 1 - next(n for n, line in enumerate(reversed(lines)) if re.match(r"[●*] 1 start", line))
    )
    return lines[first : lines.index("", first)]


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
    assert tree_in(lines) == TREE
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
    assert tree_in(lines) == [
        "● 1 start 1, input, run incident",
        "┆ 2 to 7, supersteps 1 to 4, 6 checkpoints",
        "◉ 8 end 4, head, completed",
    ]


def test_a_worker_that_comes_when_all_is_done_does_nothing_again(folder: Path) -> None:
    first = worker(folder, True, is_killed=False)
    assert first.returncode == 0, first.stderr
    second = worker(folder, False)  # it is too late to decide
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[0] == "Going on from the end of superstep 6"
    assert not any("has its turn" in line or "is durable" in line for line in lines)
    assert compared_in([*lines, ""]) == compared_in([*first.stdout.splitlines(), ""])
    assert tree_in(lines_of(folder, "--no")) == TREE


def test_a_terminal_without_box_characters_gets_a_tree_of_ascii(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", *DEMO[-2:], "--folder", str(folder), "--no-kill", "--yes"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="ascii",
        env={**os.environ, **ENVIRONMENT, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert tree_in(done.stdout.splitlines()) == [
        line.translate(str.maketrans("●◉┆│├─", "*@:||-")) for line in TREE
    ]


async def answered(workflow: Workflow, storage: CheckpointStorage) -> Run:
    run = await workflow.start("checkout", run_id=INCIDENT, storage=storage)
    (request,) = (await soon(run.wait_for_completion())).pending_requests
    await run.respond({request.request_id: True})
    await soon(run.wait_for_completion())
    return run


async def test_a_fork_that_an_earlier_process_began_is_gone_on_with(
    tmp_path: Path, model: ModelServer
) -> None:
    options = DemoOptions(folder=str(tmp_path), model=DemoModel(url=model.url))
    options.place.begin(is_fresh=True)
    async with (
        SqliteCheckpointStorage(options.place.database) as storage,
        open_client(options.model) as client,
    ):
        workflow = build(options, storage, make_agent(client, options.model.name))
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
        assert len(options.place.fetched_by()) == 1


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


def test_without_a_terminal_nobody_is_paged_unless_an_option_says_so(folder: Path) -> None:
    done = demo(folder, "--no-kill")
    assert done.returncode == 3
    assert done.stderr == (
        "holdfast demo: there is no terminal to ask at, so the run waits; the same command with --yes or --no goes on\n"
    )
    assert "Page on-call?" not in done.stdout
    assert "Decision:" not in done.stdout
    lines = lines_of(folder, "--yes")
    assert "Page on-call? [y/n] yes (by option)" in lines
    assert any(re.match(r"Decision: +PAGE on-call for checkout: P0", line) for line in lines)


def test_a_folder_with_something_else_is_left_alone(folder: Path) -> None:
    kept = folder / "checkout" / "thesis.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("years of work")
    done = demo(folder, "--fresh", "--yes")
    assert done.returncode == 1
    assert "holds something else" in done.stderr
    assert [path.name for path in kept.parent.iterdir()] == ["thesis.txt"]


def test_a_declined_page_becomes_a_ticket(folder: Path) -> None:
    lines = lines_of(folder, "--no", "--no-kill")
    assert "Page on-call? [y/n] no (by option)" in lines
    assert "[4] Approve asks a person (request Approve.4.1)" in lines
    assert any(re.match(r"Decision: +TICKET for checkout: P0, ", line) for line in lines)
    assert not any("PageOnCall has its turn" in line for line in lines)  # the fork is not watched


def test_a_calm_log_becomes_a_ticket(folder: Path) -> None:
    lines = lines_of(folder, "--calm", "--service", "search", "--fast", "--no-kill")
    assert any(re.match(r"Decision: +TICKET for search: P3, ", line) for line in lines)
    assert not any("PageOnCall" in line or "[y/n]" in line for line in lines)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--service", "No Such"], "'No Such' is no service name: use at most 30 of a-z"),
        (["--service"], "Option '--service' requires an argument"),
        (["--clam"], "No such option '--clam'"),
        (["--model", "gpt"], "--model needs OPENAI_BASE_URL and OPENAI_API_KEY in the environment"),
    ],
)
def test_bad_options_are_named(options: list[str], complaint: str, folder: Path) -> None:
    done = demo(folder, *options)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


# The model


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelServer]:
    """The model in this process."""
    with ModelServer(tmp_path / "bill.jsonl") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_environment_names_a_real_model(folder: Path, tmp_path: Path, model: ModelServer) -> None:
    real = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "secret-key", "OPENAI_MODEL": ""}
    unnamed = run(*DEMO, "--folder", str(folder), **real)
    assert unnamed.returncode == 2
    assert f"say which model of {model.url} to use: --model NAME, or OPENAI_MODEL" in unnamed.stderr
    assert not folder.exists()

    done = run(*DEMO, "--folder", str(folder), "--yes", **{**real, "OPENAI_MODEL": "large"})
    assert done.returncode == 0, done.stderr
    assert "killed (SIGKILL) inside the tool loop of the agent. What it left:" in done.stdout
    assert re.search(r"Model: +1 calls by this process, 3 taken from the record", done.stdout)
    assert "secret-key" not in done.stdout
    bill = [json.loads(line) for line in (tmp_path / "bill.jsonl").read_text().splitlines()]
    assert [call["model"] for call in bill] == ["large"] * 4
    assert len({call["question"] for call in bill}) == 4
    assert bill_in(folder).calls == 0  # that of the demo was not asked


async def test_the_model_answers_clients_that_do_not_stream_and_refuses_nonsense(model: ModelServer) -> None:
    async with AsyncOpenAI(api_key="none", base_url=model.url, max_retries=0) as client:
        asked = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "log-7"}]
        )
    (call,) = asked.choices[0].message.model_dump()["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"log_id": "log-7", "text": "ERROR"}
    async with httpx.AsyncClient(trust_env=False) as client:
        for path, content, status in [
            ("/chat/completions", b"no JSON", 400),
            ("/chat/completions", b'{"model": "m", "messages": []}', 400),
            ("/chat/completions", b'{"messages": 5}', 400),
            ("/embeddings", b"{}", 404),
        ]:
            refused = await client.post(model.url + path, content=content)
            assert refused.status_code == status
            assert refused.json()["error"]["message"]


def is_answering(url: str) -> bool:
    try:
        httpx.post(url, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def test_the_model_ends_with_the_demo(folder: Path) -> None:
    options = DemoOptions(folder=str(folder))
    options.place.begin(is_fresh=True)
    with open_model(options) as ready:
        assert is_answering(ready.model.url)
    assert not is_answering(ready.model.url)


def test_the_model_ends_though_the_demo_is_killed(folder: Path) -> None:
    folder.mkdir()
    program = (
        "import sys, time\n"
        "from holdfast.demo.incident import DemoOptions\n"
        "from holdfast.demo.supervisor import open_model\n"
        "options = DemoOptions(folder=sys.argv[1])\n"
        "options.place.begin(True)\n"
        "with open_model(options) as ready:\n"
        "    print(ready.model.url, flush=True)\n"
        "    time.sleep(600)\n"
    )
    demo = [*PYTHON, "-c", program, str(folder)]
    with subprocess.Popen(demo, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        url = supervisor.stdout.readline().strip()
        assert is_answering(url)
        supervisor.kill()
    for _ in range(600):
        if not is_answering(url):
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} still answers")


# At a terminal

PROMPT = "Page on-call? [y/n] "
END_OF_INPUT, CTRL_C = "\x04", "\x03"


def demo_at_terminal(folder: Path, typed: Sequence[str], terminal: str = "dumb") -> tuple[int, str]:
    """Run the demo at a terminal, giving it one of ``typed`` at each prompt; its exit code and all that it wrote.

    A dumb terminal shows the plain view, a better one the live view.
    """
    person = Terminal(
        [*DEMO, "--folder", str(folder), "--fast"], columns=120, lines=40, TERM=terminal, OPENAI_BASE_URL=""
    )
    for asked, keys in enumerate(typed, 1):
        person.wait_for_count(PROMPT, asked)
        if keys == CTRL_C:
            person.interrupt()
        else:
            person.press(keys)
    return person.wait(), person.text.replace("\r\n", "\n")


def test_the_live_view_is_right_at_80_columns_and_24_lines(folder: Path) -> None:
    def start(*options: str) -> Terminal:
        return Terminal([*DEMO, "--folder", str(folder), *options], OPENAI_BASE_URL="")

    killed = start("--fast")
    killed.wait_for("TriageAgent says: First the")  # as it comes
    assert killed.wait() == 0
    words = {word for line in killed.scrolled for word in line.split()}
    assert {"PageOnCall", "OpenTicket", "Approve", "FetchTelemetry", "TriageAgent"} <= words
    assert "left:" in words

    left = start()
    left.wait_for("model call 3 is on record: not paid again")
    left.wait_for("60% of the log searched for 'pool exhausted'")
    left.press("y\n")  # shown by no picture, and an answer to no question
    left.interrupt()
    assert left.wait() == 130
    assert sum(line.startswith(" IncidentTriage  superstep") for line in left.scrolled) == 1
    assert not any("^C" in line for line in left.scrolled)

    answered = start("--fast")
    answered.wait_for("IncidentTriage  superstep")
    answered.press("y\n")
    answered.wait_for(PROMPT.strip())
    top = answered.screen[0]
    assert top.startswith(" IncidentTriage  superstep 4"), "the picture and the question fit the screen"
    answered.press("n\n")
    assert answered.wait() == 0
    assert "TICKET for checkout" in answered.text
    assert answered.text.count(PROMPT) == 1
    assert any("calls, none paid twice: 3 by process" in line for line in answered.scrolled)
    assert bill_in(folder).repeated == 0


@pytest.mark.parametrize(
    ("typed", "decision", "terminal"),
    [
        (["y\n"], "PAGE on-call for checkout", "xterm-256color"),
        (["maybe\n", "\n", " No \n"], "TICKET for checkout", "dumb"),
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
    assert tree_in(after.splitlines()) == TREE
    assert "17 checkpoints added" in after
    assert "Traceback" not in screen


@pytest.mark.parametrize(
    ("leaves", "code", "message"),
    [
        (
            END_OF_INPUT,
            130,
            "holdfast demo: nobody answered, so nobody was paged; the same command asks again",
        ),
        (
            CTRL_C,
            130,
            "holdfast demo: stopped before a decision, so nobody was paged; the same command goes on",
        ),
    ],
)
def test_a_person_leaves_and_is_asked_again(leaves: str, code: int, message: str, folder: Path) -> None:
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
