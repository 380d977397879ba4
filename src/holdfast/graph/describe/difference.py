"""The difference between two graphs, in words for the person whose run does not go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.graph.describe.edge_difference import describe_moves, edge_lines
from holdfast.graph.describe.parser import (
    TYPES,
    DescribedEdge,
    DescribedExecutor,
    DescribedGraph,
    parse_description,
)
from holdfast.ids import ExecutorId

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph

_VERBS = dict(zip(TYPES, ("takes", "sends", "yields"), strict=True))
_INSIDE = "in nested workflow "
UNNAMED = "the graphs differ in something that this version of Holdfast cannot name"


def describe_difference(
    before: Mapping[str, Any], after: Mapping[str, Any], graph: Graph | None = None
) -> list[str]:
    """Return a line for each change between two descriptions of a graph; none if nothing changed.

    With ``graph``, the one that ``after`` describes, what its aliases say was renamed is not told as removed and
    added. Where they say nothing, a rename is guessed, and told as a guess. Lines after that use the new name.

    >>> one = {"start": "a", "executors": [{"id": "a", "accepts": ["str"]}], "edges": []}
    >>> two = {"start": "a", "executors": [{"id": "a", "accepts": ["bytes", "str"]}, {"id": "b"}], "edges": []}
    >>> describe_difference(one, two)
    ["executor 'b' was added", "executor 'a' now takes bytes or str (was str)"]
    """
    try:
        lines = list(_GraphComparison().lines(parse_description(before), parse_description(after), graph))
        return lines or ([] if _fingerprint_parts(before) == _fingerprint_parts(after) else [UNNAMED])
    except RecursionError:  # of values that no version ever wrote
        return [UNNAMED]


def _fingerprint_parts(description: object) -> object:
    """Return the parts of a description that enter the fingerprint: of nested workflows, their own fingerprints."""
    if not isinstance(description, Mapping):
        return description
    return {key: value for key, value in description.items() if key != "workflows"}


class _GraphComparison:
    """Compares two graphs and those that they nest; tells each pair of nested ones once."""

    def __init__(self) -> None:
        self._compared: dict[tuple[str, str, int], str] = {}

    def lines(
        self, old: DescribedGraph, new: DescribedGraph, graph: Graph | None, path: str = ""
    ) -> Iterator[str]:
        names: dict[str, str] = {}
        if old.executors is not None and new.executors is not None:
            names = _read_aliases(old.executors, new.executors, graph)
            yield from (f"executor {was!r} is called {now!r} now (its alias)" for was, now in names.items())
            guessed = guess_renames(_rename_executors(old, names), new)
            yield from (
                f"executor {was!r} may be called {now!r} now: say so with .with_alias({was!r}, {now!r})"
                for was, now in guessed.items()
            )
            names |= guessed
        old = _rename_executors(old, names)
        if old.executors is not None and new.executors is not None:
            yield from _executor_lines(old.executors, new.executors)
        if None not in (old.start, new.start) and old.start != new.start:
            yield f"the start executor is now {new.start!r} (was {old.start!r})"
        if old.edges is not None and new.edges is not None:
            yield from edge_lines(old.edges, new.edges)
        yield from _other_lines("the graph", old.others, new.others)
        for was, now in _pair_executors(old.executors or {}, new.executors or {}):
            if was.nested is not None and now.nested is not None and was.nested != now.nested:
                inner = graph.executors.get(ExecutorId(now.id)) if graph is not None else None
                host = f"{path}/{now.id}" if path else now.id
                fingerprints = (was.nested, now.nested)
                yield from self._nested_lines(fingerprints, old, new, inner.nested if inner else None, host)

    def _nested_lines(
        self,
        fingerprints: tuple[str, str],
        old: DescribedGraph,
        new: DescribedGraph,
        graph: Graph | None,
        path: str,
    ) -> Iterator[str]:
        """Yield the changes inside an executor that nests a workflow."""
        key = (*fingerprints, id(graph))
        if key in self._compared:
            yield f"{_INSIDE}{path!r}: the same changes as in {self._compared[key]!r}"
            return
        self._compared[key] = path
        inside = [
            parse_description(of.workflows.get(name), of.workflows)
            for of, name in zip((old, new), fingerprints, strict=True)
        ]
        lines = self.lines(inside[0], inside[1], graph, path)
        first = next(lines, "it changed, but its description does not say how")
        for line in chain([first], lines):
            yield line if line.startswith(_INSIDE) else f"{_INSIDE}{path!r}: {line}"


def _rename_executors(graph: DescribedGraph, names: Mapping[str, str]) -> DescribedGraph:
    """Return the graph with its executors under their new names."""
    if not names:
        return graph
    executors = {
        names.get(executor.id, executor.id): executor._replace(id=names.get(executor.id, executor.id))
        for executor in (graph.executors or {}).values()
    }
    return graph._replace(
        start=graph.start if graph.start is None else names.get(graph.start, graph.start),
        executors=executors,
        edges=graph.edges and tuple(edge.rename(names) for edge in graph.edges),
    )


# -- executors -------------------------------------------------------------------------------------


def _executor_lines(
    old: Mapping[str, DescribedExecutor], new: Mapping[str, DescribedExecutor]
) -> Iterator[str]:
    yield from (f"executor {name!r} was removed" for name in old if name not in new)
    yield from (f"executor {name!r} was added" for name in new if name not in old)
    for was, now in _pair_executors(old, new):
        yield from _type_lines(was, now)
        if (was.nested is None) != (now.nested is None):
            what = "is a nested workflow now" if now.nested else "is no longer a nested workflow"
            yield f"executor {now.id!r} {what}"
        elif was.lifetime != now.lifetime:
            yield f"executor {now.id!r} nests its workflow with lifetime={now.lifetime!r} now (was {was.lifetime!r})"
        yield from _other_lines(f"executor {now.id!r}", was.others, now.others)
    places = {name: place for place, name in enumerate(new)}
    pairs = [(place, places[name]) for place, name in enumerate(old) if name in new]
    yield from describe_moves(pairs, [f"executor {name!r}" for name in new])


def _pair_executors(
    old: Mapping[str, DescribedExecutor], new: Mapping[str, DescribedExecutor]
) -> list[tuple[DescribedExecutor, DescribedExecutor]]:
    return [(old[name], executor) for name, executor in new.items() if name in old]


def _type_lines(was: DescribedExecutor, now: DescribedExecutor) -> Iterator[str]:
    for key, verb in _VERBS.items():
        if key in was.types and key in now.types and was.types[key] != now.types[key]:
            yield f"executor {now.id!r} now {verb} {_types(now.types[key])} (was {_types(was.types[key])})"
    for request, response in sorted(was.answers - now.answers):
        yield f"executor {now.id!r} no longer handles {response} in response to {request}"
    for request, response in sorted(now.answers - was.answers):
        yield f"executor {now.id!r} now handles {response} in response to {request}"


def _types(names: tuple[str, ...]) -> str:
    return " or ".join(names) or "nothing"


def _other_lines(whose: str, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield f"{whose}: {key!r} is now {new.get(key, 'not said')} (was {old.get(key, 'not said')})"


# -- renames ---------------------------------------------------------------------------------------


def _read_aliases(
    old: Mapping[str, DescribedExecutor], new: Mapping[str, DescribedExecutor], graph: Graph | None
) -> dict[str, str]:
    """Return the renames that the aliases of the graph declare; two executors are never renamed to one."""
    found: dict[str, str] = {}
    for was, now in graph.aliases.items() if graph is not None else ():
        if was in old and now in new and now not in old and now not in found.values():
            found[was] = now
    return found


def guess_renames(old: DescribedGraph, new: DescribedGraph) -> dict[str, str]:
    """Find removed executors that stand in the new graph under another name, if only one comes into question.

    That is one with the same types and corresponding edges. Once one is found, the edges of its neighbours say
    more, so this goes on until nothing new is found.
    """
    if old.executors is None or new.executors is None or old.edges is None or new.edges is None:
        return {}
    found: dict[str, str] = {}
    while more := _guess_unambiguous(_rename_executors(old, found), new):
        found |= more
    # Neighbours of which nothing was known may have turned out to be others.
    while wrong := [name for name in found if not _edges_correspond(name, found, old, new)]:
        found = {was: now for was, now in found.items() if was not in wrong}
    return {name: found[name] for name in old.executors if name in found}


def _guess_unambiguous(old: DescribedGraph, new: DescribedGraph) -> dict[str, str]:
    there, here = old.executors or {}, new.executors or {}
    known = there.keys() & here.keys()
    gone = _by_signature([there[name] for name in there if name not in known], old, known)
    come = _by_signature([here[name] for name in here if name not in known], new, known)
    return {
        gone[signature][0]: come[signature][0]
        for signature in gone.keys() & come.keys()
        if len(gone[signature]) == len(come[signature]) == 1
    }


def _edges_correspond(name: str, names: Mapping[str, str], old: DescribedGraph, new: DescribedGraph) -> bool:
    before = [edge.rename(names) for edge in _edges_at(name, old)]
    return Counter(before) == Counter(_edges_at(names[name], new))


def _edges_at(name: str, graph: DescribedGraph) -> list[DescribedEdge]:
    return [edge for edge in graph.edges or () if name in edge.sources or name in edge.targets]


class _Signature(NamedTuple):
    """All that tells two executors apart, but for their names."""

    types: tuple[tuple[str, ...], ...]
    answers: frozenset[tuple[str, str]]
    nests: bool
    starts: bool
    edges: tuple[DescribedEdge, ...]


def _by_signature(
    executors: Iterable[DescribedExecutor], graph: DescribedGraph, known: Iterable[str]
) -> dict[_Signature, list[str]]:
    found: dict[_Signature, list[str]] = {}
    for executor in executors:
        if len(executor.types) == len(TYPES):  # else too little is known
            found.setdefault(_signature(executor, graph, frozenset(known)), []).append(executor.id)
    return found


def _signature(executor: DescribedExecutor, graph: DescribedGraph, known: frozenset[str]) -> _Signature:
    touching = _edges_at(executor.id, graph)
    # Neighbours that may be renamed themselves say nothing but that they are there.
    others = {name: "?" for edge in touching for name in (*edge.sources, *edge.targets) if name not in known}
    edges = [edge.rename({**others, executor.id: "!"}) for edge in touching]
    return _Signature(
        tuple(executor.types[key] for key in TYPES),
        executor.answers,
        executor.nested is not None,
        graph.start == executor.id,
        tuple(sorted(edges, key=repr)),
    )
