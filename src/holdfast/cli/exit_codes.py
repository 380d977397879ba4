"""The exit codes of the command."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from holdfast.errors import (
    CheckpointCorrupt,
    ExecutorFailed,
    GraphChanged,
    HoldfastError,
    RunPoisoned,
    StoreDamaged,
    UnknownType,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.run_info import RunInfo


class ExitCode(IntEnum):
    """The code with which the command ends; docs/reference/command.md describes them.

    >>> ExitCode.WAITING.value
    3
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    RUN_FAILED = 4
    NOT_FOUND = 5
    TAKEN = 6
    DAMAGED = 7
    INCOMPATIBLE = 8
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class CommandError(HoldfastError):
    """A command cannot do what it was asked; ``code`` is its exit code.

    >>> CommandError("nothing was removed", ExitCode.USAGE).code
    <ExitCode.USAGE: 2>
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        self.code = code
        super().__init__(message)


# Classes whose code says more than their kind.
_CODES_OF_CLASSES: tuple[tuple[type[HoldfastError], ExitCode], ...] = (
    (CheckpointCorrupt, ExitCode.DAMAGED),
    (StoreDamaged, ExitCode.DAMAGED),
    (GraphChanged, ExitCode.INCOMPATIBLE),
    (UnknownType, ExitCode.INCOMPATIBLE),
    (ExecutorFailed, ExitCode.RUN_FAILED),
    (RunPoisoned, ExitCode.RUN_FAILED),
)
_CODES_OF_KINDS = {
    "not_found": ExitCode.NOT_FOUND,
    "conflict": ExitCode.TAKEN,
    "invalid": ExitCode.USAGE,
}


def exit_code_of(error: HoldfastError) -> ExitCode:
    """Return the code for an error.

    >>> from holdfast import RunNotFound
    >>> exit_code_of(RunNotFound("no run 'r1'"))
    <ExitCode.NOT_FOUND: 5>
    """
    if isinstance(error, CommandError):
        return error.code
    for cls, code in _CODES_OF_CLASSES:
        if isinstance(error, cls):
            return code
    return _CODES_OF_KINDS.get(error.kind, ExitCode.FAILED)


def exit_code_of_run(run: RunInfo) -> ExitCode:
    """Return the code that tells how a run stands, for commands that stay with it until it rests."""
    from holdfast.engine.status import RunStatus

    if run.status is RunStatus.FAILED:
        return ExitCode.RUN_FAILED
    if run.status is RunStatus.WAITING and "answers" in run.waiting_for:
        return ExitCode.WAITING
    return ExitCode.FAILED if run.status in (RunStatus.CANCELLED, RunStatus.STOPPED) else ExitCode.OK
