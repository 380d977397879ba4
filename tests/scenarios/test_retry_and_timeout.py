"""A handler that fails is tried again as its policy says, one that takes too long is ended; nothing of it remains."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from holdfast import (
    Executor,
    ExecutorFailed,
    ExecutorFailedEvent,
    ExecutorTimeout,
    GraphError,
    InvalidArgument,
    RetryPolicy,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    WorkflowExecutor,
    WorkflowOutputEvent,
    executor,
    handler,
    response_handler,
)
from tests.support.parts import Environment, RunConfig
from tests.support.runs import cause_of_failure, events_of, events_until_failure, names, soon
from tests.support.seeded_loop import run_seeded

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")

T = TypeVar("T")
ANYTHING: Any = None
AT_ONCE = RetryPolicy(attempts=3, backoff=0)


@dataclass
class AttemptNote(WorkflowEvent):
    """An event of a user."""

    text: str = ""


def alone(work: Any, chance: Callable[[], float] | None = None) -> Workflow:
    """A workflow of one executor, with its chance in the test's hand."""
    built = WorkflowBuilder(name="Alone").set_start_executor(work).build()
    if chance is None:
        return built
    return Workflow(built.graph, built.name, RunConfig(environment=Environment(chance=chance)))


def in_virtual_time(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Waits cost nothing here: time jumps to the next timer."""
    return run_seeded(make, seed=0)


def now() -> float:
    return asyncio.get_running_loop().time()


def failures(events: list[WorkflowEvent]) -> list[tuple[str, int, bool]]:
    """What failed, in which attempt, and whether that was for the time being."""
    failed = [event for event in events if isinstance(event, ExecutorFailedEvent)]
    return [(repr(event.error), event.attempt, event.provisional) for event in failed]


# -- attempts and waits ----------------------------------------------------------------------------


def test_waits_grow_by_the_multiplier_up_to_the_longest() -> None:
    seen: list[tuple[int, float]] = []
    policy = RetryPolicy(attempts=6, backoff=1, multiplier=3, longest=20, jitter=0)

    @executor(retry=policy)
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        seen.append((ctx.attempt, now()))
        if ctx.attempt < 6:
            raise ConnectionError("down")
        return text

    result = in_virtual_time(lambda: alone(work).run("x"))
    assert result.outputs == ["x"]
    assert seen == [(1, 0.0), (2, 1.0), (3, 4.0), (4, 13.0), (5, 33.0), (6, 53.0)]


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 7.5), (0.5, 10.0), (1.0, 12.5)])
def test_jitter_is_the_part_of_the_wait_that_is_left_to_chance(chance: float, wait: float) -> None:
    seen: list[float] = []

    @executor(retry=RetryPolicy(attempts=2, backoff=10, jitter=0.25))
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        seen.append(now())
        if ctx.attempt == 1:
            raise ConnectionError("down")
        return text

    in_virtual_time(lambda: alone(work, chance=lambda: chance).run("x"))
    assert seen == [0.0, wait]


def test_chance_is_asked_once_for_each_wait() -> None:
    asked: list[float] = []
    numbers = iter([0.0, 1.0])

    def chance() -> float:
        asked.append(number := next(numbers))
        return number

    seen: list[float] = []

    @executor(retry=RetryPolicy(attempts=3, backoff=1, multiplier=1, jitter=1))
    async def work(text: str) -> None:
        seen.append(now())
        raise ConnectionError("down")

    async def run() -> None:
        with pytest.raises(ExecutorFailed):
            await alone(work, chance).run("x")

    in_virtual_time(run)
    assert asked == [0.0, 1.0]
    assert seen == [0.0, 0.0, 2.0]


def test_wait_does_not_outgrow_what_numbers_can_hold() -> None:
    policy = RetryPolicy(attempts=5_000, backoff=0.5, longest=60, jitter=0)
    assert policy.wait_after(4_000, chance=0.5) == 60
    assert RetryPolicy(backoff=0, jitter=0).wait_after(4_000, chance=0.5) == 0


def test_default_policy() -> None:
    policy = RetryPolicy()
    assert (policy.attempts, policy.backoff, policy.multiplier, policy.longest) == (3, 0.5, 2.0, 60.0)
    assert policy.wait_after(1, 0.0) == pytest.approx(0.45)
    assert policy.wait_after(1, 1.0) == pytest.approx(0.55)


async def test_attempts_count_from_one_and_end() -> None:
    seen = []

    @executor(retry=AT_ONCE)
    async def work(text: str, ctx: WorkflowContext) -> None:
        seen.append(ctx.attempt)
        raise ValueError(f"no {ctx.attempt}")

    events, error = await events_until_failure(alone(work), "x")
    assert seen == [1, 2, 3]
    assert failures(events) == [
        ("ValueError('no 1')", 1, True),
        ("ValueError('no 2')", 2, True),
        ("ValueError('no 3')", 3, False),
    ]
    run_id = events[0].run_id
    assert str(error) == (
        f"executor 'work' failed in superstep 1 of run {run_id}, after 3 attempts: ValueError('no 3')"
    )
    assert repr(error.__cause__) == "ValueError('no 3')"
    assert names(events)[-2:] == ["1 WorkflowStatus failed", "1 WorkflowError"]


async def test_without_a_policy_there_is_one_attempt() -> None:
    @executor
    async def work(text: str, ctx: WorkflowContext) -> None:
        assert ctx.attempt == 1
        raise ValueError("no")

    events, error = await events_until_failure(alone(work), "x")
    assert failures(events) == [("ValueError('no')", 1, False)]
    assert "attempts" not in str(error)


async def test_one_attempt_is_none_again() -> None:
    seen = []

    @executor(retry=RetryPolicy(attempts=1))
    async def work(text: str) -> None:
        seen.append(text)
        raise ValueError("no")

    await cause_of_failure(alone(work), "x", ValueError)
    assert seen == ["x"]


async def test_each_turn_has_attempts_of_its_own() -> None:
    seen: list[tuple[int, int]] = []

    @executor(retry=RetryPolicy(attempts=2, backoff=0))
    async def count(number: int, ctx: WorkflowContext[int]) -> int | None:
        seen.append((ctx.superstep, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("first")
        return number - 1 if number else None

    workflow = WorkflowBuilder().set_start_executor(count).add_edge(count, count).build()
    assert (await workflow.run(1)).status is RunStatus.COMPLETED
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2)]


async def test_attempts_are_told_in_order_while_the_run_goes_on() -> None:
    @executor(retry=AT_ONCE)
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        if ctx.attempt < 3:
            raise ValueError("no")
        return text

    events = await events_of(alone(work), "x")
    assert names(events) == [
        "0 WorkflowStarted",
        "0 WorkflowStatus running",
        "1 SuperStepStarted",
        "1 ExecutorInvoked work",
        "1 ExecutorFailed work",
        "1 ExecutorFailed work",
        "1 ExecutorCompleted work",
        "1 WorkflowOutput work x",
        "1 SuperStepCompleted",
        "1 WorkflowStatus completed",
        "1 WorkflowCompleted x",
    ]
    assert [(attempt, provisional) for _, attempt, provisional in failures(events)] == [(1, True), (2, True)]
    assert all(event.run_id == events[0].run_id for event in events)


# -- which exceptions ------------------------------------------------------------------------------


def busy(error: Exception) -> bool:
    return "busy" in str(error)


@pytest.mark.parametrize(
    ("retry_on", "error", "attempts"),
    [
        (ConnectionError, ConnectionResetError("reset"), 3),
        (ConnectionError, ValueError("no"), 1),
        ((ConnectionError, TimeoutError), TimeoutError("late"), 3),
        ((ConnectionError, TimeoutError), KeyError("key"), 1),
        ((), ValueError("no"), 1),
        (BaseException, ValueError("no"), 3),
        (busy, RuntimeError("busy"), 3),
        (busy, RuntimeError("broken"), 1),
    ],
)
async def test_only_what_the_policy_names_is_tried_again(
    retry_on: Any, error: Exception, attempts: int
) -> None:
    seen = []

    @executor(retry=RetryPolicy(attempts=3, backoff=0, retry_on=retry_on))
    async def work(text: str, ctx: WorkflowContext) -> None:
        seen.append(ctx.attempt)
        raise error

    cause = await cause_of_failure(alone(work), "x", type(error))
    assert cause is error
    assert seen == [*range(1, attempts + 1)]


async def test_predicate_is_not_asked_after_the_last_attempt() -> None:
    asked = []

    def worth(error: Exception) -> bool:
        asked.append(str(error))
        return True

    @executor(retry=RetryPolicy(attempts=2, backoff=0, retry_on=worth))
    async def work(text: str, ctx: WorkflowContext) -> None:
        raise ValueError(f"no {ctx.attempt}")

    await cause_of_failure(alone(work), "x", ValueError)
    assert asked == ["no 1"]


def bad_predicate(error: Exception) -> bool:
    raise KeyError("predicate")


async def test_predicate_that_raises_does_not_keep_others_from_finishing() -> None:
    finished = []

    @executor
    async def start(text: str) -> str:
        return text

    @executor(retry=RetryPolicy(attempts=3, backoff=0, retry_on=bad_predicate))
    async def work(text: str) -> str:
        raise ValueError("no")

    @executor
    async def beside(text: str) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        finished.append(text)

    workflow = WorkflowBuilder().set_start_executor(start).add_fan_out_edges(start, [work, beside]).build()
    events, error = await events_until_failure(workflow, "x")
    assert finished == ["x"]
    assert isinstance(error, ExecutorFailed)
    assert error.executor_id == "work"
    assert "2 ExecutorCompleted beside" in names(events)


async def test_something_awaited_that_was_cancelled_is_a_failure_and_is_not_tried_again() -> None:
    seen = []

    @executor(retry=AT_ONCE)
    async def work(text: str, ctx: WorkflowContext) -> None:
        seen.append(ctx.attempt)
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    await cause_of_failure(alone(work), "x", asyncio.CancelledError)
    assert seen == [1]


# -- nothing of a failed attempt survives ----------------------------------------------------------


class Busy(Executor):
    """Does everything that a turn can do, then fails until its last attempt."""

    @handler(retry=AT_ONCE)
    async def work(self, text: str, ctx: WorkflowContext[str, str]) -> str:
        attempt = ctx.attempt
        kept = await ctx.read_state("private", default="nothing")
        shared = await ctx.read_state("key", default="nothing", scope_name="Shared")
        own = await ctx.get_state()
        await ctx.queue_state_update("private", attempt)
        await ctx.queue_state_update(f"only in {attempt}", attempt)
        await ctx.queue_state_update("key", attempt, scope_name="Shared")
        await ctx.append_state("all", attempt, scope_name="Shared")
        await ctx.set_state(attempt)
        await ctx.set_shared_state("default", attempt)
        await ctx.send_message(f"message {attempt}")
        await ctx.yield_output(f"{attempt}: saw {kept}, {shared}, {own}")
        await ctx.add_event(AttemptNote(text=f"durable {attempt}"))
        await ctx.add_event(AttemptNote(text=f"provisional {attempt}", provisional=True))
        if attempt < 3:
            raise ValueError(f"no {attempt}")
        return "returned"


class Look(Executor):
    @handler
    async def look(self, text: str, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(text)
        if text == "returned":
            await ctx.yield_output(await ctx.read_state("key", scope_name="Shared"))
            await ctx.yield_output(await ctx.read_state("all", scope_name="Shared"))
            await ctx.yield_output(await ctx.get_shared_state("default"))


async def test_nothing_of_a_failed_attempt_survives() -> None:
    workflow = WorkflowBuilder().set_start_executor(Busy).add_edge(Busy, Look).build()
    events = await events_of(workflow, "x")
    outputs = [event.data for event in events if isinstance(event, WorkflowOutputEvent)]
    assert outputs == ["3: saw nothing, nothing, None", "message 3", "returned", 3, [3], 3]
    assert [event.text for event in events if isinstance(event, AttemptNote) and not event.provisional] == [
        "durable 3"
    ]
    assert [event.text for event in events if isinstance(event, AttemptNote) and event.provisional] == [
        "provisional 1",
        "provisional 2",
        "provisional 3",
    ]


async def test_requests_of_a_failed_attempt_are_not_asked() -> None:
    class Ask(Executor):
        @handler(retry=AT_ONCE)
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=str, request_id="the only one")
            if ctx.attempt < 3:
                raise ValueError("no")

        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext) -> str:
            return answer

    result = await alone(Ask).run("x")
    assert [request.request_id for request in result.pending_requests] == ["the only one"]
    assert (await result.respond({"the only one": "yes"})).outputs == ["yes"]


async def test_message_is_the_same_in_each_attempt() -> None:
    seen = []

    @executor(retry=AT_ONCE)
    async def work(rows: list, ctx: WorkflowContext) -> None:
        seen.append(list(rows))
        rows.append("mine")
        if ctx.attempt < 3:
            raise ValueError("no")

    await alone(work).run(["a"])
    assert seen == [["a"], ["a"], ["a"]]


async def test_all_messages_of_a_turn_are_handled_again() -> None:
    seen: list[tuple[str, int]] = []

    @executor
    async def start(text: str, ctx: WorkflowContext[str]) -> None:
        for letter in text:
            await ctx.send_message(letter)

    class Work(Executor):
        checkpointed = ("count",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.count = 0

        @handler(retry=AT_ONCE)
        async def work(self, letter: str, ctx: WorkflowContext[None, str]) -> str:
            self.count += 1
            seen.append((letter, ctx.attempt))
            if letter == "b" and ctx.attempt == 1:
                raise ValueError("b")
            return f"{letter}{self.count}"

    workflow = WorkflowBuilder().set_start_executor(start).add_edge(start, Work).build()
    assert (await workflow.run("abc")).outputs == ["a1", "b2", "c3"]
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 2)]


# -- fields ----------------------------------------------------------------------------------------


@dataclass
class Tally:
    counts: dict[str, list[int]] = field(default_factory=dict)


async def test_fields_are_as_before_at_each_attempt() -> None:
    seen: list[dict[str, Any]] = []
    lock = threading.Lock()

    class Fields(Executor):
        checkpointed = ("number", "rows", "tally", "added")

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.number = 0
            self.rows: list[list[str]] = [["a"]]
            self.tally = Tally({"x": [1]})
            self.lock = lock  # cannot be copied, so it stays what it is
            self.gone = "here"

        @handler(retry=AT_ONCE)
        async def work(self, text: str, ctx: WorkflowContext[None, Any]) -> str:
            seen.append({name: repr(value) for name, value in vars(self).items() if name != "lock"})
            assert self.lock is lock
            self.number += 1
            self.rows[0].append(text)
            self.rows.append([text])
            self.tally.counts["x"].append(2)
            self.tally.counts["y"] = []
            self.added = text
            if ctx.attempt < 3:
                del self.gone
                raise ValueError("no")
            assert self.gone == "here"
            return f"{self.number} {self.rows} {self.tally.counts} {self.added}"

    result = await alone(Fields).run("x")
    assert result.outputs == ["1 [['a', 'x'], ['x']] {'x': [1, 2], 'y': []} x"]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0]["gone"] == "'here'"
    assert "added" not in seen[0]
    assert result.warnings == []


async def test_transient_fields_are_left_alone() -> None:
    class Client:
        def __init__(self) -> None:
            self.calls = 0

    client = Client()

    class Call(Executor):
        transient = ("client",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.client = client

        @handler(retry=AT_ONCE)
        async def call(self, text: str, ctx: WorkflowContext[None, int]) -> int:
            assert self.client is client
            self.client.calls += 1
            if ctx.attempt < 3:
                raise ValueError("no")
            return self.client.calls

    assert (await alone(Call).run("x")).outputs == [3]


async def test_fields_of_the_turns_before_are_kept() -> None:
    class Count(Executor):
        checkpointed = ("seen",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.seen: list[int] = []

        @handler(retry=AT_ONCE)
        async def count(self, number: int, ctx: WorkflowContext[int, Any]) -> int | None:
            self.seen.append(number)
            if ctx.attempt < 3:
                raise ValueError("no")
            if number:
                return number - 1
            await ctx.yield_output(self.seen)
            return None

    workflow = WorkflowBuilder().set_start_executor(Count).add_edge(Count, Count).build()
    assert (await workflow.run(3)).outputs == [[3, 2, 1, 0]]


async def test_fields_of_a_failed_run_do_not_reach_the_next() -> None:
    class Count(Executor):
        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.count = 0

        @handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def work(self, text: str, ctx: WorkflowContext) -> None:
            assert self.count == 0
            self.count += 1
            raise ValueError("no")

    workflow = alone(Count)
    for _ in range(2):
        await cause_of_failure(workflow, "x", ValueError)


async def test_shareable_instance_keeps_what_it_holds() -> None:
    """It serves other runs at the same time: what it holds is not exchanged under their hands."""

    class Client:
        def __init__(self) -> None:
            self.calls = 0

    class Call(Executor):
        shareable = True

        def __init__(self, client: Client) -> None:
            super().__init__("call")
            self.client = client

        @handler(retry=AT_ONCE)
        async def call(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            self.client.calls += 1
            if ctx.attempt < 3:
                raise ValueError("no")
            return text

    client = Client()
    call = Call(client)
    await alone(call).run("x")
    assert call.client is client
    assert client.calls == 3


async def test_function_executor_is_the_same_after_another_attempt() -> None:
    @executor(retry=AT_ONCE)
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        if ctx.attempt < 3:
            raise ValueError("no")
        return text

    before = dict(vars(work))
    await alone(work).run("x")
    after = dict(vars(work))
    assert before.keys() == after.keys()
    assert all(after[name] is value for name, value in before.items())


# -- where a policy stands -------------------------------------------------------------------------


async def test_each_handler_has_its_own_policy() -> None:
    seen: list[tuple[object, int]] = []

    class Both(Executor):
        @handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def text(self, text: str, ctx: WorkflowContext) -> None:
            seen.append((text, ctx.attempt))
            raise ValueError("text")

        @handler
        async def number(self, number: int, ctx: WorkflowContext) -> None:
            seen.append((number, ctx.attempt))
            raise ValueError("number")

    await cause_of_failure(alone(Both), "x", ValueError)
    await cause_of_failure(alone(Both), 7, ValueError)
    assert seen == [("x", 1), ("x", 2), (7, 1)]


async def test_sync_function_is_tried_again() -> None:
    calls: list[str] = []

    @executor(retry=AT_ONCE)
    def work(text: str) -> str:
        calls.append(text)
        if len(calls) < 3:
            raise ValueError("no")
        return text

    assert (await soon(alone(work).run("x"))).outputs == ["x"]
    assert calls == ["x"] * 3


async def test_response_handler_is_tried_again() -> None:
    seen = []

    class Ask(Executor):
        checkpointed = ("answers",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.answers: list[bool] = []

        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool)

        @response_handler(retry=AT_ONCE)
        async def answered(self, text: str, yes: bool, ctx: WorkflowContext[None, Any]) -> None:
            self.answers.append(yes)
            seen.append((text, yes, ctx.attempt))
            if ctx.attempt < 3:
                raise ValueError("no")
            await ctx.yield_output(self.answers)

    result = await alone(Ask).run("Deploy?")
    result = await result.respond({request.request_id: True for request in result.pending_requests})
    assert seen == [("Deploy?", True, 1), ("Deploy?", True, 2), ("Deploy?", True, 3)]
    assert result.outputs == [[True]]


async def test_response_handler_that_fails_in_the_end() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool)

        @response_handler(retry=RetryPolicy(attempts=2, backoff=0))
        async def answered(self, text: str, yes: bool, ctx: WorkflowContext) -> None:
            raise ValueError("no")

    result = await alone(Ask).run("Deploy?")
    with pytest.raises(ExecutorFailed, match="after 2 attempts") as caught:
        await result.respond({result.pending_requests[0].request_id: True})
    assert caught.value.executor_id == "Ask"


def test_others_finish_while_one_is_tried_again() -> None:
    ended: list[tuple[str, float]] = []

    @executor
    async def start(text: str) -> str:
        return text

    @executor(retry=RetryPolicy(attempts=2, backoff=50, jitter=0))
    async def flaky(text: str, ctx: WorkflowContext[str]) -> str:
        if ctx.attempt == 1:
            raise ValueError("no")
        ended.append(("flaky", now()))
        return "flaky"

    @executor
    async def slow(text: str) -> str:
        await asyncio.sleep(10)
        ended.append(("slow", now()))
        return "slow"

    @executor
    async def join(parts: list) -> str:
        return "+".join(parts)

    workflow = (
        WorkflowBuilder()
        .set_start_executor(start)
        .add_fan_out_edges(start, [flaky, slow])
        .add_fan_in_edges([flaky, slow], join)
        .build()
    )
    events = in_virtual_time(lambda: events_of(workflow, "x"))
    assert ended == [("slow", 10.0), ("flaky", 50.0)]
    assert names(events)[-1] == "3 WorkflowCompleted flaky+slow"
    assert names([event for event in events if not event.provisional])[6:12] == [
        "2 SuperStepStarted",
        "2 ExecutorInvoked flaky",
        "2 ExecutorInvoked slow",
        "2 ExecutorCompleted flaky",
        "2 ExecutorCompleted slow",
        "2 SuperStepCompleted",
    ]


async def test_nested_executor_is_tried_again() -> None:
    seen = []

    class Inner(Executor):
        checkpointed = ("rows",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.rows: list[str] = []

        @handler(retry=AT_ONCE)
        async def work(self, text: str, ctx: WorkflowContext[None, str]) -> str:
            self.rows.append(text)
            seen.append((str(ctx.executor_id), ctx.attempt))
            if ctx.attempt < 3:
                raise ValueError("no")
            return ",".join(self.rows)

    inner = WorkflowBuilder(name="Inner").set_start_executor(Inner).build()
    workflow = alone(WorkflowExecutor(inner, id="nest"))
    assert (await workflow.run("x")).outputs == ["x"]
    assert [attempt for _, attempt in seen] == [1, 2, 3]
    (address,) = {address for address, _ in seen}
    assert address.startswith("nest")
    assert address.endswith("/Inner")


async def test_nested_executor_that_fails_in_the_end_is_shown_with_its_path() -> None:
    @executor(retry=RetryPolicy(attempts=2, backoff=0))
    async def work(text: str) -> str:
        raise ValueError("no")

    inner = WorkflowBuilder(name="Inner").set_start_executor(work).build()
    events, error = await events_until_failure(alone(WorkflowExecutor(inner, id="nest")), "x")
    assert isinstance(error, ExecutorFailed)
    assert error.executor_id == "nest#1/work"
    assert "after 2 attempts" in str(error)
    assert failures(events) == [("ValueError('no')", 1, True), ("ValueError('no')", 2, False)]


# -- timeouts --------------------------------------------------------------------------------------


def test_timeout() -> None:
    ended: list[tuple[str, float]] = []

    class Slow(Executor):
        @handler(timeout=2.5)
        async def work(self, text: str, ctx: WorkflowContext) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0)
                ended.append(("cleaned up", now()))

    events, error = in_virtual_time(lambda: events_until_failure(alone(Slow), "x"))
    cause = error.__cause__
    assert isinstance(error, ExecutorFailed)
    assert isinstance(cause, ExecutorTimeout)
    assert str(cause) == "executor 'Slow' took longer than 2.5 s for a message (in 'work')"
    assert ended == [("cleaned up", 2.5)]
    assert failures(events) == [(repr(cause), 1, False)]
    assert names(events)[-2:] == ["1 WorkflowStatus failed", "1 WorkflowError"]


def test_handler_that_ends_in_time() -> None:
    @executor(timeout=10)
    async def work(text: str) -> str:
        await asyncio.sleep(9)
        return text

    assert in_virtual_time(lambda: alone(work).run("x")).outputs == ["x"]


def test_timeout_is_for_each_message() -> None:
    @executor
    async def start(number: int, ctx: WorkflowContext[int]) -> None:
        for each in range(number):
            await ctx.send_message(each)

    @executor(timeout=10)
    async def work(number: int) -> int:
        await asyncio.sleep(9)
        return number

    workflow = WorkflowBuilder().set_start_executor(start).add_edge(start, work).build()
    assert in_virtual_time(lambda: workflow.run(5)).outputs == [0, 1, 2, 3, 4]


def test_own_timeout_error_of_a_handler_is_not_mistaken() -> None:
    @executor(timeout=1000)
    async def work(text: str) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(10)

    @executor(timeout=1000)
    async def raises(text: str) -> None:
        raise TimeoutError("mine")

    for each, message in ((work, ""), (raises, "mine")):
        cause = in_virtual_time(lambda each=each: cause_of_failure(alone(each), "x", TimeoutError))  # type: ignore[misc]
        assert type(cause) is TimeoutError
        assert str(cause) == message


def test_timeout_is_tried_again_if_the_policy_says_so() -> None:
    seen: list[tuple[int, float]] = []

    @executor(
        timeout=10, retry=RetryPolicy(attempts=3, backoff=5, multiplier=1, jitter=0, retry_on=ExecutorTimeout)
    )
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        seen.append((ctx.attempt, now()))
        await asyncio.sleep(11 if ctx.attempt < 3 else 9)
        return text

    events = in_virtual_time(lambda: events_of(alone(work), "x"))
    assert seen == [(1, 0.0), (2, 15.0), (3, 30.0)]
    assert [(attempt, provisional) for _, attempt, provisional in failures(events)] == [(1, True), (2, True)]
    assert names(events)[-1] == "1 WorkflowCompleted x"


def test_timeout_is_not_tried_again_if_the_policy_says_otherwise() -> None:
    seen = []

    @executor(timeout=10, retry=RetryPolicy(retry_on=ConnectionError))
    async def work(text: str) -> None:
        seen.append(text)
        await asyncio.sleep(11)

    in_virtual_time(lambda: cause_of_failure(alone(work), "x", ExecutorTimeout))
    assert seen == ["x"]


def test_waits_between_attempts_do_not_count_as_time_of_the_handler() -> None:
    @executor(timeout=1, retry=RetryPolicy(attempts=2, backoff=50))
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        if ctx.attempt == 1:
            raise ValueError("no")
        return text

    assert in_virtual_time(lambda: alone(work).run("x")).outputs == ["x"]


def test_error_while_cleaning_up_after_a_timeout() -> None:
    @executor(timeout=1)
    async def work(text: str) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise KeyError("cleanup")

    in_virtual_time(lambda: cause_of_failure(alone(work), "x", KeyError))


def test_handler_that_swallows_its_timeout_is_too_late_all_the_same() -> None:
    @executor(timeout=1)
    async def work(text: str) -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        return "late"

    in_virtual_time(lambda: cause_of_failure(alone(work), "x", ExecutorTimeout))


def test_timeout_of_one_lets_others_finish() -> None:
    ended = []

    @executor
    async def start(text: str) -> str:
        return text

    @executor(timeout=1)
    async def late(text: str) -> None:
        await asyncio.sleep(10)

    @executor
    async def slow(text: str) -> None:
        await asyncio.sleep(20)
        ended.append(now())

    workflow = WorkflowBuilder().set_start_executor(start).add_fan_out_edges(start, [late, slow]).build()
    events, error = in_virtual_time(lambda: events_until_failure(workflow, "x"))
    assert ended == [20.0]
    assert isinstance(error.__cause__, ExecutorTimeout)
    assert names(events)[-4:] == [
        "2 ExecutorFailed late",
        "2 ExecutorCompleted slow",
        "2 WorkflowStatus failed",
        "2 WorkflowError",
    ]


def test_timeout_of_a_response_handler() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=bool)

        @response_handler(timeout=3)
        async def answered(self, text: str, yes: bool, ctx: WorkflowContext) -> None:
            await asyncio.sleep(10)

    async def run() -> None:
        result = await alone(Ask).run("Deploy?")
        with pytest.raises(ExecutorFailed) as caught:
            await result.respond({result.pending_requests[0].request_id: True})
        assert str(caught.value.__cause__) == (
            "executor 'Ask' took longer than 3 s for a message (in 'answered')"
        )

    in_virtual_time(run)


async def test_sync_function_times_out_and_its_late_result_is_discarded() -> None:
    go_on, gone_on = threading.Event(), threading.Event()

    @executor(timeout=0.01)
    def work(text: str) -> str:
        go_on.wait(30)
        gone_on.set()
        return "late"

    run = await alone(work).start("x")
    with pytest.raises(ExecutorFailed) as caught:
        await soon(run.wait_for_completion())
    assert isinstance(caught.value.__cause__, ExecutorTimeout)
    assert "'work'" in str(caught.value.__cause__)
    before = [event.superstep async for event in _until_failure(run.watch_stream())]
    go_on.set()
    await asyncio.to_thread(gone_on.wait, 30)
    for _ in range(5):
        await asyncio.sleep(0)
    assert run.status is RunStatus.FAILED
    assert run.result().outputs == []
    assert [event.superstep async for event in _until_failure(run.watch_stream())] == before


async def _until_failure(events: AsyncIterator[WorkflowEvent]) -> AsyncIterator[WorkflowEvent]:
    try:
        async for event in events:
            yield event
    except ExecutorFailed:
        pass


async def test_late_result_of_a_sync_function_does_not_become_that_of_the_next_attempt() -> None:
    go_on, gone_on = threading.Event(), threading.Event()
    calls: list[int] = []

    @executor(timeout=0.3, retry=RetryPolicy(attempts=50, backoff=0))
    def work(text: str) -> str:
        calls.append(1)
        if len(calls) > 1:
            go_on.set()
            return "second"
        go_on.wait(30)
        gone_on.set()
        return "first"

    result = await soon(alone(work).run("x"))
    await asyncio.to_thread(gone_on.wait, 30)
    assert result.outputs == ["second"]


# -- bad policies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"attempts": 0}, "RetryPolicy(attempts=0): must be a whole number of at least 1"),
        ({"attempts": 1.5}, "RetryPolicy(attempts=1.5): must be a whole number of at least 1"),
        ({"attempts": True}, "RetryPolicy(attempts=True): must be a whole number of at least 1"),
        ({"attempts": "3"}, "RetryPolicy(attempts='3'): must be a whole number of at least 1"),
        ({"backoff": -1}, "RetryPolicy(backoff=-1): must be a number of at least 0"),
        ({"backoff": float("nan")}, "RetryPolicy(backoff=nan): must be a number of at least 0"),
        ({"longest": -0.5}, "RetryPolicy(longest=-0.5): must be a number of at least 0"),
        ({"multiplier": 0.5}, "RetryPolicy(multiplier=0.5): must be a number of at least 1"),
        ({"jitter": 1.5}, "RetryPolicy(jitter=1.5): must be a number from 0 to 1"),
        ({"jitter": -0.1}, "RetryPolicy(jitter=-0.1): must be a number from 0 to 1"),
    ],
)
def test_policy_that_cannot_be_meant(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RetryPolicy(**wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "wrong", [{"backoff": "1"}, {"longest": None}, {"multiplier": "2"}, {"jitter": None}]
)
def test_policy_with_something_else_than_a_number(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidArgument) as caught:
        RetryPolicy(**wrong)
    assert f"RetryPolicy({name}={value!r})" in str(caught.value)


@pytest.mark.parametrize(
    "retry_on", ["ConnectionError", None, 5, (ConnectionError, "TimeoutError"), int, lambda error, more: True]
)
def test_policy_with_something_else_than_exceptions(retry_on: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RetryPolicy(retry_on=retry_on)
    assert "RetryPolicy(retry_on=" in str(caught.value)


def test_policy_takes_names_only() -> None:
    make: Any = RetryPolicy
    with pytest.raises(TypeError):
        make(3)


BAD_RETRY = [(3, "3"), ("3", "'3'"), (RetryPolicy, repr(RetryPolicy))]
BAD_TIMEOUT = [0, -1, float("nan"), "5", True]


@pytest.mark.parametrize(("wrong", "shown"), BAD_RETRY)
def test_retry_that_is_no_policy(wrong: Any, shown: str) -> None:
    class Work(Executor):
        @handler(retry=wrong)
        async def work(self, text: str, ctx: WorkflowContext) -> None: ...

    with pytest.raises(GraphError) as caught:
        alone(Work)
    assert str(caught.value) == f"handler Work.work: retry must be a RetryPolicy, not {shown}"
    with pytest.raises(GraphError) as caught:

        @executor(retry=wrong)
        async def work(text: str) -> None: ...

    assert str(caught.value) == f"executor 'work': retry must be a RetryPolicy, not {shown}"


@pytest.mark.parametrize("wrong", BAD_TIMEOUT)
def test_timeout_that_is_no_time(wrong: Any) -> None:
    class Ask(Executor):
        @handler
        async def work(self, text: str, ctx: WorkflowContext) -> None: ...

        @response_handler(timeout=wrong)
        async def answered(self, text: str, answer: str, ctx: WorkflowContext) -> None: ...

    with pytest.raises(GraphError) as caught:
        alone(Ask)
    expected = f"timeout must be a number of seconds above 0, not {wrong!r}"
    assert str(caught.value) == f"response handler Ask.answered: {expected}"
    with pytest.raises(GraphError) as caught:

        @executor(id="named", timeout=wrong)
        async def work(text: str) -> None: ...

    assert str(caught.value) == f"executor 'named': {expected}"
