"""Workflow: a validated graph that can be run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from holdfast.errors import InvalidArgument, RunExists, UnnamedWorkflow, WrongType
from holdfast.graph.graph import Graph
from holdfast.ids import RunId, complaint_about_id
from holdfast.runtime.config import NO_RUN_CONTEXT, ForkCall, ResumeCall, RunContext

# Drawing and running are imported on first use: asyncio alone takes nearly as long to import as all the rest.
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.codec import Codec
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.store import Head
    from holdfast.checkpoint.upgrade import UpgradeCheck
    from holdfast.runtime.config import RunConfig
    from holdfast.runtime.durable.fork_edits import ForkEdits
    from holdfast.runtime.durable.stored_runs import StoredRuns
    from holdfast.runtime.run.result import RunResult
    from holdfast.runtime.run.run import Answers, Run, RunFactory
    from holdfast.runtime.run.stream import RunStream

_INTERNAL = frozenset({"check_stored", "forked", "introduce_to", "resumed"})
"""Methods of ``Workflow`` for other parts of Holdfast, which ``dir`` leaves out."""


IfExists: TypeAlias = Literal["raise", "attach", "continue"]
"""Says how to use a run id that the storage has: raise, go on with the same input, or send a further input."""


class RunStart(NamedTuple):
    """The input of a run with all that comes with it."""

    message: Any
    by: str | None
    run_context: RunContext


_GoingOn: TypeAlias = "Callable[[RunStart, str, CheckpointStorage | None], Awaitable[Run | None]]"


class Workflow:
    """A validated, immutable graph with a name and a fingerprint; made by ``WorkflowBuilder.build``.

    It holds nothing of its runs: any number of them may go on at the same time.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def shout(text: str) -> str:
    ...     return text.upper()
    >>> workflow = WorkflowBuilder(name="Shout").set_start_executor(shout).build()
    >>> workflow.run_sync("hello").outputs
    ['HELLO']
    """

    def __init__(self, graph: Graph, name: str, config: RunConfig) -> None:
        from holdfast.runtime.config import WorkflowDefinition
        from holdfast.runtime.environment import current
        from holdfast.runtime.step.executors import register_instances

        environment = config.environment or current()
        self._definition = WorkflowDefinition(graph, name, config, environment, register_instances(graph))
        self._graph = graph
        self._name = name
        self._storage = config.storage
        self._codec: Codec | None = None
        if config.storage is not None:
            self._stored_runs(
                config.storage
            )  # so that what cannot be stored is said when the workflow is built

    @property
    def name(self) -> str:
        """The name given, or the start executor's id with eight digits of the fingerprint."""
        return self._name

    @property
    def storage(self) -> CheckpointStorage | None:
        """The storage of its runs, where none is given to them; None if it was built without one."""
        return self._storage

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def fingerprint(self) -> str:
        """A digest of executors, edges, declared types and labels."""
        return self._graph.fingerprint

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of the input: of the types that the start executor takes."""
        from holdfast.graph.typing.schema import union_schema

        return union_schema(self._graph.executors[self._graph.start].accepts)

    @property
    def output_schema(self) -> dict[str, Any]:
        """The JSON Schema of one output; ``{"not": {}}`` with a title if no executor declares any."""
        from holdfast.graph.spec import distinct
        from holdfast.graph.typing.schema import union_schema

        return union_schema(distinct(self._graph.output_types()))

    def to_dict(self) -> dict[str, Any]:
        """Return the workflow as plain JSON: its name, graph and schemas; docs/reference/json-forms.md describes it."""
        from holdfast.graph.describe.description import graph_to_dict

        return {
            "name": self._name,
            "fingerprint": self.fingerprint,
            **graph_to_dict(self._graph),
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
        }

    def to_mermaid(self) -> str:
        """Return the graph as Mermaid text."""
        from holdfast.graph.describe.viz import to_mermaid

        return to_mermaid(self._graph)

    def to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz."""
        from holdfast.graph.describe.viz import to_dot

        return to_dot(self._graph, self._name)

    # Three verbs, start, resume and fork; the rest are shorthands.

    async def start(
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> Run:
        """Start a run with ``message`` as its input; with storage it is in there when this returns.

        A run id that the storage has already raises ``RunExists``. With ``if_exists="attach"`` the same input goes on
        with that run. With ``if_exists="continue"`` the message is a further input of that run, whose state is kept,
        also if it is over. ``by`` says who sent the message. ``run_context`` has values for handlers, like clients and
        tokens, which are never stored (``ctx.run_context``); a run that is driven here already keeps those that it has.
        """
        going_on = self._check_if_exists(if_exists, run_id)
        given = RunStart(message, by, RunContext(run_context))
        if going_on is not None:
            found = await going_on(given, str(run_id), storage)
            if found is not None:
                return found
        run = self._new_run(given, run_id, storage)
        try:
            await run.open()
        except RunExists:
            # Someone else may have started it between the look and the commit.
            found = None if going_on is None else await going_on(given, str(run_id), storage)
            if found is None:
                raise
            return found
        run.begin()
        return run

    async def submit(
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: Literal["raise", "attach"] = "raise",
        *,
        key: str | None = None,
        by: str | None = None,
    ) -> str:
        """Put a run with ``message`` as its input into the storage, for any ``Host`` to go on with; return its id.

        Nothing of it happens here: until a host takes it up, or ``resume`` is called, the run is WAITING. A run id that
        the storage has already raises ``RunExists``; with ``if_exists="attach"`` only if its input is another. A
        ``key`` makes it once, as that of ``storage.send``, whatever the run did since; another input with that key is
        an error.

        >>> import asyncio
        >>> from holdfast import Host, InMemoryCheckpointStorage, WorkflowBuilder, executor
        >>> @executor(id="greet")
        ... async def greet(name: str) -> str:
        ...     return f"hello {name}"
        >>> workflow = WorkflowBuilder(name="Greet").set_start_executor(greet).build()
        >>> async def main() -> None:
        ...     storage = InMemoryCheckpointStorage()
        ...     await workflow.submit("kelp", run_id="r1", storage=storage)
        ...     print((await storage.list_runs())[0].status)
        ...     await Host(storage, workflow).wake_due()
        ...     print((await storage.list_runs())[0].status)
        >>> asyncio.run(main())
        waiting
        completed
        """
        new_id = _check_run_id(run_id) or self._definition.environment.new_run_id()
        found = self._require_storage(storage)
        if self._name == generated_name(self._graph) and found.outlives_process:
            import warnings

            warnings.warn(_warn_of_name(self._name), stacklevel=2)
        if if_exists not in ("raise", "attach"):
            raise InvalidArgument(f"if_exists={if_exists!r}: must be 'raise' or 'attach'")
        self._check_if_exists(if_exists, run_id)
        stored = self._stored_runs(found)
        try:
            await stored.submit(message, new_id, by, key)
        except RunExists:
            if key is not None and await stored.was_submitted(message, new_id, key):
                return new_id
            if if_exists == "raise":
                raise
            await stored.has_same_input(message, new_id)
        return new_id

    def read_input(self, value: Any, target_id: str | None = None) -> Any:
        """Return plain JSON as a message that the start executor takes, or that of ``target_id``.

        Raises ``WrongType`` if none of their types can be made of it; ``input_schema`` describes those of the start.

        >>> import datetime
        >>> from holdfast import WorkflowBuilder, executor
        >>> @executor
        ... def plan(day: datetime.date) -> str:
        ...     return f"{day:%A}"
        >>> workflow = WorkflowBuilder(name="Plan").set_start_executor(plan).build()
        >>> workflow.read_input("2026-03-01")
        datetime.date(2026, 3, 1)
        """
        from holdfast.engine.superstep import find_executor
        from holdfast.graph.typing.conversion import Unconvertible, convert

        target = find_executor(self._graph, self._name, target_id)
        reasons: dict[str, None] = {}
        for form in target.accepts:
            try:
                return convert(value, form, "input" if target_id is None else "message")
            except Unconvertible as reason:
                reasons[str(reason)] = None
        here = (
            f"workflow {self._name!r}" if target_id is None else f"executor {target.id!r} of {self._name!r}"
        )
        kind = "input" if target_id is None else "message"
        raise WrongType(f"{here} does not take this {kind}: {'; '.join(reasons)}")

    def _check_if_exists(self, if_exists: str, run_id: str | None) -> _GoingOn | None:
        """Return the way to go on with a run that is in the storage; None if that is an error."""
        ways: dict[str, _GoingOn | None] = {
            "raise": None,
            "attach": self._attach,
            "continue": self._continue,
        }
        if if_exists not in ways:
            raise InvalidArgument(f"if_exists={if_exists!r}: must be 'raise', 'attach' or 'continue'")
        if if_exists != "raise" and run_id is None:
            raise InvalidArgument(
                f"if_exists={if_exists!r} needs a run_id: which run should be gone on with?"
            )
        return ways[if_exists]

    async def resume(
        self,
        checkpoint: str | CheckpointInfo | None = None,
        responses: Answers | None = None,
        storage: CheckpointStorage | None = None,
        allow_graph_change: bool = False,
        *,
        run_id: str | None = None,
        take_over: bool = False,
        key: str | None = None,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> Run:
        """Go on with a run that is in the storage, from where it stands or from an earlier checkpoint.

        Give a checkpoint, its id, or ``run_id``. The run goes on from there in place; what followed an earlier
        checkpoint stays readable. ``responses`` answer pending requests. A run that another process drives raises
        ``RunTaken``; with ``take_over`` it is taken away from there, and what that process does no longer counts.
        A run that has nothing to do is COMPLETED or WAITING when this returns. ``run_context`` is as for ``start``;
        what the run had before is not stored, so give it again. ``by`` says who answers or goes back. A ``key`` makes
        it once in the life of the run: the same call with it raises ``AlreadyResumed``, another one ``KeyReused``.
        """
        call = ResumeCall(checkpoint, run_id, responses, allow_graph_change, take_over, key, by)
        run = await self._resume(call, storage, RunContext(run_context))
        await run.open()
        run.begin()
        await run.rest_if_idle()
        return run

    async def fork(
        self,
        checkpoint: str | CheckpointInfo,
        edits: Mapping[Any, Any] | ForkEdits | None = None,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        allow_graph_change: bool = False,
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> Run:
        """Begin a new run at a checkpoint of another one, which stays as it is.

        ``edits`` gives values of shared state other than they were: by ``(scope_name, key)``, by a ``StateKey``, or by
        a key of the default shared scope. ``ForkEdits`` also edits messages on their way and pending requests, sends
        further messages and answers requests. ``run_context`` is as for ``start``, ``by`` says who forks.
        """
        call = ForkCall(checkpoint, edits, run_id, allow_graph_change, by)
        run = await self.forked(call, storage, run_context)
        await run.open()
        run.begin()
        await run.rest_if_idle()
        return run

    async def run(
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Run to the end; raises ``ExecutorFailed`` if a handler raised. Being cancelled stops the run.

        The other arguments are as for ``start``.
        """
        if if_exists == "raise":
            given = RunStart(message, by, RunContext(run_context))
            return await _complete(self._new_run(given, run_id, storage))
        return await _complete(
            await self.start(message, run_id, storage, if_exists, by=by, run_context=run_context)
        )

    async def run_from_checkpoint(
        self,
        checkpoint_id: str | CheckpointInfo,
        checkpoint_storage: CheckpointStorage | None = None,
        responses: Answers | None = None,
        *,
        take_over: bool = False,
        run_context: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Resume and run to the end; ``take_over`` and ``run_context`` are as for ``resume``."""
        call = ResumeCall(checkpoint_id, responses=responses, take_over=take_over)
        return await _complete(await self._resume(call, checkpoint_storage, RunContext(run_context)))

    def run_stream(
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> RunStream:
        """Run and yield events as they happen; leaving the stream stops the run.

        The other arguments are as for ``start``.
        """
        if if_exists == "raise":
            given = RunStart(message, by, RunContext(run_context))
            return self._factory.stream(self._new_run(given, run_id, storage))
        self._check_if_exists(if_exists, run_id)
        from holdfast.runtime.run.stream import RunStream

        return RunStream(
            None, lambda: self.start(message, run_id, storage, if_exists, by=by, run_context=run_context)
        )

    def run_stream_from_checkpoint(
        self,
        checkpoint_id: str | CheckpointInfo,
        checkpoint_storage: CheckpointStorage | None = None,
        responses: Answers | None = None,
        *,
        take_over: bool = False,
        run_context: Mapping[str, Any] | None = None,
    ) -> RunStream:
        """Resume and yield events as they happen; leaving the stream stops the run.

        ``take_over`` and ``run_context`` are as for ``resume``.
        """
        from holdfast.runtime.run.stream import RunStream

        call, given = (
            ResumeCall(checkpoint_id, responses=responses, take_over=take_over),
            RunContext(run_context),
        )
        return RunStream(None, lambda: self._resume(call, checkpoint_storage, given))

    def run_sync(
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Call ``run`` in an event loop of its own, for programs without one."""
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            inside = False
        else:
            inside = True
        if not inside:
            return asyncio.run(self.run(message, run_id, storage, if_exists, by=by, run_context=run_context))
        raise RuntimeError(
            "run_sync was called inside a running event loop; use 'await workflow.run(...)' there"
        )

    @cached_property
    def _factory(self) -> RunFactory:
        # Once for all runs: an import statement costs as much as several objects, also where all is imported.
        from holdfast.runtime.run.run import RunFactory

        return RunFactory(self._definition)

    def _new_run(self, given: RunStart, run_id: str | None, storage: CheckpointStorage | None) -> Run:
        new_id = _check_run_id(run_id) or self._definition.environment.new_run_id()
        storage = self._storage if storage is None else storage
        if storage is not None:
            run = self._stored_runs(storage, given.run_context).new_run(given.message, new_id, given.by)
            if self._name == generated_name(self._graph) and storage.outlives_process:
                run.warn_at_start(_warn_of_name(self._name))
            return run
        if run_id is not None:
            raise InvalidArgument(f"run_id={run_id!r}: {_NO_STORAGE}")
        return self._factory.new_run(given.message, new_id, given.run_context)

    async def _resume(
        self, call: ResumeCall, storage: CheckpointStorage | None, run_context: RunContext
    ) -> Run:
        if (call.checkpoint is None) == (call.run_id is None):
            given = "nothing" if call.checkpoint is None else "both"
            raise InvalidArgument(
                f"a run is resumed by a checkpoint (or its id), or by run_id=...; {given} was given"
            )
        stored = self._stored_runs(self._require_storage(storage), run_context)
        return await stored.resumed_run(call)

    async def resumed(
        self,
        run_id: str,
        storage: CheckpointStorage | None = None,
        *,
        run_context: Mapping[str, Any] | None = None,
        allow_graph_change: bool = False,
    ) -> Run:
        """Return a stored run that goes on from its last checkpoint, before anything of it happens: for hosts."""
        call = ResumeCall(run_id=run_id, allow_graph_change=allow_graph_change)
        return await self._resume(call, storage, RunContext(run_context))

    async def forked(
        self,
        call: ForkCall,
        storage: CheckpointStorage | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return a fork as ``fork`` makes it, before anything of it is stored: for services."""
        stored = self._stored_runs(self._require_storage(storage), RunContext(run_context))
        new_id = _check_run_id(call.run_id) or self._definition.environment.new_run_id()
        return await stored.forked_run(call, new_id)

    def introduce_to(self, storage: CheckpointStorage) -> None:
        """Let a storage know the types of this build, so that it can read and answer its runs: for services."""
        self._stored_runs(storage)

    async def check_stored(self, storage: CheckpointStorage, head: Head) -> UpgradeCheck:
        """Return if and how this build can go on with a stored run: for ``storage.check_upgrade``."""
        return await self._stored_runs(storage).check_upgrade(head)

    async def _continue(self, given: RunStart, run_id: str, storage: CheckpointStorage | None) -> Run | None:
        stored = self._stored_runs(self._require_storage(storage))
        if not await stored.has_run(run_id):
            return None
        run = await stored.driven_here(run_id)
        if run is None:
            run = await self.resumed(run_id, storage, run_context=given.run_context)
            run.leave_out_replay()
            await run.send(given.message, by=given.by)
            await run.open()
            run.begin()
        else:
            await run.send(given.message, by=given.by)
        return run

    async def _attach(self, given: RunStart, run_id: str, storage: CheckpointStorage | None) -> Run | None:
        stored = self._stored_runs(self._require_storage(storage))
        if not await stored.has_same_input(given.message, run_id):
            return None
        driven = await stored.driven_here(run_id)
        return driven or await self.resume(run_id=run_id, storage=storage, run_context=given.run_context)

    def _require_storage(self, storage: CheckpointStorage | None) -> CheckpointStorage:
        found = self._storage if storage is None else storage
        if found is None:
            raise InvalidArgument(f"workflow {self._name!r}: {_NO_STORAGE}")
        return found

    def _stored_runs(
        self, storage: CheckpointStorage, run_context: RunContext = NO_RUN_CONTEXT
    ) -> StoredRuns:
        from holdfast.runtime.durable.stored_runs import StoredRuns

        if not hasattr(storage, "run_logs"):
            raise WrongType(f"storage={storage!r}: give a storage, like SqliteCheckpointStorage('runs.db')")
        if self._codec is None:
            self._codec = declared_codec(self._graph)
        config = self._definition.config
        storage.catalog.learn(self._name, self._graph.fingerprint, self._codec, config.limits.max_value_size)
        return StoredRuns(self._definition, storage, self._codec, run_context)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__()} - _INTERNAL)

    def __repr__(self) -> str:
        return f"<Workflow {self._name!r} {self.fingerprint[:8]}>"


_NO_STORAGE = (
    "there is no storage; give one with storage=..., or build the workflow with .with_checkpointing(storage)"
)


def generated_name(graph: Graph) -> str:
    """Return the name of a workflow that was given none: another one for each graph."""
    return f"{graph.start}-{graph.fingerprint[:8]}"


def _warn_of_name(name: str) -> UnnamedWorkflow:
    return UnnamedWorkflow(
        f"workflow {name!r} has a storage and no name of its own: its name comes from its graph, so that it does not "
        f"find its runs again after a change of the graph. Name it: WorkflowBuilder(name='...')"
    )


def _check_run_id(run_id: str | None) -> RunId | None:
    if run_id is not None and (complaint := complaint_about_id(run_id)):
        raise InvalidArgument(f"run id {run_id!r} {complaint}")
    return None if run_id is None else RunId(run_id)


async def _complete(run: Run) -> RunResult:
    try:
        return await run.wait_for_completion()
    finally:
        await run.close()


def declared_codec(graph: Graph) -> Codec:
    """Return the codec for the types that a workflow declares; raise ``GraphError`` if two classes share a name."""
    from holdfast.checkpoint.codec import Codec
    from holdfast.checkpoint.codec.registry import TypeRegistry, declared_forms
    from holdfast.checkpoint.events.events import WorkflowEvent

    return Codec(TypeRegistry([*declared_forms(graph), ("events", WorkflowEvent)]))
