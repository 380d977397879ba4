"""The messages between the agents of a team, and the count of those that an agent waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.agents.workflow.team_plan import Incoming
from holdfast.checkpoint.codec.registry import checkpointable


@checkpointable(name="holdfast.TeamToken")
@dataclass(frozen=True)
class TeamToken:
    """Goes along an edge: a message, the mark that the edge was refused, or the word that a loop is over."""

    source: str
    kind: Literal["message", "skip", "over"]
    outputs: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    reason: str = ""
    """The refused edge in words, for a skip."""
    rounds: dict[str, int] = field(default_factory=dict)
    """The rounds of the loops around the source, by their headers."""


@checkpointable(name="holdfast.TeamTask")
@dataclass(frozen=True)
class TeamTask:
    """The task of an agent, whose edges are all settled."""

    tokens: tuple[TeamToken, ...]
    rounds: dict[str, int]
    started: float
    """The time at which it began, in seconds since 1970."""


@checkpointable(name="holdfast.TeamReport")
@dataclass(frozen=True)
class TeamReport:
    """Tells END that an agent begins or how it ended, that a loop begins another round, or that an input waits."""

    agent: str
    outcome: Literal["started", "succeeded", "failed", "skipped", "round", "waiting"]
    error: str | None = None


@checkpointable(name="holdfast.TeamJoin")
@dataclass
class TeamJoin:
    """The tokens that came to an agent and wait for those of its other edges."""

    tokens: dict[str, TeamToken] = field(default_factory=dict)
    """The last message of each edge, else its skip, by the source."""
    over: dict[str, TeamToken] = field(default_factory=dict)
    """The loops that are over, by their headers."""
    in_loop: bool = False
    """True for the header of a loop that is under way."""
    rounds: dict[str, int] = field(default_factory=dict)
    """The rounds of the loops around the agent when it had its last turn."""

    def take(self, token: TeamToken) -> None:
        """Take a token; a message stays, though the edge is refused in a later round of a loop that it leaves."""
        if token.kind == "over":
            self.over[token.source] = token
        elif token.kind == "message" or token.source not in self.tokens:
            self.tokens[token.source] = token

    def settled(self, edges: Sequence[Incoming]) -> tuple[TeamToken, ...] | None:
        """Return the messages once every edge that counts now is settled, and forget its tokens; else None."""
        rounds = self.rounds_told()
        counted = [edge for edge in edges if not any(rounds.get(header, 1) > 1 for header in edge.enters)]
        for edge in counted:
            if edge.gate not in self.over if edge.gate is not None else edge.source not in self.tokens:
                return None
        found = [self.tokens[edge.source] for edge in counted if edge.source in self.tokens]
        self.rounds = {**self.rounds, **rounds}
        for edge in edges:
            self.tokens.pop(edge.source, None)
            if edge.gate is not None:
                self.over.pop(edge.gate, None)
        return tuple(found)

    def rounds_told(self) -> dict[str, int]:
        """Return the rounds that the tokens at hand tell."""
        told: dict[str, int] = {}
        for token in (*self.tokens.values(), *self.over.values()):
            told |= token.rounds
        return told
