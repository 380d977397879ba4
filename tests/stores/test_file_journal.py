"""FileStore: notes in commit files."""

from pathlib import Path

import ormsgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.store import Commit, Depth, Letter, Note
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.stores.file import FileStore, document
from tests.stores.file_commits import (
    RUN,
    at,
    checkpoint_id,
    content,
    fill,
    head,
    keys_of,
    letters,
    note,
    recorded_reads,
    seqs,
    stay,
    step,
    write,
)
from tests.stores.test_readable import documents


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
async def store(path):
    store = FileStore(path)
    yield store
    await store.close()


@pytest.fixture
async def other(path):
    """Another one on the same directory, which knows nothing yet."""
    other = FileStore(path)
    yield other
    await other.close()


# ---------------------------------------------------------------- what a person reads


async def test_notes_are_readable(store, path) -> None:
    await store.commit(step(RUN, 1))
    document = {"turn": "double", "outputs": [["double", 4]]}
    packed, plain = ormsgpack.packb(document), ormsgpack.packb(["again and again"] * 100)
    notes = (
        Note("stored", b"\x00" + packed),
        Note("packed", packed),
        Note("compressed", b"\x01" + zstandard.compress(plain)),
        Note("blob", b"\x02" + b"\xab" * 32),
        Note("bytes", b"\xff\xfe"),
        Note("zero", b"\x00"),
        Note("empty", b""),
        Note("half \ud83d\ude00", b"\xa1x"),
    )
    await store.commit(stay(RUN, 1)._replace(notes=notes))
    said = content(path, "00000002-0")
    assert said["records"] == []
    assert said["expected"] == {"checkpoint_id": checkpoint_id(RUN, 1), "token": 1}
    assert {"letters", "taken"}.isdisjoint(said)
    shown = said["notes"]
    assert shown[:2] == [{"key": "stored", "data": document}, {"key": "packed", "data_packed": document}]
    assert shown[2]["#data"] == ["again and again"] * 100
    assert "data_base64" in shown[2]
    assert shown[3:] == [
        {"key": "blob", "data_blob": "ab" * 32},
        {"key": "bytes", "data_base64": "//4="},
        {"key": "zero", "data_base64": "AA=="},
        {"key": "empty"},
        {"key": {"base64": "aGFsZiDtoL3tuIA="}, "data_packed": "x"},
    ]
    assert tuple(await store.notes(RUN)) == notes


any_text = st.text(st.characters(exclude_categories=()))
forms = st.sampled_from([b"", b"\x00", b"\x01", b"\x02"])
data = st.binary() | st.builds(lambda form, rest: form + rest, forms, st.binary() | documents)


@given(
    st.lists(st.builds(Note, any_text, data)), st.lists(st.builds(Letter, any_text, data)), st.lists(any_text)
)
def test_notes_and_letters_come_back_as_they_were(notes, waiting, taken) -> None:
    commit = stay(RUN, 1)._replace(notes=tuple(notes))
    file = document.parsed(Path("c.json"), document.written(commit, waiting, taken))
    assert file.notes() == notes
    assert file.outline == document.Outline(
        head(RUN, 1), False, 0, tuple(waiting), tuple(taken), noted=bool(notes)
    )


async def test_files_of_older_stores_have_no_notes_and_no_letters(store, path, other) -> None:
    await store.commit(step(RUN, 1))
    assert set(content(path, "00000001-0")) == {"head", "expected", "records"}
    assert await other.notes(RUN) == []
    assert await other.inbox(RUN) == []
    assert (await other.leave(RUN, 0, letters("a"))).refused == ()


# ---------------------------------------------------------------- reading little


async def test_a_journal_is_read_from_the_files_since_the_head_moved(store, other, monkeypatch) -> None:
    await write(store, RUN, 3)
    await store.commit(step(RUN, 4)._replace(notes=(note("a"),)))
    await store.commit(stay(RUN, 4, "b"))
    await store.commit(stay(RUN, 4, status=RunStatus.WAITING))
    await store.leave(RUN, 4, letters("x"))
    await store.commit(stay(RUN, 4, "c"))
    await other.head(RUN)
    reads = recorded_reads(monkeypatch)
    noted = [f"r1/{name}.json" for name in ("00000004-0", "00000005-0", "00000005-3")]
    back = [f"r1/0000000{name}.json" for name in ("5-3", "5-2", "5-1", "5-0", "4-0")]
    # Where a run stands that rests is not remembered, by neither of them.
    for reader, files in [(store, [*back, *noted]), (store, noted), (other, [*back, *noted]), (other, noted)]:
        reads.clear()
        assert keys_of(await reader.notes(RUN)) == ["a", "b", "c"]
        assert reads == files
    await other.commit(step(RUN, 5))
    assert await store.notes(RUN) == []
    reads.clear()
    assert await store.notes(RUN) == []
    assert reads == []


async def test_a_journal_that_others_go_on_with(store, other) -> None:
    await store.commit(step(RUN, 1))
    for number in range(6):
        await (store, other)[number % 2].commit(stay(RUN, 1, str(number)))
        for reader in (store, other):
            assert keys_of(await reader.notes(RUN)) == [str(n) for n in range(number + 1)]
    for key in ("x", "y", "z"):
        await store.commit(stay(RUN, 1, key))
    assert keys_of(await other.notes(RUN)) == [*map(str, range(6)), "x", "y", "z"]
    await other.commit(step(RUN, 2))
    assert await store.notes(RUN) == []


async def test_a_journal_stays_where_records_come_and_the_head_does_not_move(store, other) -> None:
    await store.commit(step(RUN, 1)._replace(notes=(note("a"),)))
    await store.commit(stay(RUN, 1, "b"))
    await store.commit(Commit(head(RUN, 1), at(RUN, 1), step(RUN, 2).records, notes=(note("c"),)))
    await store.commit(stay(RUN, 1, "d"))
    await store.commit(Commit(head(RUN, 1), at(RUN, 1), step(RUN, 3).records, notes=(note("e"),)))
    assert keys_of(await store.notes(RUN)) == ["a", "b", "c", "d", "e"]
    assert keys_of(await other.notes(RUN)) == ["a", "b", "c", "d", "e"]


async def test_how_many_syncs(store) -> None:
    await write(store, RUN, 1)
    await store.open()

    async def cost(doing) -> int:
        before = store.fsyncs
        await doing
        return store.fsyncs - before

    for seq in range(1, 5):
        assert await cost(store.commit(stay(RUN, seq, "a"))) == 2
        assert await cost(store.leave(RUN, seq, letters(str(seq)))) == 2
        assert await cost(store.leave(RUN, seq, letters(str(seq)))) == 0
        assert await cost(store.commit(stay(RUN, seq, "b", taken=[str(seq)]))) == 2
        assert await cost(store.commit(step(RUN, seq + 1))) == 2
        assert await cost(store.notes(RUN)) == 0


# ---------------------------------------------------------------- damage


async def test_an_empty_newest_file_is_damaged(store, path, other) -> None:
    await fill(store, 2)
    newest = path / "runs/r1/00000002-2.json"
    newest.write_bytes(b"")
    for asking in (
        lambda: other.head(RUN),
        lambda: other.notes(RUN),
        lambda: other.inbox(RUN),
        lambda: other.commit(step(RUN, 3)),
        lambda: other.leave(RUN, 0, letters("a")),
        lambda: other.records(RUN, 2, 2, Depth.ALL),
    ):
        with pytest.raises(CheckpointCorrupt, match=f"{newest} is damaged: ValueError: it is empty"):
            await asking()
    assert len(await other.damaged()) == 1


async def test_an_empty_file_of_the_journal_is_damaged(store, path, other) -> None:
    await fill(store, 2)
    for key in ("a", "b"):
        await store.commit(stay(RUN, 2, key))
    lost = path / "runs/r1/00000003-0.json"
    lost.write_bytes(b"")
    for reader in (store, other):
        with pytest.raises(CheckpointCorrupt, match=f"{lost} is damaged"):
            await reader.notes(RUN)
        assert await reader.head(RUN) == head(RUN, 2)
        assert await seqs(reader, RUN) == [1, 2]


async def test_an_empty_file_that_held_records_is_damaged(store, path, other) -> None:
    await fill(store, 3)
    lost = path / "runs/r1/00000002-2.json"
    lost.write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match=f"{lost} is damaged"):
        await other.records(RUN, 1, 3, Depth.ALL)
    assert await seqs(other, RUN, 3) == [3]


async def test_a_newest_file_that_is_moved_away_leaves_the_journal_before_it(store, path, other) -> None:
    """What the message for a damaged one says."""
    await fill(store, 3)
    await other.head(RUN)
    (path / "runs/r1/00000003-2.json").write_bytes(b"{")
    (path / "runs/r1/00000003-2.json").unlink()
    for reader in (store, other):
        assert await reader.head(RUN) == head(RUN, 2, status=RunStatus.WAITING)
        assert keys_of(await reader.notes(RUN)) == ["2a", "2b"]
    await other.commit(step(RUN, 3))
    assert await seqs(store, RUN) == [1, 2, 3]


async def test_notes_that_were_changed_by_hand(store, path) -> None:
    await store.commit(step(RUN, 1)._replace(notes=(Note("a", b"\x00\x01"),)))
    file = path / "runs/r1/00000001-0.json"
    file.write_text(file.read_text().replace('"data": 1', '"data": {"$what": 1}'))
    assert await seqs(store, RUN) == [1]
    with pytest.raises(CheckpointCorrupt, match=f"{file} is damaged: the note a is not"):
        await store.notes(RUN)
