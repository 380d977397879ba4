"""The errors and warnings of a run in words, and stored turns and requests as watchers see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.checkpoint.events.events import PendingRequest, WorkflowEvent, WorkflowWarningEvent, warning_of
from holdfast.engine.message import Request, Unrouted
from holdfast.engine.router import brief
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Turn, WaitingJoin
from holdfast.engine.value import Value
from holdfast.errors import ExecutorFailed, SuperstepLimit, UnroutedMessage, WaitingFanIn
from holdfast.graph.graph import Graph
from holdfast.graph.typing.match import show_value
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.step.executors import PlacedExecutor
from holdfast.runtime.step.turn import FinishedTurn
from holdfast.runtime.times import as_time

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.journal import Journaled


def describe_failure(
    failed: Sequence[FinishedTurn], run_id: RunId, superstep: int, started: CheckpointInfo | None
) -> ExecutorFailed:
    """Return the error of a superstep: that of the first turn that failed, with a note for each other."""
    first = failed[0]
    executor_id = first.turn.executor_id
    tried = f", after {first.attempt} attempts" if first.attempt > 1 else ""
    error = ExecutorFailed(
        f"executor {executor_id!r} failed in superstep {superstep} of run {run_id}{tried}: "
        f"{show_value(first.error, 1_000)}",
        executor_id=executor_id,
        superstep=superstep,
        run_id=run_id,
        checkpoint=started,
    )
    error.__cause__ = first.error
    for other in failed[1:]:
        error.add_note(f"executor {other.turn.executor_id!r} failed too: {show_value(other.error, 1_000)}")
    return error


def describe_restore_failure(
    placed: PlacedExecutor, error: Exception, run_id: RunId, superstep: int, started: CheckpointInfo | None
) -> ExecutorFailed:
    """Return the error for an executor that could not be restored."""
    return ExecutorFailed(
        f"executor {placed.address!r} could not be restored in run {run_id}: {show_value(error, 1_000)}",
        executor_id=placed.address,
        superstep=superstep,
        run_id=run_id,
        checkpoint=started,
    )


def describe_superstep_limit(snapshot: Snapshot, max_iterations: int) -> SuperstepLimit:
    """Return the error for a run that takes too many supersteps."""
    targets = ", ".join(sorted({repr(str(d.target)) for d in snapshot.deliveries}))
    return SuperstepLimit(
        "max_iterations",
        max_iterations,
        f"the run took {max_iterations} supersteps since its last input and still has messages for "
        f"{targets}; if this is no endless loop, allow more with WorkflowBuilder(max_iterations=...)",
    )


def warn_of_unrouted(graph: Graph, message: Unrouted) -> UnroutedMessage:
    """Return the warning for a message that no edge took."""
    value, only = message.sent
    inside, _, spec = graph.locate(message.source)
    targets = [target for edge in inside.outgoing[spec.id] for target in edge.targets]
    tried = ", ".join(repr(str(target)) for target in dict.fromkeys(targets))
    if only is not None:
        reason = f"it was sent to {only!r}, but the edge there did not take it"
    elif targets:
        reason = f"none of its edges (to {tried}) took it"
    else:
        reason = "it has no outgoing edges"
    return UnroutedMessage(
        f"executor {message.source!r} sent {brief(value.peek())}, which reaches nobody: {reason}; "
        f"add an edge to an executor that takes it, or yield_output it"
    )


def warn_of_waiting_fan_in(join: WaitingJoin) -> WaitingFanIn:
    """Return the warning for a fan-in that holds messages while nothing is left that could bring the others."""
    key, missing = join
    listed = ", ".join(repr(str(source)) for source in missing)
    inside = f" of nested workflow {key.path[:-1]!r}" if key.path else ""
    return WaitingFanIn(
        f"the run waits for messages: fan-in {key.fan_in}{inside} holds some and still needs one of {listed}, but "
        f"nothing is left to do that could send it; a fan-in delivers once each of its sources has sent something"
    )


def show_request(request: Request) -> PendingRequest:
    """Return a request in the form for those who answer it."""
    expires = None if request.expiry is None else as_time(request.expiry.at)
    return PendingRequest(
        request.request_id, request.data.load(), request.response_type, request.executor_id, expires
    )


def replay_turn(turn: Journaled) -> FinishedTurn:
    """Return a turn of the journal in the form that it had when it was over."""
    outcome = turn.outcome
    events = [_restore_event(executor_id, told) for executor_id, told in turn.events]
    return FinishedTurn(Turn(outcome.executor_id, ()), outcome, None, events, turn.attempt, True)


def _restore_event(executor_id: ExecutorId | None, told: Value | tuple[str, str]) -> WorkflowEvent:
    if not isinstance(told, tuple):
        event: WorkflowEvent = told.load()
        return event
    return WorkflowWarningEvent(warning_of(*told), executor_id)


# Of an error that goes deep, the beginning and the end say most.
_LONGEST_TRACEBACK = 8_000
_LONGEST_MESSAGE = 1_000
_MOST_FRAMES = 40
_MOST_ERRORS = 10


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error and of those that led to it, for people who look at the run later.

    It names files, lines and functions, and has the messages of the errors: no lines of code, and no values of
    variables, which may be secret. Frames of Holdfast itself are left out where others say more.

    >>> try:
    ...     int("x")
    ... except ValueError as error:
    ...     print(traceback_text(error))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      File "<doctest ...>", line 2, in <module>
    ValueError: invalid literal for int() with base 10: 'x'
    """
    text = "\n".join(_lines_of(error, set()))
    if len(text) <= _LONGEST_TRACEBACK:
        return text
    half = (_LONGEST_TRACEBACK - 20) // 2
    return f"{text[:half]}\n  ... cut ...\n{text[-half:]}"


def _lines_of(error: BaseException, seen: set[int]) -> list[str]:
    if id(error) in seen or len(seen) >= _MOST_ERRORS:
        return [f"(further errors: {type(error).__name__})"]
    seen.add(id(error))
    lines: list[str] = []
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None:
        lines += [*_lines_of(earlier, seen), "", "which led to:" if error.__cause__ else "and then:", ""]
    frames = _frames_of(error, is_first=earlier is None)
    lines += ["Traceback (most recent call last):", *frames] if frames else []
    lines.append(_message_of(error))
    lines += [_cut(note) for note in getattr(error, "__notes__", ())[:_MOST_ERRORS] if isinstance(note, str)]
    if isinstance(error, BaseExceptionGroup):
        for number, part in enumerate(error.exceptions, 1):
            lines.append(f"  error {number} of {len(error.exceptions)}:")
            lines += [f"    {line}" for line in _lines_of(part, seen)]
            if len(seen) >= _MOST_ERRORS:
                break
    return lines


def _frames_of(error: BaseException, is_first: bool) -> list[str]:
    places: list[tuple[str, str]] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        code = frame.f_code
        place = f'  File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_name}'
        places.append((str(frame.f_globals.get("__name__", "")), place))
        traceback = traceback.tb_next
    others = [place for module, place in places if module.partition(".")[0] != "holdfast"]
    lines = others or [place for _, place in places if is_first]
    if len(lines) <= _MOST_FRAMES:
        return lines
    left_out = f"  ... {len(lines) - _MOST_FRAMES} more ..."
    return [*lines[: _MOST_FRAMES // 2], left_out, *lines[-_MOST_FRAMES // 2 :]]


def _message_of(error: BaseException) -> str:
    name = type(error).__qualname__
    try:
        message = str(error)
    except Exception:  # of a class of the user's
        message = "(it has no text)"
    return _cut(f"{name}: {message}" if message else name)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."
