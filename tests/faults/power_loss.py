"""Cuts the power in the life of a storage, and looks whether anything that was acknowledged is lost.

    python -m tests.faults.power_loss --store sqlite
    python -m tests.faults.power_loss --store file --count 50 --seed 7

A process lives that life once, and all its system calls are recorded. From them it is computed what a disk holds
after a power cut: only what was synced, or that with any part of the rest. Another process looks at that, and goes on
with all runs. The power is cut at each moment before something more is sure: then the most was acknowledged.
"""

import sys
from functools import partial

from tests.faults.injector.campaign import Fault, FaultStage, play
from tests.faults.injector.disk_model import Luck
from tests.faults.injector.interposer import marks_of
from tests.faults.injector.recorded_life import RecordedLife
from tests.faults.injector.workload import act_all
from tests.support.fault_processes import expect

_LUCKS = 2
"""How often chance decides, at each moment, what is left of all that is not sure."""


def list_cuts(stage: FaultStage) -> list[Fault]:
    """A power cut at each moment, with only what is sure, and with a part of the rest."""
    stage.clear()
    calls = stage.live(act_all)
    failed = [line for line in marks_of(calls) if line.startswith("failed ")]
    expect(not failed, f"{failed}")
    life = RecordedLife(stage, calls)
    found = []
    for moment in life.moments:
        found.append(Fault(f"at {moment}, what is sure", partial(_cut, life, moment, None)))
        for number in range(_LUCKS):
            name = f"at {moment}, luck {number}"
            found.append(Fault(name, partial(_cut, life, moment, Luck(f"{stage.seed}, {name}"))))
    return found


def _cut(life: RecordedLife, moment: int, luck: Luck | None) -> bool:
    life.cut_power(moment, luck)
    return True


if __name__ == "__main__":
    sys.exit(play("Cut the power in the life of a storage.", list_cuts))
