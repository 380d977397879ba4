"""Nested workflows with ``lifetime="run"``: one start for all messages, which lasts as long as what is around it."""

from typing import Any

import pytest

from holdfast import (
    Executor,
    GraphChanged,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RequestInfoExecutor,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from holdfast.testing import assert_resumable
from tests.support.parts import describe_difference
from tests.support.runs import outputs_of, soon


@executor
async def words(text: str, ctx: WorkflowContext[str]) -> None:
    """Sends one word now, and the rest in a later superstep."""
    word, _, rest = text.partition(" ")
    await ctx.send_message(word, target_id="memory")
    if rest:
        await ctx.send_message(rest, target_id="words")


class Count(Executor):
    checkpointed = ("seen",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.seen = 0

    @handler
    async def count(self, word: str, ctx: WorkflowContext[str]) -> str:
        self.seen += 1
        await ctx.append_state("all", word, scope_name="Words")
        return f"{self.seen} {word}"


@executor
async def tell(text: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.queue_state_update("told", await ctx.read_state("told", 0) + 1)
    known = "+".join(await ctx.require_state("all", scope_name="Words"))
    await ctx.yield_output(f"{ctx.executor_id}: {text} of {known}, told {await ctx.read_state('told')}")


def memory() -> Workflow:
    return WorkflowBuilder(name="Memory").set_start_executor(Count).add_edge(Count, tell).build()


def around(inner: Workflow, lifetime: Any = "run", name: str = "Outer", **options: Any) -> Workflow:
    nested = WorkflowExecutor(inner, id="memory", lifetime=lifetime)
    builder = WorkflowBuilder(name=name).set_start_executor(words)
    builder.add_edge(words, words).add_edge(words, nested)
    if "storage" in options:
        builder.with_checkpointing(options["storage"]).with_durability(options.get("durability", "sync"))
    return builder.build()


LASTING = [
    "memory#1/tell: 1 kelp of kelp, told 1",
    "memory#1/tell: 2 crab of kelp+crab, told 2",
    "memory#1/tell: 3 eel of kelp+crab+eel, told 3",
]


async def test_state_and_fields_last() -> None:
    assert await outputs_of(around(memory()), "kelp crab eel") == LASTING


async def test_each_message_starts_anew_as_before() -> None:
    outputs = await outputs_of(around(memory(), "message"), "kelp crab")
    assert outputs == ["memory#1/tell: 1 kelp of kelp, told 1", "memory#2/tell: 1 crab of crab, told 1"]
    nested = WorkflowExecutor(memory())
    assert (nested.lifetime, WorkflowExecutor(memory(), lifetime="run").lifetime) == ("message", "run")


async def test_each_run_begins_with_nothing() -> None:
    workflow = around(memory())
    for _ in range(2):
        assert await outputs_of(workflow, "kelp crab eel") == LASTING


async def test_messages_of_one_superstep_are_one_turn() -> None:
    @executor
    async def burst(text: str, ctx: WorkflowContext[str]) -> None:
        for word in text.split():
            await ctx.send_message(word)

    nested = WorkflowExecutor(memory(), id="memory", lifetime="run")
    workflow = WorkflowBuilder(name="Burst").set_start_executor(burst).add_edge(burst, nested).build()
    assert await outputs_of(workflow, "kelp crab") == [
        "memory#1/tell: 1 kelp of kelp+crab, told 1",
        "memory#1/tell: 2 crab of kelp+crab, told 2",
    ]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_resume_from_every_checkpoint(durability: Any) -> None:
    storage = InMemoryCheckpointStorage()
    workflow = around(memory(), storage=storage, durability=durability)
    run = await soon(workflow.start("kelp crab eel"))
    await soon(run.wait_for_completion())
    for checkpoint in run.checkpoints:
        again = around(memory(), storage=storage)
        assert (await soon(again.run_from_checkpoint(checkpoint))).outputs == LASTING
        fork = await soon(again.fork(checkpoint))
        assert (await soon(fork.wait_for_completion())).outputs == LASTING
    await soon(run.restore_checkpoint(run.checkpoints[-2]))
    assert (await soon(run.wait_for_completion())).outputs == LASTING


async def test_same_end_wherever_it_is_stopped() -> None:
    assert await soon(assert_resumable(lambda: around(memory()), "kelp crab eel")) > 10


async def test_question_in_between() -> None:
    storage = InMemoryCheckpointStorage()
    ask = RequestInfoExecutor(id="ask", response_type=bool)
    inner = WorkflowBuilder(name="Asking").set_start_executor(Count).add_edge(Count, ask).build()
    workflow = around(inner, storage=storage)
    result = await soon(workflow.run("kelp crab", "r"))
    assert [(request.request_id, request.data) for request in result.pending_requests] == [
        ("memory#1/ask.3.1", "1 kelp"),
        ("memory#1/ask.4.1", "2 crab"),
    ]
    again = around(inner, storage=storage)
    responses = {request.request_id: True for request in result.pending_requests}
    run = await soon(again.resume(run_id="r", responses=responses))
    finished = await soon(run.wait_for_completion())
    assert (finished.status, finished.outputs) == (RunStatus.COMPLETED, [True, True])


class Middle(Executor):
    """Sends each letter of a word, one superstep after the other."""

    @handler
    async def spell(self, word: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(word[0], target_id="memory")
        if word[1:]:
            await ctx.send_message(word[1:], target_id="Middle")


def in_the_middle(lifetime: Any) -> Workflow:
    """A lasting workflow in one that lasts as long as ``lifetime`` says."""
    middle = (
        WorkflowBuilder(name="Middle")
        .set_start_executor(Middle)
        .add_edge(Middle, Middle)
        .add_edge(Middle, WorkflowExecutor(memory(), id="memory", lifetime="run"))
        .build()
    )
    nested = WorkflowExecutor(middle, id="middle", lifetime=lifetime)
    builder = WorkflowBuilder(name="Outer").set_start_executor(Split)
    return builder.add_edge(Split, Split).add_edge(Split, nested).build()


class Split(Executor):
    @handler
    async def split(self, text: str, ctx: WorkflowContext[str]) -> None:
        word, _, rest = text.partition(" ")
        await ctx.send_message(word, target_id="middle")
        if rest:
            await ctx.send_message(rest, target_id="Split")


async def test_it_lasts_no_longer_than_the_workflow_around_it() -> None:
    run = await in_the_middle("message").start("ab cd")
    outputs = (await soon(run.wait_for_completion())).outputs
    assert [output.partition(" of ")[0] for output in outputs] == [
        "middle#1/memory#1/tell: 1 a",
        "middle#1/memory#1/tell: 2 b",
        "middle#2/memory#1/tell: 1 c",
        "middle#2/memory#1/tell: 2 d",
    ]
    assert [scope for scope in run.snapshot.state if scope.path] == [], "all of it is over"
    assert [host for host in run.snapshot.instances if "/" in host] == []
    lasting = await in_the_middle("run").start("ab cd")
    outputs = (await soon(lasting.wait_for_completion())).outputs
    assert outputs[-1] == "middle#1/memory#1/tell: 4 d of a+c+b+d, told 4"
    assert {scope.path for scope in lasting.snapshot.state} == {"middle#1/memory#1/"}


async def test_idle_one_ends_with_the_workflow_around_it() -> None:
    """The inner workflow is idle for several supersteps when the one around it comes to its end."""

    @executor
    async def once(word: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(word, target_id="memory")
        await ctx.send_message(word * 6, target_id="down")

    @executor(id="down")
    async def down(word: str, ctx: WorkflowContext[str]) -> str | None:
        return word[1:] or None

    middle = (
        WorkflowBuilder(name="Middle")
        .set_start_executor(once)
        .add_edge(once, WorkflowExecutor(memory(), id="memory", lifetime="run"))
        .add_edge(once, down)
        .add_edge(down, down)
        .build()
    )
    workflow = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(middle, id="middle")).build()
    run = await workflow.start("a")
    assert len((await soon(run.wait_for_completion())).outputs) == 1
    assert [scope for scope in run.snapshot.state if scope.path] == []
    assert dict(run.snapshot.instances) == {"middle": 1}


async def test_short_lived_ones_inside_a_lasting_one_are_dropped() -> None:
    middle = WorkflowBuilder(name="Middle").set_start_executor(WorkflowExecutor(memory(), id="short")).build()
    run = await around(middle).start("kelp crab")
    outputs = (await soon(run.wait_for_completion())).outputs
    assert [output.partition(":")[0] for output in outputs] == [
        "memory#1/short#1/tell",
        "memory#1/short#2/tell",
    ]
    assert [scope for scope in run.snapshot.state if scope.path] == []


async def test_further_input_finds_the_state() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = around(memory(), storage=storage)
    await soon(workflow.run("kelp crab", "r"))
    again = around(memory(), storage=storage)
    result = await soon(again.run("eel", "r", if_exists="continue"))
    assert result.outputs == LASTING[2:]


async def test_lifetime_is_part_of_the_graph() -> None:
    storage = InMemoryCheckpointStorage()
    before, after = around(memory(), "message", storage=storage), around(memory(), "run", storage=storage)
    assert before.fingerprint != after.fingerprint
    assert describe_difference(before.graph.description, after.graph.description) == [
        "executor 'memory' nests its workflow with lifetime='run' now (was 'message')"
    ]
    run = await soon(before.start("kelp crab eel", "r"))
    await soon(run.wait_for_completion())
    asked = run.checkpoints[4]
    with pytest.raises(GraphChanged, match="lifetime"):
        await soon(after.resume(asked))
    resumed = await soon(after.resume(asked, allow_graph_change=True))
    assert len((await soon(resumed.wait_for_completion())).outputs) == 3


def test_wrong_lifetime_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"'memory'.*'message'.*'run'"):
        WorkflowExecutor(memory(), id="memory", lifetime="forever")  # type: ignore[arg-type]
