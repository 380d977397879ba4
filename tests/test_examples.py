"""Every numbered example runs, and prints what its last comment says."""

from pathlib import Path

import pytest

from tests.programs import ROOT, run

MARK = "# Output:"


def examples() -> list[Path]:
    found = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
    if not found:
        pytest.fail("there is no examples/NN_name.py to run", pytrace=False)
    return found


def expected_output(source: str) -> str:
    """What the comment block at the end of an example says that it prints.

    >>> expected_output("print(1)\\n\\n# Output:\\n# 1\\n#\\n# 2\\n")
    '1\\n\\n2\\n'
    """
    lines = source.splitlines()
    assert MARK in lines, f"the example does not end with its output, a comment that begins with {MARK!r}"
    block = lines[len(lines) - lines[::-1].index(MARK) :]
    assert block, f"nothing follows {MARK!r}"
    for line in block:
        assert line == "#" or line.startswith("# "), f"only comment lines may follow {MARK!r}, not {line!r}"
    return "".join(f"{line[2:]}\n" for line in block)


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_example_prints_its_output(example: Path, tmp_path: Path) -> None:
    expected = expected_output(example.read_text(encoding="utf-8"))
    done = run(example, tmp_path)
    assert done.returncode == 0, f"{example.name} ended with {done.returncode}:\n{done.stderr}"
    assert done.stderr == ""
    assert done.stdout == expected


@pytest.mark.parametrize("source", ["print(1)\n", "# Output:\n", "# Output:\n# 1\nprint(2)\n"])
def test_an_example_without_its_output_is_noticed(source: str) -> None:
    with pytest.raises(AssertionError):
        expected_output(source)
