"""Makes the golden stores under keys: ``python -m tests.golden.make_keyed``, in the root of the repository.

They have runs of two epochs, for they were rekeyed once, an exported run, and the key with which all is read for ever.
What is in ``keyed`` stands there as it was made: it is made anew only before a version of the format is first released.
"""

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from holdfast import CheckpointStorage, FileCheckpointStorage, Keyring, SqliteCheckpointStorage
from tests.golden.make import named_owners
from tests.stores.keyed_world import fill, make_workflow
from tests.support.tampered import Shown, see

HERE = Path(__file__).resolve().parent / "keyed"
RUNS = ("first", "second", "failed", "later")


def open_keyed(folder: Path, kind: str, keys: Keyring) -> CheckpointStorage:
    """Return a golden store, or a copy of one."""
    if kind == "sqlite":
        return SqliteCheckpointStorage(folder / "store.sqlite", keys=keys)
    return FileCheckpointStorage(folder / "store.files", keys=keys)


KINDS = ("sqlite", "files")


def read_keys(folder: Path = HERE) -> Keyring:
    """Return the keyring that opens all of them."""
    return Keyring.from_file(folder / "keys")


async def show(storage: CheckpointStorage) -> Any:
    """Return all that a storage shows of the runs, as JSON has it."""
    seen = await see(storage, RUNS)
    return json.loads(json.dumps({name: _plain(shown) for name, shown in seen.items()}, default=str))


def _plain(shown: Any) -> Any:
    assert isinstance(shown, Shown), shown
    return {name: repr(part) for name, part in zip(Shown._fields, shown, strict=True)}


async def make() -> None:
    """Make the stores elsewhere, and put them here."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "keyed"
        folder.mkdir()
        old = Keyring.generate()
        new = old.rotate()
        new.only_newest().to_file(folder / "keys")
        expected = {}
        for kind in KINDS:
            with named_owners():
                async with open_keyed(folder, kind, old) as storage:
                    await fill(storage)
                    await storage.export_run("first", folder / f"{kind}.export")
                    await storage.rekey(new)
                    await make_workflow(storage).run("later", run_id="later")
                    expected[kind] = await show(storage)
        # An export has a key of its own, which the old key of the user wraps.
        new.to_file(folder / "keys.both")
        (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
        for hint in ("waking", "temp", "locks"):
            shutil.rmtree(folder / "store.files" / hint, ignore_errors=True)
        for index in folder.rglob("index.db*"):
            index.unlink()
        shutil.rmtree(HERE, ignore_errors=True)
        shutil.copytree(folder, HERE)


if __name__ == "__main__":
    asyncio.run(make())
