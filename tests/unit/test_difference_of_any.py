"""Differences between any graphs, and between descriptions that no version of today wrote."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.graph.describe.difference import UNNAMED
from tests.support.differences import (
    guess,
    nesting,
    pipeline,
    told,
)
from tests.support.graphs import Description, descriptions
from tests.support.parts import describe_difference

# -- descriptions of other versions ----------------------------------------------------------------


def sample() -> dict[str, Any]:
    inner = pipeline("one", "two")
    return nesting(inner).graph.description


def test_unknown_keys_are_told_as_they_are() -> None:
    before, after = sample(), sample()
    after["version"] = 2
    before["executors"][0]["priority"] = {"high": 1}
    after["executors"][0]["priority"] = {"high": 2}
    assert describe_difference(before, after) == [
        "executor 'A': 'priority' is now {'high': 2} (was {'high': 1})",
        "the graph: 'version' is now 2 (was not said)",
    ]


def test_unknown_edges_are_told_as_they_are() -> None:
    before, after = sample(), sample()
    after["edges"].append(["broadcast", "A", 7])
    before["edges"][0].append("more")
    assert describe_difference(before, after) == [
        "edge 'A' -> 'review' changed in something that this version of Holdfast cannot name",
        "edge ['broadcast', 'A', 7], of a kind that this version of Holdfast does not know, was added",
    ]


def test_parts_of_another_shape_are_told_as_they_are() -> None:
    before, after = sample(), sample()
    after["executors"][0]["answers"] = [["str", "bool"], 7]
    before["edges"][0] = ["switch", "A", [["review", True, None], ["review", True, None, "more"]]]
    after["edges"][0] = ["switch", "A", [["review", True, None], {"to": "review"}]]
    assert describe_difference(before, after) == [
        "executor 'A' now handles 7 in response to ?",
        "executor 'A' now handles bool in response to str",
        "switch from 'A': case -> 'review' was removed",
        "switch from 'A': default -> '?' was added",
    ]


@pytest.mark.parametrize("key", ["accepts", "sends", "yields"])
def test_types_that_are_not_said_are_not_compared(key: str) -> None:
    before, after = sample(), sample()
    for executor in before["executors"]:
        del executor[key]
    after["start"] = "review"
    assert describe_difference(before, after) == ["the start executor is now 'review' (was 'A')"]


@pytest.mark.parametrize("key", ["start", "executors", "edges"])
def test_what_a_description_does_not_say_is_not_made_up(key: str) -> None:
    before, after = sample(), sample()
    del before[key]
    assert describe_difference(before, after) == [UNNAMED]
    assert describe_difference(after, before) == [UNNAMED]
    assert describe_difference({}, after) == [UNNAMED]
    assert describe_difference({}, {}) == []


def test_control_characters_do_not_reach_the_terminal() -> None:
    before, after = sample(), sample()
    after["executors"][0] |= {"id": "\x1b[2J", "accepts": ["\x1b]0;"], "\n": "\r"}
    after["edges"][0][4] = "\x07"
    for lines in (describe_difference(before, after), describe_difference(after, before)):
        assert all(line.isprintable() for line in lines)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["A", "review"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def disturbed(draw: Callable[[Any], Any]) -> Any:
    """A description of which some parts are missing or something else."""
    whole: Any = json.loads(json.dumps(sample()))
    for _ in range(draw(st.integers(1, 4))):
        part = whole
        while True:
            keys = sorted(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(part[key], dict | list) and draw(st.booleans()):
                part = part[key]
                continue
            if draw(st.booleans()):
                del part[key]
            else:
                part[key] = draw(JUNK)
            break
    return whole


@settings(max_examples=100)
@given(disturbed(), disturbed())
def test_no_description_is_too_strange(before: Any, after: Any) -> None:
    for one, other in ((before, after), (before, sample()), (sample(), after)):
        for lines in (describe_difference(one, other), describe_difference(other, one)):
            assert all(line and line.isprintable() for line in lines)
            assert lines or {**one, "workflows": 0} == {**other, "workflows": 0}


@given(JUNK, JUNK)
def test_junk_is_no_description_either(before: Any, after: Any) -> None:
    description = {
        "start": before,
        "executors": [before, {"id": "A", "nested": after}],
        "edges": [before, after],
    }
    describe_difference(description, sample())
    describe_difference(sample(), {**description, "workflows": after})
    describe_difference(before, after)
    describe_difference(before, sample())
    describe_difference(sample(), after)


def test_a_workflow_that_says_it_nests_itself() -> None:
    def cyclic(fingerprint: str, other: str) -> dict[str, Any]:
        inner = {"start": "A", "executors": [{"id": "A", "nested": fingerprint}, {"id": other}], "edges": []}
        return {**inner, "workflows": {fingerprint: inner}}

    lines = describe_difference(cyclic("one", "B"), cyclic("two", "B"))
    assert lines == ["in nested workflow 'A/A': the same changes as in 'A'"]


def test_values_that_are_nested_too_deep() -> None:
    def deep() -> Any:
        value: Any = []
        for _ in range(100_000):
            value = [value]
        return {**sample(), "more": value}

    assert describe_difference(deep(), deep())
    assert describe_difference(sample(), deep())


# -- any graphs ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(descriptions(), descriptions())
def test_there_is_a_difference_exactly_if_the_fingerprints_differ(
    one: Description, other: Description
) -> None:
    before, after = one.build(), other.build()
    assert told(before, one.build()) == []
    told(before, after)
    told(after, before)


def called(description: Description, old: str, new: str) -> Description:
    def name(id: str) -> str:
        return new if id == old else id

    return replace(
        description,
        nodes=tuple(node._replace(id=name(node.id)) for node in description.nodes),
        links=tuple(
            link._replace(sources=tuple(map(name, link.sources)), targets=tuple(map(name, link.targets)))
            for link in description.links
        ),
    )


@settings(max_examples=60)
@given(descriptions(), st.integers(0, 5))
def test_one_rename_in_any_graph_is_guessed(description: Description, place: int) -> None:
    node = description.nodes[place % len(description.nodes)]
    after = called(description, node.id, "renamed")
    assert told(description.build(), after.build()) == [guess(node.id, "renamed")]
