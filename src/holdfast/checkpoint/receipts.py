"""Receipts: entries of a run that say, for as long as it lives, that a call with a key was made, and which one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import ormsgpack

from holdfast.checkpoint.format.record import digest_of
from holdfast.checkpoint.format.stored_form import stored_form
from holdfast.checkpoint.store import Letter, Store
from holdfast.errors import KeyReused
from holdfast.ids import RunId

Verb: TypeAlias = Literal["message", "respond", "cancel", "resume", "tag", "fork", "forked", "talk"]
"""The call that was made; keys of different verbs are apart. What talks to a run may be a message or an answer.

The run that is forked keeps "fork", and the new one "forked": so its own forks are apart from the call that made it.
"""

_NOTHING = stored_form(b"\xc0")
_ASKED: dict[Verb, str] = {
    "message": "another message was sent to run",
    "respond": "other answers were given to run",
    "cancel": "another call cancelled run",
    "resume": "another call resumed run",
    "tag": "other tags were given to, or taken from, a checkpoint of run",
    "fork": "another call forked run",
    "forked": "another call made run",
    "talk": "something else was said to run",
}


class TalkKey(str):
    """The key of what is said to a run, be it a message or an answer: calls are compared by the words.

    >>> TalkKey("k1", "yes").words
    'yes'
    """

    __slots__ = ("words",)
    words: str

    def __new__(cls, key: str, words: str) -> TalkKey:
        made = super().__new__(cls, key)
        made.words = words
        return made


class Receipt(NamedTuple):
    """Says that a call was made with a key.

    It is kept as two keys of the inbox: one for the key, and one for the key with a digest of what was asked for, by
    which the same call is told from another one.
    """

    verb: Verb
    key: str
    digest: str

    @classmethod
    def of(cls, verb: Verb, key: str, asked: Any) -> Receipt:
        """Return the receipt of a call that asks for something, which is anything that MessagePack can say.

        With a ``TalkKey`` it is that of the words, whatever is made of them.
        """
        if isinstance(key, TalkKey):
            verb, asked = "talk", key.words
        return cls(verb, str(key), digest_of(_pack(asked)).hex())

    @property
    def names(self) -> tuple[str, str]:
        """The keys of the inbox that the receipt uses up."""
        named = _names_of(self.verb, self.key)
        return _spell(named), _spell([*named, self.digest])

    @property
    def letters(self) -> tuple[Letter, ...]:
        """The receipt as letters on which nobody has to act."""
        return tuple(Letter(name, _NOTHING) for name in self.names)


def resume_receipt(key: str, checkpoint_id: str | None, allow_graph_change: bool, take_over: bool) -> Receipt:
    """Return the receipt of a call that resumes a run."""
    return Receipt.of("resume", key, [checkpoint_id, allow_graph_change, take_over])


def is_receipt(letter: Letter) -> bool:
    """Return True for a letter on which nobody has to act."""
    return letter.data == _NOTHING


def _pack(asked: Any) -> bytes:
    try:
        return ormsgpack.packb(asked)
    except TypeError:  # a text with half a character
        return repr(asked).encode()


def _names_of(verb: Verb, key: str) -> list[str]:
    return ["message", key] if verb == "message" else ["receipt", verb, key]


def _spell(parts: list[str]) -> str:
    return json.dumps(parts, ensure_ascii=False)


async def was_called(store: Store, run_id: RunId, receipt: Receipt) -> bool:
    """Return True if a call with this receipt was made; raise ``KeyReused`` if the key stands for another call."""
    first, second = receipt.names
    used = await _used_keys(store, run_id, [first, second])
    if first in used and second not in used:
        raise key_reused(run_id, receipt)
    return first in used


async def use_up(store: Store, run_id: RunId, receipt: Receipt) -> None:
    """Keep a receipt by itself; raise ``KeyReused`` if the key stands for another call by now."""
    if (await store.use_up(run_id, receipt.names)).refused:
        await was_called(store, run_id, receipt)


async def is_key_used(store: Store, run_id: RunId, verb: Verb, key: str) -> bool:
    """Return True if such a call was made on a run with a key, whatever it asked for."""
    name = _spell(_names_of(verb, key))
    return name in await _used_keys(store, run_id, [name])


async def _used_keys(store: Store, run_id: RunId, keys: Sequence[str]) -> set[str]:
    """Return the keys of all letters that wait for a run, and those of these keys that are used up."""
    return {letter.key for letter in await store.inbox(run_id)}.union(await store.taken(run_id, keys))


def key_reused(run_id: RunId, receipt: Receipt) -> KeyReused:
    """Make the error for a key that stands for another call."""
    return KeyReused(
        f"key={receipt.key!r}: {_ASKED[receipt.verb]} {run_id!r} with this key; a key stands for one call in the life "
        f"of a run"
    )
