"""Chain: growing costs what is added."""

import pytest

from tests.support.parts import Chain


def test_empty() -> None:
    empty = Chain[int].of()
    assert (list(empty), len(empty), bool(empty)) == ([], 0, False)
    assert empty.extend([]) is empty
    assert list(empty.extend([1])) == [1]


def test_versions_share_nothing_that_changes() -> None:
    one = Chain.of(["a"])
    two = one.extend(["b"])
    three = one.extend(["c"])
    assert (list(one), list(two), list(three)) == (["a"], ["a", "b"], ["a", "c"])


def test_given_list_may_change_afterwards() -> None:
    items = [1, 2]
    chain = Chain.of(items).extend(items)
    items.append(3)
    assert list(chain) == [1, 2, 1, 2]


def test_chain_that_grew_item_by_item_is_read_without_recursion() -> None:
    chain = Chain[int].of()
    for number in range(20_000):
        chain = chain.extend((number,))
    assert list(chain) == list(range(20_000))
    assert chain.last == 19_999


def test_has_no_hash() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Chain.of([1]))
