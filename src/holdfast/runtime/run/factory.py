"""Makes the runs of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.engine.limits import Limits
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.superstep import begin
from holdfast.engine.value import Captor, Copier
from holdfast.graph.graph import Graph
from holdfast.ids import ExecutorId, RunId
from holdfast.runtime.environment import Environment
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.run.run import Run
from holdfast.runtime.run.stream import RunStream
from holdfast.runtime.step.placed import Placed
from holdfast.runtime.step.runner import Runner

if TYPE_CHECKING:
    from holdfast.runtime.durable.recorder import Recorder


class Runs:
    """Makes runs of one workflow that are not stored, and what drives all of its runs.

    ``shared`` are the executors that serve all runs.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        limits: Limits,
        max_iterations: int,
        environment: Environment,
        shared: Mapping[ExecutorId, Placed],
    ) -> None:
        self._graph = graph
        self._name = name
        self._limits = limits
        self._max_iterations = max_iterations
        self._environment = environment
        self._shared = shared
        self._capture = Copier(limits.max_value_size)

    def new_run(self, message: Any, run_id: RunId) -> Run:
        """A run with this input, of which nothing is stored."""
        snapshot = begin(self._graph, self._name, message, self._limits, self._capture)
        log = EventLog()
        return Run(self._name, run_id, self.runner(run_id, snapshot, self._capture, log), log)

    def runner(
        self,
        run_id: RunId,
        snapshot: Snapshot,
        capture: Captor,
        log: EventLog,
        recorder: Recorder | None = None,
        resumed: bool = False,
    ) -> Runner:
        """What drives a run from a snapshot on."""
        return Runner(
            self._graph,
            snapshot,
            run_id,
            self._limits,
            capture,
            self._max_iterations,
            self._environment,
            log,
            self._shared,
            recorder,
            resumed,
        )

    def stream(self, run: Run) -> RunStream:
        """The events of a run, which begins when the first is asked for."""
        return RunStream(run)
