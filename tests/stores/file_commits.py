"""Small commits for the tests of the file store, and looks at its files."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import ormsgpack

from holdfast import RunStatus
from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Keyframe, Letter, Note, Record, Removal
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file import FileStore
from tests.support.store_parts import Directory

ROOT = Path(__file__).parents[2]
NOON = 1_750_075_200_000_000
RUN = RunId("r1")
EVERYTHING = 10**9
CUT = Keyframe(b"\x00\x90", b"", cut=True)


def checkpoint_id(run: str, seq: int) -> CheckpointId:
    return CheckpointId(ormsgpack.packb([run, seq]).hex().rjust(64, "0")[-64:])


def record(run: RunId, seq: int, **parts: Any) -> Record:
    header = ormsgpack.packb({"run": run, "seq": seq})
    plain = Record(checkpoint_id(run, seq), run, seq, header, b"\x00\x81\xa1a\x01", b"", 7)
    return plain._replace(**parts)


def head(run: RunId, seq: int, **fields: Any) -> Head:
    plain = Head(run, "W", run, checkpoint_id(run, seq), seq, 1, RunStatus.RUNNING, NOON, NOON + seq)
    return plain._replace(**fields)


def standing(run: RunId, seq: int) -> Expected:
    """Where a run stands that has come so far."""
    return Expected(checkpoint_id(run, seq), 1)


def at(run: RunId, seq: int) -> Expected | None:
    return standing(run, seq) if seq else None


def step(run: RunId, seq: int, **fields: Any) -> Commit:
    """The commit of one more checkpoint."""
    return Commit(head(run, seq, **fields), at(run, seq - 1), (record(run, seq),))


def stay(run: RunId, seq: int, *keys: str, taken: Iterable[str] = (), **fields: Any) -> Commit:
    """A commit that stays on a checkpoint, with a note for each key."""
    return Commit(head(run, seq, **fields), at(run, seq), notes=tuple(map(note, keys)), taken=tuple(taken))


def note(key: str) -> Note:
    return Note(key, b"note " + key.encode())


def letters(*keys: str) -> list[Letter]:
    return [Letter(key, b"letter " + key.encode("utf-8", "surrogatepass")) for key in keys]


def keys_of(found: Iterable[Note | Letter]) -> list[str]:
    return [one.key for one in found]


def all_but(*kept: int, of: int, run: RunId = RUN) -> Removal:
    """Remove all records before the one on which the run stands, but for some."""
    gone = tuple(seq for seq in range(1, of) if seq not in kept)
    return Removal(run, standing(run, of), gone, ((of, CUT),))


async def write(store: FileStore, run: RunId, steps: int) -> None:
    for seq in range(1, steps + 1):
        await store.commit(step(run, seq))


async def seqs(store: FileStore, run: RunId = RUN, first: int = 1, last: int = EVERYTHING) -> list[int]:
    return [found.seq for found in await store.records(run, first, last, Depth.HEADERS)]


async def everything(store: FileStore, run: RunId = RUN) -> tuple[Any, ...]:
    """All that a store tells of a run."""
    records = await store.records(run, 0, EVERYTHING, Depth.ALL)
    return await store.head(run), records, await store.notes(run), await store.inbox(run)


def failing(number: int) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def tree(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())


def run_path(directory: Path, run: str = "r1") -> Path:
    return directory / "runs" / f"{run}.jsonl"


def lock_path(directory: Path, run: str = "r1") -> Path:
    return directory / "locks" / f"{run}.run"


def lines_of(directory: Path, run: str = "r1") -> list[Any]:
    """What stands in the file of a run, as any reader of JSON sees it."""
    return [json.loads(line) for line in run_path(directory, run).read_bytes().splitlines()]


def opened(directory: Path) -> Directory:
    """What another process has, without an event loop."""
    other = Directory(directory, "")
    other.open()
    return other


def doing(directory: str | Path, work: Callable[[FileStore], Awaitable[Any]]) -> Any:
    """Do something with a store of its own, from a thread or a process that has no event loop."""

    async def main() -> Any:
        store = FileStore(directory)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


def child(module: str, function: str, *args: object) -> "subprocess.Popen[str]":
    """A process that calls a function of a module of tests."""
    code = f"from tests.stores.{module} import {function}; {function}(*{args!r})"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
