"""``storage.list_requests``: what waits for an answer in all runs, seen without the classes of their workflows."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from holdfast import (
    CheckpointStorage,
    Executor,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    PendingRequest,
    RequestExpired,
    RequestRecord,
    Retention,
    RunNotFound,
    SqliteCheckpointStorage,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.parts import Depth, changes_of, plain_value


@dataclass
class Report:
    title: str
    body: str = ""


@dataclass
class Verdict:
    approved: bool
    reason: str = ""


class Ask(Executor):
    """Asks for a verdict, or for a list of booleans, as often as it is told; an answer is a further question."""

    @handler
    async def ask(self, titles: list[str], ctx: WorkflowContext[None, str]) -> None:
        for title in titles:
            await ctx.request_info(
                Report(title, title * 3000), response_type=Verdict, expires=timedelta(days=1)
            )

    @handler
    async def count(self, number: int, ctx: WorkflowContext[None, str]) -> None:
        for _ in range(number):
            await ctx.request_info(number, response_type=list[bool])

    @response_handler
    async def judged(self, request: Report, answer: Verdict, ctx: WorkflowContext[None, str]) -> None:
        if answer.approved:
            await ctx.request_info(Report(request.title[:5] + "!"), response_type=Verdict)

    @response_handler
    async def expired(
        self, request: Report, answer: RequestExpired, ctx: WorkflowContext[None, str]
    ) -> None: ...

    @response_handler
    async def counted(self, request: int, answer: list[bool], ctx: WorkflowContext[None, str]) -> None: ...


@pytest.fixture(params=["memory", "file", "sqlite"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointStorage]:
    kinds: dict[str, Any] = {"file": FileCheckpointStorage, "sqlite": SqliteCheckpointStorage}
    kind = kinds.get(request.param)
    async with kind(tmp_path / "runs") if kind is not None else InMemoryCheckpointStorage() as opened:
        yield opened


def asking(storage: CheckpointStorage, name: str = "Ask", retention: Retention | None = None) -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(Ask).with_checkpointing(storage)
    return (builder if retention is None else builder.with_retention(retention)).build()


def stranger(storage: CheckpointStorage) -> CheckpointStorage:
    """Another storage over the same store, which knows no workflow."""
    return CheckpointStorage(storage.store)


def ids(records: list[RequestRecord]) -> list[tuple[str, str]]:
    return [(record.run_id, record.request_id) for record in records]


async def test_a_request_is_listed_with_all_that_an_answer_needs(storage: CheckpointStorage) -> None:
    before = datetime.now(UTC)
    result = await asking(storage).run(["a"], run_id="one")
    (record,) = await stranger(storage).list_requests()
    (request,) = result.pending_requests
    assert (record.run_id, record.workflow_name) == ("one", "Ask")
    assert (record.request_id, record.executor_id) == (request.request_id, request.executor_id)
    assert record.data == plain_value(Report("a", "a" * 3000))
    assert record.response_schema == request.response_schema
    Draft202012Validator(record.response_schema).validate({"approved": True})
    assert before <= record.asked_at <= datetime.now(UTC)
    assert record.expires_at == request.expires
    assert json.loads(json.dumps(record.to_dict()))["asked_at"] == record.asked_at.isoformat()


async def test_requests_of_all_runs_come_oldest_first_page_by_page(storage: CheckpointStorage) -> None:
    first, second = asking(storage), asking(storage, "Other")
    await first.run(["a"], run_id="z")
    await second.run(["b", "c"], run_id="m")
    await first.run(2, run_id="a")
    result = await first.run(["d"], run_id="late")
    await result.respond({result.pending_requests[0].request_id: Verdict(True)})  # which asks again, later
    everything = await storage.list_requests()
    assert [record.run_id for record in everything] == ["z", "m", "m", "a", "a", "late"]
    assert [record.asked_at for record in everything] == sorted(record.asked_at for record in everything)
    for size in (1, 2, 3, 5, 6):
        pages: list[RequestRecord] = []
        while page := await stranger(storage).list_requests(limit=size, after=pages[-1] if pages else None):
            assert len(page) <= size
            pages += page
        assert pages == everything
    assert ids(await storage.list_requests("Other")) == ids(everything[1:3])
    assert ids(await storage.list_requests(run_id="m")) == ids(everything[1:3])
    assert await storage.list_requests("Ask", run_id="m") == []
    assert await storage.list_requests(limit=None, after=everything[-1].cursor) == []


async def test_a_cursor_stays_when_its_request_is_answered_and_its_run_removed(
    storage: CheckpointStorage,
) -> None:
    workflow = asking(storage)
    for name in ("a", "b", "c"):
        await workflow.run([name], run_id=name)
    first, second, third = await storage.list_requests()
    await workflow.resume(run_id="a", responses={first.request_id: Verdict(False)})
    await storage.delete_run("b")
    assert await storage.list_requests(after=first) == [third]
    assert await storage.list_requests(after=second.cursor) == [third]


async def test_an_answer_in_the_inbox_takes_its_request_from_the_list(storage: CheckpointStorage) -> None:
    await asking(storage).run(["a", "b"], run_id="one")
    first, second = await storage.list_requests()
    await storage.respond("one", {first.request_id: {"approved": True}})
    assert await storage.list_requests() == [second]


async def test_requests_of_a_cancelled_run_are_not_listed(storage: CheckpointStorage) -> None:
    await asking(storage).run(["a"], run_id="one")
    await storage.cancel("one")
    assert await storage.list_requests() == []


async def test_a_fork_asks_again(storage: CheckpointStorage) -> None:
    workflow = asking(storage)
    await workflow.run(["a"], run_id="one")
    (asked,) = await storage.list_requests()
    latest = await storage.get_latest(run_id="one")
    assert latest is not None
    await (await workflow.fork(latest, run_id="two")).close()
    original, forked = await stranger(storage).list_requests()
    assert original == asked
    assert forked.run_id == "two"
    assert forked.asked_at > asked.asked_at
    assert forked.response_schema == asked.response_schema


async def test_retention_does_not_change_when_a_request_was_asked(storage: CheckpointStorage) -> None:
    workflow = asking(storage, retention=Retention.latest_only())
    result = await workflow.run(["kept", "b"], run_id="one")
    (kept, _) = await storage.list_requests()
    for _ in range(5):
        last = result.pending_requests[-1]
        result = await result.respond({last.request_id: Verdict(True)})
        await storage.prune()
    assert len(await storage.list_checkpoints(run_id="one")) < 5
    assert (await stranger(storage).list_requests())[0] == kept


async def test_the_schema_of_a_type_is_stored_once_in_a_run() -> None:
    async with InMemoryCheckpointStorage() as storage:
        result = await asking(storage).run(["a", "b", "c"], run_id="one")
        while len(result.pending_requests) < 6 and result.pending_requests:
            last = result.pending_requests[-1]
            result = await result.respond({last.request_id: Verdict(len(last.data.body) > 0)})
        records = await storage.store.records(result.run_id, 1, 100, Depth.ALL)
        told = [pair for record in records for pair in changes_of(record, Depth.ALL).schemas]
        assert len(records) > 3
        assert [json.loads(schema)["title"] for _, schema in told] == ["Verdict"]


async def test_types_of_the_language_need_no_stored_schema(storage: CheckpointStorage) -> None:
    result = await asking(storage).run(1, run_id="one")
    (record,) = await stranger(storage).list_requests()
    (request,) = result.pending_requests
    assert isinstance(request, PendingRequest)
    assert record.response_schema == request.response_schema
    assert record.data == 1
    assert record.expires_at is None


class InboxReads:
    """A store that notes whose inbox is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def inbox(self, run_id: Any) -> Any:
        self.seen.append(run_id)
        return await self._store.inbox(run_id)


async def test_a_page_reads_the_runs_that_it_shows(storage: CheckpointStorage) -> None:
    workflow = asking(storage)
    for number in range(30):
        await workflow.run(1, run_id=f"run-{number:02}")
    reads = InboxReads(storage.store)
    watched = CheckpointStorage(cast(Store, reads))
    first = await watched.list_requests(limit=3)
    assert reads.seen == [f"run-{number:02}" for number in range(3)]
    reads.seen.clear()
    await watched.list_requests(limit=3, after=first[-1])
    assert reads.seen == [f"run-{number:02}" for number in range(2, 6)]


async def test_a_run_that_is_driven_shows_what_it_asked(storage: CheckpointStorage) -> None:
    class Slow(Ask):
        @response_handler
        async def counted(self, request: int, answer: list[bool], ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await asyncio.wait_for(leave.wait(), 60)

    entered, leave = asyncio.Event(), asyncio.Event()
    workflow = WorkflowBuilder(name="Slow").set_start_executor(Slow).with_checkpointing(storage).build()
    run = await workflow.start(2, run_id="one")
    await run.wait_for_completion()
    first, second = await storage.list_requests()
    await run.send_response(first.request_id, [True])
    await asyncio.wait_for(entered.wait(), 60)
    assert [record.request_id for record in await storage.list_requests()] == [second.request_id]
    leave.set()
    await run.wait_for_completion()
    await run.close()


SHOW = """
import asyncio, json, sys
from holdfast import open_storage

async def main():
    async with open_storage(sys.argv[1]) as storage:
        print(json.dumps([record.to_dict() for record in await storage.list_requests()]))
        (one,) = (await storage.load(await storage.get_latest(), plain=True)).pending_requests
        print(json.dumps(one.response_schema))
        assert not any(name.startswith(("tests", "conftest")) for name in sys.modules), "the classes are here"

asyncio.run(main())
"""


def shown_elsewhere(url: str, folder: Path) -> list[str]:
    """The lines that a process without the classes of this module prints."""
    command = [sys.executable, "-I", "-c", SHOW, url]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_a_process_without_the_classes_lists_requests(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "runs"
    opened = SqliteCheckpointStorage(path) if kind == "sqlite" else FileCheckpointStorage(path)
    async with opened as storage:
        await asking(storage).run(["a"], run_id="one")
        expected = [record.to_dict() for record in await storage.list_requests()]
    listed, schema = map(json.loads, shown_elsewhere(f"{kind}:///{path}", tmp_path))
    assert listed == expected
    assert schema == expected[0]["response_schema"]
    assert set(schema["properties"]) == {"approved", "reason"}


@pytest.mark.parametrize("after", ["", "x", "[1]", '["a", "b", "c"]', 3])
async def test_a_wrong_cursor_is_refused(after: Any) -> None:
    async with InMemoryCheckpointStorage() as storage:
        with pytest.raises(InvalidArgument, match="is no place in a list of requests"):
            await storage.list_requests(after=after)


async def test_wrong_arguments_are_refused() -> None:
    async with InMemoryCheckpointStorage() as storage:
        with pytest.raises(InvalidArgument, match="limit"):
            await storage.list_requests(limit=0)
        with pytest.raises(RunNotFound):
            await storage.list_requests(run_id="none")
