"""Small commits for the tests of the file store, and what they need to look at."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from holdfast.checkpoint.store import Commit, Depth, Expected, Head, Letter, Note, Record
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file import FileStore, document

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


def standing(run: RunId, seq: int) -> Expected:
    """Where a run stands that has come so far."""
    return Expected(checkpoint_id(run, seq), 1)


def step(run: RunId, seq: int, **fields: Any) -> Commit:
    """The commit of one more checkpoint."""
    return Commit(head(run, seq, **fields), at(run, seq - 1), (record(run, seq),))


def stay(run: RunId, seq: int, *keys: str, taken: Iterable[str] = (), **fields: Any) -> Commit:
    """A commit that stays on a checkpoint, with a note for each key."""
    return Commit(head(run, seq, **fields), at(run, seq), notes=tuple(map(note, keys)), taken=tuple(taken))


def note(key: str) -> Note:
    return Note(key, b"note " + key.encode())


def letters(*keys: str) -> list[Letter]:
    return [Letter(key, b"letter " + key.encode()) for key in keys]


def keys_of(found: Iterable[Note | Letter]) -> list[str]:
    return [one.key for one in found]


async def write(store: FileStore, run: RunId, steps: int) -> None:
    for seq in range(1, steps + 1):
        await store.commit(step(run, seq))


async def fill(store: FileStore, steps: int) -> None:
    """A run with two commits without records at each checkpoint but the last."""
    for seq in range(1, steps + 1):
        await store.commit(step(RUN, seq))
        if seq < steps:
            await store.commit(stay(RUN, seq, f"{seq}a"))
            await store.commit(stay(RUN, seq, f"{seq}b", status=RunStatus.WAITING))


async def seqs(store: FileStore, run: RunId, first: int = 1, last: int = EVERYTHING) -> list[int]:
    return [found.seq for found in await store.records(run, first, last, Depth.HEADERS)]


def failing(number: int) -> Callable[..., None]:
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    names: list[str] = []
    original = document.content_of

    def content_of(path: Path) -> bytes:
        names.append(f"{path.parent.name}/{path.name}")
        return original(path)

    monkeypatch.setattr(document, "content_of", content_of)
    return names


def before_publishing(store: FileStore, *actions: Callable[[], object]) -> None:
    """Let something happen when this store has written a file and is about to give it its name, each time another."""
    disk = store._folders.disk
    publish, rest = disk.publish, list(actions)

    def slow_publish(temp: Path, place: Path) -> None:
        if rest:
            rest.pop(0)()
        publish(temp, place)

    disk.publish = slow_publish  # type: ignore[method-assign]


def tree(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())


def sizes(path: Path, run: str = "r1") -> dict[str, bool]:
    """The commit files of a run, and whether anything is in them."""
    return {
        file.name.removesuffix(".json"): file.stat().st_size > 0
        for file in sorted((path / "runs" / run).iterdir())
    }


def content(path: Path, name: str, run: str = "r1") -> Any:
    """What stands in a commit file, without seals."""
    return _unsealed(json.loads((path / "runs" / run / f"{name}.json").read_text()))


def _unsealed(shown: Any) -> Any:
    if isinstance(shown, list):
        return [_unsealed(item) for item in shown]
    if not isinstance(shown, dict):
        return shown
    return {
        name: _unsealed(part)
        for name, part in shown.items()
        if name not in ("seal", "content", "journal", "place")
    }


def child(module: str, function: str, *args: object) -> "subprocess.Popen[str]":
    """A process that calls a function of a module of tests."""
    code = f"from tests.stores.{module} import {function}; {function}(*{args!r})"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
