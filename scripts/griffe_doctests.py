"""Fences the doctests in docstrings, so that the API reference shows them as programs and not as quotations."""

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^>>> .*(?:\n(?!\n|>>> ).*|\n>>> .*)*", re.MULTILINE)


class FencedDoctests(Extension):
    """Puts each run of doctest lines in a docstring into a fenced block."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
