"""The check of plain JSON against a JSON Schema, for answers whose types are not here.

It knows the keywords that ``schema.json_schema`` writes, and those of pydantic and msgspec. A keyword that it does not
know refuses nothing: the type of an answer has the last word, where that is.
"""

from __future__ import annotations

import math
import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time
from typing import Any, TypeAlias

from holdfast.graph.typing.conversion import Unconvertible, parse_duration
from holdfast.graph.typing.match import show_value

Schema: TypeAlias = Mapping[str, Any] | bool


class NotJson(Exception):
    """A part of a value is nothing that JSON has; the message has the path of the part."""


def plain_json(value: object, path: str = "response") -> Any:
    """Return a copy of a value that is plain JSON; raise ``NotJson`` or ``Unconvertible`` if it is not.

    >>> plain_json({"tags": ("a", "b"), "count": 2})
    {'tags': ['a', 'b'], 'count': 2}
    >>> plain_json([float("nan")])
    Traceback (most recent call last):
    ...
    holdfast.graph.typing.conversion.Unconvertible: response[0]: nan is no number of JSON
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unconvertible(f"{path}: {value} is no number of JSON")
        return float(value)
    if isinstance(value, list | tuple):
        return [plain_json(part, f"{path}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, dict):
        return {_plain_key(key, path): plain_json(part, _inside(path, key)) for key, part in value.items()}
    raise NotJson(f"{path}: a {type(value).__name__}, which JSON does not have: {show_value(value, 80)}")


def _plain_key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise Unconvertible(
            f"{path}: the key {show_value(key, 80)} is a {type(key).__name__}; in JSON keys are texts"
        )
    return str(key)


def _inside(path: str, key: object) -> str:
    """Return the path of a part of a dict."""
    return f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"


def check_json(value: Any, schema: Schema, path: str = "response") -> None:
    """Raise ``Unconvertible``, with the path of the part and the reason, if plain JSON does not fit a schema.

    >>> check_json({"size": 3}, {"properties": {"size": {"type": "string"}}})
    Traceback (most recent call last):
    ...
    holdfast.graph.typing.conversion.Unconvertible: response.size: a number, not a string: 3
    """
    _Checker(schema).check(value, schema, path)


class _Checker:
    """Checks values against parts of one schema, which may refer to its definitions."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def check(self, value: Any, schema: Schema, path: str) -> None:
        """Raise for the first part of a value that does not fit."""
        if isinstance(schema, bool):
            if not schema:
                raise Unconvertible(f"{path}: nothing is taken here: {show_value(value, 80)}")
            return
        if "$ref" in schema:
            self.check(value, self._behind(schema["$ref"]), path)
        if (reason := _misfit(value, schema)) is not None:
            raise Unconvertible(f"{path}: {reason}")
        if isinstance(value, list):
            self._check_items(value, schema, path)
        elif isinstance(value, dict):
            self._check_members(value, schema, path)
        self._check_combined(value, schema, path)

    def _behind(self, reference: str) -> Schema:
        """Return the schema that a reference names; one that takes everything if it names none of this document."""
        found: Any = self._root
        for name in reference.removeprefix("#").split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            found = found.get(name, True) if isinstance(found, Mapping) else True
        return found if reference.startswith("#") and isinstance(found, Mapping | bool) else True

    def _check_items(self, value: list[Any], schema: Mapping[str, Any], path: str) -> None:
        first = schema.get("prefixItems", ())
        rest = schema.get("items", True)
        for index, part in enumerate(value):
            self.check(part, first[index] if index < len(first) else rest, f"{path}[{index}]")

    def _check_members(self, value: dict[str, Any], schema: Mapping[str, Any], path: str) -> None:
        fields = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        others = schema.get("additionalProperties", True)
        of_names = schema.get("propertyNames", True)
        for name, part in value.items():
            inside = _inside(path, name)
            self.check(name, of_names, f"{path} key {name!r}")
            wanted = [fields[name]] if name in fields else []
            wanted += [of_part for pattern, of_part in patterns.items() if _finds(pattern, name)]
            if not wanted and others is False:
                known = f"; it has {_listed(fields)}" if fields else ""
                raise Unconvertible(f"{path}: has no {name!r}{known}")
            for of_part in wanted or [others]:
                self.check(part, of_part, inside)

    def _check_combined(self, value: Any, schema: Mapping[str, Any], path: str) -> None:
        for part in schema.get("allOf", ()):
            self.check(value, part, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                reasons = [self._reason(value, option, path) for option in schema[keyword]]
                if None not in reasons:
                    told = "; ".join(dict.fromkeys(map(str, reasons)))
                    raise Unconvertible(
                        told
                        if len(reasons) == 1
                        else f"{path}: {show_value(value, 80)} fits none of its forms ({told})"
                    )
        if "not" in schema and self._reason(value, schema["not"], path) is None:
            raise Unconvertible(f"{path}: {show_value(value, 80)} is not taken here")

    def _reason(self, value: Any, schema: Schema, path: str) -> str | None:
        """Return why a value does not fit; None if it does."""
        try:
            self.check(value, schema, path)
        except Unconvertible as reason:
            return str(reason)
        return None


# -- keywords that look at a value alone -----------------------------------------------------------

_NAMES: Mapping[str, str] = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _kind_of(value: Any) -> str:
    """Return the type that JSON has for a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _misfit(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a value itself, whatever its parts are; None if nothing is."""
    kind = _kind_of(value)
    wanted = schema.get("type")
    if wanted is not None:
        kinds = [wanted] if isinstance(wanted, str) else wanted
        # A number with a fraction of zero is no int in Python, and no type here takes it for one.
        if kind not in kinds and not ("integer" in kinds and type(value) is int):
            named = " or ".join(_NAMES.get(each, str(each)) for each in kinds)
            return f"{_NAMES[kind]}, not {named}: {show_value(value, 80)}"
    options = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if options is not None and not any(_key_of(value) == _key_of(option) for option in options):
        return f"{show_value(value, 80)} is none of {_listed(options)}"
    return next(filter(None, _misfits[kind](value, schema)), None) if kind in _misfits else None


def _misfits_of_text(value: str, schema: Mapping[str, Any]) -> Iterator[str | None]:
    yield _too_few(len(value), schema.get("minLength"), "characters")
    yield _too_many(len(value), schema.get("maxLength"), "characters")
    if "pattern" in schema and not _finds(schema["pattern"], value):
        yield f"{show_value(value, 80)} does not have the form {schema['pattern']}"
    form = "base64" if schema.get("contentEncoding") == "base64" else schema.get("format")
    read = _TEXTS.get(form) if isinstance(form, str) else None
    if read is not None:
        try:
            read(value)
        except ValueError as error:
            yield f"{show_value(value, 80)} is no {form}: {error}"


def _misfits_of_number(value: float, schema: Mapping[str, Any]) -> Iterator[str | None]:
    for keyword, is_in, said in _BOUNDS:
        bound = schema.get(keyword)
        if bound is not None and not is_in(value, bound):
            yield f"{show_value(value, 80)} is not {said} {show_value(bound, 80)}"
    step = schema.get("multipleOf")
    if type(step) is int and type(value) is int and value % step:  # fractions are left to the type
        yield f"{show_value(value, 80)} is no multiple of {step}"


def _misfits_of_array(value: list[Any], schema: Mapping[str, Any]) -> Iterator[str | None]:
    yield _too_few(len(value), schema.get("minItems"), "items")
    yield _too_many(len(value), schema.get("maxItems"), "items")
    if schema.get("uniqueItems") is True and len(set(map(_key_of, value))) < len(value):
        yield f"an item is there twice: {show_value(value, 80)}"


def _misfits_of_object(value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[str | None]:
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        yield f"needs {_listed(missing)}, which is missing"
    yield _too_few(len(value), schema.get("minProperties"), "keys")
    yield _too_many(len(value), schema.get("maxProperties"), "keys")


_misfits: Mapping[str, Callable[[Any, Mapping[str, Any]], Iterator[str | None]]] = {
    "string": _misfits_of_text,
    "number": _misfits_of_number,
    "array": _misfits_of_array,
    "object": _misfits_of_object,
}


_UUID = re.compile(r"(?:urn:uuid:|\{)?[0-9a-f]{8}(-?)(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}\}?", re.IGNORECASE)


def _read_uuid(text: str) -> None:
    if _UUID.fullmatch(text) is None:
        raise ValueError("it has not 32 hexadecimal digits, in groups of 8, 4, 4, 4 and 12")


_TEXTS: Mapping[str, Callable[[str], object]] = {
    "date-time": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "duration": parse_duration,
    "uuid": _read_uuid,
    "base64": lambda text: a2b_base64(text, strict_mode=True),
}
_BOUNDS: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
    ("minimum", lambda value, bound: value >= bound, "at least"),
    ("maximum", lambda value, bound: value <= bound, "at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "less than"),
)


def _too_few(count: int, least: int | None, what: str) -> str | None:
    return f"has {count} {what}, not at least {least}" if least is not None and count < least else None


def _too_many(count: int, most: int | None, what: str) -> str | None:
    return f"has {count} {what}, not at most {most}" if most is not None and count > most else None


def _finds(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:  # written for another engine: the type will tell
        return True


def _key_of(value: Any) -> Any:
    """Return a hashable stand-in, equal for values that are the same JSON: true is not 1."""
    if isinstance(value, list):
        return tuple(map(_key_of, value))
    if isinstance(value, dict):
        return frozenset((name, _key_of(part)) for name, part in value.items())
    return (isinstance(value, bool), value)


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(show_value(name, 80) for name in names)
