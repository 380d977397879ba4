"""The position of a run: its snapshot, and what it waits for there."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.message import Expiries, Request
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.status import WaitingFor, waiting_for


class Position:
    """The point at which a run stands: its snapshot, its sleep, and the expiries of its requests."""

    __slots__ = ("_expiries", "asleep_until", "durable", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.durable: Snapshot | None = None
        """The snapshot before a superstep that is not durable yet, if there is one."""
        self.asleep_until: int | None = None
        """The time at which the first sleeping turn goes on; set when the run comes to rest for it."""
        self._expiries: Expiries | None = None

    @property
    def shown(self) -> Snapshot:
        """The run as others may see it: without what may yet come to nothing."""
        return self.snapshot if self.durable is None else self.durable

    @property
    def finished(self) -> bool:
        """True if nothing is left to do."""
        snapshot = self.snapshot
        return not (snapshot.deliveries or snapshot.requests or snapshot.buffers)

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """The reasons why the run waits, if it rests here."""
        return waiting_for(self.snapshot.requests, self.asleep_until, self.snapshot.buffers)

    def go_to(self, snapshot: Snapshot) -> None:
        """Stand on a snapshot that did not follow from the one before by what was asked and answered."""
        self.snapshot = snapshot
        self._expiries = None

    def note_asked(self, requests: Sequence[Request]) -> None:
        """Take note of the requests of the superstep that led here."""
        if self._expiries is not None:
            self._expiries.add(requests)

    @property
    def expiries(self) -> Expiries:
        """The times at which the pending requests expire."""
        if self._expiries is None:
            self._expiries = Expiries(self.snapshot.requests.values())
        return self._expiries

    @property
    def first_expiry(self) -> int | None:
        """The time at which the first of the pending requests expires; None if none does."""
        return self.expiries.first(self.snapshot.requests)

    @property
    def wakes_at(self) -> int | None:
        """The time at which a run at rest has something to do by itself; None if there is none."""
        return self.first_expiry if self.asleep_until is None else self.asleep_until
