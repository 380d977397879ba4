"""The service behind all routes: starts and changes runs through the storage, drives them and waits for them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from starlette.exceptions import HTTPException

from holdfast.checkpoint.receipts import (
    Receipt,
    TalkKey,
    Verb,
    is_key_used,
    resume_receipt,
    use_up,
    was_called,
)
from holdfast.checkpoint.run_info import RunInfo
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.engine.status import RunStatus
from holdfast.errors import (
    AlreadyResumed,
    GraphChanged,
    InvalidArgument,
    KeyReused,
    RunExists,
    RunNotFound,
    WrongType,
)
from holdfast.host import Host
from holdfast.ids import RunId
from holdfast.runtime.config import ForkCall
from holdfast.runtime.durable.fork_edits import ForkEdits
from holdfast.runtime.run.run import Run
from holdfast.server.change_feed import ChangeFeed
from holdfast.server.event_stream import EventPages, EventSource, EventStream, Until, is_settled
from holdfast.server.options import ServerOptions
from holdfast.workflow import Workflow

_NO_WORKFLOWS = "create_app needs the workflows that it serves: create_app([workflow], storage)"

_logger = logging.getLogger("holdfast.server")


@dataclass(frozen=True)
class RunOrder:
    """A run to be started: its input as JSON, and what to do if its id is taken."""

    value: Any
    run_id: str | None = None
    if_exists: Literal["raise", "attach", "continue"] = "raise"
    key: str | None = None
    """Makes the start once, however often it is asked for."""
    by: str | None = None


@dataclass(frozen=True)
class ResumeOrder:
    """A run to go on with: from which checkpoint, if not from where it stands, and how."""

    checkpoint_id: str | None = None
    take_over: bool = False
    graph_may_change: bool = False
    key: str | None = None
    """Makes the resume once, however often it is asked for."""
    by: str | None = None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt that the run keeps of it."""
        if self.key is None:
            return None
        return resume_receipt(self.key, self.checkpoint_id, self.graph_may_change, self.take_over)


@dataclass(frozen=True)
class ForkOrder:
    """A fork to be made: the id of the new run, and what was asked for, by which calls with one key are compared."""

    run_id: str | None = None
    asked: str = ""
    key: str | None = None
    """Makes the fork once, however often it is asked for."""
    by: str | None = None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt that the run which is forked keeps of it."""
        return None if self.key is None else Receipt.of("fork", self.key, self.asked)

    @property
    def receipt_of_new(self) -> Receipt | None:
        """The receipt that the new run keeps of it."""
        return None if self.key is None else Receipt.of("forked", self.key, self.asked)


class Service:
    """Workflows in a storage as a service offers them; its methods are what requests ask for."""

    def __init__(
        self, workflows: Sequence[Workflow], storage: CheckpointStorage, options: ServerOptions
    ) -> None:
        if not hasattr(storage, "store"):
            raise WrongType(f"a service takes a storage, not a {type(storage).__name__}: {storage!r}")
        self.storage = storage
        self.options = options
        self.workflows: dict[str, Workflow] = {}
        """By name, the build that new runs get: the first of those that were given."""
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise WrongType(f"a service takes workflows, not a {type(workflow).__name__}: {workflow!r}")
            self.workflows.setdefault(workflow.name, workflow)
        if not workflows:
            raise InvalidArgument(_NO_WORKFLOWS)
        self.host = Host(
            storage,
            *workflows,
            poll=options.poll,
            concurrency=max(1, options.concurrency),
            woken=self._began,
            run_context=options.run_context,
            allow_graph_change=options.allow_graph_change,
        )
        self.changes = ChangeFeed(storage.store, options.poll, self.host.find)
        self._source = EventSource(storage, self.changes, EventPages(storage), options)
        self._builds = list(workflows)
        self._closing = asyncio.Event()
        self._is_up = self._is_retired = False
        self._waiters = self._streams = 0

    # Its life.

    @property
    def is_ready(self) -> bool:
        """True if clients should be sent here: it is up, and nobody is about to stop it."""
        return self.takes_calls and not self._is_retired

    @property
    def takes_calls(self) -> bool:
        """True if it does what it is asked for; longer than it is ready, since clients may come late."""
        return self._is_up and not self._closing.is_set()

    def retire(self) -> None:
        """Be not ready any more, and go on otherwise."""
        self._is_retired = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drive runs, those that dead processes left among them, until this ends; may be entered again."""
        self._closing = asyncio.Event()
        self._is_retired = False
        await self.storage.open()
        for workflow in self._builds:  # so that their types are known to the storage
            workflow.introduce_to(self.storage)
        try:
            if self.options.concurrency:
                async with self.host:
                    self._is_up = True
                    yield
                    await self.stop()
            else:
                self._is_up = True
                yield
                await self.stop()
        finally:
            self._is_up = False
            await self.changes.close()

    def announce_stop(self) -> None:
        """Be not ready any more, and let streams and waiting requests end."""
        self._closing.set()
        self.changes.tell()

    async def stop(self) -> None:
        """Wake no more runs; those under way have the grace time to come to rest."""
        self.announce_stop()
        await self.host.stop(self.options.grace)

    def _began(self, run: Run) -> None:
        self.changes.tell(run.run_id)
        self.changes.began(run)

    # Finding.

    def find_workflow(self, name: str) -> Workflow:
        """Return the build of a workflow that new runs get; raise 404 if there is none."""
        found = self.workflows.get(name)
        if found is None:
            raise HTTPException(404, f"There is no workflow {name!r} here.")
        return found

    async def find_run(self, run_id: str, workflow_name: str | None = None) -> RunInfo:
        """Return a run, of a workflow if one is given; raise ``RunNotFound`` if there is none."""
        run = await self.storage.get_run(run_id)
        if workflow_name not in (None, run.workflow_name):
            raise RunNotFound(f"there is no run {run_id!r} of workflow {workflow_name!r}")
        return run

    def _workflow_of(self, run: RunInfo) -> Workflow:
        found = self.workflows.get(run.workflow_name)
        if found is None:
            raise HTTPException(409, f"The workflow {run.workflow_name!r} of this run is not served here.")
        return found

    # Changing.

    async def start(self, name: str, given: RunOrder) -> tuple[RunInfo, RunInfo | None]:
        """Put a run into the storage and let the host go on with it, or send the input to a run that is there.

        Returns the run as it stands then, and once more if it is still to move on from there.
        """
        workflow = self.find_workflow(name)
        message = workflow.read_input(given.value)
        run_id = _check_reachable(given.run_id)
        if given.if_exists != "raise" and run_id is None:
            raise InvalidArgument(f"if_exists={given.if_exists!r} needs a run_id")
        if run_id is None and given.key is not None:
            run_id = derived_run_id(name, given.by, given.key)
        if given.if_exists == "continue" and run_id is not None:
            try:
                run = await self.find_run(run_id, name)
            except RunNotFound:
                pass
            else:
                moves = await self.moves_by(run, given.key, "message")
                sent = await self.send(run, given.value, None, given.key, given.by)
                return sent, sent if moves else None
        is_derived = run_id is not None and given.run_id is None
        attaches = is_derived or given.if_exists == "attach"
        try:
            with telling_of_key():
                run_id = await workflow.submit(
                    message,
                    run_id,
                    self.storage,
                    "attach" if attaches else "raise",
                    key=given.key,
                    by=given.by,
                )
        except RunExists as error:
            if is_derived:
                raise KeyUsedAgain from error
            raise
        self.host.look_soon()
        return await self.find_run(run_id, name), None

    async def send(
        self, run: RunInfo, value: Any, target_id: str | None, key: str | None, by: str | None
    ) -> RunInfo:
        """Send a further message to a run; return it as it stood at that moment."""
        message = value
        if run.workflow_name in self.workflows:
            message = self.workflows[run.workflow_name].read_input(value, target_id)
        with telling_of_key():
            sent = await self.storage.send(run.run_id, message, target_id, key=key, by=by)
        self.host.look_soon()
        return sent

    async def respond(
        self, run: RunInfo, responses: dict[str, Any], key: str | None, by: str | None
    ) -> RunInfo:
        """Answer requests of a run; return it as it stood at that moment."""
        if run.status is RunStatus.CANCELLED and not await self.was_made(run, key, "respond"):
            raise HTTPException(409, f"Run {run.run_id!r} is cancelled, and asks nothing; resume it first.")
        with telling_of_key():
            answered = await self.storage.respond(run.run_id, responses, key=key, by=by)
        self.host.look_soon()
        return answered

    async def was_made(self, run: RunInfo, key: str | None, verb: Verb) -> bool:
        """Return True if such a call was made on a run with a key, at whichever server, whatever it asked for."""
        return key is not None and await is_key_used(self.storage.store, RunId(run.run_id), verb, key)

    async def was_called(self, run: RunInfo, receipt: Receipt | None) -> bool:
        """Return True if a run has the receipt of a call; raise ``KeyUsedAgain`` if its key had another call."""
        with telling_of_key():
            return receipt is not None and await was_called(self.storage.store, RunId(run.run_id), receipt)

    async def was_said(self, run: RunInfo, key: TalkKey | None) -> bool:
        """Return True if this was said to a run before; raise ``KeyUsedAgain`` if something else was with the key."""
        return key is not None and await self.was_called(run, Receipt.of("talk", key, None))

    async def moves_by(self, run: RunInfo, key: str | None, verb: Verb) -> bool:
        """Return True if a call with a key is to move a run: the key is new, or the run has yet to take letters."""
        return not await self.was_made(run, key, verb) or await self.has_letters(run)

    async def has_letters(self, run: RunInfo) -> bool:
        """Return True if a run has yet to take letters."""
        return bool(await self.storage.store.inbox(RunId(run.run_id)))

    async def cancel(self, run: RunInfo, key: str | None, by: str | None) -> RunInfo:
        """Cancel a run: at once if nobody drives it, else whoever does finds the wish within about a second."""
        with telling_of_key():
            cancelled = await self.storage.cancel(run.run_id, key=key, by=by)
        self.changes.tell(run.run_id)
        return cancelled

    async def resume(self, run: RunInfo, order: ResumeOrder) -> RunInfo:
        """Go on with a run here; one that an earlier call with the key went on with is returned as it stands."""
        if await self.was_called(run, order.receipt):
            return run
        checkpoint_id = order.checkpoint_id
        if checkpoint_id is not None:
            place = await self.storage.load(checkpoint_id, values=False)
            if place.run_id != run.run_id:
                raise InvalidArgument(
                    f"checkpoint {checkpoint_id!r} is one of run {place.run_id!r}, not of {run.run_id!r}: fork it"
                )
        elif run.status.value == "completed":
            raise HTTPException(
                409, f"Run {run.run_id!r} is completed; send it a message, or give a checkpoint."
            )
        try:
            with telling_of_key():
                resumed = await self._with_build(
                    run,
                    lambda workflow: workflow.resume(
                        checkpoint_id,
                        storage=self.storage,
                        allow_graph_change=order.graph_may_change,
                        run_id=None if checkpoint_id is not None else run.run_id,
                        take_over=order.take_over,
                        key=order.key,
                        by=order.by,
                    ),
                )
        except AlreadyResumed:
            return await self.storage.get_run(run.run_id)
        return await self._adopt(resumed)

    async def find_fork(self, run: RunInfo, order: ForkOrder) -> RunInfo | None:
        """Return the fork that an earlier call with the key made; raise ``KeyUsedAgain`` if that was another call."""
        if order.run_id is None or not await self.was_called(run, order.receipt):
            return None
        try:
            fork = await self.storage.get_run(order.run_id)
        except RunNotFound:  # the server was killed before it stored the fork
            return None
        return fork if await self.was_called(fork, order.receipt_of_new) else None

    async def fork(self, run: RunInfo, checkpoint_id: str, edits: ForkEdits, order: ForkOrder) -> RunInfo:
        """Begin a new run at a checkpoint of another one, here.

        The receipt is kept once it is known that the fork can be made, and before it is: so a call that is repeated
        makes what is missing, and another call with the key makes nothing.
        """
        _check_reachable(order.run_id)
        forked = await self._with_build(
            run,
            lambda workflow: workflow.forked(
                ForkCall(checkpoint_id, edits, order.run_id, by=order.by, receipt=order.receipt_of_new),
                self.storage,
            ),
        )
        if order.receipt is not None:
            with telling_of_key():
                await use_up(self.storage.store, RunId(run.run_id), order.receipt)
        try:
            await forked.open()
        except RunExists:
            if (known := await self.find_fork(run, order)) is None:
                raise
            return known
        forked.begin()
        await forked.rest_if_idle()
        return await self._adopt(forked)

    async def _with_build(self, run: RunInfo, begin: Any) -> Run:
        """Begin with the build that made a run, or with the newest that fits."""
        self._workflow_of(run)
        problem: GraphChanged | None = None
        for workflow in self._builds:
            if workflow.name == run.workflow_name:
                try:
                    begun: Run = await begin(workflow)
                except GraphChanged as error:
                    problem = problem or error
                else:
                    return begun
        assert problem is not None, "the workflow has a build"
        raise problem

    async def _adopt(self, run: Run) -> RunInfo:
        self.host.adopt(run)
        self._began(run)
        return await self.storage.get_run(run.run_id)

    # Waiting and watching.

    async def wait(
        self,
        run: RunInfo,
        seconds: float,
        since: RunInfo | None = None,
        has_left: Callable[[], Awaitable[bool]] | None = None,
    ) -> RunInfo | None:
        """Wait until a run is settled; return None if it is not by then, or if too many wait already.

        ``since`` is the run as it stood when it got something to do: it has to have moved. ``has_left`` tells now and
        then if nobody waits any more.
        """
        if self._waiters >= self.options.max_waiters:
            return None
        until = monotonic() + min(seconds, self.options.max_wait)
        self._waiters += 1
        try:
            async with self.changes.follow(run.run_id) as follower:
                while True:
                    # Letters first: those that are taken meanwhile have moved the run.
                    letters = len(await self.storage.store.inbox(RunId(run.run_id)))
                    now = await self.storage.get_run(run.run_id)
                    moved = since is None or (now.seq, now.updated) != (since.seq, since.updated)
                    if moved and is_settled(now) and not await self._goes_on(now, letters):
                        return now
                    left = until - monotonic()
                    if left <= 0 or self._closing.is_set() or (has_left is not None and await has_left()):
                        return None
                    # A change that nobody told of is found after some seconds.
                    await follower.wait(min(left, 5.0))
        except RunNotFound:  # someone removed it meanwhile
            return None
        finally:
            self._waiters -= 1

    async def _goes_on(self, run: RunInfo, letters: int) -> bool:
        """Return True if a run that rests goes on with so many letters: it did not fail with them."""
        if letters == 0:
            return False
        head = await self.storage.store.head(RunId(run.run_id))
        return head is not None and letters > head.letters_known

    def watch(self, run: RunInfo, after: str | None, until: Until) -> EventStream:
        """Return the stream of a run's events; raise 503 if too many are open."""
        if self._streams >= self.options.max_streams or self._closing.is_set():
            raise HTTPException(503, "Too many streams are open; try again soon.", {"Retry-After": "5"})
        self._streams += 1
        frames = self._source.frames(run, after, until, self._closing)
        return EventStream(frames, self.options.slow_client, self._release_stream)

    def _release_stream(self) -> None:
        self._streams -= 1


def derived_run_id(workflow_name: str, by: str | None, key: str) -> str:
    """Return the id of the run that a key of a client stands for.

    >>> derived_run_id("Greet", "kim", "order-17") == derived_run_id("Greet", "kim", "order-17")
    True
    """
    text = "\n".join((workflow_name, by or "", key))
    return f"key-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class KeyUsedAgain(HTTPException):
    """The refusal of a request that has the key of another one."""

    def __init__(self) -> None:
        super().__init__(422, "This Idempotency-Key was used for another request; use a new one.")


@contextmanager
def telling_of_key() -> Iterator[None]:
    """Raise ``KeyUsedAgain`` where the storage says that a key was used for something else."""
    try:
        yield
    except KeyReused as error:
        raise KeyUsedAgain from error


def _check_reachable(run_id: str | None) -> str | None:
    """Return the id of a new run; raise ``InvalidArgument`` for one that URLs take for a folder."""
    if run_id in (".", ".."):
        raise InvalidArgument(f"run_id={run_id!r} cannot stand in a URL; choose another one")
    return run_id
