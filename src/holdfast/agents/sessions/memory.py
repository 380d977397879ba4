"""Sessions in memory, and a session as a tree of entries."""

from __future__ import annotations

from holdfast.agents.sessions.entry import (
    EntryLink,
    PlaceEntry,
    SessionEntry,
    ThreadInfo,
    check_session_id,
    check_thread,
    choose_after,
    leads_back,
    pack_entry,
    place_entry,
    unpack_entry,
)
from holdfast.agents.sessions.store import MAIN
from holdfast.errors import InvalidArgument, SessionNotFound


class SessionTree:
    """The entries of one session, each with the one before it, and its threads."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.entries: dict[str, SessionEntry] = {}
        """Published entries by their ids."""
        self.staged: dict[str, SessionEntry] = {}
        self._origins: dict[str, str | None] = {}
        self._own: dict[str, list[str]] = {}
        """The ids of the entries of each thread, in the order in which they were published."""

    def add_thread(self, thread: str, origin: str | None) -> None:
        """Make a thread."""
        self._origins[thread] = origin
        self._own[thread] = []

    def has_thread(self, thread: str) -> bool:
        """Return True if there is such a thread."""
        return thread in self._origins

    def add(self, entry: SessionEntry) -> None:
        """Put an entry at the end of its thread, as it is."""
        if entry.thread not in self._origins:
            self.add_thread(entry.thread, entry.after)
        self.entries[entry.entry_id] = entry
        self._own[entry.thread].append(entry.entry_id)

    def tip(self, thread: str) -> str | None:
        """Return the last entry of a thread's conversation."""
        own = self._own.get(thread)
        return own[-1] if own else self._origins.get(thread)

    def line(self, entry_id: str | None) -> list[SessionEntry]:
        """Return the conversation up to an entry, oldest first; raise ``SessionNotFound`` if there is none."""
        found: dict[str, SessionEntry] = {}
        while entry_id is not None:
            entry = self.entries.get(entry_id) or self.staged.get(entry_id)
            if entry is None:
                raise entry_not_found(self.session_id, entry_id)
            if entry_id in found:
                raise leads_back(self.session_id, entry_id)
            found[entry_id] = entry
            entry_id = entry.after
        return list(found.values())[::-1]

    def to_publish(self, entry_id: str, place: PlaceEntry) -> list[SessionEntry]:
        """Return the staged entries that are published for one, in order, each as it is placed then."""
        waiting: dict[str, SessionEntry] = {}
        while entry_id in self.staged and entry_id not in self.entries:
            if entry_id in waiting:
                raise leads_back(self.session_id, entry_id)
            waiting[entry_id] = self.staged[entry_id]
            entry_id = waiting[entry_id].after or ""
        placed: list[SessionEntry] = []
        tips: dict[str, str | None] = {}
        for entry in reversed(waiting.values()):
            thread = entry.thread
            if thread not in tips:
                tips[thread] = self.tip(thread) if self.has_thread(thread) else entry.after
            after = choose_after(entry, tips[thread], self._links)
            placed.append(place(entry, after))
            tips[thread] = entry.entry_id
        return placed

    def _links(self, entry_id: str | None) -> list[EntryLink]:
        return [EntryLink(entry.entry_id, entry.author.run_id) for entry in self.line(entry_id)]

    def check_fork(self, thread: str, at: str) -> bool:
        """Return True if a thread that begins at an entry is there already; raise if it cannot be made."""
        check_thread(thread)
        if at not in self.entries:
            raise entry_not_found(self.session_id, at)
        if not self.has_thread(thread):
            return False
        if self._origins[thread] != at:
            raise InvalidArgument(
                f"session {self.session_id!r} has a thread {thread!r} already, which begins elsewhere; choose another "
                f"name"
            )
        return True

    def info(self, thread: str) -> ThreadInfo:
        """Return a thread as stores list it."""
        return ThreadInfo(
            self.session_id, thread, self._origins[thread], self.tip(thread), len(self._own[thread])
        )

    def infos(self) -> list[ThreadInfo]:
        """Return all threads, by name."""
        return [self.info(thread) for thread in sorted(self._origins)]

    def unpublished(self) -> list[SessionEntry]:
        """Return the entries that are staged only."""
        return [entry for known, entry in self.staged.items() if known not in self.entries]


def entry_not_found(session_id: str, entry_id: str) -> SessionNotFound:
    """Return the error for an entry that is not there."""
    return SessionNotFound(
        f"session {session_id!r} has no entry {entry_id!r}: the session was deleted, or this is another store than the "
        f"one in which the conversation was kept"
    )


def in_order_of_time(entries: list[SessionEntry]) -> list[SessionEntry]:
    """Return entries oldest first."""
    return sorted(entries, key=lambda entry: (entry.created, entry.entry_id))


class InMemorySessionStore:
    """Sessions that last as long as this object, for tests and programs that end with their conversations.

    >>> import asyncio
    >>> asyncio.run(InMemorySessionStore().sessions())
    []
    """

    def __init__(self) -> None:
        self._trees: dict[str, SessionTree] = {}

    async def stage(self, entry: SessionEntry) -> None:
        """Keep an entry aside."""
        kept = unpack_entry(pack_entry(entry))  # nobody can change it, and it fails where other stores fail
        tree = self._trees.setdefault(entry.session_id, SessionTree(entry.session_id))
        if entry.entry_id not in tree.entries:
            tree.staged[entry.entry_id] = kept

    async def publish(self, session_id: str, entry_id: str) -> bool:
        """Put a staged entry at the end of its thread."""
        tree = self._trees.get(session_id)
        if tree is None:
            return False
        for entry in tree.to_publish(entry_id, place_entry):
            tree.add(entry)
            del tree.staged[entry.entry_id]
        return entry_id in tree.entries

    async def staged(self, session_id: str | None = None) -> list[SessionEntry]:
        """Return the entries that are staged only."""
        trees = self._trees.values() if session_id is None else filter(None, [self._trees.get(session_id)])
        return in_order_of_time([entry for tree in trees for entry in tree.unpublished()])

    async def entries(
        self, session_id: str, thread: str = MAIN, *, upto: str | None = None
    ) -> list[SessionEntry]:
        """Return the conversation of a thread, or up to an entry."""
        tree = self._trees.get(session_id) or SessionTree(session_id)
        return tree.line(tree.tip(thread) if upto is None else upto)

    async def fork(self, session_id: str, thread: str, at: str) -> ThreadInfo:
        """Make a thread that goes on after an entry."""
        tree = self._trees.get(session_id) or SessionTree(session_id)
        if not tree.check_fork(thread, at):
            tree.add_thread(thread, at)
        return tree.info(thread)

    async def threads(self, session_id: str) -> list[ThreadInfo]:
        """Return the threads of a session."""
        tree = self._trees.get(session_id)
        return [] if tree is None else tree.infos()

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the ids of sessions."""
        return sorted(known for known in self._trees if known > after)[:limit]

    async def delete(self, session_id: str) -> bool:
        """Remove a session."""
        check_session_id(session_id)
        return self._trees.pop(session_id, None) is not None

    async def close(self) -> None:
        """Do nothing: the sessions go with the object."""
