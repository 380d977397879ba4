"""FileStore: files that stay open between commits, and runs that begin together."""

import asyncio
import errno
import gc
import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.file import FileStore
from tests.stores.file_commits import (
    RUN,
    failing,
    head,
    lock_path,
    opened,
    run_path,
    seqs,
    standing,
    step,
    write,
)
from tests.support.parts import Disk

RUNS = [RunId(f"r{number}") for number in range(1, 41)]


@pytest.fixture
def directory(on_disk: Path) -> Path:
    return on_disk / "store"


def open_in(directory: Path) -> list[str]:
    """The files of a store that this process has open."""
    links = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{handle}"))
        except FileNotFoundError:  # the one by which the folder was read
            pass
    return sorted(link for link in links if link.startswith(str(directory)))


async def test_the_files_of_a_run_stay_open_while_it_is_driven(files, directory) -> None:
    await write(files, RUN, 3)
    assert open_in(directory) == sorted([str(lock_path(directory)), str(run_path(directory))])
    await files.remove_run(RUN, standing(RUN, 3))
    await write(files, RUN, 1)
    assert open_in(directory) == sorted([str(lock_path(directory)), str(run_path(directory))])


@pytest.mark.parametrize("is_closed", [True, False])
async def test_no_file_stays_open_without_the_store(directory, is_closed) -> None:
    store = FileStore(directory)
    await write(store, RUN, 2)
    assert len(open_in(directory)) == 2
    if is_closed:
        await store.close()
    del store
    gc.collect()
    assert open_in(directory) == []


async def test_few_files_stay_open_where_a_process_may_have_few(
    files, others, directory, monkeypatch
) -> None:
    """All runs go on, more of them at once than may be open."""
    monkeypatch.setattr("holdfast.stores.file.open_files._file_limit", lambda: 20)
    monkeypatch.setattr("holdfast.stores.file.open_files._open_files", {})  # not those of other tests
    for seq in range(1, 4):
        await asyncio.gather(*(files.commit(step(run, seq)) for run in RUNS))
    assert 0 < len(open_in(directory)) <= 10
    for run in RUNS:
        assert await others.head(run) == head(run, 3)


async def test_what_others_did_meanwhile_is_seen_through_open_files(files, others, directory) -> None:
    """Another process removes a run and begins it anew, in other files; or only its data is replaced."""
    await write(files, RUN, 2)
    await others.remove_run(RUN, standing(RUN, 2))
    await write(others, RUN, 1)
    await files.commit(step(RUN, 2))
    assert await seqs(others) == [1, 2]
    copy = run_path(directory).read_bytes()
    run_path(directory).unlink()
    run_path(directory).write_bytes(copy)
    await files.commit(step(RUN, 3))
    assert await seqs(FileStore(directory)) == [1, 2, 3]


async def test_a_child_of_a_fork_keeps_no_lock(files, directory) -> None:
    """It has copies of the open files; a lock must end with the process that took it, not with its children."""
    await write(files, RUN, 2)
    child = os.fork()
    if not child:
        try:
            os._exit(len(open_in(directory)))
        finally:
            os._exit(99)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await files.commit(step(RUN, 3))
    assert await seqs(files) == [1, 2, 3]


def test_a_lock_ends_with_its_process_though_children_live(directory) -> None:
    """A process with a child is killed while it holds the lock of a run."""
    ready, tell = os.pipe()
    process = os.fork()
    if not process:
        try:
            one = opened(directory)
            one.commit(step(RUN, 1))
            child = os.fork()
            if not child:
                signal.pause()
            os.write(tell, f"{child} ".encode())
            os.fdatasync = lambda handle: signal.pause()  # type: ignore[assignment]
            one.commit(step(RUN, 2))
        finally:
            os._exit(99)
    child = int(os.read(ready, 100))
    try:
        while run_path(directory).read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        after = opened(directory)
        after.commit(step(RUN, 3), is_patient=False)
        assert after.run(RUN).head() == head(RUN, 3)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready)
        os.close(tell)


# -- runs that begin together ----------------------------------------------------------------------


async def test_runs_that_begin_together_sync_their_folder_once(files, others) -> None:
    await write(files, RunId("first"), 1)
    before = files.fsyncs
    await asyncio.gather(*(files.commit(step(run, 1)) for run in RUNS))
    assert files.fsyncs - before == len(RUNS) + 1
    for run in RUNS:
        assert await others.head(run) == head(run, 1)


async def test_no_run_begins_whose_name_may_not_be_durable(files, others, directory, monkeypatch) -> None:
    await write(files, RunId("first"), 1)
    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync_folder", failing(errno.EIO))
        together = (*(step(run, 1) for run in RUNS), step(RunId("first"), 2))
        outcomes = await asyncio.gather(*map(files.commit, together), return_exceptions=True)
    assert [type(one) for one in outcomes] == [StorageError] * len(RUNS) + [list]
    assert os.listdir(directory / "runs") == ["first.jsonl"]
    for run in RUNS:
        assert await others.head(run) is None
    await asyncio.gather(*(files.commit(step(run, 1)) for run in RUNS))
    for run in RUNS:
        assert await others.head(run) == head(run, 1)


async def test_two_processes_that_begin_the_same_runs(files, others) -> None:
    """Each run begins once."""
    outcomes = await asyncio.gather(
        *(store.commit(step(run, 1)) for run in RUNS for store in (files, others)), return_exceptions=True
    )
    assert sum(isinstance(one, list) for one in outcomes) == len(RUNS)
    for run in RUNS:
        assert await others.head(run) == await files.head(run) == head(run, 1)
