"""What drives a run: all that it does by itself, with the places where it can be made to stand still."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

from holdfast import RunStatus
from holdfast.errors import ExecutorFailed, RunTaken, StorageError
from tests.support.machine_held import Answers, Held, check_answers, superstep, with_answers
from tests.support.machine_stored import Entry, Key, Letter, Letters, StoredRun

RUNNING, WAITING, COMPLETED = RunStatus.RUNNING, RunStatus.WAITING, RunStatus.COMPLETED
FAILED, CANCELLED, STOPPED = RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.STOPPED

TURNS, HELD = "turns", "held"
"""Where a writer stands still: some of its turns are not over, or a commit of it is on its way."""
BEFORE, AFTER = "before", "after"
"""Where a commit is held: before the store has it, or when it is stored but its writer was not told."""

Standstill = Generator[str, bool | None, None]
"""Yields where a writer stands still; who lets a commit go on its way sends whether it is to fail."""

Pay = Callable[[str, int], int]


class Leave(Exception):
    """Thrown where a writer stands: its turns end, and what they did does not count."""


class Failure(Exception):
    """A superstep, or its commit, failed with an error of this kind."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind


class Writer:
    """An object that drives a run, in a process of its own. ``_life`` says what it does, from top to bottom."""

    def __init__(self, run: StoredRun, held: Held, pay: Pay) -> None:
        self.run, self._pay = run, pay
        self.status = RUNNING
        """How it says that the run stands."""
        self.error: type[Exception] | None = None
        self.dead = False
        self.hold = ""
        """Where its next commit of checkpoints is held."""
        self.stand_on(held)

    def stand_on(self, held: Held) -> None:
        """Believe what the store says now, and nothing that was believed before."""
        self.held = held
        self.seen = self.run.seen
        self.inbox: Letters = {}
        """The letters as it saw them last."""
        self.accepted: dict[str, Any] = {}
        self.void: set[Key] = set()
        """Letters that are of no use, or have been acted on."""
        self.cancel_asked = False
        self.leaving: RunStatus | None = None
        self.over: set[str] = set()
        """The turns of its first superstep that the journal had, so that they are not run again."""
        self.ticket = 0
        self.turns: set[str] = set()
        """The turns that stand still."""
        self.unnoted: list[str] = []
        """Turns that are over, but not in the journal yet."""
        self.failing = False
        self.where = ""

    @property
    def lives(self) -> bool:
        """Whether it goes on by itself."""
        return not self.dead and self.status is RUNNING

    @property
    def pending(self) -> list[str]:
        """The questions that it would take answers to."""
        return [] if self.status.ended else [known for known in self.held.asked if known not in self.accepted]

    @property
    def is_behind(self) -> bool:
        """Whether someone else moved the run on, took it or ended it."""
        return not self.run.is_at(self.seen)

    @property
    def is_last(self) -> bool:
        """Whether nothing will be on its way behind the superstep under way."""
        return not superstep(self.held, 1, 1).messages and not self.accepted

    # -- letting it move ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Move on until it stands still or rests."""
        self.status, self.error, self.leaving = RUNNING, None, None
        self._alive = self._life()
        self._move(lambda: next(self._alive))

    def finish(self, turn: str, fails: bool = False) -> None:
        """Let one of its turns come to its end; with the last one, the superstep does."""
        self.turns.remove(turn)
        self.failing = self.failing or fails
        if not fails and len(self.held.turns) > 1:
            self.unnoted.append(turn)
        if not self.turns:
            self._move(lambda: next(self._alive))

    def let_through(self, fails: bool) -> None:
        """Let a commit that is held go on its way, or tell of an error in its place."""
        self._move(lambda: self._alive.send(fails))

    def leave(self, status: RunStatus) -> None:
        """End the run; a commit that is on its way comes first."""
        if self.where == HELD:
            self.leaving = self.leaving or status
        elif self.status is WAITING:
            self._rest(status)
        elif self.status is RUNNING:
            self.leaving = status
            self.stop(Leave())

    def stop(self, error: Exception) -> None:
        """End its turns."""
        self._move(lambda: self._alive.throw(error))

    def _move(self, move: Callable[[], str]) -> None:
        try:
            self.where = move()
        except StopIteration:
            self.where = ""

    # -- all that it does --------------------------------------------------------------------------

    def _life(self) -> Standstill:
        try:
            while not self.cancel_asked:
                if self.accepted and not self.held.messages:
                    yield from self._deliver()
                if self.leaving is not None:
                    break
                if self.held.messages:
                    yield from self._superstep()
                    self.take_letters()
                elif not (self._tell(self.held.at_rest) and self.take_letters()):
                    break
            self._rest(CANCELLED if self.cancel_asked else self.leaving or self.held.at_rest)
        except Leave:
            self._rest(self.leaving or STOPPED)
        except RunTaken:
            self._rest(FAILED, RunTaken)
        except Failure as failure:
            self._rest(FAILED, failure.kind)

    def _deliver(self) -> Standstill:
        """Answers are committed before anyone acts on them."""
        answers = dict(self.accepted)
        held = with_answers(self.held, answers)
        yield from self._commit([Entry("start", held.superstep + 1, "response", RUNNING, held)], answers)
        self._now_hold(held, answers)

    def _superstep(self) -> Standstill:
        """Turns, then one commit: the end, and the start of the next with the answers that came in meanwhile."""
        self.turns, ticket = set(self.held.turns) - self.over, self.ticket
        self.over, self.ticket, self.unnoted, self.failing = set(), 0, [], False
        if "Right" in self.turns and not ticket:  # it pays before it stands still, and has noted that then
            if self.is_behind:  # it looks who drives the run right before it pays
                raise RunTaken
            ticket = self._pay(self.run.run_id, self.seen.seq)
            self.write(RUNNING)
            self.run.ticket = ticket
        if self.turns:
            yield TURNS
        if self.failing:
            raise Failure(ExecutorFailed)
        self.unnoted = []
        after, answers = superstep(self.held, ticket, self.seen.seq + 1), dict(self.accepted)
        status = RUNNING if after.messages or answers else after.at_rest
        entries = [Entry("end", after.superstep, "superstep", status, after)]
        if status is RUNNING:
            after = with_answers(after, answers)
            cause = "response" if answers else "superstep"
            entries.append(Entry("start", after.superstep + 1, cause, RUNNING, after))
        yield from self._commit(entries, answers)
        self._now_hold(after, answers)

    def _now_hold(self, held: Held, answers: Answers) -> None:
        self.held = held
        self.accepted = {known: answer for known, answer in self.accepted.items() if known not in answers}

    def _commit(self, entries: Sequence[Entry], answers: Answers) -> Standstill:
        """Commit checkpoints, which use up the letters with their answers."""
        taken = {(self.held.asked[known].asked_by, known) for known in answers} | self.void
        self.void = set()
        hold, self.hold = self.hold, ""
        if hold == BEFORE and (yield HELD):
            raise Failure(StorageError)
        before = self.seen
        self.write(entries[-1].status, entries=entries, taken=taken)
        if hold == AFTER and (yield HELD):  # it looks whether that is stored
            if self.is_behind:
                self.seen = before
                raise Failure(StorageError)
            self.inbox = dict(self.run.letters)

    def write(self, status: RunStatus, **what: Any) -> None:
        """Commit, and see the inbox as it is then."""
        self.seen = self.run.commit(self.seen, self, status, **what)
        self.inbox = dict(self.run.letters)

    def _rest(self, status: RunStatus, error: type[Exception] | None = None) -> None:
        """Come to rest. What is stored counts: a run that is complete stays so, and one that waits if it is left."""
        stored = self.seen.status
        if (stored is COMPLETED and status is not FAILED) or (stored is WAITING and status is STOPPED):
            status = stored
        if error is not RunTaken:
            self._tell(status)
        self.status, self.error, self.turns, self.accepted = status, error, set(), {}

    def _tell(self, status: RunStatus) -> bool:
        """Let the head say how the run stands; whether it had to be told. Who lost the run tells it nothing."""
        if status is self.seen.status and not self.void:
            return False
        taken, self.void = self.void, set()
        if not self.is_behind:
            self.write(status, taken=taken, noted=self.unnoted)
            if status.ended:
                self.run.forget_cancels()
        return True

    def note(self) -> None:
        """Turns that are over come into the journal; a writer that lost the run learns it then."""
        if self.unnoted and self.is_behind:
            self.stop(RunTaken())
        elif self.unnoted:
            self.write(RUNNING, noted=self.unnoted)
            self.unnoted = []

    def own(self) -> None:
        """Take over a run that says RUNNING; so many die with it, one after the other, and no more."""
        takeovers = self.run.takeovers + 1
        self.write(RUNNING)
        self.run.takeovers = takeovers

    # -- letters -----------------------------------------------------------------------------------

    def look(self) -> bool:
        """Look into the inbox now, and take what is there."""
        self.inbox = dict(self.run.letters)
        return self.take_letters()

    def take_letters(self) -> bool:
        """Take what others left, as it was seen last; whether there is something to act on."""
        found = False
        for letter in self.inbox.values():
            asked = self.held.asked.get(letter.request_id)
            if asked is not None and asked.asked_by == letter.asked_by:
                self.accepted.setdefault(letter.request_id, letter.answer)
                found = True
            else:
                self.void.add(letter.key)
                self.cancel_asked = self.cancel_asked or letter.cancels
                found = found or letter.cancels
        return found

    def check(self, answers: Answers) -> None:
        """Raise unless it would take these answers."""
        check_answers(self.held, answers, self.accepted)

    def respond(self, answers: Answers) -> None:
        """Leave answers as letters, so that they are durable; then act on them at the next barrier."""
        self.run.leave([Letter(self.held.asked[known].asked_by, known, a) for known, a in answers.items()])
        self.accepted.update(answers)
