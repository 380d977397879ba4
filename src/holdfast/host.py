"""Hosts: wake stored runs that wait for time or answers, and rescue those whose process died."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from holdfast.checkpoint.arguments import check_flag
from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.run_info import RunInfo, run_info
from holdfast.checkpoint.store import ClaimRequest
from holdfast.errors import (
    ExecutorFailed,
    GraphChanged,
    HeadMoved,
    HoldfastError,
    InvalidArgument,
    RunEnded,
    RunTaken,
    WrongType,
)
from holdfast.ids import CheckpointId, RunId
from holdfast.log_fields import extra_fields
from holdfast.runtime.environment import current
from holdfast.runtime.run.lifecycle import GRACE_SECONDS
from holdfast.runtime.run.run import Run
from holdfast.runtime.run.wakeup import held_here
from holdfast.runtime.times import in_microseconds

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.store import Head
    from holdfast.workflow import Workflow

RunContextFactory: TypeAlias = Callable[
    [RunInfo], Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None
]
"""Gives the values that handlers of a run find in ``ctx.run_context``."""

_logger = logging.getLogger("holdfast.host")

# Runs whose process died are looked for so often.
_RESCUE_SECONDS = 10.0
# A run that a host is about to go on with is kept from others so long, unless it moves before.
_CLAIM_MICROSECONDS = 20_000_000
# A run that could not be woken is left alone so long; so often those are looked for that fit no build here.
_BACKOFF_SECONDS = 60.0
_PROBLEMS_KEPT = 1_000
_AT_ONCE = float("-inf")


class _Tried(NamedTuple):
    """The head of a run that could not be woken, or had nothing to do though letters wait."""

    checkpoint_id: CheckpointId
    wake_at: int | None
    again: float | None
    """The time of the next try, by the clock of the event loop; None is the run's own time to wake."""

    def lasts(self, loop_time: float, now: int) -> bool:
        """Return True if the run is still to be left alone."""
        if self.again is not None:
            return loop_time < self.again
        return self.wake_at is None or now < self.wake_at


class Host:
    """Goes on with the runs of workflows in a storage that have something to do.

    Those are runs whose sleep is over, or whose questions have expired or were answered by ``storage.respond``, and
    runs whose process died. Any number of hosts may share a storage: each run is woken by one of them. A host keeps
    nothing in memory of the runs that wait.

    >>> import asyncio
    >>> from holdfast import Host, InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def remind(text: str, ctx: WorkflowContext[None, str]) -> str:
    ...     await ctx.sleep(0.01)
    ...     return text
    >>> async def main():
    ...     storage = InMemoryCheckpointStorage()
    ...     workflow = WorkflowBuilder(name="Remind").set_start_executor(remind).build()
    ...     await workflow.start("rent", run_id="r", storage=storage)
    ...     async with Host(storage, workflow, poll=0.01):
    ...         while (await storage.list_runs())[0].status != "completed":
    ...             await asyncio.sleep(0.01)
    ...     return (await storage.list_runs())[0].status
    >>> asyncio.run(main())
    <RunStatus.COMPLETED: 'completed'>
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *workflows: Workflow,
        poll: float = 1.0,
        concurrency: int = 100,
        woken: Callable[[Run], object] | None = None,
        run_context: RunContextFactory | None = None,
        allow_graph_change: bool = False,
    ) -> None:
        """Several ``workflows`` may be builds of one name, the newest first: a run goes on with the build that made it.

        If that is not here, a run goes on with the newest build that fits, with ``allow_graph_change``; else it is left
        as it is, and ``problems`` says why.

        ``poll`` is how often it looks for runs, in seconds; ``concurrency`` how many go on at the same time.

        ``woken`` is called with each run that it goes on with, before anything of it happens; but not with those that
        someone in this event loop holds: they see for themselves what their ``Run`` does.

        ``run_context`` is called with the ``RunInfo`` of each of these runs, and gives the values that its handlers
        find in ``ctx.run_context``: nothing of what the run had before is stored. It may be async.
        """
        check_flag("allow_graph_change", allow_graph_change)
        if not hasattr(storage, "store"):
            raise WrongType(f"a host takes a storage first, not a {type(storage).__name__}: {storage!r}")
        given: tuple[object, object] = (woken, poll)  # as they come from programs without a type checker
        if given[0] is not None and (not callable(given[0]) or asyncio.iscoroutinefunction(given[0])):
            raise WrongType(f"woken={woken!r}: must be a function that is not async")
        if run_context is not None and not callable(run_context):
            raise WrongType(
                f"run_context of a host is a function that takes the RunInfo of a run and gives a dict, not a "
                f"{type(run_context).__name__}: for the same values each time, 'run_context=lambda run: {{...}}'"
            )
        if not isinstance(given[1], int | float) or not poll > 0:
            raise InvalidArgument(f"poll={poll!r}: must be more than 0 seconds")
        if type(concurrency) is not int or concurrency < 1:
            raise InvalidArgument(f"concurrency={concurrency!r}: must be a whole number of at least 1")
        self._storage = storage
        self._builds = _by_name(workflows)
        self._graph_may_change = allow_graph_change
        self._poll = poll
        self._concurrency = concurrency
        self._woken = woken
        self._run_context = run_context
        self._now = current().now
        self._active: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, Run] = {}
        self._tried: dict[str, _Tried] = {}
        self._missed: dict[str, Head] = {}
        """Runs that were claimed while a task had not ended with them; no look finds them before the claim ends."""
        self._is_leaving = False
        self._serving: asyncio.Task[None] | None = None
        self._fingerprints: dict[str, frozenset[str] | None] = {
            name: None
            if allow_graph_change
            else frozenset().union(*(build.graph.fingerprints for build in builds))
            for name, builds in self._builds.items()
        }
        self._rescue_at = self._strays_at = _AT_ONCE
        self._grace = GRACE_SECONDS
        self._woken_runs = 0
        """The number of runs that went on, each as often as it did."""
        self._joined = False
        self._hinted = asyncio.Event()
        """Set when the store says that there is something to do."""
        self._strays: deque[Head] = deque()
        """Runs that fit no build here and are yet to be tried."""
        self.problems: dict[str, Exception] = {}
        """Why runs could not be woken, what they failed with then, or what they last warned of, by run id; the last
        thousand."""

    @property
    def active(self) -> list[str]:
        """The ids of the runs that it goes on with right now."""
        return list(self._active)

    def find(self, run_id: str) -> Run | None:
        """Return the object of a run that it goes on with right now; None if it does not, or someone else holds it."""
        return self._runs.get(run_id)

    def look_soon(self) -> None:
        """Look for runs at once instead of at the next ``poll``: something was put into the storage for it."""
        self._hinted.set()

    def adopt(self, run: Run) -> None:
        """Look after a run that ``resume`` or ``fork`` began in this event loop, as after those that it found itself.

        It counts as one of ``active``, and is left for the next host if this one stops before it rests.
        """
        task = asyncio.create_task(self._look_after(run), name=f"holdfast host {run.run_id}")
        self._active[run.run_id] = task
        self._runs[run.run_id] = run
        task.add_done_callback(lambda done: self._ended(run.run_id, done))

    async def _look_after(self, run: Run) -> None:
        head = await self._storage.store.head(run.run_id)
        self.problems.pop(run.run_id, None)
        await run.driven()
        if head is not None:
            self._tell_of(run, head, ())

    async def wake_due(self) -> int:
        """Go on with every run that has something to do now, until each waits, sleeps or is over; return their number.

        Those that could not be woken are not counted; ``problems`` says why.

        For programs that are started now and then, and for tests; ``async with`` and ``serve`` do this all the time.
        """
        before = self._woken_runs
        self._rescue_at = self._strays_at = _AT_ONCE
        self._strays.clear()
        while await self._look():
            while self._active:
                await asyncio.wait(self._active.values())
        return self._woken_runs - before

    async def serve(self) -> None:
        """Wake runs until this is cancelled; then those under way are left as ``__aexit__`` leaves them."""
        self._hinted = asyncio.Event()  # it belongs to this event loop
        listening = asyncio.create_task(self._listen(), name="holdfast host listening")
        try:
            while True:
                self._hinted.clear()
                try:
                    started = await self._look()
                except HoldfastError as error:  # a store that cannot be read now may be later
                    _logger.warning("looking for runs to wake failed: %s", error, extra=extra_fields("", ""))
                    started = 0
                await self._pause(started)
        finally:
            listening.cancel()
            await self._leave()

    async def _listen(self) -> None:
        """Look at once when the store says that there is something to do; not all stores do."""
        while (wakeups := getattr(self._storage.store, "wakeups", None)) is not None:
            try:
                async with aclosing(wakeups()) as hints:
                    async for _ in hints:
                        self._hinted.set()
            except HoldfastError as error:  # a store that cannot be reached now may be later
                _logger.info("listening for runs to wake failed: %s", error, extra=extra_fields("", ""))
            await asyncio.sleep(self._poll)

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve(), name="holdfast host")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop. Runs under way have some seconds to come to rest; others are left for the next host to go on with."""
        problem = await self._stop(GRACE_SECONDS)
        if kind is None and problem is not None:
            raise problem

    async def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Wake no more runs, before the end of ``async with``.

        Those under way have ``grace`` seconds to come to rest; others are left for the next host to go on with.
        """
        given: object = grace  # as it comes from a program without a type checker
        if not isinstance(given, int | float) or not grace >= 0:
            raise InvalidArgument(f"grace={grace!r}: must be 0 or more seconds")
        if (problem := await self._stop(grace)) is not None:
            raise problem

    async def _stop(self, grace: float) -> BaseException | None:
        """End ``serve``; return the error with which it ended by itself, if it did."""
        serving, self._serving = self._serving, None
        if serving is None:
            return None
        self._grace = grace
        serving.cancel()
        await asyncio.wait([serving])
        return None if serving.cancelled() else serving.exception()

    async def _pause(self, started: int) -> None:
        if len(self._active) >= self._concurrency:
            await asyncio.wait(self._active.values(), return_when=asyncio.FIRST_COMPLETED)
        elif started:
            await asyncio.sleep(0)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hinted.wait(), self._poll)

    async def _look(self) -> int:
        """Begin to wake runs that have something to do, as many as there is room for; return their number."""
        loop_time = asyncio.get_running_loop().time()
        self._forget_tried(loop_time)
        abandoned = loop_time >= self._rescue_at
        started = 0
        while (room := self._concurrency - len(self._active)) > 0:
            heads = await self._claim(room, abandoned)
            self._missed |= {head.run_id: head for head in heads if head.run_id in self._active}
            started += sum([self._begin(head) for head in heads if self._may_begin(head)])
            if len(heads) < room:
                if abandoned:
                    self._rescue_at = loop_time + _RESCUE_SECONDS
                return started + await self._try_strays(loop_time)
        return started

    async def _claim(self, limit: int, abandoned: bool) -> Sequence[Head]:
        """Keep runs from other hosts that fit a build here, until this one has begun with them."""
        store, now = self._storage.store, in_microseconds(self._now())
        if not self._joined:
            await store.join()
            self._joined = True
        request = ClaimRequest(this_process(), now, _CLAIM_MICROSECONDS, limit, self._fingerprints)
        tried = {RunId(run): tried.checkpoint_id for run, tried in self._tried.items()}
        return await store.claim(request._replace(abandoned=abandoned, besides=tried))

    async def _try_strays(self, loop_time: float) -> int:
        """Try runs that fit no build here, now and then, to say in ``problems`` why; return their number."""
        if loop_time >= self._strays_at and not self._strays:
            self._strays_at = loop_time + _BACKOFF_SECONDS
            now = in_microseconds(self._now())
            request = ClaimRequest(this_process(), now, 0, _PROBLEMS_KEPT, self._fingerprints, fits=False)
            self._strays.extend(await self._storage.store.claim(request))
        started = 0
        while self._strays and len(self._active) < self._concurrency:
            head = self._strays.popleft()
            started += self._may_begin(head) and self._begin(head)
        return started

    def _forget_tried(self, loop_time: float) -> None:
        """Forget the tries of runs that need not be left alone any longer."""
        if self._tried:
            now = in_microseconds(self._now())
            self._tried = {run: tried for run, tried in self._tried.items() if tried.lasts(loop_time, now)}

    def _may_begin(self, head: Head) -> bool:
        tried = self._tried.get(head.run_id)
        same = tried is not None and (tried.checkpoint_id, tried.wake_at) == (
            head.checkpoint_id,
            head.wake_at,
        )
        return head.run_id not in self._active and not same

    def _begin(self, head: Head) -> bool:
        self._tried.pop(head.run_id, None)
        waking = self._wake(self._builds[head.workflow_name], head)
        task = asyncio.create_task(waking, name=f"holdfast host {head.run_id}")
        self._active[head.run_id] = task
        task.add_done_callback(lambda done: self._ended(head.run_id, done))
        return True

    def _ended(self, run_id: str, task: asyncio.Task[None]) -> None:
        if self._active.get(run_id) is task:  # else another one has begun with the run since
            del self._active[run_id]
            self._runs.pop(run_id, None)
            missed = self._missed.pop(run_id, None)
            if missed is not None and not self._is_leaving and self._may_begin(missed):
                self._begin(missed)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("waking run %s failed", run_id, exc_info=error, extra=extra_fields(run_id, ""))

    async def _wake(self, builds: Sequence[Workflow], head: Head) -> None:
        loop_time = asyncio.get_running_loop().time()
        early = head.wake_at is None or in_microseconds(self._now()) < head.wake_at
        known: Sequence[Warning] = ()
        try:
            run = held_here(self._storage.store, head)
            if run is not None:  # someone in this event loop holds it, and is to see what it does
                known = run.warnings
                await run.go_on()
            elif await self._storage.store.head(head.run_id) == head:
                run = await self._resumed(builds, head)
            else:  # someone went on with it since, or cancelled it
                return
        except (RunTaken, HeadMoved, RunEnded):  # someone else was faster
            return
        except Exception as error:
            self._tried[head.run_id] = _Tried(head.checkpoint_id, head.wake_at, loop_time + _BACKOFF_SECONDS)
            _logger.warning("run %s cannot be woken: %s", head.run_id, error, extra=_extra_of(head))
            self._note(head.run_id, error)
            return
        self._woken_runs += 1
        self.problems.pop(head.run_id, None)
        self._tell_of(run, head, known)
        latest, wakes = run.latest_checkpoint, run.asleep_until
        if early and wakes is not None and latest is not None and latest.checkpoint_id == head.checkpoint_id:
            # It has letters, but they cannot be taken before it is awake.
            self._tried[head.run_id] = _Tried(head.checkpoint_id, in_microseconds(wakes), None)

    async def _resume(
        self, builds: Sequence[Workflow], head: Head, run_context: Mapping[str, Any] | None
    ) -> Run:
        """Return the run with the build that made it; else with the newest that fits, if the graph may change."""
        problem: GraphChanged | None = None
        own_first = sorted(builds, key=lambda build: not build.graph.recognises(head.fingerprint))
        tries = [(build, False) for build in own_first]
        if self._graph_may_change:
            tries += [(build, True) for build in builds]
        for build, may_change in tries:
            try:
                return await build.resumed(
                    head.run_id, self._storage, run_context=run_context, allow_graph_change=may_change
                )
            except GraphChanged as error:
                problem = problem or error
        assert problem is not None, "there is a build"
        raise problem

    async def _resumed(self, builds: Sequence[Workflow], head: Head) -> Run:
        run = await self._resume(builds, head, await self._context_of(head))
        self._runs[head.run_id] = run
        if self._woken is not None:
            try:
                self._woken(run)
            except Exception:  # who only watches keeps no run from going on
                _logger.exception("'woken' failed for run %s", head.run_id, extra=_extra_of(head))
        await run.open()
        run.begin()
        await run.driven()
        return run

    async def _context_of(self, head: Head) -> Mapping[str, Any] | None:
        """Return the values for the handlers of a run."""
        if self._run_context is None:
            return None
        try:
            given = self._run_context(await run_info(self._storage.store, head))
            return await given if isinstance(given, Awaitable) else given
        except Exception as error:
            error.add_note(f"in run_context(...) of the host, for run {head.run_id}")
            raise

    def _tell_of(self, run: Run, head: Head, known: Sequence[Warning]) -> None:
        """Log and note what a run failed with, and what it warned of but for what was ``known`` before."""
        extra = _extra_of(head)
        for warning in run.warnings:
            if not any(warning is other for other in known):
                kind = type(warning).__name__
                _logger.warning("run %s warns: %s: %s", run.run_id, kind, warning, extra=extra)
                self._note(run.run_id, warning)
        failure = run.failure
        if isinstance(failure, RunTaken | HeadMoved):
            _logger.info("run %s was taken over by someone else", run.run_id, extra=extra)
        elif isinstance(failure, Exception):
            executor_id = failure.executor_id if isinstance(failure, ExecutorFailed) else ""
            extra = extra_fields(head.run_id, head.workflow_name, executor_id)
            _logger.error("run %s failed: %s", run.run_id, failure, exc_info=failure, extra=extra)
            self._note(run.run_id, _without_traceback(failure))

    def _note(self, run_id: str, error: Exception) -> None:
        self.problems.pop(run_id, None)
        self.problems[run_id] = error
        while len(self.problems) > _PROBLEMS_KEPT:
            del self.problems[next(iter(self.problems))]

    async def _leave(self) -> None:
        self._is_leaving = True
        self._missed.clear()
        if self._active:
            await asyncio.wait(self._active.values(), timeout=self._grace)
        await asyncio.gather(*(run.abandon() for run in self._runs.values()))
        for task in list(self._active.values()):
            task.cancel()
        if self._active:
            await asyncio.wait(self._active.values())
        self._is_leaving = False


def _extra_of(head: Head) -> dict[str, str]:
    return extra_fields(head.run_id, head.workflow_name)


def _without_traceback(error: Exception) -> Exception:
    """Return an error and its causes without their tracebacks, which would keep alive all that was used there."""
    try:
        kept = copy(error)
    except Exception:  # it is of a class of the user's
        return error
    if isinstance(error.__cause__, Exception):
        kept.__cause__ = _without_traceback(error.__cause__)
    return kept


def _by_name(workflows: Sequence[Workflow]) -> dict[str, list[Workflow]]:
    """Return the builds of each name, in the order in which they were given."""
    named: dict[str, list[Workflow]] = {}
    for workflow in workflows:
        if not hasattr(workflow, "resumed"):
            raise WrongType(f"a host takes workflows, not a {type(workflow).__name__}: {workflow!r}")
        builds = named.setdefault(workflow.name, [])
        if any(build.fingerprint == workflow.fingerprint for build in builds):
            raise InvalidArgument(
                f"a host got two workflows with the name {workflow.name!r} and the same graph; give each its own name, "
                f"or give one of them"
            )
        builds.append(workflow)
    if not named:
        raise InvalidArgument(
            "a host needs the workflows whose runs it goes on with: Host(storage, workflow)"
        )
    return named
