"""What pages say of the code in tables and lists, where no program shows it."""

import dataclasses
import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, HoldfastWarning, Limits, RetryPolicy, Store, WorkflowEvent, errors
from tests.programs import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
# Pages that someone wrote: those of the API list names without a word about them, and decisions are for us.
WRITTEN = [page for page in PAGES if page.parent.name not in ("api", "decisions")]
PUBLIC: dict[str, Any] = {name: getattr(holdfast, name) for name in holdfast.__all__}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}

# What users hold and call.
HELD = ("CheckpointStorage", "Host", "Run", "RunResult", "Workflow", "WorkflowBuilder", "WorkflowContext")
# What workflows, hosts and storages call of each other; nobody else needs it.
BETWEEN_PARTS = {
    "abandon",
    "ask_later",
    "begin",
    "check_stored",
    "driven",
    "event_feed",
    "go_on",
    "forked",
    "introduce_to",
    "leave_out_replay",
    "warn_at_start",
    "open",
    "rest_if_idle",
    "resumed",
    "stand_still",
    "store",
    "take",
}

EFFECTS = (
    "an effect whose result is journaled is not repeated, before that a crash repeats it with the same key. So does a "
    "process that stands still in the effect, or right before it, while another takes its run over."
)
PROMISE = (
    "A commit has one winner; turns are at-least-once until their outcome is journaled, then never again; "
    + EFFECTS
)
REMINDER = (
    "Never load checkpoints from a source that you do not trust, or that someone may have tampered with"
)

_SPAN = re.compile(r"`([^`]+)`")
_WORD = re.compile(r"\w+")


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """The text of a page from a heading to the next of its rank."""
    found = text_of(DOCS / page).partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"{page} has no section {title!r}"
    return found


def rows(text: str, header: str) -> dict[str, list[str]]:
    """The rows below a table's header, by the names in the first cell; a cell with several names gives several."""
    lines = text.partition(f"| {header} |")[2].split("\n\n")[0].splitlines()[2:]
    assert lines, f"there is no table with the header {header!r}"
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {name: row for row in cells for name in _SPAN.findall(row[0])}


def test_the_methods_of_a_store_are_those_of_the_protocol() -> None:
    text = text_of(DOCS / "how-to" / "write-a-store.md").partition("The docstrings of")[0]
    listed = _SPAN.findall(text.partition("`holdfast.Store`:")[2])
    methods = [name for name, value in vars(Store).items() if inspect.isroutine(value) and name[0] != "_"]
    assert sorted(listed) == sorted(methods)


def test_every_warning_has_a_row() -> None:
    found = rows(section("reference/events.md", "Warnings"), "warning")
    kinds = [name for name, kind in CLASSES.items() if issubclass(kind, HoldfastWarning)]
    assert sorted(found) == sorted(name for name in kinds if name != "HoldfastWarning")


def test_every_event_has_a_row_with_its_fields() -> None:
    found = rows(section("reference/events.md", "Events"), "event")
    kinds = {
        name: kind
        for name, kind in CLASSES.items()
        if issubclass(kind, WorkflowEvent) and kind is not WorkflowEvent
    }
    assert sorted(found) == sorted(kinds)
    common = {field.name for field in dataclasses.fields(WorkflowEvent)}
    for name, kind in kinds.items():
        told = {span for span in _SPAN.findall(found[name][1]) if span.isidentifier()}
        fields = {field.name for field in dataclasses.fields(kind)} - common
        shown = fields | {part for part, value in vars(kind).items() if isinstance(value, property)}
        assert told <= shown, f"{name} has no {sorted(told - shown)}"
        assert fields <= told, f"the row of {name} misses {sorted(fields - told)}"


@pytest.mark.parametrize(("title", "name"), [("Checkpoints", "CheckpointInfo"), ("Runs", "RunInfo")])
def test_the_keys_of_infos_are_listed(title: str, name: str) -> None:
    listed = section("reference/json-forms.md", title).partition(f"`{name}.to_dict()`")[2].partition(": ")[2]
    written = json.loads((ROOT / f"tests/unit/json_forms/{name}.json").read_text(encoding="utf-8"))
    assert set(_SPAN.findall(listed)) == set(written)


def number(cell: str) -> float:
    """The number that a cell says.

    >>> number("100,000"), number("2^30"), number("0.5")
    (100000.0, 1073741824.0, 0.5)
    """
    base, _, power = cell.replace(",", "").partition("^")
    return float(base) ** float(power or 1)


def test_limits_have_the_defaults_that_are_said() -> None:
    found = rows(section("reference/limits.md", "Limits"), "limit")
    said = {name.removeprefix("Limits(").removesuffix("=)"): number(row[1]) for name, row in found.items()}
    parameters = inspect.signature(holdfast.WorkflowBuilder).parameters
    assert said.pop("WorkflowBuilder(max_iterations") == parameters["max_iterations"].default
    assert said == {field.name: field.default for field in dataclasses.fields(Limits)}


def test_retries_have_the_defaults_that_are_said() -> None:
    found = rows(text_of(DOCS / "how-to" / "retry-and-time-out.md"), "`RetryPolicy`")
    defaults = {field.name: field.default for field in dataclasses.fields(RetryPolicy)}
    assert sorted(found) == sorted(defaults)
    assert defaults.pop("retry_on") is Exception
    assert {name: number(found[name][1]) for name in defaults} == defaults


def test_every_error_is_on_some_page() -> None:
    words = {word for page in WRITTEN for word in _WORD.findall(text_of(page))}
    errors = [name for name, kind in CLASSES.items() if issubclass(kind, Exception)]
    assert [name for name in errors if name not in words] == []


def test_the_tree_of_errors_has_every_class_below_its_base() -> None:
    path: list[str] = []
    found = {}
    for spaces, name in re.findall(r"^    ([│├└─ ]*)(\w+)", str(errors.__doc__), re.MULTILINE):
        path = [*path[: len(spaces) // 4], name]
        found[name] = path[-2] if len(path) > 1 else None
    roots = (HoldfastError, HoldfastWarning)
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, roots)]
    assert found == {kind.__name__: None if kind in roots else kind.__bases__[0].__name__ for kind in kinds}


def test_every_error_stands_beside_its_kind() -> None:
    table = section("reference/errors.md", "Kinds of errors")
    found = {kind: set(_SPAN.findall(row[2])) for kind, row in rows(table, "kind").items()}
    errors = {name: kind for name, kind in CLASSES.items() if issubclass(kind, HoldfastError)}
    del errors["HoldfastError"]
    assert found == {
        kind: {name for name, error in errors.items() if error.kind == kind}
        for kind in ("not_found", "conflict", "invalid", "limit", "storage", "failed")
    }
    assert HoldfastError.kind == "failed"  # that of errors which a store of your own raises


@pytest.mark.parametrize("name", HELD)
def test_every_method_is_on_some_page(name: str) -> None:
    """Someone who reads the pages meets all that can be called."""
    words = {word for page in WRITTEN for word in _WORD.findall(text_of(page))}
    methods = [
        method
        for method, value in inspect.getmembers(PUBLIC[name])
        if method[0] != "_" and (inspect.isroutine(value) or isinstance(value, property))
    ]
    assert methods
    assert [method for method in methods if method not in words and method not in BETWEEN_PARTS] == []


def test_a_page_that_states_the_promise_states_it_in_its_words() -> None:
    stating = [page for page in PAGES if "at-least-once until" in " ".join(text_of(page).split())]
    assert len(stating) >= 2
    assert [page.name for page in stating if PROMISE not in " ".join(text_of(page).split())] == []


@pytest.mark.parametrize(
    ("page", "promise"),
    [
        ("README.md", PROMISE),
        ("docs/explanation/durability.md", PROMISE),
        ("docs/decisions/0036-processes-that-stand-still.md", EFFECTS),
    ],
)
def test_the_promise_is_the_same_everywhere(page: str, promise: str) -> None:
    assert promise in " ".join(text_of(ROOT / page).split())


@pytest.mark.parametrize(
    "page", ["README.md", "docs/explanation/trust-boundary.md", "docs/from-agent-framework.md"]
)
def test_readers_are_told_whom_to_trust(page: str) -> None:
    text = " ".join(text_of(ROOT / page).split())
    assert REMINDER.lower() in text.lower()
    assert "trust boundary" in text


def test_links_lead_to_pages_and_sections() -> None:
    broken = []
    for page in PAGES:
        prose = re.sub(r"`[^`\n]*`", "", text_of(page))
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            linked = (page.parent / path).resolve() if path else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


@cache
def anchors(page: Path) -> frozenset[str]:
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return frozenset(slugs | set(re.findall(r"^::: (\S+)$", text_of(page), re.MULTILINE)))


ROOMS = ("graph", "engine", "runtime", "checkpoint", "stores", "cli", "server")


@pytest.mark.parametrize("room", ROOMS)
def test_the_architecture_names_every_module(room: str) -> None:
    """A contributor who looks for a module finds it on the page, and no module that is gone."""
    tables = section("explanation/architecture.md", f"What is in `{room}/`")
    named = {
        name
        for line in tables.splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`(\w+)`", line.rpartition(" | ")[0])
    }
    folder = ROOT / "src" / "holdfast" / room
    modules = {path.stem for path in folder.rglob("*.py") if path.stem != "__init__"}
    assert sorted(modules ^ named) == []
