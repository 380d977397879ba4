"""The pending requests of a run, and their answers until they are delivered."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.checkpoint.events.events import PendingRequest, RequestInfoEvent
from holdfast.engine.answers import check_answer, convert_answer, invalid_response
from holdfast.engine.message import Request, offered_request
from holdfast.engine.snapshot import Snapshot, deliver_answers
from holdfast.engine.value import Captor, Value
from holdfast.errors import InvalidResponse, RequestAlreadyAnswered, UnusableAnswer
from holdfast.graph.context import RequestExpired
from holdfast.graph.typing.match import show_error
from holdfast.ids import RequestId
from holdfast.runtime.events.emitter import EventEmitter
from holdfast.runtime.events.notices import show_request
from holdfast.runtime.step.position import Position
from holdfast.runtime.times import as_time, in_microseconds

if TYPE_CHECKING:
    from holdfast.checkpoint.inbox import Answer, Message
    from holdfast.runtime.durable.recorder import Recorder


class Questions:
    """Takes answers to the pending requests of a run, from whoever gives them, and delivers them at a barrier."""

    def __init__(
        self,
        at: Position,
        capture: Captor,
        now: Callable[[], datetime.datetime],
        recorder: Recorder | None,
        take_messages: Callable[[Mapping[str, Message]], bool],
        emitter: EventEmitter,
    ) -> None:
        """``take_messages`` takes further input that the inbox holds; it returns True if there is any."""
        self._at = at
        self._capture = capture
        self._now = now
        self._recorder = recorder
        self._take_messages = take_messages
        self._emitter = emitter
        self.answers: dict[RequestId, Value] = {}
        """The answers that are to be delivered."""
        self._given: dict[RequestId, Value] = {}
        """Answers that were given to a stored run, and are not in its inbox yet."""
        self._given_by: dict[RequestId, str] = {}
        self._being_left: set[RequestId] = set()
        """The given answers that a call of ``leave`` is leaving in the inbox."""
        self._unusable: dict[RequestId, UnusableAnswer] = {}
        """The reasons why requests have to be asked again: answers in the inbox that cannot be used."""
        self.cancel_asked = False
        """True if a letter in the inbox asks to cancel the run."""

    @property
    def pending(self) -> list[PendingRequest]:
        """The requests that wait for an answer."""
        return self.pending_now()()

    def pending_now(self) -> Callable[[], list[PendingRequest]]:
        """Return a function that gives the requests which wait for an answer now: there may be many.

        Those are left out that are offered to an executor of the workflow around the one that asks.
        """
        shown = self._at.shown
        hidden = {*self._taken, *_offered_ids(shown)}
        return lambda: [show_request(r) for r in shown.requests.values() if r.request_id not in hidden]

    @property
    def open(self) -> bool:
        """True if any request waits for an answer."""
        requests, taken = self._at.shown.requests, self._taken
        return requests.size > sum(1 for request_id in taken if request_id in requests)

    @property
    def _taken(self) -> dict[RequestId, Value]:
        return {**self.answers, **self._given} if self._given else self.answers

    @property
    def answered(self) -> bool:
        """True if any answer was taken that has yet to be delivered."""
        return bool(self.answers or self._given)

    @property
    def to_be_asked_again(self) -> bool:
        """True if an answer in the inbox cannot be used, so that its request has to be asked again."""
        return bool(self._unusable)

    def take(
        self, responses: Mapping[RequestId, object] | Mapping[str, object], by: str | None = None
    ) -> Sequence[RequestId]:
        """Take answers of somebody, all or none; they are delivered at the next barrier.

        Those for a run that is stored have to be left in its inbox by ``leave``.
        """
        shown, taken = self._at.shown, self._taken
        checked = {
            RequestId(request_id): check_answer(shown, request_id, answer, self._capture, taken)
            for request_id, answer in responses.items()
        }
        (self.answers if self._recorder is None else self._given).update(checked)
        if by is not None:
            self._given_by.update(dict.fromkeys(checked, by))
        return list(checked)

    def forget(self, answered: Collection[RequestId]) -> None:
        """Forget answers to requests that an executor of the run answered meanwhile."""
        self.answers = {known: value for known, value in self.answers.items() if known not in answered}
        self._unusable = {known: why for known, why in self._unusable.items() if known not in answered}

    async def leave(self, request_ids: Sequence[RequestId] | None = None) -> None:
        """Leave given answers, some or all, in the inbox, so that they are durable; raise if others were faster."""
        if request_ids is None:  # someone who answers right now leaves those that are being left
            request_ids = [known for known in self._given if known not in self._being_left]
        if not request_ids or self._recorder is None:
            return
        given = {request_id: self._given[request_id] for request_id in request_ids}
        self._being_left |= given.keys()
        try:
            # Those of one call are left together.
            await self._recorder.leave(given, self._given_by.get(request_ids[0]))
        finally:
            self._being_left -= given.keys()
            self._given = {known: v for known, v in self._given.items() if known not in given}
            self._given_by = {known: who for known, who in self._given_by.items() if known not in given}
        self._accept(given)

    def _accept(self, answers: Mapping[RequestId, Value]) -> None:
        """Take answers that are in the inbox, unless they were taken from there already."""
        for request_id, value in answers.items():
            if request_id in self._at.snapshot.requests:
                self.answers.setdefault(request_id, value)

    def take_letters(self) -> bool:
        """Take what others left in the inbox; return True if there is something to act on."""
        assert self._recorder is not None
        if not self._recorder.has_letters:
            return False
        answers, messages, cancelled = self._recorder.open_letters()
        self._read_answers(answers)
        self.cancel_asked = self.cancel_asked or cancelled
        came = self._take_messages(messages) if messages else False
        return bool(answers) or cancelled or came

    def _read_answers(self, answers: Mapping[RequestId, Answer]) -> None:
        """Take answers that others left; note those that cannot be used."""
        for request_id, answer in answers.items():
            request = self._at.snapshot.requests.get(request_id)
            if request is None or request_id in self.answers or request_id in self._unusable:
                continue
            try:
                self.answers[request_id] = _read_answer(request, answer, self._capture)
            except InvalidResponse as error:
                giver = "" if answer.by is None else f" It was given by {answer.by!r}."
                self._unusable[request_id] = UnusableAnswer(f"{error}.{giver} The request is asked again")

    async def ask_again(self) -> None:
        """Ask requests again whose answers cannot be used, in a checkpoint that takes these out of the inbox."""
        assert self._recorder is not None
        unusable, snapshot = dict(self._unusable), self._at.snapshot
        requests = [snapshot.requests[known] for known in unusable]
        events = [
            self._emitter.warning(why, request.executor_id)
            for why, request in zip(unusable.values(), requests, strict=True)
        ]
        await self._recorder.asked_again(snapshot, requests, events)
        self._unusable = {known: why for known, why in self._unusable.items() if known not in unusable}
        offered = _offered_ids(snapshot)
        asked = [RequestInfoEvent(show_request(one)) for one in requests if one.request_id not in offered]
        self._emitter.emit([*self._recorder.news(), *events, *asked])

    async def look_for_letters(self) -> bool:
        """Read the inbox now and take what others left there; return True if there is something to act on."""
        assert self._recorder is not None
        await self._recorder.read_inbox()
        return self.take_letters()

    async def expire(self, first: int) -> None:
        """Answer requests whose time is over with ``RequestExpired``, unless someone else was faster.

        ``first`` is the time at which the first of them expires.
        """
        now = in_microseconds(self._now())
        if now < first:
            return
        for key in self._at.expiries.until(now):
            request = self._at.snapshot.requests.get(key)
            expiry = None if request is None else request.expiry
            if expiry is None or expiry.at > now or key in self._taken:
                continue
            expired = self._capture(RequestExpired(key, as_time(expiry.at)), "response")
            if self._recorder is None:
                self.answers[key] = expired
                continue
            try:
                await self._recorder.leave({key: expired})
            except RequestAlreadyAnswered:
                await self.look_for_letters()
            else:
                self._accept({key: expired})

    async def deliver_all(self) -> None:
        """Deliver the answers that came; with storage that is a checkpoint."""
        answers = dict(self.answers)  # others may come while these are stored
        if self._recorder is not None:
            await self._recorder.answered(self._at.snapshot, answers)
        self.deliver(answers)

    def deliver(self, answers: Mapping[RequestId, Value]) -> None:
        """Turn answers into deliveries."""
        self._at.snapshot = deliver_answers(self._at.snapshot, answers)
        self.answers = {known: v for known, v in self.answers.items() if known not in answers}

    def drop(self) -> None:
        """Forget answers that were not delivered: the run came to rest. Those of a stored run wait in its inbox."""
        self.answers = {}
        self._unusable = {}


def _offered_ids(snapshot: Snapshot) -> set[RequestId]:
    """Return the requests that are offered to an executor of the workflow around the one that asks."""
    offered = filter(None, map(offered_request, snapshot.deliveries)) if snapshot.requests.size else ()
    return {request.request_id for request in offered}


def _read_answer(request: Request, answer: Answer, capture: Captor) -> Value:
    """Return the answer in a letter, converted if it is JSON; raise ``InvalidResponse`` if it cannot be used."""
    asked = request.request_id, request.executor_id
    if answer.value is None:
        raise invalid_response(*asked, "its letter is damaged")
    try:
        given = answer.value.peek()
        return convert_answer(request, given, capture) if answer.is_json else answer.value
    except InvalidResponse:
        raise
    except Exception as error:  # whatever a class makes of it: no answer may make the run fail
        raise invalid_response(*asked, show_error(error)) from error
