"""Further input: messages that come to a run after its input, from whoever sends them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CheckpointStorage,
    DeadLetter,
    Executor,
    ExecutorFailed,
    GraphError,
    Host,
    InvalidArgument,
    LimitExceeded,
    RunEnded,
    RunNotFound,
    RunStatus,
    Store,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowOutputEvent,
    WorkflowWarningEvent,
    WrongType,
    handler,
    response_handler,
)
from tests.support.durable import ON_DISK, Place, Wrapped, head_of, info_of_run, storage_at
from tests.support.parts import Commit, Durability, LeaveResult, Letter


class Chat(Executor):
    """Counts the messages of a run and says each again."""

    broken = False
    entered = asyncio.Event()
    go_on = asyncio.Event()

    @handler
    async def say(self, text: str, ctx: WorkflowContext[str, str]) -> None:
        count = (await ctx.get_shared_state("count") or 0) + 1
        if text == "slow":
            Chat.entered.set()
            await Chat.go_on.wait()
        if text == "ask":
            await ctx.request_info("sure?", response_type=bool)
        if text == "fail" and Chat.broken:
            raise ValueError("broken")
        await ctx.set_shared_state("count", count)
        await ctx.yield_output(f"{count} {text}")

    @handler
    async def number(self, number: int, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"number {number}")

    @response_handler
    async def answered(self, question: str, yes: bool, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"answer {yes}")


def chat(storage: CheckpointStorage | None, name: str = "Chat", durability: Durability = "sync") -> Workflow:
    builder = WorkflowBuilder(name=name).set_start_executor(Chat.bind(id="chat"))
    if storage is not None:
        builder.with_checkpointing(storage).with_durability(durability)
    return builder.build()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Chat.broken, Chat.entered, Chat.go_on = False, asyncio.Event(), asyncio.Event()


async def causes(storage: CheckpointStorage, run_id: str = "c") -> list[tuple[str, str | None]]:
    return [(str(one.cause), one.by) for one in await storage.list_checkpoints(run_id=run_id)]


# -- a chat ----------------------------------------------------------------------------------------


async def test_a_chat_in_one_run(place: Place) -> None:
    """Each turn may come in another process: the state is kept, the outputs are those of the turn."""
    for number in range(1, 5):
        result = await chat(place.storage).run(f"turn {number}", run_id="c", if_exists="continue", by="kim")
        assert (result.status, result.outputs) == (RunStatus.COMPLETED, [f"{number} turn {number}"])
        await place.reopened()
    assert await causes(place.storage) == [
        ("input", "kim"),
        ("superstep", None),
        *[("message", "kim"), ("superstep", None)] * 3,
    ]
    latest = await place.storage.get_latest(run_id="c")
    assert latest is not None
    assert latest.superstep == 4
    assert (await place.storage.verify()).ok


async def test_a_stream_goes_on_without_what_was_told_before(place: Place) -> None:
    workflow = chat(place.storage)
    await workflow.run("one", run_id="c")
    stream = workflow.run_stream("two", run_id="c", if_exists="continue")
    outputs = [
        (event.data, event.replayed) async for event in stream if isinstance(event, WorkflowOutputEvent)
    ]
    assert outputs == [("2 two", False)]


async def test_earlier_outputs_stay_in_their_checkpoints(place: Place) -> None:
    workflow = chat(place.storage)
    for text in ("one", "two"):
        await workflow.run(text, run_id="c", if_exists="continue")
    checkpoints = await place.storage.list_checkpoints(run_id="c", values=True)
    assert [list(one.outputs) for one in checkpoints] == [[], ["1 one"], [], ["2 two"]]


async def test_one_object_takes_messages_in_every_status(place: Place) -> None:
    workflow = chat(place.storage)
    run = await workflow.start("one", run_id="c")
    assert (await run.wait_for_completion()).outputs == ["1 one"]
    await run.send("two", by="kim")
    assert (await run.wait_for_completion()).outputs == ["2 two"]
    await run.send(7, "chat")
    assert (await run.wait_for_completion()).outputs == ["number 7"]
    assert run.status is RunStatus.COMPLETED


async def test_several_messages_at_once_open_a_run_that_is_over(place: Place) -> None:
    """One of them opens it, and all are delivered."""
    workflow = chat(place.storage)
    run = await workflow.start("one", run_id="c")
    await run.wait_for_completion()
    await asyncio.gather(*(run.send(f"turn {number}") for number in range(5)))
    await run.wait_for_completion()
    assert run.status is RunStatus.COMPLETED
    assert (await place.storage.load(await latest_id(place))).shared_state["count"] == 6


class Between(Wrapped):
    """A store that lets something happen right behind a commit with which a run ends, or right before a letter."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.behind_the_end: Callable[[], Awaitable[None]] | None = None
        self.before_letter: Callable[[], Awaitable[None]] | None = None

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        letters = await self.inner.commit(commit)
        call, head = self.behind_the_end, await self.inner.head(commit.head.run_id)
        if call is not None and head is not None and head.status.ended:
            self.behind_the_end = None
            await call()
        return letters

    async def leave(self, *given: Any) -> LeaveResult:
        call, self.before_letter = self.before_letter, None
        if call is not None:
            await call()
        return await self.inner.leave(*given)


async def test_a_message_that_is_stored_once_another_one_was_answered_is_delivered(place: Place) -> None:
    """Its sender saw a run that was over; another message opened and ended that run before this one was stored."""
    store = Between(place.storage.store)
    run = await chat(CheckpointStorage(store)).start("one", run_id="c")
    await run.wait_for_completion()

    async def answer_another() -> None:
        await run.send("two")
        assert (await run.wait_for_completion()).outputs == ["2 two"]

    store.before_letter = answer_another
    await run.send("three")
    assert (await run.wait_for_completion()).outputs == ["3 three"]
    assert await place.storage.store.inbox(run.run_id) == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_message_behind_the_last_commit_of_a_run_is_delivered(
    place: Place, durability: Durability
) -> None:
    """The run moves still, but looks for messages no more."""
    store = Between(place.storage.store)
    workflow = chat(CheckpointStorage(store), durability=durability)
    run = await workflow.start("one", run_id="c")
    store.behind_the_end = partial(run.send, "two")
    result = await run.wait_for_completion()
    assert (result.outputs, result.status) == (["2 two"], RunStatus.COMPLETED)
    assert await place.storage.store.inbox(run.run_id) == []


async def test_a_message_behind_the_last_commit_opens_no_run_that_is_left(place: Place) -> None:
    store = Between(place.storage.store)
    run = await chat(CheckpointStorage(store)).start("one", run_id="c")
    is_sent = asyncio.Event()

    async def send() -> None:
        await run.send("two")
        is_sent.set()

    store.behind_the_end = send
    await is_sent.wait()
    await run.close()
    assert run.status is RunStatus.COMPLETED
    assert len(await place.storage.store.inbox(run.run_id)) == 1
    assert (await chat(place.storage).run("three", run_id="c", if_exists="continue")).outputs[-1] == "3 three"


async def test_without_storage_a_run_that_goes_on_takes_messages(nothing_is_left_running) -> None:
    run = await chat(None).start("ask")
    result = await run.wait_for_completion()
    assert result.status is RunStatus.WAITING
    await run.send("two")
    result = await run.wait_for_completion()
    assert (result.status, result.outputs) == (RunStatus.WAITING, ["2 two"])
    result = await result.respond({result.pending_requests[0].request_id: True})
    assert result.outputs == ["2 two", "answer True"]
    with pytest.raises(RunEnded, match="without storage nothing of it is left"):
        await run.send("three")


# -- each status -----------------------------------------------------------------------------------


async def test_a_run_that_waits_for_an_answer_takes_a_message(place: Place) -> None:
    workflow = chat(place.storage)
    run = await workflow.start("ask", run_id="c")
    assert (await run.wait_for_completion()).status is RunStatus.WAITING
    info = await place.storage.send("c", "two")
    assert info.status is RunStatus.WAITING
    result = await run.wait_for_completion()
    assert (result.status, result.outputs) == (RunStatus.WAITING, ["2 two"])
    await run.respond({result.pending_requests[0].request_id: False})
    assert (await run.wait_for_completion()).outputs == ["2 two", "answer False"]


async def test_a_run_that_moves_takes_a_message_before_its_next_superstep(place: Place) -> None:
    run = await chat(place.storage).start("slow", run_id="c")
    await Chat.entered.wait()
    await place.storage.send("c", "from outside", by="lee")
    await run.send("from here")
    assert run.status is RunStatus.RUNNING
    Chat.go_on.set()
    result = await run.wait_for_completion()
    assert result.outputs == ["2 from outside", "3 from here"]
    assert [cause for cause, _ in await causes(place.storage)].count("message") == 2


async def test_a_failed_run_does_what_it_failed_at_first(place: Place) -> None:
    workflow = chat(place.storage)
    Chat.broken = True
    with pytest.raises(ExecutorFailed):
        await workflow.run("fail", run_id="c")
    await place.storage.send("c", "two")
    assert (await info_of_run(place.storage, "c")).status is RunStatus.FAILED
    Chat.broken = False
    run = await workflow.resume(run_id="c")
    result = await run.wait_for_completion()
    assert result.outputs[-1] == "2 two"
    assert (await place.storage.load(await latest_id(place))).shared_state["count"] == 2


async def latest_id(place: Place) -> str:
    latest = await place.storage.get_latest(run_id="c")
    assert latest is not None
    return latest.checkpoint_id


@pytest.mark.parametrize("leave", ["cancel", "close"])
async def test_a_run_that_was_left_goes_on_with_a_message(place: Place, leave: str) -> None:
    workflow = chat(place.storage)
    run = await workflow.start("slow", run_id="c")
    await Chat.entered.wait()
    await getattr(run, leave)()
    assert run.status.ended
    Chat.go_on.set()
    await run.send("two")
    result = await run.wait_for_completion()
    assert result.status is RunStatus.COMPLETED
    assert result.outputs[-1] == "2 two"


# -- hosts -----------------------------------------------------------------------------------------


async def test_a_host_goes_on_with_runs_in_any_status(place: Place) -> None:
    workflow = chat(place.storage)
    await workflow.run("one", run_id="done")
    await workflow.run("ask", run_id="waits")
    run = await workflow.start("ask", run_id="cancelled")
    await run.wait_for_completion()
    await run.cancel()
    for run_id in ("done", "waits", "cancelled"):
        await place.storage.send(run_id, "two")
    host = Host(place.storage, workflow)
    assert await host.wake_due() == 3
    assert await host.wake_due() == 0
    found = {info.run_id: info.status for info in await place.storage.list_runs()}
    assert found == {
        "done": RunStatus.COMPLETED,
        "waits": RunStatus.WAITING,
        "cancelled": RunStatus.WAITING,
    }
    for run_id in found:
        assert await place.storage.store.inbox((await head_of(place.storage, run_id)).run_id) == []


async def test_a_failed_run_is_tried_once_for_each_new_letter(place: Place) -> None:
    workflow = chat(place.storage)
    Chat.broken = True
    with pytest.raises(ExecutorFailed):
        await workflow.run("fail", run_id="c")
    for _ in range(2):
        await place.storage.send("c", "two")
        assert await Host(place.storage, workflow).wake_due() == 1
        assert await Host(place.storage, workflow).wake_due() == 0
        assert (await info_of_run(place.storage, "c")).status is RunStatus.FAILED
    Chat.broken = False
    await place.storage.send("c", "three")
    assert await Host(place.storage, workflow).wake_due() == 1
    loaded = await place.storage.load(await latest_id(place))
    assert list(loaded.outputs)[-1] == "4 three"


async def test_a_message_before_the_cancel_does_not_open_the_run_again(place: Place) -> None:
    workflow = chat(place.storage)
    run = await workflow.start("slow", run_id="c")
    await Chat.entered.wait()
    await place.storage.send("c", "two")
    await run.cancel()
    assert await Host(place.storage, workflow).wake_due() == 0
    assert (await info_of_run(place.storage, "c")).status is RunStatus.CANCELLED


# -- keys ------------------------------------------------------------------------------------------


async def test_a_key_makes_a_message_once(place: Place) -> None:
    workflow = chat(place.storage)
    await workflow.run("one", run_id="c")
    for _ in range(2):
        await asyncio.gather(*(place.storage.send("c", "two", key="k") for _ in range(4)))
        await Host(place.storage, workflow).wake_due()
    with pytest.raises(InvalidArgument, match="another message was sent to run 'c' with this key"):
        await place.storage.send("c", "three", key="k")
    with pytest.raises(InvalidArgument, match="another message"):
        await place.storage.send("c", "two", "chat", key="k")
    loaded = await place.storage.load(await latest_id(place))
    assert loaded.shared_state["count"] == 2


async def test_a_fork_knows_no_keys(place: Place) -> None:
    workflow = chat(place.storage)
    await workflow.run("one", run_id="c")
    await place.storage.send("c", "two", key="k")
    fork = await workflow.fork(await latest_id(place), run_id="f")
    await fork.send("other", key="k")
    assert (await fork.wait_for_completion()).outputs == ["2 other"]


# -- bad input -------------------------------------------------------------------------------------


async def test_bad_messages(place: Place) -> None:
    workflow = chat(place.storage)
    run = await workflow.start("one", run_id="c")
    await run.wait_for_completion()
    with pytest.raises(WrongType, match=r"starts at 'chat', which takes .*, but its input is a float: 1.5"):
        await run.send(1.5)
    with pytest.raises(InvalidArgument, match="has no executor 'nobody' to send a message to; it has 'chat'"):
        await run.send("two", "nobody")
    for bad in ("", " ", 5, "x" * 201):
        with pytest.raises(InvalidArgument, match="by="):
            await run.send("two", by=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key="):
        await place.storage.send("c", "two", key="")
    with pytest.raises(RunNotFound):
        await place.storage.send("nobody", "two")
    with pytest.raises(InvalidArgument, match="if_exists='continue' needs a run_id"):
        await workflow.run("two", if_exists="continue")
    with pytest.raises(InvalidArgument, match="must be 'raise', 'attach' or 'continue'"):
        await workflow.start("two", run_id="c", if_exists="go")  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="belongs to workflow 'Chat', not to 'Other'"):
        await chat(place.storage, "Other").run("two", run_id="c", if_exists="continue")
    assert await place.storage.store.inbox((await head_of(place.storage, "c")).run_id) == []
    assert (await run.wait_for_completion()).outputs == ["1 one"]


async def test_a_message_that_nobody_takes_is_told_and_dropped(place: Place) -> None:
    workflow = chat(place.storage)
    await workflow.run("one", run_id="c")
    await place.storage.send("c", [1.5], by="kim")
    await place.storage.send("c", "lost", "nobody")
    await place.storage.send("c", "two")
    run = await workflow.resume(run_id="c")
    events = [event async for event in run.watch_stream()]
    told = [str(event.warning) for event in events if isinstance(event, WorkflowWarningEvent)]
    assert len(told) == 2
    assert told[0].startswith(
        "a message that was sent by 'kim' cannot be delivered, and is dropped: workflow 'Chat'"
    )
    assert all(isinstance(one, DeadLetter) for one in run.warnings)
    assert (await run.wait_for_completion()).outputs == ["2 two"]
    assert await place.storage.store.inbox((await head_of(place.storage, "c")).run_id) == []


# -- other processes -------------------------------------------------------------------------------


def send_in_a_process(kind: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    program = (
        "import asyncio, sys; from pathlib import Path; from tests.support.durable import storage_at\n"
        "async def main(kind, folder, text, key):\n"
        "    storage = storage_at(kind, Path(folder))\n"
        "    await storage.send('c', text, key=key or None)\n"
        "asyncio.run(main(*sys.argv[1:]))"
    )
    return subprocess.Popen([sys.executable, "-c", program, kind, str(folder), *arguments])


@pytest.mark.parametrize("kind", ON_DISK)
async def test_four_processes_send_with_one_key(kind: str, tmp_path: Path) -> None:
    storage = storage_at(kind, tmp_path)
    workflow = chat(storage)
    await workflow.run("one", run_id="c")
    processes = [send_in_a_process(kind, tmp_path, "two", "k") for _ in range(4)]
    for process in processes:
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert await Host(storage, workflow).wake_due() == 1
    loaded = await storage.get_latest(run_id="c")
    assert loaded is not None
    assert (await storage.load(loaded.checkpoint_id)).shared_state["count"] == 2
    await storage.close()


async def _die_before_delivery(kind: str, folder: str) -> None:
    storage = storage_at(kind, Path(folder))
    await storage.send("c", "two", key="k")
    from holdfast.runtime.durable.recorder import Recorder

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Recorder.given = die  # type: ignore[assignment, method-assign]
    await Host(storage, chat(storage)).wake_due()


@pytest.mark.parametrize("kind", ON_DISK)
async def test_killed_between_send_and_delivery(kind: str, tmp_path: Path) -> None:
    storage = storage_at(kind, tmp_path)
    workflow = chat(storage)
    await workflow.run("one", run_id="c")
    await storage.close()
    program = (
        "import asyncio, sys; from tests.scenarios.test_further_input import _die_before_delivery\n"
        "asyncio.run(_die_before_delivery(*sys.argv[1:]))"
    )
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, kind, str(tmp_path)])
    assert killed.returncode == -signal.SIGKILL
    storage = storage_at(kind, tmp_path)
    workflow = chat(storage)
    await Host(storage, workflow).wake_due()
    latest = await storage.get_latest(run_id="c")
    assert latest is not None
    loaded = await storage.load(latest.checkpoint_id)
    assert (loaded.status, list(loaded.outputs)) == (RunStatus.COMPLETED, ["2 two"])
    await storage.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
async def test_a_run_for_which_too_many_letters_wait_takes_no_more(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.inbox.MOST_LETTERS", 3)
    storage = Place(kind, tmp_path).storage
    workflow = chat(storage)
    await workflow.run("ask", run_id="c")
    (request,) = (await storage.load(await storage.get_latest(run_id="c") or "")).pending_requests
    for number in range(2):
        await storage.send("c", f"{number}")
    with pytest.raises(
        LimitExceeded, match=r"run 'c' \(waiting\) takes no further message: 3 letters wait"
    ) as full:
        await storage.send("c", "two letters", key="k")
    assert (full.value.limit, full.value.allowed) == ("letters", 3)
    await storage.send("c", "2")
    with pytest.raises(LimitExceeded):
        await storage.send("c", "3")
    # An answer and the cancellation of a run are never too many.
    await storage.respond("c", {request.request_id: True})
    await Host(storage, workflow).wake_due()
    await storage.send("c", "two letters", key="k")
    await Host(storage, workflow).wake_due()
    latest = await storage.get_latest(run_id="c")
    assert latest is not None
    assert (await storage.load(latest)).shared_state["count"] >= 5
    await storage.close()


# -- a long chat -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_chat_of_1000_turns_is_flat(kind: str, tmp_path: Path) -> None:
    """The bytes that a turn adds do not grow, and neither does what a checkpoint holds."""
    place = Place(kind, tmp_path)
    workflow = chat(place.storage)
    run = await workflow.start("turn", run_id="c")
    await run.wait_for_completion()
    written = []
    for _ in range(1000):
        before = place.storage.counters.new_bytes
        await run.send("turn")
        await run.wait_for_completion()
        written.append(place.storage.counters.new_bytes - before)
    assert sorted(written[-100:])[50] <= sorted(written[:100])[50] + 24  # the digits of numbers
    assert list((await place.storage.load(await latest_id(place))).outputs) == ["1001 turn"]
    await place.storage.close()


@pytest.mark.parametrize("target", [5, "\ud800", b"chat"])
async def test_a_target_that_is_no_id_is_refused(place: Place, target: Any) -> None:
    await chat(place.storage).run("hello", run_id="c")
    with pytest.raises(InvalidArgument, match=r"target_id=.*must be the id of an executor"):
        await place.storage.send("c", "more", target)
    assert await Host(place.storage, chat(None)).wake_due() == 0
