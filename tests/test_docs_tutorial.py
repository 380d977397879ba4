"""The tutorial is one story: its files are written and its commands run, page after page, in one folder."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.programs import ROOT

TUTORIAL = ROOT / "docs" / "tutorial"
_BLOCK = re.compile(
    r'^```(?:python title="(?P<file>[\w.]+)"|(?P<console>console))\n(?P<text>.*?)^```$', re.M | re.S
)


def pages() -> list[Path]:
    """Return the pages in the order in which the first one lists them."""
    index = (TUTORIAL / "index.md").read_text(encoding="utf-8")
    return [TUTORIAL / name for name in re.findall(r"^\d\. \[.*\]\((.*\.md)\)$", index, re.M)]


def run_command(command: str, folder: Path) -> str:
    """Return what a reader sees of a command, with the word of the shell for a process that was killed."""
    python, *arguments = shlex.split(command)
    assert python == "python", f"{command!r} is no call of python"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "utf8", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    killed = done.returncode == -signal.SIGKILL
    assert done.returncode == 0 or killed, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout + ("Killed\n" if killed else "")


def play(text: str, folder: Path) -> str:
    """Write the files of a page and run its commands in ``folder``; return the page with the output that came."""

    def played(block: re.Match[str]) -> str:
        if block["file"]:
            (folder / block["file"]).write_text(block["text"], encoding="utf-8")
            return block[0]
        commands = [line for line in block["text"].splitlines() if line.startswith("$ ")]
        assert commands, "a console block has no command"
        shown = "".join(f"{line}\n{run_command(line[2:], folder)}" for line in commands)
        return f"```console\n{shown}```"

    return _BLOCK.sub(played, text)


def test_every_page_is_part_of_the_story() -> None:
    assert sorted(pages()) == sorted(set(TUTORIAL.glob("*.md")) - {TUTORIAL / "index.md"})


def test_every_program_of_a_page_is_a_file_of_the_story() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert text.count("```python") == len([block for block in _BLOCK.finditer(text) if block["file"]])


def test_the_story_runs_as_it_is_told(tmp_path: Path) -> None:
    for page in pages():
        told = page.read_text(encoding="utf-8")
        assert play(told, tmp_path) == told, f"{page.name} shows something else than its commands print"


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = '```python title="one.py"\nprint(1)\n```\n\n```console\n$ python one.py\n2\n```\n'
    assert play(page, tmp_path) == page.replace("2\n", "1\n")
