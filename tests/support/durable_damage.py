"""Damage done to a storage behind its back, as disks and people do it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def flipped(data: bytes, place: int) -> bytes:
    """The data with one bit of one byte changed; places wrap around.

    >>> flipped(b"abc", 1)
    b'acc'
    """
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class SqliteDamage:
    """Damages the rows of one run in a SQLite storage that is closed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._path = folder / "runs.db"
        self._run_id = run_id

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def _change(
        self, table: str, column: str, where: str, values: tuple[Any, ...], change: Callable[[bytes], bytes]
    ) -> int:
        with self._open() as connection:
            rows = connection.execute(f"SELECT id, {column} FROM {table} WHERE {where}", values).fetchall()
            for row, data in rows:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (change(data), row))
        return len(rows)

    def record(self, seq: int, part: str = "changes", place: int = 5) -> None:
        """Flip a bit in a part of a record."""
        column = {"values": "small_values"}.get(part, part)
        where = "run = (SELECT id FROM runs WHERE run = ?) AND seq = ?"
        changed = self._change(
            "checkpoints", column, where, (self._run_id, seq), lambda data: flipped(data, place)
        )
        assert changed == 1

    def size_of(self, seq: int, part: str) -> int:
        """How many bytes a part of a record has."""
        column = {"values": "small_values"}.get(part, part)
        where = "run = (SELECT id FROM runs WHERE run = ?) AND seq = ?"
        with self._open() as connection:
            query = f"SELECT length({column}) FROM checkpoints WHERE {where}"
            return int(connection.execute(query, (self._run_id, seq)).fetchone()[0])

    def remove_record(self, seq: int) -> None:
        """Remove a record."""
        with self._open() as connection:
            where = "run = (SELECT id FROM runs WHERE run = ?) AND seq = ?"
            removed = connection.execute(f"DELETE FROM checkpoints WHERE {where}", (self._run_id, seq))
            assert removed.rowcount == 1

    def run(self, column: str, value: Any) -> None:
        """Let the row that says where the run stands say something else."""
        with self._open() as connection:
            query = f"UPDATE runs SET {column} = ? WHERE run = ?"
            assert connection.execute(query, (value, self._run_id)).rowcount == 1

    def replace(self, seq: int, column: str, value: Any) -> None:
        """Put something else into a column of a record."""
        with self._open() as connection:
            where = "run = (SELECT id FROM runs WHERE run = ?) AND seq = ?"
            query = f"UPDATE checkpoints SET {column} = ? WHERE {where}"
            assert connection.execute(query, (value, self._run_id, seq)).rowcount == 1

    _OF_FAMILY = "family = (SELECT id FROM families WHERE family = ?) AND digest = ?"

    def _big(self, digest: bytes) -> Path | None:
        """The file of a big blob."""
        found = list(self._path.with_name("runs.db-blobs").rglob(f"{self._run_id}/{digest.hex()}"))
        return found[0] if found else None

    def blob(self, digest: bytes, place: int = 100) -> None:
        """Flip a bit in a blob."""
        if (path := self._big(digest)) is not None:
            path.write_bytes(flipped(path.read_bytes(), place))
            return
        changed = self._change(
            "blobs", "data", self._OF_FAMILY, (self._run_id, digest), lambda data: flipped(data, place)
        )
        assert changed == 1

    def remove_blob(self, digest: bytes) -> None:
        """Remove a blob."""
        if (path := self._big(digest)) is not None:
            path.unlink()
            return
        with self._open() as connection:
            where = (self._run_id, digest)
            assert connection.execute(f"DELETE FROM blobs WHERE {self._OF_FAMILY}", where).rowcount == 1


class FileDamage:
    """Damages the files of one run in a file storage that is closed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._runs = folder / "runs" / "runs" / run_id
        self._blobs = folder / "runs" / "blobs" / run_id

    def _file_of(self, seq: int) -> Path:
        return max(path for path in self._runs.iterdir() if int(path.name.split("-")[0]) <= seq)

    def record(self, seq: int, part: str = "changes", place: int = 5) -> None:
        """Change a number that stands in a part of a record: the file stays readable JSON."""
        path = self._file_of(seq)
        text = path.read_text()
        record = text.index(f'"seq": {seq},\n   "header"')
        if part == "header":
            time = text.index('"time": ', record) + len('"time": 17')
            text = text[:time] + str((int(text[time]) + 1) % 10) + text[time + 1 :]
        else:
            name = text.index('"changes"', record)
            label = text.index('"bytes"', name)
            text = text[:label] + '"bytez"' + text[label + len('"bytes"') :]
        path.write_text(text)

    def flip(self, seq: int, place: int) -> None:
        """Flip a bit anywhere in the file with a record."""
        path = self._file_of(seq)
        path.write_bytes(flipped(path.read_bytes(), place))

    def size_of(self, seq: int) -> int:
        """How long the file with a record is."""
        return self._file_of(seq).stat().st_size

    def tear(self, seq: int) -> None:
        """Let the file of a record end in its middle."""
        path = self._file_of(seq)
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])

    def remove_record(self, seq: int) -> None:
        """Remove the file with a record."""
        self._file_of(seq).unlink()

    def blob(self, digest: bytes, place: int = 100) -> None:
        """Flip a bit in a blob."""
        path = self._blobs / digest.hex()
        path.write_bytes(flipped(path.read_bytes(), place))

    def remove_blob(self, digest: bytes) -> None:
        """Remove a blob."""
        (self._blobs / digest.hex()).unlink()


def damage_of(kind: str, folder: Path, run_id: str) -> SqliteDamage | FileDamage:
    """What damages a run in the storage of this kind in a folder."""
    return SqliteDamage(folder, run_id) if kind == "sqlite" else FileDamage(folder, run_id)
