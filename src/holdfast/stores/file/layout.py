"""JSON as people like it: short things on one line, long ones broken up."""

from __future__ import annotations

import json
from json.encoder import encode_basestring as _quoted
from typing import Any

_WIDTH = 110


def laid_out(value: Any) -> bytes:
    """A value as the text of a JSON file.

    >>> print(laid_out({"short": [1, 2], "long": ["x" * 50, "y" * 50, {"z": None}]}).decode(), end="")
    {
     "short": [1, 2],
     "long": [
      "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
      "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
      {"z": null}
     ]
    }
    """
    try:
        return (_text(value, "\n") + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only spell
        return (json.dumps(value) + "\n").encode()


def _text(value: Any, newline: str) -> str:
    # json.dumps with an indent is no faster, and spreads every pair of numbers over four lines.
    kind = type(value)
    if kind is str:
        return _quoted(value)
    if kind is int:
        return repr(value)
    if kind is dict:
        inside = newline + " "
        return _joined("{", [f"{_quoted(key)}: {_text(value[key], inside)}" for key in value], "}", newline)
    if kind is list:
        inside = newline + " "
        return _joined("[", [_text(item, inside) for item in value], "]", newline)
    return json.dumps(value)


def _joined(opening: str, items: list[str], closing: str, newline: str) -> str:
    line = ", ".join(items)
    if len(line) <= _WIDTH and "\n" not in line:
        return f"{opening}{line}{closing}"
    inside = newline + " "
    return f"{opening}{inside}{f',{inside}'.join(items)}{newline}{closing}"
