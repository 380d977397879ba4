"""FileStore: a directory that a person can read."""

import asyncio
import errno
import json
import os
from pathlib import Path

import ormsgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.store import Blob, Commit, Depth, Expected, Keyframe, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.file import FileStore, document
from holdfast.stores.file.waking import DRIVEN
from holdfast.testing.conformance import DurableStoreConformance
from tests.stores.file_commits import (
    EVERYTHING,
    NOON,
    RUN,
    at,
    checkpoint_id,
    content,
    failing,
    head,
    record,
    recorded_reads,
    seqs,
    step,
    tree,
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


class TestConformance(DurableStoreConformance):
    @pytest.fixture
    async def reopen(self, path):
        made = []

        async def reopen(namespace=""):
            made.append(FileStore(path, namespace))
            return made[-1]

        yield reopen
        for store in made:
            await store.close()


class TestConformanceWithoutHardLinks(TestConformance):
    @pytest.fixture(autouse=True)
    def _no_hard_links(self, monkeypatch):
        monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))


# ---------------------------------------------------------------- what a person reads


async def test_layout(store, path) -> None:
    digest = Digest(b"\xab" * 32)
    first = record(
        RUN,
        1,
        changes=b"\x00" + ormsgpack.packb({"writes": [["Totals", "sum", 3]], "digest": digest}),
        values=b"\x02" + digest,
        keyframe=Keyframe(b"\x00\x90", b"", cut=True),
    )
    await store.commit(Commit(head(RUN, 1), None, (first,), (Blob(digest, b"content"),)))
    await store.commit(Commit(head(RUN, 3), at(RUN, 1), (record(RUN, 2), record(RUN, 3))))
    await store.commit(Commit(head(RUN, 3, status=RunStatus.WAITING), at(RUN, 3)))
    await store.commit(step(RUN, 4))
    await store.commit(step(RunId("Über/../"), 1))
    assert tree(path) == sorted(
        [
            "store.json",
            f"blobs/r1/{digest.hex()}",
            *(f"ids/{name[0]}/{name}" for name in (checkpoint_id(RUN, seq) for seq in (1, 2, 3, 4))),
            f"ids/{checkpoint_id('Über/../', 1)[0]}/{checkpoint_id('Über/../', 1)}",
            f"waking/{DRIVEN}-r1",
            f"waking/{DRIVEN}-{make_file_name('Über/../')}",
            "ids/newest/r1",
            f"ids/newest/{make_file_name('Über/../')}",
            "runs/r1/00000001-0.json",
            "runs/r1/00000002-0.json",
            "runs/r1/00000004-0.json",
            "runs/r1/00000004-1.json",
            f"runs/{make_file_name('Über/../')}/00000001-0.json",
            "locks/r1.blobs",
            "locks/r1.gate",
            "locks/r1.run",
            f"locks/{make_file_name('Über/../')}.run",
        ]
    )
    assert (path / "blobs/r1" / digest.hex()).read_bytes() == b"content"
    assert content(path, "00000001-0") == {
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
            "owner": "",
            "wake_at": None,
            "takeovers": 0,
            "reason": "",
            "retention": "",
            "waiting_for": "",
            "#updated": "2025-06-16T12:00:00.000001+00:00",
        },
        "expected": None,
        "records": [
            {
                "checkpoint_id": checkpoint_id(RUN, 1),
                "seq": 1,
                "header": {"run": "r1", "seq": 1},
                "changes": {"writes": [["Totals", "sum", 3]], "digest": {"$hex": "ab" * 32}},
                "values_blob": "ab" * 32,
                "new_bytes": 7,
                "keyframe": {"cut": True, "changes": []},
            }
        ],
    }
    second = json.loads((path / "runs/r1/00000002-0.json").read_text())
    assert second["expected"] == {"checkpoint_id": checkpoint_id(RUN, 1), "token": 1}
    assert [item["seq"] for item in second["records"]] == [2, 3]


async def test_short_things_stand_on_one_line(store, path) -> None:
    await store.commit(step(RUN, 1, reason="Zürich 🌧"))
    text = (path / "runs/r1/00000001-0.json").read_text()
    assert '\n  "reason": "Zürich 🌧",\n' in text
    assert '"header": {"run": "r1", "seq": 1},' in text
    assert max(map(len, text.splitlines())) < 125


async def test_a_compressed_part_is_shown_beside_its_bytes(store, path) -> None:
    plain = ormsgpack.packb(["again and again"] * 100)
    packed = record(RUN, 1, changes=b"\x01" + zstandard.compress(plain), values=b"\x01 no frame")
    await store.commit(Commit(head(RUN, 1), None, (packed,)))
    (shown_record,) = json.loads((path / "runs/r1/00000001-0.json").read_text())["records"]
    assert shown_record["#changes"] == ["again and again"] * 100
    assert set(shown_record) >= {"changes_base64", "values_base64"}
    assert "#values" not in shown_record
    assert await store.records(RUN, 1, 1, Depth.ALL) == [packed]


async def test_namespaces_are_apart(path) -> None:
    stores = [FileStore(path), FileStore(path, "Tenant 1"), FileStore(path, "tenant 1")]
    for number, store in enumerate(stores):
        await write(store, RUN, number + 1)
    assert [await seqs(store, RUN) for store in stores] == [[1], [1, 2], [1, 2, 3]]
    assert [await store.find(checkpoint_id(RUN, 3)) for store in stores] == [None, None, (RUN, 3)]
    assert len({(await store.open()).store_id for store in stores}) == 1
    assert sorted(os.listdir(path / "namespaces")) == sorted(map(make_file_name, ("Tenant 1", "tenant 1")))
    for store in stores:
        await store.close()


async def test_only_the_owner_may_read(store, path) -> None:
    old = os.umask(0)
    try:
        await store.commit(step(RUN, 1)._replace(blobs=(Blob(Digest(b"d" * 32), b"x"),)))
    finally:
        os.umask(old)
    modes = {oct(os.lstat(file).st_mode) for file in [path, *path.rglob("*")] if not file.is_symlink()}
    assert modes == {"0o100600", "0o40700"}


# ---------------------------------------------------------------- the same bytes, always

forms = st.sampled_from([b"", b"\x00", b"\x01", b"\x02", b"\x03"])
parts = st.binary() | st.builds(lambda form, rest: form + rest, forms, st.binary() | documents)


@given(st.binary() | documents, parts, parts, st.none() | st.builds(Keyframe, parts, parts, st.booleans()))
def test_records_come_back_as_they_were(header, changes, values, keyframe) -> None:
    stored = record(RUN, 1, header=header, changes=changes, values=values, keyframe=keyframe)
    file = document.parsed(Path("c.json"), document.written(Commit(head(RUN, 1), None, (stored,))))
    (item,) = file.records
    assert file.record(item, Depth.ALL) == stored
    short = keyframe and keyframe._replace(values=b"")
    assert file.record(item, Depth.CHANGES) == stored._replace(values=b"", keyframe=short)
    assert file.record(item, Depth.HEADERS) == stored._replace(changes=b"", values=b"", keyframe=None)


@given(st.text(), st.text(), st.integers(-(2**70), 2**70), st.sampled_from(RunStatus))
def test_heads_come_back_as_they_were(owner, reason, time, status) -> None:
    stored = head(RUN, 1, owner=owner, reason=reason, updated=time, wake_at=time, status=status)
    assert document.parsed(Path("c.json"), document.written(Commit(stored, None))).head == stored


# ---------------------------------------------------------------- ids from outside


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
    "r1.json",
]


async def test_odd_ids(store, path) -> None:
    for number, odd in enumerate(ODD):
        run, digest = RunId(odd), Digest(bytes([number]) * 32)
        await store.commit(step(run, 1)._replace(blobs=(Blob(digest, odd.encode()),)))
    for number, odd in enumerate(ODD):
        run, digest = RunId(odd), Digest(bytes([number]) * 32)
        assert (await store.head(run)) == head(run, 1)
        assert await store.blobs(run, [digest, Digest(b"x" * 32)]) == {digest: odd.encode()}
    assert {found.run_id for found in await store.runs(RunQuery())} == set(ODD)
    assert len(os.listdir(path / "runs")) == len(ODD)
    assert os.listdir(path.parent) == ["store"]


async def test_a_checkpoint_id_is_no_way_out(store, path) -> None:
    await write(store, RUN, 1)
    assert await store.find(CheckpointId("../../store.json")) is None
    assert await store.find(CheckpointId("/etc/passwd")) is None


# ---------------------------------------------------------------- reading little


@pytest.fixture
def reads(monkeypatch):
    return recorded_reads(monkeypatch)


async def test_a_listing_reads_the_newest_file_of_each_run(store, path, reads) -> None:
    for run in ("r1", "r2", "r3"):
        await write(store, RunId(run), 5)
    other = FileStore(path)
    assert len(await other.runs(RunQuery())) == 3
    assert sorted(reads[-3:]) == [f"r{number}/00000005-0.json" for number in (1, 2, 3)]
    reads.clear()
    await store.commit(step(RunId("r2"), 6))
    assert [found.seq for found in await other.runs(RunQuery())] == [5, 6, 5]
    assert reads == ["r2/00000006-0.json"]
    await other.close()


async def test_records_are_read_from_the_files_that_hold_them(store, path, reads) -> None:
    await store.commit(step(RUN, 1))
    await store.commit(Commit(head(RUN, 4), at(RUN, 1), tuple(record(RUN, seq) for seq in (2, 3, 4))))
    for _ in range(3):
        await store.commit(Commit(head(RUN, 4), at(RUN, 4)))
    await store.commit(step(RUN, 5))
    for reader in (store, FileStore(path)):
        await reader.head(RUN)
        for first, last, files in [
            (3, 3, ["00000002-0"]),
            (4, 5, ["00000002-0", "00000005-3"]),
            (1, 1, ["00000001-0"]),
            (5, EVERYTHING, ["00000005-3"]),
            (6, EVERYTHING, ["00000005-3"]),
            (0, 0, ["00000001-0"]),
        ]:
            reads.clear()
            assert await seqs(reader, RUN, first, last) == [n for n in range(1, 6) if first <= n <= last]
            assert reads == [f"r1/{file}.json" for file in files]
        await reader.close()


async def test_a_run_may_begin_with_seq_0(store) -> None:
    await store.commit(Commit(head(RUN, 0), None, (record(RUN, 0),)))
    await store.commit(Commit(head(RUN, 1), Expected(checkpoint_id(RUN, 0), 1), (record(RUN, 1),)))
    assert await seqs(store, RUN, 0) == [0, 1]
    assert await seqs(store, RUN, 0, 0) == [0]
    assert await seqs(store, RUN, 1, 1) == [1]


async def test_what_others_wrote_is_seen(store, path) -> None:
    other = FileStore(path)
    assert await seqs(other, RUN) == []
    for seq in range(1, 20):
        await (store, other)[seq % 2].commit(step(RUN, seq))
        for reader in (store, other):
            assert await reader.head(RUN) == head(RUN, seq)
            assert await seqs(reader, RUN) == list(range(1, seq + 1))
    await other.close()


async def test_reading_while_others_write(store, path) -> None:
    writing = asyncio.create_task(write(store, RUN, 100))
    reader = FileStore(path)
    while not writing.done():
        await reader.close()
        reader = FileStore(path)
        for _ in range(3):
            found = await seqs(reader, RUN)
            assert found == list(range(1, len(found) + 1))
    await writing
    assert await seqs(reader, RUN) == list(range(1, 101))
    await reader.close()


# ---------------------------------------------------------------- finding


async def test_lost_hints_are_made_again(store, path) -> None:
    await write(store, RUN, 3)
    hint = path / "ids" / checkpoint_id(RUN, 2)[0] / checkpoint_id(RUN, 2)
    for target in (None, "../../runs/r1/00000009-0.json", "../../runs/r1/00000003-0.json", "/etc/passwd"):
        hint.unlink()
        if target is not None:
            hint.symlink_to(target)
        assert await store.find(checkpoint_id(RUN, 2)) == (RUN, 2)
        assert os.readlink(hint) == "../../runs/r1/00000002-0.json"
    assert await store.find(checkpoint_id(RUN, 4)) is None


async def test_hints_of_a_run_with_a_long_name_are_short(store, path) -> None:
    run, plain = RunId("The order of Mr. Long " * 5), RunId("a" * 100)
    for one in (run, plain):
        await write(store, one, 3)
        hint = path / "ids" / checkpoint_id(one, 2)[0] / checkpoint_id(one, 2)
        assert len(os.readlink(hint)) < 60  # a longer one takes a block on ext4
        assert hint.samefile(path / "runs" / make_file_name(one) / "00000002-0.json")
        assert await store.find(checkpoint_id(one, 2)) == (one, 2)
    await store.remove_run(run, at(run, 3))
    assert [os.readlink(link) for link in (path / "ids" / "runs").iterdir()] == [f"../../runs/{plain}"]


async def test_finding_without_symbolic_links(store, path, monkeypatch) -> None:
    def symlink(*args):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "symlink", symlink)
    await write(store, RUN, 3)
    assert await store.find(checkpoint_id(RUN, 2)) == (RUN, 2)
