"""What a run takes from the world outside, given to it so that tests can give something else."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from holdfast.ids import RunId

# Not a function of its own, because it is called several times in each superstep.
_now = partial(datetime.datetime.now, datetime.UTC)


def _new_run_id() -> RunId:
    return RunId(os.urandom(16).hex())


def _chance() -> float:
    import random  # here because few runs ever need it

    return random.random()


def _salt() -> bytes:
    return os.urandom(16)


class Environment(NamedTuple):
    """The clock, the source of ids, chance as numbers from 0 to 1, and salt for the ids of checkpoints."""

    now: Callable[[], datetime.datetime] = _now
    new_run_id: Callable[[], RunId] = _new_run_id
    chance: Callable[[], float] = _chance
    salt: Callable[[], bytes] = _salt
