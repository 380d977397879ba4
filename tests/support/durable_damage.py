"""Damage done to a storage behind its back, as disks and people do it."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    """Damages the lines of one run in a file storage that is closed."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = folder / "runs" / "runs" / f"{run_id}.jsonl"
        self._blobs = folder / "runs" / "blobs" / run_id
        self._places: dict[int, tuple[int, int]] = {}
        """Where lines are in which a bit was flipped: they may not be found any more."""

    def _place_of(self, seq: int) -> tuple[int, int]:
        """Where the line with a record begins and ends, its newline included."""
        begin = 0
        for line in self.path.read_bytes().splitlines(keepends=True):
            if f'"checkpoint_id":"{self._id_of(seq)}","seq":{seq},"new_bytes"'.encode() in line:
                return begin, begin + len(line)
            begin += len(line)
        raise AssertionError(f"checkpoint {seq} is not there")

    def _id_of(self, seq: int) -> str:
        for line in self.path.read_bytes().splitlines():
            with suppress(ValueError):
                if str(seq) in (ids := json.loads(line).get("ids", {})):
                    return str(ids[str(seq)])
        raise AssertionError(f"checkpoint {seq} is not there")

    def _change(self, seq: int, change: Callable[[bytes], bytes]) -> None:
        content = self.path.read_bytes()
        begin, end = self._place_of(seq)
        self.path.write_bytes(content[:begin] + change(content[begin:end]) + content[end:])

    def record(self, seq: int, part: str = "changes", place: int = 5) -> None:
        """Change something that stands in a part of a record: the line stays readable JSON of the same length."""

        def change(line: bytes) -> bytes:
            record = line.index(b'"seq":%d,"new_bytes"' % seq)
            if part == "header":
                time = line.index(b'"time":', record) + len('"time":17')
                return line[:time] + b"%d" % ((int(line[time : time + 1]) + 1) % 10) + line[time + 1 :]
            label = line.index(b'"bytes"', line.index(b'"changes"', record))
            return line[:label] + b'"bytez"' + line[label + len('"bytes"') :]

        self._change(seq, change)

    def flip(self, seq: int, place: int) -> None:
        """Flip a bit anywhere in the line with a record."""
        begin, end = self._places.get(seq) or self._places.setdefault(seq, self._place_of(seq))
        content = self.path.read_bytes()
        self.path.write_bytes(content[:begin] + flipped(content[begin:end], place) + content[end:])

    def size_of(self, seq: int) -> int:
        """How long the line with a record is."""
        begin, end = self._place_of(seq)
        return end - begin

    def tear(self, seq: int) -> None:
        """Let the second half of the line with a record be zeros, as after a lost block."""
        self._change(seq, lambda line: line[: len(line) // 2].ljust(len(line) - 1, b"\0") + b"\n")

    def cut(self, seq: int) -> None:
        """Let the file end in the middle of the line with a record."""
        begin, end = self._place_of(seq)
        self.path.write_bytes(self.path.read_bytes()[: (begin + end) // 2])

    def remove_record(self, seq: int) -> None:
        """Remove the line with a record: lines behind it move."""
        self._change(seq, lambda line: b"")

    def swap(self, seq: int, other: int) -> None:
        """Let two lines with records change places."""
        content = self.path.read_bytes()
        (begin, end), (other_begin, other_end) = sorted([self._place_of(seq), self._place_of(other)])
        self.path.write_bytes(
            content[:begin]
            + content[other_begin:other_end]
            + content[end:other_begin]
            + content[begin:end]
            + content[other_end:]
        )

    def remove(self) -> None:
        """Remove the file of the run."""
        self.path.unlink()

    def zero(self, begin: int, end: int) -> None:
        """Let a part of the file be zeros."""
        content = self.path.read_bytes()
        self.path.write_bytes(content[:begin] + bytes(end - begin) + content[end:])

    def clear(self) -> None:
        """Let the file of the run be empty."""
        self.path.write_bytes(b"")

    def mistake_for(self, run_id: str) -> None:
        """Let the file of another run be in the place of this one."""
        self.path.write_bytes(self.path.with_name(f"{run_id}.jsonl").read_bytes())

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
