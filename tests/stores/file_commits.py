"""Small commits for the tests of the file store, and what they need to look at."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ormsgpack

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Record
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file import FileStore

ROOT = Path(__file__).parents[2]
NOON = 1_750_075_200_000_000
RUN = RunId("r1")
EVERYTHING = 10**9


def checkpoint_id(run: str, seq: int) -> CheckpointId:
    return CheckpointId(ormsgpack.packb([run, seq]).hex().rjust(64, "0")[-64:])


def record(run: RunId, seq: int, **parts: Any) -> Record:
    header = ormsgpack.packb({"run": run, "seq": seq})
    plain = Record(checkpoint_id(run, seq), run, seq, header, b"\x00\x81\xa1a\x01", b"", 7)
    return plain._replace(**parts)


def head(run: RunId, seq: int, **fields: Any) -> Head:
    plain = Head(run, "W", run, checkpoint_id(run, seq), seq, 1, RunStatus.RUNNING, NOON, NOON + seq)
    return plain._replace(**fields)


def at(run: RunId, seq: int) -> Expected | None:
    return Expected(checkpoint_id(run, seq), 1) if seq else None


def step(run: RunId, seq: int, **fields: Any) -> Commit:
    """The commit of one more checkpoint."""
    return Commit(head(run, seq, **fields), at(run, seq - 1), (record(run, seq),))


async def write(store: FileStore, run: RunId, steps: int) -> None:
    for seq in range(1, steps + 1):
        await store.commit(step(run, seq))


async def seqs(store: FileStore, run: RunId, first: int = 1, last: int = EVERYTHING) -> list[int]:
    return [found.seq for found in await store.records(run, first, last, Depth.HEADERS)]


def failing(number: int) -> Callable[..., None]:
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def tree(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())
