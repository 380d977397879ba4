"""An operator's dialogue through one pseudo-terminal, and forms that ask for answers there."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.cli.form import read_line
from tests.support.terminal import Terminal

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
DOWN, UP, ENTER, CTRL_C, END = "\x1b[B", "\x1b[A", "\r", "\x03", "\x04"

# Bakes once a person has said how; the second time that it bakes, its oven file is there and it ends.
BAKERY = """
import asyncio, os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from holdfast import Executor, WorkflowBuilder, WorkflowContext, executor, handler, response_handler

class Crust(Enum):
    SOFT = "soft"
    DARK = "dark"

@dataclass
class Wish:
    loaves: int
    crust: Crust
    seeds: list[str]
    note: str | None = None
    sliced: bool = False

class Counter(Executor):
    @handler
    async def ask(self, bread: str, ctx: WorkflowContext) -> None:
        await ctx.request_info({"bread": bread}, response_type=Wish)

    @response_handler
    async def answered(self, asked: dict[str, str], wish: Wish, ctx: WorkflowContext[str]) -> None:
        await ctx.queue_state_update("wish", wish, scope_name="Orders")
        await ctx.send_message(f"{wish.loaves} {wish.crust.value} {asked['bread']}")

@executor
async def bake(order: str, ctx: WorkflowContext[None, str]) -> None:
    for word in ("knead", " prove", " bake"):
        await ctx.stream(word)
    if not Path("oven").exists():
        Path("oven").write_text(str(os.getpid()))
        await asyncio.sleep(600)
    await ctx.yield_output(order)

builder = WorkflowBuilder(name="Bakery").set_start_executor(Counter).add_edge(Counter, bake)

@executor
async def rest(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.sleep(float(text))
    await ctx.yield_output("rested")

sleeper = WorkflowBuilder(name="Sleeper").set_start_executor(rest)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bakery.py").write_text(BAKERY)
    (tmp_path / "holdfast.toml").write_text('store = "sqlite:///bakery.db"\n')
    return tmp_path


def holdfast(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [HOLDFAST, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def fill(person: Terminal, *answers: tuple[str, str]) -> None:
    """Answer the questions of a form, each once it is shown."""
    for question, keys in answers:
        person.wait_for(question)
        person.press(keys)


FORM = [
    ("loaves (integer):", "many\r"),
    ("Expecting value", "0.5\r"),  # neither a number nor a whole one
    ("not an integer", "3\r"),
    ("crust [1-2]:", "2\r"),
    ("seeds: add item 1? [y/n], Enter for false:", "y\r"),
    ("seeds[0] (text):", "poppy\r"),
    ("seeds: add item 2?", "\r"),
    ("note (text), Enter for null:", "\r"),
    ("sliced [y/n], Enter for false:", "y\r"),
    ("Is this right?", "\r"),
]
WISH = {"loaves": 3, "crust": "dark", "seeds": ["poppy"], "note": None, "sliced": True}


def test_a_dialogue_through_one_terminal(folder: Path) -> None:
    """Run, see it wait, answer, kill, resume, pick a checkpoint, fork, diff, prune, verify."""
    person = Terminal(
        ["bash", "--norc", "--noprofile"],
        columns=100,
        lines=40,
        cwd=folder,
        PS1="> ",
        HF=HOLDFAST,
        NO_COLOR="1",
    )

    def type_line(line: str, *dialogue: tuple[str, str], code: int | None = 0) -> str:
        """Type a command, answer what it asks, and return all that it wrote."""
        before = len(person.text)
        person.press(f"clear; $HF {line}; echo code=$?\r")
        fill(person, *dialogue)
        if code is not None:
            person.wait_until(lambda: f"\ncode={code}\r" in person.text[before:], f"code {code}")
        return person.text[before:]

    shown = type_line("run bakery:builder --value '\"rye\"' --run-id rye --no-wait", code=3)
    assert "it waits for answers" in shown
    assert "Counter.1.1" in type_line("requests ls")
    type_line("requests answer rye --by kim", *FORM)
    type_line("runs resume rye bakery:builder", ("| knead prove bake", ""), code=None)
    assert any(line.startswith("superstep 3: bake") for line in person.screen)
    oven = folder / "oven"  # it is lit behind the last word
    person.wait_until(lambda: oven.exists() and oven.read_text() != "", "a process at the oven")
    os.kill(int(oven.read_text()), signal.SIGKILL)
    person.wait_for("code=137")
    assert "interrupted" in type_line("runs ls")
    shown = type_line("runs resume rye bakery:builder")
    assert '"3 dark rye"' in shown
    forked = type_line(
        "checkpoint pick rye --fork bakery:builder --by kim",
        ("> 6 ", UP + UP),
        ("> 4 ", UP + UP),
        ("> 2 ", ENTER),
        ("Counter asks Counter.1.1", ""),
        ("loaves (integer):", "1\r"),
        ("crust [1-2]:", "soft\r"),
        ("seeds: add item 1?", "n\r"),
        ("note (text), Enter for null:", "now\r"),
        ("sliced [y/n], Enter for false:", "\r"),
        ("Is this right?", "y\r"),
    )
    assert '"1 soft rye"' in forked
    assert "'3 dark rye' -> '1 soft rye'" in type_line("checkpoint diff rye @latest")
    type_line("store prune --latest-only", ("[y/N]", "y\r"))
    assert "all is well: 2 runs" in type_line("store verify")
    person.press("exit\r")
    assert person.wait() == 0
    wish = json.loads(holdfast(folder, "state", "get", "rye", "wish", "--scope", "Orders").stdout)
    assert wish["loaves"] == WISH["loaves"]
    assert wish["seeds"] == WISH["seeds"]


def asks(folder: Path) -> bool:
    return bool(json.loads(holdfast(folder, "requests", "ls", "--json").stdout)["requests"])


@pytest.mark.parametrize("leave", [CTRL_C, END])
def test_leaving_a_form_answers_nothing(folder: Path, leave: str) -> None:
    run = ["run", "bakery:builder", "--value", '"rye"', "--run-id", "rye"]
    person = Terminal([HOLDFAST, *run], cwd=folder)
    fill(person, ("loaves (integer):", leave))
    assert person.wait() == 130
    assert "the run is waiting; go on with: holdfast runs resume rye" in " ".join(person.text.split())
    assert asks(folder)
    assert "Traceback" not in person.text
    person = Terminal([HOLDFAST, "requests", "answer", "rye"], cwd=folder, columns=40)
    fill(person, ("loaves (integer):", leave))
    assert person.wait() == 130
    assert asks(folder)


def test_a_signal_that_does_not_wake_the_process_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that comes right before the process begins to wait: another thread gets it, so nothing is interrupted."""
    controller, terminal = os.openpty()
    asked, ended = threading.Event(), threading.Event()
    lines_typed = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            asked.set()

    def interrupt() -> None:
        asked.wait()
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)
        if not ended.wait(20):  # it sleeps on: wake it, so that the test ends
            lines_typed.append(os.write(controller, b"late\n"))

    monkeypatch.setattr(sys, "stderr", Screen())
    with open(terminal) as keyboard, open(controller):
        monkeypatch.setattr(sys, "stdin", keyboard)
        other = threading.Thread(target=interrupt)
        other.start()
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(read_line("?"))
        ended.set()
        other.join()
    assert not lines_typed


def test_an_answer_that_came_from_elsewhere_is_told_at_the_form(folder: Path) -> None:
    (folder / "oven").touch()
    run = ["run", "bakery:builder", "--value", '"rye"', "--run-id", "rye"]
    person = Terminal([HOLDFAST, *run], cwd=folder)
    fill(person, ("loaves (integer):", "1\r"), ("crust [1-2]:", "1\r"), ("add item 1?", "\r"), ("note", "\r"))
    assert holdfast(folder, "requests", "answer", "rye", "--value", json.dumps(WISH)).returncode == 0
    fill(person, ("sliced", "\r"), ("Is this right?", "\r"))
    assert person.wait() == 0
    assert '"3 dark rye"' in person.text


def test_a_run_that_sleeps_is_waited_for_or_left(folder: Path) -> None:
    done = holdfast(folder, "run", "bakery:sleeper", "--value", '"0.01"', "--run-id", "short")
    assert (done.returncode, done.stdout) == (0, '"rested"\n')
    done = holdfast(folder, "run", "bakery:sleeper", "--value", '"600"', "--run-id", "long", "--no-wait")
    assert (done.returncode, done.stdout) == (0, "")
    assert "it goes on in 9m, with: holdfast runs resume long" in done.stderr
    assert json.loads(holdfast(folder, "runs", "show", "long", "--json").stdout)["run"]["status"] == "waiting"


def test_without_a_terminal_an_answer_needs_a_value(folder: Path) -> None:
    assert holdfast(folder, "run", "bakery:builder", "--value", '"rye"', "--run-id", "rye").returncode == 3
    done = holdfast(folder, "requests", "answer", "rye")
    assert done.returncode == 2
    assert "--value JSON" in done.stderr
