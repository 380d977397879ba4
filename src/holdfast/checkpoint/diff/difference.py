"""What is different between two checkpoints, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.views import Unread

Kind: TypeAlias = Literal["added", "removed", "changed", "appended", "cut", "reordered"]

# A value up to this size stands in JSON as it is.
_IN_JSON = 4096


@dataclass(frozen=True)
class DiffValue:
    """One side of a difference.

    >>> DiffValue("int", 1, 7, "7").is_read
    True
    """

    type: str
    size: int
    """In bytes, encoded."""
    value: Any
    """The value itself; where it is big, or of a type that is not declared here, what stands for it in texts."""
    text: str
    """What it looks like, in a few words."""

    @property
    def is_read(self) -> bool:
        """Whether ``value`` is the value itself."""
        return not isinstance(self.value, Unread)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``value`` is in it if the value is small and JSON can say it exactly."""
        given: dict[str, Any] = {"type": self.type, "size": self.size, "text": self.text}
        if self.is_read and self.size <= _IN_JSON and _is_json(self.value):
            given["value"] = self.value
        return given


@dataclass(frozen=True)
class Difference:
    """Something that one checkpoint has and another has not, or has otherwise.

    >>> seen = Difference("changed", ("Triage", "field", "seen"), "Triage.seen",
    ...                   DiffValue("int", 1, 1, "1"), DiffValue("int", 1, 2, "2"))
    >>> print(seen)
    ~ Triage.seen: 1 -> 2
    >>> seen.old, seen.new
    (1, 2)
    """

    kind: Kind
    """``added``, ``removed`` or ``changed``. Of parts also ``reordered`` (the keys of a dict), and, of a list or text
    that begins with much that both have, ``cut`` and ``appended``: what stands there at the end."""
    place: tuple[Any, ...]
    """Where: ``CheckpointDiff`` says what is in it. Of a part, the keys, indexes, fields and members of sets that lead
    to it in the new value; that of an item of a list which was removed ends with its index in the old one."""
    where: str
    """The same for people."""
    before: DiffValue | None = None
    after: DiffValue | None = None
    lines: tuple[str, ...] = ()
    """Of texts with several lines: a unified diff."""
    parts: tuple[Difference, ...] = ()
    """Of values that consist of others: those that are different."""
    complete: bool = True
    """Whether ``lines`` and ``parts`` are all; there may be too many."""

    @property
    def old(self) -> Any:
        """The value in the first checkpoint; None if there is none."""
        return None if self.before is None else self.before.value

    @property
    def new(self) -> Any:
        """The value in the second checkpoint; None if there is none."""
        return None if self.after is None else self.after.value

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        given: dict[str, Any] = {
            "kind": self.kind,
            "place": [step if _is_json(step) else str(step) for step in self.place],
            "where": self.where,
        }
        if self.before is not None:
            given["old"] = self.before.to_dict()
        if self.after is not None:
            given["new"] = self.after.to_dict()
        if self.lines:
            given["lines"] = list(self.lines)
        if self.parts:
            given["parts"] = [part.to_dict() for part in self.parts]
        if not self.complete:
            given["complete"] = False
        return given

    def __str__(self) -> str:
        from holdfast.checkpoint.diff.render import difference_lines

        return "\n".join(difference_lines(self))


@dataclass(frozen=True)
class CheckpointDiff:
    """What is different between two checkpoints; made by ``storage.diff``.

    It is true if anything differs in what they hold. ``str`` gives it as text, ``to_dict`` as data for JSON.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def count(number: int, ctx: WorkflowContext[int]) -> None:
    ...     await ctx.set_shared_state("seen", number)
    ...     if number < 3:
    ...         await ctx.send_message(number + 1)
    >>> storage = InMemoryCheckpointStorage()
    >>> builder = WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count)
    >>> workflow = builder.with_checkpointing(storage).build()
    >>> async def main():
    ...     await workflow.run(1, run_id="r1")
    ...     _, first, *_, last = await storage.list_checkpoints()
    ...     return await storage.diff(first, last)
    >>> diff = asyncio.run(main())
    >>> print(diff)
    --- run r1, checkpoint 2, end 1
    +++ run r1, checkpoint 6, end 3, completed
    state
      ~ shared['seen']: 1 -> 3
    messages
      - count -> count: 2
    >>> diff.state[0].place, diff.state[0].new
    (('shared', 'seen'), 3)
    """

    checkpoint_a: CheckpointInfo
    checkpoint_b: CheckpointInfo
    state: tuple[Difference, ...] = ()
    """Places are ``(scope, key)``; a scope of a nested workflow is under its path."""
    executor_states: tuple[Difference, ...] = ()
    """Places are ``(executor id, what, key)``; what is ``state`` (of ``set_state``), ``private`` or ``field``."""
    messages: tuple[Difference, ...] = ()
    """Places are ``(target, source, request id)``; the source may be None, the request is that of a response."""
    fan_ins: tuple[Difference, ...] = ()
    """What fan-ins hold. Places are ``(fan-in, source)``."""
    pending_requests: tuple[Difference, ...] = ()
    """Places are ``(request id, executor id)``."""
    outputs: tuple[Difference, ...] = ()
    """Places are ``(index, executor id)``."""
    graph: tuple[str, ...] = ()
    """How the graphs that made them differ, in words."""

    @property
    def sections(self) -> Mapping[str, tuple[Difference, ...]]:
        """All differences but those of the graph, by section."""
        names = ("state", "executor_states", "messages", "fan_ins", "pending_requests", "outputs")
        return {name: getattr(self, name) for name in names}

    def __bool__(self) -> bool:
        return bool(self.graph) or any(self.sections.values())

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "checkpoint_a": _named(self.checkpoint_a),
            "checkpoint_b": _named(self.checkpoint_b),
            **{name: [found.to_dict() for found in section] for name, section in self.sections.items()},
            "graph": list(self.graph),
        }

    def __str__(self) -> str:
        from holdfast.checkpoint.diff.render import text_of

        return text_of(self)


def _named(info: CheckpointInfo) -> dict[str, Any]:
    return {
        "checkpoint_id": str(info.checkpoint_id),
        "run_id": str(info.run_id),
        "workflow_name": info.workflow_name,
        "seq": info.seq,
        "superstep": info.superstep,
        "phase": info.phase.value,
        "status": info.status.value,
    }


def _is_json(value: Any) -> bool:
    """Whether JSON can say a value so that reading it gives the same again."""
    waiting: list[Any] = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind is list:
            waiting += part
        elif kind is dict:
            if not all(type(key) is str for key in part):
                return False
            waiting += [*part, *part.values()]
        elif kind is str:
            if not part.isascii() and any("\ud800" <= sign <= "\udfff" for sign in part):
                return False
        elif kind is float:
            if not math.isfinite(part):
                return False
        elif kind not in (int, bool, type(None)):
            return False
    return True
