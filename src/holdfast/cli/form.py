"""A form at the terminal, made from a JSON Schema: asks for a value part by part, and checks each part.

Parts that a form cannot ask for are typed as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import click

from holdfast.cli.output import printable, shorten
from holdfast.graph.typing.conversion import Unconvertible
from holdfast.graph.typing.json_check import check_json

ReadLine: TypeAlias = Callable[[str], Awaitable[str]]

_WAKE_SECONDS = 0.25
_YES_OR_NO = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
# Stands for a part that was left out.
_LEFT_OUT = object()


def can_ask() -> bool:
    """Return True if a person sits at a terminal, sees questions and can answer them."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def read_line(question: str) -> str:
    """Return the line that a person types; the event loop goes on meanwhile, and Ctrl-C ends it.

    Raises ``click.Abort`` where the input ends.
    """
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.platform == "win32":
        typed = (await asyncio.to_thread(sys.stdin.readline)).encode()
    else:
        # No thread: one that waits for a line cannot be ended, so Ctrl-C would have to wait for it.
        loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
        ready = loop.create_future()
        loop.add_reader(terminal, lambda: None if ready.done() else ready.set_result(None))
        try:
            # Python runs the handler of a signal that comes right before it begins to wait only when it wakes.
            while not ready.done():
                await asyncio.wait((ready,), timeout=_WAKE_SECONDS)
        finally:
            loop.remove_reader(terminal)
        typed = os.read(terminal, 65_536)  # a terminal gives a line at a time
    if not typed:
        raise click.Abort
    return typed.decode(errors="replace").rstrip("\r\n")


def forget_typed() -> None:
    """Drop keys that were typed before a question was shown: they are no answer to it."""
    if sys.platform != "win32" and sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)


class AnswerForm:
    """Asks for a value that fits a JSON Schema."""

    def __init__(self, schema: Any, read: ReadLine = read_line) -> None:
        self._root: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
        self._read = read

    async def fill(self) -> Any:
        """Return the value that a person gave; one of several parts is shown, and given again if it is not right."""
        while True:
            value = await self._ask("answer", self._root, True)
            if not isinstance(value, dict | list) or await self._is_right(value):
                return value

    async def _is_right(self, value: Any) -> bool:
        try:
            check_json(value, self._root, "answer")
        except Unconvertible as reason:
            self._say(f"{reason}; once more:")
            return False
        self._say(json.dumps(value, indent=2, ensure_ascii=False))
        return await self._ask_yes_or_no("Is this right?", {"default": True}, True) is True

    def _say(self, text: str) -> None:
        for line in text.split("\n"):
            click.echo(printable(line), err=True)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema with what it refers to, and what it is made of, in place."""
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            found = self._root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
            own = {name: part for name, part in schema.items() if name != "$ref"}
            return self._resolved({**found, **own}) if isinstance(found, Mapping) else {}
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) == 1:
            own = {name: part for name, part in schema.items() if name != "allOf"}
            return {**self._resolved(parts[0]), **own}
        return schema

    async def _ask(self, label: str, schema: Any, is_needed: bool) -> Any:
        """Ask for one part, with the question that its schema calls for."""
        schema = self._resolved(schema)
        if schema.get("description") and schema is not self._root:
            self._say(f"  {str(schema['description']).splitlines()[0]}")
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return await self._choose(
                label, schema["enum"], [shorten(one) for one in schema["enum"]], schema, is_needed
            )
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list) and options:
            return await self._ask_one_of(label, options, schema, is_needed)
        match schema.get("type"):
            case "boolean":
                return await self._ask_yes_or_no(label, schema, is_needed)
            case "object" if schema.get("properties"):
                return await self._ask_members(label, schema)
            case "array" if isinstance(schema.get("items"), Mapping) and "prefixItems" not in schema:
                return await self._ask_items(label, schema)
            case "string":
                return await self._ask_checked(f"{label} (text)", schema, is_needed, str)
            case "integer" | "number" as kind:
                return await self._ask_checked(f"{label} ({kind})", schema, is_needed, _read_number)
            case "null":
                return None
            case _:
                return await self._ask_checked(f"{label} (JSON)", schema, is_needed, json.loads)

    async def _ask_checked(
        self, question: str, schema: Mapping[str, Any], is_needed: bool, parse: Callable[[str], Any]
    ) -> Any:
        """Ask until the answer fits; an empty line means the default, or leaves out what is not needed."""
        while True:
            typed = await self._read(f"{question}{_hint(schema, is_needed)}: ")
            if not typed and "default" in schema:
                return schema["default"]
            if not typed and not is_needed:
                return _LEFT_OUT
            try:
                value = parse(typed)
                check_json(value, {**schema, "$defs": self._root.get("$defs", {})}, question)
            except (Unconvertible, ValueError, RecursionError) as reason:
                self._say(f"  {reason}")
            else:
                return value

    async def _ask_yes_or_no(self, label: str, schema: Mapping[str, Any], is_needed: bool) -> Any:
        def parse(typed: str) -> bool:
            if typed.strip().lower() not in _YES_OR_NO:
                raise ValueError("Please answer y or n.")
            return _YES_OR_NO[typed.strip().lower()]

        return await self._ask_checked(f"{label} [y/n]", {**schema, "type": "boolean"}, is_needed, parse)

    async def _ask_members(self, label: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        required = schema.get("required", ())
        value = {}
        for name, part in schema["properties"].items():
            inside = name if label == "answer" else f"{label}.{name}"
            given = await self._ask(inside, part, name in required)
            if given is not _LEFT_OUT:
                value[name] = given
        return value

    async def _ask_items(self, label: str, schema: Mapping[str, Any]) -> list[Any]:
        items: list[Any] = []
        while await self._ask_yes_or_no(f"{label}: add item {len(items) + 1}?", {"default": False}, True):
            items.append(await self._ask(f"{label}[{len(items)}]", schema["items"], True))
        return items

    async def _ask_one_of(
        self, label: str, options: Sequence[Any], schema: Mapping[str, Any], is_needed: bool
    ) -> Any:
        forms = [self._resolved(one) for one in options]
        some = [one for one in forms if one.get("type") != "null"]
        default = {"default": schema["default"]} if "default" in schema else {}
        if len(some) == 1:
            given = await self._ask(label, {**some[0], **default}, False)
            return None if given is _LEFT_OUT and is_needed else given
        titles = [str(one.get("title") or one.get("type") or shorten(dict(one))) for one in forms]
        chosen = await self._choose(label, forms, titles, {}, is_needed)
        return chosen if chosen is _LEFT_OUT else await self._ask(label, chosen, is_needed)

    async def _choose(
        self,
        label: str,
        options: Sequence[Any],
        titles: Sequence[str],
        schema: Mapping[str, Any],
        is_needed: bool,
    ) -> Any:
        """Let a person choose by number, or by the text of an option."""
        for number, title in enumerate(titles, 1):
            self._say(f"  {number} {title}")

        def parse(typed: str) -> Any:
            typed = typed.strip()
            if typed.isdecimal() and 1 <= int(typed) <= len(options):
                return options[int(typed) - 1]
            for option, title in zip(options, titles, strict=True):
                if typed in (title, option):
                    return option
            raise ValueError(f"Please answer with a number from 1 to {len(options)}.")

        default = {"default": schema["default"]} if "default" in schema else {}
        return await self._ask_checked(f"{label} [1-{len(options)}]", default, is_needed, parse)


def _hint(schema: Mapping[str, Any], is_needed: bool) -> str:
    if "default" in schema:
        return f", Enter for {shorten(schema['default'], 30)}"
    return "" if is_needed else ", Enter for none"


def _read_number(typed: str) -> int | float:
    value = json.loads(typed)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{typed!r} is no number")
    return value
