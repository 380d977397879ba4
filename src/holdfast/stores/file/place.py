"""The names of commit files: where the next one goes, and which of them hold records."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"(\d{8,})-(\d+)\.json")


class Place(NamedTuple):
    """Which commit file: ``seq`` is the least that its records can have, ``round`` counts commits without records.

    A place follows from the commit before it alone. So all who would follow the same commit try the same name,
    and only one of them gets it; and the names tell which file holds which seq.

    >>> Place(4, 0).name, Place(4, 0).after(0), Place(4, 1).after(5)
    ('00000004-0.json', Place(seq=4, round=1), Place(seq=6, round=0))
    """

    seq: int
    round: int

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.seq:08}-{self.round}.json"

    @property
    def next_round(self) -> Place:
        """What follows a commit without records."""
        return Place(self.seq, self.round + 1)

    def after(self, last_seq: int) -> Place:
        """The place of the commit that follows one at this place with records up to ``last_seq``."""
        return Place(last_seq + 1, 0) if last_seq >= self.seq else self.next_round


FIRST = Place(1, 0)
"""It alone may hold a record with seq 0, and then another round follows it."""


def listed(folder: Path) -> list[Place]:
    """The commit files in a folder, oldest first; none if it is not there."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(Place(int(match[1]), int(match[2])) for match in map(_NAME.fullmatch, names) if match)


def full(places: Sequence[Place]) -> list[Place]:
    """Those that are known to hold records because others come behind them: all but the last of each seq.

    >>> full([Place(1, 0), Place(2, 0), Place(2, 1), Place(3, 0)])
    [Place(seq=1, round=0), Place(seq=2, round=1)]
    """
    return [place for place, later in pairwise(places) if later.seq > place.seq]
