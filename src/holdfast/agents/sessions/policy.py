"""The rule by which an agent uses a session, and where a run stands in its threads."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from holdfast.agents.port import AgentHistory, AgentMessage, AgentRequest
from holdfast.agents.sessions.entry import (
    EntryContext,
    SessionEntry,
    check_session_id,
    check_thread,
)
from holdfast.agents.sessions.store import MAIN, SessionStore
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.errors import InvalidArgument, RunNotFound
from holdfast.graph.state_key import Merge, StateKey

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import CheckpointStorage


@dataclass(frozen=True)
class ThreadView:
    """A conversation as an agent is given it: messages that stand for what was left out, then entries.

    >>> view = ThreadView((), tuple(SessionEntry("kim", "main", f"e{n}", ()) for n in range(5)))
    >>> shorter = view.keep_last(2, AgentMessage("user", "Before that we talked about kelp."))
    >>> [entry.entry_id for entry in shorter.entries], shorter.messages[0].text
    (['e3', 'e4'], 'Before that we talked about kelp.')
    """

    messages: tuple[AgentMessage, ...] = ()
    entries: tuple[SessionEntry, ...] = ()

    def keep_last(self, count: int, *summary: AgentMessage) -> ThreadView:
        """Return a view with the last entries only, and a summary in place of all before."""
        kept = self.entries[-count:] if count else ()
        return ThreadView(summary, kept)


Compaction: TypeAlias = Callable[[ThreadView], "ThreadView | Awaitable[ThreadView]"]
"""Returns a view with fewer entries, or the view itself. An entry has whole turns, so no tool call loses its result."""


@dataclass(frozen=True)
class SessionPolicy:
    """Keeps the conversation of an agent in a session of a store.

    The session is that of the request (``AgentRequest.session_id``), else ``session_id``: an id, a ``StateKey`` under
    which the run has one, or a function of the request; else the run has a session of its own, named by its id. Agents
    of a run with one thread work one after the other, and each reads what those before it said.

    >>> from holdfast.agents import AgentSettings, InMemorySessionStore
    >>> AgentSettings(session=SessionPolicy(InMemorySessionStore(), "kim")).session.thread
    'main'
    """

    store: SessionStore
    session_id: str | StateKey[str] | Callable[[AgentRequest], str] | None = None
    thread: str = MAIN
    fork_of: str | None = None
    """The thread at whose end this one begins, if it is new; None begins with nothing."""
    compact: Compaction | None = None
    """Shortens the conversation that an agent is given; the session keeps all of it."""

    def __post_init__(self) -> None:
        store: object = self.store
        if not isinstance(store, SessionStore):
            raise InvalidArgument(
                f"SessionPolicy({self.store!r:.60}): give it a session store, like JsonSessionStore('sessions')"
            )
        check_thread(self.thread)
        if self.fork_of is not None:
            check_thread(self.fork_of)
        if isinstance(self.session_id, str):
            check_session_id(self.session_id)


# Where a run stands.


@checkpointable(name="holdfast.ThreadPosition")
@dataclass(frozen=True)
class ThreadPosition:
    """The last entry of a thread that a run wrote."""

    session_id: str
    thread: str
    entry_id: str
    run_id: str
    number: int
    """Counts the entries of the run in the thread: of two positions the later one has the greater number."""
    restored: int = 0
    """The seq of the checkpoint by which the run was last taken back; another one means that it was since."""


@checkpointable(name="holdfast.ThreadPositions")
@dataclass(frozen=True)
class ThreadPositions:
    """The positions of a run by session and thread; those that are added are later ones."""

    by_thread: dict[str, ThreadPosition] = field(default_factory=dict)

    def __add__(self, other: ThreadPositions) -> ThreadPositions:
        added = dict(self.by_thread)
        for name, position in other.by_thread.items():
            known = added.get(name)
            if known is None or position.number > known.number:
                added[name] = position
        return ThreadPositions(added)


POSITIONS = StateKey("positions", ThreadPositions, "holdfast.sessions", Merge.ADD)
"""The key of shared state that has the positions of a run."""


def position_name(session_id: str, thread: str) -> str:
    """Return the name of a thread in ``ThreadPositions``; it is that of the policy, whatever forks made of it."""
    return json.dumps([session_id, thread])


@checkpointable(name="holdfast.ThreadStanding")
@dataclass(frozen=True)
class ThreadStanding:
    """The conversation that an agent was given for one message: recorded, so that each turn of it gives the same."""

    session_id: str
    entry_id: str | None
    context: EntryContext | None = None


# Conversations for agents.


class GivenHistory(NamedTuple):
    """A conversation as it is put into a request."""

    messages: tuple[AgentMessage, ...]
    history: AgentHistory | None
    is_mixed: bool = False
    """True if other agents spoke in it."""


def view_of(line: list[SessionEntry]) -> ThreadView:
    """Return the conversation of a line of entries, as it was shortened last."""
    shortened = [number for number, entry in enumerate(line) if entry.context is not None]
    if not shortened:
        return ThreadView((), tuple(line))
    last = shortened[-1]
    context = line[last].context
    assert context is not None
    return apply_context(line, context, last)


def apply_context(line: list[SessionEntry], context: EntryContext, behind: int) -> ThreadView:
    """Return the conversation of a line whose part up to ``context.upto`` was shortened.

    ``behind`` is the first entry that is certainly behind that part.
    """
    ids = [entry.entry_id for entry in line]
    first = ids.index(context.upto) + 1 if context.upto in ids[:behind] else behind
    kept = tuple(entry for entry in line[:first] if entry.entry_id in context.kept)
    return ThreadView(context.messages, kept + tuple(line[first:]))


def history_of(view: ThreadView, agent: str) -> GivenHistory:
    """Return a conversation for an agent: in the JSON of its library if it alone led it, else in neutral messages.

    The messages of another agent would bring along that one's instructions and tools.
    """
    entries = view.entries
    wholes = [number for number, one in enumerate(entries) if one.whole and one.author.agent == agent]
    last = entries[wholes[-1] :] if wholes else entries
    histories = [one.history for one in last if one.history is not None and one.author.agent == agent]
    if not last or len(histories) < len(last) or len({history.adapter for history in histories}) > 1:
        said = tuple(message for entry in entries for message in entry.messages)
        return GivenHistory(view.messages + said, None, is_mixed(view, agent))
    messages = [message for history in histories for message in history.messages]
    summary = () if wholes else view.messages
    return GivenHistory(summary, replace(histories[-1], messages=messages))


def is_mixed(view: ThreadView, agent: str) -> bool:
    """Return True if other agents spoke in a conversation."""
    return any(entry.author.agent not in ("", agent) for entry in view.entries)


def added_history(given: GivenHistory, history: AgentHistory | None) -> tuple[AgentHistory | None, bool]:
    """Return what a turn added to a conversation in its library's JSON, and True if that is the whole of it.

    A library may merge or leave out messages that it was given. So where what it was given is not found again as it
    was, the whole history is kept. Among several agents none is: nobody would read it.
    """
    if history is None or given.is_mixed:
        return None, False
    before = [] if given.history is None else given.history.messages
    start, end = len(given.messages), len(given.messages) + len(before)
    if before and history.messages[start:end] == before:
        return replace(history, messages=history.messages[end:]), False
    return history, bool(before or given.messages)


# Entries that wait for their commit to be known.


async def settle_sessions(
    store: SessionStore, storage: CheckpointStorage, session_id: str | None = None
) -> int:
    """Publish what runs of a storage said, and whose process died before it could; return the number of entries.

    A turn stages its entry, and publishes it once its superstep is durable. Agents do this for the session that they
    use; call it before people read sessions, or when a program begins. It can be repeated at any time.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage
    >>> from holdfast.agents import InMemorySessionStore
    >>> asyncio.run(settle_sessions(InMemorySessionStore(), InMemoryCheckpointStorage()))
    0
    """
    staged = await store.staged(session_id)
    known: list[ThreadPositions] = []
    for run_id in dict.fromkeys(entry.author.run_id for entry in staged if entry.author.run_id):
        known.append(await _stored_positions(storage, run_id))
    count = 0
    for positions in known:
        count += await publish_committed(store, staged, positions)
    return count


async def _stored_positions(storage: CheckpointStorage, run_id: str) -> ThreadPositions:
    try:
        latest = await storage.get_latest(run_id=run_id)
    except RunNotFound:
        latest = None
    if latest is None:
        return ThreadPositions()
    checkpoint = await storage.load(latest.checkpoint_id, values=False)
    found = await checkpoint.read_state(POSITIONS.name, scope_name=POSITIONS.scope_name)
    return found if isinstance(found, ThreadPositions) else ThreadPositions()


async def publish_committed(
    store: SessionStore, staged: list[SessionEntry], positions: ThreadPositions
) -> int:
    """Publish those staged entries on which committed positions stand; return their number."""
    waiting = {(entry.session_id, entry.entry_id): entry for entry in staged}
    count = 0
    for position in positions.by_thread.values():
        line = []
        found = waiting.pop((position.session_id, position.entry_id), None)
        while found is not None:
            line.append(found)
            found = waiting.pop((found.session_id, found.after or ""), None)
        for entry in reversed(line):
            count += await store.publish(entry.session_id, entry.entry_id)
    return count
