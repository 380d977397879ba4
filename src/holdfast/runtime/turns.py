"""Running the turns of one superstep: one is awaited directly, several run as tasks."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine.routing import brief
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Outcome, Turn
from holdfast.errors import WrongType
from holdfast.graph.executor import Executor, ExecutorSpec
from holdfast.graph.types import type_name
from holdfast.ids import ExecutorId
from holdfast.runtime.context import Surroundings, TurnContext
from holdfast.runtime.events import WorkflowEvent


class Placed(NamedTuple):
    """An executor of a run: its spec and the instance that serves this run."""

    spec: ExecutorSpec
    instance: Executor


class Finished(NamedTuple):
    """A turn that is over: what it produced, or why it did not, and the events it added."""

    turn: Turn
    outcome: Outcome | None
    error: Exception | None
    events: Sequence[WorkflowEvent]


RunOne: TypeAlias = Callable[[Turn, Snapshot], Coroutine[Any, Any, Finished]]


class Turns:
    """Runs turns for one run."""

    def __init__(self, around: Surroundings, executors: dict[ExecutorId, Placed]) -> None:
        self._around = around
        self._executors = executors

    async def run(
        self, turns: Sequence[Turn], snapshot: Snapshot, report: Callable[[Finished], None]
    ) -> list[Finished]:
        """Run all turns, side by side; a turn that fails does not keep the others from finishing.

        They are returned, and reported on the way, in the order of the plan: each as soon as it and all before
        it are over. So the order never depends on which of them was faster.
        """
        if len(turns) == 1:
            finished = await self._run_one(turns[0], snapshot)
            report(finished)
            return [finished]
        limit = self._around.limits.max_concurrent_turns
        run_one = self._run_one if len(turns) <= limit else _limited(self._run_one, asyncio.Semaphore(limit))
        tasks = [asyncio.create_task(run_one(turn, snapshot)) for turn in turns]
        try:
            for task in tasks:
                report(await task)
        finally:
            await _end(tasks)
        return [task.result() for task in tasks]

    async def _run_one(self, turn: Turn, snapshot: Snapshot) -> Finished:
        context = TurnContext(self._around, turn.executor_id, snapshot)
        spec, instance = self._executors[turn.executor_id]
        try:
            for delivery in turn.deliveries:
                message = delivery.value.load()
                handler = spec.dispatch.find(message)
                if handler is None:
                    raise _nobody_for(message, spec)
                method = getattr(instance, handler.name)
                signed = handler.signed
                if not signed.is_async:
                    result = await _in_thread(method, message)
                elif signed.takes_context:
                    result = await method(message, context)
                else:
                    result = await method(message)
                if result is not None:
                    context.returned(result)
            return Finished(turn, context.outcome(), None, context.events)
        except Exception as error:
            return Finished(turn, None, error, context.events)


def _limited(run_one: RunOne, places: asyncio.Semaphore) -> RunOne:
    async def run_in_place(turn: Turn, snapshot: Snapshot) -> Finished:
        async with places:
            return await run_one(turn, snapshot)

    return run_in_place


async def _in_thread(method: Callable[[Any], Any], message: object) -> Any:
    def call() -> Any:
        try:
            return method(message)
        except StopIteration as error:  # a future cannot carry it: waiting for it would never end
            raise RuntimeError("the function raised StopIteration") from error

    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, contextvars.copy_context().run, call)


def _nobody_for(message: object, spec: ExecutorSpec) -> WrongType:
    takes = " or ".join(type_name(form) for form in spec.accepts)
    hint = "; a fan-in delivers a list" if isinstance(message, list) else ""
    return WrongType(f"executor {spec.id!r} takes {takes}, but got the message {brief(message)}{hint}")


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and wait for it, so that no task outlives its superstep."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
