"""Reads definitions of teams: the JSON Schema of the format, and the reader that makes a builder of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agents.budget import Budget, Price
from holdfast.agents.workflow.conditions import TEST_NAMES, EdgeCondition
from holdfast.agents.workflow.conversation import CONVERSATION_KINDS, Conversation
from holdfast.agents.workflow.definition import FORMAT, AgentRegistry, TeamEdge
from holdfast.agents.workflow.definition_text import ReadText, read_text
from holdfast.agents.workflow.node_options import NodeBuilder
from holdfast.checkpoint.retention import Retention
from holdfast.errors import DefinitionError, GraphError, HoldfastError
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.typing.conversion import Unconvertible
from holdfast.graph.typing.json_check import check_json

if TYPE_CHECKING:
    from holdfast.agents.workflow.team_builder import AgentWorkflowBuilder

_SECONDS = {"type": "number", "exclusiveMinimum": 0}
_IDS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
_BUDGET = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tokens": {"type": "integer", "minimum": 0},
        "calls": {"type": "integer", "minimum": 0},
        "cost": {"type": "number", "minimum": 0},
        "prices": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "number"}}},
    },
    "additionalProperties": False,
}
_CONDITION = {
    "type": "object",
    "properties": {
        "field": {"type": "string"},
        "test": {"enum": list(TEST_NAMES)},
        "value": {},
        "all": {"type": "array", "items": {"$ref": "#/$defs/condition"}},
        "any": {"type": "array", "items": {"$ref": "#/$defs/condition"}},
        "not": {"$ref": "#/$defs/condition"},
        "type": {"type": "string"},
        "always": {"const": True},
    },
    "additionalProperties": False,
}
_AGENT = {
    "type": "object",
    "required": ["agent"],
    "properties": {
        "agent": {"type": "string"},
        "handoffs": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
        "default": {"type": "string"},
        "input_key": {"type": "string"},
        "output_key": {"type": "string"},
        "input_template": {"type": "string"},
        "instructions": {"type": "string"},
        "context": {"type": "object"},
        "output": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "timeout": _SECONDS,
        "retry": {
            "type": "object",
            "properties": {
                "attempts": {"type": "integer", "minimum": 1},
                "backoff": {"type": "number", "minimum": 0},
                "multiplier": {"type": "number", "minimum": 1},
                "longest": {"type": "number", "minimum": 0},
                "jitter": {"type": "number", "minimum": 0, "maximum": 1},
                "transient_only": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
        "on_error": {"enum": ["stop", "skip", "isolate"]},
        "fallback": {"type": "string"},
        "max_concurrent": {"type": "integer", "minimum": 1},
        "approval": {
            "type": "object",
            "properties": {
                "when": {"$ref": "#/$defs/condition"},
                "message": {"type": "string"},
                "timeout": _SECONDS,
                "on_timeout": {"enum": ["deny", "approve", "wait"]},
            },
            "additionalProperties": False,
        },
        "tool_approval": {
            "type": "object",
            "properties": {
                "tools": {"type": "array", "items": {"type": "string"}},
                "message": {"type": "string"},
                "timeout": _SECONDS,
            },
            "additionalProperties": False,
        },
        "budgets": {"type": "array", "items": _BUDGET},
    },
    "additionalProperties": False,
}
_EDGE = {
    "type": "object",
    "required": ["from", "to"],
    "properties": {
        "from": _IDS,
        "to": _IDS,
        "when": {"$ref": "#/$defs/condition"},
        "default": {"const": True},
    },
    "additionalProperties": False,
}
DEFINITION_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "A team of agents of Holdfast",
    "type": "object",
    "required": ["format", "agents"],
    "properties": {
        "$schema": {"type": "string"},
        "format": {"const": FORMAT},
        "name": {"type": "string"},
        "store": {
            "type": "object",
            "required": ["kind"],
            "properties": {
                "kind": {"enum": ["memory", "json", "given"]},
                "root": {"type": "string"},
                "retention": {"type": "string"},
            },
            "additionalProperties": False,
        },
        "session_store": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"enum": ["memory", "json", "given"]}, "root": {"type": "string"}},
            "additionalProperties": False,
        },
        "conversation": {
            "type": "object",
            "required": ["kind"],
            "properties": {"kind": {"enum": list(CONVERSATION_KINDS)}, "session_id": {"type": "string"}},
            "additionalProperties": False,
        },
        "recording": {"type": "boolean"},
        "max_iterations": {"type": "integer", "minimum": 1},
        "timeout": _SECONDS,
        "budget": _BUDGET,
        "rate_limit": {
            "type": "object",
            "properties": {
                "longest_pause": {"type": "number", "minimum": 0},
                "model_attempts": {"type": "integer", "minimum": 1},
            },
            "additionalProperties": False,
        },
        "agents": {"type": "object", "additionalProperties": _AGENT, "minProperties": 1},
        "edges": {"type": "array", "items": _EDGE},
    },
    "additionalProperties": False,
    "$defs": {"condition": _CONDITION},
}


def definition_schema() -> dict[str, Any]:
    """Return the JSON Schema of definitions, for editors.

    >>> definition_schema()["required"]
    ['format', 'agents']
    """
    return deepcopy(DEFINITION_SCHEMA)


def read_config(config: Mapping[str, Any], registry: AgentRegistry) -> AgentWorkflowBuilder:
    """Return the builder of a definition."""
    return DefinitionReader(ReadText(config, {}), registry).read()


def read_file(path: str | PathLike[str], registry: AgentRegistry) -> AgentWorkflowBuilder:
    """Return the builder of a definition in a file."""
    return DefinitionReader(read_text(Path(path)), registry).read()


class DefinitionReader:
    """Makes a builder of a definition; each error names the part, and its line where that is known."""

    def __init__(self, text: ReadText, registry: AgentRegistry) -> None:
        if not isinstance(registry, AgentRegistry):
            raise GraphError(f"a definition is read with an AgentRegistry(...), not with {registry!r}")
        self._text = text
        self._registry = registry

    def read(self) -> AgentWorkflowBuilder:
        """Return the builder."""
        from holdfast.agents.workflow.team import AgentWorkflow

        data = self._text.value
        if not isinstance(data, Mapping):
            raise self._text.error("$", f"a definition is an object with 'agents' and 'edges', not {data!r}")
        self._check(data, DEFINITION_SCHEMA, "$")
        builder = AgentWorkflow.create()
        if "name" in data:
            builder.with_name(data["name"])
        self._read_store(data.get("store"), builder)
        self._read_sessions(data, builder)
        if data.get("recording"):
            builder.with_recording()
        if "max_iterations" in data:
            builder.with_max_iterations(data["max_iterations"])
        if "timeout" in data:
            builder.with_timeout(data["timeout"])
        if "budget" in data:
            builder.with_budget(self._try("$/budget", lambda: _budget_of(data["budget"])))
        builder.with_rate_limit(**data.get("rate_limit", {}))
        for node_id, node in data["agents"].items():
            self._try(f"$/agents/{node_id}", lambda i=node_id, n=node: self._add(builder, i, n))  # type: ignore[misc]
        for number, edge in enumerate(data.get("edges", ())):
            self._check_ids(edge, data["agents"], f"$/edges/{number}")
            if "when" in edge:
                self._check_condition(edge["when"], f"$/edges/{number}/when")
            self._try(f"$/edges/{number}", lambda e=edge: builder.add_edge(_edge_of(e)))  # type: ignore[misc]
        self._check_team(builder, data)
        return builder

    def _check_condition(self, data: Any, path: str) -> None:
        """Check the innermost parts first, so that the line of a wrong one is known."""
        for name in ("all", "any"):
            for number, part in enumerate(data.get(name, ())):
                self._check_condition(part, f"{path}/{name}/{number}")
        if "not" in data:
            self._check_condition(data["not"], f"{path}/not")
        self._try(path, lambda: EdgeCondition.from_data(data))

    def _check_team(self, builder: AgentWorkflowBuilder, data: Mapping[str, Any]) -> None:
        """Check how agents and edges fit; what is wrong is told with the line of the edge or agent that it names."""
        agents = data["agents"]
        for node_id, node in agents.items():
            targets = {f"handoffs/{target}": target for target in node.get("handoffs", ())}
            targets |= {option: node[option] for option in ("default", "fallback") if option in node}
            for place, target in targets.items():
                if target not in agents:
                    known = ", ".join(map(repr, agents))
                    raise self._text.error(
                        f"$/agents/{node_id}/{place}", f"there is no agent {target!r}; there are {known}"
                    )
        try:
            builder.check()
        except GraphError as error:
            raise self._text.error(_place_of(str(error), data), str(error)) from error

    def _check(self, data: Any, schema: Mapping[str, Any], path: str) -> None:
        """Check the parts one by one, so that the line of a wrong one is known."""
        while "$ref" in schema:
            schema = DEFINITION_SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
        if isinstance(data, Mapping) and "properties" in schema:
            for key in data:
                if key not in schema["properties"] and schema.get("additionalProperties") is False:
                    known = ", ".join(map(repr, schema["properties"]))
                    raise self._text.error(f"{path}/{key}", f"there is no {key!r} here; there are {known}")
            for key in schema.get("required", ()):
                if key not in data:
                    raise self._text.error(path, f"{key!r} is missing")
        self._check_itself(data, schema, path)
        if isinstance(data, Mapping):
            for key, part in data.items():
                inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
                self._check(part, inner if isinstance(inner, Mapping) else {}, f"{path}/{key}")
        elif isinstance(data, list) and isinstance(schema.get("items"), Mapping):
            for number, part in enumerate(data):
                self._check(part, schema["items"], f"{path}/{number}")

    def _check_itself(self, data: Any, schema: Mapping[str, Any], path: str) -> None:
        inner = ("properties", "additionalProperties", "items", "required")
        own = {key: value for key, value in schema.items() if key not in inner}
        try:
            check_json(data, own, "")
        except Unconvertible as error:
            raise self._text.error(path, str(error).removeprefix(": ")) from None

    def _try(self, path: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except DefinitionError:
            raise
        except HoldfastError as error:
            raise self._text.error(path, str(error)) from error

    def _check_ids(self, edge: Mapping[str, Any], agents: Mapping[str, Any], path: str) -> None:
        for end in ("from", "to"):
            for node_id in _ids_of(edge[end]):
                if node_id not in agents and node_id not in ("START", "END"):
                    known = ", ".join(map(repr, agents))
                    raise self._text.error(
                        f"{path}/{end}", f"there is no agent {node_id!r}; there are {known}"
                    )

    def _read_store(self, store: Mapping[str, Any] | None, builder: AgentWorkflowBuilder) -> None:
        if store is None:
            return
        if store["kind"] == "given":
            builder.with_checkpointing()
            return
        text = store.get("retention", "latest_only")
        retention = Retention.full_history() if text == "full_history" else Retention.of_text(text)
        if text != "full_history" and retention.keeps_all:
            raise self._text.error(
                "$/store/retention",
                f"there is no retention {text!r}; there are 'latest_only', 'full_history', 'keep_last:COUNT' and "
                f"'keep_for:MICROSECONDS'",
            )
        if store["kind"] == "memory":
            builder.with_in_memory_workflow_store(retention)
            return
        if "root" not in store:
            raise self._text.error("$/store", "a store of kind 'json' needs 'root', the folder")
        builder.with_json_workflow_store(store["root"], retention)

    def _read_sessions(self, data: Mapping[str, Any], builder: AgentWorkflowBuilder) -> None:
        if "conversation" in data:
            builder.with_conversation(Conversation(**data["conversation"]))
        store = data.get("session_store")
        if store is None or store["kind"] == "given":
            return
        if store["kind"] == "memory":
            builder.with_in_memory_session_store()
        elif "root" in store:
            builder.with_json_session_store(store["root"])
        else:
            raise self._text.error("$/session_store", "a store of kind 'json' needs 'root', the folder")

    def _add(self, builder: AgentWorkflowBuilder, node_id: str, node: Mapping[str, Any]) -> None:
        agent = self._find(node["agent"], f"$/agents/{node_id}/agent")
        types = [
            self._find(name, f"$/agents/{node_id}/output/{number}")
            for number, name in enumerate(node.get("output", ()))
        ]
        if "default" in node and "handoffs" not in node:
            raise self._text.error(f"$/agents/{node_id}/default", "a default is for an agent with 'handoffs'")

        def configure(options: NodeBuilder) -> None:
            self._configure(options, node, types)

        if "handoffs" in node:
            builder.add_router_agent(
                node_id,
                agent,
                node["handoffs"],
                configure,
                default=node.get("default"),
                reference=node["agent"],
            )
        else:
            builder.add_agent(node_id, agent, configure, reference=node["agent"])

    def _find(self, name: str, path: str) -> Any:
        return self._try(path, lambda: self._registry.find(name))

    def _configure(self, node: NodeBuilder, data: Mapping[str, Any], types: list[Any]) -> None:
        path = f"$/agents/{node.node_id}"
        for name in ("input_key", "output_key", "input_template", "instructions", "context", "timeout"):
            if name in data:
                self._try(f"{path}/{name}", lambda n=name: getattr(node, f"with_{n}")(data[n]))  # type: ignore[misc]
        if "max_concurrent" in data:
            node.with_max_concurrent(data["max_concurrent"])
        if len(types) == 1:
            node.structured_output(types[0])
        elif types:
            node.union_output(*types)
        if "retry" in data:
            given = dict(data["retry"])
            transient = given.pop("transient_only", False)
            node.with_retry(policy=RetryPolicy(**given), transient_only=transient)
        if "fallback" in data:
            if "on_error" in data:
                raise self._text.error(f"{path}/on_error", "give 'on_error' or 'fallback', not both")
            node.on_error_fallback(data["fallback"])
        elif "on_error" in data:
            getattr(node, f"on_error_{data['on_error']}")()
        if "approval" in data:
            given = dict(data["approval"])
            when = given.pop("when", {"always": True})
            self._check_condition(when, f"{path}/approval/when")
            condition = EdgeCondition.from_data(when)
            node.requires_approval(condition, **given)
        if "tool_approval" in data:
            given = dict(data["tool_approval"])
            node.requires_tool_approval(given.pop("tools", None), **given)
        for number, budget in enumerate(data.get("budgets", ())):
            node.with_budget(self._try(f"{path}/budgets/{number}", lambda b=budget: _budget_of(b)))  # type: ignore[misc]


def _place_of(message: str, data: Mapping[str, Any]) -> str:
    """Return the edge or the agent that a message about a team names."""
    for number, edge in enumerate(data.get("edges", ())):
        links = [(source, target) for source in _ids_of(edge["from"]) for target in _ids_of(edge["to"])]
        backward = (f"the edge from {source!r} back to {target!r} " for source, target in links)
        if message.startswith((f"{_edge_of(edge)}: ", f"{_edge_of(edge)} was added twice", *backward)):
            return f"$/edges/{number}"
    for node_id in data["agents"]:
        if message.startswith((f"agent {node_id!r}", f"router {node_id!r}")):
            return f"$/agents/{node_id}"
    return "$/agents"


def _ids_of(given: str | list[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _edge_of(data: Mapping[str, Any]) -> TeamEdge:
    condition = EdgeCondition.from_data(data["when"]) if "when" in data else None
    if condition is not None and "default" in data:
        raise GraphError("an edge has 'when' or 'default', not both")
    return TeamEdge(_ids_of(data["from"]), _ids_of(data["to"]), condition, "default" in data)


def _budget_of(data: Mapping[str, Any]) -> Budget:
    given = dict(data)
    prices = {name: Price(*price) for name, price in given.pop("prices", {}).items()}
    return Budget(prices=prices, **given)
