"""Every command that ``--help`` shows is run here, with its JSON in a golden file, and stands in the reference.

A form that changes is a change for users: edit its file in ``json`` by hand, the reference and the changelog.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from holdfast.cli.exit_codes import ExitCode
from holdfast.cli.main import holdfast
from tests.command.conftest import Command
from tests.programs import ROOT

FORMS = Path(__file__).parent / "json"
PAGE = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")

# A call of each command, on the store of the shop.
CALLS = {
    "run": ["tests.support.shop:build", "--value", '"nori"', "--run-id", "new"],
    "runs resume": ["order-2", "tests.support.shop:build"],
    "runs fork": ["order-2@4", "tests.support.shop:build", "--run-id", "other"],
    "graph show": ["tests.support.shop:build"],
    "graph check": ["tests.support.shop:build"],
    "runs ls": ["--limit", "2"],
    "runs show": ["order-2"],
    "runs watch": ["order-2", "--after", "4.0"],
    "runs cancel": ["order-2", "--by", "kim"],
    "runs send": ["order-2", "--value", '"nori"'],
    "runs rm": ["order-2", "--yes"],
    "requests ls": ["--limit", "1"],
    "requests show": ["order-2"],
    "requests answer": ["order-2", "--value", "true"],
    "checkpoint ls": ["order-2", "--limit", "1"],
    "checkpoint tree": ["broken-1"],
    "checkpoint show": ["order-2"],
    "checkpoint diff": ["order-2@1", "order-2"],
    "checkpoint tag": ["order-2@2", "good", "--by", "kim"],
    "state get": ["order-2", "item", "--scope", "Cart"],
    "store stats": [],
    "store verify": [],
    "store repair": ["--dry-run"],
    "store prune": ["--keep-last", "1", "--dry-run"],
    "store vacuum": [],
    "store copy": ["sqlite:///FOLDER/copy.db"],
    "store backup": ["FOLDER/backup.db"],
    "store export": ["order-2", "FOLDER/order.run"],
    "store import": ["FOLDER/given.run"],
    "completion": ["bash"],
}


# These ask a person, take long, need keys, depend on the machine or go on until they are told to stop: test_terminal,
# test_demo, test_doctor, test_keys and tests/service/test_lifecycle.py compare their JSON.
ELSEWHERE = {"checkpoint pick", "demo", "doctor", "serve", "keys new", "keys rotate", "store rekey"}


def commands(
    group: click.Group = holdfast, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


ALL = dict(commands())


def normal(text: str) -> Any:
    """The output with times, ids and cursors made the same each time."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "ID", text)
    text = re.sub(r'("(?:\w*bytes|before|after|freed|seconds)"): [\d.]+', r'\1: "NUMBER"', text)
    text = re.sub(r'"\[\d{16},', '"[MICROSECONDS,', text)
    text = re.sub(r'(File \\").*?(\\", line )\d+', r"\1PATH\2N", text)
    text = re.sub(r'"script": ".*"', '"script": "SCRIPT"', text)  # test_completion runs it
    try:
        return json.loads(text)
    except json.JSONDecodeError:  # a line for each result
        return [json.loads(line) for line in text.splitlines()]


def test_every_command_is_called_here() -> None:
    assert sorted([*CALLS, *ELSEWHERE]) == sorted(ALL)
    assert sorted(path.stem for path in FORMS.glob("*.json")) == sorted(
        name.replace(" ", "-") for name in ALL
    )


@pytest.mark.parametrize("name", CALLS)
def test_json_has_the_form_of_the_golden_file(shopping: Command, name: str, url: str, tmp_path: Path) -> None:
    if name == "store import":
        shopping("store", "export", "order-2", str(tmp_path / "given.run"))
    arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in CALLS[name]]
    done = shopping(*name.split(), *arguments, "--json")
    if name == "store backup" and url.startswith("file"):  # a directory has none
        assert done.code == ExitCode.USAGE
        return
    assert done.code in (ExitCode.OK, ExitCode.WAITING), done.err
    wanted = json.loads((FORMS / f"{name.replace(' ', '-')}.json").read_text(encoding="utf-8"))
    assert normal(done.out.replace(str(tmp_path), "FOLDER")) == wanted
    assert done.err == ""


def is_fitting(line: str, width: int) -> bool:
    """True if a line fits, or has a word that does not: an id or a path is not broken."""
    return len(line) <= width or max(map(len, line.split())) > width - 16


@pytest.mark.parametrize("width", [40, 80])
def test_every_command_is_readable_on_a_narrow_terminal(
    shopping: Command, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shopping("store", "export", "order-3", str(tmp_path / "given.run"))
    shopping("runs", "rm", "order-3", "--yes")
    calls = {**CALLS, "doctor": ["--quick"], "runs watch": ["order-1"]}
    written = 0
    for name, arguments in calls.items():
        if name in ("completion", "graph show"):  # for programs
            continue
        done = shopping(*name.split(), *(part.replace("FOLDER", str(tmp_path)) for part in arguments))
        lines = done.out.splitlines()
        written += len(lines)
        assert [line for line in lines if not is_fitting(line, width)] == [], name
    assert written > 80


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_stands_in_the_reference(name: str) -> None:
    parts = re.split(rf"\n### `holdfast {name}(?=[ `])", PAGE)
    section = re.split(r"\n##+ ", parts[1])[0] if len(parts) > 1 else ""
    assert section, f"docs/reference/command.md has no section for 'holdfast {name}'"
    missing = [
        option
        for parameter in ALL[name].params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if option not in ("--store", "--json") and f"`{option}" not in section
    ]
    assert missing == []


def test_the_reference_has_no_command_that_is_not_there() -> None:
    assert sorted(re.findall(r"^### `holdfast (\w+(?: [a-z]+)?)", PAGE, re.MULTILINE)) == sorted(ALL)


def test_every_exit_code_stands_in_the_reference() -> None:
    said = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert said == {code.value for code in ExitCode}


@pytest.mark.parametrize("name", sorted({"", *ALL, *(name.partition(" ")[0] for name in ALL)}))
def test_help_fits_80_columns_and_says_what_is_done(command: Command, name: str) -> None:
    done = command(*name.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    assert len(done.out.splitlines()[2].strip()) > 10
