"""Layered: changed copies of a mapping."""

import pytest

from tests.support.parts import GONE, Layered


def test_empty() -> None:
    empty = Layered[str, int]()
    assert (dict(empty), len(empty), bool(empty)) == ({}, 0, False)


def test_missing_and_removed_keys() -> None:
    layered = Layered({"a": 1}).change({"a": GONE})
    for key in ("a", "b"):
        assert key not in layered
        assert layered.get(key) is None
        with pytest.raises(KeyError, match=key):
            layered[key]
    assert dict(layered.change({"a": 2})) == {"a": 2}


def test_removing_what_is_not_there() -> None:
    layered = Layered({"a": 1}).change({"b": GONE})
    assert (dict(layered), len(layered)) == ({"a": 1}, 1)


def test_versions_of_a_large_mapping() -> None:
    layered: Layered[int, int] = Layered({number: number for number in range(1_000)})
    versions = [layered]
    for number in range(500):
        layered = layered.change({number: -number, number + 500: GONE, number + 1_000: number})
        versions.append(layered)
    for done, version in enumerate(versions):
        assert len(version) == 1_000
        assert (499 in version, 999 in version) == (True, done < 500)
        assert version[499] == (499 if done < 500 else -499)
        assert sum(1 for key in version if key >= 1_000) == done
        assert all(version[number] == -number for number in range(done))


def test_none_and_false_are_values() -> None:
    layered = Layered[str, object]({"a": 1}).change({"a": None, "b": False})
    assert dict(layered) == {"a": None, "b": False}
    assert "a" in layered
