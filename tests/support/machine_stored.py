"""What a store has of a run: checkpoints that never change, and a head that one writer moves at a time."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast import RunStatus
from holdfast.errors import RequestAlreadyAnswered, RunTaken
from tests.support.machine_held import Held

Place = tuple[str, int]
"""A checkpoint, by its run and its seq."""
Key = tuple[int, str]
"""A letter, by the checkpoint that asked and the request."""


class Entry(NamedTuple):
    """A checkpoint to be made."""

    phase: str
    superstep: int
    cause: str
    status: RunStatus
    held: Held


class Checkpoint(NamedTuple):
    """A checkpoint that was made."""

    run_id: str
    seq: int
    parent: Place | None
    phase: str
    superstep: int
    cause: str
    status: RunStatus
    held: Held

    @property
    def place(self) -> Place:
        return self.run_id, self.seq


class Letter(NamedTuple):
    """An answer to a question that this checkpoint asked; without a question, the wish that the run be cancelled."""

    asked_by: int
    request_id: str
    answer: Any = None

    @property
    def key(self) -> Key:
        return self.asked_by, self.request_id

    @property
    def cancels(self) -> bool:
        return not self.request_id


Letters = dict[Key, Letter]


class Seen(NamedTuple):
    """The head as a writer saw it last; ``own`` once the token was made for this writer."""

    seq: int
    token: int
    status: RunStatus
    own: bool = False


class Owner(Protocol):
    """What drives a run."""

    leaving: RunStatus | None

    @property
    def lives(self) -> bool:
        """Whether it goes on by itself."""
        ...


class StoredRun:
    """What a store has of a run."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.made: list[Checkpoint] = []
        self.status = RunStatus.RUNNING
        self.owner: Owner | None = None
        self.token = self.takeovers = 0
        self.has_reason = False
        self.journal: set[str] = set()
        """The turns of the superstep to come that are over already."""
        self.ticket = 0
        """What was paid for in the superstep to come; 0 if nothing was."""
        self.letters: Letters = {}
        self._used: set[Key] = set()

    @property
    def head(self) -> Checkpoint:
        """The newest checkpoint: on that the run stands."""
        return self.made[-1]

    @property
    def seen(self) -> Seen:
        """The head as someone sees it who looks now."""
        return Seen(len(self.made), self.token, self.status)

    @property
    def driven(self) -> bool:
        """Whether it is RUNNING and what drives it lives."""
        return self.status is RunStatus.RUNNING and self.owner is not None and self.owner.lives

    def is_at(self, seen: Seen) -> bool:
        """Whether nobody has moved the head, or taken the run, since it was seen so."""
        return seen[:2] == self.seen[:2]

    def commit(
        self,
        seen: Seen,
        owner: Owner,
        status: RunStatus,
        entries: Sequence[Entry] = (),
        parent: Place | None = None,
        taken: Collection[Key] = (),
        noted: Collection[str] = (),
    ) -> Seen:
        """All of it, or nothing: a commit has one winner. Each writer has a token of its own from its first one on.

        The first entry follows ``parent``, or the head. The journal belongs to the checkpoint on which the run stands.
        """
        if not self.is_at(seen):
            raise RunTaken(self.run_id)
        for phase, superstep, cause, standing, held in entries:
            above = parent or (self.head.place if self.made else None)
            seq, parent = len(self.made) + 1, None
            self.made.append(Checkpoint(self.run_id, seq, above, phase, superstep, cause, standing, held))
        if entries:
            self.journal, self.ticket = set(), 0
        self.journal |= set(noted)
        self.letters = {key: letter for key, letter in self.letters.items() if key not in taken}
        self.token += not seen.own
        self.status, self.takeovers, self.has_reason = status, 0, status is RunStatus.FAILED
        self.owner = owner if status is RunStatus.RUNNING else None
        return self.seen._replace(own=True)

    def end(self, status: RunStatus) -> None:
        """End it from outside: whoever drove it can do so no longer."""
        self.status, self.owner, self.takeovers = status, None, 0
        self.has_reason = status is RunStatus.FAILED
        self.token += 1

    @property
    def unanswered(self) -> list[str]:
        """The questions that it asks and nobody has answered."""
        asked = self.head.held.asked
        return [known for known, question in asked.items() if (question.asked_by, known) not in self._used]

    def leave(self, letters: Collection[Letter]) -> None:
        """Anyone may leave letters; a key serves once in the life of the run, so that the first answer counts."""
        if any(letter.key in self._used for letter in letters):
            raise RequestAlreadyAnswered(self.run_id)
        self._used |= {letter.key for letter in letters}
        self.letters |= {letter.key: letter for letter in letters}

    def forget_cancels(self) -> None:
        """The run is over: one that is resumed must not find that it was to be cancelled before."""
        self.letters = {key: letter for key, letter in self.letters.items() if not letter.cancels}
