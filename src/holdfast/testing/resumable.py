"""``assert_resumable``: checks that a workflow that is stopped anywhere comes to the same end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.events.events import PendingRequest
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Commit, Letter, Store
from holdfast.engine.copies import differs
from holdfast.engine.status import RunStatus
from holdfast.errors import HoldfastError, StorageError
from holdfast.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from holdfast.checkpoint.events.events import WorkflowEvent
    from holdfast.runtime.run.run import Run
    from holdfast.workflow import Workflow

Answer: TypeAlias = "Callable[[PendingRequest], Any]"
Normalize: TypeAlias = Callable[[Any], Any]

# The memory address in the repr of an object.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

# Fields that say when and where an event happened.
_CIRCUMSTANCES = ("run_id", "timestamp", "checkpoint", "attempt", "replayed")
_NOT_DURABLE = (
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "CheckpointSavedEvent",
    "WorkflowCompletedEvent",
    "ExecutorInvokedEvent",  # a turn in the journal is completed without being invoked again
)


@dataclass(frozen=True)
class Ending:
    """The end of a run: its status and outputs, the state that it left, and its events by superstep."""

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
    *,
    run_context: Mapping[str, Any] | None = None,
) -> int:
    """Stop a run after every commit, go on with a newly made workflow, and compare; also go back to every checkpoint.

    ``make_workflow`` is called for each run, as a new process would; it must do the same each time. ``answer`` gives
    the answers to requests. Outputs, final state and durable events, but for times and attempts, must be those of a
    run that was not stopped. Sleeps take no time. Returns how many ways of going on were compared; raises
    ``AssertionError`` naming the first that came to another end.

    ``normalize`` is given each output, each value of the state and each field of an event, and gives what is compared
    in its place: where a value rightly differs, like one that derives from ``ctx.idempotency_key``, a constant.
    ``run_context`` is given to each run.

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
        comparison = _ResumeComparison(
            _Program(make_workflow, message, run_context),
            answer,
            make_storage or _make_memory_storage,
            time,
            normalize or _keep_value,
        )
        return await comparison.run()


class _Program(NamedTuple):
    """A workflow with its input and its run context."""

    make_workflow: Callable[[], Workflow]
    message: Any
    run_context: Mapping[str, Any] | None

    async def start(self, storage: CheckpointStorage) -> Run:
        return await self.make_workflow().start(self.message, storage=storage, run_context=self.run_context)

    async def resume(
        self, storage: CheckpointStorage, checkpoint_id: str | None = None, run_id: str | None = None
    ) -> Run:
        return await self.make_workflow().resume(
            checkpoint_id, run_id=run_id, storage=storage, run_context=self.run_context
        )


class _ResumeComparison:
    """Runs one workflow in many ways, and compares their ends."""

    def __init__(
        self,
        program: _Program,
        answer: Answer | None,
        make_storage: Callable[[], CheckpointStorage],
        time: VirtualTime,
        normalize: Normalize,
    ) -> None:
        self._program = program
        self._answer = answer
        self._make_storage = make_storage
        self._time = time
        self._normalize = normalize

    async def run(self) -> int:
        """Compare all ways, and return their number."""
        storage = self._make_storage()
        reference = await self._program.start(storage)
        expected = await self._finish_run(reference, storage)
        checkpoints = await storage.list_checkpoints(run_id=reference.run_id)
        for checkpoint in checkpoints:
            back = await self._program.resume(storage, checkpoint.checkpoint_id)
            how = f"from checkpoint {checkpoint.seq}, the {checkpoint.phase} of superstep {checkpoint.superstep}"
            compare_endings(expected, await self._finish_run(back, storage), checkpoint, how)
        await storage.close()
        commits = 1
        while await self._stop_after(commits, expected):
            commits += 1
        return len(checkpoints) + commits

    async def _stop_after(self, commits: int, expected: Ending) -> bool:
        """Let the store die after so many commits, then resume the run; return True if that stopped it."""
        storage = self._make_storage()
        store = storage.catalog.store
        mortal = MortalStore(store, commits)
        storage.catalog.store = mortal
        run = await self._program.start(storage)
        stopped = False
        try:
            await self._finish_run(run, storage)
        except HoldfastError as error:
            if mortal.death not in (
                error,
                error.__cause__,
            ):  # the cause, if a handler waited for the store
                raise
            stopped = True
        storage.catalog.store = store
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        resumed = await self._program.resume(storage, run_id=run.run_id)
        ending = await self._finish_run(resumed, storage)
        compare_endings(expected, ending, latest, f"stopped after commit {commits} and resumed")
        await storage.close()
        return stopped

    async def _finish_run(self, run: Run, storage: CheckpointStorage) -> Ending:
        """Answer the requests of a run until it ends, and return its end."""
        events: list[WorkflowEvent] = []
        while True:
            events += await self._collect_events(run)
            if not run.pending_requests or self._answer is None:
                break
            await run.respond({request.request_id: self._answer(request) for request in run.pending_requests})
        result = await run.wait_for_completion()
        latest = await storage.get_latest(run_id=run.run_id)
        assert latest is not None
        loaded = await storage.load(latest.checkpoint_id)
        outputs = [self._normalize(output) for output in result.outputs]
        return Ending(
            result.status,
            outputs,
            _read_state(loaded, self._normalize),
            select_durable_events(events, self._normalize),
        )

    async def _collect_events(self, run: Run) -> list[WorkflowEvent]:
        """Return the events until the run is at rest; move the clock whenever it sleeps."""

        async def watch() -> list[WorkflowEvent]:
            return [event async for event in run.watch_stream()]

        return await self._time.pass_until(watch())


class MortalStore:
    """A store that fails all commits after a number of them."""

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


def _make_memory_storage() -> CheckpointStorage:
    from holdfast.stores.memory import InMemoryCheckpointStorage

    return InMemoryCheckpointStorage()


def _keep_value(value: Any) -> Any:
    return value


def _read_state(checkpoint: Checkpoint, normalize: Normalize) -> dict[str, Any]:
    kept = {f"executor {owner}": value for owner, value in checkpoint.executor_states.items()}
    scopes = {f"scope {name}": scope for name, scope in checkpoint.scopes.items()}
    return {place: _normalize_values(value, normalize) for place, value in {**kept, **scopes}.items()}


def _normalize_values(value: Any, normalize: Normalize) -> Any:
    if isinstance(value, Mapping):
        return {key: normalize(value[key]) for key in sorted(value)}
    return normalize(value)


def select_durable_events(
    events: list[WorkflowEvent], normalize: Normalize = _keep_value
) -> list[tuple[int, str, dict[str, Any]]]:
    """Return the events that a resume must repeat, without the fields that may differ."""
    kept: list[tuple[int, str, dict[str, Any]]] = []
    for event in events:
        kind = type(event).__name__
        if event.provisional or kind in _NOT_DURABLE:
            continue
        if kind == "SuperStepStartedEvent":  # one that began again, after a sleep, emits all its events again
            kept = [known for known in kept if known[0] != event.superstep or known[1] == "RequestInfoEvent"]
        content = {f.name: getattr(event, f.name) for f in fields(event) if f.name not in _CIRCUMSTANCES}
        parts = {key: _normalize_field(part, normalize) for key, part in content.items()}
        kept.append((event.superstep, kind, parts))
    return kept


def _normalize_field(part: Any, normalize: Normalize) -> Any:
    if isinstance(part, BaseException):  # errors and warnings do not compare by value
        return normalize(_ADDRESS.sub("0x...", repr(part)))
    if isinstance(part, PendingRequest):
        return part._replace(
            data=normalize(part.data), expires=None
        )  # the time depends on when the request is made
    return normalize(part)


def compare_endings(expected: Ending, got: Ending, start: Checkpoint, how: str) -> None:
    """Raise ``AssertionError`` unless a run that went on from ``start`` ended as expected."""
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
