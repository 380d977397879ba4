"""Counting what Python does, in place of how long it takes."""

import sys
from collections.abc import Awaitable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


async def steps_of(awaitable: Awaitable[T]) -> tuple[int, T]:
    """How many steps of its bytecode the interpreter takes in this thread until it is there, and what it gives."""
    count = 0

    def count_it(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return count_it

    before = sys.gettrace()
    sys.settrace(count_it)
    try:
        result = await awaitable
    finally:
        sys.settrace(before)
    return count, result
