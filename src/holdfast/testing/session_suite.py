"""The conformance suite of session stores: the promises of ``SessionStore`` as tests.

A backend subclasses ``SessionStoreConformance`` in a test file and gives two fixtures: ``store``, and ``reopen``, which
returns another object on the same sessions; for a store without a second object that is ``store`` itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.agents.port import AgentHistory, AgentMessage
from holdfast.agents.sessions.entry import EntryAuthor, EntryContext, SessionEntry
from holdfast.agents.sessions.store import SessionStore, append_messages, read_messages
from holdfast.errors import InvalidArgument, SessionNotFound, StorageError

__all__ = ["ReopenSessions", "SessionStoreConformance"]

ReopenSessions = Callable[[], SessionStore]


def make_entry(
    entry_id: str,
    after: str | None = None,
    *,
    thread: str = "main",
    run: str = "r1",
    session: str = "kim",
    rewinds: bool = False,
) -> SessionEntry:
    """Return an entry whose only message is its id."""
    said = (AgentMessage("user", entry_id),)
    author = EntryAuthor(run, run, "agent", "support")
    return SessionEntry(session, thread, entry_id, said, after, rewinds=rewinds, author=author)


async def put(store: SessionStore, *entries: SessionEntry) -> None:
    """Stage and publish entries, one after the other."""
    for entry in entries:
        await store.stage(entry)
        assert await store.publish(entry.session_id, entry.entry_id)


async def ids(
    store: SessionStore, thread: str = "main", session: str = "kim", upto: str | None = None
) -> list[str]:
    """Return the ids of a conversation."""
    return [entry.entry_id for entry in await store.entries(session, thread, upto=upto)]


class SessionStoreConformance:
    """Tests that a session store keeps its promises."""

    async def test_staged_entries_are_not_read(self, store: SessionStore) -> None:
        await store.stage(make_entry("a"))
        assert await ids(store) == []
        assert [entry.entry_id for entry in await store.staged("kim")] == ["a"]
        assert [entry.entry_id for entry in await store.staged()] == ["a"]
        assert await store.staged("bo") == []
        assert await ids(store, upto="a") == ["a"]

    async def test_known_entries_change_nothing(self, store: SessionStore, reopen: ReopenSessions) -> None:
        await put(store, make_entry("a"), make_entry("b", "a"))
        other = reopen()
        assert await other.publish("kim", "a")
        await other.stage(make_entry("a", run="r9"))
        assert await other.publish("kim", "a")
        assert await ids(store) == ["a", "b"]
        assert await store.staged() == []
        assert (await store.entries("kim"))[0].author.run_id == "r1"

    async def test_what_is_staged_again_replaces_it(self, store: SessionStore) -> None:
        await store.stage(make_entry("a", run="first"))
        await store.stage(make_entry("a", run="second"))
        await store.publish("kim", "a")
        assert [entry.author.run_id for entry in await store.entries("kim")] == ["second"]

    async def test_nothing_is_published_that_is_not_staged(self, store: SessionStore) -> None:
        assert not await store.publish("kim", "a")
        await put(store, make_entry("a"))
        assert not await store.publish("kim", "b")
        assert not await store.publish("bo", "a")

    async def test_entries_come_back_as_they_were(self, store: SessionStore, reopen: ReopenSessions) -> None:
        history = AgentHistory(
            "openai", "3.51", [{"role": "user", "content": "Grüße 𝄞 \ud800\n\x00", "n": 1.5}]
        )
        entry = SessionEntry(
            "Kim <kim@example.org>",
            "main",
            "a",
            (AgentMessage("user", "Grüße 𝄞 \ud800\n\x00"), AgentMessage("assistant", "")),
            None,
            history,
            True,
            EntryContext((AgentMessage("system", "before"),), ("x",), "y"),
            False,
            EntryAuthor("r", "f", "e", "g"),
        )
        await put(store, entry)
        assert await reopen().entries(entry.session_id) == [entry]

    async def test_a_later_entry_brings_those_before_it(self, store: SessionStore) -> None:
        for entry in (make_entry("a"), make_entry("b", "a"), make_entry("c", "b")):
            await store.stage(entry)
        await store.publish("kim", "c")
        assert await ids(store) == ["a", "b", "c"]
        assert await store.staged() == []

    async def test_turns_side_by_side_are_put_one_after_the_other(self, store: SessionStore) -> None:
        await put(store, make_entry("a"))
        await store.stage(make_entry("b", "a", run="r2"))
        await store.stage(make_entry("c", "a", run="r3"))
        await store.publish("kim", "c")
        await store.publish("kim", "b")
        assert await ids(store) == ["a", "c", "b"]

    async def test_a_run_leaves_its_own_entries_behind(self, store: SessionStore) -> None:
        await put(store, make_entry("a", run="r0"), make_entry("b", "a"), make_entry("c", "b"))
        await put(store, make_entry("d", "a", rewinds=True))
        assert await ids(store) == ["a", "d"]
        assert await ids(store, upto="c") == ["a", "b", "c"]
        await put(store, make_entry("e", "c", rewinds=True))
        assert await ids(store) == ["a", "b", "c", "e"]

    async def test_no_run_leaves_entries_of_others_behind(self, store: SessionStore) -> None:
        await put(store, make_entry("a"), make_entry("b", "a"), make_entry("c", "b", run="r2"))
        await put(store, make_entry("d", "a", rewinds=True))
        assert await ids(store) == ["a", "b", "c", "d"]

    async def test_a_run_goes_back_to_the_beginning(self, store: SessionStore) -> None:
        await put(store, make_entry("a"), make_entry("b", None, rewinds=True))
        assert await ids(store) == ["b"]

    @pytest.mark.parametrize("rewinds", [False, True])
    async def test_entries_that_lead_back_to_themselves_are_refused(
        self, store: SessionStore, rewinds: bool
    ) -> None:
        await put(store, make_entry("a"))
        await store.stage(make_entry("b", "d", rewinds=rewinds))
        await store.stage(make_entry("c", "b", rewinds=rewinds))
        await store.stage(make_entry("d", "c", rewinds=rewinds))
        await store.stage(make_entry("e", "e", rewinds=rewinds))
        for last in ("b", "d", "e"):
            with pytest.raises(StorageError, match="lead back"):
                await store.publish("kim", last)
            with pytest.raises(StorageError, match="lead back"):
                await store.entries("kim", upto=last)
        assert await ids(store) == ["a"]
        assert len(await store.staged("kim")) == 4

    async def test_forks_share_what_lies_before(self, store: SessionStore, reopen: ReopenSessions) -> None:
        await put(store, make_entry("a"), make_entry("b", "a"))
        await put(store, make_entry("x", "a", thread="side"))  # a thread that is new begins behind an entry
        info = await store.fork("kim", "other", "a")
        assert (info.origin, info.tip, info.own_entries) == ("a", "a", 0)
        assert await store.fork("kim", "other", "a") == info
        await put(store, make_entry("c", "b"), make_entry("y", "a", thread="other"))
        assert await ids(reopen(), "side") == ["a", "x"]
        assert await ids(store, "other") == ["a", "y"]
        assert await ids(store) == ["a", "b", "c"]
        found = {one.thread: (one.origin, one.tip, one.own_entries) for one in await store.threads("kim")}
        assert found == {"main": (None, "c", 3), "side": ("a", "x", 1), "other": ("a", "y", 1)}

    async def test_forks_need_an_entry_and_a_name(self, store: SessionStore) -> None:
        await put(store, make_entry("a"), make_entry("b", "a"))
        with pytest.raises(SessionNotFound, match="no entry 'z'"):
            await store.fork("kim", "side", "z")
        with pytest.raises(SessionNotFound):
            await store.fork("bo", "side", "a")
        with pytest.raises(InvalidArgument, match="begins elsewhere"):
            await store.fork("kim", "main", "a")
        with pytest.raises(InvalidArgument):
            await store.fork("kim", "", "a")
        with pytest.raises(SessionNotFound, match="no entry 'z'"):
            await store.entries("kim", upto="z")

    async def test_sessions_are_listed(self, store: SessionStore) -> None:
        for name in ("kim", "Bo", "../etc", "ünal"):
            await put(store, make_entry("a", session=name))
        await store.stage(make_entry("a", session="staged"))
        known = sorted(["kim", "Bo", "../etc", "ünal", "staged"])
        assert await store.sessions() == known
        assert await store.sessions(limit=2) == known[:2]
        assert await store.sessions(after=known[1], limit=2) == known[2:4]
        assert await store.threads("nobody") == []
        assert await store.entries("nobody") == []

    async def test_a_deleted_session_does_not_come_back(
        self, store: SessionStore, reopen: ReopenSessions
    ) -> None:
        await put(store, make_entry("a"), make_entry("b", "a", thread="side"))
        await put(store, make_entry("a", session="bo"))
        await store.stage(make_entry("c", "a"))
        assert await store.delete("kim")
        assert not await store.delete("kim")
        assert not await reopen().publish("kim", "c")
        assert not await store.publish("kim", "a")
        assert await store.sessions() == ["bo"]
        assert (await store.entries("kim"), await store.threads("kim"), await store.staged()) == ([], [], [])
        await put(store, make_entry("n"))
        assert await ids(store) == ["n"]

    async def test_many_writers_lose_nothing(self, store: SessionStore, reopen: ReopenSessions) -> None:
        stores = [store, reopen(), reopen()]

        async def say(number: int) -> None:
            said = [AgentMessage("user", str(number))]
            for one in stores:  # each message three times, under one key
                await append_messages(one, "kim", said, key=f"m{number}")

        await asyncio.gather(*(say(number) for number in range(8)))
        texts = [message.text for message in await read_messages(store, "kim")]
        assert sorted(texts) == sorted(map(str, range(8)))

    async def test_names_that_cannot_be(self, store: SessionStore) -> None:
        for session in ("", "a\nb", "x" * 201):
            with pytest.raises(InvalidArgument, match="session id"):
                await append_messages(store, session, [])
        with pytest.raises(InvalidArgument, match="thread"):
            await append_messages(store, "kim", [], thread="a/b")
        with pytest.raises(InvalidArgument, match="JSON"):
            await store.stage(
                SessionEntry("kim", "main", "e", (), history=AgentHistory("x", "1", [object()]))
            )
        assert await store.sessions() == []
