"""Doing the same to Holdfast and to the model, and comparing; the rules are in ``tests/properties/test_machine.py``."""

import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from holdfast import CheckpointStorage, Run, RunStatus, Store
from tests.support.machine_held import Held
from tests.support.machine_looking import Looking, agree
from tests.support.machine_stored import Checkpoint, StoredRun
from tests.support.machine_workflow import ROUNDS
from tests.support.machine_world import Process, World
from tests.support.machine_writer import HELD, TURNS, Writer
from tests.support.model import Model, NotDone
from tests.support.places import quick_place

T = TypeVar("T")
Call: TypeAlias = Coroutine[Any, Any, T]

OfProcess: TypeAlias = Callable[[Process], Call[T]]
Data: TypeAlias = st.DataObject


# -- which writers a rule is for -------------------------------------------------------------------


def living(writer: Writer) -> bool:
    """It goes on by itself."""
    return writer.lives


def moving(writer: Writer) -> bool:
    """Some of its turns stand still."""
    return writer.lives and writer.where == TURNS


def held(writer: Writer) -> bool:
    """A commit of it is on its way."""
    return writer.lives and writer.where == HELD


def at_hand(writer: Writer) -> bool:
    """Its process was not killed."""
    return not writer.dead


def not_held(writer: Writer) -> bool:
    """It is at hand, and no commit of it is on its way."""
    return at_hand(writer) and not held(writer)


def resting(writer: Writer) -> bool:
    """It is at hand, but does not go on by itself."""
    return at_hand(writer) and not writer.lives


def has_lost(writer: Writer) -> bool:
    """Another took its run, and it does not know that yet."""
    return writer.lives and writer.is_behind


# -- the machine without its rules -----------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """A store, processes that drive runs in it, and the model of both."""

    make_store: Callable[[Path], Store]

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(dir=quick_place())
        self.world, self.model = World(), Model()
        self.looking = Looking(self.model)
        self.stores: list[Store] = []
        self.processes: dict[Writer, Process] = {}
        self.answers_made = 0
        self._to_end: list[Process] = []
        self.open_store()

    def open_store(self) -> None:
        """Use the store by a new object from now on."""
        self.stores.append(self.make_store(Path(self.folder.name)))

    # -- doing the same to both --------------------------------------------------------------------

    def do(self, work: Call[T]) -> T:
        """Let the event loop run."""
        return self.world.loop.run_until_complete(work)

    def new_process(self) -> Process:
        """Another process that uses the store."""
        process = Process(self.stores[-1], self.world)
        self._to_end.append(process)
        return process

    def calls(self, *calls: tuple[Process, OfProcess[T]]) -> list[tuple[T | None, BaseException | None]]:
        """What calls give or raise that processes make at the same time."""

        async def make_all() -> list[tuple[T | None, BaseException | None]]:
            begun = [process.begin(partial(call, process)) for process, call in calls]
            return await self.world.outcomes(*begun)

        return self.do(make_all())

    def begin(self, said: Callable[[], Writer], call: OfProcess[Run]) -> None:
        """Let a new process drive a run, unless that cannot be, or another one does so already."""
        process = self.new_process()
        writer, expected = outcome(said)
        [(process.run, error)] = self.calls((process, call))
        self.same(error, expected)
        if writer in self.processes:
            agree(process.run, self.processes[writer].run, "the object that drives the run")
            process.run = None
        elif writer is not None:
            self.processes[writer] = process

    def call(self, writer: Writer, said: Callable[[], Any], call: Callable[[Run], Call[Any]]) -> None:
        """Call a method of a run that some process has; one that waits for a commit on its way is given up."""
        _, expected = outcome(said)
        [(_, error)] = self.calls((self.processes[writer], lambda process: call(run_of(process))))
        self.same(None if isinstance(error, NotDone) and held(writer) else error, expected)

    def ask(self, said: Callable[[], Any], call: Callable[[CheckpointStorage], Call[Any]]) -> None:
        """Ask something of the storage, from nowhere in particular."""
        _, expected = outcome(said)
        [(_, error)] = self.calls((self.new_process(), lambda process: call(process.storage)))
        self.same(error, expected)

    def let_go(self, writer: Writer, *turns: str, fails: bool = False) -> None:
        """Let turns come to their end."""
        for turn in turns:
            writer.finish(turn, fails)
            self.processes[writer].let_go(turn, fails)
        self.do(self.world.settle())

    def go_on_with(self, writer: Writer, supersteps: int = 1000) -> None:
        """Let a writer take so many supersteps, or as many as there are."""
        while moving(writer) and supersteps:
            self.let_go(writer, *sorted(writer.turns))
            supersteps -= 1

    def hold_next(self, writer: Writer, where: str) -> None:
        """Hold the next checkpoints of a writer on their way; or no longer."""
        writer.hold = where
        self.processes[writer].wire.hold_next(where)

    def let_through(self, writer: Writer, fails: bool) -> None:
        """Let a commit that is held go on its way, or tell of an error in its place."""
        writer.let_through(fails)
        self.processes[writer].wire.let_through(fails)
        self.do(self.world.settle())

    def kill(self, writer: Writer) -> None:
        """Let the process die that drives a run."""
        self.model.crash(writer)
        self.processes[writer].die()

    def pass_a_moment(self) -> None:
        """Time enough for what happens soon."""
        self.model.pass_moment()
        self.do(self.world.pass_time(0.01))

    def start(self, run_id: str, number: int) -> None:
        """Start a run in a new process."""
        self.begin(
            lambda: self.model.start(run_id, number),
            lambda process: ROUNDS.start(number, run_id=run_id, storage=process.storage),
        )

    def attach(self, run_id: str, number: int) -> None:
        """Start a run, or go on with it."""
        self.begin(
            lambda: self.model.attach(run_id, number),
            lambda process: ROUNDS.start(number, run_id=run_id, storage=process.storage, if_exists="attach"),
        )

    def resume(self, run: StoredRun, target: Checkpoint | None = None, take_over: bool = False) -> None:
        """Go on with a run in a new process, from a checkpoint or from where it stands."""
        by: dict[str, Any] = (
            {"run_id": run.run_id} if target is None else {"checkpoint": self.looking.id_of(target)}
        )
        self.begin(
            lambda: self.model.resume(run, target, take_over=take_over),
            lambda process: ROUNDS.resume(**by, storage=process.storage, take_over=take_over),
        )

    def leave(self, writer: Writer, how: str) -> None:
        """Cancel or close a run."""
        if how == "cancel":
            self.call(writer, lambda: self.model.cancel(writer), lambda run: run.cancel())
        else:
            self.call(writer, lambda: self.model.close(writer), lambda run: run.close())

    def cancel_by_storage(self, run: StoredRun) -> None:
        """Cancel a run from elsewhere."""
        self.ask(lambda: self.model.storage_cancel(run), lambda storage: storage.cancel(run.run_id))

    def answer_all(self, writer: Writer) -> None:
        """Answer all that a run asks, if it asks anything."""
        answers = {known: self.new_answer(writer.held.asked[known].kind) for known in writer.pending}
        if answers:
            self.call(writer, lambda: self.model.respond(writer, answers), lambda run: run.respond(answers))

    def answer_by_storage(self, run: StoredRun) -> None:
        """Answer from elsewhere what nobody has answered."""
        answers = {known: self.new_answer(run.head.held.asked[known].kind) for known in run.unanswered}
        if answers:
            self.ask(
                lambda: self.model.storage_respond(run, answers),
                lambda storage: storage.respond(run.run_id, answers),
            )

    def same(self, error: BaseException | None, expected: BaseException | None) -> None:
        """Raise unless there is no error, or one of the kind that the model says."""
        if type(error) is not type(expected):
            raise AssertionError(f"got {error!r}, but the model says {expected!r}") from error

    # -- at the same time --------------------------------------------------------------------------

    def one_of(
        self, rivals: int, call: Callable[[int, Process], Call[T]], loses: type[Exception]
    ) -> tuple[int, Process]:
        """Which of several processes, that try it at the same time, succeeds: exactly one."""
        processes = [self.new_process() for _ in range(rivals)]
        outcomes = self.calls(*((process, partial(call, number)) for number, process in enumerate(processes)))
        for process, (result, _) in zip(processes, outcomes, strict=True):
            process.run = result if isinstance(result, Run) else None
        winners = [number for number, (_, error) in enumerate(outcomes) if error is None]
        agree(len(winners), 1, f"those who won, of {outcomes}")
        agree(
            {type(error) for _, error in outcomes} <= {type(None), loses}, True, f"the others, of {outcomes}"
        )
        return winners[0], processes[winners[0]]

    def begin_by_one_of(
        self,
        rivals: int,
        said: Callable[[int], Writer],
        call: Callable[[int, Process], Call[Run]],
        loses: type[Exception],
    ) -> None:
        """Let several new processes try to drive a run at the same time; the model is told which did."""
        winner, process = self.one_of(rivals, call, loses)
        self.processes[said(winner)] = process

    # -- choosing ----------------------------------------------------------------------------------

    def pick_writer(self, data: Data, chosen: Callable[[Writer], bool]) -> Writer:
        """Any of those; one that is not over three times as often."""
        names = {
            f"{number} of {writer.run.run_id}": writer
            for number, writer in enumerate(self.model.writers)
            if chosen(writer)
        }
        rather = [name for name, writer in names.items() if not writer.status.ended]
        return names[data.draw(st.sampled_from(rather * 2 + list(names)), "writer")]

    def pick_run(self, data: Data, chosen: Callable[[StoredRun], bool] = lambda run: True) -> StoredRun:
        names = [run.run_id for run in self.model.runs.values() if chosen(run)]
        return self.model.runs[data.draw(st.sampled_from(names), "run")]

    def pick_checkpoint(self, data: Data, run: StoredRun) -> Checkpoint:
        """Any of its checkpoints; the head, and where something is asked, a little more often."""
        asking = [made.seq for made in run.made if made.held.asked] or [1]
        seqs = st.one_of(st.integers(1, len(run.made)), st.sampled_from(asking), st.just(len(run.made)))
        return run.made[data.draw(seqs, "seq") - 1]

    def pick_answers(self, data: Data, asked_in: Held) -> dict[str, Any]:
        """Answers, each another one; right ones most of the time."""
        asked, answered = asked_in.asked, sorted(asked_in.answered)
        kinds = ["one", "one", "all", "all", "wrong type", "one and an unknown"] if asked else []
        kinds += ["unknown", "answered"] if answered else ["unknown"]
        kind = data.draw(st.sampled_from(kinds), "answers")
        if kind == "unknown":
            return {"nobody": 1}
        if kind == "answered":
            return {answered[0]: self.new_answer(int)}
        one = data.draw(st.sampled_from(sorted(asked)), "question")
        if kind == "wrong type":
            return {one: 1.5}
        if kind == "all":
            return {known: self.new_answer(question.kind) for known, question in asked.items()}
        return {one: self.new_answer(asked[one].kind)} | ({"nobody": 1} if kind != "one" else {})

    def new_answer(self, kind: type) -> Any:
        """An answer that nobody gave before, so that none can be taken for another."""
        self.answers_made += 1
        return kind(self.answers_made)

    # -- comparing ---------------------------------------------------------------------------------

    @property
    def storage(self) -> CheckpointStorage:
        """The store as someone sees it who does not take part."""
        return CheckpointStorage(self.stores[-1])

    @invariant()
    def is_what_the_model_says(self) -> None:
        self.look_on()
        self.do(self.looking.at_news(self.storage))
        self.looking.at_payments(self.world.paid)
        for writer, process in self.processes.items():
            if at_hand(writer):
                run = run_of(process)
                pending = [request.request_id for request in run.pending_requests]
                agree(
                    (run.status, process.turns, process.wire.holds, pending, run.result().outputs),
                    (writer.status, writer.turns, held(writer), writer.pending, writer.held.outputs),
                    f"what drives, or drove, {run.run_id}",
                )

    def look_on(self) -> None:
        """For those who want to see what happens; called after each step."""

    def bring_to_its_end(self, run: StoredRun) -> None:
        """Whatever happened, a run can be brought to its end; then its outputs are those of the model."""
        while run.status is not RunStatus.COMPLETED:
            self.resume(run, take_over=True)
            writer = self.model.writers[-1]
            while not writer.status.ended:
                self.go_on_with(writer)
                if writer.status is RunStatus.WAITING:
                    self.answer_all(writer)
        self.is_what_the_model_says()

    def teardown(self) -> None:
        with ExitStack() as ends:
            ends.callback(self.folder.cleanup)
            ends.callback(self.world.end)
            ends.callback(lambda: self.do(self._end()))
            if sys.exc_info()[1] is None:
                self.bring_to_its_end(max(self.model.runs.values(), key=lambda run: len(run.made)))
                self.do(self.looking.at_all(self.storage))

    async def _end(self) -> None:
        for process in self._to_end:
            await process.end()
        for store in self.stores:
            await store.close()


def run_of(process: Process) -> Run:
    """The run that a process has."""
    assert process.run is not None
    return process.run


def outcome(call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """What the model says that a call gives or raises."""
    try:
        return call(), None
    except Exception as error:
        return None, error
