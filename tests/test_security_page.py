"""SECURITY.md names a test for each threat, and each of them is there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "SECURITY.md").read_text()


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    return [line.strip("|").split(" | ") for line in lines if "---" not in line and "shown by" not in line]


def named_in(text: str) -> list[str]:
    return re.findall(r"`((?:tests/\S+\.py)|(?:test_\w+))`", text)


def test_each_threat_has_a_test_that_is_there() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    assert len(rows()) > 20
    for row in rows():
        named = named_in(row[-1])
        assert named or "in the same test" in row[-1], row[0]
        for name in named:
            assert (ROOT / name).is_file() if name.startswith("tests/") else name in defined, name


def test_the_page_says_what_people_ask() -> None:
    for heading in (
        "## Threats",
        "## Not promised",
        "## A key is lost or leaked",
        "## Report a vulnerability",
    ):
        assert heading in PAGE
