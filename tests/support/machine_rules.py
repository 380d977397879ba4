"""All that may happen to stored runs, as rules that do the same to Holdfast and to the model."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from holdfast.errors import RequestAlreadyAnswered, RunExists, RunTaken
from tests.support.machine import (
    Data,
    Machine,
    at_hand,
    has_lost,
    held,
    living,
    moving,
    not_held,
    outcome,
    resting,
    run_of,
)
from tests.support.machine_looking import agree
from tests.support.machine_stored import StoredRun
from tests.support.machine_workflow import ROUNDS, TOTAL
from tests.support.machine_writer import AFTER, BEFORE, WAITING, Writer
from tests.support.model import MOST_TAKEOVERS, NotDone
from tests.support.parts import MemoryStore

MOST_RUNS = 4
DATA = st.data()
EDITS: dict[str, tuple[dict[Any, Any], dict[tuple[str, str], Any]]] = {
    "nothing": ({}, {}),
    "the step": ({"step": 2}, {("shared", "step"): 2}),
    "the total": ({TOTAL: 1000}, {("Sum", "total"): 1000}),
    "both": ({("Sum", "total"): 7, "step": 3}, {("Sum", "total"): 7, ("shared", "step"): 3}),
}
"""As users write them, and as the model does."""


def one_of(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


def for_some(chosen: Callable[[Writer], bool]) -> Any:
    """Only while there is such a writer."""
    return precondition(lambda self: any(map(chosen, self.model.writers)))


def for_some_run(chosen: Callable[[StoredRun], bool]) -> Any:
    """Only while there is such a run."""
    return precondition(lambda self: any(map(chosen, self.model.runs.values())))


def up_for_grabs(run: StoredRun) -> bool:
    """It moves as soon as someone resumes it, who is its only owner then."""
    return not run.driven and bool(run.head.held.messages) and run.takeovers < MOST_TAKEOVERS


def asks(run: StoredRun) -> bool:
    """It has a question that nobody has answered."""
    return bool(run.unanswered)


MEANWHILE: dict[str, Callable[[Machine, Writer], None]] = {
    "it is cancelled": lambda machine, writer: machine.leave(writer, "cancel"),
    "it is closed": lambda machine, writer: machine.leave(writer, "close"),
    "someone cancels it": lambda machine, writer: machine.cancel_by_storage(writer.run),
    "someone resumes it": lambda machine, writer: machine.resume(writer.run),
    "someone takes it": lambda machine, writer: machine.resume(writer.run, take_over=True),
    "it is answered": lambda machine, writer: machine.answer_all(writer),
    "someone answers": lambda machine, writer: machine.answer_by_storage(writer.run),
}
"""What may happen to a run while a commit of it is on its way."""


def _end_a_turn(machine: Machine, writer: Writer) -> None:
    machine.let_go(writer, min(writer.turns))
    machine.pass_a_moment()


THEN: dict[str, Callable[[Machine, Writer], None]] = {
    "nothing": lambda machine, writer: None,
    "it goes on": lambda machine, writer: machine.go_on_with(writer, 1),
    "a turn ends": _end_a_turn,
    "it is cancelled": lambda machine, writer: machine.leave(writer, "cancel"),
    "it is answered": lambda machine, writer: machine.answer_all(writer),
}
"""What may happen to a writer whose run was taken away."""


class Anything(Machine):
    """All that may happen to runs."""

    # -- beginning ---------------------------------------------------------------------------------

    @initialize(number=st.integers(1, 2))
    def first_run(self, number: int) -> None:
        self.start("run-0", number)

    @rule(data=DATA, number=st.integers(1, 2), attach=st.booleans())
    def start_again(self, data: Data, number: int, attach: bool) -> None:
        run_id = self.pick_run(data).run_id
        self.attach(run_id, number) if attach else self.start(run_id, number)

    @precondition(lambda self: len(self.model.runs) < MOST_RUNS)
    @rule(number=st.integers(1, 2), rivals=st.integers(1, 3))
    def start_a_run(self, number: int, rivals: int) -> None:
        run_id = f"run-{len(self.model.runs)}"
        self.begin_by_one_of(
            rivals,
            lambda winner: self.model.start(run_id, number),
            lambda rival, process: ROUNDS.start(number, run_id=run_id, storage=process.storage),
            loses=RunExists,
        )

    @rule(data=DATA, edited=st.sampled_from(sorted(EDITS)))
    def fork(self, data: Data, edited: str) -> None:
        target = self.pick_checkpoint(data, self.pick_run(data))
        run_id = f"run-{min(len(self.model.runs), MOST_RUNS - 1)}"  # it is there when there are enough
        edits, said = EDITS[edited]
        self.begin(
            lambda: self.model.fork(target, run_id, said),
            lambda process: ROUNDS.fork(
                self.looking.id_of(target), edits, run_id=run_id, storage=process.storage
            ),
        )

    # -- moving on ---------------------------------------------------------------------------------

    @for_some(moving)
    @rule(data=DATA, supersteps=st.integers(1, 4))
    def go_on(self, data: Data, supersteps: int) -> None:
        self.go_on_with(self.pick_writer(data, moving), supersteps)

    @for_some(not_held)
    @rule(data=DATA, eager=st.booleans())
    def go_on_with_all_answers(self, data: Data, eager: bool) -> None:
        writer = self.pick_writer(data, not_held)
        while moving(writer):
            self.go_on_with(writer, 1)
            if eager or writer.status is WAITING:
                self.answer_all(writer)

    @for_some(moving)
    @rule(data=DATA, fails=st.booleans(), soon=st.booleans())
    def end_a_turn(self, data: Data, fails: bool, soon: bool) -> None:
        writer = self.pick_writer(data, moving)
        self.let_go(writer, data.draw(st.sampled_from(sorted(writer.turns)), "turn"), fails=fails)
        if soon:
            self.pass_a_moment()

    # A run that is left while a commit is held is given up after some seconds; and one that was lost may look first.
    @precondition(lambda self: not any(held(writer) or has_lost(writer) for writer in self.model.writers))
    @rule()
    def pass_seconds(self) -> None:
        self.model.pass_seconds()
        for _ in range(3):
            self.do(self.world.pass_time(1))

    # -- commits on their way ----------------------------------------------------------------------

    @for_some(moving)
    @rule(
        data=DATA,
        where=one_of(BEFORE, AFTER),
        later=st.sampled_from([0, 1, 9]),
        meanwhile=st.lists(one_of(*MEANWHILE), max_size=2),
        then=one_of("stays", "goes through", "fails"),
    )
    def hold_a_commit(self, data: Data, where: str, later: int, meanwhile: list[str], then: str) -> None:
        writer = self.pick_writer(data, moving)
        while later and moving(writer) and not writer.is_last:
            self.go_on_with(writer, 1)
            later -= 1
        self.hold_next(writer, where)
        self.go_on_with(writer, 1)
        self.hold_next(writer, "")  # a superstep that failed has committed nothing
        for happens in meanwhile if held(writer) else ():
            self.is_what_the_model_says()
            MEANWHILE[happens](self, writer)
        if held(writer) and then != "stays":
            self.is_what_the_model_says()
            self.let_through(writer, then == "fails")

    @for_some(held)
    @rule(data=DATA, fails=st.booleans())
    def let_a_commit_through(self, data: Data, fails: bool) -> None:
        self.let_through(self.pick_writer(data, held), fails)

    # -- dying and going on ------------------------------------------------------------------------

    @for_some(living)
    @rule(data=DATA, resumed=st.sampled_from([0, 0, 1, 6]))
    def crash(self, data: Data, resumed: int) -> None:
        writer = self.pick_writer(data, living)
        self.kill(writer)
        for _ in range(resumed):
            if up_for_grabs(writer.run) or writer.run.takeovers == MOST_TAKEOVERS:
                self.resume(writer.run)
                self.kill(self.model.writers[-1])

    @rule(data=DATA, back=st.booleans(), take_over=st.booleans())
    def resume_a_run(self, data: Data, back: bool, take_over: bool) -> None:
        run = self.pick_run(data)
        self.resume(run, self.pick_checkpoint(data, run) if back else None, take_over)

    @for_some(moving)
    @rule(data=DATA, supersteps=st.integers(0, 3), then=one_of(*THEN))
    def take_over(self, data: Data, supersteps: int, then: str) -> None:
        first = self.pick_writer(data, moving)
        self.resume(first.run, take_over=True)
        second = self.model.writers[-1]
        for _ in range(supersteps):
            self.go_on_with(second, 1)
            self.answer_all(second)
        self.is_what_the_model_says()
        if at_hand(first) and not first.status.ended:
            THEN[then](self, first)

    @for_some_run(up_for_grabs)
    @rule(data=DATA)
    def resume_at_the_same_time(self, data: Data) -> None:
        run = self.pick_run(data, up_for_grabs)
        self.begin_by_one_of(
            3,
            lambda winner: self.model.resume(run),
            lambda rival, process: ROUNDS.resume(run_id=run.run_id, storage=process.storage),
            loses=RunTaken,
        )

    @rule(data=DATA, back=st.booleans())
    def resume_with_answers(self, data: Data, back: bool) -> None:
        run = self.pick_run(data)
        target = self.pick_checkpoint(data, run) if back else run.head
        answers = self.pick_answers(data, target.held)
        self.begin(
            lambda: self.model.resume(run, target, answers),
            lambda process: ROUNDS.resume(self.looking.id_of(target), answers, storage=process.storage),
        )

    @for_some(not_held)
    @rule(data=DATA)
    def restore(self, data: Data) -> None:
        writer = self.pick_writer(data, not_held)
        run = data.draw(one_of(*[writer.run.run_id] * 3, *self.model.runs), "run of the checkpoint")
        target = self.pick_checkpoint(data, self.model.runs[run])
        self.call(
            writer,
            lambda: self.model.restore(writer, target),
            lambda run: run.restore_checkpoint(self.looking.id_of(target)),
        )

    # -- answers -----------------------------------------------------------------------------------

    @for_some(at_hand)
    @rule(data=DATA, where=one_of("", BEFORE, AFTER))
    def respond(self, data: Data, where: str) -> None:
        writer = self.pick_writer(data, at_hand)
        answers = self.pick_answers(data, writer.held)
        self.hold_next(writer, where if writer.status is WAITING else "")
        self.call(writer, lambda: self.model.respond(writer, answers), lambda run: run.respond(answers))
        self.hold_next(writer, "")

    @rule(data=DATA)
    def respond_by_storage(self, data: Data) -> None:
        run = self.pick_run(data)
        answers = self.pick_answers(data, run.head.held)
        self.ask(
            lambda: self.model.storage_respond(run, answers),
            lambda storage: storage.respond(run.run_id, answers),
        )

    @for_some_run(asks)
    @rule(data=DATA)
    def respond_at_the_same_time(self, data: Data) -> None:
        run = self.pick_run(data, asks)
        question = data.draw(one_of(*run.unanswered), "question")
        answers = [{question: self.new_answer(run.head.held.asked[question].kind)} for _ in range(3)]
        winner, _ = self.one_of(
            3,
            lambda rival, process: process.storage.respond(run.run_id, answers[rival]),
            loses=RequestAlreadyAnswered,
        )
        self.model.storage_respond(run, answers[winner])

    @for_some(resting)
    @rule(data=DATA)
    def wait_for_completion(self, data: Data) -> None:
        writer = self.pick_writer(data, resting)
        _, refused = outcome(lambda: self.model.wait(writer))
        [(result, error)] = self.calls(
            (self.processes[writer], lambda process: run_of(process).wait_for_completion())
        )
        expected = type(refused) if refused else NotDone if writer.where else writer.error
        agree(error and type(error), expected, f"what waiting for {writer.run.run_id} raised ({error!r})")
        if result is not None:
            agree((result.status, result.outputs), (writer.status, writer.held.outputs), "the result")

    # -- ending ------------------------------------------------------------------------------------

    @for_some(at_hand)
    @rule(data=DATA, how=one_of("cancel", "close"))
    def leave_a_run(self, data: Data, how: str) -> None:
        self.leave(self.pick_writer(data, at_hand), how)

    @rule(data=DATA)
    def cancel_from_elsewhere(self, data: Data) -> None:
        self.cancel_by_storage(self.pick_run(data))

    @precondition(lambda self: len(self.stores) < 3 and not isinstance(self.stores[-1], MemoryStore))
    @rule(killed=st.booleans())
    def open_the_store_again(self, killed: bool) -> None:
        if killed:
            for writer in filter(at_hand, self.model.writers):
                self.kill(writer)
            self.do(self.stores[-1].close())
        self.open_store()
