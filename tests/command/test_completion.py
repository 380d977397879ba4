"""``holdfast completion``: what a shell offers, and real shells that take the script."""

import asyncio
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast import open_storage
from tests.command.conftest import Command
from tests.support import shop
from tests.support.system_packages import find_program
from tests.support.terminal import Terminal

BIN = Path(sys.executable).parent
HOLDFAST = str(BIN / "holdfast")


def offered(url: str, *words: str) -> list[str]:
    """The words that bash would offer for the last one."""
    done = subprocess.run(
        [HOLDFAST],
        env={
            **os.environ,
            "HOLDFAST_STORE": url,
            "COMP_WORDS": " ".join(("holdfast", *words)),
            "COMP_CWORD": str(len(words)),
            "_HOLDFAST_COMPLETE": "bash_complete",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["runs", "show", "ord"], ["order-3", "order-2", "order-1"]),
        (["runs", "show", "@"], ["@latest"]),
        (["runs", "rm", "broken-1", "order-1"], ["order-1"]),
        (["checkpoint", "show", "order-2@"], ["order-2@4", "order-2@3", "order-2@2", "order-2@1"]),
        (["checkpoint", "diff", "order-2@1", "order-2@4"], ["order-2@4"]),
        (["requests", "answer", "order-2", "App"], ["Approve.2.1"]),
        (["requests", "answer", "order-1", "App"], []),
        (["doc"], ["doctor"]),
        (["store", "ver"], ["verify"]),
        (["runs", "ls", "--stat"], ["--status"]),
        (["runs", "ls", "--status", "wait"], ["waiting"]),
    ],
)
def test_ids_commands_and_options_are_offered(url: str, words: list[str], wanted: list[str]) -> None:
    assert offered(url, *words) == wanted


def test_a_store_that_cannot_be_read_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database")
    for name in ("text.db", "nothing.db"):
        assert offered(f"sqlite:///{tmp_path / name}", "runs", "show", "ord") == []


def test_every_shell_has_a_script(command: Command) -> None:
    for shell in ("bash", "zsh", "fish"):
        done = command("completion", shell)
        assert done.code == 0
        assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.out
    assert command("completion", "tcsh").code == 2


SHELLS = {
    "bash": (["--norc", "--noprofile"], 'eval "$(holdfast completion bash)"'),
    "zsh": (["-f"], 'autoload -Uz compinit && compinit -u && eval "$(holdfast completion zsh)"'),
    "fish": (["--private"], "holdfast completion fish | source"),
}
# What is typed, and the line that the shell makes of it.
LINES = [
    ("holdfast store veri", "holdfast store verify"),
    ("holdfast runs show brok", "holdfast runs show broken-1"),
    ("holdfast checkpoint tree eu", "holdfast checkpoint tree eu:7"),
    ("holdfast checkpoint tree eu:", "holdfast checkpoint tree eu:7"),
    ("holdfast checkpoint show broken-1@", "holdfast checkpoint show broken-1@1"),
    ("holdfast checkpoint diff order-2@1 broken-1@", "holdfast checkpoint diff order-2@1 broken-1@1"),
    ("holdfast requests answer order-2 App", "holdfast requests answer order-2 Approve.2.1"),
    ("holdfast runs ls --status=wai", "holdfast runs ls --status=waiting"),
    ("holdfast graph show Sh", "holdfast graph show Shop"),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_what_is_typed(shell: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    (tmp_path / "holdfast.toml").write_text(
        f'store = "{url}"\n[workflows]\nShop = "tests.support.shop:build"\n'
    )

    async def add() -> None:
        await shop.fill(url)
        async with open_storage(url) as storage:
            await shop.build(storage).run("nori", run_id="eu:7")

    asyncio.run(add())
    options, setup = SHELLS[shell]
    person = Terminal(
        [find_program(shell), *options],
        columns=120,
        cwd=tmp_path,
        HOME=str(tmp_path),
        ZDOTDIR=str(tmp_path),
        XDG_CONFIG_HOME=str(tmp_path),
        PS1="> ",
        PATH=f"{BIN}:{os.environ['PATH']}",
    )
    person.press(f"{setup} && echo read''y\r")
    person.wait_for("ready")

    def is_typed(line: str) -> bool:
        return any(one.endswith(line) for one in person.screen)

    for typed, wanted in LINES:
        person.press(f"{typed}\t")
        person.wait_until(partial(is_typed, wanted), wanted)
        person.press("\x15")  # Ctrl-U takes the line away
        person.wait_until(lambda: not any(map(is_typed, (line for _, line in LINES))), "an empty line")
    person.press("exit\r")
    assert person.wait() == 0
