"""Definitions of teams as data: what they consist of, how they are written, and kept beside the checkpoints.

A definition names agents and types; the objects behind the names come from a registry that the program gives. Nothing
is imported because a file says so. A new field stands here, in the schema and the reader of ``definition_reader``, and
in ``team_builder``, which has what is said in code.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.agents.budget import Budget
from holdfast.agents.decisions import ToolApproval
from holdfast.agents.workflow.conditions import EdgeCondition
from holdfast.agents.workflow.conversation import Conversation
from holdfast.agents.workflow.definition_text import write_yaml
from holdfast.agents.workflow.node_options import TRANSIENT, NodeApproval, NodeOptions
from holdfast.checkpoint.retention import Retention
from holdfast.errors import GraphError
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.typing.types import TypeForm

FORMAT = 1
"""The version of the form of definitions."""


class TeamEdge(NamedTuple):
    """Edges from each source to each target, with one condition."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    condition: EdgeCondition | None = None
    is_default: bool = False

    def __str__(self) -> str:
        sources, targets = (", ".join(map(repr, ids)) for ids in (self.sources, self.targets))
        return f"edge {sources} -> {targets}"


class TeamStoreConfig(NamedTuple):
    """The store of a team: in memory, in a folder, or given by the program."""

    kind: str
    root: str | None = None
    retention: Retention | None = None


class TeamParts(NamedTuple):
    """Everything that a definition has."""

    name: str | None
    members: Mapping[str, tuple[str | None, object, NodeOptions]]
    """The reference, the agent and the options of each node."""
    edges: Sequence[TeamEdge]
    store: TeamStoreConfig | None = None
    max_rounds: int = 25
    timeout: float | None = None
    budget: Budget | None = None
    longest_pause: float | None = None
    model_attempts: int | None = None
    session_store: TeamStoreConfig | None = None
    conversation: Conversation = Conversation()
    records: bool = False


@dataclass(frozen=True)
class AgentRegistry:
    """The agents and types that definitions may name.

    ``allow`` has modules whose attributes may be named as ``"module:attribute"``.

    >>> AgentRegistry({"shout": str.upper}).find("shout")("kelp")
    'KELP'
    """

    agents: Mapping[str, object] = field(default_factory=dict)
    types: Mapping[str, TypeForm] = field(default_factory=dict)
    allow: Collection[str] = ()

    def find(self, name: str) -> Any:
        """Return the agent or type of a name; raise ``GraphError`` if the program did not allow it."""
        for known in (self.agents, self.types):
            if name in known:
                return known[name]
        module_name, colon, attribute = name.partition(":")
        if not colon:
            listed = ", ".join(map(repr, (*self.agents, *self.types))) or "none"
            raise GraphError(
                f"{name!r} is not registered; there are {listed}: AgentRegistry({{{name!r}: ...}})"
            )
        if module_name not in self.allow:
            raise GraphError(
                f"the module of {name!r} is not allowed; if it is yours, say AgentRegistry(allow=[{module_name!r}])"
            )
        try:
            found: Any = import_module(module_name)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise GraphError(f"{name!r} is not there: {error}") from error
        return found


# To data.


def describe_team(parts: TeamParts) -> dict[str, Any]:
    """Return a team as JSON; what cannot be written down stands there as ``{"predicate": name}`` or None."""
    data: dict[str, Any] = {"format": FORMAT}
    if parts.name is not None:
        data["name"] = parts.name
    if parts.store is not None:
        data["store"] = {"kind": parts.store.kind}
        _put(data["store"], "root", parts.store.root)
        if parts.store.retention is not None:
            data["store"]["retention"] = parts.store.retention.text() or "full_history"
    if parts.session_store is not None:
        data["session_store"] = {"kind": parts.session_store.kind}
        _put(data["session_store"], "root", parts.session_store.root)
    if parts.conversation.kind != "none":
        data["conversation"] = {"kind": parts.conversation.kind}
        _put(data["conversation"], "session_id", parts.conversation.session_id)
    if parts.records:
        data["recording"] = True
    data["max_iterations"] = parts.max_rounds
    _put(data, "timeout", parts.timeout)
    if parts.budget is not None:
        data["budget"] = _budget_data(parts.budget)
    limit: dict[str, Any] = {}
    _put(limit, "longest_pause", parts.longest_pause)
    _put(limit, "model_attempts", parts.model_attempts)
    if limit:
        data["rate_limit"] = limit
    data["agents"] = {
        node_id: {"agent": reference or reference_of(agent), **_options_data(options)}
        for node_id, (reference, agent, options) in parts.members.items()
    }
    data["edges"] = [_edge_data(edge) for edge in parts.edges]
    return data


def _put(data: dict[str, Any], name: str, value: Any) -> None:
    if value is not None and value != "" and value != {}:
        data[name] = value


def reference_of(thing: Any) -> str | None:
    """Return ``module:attribute`` of a thing that stands in a module under its own name; else None."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:
        return None
    return f"{module}:{name}"


def _edge_data(edge: TeamEdge) -> dict[str, Any]:
    data: dict[str, Any] = {"from": list(edge.sources), "to": list(edge.targets)}
    if edge.condition is not None:
        data["when"] = edge.condition.to_data()
    if edge.is_default:
        data["default"] = True
    return data


def _options_data(options: NodeOptions) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if options.handoffs:
        data["handoffs"] = {handoff.target: handoff.description for handoff in options.handoffs}
    _put(data, "default", options.default_handoff)
    for name in ("input_key", "output_key", "input_template", "instructions", "timeout", "max_concurrent"):
        _put(data, name, getattr(options, name))
    _put(data, "context", dict(options.context))
    if options.output_types:
        data["output"] = [reference_of(form) for form in options.output_types]
    if options.retry is not None:
        data["retry"] = _retry_data(options.retry)
    if options.on_error == "fallback":
        data["fallback"] = options.fallback
    elif options.on_error != "stop":
        data["on_error"] = options.on_error
    if options.approval is not None:
        data["approval"] = _approval_data(options.approval)
    if options.tool_approval is not None:
        data["tool_approval"] = _tool_approval_data(options.tool_approval)
    if options.budgets:
        data["budgets"] = [_budget_data(budget) for budget in options.budgets]
    return data


def _retry_data(retry: RetryPolicy) -> dict[str, Any]:
    data = {one.name: getattr(retry, one.name) for one in fields(retry) if one.name != "retry_on"}
    if retry.retry_on == TRANSIENT:
        data["transient_only"] = True
    elif retry.retry_on is not Exception:
        data["retry_on"] = {"predicate": str(retry.retry_on)}
    return data


def _approval_data(rule: NodeApproval) -> dict[str, Any]:
    data: dict[str, Any] = {"when": rule.when.to_data(), "on_timeout": rule.on_timeout}
    _put(data, "message", rule.message)
    _put(data, "timeout", rule.timeout)
    return data


def _tool_approval_data(rule: ToolApproval) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if callable(rule.tools):
        data["tools"] = {"predicate": getattr(rule.tools, "__qualname__", repr(rule.tools))}
    elif rule.tools is not None:
        data["tools"] = list(rule.tools)
    _put(data, "message", rule.message)
    seconds = rule.expires
    _put(
        data,
        "timeout",
        seconds if seconds is None or isinstance(seconds, int | float) else seconds.total_seconds(),
    )
    return data


def _budget_data(budget: Budget) -> dict[str, Any]:
    data: dict[str, Any] = {"name": budget.name}
    for name in ("tokens", "calls", "cost"):
        _put(data, name, getattr(budget, name))
    _put(data, "prices", {name: [price.input, price.output] for name, price in budget.prices.items()})
    return data


def check_exportable(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of a definition; raise ``GraphError`` that names the first part that is a function or no JSON."""
    for node_id, node in data["agents"].items():
        if node["agent"] is None:
            raise GraphError(
                f"team {name!r} cannot be exported: its agent {node_id!r} has no name by which it could be found "
                f"again; give it one, like add_agent({node_id!r}, agent, reference='my_app.agents:{node_id}')"
            )
        if None in node.get("output", ()):
            raise GraphError(
                f"team {name!r} cannot be exported: an output type of agent {node_id!r} does not stand in a module"
            )
    found = _find_predicate(data, "")
    if found is not None:
        raise GraphError(
            f"team {name!r} cannot be exported: {found[0]} is the function {found[1]}; use a condition that is data, "
            f"like when_equals"
        )
    try:
        copied: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise GraphError(f"team {name!r} cannot be exported: a value in it is no JSON: {error}") from error
    return copied


def _find_predicate(data: Any, path: str) -> tuple[str, str] | None:
    if isinstance(data, dict):
        if set(data) == {"predicate"}:
            return path.lstrip("."), data["predicate"]
        parts = ((f"{path}.{key}", part) for key, part in data.items() if key != "context")
    elif isinstance(data, list):
        parts = ((f"{path}.{number}", part) for number, part in enumerate(data))
    else:
        return None
    return next((found for at, part in parts if (found := _find_predicate(part, at)) is not None), None)


def save_config(data: Mapping[str, Any], path: str | PathLike[str]) -> None:
    """Write a definition to a file, JSON or YAML by its ending.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_config({"format": 1, "agents": {}}, f"{folder}/team.json")
    """
    file = Path(path)
    if file.suffix.lower() in (".yaml", ".yml"):
        text = write_yaml(dict(data))
    else:
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    _write(file, text)


def save_definition(root: Path, name: str, definition: Mapping[str, Any]) -> None:
    """Keep a definition beside the checkpoints, as a new version unless it is that of the newest."""
    folder = root / "definitions" / "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    folder.mkdir(parents=True, exist_ok=True)
    known = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit())
    text = json.dumps(definition, indent=2, ensure_ascii=False, default=repr) + "\n"
    if known and (folder / f"{known[-1]:04}.json").read_text("utf-8") == text:
        return
    _write(folder / f"{(known[-1] if known else 0) + 1:04}.json", text)


def _write(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole, or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
