"""Rules of journals: the notes of a run since its last checkpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.checkpoint.store import Commit, Expected, Note, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    begin,
    begin_with_notes,
    catch_refusal,
    move_on,
    read_journal,
    read_run,
    try_commit,
)
from holdfast.testing.store_suite.samples import (
    EVERY_BYTE,
    LARGE,
    ODD_KEYS,
    first_commit,
    next_commit,
    rival_commit,
    sample_head,
    sample_id,
    sample_notes,
    sample_record,
    staying_commit,
)


class JournalRules:
    """The rules of ``notes``, and of ``commit`` for notes."""

    async def test_a_run_of_which_nothing_is_noted_has_an_empty_journal(self, store: Store) -> None:
        assert await read_journal(store, "nobody") == ()
        head = await begin(store, "r")
        assert await read_journal(store) == ()
        await move_on(store, head)
        assert await read_journal(store) == ()
        assert await read_journal(store, "nobody") == ()

    async def test_the_first_commit_may_have_notes(self, store: Store) -> None:
        commit = first_commit("r")._replace(notes=sample_notes("b", "a"))
        assert list(await store.commit(commit)) == []
        assert await read_journal(store) == sample_notes("b", "a")
        assert await read_run(store, "r") == (commit.head, list(commit.records))

    async def test_a_commit_that_stays_on_its_checkpoint_adds_to_the_journal(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "a", "c")
        await store.commit(staying_commit(head, sample_notes("b")))
        assert await read_journal(store) == sample_notes("a", "c", "b")
        assert await read_run(store, "r") == (head, [sample_record("r", 1)])

    async def test_a_commit_that_stays_on_its_checkpoint_keeps_the_journal(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "a")
        changes: list[dict[str, Any]] = [
            {"status": RunStatus.WAITING, "wake_at": 5},
            {"status": RunStatus.RUNNING, "wake_at": None, "updated": 1},
            {"token": 2, "owner": "other:2", "takeovers": 1},
            {"status": RunStatus.FAILED, "reason": "why"},
        ]
        for number, change in enumerate(changes):
            commit = staying_commit(head, **change)
            await store.commit(commit)
            assert await read_journal(store) == sample_notes("a", *map(str, range(number)))
            head = commit.head
            await store.commit(staying_commit(head, sample_notes(str(number))))
        assert await store.head(RunId("r")) == head
        assert await read_journal(store) == sample_notes("a", "0", "1", "2", "3")

    async def test_a_commit_that_moves_the_head_empties_the_journal(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "a", "b")
        head = await move_on(store, head)
        assert await read_journal(store) == ()
        await store.commit(staying_commit(head, sample_notes("c", "a")))
        assert await read_journal(store) == sample_notes("c", "a")
        await move_on(store, head)
        assert await read_journal(store) == ()

    async def test_a_commit_that_moves_the_head_without_records_empties_the_journal(
        self, store: Store
    ) -> None:
        head = await begin_with_notes(store, "r", "a")
        await store.commit(staying_commit(head, checkpoint_id=sample_id("elsewhere"), seq=2))
        assert await read_journal(store) == ()

    async def test_notes_of_a_commit_that_moves_the_head_belong_to_the_new_checkpoint(
        self, store: Store
    ) -> None:
        head = await begin_with_notes(store, "r", "a", "b", "c")
        commit = next_commit(head)._replace(notes=sample_notes("d", "b"))
        await store.commit(commit)
        assert await read_journal(store) == sample_notes("d", "b")
        await store.commit(staying_commit(commit.head, sample_notes("a")))
        assert await read_journal(store) == sample_notes("d", "b", "a")
        await move_on(store, commit.head)
        assert await read_journal(store) == ()

    async def test_a_note_replaces_that_of_its_key_in_its_place(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "a", "b", "c")
        await store.commit(staying_commit(head, [Note("b", b"again"), Note("d", b"new")]))
        a, _, c = sample_notes("a", "b", "c")
        assert await read_journal(store) == (a, Note("b", b"again"), c, Note("d", b"new"))
        await store.commit(staying_commit(head, [Note("d", b""), Note("a", b"1")]))
        assert await read_journal(store) == (Note("a", b"1"), Note("b", b"again"), c, Note("d", b""))

    async def test_of_two_notes_of_a_commit_with_one_key_the_last_is_kept(self, store: Store) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, [Note("a", b"1"), Note("b", b"2"), Note("a", b"3")]))
        assert await read_journal(store) == (Note("a", b"3"), Note("b", b"2"))

    async def test_nothing_of_a_refused_commit_is_noted(self, store: Store) -> None:
        notes = sample_notes("a", "late")
        await catch_refusal(store.commit(staying_commit(sample_head("r"), notes)))
        assert await read_journal(store) == ()
        first = await begin(store, "r", token=5)
        second = await move_on(store, first)
        await store.commit(staying_commit(second, [Note("a", b"kept")]))
        stale = Expected(second.checkpoint_id, 4)
        for late in (
            rival_commit(first, "late"),
            Commit(first, Expected(first.checkpoint_id, 5)),
            Commit(second, Expected(first.checkpoint_id, 5)),
            Commit(second, stale),
            next_commit(second)._replace(expected=stale),
            Commit(second, None),
            first_commit("r"),
        ):
            await catch_refusal(store.commit(late._replace(notes=notes)))
            assert await read_journal(store) == (Note("a", b"kept"),), late
        await store.commit(staying_commit(second, sample_notes("b")))
        assert await read_journal(store) == (Note("a", b"kept"), *sample_notes("b"))

    async def test_a_writer_whose_run_was_taken_over_can_note_nothing(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "a")
        await store.commit(staying_commit(head, token=2, owner="other:2"))
        await catch_refusal(store.commit(staying_commit(head, sample_notes("late"))))
        assert await read_journal(store) == sample_notes("a")

    async def test_journals_of_other_runs_are_left_alone(self, store: Store) -> None:
        heads = {run: await begin(store, run, family=RunId("r")) for run in ("r", "rr", "R")}
        for run, head in heads.items():
            await store.commit(staying_commit(head, [Note("a", run.encode()), *sample_notes(run)]))
        await store.commit(staying_commit(heads["rr"], [Note("a", b"again")]))
        await move_on(store, heads["r"])
        assert await read_journal(store, "r") == ()
        assert await read_journal(store, "rr") == (Note("a", b"again"), *sample_notes("rr"))
        assert await read_journal(store, "R") == (Note("a", b"R"), *sample_notes("R"))

    async def test_data_of_notes_comes_back_as_it_was_given(self, store: Store) -> None:
        data = [b"", b"\x00", EVERY_BYTE, b"\n", b"{}\r\n", EVERY_BYTE * 40, LARGE, b"\xff", b""]
        notes = tuple(Note(str(number), one) for number, one in enumerate(data))
        await store.commit(first_commit("r")._replace(notes=notes))
        # Not compared in the assertion, which would show hundreds of kilobytes that differ.
        same = await read_journal(store) == notes
        assert same, "a note did not come back as it was"

    async def test_keys_of_notes_are_any_text_and_are_apart(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", *ODD_KEYS)
        assert await read_journal(store) == sample_notes(*ODD_KEYS)
        again = [Note(key, b"again") for key in ODD_KEYS[::2]]
        await store.commit(staying_commit(head, again))
        expected = list(sample_notes(*ODD_KEYS))
        expected[::2] = again
        assert await read_journal(store) == tuple(expected)

    async def test_many_notes_keep_their_order(self, store: Store) -> None:
        keys = [str(number * 7 % 200) for number in range(200)]
        head = await begin_with_notes(store, "r", *keys)
        for number in range(12):
            await store.commit(staying_commit(head, sample_notes(f"late {-number}")))
        assert await read_journal(store) == sample_notes(*keys, *(f"late {-number}" for number in range(12)))

    async def test_notes_that_are_committed_at_the_same_time_are_all_there(self, store: Store) -> None:
        head = await begin(store, "r")
        keys = [f"task {number}" for number in range(20)]
        commits = [staying_commit(head, sample_notes(key)) for key in keys]
        await asyncio.gather(*(store.commit(commit) for commit in commits))
        assert sorted(await read_journal(store)) == sorted(sample_notes(*keys))

    async def test_of_rivals_only_the_notes_of_the_winner_are_there(self, store: Store) -> None:
        head = await begin_with_notes(store, "r", "before")
        rivals = [
            rival_commit(head, writer)._replace(notes=sample_notes("same", str(writer)))
            for writer in range(10)
        ]
        won = await asyncio.gather(*(try_commit(store, rival) for rival in rivals))
        assert sum(won) == 1
        winner = rivals[won.index(True)]
        assert await read_journal(store) == winner.notes
        assert await store.head(RunId("r")) == winner.head

    async def test_a_journal_is_never_seen_in_part(self, store: Store) -> None:
        """Every commit brings three notes of its own, so a reader always sees three notes of one commit."""
        done = False

        async def write() -> None:
            nonlocal done
            try:
                commit = first_commit("r")
                for number in range(20):
                    data = b"%d" % number
                    notes = tuple(Note(key, data) for key in "abc")
                    await store.commit(commit._replace(notes=notes))
                    stays = number % 2
                    commit = staying_commit(commit.head) if stays else next_commit(commit.head)
            finally:
                done = True

        async def read() -> None:
            while not done:
                notes = await read_journal(store)
                assert "".join(note.key for note in notes) in ("", "abc")
                assert len({note.data for note in notes}) <= 1
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())

    async def test_a_cancelled_commit_happens_with_its_notes_or_not(self, store: Store) -> None:
        for patience in range(8):
            name = f"r{patience}"
            head = await begin_with_notes(store, name, "before")
            commit = next_commit(head)._replace(notes=sample_notes("after", "too"))
            task = asyncio.ensure_future(store.commit(commit))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await try_commit(store, commit)  # a second try finds it done, or does it
            assert await store.head(RunId(name)) == commit.head
            assert await read_journal(store, name) == commit.notes
