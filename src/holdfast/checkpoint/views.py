"""Views of a checkpoint: its state, messages, requests and outputs, with or without values."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, moment
from holdfast.checkpoint.format.changes import Asked, Delivered, Ref
from holdfast.errors import NotLoaded
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import ExecutorId, RequestId

Read: TypeAlias = Callable[[Ref, str], Any]
"""Gives the value that a ref names, for a place that errors name; raises ``NotLoaded``."""


def size_text(size: int) -> str:
    """A size for people.

    >>> size_text(900), size_text(50_000_000)
    ('900 B', '50.0 MB')
    """
    if size < 1000:
        return f"{size} B"
    for unit, factor in (("kB", 10**3), ("MB", 10**6)):
        if size < 1000 * factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 10**9:.1f} GB"


class Unread:
    """Stands in texts for a value that was not read."""

    def __init__(self, ref: Ref) -> None:
        self._ref = ref

    def __repr__(self) -> str:
        return f"<{self._ref.label}, {size_text(self._ref.size)}>"


def _shown(ref: Ref, read: Read) -> object:
    try:
        return read(ref, "value")
    except Exception:  # a text about values must not fail because of one
        return Unread(ref)


class StateView(Mapping[str, Any]):
    """The keys and values of a scope. Keys, ``len`` and ``repr`` work without values; indexing needs them."""

    def __init__(self, refs: Mapping[str, Ref], read: Read, what: str) -> None:
        # Of its own, because the manifest behind it may go on to another checkpoint.
        self._refs = {key: ref.copy() for key, ref in refs.items()}
        self._read = read
        self._what = what

    def __getitem__(self, key: str) -> Any:
        return self._read(self._refs[key], f"{self._what}[{key!r}]")

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __contains__(self, key: object) -> bool:
        return key in self._refs

    def sizes(self) -> dict[str, int]:
        """The encoded size of each value."""
        return {key: ref.size for key, ref in self._refs.items()}

    def __repr__(self) -> str:
        return repr({key: _shown(ref, self._read) for key, ref in self._refs.items()})


class ListView(Sequence[Any]):
    """Values in order. ``len`` and ``repr`` work without values; indexing needs them."""

    def __init__(self, refs: Sequence[Ref], read: Read, what: str) -> None:
        self._refs = refs
        self._read = read
        self._what = what

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._read(self._refs[index], f"{self._what}[{index}]")

    def __len__(self) -> int:
        return len(self._refs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr([_shown(ref, self._read) for ref in self._refs])


class MessageView:
    """A message on its way: from whom, to whom, and, if values were read, what."""

    def __init__(self, delivered: Delivered, read: Read) -> None:
        self._delivered = delivered
        self._read = read

    @property
    def target_id(self) -> ExecutorId:
        """The executor that gets it."""
        return self._delivered.target

    @property
    def source_id(self) -> ExecutorId | None:
        """The executor that sent it; None for the input of the run, a response, and what a fan-in joined."""
        return self._delivered.source

    @property
    def data(self) -> Any:
        """The message itself."""
        return self._read(self._delivered.value, f"the message to {self.target_id!r}")

    def __repr__(self) -> str:
        shown = _shown(self._delivered.value, self._read)
        return f"<message {shown!r} from {self.source_id!r} to {self.target_id!r}>"


class RequestView:
    """A question that waits for its answer, as a checkpoint has it."""

    def __init__(self, asked: Asked, read: Read, form: Callable[[bytes], TypeForm]) -> None:
        self._asked = asked
        self._read = read
        self._form = form

    @property
    def request_id(self) -> RequestId:
        """The id that the answer must name."""
        return self._asked.request_id

    @property
    def executor_id(self) -> ExecutorId:
        """The executor that asks."""
        return self._asked.executor_id

    @property
    def data(self) -> Any:
        """The data of the request."""
        return self._read(self._asked.data, f"request {self.request_id!r}")

    @property
    def response_type(self) -> TypeForm:
        """The type of the answer."""
        return self._form(self._asked.form)

    @property
    def response_schema(self) -> dict[str, Any]:
        """The JSON Schema of the answer."""
        from holdfast.graph.typing.schema import json_schema

        return json_schema(self.response_type)

    @property
    def expires(self) -> datetime.datetime | None:
        """When its time is over; None if it waits for ever."""
        return None if self._asked.expiry is None else moment(self._asked.expiry.at)

    def __repr__(self) -> str:
        return (
            f"<request {self.request_id!r} of {self.executor_id!r}: {_shown(self._asked.data, self._read)!r}>"
        )


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint in a few words; made by ``Checkpoint.summary``.

    One of a ``CheckpointInfo`` knows the first four; the others raise ``NotLoaded``.

    >>> from holdfast import RunStatus
    >>> CheckpointSummary("ab12", 3, None, RunStatus.WAITING, ["approve"], ["triage"], []).iteration_count
    3
    """

    checkpoint_id: str
    iteration_count: int
    timestamp: Any
    status: Any
    targets: list[str]
    """The executors that get a message next."""
    executor_states: list[str]
    """The executors that keep something."""
    pending_requests: list[RequestView]

    @classmethod
    def of_info(cls, info: CheckpointInfo) -> CheckpointSummary:
        """The summary of a checkpoint of which only the header is known."""
        summary = object.__new__(cls)
        known = (info.checkpoint_id, info.superstep, info.timestamp, info.status)
        vars(summary).update(zip(_KNOWN_OF_INFO, known, strict=True))
        return summary

    def __getattr__(self, name: str) -> Any:
        """Say how to know what was not set: it stands in the checkpoint, and this one was not read."""
        if name not in _UNKNOWN_OF_INFO:
            raise AttributeError(f"a CheckpointSummary has no {name!r}")
        raise NotLoaded(
            f"{name} of checkpoint {self.checkpoint_id[:12]}... is not known, its CheckpointInfo has only counts; use "
            f"'(await storage.load({self.checkpoint_id[:12]!r}...)).summary()'"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckpointSummary) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"CheckpointSummary({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


_KNOWN_OF_INFO = ("checkpoint_id", "iteration_count", "timestamp", "status")
_UNKNOWN_OF_INFO = ("targets", "executor_states", "pending_requests")


def not_loaded(place: str, ref: Ref, checkpoint_id: str) -> NotLoaded:
    """The error for a value that was not read."""
    return NotLoaded(
        f"{place} ({Unread(ref)!r}) was not read: checkpoints are listed without values; "
        f"use 'checkpoint = await storage.load({checkpoint_id[:12]!r}...)', or 'await checkpoint.read_state(...)'; "
        f"'await storage.list_checkpoints(..., values=True)' lists them with values"
    )
