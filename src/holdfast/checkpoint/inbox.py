"""What others leave for the owner of a run: answers, and the wish that it be cancelled."""

from __future__ import annotations

import json
from typing import NamedTuple, TypeAlias

import ormsgpack

from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.format.record import plain_form, stored_form
from holdfast.checkpoint.store import Letter
from holdfast.checkpoint.values import Encoded, Encoder, class_of
from holdfast.engine.value import Value
from holdfast.graph.context import RequestExpired
from holdfast.ids import RequestId

# It is an answer that needs no declaration: every storage can hold it.
checkpointable(name="holdfast.RequestExpired")(RequestExpired)


class Answer(NamedTuple):
    """An answer to a request, meant for the time that the checkpoint ``asked_by`` asked it."""

    request_id: RequestId
    asked_by: int
    value: Value


class Cancel(NamedTuple):
    """The run should end as CANCELLED."""


Wish: TypeAlias = Answer | Cancel


def answer_letter(request_id: RequestId, asked_by: int, value: Encoded) -> Letter:
    """The letter that holds an answer; there can be one for each time that a request is asked."""
    document = {
        "request": request_id,
        "asked_by": asked_by,
        "label": value.label,
        "value": value.data,
    }
    return Letter(answer_key(request_id, asked_by), stored_form(ormsgpack.packb(document)))


def answer_key(request_id: RequestId, asked_by: int) -> str:
    """The key of the letter with an answer."""
    return json.dumps(["answer", asked_by, request_id], ensure_ascii=False)


def cancel_letter(salt: bytes) -> Letter:
    """The letter that asks for a run to be cancelled; ``salt`` makes it another one each time."""
    return Letter(json.dumps(["cancel", salt.hex()]), stored_form(ormsgpack.packb({"cancel": True})))


def asks_to_cancel(letter: Letter) -> bool:
    """Whether a letter asks for the run to be cancelled."""
    return letter.key.startswith('["cancel"')


def read_letter(letter: Letter, encoder: Encoder) -> Wish | None:
    """What a letter says; None for one that cannot be read, which nobody can act on."""
    try:
        document = ormsgpack.unpackb(plain_form(letter.data))
        if "cancel" in document:
            return Cancel()
        kind = class_of(document["label"], encoder.codec)
        value = Encoded(encoder, kind, data=document["value"])
        return Answer(RequestId(document["request"]), document["asked_by"], value)
    except Exception:
        return None
