"""Looking at what is stored: listed without reading a value, loaded with them, and checked for damage."""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import ormsgpack
import pytest

from holdfast import (
    Checkpoint,
    CheckpointCorrupt,
    CheckpointInfo,
    CheckpointNotFound,
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    InvalidArgument,
    NotLoaded,
    RequestInfoExecutor,
    RunStatus,
    SqliteCheckpointStorage,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    open_storage,
    response_handler,
)
from tests.support.durable import ON_DISK, Place, outputs_of, storage_at
from tests.support.durable_damage import FileDamage, SqliteDamage, damage_of
from tests.support.parts import Commit, Expected, RunId, plain_form, stored_form
from tests.support.runs import soon


class Count(Executor):
    @handler
    async def count(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(left)


def counting(name: str = "Counting") -> Workflow:
    builder = WorkflowBuilder(name=name, max_iterations=100_000)
    return builder.set_start_executor(Count).add_edge(Count, Count).build()


@executor(id="bad")
async def bad(left: int) -> int:
    raise ZeroDivisionError


def failing() -> Workflow:
    return WorkflowBuilder(name="Failing").set_start_executor(bad).build()


RAW = "error " * 10_000


class Fetch(Executor):
    """Fills every part of a checkpoint."""

    checkpointed = ("fetched",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.fetched = 0

    @handler
    async def fetch(self, service: str, ctx: WorkflowContext[int, Any]) -> None:
        self.fetched += 1
        await ctx.queue_state_update("raw", RAW, scope_name="IncidentLogs")
        await ctx.queue_state_update("own", [1, 2])
        await ctx.set_shared_state("small", {"a": 1})
        await ctx.append_state("history", service, scope_name="IncidentLogs")
        await ctx.yield_output({"service": service})
        await ctx.send_message(len(service))


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        await ctx.set_state(number)
        await ctx.request_info({"number": number}, response_type=bool)

    @response_handler
    async def answered(self, request: dict, yes: bool, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(yes)


def triage() -> Workflow:
    return WorkflowBuilder(name="Triage").set_start_executor(Fetch).add_edge(Fetch, Ask).build()


# -- runs ------------------------------------------------------------------------------------------


async def test_runs_by_name_and_status(place: Place) -> None:
    await soon(counting().run(1, run_id="a", storage=place.storage))
    await soon(counting("Other").run(1, run_id="b", storage=place.storage))
    with pytest.raises(ExecutorFailed):
        await soon(failing().run(1, run_id="c", storage=place.storage))
    storage = await place.reopened()

    async def ids(**filters: Any) -> list[str]:
        return [run.run_id for run in await storage.list_runs(**filters)]

    assert await ids() == ["a", "b", "c"]
    assert await ids(workflow_name="Other") == ["b"]
    assert await ids(workflow_name="Nobody") == []
    assert await ids(status=RunStatus.COMPLETED) == ["a", "b"]
    assert await ids(status="failed") == ["c"]
    assert await ids(workflow_name="Counting", status="failed") == []
    assert await ids(interrupted=True) == []
    assert await ids(interrupted=False) == ["a", "b", "c"]
    failed = (await storage.list_runs(status="failed"))[0]
    assert "ZeroDivisionError" in failed.reason
    assert (failed.workflow_name, failed.seq) == ("Failing", 1)
    assert timedelta(0) <= failed.updated - failed.created
    assert failed.created.utcoffset() == timedelta(0)


async def test_pages_of_runs(place: Place) -> None:
    for number in range(7):
        await soon(counting("AB"[number % 2]).run(0, run_id=f"r{6 - number}", storage=place.storage))
    storage = await place.reopened()
    pages, after = [], None
    while page := await storage.list_runs(limit=3, after=after):
        pages.append([run.run_id for run in page])
        after = page[-1].run_id
    assert pages == [["r6", "r5", "r4"], ["r3", "r2", "r1"], ["r0"]]
    page = await storage.list_runs(workflow_name="A", limit=2, after="r4")
    assert [run.run_id for run in page] == ["r2", "r0"]
    page = await storage.list_runs(interrupted=False, limit=4, after="r5")
    assert [run.run_id for run in page] == ["r4", "r3", "r2", "r1"]
    assert len(await storage.list_runs(limit=None)) == 7
    assert await storage.list_runs(interrupted=True, limit=2) == []


# -- checkpoints -----------------------------------------------------------------------------------


async def test_checkpoints_by_name_and_run(place: Place) -> None:
    await soon(counting().run(1, run_id="a", storage=place.storage))
    await soon(counting("Other").run(2, run_id="b", storage=place.storage))
    await soon(counting().run(0, run_id="c", storage=place.storage))
    storage = await place.reopened()

    async def found(*args: Any, **filters: Any) -> list[tuple[str, int]]:
        return [(c.run_id, c.seq) for c in await storage.list_checkpoints(*args, **filters)]

    a, b, c = ([(run, seq) for seq in range(1, last + 1)] for run, last in [("a", 4), ("b", 6), ("c", 2)])
    assert await found() == [*a, *b, *c]
    assert await found("Counting") == [*a, *c]
    assert await found(workflow_id="Other") == b
    assert await found(run_id="c") == c
    assert await found("Other", run_id="c") == []
    assert await found("Nobody") == []
    assert await found(limit=5) == [*a, *b][:5]
    seen: list[tuple[str, int]] = []
    after: str | None = None
    while page := await storage.list_checkpoints(limit=5, after=after):
        seen += [(c.run_id, c.seq) for c in page]
        after = page[-1].checkpoint_id
    assert seen == [*a, *b, *c]
    last = (await storage.list_checkpoints(run_id="b"))[3]
    assert await found(run_id="b", after=last.checkpoint_id, limit=1) == [("b", 5)]
    assert storage.counters.decoded == storage.counters.blobs_read == 0


async def test_runs_side_by_side_are_listed_in_the_order_of_time(storage: CheckpointStorage) -> None:
    await soon(asyncio.gather(*(counting().run(5, storage=storage) for _ in range(4))))
    listed = await storage.list_checkpoints()
    assert [c.timestamp for c in listed] == sorted(c.timestamp for c in listed)
    for run_id in {c.run_id for c in listed}:
        assert [c.seq for c in listed if c.run_id == run_id] == list(range(1, 13))


async def test_latest(place: Place) -> None:
    assert await place.storage.get_latest() is None
    await soon(counting().run(1, run_id="a", storage=place.storage))
    await soon(counting("Other").run(2, run_id="b", storage=place.storage))
    storage = await place.reopened()

    async def latest(*args: Any, **filters: Any) -> tuple[str, int] | None:
        found = await storage.get_latest(*args, **filters)
        return None if found is None else (found.run_id, found.seq)

    assert await latest() == ("b", 6)
    assert await latest("Counting") == ("a", 4)
    assert await latest(run_id="a") == ("a", 4)
    assert await latest("Nobody") is None
    assert await latest(run_id="nobody") is None
    # The one that moved last, not the one that was started last.
    first = (await storage.list_checkpoints(run_id="a"))[0]
    await outputs_of(counting().resume(first, storage=storage))
    assert await latest() == ("a", 8)


async def test_latest_is_what_a_run_stands_on_after_going_back(storage: CheckpointStorage) -> None:
    result = await soon(triage().run("checkout", storage=storage))
    end = (await storage.list_checkpoints())[-1]
    await soon(result.respond({"Ask.2.1": True}))
    run = await triage().resume(end, storage=storage)
    await soon(run.wait_for_completion())
    latest = await storage.get_latest(run_id=run.run_id)
    assert latest is not None
    assert (latest.cause, latest.parent_id, latest.status) == (
        "restore",
        end.checkpoint_id,
        RunStatus.WAITING,
    )
    assert [request.request_id for request in latest.pending_requests] == ["Ask.2.1"]


async def test_info_of_a_checkpoint(place: Place) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=place.storage))
    storage = await place.reopened()
    *_, start, end = await storage.list_checkpoints()
    assert (start.message_count, start.request_count, start.phase) == (1, 0, "start")
    assert (end.message_count, end.request_count, end.status) == (0, 1, RunStatus.WAITING)
    assert end.iteration_count == end.step_number == end.superstep == 2
    assert end.parent is not None
    assert end.parent.checkpoint_id == end.parent_id == start.checkpoint_id
    assert (end.workflow_name, end.tags, end.fingerprint) == ("Triage", (), triage().fingerprint)
    assert type(end.info) is CheckpointInfo
    assert end == end.info
    assert sum(c.new_bytes for c in await storage.list_checkpoints()) > 0
    assert {len(c.checkpoint_id) for c in await storage.list_checkpoints()} == {64}
    assert repr(end).startswith(f"<Checkpoint {end.checkpoint_id[:8]}")
    assert repr(end).endswith(": end of superstep 2, waiting>")
    assert (await storage.load(end.checkpoint_id)).info == end.info


async def test_listed_checkpoints_show_keys_and_sizes_without_values(place: Place) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=place.storage))
    storage = await place.reopened()
    _, _, start, end = await storage.list_checkpoints()
    latest = await storage.get_latest()
    light = await storage.load(end.checkpoint_id, values=False)
    assert latest is not None
    for seen in (end, latest, light):
        assert sorted(seen.scopes) == ["IncidentLogs", "shared"]
        assert list(seen.scopes["IncidentLogs"]) == ["raw", "history"]
        assert len(seen.scopes["IncidentLogs"]) == 2
        assert "raw" in seen.scopes["IncidentLogs"]
        assert repr(seen.scopes["IncidentLogs"]) == "{'raw': <str, 60.0 kB>, 'history': <list, 10 B>}"
        assert repr(seen.shared_state).startswith("{'small': <dict, ")
        assert sorted(seen.executor_states) == ["Ask", "Fetch"]
        assert len(seen.outputs) == 1
        assert repr(seen.outputs).startswith("[<dict, ")
        (request,) = seen.pending_requests
        assert (request.request_id, request.executor_id, request.response_type) == ("Ask.2.1", "Ask", bool)
    (message,) = start.messages
    assert (message.target_id, message.source_id) == ("Ask", "Fetch")
    assert repr(message) == "<message <int, 1 B> from 'Fetch' to 'Ask'>"
    assert storage.counters.decoded == storage.counters.blobs_read == storage.counters.encoded == 0


async def test_values_of_listed_checkpoints_say_how_to_load_them(storage: CheckpointStorage) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=storage))
    _, _, start, end = await storage.list_checkpoints()
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("scopes['IncidentLogs']['raw'] (<str, 60.0 kB>)", lambda: end.scopes["IncidentLogs"]["raw"]),
        ("shared_state['small']", lambda: end.shared_state["small"]),
        ("executor_states['Fetch']['own']", lambda: end.executor_states["Fetch"]["own"]),
        ("executor_states['Ask']", lambda: end.executor_states["Ask"]),
        ("outputs[0]", lambda: end.outputs[0]),
        ("request 'Ask.2.1'", lambda: end.pending_requests[0].data),
        ("the message to 'Ask'", lambda: start.messages[0].data),
    ]
    for what, ask in asked:
        with pytest.raises(NotLoaded) as caught:
            ask()
        said = str(caught.value)
        assert said.startswith(what), said
        assert "was not read: checkpoints are listed without values" in said
        assert "await storage.load('" in said
        assert "await checkpoint.read_state(...)" in said
    with pytest.raises(KeyError):
        end.shared_state["absent"]
    with pytest.raises(KeyError):
        end.executor_states["absent"]


async def test_loaded_checkpoints_have_all_values(place: Place) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=place.storage))
    storage = await place.reopened()
    _, _, start, end = [await storage.load(c.checkpoint_id) for c in await storage.list_checkpoints()]
    assert end.scopes["IncidentLogs"]["raw"] == RAW
    assert dict(end.scopes["IncidentLogs"]) == {"raw": RAW, "history": ["checkout"]}
    assert end.shared_state["small"] == {"a": 1}
    assert end.shared_state.get("absent", 7) == 7
    assert end.executor_states["Ask"] == 8
    assert dict(end.executor_states["Fetch"]) == {"own": [1, 2], "fetched": 1}
    assert end.outputs == [{"service": "checkout"}]
    assert [request.data for request in end.pending_requests] == [{"number": 8}]
    assert [message.data for message in start.messages] == [8]
    assert repr(end.shared_state) == "{'small': {'a': 1}}"
    assert repr(start.messages[0]) == "<message 8 from 'Fetch' to 'Ask'>"


async def test_one_value_of_a_checkpoint(place: Place) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=place.storage))
    storage = await place.reopened()
    end = (await storage.list_checkpoints())[-1]
    assert await end.read_state("small") == {"a": 1}
    assert await end.read_state("absent") is None
    assert await end.read_state("absent", 3, "IncidentLogs") == 3
    assert storage.counters.blobs_read == 0
    assert await end.read_state("raw", scope_name="IncidentLogs") == RAW
    assert storage.counters.blobs_read == 1
    light = await storage.load(end, values=False)
    assert await light.read_state("history", scope_name="IncidentLogs") == ["checkout"]
    assert storage.counters.blobs_read == 1
    first = (await storage.list_checkpoints())[0]
    assert await first.read_state("small") is None


async def test_big_value_is_shown_by_its_size(storage: CheckpointStorage) -> None:
    @executor(id="fetch")
    async def fetch(size: int, ctx: WorkflowContext[None, int]) -> int:
        await ctx.set_shared_state("raw", "x" * size)
        return 1

    await soon(WorkflowBuilder(name="Big").set_start_executor(fetch).build().run(50_000_000, storage=storage))
    latest = await storage.get_latest()
    assert latest is not None
    assert repr(latest.shared_state) == "{'raw': <str, 50.0 MB>}"
    assert latest.shared_state.sizes() == {"raw": 50_000_005}
    assert storage.counters.decoded == storage.counters.blobs_read == 0


async def test_summary(place: Place) -> None:
    await soon(triage().run("checkout", run_id="mine", storage=place.storage))
    storage = await place.reopened()
    _, _, start, end = await storage.list_checkpoints()
    summary = start.summary()
    assert (summary.checkpoint_id, summary.iteration_count) == (start.checkpoint_id, 2)
    assert (summary.timestamp, summary.status) == (start.timestamp, RunStatus.RUNNING)
    assert (summary.targets, summary.executor_states, summary.pending_requests) == (["Ask"], ["Fetch"], [])
    summary = end.summary()
    assert (summary.targets, sorted(summary.executor_states)) == ([], ["Ask", "Fetch"])
    assert [request.request_id for request in summary.pending_requests] == ["Ask.2.1"]
    assert storage.counters.decoded == 0
    assert RequestInfoExecutor.checkpoint_summary(end).checkpoint_id == end.checkpoint_id


async def test_earlier_views_stay_what_they_were(storage: CheckpointStorage) -> None:
    """Also when later checkpoints of the same list are looked at in between."""

    class Grow(Executor):
        @handler
        async def grow(self, left: int, ctx: WorkflowContext[int, int]) -> None:
            await ctx.append_state("log", left, scope_name="S")
            await ctx.queue_state_update(f"k{left}", left, scope_name="S")
            if left:
                await ctx.send_message(left - 1)

    workflow = WorkflowBuilder(name="Grow").set_start_executor(Grow).add_edge(Grow, Grow).build()
    await soon(workflow.run(8, storage=storage))
    listed = [c for c in await storage.list_checkpoints() if c.phase == "end"]
    views = {c.superstep: c.scopes["S"] for c in listed}
    shown = {number: repr(view) for number, view in views.items()}
    order = list(listed)
    random.Random(7).shuffle(order)
    for checkpoint in order:
        assert len(checkpoint.scopes["S"]) == checkpoint.superstep + 1
        assert repr(checkpoint.scopes["S"]) == shown[checkpoint.superstep]
    assert {number: repr(view) for number, view in views.items()} == shown
    for checkpoint in listed:
        loaded = await storage.load(checkpoint)
        assert loaded.scopes["S"]["log"] == list(range(8, 8 - checkpoint.superstep, -1))


async def test_what_is_asked_for_wrongly(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointNotFound):
        await storage.load("0" * 64)
    with pytest.raises(InvalidArgument):
        await storage.get_latest(run_id="a/b")
    for limit in (0, -1, 1.5):
        with pytest.raises(InvalidArgument, match="limit="):
            await storage.list_runs(limit=limit)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="limit="):
            await storage.list_checkpoints(limit=limit)  # type: ignore[arg-type]


# -- many ------------------------------------------------------------------------------------------


async def _look_around(storage: CheckpointStorage, count: int) -> None:
    listed = await storage.list_checkpoints()
    assert len(listed) == count
    latest = await storage.get_latest()
    assert latest is not None
    assert latest.status is RunStatus.COMPLETED
    assert latest == listed[-1]
    assert listed[count // 2].summary().targets
    middle = await storage.list_checkpoints(limit=10, after=listed[count // 2].checkpoint_id)
    assert middle == listed[count // 2 + 1 : count // 2 + 11]
    counters = storage.counters
    assert (counters.decoded, counters.encoded, counters.blobs_read) == (0, 0, 0)


async def test_ten_thousand_checkpoints_of_one_run_are_listed_without_reading_values() -> None:
    storage = InMemoryCheckpointStorage()
    await counting().run(4_999, storage=storage)
    await _look_around(CheckpointStorage(storage.store), 10_000)


async def test_ten_thousand_checkpoints_on_disk_are_listed_without_reading_values(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteCheckpointStorage(path) as storage:
        await asyncio.gather(*(counting().run(99, storage=storage) for _ in range(50)))
    async with open_storage(f"sqlite:////{path}") as storage:
        await _look_around(storage, 10_000)
        assert len(await storage.list_runs(limit=None)) == 50


# -- damage ----------------------------------------------------------------------------------------

# The one at 2 is so large that SQLite has a file beside it.
BIG = {left: random.Random(left).randbytes(300_000 if left == 2 else 6_000) for left in range(6)}


class Fill(Executor):
    """Puts a blob into state in each superstep."""

    @handler
    async def fill(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        await ctx.queue_state_update(f"big{left}", BIG[left], scope_name="S")
        await ctx.queue_state_update(f"small{left}", f"small{left}", scope_name="S")
        if left:
            await ctx.send_message(left - 1)
        else:
            await ctx.yield_output(left)


def filling() -> Workflow:
    return WorkflowBuilder(name="Filling").set_start_executor(Fill).add_edge(Fill, Fill).build()


async def filled(kind: str, folder: Path) -> dict[str, list[Checkpoint]]:
    """Two runs of twelve checkpoints each, in a storage that is closed again."""
    async with storage_at(kind, folder) as storage:
        for run_id in ("good", "hurt"):
            await soon(filling().run(5, run_id=run_id, storage=storage))
        report = await storage.verify()
        assert (report.ok, report.runs, report.checkpoints, report.problems) == (True, 2, 24, [])
        assert report.blobs >= 6
        return {run_id: await storage.list_checkpoints(run_id=run_id) for run_id in ("good", "hurt")}


async def check_damage(
    kind: str, folder: Path, listed: dict[str, list[Checkpoint]], affected: set[int], named: set[int]
) -> None:
    """After damage: it is reported, with the checkpoints that are named; what is not affected is as it was."""
    by_seq = {c.seq: c.checkpoint_id for c in listed["hurt"]}
    async with storage_at(kind, folder) as storage:
        report = await storage.verify()
        assert not report.ok
        assert {problem.run_id for problem in report.problems} == {"hurt"}
        told = {problem.checkpoint_id for problem in report.problems}
        for seq in named:
            assert by_seq[seq] in told, report.problems
        assert all(problem.what for problem in report.problems)
        assert (await storage.verify(run_id="good")).ok
        assert not (await storage.verify(run_id="hurt")).ok
        for checkpoint in listed["good"]:
            await _whole(storage, checkpoint)
        for checkpoint in listed["hurt"]:
            if checkpoint.seq not in affected:
                await _whole(storage, checkpoint)
            else:
                with pytest.raises((CheckpointCorrupt, CheckpointNotFound)):
                    await storage.load(checkpoint.checkpoint_id)
        assert await outputs_of(filling().resume(run_id="good", storage=storage)) == [0]


async def _whole(storage: CheckpointStorage, checkpoint: Checkpoint) -> None:
    loaded = await storage.load(checkpoint.checkpoint_id)
    supersteps = checkpoint.superstep if checkpoint.phase == "end" else checkpoint.superstep - 1
    expected = {f"big{left}": BIG[left] for left in range(5, 5 - supersteps, -1)}
    expected_small = {f"small{left}": f"small{left}" for left in range(5, 5 - supersteps, -1)}
    held = dict(loaded.scopes["S"]) if supersteps else {}
    assert held == {**expected, **expected_small}


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("part", ["header", "changes"])
async def test_changed_record(kind: str, tmp_path: Path, part: str) -> None:
    listed = await filled(kind, tmp_path)
    damage_of(kind, tmp_path, "hurt").record(6, part)
    await check_damage(kind, tmp_path, listed, affected=set(range(6, 13)), named={6})
    async with storage_at(kind, tmp_path) as storage:
        with pytest.raises(CheckpointCorrupt, match=r"checkpoint \w+: .*storage.verify"):
            await filling().resume(run_id="hurt", storage=storage)
        # Going back to before the damage is possible.
        assert await outputs_of(filling().resume(listed["hurt"][4], storage=storage)) == [0]


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize(("key", "seq"), [("big3", 6), ("big2", 8)])
@pytest.mark.parametrize("problem", ["has other content", "is missing"])
async def test_damaged_blob(kind: str, tmp_path: Path, key: str, seq: int, problem: str) -> None:
    listed = await filled(kind, tmp_path)
    async with storage_at(kind, tmp_path) as storage:
        digest = await _digest_of(storage, listed["hurt"][seq - 1], key)
    damage = damage_of(kind, tmp_path, "hurt")
    if problem == "is missing":
        damage.remove_blob(digest)
    else:
        damage.blob(digest)
    await check_damage(kind, tmp_path, listed, affected=set(range(seq, 13)), named={seq})
    await _others_can_be_read(kind, tmp_path, listed, key, digest, problem)


async def _digest_of(storage: CheckpointStorage, checkpoint: Checkpoint, key: str) -> bytes:
    """The name of the blob with a value: the digest of its encoding."""
    listed = await storage.load(checkpoint.checkpoint_id, values=False)
    refs = [keys[key] for keys in listed.content.manifest(listed.checkpoint_id).state.values() if key in keys]
    assert refs[0].digest is not None
    return refs[0].digest


async def _others_can_be_read(
    kind: str, folder: Path, listed: dict[str, list[Checkpoint]], key: str, digest: bytes, problem: str
) -> None:
    """A value that is damaged hurts nobody who does not read it."""
    async with storage_at(kind, folder) as storage:
        light = await storage.load(listed["hurt"][-1].checkpoint_id, values=False)
        assert await light.read_state("big4", scope_name="S") == BIG[4]
        assert await light.read_state("small3", scope_name="S") == "small3"
        with pytest.raises(CheckpointCorrupt, match=rf"{digest.hex()}.* {problem}"):
            await light.read_state(key, scope_name="S")
        assert await outputs_of(filling().resume(run_id="hurt", storage=storage)) == [0]


async def test_missing_record(tmp_path: Path) -> None:
    listed = await filled("sqlite", tmp_path)
    damage_of("sqlite", tmp_path, "hurt").remove_record(6)
    # A record holds the end of a superstep and the start of the next.
    await check_damage("sqlite", tmp_path, listed, affected=set(range(6, 13)), named={8})


async def test_missing_head_record(tmp_path: Path) -> None:
    listed = await filled("sqlite", tmp_path)
    damage_of("sqlite", tmp_path, "hurt").remove_record(12)
    await check_damage("sqlite", tmp_path, listed, affected={12}, named={12})


# A line holds the end of a superstep and the start of the next: 6 and 7, for one.
FILE_DAMAGES: dict[str, tuple[Callable[[FileDamage], None], int, int, str]] = {
    "a line in the middle has zeros": (lambda damage: damage.tear(6), 6, 6, "line 5 is not what was written"),
    "the last line has zeros": (lambda damage: damage.tear(12), 1, 12, "line 8 is not what was written"),
    "a line is missing": (lambda damage: damage.remove_record(6), 1, 6, "line 5 is not what was written"),
    "the last line is missing": (
        lambda damage: damage.remove_record(12),
        12,
        12,
        "its last lines are missing",
    ),
    "the file ends too early": (lambda damage: damage.cut(8), 1, 8, "line 6 is not what was written"),
    "lines are swapped": (lambda damage: damage.swap(6, 10), 13, 13, "line 5 is not what was written"),
    "the first line has zeros": (lambda damage: damage.zero(0, 200), 1, 13, "line 1 is not what was written"),
    "the file is missing": (lambda damage: damage.remove(), 1, 1, "was written and is missing"),
    "the file is empty": (lambda damage: damage.clear(), 1, 1, "its last lines are missing"),
    "the file is that of another run": (
        lambda damage: damage.mistake_for("good"),
        1,
        1,
        "under another name",
    ),
}
"""By name: how the file of a run is damaged, the first checkpoint that cannot be loaded, and that after a repair,
and what is told. A damaged end hides where the run stands: then nothing of it is loaded. Records in swapped lines can
be read, and their ids say that they are right."""


def hurt_file(folder: Path) -> FileDamage:
    damage = damage_of("file", folder, "hurt")
    assert isinstance(damage, FileDamage)
    return damage


@pytest.mark.parametrize("how", FILE_DAMAGES)
async def test_damaged_file_of_a_run(tmp_path: Path, how: str) -> None:
    """It is told, what stands before the damage can be read, and a repair leaves that and nothing wrong."""
    listed = await filled("file", tmp_path)
    hurt, first, lost, told = FILE_DAMAGES[how]
    hurt(hurt_file(tmp_path))
    await check_damage("file", tmp_path, listed, affected=set(range(first, 13)), named=set())
    async with storage_at("file", tmp_path) as storage:
        whats = [problem.what for problem in (await storage.verify()).problems]
        assert any(told in what for what in whats), whats
        assert (await storage.repair()).repairs
        assert (await storage.verify()).ok
        assert not (await storage.repair()).repairs
        if lost == 1:
            assert [run.run_id for run in await storage.list_runs()] == ["good"]
            return
        for checkpoint in listed["hurt"][: lost - 1]:
            await _whole(storage, checkpoint)
        assert {run.run_id: run.seq for run in await storage.list_runs()}["hurt"] >= lost - 1
        assert await outputs_of(filling().resume(run_id="hurt", storage=storage)) == [0]


async def test_copy_of_a_file_under_another_name(tmp_path: Path) -> None:
    """It is told, and the run of which it is a copy is not affected."""
    listed = await filled("file", tmp_path)
    path = hurt_file(tmp_path).path
    path.with_name("copy.jsonl").write_bytes(path.read_bytes())
    async with storage_at("file", tmp_path) as storage:
        (problem,) = (await storage.verify()).problems
        assert (problem.run_id, "lies under another name" in problem.what) == ("copy", True)
        for checkpoint in listed["hurt"]:
            await _whole(storage, checkpoint)
        assert [run.run_id for run in await storage.list_runs()] == ["good", "hurt"]
        await storage.repair()
        assert (await storage.verify()).ok
        assert len(await storage.list_checkpoints(run_id="hurt")) == 12


async def test_every_flipped_bit_in_a_record_is_noticed(tmp_path: Path) -> None:
    """In SQLite; one bit after the other, in every part of a record, at places that a seed chooses."""
    listed = await filled("sqlite", tmp_path)
    damage = damage_of("sqlite", tmp_path, "hurt")
    assert isinstance(damage, SqliteDamage)
    chance = random.Random(11)
    for part in ("header", "changes", "values"):
        size = damage.size_of(6, part)
        for place in sorted(chance.sample(range(size), min(size, 15))):
            damage.record(6, part, place)
            async with storage_at("sqlite", tmp_path) as storage:
                report = await storage.verify(run_id="hurt")
                told = {problem.checkpoint_id for problem in report.problems}
                assert listed["hurt"][5].checkpoint_id in told, (part, place)
                with pytest.raises(CheckpointCorrupt):
                    await storage.load(listed["hurt"][5].checkpoint_id)
                assert (await storage.load(listed["hurt"][4].checkpoint_id)).seq == 5
            damage.record(6, part, place)  # as it was
    async with storage_at("sqlite", tmp_path) as storage:
        assert (await storage.verify()).ok


async def test_flipped_bits_in_the_lines_of_commits(tmp_path: Path) -> None:
    """Anywhere in them, also where the head stands: what loads is right, and what does not is reported."""
    listed = await filled("file", tmp_path)
    damage = damage_of("file", tmp_path, "hurt")
    assert isinstance(damage, FileDamage)
    chance = random.Random(13)
    noticed = 0
    for seq in (6, 12):
        for place in chance.sample(range(damage.size_of(seq)), 25):
            damage.flip(seq, place)
            async with storage_at("file", tmp_path) as storage:
                report = await storage.verify()
                try:
                    for checkpoint in listed["hurt"]:
                        await _whole(storage, checkpoint)
                except (StorageError, CheckpointNotFound):
                    noticed += 1
                    assert not report.ok, (seq, place)
                await _whole(storage, listed["good"][-1])
            damage.flip(seq, place)  # as it was
    assert noticed > 25


HEADS: dict[str, tuple[str, Any]] = {
    "a status that is none": ("status", "runninf"),
    "a checkpoint that is not there": ("checkpoint", bytes(32)),
    "a number beyond all records": ("seq", 99),
    "a number before the last record": ("seq", 5),
    "no number": ("seq", "x"),
    "a time that is none": ("created", 1 << 62),
}


@pytest.mark.parametrize("what", HEADS)
async def test_damaged_head(tmp_path: Path, what: str) -> None:
    """What says where a run stands, in SQLite: reported, and no other run suffers."""
    listed = await filled("sqlite", tmp_path)
    damage = damage_of("sqlite", tmp_path, "hurt")
    assert isinstance(damage, SqliteDamage)
    damage.run(*HEADS[what])
    async with storage_at("sqlite", tmp_path) as storage:
        report = await storage.verify()
        assert not report.ok
        assert {problem.run_id for problem in report.problems} == {"hurt"}
        assert "good" in [run.run_id for run in await storage.list_runs()]
        for checkpoint in listed["good"]:
            await _whole(storage, checkpoint)
        try:
            await storage.get_latest(run_id="hurt")
        except StorageError:
            pass


async def test_text_where_bytes_belong(tmp_path: Path) -> None:
    listed = await filled("sqlite", tmp_path)
    damage = damage_of("sqlite", tmp_path, "hurt")
    assert isinstance(damage, SqliteDamage)
    damage.replace(6, "changes", "text")
    await check_damage("sqlite", tmp_path, listed, affected=set(range(6, 13)), named={6})


# -- damaged keyframes -----------------------------------------------------------------------------


class Wide(Executor):
    """Writes and appends enough for keyframes."""

    @handler
    async def write(self, left: int, ctx: WorkflowContext[int, int]) -> None:
        for number in range(150):
            await ctx.queue_state_update(f"key{left % 3}-{number}", f"value {left} {number}", scope_name="S")
        await ctx.append_state("log", f"entry {left}", scope_name="S")
        if left:
            await ctx.send_message(left - 1)


async def test_damaged_keyframe_is_never_read_as_if_it_were_right(tmp_path: Path) -> None:
    """Whatever is changed in it: loading says so or gives what was stored, and verify says so."""
    workflow = (
        WorkflowBuilder(name="Wide", max_iterations=1_000)
        .set_start_executor(Wide)
        .add_edge(Wide, Wide)
        .build()
    )
    async with storage_at("sqlite", tmp_path) as storage:
        await soon(workflow.run(30, run_id="hurt", storage=storage))
        latest = await storage.get_latest(run_id="hurt")
        assert latest is not None
        right = dict((await storage.load(latest)).scopes["S"])
    path = tmp_path / "runs.db"
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT checkpoint, changes, small_values FROM keyframes").fetchall()
    connection.close()
    assert rows, "there is no keyframe to damage"
    chance = random.Random(5)
    for column, position in (("changes", 1), ("small_values", 2)):
        row, content = rows[-1][0], rows[-1][position]
        for _ in range(8):
            place = chance.randrange(len(content))
            changed = (
                content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]
            )
            _store_keyframe(path, column, row, changed)
            await _keyframe_is_noticed(tmp_path, latest, right, (column, place))
        _store_keyframe(path, column, row, content)


def _store_keyframe(path: Path, column: str, row: int, content: bytes) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE keyframes SET {column} = ? WHERE checkpoint = ?", (content, row))
    connection.close()


async def _keyframe_is_noticed(folder: Path, latest: Checkpoint, right: dict[str, Any], where: Any) -> None:
    async with storage_at("sqlite", folder) as storage:
        try:
            assert dict((await storage.load(latest)).scopes["S"]) == right, where
        except CheckpointCorrupt:
            pass
        assert not (await storage.verify()).ok, where


async def test_planted_check_that_trusts_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not compare ids would not notice a changed value."""
    from holdfast.checkpoint.read import loader

    listed = await filled("sqlite", tmp_path)
    damage = damage_of("sqlite", tmp_path, "hurt")
    assert isinstance(damage, SqliteDamage)
    damage.record(6, "values", damage.size_of(6, "values") - 1)
    ids = {c.seq: c.checkpoint_id for c in listed["hurt"]}
    monkeypatch.setattr(loader, "id_of", lambda header, changes, values: ids[6])
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        await check_damage("sqlite", tmp_path, listed, affected=set(range(6, 13)), named={6})


async def test_verify_looks_at_journals(storage: CheckpointStorage) -> None:
    """A note that cannot be read, and one whose blob is gone, are told."""
    broken = True

    class Branch(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.queue_state_update(self.id, "x" * 10_000 + self.id, scope_name="Big")
            if self.id == "right" and broken:
                raise ValueError("not yet")

    @executor
    async def split(text: str) -> str:
        return text

    branches = [Branch.bind(id="left"), Branch.bind(id="right")]
    builder = WorkflowBuilder(name="Noted").set_start_executor(split).add_fan_out_edges(split, branches)
    workflow = builder.with_checkpointing(storage).build()
    with pytest.raises(ExecutorFailed):
        await workflow.run("go", run_id="noted")
    assert (await storage.verify()).ok
    store = storage.store
    head = await store.head(RunId("noted"))
    assert head is not None
    expected = Expected(head.checkpoint_id, head.token)
    (note,) = await store.notes(head.run_id)
    await store.commit(Commit(head, expected, notes=(note._replace(data=b"\x00\xc1"),)))
    (problem,) = (await storage.verify()).problems
    assert "journal" in str(problem)
    document = ormsgpack.unpackb(plain_form(note.data))
    assert any(len(entry) == 3 for entry in document["values"]), "the value is in a blob"
    document["values"] = [
        [*entry[:2], bytes(32)] if len(entry) == 3 else entry for entry in document["values"]
    ]
    gone = note._replace(data=stored_form(ormsgpack.packb(document)))
    await store.commit(Commit(head, expected, notes=(gone,)))
    (problem,) = (await storage.verify()).problems
    assert "is missing" in str(problem)


@executor
async def fill(size: int, ctx: WorkflowContext[None, int]) -> None:
    await ctx.queue_state_update("noise", random.Random(1).randbytes(size), scope_name="Room")
    await ctx.yield_output(size)


async def test_size_of_the_last_checkpoint_has_its_blobs(place: Place) -> None:
    """No start follows it, so that it alone can be the one that makes room."""
    workflow = WorkflowBuilder(name="Fill").set_start_executor(fill).with_checkpointing(place.storage).build()
    await soon(workflow.run(50_000, run_id="r"))
    start, end = await place.storage.list_checkpoints(run_id="r")
    assert start.new_bytes < 1_000
    assert 50_000 < end.new_bytes < 51_000
