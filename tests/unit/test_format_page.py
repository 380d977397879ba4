"""The fields, keys, codes and tables that docs/reference/format.md lists are those that the library writes."""

import re
import sqlite3

import pytest

from holdfast import Cause, Phase, RunStatus
from holdfast.checkpoint.codec import wire
from holdfast.checkpoint.format import document
from holdfast.checkpoint.transfer.export_frames import pack_head
from holdfast.stores.sqlite import schema
from tests.programs import ROOT
from tests.support.parts import CheckpointId, Head, RunId

PAGE = (ROOT / "docs" / "reference" / "format.md").read_text()


def section(title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def first_column(text: str) -> list[str]:
    """The names in code in the first column of a table."""
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_heads() -> None:
    assert sorted(first_column(section("Heads"))) == sorted(Head._fields)
    for status in RunStatus:
        assert f"`{status}`" in section("Heads")


def test_heads_of_exports() -> None:
    head = Head(RunId("r"), "w", RunId("r"), CheckpointId("00"), 1, 1, RunStatus.STOPPED, 0, 0)
    told = section("Exported runs").partition("That is a map of")[2].partition("There is no owner")[0]
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(pack_head(head))


def test_causes_and_phases_of_headers() -> None:
    for name in (*Cause, *Phase):
        assert f"`{name}`" in section("Records")


def test_keys_of_changes() -> None:
    assert sorted(first_column(section("Changes"))) == sorted([*document._UNPACKED, "values"])


def test_codes_of_values() -> None:
    codes = {number for name, number in vars(wire).items() if name.isupper() and type(number) is int}
    codes -= {wire.MAX_EXTENSIONS, wire.MAX_NESTING, wire.MAX_ALIKE, wire.NATIVE}
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", section("Values"), re.MULTILINE)]
    assert listed == sorted(codes)
    documented = [int(code) for code in re.findall(r"^ ?(\d+)   ", wire.__doc__ or "", re.MULTILINE)]
    assert documented == listed


def columns(statements: list[str]) -> dict[str, list[tuple[object, ...]]]:
    """The columns of all tables that statements make."""
    with sqlite3.connect(":memory:") as database:
        for statement in statements:
            database.execute(statement)
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        found = {name: database.execute(f"PRAGMA table_info({name})").fetchall() for (name,) in tables}
    database.close()
    return found


def test_tables_of_sqlite() -> None:
    listed = re.sub(r"--.*", "", section("SQLite").partition("```sql\n")[2].partition("```")[0])
    made = [statement for statement in (*schema.TABLES, *schema.MAIL_TABLES) if "CREATE TABLE" in statement]
    assert columns([part for part in listed.split(";") if part.strip()]) == columns(made)


@pytest.mark.parametrize("number", [f"{1 << 18:,}", "1,024", "4,096", "2^31", "128 KiB"])
def test_numbers(number: str) -> None:
    assert number in PAGE
