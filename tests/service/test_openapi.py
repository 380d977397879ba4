"""The OpenAPI document: schemathesis calls a live server by it, and a schema validator reads it."""

import datetime
import enum
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.checkpoint.codec.plain import plain_value
from holdfast.graph.typing.schema import json_schema
from holdfast.server.forms import CheckpointForm, ReplyForm, RequestForm, RunForm
from holdfast.server.openapi import hoist, shown_schema
from tests.service.processes import PATIENCE, TOKEN, ServerProcess

FORMS = Path(__file__).parents[1] / "unit/json_forms"
# A key that was used, a head that has moved, a cursor of another list: no schema can say these.
CONFIG = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "412", "422"]
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    one = ServerProcess(tmp_path_factory.mktemp("openapi") / "runs.db", workflows="refunds greeting nested")
    one.post("/v1/workflows/Refunds/runs", {"input": {"customer": "Ada"}, "run_id": "asking"}, wait=20)
    one.post("/v1/workflows/Greet/runs", {"input": "kelp", "run_id": "over"}, wait=20)
    yield one
    one.end()


def test_a_live_server_does_what_its_document_says(live: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    arguments = ["run", f"{live.url}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", "--no-color"]
    arguments += ["-n", "4", "--warnings", "off", "--phases", "coverage,fuzzing"]
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *arguments],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=3 * PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 29" in done.stdout, done.stdout[-2000:]


def test_inputs_have_the_schemas_of_their_workflows(live: ServerProcess) -> None:
    document = live.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name, good, bad in (("Refunds", {"customer": "Ada"}, {"customer": 5}), ("Greet", "kelp", 5)):
        schema = {**schemas[f"{name}_StartBody"], "components": document["components"]}
        jsonschema.validate({"input": good}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"input": bad}, schema)
    identifiers = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize(
    ("form", "written"),
    [(CheckpointForm, "CheckpointInfo"), (RunForm, "RunInfo"), (RequestForm, "RequestRecord")],
)
def test_forms_have_the_fields_that_are_written(form: type[ReplyForm], written: str) -> None:
    assert list(form.model_fields) == list(json.loads((FORMS / f"{written}.json").read_text()))


def test_recursive_schemas_are_moved() -> None:
    found: dict[str, object] = {}
    recursive = {"$defs": {"A": {"properties": {"next": {"$ref": "#/$defs/A"}}}}, "$ref": "#/$defs/A"}
    assert hoist(recursive, "W", found) == {"$ref": "#/components/schemas/W_A"}
    assert found == {"W_A": {"properties": {"next": {"$ref": "#/components/schemas/W_A"}}}}
    itself = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    assert hoist(itself, "V", found) == {"$ref": "#/components/schemas/V"}
    assert found["V"] == {"type": "object", "properties": {"child": {"$ref": "#/components/schemas/V"}}}
    assert "#/$defs" not in str(hoist(json_schema(list[int]), "L", found))


class Colour(enum.Enum):
    RED = 1


@dataclass
class Leaf:
    name: str
    colour: Colour = Colour.RED
    next: "Leaf | None" = None
    parts: list[int] = field(default_factory=list)


@dataclass
class NamedLeaf(Leaf):
    more: int = 0


@pytest.mark.parametrize(
    ("form", "value", "other"),
    [
        (str, "kelp", 5),
        (int | None, 2**70, "5"),
        (float, 0.5, "0.5"),
        (list[Leaf], [Leaf("a"), NamedLeaf("b", more=2)], [{"name": "a"}]),
        (Leaf, Leaf("a", next=Leaf("b")), {"$type": "Leaf", "name": 5}),
        (dict[str, list[int]], {"a": [1], "$b": []}, {"a": "b"}),
        (list[str] | Leaf, Leaf("a", parts=[1]), [1]),
        (dict[int, str], {1: "a"}, None),
        (tuple[int, ...], (1, 2), None),
        (set[str], {"a"}, None),
        (bytes, b"a", None),
        (Colour, Colour.RED, None),
        (datetime.date, datetime.date(2026, 3, 1), None),
        (Any, object, None),
    ],
    ids=str,
)
def test_outputs_fit_the_schemas_of_their_types(form: Any, value: Any, other: Any) -> None:
    """In the plain form; types that JSON lacks have a schema that takes whatever that is."""
    schema = shown_schema(form)
    jsonschema.validate(plain_value(value), schema)
    if other is None:
        assert set(schema) <= {"title"}
    else:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(other, schema)


def test_answers_have_the_schemas_of_their_workflows(live: ServerProcess) -> None:
    document = live.client.get("/openapi.json").json()
    body = document["paths"]["/v1/runs/{run_id}/responses"]["post"]["requestBody"]["content"]
    names = [one["$ref"].rpartition("/")[2] for one in body["application/json"]["schema"]["anyOf"]]
    assert names == ["Refunds_ResponsesBody", "Nested_ResponsesBody", "ResponsesBody"]
    for name in names[:2]:  # that of a nested workflow takes the answers of the inner one
        schema = {**document["components"]["schemas"][name], "components": document["components"]}
        jsonschema.validate({"responses": {"a": {"approved": True}}}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"responses": {"a": {"approved": 5}}}, schema)
