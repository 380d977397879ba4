"""The workflow of the golden run with a journal: a superstep that fails when most of its turns are over."""

from holdfast import (
    Executor,
    Merge,
    RetryPolicy,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.golden.workflows import Counted, Verdict, random_text

CALLS: list[str] = []
"""What was called by the handlers below: a resumed run must not do again what its journal holds."""


@executor(id="begin")
async def begin(number: int, ctx: WorkflowContext[int]) -> None:
    """Its result of ``once`` is noted, and the note is void one superstep later."""
    await ctx.queue_state_update("first", await ctx.once("first", _called, "first"), scope_name="Notes")
    for key in ("goes", "again"):
        await ctx.queue_state_update(key, number, scope_name="Notes")
    await ctx.send_message(number)


def _called(name: str) -> str:
    CALLS.append(name)
    return f"{name} was called"


@executor(id="pass on")
def pass_on(number: int) -> int:
    return number


class Change(Executor):
    """Its turn has everything that a turn can have."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns = 0

    @handler
    async def change(self, number: int, ctx: WorkflowContext[int | str, str]) -> None:
        CALLS.append("change")
        self.turns += 1  # which no checkpoint keeps: a warning
        await ctx.queue_state_update("set", random_text(4_100), scope_name="Notes")
        await ctx.append_state("grows", {"number": number}, scope_name="Notes")
        await ctx.append_state("grows", b"two", scope_name="Notes")
        await ctx.clear_state("goes", scope_name="Notes")
        await ctx.queue_state_update("sum", number, scope_name="Notes")
        await ctx.queue_state_update("sum", 1, scope_name="Notes")
        await ctx.queue_state_update("most", number, scope_name="Notes")
        await ctx.clear_state("again", scope_name="Notes")
        await ctx.queue_state_update("again", 5, scope_name="Notes")
        await ctx.set_state(("private", number))
        await ctx.add_event(Counted(number))
        await ctx.yield_output("changed")
        await ctx.send_message(number + 1)
        await ctx.send_message("kelp " * 300, target_id="gather")


class Ask(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        CALLS.append("ask")
        await ctx.request_info(f"more than {number}?", response_type=Verdict)

    @response_handler
    async def judged(self, question: str, verdict: Verdict, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{question} {verdict.approved}")


class Flaky(Executor):
    @handler(retry=RetryPolicy(attempts=2, backoff=0.0))
    async def try_twice(self, number: int, ctx: WorkflowContext[int]) -> None:
        CALLS.append(f"flaky {ctx.attempt}")
        if ctx.attempt == 1:
            raise OSError("not yet")
        await ctx.send_message(number * 10)


class Charge(Executor):
    """Its turn is not over: it fails behind an effect that happened."""

    def __init__(self, id: str | None = None, fails: bool = False) -> None:
        super().__init__(id)
        self._fails = fails

    @handler
    async def charge(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        CALLS.append("charge")
        paid = await ctx.once("pay", _called, "pay")
        receipt = await ctx.once("print", random_text, 4_200)
        if self._fails:
            raise ConnectionError("the network is down")
        await ctx.yield_output(f"{paid}, {len(receipt)}")


@executor(id="inside")
async def inside(number: int, ctx: WorkflowContext[None, int]) -> None:
    CALLS.append("inside")
    await ctx.queue_state_update("seen", number, scope_name="Notes")
    await ctx.yield_output(number * 100)


@executor(id="gather")
async def gather(what: int | str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"got {len(what) if isinstance(what, str) else what}")


def most(held: int, update: int) -> int:
    return max(held, update)


def journaled(fails: bool = False) -> Workflow:
    inner = WorkflowBuilder(name="Inner").set_start_executor(inside).build()
    nested = WorkflowExecutor(inner, id="nested")
    change, ask, flaky = Change.bind(id="change"), Ask.bind(id="ask"), Flaky.bind(id="flaky")
    charge = Charge.bind(id="charge", fails=fails)
    return (
        WorkflowBuilder(name="Journaled")
        .set_start_executor(begin)
        .add_edge(begin, pass_on)
        .add_fan_out_edges(pass_on, [change, ask, flaky, nested, charge])
        .add_edge(change, gather)
        .add_edge(flaky, gather)
        .add_edge(nested, gather)
        .with_state_merge("Notes", "sum", Merge.ADD)
        .with_state_merge("Notes", "most", most)
        .with_state_merge("Notes", "again", Merge.ADD)
        .build()
    )
