"""Answers and the wish to cancel, left for a run by those who do not drive it."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    InvalidArgument,
    InvalidResponse,
    LimitExceeded,
    Limits,
    NotCheckpointable,
    RequestAlreadyAnswered,
    Run,
    RunNotFound,
    RunStatus,
    RunTaken,
    StorageError,
    Store,
    SuperStepStartedEvent,
    UnknownRequest,
    UnknownType,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowOutputEvent,
    WorkflowStatusEvent,
    WrongType,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from tests.support.durable import (
    Failing,
    Place,
    Slow,
    Wrapped,
    everything,
    head_of,
    info_of_run,
    outputs_of,
    watched,
    wrapped,
)
from tests.support.executors import Ask
from tests.support.modules import lifecycle
from tests.support.parts import Commit, Depth, Expected, Letter, RunId
from tests.support.runs import soon

DEAD = "nowhere:17:4711#1"
"""The owner of a run in a process that lives no longer, as far as any store can tell."""
QUESTION = "Ask.2.1"


# -- stores that halt ------------------------------------------------------------------------------


class Halt:
    """A call of a store that waits until it is let on."""

    def __init__(self, after: bool) -> None:
        self.after = after
        self.reached = asyncio.Event()
        self.on = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await soon(self.on.wait())


class Halting(Wrapped):
    """A store in which the next call of a method can be made to wait, before or after it happens."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._halts: dict[str, Halt] = {}

    def halt(self, method: str, after: bool = False) -> Halt:
        self._halts[method] = Halt(after)
        return self._halts[method]

    async def _call(self, method: str, *args: Any) -> Any:
        halt = self._halts.pop(method, None)
        if halt is not None and not halt.after:
            await halt.wait()
        result = await getattr(self.inner, method)(*args)
        if halt is not None and halt.after:
            await halt.wait()
        return result

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters: Sequence[Letter] = await self._call("commit", commit)
        return letters

    async def leave(self, *args: Any) -> Any:
        return await self._call("leave", *args)

    async def head(self, *args: Any) -> Any:
        return await self._call("head", *args)


# -- workflows -------------------------------------------------------------------------------------


class Scene:
    """A workflow that asks a question while another of its branches works, as long as the test wants."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        self.broken = False
        self.cancelled = 0
        self.calls: list[str] = []

    def build(self) -> Workflow:
        @executor(id="split")
        async def split(text: str) -> str:
            return text

        @executor(id="prepare")
        async def prepare(text: str) -> str:
            return text

        @executor(id="work")
        async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
            self.calls.append("work")
            self.entered.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if self.broken:
                raise RuntimeError("broken")
            return "worked"

        return (
            WorkflowBuilder(name="Panel")
            .set_start_executor(split)
            .add_fan_out_edges(split, [Ask, prepare])
            .add_edge(prepare, work)
            .build()
        )

    async def working(self, storage: CheckpointStorage) -> Run:
        """A run that works, with a question that is pending."""
        self.go_on.clear()
        self.entered.clear()
        run = await self.build().start("?", run_id="mine", storage=storage)
        await soon(self.entered.wait())
        return run

    async def resumed(self, storage: CheckpointStorage, **options: Any) -> Run:
        run = await self.build().resume(run_id="mine", storage=storage, **options)
        await soon(run.wait_for_completion())
        return run


@pytest.fixture
async def scene() -> Scene:
    return Scene()


async def give_to(storage: CheckpointStorage, owner: str) -> None:
    """Let the head of the run say that this owner drives it."""
    head = await head_of(storage, "mine")
    given = head._replace(status=RunStatus.RUNNING, owner=owner, token=head.token + 1, reason="")
    await storage.store.commit(Commit(given, Expected(head.checkpoint_id, head.token)))


async def letters_of(storage: CheckpointStorage, run_id: str = "mine") -> Sequence[Letter]:
    return await storage.store.inbox(RunId(run_id))


def alone(placed: Any = Ask) -> Workflow:
    return WorkflowBuilder(name="Alone").set_start_executor(placed).build()


async def waiting(storage: CheckpointStorage, workflow: Workflow | None = None, message: Any = "?") -> Run:
    """A run that waits for its answers."""
    run = await (workflow or alone()).start(message, run_id="mine", storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    return run


# -- runs in all states ----------------------------------------------------------------------------


async def _is_waiting(scene: Scene, storage: CheckpointStorage) -> None:
    scene.go_on.set()
    run = await scene.build().start("?", run_id="mine", storage=storage)
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING


async def _failed(scene: Scene, storage: CheckpointStorage) -> None:
    run = await scene.working(storage)
    scene.broken = True
    scene.go_on.set()
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    scene.broken = False


async def _stopped(scene: Scene, storage: CheckpointStorage) -> None:
    await (await scene.working(storage)).close()
    scene.go_on.set()


async def _cancelled(scene: Scene, storage: CheckpointStorage) -> None:
    await (await scene.working(storage)).cancel()
    scene.go_on.set()


async def _interrupted(scene: Scene, storage: CheckpointStorage) -> None:
    await _stopped(scene, storage)
    await give_to(storage, DEAD)


Making = Callable[[Scene, CheckpointStorage], Awaitable[None]]
AT_REST: dict[str, tuple[Making, RunStatus]] = {
    "waiting": (_is_waiting, RunStatus.WAITING),
    "failed": (_failed, RunStatus.FAILED),
    "stopped": (_stopped, RunStatus.STOPPED),
    "cancelled": (_cancelled, RunStatus.CANCELLED),
    "interrupted": (_interrupted, RunStatus.RUNNING),
}


@pytest.mark.parametrize("state", AT_REST)
async def test_answer_to_a_run_that_nobody_drives(
    place: Place, stranger: CheckpointStorage, scene: Scene, state: str
) -> None:
    make, status = AT_REST[state]
    await make(scene, place.storage)
    before = await everything(place.storage, "mine")
    told = await stranger.respond("mine", {QUESTION: "yes"})
    assert (told.run_id, told.status, told.interrupted) == ("mine", status, state == "interrupted")
    assert told == await info_of_run(place.storage, "mine")
    assert await everything(place.storage, "mine") == before, "a letter changes nothing of the run"
    run = await scene.resumed(place.storage)
    assert (run.status, sorted(run.result().outputs)) == (RunStatus.COMPLETED, ["? yes", "worked"])
    assert await letters_of(place.storage) == []
    assert (await place.storage.verify()).ok


async def test_answer_to_a_run_that_works(place: Place, stranger: CheckpointStorage, scene: Scene) -> None:
    run = await scene.working(place.storage)
    before = await everything(place.storage, "mine")
    told = await stranger.respond("mine", {QUESTION: "yes"})
    assert (told.status, told.interrupted) == (RunStatus.RUNNING, False)
    assert await everything(place.storage, "mine") == before
    scene.go_on.set()
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["worked", "? yes"])
    assert await letters_of(place.storage) == []
    made = [(c.superstep, c.phase.value, c.cause.value) for c in run.checkpoints]
    assert made == [
        (1, "start", "input"),
        (1, "end", "superstep"),
        (2, "start", "superstep"),
        (2, "end", "superstep"),
        (3, "start", "superstep"),
        (3, "end", "superstep"),
        (4, "start", "response"),
        (4, "end", "superstep"),
    ], "no checkpoint was made that an answer at that time would not make anyway"


async def test_answer_is_taken_with_a_commit_that_is_made_anyway(place: Place) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Count(Executor):
        @handler
        async def count(self, number: int, ctx: WorkflowContext[int]) -> None:
            if number == 2:
                entered.set()
                await go_on.wait()
            if number < 5:
                await ctx.send_message(number + 1)

    @executor(id="split")
    async def split(number: int, ctx: WorkflowContext[str | int]) -> None:
        await ctx.send_message("?", target_id="Ask")
        await ctx.send_message(number, target_id="Count")

    builder = WorkflowBuilder(name="Counting").set_start_executor(split)
    workflow = builder.add_edge(split, Ask).add_edge(split, Count).add_edge(Count, Count).build()
    run = await workflow.start(1, run_id="mine", storage=place.storage)
    await soon(entered.wait())
    await place.storage.respond("mine", {QUESTION: "yes"})
    go_on.set()
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["? yes"])
    causes = [(c.superstep, c.cause.value) for c in run.checkpoints if c.phase.value == "start"]
    assert causes == [
        (1, "input"),
        (2, "superstep"),
        (3, "superstep"),
        (4, "superstep"),  # the end before it was stored with a look into the inbox
        (5, "response"),
        (6, "superstep"),
    ]
    assert place.storage.counters.commits == 7, "the input and the end of each superstep"


async def test_answer_between_supersteps_is_taken_with_the_next_commit(
    storage: CheckpointStorage, scene: Scene
) -> None:
    """A letter that comes while the end of a superstep is stored waits for the next one, at most."""
    halting = Halting(storage.store)
    run = await scene.working(CheckpointStorage(halting))
    halt = halting.halt("commit", after=True)
    scene.go_on.set()
    await soon(halt.reached.wait())
    # The run waits now, but it does not know yet.
    told = await storage.respond("mine", {QUESTION: "yes"})
    assert told.status is RunStatus.WAITING
    halt.on.set()
    result = await soon(run.wait_for_completion())
    if result.status is RunStatus.WAITING:  # the letter came behind its last look
        result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["worked", "? yes"])


async def test_answer_at_the_last_moment_lets_the_run_go_on(storage: CheckpointStorage, scene: Scene) -> None:
    """It was left before the commit that would let the run wait, so the run does not wait."""
    halting = Halting(storage.store)
    run = await scene.working(CheckpointStorage(halting))
    halt = halting.halt("commit")
    scene.go_on.set()
    await soon(halt.reached.wait())
    told = await storage.respond("mine", {QUESTION: "yes"})
    assert told.status is RunStatus.RUNNING
    halt.on.set()
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["worked", "? yes"])
    assert await letters_of(storage) == []


async def test_resume_reads_the_letters_of_a_run_that_is_not_known_to_wait(place: Place) -> None:
    await (await waiting(place.storage)).close()
    storage = await place.reopened()
    await storage.respond("mine", {"Ask.1.1": "yes"})
    storage = await place.reopened()
    assert await outputs_of(alone().resume(run_id="mine", storage=storage)) == ["? yes"]


async def test_waiting_run_goes_on_with_a_letter_when_someone_waits_for_it(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage)
    await stranger.respond("mine", {"Ask.1.1": "yes"})
    assert run.status is RunStatus.WAITING
    results = await soon(asyncio.gather(*(run.wait_for_completion() for _ in range(3))))
    assert [result.outputs for result in results] == [["? yes"]] * 3
    assert [c.cause.value for c in run.checkpoints] == ["input", "superstep", "response", "superstep"]


async def test_nobody_answers_a_waiting_run(place: Place) -> None:
    run = await waiting(place.storage)
    before = await everything(place.storage, "mine")
    for _ in range(3):
        assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING
    assert await everything(place.storage, "mine") == before


# -- which answers are taken -----------------------------------------------------------------------


@dataclass
class Verdict:
    approved: bool
    why: str = ""


@checkpointable(name="inbox-scene-vote")
@dataclass
class Vote:
    number: int


class Judge(Executor):
    """Asks for one of each: a text, a class of the workflow, a class that is registered."""

    @handler
    async def ask(self, kinds: list, ctx: WorkflowContext) -> None:
        types = {"str": str, "verdict": Verdict, "vote": Vote, "int": int, "float": float}
        for kind in kinds:
            await ctx.request_info(kind, response_type=types[kind])

    @response_handler
    async def text(self, kind: str, answer: str | float, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def verdict(self, kind: str, answer: Verdict, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def vote(self, kind: str, answer: Vote, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(answer)

    @response_handler
    async def number(self, kind: str, answer: int, ctx: WorkflowContext[None, Any]) -> None:
        await ctx.yield_output(answer)


async def test_answers_are_checked_and_converted(place: Place) -> None:
    await waiting(place.storage, alone(Judge), ["verdict", "vote", "str"])
    answers = {"Judge.1.1": {"approved": True, "why": "so"}, "Judge.1.2": Vote(7), "Judge.1.3": "t"}
    await place.storage.respond("mine", answers)
    storage = await place.reopened()
    outputs = await outputs_of(alone(Judge).resume(run_id="mine", storage=storage))
    assert outputs == [Verdict(True, "so"), Vote(7), "t"]


async def test_who_never_saw_the_workflow_answers_with_what_is_known_everywhere(
    place: Place, stranger: CheckpointStorage
) -> None:
    await waiting(place.storage, alone(Judge), ["str", "vote", "int"])
    await stranger.respond("mine", {"Judge.1.1": "text", "Judge.1.3": 3})
    await stranger.respond("mine", {"Judge.1.2": {"number": 5}})
    outputs = await outputs_of(alone(Judge).resume(run_id="mine", storage=place.storage))
    assert outputs == ["text", Vote(5), 3]


async def test_who_does_not_know_the_type_of_the_answer_is_told(
    place: Place, stranger: CheckpointStorage
) -> None:
    await waiting(place.storage, alone(Judge), ["verdict"])
    with pytest.raises(UnknownType, match="Verdict"):
        await stranger.respond("mine", {"Judge.1.1": Verdict(True)})
    assert await letters_of(place.storage) == []
    await place.storage.respond("mine", {"Judge.1.1": Verdict(True)})
    assert await outputs_of(alone(Judge).resume(run_id="mine", storage=place.storage)) == [Verdict(True)]


async def test_an_answer_needs_only_its_own_type(place: Place, stranger: CheckpointStorage) -> None:
    """That another question of the run asks for something unknown here is no reason to refuse this answer."""
    run = await waiting(place.storage, alone(Judge), ["verdict", "str"])
    await stranger.respond("mine", {"Judge.1.2": "text"})
    assert (await soon(run.wait_for_completion())).outputs == ["text"]
    with pytest.raises(UnknownType):
        await stranger.respond("mine", {"Judge.1.1": Verdict(True)})


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ({"Judge.1.1": 5}, InvalidResponse, r"the response to request 'Judge\.1\.1' of executor 'Judge'"),
        ({"Judge.1.1": None}, InvalidResponse, "cannot be taken"),
        (
            {"Judge.7.7": "t"},
            UnknownRequest,
            r"no request 'Judge\.7\.7' in this run; pending are: 'Judge\.1\.1'",
        ),
        ({"": "t"}, UnknownRequest, "no request ''"),
        ({"Judge.1.1": "t", "Judge.1.2": "no number"}, InvalidResponse, r"'Judge\.1\.2'"),
        ({"Judge.1.1": "t", "nobody": 1}, UnknownRequest, "nobody"),
        ({}, InvalidArgument, "no response was given to run mine"),
        (None, WrongType, "responses are a dict of request ids and answers, not a NoneType"),
        ([("Judge.1.1", "t")], WrongType, "not a list"),
        ("Judge.1.1", WrongType, "not a str"),
    ],
)
async def test_what_is_no_answer_leaves_nothing(
    place: Place, answers: Any, error: type[Exception], message: str
) -> None:
    run = await waiting(place.storage, alone(Judge), ["str", "int"])
    before = await everything(place.storage, "mine")
    with pytest.raises(error, match=message):
        await place.storage.respond("mine", answers)
    assert await letters_of(place.storage) == []
    assert await everything(place.storage, "mine") == before
    await place.storage.respond("mine", {"Judge.1.1": "t", "Judge.1.2": 2})
    assert (await soon(run.wait_for_completion())).outputs == ["t", 2]


async def test_answer_that_cannot_be_stored(storage: CheckpointStorage) -> None:
    class Anything(Executor):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext) -> None:
            await ctx.request_info(text, response_type=object)

        @response_handler
        async def answered(self, text: str, answer: object, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(repr(answer))

    await waiting(storage, alone(Anything))
    with pytest.raises(NotCheckpointable, match="response"):
        await storage.respond("mine", {"Anything.1.1": asyncio.Lock()})
    assert await letters_of(storage) == []


@pytest.mark.parametrize(
    ("run_id", "error"), [("nobody", RunNotFound), ("", InvalidArgument), (5, InvalidArgument)]
)
async def test_letters_to_a_run_that_is_not_there(place: Place, run_id: Any, error: type[Exception]) -> None:
    await waiting(place.storage)
    with pytest.raises(error):
        await place.storage.respond(run_id, {"Ask.1.1": "yes"})
    with pytest.raises(error):
        await place.storage.cancel(run_id)
    assert [run.run_id for run in await place.storage.list_runs()] == ["mine"]
    assert await letters_of(place.storage) == []


async def test_second_answer_is_refused_before_and_after_the_first_was_taken(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage)
    await stranger.respond("mine", {"Ask.1.1": "yes"})
    before = await letters_of(place.storage)
    for second in (stranger.respond, place.storage.respond):
        with pytest.raises(RequestAlreadyAnswered) as caught:
            await second("mine", {"Ask.1.1": "no"})
        assert (
            str(caught.value)
            == "request 'Ask.1.1' was answered before, or expired; only what comes first counts"
        )
    with pytest.raises(RequestAlreadyAnswered):
        await run.respond({"Ask.1.1": "no"})
    assert await letters_of(place.storage) == before
    assert (await soon(run.wait_for_completion())).outputs == ["? yes"]
    with pytest.raises(RequestAlreadyAnswered):
        await stranger.respond("mine", {"Ask.1.1": "no"})
    assert await letters_of(place.storage) == []
    assert await outputs_of(alone().resume(run_id="mine", storage=place.storage)) == ["? yes"]


async def test_several_answers_of_which_one_is_late_leave_nothing(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, alone(Judge), ["str", "int", "str"])
    await stranger.respond("mine", {"Judge.1.2": 2})
    with pytest.raises(RequestAlreadyAnswered, match=r"^request 'Judge\.1\.2' was answered"):
        await stranger.respond("mine", {"Judge.1.1": "one", "Judge.1.2": 22, "Judge.1.3": "three"})
    assert len(await letters_of(place.storage)) == 1
    result = await soon(run.wait_for_completion())
    assert (result.outputs, len(result.pending_requests)) == ([2], 2)
    await stranger.respond("mine", {"Judge.1.3": "three", "Judge.1.1": "one"})
    assert (await soon(run.wait_for_completion())).outputs == [2, "one", "three"]


async def test_of_many_who_answer_at_once_one_is_heard(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage)
    given = [place.storage, stranger] * 4
    results = await soon(
        asyncio.gather(
            *(one.respond("mine", {"Ask.1.1": f"a{number}"}) for number, one in enumerate(given)),
            run.respond({"Ask.1.1": "mine"}),
            return_exceptions=True,
        )
    )
    refused = [result for result in results if isinstance(result, BaseException)]
    assert {type(error) for error in refused} == {RequestAlreadyAnswered}
    assert len(refused) == 8
    (won,) = [number for number, result in enumerate(results) if not isinstance(result, BaseException)]
    expected = "? mine" if won == 8 else f"? a{won}"
    assert (await soon(run.wait_for_completion())).outputs == [expected]


async def test_answers_are_delivered_in_the_order_of_the_questions(
    place: Place, stranger: CheckpointStorage
) -> None:
    run = await waiting(place.storage, alone(Judge), ["str"] * 4)
    for number in (4, 2, 3, 1):
        await stranger.respond("mine", {f"Judge.1.{number}": f"a{number}"})
    assert (await soon(run.wait_for_completion())).outputs == ["a1", "a2", "a3", "a4"]
    assert [c.cause.value for c in run.checkpoints].count("response") == 1


async def test_many_answers_at_once(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage, alone(Judge), ["int"] * 150)
    await stranger.respond("mine", {f"Judge.1.{n}": n for n in range(1, 151)})
    assert (await soon(run.wait_for_completion())).outputs == list(range(1, 151))
    assert await letters_of(place.storage) == []


async def test_big_answer(place: Place, stranger: CheckpointStorage) -> None:
    big = "".join(map(str, range(900_000)))
    assert len(big) > 5_000_000
    run = await waiting(place.storage)
    await stranger.respond("mine", {"Ask.1.1": big})
    (output,) = (await soon(run.wait_for_completion())).outputs
    assert output == "? " + big
    assert await letters_of(place.storage) == []
    storage = await place.reopened()
    (again,) = await outputs_of(alone().resume(run_id="mine", storage=storage))
    assert again == output
    assert (await storage.verify()).ok


async def test_answer_to_a_question_of_a_nested_workflow(place: Place, stranger: CheckpointStorage) -> None:
    def build() -> Workflow:
        middle = (
            WorkflowBuilder(name="Middle").set_start_executor(WorkflowExecutor(alone(), id="legal")).build()
        )
        return alone(WorkflowExecutor(middle, id="review"))

    run = await waiting(place.storage, build())
    (pending,) = run.pending_requests
    assert pending.executor_id == "review#1/legal#1/Ask"
    await stranger.respond("mine", {pending.request_id: "yes"})
    assert await outputs_of(build().resume(run_id="mine", storage=place.storage)) == ["? yes"]


# -- answers and resuming --------------------------------------------------------------------------


@pytest.mark.parametrize("state", AT_REST)
async def test_resume_with_an_answer_to_what_a_letter_answered(
    place: Place, scene: Scene, state: str
) -> None:
    await AT_REST[state][0](scene, place.storage)
    await place.storage.respond("mine", {QUESTION: "first"})
    before = await info_of_run(place.storage, "mine")
    checkpoints = await place.storage.list_checkpoints(run_id="mine")
    with pytest.raises(RequestAlreadyAnswered):
        await scene.build().resume(run_id="mine", storage=place.storage, responses={QUESTION: "second"})
    assert await place.storage.list_checkpoints(run_id="mine") == checkpoints
    assert await info_of_run(place.storage, "mine") == before, "it is as well as it was"
    run = await scene.resumed(place.storage)
    assert sorted(run.result().outputs) == ["? first", "worked"]


async def test_resume_with_answers_beside_letters(place: Place) -> None:
    await waiting(place.storage, alone(Judge), ["str", "int"])
    await place.storage.respond("mine", {"Judge.1.1": "letter"})
    run = await alone(Judge).resume(run_id="mine", storage=place.storage, responses={"Judge.1.2": 2})
    assert (await soon(run.wait_for_completion())).outputs == ["letter", 2]


@pytest.mark.parametrize("leave", ["close", "cancel", "lose"])
async def test_answer_that_was_not_acted_on_waits_for_the_next_owner(
    place: Place, scene: Scene, leave: str
) -> None:
    run = await scene.working(place.storage)
    await place.storage.respond("mine", {QUESTION: "yes"})
    if leave == "lose":
        await give_to(place.storage, DEAD)
        await run.close()
    else:
        await getattr(run, leave)()
    assert len(await letters_of(place.storage)) == 1
    scene.go_on.set()
    resumed = await scene.resumed(place.storage)
    assert sorted(resumed.result().outputs) == ["? yes", "worked"]
    assert await letters_of(place.storage) == []


async def test_answer_of_a_run_object_is_durable_before_it_is_acted_on(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await run.respond({QUESTION: "yes"})
    await give_to(place.storage, DEAD)
    await run.close()
    scene.go_on.set()
    resumed = await scene.resumed(place.storage)
    assert sorted(resumed.result().outputs) == ["? yes", "worked"]


async def test_answer_by_who_lost_the_run_reaches_its_owner(place: Place, scene: Scene) -> None:
    loser = await scene.working(place.storage)
    winner = await scene.build().resume(run_id="mine", storage=place.storage, take_over=True)
    await loser.respond({QUESTION: "yes"})
    scene.go_on.set()
    with pytest.raises(RunTaken):
        await soon(loser.wait_for_completion())
    result = await soon(winner.wait_for_completion())
    if result.status is RunStatus.WAITING:
        result = await soon(winner.wait_for_completion())
    assert sorted(result.outputs) == ["? yes", "worked"]


async def test_failure_after_an_answer_was_taken_does_not_ask_again(place: Place) -> None:
    broken = [True]

    class Fragile(Ask):
        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
            if broken:
                raise RuntimeError("broken")
            await ctx.yield_output(f"{text} {answer}")

    run = await waiting(place.storage, alone(Fragile))
    await place.storage.respond("mine", {"Fragile.1.1": "yes"})
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    with pytest.raises(RequestAlreadyAnswered):
        await place.storage.respond("mine", {"Fragile.1.1": "no"})
    broken.clear()
    assert await outputs_of(alone(Fragile).resume(run_id="mine", storage=place.storage)) == ["? yes"]


# -- going back, and forks -------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True], ids=["in the inbox", "acted on"])
@pytest.mark.parametrize("back", [0, 1], ids=["before the question", "at the question"])
async def test_answer_from_before_going_back_does_not_count(
    place: Place, stranger: CheckpointStorage, back: int, taken: bool
) -> None:
    run = await waiting(place.storage)
    checkpoint = run.checkpoints[back]
    await stranger.respond("mine", {"Ask.1.1": "then"})
    if taken:
        assert (await soon(run.wait_for_completion())).outputs == ["? then"]
    await soon(run.restore_checkpoint(checkpoint))
    result = await soon(run.wait_for_completion())
    assert (result.status, [r.request_id for r in result.pending_requests]) == (
        RunStatus.WAITING,
        ["Ask.1.1"],
    )
    await stranger.respond("mine", {"Ask.1.1": "now"})
    with pytest.raises(RequestAlreadyAnswered):
        await stranger.respond("mine", {"Ask.1.1": "later"})
    assert (await soon(run.wait_for_completion())).outputs == ["? now"]
    assert await letters_of(place.storage) == []
    assert (await place.storage.verify()).ok


async def test_answer_from_before_a_resume_from_earlier_does_not_count(place: Place) -> None:
    run = await waiting(place.storage)
    await place.storage.respond("mine", {"Ask.1.1": "then"})
    resumed = await alone().resume(run.checkpoints[0], storage=place.storage)
    assert (await soon(resumed.wait_for_completion())).status is RunStatus.WAITING
    storage = await place.reopened()
    again = await alone().resume(run_id="mine", storage=storage)
    assert (await soon(again.wait_for_completion())).status is RunStatus.WAITING
    await storage.respond("mine", {"Ask.1.1": "now"})
    assert (await soon(again.wait_for_completion())).outputs == ["? now"]


async def test_resume_from_the_question_on_which_the_run_stands_takes_the_answer(place: Place) -> None:
    run = await waiting(place.storage)
    await place.storage.respond("mine", {"Ask.1.1": "yes"})
    assert await outputs_of(alone().resume(run.checkpoints[-1], storage=place.storage)) == ["? yes"]


async def test_fork_has_an_inbox_of_its_own(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage)
    await stranger.respond("mine", {"Ask.1.1": "origin"})
    fork = await alone().fork(run.checkpoints[-1], run_id="fork", storage=place.storage)
    assert (await soon(fork.wait_for_completion())).status is RunStatus.WAITING
    assert await letters_of(place.storage, "fork") == []
    await stranger.respond("fork", {"Ask.1.1": "fork"})
    assert (await soon(fork.wait_for_completion())).outputs == ["? fork"]
    assert (await soon(run.wait_for_completion())).outputs == ["? origin"]
    second = await alone().fork(run.checkpoints[1], run_id="second", storage=place.storage)
    await soon(second.wait_for_completion())
    await stranger.respond("second", {"Ask.1.1": "again"})
    assert (await soon(second.wait_for_completion())).outputs == ["? again"]


async def test_answer_that_was_on_its_way_while_the_run_was_answered(storage: CheckpointStorage) -> None:
    """Whoever looked before and leaves the answer afterwards is refused, though no letter is there any more."""
    halting = Halting(storage.store)
    run = await waiting(storage)
    halt = halting.halt("leave")
    late = asyncio.ensure_future(CheckpointStorage(halting).respond("mine", {"Ask.1.1": "late"}))
    await soon(halt.reached.wait())
    await run.respond({"Ask.1.1": "early"})
    assert (await soon(run.wait_for_completion())).outputs == ["? early"]
    halt.on.set()
    with pytest.raises(RequestAlreadyAnswered):
        await soon(late)
    assert await letters_of(storage) == []


async def test_answer_that_was_on_its_way_while_the_run_went_back(storage: CheckpointStorage) -> None:
    halting = Halting(storage.store)
    run = await waiting(storage)
    halt = halting.halt("leave")
    late = asyncio.ensure_future(CheckpointStorage(halting).respond("mine", {"Ask.1.1": "for then"}))
    await soon(halt.reached.wait())
    await soon(run.restore_checkpoint(run.checkpoints[0]))
    await soon(run.wait_for_completion())
    halt.on.set()
    await soon(asyncio.wait([late]))
    assert (await soon(run.wait_for_completion())).status is RunStatus.WAITING, "it was meant for then"
    await storage.respond("mine", {"Ask.1.1": "for now"})
    assert (await soon(run.wait_for_completion())).outputs == ["? for now"]
    assert late.exception() is None or isinstance(late.exception(), UnknownRequest | RequestAlreadyAnswered)


# -- cancelling ------------------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_INBOX_SECONDS", 0.005)


@pytest.mark.usefixtures("looks_often")
async def test_run_in_a_long_handler_is_cancelled(
    place: Place, stranger: CheckpointStorage, scene: Scene
) -> None:
    run = await scene.working(place.storage)
    told = await stranger.cancel("mine")
    assert (told.run_id, told.status) == ("mine", RunStatus.RUNNING), "whoever drives it ends it soon"
    result = await soon(run.wait_for_completion())
    assert (result.status, scene.cancelled) == (RunStatus.CANCELLED, 1)
    assert (await info_of_run(stranger, "mine")).status is RunStatus.CANCELLED
    assert await letters_of(place.storage) == []
    scene.go_on.set()
    resumed = await scene.resumed(place.storage)
    assert (resumed.status, resumed.result().outputs) == (RunStatus.WAITING, ["worked"])


@pytest.mark.usefixtures("looks_often")
async def test_run_that_goes_on_for_long_is_looked_after_all_the_time(storage: CheckpointStorage) -> None:
    """Also behind supersteps, answers and a restore."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Ask):
        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await go_on.wait()

    run = await waiting(storage, alone(Slow))
    await run.respond({"Slow.1.1": "one"})
    await soon(entered.wait())
    entered.clear()
    await soon(run.restore_checkpoint(run.checkpoints[1]))
    await soon(run.wait_for_completion())
    await run.respond({"Slow.1.1": "two"})
    await soon(entered.wait())
    await storage.cancel("mine")
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED


async def test_wish_to_cancel_is_seen_at_the_next_checkpoint(
    place: Place, stranger: CheckpointStorage, scene: Scene
) -> None:
    run = await scene.working(place.storage)
    await stranger.cancel("mine")
    scene.go_on.set()  # before anybody looked
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.CANCELLED, ["worked"])
    assert scene.cancelled == 0
    assert await letters_of(place.storage) == []
    resumed = await scene.resumed(place.storage, responses={QUESTION: "yes"})
    assert resumed.result().outputs == ["worked", "? yes"]


async def test_wish_to_cancel_keeps_the_next_superstep_from_beginning(storage: CheckpointStorage) -> None:
    entered, go_on, calls = asyncio.Event(), asyncio.Event(), []

    @executor(id="first")
    async def first(text: str) -> str:
        entered.set()
        await go_on.wait()
        return text

    @executor(id="second")
    async def second(text: str, ctx: WorkflowContext[None, str]) -> str:
        calls.append(text)
        return text

    workflow = WorkflowBuilder(name="Two").set_start_executor(first).add_edge(first, second).build()
    run = await workflow.start("x", run_id="mine", storage=storage)
    await soon(entered.wait())
    await storage.cancel("mine")
    go_on.set()
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    assert calls == []
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == ["x"]


async def test_waiting_run_is_cancelled_at_once(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage)
    before = await place.storage.list_checkpoints(run_id="mine")
    told = await stranger.cancel("mine")
    assert (told.status, told) == (RunStatus.CANCELLED, await info_of_run(place.storage, "mine"))
    assert await place.storage.list_checkpoints(run_id="mine") == before
    # Who holds it cannot go on with it, and does it no harm.

    await run.respond({"Ask.1.1": "for later"})
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.CANCELLED


async def test_cancelled_question_can_be_answered_after_all(place: Place) -> None:
    await waiting(place.storage)
    await place.storage.cancel("mine")
    resumed = await alone().resume(run_id="mine", storage=place.storage)
    assert [r.request_id for r in (await soon(resumed.wait_for_completion())).pending_requests] == ["Ask.1.1"]
    await place.storage.respond("mine", {"Ask.1.1": "yes"})
    assert (await soon(resumed.wait_for_completion())).outputs == ["? yes"]


async def test_interrupted_run_is_cancelled_at_once(
    place: Place, stranger: CheckpointStorage, scene: Scene
) -> None:
    await _interrupted(scene, place.storage)
    told = await stranger.cancel("mine")
    assert (told.status, told.interrupted) == (RunStatus.CANCELLED, False)
    head = await head_of(place.storage, "mine")
    assert (head.status, head.owner) == (RunStatus.CANCELLED, "")
    assert await letters_of(place.storage) == []
    assert (await scene.resumed(place.storage)).status is RunStatus.WAITING


@pytest.mark.parametrize("state", ["failed", "stopped", "cancelled", "completed"])
async def test_run_that_is_over_stays_as_it_is(place: Place, scene: Scene, state: str) -> None:
    if state == "completed":
        await _is_waiting(scene, place.storage)
        await scene.resumed(place.storage, responses={QUESTION: "yes"})
    else:
        await AT_REST[state][0](scene, place.storage)
    before = await everything(place.storage, "mine")
    told = await place.storage.cancel("mine")
    assert told.status.value == state
    assert await everything(place.storage, "mine") == before
    assert await letters_of(place.storage) == []


@pytest.mark.usefixtures("looks_often")
async def test_cancelled_twice_and_resumed(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await asyncio.gather(*(place.storage.cancel("mine") for _ in range(3)))
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    await place.storage.cancel("mine")
    scene.go_on.set()
    resumed = await scene.resumed(place.storage, responses={QUESTION: "yes"})
    assert sorted(resumed.result().outputs) == ["? yes", "worked"]


async def test_cancelled_by_letter_and_by_its_object_and_resumed(place: Place, scene: Scene) -> None:
    """It was cancelled; who resumes it wants it to go on."""
    run = await scene.working(place.storage)
    await place.storage.cancel("mine")
    await run.cancel()
    assert (await info_of_run(place.storage, "mine")).status is RunStatus.CANCELLED
    scene.go_on.set()
    assert (await scene.resumed(place.storage)).status is RunStatus.WAITING


async def test_wish_that_the_owner_did_not_live_to_see(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await place.storage.cancel("mine")
    await give_to(place.storage, DEAD)
    await run.close()
    assert len(await letters_of(place.storage)) == 1
    scene.go_on.set()
    scene.calls.clear()
    assert (await scene.resumed(place.storage)).status is RunStatus.CANCELLED
    assert (scene.calls, await letters_of(place.storage)) == ([], [])
    assert (await scene.resumed(place.storage)).status is RunStatus.WAITING


async def test_wish_that_the_owner_did_not_live_to_see_and_another(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await place.storage.cancel("mine")
    await give_to(place.storage, DEAD)
    await run.close()
    assert (await place.storage.cancel("mine")).status is RunStatus.CANCELLED
    scene.go_on.set()
    assert (await scene.resumed(place.storage)).status is RunStatus.WAITING, "it was cancelled already"


@pytest.mark.parametrize("end", ["completed", "waiting", "failed", "stopped"])
async def test_run_that_comes_to_rest_while_it_is_cancelled(storage: CheckpointStorage, end: str) -> None:
    """It was running when whoever cancels it looked, and is not when the letter is left."""
    entered, go_on, broken = asyncio.Event(), asyncio.Event(), [end == "failed"]

    class Work(Ask):
        @handler
        async def ask(self, text: str, ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await go_on.wait()
            if broken[0]:
                raise RuntimeError("broken")
            if end == "waiting":
                await ctx.request_info(text, response_type=str)
            else:
                await ctx.yield_output("done")

    run = await alone(Work).start("?", run_id="mine", storage=storage)
    await soon(entered.wait())
    halting = Halting(storage.store)
    halt = halting.halt("leave")
    cancelling = asyncio.ensure_future(CheckpointStorage(halting).cancel("mine"))
    await soon(halt.reached.wait())
    if end == "stopped":
        await run.close()
    go_on.set()
    await soon(asyncio.wait([asyncio.ensure_future(run.wait_for_completion())]))
    assert run.status.value == end
    halt.on.set()
    told = await soon(cancelling)
    expected = RunStatus.CANCELLED if end == "waiting" else RunStatus(end)
    assert told.status is expected
    assert (await info_of_run(storage, "mine")).status is expected
    broken[0] = False
    # Whatever it was, it is not cancelled for ever.
    resumed = await alone(Work).resume(run_id="mine", storage=storage)
    if end != "waiting":
        result = await soon(resumed.wait_for_completion())
        if result.status is RunStatus.CANCELLED:  # the letter was in time for that
            result = await outcome_of(alone(Work), storage)
        assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["done"])
        return
    await soon(resumed.wait_for_completion())
    again = await alone(Work).resume(run_id="mine", storage=storage, responses={"Work.1.1": "yes"})
    assert (await soon(again.wait_for_completion())).outputs == ["? yes"]


async def outcome_of(workflow: Workflow, storage: CheckpointStorage) -> Any:
    return await soon((await workflow.resume(run_id="mine", storage=storage)).wait_for_completion())


async def test_run_that_was_complete_when_the_letter_came_stays_complete(storage: CheckpointStorage) -> None:
    """The letter is left while the last commit is on its way: then there is nothing left to cancel."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="work")
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        entered.set()
        await go_on.wait()
        return text

    workflow = alone(work)
    halting = Halting(storage.store)
    run = await workflow.start("x", run_id="mine", storage=CheckpointStorage(halting))
    await soon(entered.wait())
    halt = halting.halt("commit")
    go_on.set()
    await soon(halt.reached.wait())
    assert (await storage.cancel("mine")).status is RunStatus.RUNNING
    halt.on.set()
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["x"])
    assert (await info_of_run(storage, "mine")).status is RunStatus.COMPLETED
    before = await everything(storage, "mine")
    for _ in range(2):
        again = await outcome_of(workflow, storage)
        assert (again.status, again.outputs) == (RunStatus.COMPLETED, ["x"])
    assert await everything(storage, "mine") == before


async def test_old_wish_does_not_cancel_what_was_begun_again(storage: CheckpointStorage) -> None:
    """A letter that came too late for a complete run is not meant for the run that goes back on purpose."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    @executor(id="work")
    async def work(text: str, ctx: WorkflowContext[None, str]) -> str:
        entered.set()
        await go_on.wait()
        return text

    halting = Halting(storage.store)
    run = await alone(work).start("x", run_id="mine", storage=CheckpointStorage(halting))
    await soon(entered.wait())
    halt = halting.halt("commit")
    go_on.set()
    await soon(halt.reached.wait())
    await storage.cancel("mine")
    halt.on.set()
    await soon(run.wait_for_completion())
    await soon(run.restore_checkpoint(run.checkpoints[0]))
    result = await soon(run.wait_for_completion())
    assert (result.status, result.outputs) == (RunStatus.COMPLETED, ["x"])


@pytest.mark.usefixtures("looks_often")
async def test_answer_and_wish_to_cancel(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await place.storage.respond("mine", {QUESTION: "yes"})
    await place.storage.cancel("mine")
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    scene.go_on.set()
    resumed = await scene.resumed(place.storage)
    assert sorted(resumed.result().outputs) == ["? yes", "worked"], "the answer was not lost with it"


async def test_waiting_run_with_an_answer_is_cancelled(place: Place) -> None:
    await waiting(place.storage)
    await place.storage.respond("mine", {"Ask.1.1": "yes"})
    assert (await place.storage.cancel("mine")).status is RunStatus.CANCELLED
    assert await outputs_of(alone().resume(run_id="mine", storage=place.storage)) == ["? yes"]


async def test_wish_does_not_reach_a_fork(place: Place, scene: Scene) -> None:
    run = await scene.working(place.storage)
    await place.storage.cancel("mine")
    scene.entered.clear()
    fork = await scene.build().fork(run.checkpoints[-1], run_id="fork", storage=place.storage)
    await soon(scene.entered.wait())
    scene.go_on.set()
    assert (await soon(fork.wait_for_completion())).outputs == ["worked"]
    assert fork.status is RunStatus.WAITING


async def test_run_that_is_resumed_while_it_is_cancelled(storage: CheckpointStorage) -> None:
    """It waited when whoever cancels it looked; then someone answered it, and it works."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Work(Ask):
        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
            entered.set()
            await go_on.wait()
            await ctx.yield_output(answer)

    run = await waiting(storage, alone(Work))
    halting = Halting(storage.store)
    halt = halting.halt("commit")
    cancelling = asyncio.ensure_future(CheckpointStorage(halting).cancel("mine"))
    await soon(halt.reached.wait())
    await run.respond({"Work.1.1": "yes"})
    await soon(entered.wait())
    halt.on.set()
    assert (await soon(cancelling)).status is RunStatus.RUNNING, "its driver was asked"
    go_on.set()
    result = await soon(run.wait_for_completion())
    assert result.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
    assert (await info_of_run(storage, "mine")).status is result.status


@pytest.mark.usefixtures("looks_often")
async def test_handlers_have_time_to_clean_up(place: Place) -> None:
    entered, cleaned = asyncio.Event(), []

    @executor(id="tidy")
    async def tidy(text: str, ctx: WorkflowContext[None, str]) -> str:
        try:
            entered.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned.append(text)
        return text

    run = await alone(tidy).start("x", run_id="mine", storage=place.storage)
    await soon(entered.wait())
    await place.storage.cancel("mine")
    assert (await soon(run.wait_for_completion())).status is RunStatus.CANCELLED
    assert cleaned == ["x"]


# -- letters at any moment -------------------------------------------------------------------------


async def stepped(steps: int) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)


async def answered_at_once(storage: CheckpointStorage, answer: str) -> RunStatus:
    """Answer the question as soon as it is there; how the run stood when the letter was left."""
    while True:
        try:
            return (await storage.respond("mine", {QUESTION: answer})).status
        except UnknownRequest:
            await asyncio.sleep(0)


async def test_answer_at_any_moment_reaches_the_run() -> None:
    """Whoever is told that the run is driven need not do anything more."""
    told: set[RunStatus] = set()
    for steps in range(500):
        storage, scene = InMemoryCheckpointStorage(), Scene()
        scene.go_on.set()
        run = await scene.build().start("?", run_id="mine", storage=wrapped(storage, Slow))
        await stepped(steps)
        status = await soon(answered_at_once(storage, "yes"))
        told.add(status)
        result = await soon(run.wait_for_completion())
        if status is RunStatus.WAITING and result.status is RunStatus.WAITING:
            result = await soon(run.wait_for_completion())
        assert result.status is RunStatus.COMPLETED, (steps, status)
        assert sorted(result.outputs) == ["? yes", "worked"]
        assert await letters_of(storage) == []
        if status is RunStatus.WAITING:  # from then on it is always the same
            break
    assert told == {RunStatus.RUNNING, RunStatus.WAITING}


async def test_wish_to_cancel_at_any_moment_reaches_the_run() -> None:
    told: set[RunStatus] = set()
    for steps in range(500):
        storage, scene = InMemoryCheckpointStorage(), Scene()
        scene.go_on.set()
        run = await scene.build().start("?", run_id="mine", storage=wrapped(storage, Slow))
        await stepped(steps)
        status = (await soon(storage.cancel("mine"))).status
        result = await soon(run.wait_for_completion())
        told.add(status)
        assert (await info_of_run(storage, "mine")).status is RunStatus.CANCELLED, (steps, status)
        if status is RunStatus.RUNNING:
            assert result.status is RunStatus.CANCELLED
        assert await letters_of(storage) == []
        resumed = await scene.resumed(storage)
        assert resumed.status is RunStatus.WAITING, "it is not cancelled twice"
        await storage.respond("mine", {QUESTION: "yes"})
        assert sorted((await soon(resumed.wait_for_completion())).outputs) == ["? yes", "worked"]
        if status is RunStatus.CANCELLED:  # it waited already
            break
    assert told == {RunStatus.RUNNING, RunStatus.CANCELLED}


async def test_answer_whose_sender_left_at_any_moment_is_there_or_not() -> None:
    """And whoever tries again is either heard or told that the answer was given."""
    heard: set[bool] = set()
    for steps in range(12):
        storage = InMemoryCheckpointStorage()
        run = await waiting(storage)
        halting = Halting(storage.store)
        before = halting.halt("leave")
        sending = asyncio.ensure_future(CheckpointStorage(halting).respond("mine", {"Ask.1.1": "first"}))
        await soon(before.reached.wait())
        if steps % 2:
            before.on.set()
            await stepped(steps // 2)
        sending.cancel()
        await asyncio.wait([sending])
        try:
            await storage.respond("mine", {"Ask.1.1": "second"})
            heard.add(False)
            expected = "? second"
        except RequestAlreadyAnswered:
            heard.add(True)
            expected = "? first"
        assert (await soon(run.wait_for_completion())).outputs == [expected]
    assert heard == {False, True}


@pytest.mark.parametrize("happens", [False, True], ids=["before", "after"])
async def test_answer_is_acted_on_though_the_disk_fails(place: Place, happens: bool) -> None:
    """At any commit of the run that takes it."""
    finished = False
    for nth in range(1, 9):
        scene, run_id = Scene(), f"run{nth}"
        scene.go_on.set()
        workflow = scene.build()
        run = await workflow.start("?", run_id=run_id, storage=place.storage)
        await soon(run.wait_for_completion())
        await place.storage.respond(run_id, {QUESTION: "yes"})
        failing = Failing(place.storage.store, nth, happens)
        try:
            broken = await workflow.resume(run_id=run_id, storage=CheckpointStorage(failing))
            finished = (await soon(broken.wait_for_completion())).status is RunStatus.COMPLETED
        except StorageError:
            pass
        outputs = await outputs_of(workflow.resume(run_id=run_id, storage=place.storage))
        assert sorted(outputs) == ["? yes", "worked"], nth
        assert await letters_of(place.storage, run_id) == []
        if failing.commits < nth:
            break
    assert finished
    assert (await place.storage.verify()).ok


async def test_answer_to_a_question_from_before_a_keyframe(place: Place, stranger: CheckpointStorage) -> None:
    """Replay begins behind the checkpoint that asked, and the letter still finds its question."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Write(Executor):
        @handler
        async def write(self, number: int, ctx: WorkflowContext[int]) -> None:
            if number == 30:
                entered.set()
                await go_on.wait()
            for key in range(60):
                await ctx.queue_state_update(f"{number} {key} " + "key" * 30, number, scope_name="S")
            if number < 31:
                await ctx.send_message(number + 1)

    @executor(id="split")
    async def split(number: int, ctx: WorkflowContext[str | int]) -> None:
        await ctx.send_message("?", target_id="Ask")
        await ctx.send_message(number, target_id="Write")

    def build() -> Workflow:
        builder = WorkflowBuilder(name="W").set_start_executor(split)
        return builder.add_edge(split, Ask).add_edge(split, Write).add_edge(Write, Write).build()

    run = await build().start(1, run_id="mine", storage=place.storage)
    await soon(entered.wait())
    records = await stranger.store.records(RunId("mine"), 5, 1000, Depth.CHANGES)
    assert [record for record in records if record.keyframe is not None], "else this test says nothing"
    fork = await build().fork(run.checkpoints[-1], run_id="fork", storage=place.storage)
    await stranger.respond("mine", {QUESTION: "yes"})
    await run.close()
    go_on.set()
    storage = await place.reopened()
    assert await outputs_of(build().resume(run_id="mine", storage=storage)) == ["? yes"]
    with contextlib.suppress(StorageError):
        await soon(fork.wait_for_completion())
    fork = await build().resume(run_id="fork", storage=storage)
    await soon(fork.wait_for_completion())
    await storage.respond("fork", {QUESTION: "no"})
    assert await outputs_of(build().resume(run_id="fork", storage=storage)) == ["? no"]


async def test_turn_with_an_answer_that_is_over_is_not_run_again(place: Place, scene: Scene) -> None:
    """The answer was handled, another turn of the same superstep failed."""
    calls: list[str] = []

    class Noting(Ask):
        @response_handler
        async def answered(self, text: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
            calls.append(answer)
            if answer == "bad" and calls.count("bad") == 1:
                raise RuntimeError("bad")
            await ctx.yield_output(f"{ctx.executor_id} {answer}")

    @executor(id="split")
    async def split(text: str) -> str:
        return text

    builder = WorkflowBuilder(name="W").set_start_executor(split)
    workflow = builder.add_fan_out_edges(split, [Noting.bind(id="a"), Noting.bind(id="b")]).build()
    run = await waiting(place.storage, workflow)
    await place.storage.respond("mine", {"a.2.1": "good", "b.2.1": "bad"})
    with pytest.raises(ExecutorFailed):
        await soon(run.wait_for_completion())
    storage = await place.reopened()
    assert await outputs_of(workflow.resume(run_id="mine", storage=storage)) == ["a good", "b bad"]
    assert calls == ["good", "bad", "bad"]
    assert await letters_of(storage) == []


async def test_question_that_is_asked_again_under_the_same_id(
    place: Place, stranger: CheckpointStorage
) -> None:
    """Each time it is asked it takes an answer, and none that was meant for an earlier time."""

    class Again(Executor):
        @handler
        async def ask(self, number: int, ctx: WorkflowContext) -> None:
            await ctx.request_info(number, response_type=str, request_id="approve")

        @response_handler
        async def answered(self, number: int, answer: str, ctx: WorkflowContext[None, str]) -> None:
            await ctx.yield_output(f"{number} {answer}")
            if number < 3:
                await ctx.request_info(number + 1, response_type=str, request_id="approve")

    run = await waiting(place.storage, alone(Again), 1)
    halting = Halting(stranger.store)
    halt = halting.halt("leave")
    late = asyncio.ensure_future(CheckpointStorage(halting).respond("mine", {"approve": "late"}))
    await soon(halt.reached.wait())
    for number in (1, 2, 3):
        await stranger.respond("mine", {"approve": f"a{number}"})
        with pytest.raises(RequestAlreadyAnswered):
            await stranger.respond("mine", {"approve": "twice"})
        result = await soon(run.wait_for_completion())
        if number == 1:
            halt.on.set()
            with pytest.raises(RequestAlreadyAnswered):
                await soon(late)
    assert result.outputs == ["1 a1", "2 a2", "3 a3"]


# -- streams and threads ---------------------------------------------------------------------------


@pytest.mark.usefixtures("looks_often")
async def test_stream_ends_when_its_run_is_cancelled(
    place: Place, stranger: CheckpointStorage, scene: Scene
) -> None:
    stream = scene.build().run_stream("?", run_id="mine", storage=place.storage)

    async def read() -> list[Any]:
        return [event async for event in stream]

    reading = asyncio.ensure_future(read())
    await soon(scene.entered.wait())
    await stranger.cancel("mine")
    events = await soon(reading)
    statuses = [event.status for event in events if isinstance(event, WorkflowStatusEvent)]
    assert statuses == [RunStatus.RUNNING, RunStatus.CANCELLED]
    assert (await info_of_run(stranger, "mine")).status is RunStatus.CANCELLED


async def test_stream_goes_on_with_an_answer_that_came_in_time(
    place: Place, stranger: CheckpointStorage
) -> None:
    scene = Scene()
    stream = scene.build().run_stream("?", run_id="mine", storage=place.storage)

    async def read() -> list[Any]:
        return [event async for event in stream]

    reading = asyncio.ensure_future(read())
    await soon(scene.entered.wait())
    await stranger.respond("mine", {QUESTION: "yes"})
    scene.go_on.set()
    events = await soon(reading)
    statuses = [event.status for event in events if isinstance(event, WorkflowStatusEvent)]
    assert statuses == [RunStatus.RUNNING, RunStatus.COMPLETED], "it never waited"
    assert [event.data for event in events if isinstance(event, WorkflowOutputEvent)] == ["worked", "? yes"]


async def test_who_watches_sees_what_came_of_a_letter(place: Place, stranger: CheckpointStorage) -> None:
    run = await waiting(place.storage)
    await stranger.respond("mine", {"Ask.1.1": "yes"})
    await soon(run.wait_for_completion())
    events = await watched(run)
    assert [event.data for event in events if isinstance(event, WorkflowOutputEvent)] == ["? yes"]
    assert [event.superstep for event in events if isinstance(event, SuperStepStartedEvent)] == [2]


@pytest.mark.usefixtures("looks_often")
async def test_work_in_a_thread_is_left_behind_when_its_run_is_cancelled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be stopped; nothing that it does counts."""
    monkeypatch.setattr(lifecycle, "GRACE_SECONDS", 0.01)
    entered, go_on, calls = threading.Event(), threading.Event(), []

    @executor(id="work")
    def work(text: str) -> str:
        calls.append(text)
        entered.set()
        go_on.wait(30)
        return text

    run = await alone(work).start("x", run_id="mine", storage=place.storage)
    try:
        await soon(asyncio.to_thread(entered.wait, 30))
        await place.storage.cancel("mine")
        result = await soon(run.wait_for_completion())
        assert result.status is RunStatus.CANCELLED
        assert result.outputs == []
    finally:
        go_on.set()
    assert await outputs_of(alone(work).resume(run_id="mine", storage=place.storage)) == ["x"]
    assert calls == ["x", "x"]


async def test_an_answer_is_no_larger_than_the_values_of_its_workflow(storage: CheckpointStorage) -> None:
    builder = WorkflowBuilder(name="Short", limits=Limits(max_value_size=1_000)).set_start_executor(Ask)
    workflow = builder.with_checkpointing(storage).build()
    await workflow.run("?", run_id="mine")
    with pytest.raises(LimitExceeded, match="max_value_size"):
        await storage.respond("mine", {"Ask.1.1": "x" * 1_001})
    await storage.respond("mine", {"Ask.1.1": "x" * 500})
    assert await outputs_of(workflow.resume(run_id="mine")) == ["? " + "x" * 500]
