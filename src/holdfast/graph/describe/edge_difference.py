"""The difference between the edges of two graphs, in words."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from holdfast.graph.describe.parser import DescribedEdge, EdgeTarget
from holdfast.graph.edge import EdgeKind

T = TypeVar("T")
Pair = tuple[int, int]
"""The positions of the same thing before and after."""

UNNAMED = "changed in something that this version of Holdfast cannot name"


def edge_lines(before: Sequence[DescribedEdge], after: Sequence[DescribedEdge]) -> Iterator[str]:
    """Yield a line for each edge that was removed, changed, added or moved to another place in the order.

    >>> a = DescribedEdge(EdgeKind.DIRECT, ("a",), (EdgeTarget("b"),))
    >>> b = DescribedEdge(EdgeKind.DIRECT, ("a",), (EdgeTarget("b", label="P0"),))
    >>> list(edge_lines([a], [b])), list(edge_lines([a], []))
    (["edge 'a' -> 'b' is labelled 'P0' now"], ["edge 'a' -> 'b' was removed"])
    """
    pairs = pair_up(before, after, _kinship)
    there, here = {old for old, _ in pairs}, {new for _, new in pairs}
    yield from (f"{text_of(edge)} was removed" for old, edge in enumerate(before) if old not in there)
    for old, new in pairs:
        if before[old] != after[new]:
            yield from _changes(before[old], after[new])
    yield from (f"{text_of(edge)} was added" for new, edge in enumerate(after) if new not in here)
    yield from describe_moves(pairs, [text_of(edge) for edge in after])


def text_of(edge: DescribedEdge) -> str:
    """Return the edge as messages name it.

    >>> text_of(DescribedEdge(EdgeKind.SWITCH, ("a",), (EdgeTarget("b", True, "P0"), EdgeTarget("c"))))
    "switch 'a' -> 'b' ('P0'), 'c' (default)"
    """
    if edge.kind is None:
        return f"edge {edge.rest}, of a kind that this version of Holdfast does not know,"
    name = "edge" if edge.kind is EdgeKind.DIRECT else edge.kind
    edge_targets = ", ".join(_target_text(edge_target, edge.kind) for edge_target in edge.edge_targets)
    return f"{name} {join_names(edge.sources)} -> {edge_targets}"


def join_names(names: Iterable[str]) -> str:
    """Names as messages show them."""
    return ", ".join(map(repr, names))


def _target_text(edge_target: EdgeTarget, kind: EdgeKind) -> str:
    marks = [] if edge_target.label is None else [repr(edge_target.label)]
    if kind is EdgeKind.DIRECT and edge_target.conditional:
        marks.append("condition")
    if kind is EdgeKind.SWITCH and not edge_target.conditional:
        marks.append("default")
    return f"{edge_target.target!r} ({', '.join(marks)})" if marks else repr(edge_target.target)


# -- which edge is which ---------------------------------------------------------------------------


def pair_up(before: Sequence[T], after: Sequence[T], kinship: Callable[[T, T], int]) -> list[Pair]:
    """Pair things of before with things of after: equal ones first, then the most closely related ones."""
    places: dict[T, list[int]] = {}
    for new, thing in enumerate(after):
        places.setdefault(thing, []).append(new)
    pairs = [(old, places[thing].pop(0)) for old, thing in enumerate(before) if places.get(thing)]
    there, here = {old for old, _ in pairs}, {new for _, new in pairs}
    akin = [
        (-closeness, old, new)
        for old, thing in enumerate(before)
        if old not in there
        for new, other in enumerate(after)
        if new not in here and (closeness := kinship(thing, other))
    ]
    for _, old, new in sorted(akin):
        if old not in there and new not in here:
            there.add(old)
            here.add(new)
            pairs.append((old, new))
    return sorted(pairs)


def _kinship(old: DescribedEdge, new: DescribedEdge) -> int:
    """Return how closely two different edges are related; 0 if they are not."""
    if old.kind != new.kind:
        return 0
    if old.kind is EdgeKind.FAN_IN:
        shared = len(set(old.sources) & set(new.sources))
        return shared if old.targets == new.targets or old.sources == new.sources else 0
    if old.sources != new.sources:
        return 0
    if old.kind is EdgeKind.DIRECT:
        (was,), (edge_target,) = old.edge_targets, new.edge_targets
        return (was.target == edge_target.target) * (
            1 + (was.label == edge_target.label) + (was.conditional == edge_target.conditional)
        )
    shared = len(set(old.targets) & set(new.targets))
    return shared + (old.kind is EdgeKind.SWITCH)


def describe_moves(pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each thing that moved in the order, as few as possible, with its new predecessor."""
    order = [new for _, new in pairs]
    staying = set(_longest_rise(order))
    following = sorted(order)
    for position, new in enumerate(following):
        if new not in staying:
            place = f"after {names[following[position - 1]]}" if position else "first"
            yield f"{names[new]} comes {place} now"


def _longest_rise(numbers: Sequence[int]) -> list[int]:
    """Return the longest rising subsequence of distinct numbers.

    >>> _longest_rise([3, 0, 1, 2])
    [0, 1, 2]
    """
    ends: list[int] = []  # the smallest end of a rise of each length
    before: dict[int, int | None] = {}
    for number in numbers:
        length = bisect_left(ends, number)
        before[number] = ends[length - 1] if length else None
        ends[length : length + 1] = [number]
    rise: list[int] = []
    last = ends[-1] if ends else None
    while last is not None:
        rise.append(last)
        last = before[last]
    return rise[::-1]


# -- how an edge changed ---------------------------------------------------------------------------


def _changes(old: DescribedEdge, new: DescribedEdge) -> Iterator[str]:
    if old.kind is EdgeKind.SWITCH:
        yield from _switch_changes(old, new)
        return
    if old.kind in (EdgeKind.FAN_OUT, EdgeKind.MULTI_SELECTION):
        said = [*_list_changes(old.targets, new.targets, "leads to")]
    else:
        said = [
            *_list_changes(old.sources, new.sources, "waits for"),
            *_target_changes(old.edge_targets[0], new.edge_targets[0]),
        ]
    yield f"{text_of(old)} {' and '.join(said) or UNNAMED}"


def _target_changes(old: EdgeTarget, new: EdgeTarget) -> Iterator[str]:
    if old.target != new.target:
        yield f"leads to {new.target!r} now"
    if old.label != new.label:
        yield "has no label any more" if new.label is None else f"is labelled {new.label!r} now"
    if old.conditional != new.conditional:
        yield "has a condition now" if new.conditional else "has no condition any more"


def _list_changes(old: Sequence[str], new: Sequence[str], verb: str) -> Iterator[str]:
    gone, come = [name for name in old if name not in new], [name for name in new if name not in old]
    if gone:
        yield f"no longer {verb} {join_names(gone)}"
    if come:
        yield f"{verb} {join_names(come)} too now"
    if [name for name in old if name in new] != [name for name in new if name in old]:
        yield f"{verb} {join_names(new)} in this order now"


def _switch_changes(old: DescribedEdge, new: DescribedEdge) -> Iterator[str]:
    head = f"switch from {old.sources[0]!r}"
    pairs = pair_up(old.edge_targets, new.edge_targets, _case_kinship)
    there, here = {was for was, _ in pairs}, {now for _, now in pairs}
    said = [
        f"{_case(edge_target)} was removed"
        for was, edge_target in enumerate(old.edge_targets)
        if was not in there
    ]
    for was, now in pairs:
        if old.edge_targets[was] != new.edge_targets[now]:
            changes = " and ".join(_target_changes(old.edge_targets[was], new.edge_targets[now])) or UNNAMED
            said.append(f"{_case(old.edge_targets[was])} {changes}")
    said += [
        f"{_case(edge_target)} was added"
        for now, edge_target in enumerate(new.edge_targets)
        if now not in here
    ]
    said += describe_moves(pairs, [_case(edge_target) for edge_target in new.edge_targets])
    yield from (f"{head}: {line}" for line in said or [UNNAMED])


def _case(edge_target: EdgeTarget) -> str:
    kind = "case" if edge_target.conditional else "default"
    return f"{kind} {f'{edge_target.label!r} ' if edge_target.label is not None else ''}-> {edge_target.target!r}"


def _case_kinship(old: EdgeTarget, new: EdgeTarget) -> int:
    """Return how closely two cases are related; a label says more than a target, and a default is never a case."""
    if old.conditional != new.conditional:
        return 0
    same_label = old.label is not None and old.label == new.label
    return (not old.conditional) + 2 * same_label + (old.target == new.target)
