"""Every error and warning of Holdfast, under one root each.

The text of an error stands where it is raised: search for the name of its class.

::

    HoldfastError
    ├── GraphError            the workflow cannot be built, or a handler named an executor that is not there
    │   └── DefinitionError   the definition of a team of agents is wrong
    ├── WrongType             a value is not of the declared type: an input, a typed state key (a TypeError too)
    ├── InvalidArgument       an argument that cannot be meant (a ValueError too)
    │   └── KeyReused         a key that stands for one call was given with another one
    ├── NotCheckpointable     a value that was sent or queued cannot be kept
    ├── StateConflict         two turns of one superstep wrote the same shared key
    ├── StateNotSet           a handler requires a value of the state that nobody set (a LookupError too)
    ├── RunContextMissing     a handler asks for a value that nobody gave to the run (a KeyError too)
    ├── ExecutorShared        an executor instance cannot serve another run
    ├── ExecutorFailed        a handler raised
    │   └── ConditionFailed   the condition or selection of an edge raised, or chose a target it does not have
    ├── ExecutorTimeout       a handler took too long (the cause of an ExecutorFailed)
    │   └── TeamTimeout       the agents of a team took too long
    ├── LimitExceeded         a named limit of the workflow was reached
    │   ├── SuperstepLimit    too many supersteps since the last input
    │   ├── AgentLoop         an agent called its model too often for one message
    │   └── BudgetExceeded    the agents of a run used up a budget
    ├── AgentError            an agent cannot do its task
    │   ├── HistoryUnreadable a conversation was written by another library, or in a form that this one does not read
    │   ├── ModelUnavailable  a model cannot be reached, or broke off
    │   ├── RateLimited       a provider refuses calls for some time
    │   ├── ReplayDiffers     a replay asks something else than was recorded
    │   ├── SessionNotFound   a session store has no such entry of a session
    │   └── ToolFailed        a tool cannot do what the model asks
    │       └── RecordedError it failed before; its error is told again in place of a call
    ├── UnknownRequest        there is no such request to answer
    ├── RequestAlreadyAnswered
    ├── InvalidResponse       a response is not of the type that the request asks for
    ├── RunEnded              something was asked of a run that is over
    ├── TurnOver              a context was used after its turn
    ├── UnknownType           stored data names a type that is not declared here
    ├── GraphChanged          a checkpoint was made by a workflow with another graph
    ├── RunNotFound           the storage has no such run
    ├── RunExists             the storage has a run with this id already
    ├── RunTaken              another process drives the run, or took it over
    ├── AlreadyResumed        a call with the same key resumed the run before
    ├── RunPoisoned           every process that went on with the run died before its next checkpoint
    ├── CheckpointNotFound    the storage has no such checkpoint
    ├── NotLoaded             a value of a listed checkpoint was asked for, but listing reads no values
    └── StorageError          the storage cannot do what it was asked; the run failed before anything later happened
        ├── HeadMoved         another writer moved the run on
        ├── StoreDamaged      the store as a whole cannot be read
        └── CheckpointCorrupt stored bytes are not what was stored
            └── CheckpointUntrusted  nobody with the keys of the storage wrote them

    HoldfastWarning (a UserWarning)
    ├── UnroutedMessage       no edge took a message
    ├── DeadLetter            a message that was sent to a run cannot be delivered
    ├── UnusableAnswer        an answer is refused by the type that its request asks for; it is asked again
    ├── WaitingFanIn          the run waits for messages that a fan-in needs and nothing is left to send
    ├── ChangedAfterCapture   a value was changed after it was sent or queued; the change reaches nobody
    ├── UnkeptField           a handler changed a field that no checkpoint keeps
    ├── UnnamedWorkflow       a workflow has a storage and no name of its own
    ├── StubbornHandler       a handler went on after it was cancelled
    ├── ChangedRequest        a replay asks a model something else than was recorded; the recorded outcome is used
    ├── UnrecordedCalls       an agent makes calls that cannot be recorded
    ├── UnpublishedEntry      an entry of a session is stored with its run, but not published
    └── MissedEvents          a watcher came too late, or was too slow, for some events

Each message says what happened, where, and what to do about it. The ``kind`` of an error says the same to a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from holdfast.ids import ExecutorId, RunId


_Kind: TypeAlias = Literal["not_found", "conflict", "invalid", "limit", "storage", "failed"]


class HoldfastError(Exception):
    """The root of all errors that Holdfast raises.

    >>> issubclass(GraphError, HoldfastError)
    True
    >>> RunNotFound.kind, RunExists.kind, InvalidResponse.kind
    ('not_found', 'conflict', 'invalid')
    """

    kind: ClassVar[_Kind] = "failed"
    """The kind of the error, by which a program can choose a status of HTTP or an exit code.

    ``"not_found"``: the storage does not have it. ``"conflict"``: someone was faster, or the run does not stand where
    this is possible. ``"invalid"``: a value or an argument that was given cannot be taken. ``"limit"``: a limit is
    reached. ``"storage"``: the storage cannot do it. ``"failed"``: all others, mostly of the workflow's own code.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Let errors be copied and sent between processes, whatever their constructors take."""
        return _rebuild, (type(self), self.args, vars(self))


def _rebuild(cls: type[HoldfastError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HoldfastError:
    error = cls.__new__(cls, *args)
    error.args = args
    vars(error).update(attributes)
    return error


class GraphError(HoldfastError):
    """A workflow is put together wrongly; the message names the executor, the edge and the fix.

    >>> from holdfast import WorkflowBuilder
    >>> WorkflowBuilder(name="Empty").build()
    Traceback (most recent call last):
    ...
    holdfast.errors.GraphError: workflow 'Empty' has no start executor; call set_start_executor(...) before build()
    """

    kind = "invalid"


class DefinitionError(GraphError):
    """The definition of a team of agents is wrong; the message begins with file and line, where they are known.

    >>> str(DefinitionError("unknown key 'agnets'", file="team.yaml", line=3))
    "team.yaml:3: unknown key 'agnets'"
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        place = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(f"{place}: {message}" if place else message)
        self.file = file
        self.line = line


class WrongType(HoldfastError, TypeError):
    """A value is not of the type that was declared for it.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> WorkflowBuilder(name="Double").set_start_executor(double).build().run_sync("two")
    Traceback (most recent call last):
    ...
    holdfast.errors.WrongType: workflow 'Double' starts at 'double', which takes int, but its input is a str: 'two'
    """

    kind = "invalid"


class InvalidArgument(HoldfastError, ValueError):
    """An argument that cannot be meant.

    >>> from holdfast import Limits
    >>> Limits(max_deliveries=0)
    Traceback (most recent call last):
    ...
    holdfast.errors.InvalidArgument: Limits(max_deliveries=0): must be a whole number of at least 1
    """

    kind = "invalid"


class KeyReused(InvalidArgument):
    """A key makes one call on a run once, and was given with another call.

    >>> issubclass(KeyReused, InvalidArgument)
    True
    """


class NotCheckpointable(HoldfastError):
    """A value that was sent or queued cannot be kept; the message gives the path inside the value.

    >>> raise NotCheckpointable("message.rows[3].handle: socket is not checkpointable")
    Traceback (most recent call last):
    ...
    holdfast.errors.NotCheckpointable: message.rows[3].handle: socket is not checkpointable
    """

    kind = "invalid"


class StateConflict(HoldfastError):
    """Turns of one superstep wrote the same shared key and their writes cannot be combined.

    >>> StateConflict("both wrote it", scope_name="Totals", key="sum", executor_ids=()).key
    'sum'
    """

    def __init__(
        self, message: str, *, scope_name: str, key: str, executor_ids: tuple[ExecutorId, ...]
    ) -> None:
        self.scope_name = scope_name
        self.key = key
        self.executor_ids = executor_ids
        super().__init__(message)


class StateNotSet(HoldfastError, LookupError):
    """A handler requires a value of the state that nobody set.

    >>> from holdfast import StateKey, WorkflowBuilder, WorkflowContext, executor
    >>> RAW = StateKey("raw", str, scope_name="Logs")
    >>> @executor
    ... async def triage(log_id: str, ctx: WorkflowContext[None, str]) -> None:
    ...     await ctx.yield_output(await ctx.require_state(RAW))
    >>> workflow = WorkflowBuilder(name="Triage").set_start_executor(triage).build()
    >>> try:
    ...     workflow.run_sync("log 1")
    ... except ExecutorFailed as failure:
    ...     print(repr(failure.__cause__.key), failure.__cause__.scope_name, failure.__cause__.executor_id)
    'raw' Logs triage
    """

    def __init__(self, message: str, *, key: str, scope_name: str | None, executor_id: ExecutorId) -> None:
        self.key = key
        self.scope_name = scope_name
        """The shared scope; None for the private one of the executor."""
        self.executor_id = executor_id
        super().__init__(message)


class RunContextMissing(HoldfastError, KeyError):
    """A handler asks for a value of ``ctx.run_context`` that nobody gave to the run.

    >>> from holdfast import WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def fetch(url: str, ctx: WorkflowContext[None, str]) -> None:
    ...     await ctx.yield_output(ctx.run_context["client"].get(url))
    >>> workflow = WorkflowBuilder(name="Fetch").set_start_executor(fetch).build()
    >>> try:
    ...     workflow.run_sync("example.org", run_context={"token": "secret"})
    ... except ExecutorFailed as failure:
    ...     print(str(failure.__cause__).partition(";")[0])
    the run context has no 'client'
    """

    __str__ = Exception.__str__  # a KeyError would show its message in quotes

    def __init__(self, message: str, *, name: str) -> None:
        self.name = name
        super().__init__(message)


class ExecutorFailed(HoldfastError):
    """A handler raised; the original is the ``__cause__``.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def divide(number: int) -> float:
    ...     return 1 / number
    >>> workflow = WorkflowBuilder(name="Divide").set_start_executor(divide).build()
    >>> try:
    ...     workflow.run_sync(0)
    ... except ExecutorFailed as failure:
    ...     print(failure.executor_id, repr(failure.__cause__))
    divide ZeroDivisionError('division by zero')
    """

    def __init__(
        self,
        message: str,
        *,
        executor_id: ExecutorId,
        superstep: int = 0,
        run_id: RunId | None = None,
        checkpoint: Any = None,
    ) -> None:
        self.checkpoint = checkpoint
        """The checkpoint at the start of the superstep, from which a resume goes on; None without storage."""
        self.executor_id = executor_id
        self.superstep = superstep
        self.run_id = run_id
        super().__init__(message)


class ConditionFailed(ExecutorFailed):
    """The condition or selection of an edge raised, or chose a target that the edge does not have.

    >>> issubclass(ConditionFailed, ExecutorFailed)
    True
    """


class ExecutorShared(HoldfastError):
    """An executor instance cannot serve another run: one uses it now, or has left its traces in it.

    >>> issubclass(ExecutorShared, HoldfastError)
    True
    """


class ExecutorTimeout(HoldfastError, TimeoutError):
    """A handler took longer than its ``timeout``; a TimeoutError too. The ``__cause__`` of an ``ExecutorFailed``.

    >>> issubclass(ExecutorTimeout, HoldfastError)
    True
    """


class TeamTimeout(ExecutorTimeout):
    """The agents of a team worked longer than ``AgentWorkflow.create().with_timeout(...)`` allows.

    >>> issubclass(TeamTimeout, TimeoutError)
    True
    """


class UnknownRequest(HoldfastError):
    """There is no such request to answer.

    >>> issubclass(UnknownRequest, HoldfastError)
    True
    """

    kind = "not_found"


class RequestAlreadyAnswered(HoldfastError):
    """The request was answered before; only the first answer counts.

    >>> issubclass(RequestAlreadyAnswered, HoldfastError)
    True
    """

    kind = "conflict"


class InvalidResponse(HoldfastError):
    """A response is not of the type that the request asks for, and cannot be converted to it.

    >>> issubclass(InvalidResponse, HoldfastError)
    True
    """

    kind = "invalid"


class RunEnded(HoldfastError):
    """Something was asked of a run that is over.

    >>> issubclass(RunEnded, HoldfastError)
    True
    """

    kind = "conflict"


class TurnOver(HoldfastError):
    """A context was used after its turn, by a task or callback that outlived the handler.

    >>> issubclass(TurnOver, HoldfastError)
    True
    """


class UnknownType(HoldfastError):
    """Stored data names a type that is not declared in the workflow and not ``@checkpointable``.

    >>> issubclass(UnknownType, HoldfastError)
    True
    """


class GraphChanged(HoldfastError):
    """A checkpoint was made by a workflow whose graph is not that of the workflow that should go on with it.

    >>> issubclass(GraphChanged, HoldfastError)
    True
    """

    kind = "conflict"


class RunNotFound(HoldfastError):
    """The storage has no run with this id.

    >>> issubclass(RunNotFound, HoldfastError)
    True
    """

    kind = "not_found"


class RunExists(HoldfastError):
    """The storage has a run with this id already.

    >>> issubclass(RunExists, HoldfastError)
    True
    """

    kind = "conflict"


# Its texts are in runtime/durable/run_owner.py and runtime/run/wakeup.py.
class RunTaken(HoldfastError):
    """Another process drives the run, or took it over while this one drove it; nothing of this one counts.

    >>> issubclass(RunTaken, HoldfastError)
    True
    """

    kind = "conflict"


class AlreadyResumed(HoldfastError):
    """A call with the same key resumed the run before; nothing was done again.

    >>> issubclass(AlreadyResumed, HoldfastError)
    True
    """

    kind = "conflict"


class RunPoisoned(HoldfastError):
    """Each process that went on with the run died before its next checkpoint, so the run was set to FAILED.

    >>> issubclass(RunPoisoned, HoldfastError)
    True
    """


class CheckpointNotFound(HoldfastError):
    """The storage has no checkpoint with this id.

    >>> issubclass(CheckpointNotFound, HoldfastError)
    True
    """

    kind = "not_found"


class NotLoaded(HoldfastError):
    """A value of a listed checkpoint was asked for; ``storage.load`` reads values.

    >>> issubclass(NotLoaded, HoldfastError)
    True
    """


class StorageError(HoldfastError):
    """The storage cannot do what it was asked: a full disk, no rights, a file of another format.

    >>> issubclass(StorageError, HoldfastError)
    True
    """

    kind: ClassVar[_Kind] = "storage"  # not that of HeadMoved


class HeadMoved(StorageError):
    """Another writer moved the run on: this one no longer stands where it thinks.

    >>> issubclass(HeadMoved, StorageError)
    True
    """

    kind = "conflict"


class CheckpointCorrupt(StorageError):
    """Stored bytes are not what was stored; the message names the checkpoint and what is wrong with it.

    >>> issubclass(CheckpointCorrupt, StorageError)
    True
    """


class StoreDamaged(StorageError):
    """The store as a whole cannot be read: what tells where its records are is not what was written.

    >>> issubclass(StoreDamaged, StorageError)
    True
    """


class CheckpointUntrusted(CheckpointCorrupt):
    """Stored bytes were not written with the keys of the storage: forged, foreign, plain, or an older copy.

    Also raised if the keyring does not have the key of a store.

    >>> issubclass(CheckpointUntrusted, CheckpointCorrupt)
    True
    """


class LimitExceeded(HoldfastError):
    """A named limit was reached; ``limit`` is its name in ``Limits``, or ``"letters"`` for those that wait for a run.

    >>> LimitExceeded("max_deliveries", 10, "too many").limit
    'max_deliveries'
    """

    kind = "limit"

    def __init__(self, limit: str, allowed: float, message: str) -> None:
        self.limit = limit
        self.allowed = allowed
        super().__init__(message)


class SuperstepLimit(LimitExceeded):
    """The run took more supersteps since its last external input than ``max_iterations`` allows.

    >>> issubclass(SuperstepLimit, LimitExceeded)
    True
    """


class AgentLoop(LimitExceeded):
    """An agent called its model more often for one message than ``AgentSettings(max_rounds=...)`` allows.

    >>> issubclass(AgentLoop, LimitExceeded)
    True
    """


class BudgetExceeded(LimitExceeded):
    """The agents of a run used up a ``Budget``; ``limit`` is ``"tokens"``, ``"calls"`` or ``"cost"``.

    >>> issubclass(BudgetExceeded, LimitExceeded)
    True
    """


class AgentError(HoldfastError):
    """An agent cannot do its task.

    >>> issubclass(RateLimited, AgentError)
    True
    """


class HistoryUnreadable(AgentError):
    """A conversation was written by another library, or in a form that this version of it does not read.

    >>> issubclass(HistoryUnreadable, AgentError)
    True
    """


class ModelUnavailable(AgentError):
    """A model cannot be reached, its server failed, or its stream broke off: the call may be tried again.

    >>> issubclass(ModelUnavailable, AgentError)
    True
    """


class RateLimited(AgentError):
    """A provider refuses calls for some time; ``retry_after`` is in seconds, None if it does not say.

    >>> RateLimited("status 429", retry_after=20.0).retry_after
    20.0
    """

    kind = "limit"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class SessionNotFound(AgentError):
    """A session store has no such entry: the session was deleted, or it is in another store.

    >>> issubclass(SessionNotFound, AgentError)
    True
    """

    kind = "not_found"


class ToolFailed(AgentError):
    """A tool cannot do what the model asks; the model is told why.

    >>> issubclass(ToolFailed, AgentError)
    True
    """


class RecordedError(ToolFailed):
    """A tool failed before the turn was run again: its error is told in place of another call.

    >>> RecordedError("no such order", error_name="LookupError").error_name
    'LookupError'
    """

    def __init__(self, message: str, *, error_name: str) -> None:
        self.error_name = error_name
        """The name of the class of the error that was raised first."""
        super().__init__(message)


class ReplayDiffers(AgentError):
    """Code asks something else than was recorded: in the replay of a cassette, or while ``strict_replay`` is on.

    >>> issubclass(ReplayDiffers, AgentError)
    True
    """

    kind = "conflict"


class HoldfastWarning(UserWarning):
    """The root of all warnings; a run reports them as ``WorkflowWarningEvent``.

    >>> issubclass(UnroutedMessage, HoldfastWarning)
    True
    """


class UnroutedMessage(HoldfastWarning):
    """No edge took a message: it reaches nobody.

    >>> str(UnroutedMessage("message 5 (int) of 'a' reaches nobody"))
    "message 5 (int) of 'a' reaches nobody"
    """


class DeadLetter(HoldfastWarning):
    """A message that was sent to a run cannot be delivered: no executor takes it.

    >>> issubclass(DeadLetter, HoldfastWarning)
    True
    """


class UnusableAnswer(HoldfastWarning):
    """An answer fits its schema, but the type that the request asks for refuses it: the request is asked again.

    >>> issubclass(UnusableAnswer, HoldfastWarning)
    True
    """


class WaitingFanIn(HoldfastWarning):
    """The run waits for messages: a fan-in holds some, and nothing is left to do that could send the others.

    >>> issubclass(WaitingFanIn, HoldfastWarning)
    True
    """


class ChangedAfterCapture(HoldfastWarning):
    """A value was changed after it was sent or queued; receivers see it as it was when sent or queued.

    >>> issubclass(ChangedAfterCapture, HoldfastWarning)
    True
    """


class UnkeptField(HoldfastWarning):
    """A handler changed a field of its executor that no checkpoint keeps.

    >>> issubclass(UnkeptField, HoldfastWarning)
    True
    """


class StubbornHandler(HoldfastWarning):
    """A handler went on after it was cancelled and was left behind; nothing that it does counts.

    >>> issubclass(StubbornHandler, HoldfastWarning)
    True
    """


class ChangedRequest(HoldfastWarning):
    """A turn that runs again asks a model something else than was recorded; the recorded outcome is used.

    >>> issubclass(ChangedRequest, HoldfastWarning)
    True
    """


class UnrecordedCalls(HoldfastWarning):
    """An agent makes calls that cannot be recorded, such as tools that its provider runs.

    >>> issubclass(UnrecordedCalls, HoldfastWarning)
    True
    """


class UnpublishedEntry(HoldfastWarning):
    """An entry of a session is stored with its run, but could not be published in the session yet.

    >>> issubclass(UnpublishedEntry, HoldfastWarning)
    True
    """


class UnnamedWorkflow(HoldfastWarning):
    """A workflow has a storage and no name: its runs are not found again once its graph has changed.

    >>> issubclass(UnnamedWorkflow, HoldfastWarning)
    True
    """


class MissedEvents(HoldfastWarning):
    """A watcher came too late, or was too slow, for some events: they are no longer kept.

    >>> issubclass(MissedEvents, HoldfastWarning)
    True
    """
