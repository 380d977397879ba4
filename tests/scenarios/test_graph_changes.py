"""Going on after a deploy: what is said of a changed graph, and what goes on under it, also under other names."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import (
    Case,
    CheckpointInfo,
    CheckpointStorage,
    Default,
    Executor,
    ExecutorFailed,
    GraphChanged,
    GraphError,
    InMemoryCheckpointStorage,
    RequestInfoEvent,
    Run,
    RunStatus,
    RunTaken,
    StorageError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import (
    ON_DISK,
    Failing,
    Place,
    Slow,
    everything,
    head_of,
    outputs_of,
    watched,
    wrapped,
)
from tests.support.modules import description
from tests.support.parts import Commit, Depth, Expected, RunId, type_name
from tests.support.runs import soon

DEAD = "nowhere:17:4711#1"
"""The owner of a run in a process that lives no longer, as far as any store can tell."""


calls: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_broken() -> Any:
    calls.clear()
    broken.clear()
    yield
    broken.clear()


# -- executors: what they do is their role, what they are called may change ------------------------


def did(role: str) -> None:
    calls.append(role)
    if role in broken:
        raise RuntimeError(f"{role} is broken")


def step(role: str, id: str | None = None) -> Any:
    @executor(id=id or role)
    async def work(text: str) -> str:
        did(role)
        return text + role

    return work


class Keep(Executor):
    """Keeps a field, the state of its hooks and a key of its private scope."""

    checkpointed = ("turns",)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.turns = 0

    @handler
    async def keep(self, text: str, ctx: WorkflowContext[str]) -> str:
        did("keep")
        self.turns += 1
        await ctx.append_state("seen", text)
        await ctx.set_state({"turns": self.turns})
        seen = await ctx.read_state("seen")
        return f"{text}k{self.turns}{len(seen)}"


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        did("ask")
        await ctx.request_info(text, response_type=str)

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext[str, str]) -> str:
        did("answered")
        return f"{text} {answer}"


@executor(id="join")
async def join(texts: list) -> str:
    did("join")
    return "+".join(texts)


def with_aliases(builder: WorkflowBuilder, aliases: Mapping[str, str]) -> WorkflowBuilder:
    for old, new in aliases.items():
        builder.with_alias(old, new)
    return builder


def chain(*placed: Any, aliases: Mapping[str, str] | None = None, name: str = "Chain") -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(placed[0])
    if len(placed) > 1:
        builder.add_chain(list(placed))
    return with_aliases(builder, aliases or {}).build()


async def stopped_at(role: str, workflow: Workflow, storage: CheckpointStorage, message: Any = "x") -> None:
    """Let a run fail where this role has its turn; from then on nothing is broken."""
    broken.add(role)
    with pytest.raises(ExecutorFailed):
        await soon(workflow.run(message, run_id="mine", storage=storage))
    broken.clear()
    calls.clear()


async def changed(workflow: Workflow, storage: CheckpointStorage, **options: Any) -> Run:
    """The run, resumed with another graph and taken as far as it goes."""
    run = await workflow.resume(run_id="mine", storage=storage, allow_graph_change=True, **options)
    await soon(run.wait_for_completion())
    return run


async def refusal(
    workflow: Workflow, storage: CheckpointStorage, allow: bool, checkpoint: CheckpointInfo | None = None
) -> str:
    """What is said of a graph that cannot go on; nothing is written."""
    before = await everything(storage, "mine")
    run_id = "mine" if checkpoint is None else None
    with pytest.raises(GraphChanged) as caught:
        await workflow.resume(checkpoint, storage=storage, run_id=run_id, allow_graph_change=allow)
    assert await everything(storage, "mine") == before
    return str(caught.value)


def differences(said: str) -> list[str]:
    """The lines that an error lists."""
    return [line.removeprefix("  - ") for line in said.splitlines()[1:]]


# -- what is said ----------------------------------------------------------------------------------


def _typed(kind: Any) -> Any:
    @executor(id="b")
    async def work(value: kind) -> str:
        return str(value)

    return work


def _switch(labels: tuple[str, str]) -> Workflow:
    builder = WorkflowBuilder(name="Chain").set_start_executor(step("a"))
    builder.add_switch_case_edge_group(
        "a",
        [
            Case(condition=lambda text: True, target=step("b"), label=labels[0]),
            Default(target=step("c"), label=labels[1]),
        ],
    )
    return builder.build()


CHANGES: dict[str, tuple[Callable[[], Workflow], list[str]]] = {
    "added": (
        lambda: chain(step("a"), step("b"), step("c"), step("d")),
        ["executor 'd' was added", "edge 'c' -> 'd' was added"],
    ),
    "removed": (
        lambda: chain(step("a"), step("b")),
        ["executor 'c' was removed", "edge 'b' -> 'c' was removed"],
    ),
    "renamed": (
        lambda: chain(step("a"), step("b"), step("c", "see")),
        ["executor 'c' may be called 'see' now: say so with .with_alias('c', 'see')"],
    ),
    "alias": (
        lambda: chain(step("a"), step("b"), step("c", "see"), aliases={"c": "see"}),
        ["executor 'c' is called 'see' now (its alias)"],
    ),
    "types": (
        lambda: chain(step("a"), _typed(str | bytes), step("c")),
        ["executor 'b' now takes bytes | str (was str)"],
    ),
    "edge": (
        lambda: (
            WorkflowBuilder(name="Chain")
            .set_start_executor(step("a"))
            .add_chain(["a", step("b"), step("c")])
            .add_edge("a", "c")
            .build()
        ),
        ["edge 'a' -> 'c' was added"],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_differences_are_told(storage: CheckpointStorage, what: str) -> None:
    build, expected = CHANGES[what]
    before = chain(step("a"), step("b"), step("c"))
    await stopped_at("b", before, storage)
    after = build()
    said = await refusal(after, storage, allow=False)
    assert differences(said) == expected
    assert f"fingerprint {before.fingerprint[:8]}, now {after.fingerprint[:8]}" in said
    assert "allow_graph_change=True" in said


async def test_differences_are_told_by_a_new_process(place: Place) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), place.storage)
    said = await refusal(chain(step("a"), step("b")), await place.reopened(), allow=False)
    assert differences(said) == ["executor 'c' was removed", "edge 'b' -> 'c' was removed"]


async def test_differences_inside_nested_workflows_are_told(storage: CheckpointStorage) -> None:
    def build(*inside: Any) -> Workflow:
        return chain(step("a"), WorkflowExecutor(chain(*inside, name="Inner"), id="sub"), step("b"))

    await stopped_at("b", build(step("i"), step("j")), storage)
    said = await refusal(build(step("i"), step("j"), step("k")), storage, allow=False)
    assert differences(said) == [
        "in nested workflow 'sub': executor 'k' was added",
        "in nested workflow 'sub': edge 'j' -> 'k' was added",
    ]


class Count(Executor):
    """Writes much into the state, superstep by superstep."""

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int]) -> None:
        did(f"count {number}")
        for key in range(60):
            await ctx.queue_state_update(f"{number} {key} " + "key" * 30, number, scope_name="S")
        if number < 40:
            await ctx.send_message(number + 1)


def counting(*more: Any) -> Workflow:
    builder = WorkflowBuilder(name="Count").set_start_executor(Count).add_edge(Count, Count)
    for placed in more:
        builder.add_edge(Count, placed)
    return builder.build()


ADDED = ["executor 'log' was added", "edge 'Count' -> 'log' was added"]


@executor(id="log")
async def log(number: int) -> None:
    pass


async def keyframes_of(storage: CheckpointStorage, run_id: str) -> list[int]:
    records = await storage.store.records(RunId(run_id), 1, 10_000, Depth.CHANGES)
    return [record.seq for record in records if record.keyframe is not None]


async def test_differences_are_told_after_many_supersteps_and_keyframes(place: Place) -> None:
    await stopped_at("count 40", counting(), place.storage, 1)
    assert await keyframes_of(place.storage, "mine"), "there must be one for this test to say something"
    assert differences(await refusal(counting(log), place.storage, allow=False)) == ADDED
    for checkpoint in (await place.storage.list_checkpoints(run_id="mine"))[::13]:
        assert differences(await refusal(counting(log), place.storage, False, checkpoint)) == ADDED
    run = await changed(counting(log), place.storage)
    assert run.status is RunStatus.COMPLETED
    assert (await place.storage.verify()).ok


async def test_differences_are_told_after_going_back_and_in_a_fork(place: Place) -> None:
    await stopped_at("count 9", counting(), place.storage, 1)
    earlier = (await place.storage.list_checkpoints(run_id="mine"))[4]
    broken.add("count 7")
    back = await counting().resume(earlier, storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(back.wait_for_completion())
    assert differences(await refusal(counting(log), place.storage, allow=False)) == ADDED
    fork = await counting().fork(earlier, run_id="fork", storage=place.storage)
    with pytest.raises(ExecutorFailed):
        await soon(fork.wait_for_completion())
    storage = await place.reopened()
    with pytest.raises(GraphChanged) as caught:
        await counting(log).resume(run_id="fork", storage=storage)
    assert differences(str(caught.value)) == ADDED
    with pytest.raises(GraphChanged) as caught:
        await counting(log).fork(fork.checkpoints[2], storage=storage)
    assert differences(str(caught.value)) == ADDED


@pytest.mark.parametrize("size", [6_000, 300_000], ids=["more than stands in a record", "more than a part"])
async def test_big_graphs_are_compared_too(place: Place, size: int) -> None:
    def build(*more: Any) -> Workflow:
        builder = WorkflowBuilder(name="Big").set_start_executor(step("a"))
        builder.add_edge("a", step("b"), label="".join(chr(97 + n * n % 26) for n in range(size)))
        for placed in more:
            builder.add_edge("a", placed)
        return builder.build()

    await stopped_at("b", build(), place.storage)
    storage = await place.reopened()
    said = await refusal(build(step("c")), storage, allow=False)
    assert differences(said) == ["executor 'c' was added", "edge 'a' -> 'c' was added"]
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    fork = await build().fork(latest, run_id="fork", storage=storage)
    assert (await soon(fork.wait_for_completion())).outputs == ["xab"]
    with pytest.raises(GraphChanged, match="executor 'c' was added"):
        await build(step("c")).resume(run_id="fork", storage=storage)
    run = await changed(build(step("c")), storage)
    assert run.result().outputs == ["xab"]
    assert (await storage.verify()).ok


async def test_what_is_said_of_a_long_label_stays_readable(storage: CheckpointStorage) -> None:
    def build(label: str) -> Workflow:
        return (
            WorkflowBuilder(name="Big")
            .set_start_executor(step("a"))
            .add_edge("a", step("b"), label=label)
            .build()
        )

    await stopped_at("b", build("x" * 300_000), storage)
    said = await refusal(build("y" * 300_000), storage, allow=False)
    assert len(differences(said)) in (1, 2)
    assert len(said) < 10_000


async def test_many_differences_are_counted(storage: CheckpointStorage) -> None:
    def build(many: int) -> Workflow:
        return chain(*(step(f"s{number}") for number in range(many)))

    await stopped_at("s1", build(3), storage)
    said = await refusal(build(60), storage, allow=False)
    lines = differences(said)
    assert len(lines) == 21
    assert lines[-1] == f"and {57 + 57 - 20} more differences"


async def test_run_that_is_driven_is_taken_whatever_the_graph(storage: CheckpointStorage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="b")
    async def hold(text: str) -> str:
        entered.set()
        await go_on.wait()
        return text

    run = await chain(step("a"), hold).start("x", run_id="mine", storage=storage)
    await soon(entered.wait())
    for allow in (False, True):
        with pytest.raises(RunTaken):
            await chain(step("a"), step("b"), step("c")).resume(
                run_id="mine", storage=storage, allow_graph_change=allow
            )
    go_on.set()
    assert (await soon(run.wait_for_completion())).outputs == ["xa"]


# -- what goes on ----------------------------------------------------------------------------------


async def test_added_executors_and_edges_get_what_comes(place: Place) -> None:
    def build(*more: Any) -> Workflow:
        builder = (
            WorkflowBuilder(name="W").set_start_executor(step("a")).add_chain(["a", step("b"), step("c")])
        )
        for placed in more:
            builder.add_edge("b", placed)
        return builder.build()

    await stopped_at("b", build(), place.storage)
    run = await changed(build(step("d"), step("e")), await place.reopened())
    assert run.result().outputs == ["xabc", "xabd", "xabe"]
    assert calls == ["b", "c", "d", "e"]


async def test_idle_executor_is_removed(place: Place) -> None:
    builder = (
        WorkflowBuilder(name="Chain").set_start_executor(step("a")).add_chain(["a", step("b"), step("c")])
    )
    await stopped_at("b", builder.add_edge("a", step("d")).build(), place.storage)
    # Its message is in the way, so it goes where none of it is left: behind the superstep in which it had its turn.
    assert "a message to 'd'" in await refusal(chain(step("a"), step("b"), step("c")), place.storage, True)
    storage = await place.reopened()
    broken.add("c")
    run = await builder.build().resume(run_id="mine", storage=storage)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    broken.clear()
    assert (await changed(chain(step("a"), step("b"), step("c")), storage)).result().outputs == [
        "xad",
        "xabc",
    ]


async def test_removed_edge_is_not_taken_any_more(storage: CheckpointStorage) -> None:
    def build(edge: bool) -> Workflow:
        builder = (
            WorkflowBuilder(name="W").set_start_executor(step("a")).add_chain(["a", step("b"), step("c")])
        )
        if edge:
            builder.add_edge("a", "c")
        return builder.build()

    await stopped_at("a", build(True), storage)
    assert (await changed(build(False), storage)).result().outputs == ["xabc"]


async def test_another_order_of_executors(storage: CheckpointStorage) -> None:
    def build(*order: str) -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        for name in order:
            builder.add_edge("a", step(name))
        return builder.build()

    await stopped_at("c", build("b", "c", "d"), storage)
    said = await refusal(build("d", "c", "b"), storage, allow=False)
    assert differences(said)
    run = await changed(build("d", "c", "b"), storage)
    assert calls == ["c"], "the others were over already"
    assert run.result().outputs == ["xad", "xac", "xab"]


async def test_run_of_the_new_graph_stays_one(place: Place) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), place.storage)
    new = chain(step("a"), step("b"))
    broken.add("b")
    run = await new.resume(run_id="mine", storage=place.storage, allow_graph_change=True)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    broken.clear()
    storage = await place.reopened()
    before = len(await storage.list_checkpoints(run_id="mine"))
    said = await refusal(chain(step("a"), step("b"), step("c")), storage, allow=False)
    assert differences(said) == ["executor 'c' was added", "edge 'b' -> 'c' was added"]
    assert await outputs_of(new.resume(run_id="mine", storage=storage)) == ["xab"]
    made = await storage.list_checkpoints(run_id="mine")
    assert [c.cause.value for c in made[before:]] == ["superstep"], "it is no change any more"


async def test_allowed_change_of_a_graph_that_did_not_change_writes_nothing_more(place: Place) -> None:
    def build() -> Workflow:
        return chain(step("a"), step("b"), step("c"))

    await stopped_at("b", build(), place.storage)
    run = await changed(build(), place.storage)
    assert run.result().outputs == ["xabc"]
    causes = [c.cause.value for c in await place.storage.list_checkpoints(run_id="mine")]
    assert causes == ["input", *["superstep"] * 5]


# -- other names -----------------------------------------------------------------------------------


async def test_renamed_executor_gets_the_message_that_waits_for_it(place: Place) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), place.storage)
    new = chain(step("a"), step("b", "bee"), step("c"), aliases={"b": "bee"})
    said = await refusal(chain(step("a"), step("b", "bee"), step("c")), place.storage, True)
    assert "a message to 'b'" in said
    assert "with_alias" in said
    storage = await place.reopened()
    assert (await changed(new, storage)).result().outputs == ["xabc"]
    assert calls == ["b", "c"]
    assert (await storage.verify()).ok


async def test_renamed_executor_keeps_what_is_its_own(place: Place) -> None:
    def build(id: str, aliases: Mapping[str, str] | None = None) -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(Keep.bind(id=id))
        builder.add_edge(id, id, condition=lambda text: text.count("k") < 4, label="again")
        builder.add_edge(id, step("end"), condition=lambda text: text.count("k") >= 4, label="enough")
        return with_aliases(builder, aliases or {}).build()

    run = await build("Keep").start("x", run_id="other", storage=place.storage)
    whole = (await soon(run.wait_for_completion())).outputs
    assert whole == ["xk11k22k33k44end"]
    calls.clear()
    third = run.checkpoints[4]
    fork = await build("Kept", {"Keep": "Kept"}).fork(
        third, run_id="mine", storage=place.storage, allow_graph_change=True
    )
    assert (await soon(fork.wait_for_completion())).outputs == whole
    assert calls == ["keep", "keep", "end"]
    assert list((await place.storage.load(third)).executor_states) == ["Keep"]
    assert list((await place.storage.load(fork.checkpoints[0])).executor_states) == ["Kept"]
    without = build("Kept")
    with pytest.raises(GraphChanged, match="the state of executor 'Keep'"):
        await without.resume(third, storage=place.storage, allow_graph_change=True)


async def test_renamed_executor_gets_the_answer_to_its_question(place: Place) -> None:
    await soon(chain(Ask, step("b")).run("?", run_id="mine", storage=place.storage))
    new = chain(Ask.bind(id="Question"), step("b"), aliases={"Ask": "Question"})
    storage = await place.reopened()
    run = await new.resume(run_id="mine", storage=storage, allow_graph_change=True)
    events = await watched(run)
    asked = [(e.request_id, e.executor_id) for e in events if isinstance(e, RequestInfoEvent)]
    assert asked == [("Ask.1.1", "Question")]
    await run.respond({"Ask.1.1": "yes"})
    assert (await soon(run.wait_for_completion())).outputs == ["? yesb"]


@pytest.mark.parametrize("renamed", [False, True])
async def test_answer_that_was_left_before_the_deploy_counts(place: Place, renamed: bool) -> None:
    await soon(chain(Ask, step("b")).run("?", run_id="mine", storage=place.storage))
    await place.storage.respond("mine", {"Ask.1.1": "yes"})
    if renamed:
        new = chain(Ask.bind(id="Question"), step("b"), aliases={"Ask": "Question"})
    else:
        new = chain(Ask, step("b"), step("c"))
    run = await changed(new, await place.reopened())
    assert (run.status, run.result().outputs) == (RunStatus.COMPLETED, ["? yesb" + "c" * (not renamed)])


async def test_answer_with_the_resume_that_changes_the_graph(place: Place) -> None:
    await soon(chain(Ask, step("b")).run("?", run_id="mine", storage=place.storage))
    new = chain(Ask.bind(id="Question"), step("b"), aliases={"Ask": "Question"})
    run = await changed(new, place.storage, responses={"Ask.1.1": "yes"})
    assert run.result().outputs == ["? yesb"]


async def test_wish_to_cancel_from_before_the_deploy(place: Place) -> None:
    await soon(chain(Ask, step("b")).run("?", run_id="mine", storage=place.storage))
    await place.storage.cancel("mine")
    new = chain(Ask.bind(id="Question"), step("b"), aliases={"Ask": "Question"})
    run = await changed(new, place.storage)
    assert run.status is RunStatus.WAITING
    await place.storage.respond("mine", {"Ask.1.1": "yes"})
    assert (await soon(run.wait_for_completion())).outputs == ["? yesb"]


def joining(names: Mapping[str, str], aliases: Mapping[str, str] | None = None) -> Workflow:
    """One branch is done and held by the fan-in while the other is under way."""

    def called(role: str) -> str:
        return names.get(role, role)

    def placed(role: str) -> Any:
        return step(role, called(role))

    @executor(id=called("join"))
    async def joined(texts: list) -> str:
        did("join")
        return "+".join(texts)

    builder = WorkflowBuilder(name="Join").set_start_executor(step("start"))
    builder.add_fan_out_edges("start", [placed("a"), placed("b")]).add_edge(called("b"), placed("c"))
    builder.add_fan_in_edges([called("a"), called("c")], joined)
    return with_aliases(builder, aliases or {}).build()


JOIN_NAMES: list[dict[str, str]] = [
    {"a": "ay"},
    {"c": "see"},
    {"join": "meet"},
    {"a": "ay", "c": "see", "join": "meet"},
    {"a": "it's", "join": 'say "so" -> \u00e4'},
    {"a": "c2", "c": "a2"},
]


@pytest.mark.parametrize("names", JOIN_NAMES, ids=lambda names: " ".join(names))
async def test_fan_in_holds_what_came_under_the_old_names(
    storage: CheckpointStorage, names: dict[str, str]
) -> None:
    await stopped_at("c", joining({}), storage)
    if list(names) != ["a"]:  # what only the fan-in holds of it has its place there, whatever it is called
        assert (await refusal(joining(names), storage, True)).count("there is no place for") == 1
    run = await changed(joining(names, names), storage)
    assert run.result().outputs == ["xstarta+xstartbc"]
    assert calls == ["c", "join"]
    assert (await storage.verify()).ok


async def test_fan_in_inside_a_nested_workflow(place: Place) -> None:
    def build(
        host: str, names: Mapping[str, str], inside: Mapping[str, str], outside: Mapping[str, str]
    ) -> Workflow:
        nested = WorkflowExecutor(joining(names, inside), id=host)
        return chain(step("first"), nested, step("last"), aliases=outside)

    await stopped_at("c", build("sub", {}, {}, {}), place.storage)
    names = {"a": "ay", "c": "see", "join": "meet"}
    run = await changed(build("part", names, names, {"sub": "part"}), await place.reopened())
    assert run.result().outputs == ["xfirststarta+xfirststartbclast"]
    assert calls == ["c", "join", "last"]


async def test_renamed_nested_workflow_goes_on_inside(place: Place) -> None:
    """With a question, private state and a message inside, two levels deep; each level is renamed."""

    def build(ask: str, inner: str, outer: str, old: bool = False) -> Workflow:
        builder = WorkflowBuilder(name="Inner").set_start_executor(Keep)
        builder.add_edge(Keep, Ask.bind(id=ask)).add_edge(Keep, step("note"))
        innermost = with_aliases(builder, {} if old else {"Ask": ask}).build()
        middle = chain(
            WorkflowExecutor(innermost, id=inner), name="Middle", aliases={} if old else {"inner": inner}
        )
        top = WorkflowExecutor(middle, id=outer)
        return chain(step("a"), top, step("z"), aliases={} if old else {"outer": outer})

    broken.add("note")
    with pytest.raises(ExecutorFailed):
        await soon(build("Ask", "inner", "outer", old=True).run("x", run_id="mine", storage=place.storage))
    broken.clear()
    calls.clear()
    storage = await place.reopened()
    new = build("Question", "i", "o")
    run = await new.resume(run_id="mine", storage=storage, allow_graph_change=True)
    await soon(run.wait_for_completion())
    assert calls == ["note", "z"], "the question was asked already"
    (pending,) = run.pending_requests
    assert pending.executor_id == "o#1/i#1/Question"
    await run.respond({pending.request_id: "yes"})
    assert (await soon(run.wait_for_completion())).outputs == ["xak11notez", "xak11 yesz"]
    assert (await storage.verify()).ok


async def test_what_was_journaled_is_not_run_again_under_the_new_name(place: Place) -> None:
    def build(names: Mapping[str, str], aliases: Mapping[str, str] | None = None) -> Workflow:
        def called(role: str) -> str:
            return names.get(role, role)

        @executor(id=called("pay"))
        async def pay(text: str, ctx: WorkflowContext[str]) -> str:
            await ctx.once("pay", lambda: did("paid"))
            did("pay")
            return text + "pay"

        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        builder.add_fan_out_edges("a", [Keep.bind(id=called("keep")), Ask.bind(id=called("ask")), pay])
        builder.add_edge(called("keep"), step("log", called("log")))
        return with_aliases(builder, aliases or {}).build()

    broken.add("pay")
    with pytest.raises(ExecutorFailed):
        await soon(build({}).run("x", run_id="mine", storage=place.storage))
    assert sorted(calls) == ["a", "ask", "keep", "paid", "pay"]
    calls.clear()
    names = {"keep": "kept", "ask": "question", "pay": "charge", "log": "write"}
    storage = await place.reopened()
    # Once it fails again, so that what was carried over must be carried over for good.
    run = await build(names, names).resume(run_id="mine", storage=storage, allow_graph_change=True)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    assert calls == ["pay"]
    broken.clear()
    calls.clear()
    storage = await place.reopened()
    run = await build(names).resume(run_id="mine", storage=storage)
    await soon(run.wait_for_completion())
    assert calls == ["pay", "log"]
    (pending,) = run.pending_requests
    assert pending.executor_id == "question"
    await run.respond({pending.request_id: "yes"})
    assert (await soon(run.wait_for_completion())).outputs == ["xapay", "xak11log", "xa yes"]
    assert list((await storage.load(run.checkpoints[-1])).executor_states) == ["kept"]


async def test_many_turns_that_were_over_are_carried_over(place: Place) -> None:
    def build(*more: Any) -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        builder.add_fan_out_edges("a", [step(f"s{number}") for number in range(80)])
        for placed in more:
            builder.add_edge("s1", placed)
        return builder.build()

    await stopped_at("s40", build(), place.storage)
    run = await changed(build(step("end")), await place.reopened())
    assert calls == ["s40"]
    assert run.result().outputs == [f"xas{number}" for number in range(80)]


async def test_journaled_message_to_a_renamed_executor_arrives(place: Place) -> None:
    def build(target: str, aliases: Mapping[str, str] | None = None) -> Workflow:
        @executor(id="send")
        async def send(text: str, ctx: WorkflowContext[str]) -> None:
            await ctx.send_message(text + "!", target_id=target)

        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        builder.add_fan_out_edges("a", [send, step("b")])
        builder.add_edge("send", step("target", target)).add_edge("send", step("other"))
        return with_aliases(builder, aliases or {}).build()

    await stopped_at("b", build("old"), place.storage)
    run = await changed(build("new", {"old": "new"}), await place.reopened())
    assert sorted(run.result().outputs) == ["xa!target", "xab"]
    assert run.result().warnings == []


async def test_effect_that_is_repeated_after_a_deploy_has_the_same_key(storage: CheckpointStorage) -> None:
    """A crash repeats an effect with the same key; that the graph is another then does not change that."""
    keys: list[str] = []

    def build(*more: Any) -> Workflow:
        @executor(id="pay")
        async def pay(text: str, ctx: WorkflowContext[str]) -> str:
            keys.append(ctx.idempotency_key)
            did("pay")
            return text

        return chain(step("a"), pay, *more)

    await stopped_at("pay", build(), storage)
    await outputs_of(build().resume(run_id="mine", storage=storage))
    assert keys[0] == keys[1]
    keys.clear()
    store = InMemoryCheckpointStorage()
    await stopped_at("pay", build(), store)
    await changed(build(step("c")), store)
    assert keys[0] == keys[1]


async def test_renamed_over_two_deploys(place: Place) -> None:
    def build(id: str, aliases: Mapping[str, str]) -> Workflow:
        return chain(step("a"), Keep.bind(id=id), step("b"), step("c"), aliases=aliases)

    first = build("Keep", {})
    await stopped_at("b", first, place.storage)
    second = build("Kept", {"Keep": "Kept"})
    broken.add("b")
    run = await second.resume(run_id="mine", storage=place.storage, allow_graph_change=True)
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    broken.clear()
    storage = await place.reopened()
    third = build("Keeper", {"Keep": "Keeper", "Kept": "Keeper"})
    assert (await changed(third, storage)).result().outputs == ["xak11bc"]
    made = await storage.list_checkpoints(run_id="mine")
    states = [list((await storage.load(checkpoint)).executor_states) for checkpoint in made]
    assert [names for before, names in zip([[], *states], states, strict=False) if names != before] == [
        ["Keep"],
        ["Kept"],
        ["Keeper"],
    ]
    # From each of them the graph of today goes on.
    for checkpoint in made:
        run = await third.resume(checkpoint, storage=storage, allow_graph_change=True)
        assert (await soon(run.wait_for_completion())).outputs == ["xak11bc"], checkpoint
    assert (await storage.verify()).ok


async def test_alias_for_nothing_changes_nothing(place: Place) -> None:
    def build(aliases: Mapping[str, str]) -> Workflow:
        return chain(step("a"), step("b"), step("c"), aliases=aliases)

    await stopped_at("b", build({}), place.storage)
    assert build({"old": "b"}).fingerprint == build({}).fingerprint
    run = await build({"old": "b", "older": "b"}).resume(run_id="mine", storage=place.storage)
    assert (await soon(run.wait_for_completion())).outputs == ["xabc"]
    causes = [c.cause.value for c in await place.storage.list_checkpoints(run_id="mine")]
    assert causes == ["input", *["superstep"] * 5]


async def test_two_old_executors_cannot_become_one(place: Place) -> None:
    builder = (
        WorkflowBuilder(name="W").set_start_executor(step("a")).add_fan_out_edges("a", [step("b"), step("c")])
    )
    await stopped_at("c", builder.build(), place.storage)
    new = chain(step("a"), step("both"), aliases={"b": "both", "c": "both"}, name="W")
    said = await refusal(new, place.storage, True)
    assert "'b' and 'c' would both be called 'both' now" in said
    # One of them that holds nothing is in nobody's way.
    other = WorkflowBuilder(name="W").set_start_executor(step("a")).add_edge("a", step("both")).build()
    assert "'c'" in await refusal(other, place.storage, True)


async def test_old_name_that_holds_nothing_is_in_nobodys_way(place: Place) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), place.storage)
    new = chain(step("a"), step("both"), aliases={"b": "both", "c": "both"})
    assert (await changed(new, place.storage)).result().outputs == ["xaboth"]


def test_alias_of_an_executor_that_is_there_is_no_alias() -> None:
    with pytest.raises(GraphError, match="is an executor of the workflow"):
        chain(step("a"), step("b"), aliases={"a": "b"})


# -- what has no place any more --------------------------------------------------------------------


@dataclass
class Old:
    text: str


@dataclass
class New:
    text: str


def typed(kind: Any) -> Workflow:
    @executor(id="first")
    async def first(text: str) -> kind:
        return kind(text)

    @executor(id="second")
    async def second(what: kind) -> str:
        did("second")
        return str(what)

    return chain(first, second)


@pytest.mark.parametrize("kinds", [(str, bytes), (Old, New), (Old, int), (str, Old)], ids=str)
async def test_message_that_its_executor_does_not_take_any_more(place: Place, kinds: tuple[Any, Any]) -> None:
    before, after = kinds
    await stopped_at("second", typed(before), place.storage)

    @executor(id="second")
    async def second(what: after) -> str:
        return str(what)

    @executor(id="first")
    async def first(text: str, ctx: WorkflowContext[after]) -> None: ...

    said = await refusal(chain(first, second), await place.reopened(), True)
    assert f"a message to 'second', which does not take a {before.__name__} any more" in said


async def test_answer_that_its_executor_does_not_take_any_more(storage: CheckpointStorage) -> None:
    class Mute(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str]) -> None: ...

    class Other(Mute):
        @response_handler
        async def answered(self, text: str, answer: int, ctx: WorkflowContext[str]) -> None: ...

    await soon(chain(Ask, step("b")).run("?", run_id="mine", storage=storage))
    for placed in (Mute, Other):
        said = await refusal(chain(placed.bind(id="Ask"), step("b")), storage, True)
        assert "request 'Ask.1.1' of 'Ask'" in said
    # Also if it is on its way already.
    broken.add("answered")
    run = await chain(Ask, step("b")).resume(run_id="mine", storage=storage, responses={"Ask.1.1": "yes"})
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    for placed in (Mute, Other):
        said = await refusal(chain(placed.bind(id="Ask"), step("b")), storage, True)
        assert "'Ask'" in said
        assert "there is no place for" in said


@pytest.mark.parametrize("kind", [New, str, int])
async def test_journaled_message_that_nobody_takes_any_more(storage: CheckpointStorage, kind: Any) -> None:
    """It was sent by a turn that is over, in a superstep that is not."""

    def build(kind: Any) -> Workflow:
        @executor(id="make")
        async def make(text: str) -> kind:
            did("make")
            return kind(text)

        @executor(id="use")
        async def use(what: kind, ctx: WorkflowContext[None, str]) -> str:
            return f"used {what}"

        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        return builder.add_fan_out_edges("a", [make, step("b")]).add_edge("make", use).build()

    await stopped_at("b", build(Old), storage)
    said = await refusal(build(kind), CheckpointStorage(storage.store), True)
    assert "Old" in said
    assert "'make'" in said or "'use'" in said
    assert calls == []
    run = await build(Old).resume(run_id="mine", storage=storage)
    assert sorted((await soon(run.wait_for_completion())).outputs) == ["used Old(text='xa')", "xab"]


async def test_journaled_question_that_nobody_can_answer_any_more(place: Place) -> None:
    class Mute(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[str]) -> None: ...

    def build(kind: type[Executor]) -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(step("a"))
        return builder.add_fan_out_edges("a", [kind.bind(id="ask"), step("b")]).build()

    await stopped_at("b", build(Ask), place.storage)
    said = await refusal(build(Mute), await place.reopened(), True)
    assert "request 'ask.2.1' of 'ask'" in said
    assert calls == []


@pytest.mark.parametrize("back", [False, True], ids=["became nested", "was nested"])
async def test_executor_that_became_a_nested_workflow(place: Place, back: bool) -> None:
    plain = chain(step("a"), step("b"), step("c"))
    nested = chain(step("a"), WorkflowExecutor(chain(step("b"), name="Inner"), id="b"), step("c"))
    before, after = (nested, plain) if back else (plain, nested)
    await stopped_at("b", before, place.storage)
    said = await refusal(after, place.storage, False)
    assert ("executor 'b' is a nested workflow now" in said) is not back
    said = await refusal(after, place.storage, True)
    assert f"a message to {'b#1/b' if back else 'b'!r}" in said
    assert await outputs_of(before.resume(run_id="mine", storage=place.storage)) == ["xabc"]


async def test_fan_in_that_is_gone(storage: CheckpointStorage) -> None:
    await stopped_at("c", joining({}), storage)
    builder = WorkflowBuilder(name="Join").set_start_executor(step("start"))
    builder.add_fan_out_edges("start", [step("a"), step("b")]).add_chain(["b", step("c")])
    builder.add_fan_in_edges(["b"], join)  # none of its sources is one that it had
    said = await refusal(builder.build(), storage, True)
    assert "what fan-in 'a', 'c' -> 'join' holds" in said


async def test_refused_in_a_fork_leaves_no_fork(storage: CheckpointStorage) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), storage)
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    for allow in (False, True):
        with pytest.raises(GraphChanged):
            await chain(step("a"), step("c")).fork(latest, storage=storage, allow_graph_change=allow)
    assert [run.run_id for run in await storage.list_runs()] == ["mine"]


async def test_refused_run_of_a_dead_process_stays_interrupted(place: Place) -> None:
    await stopped_at("b", chain(step("a"), step("b"), step("c")), place.storage)
    head = await head_of(place.storage, "mine")
    dead = head._replace(status=RunStatus.RUNNING, owner=DEAD, token=head.token + 1, reason="")
    await place.storage.store.commit(Commit(dead, Expected(head.checkpoint_id, head.token)))
    for allow in (False, True):
        await refusal(chain(step("a"), step("c")), place.storage, allow)
    assert [run.run_id for run in await place.storage.list_runs(interrupted=True)] == ["mine"]
    new = chain(step("a"), step("b", "bee"), aliases={"b": "bee"})
    assert (await changed(new, place.storage)).result().outputs == ["xab"]
    assert (await head_of(place.storage, "mine")).takeovers == 0


# -- before and after ------------------------------------------------------------------------------


async def test_what_was_before_a_rename_stays_as_it_was(place: Place) -> None:
    def build(keep: str, ask: str, aliases: Mapping[str, str]) -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(Keep.bind(id=keep))
        builder.add_edge(keep, Ask.bind(id=ask)).add_edge(keep, step("b"))
        return with_aliases(builder, aliases).build()

    old, new = build("Keep", "Ask", {}), build("Kept", "Question", {"Keep": "Kept", "Ask": "Question"})
    await stopped_at("b", old, place.storage)
    before = await place.storage.list_checkpoints(run_id="mine")
    run = await changed(new, place.storage)
    (pending,) = run.pending_requests
    assert pending.executor_id == "Question"
    storage = await place.reopened()
    listed = await storage.list_checkpoints(run_id="mine")
    assert listed[: len(before)] == before
    for checkpoint in before[1:]:
        loaded = await storage.load(checkpoint)
        assert list(loaded.executor_states) == ["Keep"]
        assert {message.target_id for message in loaded.messages} == {"Ask", "b"}
    for checkpoint in listed[len(before) :]:
        loaded = await storage.load(checkpoint)
        assert list(loaded.executor_states) == ["Kept"]
        assert {message.target_id for message in loaded.messages} <= {"Question", "b"}
        assert {request.executor_id for request in loaded.pending_requests} <= {"Question"}
        assert "Keep" not in repr(loaded.summary())
    assert (await storage.verify()).ok
    for ascii in (False, True):
        drawn = await storage.draw_tree("mine", ascii=ascii)
        assert "run mine" in drawn
        assert "head, waiting" in drawn


async def test_going_back_behind_a_rename(place: Place) -> None:
    def build(id: str, aliases: Mapping[str, str] | None = None) -> Workflow:
        return chain(step("a"), Keep.bind(id=id), step("b"), aliases=aliases)

    old, new = build("Keep"), build("Kept", {"Keep": "Kept"})
    await stopped_at("b", old, place.storage)
    before = await place.storage.list_checkpoints(run_id="mine")
    run = await changed(new, place.storage)
    assert run.result().outputs == ["xak11b"]
    after = list(run.checkpoints)
    for checkpoint in before:  # in place, with the object at hand
        await soon(run.restore_checkpoint(checkpoint))
        assert (await soon(run.wait_for_completion())).outputs == ["xak11b"]
    for checkpoint in before:  # with another
        resumed = await new.resume(checkpoint, storage=place.storage, allow_graph_change=True)
        assert (await soon(resumed.wait_for_completion())).outputs == ["xak11b"]
    said = await refusal(new, place.storage, False, before[-1])
    assert "executor 'Keep' is called 'Kept' now (its alias)" in said
    # And the other way round: an older graph from before, and none from after.
    back = await old.resume(before[2], storage=place.storage)
    assert (await soon(back.wait_for_completion())).outputs == ["xak11b"]
    assert "the state of executor 'Kept'" in await refusal(old, place.storage, True, after[1])
    assert (await place.storage.verify()).ok


async def test_fork_under_other_names_leaves_its_origin_alone(place: Place) -> None:
    old = chain(step("a"), Keep, step("b"))
    new = chain(step("a"), Keep.bind(id="Kept"), step("bee"), aliases={"Keep": "Kept", "b": "bee"})
    await stopped_at("b", old, place.storage)
    before = await everything(place.storage, "mine")
    latest = await place.storage.get_latest(run_id="mine")
    assert latest is not None
    fork = await new.fork(latest, run_id="fork", storage=place.storage, allow_graph_change=True)
    assert (await soon(fork.wait_for_completion())).outputs == ["xak11bee"]
    assert (await everything(place.storage, "mine"))[:2] == before[:2]
    assert await outputs_of(old.resume(run_id="mine", storage=place.storage)) == ["xak11b"]
    assert (await place.storage.verify()).ok


FINISHED: dict[str, Callable[[], Workflow]] = {
    "added": lambda: chain(step("a"), Keep, step("b"), step("c")),
    "renamed": lambda: chain(step("a"), Keep.bind(id="Kept"), step("b"), aliases={"Keep": "Kept"}),
    "removed": lambda: chain(step("a"), step("b")),
    "two to one": lambda: chain(step("both"), aliases={"a": "both", "Keep": "both", "b": "both"}),
    "nested": lambda: chain(step("a"), WorkflowExecutor(chain(step("i"), name="I"), id="Keep"), step("b")),
}


@pytest.mark.parametrize("what", FINISHED)
async def test_finished_run_only_gives_its_outputs(place: Place, what: str) -> None:
    await soon(chain(step("a"), Keep, step("b")).run("x", run_id="mine", storage=place.storage))
    calls.clear()
    storage = await place.reopened()
    await refusal(FINISHED[what](), storage, False)
    before = await everything(storage, "mine")
    run = await changed(FINISHED[what](), storage)
    assert (run.status, run.result().outputs) == (RunStatus.COMPLETED, ["xak11b"])
    assert (calls, await everything(storage, "mine")) == ([], before)


# -- disks that fail, callers that leave -----------------------------------------------------------


class Deploy:
    """A run that stops with a turn that is over, a question, private state and a held message; all are renamed."""

    NAMES: ClassVar = {"pay": "charge", "keep": "kept", "ask": "question", "work": "labour", "join": "meet"}

    @staticmethod
    def build(names: Mapping[str, str], aliases: Mapping[str, str] | None = None) -> Workflow:
        def called(role: str) -> str:
            return names.get(role, role)

        @executor(id=called("pay"))
        async def pay(text: str, ctx: WorkflowContext[str]) -> str:
            await ctx.once("pay", lambda: did("paid"))
            return text + "pay"

        @executor(id=called("join"))
        async def joined(texts: list) -> str:
            did("join")
            return "+".join(texts)

        builder = WorkflowBuilder(name="Deploy").set_start_executor(step("a"))
        builder.add_fan_out_edges(
            "a", [Keep.bind(id=called("keep")), Ask.bind(id=called("ask")), step("early")]
        )
        builder.add_fan_out_edges(called("keep"), [pay, step("work", called("work"))])
        builder.add_fan_in_edges(["early", called("pay"), called("work")], joined)
        return with_aliases(builder, names if aliases is None else aliases).build()

    @classmethod
    async def stopped(cls, storage: CheckpointStorage) -> None:
        await stopped_at("work", cls.build({}), storage)
        await storage.respond("mine", {"ask.2.1": "yes"})

    @staticmethod
    def check(outputs: list[Any], why: object) -> None:
        assert sorted(outputs) == ["xa yes", "xaearly+xak11pay+xak11work"], why
        assert calls.count("paid") == 0, why
        assert calls.count("keep") == 0, why


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_deploy_on_a_disk_that_fails(tmp_path: Path, happens: bool) -> None:
    """At any commit; what was over is not run again, and neither an answer nor a message is lost."""
    done = False
    for nth in range(1, 12):
        storage = InMemoryCheckpointStorage()
        await Deploy.stopped(storage)
        failing = Failing(storage.store, nth, happens)
        try:
            await changed(Deploy.build(Deploy.NAMES), CheckpointStorage(failing))
        except StorageError:
            pass
        done = failing.commits < nth
        run = await changed(Deploy.build(Deploy.NAMES), CheckpointStorage(storage.store))
        assert run.status is RunStatus.COMPLETED, nth
        Deploy.check(run.result().outputs, nth)
        assert (await storage.verify()).ok
        if done:
            break
    assert done, "the last time nothing failed"


async def test_deploy_that_is_cancelled_anywhere() -> None:
    done = False
    for steps in range(500):
        storage = InMemoryCheckpointStorage()
        await Deploy.stopped(storage)
        slow = wrapped(storage, Slow)
        going = asyncio.ensure_future(changed(Deploy.build(Deploy.NAMES), slow))
        for _ in range(steps):
            await asyncio.sleep(0)
        done = going.done()
        going.cancel()
        await asyncio.wait([going])
        for owner in asyncio.all_tasks():  # the run goes on by itself, if it got that far
            if owner.get_name().startswith("holdfast run"):
                await asyncio.wait([owner])
        run = await changed(Deploy.build(Deploy.NAMES), CheckpointStorage(storage.store))
        assert run.status is RunStatus.COMPLETED, steps
        Deploy.check(run.result().outputs, steps)
        if done:
            break
    assert done, "the last time it was through before it was cancelled"


@pytest.mark.parametrize("kind", ON_DISK)
async def test_deploy_in_three_stages(kind: str, tmp_path: Path) -> None:
    """Each with a storage of its own, and a failure in between."""
    place = Place(kind, tmp_path)
    await Deploy.stopped(place.storage)
    broken.add("work")
    run = await Deploy.build(Deploy.NAMES).resume(
        run_id="mine", storage=await place.reopened(), allow_graph_change=True
    )
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    broken.clear()
    more = {role: name + "2" for role, name in Deploy.NAMES.items()}
    said = await refusal(Deploy.build(more), await place.reopened(), allow=False)
    assert "executor 'charge' may be called 'charge2' now" in said
    since = {name: more[role] for role, name in Deploy.NAMES.items()}
    run = await changed(Deploy.build(more, {**more, **since}), place.storage)
    Deploy.check(run.result().outputs, "after two deploys")
    assert (await place.storage.verify()).ok
    await place.storage.close()


# -- keys of effects -------------------------------------------------------------------------------


async def test_keys_of_effects_over_crashes_deploys_restores_and_forks(place: Place) -> None:
    """The same as long as the run stands at the same start of a superstep; another after it went back, or forked."""
    keys: list[str] = []

    def build(*more: Any) -> Workflow:
        @executor(id="pay")
        async def pay(text: str, ctx: WorkflowContext[str]) -> str:
            keys.append(ctx.idempotency_key)
            did("pay")
            return text

        return chain(step("a"), pay, *more)

    async def fails(going: Awaitable[Run]) -> Run:
        run = await going
        with pytest.raises(ExecutorFailed):
            await soon(run.wait_for_completion())
        return run

    broken.add("pay")
    storage = place.storage
    run = await fails(build().start("x", run_id="mine", storage=storage))
    for more in ([], [step("c")], [step("c"), step("d")], [], []):
        resuming = build(*more).resume(run_id="mine", storage=storage, allow_graph_change=True)
        run = await fails(resuming)
    assert len(keys) == 6
    assert len(set(keys)) == 1
    place_of_pay = run.checkpoints[-1]
    await soon(run.restore_checkpoint(place_of_pay))
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    assert keys[-1] != keys[0], "it went back on purpose"
    await fails(build(step("c")).resume(run_id="mine", storage=storage, allow_graph_change=True))
    storage = await place.reopened()
    await fails(build(step("c")).resume(run_id="mine", storage=storage))
    assert len(set(keys[6:])) == 1
    for number, edits in enumerate([{}, {"note": "edited"}]):
        before = len(keys)
        fork = await fails(
            build(step("c")).fork(
                place_of_pay, edits=edits, run_id=f"fork{number}", storage=storage, allow_graph_change=True
            )
        )
        await fails(build(step("c")).resume(run_id=fork.run_id, storage=storage))
        await fails(build(step("d")).resume(run_id=fork.run_id, storage=storage, allow_graph_change=True))
        assert len(set(keys[before:])) == 1, edits
        assert keys[before] not in keys[:before]
    broken.clear()
    assert (await changed(build(step("c")), storage)).result().outputs == ["xac"]


# -- classes under other names ---------------------------------------------------------------------


def ordering(cls: Any) -> Workflow:
    class Order(Executor):
        @handler(input=cls, output=cls)
        async def ask(self, cart: Any, ctx: WorkflowContext[Any]) -> None:
            await ctx.queue_state_update("cart", cart, scope_name="S")
            await ctx.request_info(cart, bool)

        @response_handler(request=cls, input=bool, workflow_output=cls)
        async def pay(self, cart: Any, agreed: bool, ctx: WorkflowContext[Any, Any]) -> None:
            assert await ctx.read_state("cart", scope_name="S") == cart
            await ctx.yield_output(cart)

    return WorkflowBuilder(name="Order").set_start_executor(Order).build()


@pytest.mark.usefixtures("own_marks")
@pytest.mark.parametrize("marked", [False, True])
async def test_a_class_is_renamed_under_its_stored_name(place: Place, marked: bool) -> None:
    @dataclass
    class Cart:
        items: int

    if marked:
        checkpointable(name="Cart")(Cart)
    else:
        Cart.__qualname__ = "Cart"  # as if it stood in a module
    run = await ordering(Cart).start(Cart(3), run_id="mine", storage=place.storage)
    await soon(run.wait_for_completion())
    storage = await place.reopened()

    @checkpointable(name="Cart")
    @dataclass
    class Basket:
        items: int

    waiting = await ordering(Basket).resume(run_id="mine", storage=storage)
    (request,) = waiting.pending_requests
    result = await soon(waiting.result().respond({request.request_id: True}))
    assert result.outputs == [Basket(3)]


@pytest.mark.usefixtures("own_marks")
async def test_a_run_that_was_stored_with_the_names_of_classes_goes_on(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all were before fingerprints knew the names of stored data."""

    @checkpointable(name="Cart")
    @dataclass
    class Basket:
        items: int

    def nesting() -> Workflow:
        inner = WorkflowExecutor(ordering(Basket), id="inner")
        return WorkflowBuilder(name="Outer").set_start_executor(inner).build()

    with monkeypatch.context() as patch:
        patch.setattr(description, "stored_type_name", type_name)
        run = await nesting().start(Basket(3), run_id="mine", storage=storage)
        await soon(run.wait_for_completion())
    now = nesting()
    assert now.fingerprint != (await storage.load(run.checkpoints[-1])).fingerprint
    waiting = await now.resume(run_id="mine", storage=storage)
    assert (await soon(waiting.wait_for_completion())).status is RunStatus.WAITING


async def test_effect_of_a_renamed_executor_that_is_repeated_has_the_same_key(
    storage: CheckpointStorage,
) -> None:
    keys: list[str] = []

    def build(id: str, aliases: Mapping[str, str]) -> Workflow:
        @executor(id=id)
        async def pay(text: str, ctx: WorkflowContext[str]) -> str:
            keys.append(ctx.idempotency_key)
            did("pay")
            return text

        return chain(step("a"), pay, aliases=aliases)

    await stopped_at("pay", build("pay", {}), storage)
    await changed(build("charge", {"pay": "charge"}), storage)
    assert keys[0] == keys[1]
