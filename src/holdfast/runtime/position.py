"""Where a run stands."""

from __future__ import annotations

from holdfast.engine.snapshot import Snapshot


class Position:
    """Where a run stands, for all that let it move."""

    __slots__ = ("_expiring", "asleep_until", "durable", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.durable: Snapshot | None = None
        """Where it stood before what may yet come to nothing, if anything may."""
        self.asleep_until: int | None = None
        """When the first turn goes on that the superstep under way waits for; then the run came to rest for it."""
        self._expiring: tuple[object, int | None] = (None, None)

    @property
    def shown(self) -> Snapshot:
        """The run as others may see it: without what may yet come to nothing."""
        return self.snapshot if self.durable is None else self.durable

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.snapshot.deliveries and not self.snapshot.requests

    @property
    def first_expiry(self) -> int | None:
        """When the first of the pending requests expires; None if none does."""
        requests = self.snapshot.requests
        if self._expiring[0] is not requests:
            times = [request.expiry.at for request in requests.values() if request.expiry is not None]
            self._expiring = requests, min(times, default=None)
        return self._expiring[1]

    @property
    def wakes_at(self) -> int | None:
        """When a run at rest has something to do by itself; None if it has not."""
        return self.first_expiry if self.asleep_until is None else self.asleep_until
