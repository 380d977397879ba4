"""Changes each bit of a small store, cuts its files at each byte, swaps its parts, and puts older ones back.

    python -m tests.faults.tampering flips --store sqlite
    python -m tests.faults.tampering cuts --store file --every 7 --plain
    python -m tests.faults.tampering swaps
    python -m tests.faults.tampering copies
    python -m tests.faults.tampering removals
    python -m tests.faults.tampering replays

Under keys, and with an anchor, what is shown afterwards is what was shown before, or is refused, or is missing. Without
keys, ``verify`` finds whatever is shown otherwise. Swaps, copies, removals and replays are made in memory, where each
item of a store can be had alone.
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from holdfast import CheckpointStorage, HoldfastError
from tests.stores.keyed_world import KEYS, add_fork, fill, fill_waiting, make_workflow
from tests.support.one_thread import in_one_thread
from tests.support.tampered import OPENERS, RUNS, MemoryAnchor, Sight, judge, make_store, see
from tests.support.tampered_items import (
    RememberingStore,
    TamperCase,
    copy_store,
    make_copies,
    make_removals,
    make_replays,
    make_swaps,
)
from tests.support.tampering_bugs import PLANTED, planted

PIECE = 2_000
"""The number of cases that a process takes at a time."""


class Target(NamedTuple):
    """A store as it was made, with what is seen of it and what its anchor knows."""

    kind: str
    keyed: bool
    files: Mapping[str, bytes]
    before: Sight
    anchor: Mapping[str, int]


class Case(NamedTuple):
    """One change to one file of a store."""

    name: str
    path: str
    data: bytes
    without_locks: bool = False
    """True if the files go, too, in which writers leave how far the file of a run was synced."""

    def files_of(self, target: Target) -> dict[str, bytes]:
        """Return the files as they are after the change."""
        files = {**target.files, self.path: self.data}
        return {name: data for name, data in files.items() if not (self.without_locks and "/locks/" in name)}


class Tally(NamedTuple):
    """What came of many cases."""

    cases: int = 0
    refused: int = 0
    wrong: tuple[str, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]
        return Tally(self.cases + other.cases, self.refused + other.refused, (self.wrong + other.wrong)[:20])


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, also of those that are hints or locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def make_target(kind: str, keyed: bool) -> Target:
    """Make a store and look at it."""
    anchor = MemoryAnchor()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        await make_store(kind, folder, KEYS if keyed else None, anchor if keyed else None)
        files = read_files(folder)
        before = await _look(folder, kind, keyed, anchor.known)
    return Target(kind, keyed, files, before, anchor.known)


async def _look(folder: Path, kind: str, keyed: bool, known: Mapping[str, int]) -> Sight:
    anchor = MemoryAnchor()
    anchor.known.update(known)
    logging.getLogger("holdfast.storage").addFilter(_keep_silent)  # of each damaged run that is left out
    storage = OPENERS[kind](folder, KEYS if keyed else None, anchor if keyed else None)
    try:
        return await see(storage)
    finally:
        logging.getLogger("holdfast.storage").removeFilter(_keep_silent)
        try:
            await storage.close()
        except HoldfastError:
            pass  # a store that cannot be opened has told so before


def _keep_silent(record: logging.LogRecord) -> bool:
    return False


async def _is_verified(folder: Path, kind: str) -> bool:
    """Return True if ``verify`` finds damage in a store without keys."""
    storage = OPENERS[kind](folder, None, None)
    try:
        return bool((await storage.verify()).problems)
    except HoldfastError:
        return True
    finally:
        await storage.close()


def untouched_by(path: str, kind: str) -> tuple[str, ...]:
    """Return the runs that have nothing in a file."""
    if kind == "sqlite":
        return ()
    own = [run for run in RUNS if run in path.split("/")[-1] or f"/{run}/" in path]
    if "/blobs/" in path:  # of a family
        own += ["fork"]
    return tuple(run for run in RUNS if run not in own) if own else ()


async def attack_all(target: Target, cases: Sequence[Case], until_wrong: bool = False) -> Tally:
    """Look at the store after each of the changes, or until something is wrong."""
    refused = 0
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(dir=_in_memory()) as made, in_one_thread():
        folder = Path(made) / "store"
        for case in cases:
            if until_wrong and wrong:
                break
            _lay_out(folder, case.files_of(target))
            try:
                after = await _look(folder, target.kind, target.keyed, target.anchor)
            except Exception as error:
                wrong.append(f"{case.name}: {error!r}")
                continue
            verdict = judge(target.before, after, untouched_by(case.path, target.kind))
            refused += verdict.refused
            if verdict.complaints and not (not target.keyed and await _is_verified(folder, target.kind)):
                wrong += [f"{case.name}: {complaint}" for complaint in verdict.complaints]
    return Tally(len(cases), refused, tuple(wrong))


def _lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    """Let a folder have these files and no others."""
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, data in files.items():
        place = folder / name
        if not place.exists() or place.read_bytes() != data:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


def _in_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# Cases.


def count_flips(target: Target) -> int:
    return 8 * sum(map(len, target.files.values()))


def make_flips(target: Target, numbers: Sequence[int]) -> Iterator[Case]:
    """Yield the store with the bits of these numbers flipped, one in each."""
    for number, path, data in _places(target, numbers, 8):
        changed = bytearray(data)
        changed[number // 8] ^= 1 << number % 8
        yield Case(f"{path}, bit {number % 8} of byte {number // 8}", path, bytes(changed))


def count_cuts(target: Target) -> int:
    return sum(map(len, target.files.values()))


def make_cuts(target: Target, numbers: Sequence[int]) -> Iterator[Case]:
    """Yield the store with a file cut at each of these bytes."""
    for number, path, data in _places(target, numbers, 1):
        if "/locks/" not in path:
            yield Case(f"{path}, cut at byte {number}", path, data[:number], target.keyed)


def _places(target: Target, numbers: Sequence[int], units: int) -> Iterator[tuple[int, str, bytes]]:
    files, first = iter(target.files.items()), 0
    path, data = next(files)
    for number in numbers:
        while number >= first + units * len(data):
            first += units * len(data)
            path, data = next(files)
        yield number - first, path, data


# Items of a store in memory.

ALL_RUNS = ("first", "second", "failed", "fork")
DELETED, AGAIN = "deleted", "again"
"""For replays: a run that was deleted, and one that was begun again after that."""
ITEM_CASES = {
    "swaps": make_swaps,
    "copies": make_copies,
    "removals": make_removals,
    "replays": make_replays,
}


async def attack_items(what: str, every: int = 1, begin: int = 0, bug: str = "") -> Tally:
    """Swap any two parts of a store, or put older ones back, and look at it; with a bug, until it shows."""
    store, anchor = RememberingStore(), MemoryAnchor()
    with planted(bug):
        storage = CheckpointStorage(store, keys=KEYS, anchor=anchor)
        await fill(storage)
        await add_fork(storage, what != "replays")  # nothing tells that a checkpoint was removed before
        if what == "replays":  # then there are letters that were taken, and an earlier head for each
            await _go_on(storage)
            await _delete_runs(storage)
        before = await see(storage, (*ALL_RUNS, DELETED, AGAIN))
        total = Tally()
        cases = list(ITEM_CASES[what](store))
        for case in cases[begin::every]:
            total += await _attack_items(case, store, anchor, before)
            if bug and total.wrong:
                break
    return total


async def _go_on(storage: CheckpointStorage) -> None:
    workflow = make_workflow(storage)
    for name in ALL_RUNS[:2]:
        run = await workflow.resume(run_id=name)
        result = await run.wait_for_completion()
        await result.respond({result.pending_requests[0].request_id: "yes"})


async def _delete_runs(storage: CheckpointStorage) -> None:
    await fill_waiting(storage, (DELETED, AGAIN))
    await storage.delete_run(DELETED)
    await storage.delete_run(AGAIN)
    result = await make_workflow(storage).run("begin again", run_id=AGAIN)
    await result.respond({result.pending_requests[0].request_id: "no"})
    await storage.send(AGAIN, "more")


async def _attack_items(
    case: TamperCase, store: RememberingStore, anchor: MemoryAnchor, before: Sight
) -> Tally:
    copy, least = copy_store(store), MemoryAnchor()
    least.known.update(anchor.known)
    case.make(copy)
    try:
        after = await see(CheckpointStorage(copy, keys=KEYS, anchor=least), tuple(before))
    except Exception as error:
        return Tally(1, 0, (f"{case.name}: {error!r}",))
    touched = {*case.runs, *(["fork"] if "first" in case.runs else ())}  # they have blobs together
    verdict = judge(before, after, tuple(run for run in before if run not in touched))
    return Tally(1, verdict.refused, tuple(f"{case.name}: {complaint}" for complaint in verdict.complaints))


COUNTS: dict[str, Callable[[Target], int]] = {"flips": count_flips, "cuts": count_cuts}
CASES: dict[str, Callable[[Target, Sequence[int]], Iterator[Case]]] = {"flips": make_flips, "cuts": make_cuts}


def _attack_piece(what: str, target: Target, numbers: Sequence[int]) -> Tally:
    return asyncio.run(attack_all(target, list(CASES[what](target, numbers))))


def attack(what: str, target: Target, every: int, begin: int, jobs: int) -> Tally:
    """Try all cases, or each so manieth, in several processes; say how far it is."""
    numbers = range(begin, COUNTS[what](target), every)
    pieces = [numbers[first : first + PIECE] for first in range(0, len(numbers), PIECE)]
    total = Tally()
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        tallies = pool.map(_attack_piece, [what] * len(pieces), [target] * len(pieces), pieces)
        for number, tally in enumerate(tallies, 1):
            total += tally
            if number % 10 == 0 or tally.wrong:
                print(f"{what}: {total.cases} of {len(numbers)}, {len(total.wrong)} wrong", flush=True)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Tamper with a small store.")
    parser.add_argument("what", choices=[*CASES, *ITEM_CASES])
    parser.add_argument("--store", choices=OPENERS, default="sqlite")
    parser.add_argument("--plain", action="store_true", help="without keys")
    parser.add_argument("--every", type=int, default=1, help="try each so manieth case")
    parser.add_argument("--begin", type=int, default=0, help="the first case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    given = parser.parse_args(arguments)
    if given.what in ITEM_CASES:
        given.store = "memory"
        tally = asyncio.run(attack_items(given.what, given.every, given.begin, given.planted))
    else:
        with planted(given.planted):
            target = asyncio.run(make_target(given.store, not given.plain))
            tally = attack(given.what, target, given.every, given.begin, given.jobs)
    print(
        f"{given.what}, {given.store}: {tally.cases} cases, {tally.refused} noticed, {len(tally.wrong)} wrong"
    )
    for complaint in tally.wrong:
        print(f"WRONG: {complaint}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
