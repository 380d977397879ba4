"""What stored runs do, said as simply as it can be said: plain data, no engine, no event loop, no bytes.

This is the specification that ``tests/properties/test_machine.py`` holds Holdfast to.

- ``machine_held``: what a run holds, and what a superstep makes of it.
- ``machine_stored``: what a store has of a run, and that a commit has one winner.
- ``machine_writer``: what an object that drives a run does by itself.
- Here: what people do to runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidArgument, RunEnded, RunExists, RunPoisoned, RunTaken
from tests.support.machine_held import Answers, Held, asked_again, check_answers, first_held, with_edits
from tests.support.machine_stored import Checkpoint, Entry, Letter, Place, StoredRun
from tests.support.machine_writer import CANCELLED, FAILED, RUNNING, STOPPED, TURNS, WAITING, Writer

MOST_TAKEOVERS = 5


class NotDone(Exception):
    """A call waits for something that has not happened yet."""


class Model:
    """All runs of a store, those who drive them, and what was paid."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.writers: list[Writer] = []
        self.paid: list[Place] = []
        """On which checkpoint its run stood, for each payment; its number is the ticket."""
        self._cancels = 0

    def _pay(self, run_id: str, seq: int) -> int:
        self.paid.append((run_id, seq))
        return len(self.paid)

    # -- beginning ---------------------------------------------------------------------------------

    def start(self, run_id: str, number: int) -> Writer:
        """Start a run; its input is its first checkpoint."""
        return self._begin(run_id, [Entry("start", 1, "input", RUNNING, first_held(number))])

    def attach(self, run_id: str, number: int) -> Writer:
        """Start a run, or go on with it if it had the same input; what drives it already goes on doing so."""
        run = self.runs[run_id]
        first = run.made[0]
        while first.parent is not None:  # a fork has the input of the run that it was made from
            first = self.runs[first.parent[0]].made[0]
        if first.held.messages != first_held(number).messages:
            raise RunExists(run_id)
        if run.driven and isinstance(run.owner, Writer) and run.owner.leaving is None:
            return run.owner
        return self.resume(run)

    def fork(self, target: Checkpoint, run_id: str, edits: Mapping[tuple[str, str], Any]) -> Writer:
        """Begin a run where another stood, with some values of shared state other than they were."""
        first, *rest = standing_again("fork", target, 1)
        if edits:
            edited = with_edits(first.held, edits)
            rest = [
                first._replace(cause="edit", held=edited),
                *(entry._replace(held=edited) for entry in rest),
            ]
        return self._begin(run_id, [first, *rest], target.place)

    def _begin(self, run_id: str, entries: Sequence[Entry], parent: Place | None = None) -> Writer:
        if run_id in self.runs:
            raise RunExists(run_id)
        run = self.runs[run_id] = StoredRun(run_id)
        writer = Writer(run, entries[-1].held, self._pay)
        writer.write(entries[-1].status, entries=entries, parent=parent)
        return self._let_live(writer)

    def _let_live(self, writer: Writer) -> Writer:
        writer.take_letters()
        if writer not in self.writers:
            self.writers.append(writer)
        writer.begin()
        return writer

    # -- going on ----------------------------------------------------------------------------------

    def resume(
        self,
        run: StoredRun,
        target: Checkpoint | None = None,
        answers: Answers | None = None,
        take_over: bool = False,
    ) -> Writer:
        """Go on from where the run stands, or from an earlier checkpoint; while nobody else does, unless told to."""
        if not take_over:
            self._check_free(run)
        if target is not None and _stands_there(run, target):
            target = None
        held = run.head.held if target is None else target.held
        writer = Writer(run, held, self._pay)
        if answers:
            if not held.messages and not held.asked:
                raise RunEnded(run.run_id)
            writer.check(answers)
            if target is None:  # answers that come too late leave the run as it is
                writer.respond(answers)
        self._open(writer, target)
        if answers and target is not None:
            writer.respond(answers)
        return self._let_live(writer)

    def restore(self, writer: Writer, target: Checkpoint) -> None:
        """Go back in place; also to where the run stands, which discards what the superstep did."""
        if target.run_id != writer.run.run_id:
            raise InvalidArgument(target.run_id)
        if writer.status is RUNNING:
            writer.leave(STOPPED)
        self._check_free(writer.run)
        writer.stand_on(target.held)
        self._open(writer, target)
        self._let_live(writer)

    def _check_free(self, run: StoredRun) -> None:
        """Who is about to leave a run is waited for; else who drives it keeps it, unless all who tried died."""
        if run.driven and run.owner is not None:
            raise RunTaken(run.run_id) if run.owner.leaving is None else NotDone
        if run.status is RUNNING and run.takeovers >= MOST_TAKEOVERS:
            run.end(FAILED)
            raise RunPoisoned(run.run_id)

    def _open(self, writer: Writer, target: Checkpoint | None) -> None:
        """Own the run if it moves. Where it stands it goes on with its journal; to ``target`` it goes without."""
        run, over, ticket = writer.run, writer.run.journal, writer.run.ticket
        if run.status is RUNNING:
            writer.own()
        elif target is None and writer.held.messages:
            writer.write(RUNNING)
        if target is None:
            writer.over, writer.ticket = set(over), ticket
        else:
            entries = standing_again("restore", target, len(run.made) + 1)
            writer.write(entries[-1].status, entries=entries, parent=target.place)
            writer.held = entries[-1].held
        writer.inbox = dict(run.letters)

    def crash(self, writer: Writer) -> None:
        """Its process is killed: nothing of it arrives in the store any more."""
        writer.dead = True

    # -- answers -----------------------------------------------------------------------------------

    def respond(self, writer: Writer, answers: Answers) -> None:
        """Answer by the object that drives the run, or drove it until it waited; if others did since, for them."""
        if writer.status is WAITING and writer.is_behind:
            self.storage_respond(writer.run, answers)
            return
        if writer.status.ended:
            raise RunEnded(writer.run.run_id)
        writer.check(answers)
        writer.respond(answers)
        if writer.status is WAITING:
            writer.begin()

    def storage_respond(self, run: StoredRun, answers: Answers) -> None:
        """Answer from anywhere else; whoever drives the run finds it."""
        held = run.head.held
        check_answers(held, answers, {})
        run.leave([Letter(held.asked[known].asked_by, known, answer) for known, answer in answers.items()])

    def wait(self, writer: Writer) -> None:
        """Who waits for a run that waits looks for answers that others left, and whether others went on with it."""
        if writer.status is not WAITING:
            return
        if not writer.is_behind:
            if writer.look():
                writer.begin()
        elif writer.run.status is CANCELLED:
            writer.status = CANCELLED
        else:
            raise RunTaken(writer.run.run_id)

    # -- ending ------------------------------------------------------------------------------------

    def cancel(self, writer: Writer) -> None:
        """End the run as CANCELLED."""
        writer.leave(CANCELLED)

    def close(self, writer: Writer) -> None:
        """Leave the run; one that waits goes on waiting."""
        if writer.status is not WAITING:
            writer.leave(STOPPED)

    def storage_cancel(self, run: StoredRun) -> None:
        """End it from anywhere: at once if nobody drives it, else who does is asked to."""
        if run.driven:
            self._cancels += 1
            run.leave([Letter(self._cancels, "")])
            return
        if not run.status.ended:
            run.end(CANCELLED)
        run.forget_cancels()

    # -- time --------------------------------------------------------------------------------------

    def pass_moment(self) -> None:
        """Turns that are over come into the journal soon, without being waited for."""
        for writer in self.writers:
            if writer.lives:
                writer.note()

    def pass_seconds(self) -> None:
        """Who drives a run looks now and then whether it is to be cancelled."""
        self.pass_moment()
        for writer in self.writers:
            if writer.lives and writer.where == TURNS:
                writer.look()
                if writer.cancel_asked:
                    writer.leave(CANCELLED)


def _stands_there(run: StoredRun, target: Checkpoint) -> bool:
    """Whether this is the head, or the end of a superstep with nothing behind it but the start of the next."""
    head = run.head
    return target == head or (
        head.parent == target.place and (head.phase, head.cause) == ("start", "superstep")
    )


def standing_again(cause: str, target: Checkpoint, seq: int) -> list[Entry]:
    """The checkpoints, ``seq`` the first, with which a run stands where one stood before and asks what it asked."""
    held: Held = asked_again(target.held, seq)
    status = RUNNING if held.messages else held.at_rest
    entries = [Entry(target.phase, target.superstep, cause, status, held)]
    if target.phase == "end" and held.messages:
        entries.append(Entry("start", target.superstep + 1, "superstep", RUNNING, held))
    return entries
