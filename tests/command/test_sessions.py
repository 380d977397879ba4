"""Recorded sessions on how-to pages: their files are written and their commands run, in one folder for each page.

Ages, times and ids differ each time; they are made the same before the page is compared with what came.
``python -m tests.command.test_sessions PAGE...`` records the sessions of pages anew.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.programs import ROOT

BIN = Path(sys.executable).parent
_BLOCK = re.compile(
    r'^```(?:\w+ title="(?P<file>[\w.]+)"|(?P<console>console))\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)
PAGES = [
    page
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    if "```console\n" in page.read_text(encoding="utf-8")
]


def run_command(command: str, folder: Path) -> str:
    """Return what a reader sees of a command; a failure shows its exit code as ``echo $?`` would."""
    name = shlex.split(command)[0]
    assert name in ("python", "holdfast", "echo", "cp"), f"{command!r}: sessions call python and holdfast"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
            "COLUMNS": "100",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return done.stdout + (f"(exit code {done.returncode})\n" if done.returncode else "")


def play(text: str, folder: Path) -> str:
    """Write the files of a page and run its commands in ``folder``; return the page with the output that came."""

    def played(block: re.Match[str]) -> str:
        if block["file"]:
            (folder / block["file"]).write_text(block["text"], encoding="utf-8")
            return block[0]
        commands = [line for line in block["text"].splitlines() if line.startswith("$ ")]
        assert commands, "a console block has no command"
        shown = "".join(f"{line}\n{run_command(line[2:], folder)}" for line in commands)
        return f"```console\n{normal(shown.replace(str(folder), '/home/kim/shop'))}```"

    return _BLOCK.sub(played, text)


def normal(text: str) -> str:
    text = re.sub(r"\b\d+s ago", "0s ago", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "2026-11-18 03:00:00 UTC", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", "2026-11-18T03:00:00.000000+00:00", text)
    text = re.sub(r"^\d\d:\d\d:\d\d  ", "03:00:00  ", text, flags=re.MULTILINE)
    text = re.sub(r"\b[0-9a-f]{64}\b", "5eb63bbbe01eeed093cb22bb8f5acdc3" * 2, text)
    return re.sub(r"(?<=^.{5})[0-9a-f]{8}\b", "5eb63bbb", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_session_runs_as_it_was_recorded(page: Path, tmp_path: Path) -> None:
    told = page.read_text(encoding="utf-8")
    assert play(told, tmp_path) == told


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = '```python title="one.py"\nprint(1)\n```\n\n```console\n$ python one.py\n2\n```\n'
    assert play(page, tmp_path) == page.replace("2\n", "1\n")


JOBS = {
    "find-out-why-a-run-failed",
    "answer-from-a-script",
    "try-another-decision",
    "move-to-another-machine",
    "clean-up-from-a-terminal",
    "back-up-a-live-store",
    "recover-after-a-disk-failure",
}


def test_each_job_of_an_operator_has_a_session() -> None:
    assert {page.stem for page in PAGES} >= JOBS


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place:
            Path(name).write_text(play(Path(name).read_text(encoding="utf-8"), Path(place)), encoding="utf-8")
