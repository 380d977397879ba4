"""Chain and Layered against a list and a dict: every version stays what it was when it was made."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.parts import GONE, Chain, Layered

KEYS = st.one_of(st.integers(0, 60), st.sampled_from("abc"))
CHANGES = st.dictionaries(KEYS, st.one_of(st.just(GONE), st.integers()), max_size=12)


@given(st.lists(st.integers()), st.lists(st.lists(st.integers(), max_size=5), max_size=30))
def test_chain_is_a_list_that_keeps_its_past(first: list[int], more: list[list[int]]) -> None:
    chain, model = Chain.of(first), list(first)
    versions = [(chain, list(model))]
    for items in more:
        chain = chain.extend(items)
        model = model + items
        versions.append((chain, list(model)))
    for version, expected in versions:
        assert list(version) == expected
        assert len(version) == len(expected)
        assert bool(version) == bool(expected)
        assert version == Chain.of(expected)
        assert repr(version) == f"Chain({expected!r})"
        if expected:
            assert version.last == expected[-1]


@given(st.lists(st.integers(), max_size=4), st.lists(st.integers(), max_size=4))
def test_chains_are_equal_when_their_items_are(left: list[int], right: list[int]) -> None:
    stepwise = Chain[int].of()
    for item in left:
        stepwise = stepwise.extend((item,))
    assert (stepwise == Chain.of(right)) == (left == right)
    assert stepwise != left


@given(
    st.lists(st.integers(), max_size=4),
    st.lists(st.integers(), max_size=3),
    st.lists(st.integers(), max_size=3),
)
def test_chain_has_many_futures(base: list[int], left: list[int], right: list[int]) -> None:
    chain = Chain.of(base)
    one, other = chain.extend(left), chain.extend(right)
    assert (list(chain), list(one), list(other)) == (base, base + left, base + right)


def changed(model: dict[Any, Any], changes: dict[Any, Any]) -> dict[Any, Any]:
    merged = {**model, **changes}
    return {key: value for key, value in merged.items() if value is not GONE}


@given(st.dictionaries(KEYS, st.integers()), st.lists(CHANGES, max_size=15))
def test_layered_is_a_dict_that_keeps_its_past(first: dict[Any, int], more: list[dict[Any, Any]]) -> None:
    layered: Layered[Any, int] = Layered(dict(first))
    model = dict(first)
    versions = [(layered, dict(model))]
    for changes in more:
        layered = layered.change(changes)
        model = changed(model, changes)
        versions.append((layered, dict(model)))
    for version, expected in versions:
        assert dict(version) == expected
        assert version == expected
        assert len(version) == len(expected) == len(list(version)) == len(set(version))
        for key in [*range(61), *"abc"]:
            assert (key in version) == (key in expected)
            assert version.get(key, "absent") == expected.get(key, "absent")


@given(st.dictionaries(KEYS, st.integers(), min_size=1), CHANGES, CHANGES)
def test_layered_has_many_futures(base: dict[Any, int], left: dict[Any, Any], right: dict[Any, Any]) -> None:
    layered: Layered[Any, int] = Layered(dict(base))
    assert layered.change(left) == changed(base, left)
    assert layered.change(right) == changed(base, right)
    assert layered == base
