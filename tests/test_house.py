"""The rules of the house: names, sizes and words that hold in all of ``src/holdfast``.

Each rule has two lists. EXCEPTIONS break it for a reason that stands beside them. KNOWN breaks it today: entries may
only go, so an entry that breaks its rule no more fails, too.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MAP = SOURCE.parent / "docs/explanation/architecture.md"
SMALL = 100  # lines below which a module with one importer belongs to that
MOST_ARGUMENTS = 6
OPENERS = ("What", "Whether", "Where", "Who", "How", "Which", "That which", "The same")

Breaches: TypeAlias = Mapping[str, str]
"""What breaks a rule, and in what way."""


class Module(NamedTuple):
    """A module of the library: its name below ``holdfast``, its length and its syntax tree."""

    name: str
    lines: int
    is_package: bool
    tree: ast.Module


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, len(text.splitlines()), is_package, ast.parse(text))
    return found


def short(name: str) -> str:
    return name.removeprefix("holdfast.")


# -- the rules -------------------------------------------------------------------------------------


def doubled_classes() -> Breaches:
    """A class name is unique."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(short(module.name))
    return {name: f"is in {', '.join(where)}" for name, where in places.items() if len(where) > 1}


def long_constructors() -> Breaches:
    """A constructor takes at most six arguments."""
    found = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    given = method.args
                    count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                    if count > MOST_ARGUMENTS:
                        found[node.name] = f"of {short(module.name)} takes {count}"
    return found


def closets() -> Breaches:
    """A small module with one importer belongs to that, unless that imports it only when it needs it."""
    importers: dict[str, dict[str, bool]] = defaultdict(dict)
    for module in modules().values():
        for imported, at_once in imports_of(module):
            if imported != module.name:
                importers[imported][module.name] = importers[imported].get(module.name, False) or at_once
    return {
        short(name): f"has {module.lines} lines, and only {short(*importers[name])} imports it"
        for name, module in modules().items()
        if not module.is_package
        and module.lines < SMALL
        and len(importers[name]) == 1
        and all(importers[name].values())
    }


def riddles() -> Breaches:
    """A docstring says the thing, not that there is one."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                text = node.value.value
                if isinstance(text, str) and text.startswith(tuple(f"{opener} " for opener in OPENERS)):
                    found[short(module.name)].append(f"line {node.lineno} {text.splitlines()[0][:60]!r}")
    return {name: f"has {'; '.join(lines[:5])}" for name, lines in found.items()}


def gerunds() -> Breaches:
    """A module is named by a noun."""
    return {
        short(name): "is named by a gerund" for name in modules() if name.rpartition(".")[2].endswith("ing")
    }


def unlisted() -> Breaches:
    """A module has its place in the architecture, in the part of its folder."""
    parts = re.split(r"^## What is in `([a-z]+)/`$", MAP.read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = {
        room: set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", text))))
        for room, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    inside = [short(name).split(".") for name, module in modules().items() if not module.is_package]
    return {
        ".".join(path): "is not in docs/explanation/architecture.md"
        for path in inside
        if len(path) > 1 and path[-1] not in listed.get(path[0], ())
    }


def imports_of(module: Module) -> Iterator[tuple[str, bool]]:
    """Give the modules that this one imports, each with whether it does that at once."""
    if module.name == "holdfast":  # names in a table the modules that it imports when someone asks
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"holdfast.{node.value}", False
    waiting: list[tuple[ast.AST, bool]] = [(module.tree, True)]
    while waiting:
        node, at_once = waiting.pop()
        match node:
            case ast.ImportFrom(module=str(origin), level=0):
                for alias in node.names:
                    inner = f"{origin}.{alias.name}"
                    yield (inner if inner in modules() else origin), at_once
            case ast.Import():
                yield from ((alias.name, at_once) for alias in node.names)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                at_once = False
        waiting += [(child, at_once) for child in ast.iter_child_nodes(node)]


# -- what is allowed -------------------------------------------------------------------------------

EXCEPTIONS: dict[Callable[[], Breaches], dict[str, str]] = {
    doubled_classes: {
        "Executor": "holdfast.compat has the class that programs from Agent Framework name so",
    },
    long_constructors: {},
    closets: {
        "engine._fast_superstep": "a fast path has a home of its own, where it is seen",
    },
    riddles: {},
    gerunds: {
        "graph.typing": "holds what the module of that name in the standard library is about",
        "testing": "is public",
        "checkpoint.keys.keyring": "a ring",
    },
    unlisted: {},
}

KNOWN: dict[Callable[[], Breaches], frozenset[str]] = {
    doubled_classes: frozenset({}),
    long_constructors: frozenset({}),
    closets: frozenset({}),
    riddles: frozenset({}),
    gerunds: frozenset({}),
    unlisted: frozenset({}),
}


@pytest.mark.parametrize("rule", KNOWN, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rules(rule: Callable[[], Breaches]) -> None:
    broken = rule()
    allowed = EXCEPTIONS[rule].keys() | KNOWN[rule]
    new = [f"{name} {why}" for name, why in sorted(broken.items()) if name not in allowed]
    assert not new, f"{rule.__doc__}\n" + "\n".join(new)
    kept = sorted(allowed - broken.keys())
    assert not kept, f"these keep the rule by now, so take them off the list: {', '.join(kept)}"
