"""Verify notices random damage and names what is affected, all else loads as before, and repair makes nothing worse.

By hand, for longer: ``python -m tests.faults.corruption --store file --count 500``.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.faults.corruption import campaign
from tests.stores.sqlite_programs import execute
from tests.support.corruption import Told, complaints, foreign
from tests.support.corruption_bugs import PLANTED
from tests.support.corruption_world import fill, look, opened

COUNT = {"sqlite": 24, "file": 8}


@pytest.mark.parametrize("kind", COUNT)
async def test_every_corruption_is_noticed_or_cannot_be_seen(kind: str, tmp_path: Path) -> None:
    assert await campaign(kind, tmp_path, range(COUNT[kind]), repair_every=4) == []


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_bug_is_found(bug: str, tmp_path: Path) -> None:
    kind, only, _ = PLANTED[bug]
    reads = 1 if only == "blob type" else 0
    assert await campaign(kind, tmp_path, range(150), only, bug, reads=reads) != []


@pytest.mark.parametrize("damaged", ["header = x'99'", "new_bytes = 'x'"])
async def test_a_damaged_record_hides_no_other_checkpoint_of_a_run_that_went_back(
    damaged: str, tmp_path: Path
) -> None:
    """What cannot be loaded any more is named, also the start that was derived from the record."""
    async with opened("sqlite", tmp_path) as storage:
        await fill(storage)
        seen = {"grown": (await look(storage))["grown"]}
    execute(tmp_path / "runs.db", f"UPDATE checkpoints SET {damaged} WHERE id = 2")
    async with opened("sqlite", tmp_path) as storage:
        told = Told(await storage.verify())
        assert await complaints(storage, seen, told) == []
        assert ("grown", 2) in {(problem.run_id, problem.seq) for problem in told.problems}
        assert ("grown", 1) not in {(problem.run_id, problem.seq) for problem in told.problems}


_NO_TEXT = "CAST(x'4352ff80' AS TEXT)"
ODD_DATABASES = {
    "a definition that is no text": [
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET name = {_NO_TEXT}, sql = {_NO_TEXT} WHERE name = 'tags_by_checkpoint'",
    ],
    "headers that are no text": [f"UPDATE checkpoints SET header = {_NO_TEXT}"],
    "blobs that are numbers": ["UPDATE blobs SET data = 5 WHERE data IS NOT NULL"],
    "sizes that are words": ["UPDATE blobs SET size = 'much'"],
    "families that are bytes": ["UPDATE families SET family = CAST(family AS BLOB)"],
    "numbers of checkpoints that are words": ["UPDATE checkpoints SET seq = 'number ' || id"],
    "features that are numbers": ["UPDATE meta SET value = '[1, \"x\"]' WHERE key = 'features'"],
}
"""What was found to raise errors of SQLite or of Python from calls of a storage."""


async def test_calls_on_odd_storages_raise_errors_of_ours(tmp_path: Path) -> None:
    seen = {}
    for kind in COUNT:
        (tmp_path / kind).mkdir()
        async with opened(kind, tmp_path / kind) as storage:
            await fill(storage)
            seen[kind] = await look(storage)
            assert [one async for one in foreign(storage, seen[kind], tmp_path, ["bundled"])] == []

    async def judge(kind: str, folder: Path) -> list[str]:
        storage = opened(kind, folder)
        found = [one async for one in foreign(storage, seen[kind], folder, ["grown"])]
        await storage.close()
        return found

    for number, (what, statements) in enumerate(ODD_DATABASES.items()):
        folder = tmp_path / f"odd{number}"
        shutil.copytree(tmp_path / "sqlite", folder)
        execute(folder / "runs.db", *statements)
        assert (what, await judge("sqlite", folder)) == (what, [])

    file = tmp_path / "file" / "runs" / "runs" / "grown.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    for line in lines:
        for record in line["body"].get("records", ()):
            record["checkpoint_id"] = "x" + record["checkpoint_id"][1:]
    texts = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines]
    file.write_text("\n".join(texts) + "\n")
    assert await judge("file", tmp_path / "file") == []


# A line in the midst of a run that went back, and an id of a checkpoint that is none, in a run of a fork.
FOUND = {"lines": 84, "json": 140}


@pytest.mark.parametrize("way", FOUND)
async def test_what_was_found_in_files_stays_noticed(way: str, tmp_path: Path) -> None:
    assert await campaign("file", tmp_path, [FOUND[way]], way) == []
