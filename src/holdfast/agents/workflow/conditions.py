"""Conditions of edges and approvals as data: they can be compared, drawn, stored and read again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.errors import GraphError

Predicate: TypeAlias = Callable[[Mapping[str, Any]], object]
"""Decides from the outputs of an agent; any true value takes the edge."""

TYPE_KEY, HANDOFF_KEY, ERROR_KEY = "matched_type", "handoff", "error"
"""The keys of outputs that say the type of a structured output, the agent that a router chose, and an error."""

_MISSING = object()


def _is_empty(value: Any) -> bool:
    return value is _MISSING or value is None or (hasattr(value, "__len__") and len(value) == 0)


def _compare(value: Any, other: Any, decide: Callable[[Any, Any], bool]) -> bool:
    try:
        return bool(decide(value, other))
    except TypeError:  # a text is neither more nor less than a number
        return False


def _text_test(test: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, other: isinstance(value, str) and test(value, other)


def _contains(value: Any, other: Any) -> bool:
    if value is _MISSING or value is None:
        return False
    if isinstance(value, str):
        return isinstance(other, str) and other in value
    return _compare(value, other, lambda held, wanted: wanted in held)


_TESTS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "equals": ("is", lambda value, other: value is not _MISSING and bool(value == other)),
    "not_equals": ("is not", lambda value, other: value is _MISSING or bool(value != other)),
    "exists": ("exists", lambda value, _: value is not _MISSING and value is not None),
    "not_exists": ("does not exist", lambda value, _: value is _MISSING or value is None),
    "greater_than": (">", lambda value, other: _compare(value, other, lambda a, b: a > b)),
    "less_than": ("<", lambda value, other: _compare(value, other, lambda a, b: a < b)),
    "at_least": (">=", lambda value, other: _compare(value, other, lambda a, b: a >= b)),
    "at_most": ("<=", lambda value, other: _compare(value, other, lambda a, b: a <= b)),
    "contains": ("contains", _contains),
    "starts_with": ("starts with", _text_test(str.startswith)),
    "ends_with": ("ends with", _text_test(str.endswith)),
    "matches": ("matches", _text_test(lambda value, pattern: re.search(pattern, value) is not None)),
    "empty": ("is empty", lambda value, _: _is_empty(value)),
    "not_empty": ("is not empty", lambda value, _: not _is_empty(value)),
    "contains_any": (
        "contains any of",
        lambda value, others: any(_contains(value, other) for other in others),
    ),
    "contains_all": (
        "contains all of",
        lambda value, others: all(_contains(value, other) for other in others),
    ),
}
"""The tests of one output: how they read, and what they decide."""

UNARY = frozenset({"exists", "not_exists", "empty", "not_empty"})
LISTS = frozenset({"contains_any", "contains_all"})
TEXTS = frozenset({"starts_with", "ends_with", "matches"})
JOINS = ("all", "any", "not")
TEST_NAMES = tuple(_TESTS)


@dataclass(frozen=True)
class EdgeCondition:
    """A condition on the outputs of an agent, as data.

    >>> urgent = EdgeCondition.test("equals", "priority", "P0")
    >>> urgent.holds({"priority": "P0"}), str(urgent & ~EdgeCondition.test("exists", "owner"))
    (True, "priority is 'P0' and not (owner exists)")
    >>> EdgeCondition.from_data(urgent.to_data()) == urgent
    True
    """

    name: str
    """A test, like ``"equals"``; or ``"all"``, ``"any"``, ``"not"``, ``"always"``, ``"type"``, ``"predicate"``."""
    field: str | None = None
    value: Any = None
    parts: tuple[EdgeCondition, ...] = ()
    predicate: Predicate | None = None

    @classmethod
    def test(cls, name: str, field: str, value: Any = None) -> EdgeCondition:
        """Return the condition that an output passes a test; raise ``GraphError`` if it cannot be meant."""
        if name not in _TESTS:
            raise GraphError(f"there is no test {name!r} for an edge; there are {', '.join(_TESTS)}")
        given: object = field
        if not isinstance(given, str) or not given:
            raise GraphError(f"the test {name!r} of an edge needs the key of an output, not {field!r}")
        if name in LISTS:
            if isinstance(value, str | bytes) or not isinstance(value, Iterable):
                raise GraphError(f"the test {name!r} of {field!r} takes a list of values, not {value!r}")
            value = tuple(value)
        if name in TEXTS and not isinstance(value, str):
            raise GraphError(f"the test {name!r} of {field!r} takes a text, not {value!r}")
        if name == "matches":
            try:
                re.compile(value)
            except re.error as error:
                raise GraphError(
                    f"the pattern {value!r} of {field!r} is no regular expression: {error}"
                ) from None
        return cls(name, field, value)

    @classmethod
    def always(cls) -> EdgeCondition:
        """Return the condition that always holds."""
        return cls("always")

    @classmethod
    def of_type(cls, type_name: str) -> EdgeCondition:
        """Return the condition that the structured output is of a type, by the name of its class."""
        return cls("type", value=type_name)

    @classmethod
    def of(cls, given: EdgeCondition | Predicate) -> EdgeCondition:
        """Return a condition, or the one that asks a function."""
        if isinstance(given, EdgeCondition):
            return given
        if not callable(given):
            raise GraphError(f"when(...) takes an EdgeCondition or a function of the outputs, not {given!r}")
        return cls("predicate", value=getattr(given, "__qualname__", repr(given)), predicate=given)

    def __and__(self, other: EdgeCondition) -> EdgeCondition:
        return EdgeCondition("all", parts=(self, other))

    def __or__(self, other: EdgeCondition) -> EdgeCondition:
        return EdgeCondition("any", parts=(self, other))

    def __invert__(self) -> EdgeCondition:
        return EdgeCondition("not", parts=(self,))

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if outputs meet the condition."""
        match self.name:
            case "always":
                return True
            case "all":
                return all(part.holds(outputs) for part in self.parts)
            case "any":
                return any(part.holds(outputs) for part in self.parts)
            case "not":
                return not self.parts[0].holds(outputs)
            case "type":
                return bool(outputs.get(TYPE_KEY) == self.value)
            case "predicate":
                assert self.predicate is not None
                return bool(self.predicate(outputs))
        assert self.field is not None
        return _TESTS[self.name][1](_find(outputs, self.field), self.value)

    def __str__(self) -> str:
        match self.name:
            case "always":
                return "always"
            case "all" | "any":
                word = " and " if self.name == "all" else " or "
                return word.join(
                    f"({part})" if part.name in ("all", "any") else str(part) for part in self.parts
                )
            case "not":
                return f"not ({self.parts[0]})"
            case "type":
                return f"the output is a {self.value}"
            case "predicate":
                return f"predicate {self.value}"
        words = f"{self.field} {_TESTS[self.name][0]}"
        if self.name in UNARY:
            return words
        return f"{words} {list(self.value) if self.name in LISTS else self.value!r}"

    def predicates(self) -> list[str]:
        """Return the names of the functions that it asks: they cannot be written down."""
        own = [str(self.value)] if self.name == "predicate" else []
        return own + [name for part in self.parts for name in part.predicates()]

    def to_data(self) -> dict[str, Any]:
        """Return the condition as JSON."""
        if self.name == "always":
            return {"always": True}
        if self.name == "not":
            return {"not": self.parts[0].to_data()}
        if self.name in JOINS:
            return {self.name: [part.to_data() for part in self.parts]}
        if self.name in ("type", "predicate"):
            return {self.name: self.value}
        data: dict[str, Any] = {"field": self.field, "test": self.name}
        if self.name not in UNARY:
            data["value"] = list(self.value) if self.name in LISTS else self.value
        return data

    @classmethod
    def from_data(cls, data: Any) -> EdgeCondition:
        """Return the condition that ``to_data`` wrote; raise ``GraphError`` for anything else."""
        if not isinstance(data, Mapping) or not data:
            raise GraphError(
                f"a condition is an object like {{'field': ..., 'test': ..., 'value': ...}}, not {data!r}"
            )
        if "test" in data or "field" in data:
            unknown = sorted(set(data) - {"field", "test", "value"})
            if unknown:
                raise GraphError(f"a test has 'field', 'test' and 'value', but not {unknown[0]!r}")
            name = data.get("test")
            if name in _TESTS and (name in UNARY) == ("value" in data):
                raise GraphError(f"the test {name!r} {'takes no' if name in UNARY else 'needs a'} 'value'")
            return cls.test(str(name), data.get("field"), data.get("value"))  # type: ignore[arg-type]
        (name, given), *more = data.items()
        if more:
            raise GraphError(
                f"a condition has one of 'all', 'any', 'not', 'type' or 'always', not {sorted(data)}"
            )
        if name in ("all", "any"):
            if not isinstance(given, list) or not given:
                raise GraphError(f"{name!r} takes a list of conditions, not {given!r}")
            return cls(name, parts=tuple(map(cls.from_data, given)))
        if name == "not":
            return ~cls.from_data(given)
        if name == "type" and isinstance(given, str):
            return cls.of_type(given)
        if name == "always" and given is True:
            return cls.always()
        raise GraphError(
            f"there is no condition {{{name!r}: {given!r}}}; a predicate can only be given by a program"
        )


def _find(outputs: Mapping[str, Any], path: str) -> Any:
    """Return an output by its key, or a part of one by a path like ``review.score``."""
    if path in outputs:
        return outputs[path]
    head, _, rest = path.partition(".")
    if not rest or head not in outputs:
        return _MISSING
    value = outputs[head]
    for name in rest.split("."):
        if isinstance(value, Mapping):
            value = value.get(name, _MISSING)
        else:
            value = getattr(value, name, _MISSING)
        if value is _MISSING:
            return _MISSING
    return value
