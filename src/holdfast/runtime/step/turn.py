"""The turns of one superstep: a single one is awaited directly, several run as tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.events.events import ExecutorFailedEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.engine._fast import make_tuple
from holdfast.engine.message import Request
from holdfast.engine.router import brief, message_of
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Outcome, Turn
from holdfast.errors import ExecutorTimeout, GraphError, RunTaken, WrongType
from holdfast.graph.context import RequestExpired
from holdfast.graph.executor import Executor
from holdfast.graph.handler import Handler
from holdfast.graph.typing.types import type_name
from holdfast.ids import ExecutorId
from holdfast.log_fields import log_fields
from holdfast.runtime._async import run_in_thread
from holdfast.runtime.step.context import TurnContext, TurnServices
from holdfast.runtime.step.effects import Asleep
from holdfast.runtime.step.executors import PlacedExecutor
from holdfast.runtime.step.fields import copy_fields, restore_fields


class FinishedTurn(NamedTuple):
    """A turn that is over: its outcome or its error, and the events that it added."""

    turn: Turn
    outcome: Outcome | None
    error: BaseException | None
    events: Sequence[WorkflowEvent]
    attempt: int = 1
    replayed: bool = False
    """True if the journal had it: it was over before the run was resumed."""
    asleep_until: int | None = None
    """The time at which its handler is called again, if it sleeps."""


class FinishedTurns(NamedTuple):
    """All turns of a superstep, each with the number of its stored events, and the events that are stored with them.

    Those of the turns come first, in their order.
    """

    ended: Sequence[tuple[ExecutorId, int]]
    happened: Sequence[WorkflowEvent]


# Errors for the whole program, or for the coroutine itself, not for one run.
_PASSING = (KeyboardInterrupt, SystemExit, GeneratorExit)

RunOne: TypeAlias = Callable[[Turn, Snapshot], Coroutine[Any, Any, FinishedTurn]]


class TurnRunner:
    """Runs the turns of one run; ``find`` gives the executor at an address."""

    def __init__(self, run: TurnServices, find: Callable[[ExecutorId], PlacedExecutor]) -> None:
        self._run = run
        self._find = find
        self._note = run.note_turn
        self._tasks: list[asyncio.Task[FinishedTurn]] = []
        self.stopping = False
        """True if the turns under way were cancelled."""

    def stop(self) -> None:
        """Cancel the turns under way; what they do from now on does not count."""
        self.stopping = True
        for task in self._tasks:
            task.cancel()

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Return True if a task is that of one of several turns under way."""
        return task in self._tasks

    async def run_all(
        self, turns: Sequence[Turn], snapshot: Snapshot, report: Callable[[Sequence[FinishedTurn]], None]
    ) -> tuple[list[FinishedTurn], int]:
        """Run all turns, side by side; a turn that fails does not keep the others from finishing.

        They are returned, and reported on the way, in the order of the plan: each as soon as it and all before
        it are over. So the order never depends on which of them was faster. Also returns how many were reported:
        the others ended last, and what they ended with can be told together with what comes of it.
        """
        limit = self._run.limits.max_concurrent_turns
        run_one: RunOne = self.run_one if self._note is None else self._run_and_note
        if len(turns) > limit:
            run_one = _limited(run_one, asyncio.Semaphore(limit))
        tasks = self._tasks = [asyncio.create_task(run_one(turn, snapshot)) for turn in turns]
        finished: list[FinishedTurn] = []
        reported = 0
        try:
            for task in tasks:
                if not task.done() and len(finished) > reported:
                    report(finished[reported:])
                    reported = len(finished)
                finished.append(await task)
        finally:
            await _end(tasks)
            self._tasks = []
        return finished, reported

    async def _run_and_note(self, turn: Turn, snapshot: Snapshot) -> FinishedTurn:
        finished = await self.run_one(turn, snapshot)
        if finished.outcome is not None and self._note is not None:
            self._note(finished)
        return finished

    async def run_one(self, turn: Turn, snapshot: Snapshot, cancelled: int = 0) -> FinishedTurn:
        """Run a turn, again if its policy says so; before another attempt the executor is as it was.

        ``cancelled`` is how often its task was cancelled before, by handlers that did not take it back.
        """
        log_fields.set((self._run.run_id, self._run.workflow.name, turn.executor_id))
        try:
            placed = self._find(turn.executor_id)
            if placed.to_reset:
                await _reset(placed)
            if placed.to_restore:
                await self.restore(placed, snapshot)
        except Exception as error:  # of its constructor or its reset, or because another run holds it
            return FinishedTurn(turn, None, error, ())
        spec, watch = placed.spec, placed.watch
        fields = copy_fields(placed.instance) if spec.retries and not spec.shareable else None
        attempt = 1
        while True:
            context = TurnContext(self._run, placed, snapshot, attempt)
            handler: Handler | None = None
            try:
                noted = watch.note() if watch is not None else None
                for delivery in turn.deliveries:
                    context.message_number += 1
                    _, value, context.source, request = delivery
                    message = value.load()
                    if request is not None and context.source is not None:
                        message, request = message_of(request), None
                    handler = spec.dispatch.find(message) if request is None else None
                    handler = handler or find_handler(placed, message, request)
                    name, signed, (_, timeout) = handler
                    if signed.takes_context and request is None:
                        call = getattr(placed.instance, name)(message, context)
                    else:
                        call = call_handler(placed.instance, handler, message, request, context)
                    result = await (call if timeout is None else _in_time(call, placed, handler, timeout))
                    if self.stopping:  # the handler kept the cancellation to itself
                        raise asyncio.CancelledError
                    if context.asleep is not None:  # or that it sleeps
                        raise context.asleep
                    if result is not None:
                        context.returned(result)
                if spec.keeps:
                    await _keep_fields(placed, context)
                if spec.watched:
                    for warning in placed.unkept_changes(noted):
                        context.tell(WorkflowWarningEvent(warning, placed.address))
                outcome = context.outcome()
                return make_tuple(FinishedTurn, (turn, outcome, None, context.events, attempt, False, None))
            except Asleep as asleep:
                return FinishedTurn(turn, None, None, (), attempt, False, asleep.until)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if self.stopping or task is None or task.cancelling() > cancelled:
                    raise
                # Nobody cancelled the turn: something that it awaited was cancelled, so the turn failed.
                return FinishedTurn(turn, None, error, context.events, attempt)
            except _PASSING:
                raise
            except BaseException as error:
                if self.stopping:
                    raise asyncio.CancelledError from error
                failed = self._failed(turn, context, attempt, error)
                wait = None if failed.error is None else self._wait(handler, attempt, error)
                if wait is None:
                    return failed
                again = ExecutorFailedEvent(turn.executor_id, error, attempt, provisional=True)
                self._run.emit([again])
            await asyncio.sleep(wait)
            if fields is not None:
                restore_fields(placed.instance, fields)
            attempt += 1

    async def restore(self, placed: PlacedExecutor, snapshot: Snapshot) -> None:
        """Give an executor the fields that it had at the last barrier, before its first turn after a resume."""
        placed.to_restore = False
        context = TurnContext(self._run, placed, snapshot, 0)
        for name in await context.kept_fields():
            setattr(placed.instance, name, await context.kept_field(name))
        before = log_fields.set((self._run.run_id, self._run.workflow.name, placed.address))
        try:
            await placed.instance.on_checkpoint_restored(context)
        except Exception as error:
            error.add_note(f"in on_checkpoint_restored() of executor {placed.address!r}")
            raise
        finally:
            log_fields.reset(before)
        context.close_restored()

    def _failed(self, turn: Turn, context: TurnContext, attempt: int, error: BaseException) -> FinishedTurn:
        """Return a turn whose handler raised; one that slept is tried anew, though its cleaning up failed."""
        if context.asleep is not None:
            return FinishedTurn(turn, None, None, (), attempt, False, context.asleep.until)
        context.close()
        return FinishedTurn(turn, None, error, context.events, attempt)

    def _wait(self, handler: Handler | None, attempt: int, error: BaseException) -> float | None:
        """Return the seconds until the next attempt, or None if there is none."""
        retry = handler.policy.retry if handler is not None and not isinstance(error, RunTaken) else None
        try:
            if retry is None or not isinstance(error, Exception) or not retry.allows(attempt, error):
                return None
        except Exception as problem:  # the user's retry_on
            error.add_note(f"it was not tried again, because retry_on raised {problem!r}")
            return None
        return retry.wait_after(attempt, self._run.environment.chance())


def _limited(run_one: RunOne, places: asyncio.Semaphore) -> RunOne:
    async def run_in_place(turn: Turn, snapshot: Snapshot) -> FinishedTurn:
        async with places:
            return await run_one(turn, snapshot)

    return run_in_place


async def _reset(placed: PlacedExecutor) -> None:
    """Let an instance forget its last run, before its first turn in another."""
    try:
        result = placed.instance.reset()  # type: ignore[attr-defined]
        if isawaitable(result):
            await result
    except Exception as error:
        error.add_note(f"in reset() of executor {placed.address!r}")
        raise
    placed.to_reset = False


def find_handler(placed: PlacedExecutor, message: object, request: Request | None) -> Handler:
    """Return the handler for a message, or for the response to a request; raise ``WrongType`` if there is none."""
    spec = placed.spec
    if request is not None:
        expired = request.expiry is not None and isinstance(message, RequestExpired)
        form = RequestExpired if expired else request.response_type
        handler = spec.answerer(request.data.peek(), form)
    else:
        handler = spec.dispatch.find(message)
    if handler is None:
        takes = " or ".join(type_name(form) for form in spec.accepts)
        hint = "; a fan-in delivers a list" if isinstance(message, list) else ""
        raise WrongType(
            f"executor {placed.address!r} takes {takes}, but got the message {brief(message)}{hint}"
        )
    return handler


async def _in_time(call: Awaitable[Any], placed: PlacedExecutor, handler: Handler, seconds: float) -> Any:
    """Return the result of a call to a handler, if it comes in time."""
    cause: TimeoutError | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            result = await call
        if not limit.expired():  # else the handler kept its cancellation to itself
            return result
    except TimeoutError as error:
        if not limit.expired():
            raise
        cause = error
    raise ExecutorTimeout(
        f"executor {placed.address!r} took longer than {seconds:g} s for a message (in {handler.name!r})"
    ) from cause


def call_handler(
    instance: Executor, handler: Handler, message: object, request: Request | None, context: TurnContext
) -> Awaitable[Any]:
    """Call the handler with what it takes; sync ones run in a thread."""
    method: Callable[..., Awaitable[Any]] = getattr(instance, handler.name)
    signed = handler.signature
    if not signed.is_async:
        return run_in_thread(method, (message,) if request is None else (request.data.load(), message))
    if request is not None:
        method = partial(method, request.data.load())
    return method(message, context) if signed.takes_context else method(message)


async def _keep_fields(placed: PlacedExecutor, context: TurnContext) -> None:
    """Keep the declared fields at the end of a turn, then let the executor keep what it wants."""
    instance = placed.instance
    for name in instance.checkpointed:
        if name not in vars(instance):
            raise GraphError(
                f"executor {placed.address!r} declares the field {name!r} as checkpointed, but has none"
            )
        context.keep_field(name, vars(instance)[name])
    if placed.spec.hooked:
        context.note_hook()
        await instance.on_checkpointing(context)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and wait for it, so that no task outlives its superstep."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        if not task.cancelling():
            task.cancel()
    if running:
        await asyncio.wait(running)
