"""Removes whole runs that have been over for some time, with the values that nobody else needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from holdfast.checkpoint.arguments import status_of
from holdfast.checkpoint.checkpoint_info import microseconds
from holdfast.checkpoint.derived_starts import expand
from holdfast.checkpoint.maintenance.prune import Freed, bytes_of, explain_unreadable, sweep
from holdfast.checkpoint.progress import Progress, run_to_end
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.store import Depth, Expected, Head, KnownMarks, RunQuery
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt, HeadMoved, InvalidArgument, WrongType
from holdfast.ids import RunId

_OVER = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.STOPPED})
_PAGE = 500
# A report names so many runs.
_MOST_IDS = 1000


@dataclass(frozen=True)
class PruneRunsReport:
    """The result of ``storage.prune_runs``: what it removed, or with ``dry_run`` would remove.

    >>> print(PruneRunsReport(2, 12, 1, 4096, ("a", "b"), 1))
    2 runs: 12 checkpoints and 1 blobs, 4,096 bytes, were removed; 1 old runs stay
    """

    runs: int
    """The number of runs that were removed."""
    checkpoints: int
    blobs: int
    bytes: int
    """Stored bytes of records and blobs that were freed."""
    run_ids: tuple[str, ...] = ()
    """The ids of the removed runs, of the first 1,000 of them."""
    skipped: int = 0
    """The number of old runs that stay: with a tag, with letters that wait, damaged, or moved on meanwhile."""
    dry_run: bool = False
    unreadable: tuple[str, ...] = ()
    """The ids of runs that are damaged, and stay; where not even their age can be read, they do not count as old."""

    def __str__(self) -> str:
        done = "would go" if self.dry_run else "were removed"
        what = f"{self.checkpoints:,} checkpoints and {self.blobs:,} blobs, {self.bytes:,} bytes, {done}"
        stay = f"; {self.skipped:,} old runs stay" if self.skipped else ""
        return f"{self.runs:,} runs: {what}{stay}{explain_unreadable(self.unreadable)}"


class OldRuns(NamedTuple):
    """Selects runs that are over: those with one of these statuses whose last change was before a time."""

    statuses: frozenset[RunStatus]
    before: int

    @classmethod
    def of(cls, older_than: Any, status: RunStatus | str | None) -> OldRuns:
        """Return the selection that the arguments ask for; raise if they make no sense."""
        if not isinstance(older_than, timedelta):
            raise WrongType(f"older_than={older_than!r}: give a timedelta, like timedelta(days=30)")
        if older_than < timedelta(0):
            raise InvalidArgument(f"older_than={older_than!r}: must not be negative")
        statuses = _OVER if status is None else frozenset([status_of(status)])
        if not statuses <= _OVER:
            over = ", ".join(sorted(status.value for status in _OVER))
            raise InvalidArgument(
                f"status={status!r}: only runs that are over can be pruned, with one of these: {over}; "
                f"'storage.delete_run' removes one that waits"
            )
        try:
            return cls(statuses, microseconds(datetime.now(UTC) - older_than))
        except OverflowError:
            return cls(statuses, 0)


async def prune_old_runs(
    catalog: RunCatalog, old: OldRuns, dry_run: bool, progress: Progress | None
) -> PruneRunsReport:
    """Remove old runs family by family, each with the blobs that no other run of its family names."""
    families: dict[RunId, list[Head]] = {}
    for head in await _find_old(catalog, old):
        families.setdefault(head.family, []).append(head)
    total, done = sum(map(len, families.values())), 0
    lost = await catalog.find_lost_runs() if families else ()
    freed, outcome = Freed(), _Outcome(lost)
    for heads in families.values():
        freed += await _prune_family(catalog, heads, dry_run, outcome)
        done += len(heads)
        if progress is not None:
            progress(done, total)
    gone = outcome.gone
    unreadable = tuple(dict.fromkeys([*lost, *map(str, outcome.unreadable)]))
    return PruneRunsReport(len(gone), *freed, tuple(gone[:_MOST_IDS]), total - len(gone), dry_run, unreadable)


class _Outcome:
    """Collects the runs that go, and those that are damaged."""

    def __init__(self, lost: tuple[str, ...]) -> None:
        self.lost = lost
        """The runs whose head cannot be read."""
        self.gone: list[RunId] = []
        self.unreadable: dict[RunId, CheckpointCorrupt] = {}


async def _find_old(catalog: RunCatalog, old: OldRuns) -> list[Head]:
    query = RunQuery(statuses=old.statuses, limit=_PAGE, updated_before=old.before)
    found: list[Head] = []
    while True:
        page = await catalog.store.runs(query)
        found += page
        if len(page) < _PAGE:
            return found
        query = query._replace(after=query.position_of(page[-1]))


async def _prune_family(
    catalog: RunCatalog, heads: Sequence[Head], dry_run: bool, outcome: _Outcome
) -> Freed:
    """Remove runs of one family, then the blobs that these alone named; one that is damaged stays."""
    freed, gone = Freed(), list[RunId]()
    try:
        for head in heads:
            try:
                freed += await run_to_end(_remove(catalog, head, dry_run, gone))
            except CheckpointCorrupt as error:
                catalog.left_out.tell(head, error)
                outcome.unreadable[head.run_id] = error
    finally:  # also if this is cancelled: nobody would look at a family again that has no run any more
        if gone:
            would_go = dict.fromkeys(gone) if dry_run else None
            swept = await run_to_end(sweep(catalog, heads[0].family, would_go, outcome.lost))
            freed += swept.freed
            outcome.unreadable.update(swept.unreadable)
        outcome.gone += gone
    return freed


async def _remove(catalog: RunCatalog, head: Head, dry_run: bool, gone: list[RunId]) -> Freed:
    """Remove a run and add it to ``gone``, unless it moved on, has a tag, or has letters that wait."""
    store = catalog.store
    stored = await store.records(head.run_id, 1, head.seq, Depth.HEADERS)
    if any(one.tags for one in expand(stored)) or await store.inbox(head.run_id):
        return Freed()
    size = await bytes_of(store, head.run_id, [record.seq for record in stored])
    if not dry_run:
        known = KnownMarks(0, {record.seq: record.tags for record in stored if record.tags})
        try:
            removed = await store.remove_run(head.run_id, Expected(head.checkpoint_id, head.token), known)
        except HeadMoved:  # it was resumed, or someone else removed it
            return Freed()
        if not removed:  # someone sent it a letter just now, or gave it a tag
            return Freed()
    gone.append(head.run_id)
    return Freed(len(expand(stored)), 0, size)
