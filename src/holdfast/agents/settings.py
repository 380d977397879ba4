"""The settings of an agent in a workflow, besides the agent itself."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.agents.budget import Budget
from holdfast.agents.decisions import OutputApproval, ToolApproval
from holdfast.agents.sessions.policy import SessionPolicy
from holdfast.errors import InvalidArgument
from holdfast.graph.retry import RetryPolicy


@dataclass(frozen=True)
class AgentSettings:
    """The settings of an ``AgentExecutor``: what people approve, what is remembered, what limits the agent.

    >>> AgentSettings(tool_approval=ToolApproval(["refund"]), max_rounds=10).max_rounds
    10
    """

    instructions: str | None = None
    """Instructions besides those that the agent has."""
    remembers: bool = False
    """True if the agent remembers the conversation of earlier messages in the same run."""
    session: SessionPolicy | None = None
    """The session in which the conversation is kept, also for other runs."""
    tool_approval: ToolApproval | None = None
    """The tool calls that a person must approve."""
    output_approval: OutputApproval | None = None
    """The replies that a person must approve."""
    max_rounds: int = 50
    """The most model calls of one agent for one message: an endless tool loop ends with ``AgentLoop``."""
    budgets: tuple[Budget, ...] = ()
    """The most that this agent may use, together with others of the run whose budgets have the same names."""
    retry: RetryPolicy | None = None
    """Says when a turn that failed is tried again; calls that are recorded are not repeated."""
    timeout: float | None = None
    """The most seconds for one turn."""
    longest_pause: float = 30.0
    """A rate limit of at most so many seconds is waited for in place; for a longer one the run sleeps."""
    model_attempts: int = 5
    """The number of attempts at a model call whose provider limits it, cannot be reached or breaks off."""
    strict_replay: bool = False
    """True if a replay that asks a model something else than was recorded fails; else it warns."""
    record: bool = False
    """True if each call is kept with its request in the state of the run, for a ``Cassette``."""

    def __post_init__(self) -> None:
        budgets: object = self.budgets
        if not isinstance(budgets, tuple) or not all(isinstance(one, Budget) for one in budgets):
            raise InvalidArgument(
                f"AgentSettings(budgets={self.budgets!r}): must be a tuple of budgets, like (Budget(tokens=1000),)"
            )
        if self.session is not None and not isinstance(self.session, SessionPolicy):
            raise InvalidArgument(
                f"AgentSettings(session={self.session!r:.60}): must be SessionPolicy(store, ...)"
            )
        if self.session is not None and self.remembers:
            raise InvalidArgument(
                "AgentSettings(remembers=True, session=...): a session remembers the conversation already; leave "
                "remembers out"
            )
        for name in ("max_rounds", "model_attempts"):
            number = getattr(self, name)
            if type(number) is not int or number < 1:
                raise InvalidArgument(
                    f"AgentSettings({name}={number!r}): must be a whole number of at least 1"
                )
