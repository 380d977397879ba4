"""Links, pipes, devices and folders where a store keeps its files: nothing elsewhere is touched, and nothing hangs."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import HoldfastError, SqliteCheckpointStorage
from tests.support.durable import ON_DISK, storage_at
from tests.support.retained import BIG, counting, listed
from tests.support.runs import soon

OLD = time.time() - 3 * 86_400


async def make(kind: str, folder: Path) -> None:
    """A store with two runs, a tag, and values that have files of their own."""
    async with storage_at(kind, folder) as storage:
        for run_id in ("a", "b"):
            await counting(size=BIG).run(2, run_id=run_id, storage=storage)
        await storage.tag((await listed(storage, "a"))[1], "gold")


async def use(kind: str, folder: Path) -> list[str]:
    """Do all that reads, writes and removes; what was refused."""
    storage = storage_at(kind, folder)
    refused: list[str] = []

    async def attempt(doing: Callable[[], object]) -> None:
        try:
            await soon(doing())  # type: ignore[arg-type]
        except HoldfastError as error:
            refused.append(str(error))

    await attempt(lambda: counting(size=BIG).run(2, run_id="c", storage=storage))
    await attempt(lambda: storage.list_runs())
    await attempt(lambda: storage.list_checkpoints(run_id="a"))
    await attempt(lambda: storage.get_latest(run_id="a"))
    await attempt(lambda: counting(size=BIG).resume(run_id="a", storage=storage))
    await attempt(lambda: storage.load("0" * 64))
    await attempt(lambda: storage.statistics())
    await attempt(lambda: storage.export_run("a", folder / "exported"))
    refused += [problem.what for problem in (await soon(storage.verify())).problems]
    await attempt(lambda: storage.repair(dry_run=True))
    await attempt(lambda: storage.prune())
    await attempt(lambda: storage.delete_run("a"))
    await attempt(lambda: storage.repair())
    if isinstance(storage, SqliteCheckpointStorage):
        await attempt(lambda: storage.backup(folder / "copy.db"))
    await storage.close()
    return refused


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Folders and files of somebody else, all of them old."""
    victim = tmp_path / "elsewhere"
    (victim / "photos.tmp" / "2020").mkdir(parents=True)
    for name in ("thesis.tex", "thesis.tmp", "photos.tmp/2020/a.jpg", "a.jsonl", "c" * 64):
        (victim / name).write_text("precious")
    for path in [*victim.rglob("*"), victim]:
        os.utime(path, (OLD, OLD))
    return victim


def everything(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


FOLDERS = {
    "file": [
        *("runs/temp", "runs/runs", "runs/blobs", "runs/blobs/a"),
        *("runs/waking", "runs/locks", "runs/owners", "runs/damaged"),
    ],
    "sqlite": [
        *("runs.db-blobs", "runs.db-blobs/.temp", "runs.db-blobs/namespace-*", "runs.db-blobs/namespace-*/a"),
        "runs.db-owners",
    ],
}
"""Places where a store keeps its files."""


def place_in(folder: Path, pattern: str) -> Path:
    """The first place that has this form."""
    return min(folder.glob(pattern), default=folder / pattern)


def replace(place: Path, make: Callable[[Path], object]) -> None:
    """Put something else in the place of a file or folder."""
    if os.path.lexists(place):
        place.rename(place.parents[2] / "taken away")
    make(place)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in ON_DISK for name in FOLDERS[kind]])
async def test_a_link_in_place_of_a_folder(tmp_path: Path, victim: Path, kind: str, name: str) -> None:
    store = tmp_path / "of stores" / "store"
    await make(kind, store)
    place = place_in(store, name)
    replace(place, lambda path: path.symlink_to(victim))
    before = everything(victim)
    refused = await use(kind, store)
    assert everything(victim) == before
    assert any(str(place) in said and "put the folder" in said for said in refused), refused
    assert not [said for said in refused if "Errno" in said]


FILES = {
    "file": {
        "runs/store.json": ["pipe", "device"],
        "runs/runs/a.jsonl": ["pipe", "folder", "socket", "device", "huge", "elsewhere"],
        "runs/runs/odd": ["huge"],
        "runs/runs/odd.jsonl": ["pipe", "huge", "elsewhere"],
        "runs/blobs/a/*": ["pipe", "device", "huge"],
        "runs/index.db": ["pipe", "device", "folder", "elsewhere"],
        "runs/waking/00000000000000000000-a": ["pipe", "elsewhere"],
        "runs/locks/a.run": ["pipe", "elsewhere"],
        "runs/locks/a.blobs": ["elsewhere"],
        "runs/temp/odd.tmp": ["pipe"],
    },
    "sqlite": {
        "runs.db": ["pipe", "device", "nowhere"],
        "runs.db-blobs/namespace-*/a/*": ["pipe", "device", "huge"],
        "runs.db-blobs/.sweep": ["elsewhere"],
        "runs.db-blobs/.temp/odd.tmp": ["pipe"],
    },
}
CASES = [(kind, name, thing) for kind in ON_DISK for name, things in FILES[kind].items() for thing in things]
THINGS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, victim: os.mkfifo(path),
    "socket": lambda path, victim: bind(path),
    "folder": lambda path, victim: path.mkdir(),
    "device": lambda path, victim: path.symlink_to("/dev/zero"),
    "huge": lambda path, victim: make_huge(path),
    "elsewhere": lambda path, victim: path.symlink_to(victim / "thesis.tex"),
    "nowhere": lambda path, victim: path.symlink_to(victim / "new.db"),
}


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)  # its path may be too long for one
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def make_huge(path: Path) -> None:
    """A file that takes no room, and that no memory holds."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(("kind", "name", "thing"), CASES)
async def test_something_else_in_place_of_a_file(
    tmp_path: Path, victim: Path, kind: str, name: str, thing: str
) -> None:
    """It takes neither long nor much memory, only errors of Holdfast come of it, and runs beside it can be used."""
    store = tmp_path / "of stores" / "store"
    await make(kind, store)
    replace(place_in(store, name), lambda path: THINGS[thing](path, victim))
    before = everything(victim)
    await use(kind, store)
    assert everything(victim) == before
    if not name.endswith((".db", "store.json", ".sweep")):
        async with storage_at(kind, store) as storage:
            assert (await soon(storage.verify(run_id="b"))).ok


@pytest.mark.parametrize("kind", ON_DISK)
async def test_a_store_that_is_reached_by_a_link(tmp_path: Path, kind: str) -> None:
    """The path of a store is its user's: only what lies in the store, or beside a database, must be no link."""
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    await make(kind, tmp_path / "link")
    if kind == "file":
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "runs").symlink_to(tmp_path / "link" / "runs")
        await counting(size=BIG).run(2, run_id="c", storage=(storage := storage_at(kind, tmp_path / "other")))
        await storage.close()
    async with storage_at(kind, tmp_path / "store") as storage:
        assert (await storage.verify()).ok
        assert len(await storage.list_runs()) == (3 if kind == "file" else 2)
