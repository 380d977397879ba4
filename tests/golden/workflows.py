"""The workflows of the golden runs. They must stay as they are: stored runs are resumed with them."""

from dataclasses import dataclass
from typing import Any

from holdfast import (
    Executor,
    RequestInfoExecutor,
    StateKey,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from tests.golden.kinds import KINDS, Customer, Level, Order, OutOfStock, Point, Report, Rights

Kind: Any = Report | Point | Order | Customer | Level | Rights | OutOfStock
KIND: StateKey[Any] = StateKey("of all kinds", Kind)  # by which their classes are declared


@dataclass
class Verdict:
    approved: bool
    reason: str = ""


@dataclass
class Counted(WorkflowEvent):
    amount: int = 0


# Values of all kinds


@executor(id="keep")
async def keep(what: str, ctx: WorkflowContext[str | int]) -> None:
    for name, value in KINDS.items():
        await ctx.queue_state_update(name, value, scope_name="Kinds")
    await ctx.queue_state_update(KIND, Point(3))
    await ctx.add_event(Counted(len(KINDS)))
    await ctx.send_message(17)  # which nobody takes: a warning
    await ctx.send_message(what)


@executor(id="tell")
async def tell(what: str, ctx: WorkflowContext[None, object]) -> None:
    await ctx.yield_output(f"{what}: {len(KINDS)}")
    await ctx.yield_output(KINDS["dataclass"])


def kinds() -> Workflow:
    return WorkflowBuilder(name="Kinds").set_start_executor(keep).add_edge(keep, tell).build()


# A question


class Approve(Executor):
    checkpointed = ("asked",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.asked = 0

    @handler
    async def ask(self, report: Report, ctx: WorkflowContext) -> None:
        self.asked += 1
        await ctx.set_state({"title": report.title})
        await ctx.request_info(report, response_type=Verdict)
        await ctx.request_info("how many?", response_type=int | None, request_id="number")

    async def on_checkpointing(self, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("questions", self.asked * 2)

    @response_handler
    async def judged(self, report: Report, verdict: Verdict, ctx: WorkflowContext[None, str]) -> None:
        state = await ctx.get_state()
        await ctx.yield_output(f"{state['title']}: {verdict.approved}, {verdict.reason}, asked {self.asked}")

    @response_handler
    async def counted(self, question: str, number: int | None, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{question} {number}")


def approval() -> Workflow:
    return WorkflowBuilder(name="Approval").set_start_executor(Approve).build()


# Values that grow, blobs, keyframes


@executor(id="grow")
async def grow(number: int, ctx: WorkflowContext[int, int]) -> None:
    line = f"line {number} " + "".join(f"{number * step * 7919 % 100_003:06}" for step in range(8))
    await ctx.append_state("lines", line, scope_name="Grown")
    await ctx.append_state("mixed", {"number": number, "pair": (number, -number)}, scope_name="Grown")
    if number == 1:
        await ctx.append_state("mixed", "big " + random_text(4_200), scope_name="Grown")
        await ctx.queue_state_update("text", "begin\n", scope_name="Grown")
        await ctx.queue_state_update("bytes", b"\x00", scope_name="Grown")
        await ctx.queue_state_update("whole", [], scope_name="Grown")
        await ctx.queue_state_update("even", "x" * 20_000, scope_name="Grown")
        await ctx.queue_state_update("uneven", random_text(4_300), scope_name="Grown")
        await ctx.queue_state_update("goes", "soon", scope_name="Grown")
    if number == 3:
        await ctx.clear_state("goes", scope_name="Grown")
    await ctx.append_state("text", f"{number}\n", scope_name="Grown")
    await ctx.append_state("bytes", bytes([number]), scope_name="Grown")
    whole = await ctx.read_state("whole", [], scope_name="Grown")
    await ctx.queue_state_update("whole", [*whole, line * 20], scope_name="Grown")
    await ctx.yield_output(number)
    if number < 6:
        await ctx.send_message(number + 1)


def random_text(length: int) -> str:
    """Text that does not become much smaller, the same each time."""
    number, letters = 1, []
    for _ in range(length):
        number = number * 48_271 % 2_147_483_647
        letters.append(chr(33 + number % 90))
    return "".join(letters)


def growing() -> Workflow:
    return WorkflowBuilder(name="Growing").set_start_executor(grow).add_edge(grow, grow).build()


# Nested workflows


class Review(Executor):
    @handler
    async def ask(self, document: str, ctx: WorkflowContext) -> None:
        await ctx.queue_state_update("document", document, scope_name="Review")
        await ctx.request_info(document, response_type=str)

    @response_handler
    async def answered(self, document: str, remark: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(f"{document}: {remark}")


@executor(id="sign")
async def sign(remark: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"{remark} ({await ctx.read_state('document', scope_name='Review')})")


@executor(id="hand out")
def hand_out(document: str) -> str:
    return document


@executor(id="collect")
def collect(remarks: list[str]) -> str:
    return "; ".join(remarks)


def nested() -> Workflow:
    review = WorkflowBuilder(name="Review").set_start_executor(Review).add_edge(Review, sign).build()
    places = [WorkflowExecutor(review, id="legal"), WorkflowExecutor(review, id="security")]
    return (
        WorkflowBuilder(name="Reviews")
        .set_start_executor(hand_out)
        .add_fan_out_edges(hand_out, places)
        .add_fan_in_edges(places, collect)
        .build()
    )


# A fan-in that waits


@executor(id="quick")
def quick(number: int) -> int:
    return number * 2


def joining() -> Workflow:
    slow = RequestInfoExecutor(id="slow", response_type=int)
    return (
        WorkflowBuilder(name="Joining")
        .set_start_executor(split)
        .add_fan_out_edges(split, [quick, slow])
        .add_fan_in_edges([quick, slow], add)
        .build()
    )


@executor(id="split")
def split(number: int) -> int:
    return number


@executor(id="add")
def add(numbers: list[int]) -> int:
    return sum(numbers)


@executor(id="mute")
async def mute(number: int, ctx: WorkflowContext[int]) -> None: ...


def stranded() -> Workflow:
    """Its fan-in waits for a source that never sends."""
    builder = WorkflowBuilder(name="Stranded").set_start_executor(split)
    return builder.add_fan_out_edges(split, [quick, mute]).add_fan_in_edges([quick, mute], add).build()


# Failure


@executor(id="divide")
def divide(number: int) -> float:
    return 1 / number


def failing() -> Workflow:
    return WorkflowBuilder(name="Failing").set_start_executor(split).add_edge(split, divide).build()


# A long turn


@executor(id="sleep")
async def sleep(seconds: float) -> None:
    import asyncio

    await asyncio.sleep(seconds)


def sleeping() -> Workflow:
    return WorkflowBuilder(name="Sleeping").set_start_executor(sleep).build()
