"""The named limits of a workflow."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that turn a runaway workflow into a clear error; each error names its limit.

    >>> Limits(max_deliveries=1_000).max_deliveries
    1000
    """

    max_deliveries: int = 100_000
    """Messages that one superstep may deliver."""
    max_concurrent_turns: int = 1_000
    """Turns of one superstep that run at the same time; the others wait for their place."""
    max_value_size: int = 1 << 30
    """Bytes in one value that is sent, queued or yielded, of its texts in UTF-8; with storage up to 2^31 - 16."""
    max_depth: int = 16
    """Workflows nested in each other, the outermost included."""

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for a limit below one."""
        for name in self.__slots__:
            allowed = getattr(self, name)
            if type(allowed) is not int or allowed < 1:
                raise InvalidArgument(f"Limits({name}={allowed!r}): must be a whole number of at least 1")
