"""Ids come from outside."""

from __future__ import annotations

from holdfast.checkpoint.store import Left, Letter, Note, RunQuery, Store
from holdfast.ids import RunId, complaint_about_id
from holdfast.testing.store_suite.samples import (
    LARGE,
    ODD_IDS,
    all_of,
    begin,
    first_commit,
    move_on,
    names_of_runs,
    sample_blob,
    sample_head,
    sample_id,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class Names:
    """Any id that ``complaint_about_id`` lets through is taken, and each is its own."""

    async def test_odd_ids_are_taken_and_are_apart(self, store: Store) -> None:
        assert [text for text in ODD_IDS if complaint_about_id(text)] == []
        heads = {run: await begin(store, run) for run in ODD_IDS}
        for run, head in heads.items():
            heads[run] = await move_on(store, head, owner=run)
        for run, head in heads.items():
            assert await all_of(store, run) == (head, [sample_record(run, 1), sample_record(run, 2)])
            assert await store.find(sample_id(run, 2)) == (run, 2)
        assert await names_of_runs(store, RunQuery()) == sorted(ODD_IDS)

    async def test_odd_families_are_taken_and_are_apart(self, store: Store) -> None:
        small, large = sample_blob(b"small"), sample_blob(LARGE)
        for run in ODD_IDS:
            # The same two names in every family, each with content of its own.
            mark = run.encode()
            await begin(store, run, [small._replace(data=mark), large._replace(data=LARGE + mark)])
        for run in ODD_IDS:
            mark = run.encode()
            there = await store.blobs(RunId(run), [small.digest, large.digest])
            assert there == {small.digest: mark, large.digest: LARGE + mark}

    async def test_odd_ids_have_journals_and_inboxes_of_their_own(self, store: Store) -> None:
        for run in ODD_IDS:
            # The same key for every run, each with content of its own.
            note, letter = Note("same", run.encode()), Letter("same", run.encode())
            await store.commit(first_commit(run)._replace(notes=(note, *sample_notes(run))))
            left = await store.leave(RunId(run), 1, [letter, *sample_letters(f"{run} too")])
            assert left == Left(sample_head(run))
        for run in ODD_IDS[::5]:
            await store.commit(staying_commit(sample_head(run), [Note("same", b"again")], ["same"]))
        for number, run in enumerate(ODD_IDS):
            data, letters = (run.encode(), [Letter("same", run.encode())]) if number % 5 else (b"again", [])
            assert list(await store.notes(RunId(run))) == [Note("same", data), *sample_notes(run)]
            assert list(await store.inbox(RunId(run))) == [*letters, *sample_letters(f"{run} too")]

    async def test_pages_hold_odd_ids_once(self, store: Store) -> None:
        for run in ODD_IDS:
            await begin(store, run)
        found: list[str] = []
        while page := await names_of_runs(
            store, RunQuery(limit=7, after=RunId(found[-1]) if found else None)
        ):
            found += page
            assert len(found) <= len(ODD_IDS)
        assert found == sorted(ODD_IDS)

    async def test_odd_words_in_a_query_find_only_themselves(self, store: Store) -> None:
        for run in ODD_IDS:
            await begin(store, run, workflow_name=run)
        for run in ODD_IDS:
            assert await names_of_runs(store, RunQuery(workflow_name=run)) == [run]
