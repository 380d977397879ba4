"""The private parts of a run that tests look at or bend, in one place."""

import asyncio

from holdfast import CheckpointStorage, Run, Workflow
from holdfast.checkpoint.write.log import RunLog
from holdfast.runtime.durable.recorder import Recorder
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.step.runner import Runner


def runner_of(run: Run) -> Runner:
    """The part that drives a run."""
    return run._lifecycle.runner


def recorder_of(run: Run) -> Recorder:
    """The part that makes a stored run durable."""
    recorder = runner_of(run).recorder
    assert recorder is not None
    return recorder


def log_of(run: Run) -> RunLog:
    """The commits of a stored run."""
    return recorder_of(run)._log


def events_in(run: Run) -> EventLog:
    """The events of a run."""
    return run._lifecycle.log


def task_of(run: Run) -> asyncio.Task[None]:
    """The task in which a run moves, or moved last."""
    assert run._lifecycle.task is not None
    return run._lifecycle.task


def never_wake(run: Run) -> None:
    """Let a run that waits sleep on when its time has come."""
    run._waker.turn_off()


def seen_by(run: Run) -> int:
    """The number of checkpoints that a run remembers, kept or not."""
    return recorder_of(run)._trail.size


def introduce(workflow: Workflow, storage: CheckpointStorage) -> None:
    """Let a storage know the types of a workflow, as a run of it would."""
    workflow._stored_runs(storage)
