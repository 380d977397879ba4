"""``AgentWorkflow``: a built team of agents, which is a workflow, and the result of its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast.agents.executor import AgentInput
from holdfast.agents.workflow.team_ends import SUMMARY, TeamSummary
from holdfast.agents.workflow.team_node import OUTPUTS_SCOPE, TEAM_SCOPE, EdgeRule
from holdfast.agents.workflow.team_plan import END, START, TeamPlan
from holdfast.agents.workflow_agent import WorkflowAgent, as_agent
from holdfast.checkpoint.events.events import PendingRequest
from holdfast.engine.state import Scope
from holdfast.engine.status import RunStatus
from holdfast.errors import ExecutorFailed, LimitExceeded, RunEnded
from holdfast.graph.graph import Graph
from holdfast.runtime.config import RunConfig
from holdfast.runtime.step.shared_objects import load_value
from holdfast.workflow import IfExists, Workflow

if TYPE_CHECKING:
    from holdfast.agents.workflow.definition import AgentRegistry
    from holdfast.agents.workflow.team_builder import AgentWorkflowBuilder
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.runtime.run.run import Answers, Run


@dataclass
class AgentRunResult:
    """The result of a team's run, so far if it waits.

    >>> AgentRunResult("r1", RunStatus.COMPLETED, "Kelp is an alga.", {"draft.answer": "Kelp"}).outputs["draft.answer"]
    'Kelp'
    """

    run_id: str
    status: RunStatus
    final_answer: str | None = None
    """The answer: the text of the agent before END; of several, their texts in the order of their edges."""
    outputs: dict[str, Any] = field(default_factory=dict)
    """The last outputs of each agent by ``node.key``."""
    duration: float = 0.0
    """The seconds from the request to the answer."""
    success: bool = False
    """True if the run is complete and has an answer."""
    error: BaseException | str | None = None
    """The error with which the run failed; else the first of an agent whose errors do not stop the run."""
    pending_requests: list[PendingRequest] = field(default_factory=list)
    _run: Run | None = field(default=None, repr=False, compare=False)

    async def respond(self, responses: Answers, *, by: str | None = None) -> AgentRunResult:
        """Answer pending requests, all or none of those given, and go on to the next result."""
        if self._run is None:
            raise RunEnded(f"this result of run {self.run_id} belongs to no run that can go on")
        await self._run.respond(responses, by=by)
        return await finish_run(self._run)


@dataclass(frozen=True)
class TeamDrawing:
    """The edges of a team with their conditions, for drawings."""

    plan: TeamPlan
    rules: Mapping[str, Sequence[EdgeRule]]

    def to_mermaid(self) -> str:
        """Return the team as Mermaid text; conditional edges are dotted, with the condition beside them."""
        names = {node: f"n{number}" for number, node in enumerate((START, *self.plan.agents, END))}
        lines = ["flowchart TD"]
        for node, name in names.items():
            shape = f'(["{node}"])' if node in (START, END) else f'["{_escape(node)}"]'
            lines.append(f"    {name}{shape}")
        for source in (START, *self.plan.agents):
            for rule in self.rules.get(source, ()):
                line = "-->" if rule.words is None else f'-.->|"{_escape(rule.words)}"|'
                lines.append(f"    {names[source]} {line} {names[rule.target]}")
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    codes = {"#": "#35;", "&": "#amp;", '"': "#quot;", "\n": "<br>", "<": "#lt;", ">": "#gt;"}
    return "".join(codes.get(character, character) for character in text)


class AgentWorkflow(Workflow):
    """A team of agents; an ordinary workflow, whose ``run`` gives an ``AgentRunResult``.

    >>> def draft(prompt: str) -> str:
    ...     return f"A draft: {prompt}"
    >>> def review(prompt: str) -> str:
    ...     return prompt.replace("draft", "text")
    >>> workflow = (
    ...     AgentWorkflow.create()
    ...     .with_name("Review")
    ...     .add_agent("draft", draft, lambda node: node.with_output_key("draft"))
    ...     .add_agent("review", review, input_key="draft")
    ...     .from_("draft").to("review")
    ...     .build()
    ... )
    >>> workflow.run_sync("kelp").final_answer
    'A text: kelp'
    """

    def __init__(
        self, graph: Graph, name: str, config: RunConfig, drawing: TeamDrawing, definition: dict[str, Any]
    ) -> None:
        super().__init__(graph, name, config)
        self._drawing = drawing
        self._team_definition = definition

    @staticmethod
    def create() -> AgentWorkflowBuilder:
        """Begin a team."""
        from holdfast.agents.workflow.team_builder import AgentWorkflowBuilder

        return AgentWorkflowBuilder()

    @staticmethod
    def from_config(config: Mapping[str, Any], registry: AgentRegistry) -> AgentWorkflowBuilder:
        """Begin with a definition, as ``export_config`` gives it; agents are found in the registry."""
        from holdfast.agents.workflow.definition_reader import read_config

        return read_config(config, registry)

    @staticmethod
    def from_file(path: str | PathLike[str], registry: AgentRegistry) -> AgentWorkflowBuilder:
        """Begin with a definition in a file, JSON or YAML by its ending; errors name file and line."""
        from holdfast.agents.workflow.definition_reader import read_file

        return read_file(path, registry)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of a request: without the messages by which END talks to START."""
        from holdfast.graph.typing.schema import union_schema

        return union_schema((AgentInput,))

    def export_config(self) -> dict[str, Any]:
        """Return the definition of the team as JSON; raise ``GraphError`` if a function is part of it."""
        from holdfast.agents.workflow.definition import check_exportable

        return check_exportable(self._team_definition, self.name)

    def to_mermaid(self) -> str:
        """Return the team as Mermaid text, with the conditions of its edges."""
        return self._drawing.to_mermaid()

    def as_agent(self, name: str | None = None, *, storage: CheckpointStorage | None = None) -> WorkflowAgent:
        """Return the team as one agent; see ``holdfast.agents.as_agent``."""
        return as_agent(self, name, storage=storage)

    def as_tool(
        self, description: str = "", *, storage: CheckpointStorage | None = None
    ) -> Callable[[str], Awaitable[str]]:
        """Return the team as a function that other libraries take as a tool.

        Each call is a run of its own; without a storage it is kept in memory until the call ends.
        """
        if storage is not None or self.storage is not None:
            return self.as_agent(storage=storage).as_tool(description)
        from holdfast.stores.memory import InMemoryCheckpointStorage

        def make() -> Callable[[str], Awaitable[str]]:
            return self.as_agent(storage=InMemoryCheckpointStorage()).as_tool(description)

        async def tool(task: str) -> str:
            return await make()(task)

        return wraps(make())(tool)

    async def run(  # type: ignore[override]
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> AgentRunResult:
        """Run to the end; a run that fails is a result with ``success=False`` and the error."""
        return await finish_run(
            await self.start(message, run_id, storage, if_exists, by=by, run_context=run_context)
        )

    def run_sync(  # type: ignore[override]
        self,
        message: Any,
        run_id: str | None = None,
        storage: CheckpointStorage | None = None,
        if_exists: IfExists = "raise",
        *,
        by: str | None = None,
        run_context: Mapping[str, Any] | None = None,
    ) -> AgentRunResult:
        """Call ``run`` in an event loop of its own, for programs without one."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(message, run_id, storage, if_exists, by=by, run_context=run_context))
        raise RuntimeError(
            "run_sync was called inside a running event loop; use 'await workflow.run(...)' there"
        )

    async def run_from_checkpoint(  # type: ignore[override]
        self,
        checkpoint_id: Any,
        checkpoint_storage: CheckpointStorage | None = None,
        responses: Answers | None = None,
        *,
        take_over: bool = False,
        run_context: Mapping[str, Any] | None = None,
    ) -> AgentRunResult:
        """Resume and run to the end, as ``run`` does."""
        return await finish_run(
            await self.resume(
                checkpoint_id, responses, checkpoint_storage, take_over=take_over, run_context=run_context
            )
        )

    async def result_of(self, run: Run) -> AgentRunResult:
        """Wait for a run that ``start``, ``resume`` or ``fork`` gave, and return its result; the run is not left."""
        return await _result_of(run)


async def finish_run(run: Run) -> AgentRunResult:
    """Wait for a run, and leave it."""
    try:
        return await _result_of(run)
    finally:
        await run.close()


async def _result_of(run: Run) -> AgentRunResult:
    error: BaseException | None = None
    try:
        await run.wait_for_completion()
    except (ExecutorFailed, LimitExceeded) as failed:
        error = failed
    state = run.snapshot.state
    outputs: dict[str, Any] = {}
    for node, value in state.get(Scope(None, OUTPUTS_SCOPE), {}).items():
        outputs |= {f"{node}.{key}": part for key, part in (await load_value(value)).items()}
    team = state.get(Scope(None, TEAM_SCOPE), {})
    summary = TeamSummary(None, 0.0)
    if run.status is RunStatus.COMPLETED and SUMMARY in team:
        summary = await load_value(team[SUMMARY])
    pending = [] if run.status.ended else run.pending_requests
    return AgentRunResult(
        run.run_id,
        run.status,
        summary.answer,
        outputs,
        summary.duration,
        summary.answer is not None,
        error if error is not None else summary.error,
        pending,
        run,
    )
