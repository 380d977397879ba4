"""The inbox of a run, as the driver of the run uses it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.checkpoint.inbox import (
    Answer,
    Cancel,
    GivenAnswers,
    Message,
    answer_letter,
    asks_to_cancel,
    leave_answers,
    leave_message,
    read_letter,
)
from holdfast.checkpoint.read.loader import BlobReader
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.values import Encoded
from holdfast.checkpoint.write.log import RunLog
from holdfast.engine.answers import already_answered
from holdfast.engine.value import Value
from holdfast.ids import RequestId
from holdfast.runtime.durable.commit_queue import CommitQueue


class OpenedLetters(NamedTuple):
    """The letters in the inbox of a run that somebody can act on."""

    answers: dict[RequestId, Answer]
    """Answers to pending requests; they may be JSON that has yet to be converted, or broken."""
    messages: dict[str, Message]
    """Further inputs in the order in which they came, by the keys of their letters."""
    cancelled: bool


class InboxClient:
    """Leaves answers in the inbox of a run, reads it, and says which letters the next commit takes out of it."""

    def __init__(self, log: RunLog, commits: CommitQueue) -> None:
        self._log = log
        self._commits = commits
        self._keys: dict[RequestId, str] = {}
        """The keys of the letters in which answers came."""
        self._by: dict[RequestId, str] = {}
        """The persons or programs that gave answers, as far as they said so."""
        self.cancelled_by: str | None = None
        """The person or program that cancels the run, if that was said."""
        self._void: set[str] = set()
        """The keys of useless letters, which the next commit takes."""

    @property
    def has_letters(self) -> bool:
        """True if the inbox had letters at the last commit, or when it was read since."""
        return bool(self._log.letters)

    @property
    def has_void_letters(self) -> bool:
        """True if the next commit takes letters that nobody acts on."""
        return bool(self._void)

    async def leave(self, answers: Mapping[RequestId, Value], by: str | None = None) -> None:
        """Leave answers to pending requests, so that they are durable; raise ``RequestAlreadyAnswered`` if late."""
        letters = [
            answer_letter(request_id, self._asked_by(request_id), value, by)  # type: ignore[arg-type]
            for request_id, value in answers.items()
        ]
        left = await self._commits.explaining(self._log.leave(letters))
        if left.refused:
            known = {letter.key: str(request_id) for letter, request_id in zip(letters, answers, strict=True)}
            raise already_answered([known[key] for key in left.refused])
        self._keys.update(zip(answers, (letter.key for letter in letters), strict=True))
        if by is not None:
            self._by.update(dict.fromkeys(answers, by))

    def _asked_by(self, request_id: RequestId) -> int:
        asked_by = self._log.asked_by(request_id)
        if asked_by is None:  # a commit under way delivers another answer
            raise already_answered([request_id])
        return asked_by

    async def leave_at_newest_head(self, responses: Mapping[Any, Any], by: str | None) -> None:
        """Answer requests of a run that another process moved on, like a process that never drove it."""
        head, store = await self._log.newest(), self._log.store
        blobs = BlobReader(store, head.family, self._log.encoder.counters)
        await leave_answers(store, head, blobs, self._log.encoder, GivenAnswers(responses, by))

    async def read(self) -> None:
        """Read the inbox now instead of with the next commit, unless a commit changes meanwhile what counts."""
        await self._commits.idle()
        before = self._commits.count
        letters = await self._log.store.inbox(self._log.run_id)
        if self._commits.count == before:  # else that commit knows better which letters are left
            self._log.letters = letters

    async def send(self, value: Encoded, target: str | None, key: str | None, by: str | None) -> Head:
        """Leave a further input, so that it is durable."""
        return await self._commits.explaining(
            leave_message(self._log.store, self._log.head, value, target, key, by)
        )

    def open_letters(self) -> OpenedLetters:
        """Return the answers to pending requests and the messages in the inbox; True if a letter cancels the run."""
        answers: dict[RequestId, Answer] = {}
        messages: dict[str, Message] = {}
        cancelled = False
        for letter in self._log.letters:
            wish = read_letter(letter, self._log.encoder)
            if isinstance(wish, Answer) and self._log.asked_by(wish.request_id) == wish.asked_by:
                answers[wish.request_id] = wish
                if wish.by is not None:
                    self._by[wish.request_id] = wish.by
                self._keys[wish.request_id] = letter.key
            elif isinstance(wish, Message):
                messages[letter.key] = wish
            else:
                if isinstance(wish, Cancel):
                    cancelled, self.cancelled_by = True, self.cancelled_by or wish.by
                self._void.add(letter.key)
        return OpenedLetters(answers, messages, cancelled)

    def drop(self, key: str) -> None:
        """Let the next commit take a letter that nobody can act on."""
        self._void.add(key)

    def answered_by(self, responses: Collection[RequestId]) -> dict[RequestId, str]:
        """Return who gave these answers, as far as they said so."""
        return {known: self._by.pop(known) for known in responses if known in self._by} if self._by else {}

    def cancel_keys(self) -> set[str]:
        """Return the keys of the letters that ask to cancel the run."""
        return {letter.key for letter in self._log.letters if asks_to_cancel(letter)}

    def take(self, responses: Collection[RequestId]) -> Sequence[str]:
        """Return the keys of the letters that a commit with these responses uses up, with the useless ones."""
        if not (responses or self._void) or self._log.ahead:
            return ()  # a commit that failed says nothing of useless letters
        void, self._void = self._void, set()
        return [*(self._keys[known] for known in responses if known in self._keys), *void]

    def take_messages(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys of the letters that a commit with these messages uses up, with the useless ones."""
        return [*keys, *self.take(())]
