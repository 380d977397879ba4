"""``holdfast run``, ``runs resume``, ``runs fork`` and ``graph``: commands that are given the code of a workflow."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command.conftest import Command
from tests.programs import ROOT

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SHOP = "tests.support.shop:build"

SLOW = """
import asyncio
from dataclasses import dataclass
from holdfast import WorkflowBuilder, executor

@dataclass
class Job:
    name: str
    seconds: float

@executor
async def work(job: Job) -> str:
    await asyncio.sleep(job.seconds)
    return f"{job.name} is done"

builder = WorkflowBuilder(name="Work").set_start_executor(work)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of the user."""
    (tmp_path / "slow_work.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "slow_work", raising=False)
    return tmp_path


def test_a_run_is_driven_until_it_waits_for_a_person(shopping: Command) -> None:
    done = shopping("run", SHOP, "--value", '"nori"', "--run-id", "new")
    assert (done.code, done.out) == (3, "")
    assert "Approve asks Approve.2.1" in done.err
    assert "holdfast requests ls --run new" in done.err


def test_it_goes_on_with_the_answer(shopping: Command) -> None:
    assert shopping("requests", "answer", "order-2", "--value", "true").code == 0
    done = shopping("runs", "resume", "order-2", SHOP)
    assert (done.code, done.out) == (0, '"salt: sent"\n')
    assert shopping("runs", "show", "order-2", "--json").json["run"]["status"] == "completed"


def test_a_failure_ends_with_4_and_can_be_tried_again(shopping: Command) -> None:
    assert shopping("run", SHOP, "--value", '"nothing"', "--run-id", "bad").code == 4
    again = shopping("runs", "resume", "bad", SHOP, "--json")
    assert again.code == 4
    assert "no price of nothing" in again.json["run"]["reason"]


def test_a_run_goes_back_to_one_of_its_checkpoints(shopping: Command) -> None:
    assert shopping("runs", "resume", "order-1", SHOP, "--from", "order-1@1", "--by", "kim").code == 3
    assert shopping("requests", "show", "order-1").code == 0
    foreign = shopping("runs", "resume", "order-1", SHOP, "--from", "order-2@1")
    assert foreign.code == 2
    assert "runs fork" in foreign.err


def test_a_fork_begins_with_edits_and_leaves_its_origin_alone(shopping: Command) -> None:
    before = shopping("runs", "show", "order-2", "--json").json["run"]
    fork = [
        "runs",
        "fork",
        "order-2@4",
        SHOP,
        "--run-id",
        "other",
        "--edit",
        "Cart",
        "item",
        '"dulse"',
        "--by",
        "kim",
    ]
    assert shopping(*fork).code == 3
    assert shopping("state", "get", "other", "item", "--scope", "Cart").out == "dulse\n"
    assert shopping("state", "get", "order-2", "item", "--scope", "Cart").out == "salt\n"
    assert shopping("runs", "show", "order-2", "--json").json["run"] == before
    assert shopping(*fork).code == 6  # there is a run with this id


def test_the_input_is_made_from_json(command: Command, folder: Path) -> None:
    store = f"sqlite:///{folder / 'new.db'}"
    done = command("--store", store, "run", "slow_work:builder", "--value", '{"name": "kelp", "seconds": 0}')
    assert (done.code, done.out) == (0, '"kelp is done"\n')
    wrong = command("--store", store, "run", "slow_work:builder", "--value", '{"nome": "kelp"}')
    assert wrong.code == 2
    assert "does not take this input" in wrong.err


def test_ctrl_c_stops_a_run_that_can_be_resumed(command: Command, folder: Path) -> None:
    store = f"sqlite:///{folder / 'new.db'}"
    value = json.dumps({"name": "kelp", "seconds": 600})
    process = subprocess.Popen(
        [HOLDFAST, "--store", store, "run", "slow_work:builder", "--value", value, "--run-id", "slow"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "work begins" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "the run is stopped; go on with: holdfast runs resume slow MODULE:WORKFLOW" in err
    run = command("--store", store, "runs", "show", "slow", "--json").json["run"]
    assert (run["status"], run["interrupted"]) == ("stopped", False)


@pytest.mark.parametrize(
    ("name", "code", "word"),
    [
        ("slow_work", 2, "MODULE:WORKFLOW"),
        ("slow_work:nothing", 2, "has no 'nothing'"),
        ("slow_work:Job.name", 2, "has no 'Job.name'"),
        ("slow_work:asyncio.sleep.__name__", 2, "is a str, not a workflow"),
        ("slow_work:Job", 1, "failed: TypeError: Job.__init__() missing 2 required positional arguments"),
        ("no_such_module:x", 2, "there is no module 'no_such_module'"),
        ("json.no_such_module:x", 2, "there is no module 'json.no_such_module'"),
        ("broken_module:x", 1, "broken_module.py:2: ZeroDivisionError"),
        ("needy_module:x", 1, "No module named 'not_installed'"),
    ],
)
def test_a_workflow_that_cannot_be_had(
    command: Command, folder: Path, name: str, code: int, word: str
) -> None:
    (folder / "broken_module.py").write_text("x = 1\ny = 1 / 0\n")
    (folder / "needy_module.py").write_text("import not_installed\n")
    done = command("--store", f"sqlite:///{folder / 'new.db'}", "run", name, "--value", "1")
    assert (done.code, done.out) == (code, "")
    assert word in done.err
    assert not (folder / "new.db").exists()


class TestGraph:
    """Graphs of workflows."""

    def test_show_draws_it(self, command: Command) -> None:
        assert command("graph", "show", SHOP).out.startswith("flowchart")
        assert command("graph", "show", SHOP, "--dot").out.startswith("digraph")

    def test_check_says_which_runs_go_on(self, shopping: Command) -> None:
        assert (
            shopping("graph", "check", SHOP).out == "3 runs: 3 go on, 0 with a graph change, 0 cannot go on\n"
        )

    def test_check_ends_with_8_if_some_cannot(self, shopping: Command, folder: Path) -> None:
        (folder / "other_shop.py").write_text(
            "from holdfast import WorkflowBuilder, executor\n"
            "@executor\ndef price(item: str) -> str:\n    return item\n"
            "workflow = WorkflowBuilder(name='Shop').set_start_executor(price).build()\n"
        )
        done = shopping("graph", "check", "other_shop:workflow")
        assert done.code == 8
        assert "order-2" in done.out
        assert shopping("runs", "resume", "order-2", "other_shop:workflow").code == 8


def test_an_answer_reaches_a_run_at_the_terminal_of_another(url: str) -> None:
    """The dialogue of an operator: run, see it wait, answer, resume, fork, compare, prune, verify; each a process."""

    def call(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [HOLDFAST, "--store", url, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    codes = [
        call(*line).returncode
        for line in (
            ["run", SHOP, "--value", '"nori"', "--run-id", "talk"],
            ["requests", "answer", "talk", "--value", "false", "--by", "kim"],
            ["runs", "resume", "talk", SHOP],
            ["runs", "fork", "talk@4", SHOP, "--run-id", "again"],
            ["requests", "answer", "again", "--value", "true"],
            ["runs", "resume", "again", SHOP],
        )
    ]
    assert codes == [3, 0, 0, 3, 0, 0]
    assert "'nori: refused' -> 'nori: sent'" in call("checkpoint", "diff", "talk", "again").stdout
    assert call("store", "prune", "--latest-only", "--yes").returncode == 0
    assert call("store", "verify").returncode == 0


class TestNamesInTheFile:
    """Workflows whose places ``holdfast.toml`` has."""

    @pytest.fixture
    def named(self, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
        monkeypatch.syspath_prepend(str(ROOT))
        (folder / "holdfast.toml").write_text(
            f'store = "sqlite:///{folder}/named.db"\n[workflows]\nShop = "{SHOP}"\nWork = "slow_work:builder"\n'
        )
        return command

    def test_a_stored_run_needs_no_place(self, named: Command) -> None:
        assert named("run", "Shop", "--value", '"kelp"', "--run-id", "order-1").code == 3
        answered = named("requests", "answer", "order-1", "--value", "true")
        assert "or: holdfast runs resume order-1\n" in answered.err
        assert named("runs", "resume", "order-1").out == '"kelp: sent"\n'
        assert named("runs", "fork", "order-1@4", "--run-id", "other").code == 3
        assert named("graph", "check", "Shop").code == 0
        assert "price" in named("graph", "show", "Shop").out

    def test_the_only_one_needs_no_name(self, named: Command, folder: Path) -> None:
        both = named("run", "--value", '"kelp"')
        assert both.code == 2
        assert "holdfast.toml names Shop, Work" in both.err
        (folder / "holdfast.toml").write_text(
            f'store = "sqlite:///{folder}/named.db"\n[workflows]\nShop = "{SHOP}"\n'
        )
        assert named("run", "--value", '"kelp"').code == 3

    def test_a_name_without_a_place_says_where_it_belongs(self, named: Command, folder: Path) -> None:
        named("run", "Shop", "--value", '"kelp"', "--run-id", "order-1")
        (folder / "holdfast.toml").write_text(f'store = "sqlite:///{folder}/named.db"\n')
        for line in (
            ["runs", "resume", "order-1"],
            ["runs", "fork", "order-1@1"],
            ["graph", "check", "Shop"],
        ):
            done = named(*line)
            assert done.code == 2
            assert '"Shop" = "shop:workflow"' in done.err

    def test_another_name_than_that_of_the_workflow_is_refused(self, named: Command, folder: Path) -> None:
        (folder / "holdfast.toml").write_text(f'[workflows]\nStore = "{SHOP}"\n')
        done = named("graph", "show", "Store")
        assert done.code == 2
        assert "the name of that workflow is 'Shop'" in done.err

    def test_the_doctor_looks_at_all_of_them(self, named: Command, folder: Path) -> None:
        named("run", "Shop", "--value", '"kelp"', "--run-id", "order-1")
        assert "all 1 runs that are not over can go on" in named("doctor", "--quick").out
        (folder / "holdfast.toml").write_text(
            f'store = "sqlite:///{folder}/named.db"\n[workflows]\nShop = "no_such_module:x"\n'
        )
        done = named("doctor", "--quick")
        assert done.code == 1
        assert "there is no module 'no_such_module'" in done.out

    def test_serve_takes_all_of_them(self, named: Command, folder: Path) -> None:
        place = f'store = "sqlite:///{folder}/named.db"\n'
        (folder / "holdfast.toml").write_text(
            f'{place}[workflows]\nShop = "{SHOP}"\nLost = "no_such_module:x"\n'
        )
        done = named("serve", "--port", "0")
        assert done.code == 2
        assert "there is no module 'no_such_module'" in done.err
        (folder / "holdfast.toml").write_text(place)
        done = named("serve", "--port", "0")
        assert done.code == 2
        assert "here or in holdfast.toml" in done.err
