"""The tree of checkpoints that stores hold: runs that went back, their forks, and every branch still readable."""

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    Run,
    RunNotFound,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.durable import Place, everything, outputs_of
from tests.support.runs import soon


class Count(Executor):
    """Counts up to a limit that stands in shared state, and remembers what it saw."""

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
        await ctx.append_state("seen", number, scope_name="S")
        if number < await ctx.read_state("limit", 3, scope_name="S"):
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(await ctx.read_state("seen", scope_name="S"))


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=str)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        if answer == "raise":
            raise ZeroDivisionError
        await ctx.yield_output(f"{text} {answer}")


def counting() -> Workflow:
    builder = WorkflowBuilder(name="Count", max_iterations=10_000).set_start_executor(Count)
    return builder.add_edge(Count, Count).build()


def asking() -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).build()


async def over(run: Run) -> list[object]:
    return (await soon(run.wait_for_completion())).outputs


async def went_back_and_forth(storage: CheckpointStorage) -> None:
    """A run that went back twice, a fork of what it left the first time, and a fork of that fork, with an edit."""
    run = await counting().start(1, run_id="first", storage=storage)
    assert await over(run) == [[1, 2, 3]]
    start_1, _, start_2, end_2, *_ = run.checkpoints
    await run.restore_checkpoint(start_2)
    assert await over(run) == [[1, 2, 3]]
    await run.restore_checkpoint(start_1)
    assert await over(run) == [[1, 2, 3]]
    fork = await counting().fork(end_2, run_id="second", storage=storage)
    assert await over(fork) == [[1, 2, 3]]
    edited = await counting().fork(
        fork.checkpoints[1], edits={("S", "limit"): 5}, run_id="third", storage=storage
    )
    assert await over(edited) == [[1, 2, 3, 4, 5]]


TREE = """
● 1 start 1, input, run first
├─● 2 end 1, superseded by 11
│ ● 3 start 2
│ ├─● 4 end 2, superseded by 11
│ │ ├─● 1 end 2, fork, run second
│ │ │ ● 2 start 3
│ │ │ ├─● 1 start 3, fork, run third
│ │ │ │ ● 2 start 3, edit
│ │ │ │ ┆ 3 to 6, supersteps 3 to 5, 4 checkpoints
│ │ │ │ ◉ 7 end 5, head, completed
│ │ │ ◉ 3 end 3, head, completed
│ │ ● 5 start 3
│ │ ● 6 end 3, completed
│ ● 7 start 2, restore
│ ● 8 end 2
│ ● 9 start 3
│ ● 10 end 3, completed
● 11 start 1, restore
┆ 12 to 15, supersteps 1 to 3, 4 checkpoints
◉ 16 end 3, head, completed
""".strip()


async def test_the_whole_family_is_drawn_whichever_run_is_asked_for(place: Place) -> None:
    storage = place.storage
    await went_back_and_forth(storage)
    await soon(counting().run(1, run_id="unrelated", storage=storage))
    await soon(asking().run("Deploy?", run_id="another workflow", storage=storage))
    for run_id in ("first", "second", "third"):
        assert await storage.draw_tree(run_id) == TREE
    assert await storage.draw_tree("first", ascii=True) == TREE.translate(str.maketrans("●◉┆│├─", "*@:||-"))
    reopened = await place.reopened()
    assert await reopened.draw_tree("third") == TREE


async def test_looking_at_the_tree_writes_nothing(place: Place) -> None:
    await went_back_and_forth(place.storage)
    before = await everything(place.storage, "first")
    await place.storage.draw_tree("first")
    assert await everything(place.storage, "first") == before


WHOLE = [[], [1], [1], [1, 2], [1, 2], [1, 2, 3]]
SEEN = {
    "first": [*WHOLE, *WHOLE[2:], *WHOLE],
    "second": [[1, 2], [1, 2], [1, 2, 3]],
    "third": [[1, 2], [1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4, 5]],
}


@pytest.mark.parametrize("run_id", SEEN)
async def test_every_checkpoint_of_every_branch_can_be_loaded(place: Place, run_id: str) -> None:
    await went_back_and_forth(place.storage)
    storage = await place.reopened()
    listed = await storage.list_checkpoints(run_id=run_id)
    loaded = [await storage.load(made.checkpoint_id) for made in listed]
    assert [made.scopes["S"]["seen"] if "S" in made.scopes else [] for made in loaded] == SEEN[run_id]
    ends = [made.outputs for made in loaded if made.status == "completed"]
    assert ends == [[SEEN[run_id][-1]]] * len(ends)
    assert (await storage.verify()).ok


async def test_branches_that_were_left_can_be_gone_on_with(place: Place) -> None:
    await went_back_and_forth(place.storage)
    storage = await place.reopened()
    by_seq = {made.seq: made for made in await storage.list_checkpoints(run_id="first")}
    assert await outputs_of(counting().resume(by_seq[9], storage=storage)) == [[1, 2, 3]]
    assert await outputs_of(counting().fork(by_seq[6], run_id="fourth", storage=storage)) == [[1, 2, 3]]
    assert await storage.draw_tree("first") == LATER


LATER = """
● 1 start 1, input, run first
├─● 11 start 1, restore, superseded by 17
│ ┆ 12 to 15, supersteps 1 to 3, 4 checkpoints
│ ● 16 end 3, completed
● 2 end 1
● 3 start 2
├─● 4 end 2, superseded by 7
│ ├─● 1 end 2, fork, run second
│ │ ● 2 start 3
│ │ ├─● 1 start 3, fork, run third
│ │ │ ● 2 start 3, edit
│ │ │ ┆ 3 to 6, supersteps 3 to 5, 4 checkpoints
│ │ │ ◉ 7 end 5, head, completed
│ │ ◉ 3 end 3, head, completed
│ ● 5 start 3
│ ● 6 end 3, completed
│ └─◉ 1 end 3, fork, head, completed, run fourth
● 7 start 2, restore
● 8 end 2
● 9 start 3
├─● 10 end 3, completed, superseded by 17
● 17 start 3, restore
◉ 18 end 3, head, completed
""".strip()


async def test_questions_and_how_runs_stand(place: Place) -> None:
    storage = place.storage
    run = await asking().start("Deploy?", run_id="a", storage=storage)
    await over(run)
    waiting = run.checkpoints[-1]
    await run.send_response("Ask.1.1", "yes")
    assert await over(run) == ["Deploy? yes"]
    fork = await asking().fork(waiting, run_id="b", storage=storage)
    await over(fork)
    await fork.send_response("Ask.1.1", "raise")
    with pytest.raises(ExecutorFailed):
        await over(fork)
    cancelled = await asking().fork(waiting, run_id="c", storage=storage)
    await over(cancelled)
    await cancelled.cancel()
    await over(await asking().fork(waiting, run_id="d", storage=storage))
    assert (await storage.draw_tree("b")).splitlines() == [
        "● 1 start 1, input, run a",
        "● 2 end 1, waiting",
        "├─● 1 end 1, fork, waiting, run b",
        "│ ◉ 2 start 2, response, head, failed",
        "├─◉ 1 end 1, fork, head, cancelled, run c",
        "├─◉ 1 end 1, fork, head, waiting, run d",
        "● 3 start 2, response",
        "◉ 4 end 2, head, completed",
    ]


async def test_a_long_run_draws_on_a_screen(place: Place) -> None:
    storage = place.storage
    start = await counting().start(1, run_id="short", storage=storage)
    await over(start)
    long = await counting().fork(
        start.checkpoints[0], edits={("S", "limit"): 300}, run_id="long", storage=storage
    )
    assert await over(long) == [list(range(1, 301))]
    await long.restore_checkpoint(long.checkpoints[300])
    assert await over(long) == [list(range(1, 301))]
    assert (await storage.draw_tree("long")).splitlines() == [
        "● 1 start 1, input, run short",
        "├─● 1 start 1, fork, run long",
        "│ ● 2 start 1, edit",
        "│ ┆ 3 to 300, supersteps 1 to 150, 298 checkpoints",
        "│ ● 301 end 150",
        "│ ├─● 302 start 151, superseded by 602",
        "│ │ ┆ 303 to 600, supersteps 151 to 300, 298 checkpoints",
        "│ │ ● 601 end 300, completed",
        "│ ● 602 end 150, restore",
        "│ ┆ 603 to 901, supersteps 151 to 300, 299 checkpoints",
        "│ ◉ 902 end 300, head, completed",
        "┆ 2 to 5, supersteps 1 to 3, 4 checkpoints",
        "◉ 6 end 3, head, completed",
    ]


async def test_there_is_no_tree_of_a_run_that_is_not_there(place: Place) -> None:
    with pytest.raises(RunNotFound, match="there is no run 'nobody'"):
        await place.storage.draw_tree("nobody")
