"""Sessions in a directory that people can read: a file of JSON lines for each thread.

The directory has ``sessions/SESSION/THREAD.jsonl``: a line about the thread, then one for each entry, in the order in
which they were published. ``sessions/SESSION/staged/ENTRY.json`` are entries that are not published. A writer holds the
lock of the session, and cuts a line off that a crash left unfinished; readers take no lock and pass over it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.agents.sessions.entry import (
    FORMAT,
    PlaceEntry,
    SessionEntry,
    StoredEntry,
    ThreadInfo,
    check_session_id,
    check_thread,
    damaged_session,
    dump_json,
    pack_entry,
    unpack_entry,
)
from holdfast.agents.sessions.memory import SessionTree, in_order_of_time
from holdfast.agents.sessions.sealed_entries import (
    KEY_SESSION,
    EntrySeals,
    check_not_keys,
    open_entries,
    publish_placed,
    seal_entry,
)
from holdfast.agents.sessions.store import MAIN
from holdfast.checkpoint.threads import Threads
from holdfast.errors import InvalidArgument, StorageError
from holdfast.stores.common.disk import Disk, explain_os_error, open_regular, read_regular, reject_link
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.locks import Locks

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.keyring import Keyring

T = TypeVar("T")

_THREADS = Threads("holdfast-sessions", 8)
_LOCKS = 64
_PATIENCE_SECONDS = 60.0
_ENDING, _STAGED_ENDING = ".jsonl", ".json"


class _ThreadFile(NamedTuple):
    """A file of a thread as it was read."""

    header: dict[str, Any]
    entries: list[SessionEntry]
    end: int
    """The end of the last whole line."""


def _read_thread(path: Path) -> _ThreadFile | None:
    """Read the file of a thread; None if there is no such file, or nothing whole in it."""
    try:
        data = read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    place = f"the session file {os.fspath(path)!r}"
    lines = data.split(b"\n")
    torn = lines.pop()
    header: dict[str, Any] | None = None
    entries: list[SessionEntry] = []
    end = 0
    for number, line in enumerate(lines):
        try:
            if header is None:
                header = _read_header(line, place)
            else:
                entries.append(unpack_entry(line, place))
        except StorageError:
            if number == len(lines) - 1 and number and not torn and not _is_json(line):
                break  # a power cut may leave a line of zeros
            raise
        end += len(line) + 1
    if header is None:
        return None
    session_id, thread = header["session"], header["thread"]
    if (path.parent.name, path.name) != (make_file_name(session_id), make_file_name(thread) + _ENDING):
        raise damaged_session(session_id, f"{place} belongs elsewhere")
    for entry in entries:
        if (entry.session_id, entry.thread) != (session_id, thread):
            raise damaged_session(
                session_id, f"{place} holds entry {entry.entry_id!r}, which belongs elsewhere"
            )
    return _ThreadFile(header, entries, end)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    except RecursionError:  # it is, but too deep
        pass
    return True


def _read_header(line: bytes, place: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(line)
        known = header["format"] <= FORMAT
        check_session_id(header["session"])
        check_thread(header["thread"])
        known = known and (header["origin"] is None or isinstance(header["origin"], str))
    except (ValueError, TypeError, KeyError, RecursionError):
        known = False
    if not known:
        raise StorageError(
            f"{place} does not begin as one of this version of holdfast; install a newer one, or restore it from a "
            f"backup"
        )
    return header


class JsonSessionStore:
    """Sessions in a directory, as files of JSON lines that people can read; for any number of processes.

    >>> import asyncio, tempfile
    >>> from holdfast.agents import AgentMessage, append_messages, read_messages
    >>> async def main(folder: str) -> list[str]:
    ...     store = JsonSessionStore(folder)
    ...     await append_messages(store, "kim", [AgentMessage("user", "hello")])
    ...     return [message.text for message in await read_messages(store, "kim")]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    ['hello']
    """

    def __init__(self, root: str | os.PathLike[str], *, keys: Keyring | None = None) -> None:
        self._seals = None if keys is None else EntrySeals(JsonSessionStore(root), keys)
        self._root = Path(root)
        self._sessions = self._root / "sessions"
        self._disk = Disk(self._root / "temp")
        self._locks = Locks(self._root / "locks")
        self._begun = False

    # The port.

    async def stage(self, entry: SessionEntry) -> None:
        """Keep an entry aside."""
        entry = await seal_entry(self._seals, entry)
        data = pack_entry(entry).encode() + b"\n"
        await self._call(partial(self._stage, entry.session_id, entry.entry_id, data))

    async def publish(self, session_id: str, entry_id: str) -> bool:
        """Put a staged entry at the end of its thread."""
        return await publish_placed(
            self._seals, lambda place: self._call(partial(self._publish, session_id, entry_id, place))
        )

    async def staged(self, session_id: str | None = None) -> list[SessionEntry]:
        """Return the entries that are staged only."""
        found = await self._call(partial(self._all_staged, session_id))
        return await open_entries(self._seals, [StoredEntry(entry, False) for entry in found])

    async def entries(
        self, session_id: str, thread: str = MAIN, *, upto: str | None = None
    ) -> list[SessionEntry]:
        """Return the conversation of a thread, or up to an entry."""

        def find() -> list[StoredEntry]:
            tree = self._tree(session_id)
            line = tree.line(tree.tip(thread) if upto is None else upto)
            return [StoredEntry(entry, entry.entry_id in tree.entries) for entry in line]

        return await open_entries(self._seals, await self._call(find))

    async def fork(self, session_id: str, thread: str, at: str) -> ThreadInfo:
        """Make a thread that goes on after an entry."""

        def make() -> ThreadInfo:
            with self._locked(session_id):
                tree = self._tree(session_id)
                if not tree.check_fork(thread, at):
                    self._make_file(session_id, thread, at, b"")
                    tree.add_thread(thread, at)
                return tree.info(thread)

        return await self._call(make)

    async def threads(self, session_id: str) -> list[ThreadInfo]:
        """Return the threads of a session."""
        return await self._call(lambda: self._tree(session_id).infos())

    async def sessions(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return the ids of sessions."""
        return await self._call(
            lambda: sorted(one for one in self._ids() if one > after and one != KEY_SESSION)[:limit]
        )

    async def delete(self, session_id: str) -> bool:
        """Remove a session."""
        check_not_keys(self._seals, session_id)
        return await self._call(partial(self._delete, session_id))

    async def rekey(self, keys: Keyring) -> None:
        """Lock a store under keys with another keyring from now on; what was said before stays as it is."""
        if self._seals is None:
            raise InvalidArgument(
                "rekey: the session store is opened without keys=, so it has none to replace"
            )
        await self._seals.rekey(keys)

    async def close(self) -> None:
        """Do nothing: files are open during calls only."""

    # In a thread.

    async def _call(self, work: Callable[[], T]) -> T:
        def call() -> T:
            try:
                self._begin()
                return work()
            except (OSError, TimeoutError) as error:
                raise StorageError(
                    f"session store {os.fspath(self._root)!r}: {explain_os_error(error)}"
                ) from error

        return await _THREADS.call(call)

    def _begin(self) -> None:
        if self._begun:
            return
        for folder in (self._sessions, self._root / "locks"):
            reject_link(folder)
            self._disk.make_folder(folder)
        reject_link(self._disk.temp)
        self._disk.make_temp()
        self._disk.sweep()
        self._begun = True

    @contextmanager
    def _locked(self, session_id: str) -> Iterator[None]:
        # By a number: the name of a file would tell of a person after the session was deleted.
        number = blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=2).digest()
        with self._locks.try_alone(f"{int.from_bytes(number) % _LOCKS:02d}", _PATIENCE_SECONDS) as handle:
            if handle is None and sys.platform != "win32":
                raise StorageError(
                    f"session store {os.fspath(self._root)!r}: another process has held the lock of session "
                    f"{session_id!r} for more than {_PATIENCE_SECONDS:g} s; find out what it does, then try again"
                )
            yield

    def _folder(self, session_id: str) -> Path:
        check_session_id(session_id)
        return self._sessions / make_file_name(session_id)

    def _staged_folder(self, folder: Path) -> Path:
        """Return where entries of a session are kept aside; raise ``OSError`` if there is a link instead."""
        staged = folder / "staged"
        reject_link(folder)
        reject_link(staged)
        return staged

    def _stage(self, session_id: str, entry_id: str, data: bytes) -> None:
        with self._locked(session_id):
            if entry_id in self._tree(session_id).entries:
                return
            folder = self._staged_folder(self._folder(session_id))
            self._disk.make_folder(folder)
            self._disk.put(data, folder / f"{make_file_name(entry_id)}{_STAGED_ENDING}", anew=True)
            self._disk.sync_folder(folder)

    def _publish(self, session_id: str, entry_id: str, place: PlaceEntry) -> bool:
        with self._locked(session_id):
            tree = self._tree(session_id)
            staged = self._staged_folder(self._folder(session_id))
            if entry_id in tree.entries:
                mark = staged / f"{make_file_name(entry_id)}{_STAGED_ENDING}"
                if mark.exists():  # whoever published it died, or could not sync it
                    self._disk.write_again(self._path(session_id, tree.entries[entry_id].thread))
                    mark.unlink()
                return True
            for entry in tree.to_publish(entry_id, place):
                self._append(tree, entry)
                tree.add(entry)
                with suppress(FileNotFoundError):
                    os.unlink(staged / f"{make_file_name(entry.entry_id)}{_STAGED_ENDING}")
            return entry_id in tree.entries

    def _append(self, tree: SessionTree, entry: SessionEntry) -> None:
        line = pack_entry(entry).encode() + b"\n"
        if not tree.has_thread(entry.thread):
            self._make_file(entry.session_id, entry.thread, entry.after, line)
            return
        path = self._path(entry.session_id, entry.thread)
        file = _read_thread(path)
        assert file is not None, "the tree has this thread"
        end = file.end
        handle = open_regular(path, os.O_RDWR)
        try:
            if os.fstat(handle).st_size != end:
                os.ftruncate(handle, end)
            os.lseek(handle, end, os.SEEK_SET)
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(handle, rest) :]
            self._disk.sync(handle)
        finally:
            os.close(handle)

    def _make_file(self, session_id: str, thread: str, origin: str | None, lines: bytes) -> None:
        header = {"format": FORMAT, "session": session_id, "thread": thread, "origin": origin}
        data = dump_json(header, f"thread {thread!r}").encode() + b"\n" + lines
        folder = self._folder(session_id)
        self._disk.make_folder(folder)
        self._disk.put(data, self._path(session_id, thread), anew=True)
        self._disk.sync_folder(folder)

    def _delete(self, session_id: str) -> bool:
        folder = self._folder(session_id)
        with self._locked(session_id):
            gone = self._root / "temp" / f"{secrets.token_hex(8)}.tmp"
            try:
                os.rename(folder, gone)
            except FileNotFoundError:
                return False
            self._disk.sync_folder(self._sessions)
            self._disk.remove(gone)
            return True

    # Reading.

    def _path(self, session_id: str, thread: str) -> Path:
        return self._folder(session_id) / f"{make_file_name(thread)}{_ENDING}"

    def _tree(self, session_id: str) -> SessionTree:
        """Return a session as the files have it now."""
        tree, folder = SessionTree(session_id), self._folder(session_id)
        for entry in self._staged_in(folder):
            tree.staged[entry.entry_id] = entry
        for path in _list(folder, _ENDING):
            file = _read_thread(path)
            if file is not None:
                tree.add_thread(file.header["thread"], file.header["origin"])
                for entry in file.entries:
                    tree.add(entry)
        return tree

    def _staged_in(self, folder: Path) -> Iterator[SessionEntry]:
        for path in _list(self._staged_folder(folder), _STAGED_ENDING):
            with suppress(FileNotFoundError):  # published just now
                place = f"the file {os.fspath(path)!r}"
                entry = unpack_entry(read_regular(path), place)
                if folder.name != make_file_name(entry.session_id):
                    raise damaged_session(
                        entry.session_id, f"{place} holds entry {entry.entry_id!r}, which belongs elsewhere"
                    )
                yield entry

    def _all_staged(self, session_id: str | None) -> list[SessionEntry]:
        folders = [self._folder(session_id)] if session_id is not None else list(self._folders())
        found: list[SessionEntry] = []
        for folder in folders:
            waiting = list(self._staged_in(folder))
            if waiting:  # what a crash left behind may be published
                found += [
                    entry
                    for entry in self._tree(waiting[0].session_id).unpublished()
                    if entry.session_id == waiting[0].session_id
                ]
        return in_order_of_time(found)

    def _folders(self) -> Iterator[Path]:
        with suppress(FileNotFoundError):
            yield from sorted(path for path in self._sessions.iterdir() if path.is_dir())

    def _ids(self) -> Iterator[str]:
        for folder in self._folders():
            reject_link(folder)
            for path in _list(folder, _ENDING):
                file = _read_thread(path)
                if file is not None:
                    yield file.header["session"]
                    break
            else:
                for entry in self._staged_in(folder):
                    yield entry.session_id
                    break


def _list(folder: Path, ending: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return []
