"""Which runs are to be woken, or gone on with if their process dies: an empty file for each, named by when.

Without them all runs would have to be read to find those that are due. They are made before the commit that says so,
and believed only after a look at the run: who finds one that is wrong removes it, but no young one, because its commit
may be on its way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.store import Head
from holdfast.engine.status import RunStatus
from holdfast.stores.common.disk import Disk, open_regular

_DIGITS = 20
AT_ONCE = 0
DRIVEN = 10**_DIGITS - 1
"""In the place of a time: some process drives the run."""
_OLD_SECONDS = 60.0


class Sign(NamedTuple):
    """That a run is to be woken, or is driven: when, and the name of its folder."""

    time: int
    run: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.time:0{_DIGITS}d}-{self.run}"


def sign_of(head: Head, has_letters: bool, run: str) -> Sign | None:
    """The sign that a run needs where it stands; None if nothing is to be done for it."""
    if head.status is RunStatus.RUNNING:
        return Sign(DRIVEN, run)
    if head.status is not RunStatus.WAITING or (head.wake_at is None and not has_letters):
        return None
    return Sign(AT_ONCE if has_letters or head.wake_at is None else max(head.wake_at, AT_ONCE), run)


class Waking:
    """The folder of signs."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk

    def add(self, sign: Sign) -> None:
        """Make sure that a sign is there, durably, and young: one that is old may be about to be taken for wrong.

        One that says that a run is driven need not be durable. After a power cut no process is left that looked at all
        runs before, as each does once.
        """
        path = self._folder / sign.name
        try:
            os.utime(path, follow_symlinks=os.utime not in os.supports_follow_symlinks)
            return
        except FileNotFoundError:
            pass
        self._disk.make_folder(self._folder)
        os.close(open_regular(path, os.O_CREAT | os.O_WRONLY))
        if sign.time != DRIVEN:
            try:
                self._disk.sync_folder(self._folder)
            except OSError:
                self.remove(sign)  # so that the next one makes it anew
                raise

    def remove(self, sign: Sign) -> None:
        """Take a sign away that is not needed any more."""
        try:
            os.unlink(self._folder / sign.name)
        except OSError:  # it is gone, or whoever finds it wrong tries again
            pass

    def remove_if_old(self, sign: Sign) -> bool:
        """Take away a sign that is wrong, unless the commit that it belongs to may be on its way; whether it did."""
        try:
            if time.time() - os.lstat(self._folder / sign.name).st_mtime <= _OLD_SECONDS:
                return False
        except FileNotFoundError:
            return False
        self.remove(sign)
        return True

    def until(self, latest: int) -> Iterator[Sign]:
        """The signs up to a time, soonest first."""
        for sign in self._all():
            if sign.time > latest:
                return
            yield sign

    def driven(self) -> list[str]:
        """The names of the folders of runs that are driven."""
        return [sign.run for sign in self._all() if sign.time == DRIVEN]

    def _all(self) -> Iterator[Sign]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            digits, _, run = name.partition("-")
            if len(digits) == _DIGITS and digits.isdigit() and run:
                yield Sign(int(digits), run)
