"""Classes whose annotations are text, and whose names only the function around them knew."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import Codec
from tests.support.parts import TypeRegistry

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers


class Global(Enum):
    A = 1


@dataclass
class Half:
    """One hint of it cannot be resolved, the others can."""

    price: OnlyForCheckers
    kind: Global
    rest: list[Half] = field(default_factory=list)


def make() -> tuple[Any, ...]:
    class Kind(Enum):
        GOOD = 1

    @dataclass
    class Author:
        name: str
        kind: Kind

    class Outer:
        @dataclass
        class Report:
            authors: list[Author]
            parent: Outer.Report | None = None

    class Pair(NamedTuple):
        report: Outer.Report

    return Kind, Author, Outer, Pair(Outer.Report([Author("Ada", Kind.GOOD)], Outer.Report([])))


def test_one_hint_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    codec = Codec(TypeRegistry([("a test", Half)]))
    value = Half(1, Global.A, [Half(2, Global.A)])  # type: ignore[arg-type]
    assert codec.decode(codec.encode(value)) == value


def test_classes_of_the_enclosing_function_are_found() -> None:
    made = [make() for _ in range(3)]
    for kind, author, _, value in made:
        registry = TypeRegistry([("a test", type(value))])
        assert registry.class_of(kind.__qualname__) is kind
        assert registry.class_of(author.__qualname__) is author
        assert Codec(registry).decode(Codec(registry).encode(value)) == value
