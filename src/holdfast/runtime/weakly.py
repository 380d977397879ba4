"""Being called back by what one holds, without being held by it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def weakly(method: Callable[P, None]) -> Callable[P, None]:
    """Calls a method as long as its object is there.

    Two objects that hold each other stay, with all that they hold, until the garbage collector comes.
    """
    found = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        there = found()
        if there is not None:
            there(*args, **kwargs)

    return call
