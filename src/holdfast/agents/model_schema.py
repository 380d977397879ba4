"""Functions and types as a model sees them, by JSON Schema: tools that it calls, outputs that it gives."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_type_hints

from holdfast.agents.port import Json
from holdfast.errors import GraphError, ToolFailed
from holdfast.graph.typing.conversion import Unconvertible, convert
from holdfast.graph.typing.schema import json_schema
from holdfast.graph.typing.types import TypeForm, type_name


class FunctionTool(NamedTuple):
    """A function that a model may call."""

    name: str
    description: str
    function: Callable[..., Any]
    parameters: dict[str, TypeForm]
    required: tuple[str, ...]

    def schema(self) -> Json:
        """Return the JSON Schema of the arguments."""
        properties: dict[str, Json] = {}
        definitions: dict[str, Json] = {}
        for name, form in self.parameters.items():
            schema = dict(json_schema(form))
            schema.pop("$schema", None)
            definitions |= schema.pop("$defs", {})
            properties[name] = schema
        whole: dict[str, Json] = {
            "type": "object",
            "properties": properties,
            "required": list(self.required),
            "additionalProperties": False,
        }
        return {**whole, "$defs": definitions} if definitions else whole

    async def call(self, arguments: Json) -> Json:
        """Call the function with arguments that are JSON; raise ``ToolFailed`` for what it raises.

        Its result is text or JSON. Functions that are not async run in a thread.
        """
        given = self._converted(arguments)
        try:
            if inspect.iscoroutinefunction(self.function):
                return result_as_json(await self.function(**given), self.name)
            result = await asyncio.to_thread(self.function, **given)
            return result_as_json(await result if inspect.isawaitable(result) else result, self.name)
        except ToolFailed:
            raise
        except Exception as error:
            raise ToolFailed(f"{type(error).__name__}: {error}") from error

    def _converted(self, arguments: Json) -> dict[str, Any]:
        if not isinstance(arguments, dict):
            raise ToolFailed(f"the arguments of {self.name} must be a JSON object, not {arguments!r}")
        if unknown := arguments.keys() - self.parameters.keys():
            raise ToolFailed(f"{self.name} takes {list(self.parameters)}, not {sorted(unknown)}")
        if missing := [name for name in self.required if name not in arguments]:
            raise ToolFailed(f"{self.name} needs {missing}")
        try:
            return {name: convert(value, self.parameters[name], name) for name, value in arguments.items()}
        except Unconvertible as error:
            raise ToolFailed(f"{self.name}: {error}") from error


def tool_of(function: Callable[..., Any]) -> FunctionTool:
    """Return the tool that a function is: named by it, described by its docstring, typed by its annotations.

    >>> def search(text: str, most: int = 10) -> list[str]:
    ...     "Search the log."
    ...     return []
    >>> tool = tool_of(search)
    >>> tool.name, tool.description, tool.required
    ('search', 'Search the log.', ('text',))
    >>> tool.schema()["properties"]["most"]["type"]
    'integer'
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise GraphError(f"a tool is a function with a name, not {function!r}")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise GraphError(
            f"tool {name!r}: an annotation cannot be read ({error}); define or import its type at the top of the module"
        ) from error
    parameters: dict[str, TypeForm] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise GraphError(
                f"tool {name!r}: a model gives arguments by name, so {parameter} cannot be filled"
            )
        if parameter.name not in hints:
            raise GraphError(
                f"tool {name!r}: annotate its parameter {parameter.name!r}, so that the model knows its type"
            )
        parameters[parameter.name] = hints[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    return FunctionTool(name, inspect.getdoc(function) or "", function, parameters, tuple(required))


def tools_of(functions: Sequence[Callable[..., Any]]) -> dict[str, FunctionTool]:
    """Return the tools by name; raise ``GraphError`` for two of one name."""
    tools: dict[str, FunctionTool] = {}
    for function in functions:
        tool = tool_of(function)
        if tool.name in tools:
            raise GraphError(f"two tools are named {tool.name!r}; rename one of the functions")
        tools[tool.name] = tool
    return tools


def result_as_json(result: Any, tool: str) -> Json:
    """Return the result of a tool as JSON, which is recorded and shown to the model."""
    if isinstance(result, str):
        return result
    from holdfast.graph.typing.json_check import NotJson, plain_json

    try:
        return plain_json(result, f"result of {tool}")
    except NotJson as error:
        raise ToolFailed(f"{error}; let the tool return text or plain data") from error


def as_text(result: Json) -> str:
    """Return a result of a tool as the text that a model reads."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


_RESULT = "result"
"""The name under which an output is wrapped that is no object."""


class OutputSchema:
    """The schema of the types of which an output is one; several, and those that are no objects, are wrapped.

    >>> OutputSchema([int]).read('{"result": 42}')
    (42, None)
    >>> OutputSchema([int]).read('{"result": "many"}')[1]
    "result: a str, not int: 'many'"
    """

    def __init__(self, forms: Sequence[TypeForm]) -> None:
        self._forms = tuple(forms)
        schemas = [dict(json_schema(form)) for form in self._forms]
        self._wrapped = len(schemas) != 1 or schemas[0].get("type") != "object"
        definitions: dict[str, Json] = {}
        for schema in schemas:
            schema.pop("$schema", None)
            if self._wrapped:
                definitions |= schema.pop("$defs", {})
        if not self._wrapped:
            self.schema: dict[str, Json] = schemas[0]
            return
        one = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        self.schema = {"type": "object", "properties": {_RESULT: one}, "required": [_RESULT]}
        if definitions:
            self.schema["$defs"] = definitions

    def response_format(self) -> Json:
        """Return the schema as chat completions take it."""
        name = "_or_".join(type_name(form) for form in self._forms)
        safe = "".join(character if character.isalnum() or character in "_-" else "_" for character in name)[
            :60
        ]
        return {"type": "json_schema", "json_schema": {"name": safe, "schema": self.schema}}

    def read(self, text: str) -> tuple[Any, str | None]:
        """Return the value that a text means, and a complaint if it means none."""
        try:
            found = json.loads(text)
        except ValueError as error:
            return None, f"it is no JSON ({error})"
        if self._wrapped:
            if not isinstance(found, dict) or _RESULT not in found:
                return None, f"it must be an object with {_RESULT!r}"
            found = found[_RESULT]
        complaint = None
        for form in self._forms:
            try:
                return convert(found, form, _RESULT), None
            except Unconvertible as error:
                complaint = complaint or str(error)
        return None, complaint
