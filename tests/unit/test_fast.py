"""What is made without constructors is what constructors make."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine._fast import make_tuple
from holdfast.engine.state import Put
from tests.support.parts import Applied, Delivery, Delta, Outcome, Sent, Snapshot, Turn


@pytest.mark.parametrize(
    "kind",
    [Applied, Delivery, Delta, Outcome, Put, Sent, Snapshot, Turn],
    ids=lambda k: k.__name__,
)
def test_a_tuple_made_without_its_constructor_equals_one_made_with_it(kind: Any) -> None:
    fields = tuple(f"field {number}" for number in range(len(kind._fields)))
    fast, plain = make_tuple(kind, fields), kind(*fields)
    assert type(fast) is type(plain) is kind
    assert fast == plain
    assert fast._asdict() == plain._asdict() == dict(zip(kind._fields, fields, strict=True))
