"""Runs the listings of the tutorial as they stand: only their import line is changed."""

import ast
import inspect
from pathlib import Path
from types import CodeType
from typing import Any

LISTINGS = Path(__file__).parent / "listings"


def listing(name: str, literals: dict[str, str] | None = None) -> str:
    """The text of a listing for Holdfast, with real values in place of literals like ``"checkpoint-id"``.

    >>> listing("004_02_enabling_checkpointing").splitlines()[0]
    'from holdfast import WorkflowBuilder'
    """
    text = (LISTINGS / f"{name}.py.txt").read_text(encoding="utf-8")
    text = text.replace("from agent_framework import", "from holdfast import")
    for literal, value in (literals or {}).items():
        quoted = f'"{literal}"'
        assert quoted in text, f"{name} does not say {quoted}"
        text = text.replace(quoted, repr(str(value)))
    return text


def compiled(name: str, literals: dict[str, str] | None = None) -> CodeType:
    """A listing as code that may await at its top level."""
    code = compile(
        listing(name, literals),
        f"{name}.py",
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    assert isinstance(code, CodeType)
    return code


async def run_listing(name: str, literals: dict[str, str] | None = None, /, **given: Any) -> dict[str, Any]:
    """Run a listing where it finds the names ``given``; returns all names that there are afterwards."""
    code = compiled(name, literals)
    frame: dict[str, Any] = {"__name__": "listing", **given}
    result = eval(code, frame)
    if code.co_flags & inspect.CO_COROUTINE:
        await result
    return frame
