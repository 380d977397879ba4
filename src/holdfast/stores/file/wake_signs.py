"""Signs that a run is to be woken, or is driven: a file for each, of which only the name counts: it says when.

Without them all runs would have to be read to find those that are due. A sign is made before the line that needs it and
removed behind the line that does not, both under the lock of the run. It is believed only after a look at the run.
Signs need not be durable: after a power cut each process that begins looks at all runs once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.store import Head
from holdfast.engine.status import RunStatus
from holdfast.stores.common.disk import open_regular

_DIGITS = 20
AT_ONCE = 0
DRIVEN = 10**_DIGITS - 1
"""In place of a time: some process drives the run."""


class WakeSign(NamedTuple):
    """Says when a run is to be woken, or that it is driven."""

    time: int
    run: str
    """The name of the run's file."""

    @property
    def name(self) -> str:
        """The name of the sign's file."""
        return f"{self.time:0{_DIGITS}d}-{self.run}"


def sign_of(head: Head, letters: int, run: str) -> WakeSign | None:
    """Return the sign that a run needs where it stands, with so many letters; None if nothing is to be done for it."""
    if head.status is RunStatus.RUNNING:
        return WakeSign(DRIVEN, run)
    if letters > head.letters_known:
        return WakeSign(AT_ONCE, run)
    if head.status is RunStatus.WAITING and head.wake_at is not None:
        return WakeSign(max(head.wake_at, AT_ONCE), run)
    return None


class WakeSigns:
    """The folder of signs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, sign: WakeSign, lock: Path) -> None:
        """Make sure that a sign is there: another name of the file of the run's lock, which costs less than a file."""
        path = self._folder / sign.name
        try:
            os.link(lock, path)
        except FileExistsError:
            pass
        except OSError:  # no folder yet, no lock, or a file system without links
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            os.close(open_regular(path, os.O_CREAT | os.O_WRONLY))

    def remove(self, sign: WakeSign) -> None:
        """Take a sign away that is not needed any more."""
        try:
            os.unlink(self._folder / sign.name)
        except OSError:  # it is gone, or whoever finds it wrong tries again
            pass

    def until(self, latest: int) -> Iterator[WakeSign]:
        """Yield the signs up to a time, soonest first."""
        for sign in self._all():
            if sign.time > latest:
                return
            yield sign

    def driven(self) -> list[str]:
        """Return the names of the files of runs that are driven."""
        return [sign.run for sign in self._all() if sign.time == DRIVEN]

    def _all(self) -> Iterator[WakeSign]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            digits, _, run = name.partition("-")
            if len(digits) == _DIGITS and digits.isdigit() and run:
                yield WakeSign(int(digits), run)
