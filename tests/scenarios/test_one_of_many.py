"""What one thing costs does not depend on how many others there are. No clocks: what is done is counted."""

import datetime
from statistics import median
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    RequestExpired,
    Run,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.runs import soon
from tests.support.steps import steps_of

FEW, MANY = 100, 2_000


class Ask(Executor):
    """Asks so many questions, and one more for each answer that says so."""

    expires: datetime.timedelta | None = None

    @handler
    async def ask(self, count: int, ctx: WorkflowContext) -> None:
        for number in range(count):
            expires = None if self.expires is None else self.expires * (number + 1)
            await ctx.request_info([number], str, request_id=f"ask{number}", expires=expires)

    @response_handler
    async def answered(self, question: list[int], answer: str, ctx: WorkflowContext[None, str]) -> None:
        if answer == "more":
            await ctx.request_info([*question, 0], str, request_id=f"more{question[0]}")


class AskInTime(Ask):
    expires = datetime.timedelta(days=1)

    @response_handler
    async def too_late(self, question: list[int], expired: RequestExpired, ctx: WorkflowContext) -> None:
        raise AssertionError(expired)


def asking(kind: type[Ask]) -> Workflow:
    return WorkflowBuilder(name="Asking").set_start_executor(kind).build()


async def answer_run(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    await run.respond({f"ask{number}": "more"})
    result = await run.wait_for_completion()
    assert result.outputs == []


async def answer_storage(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    assert storage is not None
    await storage.respond(run.run_id, {f"ask{number}": "yes"})


async def answer_both(run: Run, storage: CheckpointStorage | None, number: int) -> None:
    """Each is used up before the next is left, so that the run moves on in between."""
    await answer_storage(run, storage, number)
    await run.wait_for_completion()


@pytest.mark.parametrize("kind", [Ask, AskInTime])
@pytest.mark.parametrize(
    ("answer", "stored"),
    [(answer_run, False), (answer_run, True), (answer_storage, True), (answer_both, True)],
)
async def test_answer_costs_the_same_among_any_number_of_requests(
    kind: type[Ask], answer: Any, stored: bool
) -> None:
    costs = []
    for count in (FEW, MANY):
        storage = InMemoryCheckpointStorage() if stored else None
        run = await asking(kind).start(count, storage=storage)
        await soon(run.wait_for_completion())
        await answer(run, storage, 0)
        costs.append(median([(await steps_of(answer(run, storage, number)))[0] for number in range(1, 6)]))
        await run.close()
    assert costs[1] <= costs[0] * 1.2


async def test_result_has_the_requests_that_were_pending_then() -> None:
    """Though they are looked for when somebody asks; each who asks has his own."""
    run = await asking(Ask).start(3)
    first = await soon(run.wait_for_completion())
    await run.respond({"ask1": "more"})
    second = await soon(run.wait_for_completion())
    assert [request.request_id for request in first.pending_requests] == ["ask0", "ask1", "ask2"]
    assert [request.request_id for request in second.pending_requests] == ["ask0", "ask2", "more1"]
    second.pending_requests[0].data.append("changed")
    assert second.pending_requests[0].data == [0, "changed"]
    assert run.result().pending_requests[0].data == first.pending_requests[0].data == [0]
    assert "more1" in repr(second)
    await run.cancel()
    assert run.result().pending_requests == []


async def test_answers_from_outside_follow_a_run_that_moves_and_goes_back() -> None:
    """What the storage remembers of a run is never what the run no longer is."""
    storage = InMemoryCheckpointStorage()
    run = await asking(Ask).start(5, storage=storage)
    await soon(run.wait_for_completion())
    asked = run.latest_checkpoint
    assert asked is not None
    await answer_both(run, storage, 0)
    with pytest.raises(UnknownRequest):
        await storage.respond(run.run_id, {"more0": "yes"})
    await run.respond({"ask1": "more"})
    await soon(run.wait_for_completion())
    await storage.respond(run.run_id, {"more1": "yes"})
    await soon(run.wait_for_completion())
    await run.restore_checkpoint(asked)
    await soon(run.wait_for_completion())
    with pytest.raises(UnknownRequest):
        await storage.respond(run.run_id, {"more1": "yes"})
    await storage.respond(run.run_id, {"ask0": "yes"})
    result = await soon(run.wait_for_completion())
    assert [request.request_id for request in result.pending_requests] == ["ask1", "ask2", "ask3", "ask4"]
    await run.close()
