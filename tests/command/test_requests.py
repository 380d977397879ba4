"""``holdfast requests``: the questions of all runs, and their answers, without the code of the workflow."""

import asyncio

import pytest

from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler, open_storage, response_handler
from tests.command.conftest import Command
from tests.support import shop


def resume(url: str, run_id: str) -> list[str]:
    async def go_on() -> list[str]:
        async with open_storage(url) as storage:
            run = await shop.build(storage).resume(run_id=run_id)
            return list((await run.wait_for_completion()).outputs)

    return asyncio.run(go_on())


class AskTwice(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info("red?", response_type=bool, request_id="colour-red")
        await ctx.request_info("blue?", response_type=bool, request_id="colour-blue")

    @response_handler
    async def answered(self, question: str, answer: bool, ctx: WorkflowContext) -> None: ...


def test_ls_shows_those_of_all_runs(shopping: Command) -> None:
    done = shopping("requests", "ls")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["RUN", "REQUEST"],
        ["order-2", "Approve.2.1"],
        ["order-3", "Approve.2.1"],
    ]


def test_ls_gives_pages(shopping: Command) -> None:
    first = shopping("requests", "ls", "--limit", "1", "--json").json
    assert [one["run_id"] for one in first["requests"]] == ["order-2"]
    rest = shopping("requests", "ls", "--limit", "1", "--json", "--after", first["next"]).json
    assert [one["run_id"] for one in rest["requests"]] == ["order-3"]
    assert rest["next"] is None


@pytest.mark.parametrize(("filters", "count"), [(["--run", "order-3"], 1), (["--workflow", "Other"], 0)])
def test_ls_filters(shopping: Command, filters: list[str], count: int) -> None:
    assert len(shopping("requests", "ls", "--json", *filters).json["requests"]) == count


def test_show_has_the_schema_of_the_answer(shopping: Command) -> None:
    done = shopping("requests", "show", "order-2")
    assert done.code == 0
    assert '"item": "salt"' in done.out
    assert '"type": "boolean"' in done.out


def test_an_answer_lets_the_run_go_on(shopping: Command, url: str) -> None:
    done = shopping("requests", "answer", "order-2", "--value", "true", "--by", "kim")
    assert done[:2] == (0, "answered Approve.2.1 of order-2, which is waiting\n")
    assert "or: holdfast runs resume order-2 MODULE:WORKFLOW" in done.err
    assert "order-2" not in shopping("requests", "ls").out
    assert resume(url, "order-2") == ["salt: sent"]
    tree = asyncio.run(_who_answered(url))
    assert tree == ["kim"]


async def _who_answered(url: str) -> list[str | None]:
    async with open_storage(url, read_only=True) as storage:
        return [one.by for one in await storage.list_checkpoints(run_id="order-2") if one.cause == "response"]


def test_an_answer_that_does_not_fit_is_refused(shopping: Command, url: str) -> None:
    done = shopping("requests", "answer", "order-2", "--value", "5")
    assert done.code == 2
    assert "not bool" in done.err
    assert "order-2" in shopping("requests", "ls").out


def test_only_the_first_answer_counts(shopping: Command, url: str) -> None:
    assert shopping("requests", "answer", "order-2", "Approve.2.1", "--value", "false").code == 0
    late = shopping("requests", "answer", "order-2", "Approve.2.1", "--value", "true")
    assert late.code == 6
    assert resume(url, "order-2") == ["salt: refused"]


def test_a_request_that_is_not_there_is_not_found(shopping: Command) -> None:
    for verb, *rest in (("show",), ("answer", "--value", "true")):
        done = shopping("requests", verb, "order-2", "other", *rest)
        assert done.code == 5
        assert "other" in done.err


def test_a_run_that_asks_nothing_is_said_so(shopping: Command) -> None:
    done = shopping("requests", "show", "order-1")
    assert done.code == 5
    assert "asks nothing" in done.err


def test_one_of_several_requests_must_be_named(shopping: Command, url: str) -> None:
    async def ask() -> None:
        async with open_storage(url) as storage:
            builder = WorkflowBuilder(name="Twice").set_start_executor(AskTwice)
            await builder.with_checkpointing(storage).build().run("hello", run_id="twice")

    asyncio.run(ask())
    unnamed = shopping("requests", "answer", "twice", "--value", "true")
    assert unnamed.code == 2
    assert "colour-red, colour-blue" in unnamed.err or "colour-blue, colour-red" in unnamed.err
    assert shopping("requests", "answer", "twice", "colour", "--value", "true").code == 2
    assert shopping("requests", "answer", "twice", "colour-r", "--value", "true").code == 0
    assert "colour-red" not in shopping("requests", "ls").out
