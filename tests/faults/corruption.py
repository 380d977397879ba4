"""Damages a storage in random ways: verify must notice, name what is affected, and all else must load; then repairs it.

    python -m tests.faults.corruption --store sqlite --count 500 --seed 0

The damage follows from the seed, one number for each; the storage that is damaged is made anew for each campaign.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.corruption import DAMAGES, foreign, syncing_nothing, tried
from tests.support.corruption_bugs import PLANTED, planted
from tests.support.corruption_world import fill, look, opened
from tests.support.durable import ON_DISK


async def campaign(
    kind: str,
    folder: Path,
    seeds: Sequence[int],
    only: str = "",
    bug: str = "",
    repair_every: int = 1,
    reads: int = 1,
) -> list[str]:
    """What went wrong, for each seed with which anything did; says how many were noticed."""
    original = folder / "original"
    original.mkdir()
    async with opened(kind, original) as storage:
        with syncing_nothing():
            await fill(storage)
        baseline = await look(storage)
        assert (await storage.verify()).problems == []
        wrong: list[str] = []
        if not bug:
            wrong += [complaint async for complaint in foreign(storage, baseline, folder, baseline)]
    noticed = 0
    for number, seed in enumerate(seeds):
        if number and number % 100 == 0:
            print(f"{kind}: {number} of {len(seeds)}, {len(wrong)} wrong", flush=True)
        with planted(bug):
            how, was_noticed, complaints = await tried(
                kind, original, baseline, seed, folder / "copy", only, seed % repair_every == 0, reads
            )
        noticed += was_noticed
        wrong += [f"seed {seed}, {how}: {complaint}" for complaint in complaints[:3]]
        if bug and wrong:
            break
    print(f"{kind}: {noticed} of {len(seeds)} were noticed; of the others nothing can be seen", flush=True)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Damage a storage in random ways.")
    parser.add_argument("--store", choices=ON_DISK, default="sqlite")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument(
        "--only", choices=["", *{name for ways in DAMAGES.values() for name in ways}], default=""
    )
    parser.add_argument(
        "--repair-every", type=int, default=4, help="of how many damages one is repaired, too"
    )
    parser.add_argument(
        "--reads", type=int, default=10, help="how many runs are read in all ways after each damage"
    )
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    given = parser.parse_args(arguments)
    seeds = range(given.seed, given.seed + given.count)
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(
            campaign(
                given.store,
                Path(folder),
                seeds,
                given.only,
                given.planted,
                given.repair_every,
                given.reads,
            )
        )
    for complaint in wrong:
        print(f"WRONG: {complaint}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
