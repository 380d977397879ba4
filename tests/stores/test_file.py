"""FileStore: a directory that a person can read."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast import FileCheckpointStorage, RunStatus
from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Depth,
    Expected,
    Head,
    Keyframe,
    LeaveResult,
    Letter,
    Note,
    RunQuery,
)
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.file import FileStore
from holdfast.testing.conformance import DurableStoreConformance
from tests.stores.file_commits import (
    CUT,
    NOON,
    RUN,
    at,
    checkpoint_id,
    everything,
    head,
    keys_of,
    letters,
    lines_of,
    note,
    record,
    run_path,
    seqs,
    stay,
    step,
    tree,
    write,
)
from tests.stores.test_readable import documents
from tests.support.modules import run_index
from tests.support.retained import counting
from tests.support.store_parts import (
    DRIVEN,
    LineDraft,
    LineFile,
    decode_body,
    decode_keyed,
    decode_line,
    decode_record,
    make_file_name,
)


class TestConformance(DurableStoreConformance):
    @pytest.fixture
    async def reopen(self, directory: Path) -> AsyncIterator[Any]:
        made = []

        async def reopen(namespace: str = "") -> FileStore:
            made.append(FileStore(directory, namespace))
            return made[-1]

        yield reopen
        for store in made:
            await store.close()

    @pytest.fixture
    def store(self, files: FileStore) -> FileStore:
        return files


# -- what a person reads ---------------------------------------------------------------------------


async def test_layout(files, directory) -> None:
    digest = Digest(b"\xab" * 32)
    await files.commit(step(RUN, 1)._replace(blobs=(Blob(digest, b"content"),)))
    await files.commit(step(RUN, 2, status=RunStatus.WAITING, wake_at=NOON))
    odd = make_file_name("Über/../")
    await files.commit(step(RunId("Über/../"), 1))
    assert tree(directory) == sorted(
        [
            "store.json",
            f"blobs/r1/{digest.hex()}",
            "runs/r1.jsonl",
            f"runs/{odd}.jsonl",
            f"waking/{NOON:020d}-r1",
            f"waking/{DRIVEN}-{odd}",
            "locks/r1.blobs",
            "locks/r1.gate",
            "locks/r1.run",
            f"locks/{odd}.run",
        ]
    )
    assert (directory / "blobs/r1" / digest.hex()).read_bytes() == b"content"


FULL_HEAD = head(
    RUN, 1, owner="p#1", wake_at=5, takeovers=2, reason="r", retention="latest_only", waiting_for="time"
)._replace(letters_known=3, fingerprint="f", by="b", traceback="t", origin="o", restored=1)


@pytest.mark.parametrize("name", Head._field_defaults)
async def test_a_head_comes_back_with_what_its_line_leaves_out(files, others, directory, name) -> None:
    assert all(getattr(FULL_HEAD, field) != default for field, default in Head._field_defaults.items())
    empty = Head._field_defaults[name]
    there = FULL_HEAD._replace(**{name: empty})
    await files.commit(Commit(there, None, (record(RUN, 1),)))
    assert await others.head(RUN) == there
    shown = lines_of(directory)[-1]["head"]
    assert {*Head._fields} - shown.keys() == {name}


async def test_lines(files, directory) -> None:
    digest = Digest(b"\xab" * 32)
    written = {"writes": [["Totals", "sum", 3]], "digest": digest}
    first = record(
        RUN,
        1,
        changes=b"\x00" + ormsgpack.packb(written),
        values=b"\x02" + digest,
        keyframe=CUT,
        tags=("gold",),
    )
    await files.commit(Commit(head(RUN, 1, reason="Zürich 🌧"), None, (first,)))
    answer = ormsgpack.packb({"request": "q1", "answer": 42})
    await files.leave(RUN, 1, [Letter("a", b"\x00" + answer), Letter("b", answer), *letters("c")])
    await files.commit(stay(RUN, 1, taken=["b"])._replace(notes=(Note("half \ud83d", b"\xa1x"),)))
    await files.tag(RUN, 1, ["silver"], ())
    naming, commit, left, noted, tagged = lines_of(directory)
    assert (naming["kind"], naming["run_id"], naming["namespace"]) == ("file", "r1", "")
    assert commit.pop("at") == len(run_path(directory).read_bytes().splitlines(keepends=True)[0])
    commit.pop("sum")
    assert commit == {
        "kind": "commit",
        "ids": {"1": checkpoint_id(RUN, 1)},
        "tags": {"1": ["gold"]},
        "head": {
            "run_id": "r1",
            "workflow_name": "W",
            "family": "r1",
            "checkpoint_id": checkpoint_id(RUN, 1),
            "seq": 1,
            "token": 1,
            "status": "running",
            "created": NOON,
            "updated": NOON + 1,
            "reason": "Zürich 🌧",
            "#updated": "2025-06-16T12:00:00+00:00",
        },
        "body": {
            "records": [
                {
                    "checkpoint_id": checkpoint_id(RUN, 1),
                    "seq": 1,
                    "new_bytes": 7,
                    "header": {"run": "r1", "seq": 1},
                    "changes": {"writes": [["Totals", "sum", 3]], "digest": {"$hex": "ab" * 32}},
                    "values_blob": "ab" * 32,
                    "keyframe": {"cut": True, "changes": []},
                }
            ]
        },
    }
    assert (left["kind"], left["left"], left["inbox"]) == ("letters", ["a", "b", "c"], 3)
    assert left["body"]["letters"] == [
        {"key": "a", "data": {"request": "q1", "answer": 42}},
        {"key": "b", "packed": {"request": "q1", "answer": 42}},
        {"key": "c", "packed_base64": "bGV0dGVyIGM="},
    ]
    assert (noted["taken"], noted["inbox"], noted["noted"]) == (["b"], 2, 1)
    assert noted["body"]["notes"] == [{"key": {"$text": "aGFsZiDtoL0="}, "packed": "x"}]
    assert (tagged["kind"], tagged["tags"]) == ("tags", {"1": ["gold", "silver"]})
    assert "Zürich 🌧" in run_path(directory).read_text()


async def test_the_file_of_a_run_tells_its_story(directory) -> None:
    """Which superstep, which status, which values: without any tool but one that reads JSON."""
    async with FileCheckpointStorage(directory) as storage:
        await counting(size=10).run(3, run_id="r", storage=storage)
    _, *told = lines_of(directory, "r")
    statuses = [line["head"]["status"] for line in told]
    assert statuses[0] == "running"
    assert statuses[-1] == "completed"
    records = [one for line in told for one in line["body"].get("records", ())]
    # The input, then the end of each superstep, from which the start of the next is derived.
    assert [one["seq"] for one in records] == [1, *range(2, 2 * len(records), 2)]
    assert {"count", "S"} <= {word for one in records for word in _words(one)}
    assert [one["header"]["superstep"] for one in records] == sorted(
        one["header"]["superstep"] for one in records
    )


def _words(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {word for pair in value.items() for part in pair for word in _words(part)}
    if isinstance(value, list):
        return {word for part in value for word in _words(part)}
    return {value} if isinstance(value, str) else set()


async def test_a_compressed_part_is_shown_beside_its_bytes(files, directory) -> None:
    plain = ormsgpack.packb(["again and again"] * 100)
    packed = record(RUN, 1, changes=b"\x01" + zstandard.compress(plain), values=b"\x01 no frame")
    await files.commit(Commit(head(RUN, 1), None, (packed,)))
    (shown,) = lines_of(directory)[1]["body"]["records"]
    assert shown["#changes"] == ["again and again"] * 100
    assert set(shown) >= {"changes_base64", "values_base64"}
    assert "#values" not in shown
    assert await files.records(RUN, 1, 1, Depth.ALL) == [packed]


async def test_namespaces_are_apart(directory) -> None:
    stores = [FileStore(directory), FileStore(directory, "Tenant 1"), FileStore(directory, "tenant 1")]
    for number, store in enumerate(stores):
        await write(store, RUN, number + 1)
    assert [await seqs(store) for store in stores] == [[1], [1, 2], [1, 2, 3]]
    assert [await store.find(checkpoint_id(RUN, 3)) for store in stores] == [None, None, (RUN, 3)]
    assert len({(await store.open()).store_id for store in stores}) == 1
    assert sorted(os.listdir(directory / "namespaces")) == sorted(
        map(make_file_name, ("Tenant 1", "tenant 1"))
    )
    for store in stores:
        assert await store.inspect() == []
        await store.close()


async def test_only_the_owner_may_read(files, directory, monkeypatch) -> None:
    monkeypatch.setattr(run_index, "_WORTH_WRITING", 1)
    old = os.umask(0)
    try:
        await files.commit(step(RUN, 1)._replace(blobs=(Blob(Digest(b"d" * 32), b"x"),)))
        await files.join()
        await files.runs(RunQuery())
    finally:
        os.umask(old)
    assert (directory / "index.db").exists()
    modes = {oct(os.lstat(file).st_mode) for file in [directory, *directory.rglob("*")]}
    assert modes == {"0o100600", "0o40700"}


# -- the same bytes, always ------------------------------------------------------------------------

forms = st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\x03"])
parts = st.binary() | st.builds(lambda form, rest: form + rest, forms, st.binary() | documents)
any_text = st.text(st.characters(exclude_categories=()))


def encoded(draft: LineDraft) -> bytes:
    line, _ = draft.encode("id", 7)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    return line[:-1]


@given(st.binary() | documents, parts, parts, st.none() | st.builds(Keyframe, parts, parts, st.booleans()))
def test_records_come_back_as_they_were(header, changes, values, keyframe) -> None:
    stored = record(RUN, 1, header=header, changes=changes, values=values, keyframe=keyframe)
    (item,) = decode_body(encoded(LineDraft("commit", head(RUN, 1), [stored])))["records"]
    assert decode_record(item, RUN, Depth.ALL, True) == stored
    short = keyframe and keyframe._replace(values=b"")
    assert decode_record(item, RUN, Depth.CHANGES, True) == stored._replace(values=b"", keyframe=short)
    plain = stored._replace(changes=b"", values=b"", keyframe=None)
    assert decode_record(item, RUN, Depth.HEADERS, True) == plain


@given(any_text, any_text, st.integers(0, 2**70), st.sampled_from(RunStatus))
def test_heads_come_back_as_they_were(owner, reason, time, status) -> None:
    stored = head(RUN, 1, owner=owner, reason=reason, updated=time, wake_at=-time, status=status)
    assert decode_line("id", 7, encoded(LineDraft("commit", stored))).head == stored


@given(
    st.lists(st.builds(Note, any_text, parts)),
    st.lists(st.builds(Letter, any_text, parts)),
    st.lists(any_text),
)
def test_notes_and_letters_come_back_as_they_were(notes, waiting, taken) -> None:
    draft = LineDraft("commit", head(RUN, 1), notes=notes, letters=waiting, taken=taken, tags={3: taken})
    text = encoded(draft)
    line, body = decode_line("id", 7, text), decode_body(text)
    assert line.place.is_sound
    assert [Note(*decode_keyed(one)) for one in body.get("notes", ())] == notes
    assert [Letter(*decode_keyed(one)) for one in body.get("letters", ())] == waiting
    assert line.meta.get("left", []) == keys_of(waiting)
    assert (line.meta.get("taken", []), line.meta["tags"]["3"]) == (taken, taken)
    _, known = draft.encode("id", 7)
    assert (known.place, known.ids) == (line.place, line.ids)
    assert {name: line.meta[name] for name in known.meta} == known.meta


async def test_a_run_with_all_kinds_of_lines_comes_back(files, others) -> None:
    await files.commit(step(RUN, 1)._replace(notes=(note("a"),)))
    await files.leave(RUN, 1, letters("x", "y", "\udc80"))
    await files.commit(stay(RUN, 1, "b", taken=["x"]))
    await files.tag(RUN, 1, ["\udc80 half"])
    await files.commit(Commit(head(RUN, 1), at(RUN, 1), (record(RUN, 2),), notes=(note("a"), note("c"))))
    for store in (files, others):
        there, records, notes, inbox = await everything(store)
        assert there == head(RUN, 1)
        assert records == [record(RUN, 1, tags=("\udc80 half",)), record(RUN, 2)]
        assert (notes, inbox) == ([note("a"), note("b"), note("c")], letters("y", "\udc80"))
        assert (await store.leave(RUN, 0, letters("x", "z", "\udc80"))).refused == ("x", "\udc80")
    await others.commit(Commit(head(RUN, 3), at(RUN, 1), (record(RUN, 3),)))
    assert await files.notes(RUN) == []


async def test_taking_what_is_not_there_says_nothing(files, directory) -> None:
    await files.commit(step(RUN, 1)._replace(taken=("a",)))
    assert "taken" not in lines_of(directory)[1]
    assert await files.leave(RUN, 0, letters("a")) == LeaveResult(head(RUN, 1))


async def test_what_changes_nothing_writes_nothing(files, directory) -> None:
    assert await files.leave(RUN, 0, letters("a")) == LeaveResult(None)
    assert not run_path(directory).exists()
    await write(files, RUN, 1)
    await files.tag(RUN, 1, ["gold"])
    before = run_path(directory).read_bytes()
    assert await files.leave(RUN, 0, []) == LeaveResult(head(RUN, 1))
    assert await files.tag(RUN, 1, ["gold"])
    assert run_path(directory).read_bytes() == before


# -- ids from outside ------------------------------------------------------------------------------

ODD = [
    "..",
    ".",
    "CON",
    "con",
    "a",
    "A",
    "~",
    "C:\\x",
    "%2e",
    "🦀" * 200,
    "é",
    "e\u0301",
    "-rf",
    "x" * 200,
    "r.jsonl",
]


async def test_odd_ids(files, directory) -> None:
    for number, odd in enumerate(ODD):
        run, digest = RunId(odd), Digest(bytes([number]) * 32)
        await files.commit(step(run, 1)._replace(blobs=(Blob(digest, odd.encode()),)))
    for number, odd in enumerate(ODD):
        run, digest = RunId(odd), Digest(bytes([number]) * 32)
        assert await files.head(run) == head(run, 1)
        assert await files.blobs(run, [digest, Digest(b"x" * 32)]) == {digest: odd.encode()}
    assert {found.run_id for found in await files.runs(RunQuery())} == set(ODD)
    assert len(os.listdir(directory / "runs")) == len(ODD)
    assert os.listdir(directory.parent) == ["store"]
    assert await files.inspect() == []


@pytest.mark.parametrize("odd", ["../../store.json", "/etc/passwd", "", "\udc80"])
async def test_a_checkpoint_id_is_no_way_out(files, odd) -> None:
    await write(files, RUN, 1)
    assert await files.find(CheckpointId(odd)) is None


async def test_a_run_may_begin_with_seq_0(files) -> None:
    await files.commit(Commit(head(RUN, 0), None, (record(RUN, 0),)))
    await files.commit(Commit(head(RUN, 1), Expected(checkpoint_id(RUN, 0), 1), (record(RUN, 1),)))
    found = [await seqs(files, RUN, first, last) for first, last in ((0, 9), (0, 0), (1, 1))]
    assert found == [[0, 1], [0], [1]]


# -- reading, also while others write --------------------------------------------------------------


async def test_reading_while_others_write(files, directory) -> None:
    writing = asyncio.create_task(write(files, RUN, 100))
    reader = FileStore(directory)
    while not writing.done():
        await reader.close()
        reader = FileStore(directory)
        for _ in range(3):
            found = await seqs(reader)
            assert found == list(range(1, len(found) + 1))
    await writing
    assert await seqs(reader) == list(range(1, 101))
    await reader.close()


async def test_a_listing_reads_the_last_line_of_runs_that_changed(files, others, peeks, monkeypatch) -> None:
    for run in ("r1", "r2", "r3"):
        await write(files, RunId(run), 5)
    monkeypatch.setattr(LineFile, "look", None)  # would read all of it
    assert [found.seq for found in await others.runs(RunQuery())] == [5, 5, 5]
    await files.commit(step(RunId("r2"), 6))
    peeks.clear()
    assert [found.seq for found in await others.runs(RunQuery())] == [5, 6, 5]
    assert peeks == ["r2"]


@pytest.mark.parametrize("length", [10, 20_000, 300_000])
async def test_a_long_last_line_is_found(files, others, length) -> None:
    await write(files, RUN, 2)
    await files.commit(stay(RUN, 2)._replace(notes=(Note("long", b"\x00" + ormsgpack.packb("x" * length)),)))
    assert await others.runs(RunQuery()) == [head(RUN, 2)]


# -- the index, which is never the truth -----------------------------------------------------------


@pytest.fixture
async def indexed(files, directory, monkeypatch) -> FileStore:
    """A store with an index of three runs."""
    monkeypatch.setattr(run_index, "_WORTH_WRITING", 2)
    for run in ("r1", "r2", "r3"):
        await write(files, RunId(run), 3)
    fresh = FileStore(directory)
    await fresh.runs(RunQuery())
    assert await fresh.find(checkpoint_id("none", 1)) is None
    await fresh.close()
    return files


async def test_a_search_reads_the_tags_of_runs_that_changed(indexed, directory, monkeypatch) -> None:
    await indexed.tag(RunId("r2"), 1, ["Before the deploy"])
    read: list[str] = []
    look = LineFile.look

    def noting(self: LineFile) -> Any:
        read.append(self.path.stem)
        return look(self)

    async def search(text: str) -> list[str]:
        read.clear()
        store = FileStore(directory)
        found: list[str] = [head.run_id for head in await store.runs(RunQuery(text=text))]
        assert await store.count_runs(RunQuery(text=text)) == len(found)
        await store.close()
        return found

    monkeypatch.setattr(LineFile, "look", noting)
    assert await search("DEPLOY") == ["r2"]
    assert sorted(read) == ["r1", "r2", "r3"]
    assert await search("deploy") == ["r2"]
    assert read == []
    await indexed.tag(RunId("r3"), 2, ["deployed"])
    assert await search("deploy") == ["r2", "r3"]
    assert set(read) == {"r3"}


async def check_index(directory: Path) -> None:
    store = FileStore(directory)
    assert [(found.run_id, found.seq) for found in await store.runs(RunQuery())] == [
        ("r1", 3),
        ("r2", 4),
        ("r3", 3),
    ]
    assert [await store.find(checkpoint_id(run, 2)) for run in ("r1", "r2", "r3", "none")] == [
        ("r1", 2),
        ("r2", 2),
        ("r3", 2),
        None,
    ]
    assert await store.find(checkpoint_id("r2", 4)) == ("r2", 4)
    await store.close()


def _lose(index: Path) -> None:
    for file in index.parent.glob("index.db*"):
        file.unlink()


def _lie(index: Path) -> None:
    with sqlite3.connect(index) as database:
        database.execute("UPDATE ids SET name = 'r9'")
        database.execute("UPDATE runs SET stamp = '0-0-0', head = 'null'")
        database.execute("UPDATE indexed SET stamp = '0-0-0'")
    database.close()


def _nest(index: Path) -> None:
    with sqlite3.connect(index) as database:
        database.execute("UPDATE runs SET head = ?", ["[" * 100_000])
    database.close()


def _garble(index: Path) -> None:
    _lose(index)
    index.write_bytes(b"this is no database " * 100)


def _lock(index: Path) -> None:
    _lose(index)
    index.mkdir()


@pytest.mark.parametrize("harm", [lambda index: None, _lose, _lie, _nest, _garble, _lock])
async def test_an_index_that_is_lost_or_wrong_does_no_harm(indexed, directory, harm) -> None:
    await indexed.commit(step(RunId("r2"), 4))
    harm(directory / "index.db")
    for _ in range(2):
        await check_index(directory)


async def test_an_index_saves_reading(indexed, directory, peeks, monkeypatch) -> None:
    await indexed.commit(step(RunId("r2"), 4))
    await check_index(directory)
    assert peeks.count("r1") == 0
    assert "r2" in peeks
