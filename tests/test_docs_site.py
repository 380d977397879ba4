"""The site has every page in its navigation, and a place for every public name; ``make docs`` builds it strictly."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast
from holdfast import agents, server, testing
from tests.programs import ROOT
from tests.test_docs_claims import BETWEEN_PARTS, HELD, PUBLIC

DOCS = ROOT / "docs"
CONFIGURED = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)


def pages_in(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation, whatever it calls them."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_in(part)


def directives() -> list[tuple[str, str]]:
    """Return the names that the API reference shows, with their options."""
    pages = sorted((DOCS / "reference" / "api").glob("*.md"))
    return [found for page in pages for found in _DIRECTIVE.findall(page.read_text(encoding="utf-8") + "\n")]


def test_every_page_is_in_the_navigation_once() -> None:
    there = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(pages_in(CONFIGURED["nav"])) == there


def test_every_public_name_is_in_the_reference_once() -> None:
    wanted = [
        f"{module.__name__}.{name}"
        for module in (holdfast, testing, agents, server)
        for name in module.__all__
    ]
    folder = Path(agents.__file__).parent
    wanted += [
        f"holdfast.agents.{path.stem}.wrap"
        for path in folder.glob("*.py")
        if "\ndef wrap(" in path.read_text()
    ]
    assert sorted(name for name, _ in directives() if name != "holdfast.compat") == sorted(wanted)


def test_the_reference_shows_of_classes_what_users_call() -> None:
    """A class with parts that are not for users lists its members."""
    options = dict(directives())
    for name in HELD:
        kind = PUBLIC[name]
        members = {
            member
            for member, value in inspect.getmembers(kind)
            if member[0] != "_" and (inspect.isroutine(value) or isinstance(value, property))
        }
        listed = set(re.findall(r"^        - (\w+)$", options[f"holdfast.{name}"], re.MULTILINE))
        shown = listed or members
        hidden = BETWEEN_PARTS - {"open", "store"} if name == "CheckpointStorage" else BETWEEN_PARTS
        assert members - BETWEEN_PARTS <= shown, name
        assert not shown & hidden, name


def test_every_how_to_is_listed_and_called_by_its_title() -> None:
    index = (DOCS / "how-to" / "index.md").read_text(encoding="utf-8")
    listed = {page: title for title, page in re.findall(r"^- \[(.*)\]\((.*\.md)\)$", index, re.MULTILINE)}
    titles = {
        page.name: page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for page in (DOCS / "how-to").glob("*.md")
        if page.name != "index.md"
    }
    assert listed == titles


def test_every_decision_is_listed() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert [
        page.name for page in sorted((DOCS / "decisions").glob("0*.md")) if f"({page.name})" not in index
    ] == []
