"""The targets, and the verdict of one run on each: ratios of its medians, reported and never asserted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.measure import BESIDE, Row, Table
from bench.resuming import AFTER_W3, LIST, OPEN, PAGE
from bench.sides import AGENT, AGENT_STORED, OURS, OURS_BUSY, OURS_FILE, OURS_KEYED, OURS_MEMORY, OURS_STORED
from bench.starts import HELP
from bench.starts import LIST as LIST_RUNS
from bench.workloads.model import UNITS, WITHOUT_COPY

AF, AF_FILE, LG, LG_SQLITE = "agent-framework", "agent-framework-file", "langgraph", "langgraph-sqlite"
DELTA = "langgraph-delta"
ROWS, HOP, BARE = "limit: same rows", "limit: same rows + hop", "limit: bare transaction"
ZSTD = "limit: zstd-1 + fsync"
APPEND, TASK = "limit: append + fdatasync", "limit: asyncio task"


PASS, MISS = "PASS", "MISS"
BUSY, FEW = "busy: no verdict", "too few rounds: no verdict"
ENOUGH_ROUNDS = 5
"""The rounds that a verdict needs behind it."""


@dataclass(frozen=True)
class Verdict:
    """A target with what was measured of it; without a word, a comparison that is only reported."""

    workload: str
    word: str
    """`PASS`, `MISS`, `BUSY`, `FEW` or ""."""
    target: str
    measured: str


class Run:
    """All tables of one run, by workload and side."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = {table.workload.id: table for table in tables}

    def rounds(self, workload: str) -> int:
        """Return the fewest rounds of a workload and its variants, which are named `<workload>-<variant>`."""
        family = workload.partition("-")[0]
        return min(table.rounds for id, table in self._tables.items() if id.partition("-")[0] == family)

    def rows(self, workload: str) -> Sequence[Row]:
        """Return the rows of a workload, none if it was not measured."""
        table = self._tables.get(workload)
        return table.rows if table else ()

    def row(self, workload: str, side: str) -> Row | None:
        """Return one row, or None if it was not measured."""
        return next((row for row in self.rows(workload) if row.side == side), None)

    def seconds(self, workload: str, side: str, figure: str = "") -> float | None:
        """Return a median in seconds, or None if it was not measured."""
        row = self.row(workload, side)
        if row is None:
            return None
        value = row.figure(figure) if figure else row.median
        return None if value is None else value / UNITS[self._tables[workload].workload.unit]


def _at_least(
    workload: str, target: str, factor: float, theirs: float | None, ours: float | None
) -> Iterator[Verdict]:
    """Judge that theirs is at least `factor` times ours."""
    if theirs and ours:
        ratio = theirs / ours
        yield Verdict(workload, PASS if ratio >= factor else MISS, target, f"{ratio:,.1f} times")


def _at_most(
    workload: str, target: str, factor: float, ours: float | None, other: float | None
) -> Iterator[Verdict]:
    """Judge that ours is at most `factor` times another one."""
    if ours and other:
        ratio = ours / other
        told = f"{ratio:,.2f} times" if ratio >= 0.1 else f"{ratio:.3f} times"
        yield Verdict(workload, PASS if ratio <= factor else MISS, target, told)


def _compare(workload: str, what: str, ours: float | None, other: float | None) -> Iterator[Verdict]:
    if ours and other:
        yield Verdict(workload, "", what, f"{ours / other:,.2f} times")


def _faster_than(
    run: Run, workload: str, side: str, others: Callable[[Row], bool], target: str
) -> Iterator[Verdict]:
    ours = run.row(workload, side)
    peers = [row for row in run.rows(workload) if row.is_peer and others(row)]
    if ours and peers:
        best = min(peers, key=lambda row: row.median)
        word = PASS if ours.median < best.median else MISS
        yield Verdict(
            workload, word, target, f"{best.median / ours.median:,.1f} times faster than {best.side}"
        )


def _stores(row: Row) -> bool:
    return row.stores in ("disk", "synced") and not row.side.endswith("-exit")


def w1(run: Run) -> Iterator[Verdict]:
    """No storage."""
    ours = run.seconds("W1", OURS)
    for peer in (AF, LG):
        yield from _at_least("W1", f"at least 10 times faster than {peer}", 10, run.seconds("W1", peer), ours)
    target = "faster than every other peer that offers persistence"
    yield from _faster_than(run, "W1", OURS, lambda row: row.side in ("burr", "llama-index"), target)
    yield from _compare("W1", "a superstep in asyncio tasks", ours, run.seconds("W1", TASK))


def w2(run: Run) -> Iterator[Verdict]:
    """A durable checkpoint each."""
    ours = run.seconds("W2", OURS_STORED)
    target = "on SQLite FULL within 1.5 times the same rows through the same hop"
    yield from _at_most("W2", target, 1.5, ours, run.seconds("W2", HOP))
    yield from _at_most("W2", "on files within 1.5 times SQLite", 1.5, run.seconds("W2", OURS_FILE), ours)
    busy = run.seconds("W2", OURS_BUSY)
    yield from _compare(
        "W2", "the same where the event loop also serves others", busy, run.seconds("W2", HOP)
    )
    yield from _at_most("W2", "under keys below 1.4 times without", 1.4, run.seconds("W2", OURS_KEYED), ours)
    target = "faster than every durable peer, also those that do not sync"
    yield from _faster_than(run, "W2", OURS_STORED, _stores, target)
    yield from _compare("W2", "a superstep in transactions of the same rows", ours, run.seconds("W2", ROWS))
    yield from _compare("W2", "a superstep in bare SQLite FULL transactions", ours, run.seconds("W2", BARE))
    yield from _compare("W2", "a superstep in appends with fdatasync", ours, run.seconds("W2", APPEND))


def w3(run: Run) -> Iterator[Verdict]:
    """A large log that nobody touches."""
    ours = run.seconds("W3", OURS_STORED)
    mine = run.row("W3", OURS_STORED)
    for peer in (AF_FILE, LG_SQLITE):
        target = f"after the first superstep at least 300 times faster than {peer}"
        yield from _at_least("W3", target, 300, run.seconds("W3", peer), ours)
        row = run.row("W3", peer)
        if mine and row and mine.counted and row.counted:
            target = f"after the first superstep at least 1,000 times fewer bytes than {peer}"
            yield from _at_least("W3", target, 1000, row.counted.written_later, mine.counted.written_later)
    keyed, first = (run.seconds("W3", side, "first") for side in (OURS_KEYED, OURS_STORED))
    yield from _at_most("W3", "the first superstep under keys within 1.3 times without", 1.3, keyed, first)
    target = "the first superstep within 2 times zstd-1 + write + fsync"
    yield from _at_most("W3", target, 2, run.seconds("W3", OURS_STORED, "first"), run.seconds("W3", ZSTD))


def w4(run: Run) -> Iterator[Verdict]:
    """A history that grows."""
    early, late = (run.seconds("W4", OURS_STORED, name) for name in ("first 50", "last 50"))
    yield from _at_most("W4", "flat: the last 50 within 1.3 times the first 50", 1.3, late, early)
    ours, peer, delta = (run.row("W4", side) for side in (OURS_STORED, LG_SQLITE, DELTA))
    if ours and peer:
        target = f"stored bytes at least 50 times fewer than {LG_SQLITE}"
        yield from _at_least("W4", target, 50, peer.stored, ours.stored)
    if ours and delta:
        yield from _at_least("W4", f"faster than {DELTA}", 1, delta.median, ours.median)
        yield from _at_least("W4", f"smaller than {DELTA}", 1, delta.stored, ours.stored)


def w5(run: Run) -> Iterator[Verdict]:
    """A wide fan."""
    ours = run.seconds("W5", OURS_STORED)
    for peer in (AF_FILE, LG_SQLITE):
        target = f"journal on, at least 5 times faster than {peer}"
        yield from _at_least("W5", target, 5, run.seconds("W5", peer), ours)
    for peer in (AF, LG):
        yield from _compare(
            "W5", f"{peer} without storage, in rounds of ours with", run.seconds("W5", peer), ours
        )
        target = f"without storage at least 5 times faster than {peer}"
        yield from _at_least("W5", target, 5, run.seconds("W5", peer), run.seconds("W5", OURS))


def w6(run: Run) -> Iterator[Verdict]:
    """A new process."""
    opened = run.seconds("W6", OURS_STORED, OPEN)
    for name, figure in (("W3", AFTER_W3), ("W4", "")):
        target = f"after {name}, the first superstep within 1.5 times import and opening an empty store"
        yield from _at_most("W6", target, 1.5, run.seconds("W6", OURS_STORED, figure), opened)
    for peer in (AF_FILE, LG_SQLITE):
        ours, its = (run.seconds("W6", side, PAGE) for side in (OURS_STORED, peer))
        target = f"listing as many checkpoints as W4 has supersteps at least 20 times faster than {peer}"
        yield from _at_least("W6", target, 20, its, ours)
        ours, its = (run.seconds("W6", side, LIST) for side in (OURS_STORED, peer))
        yield from _compare(
            "W6", f"listing all: twice as many as {peer} has, for starts are kept too", its, ours
        )


def w7(run: Run) -> Iterator[Verdict]:
    """Many runs."""
    ours, memory, rows = (run.seconds("W7", side) for side in (OURS_STORED, OURS_MEMORY, ROWS))
    if memory and rows:
        target = "within 1.5 times the same in memory and the same rows in the same transactions, together"
        yield from _at_most("W7", target, 1.5, ours, memory + rows)
    target = "faster than every durable peer, also those that do not sync"
    yield from _faster_than(run, "W7", OURS_STORED, _stores, target)
    yield from _compare("W7", f"{AF_FILE}, in supersteps of ours", run.seconds("W7", AF_FILE), ours)
    told = f"{AF_FILE}, in supersteps of our files"
    yield from _compare("W7", told, run.seconds("W7", AF_FILE), run.seconds("W7", OURS_FILE))
    yield from _at_most("W7", "on files within 2 times SQLite", 2, run.seconds("W7", OURS_FILE), ours)
    told = "a superstep where the event loop also serves others"
    yield from _compare("W7", told, run.seconds("W7", OURS_BUSY), ours)
    few, many = run.seconds("W7-few", OURS_STORED), run.seconds("W7-many", OURS_STORED)
    yield from _at_most("W7", "cost per superstep falling or flat from 10 to 1,000 runs", 1.1, many, few)
    default = run.seconds("W7-default", OURS_STORED)
    told = "the same with 1,000 runs where the garbage collector is as Python has it"
    yield from _compare("W7", told, default, few)


def w8_w9(run: Run) -> Iterator[Verdict]:
    """Large state of which little changes."""
    beside = run.seconds("W8", OURS_STORED, BESIDE)
    target = "with append below 2 times W2 (run beside it)"
    yield from _at_most("W8", target, 2, run.seconds("W8", OURS_STORED), beside)
    # The handler's own copy alone takes more than a twentieth of rewriting: with it no engine could do so.
    added = (run.seconds("W8-whole", side, WITHOUT_COPY) for side in (OURS_STORED, ZSTD))
    target = (
        "with the whole text queued again, what is added to the handler's own copy is below a twentieth of what "
        "rewriting (zstd-1, write, fsync) adds to it"
    )
    yield from _at_most("W8-whole", target, 0.05, *added)
    ours = run.seconds("W8-whole", OURS_STORED)
    told = "the same with the handler's own copy in both"
    yield from _compare("W8-whole", told, ours, run.seconds("W8-whole", ZSTD))
    for peer in (AF_FILE, LG_SQLITE):
        told = f"the same in rewritings by {peer} (its W8, with the copy that its handler or reducer makes)"
        yield from _compare("W8-whole", told, ours, run.seconds("W8", peer))
    beside = run.seconds("W9", OURS_STORED, BESIDE)
    yield from _at_most(
        "W9", "within 1.5 times W2 (run beside it)", 1.5, run.seconds("W9", OURS_STORED), beside
    )


def w11(run: Run) -> Iterator[Verdict]:
    """Durable calls of an agent."""
    ours, direct = run.seconds("W11", AGENT_STORED), run.seconds("W11", AGENT)
    if ours and direct:
        word = PASS if ours - direct < 0.001 else MISS
        target = f"less than 1 ms a call more than {AGENT} alone, each call durable"
        yield Verdict("W11", word, target, f"{(ours - direct) * 1e3:.2f} ms more")


def imported(run: Run) -> Iterator[Verdict]:
    """The import."""
    seconds = run.seconds("import", OURS)
    if seconds:
        word = PASS if seconds < 0.06 else MISS
        yield Verdict("import", word, "below 60 ms", f"{seconds * 1e3:.1f} ms")


def started(run: Run) -> Iterator[Verdict]:
    """Starts of the command."""
    for name in (HELP, LIST_RUNS):
        seconds = run.seconds("start", name)
        if seconds:
            word = PASS if seconds < 0.15 else MISS
            yield Verdict("start", word, f"`{name}` below 150 ms", f"{seconds * 1e3:.1f} ms")


def verdicts(tables: Sequence[Table], busy: bool = False) -> list[Verdict]:
    """Return all verdicts that the tables allow; none passes or misses on a busy machine, or after few rounds."""
    run = Run(tables)
    parts = (w1, w2, w3, w4, w5, w6, w7, w8_w9, w11, imported, started)
    return [_withhold(verdict, run, busy) for part in parts for verdict in part(run)]


def _withhold(verdict: Verdict, run: Run, busy: bool) -> Verdict:
    if not verdict.word:
        return verdict
    if busy:
        return replace(verdict, word=BUSY)
    return verdict if run.rounds(verdict.workload) >= ENOUGH_ROUNDS else replace(verdict, word=FEW)
