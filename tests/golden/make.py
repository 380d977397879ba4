"""Makes the golden stores: ``python -m tests.golden.make``, in the root of the repository.

They were made once for a version of the format and are read for ever: a later version of the library must read them as
they are. So this is run only before a version of the format is first released, or to add runs for a new minor one.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast import CheckpointStorage, HoldfastError, SuperStepStartedEvent
from holdfast.checkpoint import log
from holdfast.stores.file import FileStore
from holdfast.stores.sqlite import SqliteStore
from tests.golden import reader, workflows
from tests.golden.kinds import KINDS

HERE = Path(__file__).resolve().parent
DATABASE = HERE / "store.sqlite"
DIRECTORY = HERE / "store.files"
EXPECTED = HERE / "expected.json"
NAMESPACE = "Team B"
_BIG_BLOB = 3_000  # so that some blobs are files, though none is big


@contextmanager
def low_limits() -> Iterator[None]:
    """Let keyframes and parts that lie elsewhere come about in small runs."""
    before = log._KEYFRAME_BYTES, log._LARGEST_PART
    log._KEYFRAME_BYTES, log._LARGEST_PART = 600, 350
    try:
        yield
    finally:
        log._KEYFRAME_BYTES, log._LARGEST_PART = before


async def fill(storage: CheckpointStorage) -> None:
    """All golden runs."""
    await workflows.kinds().run("kinds", run_id="all-kinds", storage=storage)
    await workflows.approval().run(KINDS["dataclass"], run_id="Waiting 1", storage=storage)
    with low_limits():
        await workflows.growing().run(1, run_id="grown", storage=storage)
    await _nested(storage)
    await workflows.joining().run(21, run_id="fan-in", storage=storage)
    try:
        await workflows.failing().run(0, run_id="failed", storage=storage)
    except HoldfastError:
        pass
    await _cancelled(storage)
    await _restored(storage)
    await storage.close()


async def _nested(storage: CheckpointStorage) -> None:
    result = await workflows.nested().run("contract", run_id="nested", storage=storage)
    await result.respond({"security#1/Review.2.1": "rotate the keys"})


async def _cancelled(storage: CheckpointStorage) -> None:
    run = await workflows.sleeping().start(60.0, run_id="cancelled", storage=storage)
    async for event in run.watch_stream():
        if isinstance(event, SuperStepStartedEvent):
            break
    await run.cancel()


async def _restored(storage: CheckpointStorage) -> None:
    """A run that went on from an earlier checkpoint: two branches."""
    with low_limits():
        await workflows.growing().run(3, run_id="restored", storage=storage)
        checkpoints = await storage.list_checkpoints(run_id="restored")
        run = await workflows.growing().resume(checkpoints[3], storage=storage)
        await run.wait_for_completion()


async def fill_namespace(storage: CheckpointStorage) -> None:
    """Another namespace of the same store, with a run of the same name as one in the first."""
    await workflows.joining().run(4, run_id="fan-in", storage=storage)
    await storage.close()


def expected(store: Path, namespace: str = "") -> dict[str, Any]:
    """What the independent reader finds, without what differs each time: ids and times."""
    found = {}
    for run in reader.read(store, namespace):
        listed = run.listed()
        seqs = {made["checkpoint_id"]: made["seq"] for made in listed}
        for made in listed:
            made["parent"] = seqs.get(made["parent"])
            del made["checkpoint_id"]
        found[run.head["run_id"]] = {
            **{key: run.head[key] for key in ("workflow_name", "family", "seq", "token", "status", "reason")},
            "checkpoints": listed,
            "held": _shortened(run.held(run.head["checkpoint_id"]).shown()),
        }
    return found


def _shortened(value: Any) -> Any:
    """The same with a digest in place of long texts."""
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part) for part in value]
    if isinstance(value, str) and len(value) > 300:
        return f"{len(value)} characters, {blake2b(value.encode(), digest_size=16).hexdigest()}"
    return value


async def make() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    shutil.rmtree(_beside(DATABASE), ignore_errors=True)
    DATABASE.unlink(missing_ok=True)
    with patch.object(log, "this_process", lambda: "golden:1:1"):  # not the names of some machine
        await fill(CheckpointStorage(SqliteStore(DATABASE, big_blob=_BIG_BLOB)))
        await fill_namespace(CheckpointStorage(SqliteStore(DATABASE, NAMESPACE, big_blob=_BIG_BLOB)))
        await fill(CheckpointStorage(FileStore(DIRECTORY)))
        await fill_namespace(CheckpointStorage(FileStore(DIRECTORY, NAMESPACE)))
    for unneeded in (*DIRECTORY.rglob("ids"), DIRECTORY / "temp"):
        shutil.rmtree(unneeded)  # links that are only hints, and an empty folder, which git does not keep
    with tempfile.TemporaryDirectory() as folder:
        database, _ = copied(Path(folder))
        document = {"": expected(database), NAMESPACE: expected(database, NAMESPACE)}
    EXPECTED.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def copied(folder: Path) -> tuple[Path, Path]:
    """Copies of the two stores: whoever opens a database leaves files beside it, also one who only reads."""
    database, directory = folder / DATABASE.name, folder / DIRECTORY.name
    shutil.copy(DATABASE, database)
    shutil.copytree(_beside(DATABASE), _beside(database))
    shutil.copytree(DIRECTORY, directory)
    return database, directory


def _beside(database: Path) -> Path:
    return database.with_name(f"{database.name}-blobs")


if __name__ == "__main__":
    asyncio.run(make())
