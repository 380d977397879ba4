"""Stores of an earlier day are read for ever, and their runs go on; test_golden_reader.py reads them otherwise."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import CheckpointStorage, Codec, ExecutorFailed, GraphChanged, Retention, RunExists, RunStatus
from holdfast.workflow import declared_codec
from tests.golden import journals, make, reader, renames, workflows
from tests.golden.kinds import KINDS
from tests.support.parts import FileStore, SqliteStore

EXPECTED: dict[str, Any] = json.loads(make.EXPECTED.read_text())


@pytest.fixture(params=make.Stores._fields)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    path: Path = getattr(make.copied(tmp_path), request.param)
    return path


def opened(store: Path, namespace: str = "") -> CheckpointStorage:
    return CheckpointStorage((FileStore if store.is_dir() else SqliteStore)(store, namespace))


@pytest_asyncio.fixture
async def storage(store: Path) -> AsyncIterator[CheckpointStorage]:
    async with opened(store) as storage:
        yield storage


async def test_the_library_lists_what_was_stored(storage: CheckpointStorage) -> None:
    everything = await storage.list_checkpoints()
    places = {made.checkpoint_id: (made.run_id, made.seq) for made in everything}
    for run in await storage.list_runs():
        expected = EXPECTED[""][run.run_id]
        assert (run.workflow_name, run.status, run.reason, run.seq) == (
            expected["workflow_name"],
            expected["status"],
            expected["reason"],
            expected["seq"],
        )
        parents: dict[str | None, int | str | None] = {
            known: seq if name == run.run_id else f"{name} {seq}" for known, (name, seq) in places.items()
        }
        assert [
            (
                *(made.seq, made.superstep, made.phase, made.cause, made.status),
                parents.get(made.parent_id, None if made.parent_id is None else "removed"),
                list(made.tags),
            )
            for made in everything
            if made.run_id == run.run_id
        ] == [
            tuple(made[key] for key in ("seq", "superstep", "phase", "cause", "status", "parent", "tags"))
            for made in expected["checkpoints"]
        ]
    assert len(await storage.list_runs()) == len(EXPECTED[""])


async def test_the_library_finds_nothing_wrong(storage: CheckpointStorage) -> None:
    report = await storage.verify()
    assert report.problems == []
    assert report.checkpoints == sum(len(run["checkpoints"]) for run in EXPECTED[""].values())
    assert report.blobs >= 3


async def test_the_library_reads_values_of_all_kinds(storage: CheckpointStorage) -> None:
    result = await (await workflows.kinds().resume(run_id="all-kinds", storage=storage)).wait_for_completion()
    assert result.outputs == [f"kinds: {len(KINDS)}", KINDS["dataclass"]]
    latest = await storage.get_latest(run_id="all-kinds")
    assert latest is not None
    kept = (await storage.load(latest.checkpoint_id)).scopes["Kinds"]
    codec = storage.catalog.codec_for("Kinds")
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


async def test_the_library_goes_on_with_a_journal(storage: CheckpointStorage) -> None:
    """Only the turn that was not over runs, and the effect that it had already does not happen again."""
    journals.CALLS.clear()
    run = await journals.journaled().resume(run_id="journaled", storage=storage)
    result = await run.wait_for_completion()
    assert journals.CALLS == ["charge"]
    assert result.status is RunStatus.WAITING
    assert result.outputs == ["changed", "pay was called, 4200", "got 5", "got 1500", "got 40", "got 400"]
    latest = await storage.get_latest(run_id="journaled")
    assert latest is not None
    assert (await storage.load(latest.checkpoint_id)).scopes["Notes"] == {
        "first": "first was called",
        "set": workflows.random_text(4_100),
        "grows": [{"number": 4}, b"two"],
        "sum": 5,
        "most": 4,
        "again": 5,
    }
    assert await storage.store.notes(run.run_id) == []
    await run.respond({"ask.3.1": {"approved": True}})
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs[-1] == "more than 4? True"
    assert (await storage.verify()).ok


async def test_the_library_takes_letters(storage: CheckpointStorage) -> None:
    run = await workflows.approval().resume(run_id="answered", storage=storage)
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs == ["Q3: False, too long, asked 1", "how many? 12"]
    assert await storage.store.inbox(run.run_id) == []

    (interrupted,) = await storage.list_runs(interrupted=True)
    assert interrupted.run_id == "interrupted"
    run = await workflows.sleeping().resume(run_id="interrupted", storage=storage)
    assert (await run.wait_for_completion()).status is RunStatus.CANCELLED
    assert await storage.store.inbox(run.run_id) == []


async def test_the_library_goes_on_with_runs_that_ask_again(storage: CheckpointStorage) -> None:
    responses: dict[str, Any] = {"Approve.1.1": {"approved": False, "reason": "no"}, "number": 1}
    run = await workflows.approval().resume(run_id="asked again", responses=responses, storage=storage)
    assert (await run.wait_for_completion()).outputs == ["Q3: False, no, asked 1", "how many? 1"]


async def test_the_library_converts_an_answer_in_json(storage: CheckpointStorage) -> None:
    made = await storage.list_checkpoints(run_id="refused")
    assert [one.cause for one in made] == ["input", "superstep", "request"]
    (number,) = await storage.list_requests(run_id="refused")
    run = await workflows.approval().resume(run_id="refused", storage=storage, responses={"number": 3})
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs == ["Q3: True, as JSON, asked 1", "how many? 3"]
    assert number.request_id == "number"
    assert await storage.store.inbox(run.run_id) == []


async def test_the_library_goes_on_under_new_names(storage: CheckpointStorage) -> None:
    with pytest.raises(GraphChanged, match="Counter"):
        await renames.renamed(now=False).resume(run_id="renamed", storage=storage)
    now = renames.renamed(now=True)
    run = await now.resume(run_id="renamed", responses={"third": 7}, storage=storage)
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs == [3, "3 4", "3 5", 24]

    old = (await storage.list_checkpoints(run_id="renamed"))[8]
    assert {message.target_id for message in old.messages} == {"fragile", "inquire"}
    run = await now.resume(old, storage=storage, allow_graph_change=True)
    assert (await run.wait_for_completion()).outputs == [3, "3 4", "3 5"]
    assert (await storage.verify()).ok


async def test_the_library_knows_what_runs_wait_for(storage: CheckpointStorage) -> None:
    waiting = {run.run_id: run.waiting_for for run in await storage.list_runs(status="waiting", limit=None)}
    assert waiting["stranded"] == ("messages",)
    assert waiting["fan-in"] == waiting["Waiting 1"] == ("answers",)
    run = await workflows.stranded().resume(run_id="stranded", storage=storage)
    assert (await run.wait_for_completion()).waiting_for == ("messages",)
    again = await workflows.growing().start(1, run_id="retained", storage=storage, if_exists="attach")
    assert (await again.wait_for_completion()).status is RunStatus.COMPLETED
    with pytest.raises(RunExists, match="another input"):
        await workflows.growing().start(2, run_id="retained", storage=storage, if_exists="attach")


async def test_the_library_goes_on_with_runs_of_which_something_was_removed(
    storage: CheckpointStorage,
) -> None:
    gold = [made for made in await storage.list_checkpoints(run_id="retained") if "gold" in made.tags]
    assert [made.tags[:1] for made in gold] == [("gold",)] * 3
    run = await workflows.growing().resume(gold[0], storage=storage)
    assert (await run.wait_for_completion()).outputs == [1, 2, 3, 4, 5, 6]
    made = await storage.list_checkpoints(run_id="edited")
    assert [one.seq for one in made if one.tags] == [3]
    run = await workflows.approval().resume(made[-1], storage=storage)
    assert (await run.wait_for_completion()).outputs == ["Q3: True, , asked 1", "how many? None"]
    run = await workflows.joining().resume(run_id="again", responses={"slow.2.1": 1}, storage=storage)
    assert (await run.wait_for_completion()).outputs == [5]
    assert await storage.catalog.head_or_none("gone") is None
    assert (await storage.verify()).ok
    await storage.prune(Retention.latest_only())
    assert (await storage.verify()).ok


async def test_the_library_reads_forks(storage: CheckpointStorage) -> None:
    latest = await storage.get_latest(run_id="Forked")
    assert latest is not None
    grown = (await storage.load(latest.checkpoint_id)).scopes["Grown"]
    assert grown["lines"] == ["edited"]
    assert grown["uneven"] == workflows.random_text(4_300)


async def test_the_library_tells_namespaces_apart(store: Path) -> None:
    async with opened(store, make.NAMESPACE) as storage:
        (run,) = await storage.list_runs()
        assert run.run_id == "fan-in"
        assert (await storage.verify()).checkpoints == 4


def test_encodings_are_what_they_were() -> None:
    """Equal values have equal bytes, in later versions as well: what is stored is recognised."""
    (kinds,) = [run for run in reader.read(make.STORES.directory) if run.head["run_id"] == "all-kinds"]
    kept = kinds.held(kinds.head["checkpoint_id"]).state[None, "Kinds", ""]
    codec: Codec = declared_codec(workflows.kinds().graph)
    for name, value in KINDS.items():
        assert kept[name].data == codec.encode(value), name


def test_the_golden_stores_are_small() -> None:
    files = [
        file for part in make.HERE.glob("store.*") for file in [part, *part.rglob("*")] if file.is_file()
    ]
    assert 50_000 < sum(file.stat().st_size for file in files) < 500_000
