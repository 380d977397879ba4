"""Compiles the agents and edges of a team: checks them, makes the plan, and connects the executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.agents.workflow.conditions import ERROR_KEY, HANDOFF_KEY, EdgeCondition
from holdfast.agents.workflow.definition import TeamEdge
from holdfast.agents.workflow.node_options import NodeOptions, output_keys
from holdfast.agents.workflow.team_ends import TeamEnd, TeamStart
from holdfast.agents.workflow.team_node import EdgeRule, TeamNode
from holdfast.agents.workflow.team_plan import END, START, TeamPlan, plan_team
from holdfast.builder import WorkflowBuilder
from holdfast.errors import GraphError
from holdfast.graph.typing.types import type_name
from holdfast.workflow import Workflow

MOST_SUPERSTEPS = 1_000_000_000
"""Loops of a team are limited by their rounds."""


class TeamMember(NamedTuple):
    """An agent of a team that is being built."""

    agent: object
    options: NodeOptions
    reference: str | None = None
    """The name by which a definition calls the agent."""


class TeamCompiler:
    """Makes rules and a plan of the agents and edges of a team, and checks them."""

    def __init__(self, members: Mapping[str, TeamMember], edges: Sequence[TeamEdge]) -> None:
        self._members = members
        self._edges = edges
        self._rules: dict[str, list[EdgeRule]] = {node: [] for node in (START, *members)}

    def compile(self) -> tuple[dict[str, list[EdgeRule]], TeamPlan]:
        """Return the edges out of each agent, and the plan."""
        for edge in self._edges:
            for source in edge.sources:
                for target in edge.targets:
                    self._add(source, EdgeRule(target, edge.condition, edge.is_default), edge)
        for node_id, member in self._members.items():
            self._add_handoffs(node_id, member.options)
            if member.options.fallback is not None:
                self._check_id(member.options.fallback, f"agent {node_id!r}: on_error_fallback")
                if member.options.fallback == node_id:
                    raise GraphError(
                        f"agent {node_id!r}: on_error_fallback names the agent itself; name another"
                    )
                self._rules[node_id].append(EdgeRule(member.options.fallback, on_error=True))
        reached = {
            rule.target for node, rules in self._rules.items() for rule in rules if rule.target != node
        }
        for node_id in self._members:
            if node_id not in reached:
                self._rules[START].append(EdgeRule(node_id))
        self._add_ends()
        plan = self._plan()
        self._check_back_edges(plan)
        self._check_defaults()
        self._check_inputs()
        return self._rules, plan

    def _plan(self) -> TeamPlan:
        links = [(source, rule.target) for source, rules in self._rules.items() for rule in rules]
        plain = {
            (source, rule.target)
            for source, rules in self._rules.items()
            for rule in rules
            if rule.words is None
        }
        return plan_team(list(self._members), links, [link for link in links if link not in plain])

    def _add(self, source: str, rule: EdgeRule, edge: TeamEdge) -> None:
        if source == END or rule.target == START:
            raise GraphError(f"{edge}: nothing leads away from END, nor to START; remove the edge")
        if source != START:
            self._check_id(source, str(edge))
        if rule.target != END:
            self._check_id(rule.target, str(edge))
        if source == START and (rule.words is not None or rule.target == END):
            raise GraphError(
                f"{edge}: START has no outputs, so its edges have no conditions and lead to agents"
            )
        self._check_type(source, rule, edge)
        if any(known.target == rule.target and known.words == rule.words for known in self._rules[source]):
            raise GraphError(f"{edge} was added twice from {source!r} to {rule.target!r}; remove one")
        self._rules[source].append(rule)

    def _check_id(self, node_id: str, place: str) -> None:
        if node_id not in self._members:
            known = ", ".join(map(repr, self._members))
            raise GraphError(
                f"{place} names the agent {node_id!r}, which is not in the team; there are {known}; add it with "
                f"add_agent({node_id!r}, ...)"
            )

    def _check_type(self, source: str, rule: EdgeRule, edge: TeamEdge) -> None:
        if rule.condition is None or rule.condition.name != "type":
            return
        names = [type_name(form) for form in self._members[source].options.output_types]
        if rule.condition.value not in names:
            given = ", ".join(names) or "text"
            raise GraphError(
                f"{edge}: agent {source!r} gives out {given}, never a {rule.condition.value}; name that type in its "
                f"structured_output or union_output"
            )

    def _add_handoffs(self, node_id: str, options: NodeOptions) -> None:
        targets = [handoff.target for handoff in options.handoffs]
        if options.default_handoff is not None and options.default_handoff not in targets:
            targets.append(options.default_handoff)
        for target in targets:
            self._check_id(target, f"router {node_id!r}: its handoff")
            self._rules[node_id].append(EdgeRule(target, EdgeCondition.test("equals", HANDOFF_KEY, target)))

    def _add_ends(self) -> None:
        """Lead each agent from which no edge leads on to END."""
        back = self._plan().back
        for node_id in self._members:
            rules = [rule for rule in self._rules[node_id] if not rule.on_error]
            if any((node_id, rule.target) not in back for rule in rules):
                continue
            has_default = any(rule.is_default for rule in rules)
            if rules and has_default:
                raise GraphError(
                    f"agent {node_id!r}: its default leads back, so it never comes to END; lead it on with "
                    f"from_({node_id!r}).to('END').when_...(...)"
                )
            self._rules[node_id].append(EdgeRule(END, is_default=bool(rules)))

    def _check_defaults(self) -> None:
        for source, rules in self._rules.items():
            if any(rule.is_default for rule in rules) and not any(rule.condition for rule in rules):
                raise GraphError(
                    f"agent {source!r} has a default edge, but no edge with a condition, so it is always taken; remove "
                    f"as_default, or give another edge a condition"
                )

    def _check_inputs(self) -> None:
        """Raise if an agent wants an output that no agent can give."""
        given = {node_id: output_keys(member.options) for node_id, member in self._members.items()}
        closed = [keys for keys in given.values() if keys is not None]
        known = {"request", ERROR_KEY, *(key for keys in closed for key in keys)}
        known |= {f"{node}.{key}" for node, keys in given.items() for key in (*(keys or ()), ERROR_KEY)}
        for node_id, member in self._members.items():
            option, wanted = member.options.wanted_keys
            for key in wanted:
                node = key.partition(".")[0]
                is_open = (
                    given.get(node, ()) is None if node in given and "." in key else None in given.values()
                )
                if key not in known and key not in member.options.context and not is_open:
                    raise GraphError(
                        f"agent {node_id!r}: {option} names the output {key!r}, which no agent gives; there are "
                        f"{', '.join(map(repr, sorted(known)))}"
                    )

    def _check_back_edges(self, plan: TeamPlan) -> None:
        for source, target in plan.back:
            if any(rule.target == target and rule.words is None for rule in self._rules[source]):
                raise GraphError(
                    f"the edge from {source!r} back to {target!r} has no condition, so the loop never ends; give it "
                    f"one, like from_({source!r}).to({target!r}).when_equals(...)"
                )


def connect(
    name: str | None, plan: TeamPlan, rules: Mapping[str, Sequence[EdgeRule]], nodes: Mapping[str, TeamNode]
) -> Workflow:
    """Return the workflow of a team: its edges, and those by which it counts."""
    start, end = TeamStart(plan), TeamEnd(plan)
    placed: dict[str, Any] = {START: start, **nodes, END: end}
    labels: dict[tuple[str, str], str | None] = {(START, END): None}
    for source, target in plan.links:
        words = [rule.words for rule in rules[source] if rule.target == target and rule.words]
        labels[source, target] = " or ".join(words) or None
    for node_id in nodes:
        labels.setdefault((node_id, node_id), None)
        labels.setdefault((node_id, END), None)
    for header in plan.loops:
        for target in plan.exits_of(header):
            labels.setdefault((header, target), None)
    labels[END, START] = None
    builder = WorkflowBuilder(name, MOST_SUPERSTEPS).set_start_executor(start)
    for (source, target), label in labels.items():
        builder.add_edge(placed[source], placed[target], label=label)
    return builder.build()
