"""WorkflowBuilder: puts a workflow together and checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.engine.durability import Durability, check_durability
from holdfast.engine.limits import Limits
from holdfast.errors import GraphError, LimitExceeded
from holdfast.graph.alias import check_aliases
from holdfast.graph.edge import (
    Condition,
    Direct,
    Edge,
    FanIn,
    FanOut,
    MultiSelection,
    Selection,
    Switch,
    SwitchCase,
)
from holdfast.graph.executor import Executor, FunctionExecutor, Recipe, WorkflowExecutor
from holdfast.graph.graph import Graph
from holdfast.graph.spec import ExecutorSpec, spec_of
from holdfast.graph.state_key import MergeRule, parse_merge
from holdfast.graph.validate import validate
from holdfast.ids import ExecutorId, complaint_about_id
from holdfast.runtime.config import RunConfig
from holdfast.workflow import Workflow, generated_name

if TYPE_CHECKING:
    from holdfast.checkpoint.retention import Retention
    from holdfast.checkpoint.storage import CheckpointStorage

# The workflows whose factories are being called, outermost first.
_REGISTERING: ContextVar[tuple[str, ...]] = ContextVar("registering", default=())


Placeable: TypeAlias = type[Executor] | Recipe | Executor | str
"""The ways to name an executor in an edge: a class, a recipe, an instance, a decorated function or an id."""


class Case(NamedTuple):
    """A way out of a switch: taken by the first message that meets the condition.

    >>> Case(condition=lambda report: report == "P0", target="page", label="P0").label
    'P0'
    """

    condition: Condition
    target: Placeable
    label: str | None = None


class Default(NamedTuple):
    """The way out of a switch for messages that no case took.

    >>> Default(target="ticket").target
    'ticket'
    """

    target: Placeable
    label: str | None = None


class WorkflowBuilder:
    """Builds a workflow; every method returns the builder, so that calls can be chained.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor
    ... def upper(text: str) -> str:
    ...     return text.upper()
    >>> @executor
    ... def exclaim(text: str) -> str:
    ...     return text + "!"
    >>> workflow = WorkflowBuilder(name="Shout").set_start_executor(upper).add_edge(upper, exclaim).build()
    >>> workflow.run_sync("hello").outputs
    ['HELLO!']
    """

    def __init__(
        self, name: str | None = None, max_iterations: int = 100, limits: Limits | None = None
    ) -> None:
        """Begin a workflow; ``max_iterations`` bounds the supersteps since the last external input."""
        if name is not None and (complaint := complaint_about_id(name)):
            raise GraphError(f"workflow name {name!r} {complaint}")
        if type(max_iterations) is not int or max_iterations < 1:
            raise GraphError(f"max_iterations={max_iterations!r}: must be a whole number of at least 1")
        self._name = name
        self._max_iterations = max_iterations
        self._limits = limits or Limits()
        self._start: ExecutorId | None = None
        self._placed: dict[ExecutorId, object] = {}
        self._specs: dict[ExecutorId, ExecutorSpec] = {}
        # Caches: the ids of placed executors, by identity, and the specs of classes.
        self._ids: dict[int, ExecutorId] = {}
        self._known: dict[type[Executor], ExecutorSpec] = {}
        self._edges: list[Edge] = []
        self._output_from: frozenset[ExecutorId] | None = None
        self._intermediate_from: frozenset[ExecutorId] = frozenset()
        self._merges: dict[tuple[str, str | None], MergeRule] = {}
        self._aliases: dict[ExecutorId, ExecutorId] = {}
        self._storage: CheckpointStorage | None = None
        self._retention: Retention | None = None
        self._durability: Durability = "sync"

    def register_executor(self, factory: Callable[[], Executor], name: str) -> WorkflowBuilder:
        """Let ``name`` stand in edges for the executor that ``factory`` creates for each run.

        The factory is called once here too, to learn what its executor handles.
        """
        executor_id = self._check_id(name)
        if executor_id in self._placed:
            raise GraphError(f"executor {name!r} is registered twice; give each its own name")
        with self._not_inside_itself(name):
            sample = factory()
        if not isinstance(sample, Executor):
            raise GraphError(
                f"register_executor(name={name!r}): the factory must return an Executor, not {sample!r}"
            )
        if isinstance(sample, WorkflowExecutor):
            self._placed[executor_id] = factory
            self._specs[executor_id] = self._nesting(spec_of(sample, executor_id), sample)
            return self

        def create() -> Executor:
            created = factory()
            if created is sample and not created.shareable:
                raise GraphError(
                    f"register_executor(name={name!r}): the factory returned the same executor again; let it create "
                    f"one at each call, or put the instance itself in the edges"
                )
            if not created.shareable:  # one that others use too keeps its own id
                created.id = executor_id
            return created

        self._placed[executor_id] = factory
        self._specs[executor_id] = ExecutorSpec(
            executor_id, spec_of(sample, executor_id).handlers, create, type(sample)
        )
        return self

    def set_start_executor(self, executor: Placeable) -> WorkflowBuilder:
        """Set the executor that gets the input of a run."""
        start = self._place(executor)
        if self._start is not None and self._start != start:
            raise GraphError(f"the start executor is {self._start!r} already, it cannot be {start!r} too")
        self._start = start
        return self

    def add_edge(
        self,
        source: Placeable,
        target: Placeable,
        condition: Condition | None = None,
        label: str | None = None,
    ) -> WorkflowBuilder:
        """Lead messages from one executor to another, all or those that meet the condition."""
        self._edges.append(Direct(self._place(source), self._place(target), condition, label))
        return self

    def add_fan_out_edges(self, source: Placeable, targets: Sequence[Placeable]) -> WorkflowBuilder:
        """Lead each message to all targets that take it."""
        placed = self._place(source)
        self._edges.append(FanOut(placed, self._place_all(targets, "add_fan_out_edges", "targets")))
        return self

    def add_fan_in_edges(self, sources: Sequence[Placeable], target: Placeable) -> WorkflowBuilder:
        """Give the target one list once each source has sent something: all of it, in the order of the sources."""
        placed = self._place_all(sources, "add_fan_in_edges", "sources")
        self._edges.append(FanIn.of(placed, self._place(target)))
        return self

    def add_switch_case_edge_group(
        self, source: Placeable, cases: Sequence[Case | Default]
    ) -> WorkflowBuilder:
        """Lead each message to the first case that takes it, else to the default."""
        placed = self._place(source)
        if not cases or any(isinstance(case, Default) for case in (*cases[:1], *cases[:-1])):
            raise GraphError(
                f"switch of {placed!r}: give at least one Case, and at most one Default as the last of all"
            )
        ways = [
            SwitchCase(
                case.condition if isinstance(case, Case) else None, self._place(case.target), case.label
            )
            for case in cases
        ]
        self._edges.append(Switch(placed, tuple(ways)))
        return self

    def add_multi_selection_edge_group(
        self, source: Placeable, targets: Sequence[Placeable], selection_func: Selection
    ) -> WorkflowBuilder:
        """Lead each message to those targets whose ids ``selection_func(message, target_ids)`` returns."""
        placed = self._place(source)
        ids = self._place_all(targets, "add_multi_selection_edge_group", "targets")
        self._edges.append(MultiSelection(placed, ids, selection_func))
        return self

    def add_chain(self, executors: Sequence[Placeable]) -> WorkflowBuilder:
        """Lead messages from each executor to the next."""
        if len(executors) < 2:
            raise GraphError("add_chain needs at least two executors")
        for source, target in pairwise(executors):
            self.add_edge(source, target)
        return self

    def with_checkpointing(self, checkpoint_storage: CheckpointStorage) -> WorkflowBuilder:
        """Make a durable checkpoint of every run at the start and end of each superstep."""
        if not hasattr(checkpoint_storage, "list_checkpoints"):
            raise GraphError(
                f"with_checkpointing({checkpoint_storage!r}): give a storage, like SqliteCheckpointStorage('runs.db')"
            )
        self._storage = checkpoint_storage
        return self

    def with_retention(self, retention: Retention) -> WorkflowBuilder:
        """Keep only some checkpoints of each run, like ``Retention.keep_last(10)``; wins over that of the storage."""
        if isinstance(retention, type) or not hasattr(retention, "kept"):
            raise GraphError(
                f"with_retention({retention!r}): give a Retention, like Retention.latest_only() or keep_last(10)"
            )
        self._retention = retention
        return self

    def with_durability(self, durability: Durability) -> WorkflowBuilder:
        """Set when supersteps are made durable: ``"sync"``, which is the default, ``"async"`` or ``"exit"``.

        Each before the next one begins; each while the next one runs, before anyone sees what came of it; or all of
        them when the run comes to rest. Without storage it means nothing.
        """
        self._durability = check_durability(durability)
        return self

    def with_output_from(self, *executors: Placeable) -> WorkflowBuilder:
        """Make only the values that these executors yield outputs of the workflow; those of others are dropped.

        Each must be able to give something out, which ``build`` checks.
        """
        if not executors:
            raise GraphError(
                "with_output_from() names no executor, so the workflow would give nothing out; "
                "name one, or leave it out"
            )
        self._output_from = frozenset(self._place(executor) for executor in executors)
        return self

    def with_intermediate_output_from(self, *executors: Placeable) -> WorkflowBuilder:
        """Show what these executors yield on the way, and do not count it as outputs of the workflow.

        It comes as a ``WorkflowOutputEvent`` with ``intermediate=True`` and is not in ``result.outputs``. A nested
        workflow does not send it on.

        >>> from holdfast import WorkflowBuilder, WorkflowContext, executor
        >>> @executor
        ... async def plan(goal: str, ctx: WorkflowContext[str, str]) -> str:
        ...     await ctx.yield_output(f"plan for {goal}")
        ...     return goal
        >>> @executor
        ... def act(goal: str) -> str:
        ...     return f"{goal} done"
        >>> builder = WorkflowBuilder(name="Plan").set_start_executor(plan).add_edge(plan, act)
        >>> builder.with_intermediate_output_from(plan).build().run_sync("kelp").outputs
        ['kelp done']
        """
        if not executors:
            raise GraphError(
                "with_intermediate_output_from() names no executor, so it changes nothing; name one, or leave it out"
            )
        self._intermediate_from = frozenset(self._place(executor) for executor in executors)
        return self

    def with_state_merge(self, scope_name: str, key: str | None, merge: MergeRule | str) -> WorkflowBuilder:
        """Declare the merge of writes to a key of a shared scope; without a key, to all its keys."""
        self._merges[(scope_name, key)] = parse_merge(merge, f"with_state_merge({scope_name!r}, {key!r})")
        return self

    def with_alias(self, old_id: str, executor: Placeable) -> WorkflowBuilder:
        """Declare an earlier id of an executor that was renamed: checkpoints may still call it ``old_id``.

        What they hold for the old id is the executor's then. The fingerprint does not depend on aliases.

        >>> from holdfast import WorkflowBuilder, executor
        >>> @executor
        ... def triage(text: str) -> str:
        ...     return text
        >>> workflow = WorkflowBuilder(name="Triage").set_start_executor(triage).with_alias("Sort", triage).build()
        >>> workflow.graph.aliases
        {'Sort': 'triage'}
        """
        if complaint := complaint_about_id(old_id):
            raise GraphError(f"with_alias({old_id!r}, ...): the old id {complaint}")
        old, new = ExecutorId(old_id), self._id_of(executor)
        if old in self._aliases:
            raise GraphError(
                f"with_alias({old_id!r}, ...) was said twice, for {self._aliases[old]!r} and for {new!r}; remove one"
            )
        self._aliases[old] = new
        return self

    def build(self) -> Workflow:
        """Return the workflow; raise ``GraphError`` if something is wrong with it."""
        if self._start is None:
            raise GraphError(
                f"workflow {self._name or '(unnamed)'!r} has no start executor; "
                f"call set_start_executor(...) before build()"
            )
        if self._start not in self._specs:
            raise GraphError(
                f"the start executor {self._start!r} is not in the workflow; register it with "
                f"register_executor(..., name={self._start!r}) or pass the executor itself"
            )
        graph = Graph(
            self._start,
            self._in_order(),
            tuple(self._edges),
            self._output_from,
            dict(self._merges),
            dict(self._aliases),
            self._intermediate_from,
        )
        validate(graph)
        check_aliases(graph)
        name = self._name or generated_name(graph)
        config = RunConfig(
            max_iterations=self._max_iterations,
            limits=self._limits,
            storage=self._storage,
            retention=self._retention,
            durability=self._durability,
        )
        return Workflow(graph, name, config)

    def _in_order(self) -> dict[ExecutorId, ExecutorSpec]:
        """Return the executors in graph order: as first named in the start and the edges."""
        assert self._start is not None
        named = [self._start]
        for edge in self._edges:
            named += (*edge.sources, *edge.targets)
        ordered = dict.fromkeys([*named, *self._specs])
        return {
            executor_id: self._specs[executor_id] for executor_id in ordered if executor_id in self._specs
        }

    def _place_all(self, executors: Sequence[Placeable], method: str, what: str) -> tuple[ExecutorId, ...]:
        if not isinstance(executors, list | tuple) or not executors:
            raise GraphError(f"{method}: {what} must be a list of at least one executor, not {executors!r}")
        return tuple(self._place(executor) for executor in executors)

    def _place(self, executor: Placeable) -> ExecutorId:
        """Add ``executor`` to the workflow, unless it is there, and return its id."""
        if isinstance(executor, str):
            return self._check_id(executor)
        known = self._ids.get(id(executor))  # nearly every executor stands in two edges at least
        if known is not None:
            return known
        spec = spec_of_placeable(executor, self._known)
        if isinstance(executor, WorkflowExecutor):
            spec = self._nesting(spec, executor)
        executor_id = self._check_id(spec.id)
        there = self._placed.get(executor_id)
        if there is None:
            self._placed[executor_id] = executor
            self._specs[executor_id] = spec
            self._ids[id(executor)] = executor_id
        elif there is not executor and there != executor:
            raise GraphError(
                f"two executors have the id {executor_id!r}: {there!r} and {executor!r}; "
                f"give one of them another id, like {_id_hint(executor)}"
            )
        return executor_id

    def _id_of(self, executor: Placeable) -> ExecutorId:
        """Return the id of ``executor``, which need not be in the workflow."""
        return self._check_id(executor if isinstance(executor, str) else spec_of_placeable(executor).id)

    def _nesting(self, spec: ExecutorSpec, nested: WorkflowExecutor) -> ExecutorSpec:
        """Return the spec of a nested workflow; raise unless it is another one than this and not too deep."""
        assert spec.nested is not None
        if self._name is not None and nested.workflow.name == self._name:
            raise GraphError(
                f"workflow {self._name!r} cannot stand inside itself (as executor {spec.id!r}); for a loop add an edge "
                f"back, and if these are different workflows give them different names"
            )
        if spec.nested.depth + 1 > self._limits.max_depth:
            raise LimitExceeded(
                "max_depth",
                self._limits.max_depth,
                f"executor {spec.id!r} nests workflows {spec.nested.depth + 1} deep, more than the "
                f"{self._limits.max_depth} allowed; allow more with Limits(max_depth=...)",
            )
        return spec

    @contextmanager
    def _not_inside_itself(self, name: str) -> Iterator[None]:
        """Raise ``GraphError`` in a factory that builds the workflow that it is part of."""
        around = _REGISTERING.get()
        own = self._name or "(unnamed)"
        if self._name in around or len(around) >= self._limits.max_depth:
            chain = " > ".join([*around, own])
            raise GraphError(
                f"workflow {own!r} cannot stand inside itself: {chain}, at {name!r}; for a loop add an edge back, "
                f"and if these are different workflows give them different names"
            )
        token = _REGISTERING.set((*around, own))
        try:
            yield
        finally:
            _REGISTERING.reset(token)

    def _check_id(self, text: Any) -> ExecutorId:
        if complaint := complaint_about_id(text):
            raise GraphError(f"executor id {text!r} {complaint}")
        return ExecutorId(text)


def spec_of_placeable(
    executor: type[Executor] | Recipe | Executor, known: dict[type[Executor], ExecutorSpec] | None = None
) -> ExecutorSpec:
    """Return the spec of an executor in an edge; raise ``GraphError`` if it cannot stand there."""
    if not isinstance(executor, Recipe | Executor) and not _is_executor_class(executor):
        raise GraphError(_why_not_placeable(executor))
    if isinstance(executor, Recipe) and issubclass(executor.executor_class, WorkflowExecutor):
        raise GraphError(f"{executor!r}: nest a workflow with WorkflowExecutor(workflow, id='...') itself")
    return spec_of(executor, known=known)


def _id_hint(executor: object) -> str:
    """Return the code that gives an executor another id, for messages."""
    if isinstance(executor, FunctionExecutor):
        return "@executor(id='...')"
    cls = executor if isinstance(executor, type) else type(executor)
    if isinstance(executor, Recipe):
        cls = executor.executor_class
    return f"{cls.__name__}.bind(id='...')"


def _is_executor_class(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Executor)


def _why_not_placeable(thing: object) -> str:
    if isinstance(getattr(thing, "graph", None), Graph):
        return f"{thing!r} cannot stand in an edge itself; nest it with WorkflowExecutor(workflow, id='...')"
    if isinstance(thing, type):
        return f"class {thing.__name__} is not an Executor; derive it from Executor"
    if callable(thing):
        name = getattr(thing, "__name__", repr(thing))
        return f"function {name!r} is not an executor; decorate it with @executor"
    return (
        f"{thing!r} cannot stand in an edge; use an Executor class, Class.bind(...), an instance, "
        f"a function decorated with @executor, or an id"
    )
