"""Rules of records and ids."""

from __future__ import annotations

from holdfast.checkpoint.store import (
    Commit,
    Depth,
    Keyframe,
    LeaveResult,
    Letter,
    Note,
    Record,
    RunPosition,
    RunQuery,
    Store,
)
from holdfast.ids import CheckpointId, RunId, complaint_about_id
from holdfast.testing.store_suite.actions import begin, list_run_ids, move_on, read_run
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    EVERY_BYTE,
    GREATEST,
    LARGE,
    NOON,
    ODD_IDS,
    first_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


async def commit_records(store: Store, run: str, *records: Record) -> None:
    """Begin a run with these records."""
    seq = max(record.seq for record in records)
    await store.commit(Commit(sample_head(run, seq), None, records))


async def read_seqs_between(store: Store, run: str, first: int, last: int) -> list[int]:
    """Return the seqs of the records in a range; they must be equal at every depth."""
    found = [
        [record.seq for record in await store.records(RunId(run), first, last, depth)] for depth in Depth
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


class RecordRules:
    """The rules of ``records`` and ``find``."""

    async def test_records_come_in_order_of_seq(self, store: Store) -> None:
        order = [3, 1, 2, 10, 9, 100, 11, 99]
        await commit_records(store, "r", *(sample_record("r", seq) for seq in order))
        assert await read_seqs_between(store, "r", *ANYTHING) == sorted(order)

    async def test_records_of_many_commits_come_in_order_of_seq(self, store: Store) -> None:
        head = await begin(store, "r")
        for _ in range(11):
            head = await move_on(store, head)
        assert await read_seqs_between(store, "r", *ANYTHING) == list(range(1, 13))

    async def test_both_ends_of_a_range_belong_to_it(self, store: Store) -> None:
        await commit_records(store, "r", *(sample_record("r", seq) for seq in range(1, 13)))
        assert await read_seqs_between(store, "r", 3, 5) == [3, 4, 5]
        assert await read_seqs_between(store, "r", 9, 10) == [9, 10]
        assert await read_seqs_between(store, "r", 12, 12) == [12]
        assert await read_seqs_between(store, "r", 0, 1) == [1]
        assert await read_seqs_between(store, "r", 12, GREATEST) == [12]

    async def test_a_range_that_holds_nothing_is_empty(self, store: Store) -> None:
        await commit_records(store, "r", *(sample_record("r", seq) for seq in range(1, 6)))
        assert await read_seqs_between(store, "r", 4, 3) == []
        assert await read_seqs_between(store, "r", 6, GREATEST) == []
        assert await read_seqs_between(store, "r", 0, 0) == []

    async def test_records_that_are_not_there_are_left_out(self, store: Store) -> None:
        await commit_records(store, "r", *(sample_record("r", seq) for seq in (2, 3, 7, 20)))
        assert await read_seqs_between(store, "r", *ANYTHING) == [2, 3, 7, 20]
        assert await read_seqs_between(store, "r", 3, 7) == [3, 7]
        assert await read_seqs_between(store, "r", 4, 6) == []
        assert await read_seqs_between(store, "r", 5, 19) == [7]

    async def test_an_unknown_run_has_no_records(self, store: Store) -> None:
        await begin(store, "r")
        assert await read_seqs_between(store, "nobody", *ANYTHING) == []

    async def test_records_of_runs_are_apart(self, store: Store) -> None:
        for run in ("a", "b", "a1", "A"):
            await commit_records(store, run, sample_record(run, 1), sample_record(run, 2))
        for run in ("a", "b", "a1", "A"):
            there = await store.records(RunId(run), *ANYTHING, Depth.ALL)
            assert list(there) == [sample_record(run, 1), sample_record(run, 2)]

    async def test_depth_says_how_much_of_a_record_is_read(self, store: Store) -> None:
        keyframe = sample_keyframe(2)
        plain, framed = sample_record("r", 1), sample_record("r", 2, keyframe=keyframe)
        await commit_records(store, "r", plain, framed)
        bare = {"changes": b"", "values": b"", "keyframe": None}
        expected = {
            Depth.HEADERS: [plain._replace(**bare), framed._replace(**bare)],  # type: ignore[arg-type]
            Depth.CHANGES: [
                plain._replace(values=b""),
                framed._replace(values=b"", keyframe=keyframe._replace(values=b"")),
            ],
            Depth.ALL: [plain, framed],
        }
        for depth, records in expected.items():
            assert list(await store.records(RunId("r"), *ANYTHING, depth)) == records

    async def test_keyframes_come_back_with_their_cut(self, store: Store) -> None:
        keyframes = [
            sample_keyframe(1),
            sample_keyframe(2, cut=True),
            None,
            Keyframe(b"", b""),
            Keyframe(b"", b"", True),
        ]
        records = [sample_record("r", seq, keyframe=keyframe) for seq, keyframe in enumerate(keyframes, 1)]
        await commit_records(store, "r", *records)
        there = await store.records(RunId("r"), *ANYTHING, Depth.ALL)
        assert [record.keyframe for record in there] == keyframes
        assert [type(record.keyframe.cut) for record in there if record.keyframe] == [bool] * 4
        cuts = [
            record.keyframe and record.keyframe.cut
            for record in await store.records(RunId("r"), *ANYTHING, Depth.CHANGES)
        ]
        assert cuts == [False, True, None, False, True]

    async def test_bytes_of_every_kind_and_size_come_back(self, store: Store) -> None:
        # As headers, changes and values, together and each beside empty ones.
        kinds = [b"", b"\x00", EVERY_BYTE, b"\r\n\x1a\xff", "ä😀".encode(), LARGE]
        records: list[Record] = []
        for kind in kinds:
            for header, changes, values in (
                (kind, kind, kind),
                (kind, b"", b""),
                (b"", kind, b""),
                (b"", b"", kind),
            ):
                seq = len(records) + 1
                parts = {
                    "header": header,
                    "changes": changes,
                    "values": values,
                    "keyframe": Keyframe(values, changes),
                }
                records.append(sample_record("r", seq, **parts))
        await commit_records(store, "r", *records)
        # Not compared in the assertions, which would show hundreds of kilobytes that differ.
        same = list(await store.records(RunId("r"), *ANYTHING, Depth.ALL)) == records
        assert same, "a record did not come back as it was"
        headers = await store.records(RunId("r"), *ANYTHING, Depth.HEADERS)
        same = [record.header for record in headers] == [record.header for record in records]
        assert same, "a header did not come back as it was"

    async def test_large_numbers_come_back(self, store: Store) -> None:
        records = [
            sample_record("r", 0, new_bytes=0),
            sample_record("r", GREATEST - 1, new_bytes=GREATEST),
            sample_record("r", GREATEST, new_bytes=2**53 + 1),
        ]
        await commit_records(store, "r", *records)
        assert list(await store.records(RunId("r"), *ANYTHING, Depth.ALL)) == records
        assert await store.find(records[2].checkpoint_id) == ("r", GREATEST)

    async def test_a_checkpoint_is_found_by_its_id(self, store: Store) -> None:
        await commit_records(store, "a", sample_record("a", 1), sample_record("a", 2))
        await commit_records(store, "b", sample_record("b", 5))
        assert await store.find(sample_id("a", 1)) == ("a", 1)
        assert await store.find(sample_id("a", 2)) == ("a", 2)
        assert await store.find(sample_id("b", 5)) == ("b", 5)

    async def test_a_checkpoint_of_an_earlier_commit_is_found(self, store: Store) -> None:
        await move_on(store, await move_on(store, await begin(store, "r")))
        for seq in (1, 2, 3):
            assert await store.find(sample_id("r", seq)) == ("r", seq)

    async def test_what_is_no_checkpoint_is_not_found(self, store: Store) -> None:
        await begin(store, "r")
        there = sample_id("r", 1)
        for text in (
            sample_id("r", 2),
            there.upper(),
            there[:-1],
            there + "0",
            there + " ",
            "",
            "r",
            "../r",
            "zz" * 32,
            "\ud800" * 64,
        ):
            assert await store.find(CheckpointId(text)) is None, text

    async def test_ids_that_differ_in_one_digit_are_apart(self, store: Store) -> None:
        digits = "0123456789abcdef" * 4
        alike = [digits, "f" + digits[1:], digits[:-1] + "0", digits[:17] + "f" + digits[18:]]
        records = [
            sample_record("r", seq, checkpoint_id=CheckpointId(text)) for seq, text in enumerate(alike, 1)
        ]
        await commit_records(store, "r", *records)
        for seq, text in enumerate(alike, 1):
            assert await store.find(CheckpointId(text)) == ("r", seq)


class IdRules:
    """Each id that ``complaint_about_id`` accepts is stored, and kept apart from all others."""

    async def test_odd_ids_are_taken_and_are_apart(self, store: Store) -> None:
        assert [text for text in ODD_IDS if complaint_about_id(text)] == []
        heads = {run: await begin(store, run) for run in ODD_IDS}
        for run, head in heads.items():
            heads[run] = await move_on(store, head, owner=run)
        for run, head in heads.items():
            assert await read_run(store, run) == (head, [sample_record(run, 1), sample_record(run, 2)])
            assert await store.find(sample_id(run, 2)) == (run, 2)
        assert await list_run_ids(store, RunQuery()) == sorted(ODD_IDS)

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
            assert left == LeaveResult(sample_head(run))
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
        query = RunQuery(limit=7)
        while page := await list_run_ids(store, query):
            found += page
            query = query._replace(after=RunPosition(NOON, RunId(found[-1])))
            assert len(found) <= len(ODD_IDS)
        assert found == sorted(ODD_IDS)

    async def test_odd_words_in_a_query_find_only_themselves(self, store: Store) -> None:
        for run in ODD_IDS:
            await begin(store, run, workflow_name=run)
        for run in ODD_IDS:
            assert await list_run_ids(store, RunQuery(workflow_name=run)) == [run]
