"""The settings of a service."""

from __future__ import annotations

from dataclasses import dataclass, fields

from holdfast.errors import InvalidArgument
from holdfast.host import RunContextFactory


@dataclass(frozen=True)
class ServerOptions:
    """Settings of ``create_app``: caps on what clients may take, and how runs are driven.

    >>> ServerOptions(max_body=64_000).max_body
    64000
    """

    max_body: int = 1_000_000
    """The bytes that the body of a request may have; more is refused with 413."""
    max_depth: int = 100
    """The levels to which JSON may be nested."""
    max_streams: int = 2_000
    """The streams of events that may be open at a time; more are refused with 503."""
    max_waiters: int = 500
    """The requests that may wait for a run at a time; more are answered at once, as if they had not asked to wait."""
    max_wait: float = 200.0
    """The longest time in seconds that a request waits for a run."""
    keep_alive: float = 15.0
    """The seconds after which a stream on which nothing happens sends a comment."""
    slow_client: float = 30.0
    """The seconds that a client of a stream may take to read what was sent; then it is dropped and may come back."""
    poll: float = 0.25
    """The seconds between two looks for runs that have something to do, and for changes by other processes."""
    concurrency: int = 100
    """The number of runs that go on at the same time in this process; 0 leaves all of them to others."""
    grace: float = 30.0
    """The seconds that runs have to come to rest when the service stops; others are left to the next process."""
    allowed_hosts: tuple[str, ...] = ()
    """The names by which the service may be called (header ``Host``); empty allows any."""
    cors_origins: tuple[str, ...] = ()
    """The origins of web pages on other hosts that may call the service; none by default."""
    run_context: RunContextFactory | None = None
    """Gives handlers their clients and tokens, as ``Host(run_context=...)`` does."""
    allow_graph_change: bool = False
    """Lets runs of an older build go on with the newest that fits, as ``Host(allow_graph_change=...)`` does."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = (
                0 if one.name in ("concurrency", "grace", "max_wait") else 1 if one.type == "int" else 0.001
            )
            if one.type in ("int", "float") and not (isinstance(value, int | float) and value >= least):
                raise InvalidArgument(f"ServerOptions({one.name}={value!r}): must be at least {least}")
            if one.name in ("allowed_hosts", "cors_origins") and isinstance(value, str):
                raise InvalidArgument(
                    f"ServerOptions({one.name}={value!r}): give a list of names, not one text"
                )
