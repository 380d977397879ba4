"""assert_resumable: a workflow that is stopped anywhere comes to the same end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.checkpoint.checkpoint import Checkpoint
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.checkpoint.store import Commit, Letter, Store
from holdfast.engine.copying import differs
from holdfast.engine.status import RunStatus
from holdfast.errors import StorageError

if TYPE_CHECKING:
    from holdfast.runtime.events import PendingRequest, WorkflowEvent
    from holdfast.runtime.run import Run
    from holdfast.workflow import Workflow

Answer: TypeAlias = "Callable[[PendingRequest], Any]"

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
) -> int:
    """Stop a run after every commit, go on with a newly made workflow, and compare; also go back to every checkpoint.

    ``make_workflow`` is called for each run, as a new process would; it must do the same each time. ``answer`` gives
    the answers to requests. Outputs, final state and durable events, but for times and attempts, must be those of a
    run that was not stopped. Returns how many ways of going on were compared; raises ``AssertionError`` naming the
    first that came to another end.

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
    make_storage = make_storage or _in_memory
    storage = make_storage()
    reference = await make_workflow().start(message, storage=storage)
    expected = await _ending(reference, storage, answer)
    checkpoints = await storage.list_checkpoints(run_id=reference.run_id)
    compared = 0
    for checkpoint in checkpoints:
        back = await make_workflow().resume(checkpoint.checkpoint_id, storage=storage)
        _compare(
            expected,
            await _ending(back, storage, answer),
            checkpoint,
            f"from checkpoint {checkpoint.seq}, the {checkpoint.phase} of superstep {checkpoint.superstep}",
        )
        compared += 1
    await storage.close()
    commits = 1
    while await _stopped_after(commits, make_workflow, message, answer, make_storage, expected):
        compared += 1
        commits += 1
    return compared + 1


async def _stopped_after(
    commits: int,
    make_workflow: Callable[[], Workflow],
    message: Any,
    answer: Answer | None,
    make_storage: Callable[[], CheckpointStorage],
    expected: Ending,
) -> bool:
    """Let the store die after so many commits and go on; whether the run was stopped at all."""
    storage = make_storage()
    store = storage._store
    mortal = _Mortal(store, commits)
    storage._store = mortal
    run = await make_workflow().start(message, storage=storage)
    stopped = False
    try:
        await _ending(run, storage, answer)
    except StorageError as error:
        if error is not mortal.death:
            raise
        stopped = True
    storage._store = store
    latest = await storage.get_latest(run_id=run.run_id)
    assert latest is not None
    resumed = await make_workflow().resume(run_id=run.run_id, storage=storage)
    ending = await _ending(resumed, storage, answer)
    _compare(expected, ending, latest, f"stopped after commit {commits} and resumed")
    await storage.close()
    return stopped


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


async def _ending(run: Run, storage: CheckpointStorage, answer: Answer | None) -> Ending:
    """Let a run come to its end, answering what it asks."""
    events: list[WorkflowEvent] = []
    while True:
        events += [event async for event in run.watch_stream()]
        if run.status is not RunStatus.WAITING or answer is None:
            break
        await run.respond({request.request_id: answer(request) for request in run.pending_requests})
    result = await run.wait_for_completion()
    latest = await storage.get_latest(run_id=run.run_id)
    assert latest is not None
    loaded = await storage.load(latest.checkpoint_id)
    return Ending(result.status, result.outputs, _state(loaded), _durable(events))


def _state(checkpoint: Checkpoint) -> dict[str, Any]:
    kept = {f"executor {owner}": _plain(value) for owner, value in checkpoint.executor_states.items()}
    return {**kept, **{f"scope {name}": _plain(scope) for name, scope in checkpoint.scopes.items()}}


def _plain(value: Any) -> Any:
    return {key: value[key] for key in sorted(value)} if isinstance(value, Mapping) else value


def _durable(events: list[WorkflowEvent]) -> list[tuple[int, str, dict[str, Any]]]:
    """Events without their circumstances, but for those that a resume need not repeat."""
    kept = []
    for event in events:
        kind = type(event).__name__
        if event.provisional or kind in _NOT_DURABLE:
            continue
        content = {f.name: getattr(event, f.name) for f in fields(event) if f.name not in _CIRCUMSTANCES}
        kept.append((event.superstep, kind, _comparable(content)))
    return kept


def _comparable(content: dict[str, Any]) -> dict[str, Any]:
    # Errors and warnings are equal only to themselves.
    return {key: repr(part) if isinstance(part, BaseException) else part for key, part in content.items()}


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
