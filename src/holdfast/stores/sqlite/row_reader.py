"""Reads rows as heads, records and blobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.store import Damage, Depth, Head, Keyframe, Record, RunQuery
from holdfast.engine._fast import make_tuple
from holdfast.engine.status import RunStatus
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, Digest, RunId
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.disk import IrregularFile
from holdfast.stores.common.head_check import check_head_fields
from holdfast.stores.common.seals import seal_head, seal_record
from holdfast.stores.sqlite.row_writer import FIND_FAMILY, get_prefix

HEAD_COLUMNS = (
    "run, workflow, family, checkpoint, seq, token, status, created, updated, owner, wake_at, takeovers, reason, "
    "retention, waiting_for, letters_known, fingerprint, by, traceback, origin, restored, content, seal"
)
"""The columns that ``check_head_row`` takes."""
_HEADS = f"SELECT {HEAD_COLUMNS} FROM runs WHERE namespace = ?"
_ONE_HEAD = _HEADS + " AND run = ?"
_FIND_CHECKPOINT = (
    "SELECT runs.run, checkpoints.seq FROM checkpoints JOIN runs ON runs.id = checkpoints.run "
    "WHERE find = ? AND checkpoints.checkpoint = ? AND namespace = ?"
)
_WHERE_OF_RUN = (
    "WHERE run = (SELECT id FROM runs WHERE namespace = ? AND run = ?) AND seq BETWEEN ? AND ? ORDER BY seq"
)
_FROM_WITH_KEYFRAMES = f"FROM checkpoints c LEFT JOIN keyframes k ON k.checkpoint = c.id {_WHERE_OF_RUN}"
# Only the columns that are needed: the cost of a list of a thousand rows is columns.
_RECORDS = {
    Depth.HEADERS: f"SELECT checkpoint, seq, header, new_bytes FROM checkpoints {_WHERE_OF_RUN}",
    Depth.CHANGES: "SELECT c.checkpoint, seq, header, new_bytes, c.changes, k.changes, k.cut "
    + _FROM_WITH_KEYFRAMES,
    Depth.ALL: "SELECT c.checkpoint, seq, header, new_bytes, c.changes, k.changes, k.cut, c.small_values, "
    "k.small_values, seal " + _FROM_WITH_KEYFRAMES,
}
_TAGS = (
    "SELECT seq, tag, tags.by FROM tags JOIN checkpoints ON checkpoints.id = tags.checkpoint WHERE run = "
    "(SELECT id FROM runs WHERE namespace = ? AND run = ?) AND seq BETWEEN ? AND ? ORDER BY tags.rowid"
)
# The + keeps SQLite from the index of the status, which most runs may share: that of the time or of letters is better.
_IN_FAMILY = (
    "id IN (SELECT id FROM runs WHERE namespace = :namespace AND run = :family AND family = :family "
    "UNION ALL SELECT id FROM runs WHERE namespace = :namespace AND family = :family AND family <> run)"
)
_TIMES = {
    "created_after": "created >= :created_after",
    "created_before": "created < :created_before",
    "updated_after": "updated >= :updated_after",
    "updated_before": "updated < :updated_before",
}
# Behind the id of a checkpoint, which has 64 digits, and a space.
_FORKED_FROM = "substr(origin, 66) = :forked_from AND family <> run"
_BEHIND_AGE = "(created, run) > (:after_time, :after_run)"
# The first part is what the index can be searched by.
_BEHIND_CHANGE = "updated <= :after_time AND (updated < :after_time OR run > :after_run)"
_NEWEST_FIRST = "updated DESC, run"
_FUNCTION = "holdfast_has_text"
# As bytes, for text may be damaged, and a reason may have half a character. The tags of all runs are few.
_HAS_TEXT = (
    f"({_FUNCTION}(CAST(run AS BLOB), :text) OR {_FUNCTION}(CAST(workflow AS BLOB), :text) "
    f"OR {_FUNCTION}(reason, :text) OR id IN (SELECT checkpoints.run FROM tags "
    f"JOIN checkpoints ON checkpoints.id = tags.checkpoint WHERE {_FUNCTION}(tag, :text)))"
)
_BLOB = "SELECT size, data FROM blobs WHERE family = ? AND find = ? AND digest = ?"
_GREATEST = 2**63 - 1


def read_head(connection: sqlite3.Connection, namespace: str, run_id: RunId) -> Head | None:
    """Return the head of a run, or None if it is not in the store."""
    row = connection.execute(_ONE_HEAD, (namespace, run_id)).fetchone()
    return None if row is None else check_head_row(namespace, row)


def read_damaged(connection: sqlite3.Connection, namespace: str) -> list[Damage]:
    """Return the runs whose row is damaged."""
    found = []
    for row in connection.execute(_HEADS, (namespace,)):
        try:
            check_head_row(namespace, row)
        except CheckpointCorrupt as error:
            found.append(Damage(RunId(row[0]) if isinstance(row[0], str) else None, str(error)))
    return found


def check_head_row(namespace: str, row: tuple[Any, ...]) -> Head:
    """Return the head in a row; raise ``CheckpointCorrupt`` if it is not what was written."""
    *fields, content, seal = row
    try:
        head = check_head_fields(_make_head(tuple(fields)))
        if seal_head(namespace, head, content) != seal:
            raise ValueError("it is not what was written")
        return head
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(
            f"the row of run {row[0]!r} is damaged ({error}): 'await storage.repair()' makes a new one from the "
            f"checkpoints of the run; or restore the database from a backup"
        ) from error


def _make_head(row: tuple[Any, ...]) -> Head:
    (
        run,
        workflow,
        family,
        checkpoint,
        seq,
        token,
        status,
        created,
        updated,
        owner,
        wake_at,
        takeovers,
        reason,
        retention,
        waiting_for,
        letters_known,
        fingerprint,
        by,
        traceback,
        origin,
        restored,
    ) = row
    return Head(
        run,
        workflow,
        family,
        CheckpointId(checkpoint.hex()),
        seq,
        token,
        RunStatus(status),
        created,
        updated,
        owner,
        wake_at,
        takeovers,
        str(reason, "utf-8", "surrogatepass"),
        retention,
        waiting_for,
        letters_known,
        fingerprint,
        str(by, "utf-8", "surrogatepass"),
        str(traceback, "utf-8", "surrogatepass"),
        origin,
        restored,
    )


def read_runs(connection: sqlite3.Connection, namespace: str, query: RunQuery) -> list[Head]:
    """Return the heads of the runs that a query selects."""
    _add_text_function(connection, query)
    sql, values = _make_query(namespace, query)
    limit = -1 if query.limit is None else query.limit
    while True:
        rows = connection.execute(sql, {**values, "limit": limit}).fetchall()
        heads = []
        for row in rows:
            try:
                heads.append(check_head_row(namespace, row))
            except CheckpointCorrupt:  # read_damaged reports it
                continue
        # A full page in which damaged rows were left out may have a next one.
        if len(rows) != limit or len(heads) >= (query.limit or 0):
            return heads[: query.limit]
        limit *= 2


def count_runs(connection: sqlite3.Connection, namespace: str, query: RunQuery) -> int:
    """Return the number of runs that a query selects, without reading them one by one."""
    _add_text_function(connection, query)
    where, values = _make_where(namespace, query._replace(after=None))
    (count,) = connection.execute(f"SELECT count(*) FROM runs WHERE {where}", values).fetchone()
    return int(count)


def _add_text_function(connection: sqlite3.Connection, query: RunQuery) -> None:
    if query.text is not None:  # LIKE knows upper and lower case of ASCII only
        connection.create_function(_FUNCTION, 2, _has_text, deterministic=True)


def _has_text(stored: Any, folded: bytes) -> bool:
    if not isinstance(stored, bytes):  # damaged
        return False
    return folded in (stored.lower() if stored.isascii() else _fold(_decode_any(stored)))


def _decode_any(stored: bytes) -> str:
    try:
        return stored.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # damaged
        return stored.decode("utf-8", "replace")


def _fold(text: str) -> bytes:
    return text.casefold().encode("utf-8", "surrogatepass")


def _make_query(namespace: str, query: RunQuery) -> tuple[str, dict[str, Any]]:
    """Return the statement that lists the runs of a query, and its values but ``limit``."""
    where, values = _make_where(namespace, query)
    if not query.newest:
        return f"SELECT {HEAD_COLUMNS} FROM runs WHERE {where} ORDER BY created, run LIMIT :limit", values
    if query.family is not None:
        return f"SELECT {HEAD_COLUMNS} FROM runs WHERE {where} ORDER BY {_NEWEST_FIRST} LIMIT :limit", values
    # Driven runs are not in the index by change, which each of their commits would have to write: they are sorted here.
    end = f"ORDER BY {_NEWEST_FIRST} LIMIT :limit"
    parts = (
        f"SELECT * FROM (SELECT {HEAD_COLUMNS} FROM runs WHERE {where} AND {part} {end})"
        for part in _resting_and_driven(query.statuses)
    )
    return f"{' UNION ALL '.join(parts)} {end}", values


def _resting_and_driven(statuses: frozenset[RunStatus] | None) -> list[str]:
    driven = "status = 'running' AND status <> 'completed'"
    resting = "status <> 'running'"
    if statuses is None or (len(statuses) > 1 and RunStatus.RUNNING in statuses):
        return [resting, driven]
    return [driven if RunStatus.RUNNING in statuses else resting]


def _make_where(namespace: str, query: RunQuery) -> tuple[str, dict[str, Any]]:
    """Return the condition of a query, and its values."""
    # The + lets SQLite use the index of the family: with the index that gives the order it would read every run.
    conditions = ["namespace = :namespace" if query.family is None else "+namespace = :namespace"]
    values: dict[str, Any] = {"namespace": namespace}
    if query.workflow_name is not None:
        conditions.append("workflow = :workflow")
        values["workflow"] = query.workflow_name
    if query.statuses is not None:
        named = {f"status{number}": status.value for number, status in enumerate(sorted(query.statuses))}
        conditions.append(_make_status_condition(query, list(named)))
        values |= named
    if query.family is not None:
        conditions.append(_IN_FAMILY)
        values["family"] = query.family
    if query.forked_from is not None:
        conditions.append(_FORKED_FROM)
        values["forked_from"] = query.forked_from
    for name, condition in _TIMES.items():
        time = getattr(query, name)
        if time is not None:
            conditions.append(condition)
            values[name] = max(-_GREATEST, min(time, _GREATEST))
    if query.after is not None:
        conditions.append(_BEHIND_CHANGE if query.newest else _BEHIND_AGE)
        values |= {"after_time": query.after.time, "after_run": query.after.run_id}
    if query.text is not None:
        conditions.append(_HAS_TEXT)
        values["text"] = _fold(query.text)
    return " AND ".join(conditions), values


def _make_status_condition(query: RunQuery, names: list[str]) -> str:
    # Oldest first, the index of a status other than COMPLETED also gives the order; else the index by age does.
    if len(names) == 1 and not query.newest and RunStatus.COMPLETED not in (query.statuses or ()):
        return f"status = :{names[0]} AND status <> 'completed'"
    return f"+status IN ({', '.join(f':{name}' for name in names)})"


def find_checkpoint(
    connection: sqlite3.Connection, namespace: str, checkpoint_id: CheckpointId
) -> tuple[RunId, int] | None:
    """Return the run and seq of a checkpoint, or None if it is not in the store."""
    try:
        checkpoint = bytes.fromhex(checkpoint_id)
    except ValueError:
        return None
    if checkpoint.hex() != checkpoint_id:  # an id has lowercase digits and nothing else
        return None
    row = connection.execute(_FIND_CHECKPOINT, (get_prefix(checkpoint), checkpoint, namespace)).fetchone()
    if row is None:
        return None
    run_id, seq = row
    if not isinstance(run_id, str) or not isinstance(seq, int):
        raise CheckpointCorrupt(f"the row of checkpoint {checkpoint_id} is damaged: it is no record")
    return RunId(run_id), seq


def read_records(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, first: int, last: int, depth: Depth
) -> list[Record]:
    """Return the records of a run in a range of seqs."""
    bounds = max(first, -_GREATEST), min(last, _GREATEST)
    tags = read_tags(connection, namespace, run_id, *bounds)
    rows = connection.execute(_RECORDS[depth], (namespace, run_id, *bounds))
    if depth is Depth.ALL:
        return [_check_seal(_make_record(run_id, row, tags.get(row[1], {})), row[-1]) for row in rows]
    missing = (b"", b"", None) if depth is Depth.CHANGES else (b"", None, None, b"", b"", None)
    return [_make_record(run_id, row + missing, tags.get(row[1], {})) for row in rows]


def read_tags(
    connection: sqlite3.Connection, namespace: str, run_id: RunId, first: int, last: int
) -> dict[int, dict[str, str]]:
    """Return the tags of those records of a run that have any, by seq; each with who gave it, or an empty text."""
    tags: dict[int, dict[str, str]] = {}
    for seq, tag, by in connection.execute(_TAGS, (namespace, run_id, first, last)):
        tags.setdefault(seq, {})[_decode_text(tag)] = _decode_text(by)
    return tags


def _decode_text(stored: Any) -> str:
    # The seal of its record shows that a tag is no text any more.
    try:
        return str(stored, "utf-8", "surrogatepass")
    except (TypeError, UnicodeDecodeError):
        return repr(stored)


def _check_seal(record: Record, seal: Any) -> Record:
    return record if _is_sealed(record, seal) else record._replace(sound=False)


def _is_sealed(record: Record, seal: Any) -> bool:
    try:
        return bool(seal_record(record) == seal)
    except (TypeError, ValueError):
        return False


_NO_MARKS: tuple[tuple[str, ...], bool, Mapping[str, str]] = ((), True, {})
"""The last fields of a record without tags, as most are."""


def _make_record(run_id: RunId, row: tuple[Any, ...], tags: Mapping[str, str]) -> Record:
    """Return the record in a row that has all columns of ``Depth.ALL``; ``tags`` come from ``read_tags``."""
    checkpoint, seq, header, new_bytes, changes, key_changes, cut, values, key_values, _ = row
    plain = type(checkpoint) is type(header) is type(changes) is type(values) is bytes
    if plain and checkpoint and cut is None and type(new_bytes) is type(seq) is int:  # as nearly all are
        name = checkpoint.hex()
        marks = _NO_MARKS if not tags else (tuple(tags), True, _givers_of(tags))
        return make_tuple(Record, (name, run_id, seq, header, changes, values, new_bytes, None, *marks))
    # Text where bytes were written: as bytes it fails the check of the id, as any other change does.
    row = tuple(str(part).encode("utf-8", "replace") if isinstance(part, str) else part for part in row)
    checkpoint, seq, header, new_bytes, changes, key_changes, cut, values, key_values, _ = row
    keyframe = None if cut is None else Keyframe(key_changes, key_values, bool(cut))
    parts = (checkpoint, header, changes, values, *((key_changes, key_values) if keyframe else ()))
    numbers = isinstance(new_bytes, int) and isinstance(seq, int)
    if not numbers or not checkpoint or not all(isinstance(part, bytes) for part in parts):
        raise CheckpointCorrupt(
            f"the row of checkpoint {seq!r} of run {run_id!r} is damaged: it is no record"
        )
    record_id = CheckpointId(checkpoint.hex())
    given = tuple(tags), True, _givers_of(tags)
    return Record(record_id, run_id, seq, header, changes, values, new_bytes, keyframe, *given)


def _givers_of(tags: Mapping[str, str]) -> dict[str, str]:
    return {tag: by for tag, by in tags.items() if by}


def read_blobs(
    connection: sqlite3.Connection, namespace: str, files: BlobFiles, family: RunId, digests: Sequence[Digest]
) -> dict[Digest, bytes]:
    """Return those of the blobs that are in the store."""
    found: dict[Digest, bytes] = {}
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    if row is None:
        return found
    for digest in digests:
        blob = connection.execute(_BLOB, (row[0], get_prefix(digest), digest)).fetchone()
        if blob is not None:
            size, data = blob
            found[digest] = (
                _read_from_file(files, family, digest, size) if data is None else _read_from_row(digest, data)
            )
    return found


def find_known_blobs(
    connection: sqlite3.Connection, namespace: str, family: RunId, digests: Sequence[Digest]
) -> set[Digest]:
    """Return the digests that have a row."""
    row = connection.execute(FIND_FAMILY, (namespace, family)).fetchone()
    if row is None:
        return set()
    return {
        digest
        for digest in digests
        if connection.execute(_BLOB, (row[0], get_prefix(digest), digest)).fetchone()
    }


def _read_from_row(digest: Digest, data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise CheckpointCorrupt(
            f"the row of blob {digest.hex()} is damaged: it holds no bytes. Restore the database from a backup"
        )
    return data


def _read_from_file(files: BlobFiles, family: RunId, digest: Digest, size: int) -> bytes:
    path = files.path(family, digest)
    try:
        data = files.read(family, digest, size)
    except IrregularFile as error:
        raise CheckpointCorrupt(
            f"the file {str(path)!r} of a large value of run {family!r} is not what was stored: {error.strerror}. "
            "Restore it from a backup"
        ) from error
    except FileNotFoundError as error:
        raise CheckpointCorrupt(
            f"the file {str(path)!r} of a large value of run {family!r} is missing. A database and its '-blobs' folder "
            "belong together: restore both from the same backup"
        ) from error
    if len(data) != size:
        raise CheckpointCorrupt(
            f"the file {str(path)!r} of a large value of run {family!r} has {len(data)} bytes, not {size}: "
            "restore it from a backup"
        )
    return data
