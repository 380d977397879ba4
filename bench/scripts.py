"""What supersteps do to state, as data: each side plays the same script with its own API.

A script is a list with one list of operations for each superstep. It is made before the clock starts, and
`expected` plays it on a plain dict, which is what every side has to end with.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from bench.inputs import log_text, words

Params: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Set:
    """A key gets a value."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class AppendItem:
    """A list gets one item more."""

    key: str
    item: str


@dataclass(frozen=True, slots=True)
class AppendText:
    """A text grows at its end."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Again:
    """A text is read, grows at its end, and is stored as a whole, by someone who knows no better."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Put:
    """Keys of a large mapping get values."""

    entries: Mapping[str, str]


Operation: TypeAlias = Set | AppendItem | AppendText | Again | Put
Script: TypeAlias = Sequence[Sequence[Operation]]


def counter(params: Params) -> Script:
    """A small number changes."""
    return [[Set("counter", number)] for number in range(params["supersteps"])]


def log(params: Params) -> Script:
    """W3: a large log is put into state, then only a counter changes."""
    first = [Set("log", log_text(params["size"])), Set("counter", 0)]
    return [first, *([Set("counter", number)] for number in range(1, params["supersteps"]))]


def history(params: Params) -> Script:
    """W4: a list gets one message in each superstep."""
    return [
        [AppendItem("history", words(number, params["message"]))] for number in range(params["supersteps"])
    ]


def _growing(params: Params, kind: Callable[[str, str], Operation]) -> Script:
    first = [Set("text", log_text(params["size"]))]
    numbers = range(1, params["supersteps"])
    return [first, *([kind("text", words(number, params["message"]))] for number in numbers)]


def text(params: Params) -> Script:
    """W8: a large text grows."""
    return _growing(params, AppendText)


def text_again(params: Params) -> Script:
    """W8: a large text grows, and is stored as a whole each time."""
    return _growing(params, Again)


def keys(params: Params) -> Script:
    """W9: many keys, of which one changes in each superstep."""
    count = params["keys"]
    first = [Put({f"key{number}": f"value {number}" for number in range(count)})]
    numbers = range(1, params["supersteps"])
    return [first, *([Put({f"key{number * 37 % count}": f"changed {number}"})] for number in numbers)]


def tools(params: Params) -> Script:
    """W10: a model asks, a tool answers at length, in turn."""
    found: list[list[Operation]] = []
    for number in range(params["rounds"]):
        found.append([AppendItem("history", f'{{"call": "read_file", "n": {number}}}')])
        found.append([AppendItem("history", words(number, params["result"]))])
    return found


SCRIPTS: dict[str, Callable[[Params], Script]] = {
    "W3": log,
    "W4": history,
    "W7": counter,
    "W8": text,
    "W8-whole": text_again,
    "W9": keys,
    "W10": tools,
}


def expected(script: Script) -> dict[str, Any]:
    """The state that a script leads to."""
    state: dict[str, Any] = {}
    for operations in script:
        for operation in operations:
            match operation:
                case Set(key, value):
                    state[key] = value
                case AppendItem(key, item):
                    state.setdefault(key, []).append(item)
                case AppendText(key, added) | Again(key, added):
                    state[key] = state.get(key, "") + added
                case Put(entries):
                    state.setdefault("keys", {}).update(entries)
    return state


def summary(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state in a few numbers that no other state has, short enough for the line of a worker."""
    return {key: _digest(value) for key, value in sorted(state.items())}


def _digest(value: Any) -> Any:
    if isinstance(value, str):
        return [len(value), zlib.crc32(value.encode())]
    if isinstance(value, Mapping):
        return [len(value), zlib.crc32(repr(sorted(value.items())).encode())]
    if isinstance(value, Sequence):
        return [len(value), zlib.crc32("\n".join(value).encode())]
    return value
