"""The file of an exported run: how it is created, written and read. Everything here blocks."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterable
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import ormsgpack
from blake3 import blake3

from holdfast.checkpoint.derived_starts import carrier_of
from holdfast.checkpoint.format.blob_stream import FileSlice, PlainStream
from holdfast.checkpoint.store import (
    FEATURES,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    EventRow,
    Head,
    Letter,
    Note,
    Record,
)
from holdfast.checkpoint.transfer.export_frames import (
    DIGEST,
    FrameCounts,
    FrameKind,
    pack_event_row,
    pack_head,
    pack_mail,
    pack_record,
    read_event_row,
    read_head,
    read_mail,
    read_record,
)
from holdfast.errors import CheckpointCorrupt, CheckpointUntrusted, StorageError
from holdfast.ids import Digest

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.keyring import Keyring
    from holdfast.checkpoint.keys.sealed_file import SealedFile

T = TypeVar("T")

_MODE = 0o600


class NewExportFile:
    """A file that has a temporary name until it is complete and durable."""

    def __init__(self, path: str | os.PathLike[str], keys: Keyring | None = None) -> None:
        self._keys = keys
        self._sealed: SealedFile | None = None
        # Absolute: the process may change its directory before the file is complete.
        self._place = Path(os.path.abspath(path))
        self._temp = self._place.with_name(f".{secrets.token_hex(8)}.tmp")
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The open file, to which plain bytes are written."""
        assert self._file is not None
        return self._file if self._sealed is None else cast(BinaryIO, self._sealed)

    def open(self) -> None:
        """Make the file; raise ``StorageError`` if that fails, or if something has its name already."""
        if os.path.lexists(self._place):
            raise self._taken()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = self.attempt(lambda: os.open(self._temp, flags, _MODE))
        self._file = os.fdopen(handle, "w+b")
        if self._keys is not None:
            from holdfast.checkpoint.keys.sealed_file import SealedFile

            self._sealed = SealedFile.create(self._file, repr(str(self._place)), self._keys, SEALED_MARK)

    def finish(self) -> None:
        """Write what was not written yet; from now on the file is read."""
        if self._sealed is not None:
            self._sealed.finish()
        assert self._file is not None
        self._file.flush()

    def attempt(self, work: Callable[[], T]) -> T:
        """Call a function that writes to the file; raise ``StorageError`` if the system refuses it."""
        try:
            return work()
        except OSError as error:
            raise StorageError(
                f"cannot write {str(self._place)!r}: {error.strerror or error}; nothing was exported: see that its "
                f"folder is there, that this user may write to it, and that there is room on its disk"
            ) from error

    def publish(self) -> None:
        """Make the file durable, and give it its name."""
        self.attempt(self._publish)

    def _publish(self) -> None:
        assert self._file is not None
        self._file.flush()
        _sync(self._file.fileno())
        try:
            os.link(self._temp, self._place)
        except FileExistsError:
            raise self._taken() from None
        except (
            OSError
        ):  # no hard links here: a file that someone makes with that name right now is overwritten
            if os.path.lexists(self._place):
                raise self._taken() from None
            self._file.close()
            os.rename(self._temp, self._place)
        if sys.platform != "win32":
            folder = os.open(self._place.parent, os.O_RDONLY)
            try:
                _sync(folder)
            except OSError:
                os.unlink(self._place)  # so that the caller can try again
                raise
            finally:
                os.close(folder)

    def discard(self) -> None:
        """Close the file; remove it unless it was published."""
        if self._file is None:
            return
        try:
            self._file.close()
        except OSError:  # the content is not wanted any more
            pass
        try:
            os.unlink(self._temp)
        except OSError:
            pass

    def _taken(self) -> StorageError:
        return StorageError(
            f"there is something at {str(self._place)!r} already, which is not written over; remove it, or choose "
            f"another path"
        )


class ImportFile:
    """A file to import a run from; ``keys`` open one that is encrypted."""

    def __init__(self, path: str, keys: Keyring | None = None, plain: bool = True) -> None:
        self._path = path
        self._keys = keys
        self._is_plain_taken = plain
        self._sealed: SealedFile | None = None
        self._file: BinaryIO | None = None

    @property
    def file(self) -> BinaryIO:
        """The open file, which gives plain bytes."""
        assert self._file is not None
        return self._file if self._sealed is None else cast(BinaryIO, self._sealed)

    def open(self) -> None:
        """Open the file; raise ``StorageError`` if that fails, or if it is not what the keys ask for."""
        try:
            if not stat.S_ISREG(os.stat(self._path).st_mode):
                raise StorageError(f"{self._path!r} is not a file, and an exported run is one")
            self._file = open(self._path, "rb")  # noqa: SIM115 - the caller closes it
        except OSError as error:
            raise StorageError(
                f"cannot read {self._path!r}: {error.strerror or error}; nothing was imported: give the path of a file "
                f"that 'storage.export_run' made"
            ) from error
        self._unseal(self._file)

    def _unseal(self, file: BinaryIO) -> None:
        is_sealed = file.read(len(SEALED_MARK)) == SEALED_MARK
        file.seek(0)
        if is_sealed and self._keys is None:
            raise CheckpointUntrusted(
                f"{self._path!r} is encrypted, and this storage has no keys; import it into a storage with the keys "
                f"of the one that it comes from"
            )
        if is_sealed and self._keys is not None:
            from holdfast.checkpoint.keys.sealed_file import SealedFile

            self._sealed = SealedFile.open(file, repr(self._path), self._keys, SEALED_MARK)
        elif not self._is_plain_taken:
            raise CheckpointUntrusted(
                f"{self._path!r} is neither encrypted nor signed, and this storage is under keys; nothing was "
                f"imported: pass plain=True if you trust whoever wrote it"
            )

    def close(self) -> None:
        """Close the file if it is open."""
        if self._file is not None:
            self._file.close()


def _sync(handle: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # there fsync leaves the data in the drive's cache
    else:
        os.fsync(handle)


MARK = b"holdfast export\n"
SEALED_MARK = b"holdfast sealed\n"
"""Begins an export that is encrypted; what is in it begins with ``MARK``."""
VERSION = 1

_NUMBER = 8
_FRAME = 1 + _NUMBER
_COUNTED = 5
_END = _FRAME + _COUNTED * _NUMBER + DIGEST
# So much is read before whoever waits for it hears of it.
_BATCH = 4 << 20


class ExportWriter:
    """Writes an export, frame by frame in the order of their kinds."""

    def __init__(self, file: BinaryIO, head: Head, features: Iterable[str] = FEATURES) -> None:
        self._file = file
        self._digest = blake3()
        self._counts = dict.fromkeys(FrameKind, 0)
        self._put(MARK)
        run = {
            "export": VERSION,
            "format": [FORMAT_MAJOR, FORMAT_MINOR],
            "features": sorted(features),
            "head": pack_head(head),
        }
        self._frame(FrameKind.RUN, ormsgpack.packb(run))

    def record(self, record: Record) -> None:
        """Add a record; records come in the order of their seqs."""
        self._frame(FrameKind.RECORD, ormsgpack.packb(pack_record(record)))

    def note(self, note: Note) -> None:
        """Add a note of the journal."""
        self._frame(FrameKind.NOTE, ormsgpack.packb(pack_mail(note)))

    def letter(self, letter: Letter) -> None:
        """Add a letter of the inbox."""
        self._frame(FrameKind.LETTER, ormsgpack.packb(pack_mail(letter)))

    def event_row(self, row: EventRow) -> None:
        """Add a row of events; rows come in the order of their seqs."""
        self._frame(FrameKind.EVENTS, ormsgpack.packb(pack_event_row(row)))

    def blob(self, digest: Digest, data: bytes) -> None:
        """Add a blob in its stored form."""
        self._frame(FrameKind.BLOB, digest, data)

    def end(self) -> None:
        """Add the counts and the digest with which a complete file ends."""
        counts = [
            self._counts[kind]
            for kind in (
                FrameKind.RECORD,
                FrameKind.NOTE,
                FrameKind.LETTER,
                FrameKind.EVENTS,
                FrameKind.BLOB,
            )
        ]
        self._put(bytes([FrameKind.END]) + _number(_END - _FRAME) + b"".join(map(_number, counts)))
        self._file.write(self._digest.digest())

    def _frame(self, kind: FrameKind, *parts: bytes) -> None:
        self._counts[kind] += 1
        self._put(bytes([kind]) + _number(sum(map(len, parts))))
        for part in parts:
            self._put(part)

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


class ExportReader:
    """Reads an export: call ``read_some`` until nothing is left; then the whole file was checked.

    The blobs stay in the file. Raises ``StorageError`` for what is no export that this version can read, and
    ``CheckpointCorrupt`` for one that is damaged; ``name`` and ``advice`` are what these say of the file.
    """

    def __init__(self, file: BinaryIO, name: str, advice: str) -> None:
        self.name = name
        self._advice = advice
        self.records: list[Record] = []
        self.notes: list[Note] = []
        self.letters: list[Letter] = []
        self.events: list[EventRow] = []
        self._keys: set[tuple[FrameKind, str]] = set()
        self._blobs: dict[Digest, tuple[int, int]] = {}
        self._file = file
        self._digest = blake3()
        self._size = file.seek(0, SEEK_END)
        self._last = FrameKind.RUN
        self._guarded(self._begin)
        self.counts = self._guarded(self._read_counts)
        self.head = self._guarded(self._read_run)

    @property
    def digests(self) -> Iterable[Digest]:
        """The digests of the blobs in the file."""
        return self._blobs.keys()

    @property
    def left(self) -> bool:
        """True if there is more to read."""
        return self._place() < self._size

    def read_some(self) -> int:
        """Read the next part of the file; return the number of checkpoints and blobs in it."""
        before, until = self._arrived(), self._place() + _BATCH
        while self._place() < min(until, self._size - _END):
            self._guarded(self._read_frame)
        if self._place() == self._size - _END:
            self._guarded(self._read_end)
        return self._arrived() - before

    def plain(self, digest: Digest, size: int | None = None) -> bytes:
        """Return the plain content of a blob; raise if it has another size than ``size``."""
        return self._guarded(lambda: PlainStream(self._slice(digest)).read_all(size))

    def stored(self, digest: Digest) -> bytes:
        """Return a blob in its stored form; checks it again, because the file may have changed since it was read."""
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
        """Make the error for a damaged file."""
        return CheckpointCorrupt(f"{self.name}: {what}; {self._advice}")

    # Reading.

    def _guarded(self, read: Callable[[], T]) -> T:
        """Return the result of ``read``; turn whatever broken data raises into an error that names the file."""
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

    def _read_counts(self) -> FrameCounts:
        """Return the counts at the end of the file; raise if the end is missing, which means that the file was cut."""
        self._file.seek(self._size - _END)
        end = self._file.read(_END - DIGEST)
        self._file.seek(len(MARK))
        if end[:_FRAME] != bytes([FrameKind.END]) + _number(_END - _FRAME):
            raise self.damaged("its end is missing")
        numbers = [end[place : place + _NUMBER] for place in range(_FRAME, len(end), _NUMBER)]
        return FrameCounts(*(int.from_bytes(number, "little") for number in numbers))

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
        if kind != FrameKind.RUN:
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
        kind = FrameKind(number)
        if kind < max(self._last, FrameKind.RECORD):
            raise ValueError(f"a part of kind {kind} stands behind one of kind {self._last}")
        self._last = kind
        if kind is FrameKind.BLOB:
            self._read_blob(size)
            return
        fields = ormsgpack.unpackb(self._taken(size))
        if kind is FrameKind.RECORD:
            before = self.records[-1].seq if self.records else 0
            self.records.append(read_record(fields, self.head, before))
        elif kind is FrameKind.NOTE:
            self.notes.append(Note(*self._read_mail(kind, fields)))
        elif kind is FrameKind.LETTER:
            self.letters.append(Letter(*self._read_mail(kind, fields)))
        else:
            before = self.events[-1].seq if self.events else 0
            self.events.append(read_event_row(fields, self.head, before))

    def _read_mail(self, kind: FrameKind, fields: Any) -> tuple[str, bytes]:
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
        mail = len(self.notes), len(self.letters)
        there = FrameCounts(len(self.records), *mail, len(self.events), len(self._blobs))
        if there != self.counts:
            raise self.damaged(f"it says that it has {self.counts}, but it has {there}")
        last = (self.records[-1].checkpoint_id, self.records[-1].seq) if self.records else None
        if last != carrier_of(self.head.checkpoint_id, self.head.seq):
            raise self.damaged("its run stands on another checkpoint than its last")


def _number(number: int) -> bytes:
    return number.to_bytes(_NUMBER, "little")
