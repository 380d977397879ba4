"""``AgentWorkflowBuilder``: puts a team of agents together and compiles it to an ordinary workflow."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.agents.budget import Budget
from holdfast.agents.executor import AgentExecutor
from holdfast.agents.port import Handoff
from holdfast.agents.sessions.json_files import JsonSessionStore
from holdfast.agents.sessions.memory import InMemorySessionStore
from holdfast.agents.sessions.store import SessionStore
from holdfast.agents.settings import AgentSettings
from holdfast.agents.workflow.conditions import EdgeCondition, Predicate
from holdfast.agents.workflow.conversation import Conversation
from holdfast.agents.workflow.definition import (
    TeamEdge,
    TeamParts,
    TeamStoreConfig,
    describe_team,
    save_definition,
)
from holdfast.agents.workflow.node_options import NodeBuilder
from holdfast.agents.workflow.team import AgentWorkflow, TeamDrawing
from holdfast.agents.workflow.team_compiler import MOST_SUPERSTEPS, TeamCompiler, TeamMember, connect
from holdfast.agents.workflow.team_node import EdgeRule, TeamLimits, TeamNode
from holdfast.agents.workflow.team_plan import END, START
from holdfast.agents.workflow_agent import set_speakers
from holdfast.checkpoint.retention import MultiAgentCheckpointRetention, Retention
from holdfast.errors import GraphError
from holdfast.graph.typing.types import TypeForm, type_name
from holdfast.runtime.config import RunConfig
from holdfast.workflow import Workflow

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import CheckpointStorage


class EdgeSource:
    """The agents from which edges lead away; made by ``from_``."""

    def __init__(self, builder: AgentWorkflowBuilder, sources: tuple[str, ...]) -> None:
        self._builder = builder
        self._sources = sources

    def to(self, *targets: str) -> AgentWorkflowBuilder:
        """Lead from each source to each of these agents; ``when...`` and ``as_default`` behind it are about them."""
        return self._builder.add_edge(TeamEdge(self._sources, targets))

    def route_by_type(self) -> TypeRoutes:
        """Lead to agents by the type of the structured output."""
        return TypeRoutes(self._builder, self._sources)


class TypeRoutes:
    """Routes by the type of a structured output; made by ``from_(...).route_by_type()``."""

    def __init__(self, builder: AgentWorkflowBuilder, sources: tuple[str, ...]) -> None:
        self._builder = builder
        self._sources = sources

    def when(self, output_type: TypeForm, target: str) -> TypeRoutes:
        """Lead outputs of a type to an agent."""
        condition = EdgeCondition.of_type(type_name(output_type))
        self._builder.add_edge(TeamEdge(self._sources, (target,), condition))
        return self

    def default(self, target: str) -> AgentWorkflowBuilder:
        """Lead all other outputs to an agent."""
        return self._builder.add_edge(TeamEdge(self._sources, (target,), is_default=True))

    def no_default(self) -> AgentWorkflowBuilder:
        """Lead other outputs nowhere."""
        return self._builder


@dataclass
class _Settings:
    """The settings of a team besides its agents and edges."""

    name: str | None = None
    storage: CheckpointStorage | None = None
    store: TeamStoreConfig | None = None
    wants_checkpoints: bool = False
    max_rounds: int = 25
    timeout: float | None = None
    budget: Budget | None = None
    longest_pause: float | None = None
    model_attempts: int | None = None
    records: bool = False
    sessions: SessionStore | None = None
    session_store: TeamStoreConfig | None = None
    conversation: Conversation = field(default_factory=Conversation)


class AgentWorkflowBuilder:
    """Builds a team of agents; made by ``AgentWorkflow.create()``.

    The order in which agents are added is not the order in which they work: edges say that. An agent to which no edge
    leads begins, one from which none leads on ends.

    >>> workflow = (
    ...     AgentWorkflow.create()
    ...     .with_name("Desk")
    ...     .add_agent("triage", lambda prompt: "refund" if "money" in prompt else "other")
    ...     .add_agent("refund", lambda prompt: "The money is on its way.")
    ...     .add_agent("answer", lambda prompt: "We will look into it.")
    ...     .from_("triage").to("refund").when_equals("answer", "refund")
    ...     .from_("triage").to("answer").as_default()
    ...     .build()
    ... )
    >>> workflow.run_sync("Where is my money?").final_answer
    'The money is on its way.'
    """

    def __init__(self) -> None:
        self._settings = _Settings()
        self._members: dict[str, TeamMember] = {}
        self._edges: list[TeamEdge] = []

    # The team as a whole.

    def _set(self, **changes: Any) -> AgentWorkflowBuilder:
        self._settings = replace(self._settings, **changes)
        return self

    def with_name(self, name: str) -> AgentWorkflowBuilder:
        """Name the team; its runs are found again by the name."""
        return self._set(name=name)

    def with_checkpointing(
        self, storage: CheckpointStorage | None = None, *, enabled: bool = True
    ) -> AgentWorkflowBuilder:
        """Keep checkpoints of every run, in this storage or in that of ``with_..._workflow_store``.

        ``enabled=False`` takes back what was said about checkpoints, for a definition that was read from a file.
        """
        if not enabled:
            return self._set(wants_checkpoints=False, storage=None, store=None)
        if storage is not None and not hasattr(storage, "list_checkpoints"):
            raise GraphError(
                f"with_checkpointing({storage!r}): give a storage, like SqliteCheckpointStorage('runs.db'), or none "
                f"and call with_json_workflow_store('folder')"
            )
        changes = {} if storage is None else {"storage": storage, "store": TeamStoreConfig("given")}
        return self._set(wants_checkpoints=True, **changes)

    def with_in_memory_workflow_store(
        self, retention: Retention = MultiAgentCheckpointRetention.LATEST_ONLY
    ) -> AgentWorkflowBuilder:
        """Keep checkpoints in memory, for tests and short runs; of each run the newest, unless said otherwise."""
        _check_retention("with_in_memory_workflow_store", retention)
        return self._set(store=TeamStoreConfig("memory", None, retention), storage=None)

    def with_json_workflow_store(
        self,
        root: str | PathLike[str] | None = None,
        retention: Retention | None = None,
        *,
        root_directory: str | PathLike[str] | None = None,
        retention_mode: Retention | None = None,
    ) -> AgentWorkflowBuilder:
        """Keep definitions and checkpoints in a folder; of each run the newest checkpoint, unless said otherwise.

        ``root_directory`` and ``retention_mode`` are other names for ``root`` and ``retention``.
        """
        folder = root if root is not None else root_directory
        if folder is None:
            raise GraphError(
                "with_json_workflow_store() needs the folder: with_json_workflow_store('workflows')"
            )
        chosen = retention if retention is not None else retention_mode
        chosen = chosen if chosen is not None else MultiAgentCheckpointRetention.LATEST_ONLY
        _check_retention("with_json_workflow_store", chosen)
        return self._set(store=TeamStoreConfig("json", str(folder), chosen), storage=None)

    def with_max_iterations(self, rounds: int) -> AgentWorkflowBuilder:
        """Limit the rounds of every loop; one that wants more fails the run with ``SuperstepLimit``."""
        if type(rounds) is not int or rounds < 1:
            raise GraphError(f"with_max_iterations({rounds!r}) must be a whole number of at least 1")
        return self._set(max_rounds=rounds)

    def with_timeout(self, seconds: float | datetime.timedelta) -> AgentWorkflowBuilder:
        """Limit the time in which agents work on one run; time in which it waits does not count."""
        return self._set(timeout=NodeBuilder("team").with_timeout(seconds).options.timeout)

    def with_budget(self, budget: Budget) -> AgentWorkflowBuilder:
        """Limit what all agents of a run use together."""
        if not isinstance(budget, Budget):
            raise GraphError(f"with_budget({budget!r}) must be a Budget, like Budget(tokens=100_000)")
        return self._set(budget=budget)

    def with_rate_limit(
        self, *, longest_pause: float | None = None, model_attempts: int | None = None
    ) -> AgentWorkflowBuilder:
        """Say how long a pause of a provider is waited for in place, and how often a model is asked again."""
        pause: object = longest_pause
        if pause is not None and (isinstance(pause, bool) or not isinstance(pause, int | float) or pause < 0):
            raise GraphError(f"with_rate_limit(longest_pause={pause!r}) must be a number of seconds from 0")
        if model_attempts is not None and (type(model_attempts) is not int or model_attempts < 1):
            raise GraphError(
                f"with_rate_limit(model_attempts={model_attempts!r}) must be a whole number of at least 1"
            )
        return self._set(longest_pause=longest_pause, model_attempts=model_attempts)

    def with_recording(self) -> AgentWorkflowBuilder:
        """Keep what models and tools answered in each run, for a ``Cassette`` with which tests need no model."""
        return self._set(records=True)

    def with_session_store(self, store: SessionStore) -> AgentWorkflowBuilder:
        """Keep conversations in this store, which is not that of the checkpoints; needs ``with_conversation``."""
        given: object = store
        if not isinstance(given, SessionStore):
            raise GraphError(
                f"with_session_store({store!r}): give a session store, like JsonSessionStore('sessions')"
            )
        return self._set(sessions=store, session_store=TeamStoreConfig("given"))

    def with_in_memory_session_store(self) -> AgentWorkflowBuilder:
        """Keep conversations in memory, for tests and short programs."""
        return self._set(sessions=InMemorySessionStore(), session_store=TeamStoreConfig("memory"))

    def with_json_session_store(self, root: str | PathLike[str]) -> AgentWorkflowBuilder:
        """Keep conversations in a folder."""
        return self._set(sessions=JsonSessionStore(root), session_store=TeamStoreConfig("json", str(root)))

    def with_conversation(self, conversation: Conversation) -> AgentWorkflowBuilder:
        """Say which threads of a session the agents use; needs a session store."""
        if not isinstance(conversation, Conversation):
            raise GraphError(
                f"with_conversation({conversation!r}): give one, like Conversation.shared_thread()"
            )
        return self._set(conversation=conversation)

    # Agents.

    def add_agent(
        self,
        node_id: str,
        agent: object,
        configure: Callable[[NodeBuilder], object] | None = None,
        /,
        *,
        reference: str | None = None,
        **options: Any,
    ) -> AgentWorkflowBuilder:
        """Add an agent, or a function without parameters that makes one, with its options.

        Options are set by ``configure``, which is given a ``NodeBuilder``, or by keywords: ``input_key="draft"`` is
        ``with_input_key("draft")``, ``on_error="skip"`` is ``on_error_skip()``. ``reference`` is the name by which a
        definition calls the agent.
        """
        node = self._node(node_id)
        apply_options(node, options)
        return self._add(node, node_id, agent, configure, reference)

    def add_router_agent(
        self,
        node_id: str,
        agent: object,
        handoffs: Sequence[Handoff] | Mapping[str, str],
        configure: Callable[[NodeBuilder], object] | None = None,
        /,
        *,
        default: str | None = None,
        reference: str | None = None,
        **options: Any,
    ) -> AgentWorkflowBuilder:
        """Add an agent that chooses which agent goes on: handoffs are targets with descriptions.

        ``default`` goes on when the agent chose none of them.
        """
        node = self._node(node_id)
        if isinstance(handoffs, Mapping):
            handoffs = [Handoff(target, text) for target, text in handoffs.items()]
        if not handoffs or not all(isinstance(one, Handoff) for one in handoffs):
            raise GraphError(
                f"router {node_id!r}: handoffs must have at least one target, like {{'billing': 'Questions about "
                f"invoices'}}"
            )
        node.options = replace(node.options, handoffs=tuple(handoffs), default_handoff=default)
        apply_options(node, options)
        return self._add(node, node_id, agent, configure, reference)

    def _node(self, node_id: str) -> NodeBuilder:
        if node_id in (START, END):
            raise GraphError(f"an agent cannot be called {node_id!r}, which is one end of every team")
        if node_id in self._members:
            raise GraphError(f"there are two agents {node_id!r} in the team; give each its own id")
        return NodeBuilder(node_id)

    def _add(
        self,
        node: NodeBuilder,
        node_id: str,
        agent: object,
        configure: Callable[[NodeBuilder], object] | None,
        reference: str | None,
    ) -> AgentWorkflowBuilder:
        if configure is not None:
            if not callable(configure):
                raise GraphError(
                    f"agent {node_id!r}: options are set by a function, like lambda node: node.with_retry(3), or by "
                    f"keywords, not by {configure!r}"
                )
            configure(node)
        self._members[node_id] = TeamMember(agent, node.options, reference)
        return self

    # Edges.

    def from_(self, *sources: str) -> EdgeSource:
        """Begin edges that lead away from these agents."""
        if not sources:
            raise GraphError("from_() names no agent; like from_('draft').to('review')")
        return EdgeSource(self, sources)

    def add_edge(self, edge: TeamEdge) -> AgentWorkflowBuilder:
        """Add an edge."""
        if not edge.targets:
            raise GraphError(f"from_({', '.join(map(repr, edge.sources))}).to() names no agent")
        self._edges.append(edge)
        return self

    def _condition(self, condition: EdgeCondition, method: str) -> AgentWorkflowBuilder:
        if not self._edges:
            raise GraphError(f"{method} is about the edge before it, like from_('a').to('b').{method}(...)")
        last = self._edges[-1]
        if last.is_default:
            raise GraphError(
                f"{last}: it is the default, which has no condition; remove {method} or as_default"
            )
        if last.condition is not None:
            condition = last.condition & condition
        self._edges[-1] = last._replace(condition=condition)
        return self

    def when(self, condition: EdgeCondition | Predicate) -> AgentWorkflowBuilder:
        """Take the edge when a condition, or a function of the outputs, holds; several are joined by and."""
        return self._condition(EdgeCondition.of(condition), "when")

    def when_equals(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output has this value."""
        return self._condition(EdgeCondition.test("equals", field, value), "when_equals")

    def when_not_equals(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output has another value, or none."""
        return self._condition(EdgeCondition.test("not_equals", field, value), "when_not_equals")

    def when_exists(self, field: str) -> AgentWorkflowBuilder:
        """Take the edge when there is such an output, which is not None."""
        return self._condition(EdgeCondition.test("exists", field), "when_exists")

    def when_not_exists(self, field: str) -> AgentWorkflowBuilder:
        """Take the edge when there is no such output, or it is None."""
        return self._condition(EdgeCondition.test("not_exists", field), "when_not_exists")

    def when_greater_than(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output is greater."""
        return self._condition(EdgeCondition.test("greater_than", field, value), "when_greater_than")

    def when_less_than(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output is less."""
        return self._condition(EdgeCondition.test("less_than", field, value), "when_less_than")

    def when_at_least(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output is as great or greater."""
        return self._condition(EdgeCondition.test("at_least", field, value), "when_at_least")

    def when_at_most(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when an output is as small or smaller."""
        return self._condition(EdgeCondition.test("at_most", field, value), "when_at_most")

    def when_contains(self, field: str, value: Any) -> AgentWorkflowBuilder:
        """Take the edge when a text contains this text, or a list this value."""
        return self._condition(EdgeCondition.test("contains", field, value), "when_contains")

    def when_starts_with(self, field: str, text: str) -> AgentWorkflowBuilder:
        """Take the edge when a text begins so."""
        return self._condition(EdgeCondition.test("starts_with", field, text), "when_starts_with")

    def when_ends_with(self, field: str, text: str) -> AgentWorkflowBuilder:
        """Take the edge when a text ends so."""
        return self._condition(EdgeCondition.test("ends_with", field, text), "when_ends_with")

    def when_matches(self, field: str, pattern: str) -> AgentWorkflowBuilder:
        """Take the edge when a regular expression is found in a text."""
        return self._condition(EdgeCondition.test("matches", field, pattern), "when_matches")

    def when_empty(self, field: str) -> AgentWorkflowBuilder:
        """Take the edge when an output is missing, None or empty."""
        return self._condition(EdgeCondition.test("empty", field), "when_empty")

    def when_not_empty(self, field: str) -> AgentWorkflowBuilder:
        """Take the edge when an output is there and not empty."""
        return self._condition(EdgeCondition.test("not_empty", field), "when_not_empty")

    def when_contains_any(self, field: str, values: Sequence[Any]) -> AgentWorkflowBuilder:
        """Take the edge when an output contains one of these."""
        return self._condition(EdgeCondition.test("contains_any", field, values), "when_contains_any")

    def when_contains_all(self, field: str, values: Sequence[Any]) -> AgentWorkflowBuilder:
        """Take the edge when an output contains all of these."""
        return self._condition(EdgeCondition.test("contains_all", field, values), "when_contains_all")

    def as_default(self) -> AgentWorkflowBuilder:
        """Take the edge when no condition of the other edges from its source holds."""
        if not self._edges:
            raise GraphError("as_default is about the edge before it, like from_('a').to('b').as_default()")
        last = self._edges[-1]
        if last.condition is not None:
            raise GraphError(f"{last}: it has a condition, so it is no default; remove one of the two")
        self._edges[-1] = last._replace(is_default=True)
        return self

    # The end.

    def build(self) -> AgentWorkflow:
        """Return the team as a workflow; raise ``GraphError`` that names agent, option and fix if it is wrong."""
        if not self._members:
            raise GraphError("the team has no agent; add one with add_agent('draft', agent)")
        self._check_conversation()
        rules, plan = TeamCompiler(self._members, self._edges).compile()
        definition = describe_team(self._parts())
        settings = self._settings
        storage, retention = self._open_storage()
        limits = TeamLimits(settings.max_rounds, settings.timeout)
        nodes = {
            node_id: TeamNode(self._executor(node_id), member.options, rules[node_id], plan, limits)
            for node_id, member in self._members.items()
        }
        built = connect(settings.name, plan, rules, nodes)
        config = RunConfig(
            MOST_SUPERSTEPS,
            storage=storage,
            retention=retention,
            team_size=(len(plan.agents), plan.layer_count),
        )
        if settings.store is not None and settings.store.root is not None:
            save_definition(Path(settings.store.root), built.name, definition)
        workflow = AgentWorkflow(built.graph, built.name, config, TeamDrawing(plan, rules), definition)
        set_speakers(workflow, [node_id for node_id in nodes if _only_ends(rules[node_id])])
        return workflow

    def check(self) -> None:
        """Raise ``GraphError`` if something is wrong with the agents and edges."""
        TeamCompiler(self._members, self._edges).compile()

    def _check_conversation(self) -> None:
        kind, sessions = self._settings.conversation.kind, self._settings.sessions
        if kind != "none" and sessions is None:
            raise GraphError(
                f"with_conversation(Conversation.{kind}()) needs a session store: call "
                f"with_json_session_store('folder'), with_in_memory_session_store() or with_session_store(store)"
            )
        if kind == "none" and sessions is not None:
            raise GraphError(
                "the team has a session store that nobody uses: say "
                "with_conversation(Conversation.shared_thread()), or leave the store out"
            )

    def _parts(self) -> TeamParts:
        settings = self._settings
        return TeamParts(
            settings.name,
            {node_id: (one.reference, one.agent, one.options) for node_id, one in self._members.items()},
            self._edges,
            settings.store,
            settings.max_rounds,
            settings.timeout,
            settings.budget,
            settings.longest_pause,
            settings.model_attempts,
            settings.session_store,
            settings.conversation,
            settings.records,
        )

    def _open_storage(self) -> tuple[CheckpointStorage | None, Retention | None]:
        settings = self._settings
        if settings.store is None or settings.store.kind == "given":
            if settings.wants_checkpoints and settings.storage is None:
                raise GraphError(
                    "with_checkpointing() needs a store: give it a storage, or call with_json_workflow_store('folder') "
                    "or with_in_memory_workflow_store()"
                )
            return settings.storage, None
        if settings.store.root is None:
            from holdfast.stores.memory import InMemoryCheckpointStorage

            return InMemoryCheckpointStorage(), settings.store.retention
        from holdfast.stores.file.storage import FileCheckpointStorage

        return FileCheckpointStorage(Path(settings.store.root) / "checkpoints"), settings.store.retention

    def _executor(self, node_id: str) -> AgentExecutor:
        member, team = self._members[node_id], self._settings
        options = member.options
        budgets = tuple(
            replace(budget, name=f"agent {node_id}") if budget.name == "run" else budget
            for budget in options.budgets
        )
        settings = AgentSettings(
            instructions=options.instructions,
            session=None if team.sessions is None else team.conversation.policy_for(node_id, team.sessions),
            tool_approval=options.tool_approval,
            budgets=(*(() if team.budget is None else (team.budget,)), *budgets),
            record=team.records,
        )
        if team.longest_pause is not None:
            settings = replace(settings, longest_pause=team.longest_pause)
        if team.model_attempts is not None:
            settings = replace(settings, model_attempts=team.model_attempts)
        try:
            return AgentExecutor(_made(member.agent, node_id), node_id, settings=settings)
        except GraphError as error:
            raise GraphError(f"agent {node_id!r}: {error}") from error


def _only_ends(rules: Sequence[EdgeRule]) -> bool:
    """Return True if all that an agent gives out goes to END, so that its words are the answer."""
    return all(rule.target == END and rule.condition is None for rule in rules)


def _check_retention(method: str, retention: object) -> None:
    if not isinstance(retention, Retention):
        raise GraphError(
            f"{method}(retention={retention!r}): give a Retention, like Retention.full_history()"
        )


def _made(agent: object, node_id: str) -> object:
    """Return an agent; one that a function without parameters makes, and a lambda under the name of its node."""
    if inspect.isfunction(agent) and not inspect.signature(agent).parameters:
        try:
            agent = agent()
        except Exception as error:
            raise GraphError(f"the function that makes it raised {type(error).__name__}: {error}") from error
    if isinstance(agent, Workflow):
        raise GraphError(
            f"{agent!r} is a workflow; make an agent of it with as_agent(workflow, storage=...), or with its as_agent()"
        )
    if getattr(agent, "__name__", "") == "<lambda>":
        from holdfast.agents import function

        return function.wrap(agent, name=node_id)  # type: ignore[arg-type]
    return agent


def apply_options(node: NodeBuilder, options: Mapping[str, Any]) -> None:
    """Set options that were given by keywords, each by the method that has its name."""
    for name, value in options.items():
        method = getattr(node, f"with_{name}", None) or getattr(node, name, None)
        if name == "on_error" and value in ("stop", "skip", "isolate"):
            getattr(node, f"on_error_{value}")()
        elif name == "on_error":
            raise GraphError(
                f"agent {node.node_id!r}: on_error={value!r} must be 'stop', 'skip' or 'isolate'; another agent works "
                f"in its place with fallback='id'"
            )
        elif name == "fallback":
            node.on_error_fallback(value)
        elif not callable(method):
            methods = [one.removeprefix("with_") for one in vars(NodeBuilder) if not one.startswith("_")]
            known = sorted(["on_error", "fallback", *(one for one in methods if "on_error" not in one)])
            raise GraphError(f"agent {node.node_id!r} has no option {name!r}; there are {', '.join(known)}")
        elif isinstance(value, dict) and name.startswith("requires_"):
            method(**value)
        elif name.startswith("requires_") and value is True:
            method()
        elif name == "union_output":
            method(*value)
        else:
            method(value)
