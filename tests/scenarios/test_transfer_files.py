"""Files of exported runs: which are refused, where they are written, and that nothing changes where they are wrong."""

import os
import stat
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
import pytest_asyncio
from blake3 import blake3

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunNotFound,
    StorageError,
)
from tests.support.parts import (
    MARK,
    ExportReader,
    ExportWriter,
    FrameKind,
    Letter,
    MemoryStore,
    Note,
    RunId,
    cancel_letter,
    digest_of,
)
from tests.support.runs import soon
from tests.support.transfer import make_completed, make_failed, make_waiting


def is_untouched(storage: CheckpointStorage) -> bool:
    store = storage.store
    assert isinstance(store, MemoryStore)
    return not (store._heads or store._records or store._blobs or store._notes or store._letters)


def read(content: bytes) -> ExportReader:
    reader = ExportReader(BytesIO(content), "the file", "what now")
    while reader.left:
        reader.read_some()
    return reader


# ---------------------------------------------------------------- damaged files


@pytest_asyncio.fixture
async def small(tmp_path: Path) -> bytes:
    """An export that is short but has frames of every kind."""
    storage = InMemoryCheckpointStorage()
    await make_failed(storage, good=b"x" * 6000)
    await storage.store.leave(RunId("r"), 3, [cancel_letter(b"salt")])
    await storage.export_run("r", tmp_path / "small")
    content = (tmp_path / "small").read_bytes()
    for name in ("_notes", "_letters", "_blobs"):
        assert getattr(storage.store, name)
    return content


async def refused(content: bytes, path: Path, storage: CheckpointStorage) -> str:
    path.write_bytes(content)  # noqa: ASYNC240
    with pytest.raises(StorageError) as caught:
        await storage.import_run(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_every_flipped_byte_is_noticed(small: bytes, tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    for place in range(len(small)):
        changed = bytearray(small)
        changed[place] ^= 1 << place % 8
        with pytest.raises(StorageError):
            read(bytes(changed))
        if place % 16 == 0:
            await refused(bytes(changed), tmp_path / "changed", storage)
    assert is_untouched(storage)
    await storage.import_run(tmp_path / "small")


async def test_a_file_that_is_cut_short_or_too_long_is_refused(small: bytes, tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    for size in range(len(small)):
        with pytest.raises(StorageError):
            read(small[:size])
        if size % 50 == 0:
            await refused(small[:size], tmp_path / "cut", storage)
    for more in (b"\0", small, b"\n"):
        await refused(small + more, tmp_path / "long", storage)
    assert is_untouched(storage)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"SQLite format 3\0" + bytes(4096), b"PK\3\4" * 50, b"holdfast"]
)
async def test_files_of_others_are_refused(content: bytes, tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    told = await refused(content, tmp_path / "foreign", storage)
    assert "export" in told
    assert is_untouched(storage)


async def test_a_file_is_a_file(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    os.mkfifo(tmp_path / "pipe")
    for path, what in {
        tmp_path: "is not a file",
        tmp_path / "pipe": "is not a file",
        tmp_path / "none": "No such",
    }.items():
        with pytest.raises(StorageError, match=what):
            await soon(storage.import_run(path))


# ---------------------------------------------------------------- files that somebody made on purpose


class Frames:
    """An export in pieces, to be put together otherwise: complete, with the right digest."""

    def __init__(self, content: bytes) -> None:
        self.frames: list[tuple[int, bytes]] = []
        place = len(MARK)
        while place < len(content):
            size = int.from_bytes(content[place + 1 : place + 9], "little")
            self.frames.append((content[place], content[place + 9 : place + 9 + size]))
            place += 9 + size
        assert self.frames.pop()[0] == FrameKind.END

    def of(self, kind: FrameKind) -> list[int]:
        """Where those of a kind are."""
        return [index for index, frame in enumerate(self.frames) if frame[0] == kind]

    def change(self, index: int, change: Callable[[Any], object]) -> None:
        """Change the content of a frame in place."""
        kind, payload = self.frames[index]
        fields = ormsgpack.unpackb(payload)
        change(fields)
        self.frames[index] = kind, ormsgpack.packb(fields)

    def head(self, **fields: Any) -> None:
        self.change(0, lambda run: run["head"].update(fields))

    def written(self) -> bytes:
        content = MARK
        for kind, payload in self.frames:
            content += bytes([kind]) + len(payload).to_bytes(8, "little") + payload
        counts = [
            len(self.of(kind))
            for kind in (
                FrameKind.RECORD,
                FrameKind.NOTE,
                FrameKind.LETTER,
                FrameKind.EVENTS,
                FrameKind.BLOB,
            )
        ]
        content += b"\0" + (72).to_bytes(8, "little") + b"".join(n.to_bytes(8, "little") for n in counts)
        return content + blake3(content).digest()


def blob_frame(data: bytes) -> tuple[int, bytes]:
    return FrameKind.BLOB, digest_of(data) + b"\0" + data


def without(kind: FrameKind, which: int = 0) -> Callable[[Frames], object]:
    return lambda frames: frames.frames.pop(frames.of(kind)[which])


def twice(kind: FrameKind) -> Callable[[Frames], object]:
    return lambda frames: frames.frames.insert(frames.of(kind)[0], frames.frames[frames.of(kind)[0]])


def of_record(which: int, field: int, value: Any) -> Callable[[Frames], object]:
    def change(frames: Frames) -> None:
        frames.change(frames.of(FrameKind.RECORD)[which], lambda fields: fields.__setitem__(field, value))

    return change


def of_run(**fields: Any) -> Callable[[Frames], object]:
    return lambda frames: frames.change(0, lambda run: run.update(fields))


def of_head(**fields: Any) -> Callable[[Frames], object]:
    return lambda frames: frames.head(**fields)


HOSTILE: dict[str, tuple[Callable[[Frames], object], str]] = {
    "a newer export": (of_run(export=2), "is an export of version 2 with format 1"),
    "a newer format": (of_run(format=[2, 7]), "with format 2.7, but this version of Holdfast reads"),
    "an unknown feature": (of_run(features=["hologram"]), "does not know: hologram"),
    "no head": (of_run(head=None), "cannot be read"),
    "a path as run": (of_head(run="../../etc/passwd"), "contains '/'"),
    "another run": (of_head(run="other"), "header says run r"),
    "a path as family": (of_head(family="a/../b"), "contains '/'"),
    "no family": (of_head(family=7), "is a int, not a str"),
    "another workflow": (of_head(workflow="Other"), "one of workflow 'Splitting'"),
    "a workflow of bytes": (of_head(workflow=b"x"), "its workflow is"),
    "too many checkpoints": (of_head(seq=2**62), "claims 4611686018427387904 checkpoints"),
    "a greater seq": (of_head(seq=9), "stands on another checkpoint"),
    "a number that is none": (of_head(token=True), "where a number is to be there is True"),
    "a negative number": (of_head(token=-1), "where a number is to be there is -1"),
    "a number that no store holds": (of_head(updated=2**63), "where a number is to be"),
    "a time far away": (of_head(updated=2**62), "times of its head are far"),
    "an unknown status": (of_head(status="dancing"), "'dancing' is not a valid RunStatus"),
    "another checkpoint": (of_head(checkpoint=bytes(32)), "stands on another checkpoint"),
    "half a checkpoint": (of_head(checkpoint=b"half"), "where bytes are to be"),
    "no first record": (without(FrameKind.RECORD), "its parent .* is missing"),
    "no last record": (without(FrameKind.RECORD, -1), "stands on another checkpoint"),
    "a record twice": (twice(FrameKind.RECORD), "number 1 of a checkpoint stands behind 1"),
    "another id": (of_record(0, 0, bytes(32)), "its content is not what its id says"),
    "another seq": (of_record(0, 1, 2), "number 2 of a checkpoint stands behind 2"),
    "a seq of zero": (of_record(0, 1, 0), "number 0 of a checkpoint"),
    "other changes": (of_record(1, 4, b"\0\x80"), "its content is not what its id says"),
    "changes that are elsewhere": (of_record(1, 4, b"\2" + bytes(32)), "blob 0{64} is missing"),
    "no header": (of_record(1, 3, b""), "its header cannot be read"),
    "a keyframe of something else": (
        of_record(1, 6, [False, b"\0\x93\xc4\0\xc4\0\xc4\0", b""]),
        "content is not what",
    ),
    "a keyframe of two": (of_record(1, 6, [1, b""]), "cannot be read"),
    "sizes that are none": (of_record(1, 2, "big"), "where a number is to be"),
    "no blob": (without(FrameKind.BLOB), "1 blobs are missing"),
    "a blob twice": (twice(FrameKind.BLOB), "is there twice"),
    "a blob too many": (
        lambda frames: frames.frames.append(blob_frame(b"virus")),
        "1 blobs belong to nothing",
    ),
    "a blob of other content": (
        lambda frames: frames.frames.append((FrameKind.BLOB, bytes(32) + b"\0virus")),
        "has other content than its name says",
    ),
    "a blob of no form": (
        lambda frames: frames.frames.append((FrameKind.BLOB, bytes(32) + b"\7")),
        "no form",
    ),
    "a blob that claims to be huge": (
        lambda frames: frames.frames.append(
            (FrameKind.BLOB, bytes(32) + b"\1\x28\xb5\x2f\xfd\xe0" + b"\xff" * 9)
        ),
        "claims|broken",
    ),
    "a blob without a name": (
        lambda frames: frames.frames.append((FrameKind.BLOB, b"short")),
        "cannot be read",
    ),
    "events of no checkpoint": (
        lambda frames: frames.change(frames.of(FrameKind.EVENTS)[-1], lambda row: row.__setitem__(0, 99)),
        "events of checkpoint 99 stand behind",
    ),
    "events in another order": (
        lambda frames: frames.frames.append(frames.frames.pop(frames.of(FrameKind.EVENTS)[0])),
        "stand|stands behind",
    ),
    "events that are none": (
        lambda frames: frames.change(frames.of(FrameKind.EVENTS)[0], lambda row: row.__setitem__(1, None)),
        "where bytes are to be",
    ),
    "a note twice": (twice(FrameKind.NOTE), "is there twice"),
    "a letter twice": (twice(FrameKind.LETTER), "is there twice"),
    "a note that says nothing": (
        lambda frames: frames.frames.insert(
            frames.of(FrameKind.NOTE)[0], (FrameKind.NOTE, ormsgpack.packb([b"key", b"\0\x80"]))
        ),
        "the note key .* cannot be read",
    ),
    "frames in another order": (lambda frames: frames.frames.reverse(), "it begins with a part of kind 6"),
    "records behind blobs": (
        lambda frames: frames.frames.append(frames.frames.pop(1)),
        "a part of kind 2 stands behind one of kind 6",
    ),
    "a frame of no kind": (lambda frames: frames.frames.append((77, b"")), "77 is not a valid FrameKind"),
    "two runs": (lambda frames: frames.frames.insert(1, frames.frames[0]), "a part of kind 1 stands behind"),
    "nested without end": (
        lambda frames: frames.frames.insert(1, (FrameKind.RECORD, b"\x91" * 5000)),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("change", HOSTILE)
async def test_a_file_that_somebody_made_changes_nothing(change: str, small: bytes, tmp_path: Path) -> None:
    frames = Frames(small)
    assert frames.written() == small
    make, told = HOSTILE[change]
    make(frames)
    path, storage = tmp_path / "made", InMemoryCheckpointStorage()
    path.write_bytes(frames.written())
    with pytest.raises(StorageError, match=told):
        await storage.import_run(path)
    assert is_untouched(storage)


async def test_any_text_can_be_a_reason_or_a_key(small: bytes) -> None:
    texts = ["", "\udc80", "a\0b", "\ud83d\ude00", "x" * 1000]
    head = read(small).head._replace(reason="\udc80 failed", wake_at=5)
    file = BytesIO()
    writer = ExportWriter(file, head)
    whole = read(small)
    for record in whole.records:
        writer.record(record)
    notes, letters = [Note(text, b"note") for text in texts], [Letter(text, b"letter") for text in texts]
    for note in notes:
        writer.note(note)
    for letter in letters:
        writer.letter(letter)
    writer.end()
    back = read(file.getvalue())
    assert (back.head, back.records, back.notes, back.letters) == (head, whole.records, notes, letters)


# ---------------------------------------------------------------- paths


async def test_the_file_is_for_its_owner_only_and_nothing_is_written_over(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    await make_waiting(storage)
    await storage.export_run("r", tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o600
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("run", "precious", "dangling", "."):
        with pytest.raises(StorageError, match="already, which is not written over"):
            await storage.export_run("r", tmp_path / name)
    with pytest.raises(
        StorageError, match=r"cannot write .*: No such file or directory; nothing was exported"
    ):
        await storage.export_run("r", tmp_path / "missing" / "run")
    with pytest.raises(RunNotFound):
        await storage.export_run("nobody", tmp_path / "nobody")
    with pytest.raises(InvalidArgument):
        await storage.export_run("a/b", tmp_path / "ab")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "precious", "run"]
    assert (tmp_path / "precious").read_text() == "mine"


async def test_somebody_who_takes_the_name_meanwhile_keeps_it(tmp_path: Path) -> None:
    storage = InMemoryCheckpointStorage()
    await make_waiting(storage)
    with pytest.raises(StorageError, match="already"):
        await storage.export_run("r", tmp_path / "run", lambda *_: (tmp_path / "run").write_text("mine"))
    assert os.listdir(tmp_path) == ["run"]
    assert (tmp_path / "run").read_text() == "mine"


async def test_a_file_system_may_have_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = InMemoryCheckpointStorage()
    await make_waiting(storage)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    await storage.export_run("r", tmp_path / "run")
    with pytest.raises(StorageError, match="already"):
        await storage.export_run("r", tmp_path / "other", lambda *_: (tmp_path / "other").write_text("mine"))
    assert sorted(os.listdir(tmp_path)) == ["other", "run"]
    assert (await InMemoryCheckpointStorage().import_run(tmp_path / "run")).run_id == "r"


@pytest.mark.parametrize("of", ["the file", "its folder"])
async def test_a_full_disk_is_told(of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = InMemoryCheckpointStorage()
    await make_waiting(storage)

    def full(handle: int) -> None:
        if of == "the file" or stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device; nothing was exported"):
        await storage.export_run("r", tmp_path / "run")
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------- damage in the storage


async def test_a_damaged_run_is_not_exported(tmp_path: Path) -> None:
    async with FileCheckpointStorage(tmp_path / "store") as storage:
        await make_completed(storage)
        blobs = sorted((tmp_path / "store" / "blobs" / "r").iterdir(), key=lambda path: path.stat().st_size)
        content = blobs[-1].read_bytes()
        for damage in (content[:-1] + b"?", content[:-1], None):
            blobs[-1].unlink()
            if damage is not None:
                blobs[-1].write_bytes(damage)
            with pytest.raises(CheckpointCorrupt, match=r"storage\.verify\("):
                await storage.export_run("r", tmp_path / "run")
        assert os.listdir(tmp_path) == ["store"]
