"""Random damage to a storage, and what must be true of it then."""

import json
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast import CheckpointNotFound, CheckpointStorage, HoldfastError, Retention, VerifyReport
from tests.support.corruption_world import Seen, head_of, inbox_of, journal_of, loaded, opened
from tests.support.parts import Disk, RunQuery, SqliteStore

# -- damage ----------------------------------------------------------------------------------------

TABLES = ("runs", "checkpoints", "keyframes", "families", "blobs", "notes", "letters", "tags")
# Nothing in these is part of the store: who uses it now, and hints for those who remove blobs.
_BESIDE = ("locks", "owners", "waking", "damaged", "index.db", ".sweep", ".temp", "temp")


def changed(chance: random.Random, data: bytes) -> bytes:
    """Other bytes: one bit or byte flipped, some zeroed, cut short, or two pieces swapped."""
    if not data:
        return b"\x00"
    place = chance.randrange(len(data))
    match chance.randrange(6):
        case 0:
            return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]
        case 1:
            return data[:place] + bytes([(data[place] + chance.randrange(1, 256)) % 256]) + data[place + 1 :]
        case 2:
            length = min(chance.choice([1, 8, 64]), len(data) - place)
            return data[:place] + bytes(length) + data[place + length :]
        case 3:
            return data[:place]
        case 4:
            size = chance.choice([1, 8, 100])
            other = chance.randrange(len(data))
            first, second = sorted((place, other))
            size = min(size, second - first, len(data) - second)
            one, two = data[first : first + size], data[second : second + size]
            return data[:first] + two + data[first + size : second] + one + data[second + size :]
        case _:
            return data + data[:place]


def _changed_value(chance: random.Random, value: Any, others: list[Any]) -> Any:
    if others and chance.random() < 0.2:
        return chance.choice(others)
    if value is None:
        return chance.choice([0, b"x", 1 << 40])
    if isinstance(value, int):
        return chance.choice([value ^ 1 << chance.randrange(40), value + 1, 0, -value - 1, "x", b"y"])
    if isinstance(value, str):
        return changed(chance, value.encode()).decode("utf-8", "replace")
    return changed(chance, value)


def damage_row(chance: random.Random, folder: Path, tables: Sequence[str] = TABLES) -> str:
    """Change a column of a row of a database, or delete the row."""
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        for _ in range(100):
            table = chance.choice(tables)
            rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
            if not rows:  # an earlier damage removed the last one
                continue
            row = chance.choice(rows)
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            try:
                if chance.random() < 0.15:
                    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
                    return f"row {row} of {table} deleted"
                column = chance.choice(columns)
                values = dict(connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall())
                value = values.pop(row)
                new = _changed_value(chance, value, list(values.values()))
                if new == value and type(new) is type(value):
                    continue
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, row))
                return f"{column} of row {row} of {table}: {value!r:.40} became {new!r:.40}"
            except sqlite3.Error:
                continue
    raise AssertionError("nothing could be changed")


_ODD = (None, 0, -1, 2**63 - 1, 1.5, float("inf"), "", "x", "1", b"", b"\xff", bytes(32))


def damage_type(chance: random.Random, folder: Path, tables: Sequence[str] = (*TABLES, "meta")) -> str:
    """Let a column hold what no column of the kind holds: another type, or text that is not UTF-8."""
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        for _ in range(100):
            table = chance.choice(tables)
            key = "key" if table == "meta" else "rowid"
            rows = [row for (row,) in connection.execute(f"SELECT {key} FROM {table}")]
            if not rows:
                continue
            row = chance.choice(rows)
            column = chance.choice(
                [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
            )
            new = "CAST(x'612fff80' AS TEXT)" if chance.random() < 0.3 else "?"
            value = [chance.choice(_ODD)] if new == "?" else []
            try:
                connection.execute(f"UPDATE {table} SET {column} = {new} WHERE {key} = ?", (*value, row))
            except sqlite3.Error:
                continue
            return f"{column} of row {row} of {table} became {new} {value}"
    raise AssertionError("nothing could be changed")


def damage_schema(chance: random.Random, folder: Path) -> str:
    """Let the definition of a table or index be another text, or none: SQLite complains about it with its bytes."""
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        name = chance.choice([name for (name,) in connection.execute("SELECT name FROM sqlite_master")])
        column = chance.choice(["name", "sql", "tbl_name"])
        new = chance.choice([b"CR\xff\x80", b"", b"CREATE TABLE x (y)"])
        connection.execute(f"UPDATE sqlite_master SET {column} = CAST(? AS TEXT) WHERE name = ?", (new, name))
    return f"{column} of {name} became {new!r}"


def _files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not set(path.relative_to(folder).parts) & set(_BESIDE)
        if path.name != "store.json"
    )


def damage_file(chance: random.Random, folder: Path, files: list[Path] | None = None) -> str:
    """Change, delete or swap files."""
    there = _files(folder) if files is None else files
    path = chance.choice(there)
    name = path.relative_to(folder)
    kind = chance.random()
    if kind < 0.12 and path.name != "runs.db":
        path.unlink()
        return f"{name} deleted"
    if kind < 0.2 and path.name != "runs.db":
        other = chance.choice(there)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
        return f"{name} and {other.relative_to(folder)} swapped"
    data = path.read_bytes()
    for _ in range(20):
        new = changed(chance, data)
        if new != data:
            break
    path.write_bytes(new)
    return f"{name}: {len(data)} bytes became {len(new)}, the first other one is {_first_other(data, new)}"


def _first_other(one: bytes, two: bytes) -> int:
    return next((place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))


def damage_blob(chance: random.Random, folder: Path) -> str:
    """Damage the file of a blob."""
    return damage_file(chance, folder, [path for path in _files(folder) if len(path.name) == 64])


def _run_files(folder: Path) -> list[Path]:
    return [path for path in _files(folder) if path.suffix == ".jsonl"]


def damage_lines(chance: random.Random, folder: Path) -> str:
    """Damage the file of a run anywhere."""
    return damage_file(chance, folder, _run_files(folder))


def damage_order(chance: random.Random, folder: Path) -> str:
    """Let lines of a run's file change places, be there twice, or be missing."""
    path = chance.choice(_run_files(folder))
    lines = path.read_bytes().splitlines(keepends=True)
    first, second = sorted(chance.sample(range(len(lines)), 2))
    match chance.randrange(4):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
        case 1:
            lines.insert(second, lines[first])
        case 2:
            del lines[first]
        case _:
            del lines[first:second]
    path.write_bytes(b"".join(lines))
    return f"{path.name}: lines {first + 1} and {second + 1} of {len(lines)}"


def damage_name(chance: random.Random, folder: Path) -> str:
    """Let the file of a run have another name, or be there twice."""
    path = chance.choice(_run_files(folder))
    other = path.with_name(
        chance.choice(["copy", "other", *(file.stem for file in _run_files(folder))]) + ".jsonl"
    )
    if other == path:
        other = path.with_name("copy.jsonl")
    if chance.random() < 0.5:
        other.write_bytes(path.read_bytes())
        return f"{path.name} copied to {other.name}"
    path.rename(other)
    return f"{path.name} renamed to {other.name}"


def damage_page(chance: random.Random, folder: Path) -> str:
    """Change bytes of a database file, or swap two of its pages."""
    path = folder / "runs.db"
    if chance.random() < 0.2:
        data = bytearray(path.read_bytes())
        size = 2048
        one, two = (size * chance.randrange(len(data) // size) for _ in range(2))
        data[one : one + size], data[two : two + size] = data[two : two + size], data[one : one + size]
        path.write_bytes(data)
        return f"pages at {one} and {two} swapped"
    return damage_file(chance, folder, [path])


def damage_find(chance: random.Random, folder: Path) -> str:
    """Let the column by which a checkpoint is found be another one."""
    with closing(sqlite3.connect(folder / "runs.db", isolation_level=None)) as connection:
        row = chance.choice([row for (row,) in connection.execute("SELECT id FROM checkpoints")])
        connection.execute(
            "UPDATE checkpoints SET find = find + ? WHERE id = ?", (chance.choice([-1, 1, 256]), row)
        )
    return f"find of row {row} of checkpoints"


def _changed_line(chance: random.Random, path: Path, number: int, change: Callable[[Any], str]) -> str:
    """Let a line of a run's file say something else, in JSON of the same form; its checksum stays as it was."""
    lines = path.read_bytes().splitlines(keepends=True)
    try:
        said = json.loads(lines[number])
        how = change(said)
    except (ValueError, KeyError, TypeError, IndexError):
        return f"line {number} of {path.name} is damaged already"
    lines[number] = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    return f"{how} in line {number + 1} of {len(lines)} of {path.name}"


def damage_json(chance: random.Random, folder: Path) -> str:
    """Let something in a line, at any depth, be of another type or another text; it stays JSON."""

    def change(said: Any) -> str:
        places = [(said, key) for key in said]
        for within, key in places:  # grows while it is walked through
            inner = within[key]
            keys = inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
            places += [(inner, one) for one in keys]
        within, key = chance.choice(places)
        odd: list[Any] = [None, -1, 2**70, 1.5, "x", "zz" * 32, "\N{SNOWMAN}", [], {}, [within[key]]]
        within[key] = chance.choice(odd)
        return f"{key!r} became {within[key]!r:.50}"

    path = chance.choice(_run_files(folder))
    return _changed_line(chance, path, chance.randrange(len(path.read_bytes().splitlines())), change)


def damage_head(chance: random.Random, folder: Path) -> str:
    """Let the last line of a run say something else of where it stands, in JSON that can be read."""

    def change(said: Any) -> str:
        name = chance.choice(["token", "updated", "takeovers", "created"])
        said["head"][name] = max(said["head"].get(name, 0) ^ 1, 1)  # mostly as long as before
        return name

    return _changed_line(chance, chance.choice(_run_files(folder)), -1, change)


def damage_hints(chance: random.Random, folder: Path) -> str:
    """Let hints be missing or wrong: nothing may come of it."""
    root = folder / "runs"
    signs = sorted((root / "waking").iterdir())
    match chance.randrange(4):
        case 0 if signs:
            sign = chance.choice(signs)
            sign.unlink()
            return f"{sign.name} deleted"
        case 1:
            (root / "waking" / f"{chance.randrange(10**15):020d}-lean").touch()
            return "a sign for a run that needs none"
        case 2:
            (root / "index.db").write_bytes(chance.randbytes(3_000))
            return "index.db overwritten"
        case _:
            mark = chance.choice(sorted((root / "locks").glob("*.run")))
            mark.write_bytes(chance.choice([b"", b"x 1\n", mark.read_bytes()[:40]]))
            return f"{mark.name} lost its mark"


Damaging = Callable[[random.Random, Path], str]
DAMAGES: dict[str, dict[str, tuple[int, Damaging]]] = {
    "sqlite": {
        "row": (6, damage_row),
        "type": (3, damage_type),
        "blob type": (1, partial(damage_type, tables=("blobs",))),
        "schema": (1, damage_schema),
        "page": (3, damage_page),
        "blob": (1, damage_blob),
        "find": (1, damage_find),
        "keyframe": (1, partial(damage_row, tables=("keyframes",))),
        "mail": (1, partial(damage_row, tables=("notes", "letters"))),
        "tag": (1, partial(damage_row, tables=("tags",))),
    },
    "file": {
        "lines": (7, damage_lines),
        "order": (3, damage_order),
        "name": (1, damage_name),
        "blob": (3, damage_blob),
        "head": (1, damage_head),
        "json": (4, damage_json),
        "hints": (1, damage_hints),
    },
}
"""By kind of store, with how often each is chosen."""


def damage(kind: str, folder: Path, seed: int, only: str = "") -> str:
    """Damage a storage that is closed in one random way; says how."""
    chance = random.Random(f"{kind} {seed}")
    ways = {name: way for name, way in DAMAGES[kind].items() if only in ("", name)}
    (name,) = chance.choices(list(ways), [weight for weight, _ in ways.values()])
    return f"{name}: {ways[name][1](chance, folder)}"


# -- what must be true -----------------------------------------------------------------------------


class Told:
    """What a report names."""

    def __init__(self, report: VerifyReport) -> None:
        self.problems = report.problems
        self.unknown = any(problem.run_id is None for problem in report.problems)
        self.runs = {problem.run_id for problem in report.problems}
        self._checkpoints = {(problem.run_id, problem.checkpoint_id) for problem in report.problems}
        self._seqs = {(problem.run_id, problem.seq) for problem in report.problems if problem.seq is not None}

    def names(self, run_id: str, checkpoint_id: str, seq: int) -> bool:
        """Whether a checkpoint is named."""
        return (run_id, checkpoint_id) in self._checkpoints or (run_id, seq) in self._seqs


async def complaints(storage: CheckpointStorage, baseline: dict[str, Seen], told: Told) -> list[str]:
    """Where what is read now is something else than before, and was not reported."""
    found = []
    try:
        there: set[str] = {head.run_id for head in await storage.store.runs(RunQuery())}
    except HoldfastError:
        if not told.unknown:
            found.append("runs cannot be listed, and no problem is told")
        there = set(baseline)
    if (new := there - set(baseline)) and not told.problems:
        found.append(f"there are new runs: {new}")
    for run_id, seen in baseline.items():
        if run_id not in there and not (run_id in told.runs or told.unknown):
            found.append(f"run {run_id} is gone")
        found += [complaint async for complaint in _of_run(storage, run_id, seen, told)]
    return found


async def _of_run(storage: CheckpointStorage, run_id: str, seen: Seen, told: Told) -> AsyncIterator[str]:
    readable = await _read(partial(head_of, storage, run_id)) == seen.head
    named = run_id in told.runs
    for what, before, read in (
        ("where it stands", seen.head, head_of),
        ("its journal", seen.notes, journal_of),
        ("its inbox", seen.letters, inbox_of),
        ("its listing", repr(seen.listed), _listing),
    ):
        now = await _read(partial(read, storage, run_id))
        if now != before and not (named or (told.unknown and isinstance(now, HoldfastError))):
            yield f"run {run_id}: {what} is not what it was, and it is not named: {now!r:.200}"
    for checkpoint_id, before in seen.checkpoints.items():
        now = await _read(partial(loaded, storage, checkpoint_id))
        if now == before or told.names(run_id, checkpoint_id, seen.seqs[checkpoint_id]):
            continue
        lost = named and (not readable or isinstance(now, CheckpointNotFound))
        if isinstance(now, HoldfastError) and (lost or told.unknown):
            continue
        yield f"run {run_id}: checkpoint {seen.seqs[checkpoint_id]} is not named, but gives {now!r:.300}"


async def _listing(storage: CheckpointStorage, run_id: str) -> str:
    return repr([made.checkpoint_id for made in await storage.list_checkpoints(run_id=run_id)])


async def _read(read: Callable[[], Any]) -> Any:
    """What reading gives; an error that tells what is wrong is a result, any other is not."""
    try:
        return await read()
    except HoldfastError as error:
        return error


async def readable(storage: CheckpointStorage, baseline: dict[str, Seen]) -> set[str]:
    """The checkpoints that hold what they held."""
    return {
        checkpoint_id
        for seen in baseline.values()
        for checkpoint_id, before in seen.checkpoints.items()
        if await _read(partial(loaded, storage, checkpoint_id)) == before
    }


async def mended(storage: CheckpointStorage, baseline: dict[str, Seen]) -> AsyncIterator[str]:
    """What is wrong with a repair: it must lose nothing that could be read, and tell all that it cannot repair."""
    before = await readable(storage, baseline)
    would = await storage.repair(dry_run=True)
    report = await storage.repair()
    if replace(would, dry_run=False) != report:
        yield f"a dry run tells {would}, but it did {report}"
    if worse := before - await readable(storage, baseline):
        yield f"a repair made {len(worse)} checkpoints unreadable: {report}"
    left = {problem.what for problem in report.unrepaired}
    for problem in (await storage.verify()).problems:
        if problem.what not in left:
            yield f"not repaired, and not told: {problem}; {report}"
    if (again := await storage.repair()).repairs:
        yield f"it repairs again: {again}"


Calls = Iterator[tuple[str, Callable[[], Awaitable[object]]]]


def _calls(storage: CheckpointStorage, folder: Path) -> Calls:
    """All that reads a storage as a whole."""
    yield "list_runs", storage.list_runs
    yield "list_runs(interrupted)", partial(storage.list_runs, interrupted=True)
    yield "list_checkpoints", storage.list_checkpoints
    yield "get_latest", storage.get_latest
    yield "statistics", partial(storage.statistics, measure_blobs=True)
    yield "repair(dry_run)", partial(storage.repair, dry_run=True)
    if isinstance(storage.store, SqliteStore):
        yield "backup", partial(storage.store.backup, folder / "copy.db")


def _calls_of(storage: CheckpointStorage, folder: Path, run_id: str, seen: Seen) -> Calls:
    """All that reads one run; what prunes it reads it, too."""
    newest, oldest = seen.listed[-1], seen.listed[0]
    yield "list_checkpoints", partial(storage.list_checkpoints, run_id=run_id)
    yield "get_latest", partial(storage.get_latest, run_id=run_id)
    yield "draw_tree", partial(storage.draw_tree, run_id)
    yield "verify", partial(storage.verify, run_id)
    yield "export_run", partial(storage.export_run, run_id, folder / f"{run_id}.run")
    yield "load", partial(loaded, storage, newest)
    yield "load(values=False)", partial(_loaded_later, storage, newest)
    yield "diff", partial(storage.diff, oldest, newest)
    yield "prune(dry_run)", partial(storage.prune, Retention.latest_only(), run_id=run_id, dry_run=True)


async def _loaded_later(storage: CheckpointStorage, checkpoint_id: str) -> None:
    made = await storage.load(checkpoint_id, values=False)
    await made.read_state("lines", scope_name="S")


async def foreign(
    storage: CheckpointStorage, baseline: dict[str, Seen], folder: Path, run_ids: Collection[str]
) -> AsyncIterator[str]:
    """The calls that raise what is no error of ours, in a storage that may be damaged in any way."""
    calls = [("storage", *call) for call in _calls(storage, folder)]
    for run_id in run_ids:
        calls += [(run_id, *call) for call in _calls_of(storage, folder, run_id, baseline[run_id])]
    for of, name, call in calls:
        try:
            await call()
        except HoldfastError:
            pass
        except Exception as error:
            yield f"{name} of {of} raises {error!r}"


@contextmanager
def syncing_nothing() -> Iterator[None]:
    """Nothing here is about power cuts."""
    with patch.multiple(Disk, sync=lambda *_: None, sync_data=lambda *_: None):
        yield


async def tried(
    kind: str,
    original: Path,
    baseline: dict[str, Seen],
    seed: int,
    work: Path,
    only: str = "",
    repairs: bool = True,
    reads: int = 1,
) -> tuple[str, bool, list[str]]:
    """Damage a copy of a storage: how, whether it was noticed, and what is wrong with the report or with a repair.

    So many runs are read in all ways that there are, and the storage if there are any.
    """
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(original, work, symlinks=True)
    how = damage(kind, work, seed, only)
    storage = opened(kind, work)
    try:
        with syncing_nothing():
            told = Told(await storage.verify())
            wrong = await complaints(storage, baseline, told)
            if reads:
                read = random.Random(seed).sample(sorted(baseline), min(reads, len(baseline)))
                wrong += [complaint async for complaint in foreign(storage, baseline, work, read)]
            if repairs and told.problems and not wrong:
                wrong = [complaint async for complaint in mended(storage, baseline)]
    except Exception as error:
        return how, True, [f"it raises {error!r}"]
    finally:
        await storage.close()
    return how, bool(told.problems), wrong
