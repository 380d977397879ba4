"""Plain JSON is checked against schemas as a validator of JSON Schema does, and told what is wrong where."""

import enum
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.parts import Unconvertible, check_json, json_schema, plain_json
from tests.unit.test_json_schema import CASES


class Pet(pydantic.BaseModel):
    kind: str = pydantic.Field(pattern="^(cat|dog)$")
    age: int = pydantic.Field(ge=0, lt=40)
    names: list[str] = pydantic.Field(default=[], max_length=2)
    tags: dict[str, float] = pydantic.Field(default={}, min_length=0, max_length=1)


class Exact(pydantic.BaseModel, extra="forbid"):
    pair: tuple[int, str] | None = None
    other: Pet | int = 1


class Ratio(enum.Enum):
    HALF = 0.5
    WHOLE = 1.0


def fits(value: Any, schema: Any) -> bool:
    try:
        check_json(value, schema)
    except Unconvertible:
        return False
    return True


@pytest.mark.parametrize("place", range(len(CASES)))
def test_schemas_of_types_take_and_refuse_the_same_values(place: int) -> None:
    form, given_value, _, refused = CASES[place]
    schema = json_schema(form)
    check_json(given_value, schema)
    for wrong in refused:
        assert not fits(wrong, schema), wrong


WORDS = ["a", "kind", "age", "names", "tags", "pair", "other", "cat", "dog", "r", "1", "2026-03-01", "x y"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 50) | st.sampled_from([0.5, 1.5]) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)
SCHEMAS: list[Any] = [
    json_schema(Pet),
    json_schema(Exact),
    json_schema(list[Pet | Exact | None]),
    *[json_schema(form) for form, *_ in CASES],
    {"type": ["string", "null"], "minLength": 2},
    {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"allOf": [{"type": "object"}, {"required": ["a"]}, {"minProperties": 1, "maxProperties": 2}]},
    {"not": {"type": "array"}},
    {"exclusiveMinimum": 1, "maximum": 3},
    {"type": "integer", "multipleOf": 3},
    {"prefixItems": [{"type": "integer"}], "items": False},
    {"uniqueItems": True, "minItems": 1},
    {"enum": [1, "a", None, [1]]},
    {"const": {"a": 1}},
    {"$defs": {"list": {"type": "array", "items": {"$ref": "#/$defs/list"}}}, "$ref": "#/$defs/list"},
    True,
    False,
]


@given(JSON, st.sampled_from(SCHEMAS))
def test_values_fit_as_a_validator_of_json_schema_says(value: Any, schema: Any) -> None:
    said = Draft202012Validator(schema).is_valid(value)
    # It looks at the form of dates and the like as well, which a validator leaves alone unless it is told to.
    looks_closer = any(keyword in repr(schema) for keyword in ("'format'", "'contentEncoding'"))
    assert fits(value, schema) == said or (said and looks_closer)


FORMS = {
    "date-time": ("2026-03-01T12:00:00Z", "yesterday"),
    "date": ("2026-03-01", "2026-02-30"),
    "time": ("12:30:00", "25:00"),
    "duration": ("P1DT2H", "a day"),
    "uuid": ("12345678-1234-5678-1234-567812345678", "1234"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_texts_are_looked_at(form: str) -> None:
    right, wrong = FORMS[form]
    assert fits(right, {"type": "string", "format": form})
    assert not fits(wrong, {"type": "string", "format": form})
    assert fits(3, {"format": form}), "a format says nothing of other kinds of values"


@pytest.mark.parametrize(
    "schema",
    [{"format": "email"}, {"if": {}, "then": False}, {"pattern": "(?P<"}, {"$ref": "#/$defs/no"}, {"$ref": "http://x"}],
    ids=repr,
)  # fmt: skip
def test_what_is_not_known_refuses_nothing(schema: Any) -> None:
    assert fits("anything", schema)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (
            {"lines": [{"a": 1}, {"a": "x"}]},
            {"properties": {"lines": {"items": {"properties": {"a": {"type": "integer"}}}}}},
            "response.lines[1].a: a string, not an integer: 'x'",
        ),
        ({"x y": 1}, {"additionalProperties": {"type": "null"}}, "response['x y']: a number, not null: 1"),
        (True, {"type": ["string", "integer"]}, "response: a boolean, not a string or an integer: True"),
        ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False}, "response: has no 'b'; it has 'a'"),
        ({}, {"additionalProperties": False, "required": ["a", "b"]}, "response: needs 'a', 'b', which is missing"),
        (10**5000, {"maximum": 3}, "response: <repr failed: "),
        (True, {"enum": [1, 2]}, "response: True is none of 1, 2"),
        (1, {"anyOf": [{"type": "string"}]}, "response: a number, not a string: 1"),
    ],
    ids=["deep", "odd key", "kinds", "unknown", "missing", "huge", "bool", "one form"],
)  # fmt: skip
def test_the_part_and_the_reason_are_named(value: Any, schema: Any, message: str) -> None:
    with pytest.raises(Unconvertible) as caught:
        check_json(value, schema)
    assert str(caught.value).startswith(message)


def test_a_schema_that_refers_to_itself_ends() -> None:
    endless = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    with pytest.raises(RecursionError):
        check_json(1, endless)


def test_a_number_without_a_fraction_is_the_same_as_an_int_in_an_enum() -> None:
    assert fits(1, json_schema(Ratio))
    assert not fits(True, json_schema(Ratio))


def test_plain_json_is_copied_as_what_it_is_in_json() -> None:
    class Level(enum.IntEnum):
        HIGH = 2

    class Name(enum.StrEnum):
        KIM = "kim"

    given_value = {Name.KIM: (Level.HIGH, 1.5, None, True)}
    made = plain_json(given_value)
    assert made == {"kim": [2, 1.5, None, True]}
    assert [type(part) for part in made["kim"]] == [int, float, type(None), bool]
    assert type(next(iter(made))) is str
