"""Checks of the arguments that users give a storage."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, microseconds
from holdfast.checkpoint.retention import EventRetention, Retention
from holdfast.engine.status import RunStatus
from holdfast.errors import InvalidArgument, RunNotFound, WrongType
from holdfast.ids import CheckpointId, RunId, complaint_about_id

_LONGEST_TAG = 200


def checked_tag(text: Any) -> str:
    """Return a tag; raise ``InvalidArgument`` if it is none."""
    if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_TAG:
        raise InvalidArgument(f"tag {text!r}: must be a text of 1 to {_LONGEST_TAG} characters")
    return text


def check_new_tag(text: Any) -> str:
    """Return a tag that is to be given; raise ``InvalidArgument`` if nobody could read it."""
    tag = checked_tag(text)
    if has_half_character(tag) or any(character < " " or character == "\x7f" for character in tag):
        raise InvalidArgument(f"tag {tag!r}: contains a character that cannot be shown; leave it out")
    return tag


def check_by(by: Any) -> str | None:
    """Return the name of whoever does something; raise ``InvalidArgument`` if it is none."""
    if by is not None and (not isinstance(by, str) or not by.strip() or len(by) > _LONGEST_TAG):
        raise InvalidArgument(
            f"by={by!r}: must be a text of 1 to {_LONGEST_TAG} characters that says who does this"
        )
    if by is not None and has_half_character(by):
        raise InvalidArgument(
            f"by={by!r}: must be a text of 1 to {_LONGEST_TAG} characters, and it contains half of one"
        )
    return by


def check_target(target_id: Any) -> str | None:
    """Return the id of the executor that a message is sent to; raise ``InvalidArgument`` if it is none."""
    if target_id is not None and (not isinstance(target_id, str) or has_half_character(target_id)):
        raise InvalidArgument(f"target_id={target_id!r}: must be the id of an executor")
    return target_id


def has_half_character(text: str) -> bool:
    """Return True for a text that UTF-8 cannot say, because it contains half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def check_key(key: Any) -> str | None:
    """Return the key of a message; raise ``InvalidArgument`` if it is none."""
    if key is not None and (not isinstance(key, str) or not key or len(key) > _LONGEST_TAG):
        raise InvalidArgument(f"key={key!r}: must be a text of 1 to {_LONGEST_TAG} characters")
    return key


def id_of_checkpoint(checkpoint: str | CheckpointInfo) -> CheckpointId:
    """Return the id of a checkpoint that is given as an id or as a checkpoint."""
    return (
        checkpoint.checkpoint_id if isinstance(checkpoint, CheckpointInfo) else checkpoint_id_of(checkpoint)
    )


def checkpoint_id_of(text: Any) -> CheckpointId:
    """Return a text as the id of a checkpoint; raise ``WrongType`` if it is no text."""
    if not isinstance(text, str):
        raise WrongType(f"a checkpoint is given by its id, a str, or as a CheckpointInfo, not as {text!r}")
    return CheckpointId(text)


def run_id_of(text: Any) -> RunId:
    """Return a text as the id of a run; raise ``InvalidArgument`` if it cannot be one."""
    if complaint := complaint_about_id(text):
        raise InvalidArgument(f"run id {text!r} {complaint}")
    return RunId(text)


def optional_run_id_of(text: Any) -> RunId | None:
    """Return a text as the id of a run, and None for None; raise ``InvalidArgument`` if it cannot be one."""
    return None if text is None else run_id_of(text)


def one_workflow_name(workflow_name: str | None, workflow_id: str | None) -> str | None:
    """Return the name of a workflow, given under either of two names; raise ``InvalidArgument`` if they differ."""
    if workflow_id is not None and workflow_name not in (None, workflow_id):
        raise InvalidArgument(
            f"workflow_name={workflow_name!r} and workflow_id={workflow_id!r} mean the same; give one of them"
        )
    return workflow_name or workflow_id


def run_not_found(run_id: str) -> RunNotFound:
    """Make the error for a run that is not there."""
    return RunNotFound(
        f"there is no run {run_id!r} in this storage; 'await storage.list_runs()' lists those that are there"
    )


def check_limit(limit: int | None) -> None:
    """Raise ``InvalidArgument`` unless the limit of a list is a positive int or None."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidArgument(f"limit={limit!r}: must be a whole number of at least 1, or None for all")


def status_of(status: RunStatus | str) -> RunStatus:
    """Return the status with this name; raise ``InvalidArgument`` if there is none."""
    try:
        return RunStatus(status)
    except ValueError:
        known = ", ".join(known.value for known in RunStatus)
        raise InvalidArgument(f"status={status!r}: there is no such status; there are: {known}") from None


def microseconds_of(name: str, time: Any) -> int | None:
    """Return a time that an argument gives, in microseconds since 1970, or None; it has to say its time zone."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise WrongType(f"{name}={time!r}: give a datetime with a time zone, like datetime.now(UTC), or None")
    if time.utcoffset() is None:
        raise InvalidArgument(
            f"{name}={time!r} has no time zone, so it could mean any hour of a day; "
            f"give one, like {name}=datetime({time.year}, {time.month}, {time.day}, tzinfo=UTC)"
        )
    return microseconds(time)


def check_text(text: Any) -> None:
    """Raise ``WrongType`` unless a text to look for is a str or None."""
    if text is not None and not isinstance(text, str):
        raise WrongType(f"text={text!r}: give the text to look for as a str, or None")


def checked_retention(retention: Retention | None) -> Retention | None:
    """Return a retention or None; raise ``WrongType`` for anything else."""
    if retention is not None and not isinstance(retention, Retention):
        raise WrongType(
            f"retention={retention!r}: give a Retention, like Retention.latest_only() or Retention.keep_last(10)"
        )
    return retention


def checked_event_retention(retention: Any) -> EventRetention:
    """Return a retention of events; raise ``WrongType`` for anything else."""
    if not isinstance(retention, EventRetention):
        raise WrongType(f"event_retention={retention!r}: give an EventRetention(checkpoints=..., age=...)")
    return retention


def check_progress(progress: Any) -> None:
    """Raise ``WrongType`` unless ``progress`` can be called or is None."""
    if progress is not None and not callable(progress):
        raise WrongType(
            f"progress={progress!r}: give a function of two numbers, how much is done and of how much"
        )


def check_flag(name: str, flag: Any) -> None:
    """Raise ``WrongType`` unless a flag is a bool."""
    if not isinstance(flag, bool):
        raise WrongType(f"{name}={flag!r}: must be True or False")


def checked_path(name: str, path: Any) -> str | os.PathLike[str]:
    """Return a path; raise ``WrongType`` if it is none."""
    if not isinstance(path, str | os.PathLike):
        raise WrongType(f"{name}={path!r}: give the path as a str or a Path, like 'runs.db'")
    return path
