"""Letters that are left while others leave some, and while the run goes on."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Left, Letter, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.inbox import inbox, keys_of, leave
from holdfast.testing.store_suite.samples import (
    begin,
    move_on,
    next_commit,
    sample_letters,
    staying_commit,
    wins,
)


class Letters:
    """What holds when many use an inbox at the same time."""

    async def test_one_of_twenty_who_leave_the_same_key_wins(self, store: Store) -> None:
        head = await begin(store, "r")
        letters = [Letter("a", b"%d" % sender) for sender in range(20)]
        results = await asyncio.gather(*(store.leave(RunId("r"), 1, [letter]) for letter in letters))
        assert sorted(results, key=lambda left: left.refused) == [Left(head), *[Left(head, ("a",))] * 19]
        assert await inbox(store) == (letters[results.index(Left(head))],)

    async def test_letters_that_many_leave_at_the_same_time_are_all_there(self, store: Store) -> None:
        head = await begin(store, "r")
        keys = [f"{sender}" for sender in range(20)]
        results = await asyncio.gather(*(leave(store, key, f"{key} too") for key in keys))
        assert results == [Left(head)] * 20
        found = keys_of(await inbox(store))
        # Whoever came first: what was left together stays together.
        assert found == [name for key in found[::2] for name in (key, f"{key} too")]
        assert sorted(found[::2]) == sorted(keys)

    async def test_letters_that_are_left_together_are_seen_together(self, store: Store) -> None:
        await begin(store, "r")
        done = False

        async def write() -> None:
            nonlocal done
            try:
                for number in range(10):
                    await leave(store, f"{number}a", f"{number}b", f"{number}c")
            finally:
                done = True

        async def read() -> None:
            while not done:
                assert len(await inbox(store)) % 3 == 0
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())

    async def test_no_letter_is_lost_or_taken_twice_while_the_run_goes_on(self, store: Store) -> None:
        """What was left before a commit began is returned by it, or was taken."""
        head = await begin(store, "r")
        left: list[str] = []
        taken: list[str] = []

        async def send(sender: str) -> None:
            for number in range(6):
                key = f"{sender}{number}"
                assert (await leave(store, key)).refused == ()
                left.append(key)
                await asyncio.sleep(0)

        async def drive(*senders: asyncio.Task[None]) -> None:
            waiting: list[str] = []
            commit = staying_commit(head)
            while waiting or not all(sender.done() for sender in senders):
                taking, before = waiting[:3], set(left)
                waiting = keys_of(await store.commit(commit._replace(taken=tuple(taking))))
                taken.extend(taking)
                assert before - set(taken) <= set(waiting)
                assert not set(taken) & set(waiting)
                stays = len(taken) % 2
                commit = staying_commit(commit.head) if stays else next_commit(commit.head)
                await asyncio.sleep(0)

        senders = [asyncio.ensure_future(send(sender)) for sender in "abcd"]
        await asyncio.gather(drive(*senders), *senders)
        await self._all_came(store, left, taken)

    async def _all_came(self, store: Store, left: list[str], taken: list[str]) -> None:
        rest = keys_of(await inbox(store))
        assert sorted(taken + rest) == sorted(left)
        for sender in "abcd":
            mine = [key for key in taken + rest if key[0] == sender]
            assert mine == sorted(mine)

    async def test_a_cancelled_caller_leaves_all_letters_or_none(self, store: Store) -> None:
        for patience in range(8):
            name = f"r{patience}"
            head = await begin(store, name)
            task = asyncio.ensure_future(leave(store, "a", "b", "c", run=name))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # Whoever tries it again finds it done, or does it.
            again = await leave(store, "a", "b", "c", run=name)
            assert again.head == head
            assert sorted(again.refused) in ([], ["a", "b", "c"])
            assert await inbox(store, name) == sample_letters("a", "b", "c")

    async def test_a_cancelled_commit_takes_its_letters_or_not(self, store: Store) -> None:
        for patience in range(8):
            name = f"r{patience}"
            head = await begin(store, name)
            await leave(store, "a", "b", "c", run=name)
            commit = next_commit(head)._replace(taken=("a", "c"))
            task = asyncio.ensure_future(store.commit(commit))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await wins(store, commit)  # whoever tries it again finds it done, or does it
            assert await store.head(RunId(name)) == commit.head
            assert keys_of(await inbox(store, name)) == ["b"]

    async def test_one_event_loop_after_another_may_use_an_inbox(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "here")
        await store.notes(RunId("r"))

        async def elsewhere() -> None:
            assert await leave(store, "there", "here") == Left(head, ("here",))
            assert await leave(store, "there") == Left(head)
            assert keys_of(await inbox(store)) == ["here", "there"]
            assert list(await store.notes(RunId("r"))) == []
            await move_on(store, head)

        await asyncio.to_thread(asyncio.run, elsewhere())
        await leave(store, "here again")
        assert keys_of(await inbox(store)) == ["here", "there", "here again"]
