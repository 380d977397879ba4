"""Rules of stores that outlive their object: what a second object of the same place sees."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Depth, LeaveResult, Letter, Note, RunQuery, Store
from holdfast.errors import HeadMoved
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    Reopen,
    begin,
    catch_refusal,
    get_keys,
    leave_letters,
    list_run_ids,
    lives,
    move_on,
    read_inbox,
    read_journal,
    read_run,
)
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    LARGE,
    ODD_IDS,
    ODD_KEYS,
    first_commit,
    next_commit,
    rival_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class ReopenRules:
    """The rules of heads, records and blobs that need a second store object to check."""

    async def test_another_object_sees_everything(self, store: Store, reopen: Reopen) -> None:
        blobs = sample_blob(b"small"), sample_blob(LARGE), sample_blob(b"")
        commit = first_commit("r", blobs, wake_at=0, reason="why")
        keyframe = sample_keyframe(1, cut=True)
        commit = commit._replace(records=(commit.records[0]._replace(keyframe=keyframe, values=LARGE),))
        await store.commit(commit)
        info = await store.open()
        await store.close()
        other = await reopen()
        assert await read_run(other, "r") == (commit.head, list(commit.records))
        assert await other.find(sample_id("r", 1)) == ("r", 1)
        assert list(await other.runs(RunQuery())) == [commit.head]
        assert await other.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)
        assert await other.open() == info

    async def test_every_method_opens_a_store_by_itself(self, store: Store, reopen: Reopen) -> None:
        blob, notes = sample_blob(b"data"), sample_notes("a")
        await begin(store, "r", [blob])
        assert await (await reopen()).head(RunId("r")) == sample_head("r")
        assert await list_run_ids(await reopen(), RunQuery()) == ["r"]
        assert await (await reopen()).find(sample_id("r", 1)) == ("r", 1)
        assert len(await (await reopen()).records(RunId("r"), *ANYTHING, Depth.ALL)) == 1
        assert await (await reopen()).blobs(RunId("r"), [blob.digest]) == {blob.digest: b"data"}
        letters = sample_letters("a")
        assert await (await reopen()).leave(RunId("r"), 1, letters) == LeaveResult(sample_head("r"))
        assert tuple(await (await reopen()).inbox(RunId("r"))) == letters
        assert tuple(await (await reopen()).commit(staying_commit(sample_head("r"), notes))) == letters
        assert tuple(await (await reopen()).notes(RunId("r"))) == notes
        await move_on(await reopen(), sample_head("r"))
        await (await reopen()).add_blobs(RunId("r"), [blob])
        assert not await lives(await reopen(), "nobody")
        await (await reopen()).join()
        await (await reopen()).close()

    async def test_what_one_object_commits_the_other_sees_at_once(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await begin(store, "r")
        for seq in range(2, 8):
            assert await other.head(RunId("r")) == head
            assert [record.seq for record in await other.records(RunId("r"), *ANYTHING, Depth.ALL)] == list(
                range(1, seq)
            )
            head = await move_on(other if seq % 2 else store, head)
        assert await read_run(store, "r") == await read_run(other, "r")

    async def test_one_of_several_objects_that_write_a_run_wins(self, store: Store, reopen: Reopen) -> None:
        objects = [store, await reopen(), await reopen()]
        head = await begin(store, "r")
        for round_number in range(5):
            rivals = [rival_commit(head, (round_number, number)) for number in range(9)]
            outcomes = await asyncio.gather(
                *(objects[number % 3].commit(rival) for number, rival in enumerate(rivals)),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes].count(HeadMoved) == 8
            won = [not isinstance(outcome, BaseException) for outcome in outcomes]
            head = rivals[won.index(True)].head
            for one in objects:
                assert await one.head(RunId("r")) == head
        assert len(await store.records(RunId("r"), *ANYTHING, Depth.HEADERS)) == 6

    async def test_an_object_that_missed_a_commit_is_refused(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        first = await begin(store, "r")
        assert await other.head(RunId("r")) == first
        second = await move_on(other, first)
        await catch_refusal(store.commit(rival_commit(first, "late")))
        assert await store.head(RunId("r")) == second

    async def test_objects_may_begin_at_the_same_time(self, store: Store, reopen: Reopen) -> None:
        objects = [store, *[await reopen() for _ in range(4)]]
        infos = await asyncio.gather(*(one.open() for one in objects))
        assert len({info.store_id for info in infos}) == 1
        await asyncio.gather(*(begin(one, f"r{number}") for number, one in enumerate(objects)))
        assert await list_run_ids(store, RunQuery()) == [f"r{number}" for number in range(5)]

    async def test_closing_one_object_leaves_the_others_alone(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        head = await begin(other, "r")
        await begin(store, "s")
        await store.close()
        await move_on(other, head)
        assert await list_run_ids(other, RunQuery()) == ["r", "s"]

    async def test_namespaces_are_apart(self, store: Store, reopen: Reopen) -> None:
        blob, large = sample_blob(b"mine"), sample_blob(LARGE)
        mine = await begin(store, "r", [blob, large])
        names = ["other", "Other", "..", "a/b#c", "n" * 200]
        for name in names:
            other = await reopen(name)
            assert await read_run(other, "r") == (None, [])
            assert await other.find(sample_id("r", 1)) is None
            assert await other.runs(RunQuery()) == []
            assert await other.blobs(RunId("r"), [blob.digest, large.digest]) == {}
            theirs = [blob._replace(data=name.encode()), large._replace(data=LARGE + name.encode())]
            await begin(other, "r", theirs, owner=name)
            assert await other.head(RunId("r")) == sample_head("r", owner=name)
            assert await other.find(sample_id("r", 1)) == ("r", 1)
            assert await other.blobs(RunId("r"), [blob.digest, large.digest]) == dict(theirs)
        assert await read_run(store, "r") == (mine, [sample_record("r", 1)])
        assert await store.blobs(RunId("r"), [blob.digest, large.digest]) == dict([blob, large])
        assert list(await store.runs(RunQuery())) == [mine]

    async def test_a_namespace_is_found_again(self, store: Store, reopen: Reopen) -> None:
        head = await begin(await reopen("other"), "r", [sample_blob(LARGE)])
        again = await reopen("other")
        assert await again.head(RunId("r")) == head
        assert await again.blobs(RunId("r"), [sample_blob(LARGE).digest]) == {
            sample_blob(LARGE).digest: LARGE
        }
        assert (await again.open()).store_id == (await store.open()).store_id

    async def test_odd_ids_are_found_again(self, store: Store, reopen: Reopen) -> None:
        for run in ODD_IDS:
            await begin(store, run, [sample_blob(LARGE + run.encode(), "same")])
        await store.close()
        other = await reopen()
        assert await list_run_ids(other, RunQuery()) == sorted(ODD_IDS)
        digest = sample_blob(b"", "same").digest
        for run in ODD_IDS:
            assert await read_run(other, run) == (sample_head(run), [sample_record(run, 1)])
            assert await other.blobs(RunId(run), [digest]) == {digest: LARGE + run.encode()}


class DurableMailRules:
    """The rules of notes, letters and presence that need a second store object to check."""

    async def test_another_object_finds_the_journal(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes(*ODD_KEYS)))
        await store.commit(staying_commit(head, [Note("a", b""), Note("large", LARGE)]))
        before = await read_journal(store)
        await store.close()
        other = await reopen()
        same = await read_journal(other) == before
        assert same, "a note was lost or changed"
        await other.commit(staying_commit(head, sample_notes("late")))
        assert (await read_journal(other))[len(ODD_KEYS) + 1 :] == sample_notes("late")
        await move_on(other, head)
        assert await read_journal(await reopen()) == ()

    async def test_another_object_finds_the_inbox(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await leave_letters(store, *ODD_KEYS)
        await store.leave(RunId("r"), 1, [Letter("large", LARGE)])
        await store.commit(staying_commit(head, taken=ODD_KEYS[::2]))
        before = await read_inbox(store)
        await store.close()
        other = await reopen()
        same = await read_inbox(other) == before
        assert same, "a letter was lost or changed"
        left = await leave_letters(other, *ODD_KEYS)
        assert (left.head, sorted(left.refused)) == (head, sorted(ODD_KEYS))
        await leave_letters(other, "late")
        same = tuple(await other.commit(next_commit(head))) == (*before, *sample_letters("late"))
        assert same, "a letter was lost or changed"

    async def test_what_one_object_notes_the_other_sees_at_once(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        commit = first_commit("r")
        for number in range(6):
            one, two = (store, other) if number % 2 else (other, store)
            await one.commit(commit._replace(notes=sample_notes("a", "b")))
            assert await read_journal(two) == sample_notes("a", "b")
            await two.commit(staying_commit(commit.head, sample_notes("c")))
            assert await read_journal(one) == sample_notes("a", "b", "c")
            commit = next_commit(commit.head)

    async def test_an_object_that_missed_a_commit_notes_and_takes_nothing(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = await reopen()
        first = await begin(store, "r")
        await leave_letters(store, "a")
        await store.commit(staying_commit(first, sample_notes("early")))
        assert await read_journal(other) == sample_notes("early")
        second = await move_on(other, first)
        await other.commit(staying_commit(second, sample_notes("kept")))
        for late in (staying_commit(first), rival_commit(first, "late")):
            await catch_refusal(store.commit(late._replace(notes=sample_notes("late"), taken=("a",))))
            assert await read_journal(store) == sample_notes("kept")
            assert get_keys(await read_inbox(other)) == ["a"]

    async def test_what_one_object_leaves_the_next_commit_of_the_other_returns(
        self, store: Store, reopen: Reopen
    ) -> None:
        other = await reopen()
        head = await begin(store, "r")
        waiting: list[str] = []
        for number in range(6):
            assert await leave_letters(other, str(number), since=head.seq) == LeaveResult(head)
            commit = next_commit(head) if number % 2 else staying_commit(head)
            assert get_keys(await store.commit(commit)) == [*waiting, str(number)]
            waiting = get_keys(await read_inbox(other))
            head = commit.head
        await store.commit(staying_commit(head, taken=waiting[::2]))
        assert get_keys(await read_inbox(other)) == waiting[1::2]
        for key in waiting:
            assert await leave_letters(other, key) == LeaveResult(head, (key,))
        assert get_keys(await read_inbox(store)) == waiting[1::2]

    async def test_of_objects_that_leave_the_same_key_one_wins(self, store: Store, reopen: Reopen) -> None:
        objects = [store, await reopen(), await reopen()]
        head = await begin(store, "r")
        for key in ("a", "b", "c"):
            letters = [Letter(key, b"%d" % number) for number in range(9)]
            results = await asyncio.gather(
                *(objects[number % 3].leave(RunId("r"), 1, [letter]) for number, letter in enumerate(letters))
            )
            assert sorted(results, key=lambda left: left.refused) == [
                LeaveResult(head),
                *[LeaveResult(head, (key,))] * 8,
            ]
            for one in objects:
                assert (await read_inbox(one))[-1] == letters[results.index(LeaveResult(head))]

    async def test_no_letter_of_another_object_is_lost(self, store: Store, reopen: Reopen) -> None:
        others = [await reopen(), await reopen()]
        head = await begin(store, "r")
        left: list[str] = []
        taken: list[str] = []
        news = asyncio.Event()

        async def send(number: int, other: Store) -> None:
            for letter in range(5):
                await leave_letters(other, f"{number}-{letter}")
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
                waiting = get_keys(await store.commit(commit))
                taken.extend(commit.taken)
                assert before <= {*taken, *waiting}
                assert len({*taken, *waiting}) == len(taken) + len(waiting)
                commit = next_commit(commit.head)._replace(taken=tuple(waiting))

        await asyncio.gather(drive(), *(send(number, other) for number, other in enumerate(others)))
        assert await read_inbox(store) == ()

    async def test_journals_and_inboxes_of_namespaces_are_apart(self, store: Store, reopen: Reopen) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes("mine")))
        await leave_letters(store, "mine")
        for name in ("other", "Other", ".."):
            other = await reopen(name)
            assert (await read_journal(other), await read_inbox(other)) == ((), ())
            assert await leave_letters(other, "mine") == LeaveResult(None)
            await other.commit(first_commit("r", owner=name)._replace(notes=sample_notes(name)))
            assert await leave_letters(other, "mine", name) == LeaveResult(head._replace(owner=name))
            commit = next_commit(head._replace(owner=name))._replace(taken=("mine",))
            assert get_keys(await other.commit(commit)) == [name]
            assert (await read_journal(other), await read_inbox(other)) == ((), sample_letters(name))
        assert await read_journal(store) == sample_notes("mine")
        assert get_keys(await store.commit(staying_commit(head))) == ["mine"]

    async def test_another_object_sees_that_this_process_lives(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        assert not await lives(other, this_process())
        await store.join()
        assert await lives(other, this_process())
        assert await lives(await reopen(), this_process())

    async def test_a_process_lives_until_it_closes_the_store(self, store: Store, reopen: Reopen) -> None:
        other = await reopen()
        await store.join()
        assert await lives(other, this_process())
        await store.close()
        assert not await lives(other, this_process())
        await other.join()
        assert await lives(other, this_process())

    async def test_a_process_lives_until_it_closes_the_last_object(
        self, store: Store, reopen: Reopen
    ) -> None:
        joined, looking = await reopen(), await reopen()
        await store.join()
        await joined.join()
        assert await lives(looking, this_process())
        await looking.close()
        assert await lives(joined, this_process())
        await store.close()
        assert await lives(joined, this_process())
        assert await lives(await reopen(), this_process())
