"""The command at a pseudo-terminal: questions, colours, the pager and progress."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.cli.output import ProgressLine
from tests.command.test_reference import FORMS, normal
from tests.programs import ROOT
from tests.support.terminal import Terminal

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))


CTRL_C = "\x03"


class Talk(NamedTuple):
    code: int
    text: str


def talk(arguments: list[str], *answers: tuple[str, str], cwd: str | None = None, **environment: str) -> Talk:
    """Run the command at a terminal, and type each answer once its question is shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [HOLDFAST, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**os.environ, "TERM": "xterm", "PAGER": "cat", "COLUMNS": "100", "LINES": "30", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    text, waiting, is_interrupted = "", list(answers), False
    while True:
        # Python notices a signal late that comes right before it begins to read; a person would press the keys again.
        while is_interrupted and not select.select([ours], [], [], 1)[0]:
            process.send_signal(signal.SIGINT)
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        text += part.decode()
        if waiting and waiting[0][0] in text:
            typed = waiting.pop(0)[1]
            if typed == CTRL_C:
                is_interrupted = True
                process.send_signal(signal.SIGINT)
            else:
                os.write(ours, typed.encode())
    os.close(ours)
    assert not waiting, f"never asked: {waiting[0][0]!r} in {text!r}"
    return Talk(process.wait(timeout=60), text.replace("\r\n", "\n"))


def is_there(url: str, run_id: str) -> bool:
    return (
        subprocess.run([HOLDFAST, "--store", url, "runs", "show", run_id], capture_output=True).returncode
        == 0
    )


def test_a_person_is_asked_before_something_goes(url: str) -> None:
    refused = talk(["--store", url, "runs", "rm", "order-2"], ("[y/N]", "n\n"))
    assert refused.code == 1
    assert "nothing was changed" in refused.text
    assert is_there(url, "order-2")
    agreed = talk(["--store", url, "runs", "rm", "order-2"], ("[y/N]", "y\n"))
    assert agreed.code == 0
    assert not is_there(url, "order-2")


def test_ctrl_c_at_a_question_changes_nothing(url: str) -> None:
    left = talk(["--store", url, "runs", "rm", "order-2"], ("[y/N]", CTRL_C))
    assert left.code == 130
    assert "Traceback" not in left.text
    assert is_there(url, "order-2")


def test_prune_counts_before_it_asks(url: str) -> None:
    done = talk(["--store", url, "store", "prune", "--latest-only"], ("[y/N]", "y\n"))
    assert done.code == 0
    assert "would go for good" in done.text
    assert "were removed" in done.text


@pytest.mark.parametrize(
    ("environment", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_are_for_terminals_that_want_them(
    url: str, environment: dict[str, str], is_coloured: bool
) -> None:
    done = talk(["--store", url, "runs", "ls"], **{"NO_COLOR": "", **environment})
    assert ("\x1b[31mfailed" in done.text) is is_coloured
    assert "failed" in done.text


def test_a_diff_has_colours(url: str) -> None:
    done = talk(["--store", url, "checkpoint", "diff", "order-2@1", "order-2"], NO_COLOR="")
    assert "\x1b[32m  + Cart['item']: 'salt'" in done.text
    assert "\x1b[31m  - -> price: 'salt'" in done.text


def test_what_is_longer_than_the_terminal_goes_through_the_pager(url: str, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho PAGED\ncat\n")
    pager.chmod(0o755)
    arguments = ["--store", url, "checkpoint", "show", "order-2"]
    assert "PAGED" in talk(arguments, PAGER=str(pager), LINES="5").text
    assert "PAGED" not in talk(arguments, PAGER=str(pager), LINES="50").text


def test_control_characters_of_a_value_do_not_reach_a_terminal(url: str, tmp_path: Path) -> None:
    import asyncio

    from holdfast import open_storage
    from tests.support import shop

    async def add() -> None:
        async with open_storage(url) as storage:
            await shop.build(storage).run("\x1b[2Jred\nline", run_id="evil")

    asyncio.run(add())
    arguments = ["--store", url, "state", "get", "evil", "item", "--scope", "Cart"]
    assert talk(arguments).text == "\\x1b[2Jred\nline\n"
    assert subprocess.run([HOLDFAST, *arguments], capture_output=True).stdout == b"\x1b[2Jred\nline\n"


def test_progress_is_written_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with ProgressLine("checking", "checkpoints", clock=lambda: now) as progress:
        for done in range(0, 101, 5):
            now = done / 4
            progress(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "checking: 40 of 100 checkpoints (40%), 4/s, 15s left",
        "checking: 80 of 100 checkpoints (80%), 4/s, 5s left",
    ]


def test_progress_stays_in_one_line_of_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import time\n"
        "from holdfast.cli.output import ProgressLine\n"
        "with ProgressLine('checking', 'checkpoints') as progress:\n"
        "    for done in range(0, 1000, 100):\n"
        "        time.sleep(0.11)\n"
        "        progress(done, 1000)\n"
        "    print('done')\n"
        "    time.sleep(1)\n"
    )
    person = Terminal([sys.executable, str(tmp_path / "work.py")], columns=40, lines=8)
    assert person.wait() == 0
    assert "900 of 1,000" in person.text
    assert sum("checking" in line for line in person.scrolled) <= 1


class TestPick:
    """Choosing a checkpoint."""

    UP, ENTER = "\x1b[A", "\r"

    def test_with_arrow_keys(self, url: str) -> None:
        done = talk(
            ["--store", url, "checkpoint", "pick", "order-2", "--json"],
            ("> 4 ", self.UP),
            ("> 3 ", self.UP),
            ("> 2 ", self.ENTER),
        )
        assert done.code == 0
        chosen = done.text[done.text.rindex("\x1b[J") + 3 :]
        assert normal(chosen) == json.loads((FORMS / "checkpoint-pick.json").read_text(encoding="utf-8"))

    def test_by_number(self, url: str) -> None:
        done = talk(["--store", url, "checkpoint", "pick", "order-2"], ("> 4 ", "1"), ("> 1 ", self.ENTER))
        picked = done.text.splitlines()[-1].rpartition("\x1b[J")[2]
        shown = subprocess.run(
            [HOLDFAST, "--store", url, "checkpoint", "show", picked, "--json"],
            capture_output=True,
            check=True,
        )
        assert json.loads(shown.stdout)["checkpoint"]["seq"] == 1

    def test_a_number_that_is_not_there_chooses_nothing(self, url: str) -> None:
        pick = ["--store", url, "checkpoint", "pick", "order-1", "--json"]
        done = talk(pick, ("> 6 ", "12\r"), ("there is no number 12", "\x7f\r"))
        assert json.loads(done.text[done.text.rindex("\x1b[J") + 3 :])["checkpoint"]["seq"] == 1

    def test_pages_and_ends_are_keys(self, url: str) -> None:
        steps = [
            ("> 6 ", "\x1b[H"),
            ("> 1 ", "\x1b[6~"),
            ("> 4 ", "\x1b[F"),
            ("> 6 ", "\x1b[5~"),
            ("> 3 ", "\r"),
        ]
        pick = ["--store", url, "checkpoint", "pick", "order-1", "--json"]
        done = talk(pick, *steps, LINES="6")
        assert json.loads(done.text[done.text.rindex("\x1b[J") + 3 :])["checkpoint"]["seq"] == 3

    def test_ctrl_c_leaves_the_terminal_as_it_was(self, url: str) -> None:
        person = Terminal(["bash", "--norc", "--noprofile"], PS1="> ", HF=HOLDFAST, columns=40, lines=6)
        person.press(
            f"$HF --store {url} checkpoint pick order-2; echo code=$?; stty -a | grep -o '.icanon'\r"
        )
        person.wait_for("q to leave")
        person.press(CTRL_C)
        person.wait_until(lambda: "\ncode=130\r\n icanon" in person.text, "the terminal as it was")
        person.press("exit\r")
        person.wait()

    def test_the_list_moves_where_the_terminal_is_low(self, url: str) -> None:
        steps = [(f"> {seq} ", self.UP) for seq in range(6, 1, -1)]
        done = talk(
            ["--store", url, "checkpoint", "pick", "order-1"],
            *steps,
            ("> 1 ", self.ENTER),
            LINES="6",
            COLUMNS="40",
        )
        assert done.code == 0

    def test_the_newest_are_listed_and_an_older_one_is_a_page_away(self, url: str) -> None:
        done = talk(
            ["--store", url, "checkpoint", "pick", "order-1", "--limit", "2"],
            ("> 6 ", self.UP * 3 + self.ENTER),
        )
        assert "the last ones, from 5" in done.text
        assert "\n  4 " not in done.text.replace("\r", "")
        assert done.code == 0

    def test_leaving_chooses_nothing(self, url: str) -> None:
        done = talk(["--store", url, "checkpoint", "pick", "order-2"], ("> 4 ", "q"))
        assert done.code == 1
        assert "nothing was chosen" in done.text

    @pytest.mark.parametrize(("option", "run"), [("--fork", None), ("--resume", "order-1")])
    def test_the_run_goes_on_from_there(self, url: str, option: str, run: str | None) -> None:
        done = talk(
            [
                "--store",
                url,
                "checkpoint",
                "pick",
                "order-1",
                option,
                "tests.support.shop:build",
                "--by",
                "kim",
                "--no-wait",
            ],
            ("> 6 ", "1"),
            ("> 1 ", self.ENTER),
            PYTHONPATH=str(ROOT),
        )
        assert done.code == 3
        assert "Approve asks Approve.2.1" in done.text
        assert ("run order-1\n" in done.text) is (run is not None)

    def test_the_place_of_the_workflow_may_stand_in_the_file(self, url: str, tmp_path: Path) -> None:
        (tmp_path / "holdfast.toml").write_text('[workflows]\nShop = "tests.support.shop:build"\n')
        done = talk(
            ["--store", url, "checkpoint", "pick", "order-1", "--no-wait", "--fork"],
            ("> 6 ", "1"),
            ("> 1 ", self.ENTER),
            cwd=str(tmp_path),
            PYTHONPATH=str(ROOT),
        )
        assert done.code == 3
        assert "Approve asks Approve.2.1" in done.text

    def test_without_a_terminal_it_says_so(self, url: str) -> None:
        done = subprocess.run(
            [HOLDFAST, "--store", url, "checkpoint", "pick", "order-2"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        assert done.returncode == 2
        assert b"no terminal" in done.stderr
