"""Stores of an earlier day are read for ever: by the library, and by a reader that was written from docs/format.md."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import CheckpointStorage, Codec, ExecutorFailed, RunStatus
from holdfast.stores.file import FileStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.workflow import declared_codec
from tests.golden import make, reader, workflows
from tests.golden.kinds import KINDS
from tests.programs import ROOT

EXPECTED: dict[str, Any] = json.loads(make.EXPECTED.read_text())
STORES = ["sqlite", "files"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    return make.copied(tmp_path)[STORES.index(request.param)]


def opened(store: Path, namespace: str = "") -> CheckpointStorage:
    return CheckpointStorage((FileStore if store.is_dir() else SqliteStore)(store, namespace))


@pytest_asyncio.fixture
async def storage(store: Path) -> AsyncIterator[CheckpointStorage]:
    async with opened(store) as storage:
        yield storage


# The independent reader


@pytest.mark.parametrize("namespace", list(EXPECTED))
def test_the_reader_finds_what_was_stored(store: Path, namespace: str) -> None:
    assert make.expected(store, namespace) == EXPECTED[namespace]


def test_keyframes_hold_what_replay_gives(store: Path) -> None:
    keyframes = 0
    for run in reader.read(store):
        for made in run.listed():
            checkpoint_id = made["checkpoint_id"]
            assert run.held(checkpoint_id).shown() == run.replayed(checkpoint_id).shown()
            keyframes += made["keyframe"]
    assert keyframes >= 3


def test_each_extension_code_of_the_page_is_stored_and_no_other(store: Path) -> None:
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \| .* \| .* \|$", page, re.MULTILINE)}
    found: set[int] = set()
    for run in reader.read(store):
        for value in run.held(run.head["checkpoint_id"]).values():
            for data in value.encoded():
                found |= reader.codes_in(data)
    assert found == documented == set(reader._EXTENSIONS)


def test_each_stored_form_is_there(store: Path) -> None:
    read = reader.open_store(store)
    forms = set()
    for run_id in read.heads:
        for record in read.records(run_id):
            parts = [record.changes, record.values, *(record.keyframe[1:] if record.keyframe else ())]
            forms |= {part[:1] for part in parts}
    assert forms == {b"", b"\x00", b"\x01", b"\x02"}


def test_the_reader_notices_a_changed_record(tmp_path: Path) -> None:
    _, directory = make.copied(tmp_path)
    commit = directory / "runs" / "fan-in" / "00000001-0.json"
    commit.write_text(commit.read_text().replace('"$pack": 21', '"$pack": 22'))
    with pytest.raises(reader.Broken, match="is not what its id says"):
        reader.read(directory)


def test_the_reader_shares_nothing_with_the_library() -> None:
    program = f"""
import runpy, sys
runpy.run_path({str(make.HERE / "reader.py")!r})
sys.exit(any(name.startswith(("holdfast", "tests")) for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_the_reader_prints(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, make.HERE / "reader.py", store],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    assert "run fan-in of Joining: waiting" in done.stdout
    assert "ZeroDivisionError" in done.stdout


# The library


async def test_the_library_lists_what_was_stored(storage: CheckpointStorage) -> None:
    for run in await storage.list_runs():
        expected = EXPECTED[""][run.run_id]
        assert (run.workflow_name, run.status, run.reason, run.seq) == (
            expected["workflow_name"],
            expected["status"],
            expected["reason"],
            expected["seq"],
        )
        listed = await storage.list_checkpoints(run_id=run.run_id)
        seqs: dict[str | None, int | None] = {made.checkpoint_id: made.seq for made in listed}
        assert [
            (made.seq, made.superstep, made.phase, made.cause, made.status, seqs.get(made.parent_id))
            for made in listed
        ] == [
            tuple(made[key] for key in ("seq", "superstep", "phase", "cause", "status", "parent"))
            for made in expected["checkpoints"]
        ]
    assert len(await storage.list_runs()) == len(EXPECTED[""])


async def test_the_library_finds_nothing_wrong(storage: CheckpointStorage) -> None:
    report = await storage.verify()
    assert report.problems == []
    assert report.checkpoints == sum(run["seq"] for run in EXPECTED[""].values())
    assert report.blobs >= 3


async def test_the_library_reads_values_of_all_kinds(storage: CheckpointStorage) -> None:
    result = await (await workflows.kinds().resume(run_id="all-kinds", storage=storage)).wait_for_completion()
    assert result.outputs == [f"kinds: {len(KINDS)}", KINDS["dataclass"]]
    latest = await storage.get_latest(run_id="all-kinds")
    assert latest is not None
    kept = (await storage.load(latest.checkpoint_id)).scopes["Kinds"]
    codec = storage.codec_for("Kinds")
    assert sorted(kept) == sorted(KINDS)
    for name, value in KINDS.items():
        assert type(kept[name]) is type(value), name
        assert repr(kept[name]) == repr(value), name
        assert codec.encode(kept[name]) == codec.encode(value), name


async def test_the_library_reads_what_grew(storage: CheckpointStorage) -> None:
    for run_id, first in (("grown", 1), ("restored", 3)):
        latest = await storage.get_latest(run_id=run_id)
        assert latest is not None
        loaded = await storage.load(latest.checkpoint_id)
        grown = loaded.scopes["Grown"]
        assert len(grown["lines"]) == 7 - first
        assert grown["lines"][-1].startswith("line 6 ")
        assert loaded.outputs == list(range(first, 7))
        assert grown["mixed"][-1] == {"number": 6, "pair": (6, -6)}
        assert grown["whole"] == [line * 20 for line in grown["lines"]]
        if run_id == "grown":
            assert grown["mixed"][1] == "big " + workflows.random_text(4_200)
            assert grown["text"] == "begin\n1\n2\n3\n4\n5\n6\n"
            assert grown["bytes"] == bytes(range(7))
            assert grown["even"] == "x" * 20_000
            assert grown["uneven"] == workflows.random_text(4_300)
            assert "goes" not in grown


async def test_the_library_goes_on_with_runs_that_wait(storage: CheckpointStorage) -> None:
    responses: dict[str, Any] = {"Approve.1.1": {"approved": True, "reason": "fine"}, "number": 3}
    run = await workflows.approval().resume(run_id="Waiting 1", responses=responses, storage=storage)
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs == ["Q3: True, fine, asked 1", "how many? 3"]

    run = await workflows.joining().resume(run_id="fan-in", responses={"slow.2.1": 1}, storage=storage)
    assert (await run.wait_for_completion()).outputs == [43]

    run = await workflows.nested().resume(
        run_id="nested", responses={"legal#1/Review.2.1": "ok"}, storage=storage
    )
    assert (await run.wait_for_completion()).outputs == [
        "contract: ok (contract); contract: rotate the keys (contract)"
    ]
    assert (await storage.verify()).ok


async def test_the_library_goes_on_with_runs_that_ended(storage: CheckpointStorage) -> None:
    run = await workflows.failing().resume(run_id="failed", storage=storage)
    with pytest.raises(ExecutorFailed, match="division by zero"):
        await run.wait_for_completion()
    run = await workflows.sleeping().resume(run_id="cancelled", storage=storage)
    assert run.status is RunStatus.RUNNING
    await run.cancel()

    earlier = (await storage.list_checkpoints(run_id="grown"))[3]
    run = await workflows.growing().resume(earlier, storage=storage)
    assert (await run.wait_for_completion()).outputs == [1, 2, 3, 4, 5, 6]
    assert (await storage.verify()).ok


async def test_the_library_tells_namespaces_apart(store: Path) -> None:
    async with opened(store, make.NAMESPACE) as storage:
        (run,) = await storage.list_runs()
        assert run.run_id == "fan-in"
        assert (await storage.verify()).checkpoints == 4


def test_encodings_are_what_they_were() -> None:
    """Equal values have equal bytes, in later versions as well: what is stored is recognised."""
    (kinds,) = [run for run in reader.read(make.DIRECTORY) if run.head["run_id"] == "all-kinds"]
    kept = kinds.held(kinds.head["checkpoint_id"]).state[None, "Kinds", ""]
    codec: Codec = declared_codec(workflows.kinds().graph)
    for name, value in KINDS.items():
        assert kept[name].data == codec.encode(value), name


def test_the_golden_stores_are_small() -> None:
    files = [
        file for part in make.HERE.glob("store.*") for file in [part, *part.rglob("*")] if file.is_file()
    ]
    assert 50_000 < sum(file.stat().st_size for file in files) < 200_000
