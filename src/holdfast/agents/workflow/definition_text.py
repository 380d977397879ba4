"""Reads the text of a definition, JSON or YAML, and remembers on which line each part stands.

YAML is only composed to nodes, never constructed: tags that would make objects are refused, and plain scalars mean what
they mean in JSON, so that ``no`` and ``on`` are texts.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import DefinitionError

_DEEPEST = 100


class ReadText(NamedTuple):
    """The values of a text, and the line of each by its path; a path begins with ``$``."""

    value: Any
    lines: dict[str, int]
    file: str | None = None

    def error(self, path: str, message: str) -> DefinitionError:
        """Return the error about the part at a path, with the line of it or of what it stands in."""
        found = path
        while found and found not in self.lines:
            found = found.rpartition("/")[0]
        place = path.removeprefix("$").strip("/").replace("/", ".")
        return DefinitionError(
            f"{place}: {message}" if place else message, file=self.file, line=self.lines.get(found)
        )


def read_text(path: Path) -> ReadText:
    """Return the values of a file: YAML if it ends so, else JSON."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"cannot be read: {error}", file=str(path)) from error
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_yaml(text, str(path))
    return _JsonReader(text, str(path)).read()


class _JsonReader:
    """A reader of JSON that notes lines; the reader of the standard library tells none."""

    _SPACE = re.compile(r"[ \t\r\n]*")
    _PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._at = 0
        self._lines: dict[str, int] = {}

    def read(self) -> ReadText:
        self._skip()
        value = self._value("$", 0)
        self._skip()
        if self._at != len(self._text):
            raise self._wrong("something follows the end of the definition")
        return ReadText(value, self._lines, self._file)

    def _wrong(self, message: str) -> DefinitionError:
        return DefinitionError(message, file=self._file, line=self._line())

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _skip(self) -> str:
        found = self._SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def _expect(self, character: str, where: str) -> None:
        if self._skip() != character:
            raise self._wrong(f"{character!r} is missing {where}")
        self._at += 1
        self._skip()

    def _value(self, path: str, depth: int) -> Any:
        self._lines.setdefault(path, self._line())
        first = self._text[self._at : self._at + 1]
        if depth > _DEEPEST:
            raise self._wrong(f"it is nested more than {_DEEPEST} deep")
        if first == '"':
            return self._string()
        if first == "{":
            return self._object(path, depth)
        if first == "[":
            return self._list(path, depth)
        found = self._PLAIN.match(self._text, self._at)
        if found is None:
            raise self._wrong(f"this is no JSON: {self._text[self._at : self._at + 20]!r}")
        self._at = found.end()
        return json.loads(found[0])

    def _string(self) -> str:
        try:
            text, self._at = scanstring(self._text, self._at + 1, True)
        except json.JSONDecodeError as error:
            raise self._wrong(f"this is no JSON: {error.msg}") from None
        return str(text)

    def _object(self, path: str, depth: int) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        while self._skip() != "}":
            if found:
                self._expect(",", "between two members of an object")
            if self._text[self._at : self._at + 1] != '"':
                raise self._wrong("the name of a member is missing, in double quotes")
            line = self._line()
            key = self._string()
            if key in found:
                raise self._wrong(f"{key!r} stands here twice; remove one")
            self._lines[f"{path}/{key}"] = line
            self._expect(":", f"behind {key!r}")
            found[key] = self._value(f"{path}/{key}", depth + 1)
        self._at += 1
        return found

    def _list(self, path: str, depth: int) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        while self._skip() != "]":
            if found:
                self._expect(",", "between two items of a list")
            found.append(self._value(f"{path}/{len(found)}", depth + 1))
        self._at += 1
        return found


def read_yaml(text: str, file: str) -> ReadText:
    """Return the values of a YAML text."""
    try:
        import yaml
    except ImportError as error:
        raise DefinitionError(
            "definitions in YAML need PyYAML: pip install 'holdfast[yaml]'", file=file
        ) from error

    loader: Any = type("JsonLoader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    prefix = "tag:yaml.org,2002:"
    loader.add_implicit_resolver(prefix + "bool", re.compile(r"^(?:true|false)$"), list("tf"))
    loader.add_implicit_resolver(prefix + "null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
    loader.add_implicit_resolver(prefix + "int", re.compile(r"^-?(?:0|[1-9]\d*)$"), list("-0123456789"))
    number = re.compile(r"^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$")
    loader.add_implicit_resolver(prefix + "float", number, list("-0123456789"))
    lines: dict[str, int] = {}
    seen: set[int] = set()

    def wrong(node: Any, message: str) -> DefinitionError:
        return DefinitionError(message, file=file, line=node.start_mark.line + 1)

    def value_of(node: Any, path: str, depth: int) -> Any:
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in seen or depth > _DEEPEST:
            raise wrong(
                node, "anchors and aliases are not taken, nor what is nested without end; write it out"
            )
        seen.add(id(node))
        kind = node.tag.removeprefix(prefix)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            found: dict[str, Any] = {}
            for key_node, part in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise wrong(key_node, "the name of a member must be a text")
                key = key_node.value
                if key in found:
                    raise wrong(key_node, f"{key!r} stands here twice; remove one")
                lines[f"{path}/{key}"] = key_node.start_mark.line + 1
                found[key] = value_of(part, f"{path}/{key}", depth + 1)
            return found
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [value_of(part, f"{path}/{number}", depth + 1) for number, part in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in ("bool", "int", "float", "null", "str"):
            return (
                str(node.value)
                if kind == "str"
                else json.loads(node.value or "null")
                if kind != "null"
                else None
            )
        raise wrong(
            node, f"the tag {node.tag!r} is not taken; a definition has texts, numbers, lists and objects"
        )

    try:
        root = yaml.compose(text, Loader=loader)
        value = None if root is None else value_of(root, "$", 0)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise DefinitionError(f"this is no YAML: {problem}", file=file, line=line) from None
    except RecursionError:
        raise DefinitionError("it is nested without end", file=file, line=1) from None
    return ReadText(value, lines, file)


def write_yaml(data: Any) -> str:
    """Return data as YAML."""
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text
