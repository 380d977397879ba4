"""What is known of a run from its commit files, read in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.checkpoint.store import Commit, Expected, Head, Letter
from holdfast.stores.common.seals import MODULUS, seal_entry, seal_record
from holdfast.stores.file.document import Outline
from holdfast.stores.file.place import FIRST, Place, full
from holdfast.stores.file.waking import Sign, sign_of


class Standing:
    """Where a run stands after the newest file that was read, and where the next commit goes.

    >>> from holdfast.engine.status import RunStatus
    >>> from holdfast.ids import CheckpointId, RunId
    >>> head = Head(RunId("r"), "W", RunId("r"), CheckpointId("c"), 1, 1, RunStatus.RUNNING, 0, 0)
    >>> standing = Standing()
    >>> standing.follow(FIRST, Outline(head, True, 1, (Letter("k", b"hello"),)))
    >>> standing.next, list(standing.letters), standing.used_of(["k", "other"])
    (Place(seq=2, round=0), ['k'], ['k'])
    """

    def __init__(self) -> None:
        self.head: Head | None = None
        self.newest: Place | None = None
        self.next = FIRST
        self.letters: dict[str, Letter] = {}
        """Those that wait."""
        self.noted: list[Place] | None = []
        """The files with the journal; None where it is not known when the head came to its checkpoint."""
        self.known_from = FIRST.seq
        """All keys that were taken in files from this seq on are known."""
        self.full: tuple[Place, ...] = ()
        """The last files with records, at most three: the rounds before each may still be to be emptied."""
        self.unsettled: tuple[Place, ...] = ()
        """The files with edits that may not be carried out yet, oldest first."""
        self.listed: tuple[Place, ...] = ()
        """The files that the newest file lists as unsettled, also those that were settled since."""
        self.listed_before: tuple[Place, ...] | None = ()
        """The files that the one before the newest lists: it is the newest again if that is moved away by hand.

        None where that file was not read.
        """
        self.base: Place | None = None
        """The last file that removed records."""
        self.content = 0
        """The sum of the seals of all records."""
        self.journal = 0
        """The sum of the seals of all notes since the head came to its checkpoint."""
        self._settled: set[Place] = set()
        self._taken: tuple[str, ...] = ()
        """What was taken since the last file with records: the next file says it again."""
        self._used: set[str] = set()

    @classmethod
    def before(cls, places: Sequence[Place]) -> Standing:
        """What names alone tell, for whoever begins with the last of them."""
        standing = cls()
        if places:
            standing.noted = standing.listed_before = None
            standing.known_from = places[-1].seq
            standing.full = tuple(full(places)[-2:])
        return standing

    @classmethod
    def after_end(cls, place: Place) -> Standing:
        """What is known behind a file that removed the run: as if there had never been one."""
        standing = cls()
        standing.newest, standing.next = place, place.next_life
        standing.known_from = standing.next.seq
        return standing

    @property
    def expected(self) -> Expected | None:
        """What a commit must expect."""
        return Expected(self.head.checkpoint_id, self.head.token) if self.head is not None else None

    def sign(self, run: str) -> Sign | None:
        """The sign by which the run is found when it is to be woken, if it is."""
        return None if self.head is None else sign_of(self.head, bool(self.letters), run)

    def settle(self, places: Iterable[Place]) -> None:
        """Know that the edits in these files are carried out, durably: the next file need not speak of them."""
        self._settled.update(places)
        self.unsettled = tuple(place for place in self.unsettled if place not in self._settled)

    @property
    def used(self) -> frozenset[str]:
        """The keys that were taken, as far as they are known."""
        return frozenset(self._used)

    def outline(
        self,
        commit: Commit,
        left: Iterable[Letter] = (),
        edits: bool = False,
        removes: bool = False,
        change: int = 0,
    ) -> Outline:
        """What the file of a commit says that comes next; or of one that leaves letters, edits or removes records.

        ``change`` is that of the sum of the seals of earlier records.
        """
        waiting = {**self.letters, **{letter.key: letter for letter in (*commit.letters, *left)}}
        taken = [key for key in commit.taken if waiting.pop(key, None) is not None]
        moved = commit.expected is None or commit.expected.checkpoint_id != commit.head.checkpoint_id
        noted = sum(seal_entry(commit.head.run_id, "note", *note) for note in commit.notes)
        return Outline(
            commit.head,
            moved,
            max((record.seq for record in commit.records), default=0),
            tuple(waiting.values()),
            (*self._taken, *taken),
            bool(commit.notes),
            (*self.unsettled, self.next) if edits else self.unsettled,
            self.next if removes else self.base,
            (self.content + change + sum(map(seal_record, commit.records))) % MODULUS,
            (noted if moved else self.journal + noted) % MODULUS,
        )

    def follow(self, place: Place, file: Outline) -> None:
        """Take in the next file."""
        if self.newest is not None:
            self.listed_before = self.listed
        self.listed = file.unsettled
        self.newest, self.head, self.next = place, file.head, place.after(file.last_seq)
        self._settled.intersection_update(file.unsettled)
        self.unsettled = tuple(one for one in file.unsettled if one not in self._settled)
        self.base = file.base
        self.content, self.journal = file.content, file.journal
        self.letters = {letter.key: letter for letter in file.letters}
        self._used.update(file.taken)
        if file.moved:
            self.noted = []
        if file.noted and self.noted is not None:
            self.noted.append(place)
        if self.next.seq > place.seq:
            self.full = (*self.full, place)[-3:]
            self._taken = ()
        else:
            self._taken = file.taken

    def pass_over(self, place: Place) -> None:
        """Go behind a file that was emptied; those that follow say again what matters of it."""
        self.newest, self.next = place, place.next_round

    def learn(self, since: int, taken: Iterable[str]) -> None:
        """Take in all keys that were taken in files from seq ``since`` on."""
        self._used.update(taken)
        self.known_from = since

    def used_of(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that wait or were taken, as far as is known."""
        return [key for key in keys if key in self.letters or key in self._used]
