"""Whether what users give a storage is what it takes."""

from __future__ import annotations

import os
from typing import Any

from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.retention import Retention
from holdfast.engine.status import RunStatus
from holdfast.errors import InvalidArgument, RunNotFound, WrongType
from holdfast.ids import CheckpointId, RunId, complaint_about_id

_LONGEST_TAG = 200


def checked_tag(text: Any) -> str:
    """A tag; raises ``InvalidArgument`` for what is none."""
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_TAG:
        raise InvalidArgument(f"tag {text!r}: must be a text of 1 to {_LONGEST_TAG} characters")
    return text


def id_of_checkpoint(checkpoint: str | CheckpointInfo) -> CheckpointId:
    """The id of a checkpoint that may be given by its id, or as one."""
    return (
        checkpoint.checkpoint_id if isinstance(checkpoint, CheckpointInfo) else checkpoint_id_of(checkpoint)
    )


def checkpoint_id_of(text: Any) -> CheckpointId:
    """The id of a checkpoint, if it can be one."""
    if not isinstance(text, str):
        raise WrongType(f"a checkpoint is given by its id, a str, or as a CheckpointInfo, not as {text!r}")
    return CheckpointId(text)


def run_id_of(text: Any) -> RunId:
    """The id of a run, if it can be one."""
    if complaint := complaint_about_id(text):
        raise InvalidArgument(f"run id {text!r} {complaint}")
    return RunId(text)


def no_run(run_id: str) -> RunNotFound:
    """What is said of a run that is not there."""
    return RunNotFound(
        f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
    )


def check_limit(limit: int | None) -> None:
    """Refuse what is no limit of a list."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidArgument(f"limit={limit!r}: must be a whole number of at least 1, or None for all")


def status_of(status: RunStatus | str) -> RunStatus:
    """The status that is meant."""
    try:
        return RunStatus(status)
    except ValueError:
        known = ", ".join(known.value for known in RunStatus)
        raise InvalidArgument(f"status={status!r}: there is no such status; there are: {known}") from None


def checked_retention(retention: Retention | None) -> Retention | None:
    """A retention, if it is one."""
    if retention is not None and not isinstance(retention, Retention):
        raise WrongType(
            f"retention={retention!r}: give a Retention, like Retention.latest_only() or Retention.keep_last(10)"
        )
    return retention


def check_progress(progress: Any) -> None:
    """Refuse what cannot be told how far something is."""
    if progress is not None and not callable(progress):
        raise WrongType(
            f"progress={progress!r}: give a function of two numbers, how much is done and of how much"
        )


def check_flag(name: str, flag: Any) -> None:
    """Refuse what is no yes or no."""
    if not isinstance(flag, bool):
        raise WrongType(f"{name}={flag!r}: must be True or False")


def checked_path(name: str, path: Any) -> str | os.PathLike[str]:
    """A path, if it is one."""
    if not isinstance(path, str | os.PathLike):
        raise WrongType(f"{name}={path!r}: give the path as a str or a Path, like 'runs.db'")
    return path
