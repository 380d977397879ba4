"""Entries of a session: what one turn of an agent added to a conversation, and how that becomes text and back.

Stores keep an entry as the text that ``pack_entry`` makes, and read it with ``unpack_entry``; nothing else encodes one.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.agents.port import AgentHistory, AgentMessage
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.errors import CheckpointCorrupt, InvalidArgument, StorageError
from holdfast.ids import complaint_about_id

T = TypeVar("T")

FORMAT = 1
"""The format of packed entries; a greater number is refused."""


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True)
class EntryAuthor:
    """The turn that wrote an entry; all empty for an entry that a program added itself.

    >>> EntryAuthor("r1", agent="support").run_id
    'r1'
    """

    run_id: str = ""
    family: str = ""
    """The run at the root of the forks to which the run belongs; the run itself if it is no fork."""
    executor_id: str = ""
    agent: str = ""


@checkpointable(name="holdfast.SessionContext")
@dataclass(frozen=True)
class EntryContext:
    """A shorter conversation that the agent of an entry was given in place of the one up to ``upto``.

    >>> EntryContext((AgentMessage("user", "Summary: ..."),), kept=("e9",)).kept
    ('e9',)
    """

    messages: tuple[AgentMessage, ...] = ()
    """The messages that stand for what was left out."""
    kept: tuple[str, ...] = ()
    """The ids of the entries that were kept as they are."""
    upto: str | None = None
    """The last entry of the conversation that was shortened."""


@dataclass(frozen=True)
class SessionEntry:
    """The messages that one turn added to a thread of a session. Its id is its key: a known one changes nothing.

    >>> entry = SessionEntry("kim", "main", "e1", (AgentMessage("user", "hello"),))
    >>> entry.messages[0].text
    'hello'
    """

    session_id: str
    thread: str
    entry_id: str
    messages: tuple[AgentMessage, ...]
    """The messages in words that every library understands."""
    after: str | None = None
    """The entry before it in the conversation, which may be one of the thread from which this one was forked."""
    history: AgentHistory | None = None
    """These messages in the JSON of the agent's library, with its tool calls."""
    whole: bool = False
    """True if ``history`` is the whole conversation, because the library wrote it anew, and not only what was added."""
    context: EntryContext | None = None
    """The shorter conversation that the agent was given, if it was shortened in this turn."""
    rewinds: bool = False
    """True if its run was taken back: later entries of the same run are left behind."""
    author: EntryAuthor = EntryAuthor()
    created: datetime.datetime = field(default_factory=_now)

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        check_thread(self.thread)
        if complaint := complaint_about_id(self.entry_id):
            raise InvalidArgument(f"the id of a session entry, {self.entry_id!r}, {complaint}")
        if self.created.tzinfo is None:  # stores put entries in order of time
            raise InvalidArgument(f"the time of session entry {self.entry_id!r} has no time zone")


class StoredEntry(NamedTuple):
    """An entry as a store holds it, sealed if the store is under keys."""

    entry: SessionEntry
    is_published: bool


PlaceEntry: TypeAlias = Callable[[SessionEntry, str | None], SessionEntry]
"""Returns a staged entry as it is published after another one."""


def place_entry(entry: SessionEntry, after: str | None) -> SessionEntry:
    """Return a staged entry as a store without keys publishes it after another one."""
    return replace(entry, after=after)


class ThreadInfo(NamedTuple):
    """A thread of a session, as a store lists it.

    >>> ThreadInfo("kim", "main", None, "e2", 2).thread
    'main'
    """

    session_id: str
    thread: str
    origin: str | None
    """The entry at which it was forked from another thread; None if it begins by itself."""
    tip: str | None
    """The last entry of its conversation."""
    own_entries: int
    """The number of its own entries, without those before ``origin``."""


def check_session_id(session_id: object) -> None:
    """Raise for what cannot be the id of a session: ids of users and mail addresses can."""
    if not isinstance(session_id, str) or not session_id or not session_id.isprintable():
        raise InvalidArgument(f"the session id {session_id!r} must be a text of printable characters")
    if len(session_id) > 200:
        raise InvalidArgument(f"the session id {session_id[:40]!r}... has more than 200 characters")


def check_thread(thread: object) -> None:
    """Raise for what cannot be the name of a thread."""
    if complaint := complaint_about_id(thread):
        raise InvalidArgument(f"the thread {thread!r} {complaint}")


# Text and back.


def pack_entry(entry: SessionEntry) -> str:
    """Return an entry as one line of JSON that people can read.

    >>> unpack_entry(pack_entry(SessionEntry("kim", "main", "e1", ()))).entry_id
    'e1'
    """
    author = entry.author
    plain: dict[str, Any] = {
        "format": FORMAT,
        "id": entry.entry_id,
        "after": entry.after,
        "time": entry.created.isoformat(),
        "session": entry.session_id,
        "thread": entry.thread,
        "run": author.run_id,
        "family": author.family,
        "executor": author.executor_id,
        "agent": author.agent,
        "messages": _plain_messages(entry.messages),
    }
    if entry.rewinds:
        plain["rewinds"] = True
    if entry.context is not None:
        plain["context"] = {
            "messages": _plain_messages(entry.context.messages),
            "kept": list(entry.context.kept),
            "upto": entry.context.upto,
        }
    if entry.history is not None:
        history = entry.history
        plain["history"] = {
            "adapter": history.adapter,
            "version": history.version,
            "whole": entry.whole,
            "messages": history.messages,
        }
    return dump_json(plain, f"entry {entry.entry_id!r} of session {entry.session_id!r}")


def unpack_entry(text: str | bytes, place: str = "a session store") -> SessionEntry:
    """Return the entry that a line of JSON describes; raise ``StorageError`` that names ``place`` if it is none."""
    try:
        plain = json.loads(text)
        if plain["format"] > FORMAT:
            raise StorageError(
                f"{place} has an entry of format {plain['format']}, and this version of holdfast reads up to {FORMAT}: "
                f"install a newer one"
            )
        kept, given = plain.get("history"), plain.get("context")
        return SessionEntry(
            plain["session"],
            plain["thread"],
            plain["id"],
            _messages(plain["messages"]),
            _text_or_none(plain["after"]),
            None
            if kept is None
            else AgentHistory(
                _checked(kept["adapter"], str),
                _checked(kept["version"], str),
                _checked(kept["messages"], list),
            ),
            kept is not None and _checked(kept["whole"], bool),
            None if given is None else _context(given),
            _checked(plain.get("rewinds", False), bool),
            EntryAuthor(*(_checked(plain[name], str) for name in ("run", "family", "executor", "agent"))),
            datetime.datetime.fromisoformat(plain["time"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(
            f"{place} has something that is no session entry ({type(error).__name__}: {error}); restore it from a "
            f"backup, or remove it"
        ) from error


def _context(plain: dict[str, Any]) -> EntryContext:
    kept = tuple(_checked(one, str) for one in _checked(plain["kept"], list))
    return EntryContext(_messages(plain["messages"]), kept, _text_or_none(plain["upto"]))


def _checked(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} stands in place of a {kind.__name__}")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _checked(value, str)


def dump_json(plain: Any, what: str) -> str:
    """Return a value as JSON in one line, which people can read in any language."""
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # half a character, which only an escape can say
        text = json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} cannot be kept as JSON: {error}") from error
    return text


def _plain_messages(messages: Iterable[AgentMessage]) -> list[dict[str, str]]:
    return [{"role": message.role, "text": message.text} for message in messages]


def _messages(plain: list[dict[str, Any]]) -> tuple[AgentMessage, ...]:
    for one in plain:
        _checked(one["role"], str)
    return tuple(AgentMessage(one["role"], _checked(one["text"], str)) for one in plain)


# The place of an entry in its thread.


class EntryLink(NamedTuple):
    """An entry of a line, as far as the place of another one depends on it."""

    entry_id: str
    run_id: str


def damaged_session(session_id: str, what: str) -> CheckpointCorrupt:
    """Return the error for a session whose entries are not as they were stored."""
    return CheckpointCorrupt(
        f"session {session_id!r} is damaged: {what}; restore it from a backup, or delete the session"
    )


def leads_back(session_id: str, entry_id: str) -> CheckpointCorrupt:
    """Return the error for an entry that comes before itself: a conversation up to it would have no beginning."""
    return damaged_session(session_id, f"the entries before entry {entry_id!r} lead back to it")


def choose_after(
    entry: SessionEntry, tip: str | None, line_of: Callable[[str | None], list[EntryLink]]
) -> str | None:
    """Return the entry after which a staged one is published; ``line_of`` gives the entries up to one.

    That is the tip of the thread: runs that talk on one thread at a time are put one after the other. Only a run that
    was taken back leaves entries behind, and only its own.
    """
    if entry.after == tip or not entry.rewinds:
        return tip
    stays = {link.entry_id for link in line_of(entry.after)}
    left = [link for link in line_of(tip) if link.entry_id not in stays]
    return entry.after if all(link.run_id == entry.author.run_id for link in left) else tip
