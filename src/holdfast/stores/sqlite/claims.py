"""Finds the rows of runs that a host should go on with, and keeps them from other hosts for a moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Set
from typing import Any, NamedTuple

from holdfast.checkpoint.ownership import is_held, process_of, this_process
from holdfast.checkpoint.store import ClaimRequest, Head
from holdfast.errors import CheckpointCorrupt
from holdfast.stores.common.run_query import latest_end, make_claim
from holdfast.stores.sqlite.notes_and_letters import has_table
from holdfast.stores.sqlite.row_reader import HEAD_COLUMNS, check_head_row

# All that these read is in the index of the status.
_DRIVEN = "FROM runs WHERE namespace = ? AND status = 'running' AND status <> 'completed'"
_PROCESSES = f"SELECT DISTINCT substr(owner, 1, instr(owner || '#', '#') - 1) {_DRIVEN}"
_OWNERS = f"SELECT owner {_DRIVEN} AND owner >= ? AND owner < ?"
_CLAIMANTS = "SELECT DISTINCT process FROM claims WHERE until > ?"
_LETTERS = "(SELECT count(*) FROM letters WHERE letters.run = runs.id AND data IS NOT NULL)"
_SELECT = f"SELECT id, {_LETTERS}, {HEAD_COLUMNS} FROM runs WHERE"
# A + keeps SQLite from an index that most runs share: that of the time, or of letters, is better.
_WITH_LETTERS = (
    "+namespace = :namespace AND +status <> 'running' AND id IN (SELECT run FROM letters WHERE data IS NOT NULL) "
    f"AND (letters_known = 0 OR letters_known < {_LETTERS})"
)
_IN_TIME = f"namespace = :namespace AND +status = 'waiting' AND wake_at <= :time AND NOT ({_WITH_LETTERS})"
_IS_LOST = "holdfast_is_lost"
_IS_LEFT_OUT = "holdfast_is_left_out"
_ABANDONED = f"namespace = :namespace AND status = 'running' AND status <> 'completed' AND {_IS_LOST}(owner)"
_UNCLAIMED = (
    "NOT EXISTS (SELECT 1 FROM claims WHERE claims.run = runs.id AND claims.until > :time AND claims.until <= :until "
    f"AND claims.checkpoint = runs.checkpoint AND claims.token = runs.token AND claims.letters = {_LETTERS} "
    f"AND NOT {_IS_LOST}(claims.process))"
)
_ADD = "INSERT OR REPLACE INTO claims (run, checkpoint, token, letters, until, process) VALUES (?, ?, ?, ?, ?, ?)"
_DROP_OLD = "DELETE FROM claims WHERE until <= ?"
_GREATEST = 2**63 - 1


class LostOwners(NamedTuple):
    """Those who drive runs or claimed them and do not live: all of dead processes, and some of this process."""

    processes: Set[str] = frozenset()
    owners: Set[str] = frozenset()

    def has(self, owner: Any) -> bool:
        """Return True if an owner does not live."""
        return isinstance(owner, str) and (owner in self.owners or process_of(owner) in self.processes)


class _Candidate(NamedTuple):
    number: int
    letters: int
    head: Head


def find_processes(connection: sqlite3.Connection, namespace: str, request: ClaimRequest) -> set[str]:
    """Return the processes that claimed runs or, if that is asked for, drive them; of runs only an index is read."""
    rows = connection.execute(_PROCESSES, (namespace,)).fetchall() if request.abandoned else []
    if has_table(connection, "claims"):
        rows += connection.execute(_CLAIMANTS, (request.time,)).fetchall()
    return {process for (process,) in rows if isinstance(process, str)}


def find_dropped_owners(connection: sqlite3.Connection, namespace: str) -> set[str]:
    """Return the owners of this process that do not hold their runs any more; reads an index."""
    first = f"{this_process()}#"
    owners = connection.execute(_OWNERS, (namespace, first, first[:-1] + chr(ord("#") + 1)))
    return {owner for (owner,) in owners if not is_held(owner)}


def find_claimable(
    connection: sqlite3.Connection, namespace: str, request: ClaimRequest, lost: LostOwners
) -> list[Head] | None:
    """Return the runs that a request asks for; None if the database lacks tables that a writer adds."""
    if not has_table(connection, "claims"):
        return None
    return [candidate.head for candidate in _find(connection, namespace, request, lost)]


def add_claims(
    connection: sqlite3.Connection, namespace: str, request: ClaimRequest, lost: LostOwners
) -> list[Head]:
    """Find the runs that a request asks for, and claim them in the open transaction."""
    found = _find(connection, namespace, request, lost)
    connection.execute(_DROP_OLD, (request.time,))
    for number, letters, head in found:
        claim = make_claim(head, letters, request)
        connection.execute(_ADD, (number, bytes.fromhex(claim.checkpoint_id), *claim[1:]))
    return [candidate.head for candidate in found]


def _find(
    connection: sqlite3.Connection, namespace: str, request: ClaimRequest, lost: LostOwners
) -> list[_Candidate]:
    fitting, values = _make_fitting(request)
    values |= {
        "namespace": namespace,
        "time": min(request.time, _GREATEST),
        "until": min(latest_end(request), _GREATEST),
    }
    kinds = [(_WITH_LETTERS, "run"), (_IN_TIME, "wake_at, run")]
    if request.abandoned and (lost.processes or lost.owners):
        kinds.append((_ABANDONED, "created, run"))
    connection.create_function(_IS_LOST, 1, lost.has)
    unclaimed = _UNCLAIMED if request.lease else "1"
    if request.besides:
        left_out = {(run, bytes.fromhex(place)) for run, place in request.besides.items()}
        connection.create_function(_IS_LEFT_OUT, 2, lambda *standing: standing in left_out)
        unclaimed += f" AND NOT {_IS_LEFT_OUT}(run, checkpoint)"
    found: list[_Candidate] = []
    for condition, order in kinds:
        sql = f"{_SELECT} {condition} AND ({fitting}) AND {unclaimed} ORDER BY {order} LIMIT :limit"
        found += _read(connection, sql, values, request.limit - len(found))
    return found


def _read(connection: sqlite3.Connection, sql: str, values: dict[str, Any], limit: int) -> list[_Candidate]:
    """Read at most so many candidates, and further ones in place of rows that are damaged."""
    asked, namespace = limit, values["namespace"]
    while limit > 0:
        rows = connection.execute(sql, {**values, "limit": asked}).fetchall()
        found = []
        for number, letters, *row in rows:
            try:
                found.append(_Candidate(number, letters, check_head_row(namespace, tuple(row))))
            except CheckpointCorrupt:  # read_damaged reports it
                continue
        if len(rows) < asked or len(found) >= limit:
            return found[:limit]
        asked *= 2
    return []


def _make_fitting(request: ClaimRequest) -> tuple[str, dict[str, Any]]:
    """Return the condition that a run is of a build that is asked for, and its values."""
    conditions, values = ["0"], dict[str, Any]()
    for number, (name, builds) in enumerate(request.workflows.items()):
        if builds is None and not request.fits:
            continue
        values[f"workflow{number}"] = name
        condition = f"workflow = :workflow{number}"
        if builds is not None:
            named = {f"build{number}_{index}": build for index, build in enumerate(sorted({"", *builds}))}
            values |= named
            is_one = "IN" if request.fits else "NOT IN"
            condition += f" AND fingerprint {is_one} ({', '.join(f':{key}' for key in named)})"
        conditions.append(f"({condition})")
    return " OR ".join(conditions), values
