"""Stores of an earlier day that are under keys are read for ever, and refuse what they refused."""

import json
import shutil
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path

import ormsgpack
import pytest

from holdfast import CheckpointUntrusted, InMemoryCheckpointStorage, Keyring, RunStatus
from tests.golden.make_keyed import HERE, KINDS, open_keyed, read_keys, show
from tests.stores.keyed_world import in_memory, make_workflow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden stores."""
    return Path(shutil.copytree(HERE, tmp_path / "keyed"))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_library_shows_what_was_stored_under_keys(kind: str, folder: Path) -> None:
    expected = json.loads((HERE / "expected.json").read_text())[kind]
    async with open_keyed(folder, kind, read_keys()) as storage:
        assert await show(storage) == expected
        report = await storage.verify()
        assert report.problems == []
        assert report.checkpoints == 25


@pytest.mark.parametrize("kind", KINDS)
async def test_runs_under_keys_go_on(kind: str, folder: Path) -> None:
    async with open_keyed(folder, kind, read_keys()) as storage:
        for name in ("first", "later"):  # of the epochs before and after the keys were replaced
            run = await make_workflow(storage).resume(run_id=name)
            result = await run.wait_for_completion()
            assert result.status is RunStatus.WAITING
            done = await result.respond({result.pending_requests[0].request_id: "walnut-answer"})
            assert done.status in (RunStatus.COMPLETED, RunStatus.WAITING)
        assert (await storage.verify()).ok


@pytest.mark.parametrize("kind", KINDS)
async def test_other_keys_open_no_golden_store(kind: str, folder: Path) -> None:
    old = Keyring((Keyring.from_file(HERE / "keys.both")._keys[1],))
    for keys in (Keyring.generate(), old):
        storage = open_keyed(folder, kind, keys)
        with pytest.raises(CheckpointUntrusted, match="is under the key"):
            await storage.list_runs()
        await storage.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_exported_runs_of_an_earlier_day_are_read(kind: str, folder: Path) -> None:
    with pytest.raises(CheckpointUntrusted, match="is under the key"):
        await in_memory().import_run(folder / f"{kind}.export")
    other = InMemoryCheckpointStorage(keys=Keyring.from_file(HERE / "keys.both"))
    await other.import_run(folder / f"{kind}.export")
    assert (await other.get_run("first")).status is RunStatus.WAITING


FUTURE = b64encode(ormsgpack.packb([2, "something else"])).decode()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_box_of_the_future_is_refused_readably(kind: str, folder: Path) -> None:
    if kind == "files":
        (folder / "store.files" / "store.keys").write_text(FUTURE)
    else:
        with closing(sqlite3.connect(folder / "store.sqlite")) as database:
            database.execute("UPDATE meta SET value = ? WHERE key = 'key_box'", (FUTURE,))
            database.commit()
    storage = open_keyed(folder, kind, read_keys())
    with pytest.raises(CheckpointUntrusted, match=r"have format 2, but this version .* Use a newer version"):
        await storage.list_runs()
    await storage.close()


async def test_an_export_of_the_future_is_refused_readably(folder: Path) -> None:
    path = folder / "files.export"
    data, begin = path.read_bytes(), ormsgpack.packb([2, {}])
    path.write_bytes(data[:16] + len(begin).to_bytes(4, "little") + begin + data[20:])
    with pytest.raises(CheckpointUntrusted, match=r"has format 2, but this version .* Use a newer version"):
        await in_memory().import_run(path)
