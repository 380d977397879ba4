"""Journals, inboxes and presence of stores that outlive their object."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Left, Letter, Note, Store
from holdfast.ids import RunId
from holdfast.testing.store_suite.durable import Reopen
from holdfast.testing.store_suite.inbox import inbox, keys_of, leave
from holdfast.testing.store_suite.journal import journal
from holdfast.testing.store_suite.samples import (
    LARGE,
    ODD_KEYS,
    begin,
    first_commit,
    move_on,
    next_commit,
    refusal,
    rival_commit,
    sample_letters,
    sample_notes,
    staying_commit,
)


class Shared:
    """What a second object of the place of a store sees of notes, letters and processes."""

    async def test_another_object_finds_the_journal(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes(*ODD_KEYS)))
        await store.commit(staying_commit(head, [Note("a", b""), Note("large", LARGE)]))
        before = await journal(store)
        await store.close()
        other = await reopen()
        same = await journal(other) == before
        assert same, "a note was lost or changed"
        await other.commit(staying_commit(head, sample_notes("late")))
        assert (await journal(other))[len(ODD_KEYS) + 1 :] == sample_notes("late")
        await move_on(other, head)
        assert await journal(await reopen()) == ()

    async def test_another_object_finds_the_inbox(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await leave(store, *ODD_KEYS)
        await store.leave(RunId("r"), 1, [Letter("large", LARGE)])
        await store.commit(staying_commit(head, taken=ODD_KEYS[::2]))
        before = await inbox(store)
        await store.close()
        other = await reopen()
        same = await inbox(other) == before
        assert same, "a letter was lost or changed"
        left = await leave(other, *ODD_KEYS)
        assert (left.head, sorted(left.refused)) == (head, sorted(ODD_KEYS))
        await leave(other, "late")
        same = tuple(await other.commit(next_commit(head))) == (*before, *sample_letters("late"))
        assert same, "a letter was lost or changed"

    async def test_what_one_object_notes_the_other_sees_at_once(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        commit = first_commit("r")
        for number in range(6):
            one, two = (store, other) if number % 2 else (other, store)
            await one.commit(commit._replace(notes=sample_notes("a", "b")))
            assert await journal(two) == sample_notes("a", "b")
            await two.commit(staying_commit(commit.head, sample_notes("c")))
            assert await journal(one) == sample_notes("a", "b", "c")
            commit = next_commit(commit.head)

    async def test_an_object_that_missed_a_commit_notes_and_takes_nothing(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = await reopen()
        first = await begin(store, "r")
        await leave(store, "a")
        await store.commit(staying_commit(first, sample_notes("early")))
        assert await journal(other) == sample_notes("early")
        second = await move_on(other, first)
        await other.commit(staying_commit(second, sample_notes("kept")))
        for late in (staying_commit(first), rival_commit(first, "late")):
            await refusal(store.commit(late._replace(notes=sample_notes("late"), taken=("a",))))
            assert await journal(store) == sample_notes("kept")
            assert keys_of(await inbox(other)) == ["a"]

    async def test_what_one_object_leaves_the_next_commit_of_the_other_returns(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = await reopen()
        head = await begin(store, "r")
        waiting: list[str] = []
        for number in range(6):
            assert await leave(other, str(number), since=head.seq) == Left(head)
            commit = next_commit(head) if number % 2 else staying_commit(head)
            assert keys_of(await store.commit(commit)) == [*waiting, str(number)]
            waiting = keys_of(await inbox(other))
            head = commit.head
        await store.commit(staying_commit(head, taken=waiting[::2]))
        assert keys_of(await inbox(other)) == waiting[1::2]
        for key in waiting:
            assert await leave(other, key) == Left(head, (key,))
        assert keys_of(await inbox(store)) == waiting[1::2]

    async def test_of_objects_that_leave_the_same_key_one_wins(self, store: Store, reopen: Reopen) -> None:
        objects = [store, await reopen(), await reopen()]
        head = await begin(store, "r")
        for key in ("a", "b", "c"):
            letters = [Letter(key, b"%d" % number) for number in range(9)]
            results = await asyncio.gather(
                *(objects[number % 3].leave(RunId("r"), 1, [letter]) for number, letter in enumerate(letters))
            )
            assert sorted(results, key=lambda left: left.refused) == [Left(head), *[Left(head, (key,))] * 8]
            for one in objects:
                assert (await inbox(one))[-1] == letters[results.index(Left(head))]

    async def test_no_letter_of_another_object_is_lost(self, store: Store, reopen: Reopen) -> None:
        others = [await reopen(), await reopen()]
        head = await begin(store, "r")
        left: list[str] = []
        taken: list[str] = []
        news = asyncio.Event()

        async def send(number: int, other: Store) -> None:
            for letter in range(5):
                await leave(other, f"{number}-{letter}")
                left.append(f"{number}-{letter}")
                news.set()
                await asyncio.sleep(0)

        async def drive() -> None:
            commit = staying_commit(head)
            while len(taken) < 10:
                if not commit.taken:
                    await news.wait()
                    news.clear()
                before = set(left)
                waiting = keys_of(await store.commit(commit))
                taken.extend(commit.taken)
                assert before <= {*taken, *waiting}
                assert len({*taken, *waiting}) == len(taken) + len(waiting)
                commit = next_commit(commit.head)._replace(taken=tuple(waiting))

        await asyncio.gather(drive(), *(send(number, other) for number, other in enumerate(others)))
        assert await inbox(store) == ()

    async def test_journals_and_inboxes_of_namespaces_are_apart(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes("mine")))
        await leave(store, "mine")
        for name in ("other", "Other", ".."):
            other = await reopen(name)
            assert (await journal(other), await inbox(other)) == ((), ())
            assert await leave(other, "mine") == Left(None)
            await other.commit(first_commit("r", owner=name)._replace(notes=sample_notes(name)))
            assert await leave(other, "mine", name) == Left(head._replace(owner=name))
            commit = next_commit(head._replace(owner=name))._replace(taken=("mine",))
            assert keys_of(await other.commit(commit)) == [name]
            assert (await journal(other), await inbox(other)) == ((), sample_letters(name))
        assert await journal(store) == sample_notes("mine")
        assert keys_of(await store.commit(staying_commit(head))) == ["mine"]

    async def test_another_object_sees_that_this_process_lives(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        assert not await other.lives(this_process())
        await store.join()
        assert await other.lives(this_process())
        assert await (await reopen()).lives(this_process())

    async def test_a_process_lives_until_it_closes_the_store(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        await store.join()
        assert await other.lives(this_process())
        await store.close()
        assert not await other.lives(this_process())
        await other.join()
        assert await other.lives(this_process())

    async def test_a_process_lives_until_it_closes_the_last_object(
        self, store: Store, reopen: Reopen
    ) -> None:
        joined, looking = await reopen(), await reopen()
        await store.join()
        await joined.join()
        assert await looking.lives(this_process())
        await looking.close()
        assert await joined.lives(this_process())
        await store.close()
        assert await joined.lives(this_process())
        assert await (await reopen()).lives(this_process())
