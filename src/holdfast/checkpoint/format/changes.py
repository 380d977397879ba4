"""The changes of a checkpoint, with refs in place of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.engine.message import Expiry
from holdfast.engine.snapshot import BufferKey
from holdfast.engine.state import Scope
from holdfast.ids import Digest, ExecutorId, RequestId


class Ref:
    """Names a stored value: its type for people, its encoded size, and where its content is.

    Small values have their content in the record (``data``, None where the record was read without values), others
    in the blob ``digest``. A value that grew consists of ``parts``.
    """

    __slots__ = ("data", "digest", "label", "parts", "size")

    def __init__(
        self,
        label: str,
        size: int,
        digest: Digest | None = None,
        data: bytes | None = None,
        parts: list[Part] | None = None,
    ) -> None:
        self.label = label
        self.size = size
        self.digest = digest
        self.data = data
        self.parts = parts

    def copy(self) -> Ref:
        """Return a copy with a list of parts of its own."""
        return self if self.parts is None else Ref(self.label, self.size, parts=list(self.parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        where = f"{len(self.parts)} parts" if self.parts is not None else "blob" if self.digest else "here"
        return f"Ref({self.label}, {self.size}, {where})"


class Part(NamedTuple):
    """A piece of a value that grew: one item of a list, or a slice of a list, str or bytes."""

    is_item: bool
    ref: Ref


class Asked(NamedTuple):
    """A request: who asks, about what, and the encoded type of the answer."""

    request_id: RequestId
    executor_id: ExecutorId
    data: Ref
    form: bytes
    seq: int = 0
    """The checkpoint that asked, known once it is folded in; going back to a checkpoint asks again."""
    expiry: Expiry | None = None


class Delivered(NamedTuple):
    """A delivery; with a request it is the response to it."""

    target: ExecutorId
    source: ExecutorId | None
    value: Ref
    request: Asked | None = None


class PutRef(NamedTuple):
    """The key gets this value."""

    ref: Ref


class Grow(NamedTuple):
    """The value of the key grows by these parts; ``label`` is its type where there was none."""

    label: str
    parts: tuple[Part, ...]


class DropRef(NamedTuple):
    """The key goes."""


Written: TypeAlias = PutRef | Grow | DropRef


class Happened(NamedTuple):
    """A durable event that cannot be told from the rest: the user's own, or a warning (its kind and text)."""

    executor_id: ExecutorId | None
    event: Ref | None = None
    warning: tuple[str, str] | None = None


class Renames(NamedTuple):
    """Executors that are called otherwise from now on."""

    names: Mapping[str, str]
    """Addresses of executors and paths of nested workflows, as they were and as they are."""
    fan_ins: Mapping[tuple[str, str], str]
    """By the path and the name that a fan-in had."""


class Changes(NamedTuple):
    """The changes of a checkpoint; a keyframe has the changes since the run held nothing.

    ``deliveries`` replace those before, if any are said. ``answers`` make deliveries of requests. A buffer is
    extended, or goes with None.
    """

    deliveries: Sequence[Delivered] | None = None
    writes: Sequence[tuple[Scope, str, Written]] = ()
    dropped: Sequence[Scope] = ()
    buffers: Sequence[tuple[BufferKey, Sequence[tuple[ExecutorId, Sequence[Ref]]] | None]] = ()
    outputs: Sequence[tuple[ExecutorId, Ref]] = ()
    requests: Sequence[Asked] = ()
    answers: Sequence[tuple[RequestId, Ref, str | None]] = ()
    """Each with the person or program that gave it, if that is known."""
    answered: Sequence[RequestId] = ()
    instances: Sequence[tuple[ExecutorId, int | None]] = ()
    since_input: int | None = None
    """Said where it is not one more than before."""
    fingerprint: str | None = None
    """Said where it is not what it was."""
    happened: Sequence[Happened] = ()
    graph: Ref | None = None
    """The description of the graph, said with its fingerprint."""
    renames: Renames | None = None
    rounds: Sequence[tuple[BufferKey, Sequence[ExecutorId] | None]] = ()
    """The sources that a fan-in waits for where these are not all that it has; None for all again."""
    input: Ref | None = None
    """The input of the run, said in keyframes: elsewhere it is what the first checkpoint delivers."""
    renewed: bool = False
    """True if a further input came to a run at rest: its outputs are those since then."""
    schemas: Sequence[tuple[bytes, str]] = ()
    """The JSON Schemas of answers whose types name classes, by the encoded type, said once for each."""
    asked_at: Sequence[tuple[RequestId, int]] = ()
    """The times at which pending requests were asked, said in keyframes: elsewhere it is the time of the record."""
    asked_again: Sequence[RequestId] = ()
    """Pending requests whose answers could not be used: it is this checkpoint now that asks them."""
    request_edits: Sequence[tuple[RequestId, Ref | None]] = ()
    """Pending requests whose data was edited; None for those that were dropped."""


NOTHING = Changes()
"""Nothing changed: the start of a superstep that follows at once."""


def sizes_in(refs: Iterable[Ref]) -> dict[Digest, int]:
    """The blobs that hold the content of values, with the sizes that they must have."""
    waiting, found = list(refs), {}
    while waiting:
        ref = waiting.pop()
        if ref.digest is not None:
            found[ref.digest] = ref.size
        elif ref.parts is not None:
            waiting += [part.ref for part in ref.parts]
    return found


def digests_of(ref: Ref) -> Iterable[Digest]:
    """The blobs that hold the content of a value."""
    if ref.parts is not None:
        return [digest for part in ref.parts for digest in digests_of(part.ref)]
    return (ref.digest,) if ref.digest is not None else ()
