"""The file of one run: lines are appended, synced and read; now and then the file is written anew."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.store import Head
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.common.disk import Disk, IrregularFile, open_regular
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.file.line import (
    Line,
    LineDraft,
    LinePlace,
    decode_body,
    decode_line,
    explain_problem,
    file_draft,
)
from holdfast.stores.file.open_files import OpenFile, may_stay_open
from holdfast.stores.file.run_lock import HeldLock, LockBusy, RunLock, SyncMark
from holdfast.stores.file.run_state import BadLine, RunState

SUFFIX = ".jsonl"
# The first line tells files apart, and its beginning is enough for that: it has the id of the file.
_BEGINNING = 96
# The last line is looked for in so many bytes first.
_TAIL = 16 * 1024
_LARGEST_READ = 1 << 30
# No memory holds much more, and no run has so much.
_LARGEST_FILE = 1 << 33


class RunGlance(NamedTuple):
    """The durable head of a run, for those who look at many runs."""

    head: Head | None
    letters: int
    """The number of letters that wait."""
    is_current: bool = True
    """False if somebody was writing: then this is what was durable before."""


class PendingLine:
    """A line that is written, and not durable before it is synced; the first of a file comes with its beginning."""

    def __init__(self, disk: Disk, handle: int, line: Line, head: Head | None) -> None:
        self._disk = disk
        self._handle = handle
        self.line = line
        self.head = head
        self.beginning: tuple[Line, bytes] | None = None
        """The line that says which file this is, and the first bytes of the file; None in a file that was there."""
        self.error: OSError | None = None

    def begin_sync(self) -> None:
        """Let the system begin to write the line, in any thread, and do not wait for it."""
        place = self.line.place
        self._disk.begin_sync(self._handle, place.offset, place.length)

    def sync(self) -> None:
        """Sync the line, in any thread; keeps the error for the one who holds the lock."""
        try:
            self._disk.sync_data(self._handle)
        except OSError as error:
            self.error = error


class LineFile:
    """The lines of one run. Not safe for several threads at a time; any number of processes may use the file."""

    def __init__(
        self, path: Path, lock: RunLock, disk: Disk, namespace: str, read_only: bool = False
    ) -> None:
        self.path = path
        # Each commit needs them, and a path makes them anew each time.
        self._name, self._place = path.name, str(path)
        self._read_only = read_only
        self._lock = lock
        self._disk = disk
        self._namespace = namespace
        self._file: OpenFile | None = None
        """The file, open while the lock is held, and often longer."""
        self._forget()

    @property
    def lock_path(self) -> Path:
        """The file of the run's lock."""
        return self._lock.path

    def _forget(self) -> None:
        self.state = RunState()
        self._beginning = b""
        self._tail: BadLine | None = None
        """The first of the bad lines at the end of the file, which were durable and are damaged."""

    # Reading.

    def look(self) -> RunState:
        """Return the durable state of the run; takes the lock only if somebody may be writing, or died over it."""
        mark = self._lock.read_mark()
        handle = self._open(os.O_RDONLY)
        if handle is None:
            self._forget()
            return self.state
        try:
            size = os.fstat(handle).st_size
            # What is not durable yet may be taken back, and another line come in its place: it is read under the lock.
            is_durable = mark.covers(self._file_id(handle), size)
            if self._read_only and not is_durable:
                self._take_complete_lines(handle, mark, size)
                return self.state
            if is_durable:
                self._catch_up(handle, mark, size)
        finally:
            os.close(handle)
        if not is_durable:
            with self.hold():
                pass
        return self.state

    def _take_complete_lines(self, handle: int, mark: SyncMark, size: int) -> None:
        """Take in all complete lines without the lock: nothing may be written to make them durable.

        Lines in doubt are not among them. A line that is written right now may be taken back, so all are read anew.
        """
        if mark.in_doubt and mark.file_id == self._file_id(handle):
            size = min(size, mark.offset)
        self._forget()
        self._catch_up(handle, mark, size)

    def check_readable(self) -> None:
        """Raise ``CheckpointCorrupt`` if the end of the file is damaged, or the file is that of another run."""
        if self._tail is not None:
            raise damaged(self.path, self._tail.number, self._tail.problem)
        self._check_name()

    def damage(self, bad: BadLine) -> CheckpointCorrupt:
        """Return the error for a bad line."""
        return damaged(self.path, bad.number, bad.problem)

    def missing(self) -> str:
        """Say what is missing of the file, by the mark; nothing if nothing is."""
        mark = self._lock.read_mark()
        if not mark.file_id or mark.in_doubt:
            return ""
        handle = self._open(os.O_RDONLY)
        if handle is None:
            is_removed = self._lock.read_mark() != mark
            return "" if is_removed else f"{self.path} was written and is missing"
        try:
            size = os.fstat(handle).st_size
            begins = mark.file_id.encode() in os.pread(handle, _BEGINNING, 0)
        finally:
            os.close(handle)
        if size < mark.offset and (begins or not size):
            return f"{self.path} had {mark.offset} bytes and has {size}: its last lines are missing"
        return ""

    def read_all(self) -> bool:
        """Take in also a damaged end of the file, as far as it can be read; return True if there are records.

        If the first line is damaged, the mark tells which file this is: by that the other lines are known to be sound.
        """
        handle = self._open(os.O_RDONLY)
        if handle is None:
            return False
        try:
            self.state = RunState()
            self.state.file_id = self._lock.read_mark().file_id
            if os.fstat(handle).st_size > _LARGEST_FILE:
                return False
            data = _read(handle, 0, os.fstat(handle).st_size)
        finally:
            os.close(handle)
        self.state.take_all(data, with_tail=True)
        self._beginning = data[:_BEGINNING]
        return bool(self.state.records)

    def _check_name(self) -> None:
        run_id = self.state.run_id
        if run_id is not None and (
            make_file_name(run_id) + SUFFIX != self._name or self.state.namespace != self._namespace
        ):
            raise CheckpointCorrupt(
                f"{self.path} holds run {run_id!r} and lies under another name: move it to where it belongs, or out of "
                f"the store if it is a copy"
            )

    def peek(self) -> RunGlance:
        """Return where the run stands, from the last line alone if that says so.

        Raises ``CheckpointCorrupt`` if the head cannot be read.
        """
        mark = self._lock.read_mark()
        handle = self._open(os.O_RDONLY)
        if handle is None:
            return RunGlance(None, 0)
        try:
            is_current, size = True, os.fstat(handle).st_size
            line = _last_line(handle, mark, size)
            if line is None and size > mark.offset and not self._read_only and not self._try_settle():
                is_current, line = False, _last_line(handle, mark, mark.offset)
        finally:
            os.close(handle)
        if line is not None:
            try:
                if make_file_name(line.meta["head"]["run_id"]) + SUFFIX == self.path.name:
                    head = None if line.meta["kind"] == "gone" else line.head
                    return RunGlance(head, int(line.meta.get("inbox", 0)), is_current)
            except Exception:  # a line that nobody of this library wrote; the rest says what is left
                pass
        self.look()
        self.check_readable()
        return RunGlance(self.state.head, len(self.state.letters))

    def _try_settle(self) -> bool:
        """Settle the file if nobody is writing; return False if somebody is."""
        try:
            with self.hold(is_patient=False):
                return True
        except LockBusy:
            return False

    def read_bodies(self, places: Sequence[LinePlace]) -> list[dict[str, Any]] | None:
        """Return the bodies of lines; None if another file took the place of this one meanwhile."""
        handle = self._open(os.O_RDONLY)
        if handle is None:
            return None
        try:
            if os.pread(handle, _BEGINNING, 0) != self._beginning:
                return None
            return [self._read_body(handle, place) for place in places]
        finally:
            os.close(handle)

    def _read_body(self, handle: int, place: LinePlace) -> dict[str, Any]:
        line = os.pread(handle, place.length - 1, place.offset)
        try:
            if place.is_sound and not decode_line(self.state.file_id, place.offset, line).place.is_sound:
                raise ValueError("its checksum is wrong")
            return decode_body(line)
        except MemoryError:
            raise
        except Exception as error:
            raise damaged(self.path, None, explain_problem(error), place.offset) from error

    # Writing.

    @contextmanager
    def hold(self, is_patient: bool = True) -> Iterator[HeldLock]:
        """Hold the lock, as ``acquire`` says."""
        held = self.acquire(is_patient)
        try:
            yield held
        except BaseException as error:
            self.release(held, error)
            raise
        self.release(held)

    def acquire(self, is_patient: bool = True) -> HeldLock:
        """Keep other writers out; the state is current and durable, and nobody died over the file."""
        held = self._lock.acquire(is_patient)
        try:
            self._settle(held)
        except BaseException as error:
            self.release(held, error)
            raise
        return held

    def release(self, held: HeldLock, error: BaseException | None = None) -> None:
        """Let other writers in; ``error`` is what the holder raised, after which the state may be wrong."""
        try:
            if isinstance(error, OSError):
                self._forget()
            if error is not None or not may_stay_open():
                self._close()
        finally:
            self._lock.release(held)

    def append(self, held: HeldLock, draft: LineDraft) -> None:
        """Append a line to a file that is readable, and sync it; one that cannot be synced is taken back."""
        pending = self.begin_append(held, draft)
        pending.sync()
        self.sync_name(pending)
        self.finish_append(held, pending)

    def begin_append(self, held: HeldLock, draft: LineDraft) -> PendingLine:
        """Write a line without syncing it, so that others can be synced at the same time."""
        if not self.state.end:
            return self._begin_file(held, draft)
        content, line = draft.encode(self.state.file_id, self.state.end)
        assert self._file is not None, "it is open while the lock is held"
        self._write(held, self._file.handle, content)
        return PendingLine(self._disk, self._file.handle, line, draft.head)

    def finish_append(self, held: HeldLock, pending: PendingLine) -> None:
        """Mark a line as durable, or take it back if it could not be synced, and raise."""
        assert self._file is not None
        if pending.error is not None:
            self._take_back(held, self._file.handle, self.state.end, pending.error)
            raise pending.error
        held.write_mark(self.state.file_id, pending.line.place.offset + pending.line.place.length)
        if pending.beginning is not None:
            naming, self._beginning = pending.beginning
            self.state.take(naming, None)
        self.state.take(pending.line, pending.head)

    def sync_name(self, pending: PendingLine) -> None:
        """Make the name of the file durable, if the line begins it; keeps the error as ``PendingLine.sync`` does."""
        if pending.beginning is not None and pending.error is None:
            try:
                self._disk.sync_folder(self.path.parent)
            except OSError as error:
                pending.error = error

    def _begin_file(self, held: HeldLock, draft: LineDraft) -> PendingLine:
        """Write the first two lines of a file: which file it is, and what happened."""
        assert draft.head is not None
        self._disk.make_folder(self.path.parent)
        file_id = secrets.token_hex(16)
        first, naming = file_draft(file_id, draft.head.run_id, self._namespace).encode("", 0)
        content, line = draft.encode(file_id, len(first))
        self._forget()
        self.state.file_id = file_id
        self._close()
        self._file = OpenFile(open_regular(self.path, os.O_RDWR | os.O_CREAT))
        handle = self._file.handle
        if os.fstat(handle).st_size:  # else the system would write it out at once when it is closed
            os.ftruncate(handle, 0)
        self._write(held, handle, first + content)
        pending = PendingLine(self._disk, handle, line, draft.head)
        pending.beginning = (naming, (first + content)[:_BEGINNING])
        return pending

    def _write(self, held: HeldLock, handle: int, lines: bytes) -> None:
        start = self.state.end
        try:
            written = os.pwrite(handle, lines, start)
            while written < len(lines):
                written += os.pwrite(handle, lines[written:], start + written)
        except OSError as error:
            self._take_back(held, handle, start, error)
            raise

    def _take_back(self, held: HeldLock, handle: int, start: int, error: OSError) -> None:
        """Cut off a line that may not be durable; if that fails, nobody may believe the file any more."""
        error.filename = error.filename or str(self.path)
        try:
            os.ftruncate(handle, start)
            self._disk.sync(handle)
            if not start:  # its name may not be durable: the next one makes it anew
                os.unlink(self.path)
        except OSError:
            held.write_doubt(self.state.file_id, start)
            error.add_note(
                "the line could not be taken back: the file is written anew before it is used again"
            )

    def rewrite(self, held: HeldLock, run_id: RunId, drafts: Iterable[LineDraft]) -> None:
        """Let a new file with these lines take the place of this one, all at once."""
        file_id = secrets.token_hex(16)
        content = [file_draft(file_id, run_id, self._namespace).encode("", 0)[0]]
        end = len(content[0])
        for draft in drafts:
            content.append(draft.encode(file_id, end)[0])
            end += len(content[-1])
        self._put_in_place(held, content, file_id, end)

    def _put_in_place(self, held: HeldLock, content: Iterable[bytes], file_id: str, end: int) -> None:
        self._disk.make_temp()
        self._disk.make_folder(self.path.parent)
        temp = self._disk.write_pieces(content)
        self._disk.replace(temp, self.path)
        try:
            self._disk.sync_folder(self.path.parent)
        except OSError:
            # After a power cut the old file may be here again: nothing may be appended to the new one before.
            held.write_doubt(file_id, end)
            raise
        held.write_mark(file_id, end)
        self._forget()
        self._settle(held)

    def remove(self, held: HeldLock) -> None:
        """Remove the file of a run that is gone; first the mark, durably, for a mark says that a file is missing."""
        held.clear_mark()
        held.sync_mark(self._disk)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        self._forget()

    def remove_lock(self) -> None:
        """Remove the file of the lock, which is held and of no use to its holder from now on."""
        self._lock.remove()

    # What both need.

    def _open(self, flags: int) -> int | None:
        try:
            return open_regular(self.path, flags)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except IrregularFile as error:
            raise damaged(self.path, None, str(error.strerror)) from error

    def _file_id(self, handle: int) -> str:
        """Return the id in the first line of a file, without checking it."""
        first = os.pread(handle, _BEGINNING, 0)
        if first == self._beginning:
            return self.state.file_id
        begin = first.find(b'"file":"') + 8
        return first[begin : begin + 32].decode("ascii", "replace")

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _settle(self, held: HeldLock) -> None:
        """Bring the state up to date, cut a torn line off, and make durable what a dead writer left."""
        mark = held.read_mark()
        if self._is_settled(mark):
            return
        self._close()
        handle = self._open(os.O_RDWR)
        if handle is None:
            self._forget()
            return
        self._file = OpenFile(handle)
        if mark.in_doubt:
            if mark.file_id.encode() in os.pread(handle, _BEGINNING, 0) or not os.fstat(handle).st_size:
                self._write_anew(held, handle, mark)
                return
            mark = SyncMark()  # it was another file, which a power cut took away
        size = os.fstat(handle).st_size
        self._catch_up(handle, mark, size)
        self._make_durable(held, handle, mark, size)
        if self.state.gone:  # its writer died before it could
            self.remove(held)

    def _is_settled(self, mark: SyncMark) -> bool:
        """Return True if nobody else wrote since, as far as the mark and the size of the file tell."""
        if self._file is None or self._tail is not None or self.state.gone:
            return False
        if mark.in_doubt or mark.file_id != self.state.file_id or mark.offset != self.state.end:
            return False
        status = self._file.status_at(self._place)
        return status is not None and status.st_size == self.state.end

    def _make_durable(self, held: HeldLock, handle: int, mark: SyncMark, size: int) -> None:
        """Cut a torn line off, and sync what its writer could not."""
        is_emptied = mark.offset > 0 and not size  # not by this store: the mark tells of that
        is_durable = mark.covers(self.state.file_id, self.state.end) and size == self.state.end
        if self._tail is not None or is_emptied or is_durable:
            return
        try:
            os.ftruncate(handle, self.state.end)
            self._disk.sync(handle)
            self._disk.sync_folder(self.path.parent)
        except OSError:  # a later sync that succeeds would prove nothing
            held.write_doubt(self.state.file_id, self.state.end)
            raise
        held.write_mark(self.state.file_id, self.state.end)

    def _write_anew(self, held: HeldLock, handle: int, mark: SyncMark) -> None:
        """Copy what was durable before a sync failed to a new file, which takes the place of the old one.

        The mark is made durable: else the doubt could come back after a power cut, and cut off what was written since.
        """
        self._forget()
        content = _read(handle, 0, mark.offset)
        self._tail = self.state.take_all(content)
        if self._tail is not None:
            return
        if not content:
            os.ftruncate(handle, 0)
            self._disk.sync(handle)
            os.unlink(self.path)  # its name may not be durable, either: the next one makes it anew
            held.clear_mark()
        else:
            self._put_in_place(held, [content], mark.file_id, len(content))
        try:
            held.sync_mark(self._disk)
        except OSError:
            held.write_doubt(mark.file_id, len(content))
            raise

    def _catch_up(self, handle: int, mark: SyncMark, size: int) -> None:
        """Take in what was appended since, up to ``size``; all, if this is another file than before."""
        beginning = os.pread(handle, _BEGINNING, 0)
        if beginning != self._beginning or size < self.state.end or self._tail is not None:
            self._forget()
            self._beginning = beginning
        if size == self.state.end:
            return
        if size > _LARGEST_FILE:
            problem = f"the file has {size} bytes, and none has more than {_LARGEST_FILE}"
            self._tail = BadLine(0, 1, problem, 0)
            return
        data = _read(handle, self.state.end, size)
        bad = self.state.take_all(data)
        if not self.state.end:
            self._beginning = b""
        if bad is not None and not self._is_torn(data[bad.offset - (size - len(data)) :], bad, mark):
            self._tail = bad

    def _is_torn(self, rest: bytes, bad: BadLine, mark: SyncMark) -> bool:
        """Return True if the end of the file is a line that was never complete: not damage, but a crash."""
        if mark.file_id and self.state.file_id in (mark.file_id, "") and bad.offset < mark.offset:
            return False
        # Nobody writes behind a line that is not durable; only the first two lines come together.
        is_ended = rest[-1:] == b"\n"
        is_one_write = rest.count(b"\n") <= is_ended + (not bad.offset)
        return is_one_write and (not is_ended or b"\0" in rest)


def _last_line(handle: int, mark: SyncMark, size: int) -> Line | None:
    """Return the last line up to ``size`` if it is sound and durable and states a head; None if more has to be read."""
    first = os.pread(handle, _BEGINNING, 0)
    begin = first.find(b'"file":"')
    file_id = first[begin + 8 : begin + 40].decode("ascii", "replace")
    if begin < 0 or not size or not mark.covers(file_id, size):
        return None
    length = _TAIL
    while True:
        offset = max(size - length, 0)
        tail = os.pread(handle, size - offset, offset)
        start = tail.rfind(b"\n", 0, len(tail) - 1) + 1
        if start or not offset:
            break
        length *= 8
    try:
        line = decode_line(file_id, offset + start, tail[start:-1])
    except Exception:
        return None
    return line if line.place.is_sound and tail[-1:] == b"\n" and "head" in line.meta else None


def _read(handle: int, begin: int, end: int) -> bytes:
    pieces = []
    while begin < end and (piece := os.pread(handle, min(end - begin, _LARGEST_READ), begin)):
        pieces.append(piece)
        begin += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def damaged(path: Path, number: int | None, problem: str, offset: int | None = None) -> CheckpointCorrupt:
    """Return the error for a line that is not what was written."""
    where = (
        f"line {number}" if number is not None else "it" if offset is None else f"the line at byte {offset}"
    )
    return CheckpointCorrupt(
        f"{path} is damaged: {where} is not what was written: {problem}. Put back a copy from a backup, or let "
        f"'await storage.repair()' save what is left"
    )
