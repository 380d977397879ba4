"""The folders of one namespace, and all that is done in them; it blocks."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.checkpoint.store import (
    Blob,
    Commit,
    Damage,
    Depth,
    Expected,
    Head,
    Left,
    Letter,
    Mended,
    Removal,
    RunQuery,
    StoreInfo,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, StorageError
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.disk import Disk, open_regular
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.head_check import check_expected
from holdfast.stores.common.locks import Locks
from holdfast.stores.common.presence import Presence
from holdfast.stores.common.run_query import select_due_runs, select_runs
from holdfast.stores.file import marker
from holdfast.stores.file.blobs import Blobs
from holdfast.stores.file.copying import copy_store
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.place import Misplaced
from holdfast.stores.file.run_folder import RunFolder
from holdfast.stores.file.tools import Tools
from holdfast.stores.file.waking import AT_ONCE, DRIVEN, Sign, Waking, sign_of

# Where so many runs stand is remembered, at about 3 KB each; the others are looked up again.
_REMEMBERED = 500


class Folders:
    """What a file store does, without an event loop."""

    def __init__(self, root: Path, namespace: str) -> None:
        self._root = root
        base = root / "namespaces" / make_file_name(namespace) if namespace else root
        self.disk = Disk(root / marker.TEMP)
        self.presence = Presence(root / marker.OWNERS)
        # Nothing may lie in the folder of a namespace before that is durable.
        self._prefix = f"{make_file_name(namespace)}@" if namespace else ""
        locks = Locks(root / marker.LOCKS, self._prefix)
        self.blobs = Blobs(base / "blobs", self.disk, locks)
        self._runs = base / "runs"
        self._removing, self._mending = root / marker.REMOVING, root / marker.MENDING
        self._hints = Hints(base / "ids", self.disk.temp)
        self._tools = Tools(self.disk, locks, self.blobs, self._hints, Waking(base / "waking", self.disk))
        self._lock = threading.Lock()
        self._remembered: OrderedDict[str, RunFolder] = OrderedDict()
        self._info: StoreInfo | None = None
        self._ready = False
        self._signs_set = False

    def open(self) -> StoreInfo:
        """Make sure that the store is there, and of a known format."""
        with self._lock:
            if self._info is not None:
                return self._info
            info = marker.open_store(self._root, self.disk)
            marker.refuse_links(self._root, self._runs.parent)
            self._info = info
        self._finish_mending()
        return self._info

    def commit(self, commit: Commit) -> list[Letter]:
        """Make a commit durable, its blobs first; returns the letters that wait."""
        self._get_ready()
        run_id = commit.head.run_id
        letters = self.run(run_id).commit(commit)
        if commit.head.status is not RunStatus.RUNNING:  # there may be many that wait, and for long
            with self._lock:
                self._remembered.pop(make_file_name(run_id), None)
        return letters

    def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable."""
        self._get_ready()
        with self.blobs.bringing(family, blobs):
            pass

    def leave(self, run_id: RunId, since: int, letters: Sequence[Letter]) -> Left:
        """Leave letters for a run, durably."""
        self._get_ready()
        return self.run(run_id).leave(since, letters)

    def tag(self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None) -> bool:
        """Take tags from a record and add others."""
        self._get_ready()
        return self.run(run_id).tag(seq, tags, drop)

    def remove(self, removal: Removal) -> bool:
        """Remove records of a run; false if one of them has tags."""
        self._get_ready()
        return self.run(removal.run_id).remove(removal)

    def remove_run(self, run_id: RunId, expected: Expected) -> None:
        """Remove a run. Its name is noted before, so that others go on if this process dies."""
        self._get_ready()
        folder = self.run(run_id)
        check_expected(run_id, expected, folder.head())
        self._removing.mkdir(0o700, exist_ok=True)
        note = self._removing / f"{self._prefix}{folder.path.name}"
        os.close(open_regular(note, os.O_CREAT | os.O_WRONLY))
        folder.remove_run(run_id, expected)
        # Again: who saw it before the run was gone took it for done.
        os.close(open_regular(note, os.O_CREAT | os.O_WRONLY))
        self._finish_removing(note)

    def _finish_removing(self, note: Path) -> None:
        folder = self._folder(note.name.removeprefix(self._prefix))
        try:
            if folder.finish_removing():
                note.unlink(missing_ok=True)
        except (OSError, StorageError):  # it is tried again
            pass

    def mend(self, run_id: RunId | None) -> list[Mended]:
        """Let a run, or all, have a newest file that can be read."""
        self._get_ready()
        folders = {folder.path.name: folder for folder in self._run_folders()}
        for name in self._hints.runs():
            folders.setdefault(name, self._folder(name))
        if run_id is not None:
            folders = {name: folder for name, folder in folders.items() if name == make_file_name(run_id)}
        return [done for name, folder in folders.items() for done in self._mended(name, folder)]

    def _mended(self, name: str, folder: RunFolder) -> list[Mended]:
        try:
            return folder.mend(self._aside(name))
        except StorageError as error:  # it is in use, which does not keep others from being repaired
            return [Mended(folder.run_id(), "", str(error))]

    def copied(self) -> Path:
        """A store with the same commits and hints, but without blobs, where nobody looks; to be removed."""
        self._get_ready()
        folder = self.disk.new_folder()
        try:
            copy_store(self._root, folder, self._runs.parent.relative_to(self._root))
        except BaseException:
            self.disk.remove(folder)
            raise
        return folder

    def replace(self, commit: Commit) -> None:
        """Let a run be what a commit says."""
        self._get_ready()
        folder = self.run(commit.head.run_id)
        name = folder.path.name
        self._mending.mkdir(0o700, exist_ok=True)
        folder.replace(commit, self._aside(name), self._mending / f"{self._prefix}{name}")

    def _aside(self, name: str) -> Path:
        return self._root / marker.DAMAGED / f"{self._prefix}{name}"

    def _finish_mending(self) -> None:
        """Put folders into place that a process left on their way, if there is no other by now."""
        for name in self._named(self._mending):
            try:
                self._folder(name.removeprefix(self._prefix)).finish_mending(self._mending / name)
            except (OSError, StorageError):  # whoever repairs it lives; or it is tried again
                pass

    def _unfinished(self) -> list[str]:
        """The runs that were being removed, perhaps by a process that died over it."""
        return self._named(self._removing)

    def _named(self, folder: Path) -> list[str]:
        """What lies in a folder and belongs to this namespace."""
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        return [name for name in names if name.rpartition("@")[0] == self._prefix.rstrip("@")]

    def _get_ready(self) -> None:
        """What the first commit does besides: sweep up what writers left behind."""
        with self._lock:
            if self._ready:
                return
            self.disk.make_temp()
            self.disk.sweep()
            self._ready = True
        self._finish_mending()
        for name in self._unfinished():
            self._finish_removing(self._removing / name)

    def run(self, run_id: RunId) -> RunFolder:
        """The folder of a run, whether it is there or not."""
        return self._folder(make_file_name(run_id))

    def _folder(self, name: str) -> RunFolder:
        with self._lock:
            folder = self._remembered.get(name)
            if folder is None:
                folder = self._remembered[name] = RunFolder(self._runs / name, self._tools)
                if len(self._remembered) > _REMEMBERED:
                    self._remembered.popitem(last=False)
            self._remembered.move_to_end(name)
            return folder

    def runs(self, query: RunQuery) -> list[Head]:
        """The runs that are asked for; reads the newest file of each run that others moved."""
        driven = self._driven(query)
        heads = []
        for folder in self._run_folders() if driven is None else driven:
            try:
                head = folder.head()
                if driven is not None and (head is None or head.status is not RunStatus.RUNNING):
                    self._take_away(Sign(DRIVEN, folder.path.name))
            except (Misplaced, CheckpointCorrupt):
                continue  # a copy, listed where it belongs; or one that ``damaged`` tells
            if head is not None:
                heads.append(head)
        return select_runs(heads, query)

    def _driven(self, query: RunQuery) -> list[RunFolder] | None:
        """The runs that have a sign that they are driven, if only such are asked for, as hosts do again and again."""
        if query.statuses != frozenset([RunStatus.RUNNING]):
            return None
        try:
            self._set_signs()
        except OSError:  # nothing may be written
            return None
        names = set(self._tools.waking.driven())
        if query.after is not None:
            names.add(make_file_name(query.after))
        return [self._folder(name) for name in names]

    def due(self, workflow_name: str, time: int, limit: int) -> list[Head]:
        """The runs that have something to do; reads only those of which a sign says so."""
        self._set_signs()
        heads: dict[RunId, Head] = {}
        with_letters: set[RunId] = set()
        found, last = 0, AT_ONCE
        for sign in self._tools.waking.until(time):
            if found >= limit and sign.time > last:
                break  # the others come later in the order
            last = sign.time
            folder = self._folder(sign.run)
            try:
                head = folder.head()
                letters = bool(folder.inbox()) if head is not None else False
            except (Misplaced, CheckpointCorrupt):
                continue
            true = head is not None and sign_of(head, letters, sign.run) == sign
            if not true:
                self._take_away(sign)
            if head is not None:  # also one that got another sign a moment ago
                heads[head.run_id] = head
                found += true and head.workflow_name == workflow_name
                if letters:
                    with_letters.add(head.run_id)
        return select_due_runs(heads.values(), workflow_name, time, limit, with_letters.__contains__)

    def _set_signs(self) -> None:
        """Once, look at all runs: a sign may be missing, where files were copied or taken away by hand."""
        if self._signs_set:
            return
        for name in self._folder_names():
            try:
                RunFolder(self._runs / name, self._tools).set_sign()
            except (Misplaced, CheckpointCorrupt):
                continue
        self._signs_set = True

    def _take_away(self, sign: Sign) -> None:
        """Take a wrong sign away if it is old. The run may come to where it needs it at the same time."""
        if self._tools.waking.remove_if_old(sign):
            self._folder(sign.run).set_sign()

    def damaged(self) -> list[Damage]:
        """The runs whose newest file cannot be read."""
        found = []
        for folder in self._run_folders():
            try:
                folder.head()
            except (Misplaced, CheckpointCorrupt) as error:
                found.append(Damage(folder.run_id(), str(error)))
        return found

    def inspect(self, run_id: RunId | None) -> list[Damage]:
        """Find damage in the files of a run, or of all runs, also of those that are gone."""
        if run_id is not None:
            return self.run(run_id).inspect()
        folders = {folder.path.name: folder for folder in self._run_folders()}
        for name in self._hints.runs():
            folders.setdefault(name, self._folder(name))
        return [damage for folder in folders.values() for damage in folder.inspect()]

    def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """The run and seq of a checkpoint."""

        def there(run_id: RunId, seq: int) -> bool:
            records = self.run(run_id).records(seq, seq, Depth.HEADERS)
            return any(record.checkpoint_id == checkpoint_id for record in records)

        return self._hints.find(checkpoint_id, self._files(), there)

    def _files(self) -> Iterator[Path]:
        for folder in self._run_folders():
            try:
                files = folder.files()
            except Misplaced:
                continue
            yield from files

    def _run_folders(self) -> list[RunFolder]:
        return [self._folder(name) for name in self._folder_names()]

    def _folder_names(self) -> list[str]:
        try:
            return os.listdir(self._runs)
        except FileNotFoundError:
            return []
