"""Presence: which processes that drive runs are to be waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Store
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import begin, first_commit, sample_letters, sample_notes


class Presence:
    """What ``join`` and ``lives`` promise, and what is left of a store that was closed."""

    async def test_a_process_that_joined_lives(self, store: Store) -> None:
        await store.join()
        assert await store.lives(this_process()) is True
        await begin(store, "r")
        assert await store.lives(this_process()) is True

    async def test_a_process_may_join_twice(self, store: Store) -> None:
        await store.join()
        await store.join()
        assert await store.lives(this_process()) is True

    async def test_a_process_that_did_not_join_does_not_live(self, store: Store) -> None:
        assert await store.lives(this_process()) is False
        await begin(store, "r", owner=this_process())
        assert await store.lives(this_process()) is False

    async def test_a_process_that_is_made_up_does_not_live(self, store: Store) -> None:
        await store.join()
        there = this_process()
        for name in (
            *("", "nobody", there[:-1], f"{there}0", f" {there}", "..", "a/b", "%", "*"),
            *("host:1", "host:1:1", "häst 😀:1:2", "\x00", "\udc80", "x" * 1000, "\n"),
        ):
            assert await store.lives(name) is False, name

    async def test_a_closed_store_refuses_to_be_used(self, store: Store) -> None:
        await begin(store, "r")
        await store.join()
        await store.close()
        run = RunId("r")
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: store.commit(first_commit("s")._replace(notes=sample_notes("a"))),
            lambda: store.notes(run),
            lambda: store.leave(run, 1, sample_letters("a")),
            lambda: store.inbox(run),
            store.join,
            lambda: store.lives(this_process()),
        ]
        for number, use in enumerate(uses):
            try:
                await use()
            except StorageError:
                continue
            raise AssertionError(f"a store that is closed was used: {number}")
