"""The loop that takes a run from superstep to superstep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.checkpoint.events.events import (
    COMPLETION_KEY,
    RUN_SCOPE,
    PendingRequest,
    RequestInfoEvent,
    WorkflowCompletedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowStartedEvent,
)
from holdfast.engine.snapshot import Snapshot, status_at_rest, with_expiries
from holdfast.engine.state import Scope
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.engine.superstep import find_waiting_joins, plan
from holdfast.engine.value import Captor
from holdfast.errors import ExecutorFailed, HoldfastWarning
from holdfast.ids import RequestId, RunId
from holdfast.log_fields import log_fields
from holdfast.runtime._async import weak_callback
from holdfast.runtime.config import NO_RUN_CONTEXT, RunContext, WorkflowDefinition
from holdfast.runtime.durable.journal import Journal, sleepers
from holdfast.runtime.events.emitter import EventEmitter
from holdfast.runtime.events.event_log import LONGEST_STRETCH_SECONDS, EventLog, pause
from holdfast.runtime.events.notices import describe_restore_failure, replay_turn
from holdfast.runtime.step.context import TurnServices
from holdfast.runtime.step.executors import RunExecutors
from holdfast.runtime.step.inputs import FurtherInputs
from holdfast.runtime.step.position import Position
from holdfast.runtime.step.questions import Questions
from holdfast.runtime.step.shared_objects import SharedObjects, load_value
from holdfast.runtime.step.superstep import SuperstepRunner
from holdfast.runtime.times import in_microseconds

if TYPE_CHECKING:
    from holdfast.runtime.durable.recorder import Recorder


class ResumePoint(NamedTuple):
    """The point from which a run moves: its snapshot, and the recorder that makes its checkpoints, if any does."""

    snapshot: Snapshot
    recorder: Recorder | None = None
    resumed: bool = False


class Runner:
    """Drives one run: superstep after superstep, until nothing is left to deliver."""

    def __init__(
        self,
        workflow: WorkflowDefinition,
        run_id: RunId,
        point: ResumePoint,
        capture: Captor,
        log: EventLog,
        run_context: RunContext = NO_RUN_CONTEXT,
    ) -> None:
        snapshot, recorder, resumed = point
        graph, self.environment = workflow.graph, workflow.environment
        self.recorder = recorder
        self.resumed = resumed
        self.at = Position(snapshot)
        self._emitter = EventEmitter(graph, run_id, snapshot.superstep, self.environment.now, log)
        self.inputs = FurtherInputs(workflow, self.at, capture, self._emitter, recorder)
        self.questions = Questions(
            self.at, capture, self.environment.now, recorder, self.inputs.take, self._emitter
        )
        self._executors = RunExecutors(graph, run_id, workflow.shared, snapshot if resumed else None)
        self._graph = graph
        self._run_id = run_id
        self._workflow_name = workflow.name
        self._team_size = workflow.config.team_size
        self._log = log
        self._said_again = False
        self._restored = False
        self._driver: asyncio.Task[Any] | None = None
        self._lost: BaseException | None = None
        self.emit = emit = self._emitter.emit
        self._shared_objects = shared = SharedObjects()
        if recorder is None:
            context = TurnServices(
                workflow, run_id, capture, emit, Journal(), shared, run_context=run_context
            )
        else:
            journal = recorder.journal
            context = TurnServices(
                workflow,
                run_id,
                capture,
                emit,
                journal,
                shared,
                recorder.begun,
                journal.add,
                run_context,
                recorder.lineage,
            )
            journal.lost = weak_callback(self._lose)
            recorder.when_committed(weak_callback(self._committed))
            recorder.when_written_late(emit)
        self._steps = SuperstepRunner(
            context, self._executors, self.at, self._emitter, self.questions, recorder
        )

    # What others ask of the run.

    @property
    def shown(self) -> Snapshot:
        """The run as others may see it: without what may yet come to nothing."""
        return self.at.shown

    @property
    def superstep(self) -> int:
        """The number of the superstep that comes next or is under way."""
        return self._emitter.superstep

    @property
    def warnings(self) -> Sequence[HoldfastWarning]:
        """The last thousand warnings of the run."""
        return self._emitter.warnings

    @property
    def waiting_for(self) -> tuple[WaitingFor, ...]:
        """The reasons why the run waits, if it rests."""
        return self.at.waiting_for

    @property
    def asleep_until(self) -> int | None:
        """The time at which the first sleeping turn goes on, if the run came to rest for it."""
        return self.at.asleep_until

    @property
    def wakes_at(self) -> int | None:
        """The time at which a run at rest has something to do by itself; None if there is none."""
        return self.at.wakes_at

    @property
    def only_sleeps(self) -> bool:
        """True if a turn sleeps and no request waits for an answer."""
        return self.at.asleep_until is not None and not self.questions.open

    @property
    def cancel_asked(self) -> bool:
        """True if a letter in the inbox asks to cancel the run."""
        return self.questions.cancel_asked

    @property
    def finished(self) -> bool:
        """True if nothing is left to do."""
        return self.at.finished

    @property
    def pending_requests(self) -> list[PendingRequest]:
        """The requests that wait for an answer."""
        return self.questions.pending

    def pending_now(self) -> Callable[[], list[PendingRequest]]:
        """Return a function that gives the requests which wait for an answer now: there may be many."""
        return self.questions.pending_now()

    def take_answers(
        self, responses: Mapping[RequestId, object] | Mapping[str, object], by: str | None = None
    ) -> Sequence[RequestId]:
        """Take answers, all or none, which are delivered at the next barrier; return the requests."""
        return self.questions.take(responses, by)

    async def leave_answers(self, request_ids: Sequence[RequestId]) -> None:
        """Leave answers that were taken in the inbox of a stored run, so that they are durable."""
        await self.questions.leave(request_ids)

    async def look_for_letters(self) -> bool:
        """Read the inbox now and take what others left there; return True if there is something to act on."""
        return await self.questions.look_for_letters()

    def runs_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Return True if a task is the one that drives the run, or that of a turn."""
        return task is not None and (task is self._driver or self._steps.runs_in(task))

    # From outside its task.

    def warn(self, warning: HoldfastWarning) -> None:
        """Add a warning to the events and the result of the run."""
        self.emit([self._emitter.warning(warning)])

    def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel the superstep under way and the task that drives it."""
        task.cancel()
        self._steps.stop()

    def drop_answers(self) -> None:
        """Forget answers that were not delivered: the run came to rest."""
        self.questions.drop()

    def let_go(self) -> None:
        """Let other runs use the executor instances: this run is over."""
        self._executors.let_go()

    def leave_behind(self) -> None:
        """Tell nothing more of a run that is over though a handler goes on, and keep its executor instances."""
        self._emitter.silent = True
        self._executors.keep()

    # Before it moves.

    def leave_out_replay(self) -> None:
        """Do not tell the outputs of a finished run again: it goes on with further input."""
        self._said_again = True

    def events_again(self) -> list[WorkflowEvent]:
        """Return the events that a resumed run tells again, once: its outputs if it is finished, else its requests."""
        if not self.resumed or self._said_again:
            return []
        self._said_again = True
        if self.at.finished:
            return [
                WorkflowOutputEvent(value.load(), executor_id, True)
                for executor_id, value in self.at.snapshot.outputs
            ]
        return [RequestInfoEvent(request) for request in self.questions.pending]

    def started_event(self) -> WorkflowStartedEvent:
        """Return the event with which the run begins."""
        return WorkflowStartedEvent(self._workflow_name, *(self._team_size or ()))

    async def completed_event(self) -> WorkflowCompletedEvent:
        """Return the event of a complete run, with what an executor left for it."""
        outputs = self.shown.outputs
        data = outputs.last.value.load() if outputs else None
        left = self.shown.state.get(Scope(None, RUN_SCOPE), {}).get(COMPLETION_KEY)
        if left is None:
            return WorkflowCompletedEvent(data)
        event: WorkflowCompletedEvent = await load_value(left)
        event.data = data
        return event

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it, and restore the executors; once."""
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
            self._steps.done = {who: replay_turn(turn) for who, turn in journal.turns.items()}
            self._steps.asleep = sleepers(journal.results, now)
            if at.snapshot.deliveries or self.questions.answered or self.inputs.waiting:
                await self._restore()

    async def _restore(self) -> None:
        """Give executors their kept fields, except those whose turn is over already: they get what it left."""
        for placed in self._executors.to_restore(but=self._steps.done):
            try:
                await self._steps.restore(placed)
            except Exception as error:
                started = None if self.recorder is None else self.recorder.started
                raise describe_restore_failure(
                    placed, error, self._run_id, self.superstep, started
                ) from error

    @property
    def begins(self) -> bool:
        """True if nothing of the run has happened yet, here or where it was submitted."""
        if self.resumed and (self.recorder is None or not self.recorder.is_submitted):
            return False
        return self.at.snapshot.superstep == 0

    @property
    def has_work(self) -> bool:
        """True if driving the run delivers something; else it comes to rest at once, and calls no handler."""
        at, steps = self.at, self._steps
        questions = self.questions
        if questions.answered or questions.to_be_asked_again or self.inputs.waiting:
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
        """Take supersteps until there is nothing to deliver; raise where one fails."""
        self._executors.set_busy(True)
        log_fields.set((self._run_id, self._workflow_name, ""))
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
            self._executors.set_busy(False)

    async def _drive(self) -> None:
        self._steps.clear_stop()
        await self.open()
        driver = self._driver = asyncio.current_task()
        assert driver is not None
        at, questions, inputs, recorder, log = self.at, self.questions, self.inputs, self.recorder, self._log
        stretch = time.monotonic()
        # A superstep that was under way is finished first: what it did already is in the journal.
        is_under_way = self.resumed and bool(at.snapshot.deliveries)
        while not questions.cancel_asked:
            if at.snapshot.requests.size and (first := at.first_expiry) is not None:
                await questions.expire(first)
            # With storage the end of a superstep takes them along, also of one that began before a resume.
            if questions.answers and (recorder is None or not at.snapshot.deliveries):
                await questions.deliver_all()
            if inputs.waiting and not is_under_way:
                await inputs.deliver_all()
            if questions.to_be_asked_again and not is_under_way:
                await questions.ask_again()
                continue
            is_under_way = False
            if recorder is not None:
                recorder.raise_if_cancelled()
            turns = plan(self._graph, at.snapshot)
            if not turns:
                if recorder is None or not await self._rest_unless_more_came(recorder):
                    break
                continue
            await self._steps.take(turns, driver)
            if self._shared_objects.followers and at.asleep_until is None:
                await self._follow_commit()
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
            self._emitter.warn_of_waiting(find_waiting_joins(self._graph, at.snapshot))

    async def _follow_commit(self) -> None:
        """Let shared objects act on the superstep, once it is durable."""
        if self.recorder is not None:
            await self.recorder.caught_up()
        for warning in await asyncio.shield(self._shared_objects.after_commit()):
            self.warn(warning)

    async def _rest_unless_more_came(self, recorder: Recorder) -> bool:
        """Store that the run has nothing to do; return True if something came while that was stored."""
        self.emit(recorder.news())
        await recorder.rest(status_at_rest(self.at.snapshot), None)
        self.questions.take_letters()
        questions = self.questions
        came = bool(questions.answers) or questions.to_be_asked_again or self.inputs.waiting
        return came or questions.cancel_asked

    async def _settle(self, error: BaseException | None = None) -> None:
        """Wait until what the run did is durable, whatever it ends with; raise if that cannot be."""
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
        """Show the events that were held back for a commit in the background, or undo its superstep if it failed."""
        before, self.at.durable = self.at.durable, None
        if error is None:
            self._log.show()
        else:
            assert before is not None
            self.at.go_to(before)
            self._emitter.superstep = before.superstep + 1
            self._log.discard()
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Stop what goes on here: another process took the run, or it cannot be stored."""
        if self._lost is None and self._driver is not None:
            self._lost = error
            self.stop(self._driver)
