"""One superstep of a run, from its turns to where the run stands after them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import Applied, Outcome, Turn, apply
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import ExecutorFailed, HoldfastError, RunTaken
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RequestId
from holdfast.runtime.events.emitter import Teller
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.events.events import SuperStepCompletedEvent, WorkflowEvent, WorkflowWarningEvent
from holdfast.runtime.events.usual import executor_invoked, superstep_started
from holdfast.runtime.events.wording import failure, too_many_supersteps
from holdfast.runtime.run.position import Position
from holdfast.runtime.step.executors import Cast
from holdfast.runtime.step.questions import Questions
from holdfast.runtime.step.surroundings import Surroundings
from holdfast.runtime.step.turn import Finished, Turns

if TYPE_CHECKING:
    from holdfast.checkpoint.info import CheckpointInfo
    from holdfast.runtime.durable.recorder import Recorder


class Supersteps:
    """Takes a run from one barrier to the next: runs the turns, applies what they did, and makes that durable."""

    def __init__(
        self,
        graph: Graph,
        around: Surroundings,
        max_iterations: int,
        at: Position,
        turns: Turns,
        cast: Cast,
        teller: Teller,
        questions: Questions,
        log: EventLog,
        recorder: Recorder | None,
    ) -> None:
        self._graph = graph
        self._limits = around.limits
        self._capture = around.capture
        self._run_id = around.run_id
        self._max_iterations = max_iterations
        self._at = at
        self._turns = turns
        self._cast = cast
        self._teller = teller
        self._questions = questions
        self._log = log
        self._recorder = recorder
        self.done: Mapping[ExecutorId, Finished] = {}
        """Turns of the superstep to come that are over already, as a resumed run finds it."""
        self.asleep: Mapping[ExecutorId, int] = {}
        """Until when other turns of it sleep."""

    async def take(self, turns: Sequence[Turn], driver: asyncio.Task[Any]) -> None:
        """Take one superstep; it was none if a turn sleeps, for which the run has to rest then."""
        teller, recorder = self._teller, self._recorder
        snapshot = self._at.snapshot
        teller.superstep = snapshot.superstep + 1
        if snapshot.since_input >= self._max_iterations:
            raise too_many_supersteps(snapshot, self._max_iterations)
        started = None if recorder is None else recorder.started
        events: list[WorkflowEvent] = [] if recorder is None else recorder.news()
        events.append(superstep_started(started))
        done, reported = self.done, 0
        if done or self.asleep:
            finished = await self._take_up(turns, snapshot, events)
            if not finished:
                return
        else:
            for executor_id, deliveries in turns:
                events.append(executor_invoked(executor_id, len(deliveries)))
            teller.emit(events)
            if len(turns) == 1:
                finished = [await self._turns.run_one(turns[0], snapshot, driver.cancelling())]
            else:
                finished, reported = await self._turns.run_all(turns, snapshot, self._report)
        events = teller.ends_of(finished[reported:] if reported else finished)
        outcomes: list[Outcome] = []
        for turn in finished:
            if (outcome := turn.outcome) is not None:
                outcomes.append(outcome)
        if len(outcomes) < len(turns):
            teller.emit(events)
            self._fall_short(finished, started)
            return
        try:
            applied = apply(self._graph, snapshot, outcomes, self._limits, self._capture)
        except (NotAtHand, HoldfastError) as problem:
            applied = await self._apply_again(problem, snapshot, outcomes, finished, events)
        told = len(events)
        teller.conclude(applied, events)
        if recorder is None:
            self._at.snapshot = applied.snapshot
            if applied.delta.requests:
                self._at.note_asked(applied.delta.requests)
        else:
            happened, answers = _happened(finished, events, told), dict(self._questions.answers)
            self._log.more_soon = True
            try:
                made = await recorder.superstep(self._at.snapshot, applied, happened, answers)
            finally:
                self._log.more_soon = False
            self._recorded(recorder, applied, made, events, answers)
        if applied.finished:
            self._cast.forget(applied.finished)
        if done:
            for executor_id in done:
                self._cast.be_as_after(executor_id, self._at.snapshot)
        teller.emit(events)

    async def _take_up(
        self, turns: Sequence[Turn], snapshot: Snapshot, events: list[WorkflowEvent]
    ) -> list[Finished]:
        """Run the turns that are neither over nor asleep; all are told together, in the order of the plan.

        If there are none the superstep does not begin again; gives nothing then.
        """
        done, self.done = self.done, {}
        asleep, self.asleep = self.asleep, {}
        others = [turn for turn in turns if turn.executor_id not in done and turn.executor_id not in asleep]
        if asleep and not others:
            self._teller.emit(events[:-1])
            self._sleep_until(min(asleep.values()))
            return []
        events += [executor_invoked(turn.executor_id, len(turn.deliveries)) for turn in others]
        self._teller.emit(events)
        ran, _ = await self._turns.run_all(others, snapshot, lambda _: None)
        by_id = {**done, **{finished.turn.executor_id: finished for finished in ran}}
        for turn in turns:
            if turn.executor_id in asleep:
                until = asleep[turn.executor_id]
                by_id[turn.executor_id] = Finished(turn, None, None, (), 1, False, until)
        return [by_id[turn.executor_id]._replace(turn=turn) for turn in turns]

    def _fall_short(self, finished: Sequence[Finished], started: CheckpointInfo | None) -> None:
        """Not all turns have an outcome: raise what the first failed with, or let the run sleep as they do."""
        failed = [turn for turn in finished if turn.error is not None]
        for turn in failed:
            if isinstance(turn.error, RunTaken):
                raise turn.error
        if failed:
            raise failure(failed, self._run_id, self._teller.superstep, started)
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
        finished: Sequence[Finished],
        events: Sequence[WorkflowEvent],
    ) -> Applied:
        """Apply outcomes that need values which are not at hand, as a merge into a value after a resume does."""
        while isinstance(problem, NotAtHand):
            try:
                await problem.fetch()
                return apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except (NotAtHand, HoldfastError) as another:
                problem = another
        self._teller.emit(events)
        if self._recorder is not None and len(finished) == 1:  # of several, each was noted when it was over
            self._recorder.journal.add(finished[0])
        superstep = self._teller.superstep
        if isinstance(problem, ExecutorFailed):
            problem.superstep, problem.run_id = superstep, self._run_id
        problem.add_note(f"at the end of superstep {superstep} of run {self._run_id}")
        raise problem

    def _recorded(
        self,
        recorder: Recorder,
        applied: Applied,
        made: Sequence[CheckpointInfo],
        events: list[WorkflowEvent],
        answers: Mapping[RequestId, Value],
    ) -> None:
        """The superstep is durable, with answers that came in meanwhile: only now it is the run's own."""
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

    def _report(self, finished: Sequence[Finished]) -> None:
        """Tell of turns that are over, unless nothing counts any more."""
        if not self._turns.stopping:
            self._teller.emit(self._teller.ends_of(finished))


def _happened(
    finished: Sequence[Finished], events: Sequence[WorkflowEvent], told: int
) -> list[WorkflowEvent]:
    """What is kept of the events of a superstep; those of what came of its turns begin at ``told``."""
    happened: list[WorkflowEvent] = []
    for turn in finished:
        if turn.events:
            happened += [event for event in turn.events if not event.provisional]
    for event in events[told:]:
        if isinstance(event, WorkflowWarningEvent):
            happened.append(event)
    return happened
