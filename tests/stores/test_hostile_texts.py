"""Ids and texts that look like SQL, paths or notations are texts in every store, and come back as they were."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import CheckpointStorage, HoldfastError, RunStatus
from holdfast.checkpoint.store import Letter, RunQuery
from holdfast.ids import RunId
from tests.stores.keyed_world import KEYS, MAKERS, fill, make_workflow

TEXTS = (
    "'; DROP TABLE runs; --",
    '" OR 1=1 --',
    "../../../etc/passwd",
    "/etc/passwd",
    "a%' ESCAPE '_",
    "$(reboot) `reboot`",
    '{"$pack": 1}',
    "$bin",
    "nul\x00byte",
    "line\nbreak",
    "half a character \ud83d",
    "‮right to left",
)


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("kind", MAKERS)
async def test_hostile_texts_stay_texts(kind: str, keyed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    async with MAKERS[kind](folder, KEYS if keyed else None) as storage:
        await fill(storage, ("first",))
        made = (await storage.list_checkpoints(run_id="first"))[0]
        accepted = [text for text in TEXTS if await _tag(storage, made.checkpoint_id, text)]
        letters = [Letter(text, b"\x00" + text.encode("utf-8", "surrogatepass")) for text in TEXTS]
        assert (await storage.store.leave(RunId("failed"), 1, letters)).refused == ()
        for text in TEXTS:
            try:
                await storage.store.runs(RunQuery(text=text, workflow_name=text, forked_from=RunId(text)))
                result = await make_workflow(storage).run("begin", run_id=text)
            except HoldfastError:
                continue
            assert (await storage.get_run(text)).status is RunStatus.WAITING
            assert result.run_id == text
        assert set((await storage.list_checkpoints(run_id="first"))[0].tags) == set(accepted)
        assert [one.key for one in await storage.store.inbox(RunId("failed"))] == list(TEXTS)
        assert (await storage.verify()).ok
        assert len(accepted) > 3
    assert os.listdir(tmp_path) == ["store"]
    if kind == "sqlite":
        with closing(sqlite3.connect(folder / "runs.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def _tag(storage: CheckpointStorage, checkpoint_id: str, text: str) -> bool:
    try:
        await storage.tag(checkpoint_id, text)
    except HoldfastError:
        return False
    return True
