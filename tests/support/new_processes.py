"""Runs that die with their process right after a commit, and others that go on with them.

A process calls one of four functions with a folder in which jobs lie: ``die`` lets a child die after each commit of
each job, ``resume`` goes on with all of them; ``leg`` takes each one commit further, and ``finish`` ends them.
"""

import asyncio
import os
import pickle
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import (
    CheckpointInfo,
    CheckpointStorage,
    FileCheckpointStorage,
    Run,
    RunNotFound,
    SqliteCheckpointStorage,
    Store,
)
from tests.support.going_on import Story, lived, matches_the_store
from tests.support.inside import introduce
from tests.support.living import Living, answer
from tests.support.parts import Commit, Letter

RUN = "run"
DIED = 7
"""What a process exits with that died as it was told to."""
NEVER = 10**9


class Job(NamedTuple):
    """A run that is to be interrupted."""

    name: str
    kind: str
    living: Living
    message: int
    manner: str

    def storage(self, folder: Path, what: str) -> CheckpointStorage:
        path = folder / f"{self.name}-{what}"
        return SqliteCheckpointStorage(path) if self.kind == "sqlite" else FileCheckpointStorage(path)


class Continued(NamedTuple):
    """What came of a run in another process, and the checkpoint that it went on from."""

    job: str
    how: str
    start: CheckpointInfo
    story: Story
    problems: list[Any]


class Deadly:
    """A store with which the whole process ends, right after a number of commits, or of those that move the run."""

    def __init__(self, store: Store, commits: int, moving: bool = False) -> None:
        self._inner = store
        self._left = commits
        self._moving = moving

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        waiting = await self._inner.commit(commit)
        self._left -= bool(commit.records) or not self._moving
        if not self._left:
            os._exit(DIED)
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def jobs_in(folder: Path) -> list[Job]:
    jobs: list[Job] = pickle.loads((folder / "jobs").read_bytes())
    return jobs


def in_child(make: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Do something in a child of this process; whether it died as it was told to."""
    child = os.fork()
    if not child:
        try:
            asyncio.run(make())
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, DIED):
        raise RuntimeError(f"the child ended with {code}")
    return code == DIED


async def start(job: Job, folder: Path, commits: int) -> None:
    """Run until the process dies, or to the end."""
    async with job.storage(folder, str(commits) if commits != NEVER else "whole") as storage:
        storage.catalog.store = Deadly(storage.catalog.store, commits)
        run = await job.living.build().start(job.message, run_id=RUN, storage=storage)
        await lived(run, answer, job.manner)


def die(folder: Path) -> None:
    """Let a process die after each commit of each job, and one come to its end."""
    for job in jobs_in(folder):
        commits = 1
        while in_child(lambda job=job, commits=commits: start(job, folder, commits)):  # type: ignore[misc]
            commits += 1
        in_child(lambda job=job: start(job, folder, NEVER))  # type: ignore[misc]


async def continued(job: Job, how: str, run: Run, start: CheckpointInfo, at: CheckpointStorage) -> Continued:
    story = await lived(run, answer, job.manner)
    await matches_the_store(run, at)
    return Continued(job.name, how, start, story, list((await at.verify()).problems))


async def _resumed(job: Job, folder: Path, stops: list[str]) -> list[Continued]:
    found: list[Continued] = []
    for stopped in stops:
        async with job.storage(folder, stopped) as storage:
            latest = await storage.get_latest(run_id=RUN)
            assert latest is not None
            assert (await storage.list_runs())[0].interrupted == (latest.status == "running")
            run = await job.living.build().resume(run_id=RUN, storage=storage)
            found.append(await continued(job, f"stopped after commit {stopped}", run, latest.info, storage))
    async with job.storage(folder, "whole") as storage:
        introduce(job.living.build(), storage)  # so that its types are known
        for checkpoint in await storage.list_checkpoints(run_id=RUN):
            back = await job.living.build().resume(checkpoint.checkpoint_id, storage=storage)
            how = f"back at checkpoint {checkpoint.seq}"
            found.append(await continued(job, how, back, checkpoint.info, storage))
    return found


def resume(folder: Path) -> None:
    """Go on with all that died, and from each checkpoint of those that did not."""
    found: list[Continued] = []
    for job in jobs_in(folder):
        stops = [path.name.rpartition("-")[2] for path in sorted(folder.glob(f"{job.name}-*[0-9]"))]
        found += asyncio.run(_resumed(job, folder, stops))
    (folder / "continued").write_bytes(pickle.dumps(found))


async def go_on(job: Job, folder: Path, commits: int) -> Continued:
    """Start or go on with a run."""
    async with job.storage(folder, "relay") as storage:
        # Taking the run over is a commit too; who dies right after it has not taken the run any further.
        storage.catalog.store = Deadly(storage.catalog.store, commits, moving=True)
        workflow = job.living.build()
        try:
            run = await workflow.resume(run_id=RUN, storage=storage)
        except RunNotFound:
            run = await workflow.start(job.message, run_id=RUN, storage=storage)
        latest = await storage.get_latest(run_id=RUN)
        assert latest is not None
        return await continued(job, "relay", run, latest.info, storage)


async def _leg(job: Job, folder: Path) -> None:
    await go_on(job, folder, 1)


def leg(folder: Path) -> None:
    """Take each run one commit further; exit with ``DIED`` if there may be more to do."""
    on = [in_child(lambda job=job: _leg(job, folder)) for job in jobs_in(folder)]  # type: ignore[misc]
    sys.exit(DIED if any(on) else 0)


def finish(folder: Path) -> None:
    """What came of all runs of a relay."""
    found = [asyncio.run(go_on(job, folder, NEVER)) for job in jobs_in(folder)]
    (folder / "continued").write_bytes(pickle.dumps(found))
