"""Damage in a storage: problems, lost values, and the report of a check."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LostValue:
    """A stored value that cannot be read any more, described by its place in the run.

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
    """The executor that it belonged to; of a message, the receiver."""
    scope: str | None = None
    """The shared scope of a value of state."""
    key: str | None = None
    """The key of state, the field of an executor, the id of a request, the name of an effect that was done once."""

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
    """None if not even the run is known; the text then says where the damage lies."""
    checkpoint_id: str | None
    what: str
    seq: int | None = None
    """The seq of the checkpoint in its run, also if its id is not known."""
    value: LostValue | None = None
    """The lost value, if the problem is one."""


@dataclass
class VerifyReport:
    """The result of ``storage.verify``: numbers of what was checked, and the problems that were found.

    >>> VerifyReport().ok
    True
    """

    runs: int = 0
    checkpoints: int = 0
    blobs: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems


def briefly(what: object) -> str:
    """Return the text of a problem without the advice that follows it, which would be stale in a report of a repair.

    >>> briefly("it is empty. Put back a copy"), briefly("a blob is missing; look for it")
    ('it is empty', 'a blob is missing')
    """
    return re.split(r"\. |; ", str(what), maxsplit=1)[0]
