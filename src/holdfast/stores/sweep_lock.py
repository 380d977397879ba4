"""Writers and sweeps of one store, in any processes, keep out of each other's way."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from holdfast.stores.locks import Locks

_LOCK, _GATE = ".sweep", ".gate"
# How long a sweep waits for writers, and lets others wait; one of them that stands still keeps it from sweeping.
_PATIENCE = 1.0


class SweepLock:
    """A lock in a folder, which the kernel drops when its process dies: many writers, or one sweep.

    A writer holds it from before it writes a blob, or finds it there, until the commit that names it is durable.
    """

    def __init__(self, folder: Path) -> None:
        self._locks = Locks(folder)

    def shared(self) -> Held:
        """Held from now on, together with other writers, until the context is left; raises ``TimeoutError``."""
        held = ExitStack()
        with self._locks.shared(_GATE):
            held.enter_context(self._locks.shared(_LOCK))
        return Held(held)

    def exclusive(self) -> Held | None:
        """Held from now on, alone, until the context is left; None if writers kept it for long, or without locks.

        Writers that come later wait at the gate: those that overlap would keep a sweep waiting for ever.
        """
        held = ExitStack()
        with self._locks.alone(_GATE, _PATIENCE):
            alone = held.enter_context(self._locks.alone(_LOCK, _PATIENCE))
        if alone is not None:
            return Held(held)
        held.close()
        return None


class Held:
    """A lock that is held until the context is left, or forgotten: whoever waited for it may have been cancelled."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Hold it no longer."""
        self._held.close()

    __del__ = release
