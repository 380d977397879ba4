"""The port of session stores, and what programs do with any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable
from uuid import uuid4

from holdfast.agents.port import AgentMessage
from holdfast.agents.sessions.entry import SessionEntry, ThreadInfo
from holdfast.errors import WrongType

MAIN = "main"
"""The thread of a session that is meant where none is named."""


@runtime_checkable
class SessionStore(Protocol):
    """Keeps sessions: conversations with threads, each a line of entries.

    An entry is first staged, which nobody reads, then published at the end of its thread. Both can be repeated without
    harm, by any process. An entry of a thread names the entry before it, so threads share what lies before a fork.
    Entries that lead back to themselves are refused with a ``StorageError``, staged or not. Each method is atomic and
    durable when it returns. ``SessionStoreConformance`` in ``holdfast.testing`` has these
    promises as tests.

    >>> from holdfast.agents import InMemorySessionStore
    >>> isinstance(InMemorySessionStore(), SessionStore)
    True
    """

    async def stage(self, entry: SessionEntry) -> None:
        """Keep an entry aside, in place of a staged one with its id; one that is published stays as it is."""
        ...

    async def publish(self, session_id: str, entry_id: str) -> bool:
        """Put a staged entry at the end of its thread, after staged ones before it; make the thread if it is new.

        ``choose_after`` says after which entry. One that is published already stays as it is. Returns False if there is
        no such entry: a session that was deleted does not come back.
        """
        ...

    async def staged(self, session_id: str | None = None) -> list[SessionEntry]:
        """Return the entries that are staged and not published, oldest first, of one session or of all."""
        ...

    async def entries(
        self, session_id: str, thread: str = MAIN, *, upto: str | None = None
    ) -> list[SessionEntry]:
        """Return the conversation of a thread, oldest first, with what lies before its fork; empty if there is none.

        With ``upto`` it is the conversation up to that entry of the session, staged or published, in whatever thread;
        raises ``SessionNotFound`` if there is no such entry.
        """
        ...

    async def fork(self, session_id: str, thread: str, at: str) -> ThreadInfo:
        """Make a thread that goes on after an entry of the session, in whatever thread that is.

        One that is there already with the same origin stays as it is; with another it is an ``InvalidArgument``. Raises
        ``SessionNotFound`` if there is no such entry.
        """
        ...

    async def threads(self, session_id: str) -> list[ThreadInfo]:
        """Return the threads of a session, by name; empty if there is no such session."""
        ...

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the ids of sessions, sorted, beginning behind ``after``."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Remove a session with all its threads and all that is staged; False if there is no such session."""
        ...

    async def close(self) -> None:
        """Let go of files; the store must not be used any more."""
        ...


async def append_messages(
    store: SessionStore,
    session_id: str,
    messages: Iterable[AgentMessage],
    *,
    thread: str = MAIN,
    key: str | None = None,
) -> str:
    """Add messages to a session from outside of any run; a known ``key`` changes nothing. Return the id of the entry.

    >>> import asyncio
    >>> from holdfast.agents import InMemorySessionStore
    >>> async def main() -> list[str]:
    ...     store = InMemorySessionStore()
    ...     await append_messages(store, "kim", [AgentMessage("user", "hello")], key="m1")
    ...     await append_messages(store, "kim", [AgentMessage("user", "hello")], key="m1")
    ...     return [message.text for message in await read_messages(store, "kim")]
    >>> asyncio.run(main())
    ['hello']
    """
    said = tuple(messages)
    for message in said:
        if not isinstance(message, AgentMessage):
            raise WrongType(
                f"a session takes messages like AgentMessage('user', 'hello'), not {message!r:.80}"
            )
    entry_id = key if key is not None else uuid4().hex
    await store.stage(SessionEntry(session_id, thread, entry_id, said))
    await store.publish(session_id, entry_id)
    return entry_id


async def read_messages(store: SessionStore, session_id: str, thread: str = MAIN) -> list[AgentMessage]:
    """Return all that was said in a thread of a session, oldest first.

    Messages of a process that died between a commit and the session come with ``settle_sessions``.

    >>> import asyncio
    >>> from holdfast.agents import InMemorySessionStore
    >>> asyncio.run(read_messages(InMemorySessionStore(), "kim"))
    []
    """
    return [message for entry in await store.entries(session_id, thread) for message in entry.messages]
