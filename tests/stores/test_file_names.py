"""Ids from outside as file names."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.common.file_names import make_file_name


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_are_safe_and_apart(one, other) -> None:
    names = [make_file_name(text) for text in (one, other, one.upper(), one.lower())]
    for name in names:
        assert re.fullmatch(r"[a-z0-9._~-]{1,100}", name)
        assert name.strip(".") == name
    assert len(set(names)) == len({one, other, one.upper(), one.lower()})


@pytest.mark.parametrize("device", ["con", "nul.txt", "com1", "lpt9.a.b"])
def test_names_of_devices_are_not_used(device) -> None:
    assert "~" in make_file_name(device)
