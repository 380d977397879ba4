"""Whether everything stored is what was stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.checkpoint.maintenance.problems import Problem, VerifyReport
from holdfast.checkpoint.maintenance.run_check import RunCheck, plainly
from holdfast.checkpoint.progress import Progress, Steps
from holdfast.checkpoint.read.loading import Blobs
from holdfast.checkpoint.store import Head, RunQuery, Store
from holdfast.errors import CheckpointCorrupt, HoldfastError, RunNotFound
from holdfast.ids import RunId

LOOKS = 3
"""How often a run is looked at before what is found wrong with it is believed."""


async def verify_store(
    store: Store, blobs_of: Callable[[RunId], Blobs], run_id: RunId | None, progress: Progress | None
) -> VerifyReport:
    """Check a run, or all, and how the store keeps them; what cannot be read at all is a problem, too."""
    report = VerifyReport()
    try:
        heads = await store.runs(RunQuery()) if run_id is None else await heads_of(store, run_id)
        report = await verified(store, heads, blobs_of, progress, LOOKS)
    except RunNotFound:
        raise
    except HoldfastError as error:
        report.problems.append(Problem(None, None, str(error)))
    try:
        damages = await store.inspect(run_id)
    except HoldfastError as error:
        told = Problem(None, None, str(error))
        report.problems += [told] if told not in report.problems else []
    else:
        report.problems += [
            Problem(damage.run_id, None, damage.what, damage.seq)
            for damage in damages
            if run_id is None or damage.run_id in (None, run_id)
        ]
    return report


async def heads_of(store: Store, run_id: RunId) -> list[Head]:
    """The head of a run, none if it is damaged; raises ``RunNotFound`` where nothing is left of such a run."""
    try:
        head = await store.head(run_id)
    except CheckpointCorrupt:  # told by ``inspect``
        return []
    if head is None and not any(damage.run_id == run_id for damage in await store.inspect(run_id)):
        raise RunNotFound(
            f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
        )
    return [] if head is None else [head]


async def verified(
    store: Store,
    heads: Sequence[Head],
    blobs_of: Callable[[RunId], Blobs],
    progress: Progress | None = None,
    looks: int = 1,
) -> VerifyReport:
    """Check runs: every id, every chain of parents, every keyframe and every blob.

    With several ``looks``, what is wrong with a run is what is found wrong each time: it may move on meanwhile, or go.
    """
    report = VerifyReport()
    steps = Steps(progress)
    steps.more(sum(head.seq for head in heads))
    for head in heads:
        of_run = await _verified_run(store, head, blobs_of(head.family), steps)
        for _ in range(looks - 1):
            if of_run.ok:
                break
            try:
                latest = await store.head(head.run_id)
            except CheckpointCorrupt:  # told by ``inspect``
                break
            if latest is None:  # it was removed meanwhile, and so was what seemed to be missing
                of_run = VerifyReport()
                break
            again = await _verified_run(store, latest, blobs_of(latest.family), Steps(None))
            again.problems = [problem for problem in again.problems if problem in of_run.problems]
            of_run = again
        report.runs += of_run.runs
        report.checkpoints += of_run.checkpoints
        report.blobs += of_run.blobs
        report.problems += of_run.problems
    return report


async def _verified_run(store: Store, head: Head, blobs: Blobs, steps: Steps) -> VerifyReport:
    report = VerifyReport(runs=1)
    run = RunCheck(store, head, blobs, report)
    try:
        await run.all(steps)
    except HoldfastError as error:
        run.wrong(None, plainly(error))
    return report
