"""The directory of a file store, for one namespace: all that is done in it; it blocks."""

from __future__ import annotations

import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.checkpoint.maintenance.vacuum import VacuumReport
from holdfast.checkpoint.ownership import is_held, this_process
from holdfast.checkpoint.store import (
    Blob,
    ClaimRequest,
    Commit,
    Damage,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    Mended,
    Removal,
    RunQuery,
    SealedForms,
    StoreInfo,
)
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.disk import Disk, IrregularFile, read_regular
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.head_check import TagChange
from holdfast.stores.common.locks import Locks
from holdfast.stores.common.presence import Presence, hash_process
from holdfast.stores.common.run_query import (
    TagReader,
    by_age,
    filter_runs,
    fits,
    make_claim,
    select_runs,
    sort_due_runs,
)
from holdfast.stores.file import marker
from holdfast.stores.file.blobs import BlobFolder
from holdfast.stores.file.line_file import SUFFIX, LineFile
from holdfast.stores.file.run_file import PendingCommit, RunFile
from holdfast.stores.file.run_index import RunIndex, list_files
from holdfast.stores.file.run_lock import LockBusy, RunLock
from holdfast.stores.file.run_repair import RunRepair
from holdfast.stores.file.wake_signs import AT_ONCE, ClaimFiles, WakeSign, WakeSigns, sign_of

# The state of so many runs is remembered; the others are read again.
_REMEMBERED = 500


class Directory:
    """Does what a file store does, without an event loop."""

    def __init__(self, root: Path, namespace: str, read_only: bool = False, keyed: bool = False) -> None:
        self.root = root
        self._keyed = keyed
        self._read_only = read_only
        self._namespace = namespace
        base = root / "namespaces" / make_file_name(namespace) if namespace else root
        self.disk = Disk(root / marker.TEMP)
        self.presence = Presence(root / marker.OWNERS)
        self._prefix = f"{make_file_name(namespace)}@" if namespace else ""
        self.blobs = BlobFolder(base / "blobs", self.disk, Locks(root / marker.LOCKS, self._prefix))
        self._runs = base / "runs"
        self._signs = WakeSigns(base / "waking")
        self._claims = ClaimFiles(base / "claims")
        self._index = RunIndex(None if read_only else base / "index.db")
        self._lock = threading.Lock()
        self._indexing = threading.Lock()
        self._remembered: OrderedDict[str, RunFile] = OrderedDict()
        self._info: StoreInfo | None = None
        self._ready = False
        self._signs_set = False

    def open(self) -> StoreInfo:
        """Make sure that the store is there, of a known format, and that locks work where it lies."""
        if self._info is not None:
            return self._info
        with self._lock:
            open_store = marker.look_at_store if self._read_only else marker.open_store
            info = open_store(self.root, self.disk, self._keyed)
            marker.refuse_links(self.root, self._runs.parent)
            self._info = info
        return self._info

    def key_box(self) -> str:
        """Return the key box of the store."""
        return marker.read_key_box(self.root)

    def set_key_box(self, box: str, expected: str) -> bool:
        """Replace the key box, unless another one is there than expected."""
        self._get_ready()
        return marker.replace_key_box(self.root, self.disk, box, expected)

    def living(self, processes: Collection[str]) -> set[str]:
        """Return those of the processes that joined and live."""
        lives = self.presence.seems_alive if self._read_only else self.presence.lives
        return {process for process in processes if lives(process)}

    def close(self) -> None:
        """Close the files that are kept open; the directory can be used on."""
        with self._lock:
            self._remembered.clear()

    def _get_ready(self) -> None:
        """Do what the first writer does besides: check locks, sweep up what others left behind."""
        if self._ready:
            return
        with self._lock:
            self.disk.make_temp()
            marker.check_locks(self.disk)
            self.disk.sweep()
            self._ready = True

    def run(self, run_id: RunId) -> RunFile:
        """Return the file of a run, whether it is there or not."""
        return self._file(make_file_name(run_id))

    def _file(self, name: str) -> RunFile:
        with self._lock:
            file = self._remembered.get(name)
            if file is None:
                file = self._remembered[name] = self._new_file(name)
                if len(self._remembered) > _REMEMBERED:
                    self._remembered.popitem(last=False)
            else:
                self._remembered.move_to_end(name)
            return file

    def _lines(self, name: str) -> LineFile:
        lock = RunLock(self._lock_path(name))
        return LineFile(self._runs / f"{name}{SUFFIX}", lock, self.disk, self._namespace, self._read_only)

    def _lock_path(self, name: str) -> Path:
        return self.root / marker.LOCKS / f"{self._prefix}{name}.run"

    def _new_file(self, name: str) -> RunFile:
        return RunFile(self._lines(name), self.blobs, self._signs)

    # What is written.

    def commit(self, commit: Commit, is_patient: bool = True, is_doubtful: bool = False) -> list[Letter]:
        """Make a commit durable, its blobs first, as ``RunFile.commit`` does."""
        self._get_ready()
        letters = self.run(commit.head.run_id).commit(commit, is_patient, is_doubtful)
        self._forget_resting(commit.head)
        return letters

    def begin_commit(self, commit: Commit) -> PendingCommit | None:
        """Write a commit without syncing it, as ``RunFile.begin_commit`` does."""
        self._get_ready()
        return self.run(commit.head.run_id).begin_commit(commit)

    def finish_commit(self, commit: Commit, pending: PendingCommit) -> list[Letter]:
        """Make a commit count that was synced."""
        letters = pending.finish()
        self._forget_resting(commit.head)
        return letters

    def _forget_resting(self, head: Head) -> None:
        if head.status is not RunStatus.RUNNING:  # there may be many that wait, and for long
            with self._lock:
                self._remembered.pop(make_file_name(head.run_id), None)

    def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        """Make blobs durable."""
        self._get_ready()
        with self.blobs.bring(family, blobs):
            pass

    def leave(self, run_id: RunId, letters: Sequence[Letter], most: int | None = None) -> LeaveResult:
        """Leave letters for a run, durably, unless more than ``most`` would wait."""
        self._get_ready()
        return self.run(run_id).leave(letters, most)

    def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        """Use up keys of letters of a run, durably."""
        self._get_ready()
        return self.run(run_id).use_up(keys)

    def tag(self, run_id: RunId, seq: int, change: TagChange) -> bool:
        """Take tags from a record and add others."""
        self._get_ready()
        return self.run(run_id).tag(seq, change)

    def remove(self, removal: Removal) -> bool:
        """Remove records of a run; return False if one of them has tags."""
        self._get_ready()
        return self.run(removal.run_id).remove(removal)

    def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        """Remove a run; return False if letters or tags forbid it."""
        self._get_ready()
        is_gone = self.run(run_id).remove_run(run_id, expected, known)
        if is_gone:
            self._claims.remove(make_file_name(run_id))
            with self._lock:  # its files would stay open, and take room on the disk
                self._remembered.pop(make_file_name(run_id), None)
        return is_gone

    def replace(self, commit: Commit) -> None:
        """Let a run be what a commit says."""
        self._get_ready()
        self.run(commit.head.run_id).replace(commit, self._aside(make_file_name(commit.head.run_id)))

    def _aside(self, name: str) -> Path:
        return self.root / marker.DAMAGED / f"{self._prefix}{name}-{secrets.token_hex(4)}{SUFFIX}"

    # What is read.

    def _names(self) -> list[str]:
        return list(list_files(self._runs, SUFFIX))

    def runs(self, query: RunQuery) -> list[Head]:
        """Return the runs that are asked for; reads the last line of each run that changed."""
        driven = self._driven(query)
        if driven is not None:
            return select_runs(driven, query, lambda run_id: self._read_tags(make_file_name(run_id)))
        with self._indexed() as (heads, tags_of):
            return select_runs(heads, query, tags_of)

    def count_runs(self, query: RunQuery) -> int:
        """Return the number of runs that are asked for."""
        with self._indexed() as (heads, tags_of):
            return len(filter_runs(heads, query, tags_of))

    @contextmanager
    def _indexed(self) -> Iterator[tuple[list[Head], TagReader]]:
        """Give the heads of all runs, and what reads the tags of a run; the index remembers both."""
        with self._indexing:
            files = list_files(self._runs, SUFFIX)
            heads = [head for _, head in self._index.heads(files, self._peek)]
            yield heads, lambda run_id: self._index.tags(make_file_name(run_id), files, self._read_tags)
            self._index.store_tags()

    def _read_tags(self, name: str) -> list[str]:
        return self._new_file(name).tags()

    def _peek(self, name: str) -> tuple[Head | None, bool]:
        """Return the head of a run, None if it cannot be read, which ``damaged`` tells; and whether it is current."""
        try:
            glance = self._new_file(name).peek()
        except CheckpointCorrupt:
            return None, True
        return glance.head, glance.is_current

    def _driven(self, query: RunQuery) -> list[Head] | None:
        """Return the runs that a sign says are driven, if only such are asked for, as hosts do again and again."""
        if query.statuses != frozenset([RunStatus.RUNNING]) or self._read_only:
            return None
        try:
            self._set_signs()
        except OSError:  # nothing may be written
            return None
        heads: dict[str, Head] = {}
        for sign in self._signs.driven():
            head, _ = self._peek(sign.run)
            if head is not None:
                heads[sign.run] = head
            if head is None or sign_of(head, 0, sign.run) != sign:
                self._correct(sign)
        return list(heads.values())

    def _find_due(
        self, time: int, limit: int, is_wanted: Callable[[Head, int], bool]
    ) -> tuple[dict[RunId, Head], dict[RunId, int]]:
        """Return the runs of which signs say that they are due, as far as ``limit`` needs; and their letters."""
        self._set_signs()
        heads: dict[RunId, Head] = {}
        counts: dict[RunId, int] = {}
        found, last = 0, AT_ONCE
        for sign in self._signs.until(time):
            if found >= limit and sign.time > last:
                break  # the others come later in the order
            last = sign.time
            try:
                head, letters, _ = self._new_file(sign.run).peek()
            except CheckpointCorrupt:
                continue
            is_right = head is not None and sign_of(head, letters, sign.run) == sign
            if not is_right:
                self._correct(sign)
            if head is not None:  # also one that got another sign a moment ago
                heads[head.run_id] = head
                found += is_right and is_wanted(head, letters)
                counts[head.run_id] = letters
        return heads, counts

    def claim(self, request: ClaimRequest) -> list[Head]:
        """Return the runs that a request asks for, and keep others from them for a moment."""
        claimed: list[Head] = []
        passed: set[RunId] = set()
        while len(claimed) < request.limit:
            found = self._find_claimable(request, request.limit - len(claimed), passed)
            if not request.lease or not found:
                return claimed + found
            self._get_ready()
            self._claims.sweep(request.time)
            claimed += [head for head in found if self._try_claim(head, request)]
            passed |= {head.run_id for head in found}
        return claimed

    def _find_claimable(self, request: ClaimRequest, limit: int, passed: Set[RunId]) -> list[Head]:
        def is_wanted(head: Head, letters: int) -> bool:
            return fits(head, request) and head.run_id not in passed and not is_claimed(head, letters)

        def is_claimed(head: Head, letters: int) -> bool:
            return bool(request.lease) and self._is_claimed(head, letters, request)

        heads, counts = self._find_due(request.time, limit, is_wanted)
        wanted = [head for head in heads.values() if is_wanted(head, counts[head.run_id])]
        found = sort_due_runs(wanted, request.time, counts.__getitem__)[:limit]
        if request.abandoned and len(found) < limit:
            abandoned = [head for head, letters in self._find_abandoned() if is_wanted(head, letters)]
            found += sorted(abandoned, key=by_age)[: limit - len(found)]
        return found

    def _find_abandoned(self) -> Iterator[tuple[Head, int]]:
        """Yield the runs that are driven by nobody who lives; reads only those of which a sign says so."""
        here = hash_process(this_process())
        living: dict[str, bool] = {}
        for sign in self._signs.driven():
            if sign.process == here and sign.claim:
                lives = is_held(f"{this_process()}#{sign.claim}")
            elif sign.process in living:
                lives = living[sign.process]
            else:
                lives = living[sign.process] = bool(sign.process) and self.presence.lives_hashed(sign.process)
            if not lives:
                yield from self._check_abandoned(sign)

    def _check_abandoned(self, sign: WakeSign) -> Iterator[tuple[Head, int]]:
        try:
            head, letters, _ = self._new_file(sign.run).peek()
        except CheckpointCorrupt:
            return
        if head is None or sign_of(head, letters, sign.run) != sign:
            self._correct(sign)
        elif not is_held(head.owner):
            yield head, letters

    def _is_claimed(self, head: Head, letters: int, request: ClaimRequest) -> bool:
        claim = self._claims.read(make_file_name(head.run_id))
        if claim is None or not claim.holds(head, letters, request):
            return False
        return claim.process == hash_process(this_process()) or self.presence.lives_hashed(claim.process)

    def _try_claim(self, head: Head, request: ClaimRequest) -> bool:
        """Claim a run, unless it moved, someone writes it right now, or someone else was faster."""
        name = make_file_name(head.run_id)
        lock = RunLock(self._lock_path(name))
        try:
            with lock.hold(is_patient=False):
                now, letters, _ = self._new_file(name).peek()
                if now is None:
                    lock.remove()  # it was made just now: the run is gone
                if now != head or self._is_claimed(head, letters, request):
                    return False
                claim = make_claim(head, letters, request)
                self._claims.write(name, claim._replace(process=hash_process(request.process)))
                return True
        except (LockBusy, CheckpointCorrupt):
            return False

    def _set_signs(self) -> None:
        """Look at all runs once: a sign may be missing after a power cut, or where files were copied by hand."""
        if self._signs_set:
            return
        for name in self._names():
            try:
                head, letters, _ = self._new_file(name).peek()
            except CheckpointCorrupt:
                continue
            sign = None if head is None else sign_of(head, letters, name)
            if sign is not None:
                self._signs.add(sign, self._lock_path(name))
        self._signs_set = True

    def _correct(self, wrong: WakeSign) -> None:
        """Let a run have the sign that it needs in place of a wrong one."""
        with suppress(CheckpointCorrupt):
            self._file(wrong.run).set_sign(wrong)

    def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        """Return the run and the seq of a checkpoint."""
        with self._lock:
            remembered = list(self._remembered.values())
        for file in reversed(remembered):
            found = file.find(checkpoint_id) if file.knows(checkpoint_id) else None
            if found is not None:
                return found
        with self._indexing:
            files = list_files(self._runs, SUFFIX)
            name = self._index.find(checkpoint_id, files, lambda name: self._new_file(name).ids())
        return None if name is None else self._file(name).find(checkpoint_id)

    # What nobody needs.

    def vacuum(self, report: Callable[[int, int], None]) -> VacuumReport:
        """Remove temporary files, blobs of families without a run, emptied folders, and lines that no longer count."""
        self._get_ready()
        before = _measure(self.root)
        self.disk.sweep()
        names = self._names()
        for number, name in enumerate(names, 1):
            with suppress(CheckpointCorrupt):
                self._new_file(name).make_room()
            report(number, len(names))
        self.blobs.remove_unused(self._families)
        return VacuumReport(before, _measure(self.root))

    def _families(self) -> set[str] | None:
        """Return the names of the folders of all families that have a run; None if some cannot be known."""
        if self.damaged():
            return None
        return {make_file_name(head.family) for head in self.runs(RunQuery())}

    # What is damaged.

    def damaged(self) -> list[Damage]:
        """Return the runs whose head cannot be read."""
        found = []
        for name in self._names():
            try:
                self._new_file(name).peek()
            except CheckpointCorrupt as error:
                found.append(Damage(self._repair(name).run_id(), str(error)))
        return found

    def inspect(self, run_id: RunId | None) -> list[Damage]:
        """Find damage in the file of a run, or of all runs, also of those whose file is missing."""
        if run_id is not None:
            return self._repair(make_file_name(run_id)).inspect()
        return [damage for name in self._all_names() for damage in self._repair(name).inspect()]

    def mend(self, run_id: RunId | None, forms: SealedForms | None) -> list[Mended]:
        """Let a run, or each of them, have a head that can be read; make the index anew."""
        self._get_ready()
        with self._indexing:
            self._index.forget()
        names = self._all_names() if run_id is None else [make_file_name(run_id)]
        done = [mended for name in names for mended in self._repair(name).mend(self._aside(name), forms)]
        with self._lock:
            self._remembered.clear()
        return done

    def _repair(self, name: str) -> RunRepair:
        lines = self._lines(name)
        return RunRepair(lines, RunFile(lines, self.blobs, self._signs))

    def _all_names(self) -> list[str]:
        """Return the names of all runs that have a file, or had one and were not removed."""
        names = self._names()
        known = set(names)
        try:
            locks = os.listdir(self.root / marker.LOCKS)
        except FileNotFoundError:
            locks = []
        for lock in locks:
            name = lock.removeprefix(self._prefix).removesuffix(".run")
            if (
                lock.endswith(".run")
                and lock.rpartition("@")[0] == self._prefix.rstrip("@")
                and name not in known
            ):
                names.append(name)
        return names

    def copy(self, run_id: RunId | None) -> Path:
        """Copy the runs, or one of them, but no blobs, to a folder in ``temp``, to be removed by the caller."""
        self._get_ready()
        folder = self.disk.new_folder()
        try:
            base = self._runs.parent.relative_to(self.root)
            _copy(self.root / marker.NAME, folder / marker.NAME)
            _copy(self.root / marker.KEY_BOX, folder / marker.KEY_BOX)
            for part in (
                Path(marker.LOCKS),
                base / "runs",
            ):  # marks first: they may say less than the files hold
                (folder / part).mkdir(parents=True, exist_ok=True)
                for name in self._names_to_copy(part, run_id):
                    _copy(self.root / part / name, folder / part / name)
            for lock in os.listdir(folder / marker.LOCKS):
                if not os.path.lexists(self.root / marker.LOCKS / lock):  # the run was removed meanwhile
                    os.unlink(folder / marker.LOCKS / lock)
        except BaseException:
            self.disk.remove(folder)
            raise
        return folder

    def _names_to_copy(self, part: Path, run_id: RunId | None) -> list[str]:
        """Return the names of the locks or files of the runs that are copied; one that is named need not be there."""
        if run_id is not None:
            name = make_file_name(run_id)
            return [f"{self._prefix}{name}.run" if part == Path(marker.LOCKS) else f"{name}{SUFFIX}"]
        try:
            return [name for name in os.listdir(self.root / part) if name.endswith((".run", SUFFIX))]
        except FileNotFoundError:
            return []


def _copy(source: Path, target: Path) -> None:
    with suppress(FileNotFoundError, IrregularFile):
        target.write_bytes(read_regular(source))


def _measure(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
