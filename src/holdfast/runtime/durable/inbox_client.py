"""The inbox of a run as the one reads it who drives the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.inbox import Answer, Cancel, answer_letter, leave_answers, read_letter
from holdfast.checkpoint.read.loading import Blobs
from holdfast.checkpoint.write.log import RunLog
from holdfast.engine.answers import already_answered
from holdfast.engine.status import RunStatus
from holdfast.engine.value import Value
from holdfast.ids import RequestId
from holdfast.runtime.durable.commit_queue import Commits


class Correspondence(Commits):
    """Leaves letters in the inbox of a run, and says which of those that are there are used up."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(log)
        self._letters: dict[RequestId, str] = {}
        """The keys of the letters in which answers came."""
        self._void: set[str] = set()
        """The keys of letters that are of no use, which the next commit takes."""

    async def caught_up(self) -> None:
        """Wait until all that the run stands on is durable; raises if it cannot be."""

    async def leave(self, answers: Mapping[RequestId, Value]) -> None:
        """Leave answers to pending requests, so that they are durable; raises ``RequestAlreadyAnswered``."""
        await self.caught_up()  # who answers has seen a request that has to be there
        letters = [
            answer_letter(request_id, self._asked_by(request_id), value)  # type: ignore[arg-type]
            for request_id, value in answers.items()
        ]
        left = await self._unless_taken(self.log.leave(letters))
        if left.refused:
            known = {letter.key: str(request_id) for letter, request_id in zip(letters, answers, strict=True)}
            raise already_answered([known[key] for key in left.refused])
        self._letters.update(zip(answers, (letter.key for letter in letters), strict=True))

    async def moved_by_others(self) -> RunStatus | None:
        """How a run stands that someone else moved on since it came to rest here; None if nobody did."""
        head = await self.log.newest()
        ours = (head.checkpoint_id, head.token) == (self.log.head.checkpoint_id, self.log.head.token)
        return None if ours else head.status

    async def respond_where_it_stands(self, responses: Mapping[Any, Any]) -> None:
        """Answer requests of a run that someone else moved on, as those do who never had it."""
        head, store = await self.log.newest(), self.log.store
        blobs = Blobs(store, head.family, self.log.encoder.counters)
        await leave_answers(store, head, blobs, self.log.encoder, responses)

    async def look(self) -> None:
        """Read the inbox now, and not only with the next commit; not while a commit is about to change what counts."""
        await self._idle()
        before, seen = self._begun, self.log.letters
        await self.log.read_letters()
        if self._begun != before:
            self.log.letters = seen

    def _asked_by(self, request_id: RequestId) -> int:
        asked_by = self.log.asked_by(request_id)
        if asked_by is None:  # a commit under way delivers another answer
            raise already_answered([request_id])
        return asked_by

    def wishes(self) -> tuple[dict[RequestId, Value], bool]:
        """The answers that others left for pending requests, and whether the run is to be cancelled."""
        answers: dict[RequestId, Value] = {}
        cancelled = False
        for letter in self.log.letters:
            wish = read_letter(letter, self.log.encoder)
            if isinstance(wish, Answer) and self.log.asked_by(wish.request_id) == wish.asked_by:
                answers[wish.request_id] = wish.value
                self._letters[wish.request_id] = letter.key
            else:
                cancelled = cancelled or isinstance(wish, Cancel)
                self._void.add(letter.key)
        return answers, cancelled

    def _taken_by(self, responses: Collection[RequestId]) -> Sequence[str]:
        """The letters that a commit with these responses uses up."""
        if not (responses or self._void) or self.log.ahead:
            return ()  # what could not be committed says nothing of what is void
        void, self._void = self._void, set()
        return [*(self._letters[known] for known in responses if known in self._letters), *void]
