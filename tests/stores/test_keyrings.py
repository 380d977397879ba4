"""Keyrings: where keys come from, what rekeying changes, and several processes with the same keys."""

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

from holdfast import (
    CheckpointStorage,
    CheckpointUntrusted,
    InMemoryCheckpointStorage,
    InvalidArgument,
    Keyring,
    RunStatus,
    SqliteCheckpointStorage,
    StorageError,
)
from holdfast.stores.memory import MemoryStore
from tests.stores.keyed_world import KEYS, MAKERS, SECRETS, fill, in_memory, look, make_workflow


async def test_a_rekeyed_store_opens_with_the_new_key_alone(tmp_path: Path) -> None:
    rotated = KEYS.rotate()
    async with MAKERS["sqlite"](tmp_path, KEYS) as storage:
        await fill(storage)
        before = await look(storage)
        await storage.rekey(rotated)
        result = await make_workflow(storage).run("begin later", run_id="later")
        assert result.status is RunStatus.WAITING
    async with MAKERS["sqlite"](tmp_path, rotated.only_newest()) as storage:
        assert await look(storage) == before
        assert (await storage.verify()).ok
        assert len(await storage.list_runs()) == 4
    storage = MAKERS["sqlite"](tmp_path, KEYS)
    with pytest.raises(CheckpointUntrusted, match=rotated.key_ids[0]):
        await storage.list_runs()
    await storage.close()


async def test_a_new_store_can_be_rekeyed_before_it_has_runs(tmp_path: Path) -> None:
    rotated = KEYS.rotate()
    async with MAKERS["sqlite"](tmp_path, KEYS) as storage:
        await storage.rekey(rotated)
        await fill(storage)
    async with MAKERS["sqlite"](tmp_path, rotated.only_newest()) as storage:
        assert len(await storage.list_runs()) == 3


async def test_a_storage_that_is_open_reads_what_was_written_after_a_rekey(tmp_path: Path) -> None:
    rotated = KEYS.rotate()
    async with MAKERS["file"](tmp_path, rotated) as other, MAKERS["file"](tmp_path, rotated) as storage:
        await make_workflow(other).run("begin", run_id="first")
        await storage.rekey(rotated.rotate().only_newest())
        await storage.cancel("first")
        with pytest.raises(CheckpointUntrusted, match="is under the key"):
            await other.get_run("first")
    again = rotated.rotate()
    (tmp_path / "second").mkdir()
    place = tmp_path / "second"
    async with MAKERS["file"](place, KEYS) as storage, MAKERS["file"](place, again) as other:
        await make_workflow(other).run("begin", run_id="first")
        await storage.rekey(again)
        await storage.cancel("first")
        assert (await other.get_run("first")).status is RunStatus.CANCELLED


def test_a_service_may_hold_the_key() -> None:
    asked: list[int] = []
    service = Keyring.generate()

    def wrap(secret: bytes) -> bytes:
        asked.append(len(secret))
        return secret[::-1]

    ring = Keyring.from_callback("service:1", wrap, lambda wrapped: wrapped[::-1])
    wrapped = ring.wrap(b"s" * 32, b"place")
    assert ring.unwrap(dict([wrapped]), b"place", "the store") == b"s" * 32
    assert asked == [64]
    with pytest.raises(CheckpointUntrusted, match="was not wrapped for this place"):
        ring.unwrap(dict([wrapped]), b"elsewhere", "the store")
    with pytest.raises(CheckpointUntrusted, match="is under the key service:1"):
        service.unwrap(dict([wrapped]), b"place", "the store")
    with pytest.raises(InvalidArgument, match="a service holds a key"):
        ring.rotate()


async def test_a_service_that_does_not_answer_leaves_the_store_as_it_was() -> None:
    def wrap(secret: bytes) -> bytes:
        raise ConnectionError("the service is away")

    store = MemoryStore(keyed=True)
    storage = CheckpointStorage(store, keys=Keyring.from_callback("service:1", wrap, wrap))
    with pytest.raises(StorageError, match=r"'service:1' could not wrap .*the service is away"):
        await storage.list_runs()
    assert await store.key_box() == ""


@pytest.mark.parametrize("tag", ["\x00untrusted:x", "two\nlines", "\x7f", "half \ud800"])
async def test_tags_that_nobody_could_read_are_refused(tag: str) -> None:
    """One that begins as those of a stranger do would pass for damage."""
    storage = in_memory()
    await fill(storage)
    place = (await storage.list_checkpoints(run_id="first"))[2]
    with pytest.raises(InvalidArgument, match="contains a character that cannot be shown"):
        await storage.tag(place, tag)
    assert (await storage.verify()).ok


def test_keys_come_from_text_files_and_the_environment(tmp_path: Path) -> None:
    ring = Keyring.generate().rotate()
    ring.to_file(tmp_path / "keys")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    assert Keyring.from_file(tmp_path / "keys").key_ids == ring.key_ids
    one_line = ring.to_text().replace("\n", ",")
    assert Keyring.from_env("MY_KEYS", {"MY_KEYS": one_line}).key_ids == ring.key_ids
    for make in (
        lambda: Keyring.from_env("MY_KEYS", {}),
        lambda: Keyring.from_env("MY_KEYS", {"MY_KEYS": "walnut-secret"}),
        lambda: Keyring.from_file(tmp_path / "nothing"),
        lambda: Keyring.from_text(""),
    ):
        with pytest.raises(InvalidArgument) as raised:
            make()
        assert "walnut-secret" not in str(raised.value)
    assert not any(line.partition(":")[2] in repr(ring) for line in ring.to_text().splitlines())


async def test_an_exported_run_is_encrypted_unless_plain_is_asked_for(tmp_path: Path) -> None:
    storage, path = in_memory(), tmp_path / "first.export"
    await fill(storage)
    await storage.export_run("first", path)
    assert not any(secret.encode() in path.read_bytes() for secret in SECRETS)
    other = in_memory()
    await other.import_run(path)
    assert (await look(other))["first"] == (await look(storage))["first"]
    for wrong, text in (
        (None, "is encrypted, and this storage has no keys"),
        (Keyring.generate(), KEYS.key_ids[0]),
    ):
        with pytest.raises(CheckpointUntrusted, match=text):
            await InMemoryCheckpointStorage(keys=wrong).import_run(path)

    await storage.export_run("first", tmp_path / "plain.export", plain=True)
    with pytest.raises(CheckpointUntrusted, match="pass plain=True"):
        await in_memory().import_run(tmp_path / "plain.export")
    await in_memory().import_run(tmp_path / "plain.export", plain=True)
    await InMemoryCheckpointStorage().import_run(tmp_path / "plain.export")


async def test_an_encrypted_export_that_was_changed_or_cut_is_refused(tmp_path: Path) -> None:
    storage, path, size = in_memory(), tmp_path / "big.export", 100_000
    noise = random.Random(1).randbytes(size).hex()  # several chunks
    await make_workflow(storage).run(noise, run_id="first")
    await storage.export_run("first", path)
    whole = path.read_bytes()
    chunk = (1 << 16) + 16
    begin = len(whole) - (len(whole) - 16) // chunk * chunk
    swapped = whole[:begin] + whole[begin + chunk : begin + 2 * chunk] + whole[begin : begin + chunk]
    changed = [
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (0, 17, 40, 200, size)
    ]
    for data in (
        *changed,
        whole[:-1],
        whole[: begin + chunk],
        whole[:-chunk],
        swapped + whole[begin + 2 * chunk :],
    ):
        path.write_bytes(data)
        with pytest.raises(StorageError):
            await in_memory().import_run(path)
    path.write_bytes(whole)
    await in_memory().import_run(path)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from holdfast import Keyring
from tests.stores.keyed_world import MAKERS, make_workflow

async def main() -> None:
    async with MAKERS[sys.argv[1]](Path(sys.argv[2]), Keyring.from_env()) as storage:
        workflow = make_workflow(storage)
        await asyncio.gather(*(workflow.run(f"begin {n}", run_id=f"{sys.argv[3]}{n}") for n in range(5)))

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", MAKERS)
async def test_two_processes_begin_one_store_under_keys(kind: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_KEYS": KEYS.to_text()}
    commands = [[sys.executable, "-c", PROGRAM, kind, str(tmp_path), name] for name in ("a", "b")]
    begun = [await asyncio.create_subprocess_exec(*command, env=environment) for command in commands]
    assert [await asyncio.wait_for(process.wait(), 120) for process in begun] == [0, 0]
    async with MAKERS[kind](tmp_path, KEYS) as storage:
        assert len(await storage.list_runs()) == 10
        assert (await storage.verify()).ok


async def test_copies_and_backups_hold_the_same_runs(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db", keys=KEYS) as storage:
        await fill(storage)
        before = await look(storage)
        run = await make_workflow(storage).start("begin driven", run_id="driven")
        await storage.backup(tmp_path / "backup.db")  # in which nobody owns the run
        await run.wait_for_completion()
        for other in (InMemoryCheckpointStorage(keys=Keyring.generate()), InMemoryCheckpointStorage()):
            await storage.copy_to(other)
            assert await look(other) == before
            assert (await other.verify()).ok
    async with SqliteCheckpointStorage(tmp_path / "backup.db", keys=KEYS) as backup:
        assert await look(backup) == before
        assert (await backup.verify()).ok
        resumed = await make_workflow(backup).resume(run_id="driven")
        assert (await resumed.wait_for_completion()).status is RunStatus.WAITING


def test_a_file_with_other_keys_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "one.keys"
    first = Keyring.generate()
    first.to_file(path)
    first.to_file(path)
    before = path.read_bytes()
    with pytest.raises(
        InvalidArgument, match=f"holds the key {first.key_ids[0]}, which may be all that opens"
    ):
        Keyring.generate().to_file(path)
    rotated = first.rotate()
    assert path.read_bytes() == before
    rotated.to_file(path)
    with pytest.raises(InvalidArgument, match="or say replace=True"):
        rotated.only_newest().to_file(path)
    assert Keyring.from_file(path).key_ids == rotated.key_ids
    rotated.only_newest().to_file(path, replace=True)
    assert Keyring.from_file(path).key_ids == rotated.key_ids[:1]
    (tmp_path / "notes.txt").write_text("of somebody")
    with pytest.raises(InvalidArgument, match="is there and holds no keys"):
        first.to_file(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "of somebody"


def test_a_file_that_is_gone_says_what_opens_the_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="put back your copy of that file, for no new key opens it"):
        Keyring.from_file(tmp_path / "gone.keys")
