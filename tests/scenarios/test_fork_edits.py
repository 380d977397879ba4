"""Forks that begin with other messages, requests and answers."""

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    CheckpointInfo,
    CheckpointStorage,
    Executor,
    ForkEdits,
    HoldfastError,
    InvalidArgument,
    InvalidResponse,
    NotCheckpointable,
    RequestAlreadyAnswered,
    Run,
    RunStatus,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from holdfast.errors import WrongType
from tests.support.durable import Place

BIG = "kelp" * 5_000


@dataclass
class Ticket:
    text: str
    cost: int = 0


@executor
async def split(texts: list[str], ctx: WorkflowContext[Ticket, str]) -> None:
    await ctx.yield_output(f"split {len(texts)}")
    for text in texts:
        await ctx.send_message(Ticket(text))


class Ask(Executor):
    """Asks about each ticket."""

    @handler
    async def ask(self, ticket: Ticket, ctx: WorkflowContext) -> None:
        await ctx.request_info(ticket, response_type=int, request_id=f"about {ticket.text[:8]}")

    @response_handler
    async def answered(self, ticket: Ticket, cost: int, ctx: WorkflowContext[Ticket]) -> None:
        await ctx.send_message(Ticket(ticket.text, cost))


@executor
async def close(ticket: Ticket, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(f"{ticket.text[:8]} for {ticket.cost}")


def tickets(storage: CheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(name="Tickets").set_start_executor(split).add_edge(split, Ask)
    return builder.add_edge(Ask, close).with_checkpointing(storage).build()


async def checkpoints_of(storage: CheckpointStorage, *texts: str) -> dict[str, CheckpointInfo]:
    """The checkpoints of a run: at its input, with messages to ``Ask``, with its requests, and with answers."""
    run = await tickets(storage).start(list(texts), run_id="first")
    result = await run.wait_for_completion()
    await run.respond({request.request_id: cost for cost, request in enumerate(result.pending_requests, 1)})
    await run.wait_for_completion()
    found = await storage.list_checkpoints(run_id="first")
    asked = next(one for one in found if one.request_count)
    return {"input": found[0], "sent": found[1], "asked": asked, "over": found[-1]}


async def forked(place: Place, checkpoint: CheckpointInfo, edits: Any, by: str | None = None) -> Run:
    fork = await tickets(place.storage).fork(checkpoint, edits, run_id="fork", by=by)
    await fork.wait_for_completion()
    return fork


async def answer_all(run: Run, cost: int = 9) -> list[Any]:
    await run.respond({request.request_id: cost for request in run.pending_requests})
    return (await run.wait_for_completion()).outputs


async def causes(storage: CheckpointStorage) -> list[str]:
    return [str(one.cause) for one in await storage.list_checkpoints(run_id="fork")]


async def test_messages_are_replaced_dropped_and_added(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one", "two", BIG)
    edits = ForkEdits(
        messages={0: Ticket("other" + BIG), 1: ForkEdits.DROP},
        send=[("Ask", Ticket("new")), ("close", Ticket("at once", 3))],
    )
    fork = await forked(place, at["sent"], edits, by="kim")
    assert [request.data.text[:8] for request in fork.pending_requests] == ["otherkel", "kelpkelp", "new"]
    await place.reopened()
    resumed = await tickets(place.storage).resume(run_id="fork")
    assert await answer_all(resumed) == [
        *("split 3", "at once for 3", "otherkel for 9", "kelpkelp for 9", "new for 9")
    ]
    made = await place.storage.list_checkpoints(run_id="fork")
    assert [str(one.cause) for one in made][:4] == ["fork", "edit", "message", "message"]
    assert [(one.by, one.message_count) for one in made[:4]] == [
        ("kim", 3),
        ("kim", 2),
        ("kim", 3),
        ("kim", 4),
    ]
    edited = await place.storage.load(made[1])
    assert [message.data.text[:8] for message in edited.messages] == ["otherkel", "kelpkelp"]
    assert "edit, by kim" in await place.storage.draw_tree("fork")
    assert "messages" in str(await place.storage.diff(made[0], made[1]))
    assert (await place.storage.verify()).ok


async def test_requests_are_edited_dropped_and_answered(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one", "two", "three", BIG)
    edits = ForkEdits(
        requests={"about one": Ticket("uno" + BIG), "about kelpkelp": ForkEdits.DROP},
        responses={"about two": 7, "about one": 5},
    )
    fork = await forked(place, at["asked"], edits, by="kim")
    assert [request.request_id for request in fork.pending_requests] == ["about three"]
    await place.reopened()
    resumed = await tickets(place.storage).resume(run_id="fork")
    assert await answer_all(resumed) == ["split 4", "unokelpk for 5", "two for 7", "three for 9"]
    made = await place.storage.list_checkpoints(run_id="fork")
    assert [(str(one.cause), one.by, str(one.status)) for one in made][:3] == [
        ("fork", "kim", "waiting"),
        ("edit", "kim", "waiting"),
        ("response", "kim", "running"),
    ]
    edited = await place.storage.load(made[1])
    assert [request.data.text[:8] for request in edited.pending_requests] == ["unokelpk", "two", "three"]
    diff = await place.storage.diff(made[0], made[1])
    assert len(diff.pending_requests) == 2
    assert (await place.storage.verify()).ok


async def test_an_edited_request_waits_in_its_place_and_is_listed(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one", "two")
    await forked(place, at["asked"], ForkEdits(requests={"about one": Ticket("uno")}))
    listed = await place.storage.list_requests(run_id="fork")
    assert [(one.request_id, one.data["text"]) for one in listed] == [
        ("about one", "uno"),
        ("about two", "two"),
    ]
    await place.storage.respond("fork", {"about two": 2, "about one": 1})
    resumed = await tickets(place.storage).resume(run_id="fork")
    assert (await resumed.wait_for_completion()).outputs[1:] == ["uno for 1", "two for 2"]


async def test_a_fork_from_which_everything_was_dropped_is_over(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one", "two")
    for name, edits in (
        ("sent", ForkEdits(messages={0: ForkEdits.DROP, 1: ForkEdits.DROP})),
        ("asked", ForkEdits(requests={"about one": ForkEdits.DROP, "about two": ForkEdits.DROP})),
    ):
        fork = await tickets(place.storage).fork(at[name], edits)
        result = await fork.wait_for_completion()
        assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["split 2"])
        *_, last = await place.storage.list_checkpoints(run_id=fork.run_id)
        assert (last.cause, last.status) == ("edit", RunStatus.COMPLETED)


async def test_a_message_goes_to_another_executor_and_outputs_stay(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one")
    edits = ForkEdits(messages={0: ForkEdits.DROP}, send=[("close", Ticket("one", 2))])
    fork = await forked(place, at["sent"], edits)
    assert (await fork.wait_for_completion()).outputs == ["split 1", "one for 2"]


async def test_a_message_to_a_run_that_is_over_is_further_input(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one")
    fork = await forked(place, at["over"], ForkEdits(send=[("close", Ticket("more", 2))]))
    assert (await fork.wait_for_completion()).outputs == ["more for 2"]
    assert await causes(place.storage) == ["fork", "message", "superstep"]


async def test_an_answer_on_its_way_is_replaced(place: Place) -> None:
    at = await checkpoints_of(place.storage, "one")
    found = await place.storage.list_checkpoints(run_id="first")
    answered = next(one for one in found if one.cause == "response")
    fork = await forked(place, answered, ForkEdits(messages={0: 70}))
    assert (await fork.wait_for_completion()).outputs[-1] == "one for 70"
    with pytest.raises(
        InvalidResponse, match=r"response to request 'about one' of executor 'Ask' cannot be taken"
    ):
        await tickets(place.storage).fork(answered, ForkEdits(messages={0: "much"}))
    with pytest.raises(RequestAlreadyAnswered, match="about one"):
        await tickets(place.storage).fork(at["over"], ForkEdits(responses={"about one": 1}))


WRONG: list[tuple[str, Any, type[HoldfastError], str]] = [
    (
        "sent",
        ForkEdits(messages={0: 5}),
        WrongType,
        r"message 0 to executor 'Ask' must be Ticket, not 5 \(int\)",
    ),
    ("sent", ForkEdits(messages={2: Ticket("x")}), InvalidArgument, "no message 2 .* has 0 to 1"),
    ("sent", ForkEdits(messages={-1: Ticket("x")}), InvalidArgument, "no message -1"),
    ("asked", ForkEdits(messages={0: Ticket("x")}), InvalidArgument, "no message 0 .* has none"),
    ("sent", ForkEdits(messages={0: Ticket(object())}), NotCheckpointable, "message 0 to executor 'Ask'"),  # type: ignore[arg-type]
    ("sent", ForkEdits(send=[("nobody", 1)]), InvalidArgument, "no executor 'nobody'"),
    ("sent", ForkEdits(send=[("close", "x")]), WrongType, "'close', which takes Ticket"),
    ("sent", ForkEdits(send=["close"]), WrongType, r"send=...\) takes a list"),  # type: ignore[list-item]
    ("sent", ForkEdits(send="close"), WrongType, r"send=...\) takes a list"),  # type: ignore[arg-type]
    ("sent", ForkEdits(messages=[1]), WrongType, r"messages=...\) takes a dict"),  # type: ignore[arg-type]
    ("sent", [1], WrongType, r"ForkEdits\(...\), not a list"),
    (
        "asked",
        ForkEdits(requests={"about one": "x"}),
        WrongType,
        "request 'about one' of executor 'Ask' must be Ticket",
    ),
    (
        "asked",
        ForkEdits(requests={"nothing": Ticket("x")}),
        UnknownRequest,
        "'nothing'.*pending are: 'about one'",
    ),
    ("asked", ForkEdits(responses={"about one": "dear"}), InvalidResponse, "'about one' of executor 'Ask'"),
    ("asked", ForkEdits(responses={"nothing": 1}), UnknownRequest, "nothing"),
    (
        "asked",
        ForkEdits(requests={"about one": ForkEdits.DROP}, responses={"about one": 1}),
        InvalidArgument,
        "both dropped and answered",
    ),
    ("asked", ForkEdits(state={5: 1}), InvalidArgument, "names no state"),
    ("asked", ForkEdits(state={"\ud800": 1}), InvalidArgument, "half a character"),
    ("asked", ForkEdits(state={("\ud800", "key"): 1}), InvalidArgument, "half a character"),
]


@pytest.mark.parametrize(("at", "edits", "error", "text"), WRONG, ids=[str(n) for n in range(len(WRONG))])
async def test_nothing_is_written_if_one_edit_is_wrong(
    place: Place, at: str, edits: Any, error: type[HoldfastError], text: str
) -> None:
    checkpoints = await checkpoints_of(place.storage, "one", "two")
    if isinstance(edits, ForkEdits) and not edits.state:
        edits = ForkEdits({"fine": 1}, edits.messages, edits.send, edits.requests, edits.responses)
    with pytest.raises(error, match=text):
        await tickets(place.storage).fork(checkpoints[at], edits, run_id="fork")
    assert [run.run_id for run in await place.storage.list_runs()] == ["first"]


async def test_a_fork_without_an_effective_edit_is_the_plain_fork(place: Place) -> None:
    """At every checkpoint: with edits that are empty, and with all values as they are."""
    await checkpoints_of(place.storage, "one", BIG, "three")
    for checkpoint in await place.storage.list_checkpoints(run_id="first"):
        loaded = await place.storage.load(checkpoint)
        same = ForkEdits(
            messages={number: message.data for number, message in enumerate(loaded.messages)},
            requests={request.request_id: request.data for request in loaded.pending_requests},
        )
        seen: list[Any] = []
        several: list[Any] = [None, {}, ForkEdits(), same]
        for edits in several:
            fork = await tickets(place.storage).fork(checkpoint, edits)
            result = await fork.wait_for_completion()
            waits = [(request.request_id, request.data) for request in result.pending_requests]
            made = [
                (str(one.cause), str(one.phase), one.superstep, str(one.status)) for one in fork.checkpoints
            ]
            seen.append((waits, await answer_all(fork) if waits else result.outputs))
            steps = [one for one in made if one[0] != "edit"]
            assert (edits is same and bool(same.messages or same.requests)) == (len(steps) < len(made))
            seen[-1] = (*seen[-1], steps)
        assert all(one == seen[0] for one in seen)


@executor
def shout(ticket: Ticket) -> str:
    return ticket.text.upper()


async def test_messages_in_nested_workflows(place: Place) -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(split).add_edge(split, shout).build()
    nested = WorkflowExecutor(inner, id="nested")
    workflow = (
        WorkflowBuilder(name="Outer").set_start_executor(nested).with_checkpointing(place.storage).build()
    )
    run = await workflow.start(["one", "two"])
    await run.wait_for_completion()
    inside = next(one for one in run.checkpoints if one.message_count == 2)
    edits = ForkEdits(messages={0: Ticket("uno")}, send=[("nested", ["three"])])
    fork = await workflow.fork(inside, edits)
    assert sorted((await fork.wait_for_completion()).outputs) == ["THREE", "TWO", "UNO", "split 1", "split 2"]
    with pytest.raises(WrongType, match=r"message 0 to executor 'nested#1/shout' must be Ticket"):
        await workflow.fork(inside, ForkEdits(messages={0: "uno"}))
