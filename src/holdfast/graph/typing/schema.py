"""JSON Schemas (draft 2020-12) of types: they describe the plain data that ``conversion.convert`` takes.

A value that fits the schema of a type can be given where that type is expected. Models of pydantic and structs of
msgspec describe themselves.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from inspect import cleandoc
from types import NoneType
from typing import Any, Literal, Never, TypeAlias, Union, get_args

from holdfast.graph.typing.conversion import (
    ARRAYS,
    CONCRETE,
    RecordField,
    decoder_of,
    fields_of,
    full_name,
    is_struct,
    pair_forms,
)
from holdfast.graph.typing.types import (
    TypeForm,
    args_of,
    is_alias,
    is_anything,
    is_nothing,
    is_unpacked,
    members,
    origin_of,
    type_name,
)

JsonSchema: TypeAlias = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"
_JSON_SCALARS = (str, int, float, bool, NoneType)

_SCALARS: Mapping[str, JsonSchema] = {
    "builtins.str": {"type": "string"},
    "builtins.int": {"type": "integer"},
    "builtins.float": {"type": "number"},
    "builtins.bool": {"type": "boolean"},
    "builtins.NoneType": {"type": "null"},
    "builtins.bytes": {"type": "string", "contentEncoding": "base64"},
    "builtins.bytearray": {"type": "string", "contentEncoding": "base64"},
    "builtins.complex": {"type": "string", "title": "complex"},
    "datetime.datetime": {"type": "string", "format": "date-time"},
    "datetime.date": {"type": "string", "format": "date"},
    "datetime.time": {"type": "string", "format": "time"},
    "datetime.timedelta": {"type": "string", "format": "duration"},
    "decimal.Decimal": {
        "type": "string",
        "title": "Decimal",
        "pattern": r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$",
    },
    "fractions.Fraction": {"type": "string", "title": "Fraction", "pattern": r"^[+-]?\d+(/\d*[1-9]\d*)?$"},
    "uuid.UUID": {"type": "string", "format": "uuid"},
    "zoneinfo.ZoneInfo": {"type": "string", "title": "ZoneInfo"},
    **{
        f"pathlib.{name}": {"type": "string", "format": "path"}
        for name in ("Path", "PurePath", "PurePosixPath", "PureWindowsPath")
    },
}

# The texts that a key of a dict may be where it stands for a number.
_NUMBER_KEYS: Mapping[Any, JsonSchema] = {
    int: {"pattern": r"^-?\d+$"},
    float: {"pattern": r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$"},
}


class DescribedType:
    """Stands for a type whose class is not here: its name and the schema of its values.

    >>> verdict = DescribedType("Verdict", {"type": "object"})
    >>> type_name(verdict), json_schema(verdict)
    ('Verdict', {'type': 'object'})
    """

    def __init__(self, name: str, schema: JsonSchema) -> None:
        self.__name__ = name
        self.schema = schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DescribedType) and self.schema == other.schema and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.__name__)

    def __repr__(self) -> str:
        return self.__name__


def json_schema(form: TypeForm) -> JsonSchema:
    """Return the JSON Schema of a type; one that has no JSON form has a schema that says no more than its title.

    >>> json_schema(list[int])["items"], json_schema(range)
    ({'type': 'integer'}, {'$schema': 'https://json-schema.org/draft/2020-12/schema', 'title': 'range'})
    """
    if isinstance(form, DescribedType):
        return form.schema
    builder = _SchemaBuilder()
    try:
        body = builder.describe(form)
    except RecursionError:
        builder, body = _SchemaBuilder(), {}
    name = body.get("$ref", "").removeprefix(_DEFS)
    if name in builder.defs and builder.references[name] == 1:  # nothing else refers to it
        body = builder.defs.pop(name)
    schema = {"$schema": DIALECT, "title": type_name(form), **body}
    return {**schema, "$defs": builder.defs} if builder.defs else schema


def union_schema(forms: Sequence[TypeForm]) -> JsonSchema:
    """Return the JSON Schema of values that are of one of these types; of none at all if there are no types.

    >>> union_schema([int, str])["anyOf"], union_schema([])["not"]
    ([{'type': 'integer'}, {'type': 'string'}], {})
    """
    return json_schema(Union[tuple(forms)] if forms else Never)  # noqa: UP007


class _SchemaBuilder:
    """Describes types; classes and recursive aliases stand in ``defs``, under names that are used once."""

    def __init__(self) -> None:
        self.defs: dict[str, JsonSchema] = {}
        self.references: dict[str, int] = {}
        self._names: dict[Any, str] = {}

    def describe(self, form: TypeForm) -> JsonSchema:
        """Return the schema of a type, as part of another one."""
        if isinstance(form, DescribedType):
            return {"title": form.__name__}
        if is_alias(form):
            return self._alias(form)
        options = members(form)
        if is_anything(form):
            return {}
        if len(options) > 1:
            return {"anyOf": [self.describe(option) for option in options]}
        form = options[0]
        if form is Never:
            return {"not": {}}
        origin = CONCRETE.get(origin_of(form), origin_of(form))
        if origin is Literal:
            return _literal(form)
        if not isinstance(origin, type):
            return {"title": type_name(form)}
        return self._of_class(form, origin)

    def _of_class(self, form: TypeForm, origin: type) -> JsonSchema:
        scalar = _SCALARS.get(full_name(origin))
        if scalar is not None:
            return dict(scalar)
        if decoder_of(origin) is not None:  # which alone knows what it takes
            return {"title": type_name(form)}
        if issubclass(origin, Enum):
            return self._define(form, lambda: _enum(origin))
        if hasattr(origin, "model_json_schema"):
            return self._foreign(form, lambda: origin.model_json_schema(ref_template=_DEFS + "{model}"))
        if is_struct(origin):
            return self._foreign(form, lambda: sys.modules["msgspec"].json.schema(form))
        if (fields := fields_of(form)) is not None:
            return self._define(form, lambda: self._record(form, origin, fields))
        if issubclass(origin, dict):
            return self._mapping(form, origin)
        if origin in ARRAYS:
            return self._array(origin, args_of(form))
        return {"title": type_name(form)}

    # -- named schemas -------------------------------------------------------------------------------

    def _define(self, form: TypeForm, make: Callable[[], JsonSchema]) -> JsonSchema:
        """Return a reference to the definition of a class; it is made at the first one."""
        key = _key_of(form)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._free_name(type_name(form))
            self.defs[name] = {}  # taken, while the fields are described
            self.defs[name] = make()
        return self._refer(name)

    def _alias(self, form: TypeForm) -> JsonSchema:
        """Return the schema of an alias; one that contains itself is a definition."""
        key = _key_of(form)
        if key in self._names:
            return self._refer(self._names[key])
        name = self._names[key] = self._free_name(origin_of(form).__name__)
        self.defs[name] = {}
        body = self.describe(_behind(form))
        if name in self.references:
            self.defs[name] = body
            return self._refer(name)
        del self.defs[name], self._names[key]
        return body

    def _foreign(self, form: TypeForm, describe: Callable[[], JsonSchema]) -> JsonSchema:
        """Return the schema that another library has for its class, with the definitions that it needs."""
        key = _key_of(form)
        if key in self._names:
            return self._refer(self._names[key])
        try:
            body = describe()
        except Exception:  # a part of it has no schema there
            return {"title": type_name(form)}
        theirs: dict[str, JsonSchema] = body.pop("$defs", {})
        own = body["$ref"].removeprefix(_DEFS) if set(body) == {"$ref"} else ""
        theirs = theirs if own else {**theirs, own: body}
        names: dict[str, str] = {name: name for name in theirs}
        if any(self.defs.get(name) != one for name, one in theirs.items()):
            names = {}
            for name in theirs:
                names[name] = self._free_name(name or type_name(form))
                self.defs[names[name]] = {}
            for name, one in theirs.items():
                self.defs[names[name]] = _renamed(one, names)
                self._count(self.defs[names[name]])
        self._names[key] = names[own]
        return self._refer(names[own])

    def _refer(self, name: str) -> JsonSchema:
        self.references[name] = self.references.get(name, 0) + 1
        return {"$ref": _DEFS + name}

    def _count(self, schema: Any) -> None:
        """Count the references in a schema of another library."""
        if isinstance(schema, dict):
            if isinstance(found := schema.get("$ref"), str):
                self._refer(found.removeprefix(_DEFS))
            schema = list(schema.values())
        for part in schema if isinstance(schema, list) else ():
            self._count(part)

    def _free_name(self, wanted: str) -> str:
        name = plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", wanted).strip("_") or "type"
        number = 1
        while name in self.defs:
            number += 1
            name = f"{plain}_{number}"
        return name

    # -- classes and containers ----------------------------------------------------------------------

    def _record(self, form: TypeForm, origin: type, fields: Mapping[str, RecordField]) -> JsonSchema:
        schema: JsonSchema = {"type": "object", "title": type_name(form)}
        if text := _own_docstring(origin):
            schema["description"] = text
        schema["properties"] = {name: self._field(field) for name, field in fields.items()}
        required = [name for name, field in fields.items() if field.required]
        return {**schema, **({"required": required} if required else {}), "additionalProperties": False}

    def _field(self, field: RecordField) -> JsonSchema:
        schema = self.describe(field.form)
        default = _value_of(field.default) if isinstance(field.default, Enum) else field.default
        shown = _is_json(default) and (default is not None or _takes_none(field.form))
        if field.required or not shown:
            return schema
        return {**schema, "default": default}

    def _array(self, origin: type, args: tuple[TypeForm, ...] | None) -> JsonSchema:
        schema: JsonSchema = {"type": "array"}
        if issubclass(origin, set | frozenset):
            schema["uniqueItems"] = True
        if args is None or any(map(is_unpacked, args)):
            return schema
        if not issubclass(origin, tuple) or (len(args) == 2 and args[1] is Ellipsis):
            items = self.describe(args[0])
            return {**schema, "items": items} if items else schema
        each = [self.describe(arg) for arg in args]
        return {
            **schema,
            **({"prefixItems": each} if each else {}),
            "minItems": len(each),
            "maxItems": len(each),
        }

    def _mapping(self, form: TypeForm, origin: type) -> JsonSchema:
        of_key, of_value = pair_forms(origin, args_of(form))
        keys = self._key(of_key)
        if keys is None:
            return {"title": type_name(form)}
        values = self.describe(of_value)
        return {
            "type": "object",
            **({"propertyNames": keys} if keys else {}),
            **({"additionalProperties": values} if values else {}),
        }

    def _key(self, form: TypeForm) -> JsonSchema | None:
        """Return the schema of the texts that keys can be; None if keys cannot be texts."""
        if is_anything(form):
            return {}
        found: list[JsonSchema] = []
        for option in members(form):
            if option is str:
                return {}
            schema = _NUMBER_KEYS.get(option) or self._resolved(self.describe(option))
            is_text = schema.get("type") == "string" or "pattern" in schema
            if not is_text and not all(isinstance(value, str) for value in schema.get("enum", [None])):
                return None
            found.append(schema)
        return found[0] if len(found) == 1 else {"anyOf": found}

    def _resolved(self, schema: JsonSchema) -> JsonSchema:
        name = schema.get("$ref", "").removeprefix(_DEFS)
        return self.defs.get(name, schema)


def _key_of(form: TypeForm) -> Any:
    try:
        hash(form)
    except TypeError:
        return id(form)
    return form


def _behind(form: TypeForm) -> TypeForm:
    """Return the form that an alias stands for, which may be a union."""
    options = members(form)
    return options[0] if len(options) == 1 else Union[options]  # noqa: UP007


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema of another library with other names of definitions, also in the mapping of a discriminator."""
    if isinstance(schema, dict):
        return {
            key: _DEFS + names.get(value.removeprefix(_DEFS), value.removeprefix(_DEFS))
            if isinstance(value, str)
            and value.startswith(_DEFS)
            and key not in ("const", "default", "description")
            else _renamed(value, names)
            for key, value in schema.items()
        }
    return [_renamed(part, names) for part in schema] if isinstance(schema, list) else schema


def _takes_none(form: TypeForm) -> bool:
    return is_anything(form) or any(is_nothing(member) for member in members(form))


def _literal(form: TypeForm) -> JsonSchema:
    values = [_value_of(value) if isinstance(value, Enum) else value for value in get_args(form)]
    if not all(map(_is_json, values)):
        return {"title": type_name(form)}
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


def _enum(origin: type[Enum]) -> JsonSchema:
    schema: JsonSchema = {"title": type_name(origin)}
    if text := _own_docstring(origin):
        schema["description"] = text
    if issubclass(origin, Flag):
        return {"type": "integer", **schema}
    values = [_value_of(member) for member in origin]
    if all(isinstance(value, str) for value in values):
        schema["type"] = "string"
    return {**schema, "enum": values}


def _value_of(member: Enum) -> Any:
    """Return the JSON form of an enum member: its value, or its name if JSON has no such value."""
    value = member.value
    # An int or str of a derived class is shown as what it is in JSON.
    plain = next(
        (kind(value) for kind in (int, str) if type(value) is not bool and isinstance(value, kind)), value
    )
    return plain if _is_json(plain) else member.name


def _is_json(value: object) -> bool:
    """Return True for a scalar that JSON has: not for NaN and infinite numbers."""
    return isinstance(value, _JSON_SCALARS) and not (isinstance(value, float) and not math.isfinite(value))


def _own_docstring(cls: type) -> str:
    """Return the docstring that was written for a class, not one that Python makes."""
    text = vars(cls).get("__doc__") or ""
    return "" if text.startswith((f"{cls.__name__}(", "An enumeration.")) else cleandoc(text)
