"""What can be said of damage in a storage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LostValue:
    """A stored value that cannot be read any more: what it was to its run.

    >>> str(LostValue("state", "ab12", scope="Logs", key="checkout"))
    "state 'checkout' in scope 'Logs'"
    """

    kind: Literal[
        "state", "executor", "message", "output", "request", "answer", "event", "graph", "input", "journal"
    ]
    """``executor`` is what an executor keeps for itself, ``journal`` what the superstep under way did already."""
    blob: str
    """The digest of the blob that is lost, in hexadecimal digits."""
    executor_id: str | None = None
    """Whose it was; of a message, for whom."""
    scope: str | None = None
    """The shared scope, of state."""
    key: str | None = None
    """The key of state, the field of an executor, the id of a request, the name of what was done once."""

    def __str__(self) -> str:
        return _WORDS[self.kind].format(
            key=repr(self.key), scope=repr(self.scope), who=repr(self.executor_id)
        )


_WORDS = {
    "state": "state {key} in scope {scope}",
    "executor": "state {key} of executor {who}",
    "message": "a message to {who}",
    "output": "an output of {who}",
    "request": "request {key} of {who}",
    "answer": "the answer to request {key}",
    "event": "an event of {who}",
    "graph": "the description of its graph",
    "input": "the input of the run",
    "journal": "what {who} did already in the superstep under way",
}


@dataclass(frozen=True)
class Problem:
    """Something in a storage that is not what was stored.

    >>> Problem("r1", "ab12", "its content is not what its id says").run_id
    'r1'
    """

    run_id: str | None
    """None where not even the run can be told; the text says where it lies."""
    checkpoint_id: str | None
    what: str
    seq: int | None = None
    """The place of the checkpoint in its run, also where its id cannot be told."""
    value: LostValue | None = None
    """The value that is lost, if that is what is wrong."""


@dataclass
class VerifyReport:
    """What ``storage.verify`` found.

    >>> VerifyReport().ok
    True
    """

    runs: int = 0
    checkpoints: int = 0
    blobs: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def briefly(what: object) -> str:
    """What is wrong, without the advice that follows it: in a report of a repair that would be stale.

    >>> briefly("it is empty. Put back a copy"), briefly("a blob is missing; look for it")
    ('it is empty', 'a blob is missing')
    """
    return re.split(r"\. |; ", str(what), maxsplit=1)[0]
