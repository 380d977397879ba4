"""FileStore: ends of files that were never written whole, and lines that are not what was written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import FileCheckpointStorage
from holdfast.checkpoint.store import Commit, Depth, Expected, RunQuery
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    RUN,
    all_but,
    checkpoint_id,
    everything,
    head,
    letters,
    lock_path,
    opened,
    run_path,
    seqs,
    stay,
    step,
    write,
)
from tests.support import modules
from tests.support.retained import counting
from tests.support.store_parts import LineFile

OTHER = RunId("r2")


async def fill(store: FileStore) -> None:
    """Two runs; the first has lines of all kinds."""
    await write(store, OTHER, 1)
    await write(store, RUN, 2)
    await store.commit(stay(RUN, 2, "a"))
    await store.tag(RUN, 1, ["gold"])
    await store.leave(RUN, 2, letters("x", "y"))
    await store.commit(step(RUN, 3)._replace(taken=("x",)))
    await store.commit(stay(RUN, 3, "b"))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def put(directory: Path, content: bytes, mark: bytes | None) -> None:
    """Let a run's file have another content, and the mark of what is synced be as it was, or gone."""
    run_path(directory).write_bytes(content)
    lock_path(directory).unlink(missing_ok=True)
    if mark is not None:
        lock_path(directory).write_bytes(mark)


# -- torn lines ------------------------------------------------------------------------------------


@pytest.fixture
async def torn(files, directory) -> tuple[list[bytes], bytes, tuple[object, ...]]:
    """The lines of a run, the mark before the last of them, and all that was told before it."""
    await fill(files)
    before, mark = await everything(files), lock_path(directory).read_bytes()
    await files.commit(step(RUN, 4)._replace(notes=stay(RUN, 4, "c").notes))
    return lines(run_path(directory)), mark, before


def check_torn(directory: Path, content: bytes, mark: bytes | None, whole: bytes, last_seq: int) -> None:
    """Whoever reads or writes sees all that was written before, and nothing of the torn line."""
    for write_first in (False, True):
        put(directory, content, mark)
        other = opened(directory)
        run = other.run(RUN)
        if write_first:
            other.commit(step(RUN, last_seq + 1))
            assert run.head() == head(RUN, last_seq + 1)
        else:
            assert run.head() == head(RUN, last_seq)
            assert run_path(directory).read_bytes() == whole
        assert run_path(directory).read_bytes().startswith(whole)
        fresh = opened(directory)
        found = fresh.run(RUN).records(0, 99, Depth.ALL)
        assert [one.seq for one in found] == list(range(1, last_seq + 1 + write_first))
        assert found[0].tags == ("gold",)
        assert fresh.inspect(RUN) == []


@pytest.mark.parametrize("marked", [True, False])
def test_a_line_that_was_cut_at_any_byte_is_cut_off(torn, directory, marked) -> None:
    (*before, last), mark, _ = torn
    whole = b"".join(before)
    for length in range(0, len(last), 1 if marked else 7):
        check_torn(directory, whole + last[:length], mark if marked else None, whole, 3)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 9000, b"\0\n", b'{"sum":"' + b"\0" * 5000 + b"}\n"])
def test_a_tail_of_zeros_is_cut_off(torn, directory, garbage, marked) -> None:
    (*before, last), mark, _ = torn
    whole = b"".join(before)
    for begin in (b"", last[:100]):
        check_torn(directory, whole + begin + garbage, mark if marked else None, whole, 3)


async def test_a_whole_line_behind_the_mark_is_kept(torn, others, directory) -> None:
    """Its writer died between the sync and the mark, or before the sync: whoever comes next makes it durable."""
    content, mark, _ = torn
    put(directory, b"".join(content), mark)
    before = others.fsyncs
    assert await others.head(RUN) == head(RUN, 4)
    assert others.fsyncs - before == 2
    assert lock_path(directory).read_bytes() > mark
    assert await seqs(others) == [1, 2, 3, 4]


def test_the_first_line_of_a_run_that_was_cut_leaves_no_run(files, directory, tmp_path) -> None:
    other = opened(directory)
    other.commit(step(RUN, 1))
    content = run_path(directory).read_bytes()
    for length in [*range(0, len(content), 11), len(content) - 1]:
        put(directory, content[:length], None)
        for reading in (True, False):
            again = opened(directory)
            if reading:
                assert again.run(RUN).head() is None
                assert again.inspect(None) == []
        again.commit(step(RUN, 1))
        assert again.run(RUN).head() == opened(directory).run(RUN).head() == head(RUN, 1)


def test_a_store_that_cuts_too_little_is_noticed(torn, directory, monkeypatch) -> None:
    (*before, last), mark, _ = torn
    whole = b"".join(before)
    monkeypatch.setattr(os, "ftruncate", lambda *_: None)
    with pytest.raises(AssertionError):
        check_torn(directory, whole + last[:50], mark, whole, 3)


def test_a_store_that_takes_a_torn_line_for_damage_is_noticed(torn, directory, monkeypatch) -> None:
    (*before, last), mark, _ = torn
    monkeypatch.setattr(LineFile, "_is_torn", lambda *_: False)
    with pytest.raises(CheckpointCorrupt):
        check_torn(directory, b"".join(before) + last[:50], mark, b"".join(before), 3)


# -- damage ----------------------------------------------------------------------------------------


def _flip(line: bytes, at: int) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


HARM: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda line: line[:-20],
    "empty": lambda line: b"",
    "zeros": lambda line: b"\0" * len(line),
    "a bit at its begin": lambda line: _flip(line, 3),
    "a bit in its sum": lambda line: _flip(line, 12),
    "a bit in its head": lambda line: _flip(line, line.index(b'"run_id"') + 12),
    "a bit in its body": lambda line: _flip(line, line.index(b'"body"') + 10),
    "a bit at its end": lambda line: _flip(line, len(line) - 1),
    "another file": lambda line: line.replace(b"r1", b"r2"),
}
COMPLETE = [name for name in HARM if name not in ("cut", "empty", "zeros", "a bit at its end")]


async def check_last_line_damaged(store: FileStore, directory: Path) -> None:
    path = run_path(directory)
    asks = [
        lambda: store.head(RUN),
        lambda: store.commit(step(RUN, 4)),
        lambda: store.notes(RUN),
        lambda: store.inbox(RUN),
        lambda: store.leave(RUN, 0, letters("z")),
        lambda: store.tag(RUN, 1, ["silver"]),
        lambda: store.remove(all_but(of=3)),
        lambda: store.remove_run(RUN, all_but(of=3).expected),
    ]
    before = lines(path)
    for ask in asks:
        with pytest.raises(CheckpointCorrupt) as caught:
            await ask()
        assert str(caught.value).startswith(f"{path} is damaged: line ")
        assert "let 'await storage.repair()' save what is left" in str(caught.value)
    assert lines(path) == before
    assert [found.run_id for found in await store.runs(RunQuery())] == ["r2"]
    assert [found.run_id for found in await store.damaged()] == [RUN]
    assert [found.run_id for found in await store.inspect()] == [RUN]
    assert await store.head(OTHER) == head(OTHER, 1)
    assert await store.find(checkpoint_id(RUN, 2)) == (RUN, 2)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("harm", HARM)
async def test_a_damaged_last_line(files, others, directory, harm, marked) -> None:
    """Also after the lock file is lost, if the line is complete: then it was synced, as far as anyone can tell."""
    await fill(files)
    if not marked and harm not in COMPLETE:
        return
    path, mark = run_path(directory), lock_path(directory).read_bytes()
    *before, last = lines(path)
    put(directory, b"".join(before) + HARM[harm](last), mark if marked else None)
    if harm == "empty":  # a file that ends early with a whole line: what is there can be read
        assert await others.head(RUN) == head(RUN, 3)
        (found,) = await others.inspect()
        assert "its last lines are missing" in found.what
        return
    await check_last_line_damaged(others, directory)
    assert await seqs(others, RUN, 1, 2) == [1, 2]


@pytest.mark.parametrize("bug", ["every bad end is torn", "sums are not looked at"])
async def test_a_store_that_cuts_damage_off_is_noticed(files, others, directory, monkeypatch, bug) -> None:
    await fill(files)
    *before, last = lines(run_path(directory))
    put(directory, b"".join(before) + HARM["a bit in its body"](last), lock_path(directory).read_bytes())
    if bug == "every bad end is torn":
        monkeypatch.setattr(LineFile, "_is_torn", lambda *_: True)
    else:
        monkeypatch.setattr(modules.line, "_sum_of", lambda _, summed: last[8:24])
    with pytest.raises(pytest.fail.Exception):
        await check_last_line_damaged(others, directory)


@pytest.mark.parametrize("harm", [name for name in HARM if name not in ("empty", "cut", "another file")])
async def test_a_damaged_line_in_the_middle(files, others, directory, harm) -> None:
    """The run stands where it stood; whoever needs what the line held is told. (A cut moves all lines behind it.)"""
    await fill(files)
    await files.commit(step(RUN, 4))
    path, mark = run_path(directory), lock_path(directory).read_bytes()
    content = lines(path)
    content[2] = HARM[harm](content[2])
    put(directory, b"".join(content), mark)
    assert await others.head(RUN) == head(RUN, 4)
    assert await seqs(others, RUN, 4) == [4]
    assert await others.find(checkpoint_id(RUN, 4)) == (RUN, 4)
    (found,) = await others.inspect()
    assert (found.run_id, "line 3 is not what was written" in found.what) == (RUN, True)
    try:
        (second,) = await others.records(RUN, 2, 2, Depth.ALL)
        assert not second.sound
    except CheckpointCorrupt as error:
        assert str(path) in str(error)  # noqa: PT017 - either is right
    await others.commit(step(RUN, 5))
    assert await files.head(RUN) == head(RUN, 5)


@pytest.mark.parametrize(
    ("number", "ask"),
    [
        (3, lambda store: store.notes(RUN)),
        (5, lambda store: store.inbox(RUN)),
        (5, lambda store: store.commit(stay(RUN, 2))),
    ],
    ids=["notes", "inbox", "commit"],
)
async def test_notes_and_letters_that_are_lost_are_not_taken_for_none(
    files, others, directory, number, ask
) -> None:
    await write(files, RUN, 2)
    await files.commit(stay(RUN, 2, "a"))
    await files.tag(RUN, 1, ["gold"])
    await files.leave(RUN, 2, letters("x", "y"))
    await files.commit(stay(RUN, 2))
    content = lines(run_path(directory))
    content[number] = HARM["a bit in its sum"](content[number])
    put(directory, b"".join(content), lock_path(directory).read_bytes())
    assert await others.head(RUN) == head(RUN, 2)
    with pytest.raises(CheckpointCorrupt):
        await ask(others)


@pytest.mark.parametrize("tail", [b"", b'{"sum":"0'])
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("harm", ["zeros", "a bit at its begin"])
async def test_a_damaged_first_line_is_no_torn_file(files, others, directory, harm, marked, tail) -> None:
    """Nothing is cut off, though nobody can tell any more which file it is; also if its last line is torn."""
    await fill(files)
    first, *rest = lines(run_path(directory))
    content = HARM[harm](first) + b"".join(rest) + tail
    put(directory, content, lock_path(directory).read_bytes() if marked else None)
    with pytest.raises(CheckpointCorrupt):
        await others.head(RUN)
    with pytest.raises(CheckpointCorrupt):
        await others.commit(step(RUN, 4))
    assert run_path(directory).read_bytes() == content


async def test_a_damaged_line_before_a_torn_one_is_not_cut_off(files, others, directory) -> None:
    await fill(files)
    *before, last = lines(run_path(directory))
    put(directory, b"".join(before) + HARM["a bit in its body"](last) + last[:30], None)
    with pytest.raises(CheckpointCorrupt):
        await others.head(RUN)


async def test_a_body_that_is_damaged_after_it_was_looked_at(files, directory) -> None:
    await fill(files)
    assert await seqs(files) == [1, 2, 3]
    content = run_path(directory).read_bytes()
    run_path(directory).write_bytes(content.replace(b'"changes":{"a":1}', b'"changes":{"a":2}'))
    with pytest.raises(CheckpointCorrupt, match="its checksum is wrong"):
        await files.records(RUN, 1, 1, Depth.CHANGES)


async def test_lines_that_are_missing_at_the_end_are_told(files, others, directory) -> None:
    await fill(files)
    content = lines(run_path(directory))
    put(directory, b"".join(content[:3]), lock_path(directory).read_bytes())
    (found,) = await others.inspect()
    assert "its last lines are missing" in found.what
    assert await others.head(RUN) == head(RUN, 2)
    (mended,) = await others.mend(RUN)
    assert mended.run_id == RUN
    assert await others.inspect() == []
    await others.commit(step(RUN, 3))
    assert await files.head(RUN) == head(RUN, 3)


async def test_a_file_that_is_missing_is_told(files, others, directory) -> None:
    await fill(files)
    run_path(directory).unlink()
    for store in (files, others):
        assert await store.head(RUN) is None
        assert await seqs(store) == []
        assert await store.find(checkpoint_id(RUN, 1)) is None
        (found,) = await store.inspect()
        assert "was written and is missing" in found.what
    await write(others, RUN, 1)
    assert await seqs(files) == [1]
    assert await files.inspect() == []


async def test_a_copy_of_a_file_is_not_taken_for_another_run(files, others, directory) -> None:
    await fill(files)
    shutil.copy(run_path(directory), run_path(directory, "copy"))
    with pytest.raises(CheckpointCorrupt, match="lies under another name: move it to where it belongs"):
        await others.head(RunId("copy"))
    assert [found.run_id for found in await others.runs(RunQuery())] == [RUN, OTHER]
    assert await seqs(others) == [1, 2, 3]


async def test_what_lies_where_a_file_belongs(files, others, directory) -> None:
    await fill(files)
    run_path(directory).unlink()
    run_path(directory).mkdir()
    with pytest.raises(CheckpointCorrupt, match="it is no regular file"):
        await others.head(RUN)
    assert [found.run_id for found in await others.runs(RunQuery())] == ["r2"]


async def test_other_files_do_no_harm(files, others, directory) -> None:
    await fill(files)
    before = await everything(files)
    for name in ("runs/notes.txt", "runs/r1.jsonl~", "runs/.r1.jsonl.swp", "locks/README", "waking/README"):
        (directory / name).write_text("mine")
    (directory / "runs/empty").mkdir()
    (directory / "runs/void.jsonl").touch()
    assert [found.run_id for found in await others.runs(RunQuery())] == [RUN, OTHER]
    assert await everything(others) == before
    assert await others.find(checkpoint_id(RUN, 9)) is None
    assert await others.inspect() == []


# -- repair ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["cut", "zeros", "a bit in its body", "a bit at its begin"])
async def test_a_repair_keeps_what_can_be_read(files, others, directory, harm) -> None:
    """The head and what follows it are lost; keys that were used stay used, and the damaged file is put aside."""
    await fill(files)
    *before, last = lines(run_path(directory))
    put(directory, b"".join(before) + HARM[harm](last), lock_path(directory).read_bytes())
    (mended,) = await others.mend(None)
    assert mended.run_id == RUN
    assert await others.mend(None) == []
    assert await others.inspect() == []
    there = await files.head(RUN)
    assert there is None or there.token > 1
    assert len(os.listdir(directory / "damaged")) == 1


async def test_a_storage_that_lost_a_line_with_letters_is_repaired(directory) -> None:
    async with FileCheckpointStorage(directory) as storage:
        await counting(size=10).run(3, run_id="r1", storage=storage)
        there = await storage.store.head(RUN)
        assert there is not None
        await storage.store.leave(RUN, 0, letters("x", "y"))
        await storage.store.commit(Commit(there, Expected(there.checkpoint_id, there.token)))
    content = lines(run_path(directory))
    content[-2] = HARM["a bit in its sum"](content[-2])
    put(directory, b"".join(content), lock_path(directory).read_bytes())
    async with FileCheckpointStorage(directory) as storage:
        assert not (await storage.verify()).ok
        report = await storage.repair()
        assert report.ok
        assert (await storage.verify()).ok
        assert await storage.store.inbox(RUN) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
async def test_a_thing_in_place_of_a_file_keeps_no_other_run_from_being_repaired(
    files, directory, make: Callable[[Path], None]
) -> None:
    await fill(files)
    run_path(directory).unlink()
    make(run_path(directory))
    damage(directory, OTHER)
    async with FileCheckpointStorage(directory) as storage:
        told = [repair.what for repair in (await storage.repair()).repairs]
        assert f"{run_path(directory).name} is no regular file and was put aside" in told
        assert any("r2.jsonl" in what for what in told)
        assert await files.damaged() == []


def damage(directory: Path, run: RunId) -> None:
    """Change a byte in the last line of a run's file."""
    content = bytearray(run_path(directory, run).read_bytes())
    content[content.rindex(b'"status"') + 12] ^= 1
    run_path(directory, run).write_bytes(content)
