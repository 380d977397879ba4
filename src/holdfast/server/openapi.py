"""The OpenAPI document: one path for the runs of each workflow, with the schemas of input, outputs and responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from copy import deepcopy
from types import NoneType
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from holdfast.graph.graph import Graph
from holdfast.graph.typing.conversion import decoder_of, fields_of
from holdfast.graph.typing.schema import union_schema
from holdfast.graph.typing.types import (
    TypeForm,
    args_of,
    is_alias,
    is_anything,
    members,
    origin_of,
    type_name,
)
from holdfast.server import forms
from holdfast.workflow import Workflow

_OF_A_WORKFLOW = "/v1/workflows/{name}"
_RESPONSES = "/v1/runs/{run_id}/responses"
_SCHEMAS = "#/components/schemas/"
_JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
_REFUSALS = {
    "400": "The request cannot be read.",
    "401": "No key, or a wrong one.",
    "403": "The key lacks the scope that this needs.",
    "404": "It is not there.",
    "409": "Someone was faster, or the run does not stand where this is possible.",
    "412": "The run has moved on since the client read it.",
    "413": "The body is too long.",
    "416": "The value has no such bytes.",
    "421": "The service is not called by this name.",
    "422": "A value does not fit.",
    "429": "A limit is reached.",
    "503": "The service or its store is not ready.",
}


def describe_api(app: FastAPI, workflows: dict[str, Workflow]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of an app that serves these workflows."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        routes=app.routes,
        description=app.description,
        openapi_version="3.1.0",
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    bodies = [
        one
        for one in vars(forms).values()
        if isinstance(one, type) and issubclass(one, BaseModel) and one is not BaseModel
    ]
    _, described = models_json_schema(
        [(one, "validation") for one in bodies], ref_template=_SCHEMAS + "{model}"
    )
    schemas |= {name: schema for name, schema in described["$defs"].items() if name not in schemas}
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    paths = document["paths"]
    for path in [path for path in paths if path.startswith(_OF_A_WORKFLOW)]:
        shared = paths.pop(path)
        for workflow in workflows.values():
            place = path.replace("{name}", quote(workflow.name, safe=""))
            paths[place] = _for_workflow(shared, workflow, schemas)
    _describe_responses(paths[_RESPONSES]["post"], workflows, schemas)
    for methods in paths.values():
        for operation in methods.values():
            _add_refusals(operation)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document


def _add_refusals(operation: dict[str, Any]) -> None:
    reference = {"application/problem+json": {"schema": {"$ref": _SCHEMAS + "ProblemForm"}}}
    replies = operation["responses"]
    replies.pop("422", None)
    is_open = operation.get("security") == []
    for status, text in _REFUSALS.items():
        if status in ("421", "503") or not is_open:
            replies.setdefault(status, {"description": text, "content": reference})


def _for_workflow(shared: dict[str, Any], workflow: Workflow, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the operations of a path for one workflow: without its name, with its schemas."""
    methods = deepcopy(shared)
    for method, operation in methods.items():
        operation["parameters"] = [one for one in operation.get("parameters", []) if one["name"] != "name"]
        operation["operationId"] = f"{operation['operationId']}_{_word(workflow.name)}"
        if method == "post":
            _describe_start(operation, workflow, schemas)
    return methods


def _describe_start(operation: dict[str, Any], workflow: Workflow, schemas: dict[str, Any]) -> None:
    word = _word(workflow.name)
    body = deepcopy(schemas["StartBody"])
    body["title"] = f"{workflow.name} input"
    body["properties"]["input"] = hoist(workflow.input_schema, f"{word}_input", schemas)
    schemas[f"{word}_StartBody"] = body
    result = deepcopy(schemas["RunResultForm"])
    result["title"] = f"{workflow.name} run"
    outputs = shown_union(workflow.graph.output_types())
    result["properties"]["outputs"]["items"] = outputs
    schemas[f"{word}_Run"] = result
    operation["requestBody"]["content"]["application/json"]["schema"] = {
        "$ref": f"{_SCHEMAS}{word}_StartBody"
    }
    for status in ("200", "202"):
        content = operation["responses"][status]["content"]["application/json"]
        content["schema"] = {"$ref": f"{_SCHEMAS}{word}_Run"}


def _describe_responses(
    operation: dict[str, Any], workflows: dict[str, Workflow], schemas: dict[str, Any]
) -> None:
    """Let the body of answers be that of any of the workflows, or of one that is not served here."""
    bodies = []
    for workflow in workflows.values():
        types = [*_response_types(workflow.graph)]
        if types:
            word = _word(workflow.name)
            body = deepcopy(schemas["ResponsesBody"])
            body["title"] = f"{workflow.name} responses"
            answers = body["properties"]["responses"]
            answers["additionalProperties"] = hoist(union_schema(types), f"{word}_response", schemas)
            schemas[f"{word}_ResponsesBody"] = body
            bodies.append({"$ref": f"{_SCHEMAS}{word}_ResponsesBody"})
    content = operation["requestBody"]["content"]["application/json"]
    content["schema"] = {"anyOf": [*bodies, content["schema"]]} if bodies else content["schema"]


def _response_types(graph: Graph) -> Iterator[TypeForm]:
    """Give the types of the answers that handlers of a graph take, and of the graphs that are nested in it."""
    for spec in graph.executors.values():
        yield from (handler.signature.accepts for handler in spec.answerers)
        if spec.nested is not None:
            yield from _response_types(spec.nested)


# -- values in replies -----------------------------------------------------------------------------


def shown_union(types: Sequence[TypeForm], around: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the schema of values that are of one of these types, as replies show them."""
    found: list[dict[str, Any]] = []
    for form in types:
        schema = shown_schema(form, around)
        if schema not in found:
            found.append(schema)
    return found[0] if len(found) == 1 else {"anyOf": found} if found and {} not in found else {}


def shown_schema(form: TypeForm, around: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the schema of a value as replies show it: in the plain form, which names types that JSON lacks.

    A type whose plain form is not known has a schema that says no more than its name.

    >>> shown_schema(list[int]), shown_schema(set)
    ({'type': 'array', 'items': {'type': 'integer'}}, {'title': 'set'})
    """
    if is_anything(form) or is_alias(form):
        return {}
    options = members(form)
    if len(options) > 1:
        return shown_union(options, around)
    form = options[0]
    origin = origin_of(form)
    if origin in _JSON_TYPES:
        return {"type": _JSON_TYPES[origin]}
    items = args_of(form) or ()
    if origin is list:
        return {"type": "array", "items": shown_schema(items[0], around)} if items else {"type": "array"}
    if origin is dict and items[:1] == (str,):
        return {"type": "object", "additionalProperties": shown_schema(items[1], around)}
    is_record = isinstance(origin, type) and dataclasses.is_dataclass(origin) and decoder_of(origin) is None
    fields = fields_of(form) if is_record and origin not in around else None
    if fields is None:
        return {"title": type_name(form)}
    shown = {name: shown_schema(field.form, (*around, origin)) for name, field in fields.items()}
    return {
        "type": "object",
        "title": type_name(form),
        "properties": {"$type": {"type": "string"}, **shown},
        "required": ["$type"],
    }


# -- schemas of workflows --------------------------------------------------------------------------


def hoist(schema: dict[str, Any], prefix: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema whose definitions stand among those of the document, under names of their own.

    >>> found = {}
    >>> hoist({"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object"}}}, "Plan", found)
    {'$ref': '#/components/schemas/Plan_Node'}
    >>> found
    {'Plan_Node': {'type': 'object'}}
    """

    def move(part: Any) -> Any:
        if isinstance(part, list):
            return [move(one) for one in part]
        if not isinstance(part, dict):
            return part
        moved = {key: move(value) for key, value in part.items() if key not in ("$defs", "$schema")}
        reference = part.get("$ref")
        if isinstance(reference, str):
            name = reference.removeprefix("#/$defs/") if reference != "#" else ""
            moved["$ref"] = _SCHEMAS + (f"{prefix}_{_word(name)}" if name else prefix)
        return moved

    for name, definition in schema.get("$defs", {}).items():
        schemas[f"{prefix}_{_word(name)}"] = move(definition)
    top: dict[str, Any] = move(schema)
    if '"#"' in str(schema).replace("'", '"'):  # it refers to itself as a whole
        schemas[prefix] = top
        return {"$ref": _SCHEMAS + prefix}
    return top


def _word(name: str) -> str:
    """Return a name as components of the document may have it; different names give different words."""
    return "".join(
        one if one.isascii() and (one.isalnum() or one in ".-") else f"_{ord(one):x}_" for one in name
    )
