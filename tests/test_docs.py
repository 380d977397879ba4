"""Every python block of README.md and docs/ runs, and prints what the page shows.

``test_docs_tutorial`` runs those of the tutorial, whose programs are files of one folder.
"""

from pathlib import Path

import pytest

from tests.programs import ROOT, Program, programs, run_program

TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent != TUTORIAL),
]


def shown() -> list[Program]:
    for needed in (ROOT / "README.md", ROOT / "docs"):
        if not needed.exists():
            pytest.fail(f"{needed.name} is missing: there is no documentation to run", pytrace=False)
    return [program for page in PAGES for program in programs(page)]


def program_id(program: Program) -> str:
    return f"{program.page.relative_to(ROOT).as_posix()}:{program.line}"


@pytest.mark.parametrize("program", shown(), ids=program_id)
def test_block_runs(program: Program, tmp_path: Path) -> None:
    run_program(program, tmp_path)


def test_readme_opens_with_a_program_and_its_output() -> None:
    first = programs(ROOT / "README.md")[0]
    assert first.output, "README.md shows no ```text block right after its first program"


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    with pytest.raises(AssertionError, match="something else than the page shows"):
        run_program(programs(page)[0], tmp_path)


def test_a_warning_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nimport socket\nsocket.socket()\n```\n")  # never closed: a ResourceWarning
    with pytest.raises(AssertionError, match="wrote to stderr"):
        run_program(programs(page)[0], tmp_path)


def test_a_continued_block_sees_the_names_of_the_one_before(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\na = 1\n```\n\nThen:\n\n<!-- continues -->\n```python\nprint(a)\n```\n```text\n1\n```\n"
    )
    (program,) = programs(page)
    assert program.source.splitlines()[8] == "print(a)"  # the line of the page
    run_program(program, tmp_path)


def test_a_block_alone_does_not_see_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\na = 1\n```\n\nThen:\n\n```python\nprint(a)\n```\n")
    with pytest.raises(AssertionError, match="NameError"):
        run_program(programs(page)[1], tmp_path)
