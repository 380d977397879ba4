"""Requests of nested workflows that executors around them answer: ``SubWorkflowRequest`` and ``ctx.respond_to``."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Case,
    Default,
    Executor,
    ExecutorFailed,
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    InvalidArgument,
    InvalidResponse,
    RequestAlreadyAnswered,
    RequestInfoEvent,
    RequestInfoExecutor,
    RunStatus,
    SqliteCheckpointStorage,
    SubWorkflowRequest,
    SuperstepLimit,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from holdfast.testing import FakeContext, assert_resumable
from tests.support.runs import cause_of_failure, events_of, outputs_of, soon, taken


@dataclass
class Refund:
    amount: int


class Ask(Executor):
    """Asks about an amount, and yields the answer."""

    @handler
    async def ask(self, amount: int, ctx: WorkflowContext[None, str]) -> None:
        await ctx.request_info(Refund(amount), response_type=bool)

    @response_handler
    async def answered(self, refund: Refund, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{refund.amount}: {'yes' if yes else 'no'} from {ctx.source_executor_id}")


class Policy(Executor):
    """Answers requests about small amounts by itself."""

    checkpointed = ("decided",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.decided = 0

    @handler
    async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext[None, str]) -> None:
        assert request.response_type is bool
        assert isinstance(request.data, Refund)
        if request.data.amount < 100:
            self.decided += 1
            await ctx.respond_to(request, True)


def asking(name: str = "Asking") -> Workflow:
    return WorkflowBuilder(name=name).set_start_executor(Ask).build()


def refunds(storage: Any = None, policy: Any = Policy, inner: Workflow | None = None) -> Workflow:
    nested = WorkflowExecutor(inner or asking(), id="refund")
    builder = WorkflowBuilder(name="Refunds").set_start_executor(nested).add_edge(nested, policy)
    return (builder if storage is None else builder.with_checkpointing(storage)).build()


def questions(events: list[WorkflowEvent]) -> list[tuple[int, str]]:
    return [(event.superstep, event.request_id) for event in events if isinstance(event, RequestInfoEvent)]


@pytest.mark.parametrize("stored", [False, True])
async def test_executor_around_answers(stored: bool) -> None:
    workflow = refunds(InMemoryCheckpointStorage() if stored else None)
    result = await soon(workflow.run(20))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["20: yes from None"])
    assert (result.pending_requests, result.warnings) == ([], [])
    assert questions(await events_of(workflow, 20)) == [], "nobody outside is asked"


@pytest.mark.parametrize("stored", [False, True])
async def test_request_that_it_does_not_answer_goes_outside(stored: bool) -> None:
    workflow = refunds(InMemoryCheckpointStorage() if stored else None)
    run = await soon(workflow.start(500))
    events = await soon(taken(run))
    assert questions(events) == [(2, "refund#1/Ask.1.1")], "once, when the policy has seen it"
    [request] = run.pending_requests
    assert (request.executor_id, request.data, request.response_type) == ("refund#1/Ask", Refund(500), bool)
    await run.respond({request.request_id: False})
    assert (await soon(run.wait_for_completion())).outputs == ["500: no from None"]


async def test_request_goes_outside_where_no_executor_takes_it() -> None:
    @executor
    async def anything(message: object, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"got {message}")

    workflow = refunds(policy=anything)
    run = await soon(workflow.start(20))
    assert questions(await soon(taken(run))) == [(1, "refund#1/Ask.1.1")]
    await run.respond({"refund#1/Ask.1.1": True})
    assert (await soon(run.wait_for_completion())).outputs == ["got 20: yes from None"]


async def test_message_says_who_asks() -> None:
    seen: list[Any] = []

    @executor
    async def look(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        seen.append((request.request_id, request.executor_id, request.data, ctx.source_executor_id))
        await ctx.respond_to(request, True)

    assert await outputs_of(refunds(policy=look), 20) == ["20: yes from None"]
    assert seen == [("refund#1/Ask.1.1", "refund#1/Ask", Refund(20), "refund")]


async def test_outputs_take_their_own_way() -> None:
    """Edges that only take requests do not take outputs away; others take both."""

    @executor
    async def end(text: str) -> str:
        return f"end of {text}"

    class Both(Policy):
        @handler
        async def output(self, text: str, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(f"both: {text}")

    nested = WorkflowExecutor(asking(), id="refund")
    builder = (
        WorkflowBuilder(name="Refunds").set_start_executor(nested).add_fan_out_edges(nested, [Policy, end])
    )
    assert await outputs_of(builder.build(), 20) == ["end of 20: yes from None"]
    assert await outputs_of(refunds(policy=Both), 20) == ["both: 20: yes from None"]


async def test_innermost_workflow_around_comes_first() -> None:
    class Everything(Executor):
        @handler
        async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
            await ctx.respond_to(request, False)

    inner = refunds()  # with a policy of its own
    outer = refunds(policy=Everything, inner=WorkflowBuilder(name="Plain").set_start_executor(Ask).build())
    nested = WorkflowExecutor(inner, id="out")
    around = WorkflowBuilder(name="Around").set_start_executor(nested).add_edge(nested, Everything).build()
    assert await outputs_of(around, 20) == ["20: yes from None"]
    plain = WorkflowBuilder(name="Wrap").set_start_executor(WorkflowExecutor(asking(), id="in")).build()
    twice = refunds(policy=Everything, inner=plain)
    assert await outputs_of(twice, 20) == ["20: no from None"], "it passes a workflow that takes none"
    assert await outputs_of(outer, 20) == ["20: no from None"]


async def test_conditions_choose_who_is_offered_a_request() -> None:
    class Other(Policy):
        @handler
        async def output(self, text: str, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(text)

    def small(request: Any) -> bool:
        return isinstance(request, SubWorkflowRequest) and request.data.amount < 10

    nested = WorkflowExecutor(asking(), id="refund")

    @executor
    async def rest(text: str) -> str:
        return text

    cases: list[Case | Default] = [
        Case(lambda text: text.startswith("x"), target=rest),
        Case(small, target=Policy),
        Default(target=Other),
    ]
    workflow = (
        WorkflowBuilder(name="Switch")
        .set_start_executor(nested)
        .add_switch_case_edge_group(nested, cases)
        .build()
    )
    for amount in (5, 50):
        assert await outputs_of(workflow, amount) == [f"{amount}: yes from None"]
    conditional = (
        WorkflowBuilder(name="If")
        .set_start_executor(nested)
        .add_edge(nested, Policy, condition=small)
        .build()
    )
    assert await outputs_of(conditional, 5) == ["5: yes from None"]
    assert len((await soon(conditional.run(50))).pending_requests) == 1


async def test_answer_may_come_later() -> None:
    class Later(Executor):
        """Asks a person in its own words, and hands the answer on."""

        @handler
        async def ask(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
            await ctx.request_info(request, response_type=int, request_id="own")

        @response_handler
        async def answered(self, request: SubWorkflowRequest, limit: int, ctx: WorkflowContext) -> None:
            await ctx.respond_to(request, request.data.amount < limit)

    storage = InMemoryCheckpointStorage()
    workflow = refunds(storage, Later)
    result = await soon(workflow.run(20, "r"))
    assert {request.request_id for request in result.pending_requests} == {"own", "refund#1/Ask.1.1"}
    run = await soon(refunds(storage, Later).resume(run_id="r", responses={"own": 50}))
    assert (await soon(run.wait_for_completion())).outputs == ["20: yes from None"]


async def test_first_answer_counts() -> None:
    class Slow(Executor):
        @handler
        async def ask(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
            await ctx.request_info(request, response_type=bool, request_id="own")

        @response_handler
        async def answered(
            self, request: SubWorkflowRequest, yes: bool, ctx: WorkflowContext[None, str]
        ) -> None:
            with pytest.raises(RequestAlreadyAnswered):
                await ctx.respond_to(request, yes)
            await ctx.yield_output("too late")

    result = await soon(refunds(policy=Slow).run(20))
    result = await soon(result.respond({"refund#1/Ask.1.1": False}))
    assert result.outputs == ["20: no from None"]
    assert (await soon(result.respond({"own": True}))).outputs[1:] == ["too late"]


async def test_two_takers_the_first_in_graph_order_counts() -> None:
    class Say(Executor):
        def __init__(self, id: str, yes: bool) -> None:
            super().__init__(id)
            self.yes = yes

        @handler
        async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
            await ctx.respond_to(request, self.yes)

    nested = WorkflowExecutor(asking(), id="refund")
    builder = WorkflowBuilder(name="Two").set_start_executor(nested)
    builder.add_fan_out_edges(nested, [Say.bind(id="a", yes=False), Say.bind(id="b", yes=True)])
    assert await outputs_of(builder.build(), 20) == ["20: no from None"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_resume_from_every_checkpoint(durability: Any) -> None:
    storage = InMemoryCheckpointStorage()

    def make() -> Workflow:
        nested = WorkflowExecutor(asking(), id="refund")
        builder = WorkflowBuilder(name="Refunds").set_start_executor(nested).add_edge(nested, Policy)
        return builder.with_checkpointing(storage).with_durability(durability).build()

    run = await soon(make().start(20))
    assert (await soon(run.wait_for_completion())).outputs == ["20: yes from None"]
    for checkpoint in run.checkpoints:
        assert (await soon(make().run_from_checkpoint(checkpoint))).outputs == ["20: yes from None"]
        fork = await soon(make().fork(checkpoint))
        events = await soon(taken(fork))
        assert questions(events) == []
        assert fork.result().outputs == ["20: yes from None"]


@pytest.mark.parametrize("amount", [20, 500])
async def test_same_end_wherever_it_is_stopped(amount: int) -> None:
    assert await soon(assert_resumable(refunds, amount, answer=lambda request: False)) >= 6


async def test_response_in_the_journal_is_given_once() -> None:
    """The policy has answered, another turn of the superstep fails: after the resume the policy does not run again."""
    storage = InMemoryCheckpointStorage()
    broken = [True]
    calls: list[str] = []

    class Counting(Policy):
        @handler
        async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext[None, str]) -> None:
            calls.append(request.request_id)
            await ctx.respond_to(request, True)

    @executor
    async def both(amount: int) -> int:
        return amount

    @executor
    async def wait(amount: int, ctx: WorkflowContext[int]) -> int:
        return amount

    @executor
    async def fail(amount: int) -> None:
        if broken:
            raise ValueError("broken")

    nested = WorkflowExecutor(asking(), id="refund")
    workflow = (
        WorkflowBuilder(name="Journal")
        .set_start_executor(both)
        .add_fan_out_edges(both, [nested, wait])
        .add_edge(nested, Counting)
        .add_edge(wait, fail)
        .with_checkpointing(storage)
        .build()
    )
    with pytest.raises(ExecutorFailed):
        await soon(workflow.run(20, "r"))
    broken.clear()
    run = await soon(workflow.resume(run_id="r"))
    assert (await soon(run.wait_for_completion())).outputs == ["20: yes from None"]
    assert calls == ["refund#1/Ask.2.1"]


async def test_answers_of_executors_do_not_lift_the_limit() -> None:
    class Again(Executor):
        @handler
        async def ask(self, amount: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(Refund(amount), response_type=bool)

        @response_handler
        async def answered(self, refund: Refund, yes: bool, ctx: WorkflowContext) -> None:
            await ctx.request_info(refund, response_type=bool)

    inner = WorkflowBuilder(name="Endless").set_start_executor(Again).build()
    for storage in (None, InMemoryCheckpointStorage()):
        nested = WorkflowExecutor(inner, id="in")
        builder = (
            WorkflowBuilder(name="Loop", max_iterations=9).set_start_executor(nested).add_edge(nested, Policy)
        )
        workflow = (builder if storage is None else builder.with_checkpointing(storage)).build()
        with pytest.raises(SuperstepLimit):
            await soon(workflow.run(20))


async def test_wrong_answers_are_refused() -> None:
    def answering(give: Any) -> Workflow:
        class Wrong(Executor):
            @handler
            async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
                await give(request, ctx)

        return refunds(policy=Wrong)

    async def wrong_type(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        await ctx.respond_to(request, "perhaps")

    async def no_request(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        await ctx.respond_to(request.request_id, True)  # type: ignore[arg-type]

    async def twice(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        await ctx.respond_to(request, True)
        await ctx.respond_to(request, False)

    async def elsewhere(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        await ctx.respond_to(SubWorkflowRequest("x", "Ask", 5), True)

    await cause_of_failure(answering(wrong_type), 20, InvalidResponse)
    await cause_of_failure(answering(no_request), 20, WrongType)
    await cause_of_failure(answering(twice), 20, RequestAlreadyAnswered)
    await cause_of_failure(answering(elsewhere), 20, InvalidArgument)


async def test_in_a_workflow_that_lasts() -> None:
    nested = WorkflowExecutor(asking(), id="refund", lifetime="run")

    @executor
    async def amounts(text: str, ctx: WorkflowContext[int]) -> None:
        for amount in text.split():
            await ctx.send_message(int(amount))

    workflow = (
        WorkflowBuilder(name="Lasting")
        .set_start_executor(amounts)
        .add_edge(amounts, nested)
        .add_edge(nested, Policy)
    ).build()
    result = await soon(workflow.run("20 500 30"))
    assert result.outputs == ["20: yes from None", "30: yes from None"]
    assert [request.data for request in result.pending_requests] == [Refund(500)]


async def test_request_info_executor_takes_none() -> None:
    """It takes anything, and asks about it: requests are not meant."""
    ask = RequestInfoExecutor(id="outside", response_type=str)
    result = await soon(refunds(policy=ask).run(20))
    assert [request.request_id for request in result.pending_requests] == ["refund#1/Ask.1.1"]


async def test_fake_context_takes_responses() -> None:
    ctx = FakeContext(Policy)
    await soon(ctx.handle(SubWorkflowRequest("q", "in#1/Ask", Refund(20), bool)))
    await soon(ctx.handle(SubWorkflowRequest("r", "in#1/Ask", Refund(200), bool)))
    assert ctx.responses == {"q": True}
    with pytest.raises(InvalidResponse):
        await ctx.respond_to(SubWorkflowRequest("s", "in#1/Ask", 5, bool), "perhaps")


@pytest.mark.parametrize("stored", [False, True])
async def test_answer_from_outside_that_was_taken_before_counts(stored: bool) -> None:
    """A person who knows the id answers while the policy thinks about it: that answer was acknowledged first."""
    asked, answered = asyncio.Event(), asyncio.Event()

    @executor
    async def slow(request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
        asked.set()
        await answered.wait()
        await ctx.respond_to(request, True)

    run = await soon(refunds(InMemoryCheckpointStorage() if stored else None, slow).start(20))
    await soon(asked.wait())
    assert run.pending_requests == [], "it is offered, so nobody else is asked"
    await soon(run.respond({"refund#1/Ask.1.1": False}))
    answered.set()
    assert (await soon(run.wait_for_completion())).outputs == ["20: no from None"]


async def test_store_with_such_answers_is_whole(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    await soon(refunds(storage).run(20, "r"))
    await soon(storage.export_run("r", tmp_path / "run.export"))
    copy = FileCheckpointStorage(tmp_path / "files")
    await soon(copy.import_run(tmp_path / "run.export"))
    for each in (storage, copy):
        report = await soon(each.verify())
        assert not report.problems
        for checkpoint in await each.list_checkpoints(run_id="r"):
            result = await soon(refunds(each).run_from_checkpoint(checkpoint.checkpoint_id))
            assert result.outputs == ["20: yes from None"]
        await each.close()
