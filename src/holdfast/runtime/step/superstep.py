"""One superstep of a run: its turns, and the snapshot after them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.events.events import (
    ExecutorInvokedEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Applied, Outcome, Turn, apply
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import ExecutorFailed, HoldfastError, RunTaken
from holdfast.ids import ExecutorId, RequestId
from holdfast.log_fields import log_fields
from holdfast.runtime.events.emitter import EventEmitter
from holdfast.runtime.events.notices import describe_failure, describe_superstep_limit
from holdfast.runtime.step.context import TurnServices
from holdfast.runtime.step.executors import PlacedExecutor, RunExecutors
from holdfast.runtime.step.position import Position
from holdfast.runtime.step.questions import Questions
from holdfast.runtime.step.turn import FinishedTurn, FinishedTurns, TurnRunner

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.runtime.durable.recorder import Recorder


class SuperstepRunner:
    """Takes a run from one barrier to the next: runs the turns, applies their outcomes, and makes that durable."""

    def __init__(
        self,
        context: TurnServices,
        executors: RunExecutors,
        at: Position,
        emitter: EventEmitter,
        questions: Questions,
        recorder: Recorder | None,
    ) -> None:
        workflow = context.workflow
        self._graph = workflow.graph
        self._limits = workflow.config.limits
        self._max_iterations = workflow.config.max_iterations
        self._capture = context.capture
        self._run_id = context.run_id
        self._log_fields = (context.run_id, workflow.name, "")
        self._turns = TurnRunner(context, executors.find)
        self._executors = executors
        self._at = at
        self._emitter = emitter
        self._log = emitter.log
        self._questions = questions
        self._recorder = recorder
        self.done: Mapping[ExecutorId, FinishedTurn] = {}
        """Turns of the superstep to come that are over already, in a resumed run."""
        self.asleep: Mapping[ExecutorId, int] = {}
        """The times until which other turns of it sleep."""

    def stop(self) -> None:
        """Cancel the turns under way; what they do from now on does not count."""
        self._turns.stop()

    def clear_stop(self) -> None:
        """Let turns count again, after a stop."""
        self._turns.stopping = False

    def runs_in(self, task: asyncio.Task[Any]) -> bool:
        """Return True if a task is that of one of several turns under way."""
        return self._turns.runs_in(task)

    async def restore(self, placed: PlacedExecutor) -> None:
        """Give an executor the fields that it had at the last barrier."""
        await self._turns.restore(placed, self._at.snapshot)

    async def take(self, turns: Sequence[Turn], driver: asyncio.Task[Any]) -> None:
        """Take one superstep; if a turn sleeps, the superstep does not end, and the run has to rest."""
        emitter, recorder = self._emitter, self._recorder
        snapshot = self._at.snapshot
        emitter.superstep = snapshot.superstep + 1
        if snapshot.since_input >= self._max_iterations:
            raise describe_superstep_limit(snapshot, self._max_iterations)
        started = None if recorder is None else recorder.started
        events: list[WorkflowEvent] = [] if recorder is None else recorder.news()
        events.append(SuperStepStartedEvent(started))
        done, reported = self.done, 0
        if done or self.asleep:
            finished = await self._take_up(turns, snapshot, events)
            if not finished:
                return
        else:
            for executor_id, deliveries in turns:
                events.append(ExecutorInvokedEvent(executor_id, len(deliveries)))
            emitter.emit(events)
            if len(turns) == 1:
                finished = [await self._turns.run_one(turns[0], snapshot, driver.cancelling())]
                log_fields.set(self._log_fields)  # several turns have tasks of their own
            else:
                finished, reported = await self._turns.run_all(turns, snapshot, self._report)
        events = emitter.ends_of(finished[reported:] if reported else finished)
        outcomes: list[Outcome] = []
        for turn in finished:
            if (outcome := turn.outcome) is not None:
                outcomes.append(outcome if not outcome.responses else self._without_late(outcome))
        if len(outcomes) < len(turns):
            emitter.emit(events)
            self._fall_short(finished, started)
            return
        try:
            applied = apply(self._graph, snapshot, outcomes, self._limits, self._capture)
        except (NotAtHand, HoldfastError) as problem:
            applied = await self._apply_again(problem, snapshot, outcomes, finished, events)
        if applied.delta.answers:
            self._questions.forget(applied.delta.answers)
        told = len(events)
        emitter.conclude(applied, events)
        if recorder is None:
            self._at.snapshot = applied.snapshot
            if applied.delta.requests:
                self._at.note_asked(applied.delta.requests)
        else:
            over, answers = _finished_turns(finished, events, told), dict(self._questions.answers)
            self._log.more_soon = True
            try:
                made = await recorder.superstep(self._at.snapshot, applied, over, answers)
            finally:
                self._log.more_soon = False
            self._accept(recorder, applied, made, events, answers)
        if applied.delta.answers:  # others may have come while it was stored
            self._questions.forget(applied.delta.answers)
        if applied.finished:
            self._executors.forget(applied.finished)
        if done:
            for executor_id in done:
                self._executors.restore_before_next_turn(executor_id, self._at.snapshot)
        emitter.emit(events)

    def _without_late(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a turn without responses to requests that someone outside answered before."""
        taken = self._questions.answers
        in_time = {known: value for known, value in outcome.responses.items() if known not in taken}
        return outcome._replace(responses=in_time)

    async def _take_up(
        self, turns: Sequence[Turn], snapshot: Snapshot, events: list[WorkflowEvent]
    ) -> list[FinishedTurn]:
        """Run the turns that are neither over nor asleep; return all of them in the order of the plan.

        If there are none the superstep does not begin again; returns an empty list then.
        """
        done, self.done = self.done, {}
        asleep, self.asleep = self.asleep, {}
        others = [turn for turn in turns if turn.executor_id not in done and turn.executor_id not in asleep]
        if asleep and not others:
            self._emitter.emit(events[:-1])
            self._sleep_until(min(asleep.values()))
            return []
        events += [ExecutorInvokedEvent(turn.executor_id, len(turn.deliveries)) for turn in others]
        self._emitter.emit(events)
        ran, _ = await self._turns.run_all(others, snapshot, lambda _: None)
        by_id = {**done, **{finished.turn.executor_id: finished for finished in ran}}
        for turn in turns:
            if turn.executor_id in asleep:
                until = asleep[turn.executor_id]
                by_id[turn.executor_id] = FinishedTurn(turn, None, None, (), 1, False, until)
        return [by_id[turn.executor_id]._replace(turn=turn) for turn in turns]

    def _fall_short(self, finished: Sequence[FinishedTurn], started: CheckpointInfo | None) -> None:
        """Raise the error of the first turn that failed, or let the run sleep because turns do."""
        failed = [turn for turn in finished if turn.error is not None]
        for turn in failed:
            if isinstance(turn.error, RunTaken):
                raise turn.error
        if failed:
            raise describe_failure(failed, self._run_id, self._emitter.superstep, started)
        self._sleep_until(min(turn.asleep_until for turn in finished if turn.asleep_until is not None))

    def _sleep_until(self, time: int) -> None:
        assert self._recorder is not None
        self._recorder.sleep_until(time)
        self._at.asleep_until = time

    async def _apply_again(
        self,
        problem: NotAtHand | HoldfastError,
        snapshot: Snapshot,
        outcomes: Sequence[Outcome],
        finished: Sequence[FinishedTurn],
        events: Sequence[WorkflowEvent],
    ) -> Applied:
        """Apply outcomes that need values which are not at hand, like a merge into a value after a resume."""
        while isinstance(problem, NotAtHand):
            try:
                await problem.fetch()
                return apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except (NotAtHand, HoldfastError) as another:
                problem = another
        self._emitter.emit(events)
        if self._recorder is not None and len(finished) == 1:  # of several, each was noted when it was over
            self._recorder.journal.add(finished[0])
        superstep = self._emitter.superstep
        if isinstance(problem, ExecutorFailed):
            problem.superstep, problem.run_id = superstep, self._run_id
        problem.add_note(f"at the end of superstep {superstep} of run {self._run_id}")
        raise problem

    def _accept(
        self,
        recorder: Recorder,
        applied: Applied,
        made: Sequence[CheckpointInfo],
        events: list[WorkflowEvent],
        answers: Mapping[RequestId, Value],
    ) -> None:
        """Let the run stand on a superstep that was recorded, with answers that came in meanwhile."""
        at = self._at
        if recorder.behind:
            at.durable = at.snapshot
            self._log.hold_back()
        at.snapshot = applied.snapshot
        if applied.delta.requests:
            at.note_asked(applied.delta.requests)
        if made:
            completed = events[-1]
            assert isinstance(completed, SuperStepCompletedEvent)
            completed.checkpoint = made[0]
            events[-1:-1] = recorder.news(1)
        if answers:
            self._questions.deliver(answers)

    def _report(self, finished: Sequence[FinishedTurn]) -> None:
        """Tell of turns that are over, unless they are being stopped."""
        if not self._turns.stopping:
            self._emitter.emit(self._emitter.ends_of(finished))


def _finished_turns(
    finished: Sequence[FinishedTurn], events: Sequence[WorkflowEvent], told: int
) -> FinishedTurns:
    """Return the turns and the stored events of a superstep; those about the turns' outcomes begin at ``told``.

    Of these, requests and outputs are part of the checkpoint, but for intermediate ones.
    """
    happened: list[WorkflowEvent] = []
    ended: list[tuple[ExecutorId, int]] = []
    for turn in finished:
        before = len(happened)
        if turn.events:
            happened += [event for event in turn.events if not event.provisional]
        ended.append((turn.turn.executor_id, len(happened) - before))
    for event in events[told:]:
        if isinstance(event, WorkflowWarningEvent) or (
            isinstance(event, WorkflowOutputEvent) and event.intermediate
        ):
            happened.append(event)
    return FinishedTurns(ended, happened)
