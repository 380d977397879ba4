"""The parts of a store in memory, as somebody has them who can write everything there: swapped, and put back."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import combinations
from typing import Any, NamedTuple

from holdfast.checkpoint.store import (
    Commit,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    Note,
    Record,
)
from holdfast.ids import RunId
from holdfast.stores.memory import MemoryStore

_TABLES = ("_heads", "_records", "_blobs", "_notes", "_letters", "_events")
_ITEMS: dict[str, type[Any]] = {"_heads": Head, "_records": Record, "_notes": Note, "_letters": Letter}
_NOT_STORED = ("sound", "tagged_by", "seq")
USED = "used"
"""Stands for a used key where the letters of a run lie: there is nothing but the key."""


class Place(NamedTuple):
    """An item of a store, or one field of it."""

    table: str
    key: Any
    field: str = ""

    @property
    def run(self) -> str:
        """The run to which it belongs."""
        return self.key if self.table == "_heads" else self.key[0]

    def __str__(self) -> str:
        return f"{self.table[1:]} {self.key!r} {self.field}".strip()


class TamperCase(NamedTuple):
    """A change to a store in memory."""

    name: str
    make: Callable[[MemoryStore], None]
    runs: frozenset[str]
    """The runs whose items are changed."""


def copy_store(store: MemoryStore) -> MemoryStore:
    """Return a store with the same items, which can be changed without the first one."""
    made = copy(store)
    for table in (*_TABLES, "_seqs", "_places"):
        content = getattr(store, table)
        setattr(made, table, {key: copy(value) for key, value in content.items()})
    return made


def list_items(store: MemoryStore) -> Iterator[Place]:
    """Yield all items."""
    for table in ("_heads", "_records", "_blobs"):
        yield from (Place(table, key) for key in getattr(store, table))
    for table in ("_notes", "_letters"):
        for run, items in getattr(store, table).items():
            yield from (Place(table, (run, key)) for key in items)
    for run, rows in store._events.items():
        yield from (Place("_events", (run, number)) for number in range(len(rows)))


def list_places(store: MemoryStore) -> Iterator[Place]:
    """Yield all items, and the fields of each."""
    for place in list_items(store):
        yield place
        if place.table in _ITEMS and read_place(store, place) != USED:
            fields = _ITEMS[place.table]._fields
            yield from (place._replace(field=field) for field in fields if field not in _NOT_STORED)


def read_place(store: MemoryStore, place: Place) -> Any:
    """Return what stands there; None if nothing does."""
    table = getattr(store, place.table)
    if place.table in ("_notes", "_letters"):
        items = table.get(place.key[0], {})
        item = (items[place.key[1]] or USED) if place.key[1] in items else None
    elif place.table == "_events":
        rows = table.get(place.key[0], [])
        item = rows[place.key[1]] if place.key[1] < len(rows) else None
    else:
        item = table.get(place.key)
    return getattr(item, place.field) if place.field and item is not None else item


def write_place(store: MemoryStore, place: Place, value: Any) -> None:
    """Put something there, with the run, seq and key of that place in all columns that are plain."""
    table = getattr(store, place.table)
    if value == USED:
        value = None
    elif place.field:
        value = read_place(store, place._replace(field=""))._replace(**{place.field: value})
    elif place.table == "_heads":
        value = value._replace(run_id=RunId(place.key))
    elif place.table == "_records":
        value = value._replace(run_id=place.key[0], seq=place.key[1])
    elif place.table in ("_notes", "_letters"):
        value = value._replace(key=place.key[1])
    if place.table in ("_notes", "_letters"):
        table.setdefault(place.key[0], {})[place.key[1]] = value
    elif place.table == "_events":
        rows: list[EventRow] = table.setdefault(place.key[0], [])
        rows[place.key[1] : place.key[1] + 1] = [value]
    else:
        table[place.key] = value
    if place.table == "_records":
        run, seq = place.key
        store._places[value.checkpoint_id] = run, seq
        store._seqs[run] = sorted({*store._seqs.get(run, ()), seq})


def make_swaps(store: MemoryStore) -> Iterator[TamperCase]:
    """Yield a change for any two items, or fields of items, of one kind."""
    for one, other in combinations(list_places(store), 2):
        if one.table != other.table or one.field != other.field:
            continue
        mine, theirs = read_place(store, one), read_place(store, other)
        if mine == theirs:
            continue

        def swap(
            copy: MemoryStore, one: Place = one, other: Place = other, mine: Any = mine, theirs: Any = theirs
        ) -> None:
            write_place(copy, one, theirs)
            write_place(copy, other, mine)

        yield TamperCase(f"swap {one} and {other}", swap, frozenset((one.run, other.run)))


def make_copies(store: MemoryStore) -> Iterator[TamperCase]:
    """Yield a change for each note, letter and used key, which puts it into another run under its own key."""
    for place in list_items(store):
        if place.table not in ("_notes", "_letters"):
            continue
        for run in store._heads.keys() - {place.run}:

            def put(copy: MemoryStore, place: Place = place, run: RunId = run) -> None:
                item = read_place(copy, place)
                write_place(copy, place._replace(key=(run, place.key[1])), item)

            yield TamperCase(f"{place} copied to {run}", put, frozenset((place.run, run)))


def make_removals(store: MemoryStore) -> Iterator[TamperCase]:
    """Yield a change for each item, which takes it away."""
    for place in list_items(store):

        def remove(copy: MemoryStore, place: Place = place) -> None:
            table = getattr(copy, place.table)
            if place.table in ("_heads", "_records", "_blobs"):
                del table[place.key]
            else:
                del table[place.key[0]][place.key[1]]
            if place.table == "_records":
                copy._seqs[place.key[0]].remove(place.key[1])

        yield TamperCase(f"remove {place}", remove, frozenset((place.run,)))


class RememberingStore(MemoryStore):
    """A store in memory that remembers what it held before each change."""

    def __init__(self) -> None:
        super().__init__(keyed=True)
        self.earlier: list[MemoryStore] = []

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        self._remember()
        return await super().commit(commit)

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        self._remember()
        return await super().leave(run_id, since, letters, most)

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        self._remember()
        return await super().use_up(run_id, keys)

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        self._remember()
        return await super().remove_run(run_id, expected, known)

    def _remember(self) -> None:
        earlier, self.earlier = self.earlier, []
        self.earlier = [*earlier, copy_store(self)]


def make_replays(store: RememberingStore) -> Iterator[TamperCase]:
    """Yield changes that put back all that a store held at one time, or all of one run, or one item of that time."""
    for number, earlier in enumerate(store.earlier):
        yield _put_back(f"all of before change {number}", earlier, list(store._heads | earlier._heads))
        for run in earlier._heads:
            yield _put_back(f"run {run} of before change {number}", earlier, [run])
        for place in list_items(earlier):
            if place.table == "_blobs" or read_place(earlier, place) == read_place(store, place):
                continue
            if place.table == "_letters" and read_place(store, place) == USED:
                continue  # one that was taken by the same run: SECURITY.md says that it can be put back

            def put(copy: MemoryStore, place: Place = place, earlier: MemoryStore = earlier) -> None:
                write_place(copy, place, read_place(earlier, place))

            yield TamperCase(f"{place} of before change {number}", put, frozenset((place.run,)))


def _put_back(name: str, earlier: MemoryStore, runs: list[Any]) -> TamperCase:
    def put(store: MemoryStore) -> None:
        for table in _TABLES:
            content = getattr(store, table)
            for key in list(content):
                if (key[0] if isinstance(key, tuple) else key) in runs:
                    del content[key]
            for key, value in getattr(earlier, table).items():
                if (key[0] if isinstance(key, tuple) else key) in runs:
                    content[key] = copy(value)
        for run in runs:
            store._seqs[run] = list(earlier._seqs.get(run, ()))
        for checkpoint_id, place in earlier._places.items():
            if place[0] in runs:
                store._places[checkpoint_id] = place

    return TamperCase(name, put, frozenset(runs))
