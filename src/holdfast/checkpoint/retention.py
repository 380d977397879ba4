"""The policies by which a run keeps checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from holdfast.errors import InvalidArgument, WrongType

_MICROSECOND = timedelta(microseconds=1)


class _Kind(StrEnum):
    FULL_HISTORY = "full_history"
    LATEST_ONLY = "latest_only"
    KEEP_LAST = "keep_last"
    KEEP_FOR = "keep_for"


class Kept(Protocol):
    """The fields of a checkpoint that retention looks at."""

    @property
    def checkpoint_id(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def superstep(self) -> int: ...
    @property
    def timestamp(self) -> datetime: ...
    @property
    def tags(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Retention:
    """Chooses the checkpoints that a run keeps; the one that it stands on and tagged ones are always kept.

    A checkpoint that is not kept is neither listed nor loaded any more, from the commit on that makes it superfluous.
    Its room is freed some time later.

    >>> Retention.keep_last(3)
    Retention.keep_last(3)
    """

    _kind: _Kind
    _count: int = 0
    _age: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if not isinstance(self._kind, _Kind):
            raise WrongType(
                f"Retention({self._kind!r}): say which one, like Retention.latest_only() or Retention.keep_last(10)"
            )

    @classmethod
    def full_history(cls) -> Retention:
        """Every checkpoint is kept.

        >>> Retention.full_history().keeps_all
        True
        """
        return cls(_Kind.FULL_HISTORY)

    @classmethod
    def latest_only(cls) -> Retention:
        """Only the checkpoint is kept that the run stands on.

        >>> Retention.latest_only()
        Retention.latest_only()
        """
        return cls(_Kind.LATEST_ONLY)

    @classmethod
    def keep_last(cls, supersteps: int) -> Retention:
        """The checkpoints of the last supersteps are kept, counted back from where the run stands; no other branches.

        >>> Retention.keep_last(0)
        Traceback (most recent call last):
        ...
        holdfast.errors.InvalidArgument: Retention.keep_last(0): must be a whole number of at least 1
        """
        if type(supersteps) is not int or supersteps < 1:
            raise InvalidArgument(
                f"Retention.keep_last({supersteps!r}): must be a whole number of at least 1"
            )
        return cls(_Kind.KEEP_LAST, _count=supersteps)

    @classmethod
    def keep_for(cls, age: timedelta) -> Retention:
        """Checkpoints are kept that are not older, on all branches.

        >>> Retention.keep_for(timedelta(days=7))
        Retention.keep_for(datetime.timedelta(days=7))
        """
        if not isinstance(age, timedelta):
            raise WrongType(f"Retention.keep_for({age!r}): give a timedelta, like datetime.timedelta(days=7)")
        if age < timedelta(0):
            raise InvalidArgument(f"Retention.keep_for({age!r}): must not be negative")
        return cls(_Kind.KEEP_FOR, _age=age)

    @property
    def keeps_all(self) -> bool:
        """True if every checkpoint is kept."""
        return self._kind is _Kind.FULL_HISTORY

    def kept(self, checkpoints: Iterable[Kept], head_id: str, now: datetime) -> frozenset[int]:
        """The seqs of the checkpoints of a run that are kept, of those that are there.

        >>> Retention.full_history().kept([], "", datetime.now())
        frozenset()
        """
        known = list(checkpoints)
        always = {c.seq for c in known if c.checkpoint_id == head_id or c.tags}
        return frozenset(always | {c.seq for c in _CHOICES[self._kind](self, known, head_id, now)})

    def text(self) -> str:
        """The policy as a head has it; empty where everything is kept.

        >>> Retention.of_text(Retention.keep_last(3).text())
        Retention.keep_last(3)
        """
        match self._kind:
            case _Kind.FULL_HISTORY:
                return ""
            case _Kind.LATEST_ONLY:
                return self._kind.value
            case _Kind.KEEP_LAST:
                return f"{self._kind.value}:{self._count}"
            case _Kind.KEEP_FOR:
                return f"{self._kind.value}:{self._age // _MICROSECOND}"

    @classmethod
    def of_text(cls, text: str) -> Retention:
        """The policy that a head has; one that this version does not know keeps everything.

        >>> Retention.of_text("by_the_moon:3").keeps_all
        True
        """
        kind, _, number = text.partition(":")
        if kind == _Kind.LATEST_ONLY:
            return cls.latest_only()
        if kind == _Kind.KEEP_LAST and number.isdigit() and int(number):
            return cls.keep_last(int(number))
        if kind == _Kind.KEEP_FOR and number.isdigit():
            return cls.keep_for(int(number) * _MICROSECOND)
        return cls.full_history()

    def __repr__(self) -> str:
        inside = {_Kind.KEEP_LAST: repr(self._count), _Kind.KEEP_FOR: repr(self._age)}.get(self._kind, "")
        return f"Retention.{self._kind.value}({inside})"


def _lineage(known: Sequence[Kept], head_id: str) -> list[Kept]:
    """The checkpoints from the head back, as far as they are there."""
    by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in known}
    line: list[Kept] = []
    wanted: str | None = head_id
    while wanted is not None and wanted in by_id:
        line.append(by_id[wanted])
        wanted = by_id[wanted].parent_id
    return line


def _last(policy: Retention, known: Sequence[Kept], head_id: str, now: datetime) -> list[Kept]:
    supersteps: set[int] = set()
    kept: list[Kept] = []
    for checkpoint in _lineage(known, head_id):
        supersteps.add(checkpoint.superstep)
        if len(supersteps) > policy._count:
            break
        kept.append(checkpoint)
    return kept


_CHOICES: Mapping[_Kind, Callable[[Any, Sequence[Kept], str, datetime], Iterable[Kept]]] = {
    _Kind.FULL_HISTORY: lambda policy, known, head_id, now: known,
    _Kind.LATEST_ONLY: lambda policy, known, head_id, now: (),
    _Kind.KEEP_LAST: _last,
    _Kind.KEEP_FOR: lambda policy, known, head_id, now: [
        checkpoint for checkpoint in known if now - checkpoint.timestamp <= policy._age
    ],
}


@dataclass(frozen=True)
class EventRetention:
    """Chooses the events of runs that a storage keeps for ``watch``: those of the last checkpoints, or by age.

    Kept are the events of the last ``checkpoints`` of a run and those of the last ``age``, whichever are more. They
    do not depend on the ``Retention`` of the checkpoints themselves.

    >>> EventRetention(checkpoints=100, age=timedelta(hours=1)).checkpoints
    100
    >>> EventRetention(checkpoints=0)
    Traceback (most recent call last):
    ...
    holdfast.errors.InvalidArgument: EventRetention(checkpoints=0): must be a whole number of at least 1
    """

    checkpoints: int = 1_000
    age: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if type(self.checkpoints) is not int or self.checkpoints < 1:
            raise InvalidArgument(
                f"EventRetention(checkpoints={self.checkpoints!r}): must be a whole number of at least 1"
            )
        age: object = self.age
        if not isinstance(age, timedelta) or age < timedelta(0):
            raise InvalidArgument(f"EventRetention(age={age!r}): must be a timedelta of 0 or more")


class MultiAgentCheckpointRetention:
    """The retention of checkpoints under the names that the workflow stores of HPD-Agent have for it.

    >>> MultiAgentCheckpointRetention.LATEST_ONLY
    Retention.latest_only()
    >>> from holdfast import InMemoryCheckpointStorage
    >>> InMemoryCheckpointStorage(MultiAgentCheckpointRetention.FULL_HISTORY).retention.keeps_all
    True
    """

    LATEST_ONLY: ClassVar[Retention] = Retention.latest_only()
    """Only the latest checkpoint of a run is kept."""
    FULL_HISTORY: ClassVar[Retention] = Retention.full_history()
    """Every checkpoint is kept."""
