"""Workflow: a validated graph that can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.graph.graph import Graph

# What draws and runs is imported where that is done: asyncio alone takes nearly as long to import as all the rest.
if TYPE_CHECKING:
    from holdfast.engine.limits import Limits
    from holdfast.runtime.environment import Environment
    from holdfast.runtime.result import RunResult
    from holdfast.runtime.run import Run, RunStream


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

    def __init__(
        self,
        graph: Graph,
        name: str,
        *,
        max_iterations: int,
        limits: Limits,
        environment: Environment | None = None,
    ) -> None:
        from holdfast.runtime.environment import Environment
        from holdfast.runtime.leases import remember

        self._graph = graph
        self._name = name
        self._max_iterations = max_iterations
        self._limits = limits
        self._environment = environment or Environment()
        self._shared = remember(graph)

    @property
    def name(self) -> str:
        """The name given, or the start executor's id with eight digits of the fingerprint."""
        return self._name

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def fingerprint(self) -> str:
        """A digest of executors, edges, declared types and labels."""
        return self._graph.fingerprint

    def to_mermaid(self) -> str:
        """The graph as Mermaid text."""
        from holdfast.graph.viz import to_mermaid

        return to_mermaid(self._graph)

    def to_dot(self) -> str:
        """The graph in the DOT language of Graphviz."""
        from holdfast.graph.viz import to_dot

        return to_dot(self._graph, self._name)

    async def start(self, message: Any) -> Run:
        """Start a run with ``message`` as its input and return at once."""
        run = self._new_run(message)
        run.begin()
        return run

    async def run(self, message: Any) -> RunResult:
        """Run to the end; raises ``ExecutorFailed`` if a handler raised. Being cancelled stops the run."""
        run = self._new_run(message)
        try:
            return await run.wait_for_completion()
        finally:
            await run.close()

    def run_stream(self, message: Any) -> RunStream:
        """Run and yield events as they happen; leaving the stream stops the run."""
        from holdfast.runtime.run import RunStream

        return RunStream(self._new_run(message))

    def run_sync(self, message: Any) -> RunResult:
        """``run`` for programs without an event loop."""
        import asyncio

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            inside = False
        else:
            inside = True
        if not inside:
            return asyncio.run(self.run(message))
        raise RuntimeError(
            "run_sync was called inside a running event loop; use 'await workflow.run(...)' there"
        )

    def _new_run(self, message: Any) -> Run:
        from holdfast.engine.superstep import begin
        from holdfast.runtime.event_log import EventLog
        from holdfast.runtime.run import Run
        from holdfast.runtime.runner import Runner

        snapshot = begin(self._graph, self._name, message, self._limits)
        run_id = self._environment.new_run_id()
        log = EventLog()
        runner = Runner(
            self._graph,
            snapshot,
            run_id,
            self._limits,
            self._max_iterations,
            self._environment,
            log,
            self._shared,
        )
        return Run(self._name, run_id, runner, log)

    def __repr__(self) -> str:
        return f"<Workflow {self._name!r} {self.fingerprint[:8]}>"
