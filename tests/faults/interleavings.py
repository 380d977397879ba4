"""Lets messages, answers, cancels, hosts and owners meet a run in any order: each counts once, and none is left lying.

    python -m tests.faults.interleavings --count 1000
    python -m tests.faults.interleavings --count 1000 hosts
    python -m tests.faults.interleavings --planted "an old look" answers

A seed decides what goes on next and how long each call of the store takes. There is no real time, and all of it is one
process; a storage of its own on the same store stands for another one.
"""

import argparse
import asyncio
import datetime
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

from holdfast import (
    CheckpointStorage,
    Executor,
    Host,
    Run,
    RunEnded,
    RunStatus,
    RunTaken,
    UnknownRequest,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from holdfast.runtime.durable.inbox_client import InboxClient
from holdfast.runtime.environment import Environment, use
from holdfast.runtime.step.inputs import FurtherInputs
from tests.support.fault_processes import Wrong, expect
from tests.support.modules import lifecycle, recorder
from tests.support.parts import ClaimRequest, Commit, Durability, Head, Letter, MemoryStore, RunId
from tests.support.seeded_loop import run_seeded

RUN = RunId("r")
DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
LONGEST_SECONDS = 10.0
"""What is to be done is done after this; a claim hides a run for longer."""
_LOOK_SECONDS = 0.004
_BEGINNING = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class PausingStore(MemoryStore):
    """A store whose calls take a while before they happen, and until their caller knows."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def pause(self, likely: float = 0.5) -> None:
        """Let others go on, and perhaps some time pass."""
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        if self.chance.random() < likely:
            await asyncio.sleep(self.chance.random() * 0.01)

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        await self.pause()
        letters = await super().commit(commit)
        await self.pause()
        return letters

    async def leave(self, *given: Any) -> Any:
        await self.pause()
        left = await super().leave(*given)
        await self.pause()
        return left

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        await self.pause(0.2)
        letters = await super().inbox(run_id)
        await self.pause(0.2)
        return letters

    async def head(self, run_id: RunId) -> Head | None:
        await self.pause(0.2)
        head = await super().head(run_id)
        await self.pause(0.2)
        return head

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        heads = await super().claim(request)
        await self.pause(0.2)
        return heads


class Say(Executor):
    """Keeps what it is told, and asks back where that begins with ``ask``."""

    def __init__(self, store: PausingStore) -> None:
        super().__init__()
        self.pause = store.pause

    @handler
    async def say(self, text: str, ctx: WorkflowContext) -> None:
        await self.pause()
        if text.startswith("ask"):
            await ctx.request_info(text, response_type=str, request_id=text)
        await ctx.append_state("said", text, scope_name="S")

    @response_handler
    async def answered(self, text: str, answer: str, ctx: WorkflowContext) -> None:
        await self.pause()
        await ctx.append_state("said", f"{answer} {text}", scope_name="S")


class Meeting:
    """One run, and all who want something of it."""

    def __init__(self, chance: random.Random, durability: Durability) -> None:
        self.chance = chance
        self.durability = durability
        self.store = PausingStore(chance)
        self.here, self.elsewhere = CheckpointStorage(self.store), CheckpointStorage(self.store)

    def workflow(self, storage: CheckpointStorage) -> Workflow:
        builder = WorkflowBuilder(name="Say").set_start_executor(Say(self.store)).with_checkpointing(storage)
        return builder.with_durability(self.durability).build()

    async def some_time(self) -> None:
        for _ in range(self.chance.randrange(25)):
            await self.store.pause(0.6)

    async def after_some_time(self, call: Callable[[], Awaitable[object]]) -> None:
        await self.some_time()
        await call()

    async def answer(self, request_id: str, respond: Callable[..., Awaitable[object]]) -> None:
        """Answer a request as soon as it is asked."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST_SECONDS
        while loop.time() < until:
            await self.some_time()
            try:
                await respond({request_id: "yes"})
                return
            except (UnknownRequest, RunEnded):
                pass
        raise Wrong(f"{request_id!r} is not asked")

    async def said(self) -> list[str]:
        latest = await MemoryStore.head(self.store, RUN)
        assert latest is not None
        state = (await self.elsewhere.load(latest.checkpoint_id)).scopes.get("S")
        return sorted(state.get("said", ())) if state else []

    async def is_settled(self, said: Sequence[str]) -> bool:
        return not await MemoryStore.inbox(self.store, RUN) and await self.said() == sorted(said)

    async def check(self, *said: str) -> None:
        """Wait a while until all was said; raise if something is left lying, or was said twice."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LONGEST_SECONDS
        while loop.time() < until and not await self.is_settled(said):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        letters, found = await MemoryStore.inbox(self.store, RUN), await self.said()
        expect(
            found == sorted(said), f"{found} was said, not {sorted(said)}; {len(letters)} letters are left"
        )
        expect(not letters, f"{len(letters)} letters are left")


Scenario: TypeAlias = Callable[[Meeting], Awaitable[None]]


async def play_messages(meeting: Meeting) -> None:
    """Messages come through the object of a run, which is over after each."""
    run = await meeting.workflow(meeting.here).start("a", run_id=RUN)
    await asyncio.gather(*(meeting.after_some_time(_sending(run, text)) for text in "bcd"))
    await run.wait_for_completion()
    expect(run.status is RunStatus.COMPLETED, f"the run is {run.status}")
    expect(await meeting.is_settled("abcd"), f"only {await meeting.said()} was said")


def _sending(run: Run, text: str) -> Callable[[], Awaitable[None]]:
    return lambda: run.send(text)


async def play_answers(meeting: Meeting) -> None:
    """Answers and messages come to a run that asks."""
    run = await meeting.workflow(meeting.here).start("ask a", run_id=RUN)
    await asyncio.gather(
        meeting.after_some_time(lambda: run.send("b")),
        meeting.after_some_time(lambda: run.send("ask c")),
        meeting.answer("ask a", run.respond),
        meeting.answer("ask c", run.respond),
    )
    await meeting.check("ask a", "b", "ask c", "yes ask a", "yes ask c")


async def play_hosts(meeting: Meeting) -> None:
    """Two hosts drive a run, to which answers and messages come through the storage."""
    here, elsewhere = meeting.here, meeting.elsewhere
    await meeting.workflow(here).submit("ask a", RUN, here)
    hosts = [Host(one, meeting.workflow(one), poll=0.05) for one in (here, elsewhere)]
    async with hosts[0], hosts[1]:
        await asyncio.gather(
            meeting.after_some_time(lambda: elsewhere.send(RUN, "b")),
            meeting.answer("ask a", lambda given: here.respond(RUN, given)),
        )
        await meeting.after_some_time(lambda: here.send(RUN, "c"))
        await meeting.check("ask a", "b", "c", "yes ask a")


async def play_leaving(meeting: Meeting) -> None:
    """A run is closed or cancelled while messages come; a host elsewhere goes on with it."""
    run = await meeting.workflow(meeting.here).start("a", run_id=RUN)
    leave = run.close if meeting.chance.random() < 0.5 else run.cancel
    await asyncio.gather(
        meeting.after_some_time(lambda: meeting.elsewhere.send(RUN, "b")),
        meeting.after_some_time(lambda: meeting.elsewhere.send(RUN, "c")),
        meeting.after_some_time(leave),
    )
    again = await meeting.workflow(meeting.elsewhere).resume(run_id=RUN)
    await again.wait_for_completion()
    async with Host(meeting.elsewhere, meeting.workflow(meeting.elsewhere), poll=0.05):
        await meeting.check("a", "b", "c")


async def play_takeovers(meeting: Meeting) -> None:
    """A run is taken over while messages come; a host goes on with what is left."""
    run = await meeting.workflow(meeting.here).start("a", run_id=RUN)

    async def take_over() -> None:
        try:
            other = await meeting.workflow(meeting.elsewhere).resume(run_id=RUN, take_over=True)
            await other.wait_for_completion()
        except RunTaken:  # where the first one rests, and just found a message, one of the two goes on
            pass

    await asyncio.gather(
        meeting.after_some_time(lambda: meeting.elsewhere.send(RUN, "b")),
        meeting.after_some_time(lambda: meeting.elsewhere.send(RUN, "c")),
        meeting.after_some_time(take_over),
    )
    try:
        await run.wait_for_completion()
    except RunTaken:
        pass
    async with Host(meeting.elsewhere, meeting.workflow(meeting.elsewhere), poll=0.05):
        await meeting.check("a", "b", "c")


async def play_cancels(meeting: Meeting) -> None:
    """A run that asks is cancelled at any time, here or elsewhere."""
    run = await meeting.workflow(meeting.here).start("ask a", run_id=RUN)
    is_here = meeting.chance.random() < 0.5
    await meeting.after_some_time(run.cancel if is_here else lambda: meeting.elsewhere.cancel(RUN))
    await run.wait_for_completion()  # it may just have come to rest, and not know yet
    result = await run.wait_for_completion()
    head = await MemoryStore.head(meeting.store, RUN)
    assert head is not None
    expect(
        result.status is head.status is RunStatus.CANCELLED,
        f"the run is {result.status}, and {head.status} in the store",
    )
    expect(not await MemoryStore.inbox(meeting.store, RUN), "a letter is left")


SCENARIOS: dict[str, Scenario] = {
    "messages": play_messages,
    "answers": play_answers,
    "hosts": play_hosts,
    "leaving": play_leaving,
    "takeovers": play_takeovers,
    "cancels": play_cancels,
}


# -- bugs on purpose -------------------------------------------------------------------------------


async def _put_back_letters(self: InboxClient) -> None:
    """Believe an old look into the inbox as it was before a commit, whatever that took."""
    await self._commits.idle()
    before, seen = self._commits.count, self._log.letters
    await self._log.read_letters()
    if self._commits.count != before:
        self._log.letters = seen


_send = FurtherInputs.send


async def _trust_the_next_commit(self: FurtherInputs, *given: Any) -> bool:
    """Rely on a further commit of whoever drives the run."""
    await _send(self, *given)
    return True


def _forget_claims(self: Host, run_id: str, task: asyncio.Task[None]) -> None:
    """Pass over a run that was claimed before its task was over."""
    if self._active.get(run_id) is task:
        del self._active[run_id]
        self._runs.pop(run_id, None)


PLANTED: dict[str, tuple[str, Any, str, Any]] = {
    "an old look": ("answers", InboxClient, "read", _put_back_letters),
    "the next commit": ("messages", FurtherInputs, "send", _trust_the_next_commit),
    "a claim": ("hosts", Host, "_ended", _forget_claims),
}
"""By name: the scenario that finds it, and what is replaced."""


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """Plant a bug, if one is named."""
    if not bug:
        yield
        return
    _, owner, name, wrong = PLANTED[bug]
    with patch.object(owner, name, wrong):
        yield


# -- the campaign ----------------------------------------------------------------------------------


def play(scenario: str, durability: Durability, seed: int) -> str:
    """Return what is wrong, or nothing."""

    async def meet() -> None:
        loop = asyncio.get_running_loop()
        end = use(
            Environment(
                now=lambda: _BEGINNING + datetime.timedelta(seconds=loop.time()), later=loop.call_later
            )
        )
        try:
            await SCENARIOS[scenario](Meeting(random.Random(seed), durability))
        finally:
            await asyncio.sleep(LONGEST_SECONDS)  # until what is under way has ended
            end()

    with (
        patch.object(lifecycle, "_INBOX_SECONDS", _LOOK_SECONDS),
        patch.object(recorder, "BACKGROUND_SECONDS", -1.0),
    ):
        try:
            run_seeded(meet, seed)
        except Wrong as problem:
            return str(problem)
        except Exception as error:
            return f"{error!r}"
    return ""


def play_all(scenarios: Sequence[str], seeds: Sequence[int], until_wrong: bool = False) -> list[str]:
    """Play each scenario with all seeds, in all durabilities; return what went wrong."""
    wrong: list[str] = []
    for scenario in scenarios:
        for seed in seeds:
            for durability in DURABILITIES:
                if complaint := play(scenario, durability, seed):
                    wrong.append(f"{scenario}, {durability}, seed {seed}: {complaint}")
                    if until_wrong:
                        return wrong
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Let many things come to a run in any order.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--count", type=int, default=300, help="the number of seeds for each")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    given = parser.parse_args(arguments)
    names, wrong = given.names or [*SCENARIOS], []
    with planted(given.planted):
        for name in names:
            wrong += play_all([name], range(given.seed, given.seed + given.count))
            print(f"{name}: {given.count * len(DURABILITIES)} orders, {len(wrong)} wrong so far", flush=True)
    for complaint in wrong[:20]:
        print(f"WRONG: {complaint}")
    print(f"{len(names) * given.count * len(DURABILITIES)} cases, {len(wrong)} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
