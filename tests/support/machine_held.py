"""What a run of ``machine_workflow`` holds, and what a superstep makes of it: plain data, no engine."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from holdfast import RunStatus
from holdfast.errors import InvalidResponse, RequestAlreadyAnswered, UnknownRequest

Answers = Mapping[str, Any]
"""By the ids of the requests."""


class Question(NamedTuple):
    """A pending request; ``asked_by`` is the seq of the checkpoint that asked it, or asked it again."""

    request_id: str
    asker: str
    data: int
    kind: type
    asked_by: int


class Message(NamedTuple):
    """A message on its way; with a question it is the answer to it."""

    target: str
    source: str | None
    data: Any
    question: Question | None = None


class Held(NamedTuple):
    """All that a run holds between two supersteps. Nobody changes one that another can see."""

    superstep: int
    messages: list[Message]
    shared: dict[str, dict[str, Any]]
    private: dict[str, dict[str, Any]]
    joining: dict[str, int]
    outputs: list[Any]
    asked: dict[str, Question]
    answered: set[str]

    @property
    def turns(self) -> list[str]:
        """Whose turn it is, in the order of the graph."""
        return [name for name in TURN_OF if any(message.target == name for message in self.messages)]

    @property
    def at_rest(self) -> RunStatus:
        """How a run stands that has no message on its way."""
        return RunStatus.WAITING if self.asked else RunStatus.COMPLETED


def first_held(number: int) -> Held:
    """What a run holds that was given its input."""
    return Held(0, [Message("Hub", None, number)], {}, {}, {}, [], {}, set())


def superstep(before: Held, ticket: int, seq: int) -> Held:
    """What comes of a superstep that ends with the checkpoint ``seq``; ``ticket`` is what Right paid for.

    Each turn sees the state before; here they may follow each other, for none reads what another writes.
    """
    after = deepcopy(before)._replace(superstep=before.superstep + 1, messages=[])
    for name in before.turns:
        for message in before.messages:
            if message.target == name:
                TURN_OF[name](after, message, ticket, seq)
    if after.joining.keys() == {"Left", "Tail"}:
        after.messages.append(Message("Hub", None, [after.joining["Left"], after.joining["Tail"]]))
        after.joining.clear()
    return after


def _hub(after: Held, message: Message, ticket: int, seq: int) -> None:
    kept = after.private.setdefault("Hub", {"rounds": 0})
    if isinstance(message.data, list):
        kept["rounds"] += 1
        kept["number"] -= after.shared.get("shared", {}).get("step", 1)
        sums = after.shared.setdefault("Sum", {})
        sums["total"] = sums.get("total", 0) + sum(message.data)
    else:
        kept["number"] = message.data
    if kept["number"] > 0:
        after.messages.extend(Message(target, "Hub", kept["number"]) for target in ("Left", "Right"))
    else:
        after.outputs.append(("total", after.shared["Sum"]["total"]))


def _left(after: Held, message: Message, ticket: int, seq: int) -> None:
    trail = after.shared.setdefault("Trail", {})
    if message.question is not None:
        del after.private["Left"]
        trail.setdefault("answers", []).append([message.question.data, message.data])
        after.outputs.append(("approved", message.question.data, message.data))
        return
    trail.setdefault("seen", []).append(message.data)
    after.joining["Left"] = message.data * 10
    if "Left" not in after.private:
        after.private["Left"] = {"asking": True}
        after.asked["approve"] = Question("approve", "Left", message.data, int, seq)


def _right(after: Held, message: Message, ticket: int, seq: int) -> None:
    after.private.setdefault("Right", {}).setdefault("tickets", []).append(ticket)
    after.messages.append(Message("Tail", "Right", message.data))


def _tail(after: Held, message: Message, ticket: int, seq: int) -> None:
    if message.question is not None:
        trail = after.shared.setdefault("Trail", {})
        trail.setdefault("answers", []).append([message.question.data, message.data])
        after.outputs.append(("told", message.question.data, message.data))
        return
    after.joining["Tail"] = message.data + 100
    if message.data % 2:
        request_id = f"Tail.{after.superstep}.1"
        after.asked[request_id] = Question(request_id, "Tail", message.data, str, seq)


TURN_OF = {"Hub": _hub, "Left": _left, "Right": _right, "Tail": _tail}


def with_answers(before: Held, answers: Answers) -> Held:
    """Answers come in: each is a message to whoever asked, in the order of the questions."""
    after = deepcopy(before)
    for request_id, question in before.asked.items():
        if request_id in answers:
            after.messages.append(Message(question.asker, None, answers[request_id], question))
            after.answered.add(request_id)
            del after.asked[request_id]
    return after


def asked_again(before: Held, seq: int) -> Held:
    """The run stands here anew: its questions are asked again, by the checkpoint ``seq``."""
    asked = {known: question._replace(asked_by=seq) for known, question in before.asked.items()}
    return before._replace(asked=asked)


def with_edits(before: Held, edits: Mapping[tuple[str, str], Any]) -> Held:
    """Values of shared state are others."""
    after = deepcopy(before)
    for (scope, key), value in edits.items():
        after.shared.setdefault(scope, {})[key] = value
    return after


def check_answers(held: Held, answers: Answers, taken: Answers) -> None:
    """Raise unless each answers a pending question with a value of its type."""
    for request_id, answer in answers.items():
        known = request_id in held.asked
        if request_id in taken or (not known and request_id in held.answered):
            raise RequestAlreadyAnswered(request_id)
        if not known:
            raise UnknownRequest(request_id)
        if type(answer) is not held.asked[request_id].kind:
            raise InvalidResponse(request_id)
