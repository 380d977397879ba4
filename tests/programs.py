"""Finds the programs that the documentation shows, and runs them as a reader would."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w+-]*)[^`]*$")
_CONTINUES = "<!-- continues -->"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``line`` is where its text begins, counted from 1."""

    language: str
    text: str
    line: int
    continues: bool


@dataclass(frozen=True)
class Program:
    """What runs in one process: a block and those that continue it, with the output that the page shows."""

    page: Path
    line: int
    source: str
    output: str | None

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page.

    >>> [(b.language, b.text, b.line) for b in blocks("One:\\n```python\\nprint(1)\\n```\\n")]
    [('python', 'print(1)\\n', 3)]
    """
    lines = text.splitlines()
    above = ""
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            if lines[number].strip():
                above = lines[number].strip()
            number += 1
            continue
        number += 1
        first = number
        while number < len(lines) and lines[number].strip() != opening["ticks"]:
            number += 1
        if number == len(lines):
            raise ValueError(f"the block opened in line {first} is never closed")
        body = [line.removeprefix(opening["indent"]) for line in lines[first:number]]
        yield Block(
            opening["language"], "".join(f"{line}\n" for line in body), first + 1, above == _CONTINUES
        )
        above = ""
        number += 1


def programs(page: Path) -> list[Program]:
    """The Python programs of a page, in order."""
    found: list[Program] = []
    before: Block | None = None
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            # Blank lines up to the block's place, so that a traceback gives the line of the page.
            if block.continues:
                if not found:
                    raise ValueError(f"{page}:{block.line}: continues, but no python block is before it")
                last = found[-1]
                gap = "\n" * (block.line - 1 - last.source.count("\n"))
                found[-1] = replace(last, source=last.source + gap + block.text)
            else:
                found.append(Program(page, block.line, "\n" * (block.line - 1) + block.text, None))
        elif block.language == "text" and before is not None and before.language == "python":
            found[-1] = replace(found[-1], output=(found[-1].output or "") + block.text)
        before = block
    return found


def run(script: Path, cwd: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run ``script`` with warnings as errors, in a directory where it may leave files."""
    return subprocess.run(
        [python, "-W", "error", "-X", "utf8", str(script)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def run_program(program: Program, cwd: Path, python: str = sys.executable) -> None:
    """Run ``program`` and compare what it prints with what its page shows."""
    script = cwd / f"{program.page.stem}.py"
    script.write_text(program.source, encoding="utf-8")
    done = run(script, cwd, python)
    assert done.returncode == 0, f"{program.name} ended with {done.returncode}:\n{done.stderr}"
    assert done.stderr == "", f"{program.name} wrote to stderr:\n{done.stderr}"
    if program.output is not None:
        assert done.stdout == program.output, f"{program.name} prints something else than the page shows"
