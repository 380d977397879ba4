"""Kills processes at their system calls while they tag, fork, restore, import, export and back up.

    python -m tests.faults.call_kills --store sqlite
    python -m tests.faults.call_kills --store file --only "tag, "

Each act begins with what those before it left. Its process dies before one of its calls, or amid one that writes.
Then all that was acknowledged must be there, all runs must go on, and doing the act again must bring it to its end.
"""

import random
import shutil
import sys
from functools import partial

from tests.faults.injector.campaign import Fault, FaultStage, play
from tests.faults.injector.interposer import (
    CHANGES,
    Action,
    CallKind,
    FaultPlan,
    SystemCall,
    marks_of,
)
from tests.faults.injector.judge import judge
from tests.faults.injector.workload import DiskWorld, acts_of, go_on
from tests.support.fault_processes import Wrong

_CALLS_TO_GO_ON = 60
"""About as many as going on with all runs takes."""


def list_kills(stage: FaultStage) -> list[Fault]:
    """A kill before each call of each act, and amid each call that writes; or two kills."""
    found: list[Fault] = []
    marks: list[str] = []
    stage.clear()
    for name in acts_of(stage.world.kind):
        act = KilledAct(stage, name, marks)
        calls = act.prepare()
        for number, call in enumerate([call for call in calls if call.kind in CHANGES], 1):
            title = f"{name}, killed before call {number}."
            found.append(Fault(title, partial(act.strike, FaultPlan(Action.KILL, first=number))))
            if call.kind is CallKind.WRITE:
                title = f"{name}, killed amid call {number}."
                found.append(Fault(title, partial(act.strike, FaultPlan(Action.TEAR, first=number))))
            again = random.Random(f"{stage.seed}, {title}").randrange(1, _CALLS_TO_GO_ON)
            title = f"{name}, killed before call {number} and then before call {again}."
            plans = [FaultPlan(Action.KILL, first=first) for first in (number, again)]
            found.append(Fault(title, partial(act.strike, *plans)))
        marks = [*marks, *marks_of(calls)]
    return found


class KilledAct:
    """Something that is done to a storage, from where others left it."""

    def __init__(self, stage: FaultStage, name: str, marks: list[str]) -> None:
        self._stage = stage
        self._name = name
        self._marks = marks
        self._before = stage.folder / f"before-{name}"
        shutil.copytree(stage.world.root, self._before, symlinks=True)

    def prepare(self) -> list[SystemCall]:
        """Do it for those that come after it, without any bug; gives the calls."""
        return self._stage.live(self._do, planted=False)

    async def _do(self, world: DiskWorld) -> None:
        async with world.storage() as storage:
            await acts_of(world.kind)[self._name](world, storage)

    def strike(self, first: FaultPlan, *then: FaultPlan) -> bool:
        """Do it and die over it, perhaps die again over going on with all runs, and look what came of it."""
        shutil.rmtree(self._stage.world.root)
        shutil.copytree(self._before, self._stage.world.root, symlinks=True)
        calls = self._stage.live(self._do, first)
        for plan in then:
            calls += self._stage.live(go_on, plan)
        struck = [call for call in calls if call.struck]
        try:
            judge(self._stage.world, [*self._marks, *marks_of(calls)], self._name)
        except Wrong as wrong:
            where = [call.told(self._stage.world.root) for call in struck]
            raise Wrong(f"killed at {where}: {wrong}") from wrong
        return bool(struck)


if __name__ == "__main__":
    sys.exit(play("Kill processes at their system calls.", list_kills))
