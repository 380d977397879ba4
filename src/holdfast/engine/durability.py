"""The durability modes of a run."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from holdfast.errors import GraphError

Durability: TypeAlias = Literal["sync", "async", "exit"]
"""Before the next superstep begins, while it runs, or when the run comes to rest."""

_MODES: Final = get_args(Durability)


def check_durability(mode: object) -> Durability:
    """Return the mode; raise ``GraphError`` if there is no such mode.

    >>> check_durability("async")
    'async'
    """
    if mode not in _MODES:
        raise GraphError(
            f"with_durability({mode!r}): must be 'sync' (each superstep is durable before the next begins), 'async' "
            f"(while the next one runs) or 'exit' (when the run comes to rest)"
        )
    return mode  # type: ignore[return-value]
