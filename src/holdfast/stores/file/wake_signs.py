"""Signs that a run is to be woken, or is driven: a file for each, of which only the name counts: it says when.

Without them all runs would have to be read to find those that are due. A sign is made before the line that needs it and
removed behind the line that does not, both under the lock of the run. It is believed only after a look at the run.
Signs need not be durable: after a power cut each process that begins looks at all runs once. A claim is a file, too,
which says that a host is about to go on with a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint.ownership import process_of
from holdfast.checkpoint.store import Head
from holdfast.engine.status import RunStatus
from holdfast.stores.common.disk import open_regular, read_regular
from holdfast.stores.common.presence import hash_process
from holdfast.stores.common.run_query import RunClaim
from holdfast.stores.file.line_file import LineFile

_DIGITS = 20
AT_ONCE = 0
DRIVEN = 10**_DIGITS - 1
"""In place of a time: some process drives the run."""


class WakeSign(NamedTuple):
    """Says when a run is to be woken, or that it is driven."""

    time: int
    run: str
    """The name of the run's file."""
    owner: str = ""
    """For a run that is driven: the name of its process in the folder of processes, a dot, and the claim's number."""

    @property
    def name(self) -> str:
        """The name of the sign's file."""
        owner = f".{self.owner}" if self.owner else ""
        return f"{self.time:0{_DIGITS}d}{owner}-{self.run}"

    @property
    def process(self) -> str:
        """The name of the process that drives the run, in the folder of processes."""
        return self.owner.partition(".")[0]

    @property
    def claim(self) -> str:
        """The number of the claim by which the process drives the run; empty if it has none."""
        return self.owner.partition(".")[2]


def sign_of(head: Head, letters: int, run: str) -> WakeSign | None:
    """Return the sign that a run needs where it stands, with so many letters; None if nothing is to be done for it."""
    if head.status is RunStatus.RUNNING:
        return WakeSign(DRIVEN, run, _name_owner(head.owner))
    if letters > head.letters_known:
        return WakeSign(AT_ONCE, run)
    if head.status is RunStatus.WAITING and head.wake_at is not None:
        return WakeSign(max(head.wake_at, AT_ONCE), run)
    return None


@lru_cache(1024)
def _name_owner(owner: str) -> str:
    if not owner:
        return ""
    number = owner.partition("#")[2]
    is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS
    return f"{hash_process(process_of(owner))}.{number if is_number else ''}"


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

    def driven(self) -> list[WakeSign]:
        """Return the signs of runs that are driven."""
        return [sign for sign in self._all() if sign.time == DRIVEN]

    def _all(self) -> Iterator[WakeSign]:
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return
        for name in names:
            when, _, run = name.partition("-")
            digits, _, owner = when.partition(".")
            if len(digits) == _DIGITS and digits.isdigit() and run:
                yield WakeSign(int(digits), run, owner)


class RunSign:
    """The sign of one run, kept in step with the lines of its file; callers hold its lock."""

    def __init__(self, lines: LineFile, signs: WakeSigns) -> None:
        self._lines = lines
        self._signs = signs
        self._name = lines.path.stem

    @property
    def needed(self) -> WakeSign | None:
        """The sign that the run needs where it stands."""
        state = self._lines.state
        return None if state.head is None else sign_of(state.head, len(state.letters), self._name)

    def announce(self, head: Head | None, letters: int) -> WakeSign | None:
        """Make the sign that a line will need, before the line is written; return the sign that is outdated then."""
        stood = self._lines.state.head
        if stood is not None and head is not None and _is_driven_on(stood, head):
            return None
        before = self.needed
        after = None if head is None else sign_of(head, letters, self._name)
        if after == before:
            return None
        if after is not None:
            self._signs.add(after, self._lines.lock_path)
        return before

    def withdraw(self, outdated: WakeSign | None) -> None:
        """Take a sign away, behind the line that made it outdated."""
        if outdated is not None:
            self._signs.remove(outdated)

    def correct(self, wrong: WakeSign | None) -> None:
        """Make sure that the sign that is needed is there, and not the ``wrong`` one."""
        needed = self.needed
        if needed is not None:
            self._signs.add(needed, self._lines.lock_path)
        if wrong != needed:
            self.withdraw(wrong)


def _is_driven_on(before: Head, after: Head) -> bool:
    """Return True if the same process drives the run before and after, as in most commits: its sign stays."""
    return before.status is after.status is RunStatus.RUNNING and before.owner == after.owner


class ClaimFiles:
    """The folder of claims: a file for each run that a host claimed; hints that count for a moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, run: str) -> RunClaim | None:
        """Return the claim of a run; None if there is none, or none that can be read."""
        try:
            checkpoint_id, token, letters, until, process = (
                read_regular(self._folder / run).decode("ascii").split()
            )
            return RunClaim(checkpoint_id, int(token), int(letters), int(until), process)
        except (OSError, ValueError):
            return None

    def write(self, run: str, claim: RunClaim) -> None:
        """Claim a run; the caller holds its lock."""
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        handle = open_regular(self._folder / run, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(handle, " ".join(map(str, claim)).encode("ascii"))
        finally:
            os.close(handle)

    def remove(self, run: str) -> None:
        """Remove the claim of a run, if it has one."""
        with suppress(OSError):
            os.unlink(self._folder / run)

    def sweep(self, time: int) -> None:
        """Remove the claims that are over; one that cannot be read may be written right now, and stays."""
        try:
            runs = os.listdir(self._folder)
        except FileNotFoundError:
            return
        for run in runs:
            claim = self.read(run)
            if claim is not None and claim.until <= time:
                self.remove(run)
