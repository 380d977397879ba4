"""Questions to the outside: asked, answered in any order and at any time, refused where they cannot be meant."""

import asyncio
import datetime
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    Executor,
    ExecutorInvokedEvent,
    GraphError,
    InvalidArgument,
    InvalidResponse,
    NotCheckpointable,
    PendingRequest,
    RequestAlreadyAnswered,
    RequestInfoEvent,
    RequestInfoExecutor,
    Response,
    RetryPolicy,
    Run,
    RunEnded,
    RunResult,
    RunStatus,
    SuperStepCompletedEvent,
    SuperstepLimit,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowCompletedEvent,
    WorkflowContext,
    WorkflowOutputEvent,
    WorkflowStatusEvent,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.executors import Burst
from tests.support.runs import cause_of_failure, events_of, names, soon, waiting
from tests.support.seeded_loop import run_seeded


@dataclass
class Plan:
    text: str
    cost: int = 0


@dataclass
class Verdict:
    approved: bool
    day: datetime.date | None = None


class Approve(Executor):
    """Asks about each plan and yields the verdict."""

    @handler
    async def ask(self, plan: Plan, ctx: WorkflowContext) -> None:
        await ctx.request_info(plan, response_type=Verdict)

    @response_handler
    async def answered(self, plan: Plan, verdict: Verdict, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output((plan.text, verdict))


class AskAll(Executor):
    """Asks about each item of a list, and yields each item with its answer."""

    @handler
    async def ask(self, items: list, ctx: WorkflowContext) -> None:
        for item in items:
            await ctx.request_info(item, response_type=int)

    @response_handler
    async def answered(self, item: str, answer: int, ctx: WorkflowContext[Any, Any]) -> None:
        await ctx.yield_output(f"{item}={answer}")


def alone(placed: Any, **options: Any) -> Workflow:
    return WorkflowBuilder(name="Alone", **options).set_start_executor(placed).build()


def asking(name: str, question: object = "?", response_type: Any = int) -> Any:
    """A class that asks the question for any message and yields its id with the answer."""

    class Ask(Executor):
        @handler
        async def ask(self, message: object, ctx: WorkflowContext) -> None:
            await ctx.request_info(question, response_type=response_type)

        @response_handler
        async def answered(self, request: object, answer: object, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output((ctx.executor_id, answer))

    return Ask.bind(id=name)


async def started(workflow: Workflow, message: object) -> Run:
    """A run that waits for its answers."""
    run = await workflow.start(message)
    await soon(run.wait_for_completion())
    assert run.status is RunStatus.WAITING
    return run


# -- asking and answering --------------------------------------------------------------------------


async def test_run_waits_until_it_is_answered() -> None:
    result = await waiting(alone(Approve), Plan("deploy"))
    assert result.outputs == []
    assert result.pending_requests == [PendingRequest("Approve.1.1", Plan("deploy"), Verdict, "Approve")]  # type: ignore[arg-type]
    result = await soon(result.respond({"Approve.1.1": Verdict(True)}))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, [("deploy", Verdict(True))])
    assert result.pending_requests == []


async def test_human_loop() -> None:
    class Guess(Executor):
        """Asks until the answer is right."""

        checkpointed = ("tries",)

        def __init__(self, id: str | None = None) -> None:
            super().__init__(id)
            self.tries = 0

        @handler
        async def begin(self, secret: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(secret, response_type=int)

        @response_handler
        async def judge(self, secret: int, guess: int, ctx: WorkflowContext[None, Any]) -> None:
            self.tries += 1
            if guess == secret:
                await ctx.yield_output(self.tries)
            else:
                await ctx.request_info(secret, response_type=int)

    guesses = iter([1, 2, 3])
    result = await waiting(alone(Guess), 3)
    while result.pending_requests:
        result = await soon(result.respond({r.request_id: next(guesses) for r in result.pending_requests}))
    assert result.outputs == [3]


async def test_events_of_a_question() -> None:
    events = await events_of(alone(Approve), Plan("deploy"))
    assert names(events) == [
        "0 WorkflowStarted",
        "0 WorkflowStatus running",
        "1 SuperStepStarted",
        "1 ExecutorInvoked Approve",
        "1 ExecutorCompleted Approve",
        "1 RequestInfo Approve Plan(text='deploy', cost=0)",
        "1 SuperStepCompleted",
        "1 WorkflowStatus waiting",
    ]
    asked = next(event for event in events if isinstance(event, RequestInfoEvent))
    assert (asked.request_id, asked.response_type) == ("Approve.1.1", Verdict)
    assert (asked.data, asked.executor_id) == (Plan("deploy"), "Approve")
    barrier = next(event for event in events if isinstance(event, SuperStepCompletedEvent))
    assert (barrier.has_pending_requests, barrier.has_pending_messages) == (True, False)


async def test_events_after_an_answer_begin_with_it() -> None:
    run = await started(alone(Approve), Plan("deploy"))
    await run.send_response("Approve.1.1", Verdict(False))
    events = [event async for event in run.watch_stream()]
    assert names(events) == [
        "1 WorkflowStatus running",
        "2 SuperStepStarted",
        "2 ExecutorInvoked Approve",
        "2 ExecutorCompleted Approve",
        "2 WorkflowOutput Approve ('deploy', Verdict(approved=False, day=None))",
        "2 SuperStepCompleted",
        "2 WorkflowStatus completed",
        "2 WorkflowCompleted ('deploy', Verdict(approved=False, day=None))",
    ]


async def test_response_created_by_the_request() -> None:
    run = await started(alone(Approve), Plan("deploy"))
    (request,) = run.pending_requests
    response = request.create_response(Verdict(True))
    assert response == Response(request.request_id, Verdict(True))
    await run.send_response(response)
    result = await soon(run.wait_for_completion())
    assert result.outputs == [("deploy", Verdict(True))]


async def test_answering_while_watching() -> None:
    run = await alone(AskAll).start(["a", "b"])
    answers = {"a": 1, "b": 2}
    seen: list[Any] = []
    async for event in run.watch_stream():
        if isinstance(event, RequestInfoEvent):
            await run.send_response(event.request.create_response(answers[event.data]))
        elif isinstance(event, WorkflowOutputEvent):
            seen.append(event.data)
    assert seen == ["a=1", "b=2"]
    assert run.status is RunStatus.COMPLETED


async def test_answering_while_streaming() -> None:
    stream = alone(AskAll).run_stream(["a", "b"])
    seen: list[Any] = []
    async for event in stream:
        if isinstance(event, RequestInfoEvent):
            await stream.run.send_response(event.request_id, ord(event.data))
        elif isinstance(event, WorkflowOutputEvent):
            seen.append(event.data)
    assert seen == ["a=97", "b=98"]
    assert stream.run.status is RunStatus.COMPLETED
    assert isinstance(event, WorkflowCompletedEvent)


async def test_answering_at_the_last_event_of_a_watcher() -> None:
    """The run already waits when its answer comes; who watches goes on with it."""
    run = await alone(Approve).start(Plan("deploy"))
    statuses = []
    async for event in run.watch_stream():
        if isinstance(event, WorkflowStatusEvent):
            statuses.append(event.status)
            if event.status is RunStatus.WAITING:
                await run.send_response("Approve.1.1", {"approved": True})
    assert statuses == [RunStatus.RUNNING, RunStatus.WAITING, RunStatus.RUNNING, RunStatus.COMPLETED]


async def test_stream_that_ends_waiting_leaves_a_run_that_can_be_answered() -> None:
    stream = alone(Approve).run_stream(Plan("deploy"))
    async for _ in stream:
        pass
    assert stream.run.status is RunStatus.WAITING
    await stream.run.send_response("Approve.1.1", Verdict(True))
    assert (await soon(stream.run.wait_for_completion())).outputs == [("deploy", Verdict(True))]


async def test_sync_and_contextless_response_handlers() -> None:
    class Plain(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=int)
            await ctx.request_info(1, response_type=int)

        @response_handler
        def in_a_thread(self, text: str, answer: int) -> str:
            return text * answer

        @response_handler
        async def without_context(self, number: int, answer: int) -> int:
            return number + answer

    result = await waiting(alone(Plain), "ab")
    result = await soon(result.respond({"Plain.1.1": 2, "Plain.1.2": 3}))
    assert result.outputs == ["abab", 4]


async def test_answer_is_sent_along_the_edges() -> None:
    workflow = (
        WorkflowBuilder(name="Asking")
        .set_start_executor(RequestInfoExecutor(id="ask", response_type=str))
        .add_edge("ask", upper)
        .build()
    )
    result = await waiting(workflow, 5)
    assert [(r.data, r.response_type, r.executor_id) for r in result.pending_requests] == [(5, str, "ask")]
    assert (await soon(result.respond({"ask.1.1": "five"}))).outputs == ["FIVE"]


@executor
async def upper(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    "placed",
    [RequestInfoExecutor, RequestInfoExecutor.bind(id="RequestInfoExecutor"), RequestInfoExecutor()],
    ids=["class", "recipe", "instance"],
)
async def test_request_info_executor_takes_and_gives_anything(placed: Any) -> None:
    workflow = alone(placed)
    for answer in ("text", 5, {"a": [1]}, Plan("x")):
        result = await waiting(workflow, Plan("deploy"))
        result = await soon(result.respond({"RequestInfoExecutor.1.1": answer}))
        assert result.outputs == [answer]


async def test_request_info_executor_gives_none_on_too() -> None:
    result = await waiting(alone(RequestInfoExecutor(id="ask", response_type=str | None)), "who?")
    result = await soon(result.respond({"ask.1.1": None}))
    assert result.outputs == [None]


async def test_one_request_info_executor_asks_many_at_once() -> None:
    @executor
    async def collect(answer: int, ctx: WorkflowContext[None, int]) -> None:
        await ctx.yield_output(answer)

    workflow = (
        WorkflowBuilder(name="Many")
        .set_start_executor(Burst)
        .add_edge(Burst, RequestInfoExecutor(id="ask", response_type=int))
        .add_edge("ask", collect)
        .build()
    )
    result = await waiting(workflow, list(range(50)))
    assert [request.data for request in result.pending_requests] == list(range(50))
    result = await soon(result.respond({r.request_id: r.data * 2 for r in result.pending_requests}))
    assert result.outputs == [number * 2 for number in range(50)]


async def test_request_and_response_are_the_handlers_own() -> None:
    """Changing them in place changes nothing that others see."""

    class Careless(Executor):
        @handler
        async def ask(self, items: list, ctx: WorkflowContext) -> None:
            await ctx.request_info(items, response_type=list)
            await ctx.request_info(items, response_type=list)

        @response_handler
        async def answered(self, items: list, answer: list, ctx: WorkflowContext[None, Any]) -> None:
            items.append("changed")
            answer.append(len(items))
            await ctx.yield_output(list(answer))

    result = await waiting(alone(Careless), [1])
    result.pending_requests[0].data.append("changed outside")
    answer: list[Any] = []
    result = await soon(result.respond({r.request_id: answer for r in result.pending_requests}))
    assert result.outputs == [[2], [2]]
    assert answer == []


# -- several at once, in any order -----------------------------------------------------------------


def three_that_ask() -> Workflow:
    builder = WorkflowBuilder(name="Three").set_start_executor(spread)
    builder.add_fan_out_edges(spread, [asking("a"), asking("b"), asking("c")])
    return builder.build()


@executor
async def spread(message: str) -> str:
    return message


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
async def test_answers_in_one_go_in_any_order(order: tuple[str, ...]) -> None:
    result = await waiting(three_that_ask(), "go")
    assert [request.executor_id for request in result.pending_requests] == ["a", "b", "c"]
    result = await soon(result.respond({f"{name}.2.1": ord(name) for name in order}))
    assert result.outputs == [("a", 97), ("b", 98), ("c", 99)]


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")), ids="".join)
async def test_answers_to_one_executor_in_one_go_in_any_order(order: tuple[str, ...]) -> None:
    result = await waiting(alone(AskAll), ["x", "y", "z"])
    ids = {request.data: request.request_id for request in result.pending_requests}
    result = await soon(result.respond({ids[item]: ord(item) for item in order}))
    assert result.outputs == ["x=120", "y=121", "z=122"]


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")), ids="".join)
async def test_answers_to_one_executor_before_one_barrier_in_any_order(order: tuple[str, ...]) -> None:
    run = await started(alone(AskAll), ["x", "y", "z"])
    ids = {request.data: request.request_id for request in run.pending_requests}
    for item in order:
        await run.send_response(ids[item], ord(item))
    assert (await soon(run.wait_for_completion())).outputs == ["x=120", "y=121", "z=122"]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
async def test_answers_one_after_the_other_in_any_order(order: tuple[str, ...]) -> None:
    @executor
    async def join(answers: list) -> list:
        return answers

    builder = WorkflowBuilder(name="Joined").set_start_executor(spread)
    builder.add_fan_out_edges(spread, [RequestInfoExecutor(id=name, response_type=int) for name in "abc"])
    workflow = builder.add_fan_in_edges(["a", "b", "c"], join).build()
    result = await waiting(workflow, "go")
    left = ["a", "b", "c"]
    for name in order:
        assert result.status is RunStatus.WAITING
        assert [request.executor_id for request in result.pending_requests] == left
        left.remove(name)
        result = await soon(result.respond({f"{name}.2.1": ord(name)}))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, [[97, 98, 99]])


class Countdown(Executor):
    """Keeps a branch busy, one superstep for each number, and lets the test stop it on the way."""

    def __init__(self, id: str | None = None, pause: Callable[[int], Any] | None = None) -> None:
        super().__init__(id)
        self.pause = pause

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        if self.pause is not None:
            await self.pause(number)
        if number:
            await ctx.send_message(number - 1)
        else:
            await ctx.yield_output("counted")


class AskOnce(Executor):
    @handler
    async def ask(self, number: int, ctx: WorkflowContext) -> None:
        await ctx.request_info(number, response_type=str)

    @response_handler
    async def answered(self, number: int, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{answer} in superstep {ctx.superstep}")


@executor
async def both(number: int) -> int:
    return number


def busy(pause: Callable[[int], Any] | None = None) -> Workflow:
    builder = WorkflowBuilder(name="Busy").set_start_executor(both)
    builder.add_fan_out_edges(both, [AskOnce, Countdown.bind(pause=pause)])
    return builder.add_edge("Countdown", "Countdown").build()


async def test_answer_to_a_running_run_is_taken_at_the_next_barrier() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def pause(number: int) -> None:
        if number == 3:
            reached.set()
            await go_on.wait()

    run = await busy(pause).start(5)
    await soon(reached.wait())
    assert run.status is RunStatus.RUNNING
    assert [request.request_id for request in run.pending_requests] == ["AskOnce.2.1"]
    await run.send_response("AskOnce.2.1", "yes")
    assert run.pending_requests == []
    with pytest.raises(RequestAlreadyAnswered):
        await run.send_response("AskOnce.2.1", "yes")
    assert run.snapshot.superstep == 3, "in superstep 4, with number 3"
    go_on.set()
    result = await soon(run.wait_for_completion())
    assert result.outputs == ["yes in superstep 5", "counted"]
    assert result.status is RunStatus.COMPLETED


async def test_answer_comes_to_the_turn_of_messages() -> None:
    """An executor that is sent a message and an answer at once has one turn for both."""

    class Both(Executor):
        @handler
        async def take(self, number: int, ctx: WorkflowContext[Any, Any]) -> None:
            if number == 1:
                await ctx.request_info("ask", response_type=str)
            await ctx.yield_output((ctx.superstep, number))

        @response_handler
        async def answered(self, request: str, answer: str, ctx: WorkflowContext[Any, Any]) -> None:
            await ctx.yield_output((ctx.superstep, answer))

    @executor
    async def feed(number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number)

    @executor
    async def tick(number: int, ctx: WorkflowContext[int]) -> None:
        if number < 3:
            await ctx.send_message(number + 1)

    workflow = (
        WorkflowBuilder(name="Fed")
        .set_start_executor(tick)
        .add_edge(tick, tick)
        .add_edge(tick, feed)
        .add_edge(feed, Both)
        .build()
    )
    stream = workflow.run_stream(0)
    events = []
    async for event in stream:
        events.append(event)
        if isinstance(event, RequestInfoEvent):
            await stream.run.send_response(event.request_id, "yes")
    result = stream.run.result()
    # Both was given 1 in superstep 3 and asked; the answer and 2 came in superstep 4.
    assert result.outputs == [(3, 1), (4, 2), (4, "yes"), (5, 3)]
    invoked = [e for e in events if isinstance(e, ExecutorInvokedEvent) and e.executor_id == "Both"]
    assert [event.message_count for event in invoked] == [1, 2, 1]


@pytest.mark.parametrize("seed", range(30))
def test_any_schedule_of_answers_gives_the_same_result(seed: int) -> None:
    """Three people answer whenever they come to it, while a branch still runs."""

    @executor
    async def start(number: int) -> int:
        return number

    @executor
    async def join(answers: list) -> list:
        return answers

    class Ask(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(self.id, response_type=str)

        @response_handler
        async def answered(self, request: str, answer: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(f"{request}: {answer}")

    async def pause(number: int) -> None:
        await asyncio.sleep(0)

    async def scenario() -> list[Any]:
        builder = WorkflowBuilder(name="People").set_start_executor(start)
        people = [Ask.bind(id=name) for name in ("ada", "bob", "cy")]
        builder.add_fan_out_edges(start, [*people, Countdown.bind(pause=pause)])
        builder.add_edge("Countdown", "Countdown").add_fan_in_edges(people, join)
        run = await builder.with_output_from(join).build().start(4)

        async def person(name: str) -> None:
            async for event in run.watch_stream():
                if isinstance(event, RequestInfoEvent) and event.data == name:
                    await asyncio.sleep(0)
                    await run.send_response(event.request_id, name.upper())
                    break

        await asyncio.gather(*(person(name) for name in ("ada", "bob", "cy")))
        result = await run.wait_for_completion()
        while result.status is RunStatus.WAITING:  # waited before the last answer came
            result = await run.wait_for_completion()
        assert result.status is RunStatus.COMPLETED
        return result.outputs

    assert run_seeded(scenario, seed) == [["ada: ADA", "bob: BOB", "cy: CY"]]


# -- ids -------------------------------------------------------------------------------------------


async def test_default_ids_are_the_same_each_time() -> None:
    class Twice(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            ids = [await ctx.request_info(text, response_type=int) for _ in range(2)]
            await ctx.queue_state_update("ids", ids)

        @response_handler
        async def answered(self, text: str, answer: int, ctx: WorkflowContext[None, Any]) -> None:
            if answer:
                await ctx.request_info(text, response_type=int)
            else:
                await ctx.yield_output(await ctx.read_state("ids"))

    workflow = alone(Twice)
    for _ in range(2):
        result = await waiting(workflow, "x")
        assert [request.request_id for request in result.pending_requests] == ["Twice.1.1", "Twice.1.2"]
        result = await soon(result.respond({"Twice.1.1": 1}))
        assert [request.request_id for request in result.pending_requests] == ["Twice.1.2", "Twice.2.1"]
        result = await soon(result.respond({"Twice.1.2": 0}))
        assert result.outputs == [["Twice.1.1", "Twice.1.2"]]


def asking_with_id(*ids: str | None) -> Workflow:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            for request_id in ids:
                given = await ctx.request_info(text, response_type=int, request_id=request_id)
                assert request_id is None or given == request_id

        @response_handler
        async def answered(self, text: str, answer: int, ctx: WorkflowContext[None, Any]) -> None:
            await ctx.yield_output(answer)

    return alone(Ask)


async def test_given_id() -> None:
    result = await waiting(asking_with_id("order-17", None), "x")
    assert [request.request_id for request in result.pending_requests] == ["order-17", "Ask.1.2"]
    result = await soon(result.respond({"Ask.1.2": 2, "order-17": 1}))
    assert sorted(result.outputs) == [1, 2]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param(
            ("q", "q"),
            "executor 'Ask' asked twice with the request id 'q'; give each its own, or leave request_id out",
            id="in one turn",
        ),
        pytest.param(("",), "request id '' is empty", id="empty"),
        pytest.param(
            ("a/b",),
            "request id 'a/b' contains '/', which is kept for the paths of nested workflows",
            id="reserved",
        ),
        pytest.param((5,), "request id 5 is a int, not a str", id="no text"),
    ],
)
async def test_refused_ids(ids: tuple[Any, ...], message: str) -> None:
    error = await cause_of_failure(asking_with_id(*ids), "x", InvalidArgument)
    assert str(error) == message


async def test_default_id_that_was_given_to_another() -> None:
    error = await cause_of_failure(asking_with_id("Ask.1.2", None), "x", InvalidArgument)
    assert str(error).startswith("executor 'Ask' asked twice with the request id 'Ask.1.2'")


class AskNamed(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=int, request_id="q")

    @response_handler
    async def answered(self, text: str, answer: int, ctx: WorkflowContext[str, Any]) -> None:
        if answer:
            await ctx.send_message(f"again {answer}")
        await ctx.yield_output(answer)


async def test_two_executors_with_one_id() -> None:
    builder = WorkflowBuilder(name="Same").set_start_executor(spread)
    workflow = builder.add_fan_out_edges(spread, [AskNamed.bind(id="a"), AskNamed.bind(id="b")]).build()
    with pytest.raises(InvalidArgument) as caught:
        await soon(workflow.run("x"))
    assert str(caught.value) == (
        "executor 'b' asked with the request id 'q', which another pending request of 'a' has; "
        "give each its own, or leave request_id out"
    )


async def test_id_of_a_request_that_still_waits() -> None:
    builder = WorkflowBuilder(name="Later").set_start_executor(spread)
    builder.add_fan_out_edges(spread, [AskNamed.bind(id="a"), upper]).add_edge(upper, AskNamed.bind(id="b"))
    error = await cause_of_failure(builder.build(), "x", InvalidArgument)
    assert "asked twice with the request id 'q'" in str(error) or "which another pending request" in str(
        error
    )


async def test_id_of_an_answered_request_may_be_used_again() -> None:
    workflow = WorkflowBuilder(name="Again").set_start_executor(AskNamed).add_edge(AskNamed, AskNamed).build()
    result = await waiting(workflow, "x")
    result = await soon(result.respond({"q": 1}))
    assert (result.status, [r.data for r in result.pending_requests]) == (RunStatus.WAITING, ["again 1"])
    result = await soon(result.respond({"q": 0}))
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, [1, 0])


# -- answers are brought to their type -------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"approved": True}, Verdict(True)),
        ({"approved": False, "day": "2026-03-01"}, Verdict(False, datetime.date(2026, 3, 1))),
        (Verdict(True), Verdict(True)),
    ],
    ids=["dict", "dict with a date", "as it is"],
)
async def test_answer_is_converted(given: object, expected: Verdict) -> None:
    result = await waiting(alone(Approve), Plan("deploy"))
    result = await soon(result.respond({"Approve.1.1": given}))
    assert result.outputs == [("deploy", expected)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("yes", "response: a str, not Verdict (a dict with 'approved', 'day')"),
        ({}, "response: Verdict needs 'approved', which is missing"),
        ({"approved": "yes"}, "response.approved: a str, not bool: 'yes'"),
        ({"approved": True, "by": "me"}, "response: Verdict has no 'by'; it has 'approved', 'day'"),
        (None, "response: a NoneType, not Verdict (a dict with 'approved', 'day')"),
    ],
    ids=["text", "empty", "wrong field", "unknown field", "None"],
)
async def test_answer_of_a_wrong_type_is_refused_with_the_reason(given: object, reason: str) -> None:
    result = await waiting(alone(Approve), Plan("deploy"))
    with pytest.raises(InvalidResponse) as caught:
        await result.respond({"Approve.1.1": given})
    assert str(caught.value) == (
        f"the response to request 'Approve.1.1' of executor 'Approve' cannot be taken: {reason}"
    )
    result = await soon(result.respond({"Approve.1.1": {"approved": True}}))
    assert result.status is RunStatus.COMPLETED, "a refused answer does not use up the request"


async def test_answer_that_cannot_be_kept_is_refused() -> None:
    result = await waiting(alone(RequestInfoExecutor(id="ask")), "x")
    with pytest.raises(NotCheckpointable, match=r"^response\['lock'\]: lock is not checkpointable"):
        await result.respond({"ask.1.1": {"lock": threading.Lock()}})
    assert (await soon(result.respond({"ask.1.1": 1}))).outputs == [1]


# -- answers that are refused ----------------------------------------------------------------------


async def test_unknown_request() -> None:
    result = await waiting(alone(Approve), Plan("deploy"))
    with pytest.raises(UnknownRequest) as caught:
        await result.respond({"Approve.9.9": True})
    assert str(caught.value) == "there is no request 'Approve.9.9' in this run; pending are: 'Approve.1.1'"


async def test_unknown_request_of_a_run_that_asks_nothing() -> None:
    gate = asyncio.Event()

    @executor
    async def wait(text: str) -> str:
        await gate.wait()
        return text

    run = await alone(wait).start("x")
    await asyncio.sleep(0)
    with pytest.raises(UnknownRequest, match=r"^there is no request 'q' in this run; pending are: none$"):
        await run.send_response("q", 1)
    gate.set()
    assert (await soon(run.wait_for_completion())).outputs == ["x"]


async def test_second_answer_before_the_barrier() -> None:
    run = await started(alone(Approve), Plan("deploy"))
    await run.send_response("Approve.1.1", Verdict(True))
    with pytest.raises(RequestAlreadyAnswered) as caught:
        await run.send_response("Approve.1.1", Verdict(False))
    assert (
        str(caught.value)
        == "request 'Approve.1.1' was answered before, or expired; only what comes first counts"
    )
    assert (await soon(run.wait_for_completion())).outputs == [("deploy", Verdict(True))]


async def test_second_answer_after_the_barrier() -> None:
    first = await waiting(alone(AskAll), ["a", "b"])
    second = await soon(first.respond({"AskAll.1.1": 1}))
    assert second.status is RunStatus.WAITING
    for result in (first, second):
        with pytest.raises(RequestAlreadyAnswered, match=r"^request 'AskAll\.1\.1' was answered before"):
            await result.respond({"AskAll.1.1": 2})
    assert (await soon(second.respond({"AskAll.1.2": 2}))).outputs == ["a=1", "b=2"]


async def test_answer_to_a_run_that_is_over() -> None:
    first = await waiting(alone(Approve), Plan("deploy"))
    last = await soon(first.respond({"Approve.1.1": {"approved": True}}))
    for result in (first, last):
        with pytest.raises(RunEnded) as caught:
            await result.respond({"Approve.1.1": {"approved": True}})
        assert str(caught.value) == f"run {last.run_id} is completed; it takes no responses: start a new run"


async def test_result_without_a_run() -> None:
    result = RunResult(run_id="r1", status=RunStatus.WAITING)  # type: ignore[arg-type]
    with pytest.raises(RunEnded, match=r"^this result of run r1 belongs to no run that can go on$"):
        await result.respond({})


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"AskAll.1.2": "two"}, InvalidResponse),
        ({"AskAll.7.7": 2}, UnknownRequest),
    ],
    ids=["wrong type", "unknown"],
)
@pytest.mark.parametrize("bad_first", [True, False], ids=["bad first", "bad last"])
async def test_all_answers_or_none(bad: dict[str, Any], error: type[Exception], bad_first: bool) -> None:
    result = await waiting(alone(AskAll), ["a", "b"])
    good = {"AskAll.1.1": 1}
    with pytest.raises(error):
        await result.respond({**bad, **good} if bad_first else {**good, **bad})
    result = await soon(result.respond({"AskAll.1.1": 10, "AskAll.1.2": 20}))
    assert result.outputs == ["a=10", "b=20"]


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ({}, InvalidArgument, "no response was given to run "),
        ([True], WrongType, "responses are a dict of request ids and answers, not a list"),
    ],
)
async def test_what_are_no_answers(answers: Any, error: type[Exception], message: str) -> None:
    result = await waiting(alone(Approve), Plan("deploy"))
    with pytest.raises(error, match=f"^{message}"):
        await soon(result.respond(answers))
    assert len(result.pending_requests) == 1


# -- requests that are refused ---------------------------------------------------------------------


async def test_request_without_a_response_handler() -> None:
    class Mute(Executor):
        @handler
        async def ask(self, plan: Plan, ctx: WorkflowContext) -> None:
            await ctx.request_info(plan, response_type=bool)

    error = await cause_of_failure(alone(Mute), Plan("x"), GraphError)
    assert str(error) == (
        "executor 'Mute' asks with a Plan for a bool, but has no handler for the response; add: "
        "@response_handler async def answered(self, request: Plan, response: bool, ctx: WorkflowContext)"
    )


@pytest.mark.parametrize(
    ("data", "response_type"),
    [(5, Verdict), (Plan("x"), int), (Plan("x"), list[Verdict])],
    ids=["other request", "other response", "list of responses"],
)
async def test_response_handler_for_something_else(data: object, response_type: Any) -> None:
    class Wrong(Approve):
        @handler
        async def ask_other(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(data, response_type=response_type)

    error = await cause_of_failure(alone(Wrong), "go", GraphError)
    assert "but has no handler for the response" in str(error)


async def test_function_cannot_ask() -> None:
    @executor
    async def ask(text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, response_type=bool)

    error = await cause_of_failure(alone(ask), "go", GraphError)
    assert str(error).startswith("executor 'ask' asks with a str for a bool, but has no handler")


async def test_request_that_cannot_be_kept() -> None:
    class Ask(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info({"lock": threading.Lock()}, response_type=bool)

        @response_handler
        async def answered(self, request: dict, answer: bool, ctx: WorkflowContext) -> None: ...

    error = await cause_of_failure(alone(Ask), "go", NotCheckpointable)
    assert str(error).startswith("request['lock']: lock is not checkpointable")


async def test_requests_of_a_failed_attempt_are_not_asked() -> None:
    class Flaky(Executor):
        @handler(retry=RetryPolicy(attempts=3, backoff=0))
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(f"attempt {ctx.attempt}", response_type=bool)
            if ctx.attempt < 3:
                raise ValueError("not yet")

        @response_handler
        async def answered(self, request: str, answer: bool, ctx: WorkflowContext) -> None: ...

    result = await waiting(alone(Flaky), "go")
    assert [(r.request_id, r.data) for r in result.pending_requests] == [("Flaky.1.1", "attempt 3")]


# -- which response handler ------------------------------------------------------------------------


class Animal:
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class Dog(Animal):
    name: str = "Rex"


@dataclass(eq=False)
class Puppy(Dog):
    pass


class AskAnything(Executor):
    """Asks with what the test says; subclasses have the response handlers."""

    def __init__(self, id: str | None = None, data: Any = None, response_type: Any = bool) -> None:
        super().__init__(id)
        self.data, self.response_type = data, response_type

    @handler
    async def ask(self, message: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(self.data, response_type=self.response_type)


async def handled_by(cls: type[AskAnything], data: object, response_type: Any, answer: object) -> Any:
    workflow = alone(cls.bind(id="ask", data=data, response_type=response_type))
    result = await soon((await waiting(workflow, "go")).respond({"ask.1.1": answer}))
    (output,) = result.outputs
    return output


class ByRequest(AskAnything):
    @response_handler
    async def anything(self, request: object, answer: bool) -> str:
        return "object"

    @response_handler
    async def dog(self, request: Dog, answer: bool) -> str:
        return "Dog"

    @response_handler
    async def puppy(self, request: Puppy, answer: bool) -> str:
        return "Puppy"

    @response_handler
    async def number(self, request: int | float, answer: bool) -> str:
        return "int | float"


@pytest.mark.parametrize(
    ("data", "expected"),
    [(Dog(), "Dog"), (Puppy(), "Puppy"), ("text", "object"), (5, "int | float"), (True, "int | float")],
    ids=["class", "subclass", "other", "union", "subclass of a union member"],
)
async def test_most_specific_request_type(data: object, expected: str) -> None:
    assert await handled_by(ByRequest, data, bool, True) == expected


class ByResponse(AskAnything):
    @response_handler
    async def truth(self, request: str, answer: bool) -> str:
        return "bool"

    @response_handler
    async def whole(self, request: str, answer: int) -> str:
        return "int"

    @response_handler
    async def text(self, request: str, answer: str) -> str:
        return "str"

    @response_handler
    async def many(self, request: str, answer: list[int]) -> str:
        return "list[int]"

    @response_handler
    async def anything(self, request: str, answer: object) -> str:
        return "object"


class ByResponseReversed(AskAnything):
    @response_handler
    async def anything(self, request: str, answer: object) -> str:
        return "object"

    @response_handler
    async def whole(self, request: str, answer: int) -> str:
        return "int"

    @response_handler
    async def truth(self, request: str, answer: bool) -> str:
        return "bool"


@pytest.mark.parametrize(
    ("cls", "response_type", "answer", "expected"),
    [
        (ByResponse, bool, True, "bool"),
        (ByResponse, int, 5, "int"),
        (ByResponse, str, "a", "str"),
        (ByResponse, list[int], [1], "list[int]"),
        (ByResponse, float, 1.5, "object"),
        (ByResponseReversed, bool, True, "bool"),
        (ByResponseReversed, int, 5, "int"),
    ],
)
async def test_response_handler_by_the_type_of_the_response(
    cls: type[AskAnything], response_type: Any, answer: object, expected: str
) -> None:
    assert await handled_by(cls, "question", response_type, answer) == expected


def test_two_response_handlers_for_one_pair() -> None:
    class Double(Approve):
        @response_handler
        async def again(self, plan: Plan, verdict: Verdict, ctx: WorkflowContext) -> None: ...

    with pytest.raises(GraphError) as caught:
        alone(Double)
    assert str(caught.value) == (
        "executor 'Double' has two handlers for Verdict in response to Plan: 'answered' and 'again'; "
        "remove one of them or narrow its type"
    )


def test_response_handlers_for_classes_of_one_name_are_two() -> None:
    def made(number: int) -> type:
        @dataclass
        class Report:
            text: str

        return Report

    first, second = made(1), made(2)

    class TwoReports(Executor):
        @handler
        async def ask(self, message: str, ctx: WorkflowContext) -> None: ...

        @response_handler(request=first, input=bool)
        async def one(self, request: Any, answer: Any) -> None: ...

        @response_handler(request=second, input=bool)
        async def other(self, request: Any, answer: Any) -> None: ...

    assert len(alone(TwoReports).graph.executors) == 1


# -- limits, leaving -------------------------------------------------------------------------------


class Loop(Executor):
    """Takes ``message`` supersteps, then asks how many more."""

    @handler
    async def step(self, left: int, ctx: WorkflowContext[int, Any]) -> None:
        if left > 1:
            await ctx.send_message(left - 1)
        else:
            await ctx.request_info("more?", response_type=int)

    @response_handler
    async def more(self, request: str, more: int, ctx: WorkflowContext[int, Any]) -> None:
        if more:
            await ctx.send_message(more)
        else:
            await ctx.yield_output(ctx.superstep)


def looping(max_iterations: int) -> Workflow:
    builder = WorkflowBuilder(name="Loop", max_iterations=max_iterations)
    return builder.set_start_executor(Loop).add_edge(Loop, Loop).build()


async def test_an_answer_begins_the_count_of_supersteps_anew() -> None:
    result = await waiting(looping(3), 3)
    result = await soon(result.respond({"Loop.3.1": 2}))
    assert [request.request_id for request in result.pending_requests] == ["Loop.6.1"]
    result = await soon(result.respond({"Loop.6.1": 0}))
    assert result.outputs == [7], "the number of the superstep goes on"


async def test_limit_after_an_answer() -> None:
    result = await waiting(looping(3), 3)
    with pytest.raises(SuperstepLimit, match="the run took 3 supersteps since its last input"):
        await soon(result.respond({"Loop.3.1": 3}))


async def test_failure_after_an_answer() -> None:
    class Fails(Approve):
        @response_handler
        async def answered(self, plan: Plan, verdict: Verdict, ctx: WorkflowContext[None, Any]) -> None:
            raise ValueError("no")

    result = await waiting(alone(Fails), Plan("deploy"))
    with pytest.raises(Exception, match="executor 'Fails' failed in superstep 2") as caught:
        await soon(result.respond({"Fails.1.1": {"approved": True}}))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(RunEnded, match="is failed; it takes no responses: start a new run"):
        await result.respond({"Fails.1.1": {"approved": True}})


async def test_fan_in_does_not_warn_while_the_run_waits() -> None:
    @executor
    async def join(parts: list) -> list:
        return parts

    builder = WorkflowBuilder(name="Half").set_start_executor(spread)
    builder.add_fan_out_edges(spread, [upper, RequestInfoExecutor(id="ask", response_type=str)])
    result = await waiting(builder.add_fan_in_edges([upper, "ask"], join).build(), "x")
    assert result.warnings == []
    result = await soon(result.respond({"ask.2.1": "y"}))
    assert (result.outputs, result.warnings) == ([["X", "y"]], [])


async def test_snapshot_of_requests_and_answers() -> None:
    run = await started(alone(AskAll), ["a", "b"])
    assert list(run.snapshot.requests) == ["AskAll.1.1", "AskAll.1.2"]
    assert dict(run.snapshot.answered) == {}
    await run.send_response("AskAll.1.2", 2)
    await soon(run.wait_for_completion())
    assert list(run.snapshot.requests) == ["AskAll.1.1"]
    assert list(run.snapshot.answered) == ["AskAll.1.2"]
