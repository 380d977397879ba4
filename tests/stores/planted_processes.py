"""A store that several processes use, with bugs that take another process to see."""

import asyncio
import fcntl
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint.store import (
    ClaimRequest,
    Commit,
    Depth,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    MarkedBlobs,
    Note,
    Record,
    Removal,
    RunQuery,
    StoreInfo,
)
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.memory import MemoryStore
from tests.support.parts import is_gone, this_process

FIELDS = (
    *(
        "_heads",
        "_records",
        "_seqs",
        "_places",
        "_blobs",
        "_marks",
        "_blob_marks",
        "_notes",
        "_letters",
        "_claims",
    ),
)


class Filed(MemoryStore):
    """A store whose dicts lie in a file, which is read before everything and written after it."""

    fields: tuple[str, ...] = FIELDS

    def __init__(self, path: Path, namespace: str = "") -> None:
        super().__init__(namespace)
        self._path = path
        self._joined_as = f"{this_process()} {id(self)}"
        self._alive: set[str] | None = None
        """The processes that live, while runs are claimed."""

    @contextmanager
    def _filed(self) -> Iterator[list[str]]:
        """All that processes share, while no other uses it; gives who joined."""
        self._check_open()
        self._path.mkdir(exist_ok=True)
        with (self._path / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self._path / "state"
            state = pickle.loads(file.read_bytes()) if file.exists() else {"present": []}
            self._info = state.setdefault("info", self._info)
            mine = state.setdefault(self.namespace, {})
            self.__dict__.update(mine)
            yield state["present"]
            mine.update({name: getattr(self, name) for name in self.fields})
            file.write_bytes(pickle.dumps(state))

    async def open(self) -> StoreInfo:
        with self._filed():
            return await super().open()

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        with self._filed():
            return await super().commit(commit)

    async def head(self, run_id: RunId) -> Head | None:
        with self._filed():
            return await super().head(run_id)

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        with self._filed():
            return await super().runs(query)

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        with self._filed():
            return await super().find(checkpoint_id)

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        with self._filed():
            return await super().records(run_id, first, last, depth)

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        with self._filed():
            return await super().blobs(family, digests)

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        with self._filed():
            return await super().tag(run_id, seq, tags, drop, by)

    async def remove(self, removal: Removal) -> bool:
        with self._filed():
            return await super().remove(removal)

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        with self._filed():
            return await super().remove_run(run_id, expected, known)

    async def mark(self, family: RunId) -> MarkedBlobs:
        with self._filed():
            return await super().mark(family)

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        with self._filed():
            return await super().discard(family, mark, digests)

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        with self._filed():
            return await super().notes(run_id)

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        with self._filed():
            return await super().leave(run_id, since, letters, most)

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        with self._filed():
            return await super().inbox(run_id)

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        with self._filed():
            return await super().taken(run_id, keys)

    async def join(self) -> None:
        with self._filed() as present:
            present.append(self._joined_as)

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        with self._filed() as present:
            self._alive = {one.rpartition(" ")[0] for one in present if not is_gone(one.rpartition(" ")[0])}
            self.drop_claims(self._alive)
            try:
                return await super().claim(request)
            finally:
                self._alive = None

    def drop_claims(self, alive: Set[str]) -> None:
        self._claims = {run: claim for run, claim in self._claims.items() if claim.process in alive}

    async def living(self, processes: Collection[str]) -> Set[str]:
        if self._alive is not None:
            return self._alive & set(processes)
        with self._filed() as present:
            joined = {one.rpartition(" ")[0] for one in present}
            return {process for process in joined & set(processes) if not is_gone(process)}

    async def close(self) -> None:
        if not self._closed:
            with self._filed() as present:
                self.withdraw(present)
        await super().close()

    def withdraw(self, present: list[str]) -> None:
        present[:] = [one for one in present if one != self._joined_as]


class SeesOnlyThisProcess(Filed):
    async def living(self, processes: Collection[str]) -> Set[str]:
        return {this_process()} & set(await super().living(processes))


class TakesEveryProcessForThisOne(Filed):
    async def living(self, processes: Collection[str]) -> Set[str]:
        with self._filed() as present:
            return {process for process in processes if present and not is_gone(process)}


class BelievesTheDead(Filed):
    async def living(self, processes: Collection[str]) -> Set[str]:
        with self._filed() as present:
            return {one.rpartition(" ")[0] for one in present} & set(processes)


class BelievesWhoeverLives(Filed):
    """Looks at processes, not at who joined."""

    async def living(self, processes: Collection[str]) -> Set[str]:
        return {process for process in processes if not is_gone(process)}


class BelievesClaimsOfTheDead(Filed):
    def drop_claims(self, alive: Set[str]) -> None:
        pass


class KeepsClaimsInMemory(Filed):
    fields = tuple(name for name in FIELDS if name != "_claims")


class StaysWhenItCloses(Filed):
    def withdraw(self, present: list[str]) -> None:
        pass


class KeepsLettersInMemory(Filed):
    fields = tuple(name for name in FIELDS if name != "_letters")


class KeepsNotesInMemory(Filed):
    fields = tuple(name for name in FIELDS if name != "_notes")


class ForgetsWhatWasTaken(Filed):
    """Remembers taken letters in the process that took them, and not in the file."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        with self._filed():
            waiting = await MemoryStore.commit(self, commit)
            for letters in self._letters.values():
                for key in commit.taken:
                    letters.pop(key, None)
            return waiting


class KnowsOnlyItsOwnKeys(Filed):
    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        mine: set[str] = self.__dict__.setdefault("_mine", set())
        with self._filed():
            for letter in letters:
                if letter.key not in mine:
                    self._letters.get(run_id, {}).pop(letter.key, None)
                    mine.add(letter.key)
            return await MemoryStore.leave(self, run_id, since, letters, most)


class KeepsTagsInMemory(Filed):
    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        return await MemoryStore.tag(self, run_id, seq, tags, drop, by)


class RemovesInMemory(Filed):
    async def remove(self, removal: Removal) -> bool:
        return await MemoryStore.remove(self, removal)


class RemovesRunsInMemory(Filed):
    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        return await MemoryStore.remove_run(self, run_id, expected, known)


class ForgetsWhoBroughtBlobs(Filed):
    fields = tuple(name for name in FIELDS if name not in ("_marks", "_blob_marks"))


class SweepsWhatItSaw(Filed):
    """Looks which blobs were brought when a sweep begins, and not again."""

    async def mark(self, family: RunId) -> MarkedBlobs:
        marked = await super().mark(family)
        self._unused = set(marked.sizes)
        return marked

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        with self._filed():
            seen = [digest for digest in digests if digest in self._unused]
            return sum(len(self._blobs.pop((family, digest), b"")) for digest in seen)


class KnowsOnlyWhatItLetWait(Filed):
    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        return await MemoryStore.claim(self, request)


class BringsWhatItThinksIsMissing(Filed):
    """Looks for a blob first, and writes it together with the rest: in between it may be swept."""

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        there = await self.blobs(commit.head.family, [blob.digest for blob in commit.blobs])
        await asyncio.sleep(0.01)
        missing = tuple(blob for blob in commit.blobs if blob.digest not in there)
        return await super().commit(commit._replace(blobs=missing))


BUGS: list[tuple[type[Filed], str]] = [
    (SeesOnlyThisProcess, "test_another_process_lives_until_it_dies"),
    (TakesEveryProcessForThisOne, "test_another_process_lives_until_it_dies"),
    (BelievesTheDead, "test_another_process_lives_until_it_dies"),
    (BelievesWhoeverLives, "test_another_process_lives_until_it_closes_the_store"),
    (BelievesClaimsOfTheDead, "test_another_process_keeps_what_it_claimed_until_it_dies"),
    (KeepsClaimsInMemory, "test_no_two_processes_claim_the_same_run"),
    (StaysWhenItCloses, "test_another_process_lives_until_it_closes_the_store"),
    (KeepsLettersInMemory, "test_what_another_process_notes_and_leaves_is_there_after_its_death"),
    (KeepsNotesInMemory, "test_what_another_process_notes_and_leaves_is_there_after_its_death"),
    (ForgetsWhatWasTaken, "test_what_another_process_notes_and_leaves_is_there_after_its_death"),
    (KeepsLettersInMemory, "test_the_next_commit_returns_what_another_process_left"),
    (ForgetsWhatWasTaken, "test_the_next_commit_returns_what_another_process_left"),
    (KeepsTagsInMemory, "test_what_another_process_tags_and_removes_stays_so_after_its_death"),
    (RemovesInMemory, "test_what_another_process_tags_and_removes_stays_so_after_its_death"),
    (RemovesRunsInMemory, "test_what_another_process_tags_and_removes_stays_so_after_its_death"),
    (ForgetsWhoBroughtBlobs, "test_what_another_process_brings_since_the_mark_stays"),
    (SweepsWhatItSaw, "test_what_another_process_brings_since_the_mark_stays"),
    (BringsWhatItThinksIsMissing, "test_what_another_process_brings_while_this_one_sweeps_is_there"),
    (KnowsOnlyWhatItLetWait, "test_what_another_process_lets_wait_is_due_after_its_death"),
    (KnowsOnlyItsOwnKeys, "test_of_processes_that_leave_the_same_key_one_wins"),
]
