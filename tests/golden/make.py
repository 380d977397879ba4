"""Makes the golden stores: ``python -m tests.golden.make``, in the root of the repository.

They were made once for a version of the format and are read for ever: a later version of the library must read them as
they are. So this is run only before a version of the format is first released, or to add runs for a new minor one.
"""

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, patch

from holdfast import CheckpointStorage, HoldfastError, Retention, Run, RunStatus, SuperStepStartedEvent
from holdfast.checkpoint import ownership
from holdfast.checkpoint.derived_starts import read_records, tag_checkpoint
from holdfast.checkpoint.format import replay
from holdfast.checkpoint.format.stored_form import stored_form
from holdfast.checkpoint.inbox import answer_key, cancel_letter
from holdfast.checkpoint.store import Depth, Letter
from holdfast.checkpoint.write import log
from holdfast.checkpoint.write import records as making
from holdfast.ids import RequestId, RunId
from holdfast.runtime.events import notices
from holdfast.stores.file import FileStore, run_file
from holdfast.stores.file.line_file import LineFile
from holdfast.stores.file.run_state import RunState
from holdfast.stores.sqlite import SqliteStore
from tests.golden import journals, reader, renames, workflows
from tests.golden.kinds import KINDS

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"
NAMESPACE = "Team B"
_BIG_BLOB = 3_000  # so that some blobs are files, though none is big


class Stores(NamedTuple):
    database: Path
    directory: Path


def stores_in(folder: Path) -> Stores:
    return Stores(folder / "store.sqlite", folder / "store.files")


STORES = stores_in(HERE)


@contextmanager
def low_limits() -> Iterator[None]:
    """Let keyframes and parts that lie elsewhere come about in small runs."""
    with (
        patch.object(replay, "_KEYFRAME_BYTES", 600),
        patch.object(replay, "_RECORD_BYTES", 0),
        patch.object(making, "LARGEST_PART", 350),
    ):
        yield


@contextmanager
def named_owners() -> Iterator[None]:
    """Let owners and tracebacks be the same each time, and tell nothing of the machine on which stores are made."""
    with (
        patch.object(notices, "traceback_text", "Traceback of {!r}".format),
        patch.object(ownership, "this_process", lambda: "boot/1/golden:17:42"),
        patch.object(ownership, "_numbers", itertools.count(1)),
    ):
        yield


async def fill(storage: CheckpointStorage) -> None:
    """All golden runs."""
    await workflows.kinds().run("kinds", run_id="all-kinds", storage=storage)
    await workflows.approval().run(KINDS["dataclass"], run_id="Waiting 1", storage=storage)
    with low_limits():
        await workflows.growing().run(1, run_id="grown", storage=storage)
    await _nested(storage)
    await workflows.joining().run(21, run_id="fan-in", storage=storage)
    await workflows.stranded().run(21, run_id="stranded", storage=storage)
    with suppress(HoldfastError):
        await workflows.failing().run(0, run_id="failed", storage=storage)
    await _cancelled(storage)
    await _restored(storage)
    await _forked(storage)
    with suppress(HoldfastError):
        await journals.journaled(fails=True).run(4, run_id="journaled", storage=storage)
    await _answered(storage)
    await _asked_again(storage)
    await _refused(storage)
    await _renamed(storage)
    await _interrupted(storage)
    await _retained(storage)
    await _edited(storage)
    await _removed(storage)
    await storage.close()


async def _retained(storage: CheckpointStorage) -> None:
    """A run of which little is left: what was tagged, and its last supersteps; its letters were taken before."""
    storage.retention = Retention.keep_last(2)
    try:
        with low_limits():
            await workflows.growing().run(1, run_id="retained", storage=storage)
    finally:
        storage.retention = None
    run_id = RunId("retained")
    made = await read_records(storage.store, run_id, 1, 1 << 60, Depth.HEADERS)
    await tag_checkpoint(storage.store, run_id, made[3].seq, ("gold", "half a character \ud83d"))
    await tag_checkpoint(storage.store, run_id, made[6].seq, ("gold",))
    await tag_checkpoint(storage.store, run_id, made[-2].seq, ("gold",))
    with patch.object(run_file, "_WASTE", 0), patch.object(RunState, "live_bytes", lambda self: 0):
        await storage.prune(run_id="retained")  # its file is written anew


async def _edited(storage: CheckpointStorage) -> None:
    """A run that was tagged and lost checkpoints: its file still has them, and lines that say so."""
    result = await workflows.approval().run(KINDS["dataclass"], run_id="edited", storage=storage)
    await result.respond({"Approve.1.1": {"approved": True}, "number": None})
    made = await storage.list_checkpoints(run_id="edited")
    await storage.tag(made[0], "first")
    await storage.delete(made[1])
    await storage.tag(made[2], "first")
    await storage.untag(made[0])


async def _removed(storage: CheckpointStorage) -> None:
    """Runs that were removed: one by a process that died over it, and one that began again."""
    for run_id in ("gone", "again"):
        await workflows.joining().run(1, run_id=run_id, storage=storage)
        await storage.tag((await storage.list_checkpoints(run_id=run_id))[0], "old")
        with patch.object(LineFile, "remove", lambda *_: None) if run_id == "gone" else nullcontext():
            await storage.delete_run(run_id)
    await workflows.joining().run(2, run_id="again", storage=storage)


async def _nested(storage: CheckpointStorage) -> None:
    result = await workflows.nested().run("contract", run_id="nested", storage=storage)
    await result.respond({"security#1/Review.2.1": "rotate the keys"})


async def _cancelled(storage: CheckpointStorage) -> None:
    run = await workflows.sleeping().start(60.0, run_id="cancelled", storage=storage)
    await _under_way(run)
    await run.cancel()


async def _under_way(run: Run) -> None:
    async for event in run.watch_stream():
        if isinstance(event, SuperStepStartedEvent):
            break


async def _restored(storage: CheckpointStorage) -> None:
    """A run that went on from an earlier checkpoint: two branches."""
    with low_limits():
        await workflows.growing().run(3, run_id="restored", storage=storage)
        checkpoints = await storage.list_checkpoints(run_id="restored")
        run = await workflows.growing().resume(checkpoints[3], storage=storage)
        await run.wait_for_completion()


async def _forked(storage: CheckpointStorage) -> None:
    """A run that began where another one ended, with its blobs, and with a key that was edited."""
    latest = await storage.get_latest(run_id="grown")
    assert latest is not None
    run = await workflows.growing().fork(
        latest, edits={("Grown", "lines"): ["edited"]}, run_id="Forked", storage=storage
    )
    await run.wait_for_completion()


async def _answered(storage: CheckpointStorage) -> None:
    """A run that waits, though somebody answered: nobody drives it."""
    await workflows.approval().run(KINDS["dataclass"], run_id="answered", storage=storage)
    answers = {"Approve.1.1": {"approved": False, "reason": "too long"}, "number": 12}
    await storage.respond("answered", answers)


async def _asked_again(storage: CheckpointStorage) -> None:
    """A run that was over and went back to where it waited: it asks again."""
    result = await workflows.approval().run(KINDS["dataclass"], run_id="asked again", storage=storage)
    await result.respond({"Approve.1.1": {"approved": True}, "number": None})
    waiting = next(
        made
        for made in await storage.list_checkpoints(run_id="asked again")
        if made.status is RunStatus.WAITING
    )
    run = await workflows.approval().resume(waiting, storage=storage)
    await run.wait_for_completion()


async def _refused(storage: CheckpointStorage) -> None:
    """A run that asks again, because a letter was broken; then somebody answered who does not know its types."""
    await workflows.approval().run(KINDS["dataclass"], run_id="refused", storage=storage)
    run_id = RunId("refused")
    broken = Letter(answer_key(RequestId("Approve.1.1"), 2), stored_form(b"\xc1"))
    await storage.store.leave(run_id, 2, [broken])
    run = await workflows.approval().resume(run_id=run_id, storage=storage)
    await run.wait_for_completion()
    stranger = CheckpointStorage(storage.store)
    await stranger.respond("refused", {"Approve.1.1": {"approved": True, "reason": "as JSON"}}, by="kim")


async def _renamed(storage: CheckpointStorage) -> None:
    """A run that failed, and went on when its executors had other names, and a fan-in one source more.

    The second answer is left while the first is taken in, and is delivered beside what became of the first.
    """
    before = renames.renamed(now=False)
    result = await before.run(3, run_id="renamed", storage=storage)

    async def answer_the_second() -> None:
        renames.meanwhile = None
        await storage.respond("renamed", {"second": 5})

    with suppress(HoldfastError), patch.object(renames, "meanwhile", answer_the_second):
        await result.respond({"first": 4})
    run = await renames.renamed(now=True).resume(run_id="renamed", storage=storage, allow_graph_change=True)
    await run.wait_for_completion()


async def _interrupted(storage: CheckpointStorage) -> None:
    """A run whose process died, as did the one that took it over; somebody wants it to be cancelled."""
    workflow = workflows.sleeping()
    with patch.object(log.RunLog, "set_status", AsyncMock()):  # the dead do not say how they ended
        run = await workflow.start(60.0, run_id="interrupted", storage=storage)
        await _under_way(run)
        await run.cancel()
        run = await workflow.resume(run_id="interrupted", storage=storage)
        await _under_way(run)
        await run.cancel()
    left = await storage.store.leave(run.run_id, 1, [cancel_letter(b"8 bytes.")])
    assert left.head is not None


async def fill_namespace(storage: CheckpointStorage) -> None:
    """Another namespace of the same store, with a run of the same name as one in the first."""
    await workflows.joining().run(4, run_id="fan-in", storage=storage)
    await storage.close()


def expected(store: Path, namespace: str = "") -> dict[str, Any]:
    """What the independent reader finds, without what differs each time: ids and times."""
    found = {}
    for run in reader.read(store, namespace):
        listed = run.listed()
        for made in listed:
            made["parent"] = _place(run, made["parent"])
            del made["checkpoint_id"]
        found[run.head["run_id"]] = {
            **{key: run.head[key] for key in _SAME_EACH_TIME},
            "checkpoints": listed,
            "held": _shortened(run.held(run.head["checkpoint_id"]).shown()),
            "journal": _shortened(sorted(run.journal(), key=repr)),
            "inbox": _shortened(run.inbox()),
        }
    return found


_SAME_EACH_TIME = (
    "workflow_name",
    "family",
    "seq",
    "token",
    "status",
    "owner",
    "wake_at",
    "takeovers",
    "reason",
    "retention",
    "waiting_for",
)


def _place(run: reader.Run, checkpoint_id: str | None) -> int | str | None:
    """Where a checkpoint stands: its seq, and the run if it is another one."""
    if checkpoint_id is None:
        return None
    if checkpoint_id not in run.relatives:
        return "removed"
    relative = run.relatives[checkpoint_id]
    seq: int = relative.headers[checkpoint_id]["seq"]
    return seq if relative is run else f"{relative.head['run_id']} {seq}"


def _shortened(value: Any) -> Any:
    """The same with a digest in place of long texts, and without the times of events."""
    if isinstance(value, dict):
        return {key: _shortened(part) for key, part in value.items() if key != "timestamp"}
    if isinstance(value, list):
        return [_shortened(part) for part in value]
    if isinstance(value, str) and len(value) > 300:
        return f"{len(value)} characters, {blake2b(value.encode(), digest_size=16).hexdigest()}"
    return value


async def make() -> None:
    """Make the stores elsewhere, and when all is well put them here."""
    with tempfile.TemporaryDirectory() as folder:
        made = stores_in(Path(folder) / "made")
        made.database.parent.mkdir()
        await _make(made)
        shutil.rmtree(_beside(STORES.database), ignore_errors=True)
        shutil.rmtree(STORES.directory, ignore_errors=True)
        STORES.database.unlink(missing_ok=True)
        copy(made, STORES)
        # Whoever opens a database leaves files beside it, also one who only reads: what is there now is read elsewhere.
        document = {name: expected(made.database, name) for name in ("", NAMESPACE)}
    EXPECTED.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


async def _make(stores: Stores) -> None:
    database, directory = stores
    for first, second in (
        (SqliteStore(database, big_blob=_BIG_BLOB), SqliteStore(database, NAMESPACE, big_blob=_BIG_BLOB)),
        (FileStore(directory), FileStore(directory, NAMESPACE)),
    ):
        with named_owners():
            await fill(CheckpointStorage(first))
            await fill_namespace(CheckpointStorage(second))
    for unneeded in (*directory.rglob("waking"), directory / "temp", directory / "locks"):
        shutil.rmtree(unneeded)  # hints, an empty folder, and what nobody holds any more
    for index in directory.rglob("index.db*"):
        index.unlink()


def copy(stores: Stores, to: Stores) -> Stores:
    """Copy the two stores."""
    shutil.copy(stores.database, to.database)
    unneeded = shutil.ignore_patterns(".temp", ".sweep", ".gate")
    shutil.copytree(_beside(stores.database), _beside(to.database), ignore=unneeded)
    shutil.copytree(stores.directory, to.directory)
    return to


def copied(folder: Path) -> Stores:
    """Copies of the golden stores, for those who open them."""
    return copy(STORES, stores_in(folder))


def _beside(database: Path) -> Path:
    return database.with_name(f"{database.name}-blobs")


if __name__ == "__main__":
    asyncio.run(make())
