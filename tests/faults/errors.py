"""Lets system calls fail in the life of a storage, and looks whether anything that was acknowledged is not on disk.

    python -m tests.faults.errors --store sqlite
    python -m tests.faults.errors --store file --only "sync EIO once"

A process lives that life while one call fails, or all from that one on. It may give up, but only with an error of
Holdfast, and what it acknowledges then must be on the disk: the power is cut after that, and what a sync that failed
should have written is lost. Another process looks at what is left, and one at what is there if the power stays.
"""

import errno
import os
import sys
from functools import partial

from tests.faults.injector.campaign import Fault, FaultStage, play
from tests.faults.injector.interposer import CHANGES, Action, CallKind, FaultPlan, marks_of
from tests.faults.injector.judge import judge
from tests.faults.injector.recorded_life import RecordedLife
from tests.faults.injector.workload import act_all, repeated_at_once
from tests.support.fault_processes import Wrong, expect

_BYTES = frozenset({CallKind.WRITE, CallKind.RESIZE, CallKind.CREATE})
_GROUPS = {
    "sync": frozenset({CallKind.SYNC}),
    "write": _BYTES,
    "name": CHANGES - _BYTES - {CallKind.SYNC},  # renames, links and what else changes names
}
_MANNERS = {
    "EIO once": (errno.EIO, 1),
    "EIO twice": (errno.EIO, 2),
    "EIO from then on": (errno.EIO, sys.maxsize),
    "ENOSPC once": (errno.ENOSPC, 1),
    "ENOSPC from then on": (errno.ENOSPC, sys.maxsize),
}
_FIRST_CUTS = 2
"""How often the power is cut soon after the error; once more it is at the end."""


def list_errors(stage: FaultStage) -> list[Fault]:
    """Each call of each group, in each manner."""
    stage.clear()
    calls = stage.live(act_all)
    found = []
    for group, kinds in _GROUPS.items():
        for number in range(1, 1 + sum(call.kind in kinds for call in calls)):
            for manner, (error, times) in _MANNERS.items():
                plan = FaultPlan(Action.FAIL, kinds, number, times, error)
                found.append(Fault(f"{group} {manner} at {number}.", partial(_fail, stage, plan)))
    return found


def _fail(stage: FaultStage, plan: FaultPlan) -> bool:
    """Live through an error; false if it did not happen."""
    stage.clear()
    calls = stage.live(act_all, plan)
    struck = [number for number, call in enumerate(calls) if call.result == -plan.error]
    if not struck:  # threads take turns as they like, so there may be a call less than before
        return False
    try:
        repeated = repeated_at_once(marks_of(calls))
        expect(not repeated, f"noted effects were repeated: {repeated[:3]}")
        life = RecordedLife(stage, calls)
        for moment in sorted({*life.moments_after(struck[0])[:_FIRST_CUTS], len(calls)}):
            life.cut_power(moment)
        judge(stage.world, marks_of(calls))
    except Wrong as wrong:
        where = calls[struck[0]].told(stage.world.root)
        told = [line for line in marks_of(calls) if line.startswith("failed ")]
        raise Wrong(f"{os.strerror(plan.error)} at {where}, it said {told}: {wrong}") from wrong
    return True


if __name__ == "__main__":
    sys.exit(play("Let system calls fail in the life of a storage.", list_errors))
