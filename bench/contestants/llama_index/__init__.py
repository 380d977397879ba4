"""llama-index-workflows: steps that take and return events, without storage, or with its journal in a file.

It has no storage of its own: the runtime hands out journal records and patches of the state, which a program keeps
where it likes. Here a program appends both to one file and flushes it, without a sync.
"""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from bench.contestants import Contestant, Entry, Job, Outcome, Prepare, Resume, Run
from bench.contestants.llama_index.journaled import checked, journaled, listing, many, open_empty, resume
from bench.rounds import number_of

RESUMED = (
    "`basic_runtime.restore`, `apply_state_patch`, `workflow.run(ctx=...)`; lines of the file are counted"
)
STATE = ("W3", "W4", "W8", "W9", "W10")


class Tick(Event):  # type: ignore[valid-type, unused-ignore]
    """Carries the number on."""

    number: int


class Chain(Workflow):
    """W1 and W2: one step that passes an event to itself."""

    def __init__(self, count: int) -> None:
        super().__init__(timeout=None)
        self.count = count

    @step
    async def begin(self, ev: StartEvent) -> Tick | StopEvent:
        """The first superstep."""
        return Tick(number=1) if self.count > 1 else StopEvent(result=1)

    @step
    async def go_on(self, ev: Tick) -> Tick | StopEvent:
        """Each other superstep."""
        number = ev.number + 1
        return Tick(number=number) if number < self.count else StopEvent(result=number)


class Work(Event):
    """What one worker gets."""

    number: int
    index: int


class Answer(Event):
    """What one worker says."""

    number: int


class Fan(Workflow):
    """W5."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__(timeout=None)
        self.width, self.rounds = width, rounds

    def _send(self, ctx: Context, number: int) -> None:
        for index in range(self.width):
            ctx.send_event(Work(number=number, index=index))

    @step
    async def begin(self, ctx: Context, ev: StartEvent) -> Work | None:
        """Sends the first round out."""
        self._send(ctx, 0)
        return None

    @step(num_workers=100)
    async def work(self, ev: Work) -> Answer:
        """One of the fan's many."""
        return Answer(number=ev.number + ev.index)

    @step
    async def hub(self, ctx: Context, ev: Answer) -> StopEvent | Work | None:
        """Collects a round, checks it, and sends the next one out."""
        answers = ctx.collect_events(ev, [Answer] * self.width)
        if answers is None:
            return None
        numbers = [answer.number for answer in answers]
        number = number_of(numbers, self.width)
        if number + 1 < self.rounds:
            self._send(ctx, number + 1)
            return None
        return StopEvent(result=sum(numbers))


async def consume(workflow: Any) -> tuple[Any, int]:
    """One run with all its events, also its own about steps."""
    handler = workflow.run()
    events = 0
    async for _ in handler.stream_events(expose_internal=True):
        events += 1
    return await handler, events


@asynccontextmanager
async def chain(job: Job) -> AsyncIterator[Run]:
    """W1."""
    count = job.params["supersteps"]
    workflow = Chain(count)

    async def run() -> Outcome:
        result, events = await consume(workflow)
        return Outcome(result, count, events)

    yield run


@asynccontextmanager
async def fan(job: Job) -> AsyncIterator[Run]:
    """W5."""
    workflow = Fan(job.params["width"], job.params["rounds"])

    async def run() -> Outcome:
        result, events = await consume(workflow)
        return Outcome(result, 2 * job.params["rounds"] + 1, events)

    yield run


def stored_chain() -> Prepare:
    """W2."""

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        count = job.params["supersteps"]
        async with journaled(Chain(count), job) as play:

            async def run() -> Outcome:
                return Outcome(await play(), count)

            yield run

    return prepare


def stateful() -> Prepare:
    """A script, played once."""
    from bench.contestants.llama_index.journaled import player

    @asynccontextmanager
    async def prepare(job: Job) -> AsyncIterator[Run]:
        async with journaled(player(job), job) as play:

            async def run() -> Outcome:
                return Outcome(None, await play())

            yield run

    return prepare


def contestant(variant: str) -> Contestant:
    """llama-index-workflows, without instrumentation."""
    packages = ("llama-index-workflows", "pydantic")
    if variant == "none":
        entries = {
            "W1": Entry(
                chain, "one `@step` that returns its own event; `handler.stream_events(expose_internal=True)`"
            ),
            "W5": Entry(fan, "`ctx.send_event` and `ctx.collect_events`; `@step(num_workers=100)`"),
        }
        return Contestant(packages, entries, missing={"*": "nothing is stored in this configuration"})
    how = (
        "`basic_runtime.journal` and patches by `state_checkpoint(...).diff`, appended to a file and flushed"
    )
    entries = {
        "W2": Entry(stored_chain(), f"one `@step` that returns its own event; {how}"),
        **{name: Entry(stateful(), f"`ctx.store.set`; {how}", checked) for name in STATE},
        "W7": Entry(many, f"`asyncio.gather` of runs with a file each; {how}"),
    }
    missing = {
        "W1": "W1 is without storage",
        "W5": "the same as without storage but for the journal, which is shown in W2",
        "W8-whole": "the same as its W8: there is no append",
    }
    return Contestant(
        packages,
        entries,
        "what the journal had not got yet: the run does not wait for it",
        "what the system had not written back yet (nothing is synced), up to all",
        missing,
        Resume(
            stateful(),
            open_empty,
            resume,
            listing,
            RESUMED,
        ),
    )
