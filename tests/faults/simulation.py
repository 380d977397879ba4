"""Simulates runs, crashes, pauses and rivals in random orders, in a process without real time, beside a model of them.

    python -m tests.faults.simulation --store sqlite --stories 2000

A story is up to forty events of ``tests/support/machine_rules.py``: commits that are held back, processes that die, go
on or take a run over, seconds that pass, restores, forks, answers. After each of them the model in
``tests/support/model.py`` says what the store must show.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.test_machine import InFiles, InMemory, InSqlite

MACHINES = {"memory": InMemory, "file": InFiles, "sqlite": InSqlite}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every story came to what the model says."""
    parser = argparse.ArgumentParser(description="Simulate runs, crashes, pauses and rivals.")
    parser.add_argument("--store", choices=sorted(MACHINES), default="sqlite")
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args(arguments)
    told = settings(
        max_examples=given.stories,
        stateful_step_count=40,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(given.seed)(MACHINES[given.store]), settings=told)
    except Exception:
        traceback.print_exc()
        print(f"WRONG: {given.store}, seed {given.seed}: a story came to something else, see above")
        return 1
    print(f"{given.store}, seed {given.seed}: {given.stories} cases, all as the model says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
