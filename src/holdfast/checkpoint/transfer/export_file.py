"""The file that a run is exported to: a mark, frames, and at the end their counts and a digest of everything.

``docs/reference/format.md`` specifies it. Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import SEEK_END, BytesIO
from typing import Any, BinaryIO, TypeVar

import ormsgpack
from blake3 import blake3

from holdfast.checkpoint.format.blob_stream import FileSlice, PlainStream
from holdfast.checkpoint.store import FEATURES, FORMAT_MAJOR, FORMAT_MINOR, Head, Letter, Note, Record
from holdfast.checkpoint.transfer.export_frames import (
    DIGEST,
    Counts,
    Kind,
    packed_head,
    packed_mail,
    packed_record,
    read_head,
    read_mail,
    read_record,
)
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import Digest

T = TypeVar("T")

MARK = b"holdfast export\n"
VERSION = 1

_NUMBER = 8
_FRAME = 1 + _NUMBER
_COUNTED = 4
_END = _FRAME + _COUNTED * _NUMBER + DIGEST
# So much is read before whoever waits for it hears of it.
_BATCH = 4 << 20


class ExportWriter:
    """Writes an export, frame by frame in the order of their kinds."""

    def __init__(self, file: BinaryIO, head: Head, features: Iterable[str] = FEATURES) -> None:
        self._file = file
        self._digest = blake3()
        self._counts = dict.fromkeys(Kind, 0)
        self._put(MARK)
        run = {
            "export": VERSION,
            "format": [FORMAT_MAJOR, FORMAT_MINOR],
            "features": sorted(features),
            "head": packed_head(head),
        }
        self._frame(Kind.RUN, ormsgpack.packb(run))

    def record(self, record: Record) -> None:
        """Add a record; they come in the order of their seqs."""
        self._frame(Kind.RECORD, ormsgpack.packb(packed_record(record)))

    def note(self, note: Note) -> None:
        """Add a note of the journal."""
        self._frame(Kind.NOTE, ormsgpack.packb(packed_mail(note)))

    def letter(self, letter: Letter) -> None:
        """Add a letter that waits."""
        self._frame(Kind.LETTER, ormsgpack.packb(packed_mail(letter)))

    def blob(self, digest: Digest, data: bytes) -> None:
        """Add a blob in its stored form."""
        self._frame(Kind.BLOB, digest, data)

    def end(self) -> None:
        """Add what makes the file complete."""
        counts = [self._counts[kind] for kind in (Kind.RECORD, Kind.NOTE, Kind.LETTER, Kind.BLOB)]
        self._put(bytes([Kind.END]) + _number(_END - _FRAME) + b"".join(map(_number, counts)))
        self._file.write(self._digest.digest())

    def _frame(self, kind: Kind, *parts: bytes) -> None:
        self._counts[kind] += 1
        self._put(bytes([kind]) + _number(sum(map(len, parts))))
        for part in parts:
            self._put(part)

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


class ExportReader:
    """Reads an export: ``read_some`` until there is no more to read, then all of it is what was written.

    The blobs stay in the file. Raises ``StorageError`` for what is no export that this version can read, and
    ``CheckpointCorrupt`` for one that is damaged; ``name`` and ``advice`` are what these say of the file.
    """

    def __init__(self, file: BinaryIO, name: str, advice: str) -> None:
        self.name = name
        self._advice = advice
        self.records: list[Record] = []
        self.notes: list[Note] = []
        self.letters: list[Letter] = []
        self._keys: set[tuple[Kind, str]] = set()
        self._blobs: dict[Digest, tuple[int, int]] = {}
        self._file = file
        self._digest = blake3()
        self._size = file.seek(0, SEEK_END)
        self._last = Kind.RUN
        self._guarded(self._begin)
        self.counts = self._guarded(self._read_counts)
        self.head = self._guarded(self._read_run)

    @property
    def digests(self) -> Iterable[Digest]:
        """The blobs that it holds."""
        return self._blobs.keys()

    @property
    def left(self) -> bool:
        """Whether there is more to read."""
        return self._place() < self._size

    def read_some(self) -> int:
        """Read on, until some of the file is read; returns how many checkpoints and blobs came."""
        before, until = self._arrived(), self._place() + _BATCH
        while self._place() < min(until, self._size - _END):
            self._guarded(self._read_frame)
        if self._place() == self._size - _END:
            self._guarded(self._read_end)
        return self._arrived() - before

    def plain(self, digest: Digest, size: int | None = None) -> bytes:
        """The content of a blob that was read before; ``size`` is what is said of it elsewhere."""
        return self._guarded(lambda: PlainStream(self._slice(digest)).read_all(size))

    def stored(self, digest: Digest) -> bytes:
        """A blob in its stored form, checked once more: time has passed since the file was read."""
        data = self._guarded(lambda: self._slice(digest).read())
        if self._guarded(lambda: PlainStream(FileSlice(BytesIO(data), len(data))).compute_digest()) != digest:
            raise self.damaged(f"blob {digest.hex()} was changed while it was imported")
        return data

    def _slice(self, digest: Digest) -> FileSlice:
        if digest not in self._blobs:
            raise self.damaged(f"blob {digest.hex()} is missing")
        place, size = self._blobs[digest]
        self._file.seek(place)
        return FileSlice(self._file, size)

    def damaged(self, what: str) -> CheckpointCorrupt:
        """The error for a file that is not what was written."""
        return CheckpointCorrupt(f"{self.name}: {what}; {self._advice}")

    # Reading.

    def _guarded(self, read: Callable[[], T]) -> T:
        """What ``read`` gives; whatever broken data raises becomes an error that names the file."""
        try:
            return read()
        except StorageError:
            raise
        except Exception as error:
            place = self._place()
            raise self.damaged(f"it cannot be read near byte {place}: {error}") from error

    def _place(self) -> int:
        return self._file.tell()

    def _arrived(self) -> int:
        return len(self.records) + len(self._blobs)

    def _begin(self) -> None:
        self._file.seek(0)
        mark = self._file.read(len(MARK))
        if mark != MARK and not (mark and MARK.startswith(mark)):
            raise StorageError(
                f"{self.name} is no exported run: it does not begin with {MARK.decode().strip()!r}; exports are made "
                f"by 'await storage.export_run(run_id, path)'"
            )
        if self._size < len(MARK) + _END:
            raise self.damaged(f"it has {self._size} bytes, no export is so short")
        self._digest.update(mark)

    def _read_counts(self) -> Counts:
        """What the end says; that it is there tells at once that nothing was cut off."""
        self._file.seek(self._size - _END)
        end = self._file.read(_END - DIGEST)
        self._file.seek(len(MARK))
        if end[:_FRAME] != bytes([Kind.END]) + _number(_END - _FRAME):
            raise self.damaged("its end is missing")
        numbers = [end[place : place + _NUMBER] for place in range(_FRAME, len(end), _NUMBER)]
        return Counts(*(int.from_bytes(number, "little") for number in numbers))

    def _taken(self, size: int) -> bytes:
        return FileSlice(self._file, size, self._digest.update).read()

    def _read_kind(self) -> tuple[int, int]:
        frame = self._taken(_FRAME)
        size = int.from_bytes(frame[1:], "little")
        if size > self._size - _END - self._place():
            raise ValueError(f"a part claims {size} bytes, which are not there")
        return frame[0], size

    def _read_run(self) -> Head:
        kind, size = self._read_kind()
        if kind != Kind.RUN:
            raise ValueError(f"it begins with a part of kind {kind}")
        run = ormsgpack.unpackb(self._taken(size))
        version, (major, minor), features = run["export"], run["format"], run["features"]
        if (version, major) != (VERSION, FORMAT_MAJOR):
            raise StorageError(
                f"{self.name} is an export of version {version} with format {major}.{minor}, but this version of "
                f"Holdfast reads version {VERSION} with format {FORMAT_MAJOR}; import it with the version of Holdfast "
                f"that made it, or a newer one"
            )
        if unknown := set(features) - FEATURES:
            raise StorageError(
                f"{self.name} needs what this version of Holdfast does not know: {', '.join(sorted(unknown))}; import "
                f"it with a newer version of Holdfast"
            )
        return read_head(run["head"])

    def _read_frame(self) -> None:
        number, size = self._read_kind()
        kind = Kind(number)
        if kind < max(self._last, Kind.RECORD):
            raise ValueError(f"a part of kind {kind} stands behind one of kind {self._last}")
        self._last = kind
        if kind is Kind.BLOB:
            self._read_blob(size)
            return
        fields = ormsgpack.unpackb(self._taken(size))
        if kind is Kind.RECORD:
            before = self.records[-1].seq if self.records else 0
            self.records.append(read_record(fields, self.head, before))
        elif kind is Kind.NOTE:
            self.notes.append(Note(*self._read_mail(kind, fields)))
        else:
            self.letters.append(Letter(*self._read_mail(kind, fields)))

    def _read_mail(self, kind: Kind, fields: Any) -> tuple[str, bytes]:
        key, data = read_mail(fields)
        if (kind, key) in self._keys:
            raise ValueError(f"the key {key!r} is there twice")
        self._keys.add((kind, key))
        return key, data

    def _read_blob(self, size: int) -> None:
        digest = Digest(self._taken(DIGEST))
        place, stored = self._place(), size - DIGEST
        if digest in self._blobs:
            raise ValueError(f"blob {digest.hex()} is there twice")
        if PlainStream(FileSlice(self._file, stored, self._digest.update)).compute_digest() != digest:
            raise ValueError(f"blob {digest.hex()} has other content than its name says")
        self._blobs[digest] = place, stored

    def _read_end(self) -> None:
        self._taken(_END - DIGEST)
        if self._file.read(DIGEST) != self._digest.digest():
            raise self.damaged("its content is not what was written")
        there = Counts(len(self.records), len(self.notes), len(self.letters), len(self._blobs))
        if there != self.counts:
            raise self.damaged(f"it says that it has {self.counts}, but it has {there}")
        last = self.records[-1] if self.records else None
        if last is None or (last.checkpoint_id, last.seq) != (self.head.checkpoint_id, self.head.seq):
            raise self.damaged("its run stands on another checkpoint than its last")


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER, "little")
