"""assert_resumable: a workflow that is stopped anywhere comes to the same end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Commit, Letter, Store
from holdfast.engine.copies import differs
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError, StorageError
from holdfast.runtime.events.events import PendingRequest
from holdfast.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from holdfast.runtime.events.events import WorkflowEvent
    from holdfast.runtime.run.run import Run
    from holdfast.workflow import Workflow

Answer: TypeAlias = "Callable[[PendingRequest], Any]"
Normalize: TypeAlias = Callable[[Any], Any]

# Where an object lies in memory, as its repr tells.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

# What tells when and where something happened, not what.
_CIRCUMSTANCES = ("run_id", "timestamp", "checkpoint", "attempt", "replayed")
_NOT_DURABLE = (
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "CheckpointSavedEvent",
    "WorkflowCompletedEvent",
    "ExecutorInvokedEvent",  # a turn that the journal has is completed without being invoked again
)


@dataclass(frozen=True)
class Ending:
    """What came of a run: its status and outputs, the state that it left, and its events by superstep."""

    status: RunStatus
    outputs: list[Any]
    state: dict[str, Any]
    events: list[tuple[int, str, dict[str, Any]]]


async def assert_resumable(
    make_workflow: Callable[[], Workflow],
    message: Any,
    answer: Answer | None = None,
    make_storage: Callable[[], CheckpointStorage] | None = None,
    normalize: Normalize | None = None,
) -> int:
    """Stop a run after every commit, go on with a newly made workflow, and compare; also go back to every checkpoint.

    ``make_workflow`` is called for each run, as a new process would; it must do the same each time. ``answer`` gives
    the answers to requests. Outputs, final state and durable events, but for times and attempts, must be those of a
    run that was not stopped. Sleeps take no time. Returns how many ways of going on were compared; raises
    ``AssertionError`` naming the first that came to another end.

    ``normalize`` is given each output, each value of the state and each field of an event, and gives what is compared
    in its place: where a value rightly differs, like one that derives from ``ctx.idempotency_key``, a constant.

    >>> import asyncio
    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> def make():
    ...     return WorkflowBuilder(name="Double").set_start_executor(double).build()
    >>> asyncio.run(assert_resumable(make, 21))
    4
    """
    with VirtualTime() as time:
        comparison = _Comparison(
            make_workflow, message, answer, make_storage or _in_memory, time, normalize or _as_it_is
        )
        return await comparison.run()


class _Comparison:
    """Runs of one workflow that should come to the same end."""

    def __init__(
        self,
        make_workflow: Callable[[], Workflow],
        message: Any,
        answer: Answer | None,
        make_storage: Callable[[], CheckpointStorage],
        time: VirtualTime,
        normalize: Normalize,
    ) -> None:
        self._make_workflow = make_workflow
        self._message = message
        self._answer = answer
        self._make_storage = make_storage
        self._time = time
        self._normalize = normalize

    async def run(self) -> int:
        """Compare all ways; how many there are."""
        storage = self._make_storage()
        reference = await self._make_workflow().start(self._message, storage=storage)
        expected = await self._ending(reference, storage)
        checkpoints = await storage.list_checkpoints(run_id=reference.run_id)
        for checkpoint in checkpoints:
            back = await self._make_workflow().resume(checkpoint.checkpoint_id, storage=storage)
            how = f"from checkpoint {checkpoint.seq}, the {checkpoint.phase} of superstep {checkpoint.superstep}"
            _compare(expected, await self._ending(back, storage), checkpoint, how)
        await storage.close()
        commits = 1
        while await self._stopped_after(commits, expected):
            commits += 1
        return len(checkpoints) + commits

    async def _stopped_after(self, commits: int, expected: Ending) -> bool:
        """Let the store die after so many commits and go on; whether the run was stopped at all."""
        storage = self._make_storage()
        store = storage.catalog.store
        mortal = _Mortal(store, commits)
        storage.catalog.store = mortal
        run = await self._make_workflow().start(self._message, storage=storage)
        stopped = False
        try:
            await self._ending(run, storage)
        except HoldfastError as error:
            if mortal.death not in (
                error,
                error.__cause__,
            ):  # the second where a handler waited for the store
                raise
            stopped = True
        storage.catalog.store = store
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        resumed = await self._make_workflow().resume(run_id=run.run_id, storage=storage)
        ending = await self._ending(resumed, storage)
        _compare(expected, ending, latest, f"stopped after commit {commits} and resumed")
        await storage.close()
        return stopped

    async def _ending(self, run: Run, storage: CheckpointStorage) -> Ending:
        """Let a run come to its end, answering what it asks."""
        events: list[WorkflowEvent] = []
        while True:
            events += await self._events_of(run)
            if not run.pending_requests or self._answer is None:
                break
            await run.respond({request.request_id: self._answer(request) for request in run.pending_requests})
        result = await run.wait_for_completion()
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        loaded = await storage.load(latest.checkpoint_id)
        outputs = [self._normalize(output) for output in result.outputs]
        return Ending(
            result.status, outputs, _state(loaded, self._normalize), _durable(events, self._normalize)
        )

    async def _events_of(self, run: Run) -> list[WorkflowEvent]:
        """The events until the run is at rest; whenever it sleeps, the clock is moved."""

        async def watch() -> list[WorkflowEvent]:
            return [event async for event in run.watch_stream()]

        return await self._time.pass_until(watch())


class _Mortal:
    """A store that dies after a number of commits: none that follows happens."""

    def __init__(self, store: Store, commits: int) -> None:
        self._inner = store
        self._left = commits
        self.death = StorageError("the store died, as the test wants it to")

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        if not self._left:
            raise self.death
        waiting = await self._inner.commit(commit)
        self._left -= 1
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _in_memory() -> CheckpointStorage:
    from holdfast.stores.storages import InMemoryCheckpointStorage

    return InMemoryCheckpointStorage()


def _as_it_is(value: Any) -> Any:
    return value


def _state(checkpoint: Checkpoint, normalize: Normalize) -> dict[str, Any]:
    kept = {f"executor {owner}": value for owner, value in checkpoint.executor_states.items()}
    scopes = {f"scope {name}": scope for name, scope in checkpoint.scopes.items()}
    return {place: _plain(value, normalize) for place, value in {**kept, **scopes}.items()}


def _plain(value: Any, normalize: Normalize) -> Any:
    if isinstance(value, Mapping):
        return {key: normalize(value[key]) for key in sorted(value)}
    return normalize(value)


def _durable(
    events: list[WorkflowEvent], normalize: Normalize = _as_it_is
) -> list[tuple[int, str, dict[str, Any]]]:
    """Events without their circumstances, but for those that a resume need not repeat."""
    kept: list[tuple[int, str, dict[str, Any]]] = []
    for event in events:
        kind = type(event).__name__
        if event.provisional or kind in _NOT_DURABLE:
            continue
        if kind == "SuperStepStartedEvent":  # one that was begun again, after a sleep, tells all of it again
            kept = [known for known in kept if known[0] != event.superstep or known[1] == "RequestInfoEvent"]
        content = {f.name: getattr(event, f.name) for f in fields(event) if f.name not in _CIRCUMSTANCES}
        parts = {key: _content(part, normalize) for key, part in content.items()}
        kept.append((event.superstep, kind, parts))
    return kept


def _content(part: Any, normalize: Normalize) -> Any:
    if isinstance(part, BaseException):  # errors and warnings are equal only to themselves
        return normalize(_ADDRESS.sub("0x...", repr(part)))
    if isinstance(part, PendingRequest):
        return part._replace(data=normalize(part.data), expires=None)  # the time depends on when it is asked
    return normalize(part)


def _compare(expected: Ending, got: Ending, start: Checkpoint, how: str) -> None:
    assert got.status is expected.status, f"{how}: the run is {got.status}, not {expected.status}"
    for what in ("outputs", "state"):
        one, other = getattr(got, what), getattr(expected, what)
        assert not differs(one, other), f"{how}: {what} are {one!r}, not {other!r}"
    first = start.superstep + (start.phase == "end")
    # Requests that were pending are emitted again at once, under the superstep before.
    rest = [event for event in got.events if event[0] >= first]
    wanted = [event for event in expected.events if event[0] >= first]
    for mine, theirs in zip_longest(rest, wanted):
        assert not differs(mine, theirs), f"{how}: an event is {mine!r}, not {theirs!r}"
