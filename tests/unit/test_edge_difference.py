"""Differences between graphs: what is said about edges."""

from typing import Any

import pytest

from holdfast import Case, Default, WorkflowBuilder
from tests.support.differences import A, B, Build, C, D, always, between, direct


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (direct(), direct(label="P0"), "edge 'A' -> 'B' is labelled 'P0' now"),
        (direct(label="P0"), direct(label="P1"), "edge 'A' -> 'B' ('P0') is labelled 'P1' now"),
        (direct(label="P0"), direct(), "edge 'A' -> 'B' ('P0') has no label any more"),
        (direct(), direct(always), "edge 'A' -> 'B' has a condition now"),
        (direct(always), direct(), "edge 'A' -> 'B' (condition) has no condition any more"),
        (
            direct(always, "P0"),
            direct(None, "P1"),
            "edge 'A' -> 'B' ('P0', condition) is labelled 'P1' now and has no condition any more",
        ),
    ],
)
def test_changed_edge(before: Build, after: Build, line: str) -> None:
    assert between(before, after) == [line]


def test_of_parallel_edges_the_closest_is_the_same() -> None:
    assert between(
        lambda b: b.add_edge(A, B, always, "one").add_edge(A, B, bool, "two"),
        lambda b: b.add_edge(A, B, always, "two").add_edge(A, B, None, "one"),
    ) == [
        "edge 'A' -> 'B' ('one', condition) has no condition any more",
        "edge 'A' -> 'B' ('one') comes after edge 'A' -> 'B' ('two', condition) now",
    ]


def test_an_edge_that_leads_elsewhere_is_another_one() -> None:
    assert between(
        lambda b: b.add_edge(A, B).add_edge(B, C).add_edge(C, A),
        lambda b: b.add_edge(A, B).add_edge(B, C).add_edge(C, B),
    ) == ["edge 'C' -> 'A' was removed", "edge 'C' -> 'B' was added"]


def test_an_edge_of_another_kind_is_another_one() -> None:
    assert between(direct(), lambda b: b.add_fan_out_edges(A, [B])) == [
        "edge 'A' -> 'B' was removed",
        "fan-out 'A' -> 'B' was added",
    ]


def spread(kind: str, *targets: Any) -> Build:
    def build(builder: WorkflowBuilder) -> None:
        builder.add_edge(A, B).add_edge(B, C).add_edge(C, D)
        if kind == "fan-out":
            builder.add_fan_out_edges(A, list(targets))
        else:
            builder.add_multi_selection_edge_group(A, list(targets), lambda message, ids: ids)

    return build


@pytest.mark.parametrize("kind", ["fan-out", "multi-selection"])
@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ([B, C], [B, C, D], ["{} 'A' -> 'B', 'C' leads to 'D' too now"]),
        ([B, C], [C], ["{} 'A' -> 'B', 'C' no longer leads to 'B'"]),
        ([B, C], [D, C], ["{} 'A' -> 'B', 'C' no longer leads to 'B' and leads to 'D' too now"]),
        ([B, C], [C, B], ["{} 'A' -> 'B', 'C' leads to 'C', 'B' in this order now"]),
        ([B], [C], ["{} 'A' -> 'B' was removed", "{} 'A' -> 'C' was added"]),
    ],
)
def test_changed_targets(kind: str, before: Any, after: Any, lines: list[str]) -> None:
    assert between(spread(kind, *before), spread(kind, *after)) == [line.format(kind) for line in lines]


def join(sources: list[Any], target: Any) -> Build:
    return lambda b: b.add_edge(A, B).add_edge(B, C).add_edge(C, D).add_fan_in_edges(sources, target)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (join([A, B], D), join([A, B, C], D), ["fan-in 'A', 'B' -> 'D' waits for 'C' too now"]),
        (join([A, B], D), join([B], D), ["fan-in 'A', 'B' -> 'D' no longer waits for 'A'"]),
        (join([A, B], D), join([B, A], D), ["fan-in 'A', 'B' -> 'D' waits for 'B', 'A' in this order now"]),
        (join([A, B], D), join([A, B], C), ["fan-in 'A', 'B' -> 'D' leads to 'C' now"]),
        (
            join([A, B], D),
            join([A, C], C),
            ["fan-in 'A', 'B' -> 'D' was removed", "fan-in 'A', 'C' -> 'C' was added"],
        ),
    ],
)
def test_changed_fan_in(before: Build, after: Build, lines: list[str]) -> None:
    assert between(before, after) == lines


def switch(*cases: Case | Default) -> Build:
    return lambda b: b.add_edge(A, B).add_edge(B, C).add_edge(C, D).add_switch_case_edge_group(A, list(cases))


P0, P1, P2 = Case(always, B, "P0"), Case(always, C, "P1"), Case(always, D)


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ([P0], [P0, P1], ["case 'P1' -> 'C' was added"]),
        ([P0], [P0, P2], ["case -> 'D' was added"]),
        ([P0, P1], [P0], ["case 'P1' -> 'C' was removed"]),
        ([P0, P1], [P0._replace(label="P9"), P1], ["case 'P0' -> 'B' is labelled 'P9' now"]),
        ([P0, P1], [P0._replace(label=None), P1], ["case 'P0' -> 'B' has no label any more"]),
        ([P2, P1], [P2._replace(label="P2"), P1], ["case -> 'D' is labelled 'P2' now"]),
        ([P0, P1], [P0._replace(target=D), P1], ["case 'P0' -> 'B' leads to 'D' now"]),
        ([P0, P1], [P1, P0], ["case 'P0' -> 'B' comes after case 'P1' -> 'C' now"]),
        ([P0], [P0, Default(C)], ["default -> 'C' was added"]),
        ([P0, Default(C, "rest")], [P0], ["default 'rest' -> 'C' was removed"]),
        ([P0, Default(C)], [P0, Default(D)], ["default -> 'C' leads to 'D' now"]),
        ([P0, Default(C)], [P0, Case(always, C)], ["default -> 'C' was removed", "case -> 'C' was added"]),
        # Labels that change places: each case keeps its label, and leads elsewhere.
        (
            [P0, P1],
            [P0._replace(label="P1"), P1._replace(label="P0")],
            [
                "case 'P0' -> 'B' leads to 'C' now",
                "case 'P1' -> 'C' leads to 'B' now",
                "case 'P0' -> 'C' comes after case 'P1' -> 'B' now",
            ],
        ),
    ],
)
def test_changed_switch(before: Any, after: Any, lines: list[str]) -> None:
    assert between(switch(*before), switch(*after)) == [f"switch from 'A': {line}" for line in lines]
