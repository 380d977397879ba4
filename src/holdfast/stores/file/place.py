"""The names of commit files: where the next one goes, and which of them hold records."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import StorageError

_NAME = re.compile(r"(\d{8,})-(\d+)(\.kept)?\.json")
_LIFE = 10**12


class Misplaced(StorageError):
    """The folder of a run holds one that belongs into another, or is a link to one."""


class Place(NamedTuple):
    """Which commit file: ``seq`` is the least that its records can have, ``round`` counts commits without records.

    A place follows from the commit before it alone. So all who would follow the same commit try the same name,
    and only one of them gets it; and the names tell which file holds which seq. If a run was removed and begins
    again in the same folder, its places begin 10^12 further on.

    >>> Place(4, 0).name, Place(4, 0).after(0), Place(4, 1).after(5)
    ('00000004-0.json', Place(seq=4, round=1), Place(seq=6, round=0))
    >>> Place(4, 0).next_life.name, Place(4, 0).next_life.after(3)
    ('1000000000001-0.json', Place(seq=1000000000004, round=0))
    """

    seq: int
    round: int

    @property
    def text(self) -> str:
        """How commit files speak of it."""
        return f"{self.seq:08}-{self.round}"

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.text}.json"

    @property
    def kept_name(self) -> str:
        """The name of a file of which only records are left, that is no part of the row any more."""
        return f"{self.text}.kept.json"

    @classmethod
    def of_text(cls, text: str) -> Place:
        """The place that a commit file speaks of; raises ``ValueError``."""
        seq, number = text.split("-")
        return cls(int(seq), int(number))

    @property
    def next_round(self) -> Place:
        """What follows a commit without records."""
        return Place(self.seq, self.round + 1)

    @property
    def rounds_before(self) -> list[Place]:
        """The commits without records right before it."""
        return [Place(self.seq, number) for number in range(self.round)]

    def after(self, last_seq: int) -> Place:
        """The place of the commit that follows one at this place with records up to ``last_seq``."""
        last = self.offset + last_seq
        return Place(last + 1, 0) if last_seq and last >= self.seq else self.next_round

    @property
    def offset(self) -> int:
        """What is added to the seqs of records, for places in the same life of the run."""
        return self.seq // _LIFE * _LIFE

    @property
    def next_life(self) -> Place:
        """What follows a commit that removed the run."""
        return Place(self.offset + _LIFE + 1, 0)


FIRST = Place(1, 0)
"""It alone may hold a record with seq 0, and then another round follows it."""


class Names(NamedTuple):
    """The commit files in a folder, oldest first."""

    row: list[Place]
    """Those that follow each other up to the newest."""
    kept: list[Place]
    """Those of which only records are left."""


def is_commit_name(name: str) -> bool:
    """Tell whether a file of this name in the folder of a run is a commit file."""
    return _NAME.fullmatch(name) is not None


def names_in(folder: Path) -> Names:
    """The commit files in a folder; none if it is not there. Raises ``Misplaced`` if it is a link."""
    if os.path.islink(folder):
        raise Misplaced(f"{folder} is a link: a store follows none; put the folder in its place")
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return Names([], [])
    found = [match for match in map(_NAME.fullmatch, names) if match]
    return Names(
        sorted(Place(int(match[1]), int(match[2])) for match in found if not match[3]),
        sorted(Place(int(match[1]), int(match[2])) for match in found if match[3]),
    )


def listed(folder: Path) -> list[Place]:
    """The commit files in a folder that follow each other, oldest first; none if it is not there."""
    return names_in(folder).row


def full(places: Sequence[Place]) -> list[Place]:
    """Those that are known to hold records because others come behind them: all but the last of each seq.

    >>> full([Place(1, 0), Place(2, 0), Place(2, 1), Place(3, 0)])
    [Place(seq=1, round=0), Place(seq=2, round=1)]
    """
    return [place for place, later in pairwise(places) if later.seq > place.seq]
