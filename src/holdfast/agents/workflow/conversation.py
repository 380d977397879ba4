"""The policies by which the agents of a team keep their conversations in a session store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.agents.sessions.policy import SessionPolicy
from holdfast.agents.sessions.store import MAIN, SessionStore

ConversationKind = Literal["none", "shared_thread", "thread_per_agent", "fork_thread_per_agent"]
CONVERSATION_KINDS = ("none", "shared_thread", "thread_per_agent", "fork_thread_per_agent")


@dataclass(frozen=True)
class Conversation:
    """Says which threads of a session the agents of a team use.

    Without a ``session_id`` the session is that of the request (``AgentRequest(session_id=...)``), else one of the run.
    Agents with one thread work one after the other, and each reads what was said before.

    >>> Conversation.shared_thread("kim").kind
    'shared_thread'
    """

    kind: ConversationKind = "none"
    session_id: str | None = None

    @classmethod
    def none(cls) -> Conversation:
        """Keep nothing."""
        return cls()

    @classmethod
    def shared_thread(cls, session_id: str | None = None) -> Conversation:
        """Let all agents speak in one thread."""
        return cls("shared_thread", session_id)

    @classmethod
    def thread_per_agent(cls, session_id: str | None = None) -> Conversation:
        """Give each agent a thread of its own."""
        return cls("thread_per_agent", session_id)

    @classmethod
    def fork_thread_per_agent(cls, session_id: str | None = None) -> Conversation:
        """Give each agent a thread of its own that begins with the main thread of the session."""
        return cls("fork_thread_per_agent", session_id)

    def policy_for(self, node_id: str, store: SessionStore) -> SessionPolicy | None:
        """Return the policy of an agent."""
        if self.kind == "none":
            return None
        if self.kind == "shared_thread":
            return SessionPolicy(store, self.session_id)
        fork_of = MAIN if self.kind == "fork_thread_per_agent" else None
        return SessionPolicy(store, self.session_id, node_id, fork_of)
