"""Random workflows whose process ends right after a commit are gone on with in another process."""

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast import InMemoryCheckpointStorage
from tests.programs import ROOT
from tests.support.going_on import ONE_BY_ONE, TOGETHER, Story, compare, lived
from tests.support.living import Living, answer, inputs, livings
from tests.support.new_processes import DIED, Continued, Job
from tests.support.parts import differs

SEEDS = range(max(settings().max_examples // 100, 1))
STORAGES = ["sqlite", "file"]
MOST_LEGS = 60


async def uninterrupted(living: Living, message: int, manner: str) -> tuple[Story, int]:
    """What comes of a run that nobody stops, and how many checkpoints it makes."""
    async with InMemoryCheckpointStorage() as storage:
        run = await living.build().start(message, storage=storage)
        return await lived(run, answer, manner), len(run.checkpoints)


def drawn(seed: int, kind: str, count: int, most: int) -> list[tuple[Job, Story]]:
    """Jobs of a seed that make some checkpoints but not too many, those with questions first."""
    found: dict[str, tuple[Job, Story, int]] = {}

    @hypothesis.seed(seed)
    @settings(max_examples=60, database=None, phases=[Phase.generate])
    @given(livings(levels=2), inputs(3), st.sampled_from([TOGETHER, ONE_BY_ONE]))
    def collect(living: Living, message: int, manner: str) -> None:
        story, checkpoints = asyncio.run(uninterrupted(living, message, manner))
        if 4 <= checkpoints <= most:
            job = Job(f"j{len(found)}", kind, living, message, manner)
            found.setdefault(repr((living, message)), (job, story, checkpoints))

    collect()
    best = sorted(found.values(), key=lambda one: (-min(len(one[1].answers), 3), -one[2]))
    assert len(best) >= count
    return [(job, story) for job, story, _ in best[:count]]


def process(what: str, folder: Path, hash_seed: int) -> int:
    """A new Python, in which strings have other hashes; its exit code."""
    program = f"import pathlib, sys; from tests.support.new_processes import {what}; {what}(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, DIED), done.stderr
    return done.returncode


def continued(folder: Path) -> list[Continued]:
    found: list[Continued] = pickle.loads((folder / "continued").read_bytes())
    return found


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_goes_on_in_another_process(seed: int, kind: str, tmp_path: Path) -> None:
    chosen = drawn(seed, kind, count=2, most=12)
    (tmp_path / "jobs").write_bytes(pickle.dumps([job for job, _ in chosen]))
    process("die", tmp_path, hash_seed=1)
    process("resume", tmp_path, hash_seed=2)
    found = continued(tmp_path)
    for job, expected in chosen:
        mine = [one for one in found if one.job == job.name]
        assert sum("stopped" in one.how for one in mine) >= 3
        assert sum("back" in one.how for one in mine) >= 4
        for one in mine:
            compare(expected, one.story, one.start, one.how, job.manner)
            assert not one.problems


@pytest.mark.parametrize("kind", STORAGES)
def test_a_run_of_which_each_process_makes_one_commit(kind: str, tmp_path: Path) -> None:
    chosen = drawn(100, kind, count=2, most=7)
    (tmp_path / "jobs").write_bytes(pickle.dumps([job for job, _ in chosen]))
    legs = 1
    while process("leg", tmp_path, hash_seed=legs) == DIED:
        legs += 1
        assert legs < MOST_LEGS
    assert legs >= 4
    process("finish", tmp_path, hash_seed=0)
    for (_, expected), one in zip(chosen, continued(tmp_path), strict=True):
        assert one.story.ending.status is expected.ending.status
        assert not differs(one.story.ending.outputs, expected.ending.outputs)
        assert not differs(one.story.ending.state, expected.ending.state)
        assert not one.problems
