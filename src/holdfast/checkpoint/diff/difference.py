"""The difference between two checkpoints as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.checkpoint.checkpoint_info import CheckpointInfo
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
    """The value itself; a stand-in if it is big, or of a type that is not declared here."""
    text: str
    """The value in a few words."""

    @property
    def is_read(self) -> bool:
        """True if ``value`` is the value itself, not a stand-in."""
        return not isinstance(self.value, Unread)

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON; with ``value`` if the value is small and JSON can express it exactly."""
        given: dict[str, Any] = {"type": self.type, "size": self.size, "text": self.text}
        if self.is_read and self.size <= _IN_JSON and _is_json(self.value):
            given["value"] = self.value
        return given


@dataclass(frozen=True)
class Difference:
    """A value that two checkpoints do not both have, or have in different forms.

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
    """The place of the value, as described in ``CheckpointDiff``. Of a part, the keys, indexes, fields and members of
    sets that lead to it in the new value; for a removed item of a list, the last one is its index in the old value."""
    where: str
    """The place as text."""
    before: DiffValue | None = None
    after: DiffValue | None = None
    lines: tuple[str, ...] = ()
    """A unified diff, for texts with several lines."""
    parts: tuple[Difference, ...] = ()
    """The parts that differ, for values that consist of others."""
    complete: bool = True
    """False if there are more lines or parts than are given."""

    @property
    def old(self) -> Any:
        """The value in the first checkpoint; None if there is none."""
        return None if self.before is None else self.before.value

    @property
    def new(self) -> Any:
        """The value in the second checkpoint; None if there is none."""
        return None if self.after is None else self.after.value

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON."""
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
        from holdfast.checkpoint.diff.render import render_difference

        return "\n".join(render_difference(self))


@dataclass(frozen=True)
class CheckpointDiff:
    """The difference between two checkpoints; made by ``storage.diff``.

    It is true if anything differs in what they hold. ``str`` gives text, ``to_dict`` data for JSON.

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
    """The messages that fan-ins hold. Places are ``(fan-in, source)``."""
    pending_requests: tuple[Difference, ...] = ()
    """Places are ``(request id, executor id)``."""
    outputs: tuple[Difference, ...] = ()
    """Places are ``(index, executor id)``."""
    graph: tuple[str, ...] = ()
    """The differences of the graphs that made them, as text."""

    @property
    def sections(self) -> Mapping[str, tuple[Difference, ...]]:
        """All differences but those of the graph, by section."""
        names = ("state", "executor_states", "messages", "fan_ins", "pending_requests", "outputs")
        return {name: getattr(self, name) for name in names}

    def __bool__(self) -> bool:
        return bool(self.graph) or any(self.sections.values())

    def to_dict(self) -> dict[str, Any]:
        """Return data for JSON."""
        return {
            "checkpoint_a": _describe_checkpoint(self.checkpoint_a),
            "checkpoint_b": _describe_checkpoint(self.checkpoint_b),
            **{name: [found.to_dict() for found in section] for name, section in self.sections.items()},
            "graph": list(self.graph),
        }

    def __str__(self) -> str:
        from holdfast.checkpoint.diff.render import render_diff

        return render_diff(self)


def _describe_checkpoint(info: CheckpointInfo) -> dict[str, Any]:
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
    """Return True if JSON can express a value so that reading it gives an equal one."""
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
