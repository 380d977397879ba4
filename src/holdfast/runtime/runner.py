"""The loop that takes a run from superstep to superstep."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine.answers import checked_answer
from holdfast.engine.limits import Limits
from holdfast.engine.snapshot import Snapshot, answered, status_at_rest, with_expiries
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import Applied, Outcome, Turn, WaitingJoin, apply, plan, waiting_joins
from holdfast.engine.value import Captor, NotAtHand, Value
from holdfast.errors import ExecutorFailed, HoldfastError, HoldfastWarning, RequestAlreadyAnswered, RunTaken
from holdfast.graph.expired import RequestExpired
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RequestId, RunId
from holdfast.runtime.cast import Cast
from holdfast.runtime.environment import Environment
from holdfast.runtime.event_log import EventLog, pause
from holdfast.runtime.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    PendingRequest,
    RequestInfoEvent,
    SuperStepCompletedEvent,
    SuperStepStartedEvent,
    WorkflowEvent,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
)
from holdfast.runtime.journal import Journal, sleepers
from holdfast.runtime.placed import Placed
from holdfast.runtime.surroundings import Surroundings
from holdfast.runtime.times import as_time, in_microseconds
from holdfast.runtime.turns import Finished, Turns
from holdfast.runtime.wording import (
    failure,
    not_restored,
    pending,
    replayed,
    too_many_supersteps,
    unrouted_message,
    waiting_fan_in,
)

if TYPE_CHECKING:
    from holdfast.runtime.recorder import Recorder

# How long supersteps that never wait may keep the event loop to themselves.
_LONGEST_STRETCH_SECONDS = 0.005
_WARNINGS_KEPT = 1_000


class Runner:
    """Drives one run: plan, run the turns, apply, until nothing is left to deliver."""

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
        self.snapshot = snapshot
        self.superstep = snapshot.superstep
        self.warnings: deque[HoldfastWarning] = deque(maxlen=_WARNINGS_KEPT)
        self.left_behind = False
        self._graph = graph
        self._limits = limits
        self._capture = capture
        self._max_iterations = max_iterations
        self._run_id = run_id
        self._now = environment.now
        self._log = log
        self.recorder = recorder
        self.resumed = resumed
        self._said_again = False
        self._restored = False
        self._responses: dict[RequestId, Value] = {}
        self._given: dict[RequestId, Value] = {}
        """Answers that were given to a run that is stored, and are not in its inbox yet."""
        self.cancel_asked = False
        """Whether someone left the wish that the run be cancelled."""
        self._replayed: dict[ExecutorId, Finished] = {}
        self._sleepers: dict[ExecutorId, int] = {}
        """Until when turns of the superstep to come sleep, as a resumed run finds it."""
        self.asleep_until: int | None = None
        """When the first turn goes on that the superstep under way waits for; then the run came to rest for it."""
        self._expiring: tuple[object, int | None] = (None, None)
        self.environment = environment
        self._driver: asyncio.Task[Any] | None = None
        self._lost: BaseException | None = None
        self._durable: Snapshot | None = None
        self.cast = Cast(graph, run_id, shared, snapshot if resumed else None)
        if recorder is None:
            around = Surroundings(limits, capture, run_id, self.emit, Journal(), environment=environment)
            self._turns = Turns(around, self.cast.placed, environment.chance)
        else:
            around = Surroundings(
                limits, capture, run_id, self.emit, recorder.journal, True, recorder.begun, environment
            )
            self._turns = Turns(around, self.cast.placed, environment.chance, recorder.journal.add)
            recorder.journal.lost = self._lose
            recorder.committed = self._committed
            recorder.tell = self.emit

    def leave_behind(self) -> None:
        """A handler goes on though the run is over: nothing is heard of it, and it keeps its instances."""
        self.left_behind = True
        self.cast.keep()

    def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel the superstep under way and the task that drives it."""
        task.cancel()
        self._turns.stop()

    @property
    def shown(self) -> Snapshot:
        """The run as others may see it: without what may yet come to nothing."""
        return self.snapshot if self._durable is None else self._durable

    # Questions

    @property
    def pending(self) -> list[PendingRequest]:
        """The requests that wait for an answer."""
        taken = self._answers
        return [pending(r) for r in self.shown.requests.values() if r.request_id not in taken]

    @property
    def _answers(self) -> dict[RequestId, Value]:
        return {**self._responses, **self._given} if self._given else self._responses

    def respond(self, responses: Mapping[RequestId, object] | Mapping[str, object]) -> Sequence[RequestId]:
        """Take answers, all or none; they are delivered at the next barrier.

        Those for a run that is stored have to be left in its inbox by ``leave_answers``.
        """
        checked = {
            RequestId(request_id): checked_answer(
                self.shown, request_id, answer, self._capture, self._answers
            )
            for request_id, answer in responses.items()
        }
        (self._responses if self.recorder is None else self._given).update(checked)
        return list(checked)

    async def leave_answers(self, request_ids: Sequence[RequestId]) -> None:
        """Leave answers that were given in the inbox: then they are durable; raises if others were faster."""
        if not request_ids or self.recorder is None:
            return
        given = {request_id: self._given[request_id] for request_id in request_ids}
        try:
            await self.recorder.leave(given)
        finally:
            self._given = {known: v for known, v in self._given.items() if known not in given}
        self._accept(given)

    def _accept(self, answers: Mapping[RequestId, Value]) -> None:
        """Take answers that are in the inbox, unless they were taken from there already."""
        for request_id, value in answers.items():
            if request_id in self.snapshot.requests:
                self._responses.setdefault(request_id, value)

    def take_letters(self) -> bool:
        """Take what others left in the inbox; whether there is something to act on."""
        assert self.recorder is not None
        if not self.recorder.log.letters:
            return False
        answers, cancelled = self.recorder.wishes()
        self._accept(answers)
        self.cancel_asked = self.cancel_asked or cancelled
        return bool(answers) or cancelled

    async def look_for_letters(self) -> bool:
        """The same, after reading the inbox now."""
        assert self.recorder is not None
        await self.recorder.look()
        return self.take_letters()

    async def _deliver_responses(self) -> None:
        responses = dict(self._responses)  # others may come while these are stored
        if self.recorder is not None:
            await self.recorder.answered(self.snapshot, responses)
        self._deliver(responses)

    def _deliver(self, responses: Mapping[RequestId, Value]) -> None:
        self.snapshot = answered(self.snapshot, responses)
        self._responses = {known: v for known, v in self._responses.items() if known not in responses}

    def drop_answers(self) -> None:
        """The run came to rest: answers that were not delivered are void, or wait in the inbox."""
        self._responses = {}

    # Time

    @property
    def wakes_at(self) -> int | None:
        """When a run at rest has something to do by itself; None if it has not."""
        return self._first_expiry() if self.asleep_until is None else self.asleep_until

    def _sleep_until(self, time: int) -> None:
        assert self.recorder is not None
        self.asleep_until = self.recorder.log.asleep_until = time

    def _first_expiry(self) -> int | None:
        requests = self.snapshot.requests
        if self._expiring[0] is not requests:
            times = [request.expiry.at for request in requests.values() if request.expiry is not None]
            self._expiring = requests, min(times, default=None)
        return self._expiring[1]

    async def _expire(self, first: int) -> None:
        """Let requests whose time is over be answered by that, unless someone else was faster."""
        now = in_microseconds(self._now())
        if now < first:
            return
        for request in list(self.snapshot.requests.values()):
            key, expiry = request.request_id, request.expiry
            if expiry is None or expiry.at > now or key in self._answers:
                continue
            expired = self._capture(RequestExpired(key, as_time(expiry.at)), "response")
            if self.recorder is None:
                self._responses[key] = expired
                continue
            try:
                await self.recorder.leave({key: expired})
            except RequestAlreadyAnswered:
                await self.look_for_letters()
            else:
                self._accept({key: expired})

    # Supersteps

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.snapshot.deliveries and not self.snapshot.requests

    @property
    def moves(self) -> bool:
        """Whether there is something to deliver."""
        return bool(self.snapshot.deliveries or self._responses or self._given)

    def again(self) -> list[WorkflowEvent]:
        """What a resumed run says again, once: its outputs if it is finished, and the requests that are pending."""
        if not self.resumed or self._said_again:
            return []
        self._said_again = True
        snapshot = self.snapshot
        if self.finished:
            return [
                WorkflowOutputEvent(value.load(), executor_id, True)
                for executor_id, value in snapshot.outputs
            ]
        return [RequestInfoEvent(request) for request in self.pending]

    async def open(self) -> None:
        """Commit what must be durable before anything acts on it, and let executors be as they were; once."""
        recorder = self.recorder
        if recorder is None:
            return
        if not recorder.asks_again:  # an answer that comes too late must leave the run as it is
            await self.leave_answers(list(self._given))
        await recorder.open(bool(self.snapshot.deliveries), self.snapshot.superstep + 1)
        recorder.raise_if_cancelled()
        await self.leave_answers(list(self._given))
        self.take_letters()
        if self.resumed and not self._restored:
            self._restored = True
            self.snapshot = with_expiries(self.snapshot, recorder.log.expiries())
            self._replayed = {who: replayed(turn) for who, turn in recorder.journal.turns.items()}
            self._sleepers = sleepers(recorder.journal.results, in_microseconds(self._now()))
            if self.moves:
                await self._restore()

    async def _restore(self) -> None:
        """Let executors be as they were; one whose turn is over already will be as it was after that."""
        for placed in self.cast.to_restore(but=self._replayed):
            try:
                await self._turns.restore(placed, self.snapshot)
            except Exception as error:
                started = None if self.recorder is None else self.recorder.started
                raise not_restored(placed, error, self._run_id, self.superstep, started) from error

    async def drive(self) -> None:
        """Take supersteps until there is nothing to deliver; raises where one fails."""
        with self.cast.at_work():
            try:
                await self._drive()
            except (asyncio.CancelledError, Exception) as error:
                await self._settle(error)
                if self._lost is not None and isinstance(error, asyncio.CancelledError):
                    raise self._lost from self._lost.__cause__
                raise
            await self._settle()

    async def _settle(self, error: BaseException | None = None) -> None:
        """Wait until what the run did is durable, whatever it ends with; raises if that cannot be."""
        self._driver = None  # it is over: nobody has to stop it
        recorder = self.recorder
        if recorder is None:
            return
        try:
            await recorder.caught_up()
        except Exception as problem:
            undone, self.snapshot = recorder.durable is not None, recorder.durable or self.snapshot
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
        before, self._durable = self._durable, None
        if error is None:
            self._log.show()
        else:
            assert before is not None
            self.snapshot, self.superstep = before, before.superstep + 1
            self._log.discard()
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """Another process took the run, or it cannot be stored: stop what goes on here."""
        if self._lost is None and self._driver is not None:
            self._lost = error
            self.stop(self._driver)

    async def _drive(self) -> None:
        self._turns.stopping = False
        await self.open()
        driver = self._driver = asyncio.current_task()
        assert driver is not None
        stretch = time.monotonic()
        while not self.cancel_asked:
            if self.snapshot.requests.size and (first := self._first_expiry()) is not None:
                await self._expire(first)
            # With storage the end of a superstep takes them along, also of one that began before a resume.
            if self._responses and (self.recorder is None or not self.snapshot.deliveries):
                await self._deliver_responses()
            if self.recorder is not None:
                self.recorder.raise_if_cancelled()
            turns = plan(self._graph, self.snapshot)
            if not turns:
                if self.recorder is not None:
                    self.emit(self.recorder.news())
                    await self.recorder.rest(status_at_rest(self.snapshot), None)
                    self.take_letters()
                    if self._responses or self.cancel_asked:  # they came while that was stored
                        continue
                break
            await self._superstep(turns, driver)
            if self.asleep_until is not None:
                assert self.recorder is not None
                await self.recorder.rest(RunStatus.WAITING, None)
                self.take_letters()
                return
            if self.recorder is not None and self.recorder.log.letters:
                self.take_letters()
            holder = self._log.holder
            if holder is not None:
                await pause()
                if not (holder.waiting and holder.next == self._log.end):  # it does not keep up
                    await self._log.released()
            elif time.monotonic() - stretch > _LONGEST_STRETCH_SECONDS:
                await pause()
                stretch = time.monotonic()
        if not self.cancel_asked and not self.snapshot.requests and self.snapshot.buffers:
            self.emit(self._warnings_of(waiting_joins(self._graph, self.snapshot, frozenset([""]))))

    async def _superstep(self, turns: Sequence[Turn], driver: asyncio.Task[Any]) -> None:
        snapshot = self.snapshot
        self.superstep = snapshot.superstep + 1
        if snapshot.since_input >= self._max_iterations:
            raise too_many_supersteps(snapshot, self._max_iterations)
        recorder = self.recorder
        started = None if recorder is None else recorder.started
        events: list[WorkflowEvent] = [] if recorder is None else recorder.news()
        events.append(SuperStepStartedEvent(started))
        done, self._replayed = self._replayed, {}
        asleep, self._sleepers = self._sleepers, {}
        if asleep and all(who in done or who in asleep for who, _ in turns):
            self.emit(events[:-1])
            self._sleep_until(min(asleep.values()))
            return
        for executor_id, deliveries in turns:
            if executor_id not in done and executor_id not in asleep:
                events.append(ExecutorInvokedEvent(executor_id, len(deliveries)))
        self.emit(events)
        if done or asleep:
            finished, reported = await self._run_others(turns, snapshot, done, asleep), 0
        elif len(turns) == 1:
            finished, reported = [await self._turns.run_one(turns[0], snapshot, driver.cancelling())], 0
        else:
            finished, reported = await self._turns.run_all(turns, snapshot, self._report)
        events = self._ends_of(finished[reported:] if reported else finished)
        outcomes: list[Outcome] = []
        for turn in finished:
            if turn.outcome is not None:
                outcomes.append(turn.outcome)
        if len(outcomes) < len(turns):
            self.emit(events)
            failed = [turn for turn in finished if turn.error is not None]
            for turn in failed:
                if isinstance(turn.error, RunTaken):
                    raise turn.error
            if failed:
                raise failure(failed, self._run_id, self.superstep, started)
            self._sleep_until(min(turn.asleep_until for turn in finished if turn.asleep_until is not None))
            return
        try:
            try:
                applied = apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except NotAtHand as absent:
                applied = await self._applied_with(absent, snapshot, outcomes)
        except HoldfastError as error:
            self.emit(events)
            if recorder is not None and len(turns) == 1:  # of several, each was noted when it was over
                recorder.journal.add(finished[0])
            if isinstance(error, ExecutorFailed):
                error.superstep, error.run_id = self.superstep, self._run_id
            error.add_note(f"at the end of superstep {self.superstep} of run {self._run_id}")
            raise
        told = len(events)
        self._conclude(applied, events)
        if recorder is not None:
            await self._record(recorder, applied, finished, events, told)
        else:
            self.snapshot = applied.snapshot
        if applied.finished:
            self.cast.forget(applied.finished)
        for executor_id in done:
            self.cast.be_as_after(executor_id, self.snapshot)
        self.emit(events)

    async def _run_others(
        self,
        turns: Sequence[Turn],
        snapshot: Snapshot,
        done: Mapping[ExecutorId, Finished],
        asleep: Mapping[ExecutorId, int],
    ) -> list[Finished]:
        """Run the turns that are neither over nor asleep; all are told together, in the order of the plan."""
        others = [turn for turn in turns if turn.executor_id not in done and turn.executor_id not in asleep]
        ran, _ = await self._turns.run_all(others, snapshot, lambda _: None)
        by_id = {**done, **{finished.turn.executor_id: finished for finished in ran}}
        for turn in turns:
            if turn.executor_id in asleep:
                until = asleep[turn.executor_id]
                by_id[turn.executor_id] = Finished(turn, None, None, (), 1, False, until)
        return [by_id[turn.executor_id]._replace(turn=turn) for turn in turns]

    async def _applied_with(
        self, absent: NotAtHand, snapshot: Snapshot, outcomes: Sequence[Outcome]
    ) -> Applied:
        """Apply outcomes that need values which are not at hand, as a merge into a value after a resume does."""
        while True:
            await absent.fetch()
            try:
                return apply(self._graph, snapshot, outcomes, self._limits, self._capture)
            except NotAtHand as more:
                absent = more

    async def _record(
        self,
        recorder: Recorder,
        applied: Applied,
        finished: Sequence[Finished],
        events: list[WorkflowEvent],
        told: int,
    ) -> None:
        """Make the superstep durable, with responses that came in meanwhile; only then it is the run's own.

        The events of what it brought begin at ``told``.
        """
        happened = [event for turn in finished for event in turn.events if not event.provisional]
        happened += [event for event in events[told:] if isinstance(event, WorkflowWarningEvent)]
        responses = dict(self._responses)
        made = await recorder.superstep(self.snapshot, applied, happened, responses)
        if recorder.behind:
            self._durable = self.snapshot
            self._log.hold_back()
        self.snapshot = applied.snapshot
        if made:
            completed = events[-1]
            assert isinstance(completed, SuperStepCompletedEvent)
            completed.checkpoint = made[0]
            events[-1:-1] = recorder.news(1)
        if responses:
            self._deliver(responses)

    def _report(self, finished: Sequence[Finished]) -> None:
        """Emit the events of turns that are over, unless nothing counts any more."""
        if not self._turns.stopping:
            self.emit(self._ends_of(finished))

    def _ends_of(self, finished: Sequence[Finished]) -> list[WorkflowEvent]:
        """The events of turns that are over: those that they added, then how they ended."""
        events: list[WorkflowEvent] = []
        for (executor_id, _), _, error, added, attempt, again, until in finished:
            if until is not None:
                continue
            for event in added:
                if isinstance(event, WorkflowWarningEvent):
                    self.warnings.append(event.warning)
                events.append(event)
            if error is None:
                events.append(ExecutorCompletedEvent(executor_id, again))
            else:
                events.append(ExecutorFailedEvent(executor_id, error, attempt))
        return events

    def _conclude(self, applied: Applied, events: list[WorkflowEvent]) -> None:
        """Add to ``events`` what the superstep brought; its completion is the last."""
        after, delta, unrouted, finished, waiting = applied
        for message in unrouted:
            events.append(self.warning(unrouted_message(self._graph, message), message.source))
        for executor_id, value in delta.outputs:
            events.append(WorkflowOutputEvent(value.load(), executor_id))
        for request in delta.requests:
            events.append(RequestInfoEvent(pending(request)))
        if finished:
            events += self._warnings_of(waiting)
        on_their_way = bool(delta.deliveries) or after.buffers.size > 0
        events.append(SuperStepCompletedEvent(on_their_way, after.requests.size > 0, bool(delta.writes)))

    def _warnings_of(self, waiting: Sequence[WaitingJoin]) -> list[WorkflowEvent]:
        return [self.warning(waiting_fan_in(join)) for join in waiting]

    def warning(self, warning: HoldfastWarning, executor_id: ExecutorId | None = None) -> WorkflowEvent:
        """The event for a warning, which is remembered for the result too."""
        self.warnings.append(warning)
        return WorkflowWarningEvent(warning, executor_id)

    def emit(self, events: Sequence[WorkflowEvent]) -> None:
        """Add events to the log, with the run, the superstep and the time."""
        if self.left_behind:
            return
        now, run_id, superstep = self._now(), self._run_id, self.superstep
        for event in events:
            event.run_id = run_id
            event.superstep = superstep
            event.timestamp = now
        self._log.emit(events)
