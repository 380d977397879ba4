"""A strict type checker accepts a right program and refuses, line by line, what is wrong in another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

HERE = Path(__file__).parent
MARK = re.compile(r"# E: (?P<words>.*)$")
REPORT = re.compile(r"^(?P<file>[^:]+\.py):(?P<line>\d+): error: (?P<words>.*)$")
FOR_OUR_OWN_CHECK = "# mypy: ignore-errors"


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says about the programs of a user who has Holdfast installed: file, line, all words of the line."""
    project = tmp_path_factory.mktemp("project")
    for program in ("right.py", "wrong.py"):
        text = (HERE / program).read_text(encoding="utf-8")
        (project / program).write_text(text.replace(FOR_OUR_OWN_CHECK, "#"), encoding="utf-8")
    (project / "mypy.ini").write_text("[mypy]\nstrict = true\n", encoding="utf-8")
    options = ["--enable-error-code=unused-awaitable", "--hide-error-context", "--no-error-summary"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MYPY")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=project,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, f"mypy did not run:\n{done.stdout}{done.stderr}"
    found: dict[str, dict[int, str]] = {"right.py": {}, "wrong.py": {}}
    for line in done.stdout.splitlines():
        report = REPORT.match(line)
        if report is not None:
            lines = found.setdefault(report["file"], {})
            number = int(report["line"])
            lines[number] = f"{lines.get(number, '')}{report['words']}\n"
    return found


def test_package_tells_that_it_is_typed() -> None:
    assert (Path(holdfast.__file__).parent / "py.typed").exists()


def test_right_program_has_no_error(reported: dict[str, dict[int, str]]) -> None:
    assert reported["right.py"] == {}


def test_wrong_program_has_exactly_the_marked_errors(reported: dict[str, dict[int, str]]) -> None:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    marked = {
        number: mark["words"]
        for number, line in enumerate(lines, start=1)
        if (mark := MARK.search(line)) is not None and not line.startswith('"""')
    }
    assert len(marked) > 40
    found = reported["wrong.py"]
    unmarked = {number: words for number, words in found.items() if number not in marked}
    missed = {number: words for number, words in marked.items() if words not in found.get(number, "")}
    said = {number: found.get(number, "nothing") for number in missed}
    assert (unmarked, missed, said) == ({}, {}, {})
