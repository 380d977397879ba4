"""The loop that takes a run from superstep to superstep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.engine.limits import Limits
from holdfast.engine.snapshot import Snapshot, status_at_rest, with_expiries
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import find_waiting_joins, plan
from holdfast.engine.value import Captor
from holdfast.errors import ExecutorFailed
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime._async import weak_callback
from holdfast.runtime.durable.journal import Journal, sleepers
from holdfast.runtime.environment import Environment
from holdfast.runtime.events.emitter import Teller
from holdfast.runtime.events.event_log import EventLog, pause
from holdfast.runtime.events.events import RequestInfoEvent, WorkflowEvent, WorkflowOutputEvent
from holdfast.runtime.events.wording import not_restored, replayed
from holdfast.runtime.run.hold import LONGEST_STRETCH_SECONDS
from holdfast.runtime.run.position import Position
from holdfast.runtime.step.executors import Cast
from holdfast.runtime.step.placed import Placed
from holdfast.runtime.step.questions import Questions
from holdfast.runtime.step.superstep import Supersteps
from holdfast.runtime.step.surroundings import Surroundings
from holdfast.runtime.step.turn import Turns
from holdfast.runtime.times import in_microseconds

if TYPE_CHECKING:
    from holdfast.runtime.durable.recorder import Recorder


class Runner:
    """Drives one run: superstep after superstep, until nothing is left to deliver."""

    def __init__(
        self,
        graph: Graph,
        snapshot: Snapshot,
        run_id: RunId,
        limits: Limits,
        capture: Captor,
        max_iterations: int,
        environment: Environment,
        log: EventLog,
        shared: Mapping[ExecutorId, Placed],
        recorder: Recorder | None = None,
        resumed: bool = False,
    ) -> None:
        self.at = Position(snapshot)
        self.environment = environment
        self.recorder = recorder
        self.resumed = resumed
        self.cast = Cast(graph, run_id, shared, snapshot if resumed else None)
        self.questions = Questions(self.at, capture, environment.now, recorder)
        self.teller = Teller(graph, run_id, snapshot.superstep, environment.now, log)
        self._graph = graph
        self._run_id = run_id
        self._log = log
        self._said_again = False
        self._restored = False
        self._driver: asyncio.Task[Any] | None = None
        self._lost: BaseException | None = None
        emit, place, chance = self.teller.emit, self.cast.placed, environment.chance
        if recorder is None:
            around = Surroundings(limits, capture, run_id, emit, Journal(), environment=environment)
            self._turns = Turns(around, place, chance)
        else:
            journal = recorder.journal
            around = Surroundings(limits, capture, run_id, emit, journal, True, recorder.begun, environment)
            self._turns = Turns(around, place, chance, journal.add)
            journal.lost = weak_callback(self._lose)
            recorder.when_committed(weak_callback(self._committed))
            recorder.tell = emit
        self._steps = Supersteps(
            graph,
            around,
            max_iterations,
            self.at,
            self._turns,
            self.cast,
            self.teller,
            self.questions,
            log,
            recorder,
        )

    def leave_behind(self) -> None:
        """A handler goes on though the run is over: nothing is heard of it, and it keeps its instances."""
        self.teller.silent = True
        self.cast.keep()

    def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel the superstep under way and the task that drives it."""
        task.cancel()
        self._turns.stop()

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that drives the run, or that of a turn."""
        return task is not None and (task is self._driver or self._turns.run_in(task))

    # Before it moves.

    def again(self) -> list[WorkflowEvent]:
        """What a resumed run says again, once: its outputs if it is finished, and the requests that are pending."""
        if not self.resumed or self._said_again:
            return []
        self._said_again = True
        if self.at.finished:
            return [
                WorkflowOutputEvent(value.load(), executor_id, True)
                for executor_id, value in self.at.snapshot.outputs
            ]
        return [RequestInfoEvent(request) for request in self.questions.pending]

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it, and let executors be as they were; once."""
        recorder, at = self.recorder, self.at
        if recorder is None:
            return
        if not recorder.asks_again:  # an answer that comes too late must leave the run as it is
            await self.questions.leave()
        await recorder.open(bool(at.snapshot.deliveries), at.snapshot.superstep + 1)
        recorder.raise_if_cancelled()
        await self.questions.leave()
        self.questions.take_letters()
        if self.resumed and not self._restored:
            self._restored = True
            at.go_to(with_expiries(at.snapshot, recorder.expiries()))
            journal, now = recorder.journal, in_microseconds(self.environment.now())
            self._steps.done = {who: replayed(turn) for who, turn in journal.turns.items()}
            self._steps.asleep = sleepers(journal.results, now)
            if at.snapshot.deliveries or self.questions.answered:
                await self._restore()

    async def _restore(self) -> None:
        """Let executors be as they were; one whose turn is over already will be as it was after that."""
        for placed in self.cast.to_restore(but=self._steps.done):
            try:
                await self._turns.restore(placed, self.at.snapshot)
            except Exception as error:
                started = None if self.recorder is None else self.recorder.started
                raise not_restored(placed, error, self._run_id, self.teller.superstep, started) from error

    @property
    def has_work(self) -> bool:
        """True if driving the run delivers something; else it comes to rest at once, and calls no handler."""
        at, steps = self.at, self._steps
        if self.questions.answered:
            return True
        if at.first_expiry is not None and at.first_expiry <= in_microseconds(self.environment.now()):
            return True
        if not steps.asleep:
            return bool(at.snapshot.deliveries)
        return any(
            turn.executor_id not in steps.asleep and turn.executor_id not in steps.done
            for turn in plan(self._graph, at.snapshot)
        )

    # While it moves.

    async def drive(self) -> None:
        """Take supersteps until there is nothing to deliver; raises where one fails."""
        self.cast.at_work(True)
        try:
            await self._drive()
        except (asyncio.CancelledError, Exception) as error:
            await self._settle(error)
            if self._lost is not None and isinstance(error, asyncio.CancelledError):
                raise self._lost from self._lost.__cause__
            raise
        else:
            await self._settle()
        finally:
            self.cast.at_work(False)

    async def _drive(self) -> None:
        self._turns.stopping = False
        await self.open()
        driver = self._driver = asyncio.current_task()
        assert driver is not None
        at, questions, recorder, log = self.at, self.questions, self.recorder, self._log
        stretch = time.monotonic()
        while not questions.cancel_asked:
            if at.snapshot.requests.size and (first := at.first_expiry) is not None:
                await questions.expire(first)
            # With storage the end of a superstep takes them along, also of one that began before a resume.
            if questions.answers and (recorder is None or not at.snapshot.deliveries):
                await questions.deliver_all()
            if recorder is not None:
                recorder.raise_if_cancelled()
            turns = plan(self._graph, at.snapshot)
            if not turns:
                if recorder is None or not await self._more_came(recorder):
                    break
                continue
            await self._steps.take(turns, driver)
            if recorder is not None:
                if at.asleep_until is not None:
                    await recorder.rest(RunStatus.WAITING, None)
                    questions.take_letters()
                    return
                if recorder.has_letters:
                    questions.take_letters()
            if log.held_by is not None:
                await log.released()
            elif time.monotonic() - stretch > LONGEST_STRETCH_SECONDS:
                await pause()
                stretch = time.monotonic()
        if not questions.cancel_asked and at.waiting_for == ("messages",):
            self.teller.warn_of_waiting(find_waiting_joins(self._graph, at.snapshot))

    async def _more_came(self, recorder: Recorder) -> bool:
        """Store that the run has nothing to do; whether something came while that was stored."""
        self.teller.emit(recorder.news())
        await recorder.rest(status_at_rest(self.at.snapshot), None)
        self.questions.take_letters()
        return bool(self.questions.answers) or self.questions.cancel_asked

    async def _settle(self, error: BaseException | None = None) -> None:
        """Wait until what the run did is durable, whatever it ends with; raises if that cannot be."""
        self._driver = None  # it is over: nobody has to stop it
        recorder = self.recorder
        if recorder is None:
            return
        try:
            await recorder.caught_up()
        except Exception as problem:
            undone = recorder.durable is not None
            self.at.go_to(recorder.durable or self.at.snapshot)
            if problem is error:
                return
            if undone and isinstance(error, Exception):
                error.add_note(f"what it did since its last checkpoint could not be stored: {problem}")
                return
            raise problem from problem.__cause__
        if isinstance(error, ExecutorFailed) and error.checkpoint is None:
            error.checkpoint = recorder.started

    def _committed(self, error: BaseException | None) -> None:
        """A commit in the background is over: what was held back for it is true now, or it never was."""
        before, self.at.durable = self.at.durable, None
        if error is None:
            self._log.show()
        else:
            assert before is not None
            self.at.go_to(before)
            self.teller.superstep = before.superstep + 1
            self._log.discard()
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Another process took the run, or it cannot be stored: stop what goes on here."""
        if self._lost is None and self._driver is not None:
            self._lost = error
            self.stop(self._driver)
