"""The plan of a team: which edges lead back, which loops they make, and in which layer each agent stands.

Everything here is computed once, when a team is built. Edges are pairs of ids; ``START`` and ``END`` are ids, too.

A loop has one header, at which each round begins, and is left only when it is over: an edge out of it counts for the
agent behind it once the header has said so. So every agent outside of loops runs once for an input, and every agent
inside of one runs once for a round. That is why a join never waits for a branch that was not taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

from holdfast.errors import GraphError

START, END = "START", "END"
"""The ids of the two ends of a team."""

Link: TypeAlias = tuple[str, str]
"""An edge by its source and target."""


class Loop(NamedTuple):
    """A loop: the agent at which its rounds begin, and all agents of which one may lead back there."""

    header: str
    body: frozenset[str]


class Incoming(NamedTuple):
    """An edge into an agent, as the agent counts it."""

    source: str
    is_back: bool = False
    gate: str | None = None
    """The header of the loop that the edge leaves: only its word that the loop is over settles the edge."""
    enters: frozenset[str] = frozenset()
    """The headers of loops that the edge enters beside the header: it counts only in their first rounds."""


class Outgoing(NamedTuple):
    """An edge out of an agent, as the agent serves it."""

    target: str
    is_back: bool = False
    leaves_loop: bool = False


class TeamPlan(NamedTuple):
    """The edges, loops and layers of a team.

    >>> plan = plan_team(["write", "review"], [("START", "write"), ("write", "review"), ("review", "write")], [])
    >>> plan.loops["write"].body == {"write", "review"}, plan.layers
    (True, {'write': 0, 'review': 1})
    """

    agents: tuple[str, ...]
    links: tuple[Link, ...]
    back: frozenset[Link]
    loops: Mapping[str, Loop]
    """The loops by their headers."""
    layers: Mapping[str, int]

    @property
    def layer_count(self) -> int:
        """The number of layers."""
        return max(self.layers.values(), default=-1) + 1

    def nest_of(self, node: str) -> tuple[str, ...]:
        """Return the headers of the loops around an agent, the outermost first."""
        around = [loop for loop in self.loops.values() if node in loop.body]
        return tuple(loop.header for loop in sorted(around, key=lambda loop: -len(loop.body)))

    def incoming(self, node: str) -> tuple[Incoming, ...]:
        """Return the edges into an agent, or into END, in the order in which they were added."""
        found = []
        inside = self.nest_of(node)
        for link in self.links:
            source, target = link
            if target != node:
                continue
            left = [header for header in self.nest_of(source) if header not in inside]
            entered = frozenset(
                header for header in inside if header != node and source not in self.loops[header].body
            )
            found.append(Incoming(source, link in self.back, left[0] if left else None, entered))
        return tuple(found)

    def outgoing(self, node: str) -> tuple[Outgoing, ...]:
        """Return the edges out of an agent, or out of START."""
        around = self.nest_of(node)
        return tuple(
            Outgoing(target, (node, target) in self.back, any(h not in self.nest_of(target) for h in around))
            for source, target in self.links
            if source == node
        )

    def exits_of(self, header: str) -> tuple[str, ...]:
        """Return the agents that wait for the word of a header that its loop is over."""
        targets = dict.fromkeys(target for _, target in self.links)
        return tuple(t for t in targets if any(one.gate == header for one in self.incoming(t)))


def plan_team(agents: Sequence[str], links: Sequence[Link], conditional: Iterable[Link]) -> TeamPlan:
    """Return the plan of a team; raise ``GraphError`` if an agent cannot be reached, or if loops cross each other.

    Edges that close a circle lead back: those whose target stands on every way to their source, and of the others those
    that would close a circle of edges before them. Edges without conditions come before conditional ones.
    """
    links = tuple(dict.fromkeys(links))
    _check_reachable(agents, links)
    back = _find_back_links(links, frozenset(conditional))
    forward = [link for link in links if link not in back]
    loops = _find_loops(links, back)
    _check_nesting(loops)
    return TeamPlan(tuple(agents), links, back, loops, _find_layers(agents, forward))


def _check_reachable(agents: Sequence[str], links: Sequence[Link]) -> None:
    reached = _reachable_from(START, links)
    for agent in agents:
        if agent not in reached:
            raise GraphError(
                f"agent {agent!r} cannot be reached from START: edges only lead to it from agents that it leads to; "
                f"say where the team begins, like from_('START').to({agent!r})"
            )


def _reachable_from(node: str, links: Iterable[Link], without: str | None = None) -> set[str]:
    """Return the nodes that can be reached from a node, itself included, on ways that avoid ``without``."""
    targets: dict[str, list[str]] = {}
    for source, target in links:
        targets.setdefault(source, []).append(target)
    reached, waiting = {node}, deque([node])
    while waiting:
        for target in targets.get(waiting.popleft(), ()):
            if target not in reached and target != without:
                reached.add(target)
                waiting.append(target)
    return reached


def _find_back_links(links: Sequence[Link], conditional: frozenset[Link]) -> frozenset[Link]:
    back = {
        (source, target)
        for source, target in links
        if source == target or source not in _reachable_from(START, links, without=target)
    }
    rest = [link for link in links if link not in back]
    forward = _spanning_tree(rest)
    for link in sorted(rest, key=lambda link: link in conditional):  # stable: else in the order of adding
        if link in forward:
            continue
        if link[0] in _reachable_from(link[1], forward):
            back.add(link)
        else:
            forward.append(link)
    return frozenset(back)


def _spanning_tree(links: Sequence[Link]) -> list[Link]:
    """Return edges by which every node can be reached from START, on shortest ways."""
    reached, waiting, tree = {START}, deque([START]), []
    while waiting:
        node = waiting.popleft()
        for source, target in links:
            if source == node and target not in reached:
                reached.add(target)
                waiting.append(target)
                tree.append((source, target))
    return tree


def _find_loops(links: Sequence[Link], back: frozenset[Link]) -> dict[str, Loop]:
    reverse = [(target, source) for source, target in links]
    loops: dict[str, Loop] = {}
    for latch, header in (link for link in links if link in back):
        leads_there = {latch} | (
            _reachable_from(latch, reverse, without=header) if latch != header else set()
        )
        body = ({header} | leads_there) & _reachable_from(header, links)
        known = loops[header].body if header in loops else frozenset()
        loops[header] = Loop(header, known | body)
    return loops


def _check_nesting(loops: Mapping[str, Loop]) -> None:
    """Raise unless any two loops are apart, or one lies inside the other without its header."""
    for first, second in combinations(loops.values(), 2):
        inner, outer = sorted((first, second), key=lambda loop: len(loop.body))
        shared = inner.body & outer.body
        if shared and not (inner.body < outer.body and outer.header not in inner.body):
            raise GraphError(
                f"the loops that begin at {first.header!r} and at {second.header!r} cross each other (both have "
                f"{', '.join(map(repr, sorted(shared)))}); let one lie inside the other, or lead both back to one "
                f"agent"
            )


def _find_layers(agents: Sequence[str], forward: Sequence[Link]) -> dict[str, int]:
    """Return for each agent the number of agents on the longest way to it."""
    sources: dict[str, list[str]] = {}
    for source, target in forward:
        sources.setdefault(target, []).append(source)
    found: dict[str, int] = {START: -1}
    waiting = list(agents)
    while waiting:
        ready = [node for node in waiting if all(source in found for source in sources.get(node, ()))]
        for node in ready:
            found[node] = max((found[source] for source in sources.get(node, ())), default=-1) + 1
        waiting = [node for node in waiting if node not in found]
    return {agent: found[agent] for agent in agents}
