"""Who removes a run of a file store may die over it: another run of that name is not taken for the one that is gone."""

import os
from pathlib import Path
from unittest.mock import patch

import ormsgpack
import pytest

from holdfast import RunStatus
from holdfast.checkpoint.store import Commit, Expected, Head, Record
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.file import FileStore
from tests.support.store_parts import HeldLock

RUN = RunId("r")


def head(seq: int) -> Head:
    checkpoint_id = CheckpointId(f"{seq:064x}")
    return Head(RUN, "W", RUN, checkpoint_id, seq, 1, RunStatus.RUNNING, created=1, updated=seq)


def record(seq: int) -> Record:
    return Record(CheckpointId(f"{seq:064x}"), RUN, seq, ormsgpack.packb({"seq": seq}), b"", b"", 1)


class Died(OSError):
    pass


def die(*_: object) -> None:
    raise Died


async def begin(store: FileStore) -> Expected:
    await store.commit(Commit(head(1), None, (record(1),)))
    return Expected(head(1).checkpoint_id, head(1).token)


@pytest.mark.parametrize("where", ["before the file goes", "before the mark goes"])
async def test_a_run_begins_where_another_was_removed(tmp_path: Path, where: str) -> None:
    store = FileStore(tmp_path / "store")
    expected = await begin(store)
    died = (
        patch.object(os, "unlink", die)
        if where == "before the file goes"
        else patch.object(HeldLock, "clear_mark", die)
    )
    with died:
        await store.remove_run(RUN, expected)
    await store.close()

    store = FileStore(tmp_path / "store")
    assert await store.head(RUN) is None
    expected = await begin(store)
    # Now a process dies before it says that its line is durable, and the next one settles that.
    with patch.object(HeldLock, "write_mark", lambda *_: None):
        await store.commit(Commit(head(2), expected, (record(2),)))
    await store.close()

    store = FileStore(tmp_path / "store")
    found = await store.head(RUN)
    assert found is not None
    assert found.seq == 2
    assert await store.inspect() == []
    await store.close()
