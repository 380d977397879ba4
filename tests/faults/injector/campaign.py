"""What the campaigns with faults in system calls have in common: a world to live in, faults, and how they are told."""

import argparse
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from holdfast import InMemoryCheckpointStorage
from tests.faults.injector import interposer
from tests.faults.injector.bugs import PLANTED, plant
from tests.faults.injector.interposer import NO_FAULT, FaultPlan, SystemCall
from tests.faults.injector.workload import DiskWorld, run_guest
from tests.support.durable import ON_DISK
from tests.support.fault_processes import Child, Parent, Wrong, answer, ask, expect, warm_up
from tests.support.places import quick_place


class Fault(NamedTuple):
    """A fault, by a name with which it can be had again."""

    name: str
    strike: Callable[[], bool]
    """Lets it happen, and raises ``Wrong`` if it did harm; false if it did not happen."""


class FaultStage:
    """Where processes live and die, one after the other; one of them at a time."""

    def __init__(self, kind: str, folder: Path, planted: str, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.world = DiskWorld(kind, folder / "root", folder / "guest.run")
        self._planted = planted
        self._log = folder / "log"
        ask(lambda parent: _make_guest(parent, self.world.guest))

    def clear(self) -> None:
        """Let nothing be there."""
        shutil.rmtree(self.world.root, ignore_errors=True)
        self.world.root.mkdir()

    def live(
        self, doing: Callable[[DiskWorld], Awaitable[None]], plan: FaultPlan = NO_FAULT, planted: bool = True
    ) -> list[SystemCall]:
        """Let a process do something, with the bug if there is one; gives its calls until it ended or died."""
        self._log.unlink(missing_ok=True)
        bug = self._planted if planted else ""
        with Child(lambda parent: self._live(doing, plan, bug)) as child:
            problems = [line[6:] for line in child.finish() if line.startswith("wrong ")]
        calls = interposer.read_calls(self._log)
        failed = [call.told(self.world.root) for call in calls if call.failed]
        expect(not problems, f"a process failed after errors at {failed[:3]}: {problems}")
        return calls

    async def _live(self, doing: Callable[[DiskWorld], Awaitable[None]], plan: FaultPlan, bug: str) -> None:
        plant(bug)
        interposer.arm(self.world.root, self._log, plan)
        try:
            await doing(self.world)
        finally:
            interposer.disarm()

    def emptied(self, name: str) -> Path:
        """The path of a folder that is not there."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path


async def _make_guest(parent: Parent, path: Path) -> None:
    async with InMemoryCheckpointStorage() as storage:
        await run_guest(storage)
        await storage.export_run("guest", path)
    answer(parent, "made")


FaultList: TypeAlias = Callable[[FaultStage], list[Fault]]


def play(description: str, list_faults: FaultList, arguments: Sequence[str] | None = None) -> int:
    """Let faults happen, one after the other, as the command line says; 0 if none did harm."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--store", choices=ON_DISK, default="sqlite")
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    parser.add_argument("--count", type=int, default=None, help="only so many faults, chosen by chance")
    parser.add_argument("--seed", type=int, default=None, help="of all chance")
    parser.add_argument("--only", default="", help="only faults with this in their name")
    parser.add_argument("--all", action="store_true", help="go on after something went wrong")
    given = parser.parse_args(arguments)
    interposer.preload()
    warm_up()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory(dir=quick_place()) as folder:
        # Paths are compared with those that the system gives.
        stage = FaultStage(given.store, Path(folder).resolve(), given.planted, seed)
        try:
            faults = [fault for fault in list_faults(stage) if given.only in fault.name]
        except Wrong as wrong:
            print(f"WRONG: without any fault: {wrong}", flush=True)
            return 1
        happened, harm = _strike(_chosen(faults, given.count, random.Random(seed)), given.all)
    print(f"{given.store}, seed {seed}: {happened} of {len(faults)} faults happened, {harm} did harm")
    return 1 if harm or not happened else 0


def _strike(faults: list[Fault], on_and_on: bool) -> tuple[int, int]:
    """Let faults happen, and tell those that did harm; how many happened, and how many of them did harm."""
    happened = harm = 0
    for fault in faults:
        try:
            happened += fault.strike()
        except Wrong as wrong:
            happened += 1
            harm += 1
            print(f"WRONG: {fault.name}: {wrong}", flush=True)
            if not on_and_on:
                break
    return happened, harm


def _chosen(faults: list[Fault], count: int | None, chance: random.Random) -> list[Fault]:
    """So many of the faults, from all parts of the campaign, in their order."""
    if count is None or count >= len(faults):
        return faults
    edges = [len(faults) * number // count for number in range(count + 1)]
    return [faults[chance.randrange(first, last)] for first, last in pairwise(edges)]
