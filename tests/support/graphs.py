"""Random workflows: their description as plain data, the workflow built from it, and what its executors do.

A message is a number, that number as text, or (from a fan-in) a list of messages. Each has an energy; an executor
only ever sends messages of less energy, so every run ends. What an executor does follows from the message alone.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast import Case, Default, Executor, Merge, Workflow, WorkflowBuilder, WorkflowContext, handler

LEVELS = 8
"""A number is ``salt * LEVELS + energy``."""

TOTALS = "Totals"
"""A shared scope whose writes are added."""
LOG = "Log"
"""A shared scope whose only key is appended to."""


# -- messages --------------------------------------------------------------------------------------


def code_of(message: object) -> int:
    """The number that stands for a message.

    >>> code_of(13), code_of("13"), code_of([5, ["21"]])
    (13, 13, 21)
    """
    if isinstance(message, list):
        codes = [code_of(part) for part in message]
        salt = sum(code // LEVELS for code in codes) % 5
        return salt * LEVELS + min((code % LEVELS for code in codes), default=0) if codes else 0
    return int(message)  # type: ignore[call-overload]


def kind_of(message: object) -> str:
    """How executors tell messages apart.

    >>> kind_of(1), kind_of("1"), kind_of([1])
    ('int', 'str', 'list')
    """
    return type(message).__name__


# -- descriptions ----------------------------------------------------------------------------------


class Node(NamedTuple):
    """An executor: what it takes, how many messages it sends for one, and what else it does."""

    id: str
    takes: frozenset[str]
    sends: int = 1
    texts: bool = False
    aimed: bool = False
    yields: bool = False
    writes: bool = False
    returns: bool = False


@dataclass(frozen=True)
class Rule:
    """A condition: the code of the message, divided by ``by``, leaves ``rest``."""

    by: int
    rest: int

    def __call__(self, message: Any) -> bool:
        return code_of(message) % self.by == self.rest


class Link(NamedTuple):
    """An edge of any kind; rules belong to the targets of direct and switch edges."""

    kind: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    rules: tuple[Rule | None, ...] = ()

    def selected(self, message: object) -> list[str]:
        """What the selection of a multi-selection chooses: the bits of the code say which."""
        return [t for position, t in enumerate(self.targets) if code_of(message) >> position & 1]


@dataclass(frozen=True)
class Description:
    """A random workflow as data; the first node is the start."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    def at(self, path: str) -> "Description":
        """The description of the graph at a path; there is only one."""
        assert path == ""
        return self

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.id == name)

    def reachable_from(self, name: str) -> list[str]:
        """The targets of all edges of a node, each once."""
        targets = [target for link in self.links if name in link.sources for target in link.targets]
        return list(dict.fromkeys(targets))

    def build(self) -> Workflow:
        """The workflow, new each time."""
        builder = WorkflowBuilder(name="Random", max_iterations=200)
        builder.with_state_merge(TOTALS, None, Merge.ADD)
        recipes = {
            node.id: _CLASSES[node.takes].bind(id=node.id, node=node, targets=self.reachable_from(node.id))
            for node in self.nodes
        }
        builder.set_start_executor(recipes[self.nodes[0].id])
        for link in self.links:
            _add(builder, link, recipes)
        return builder.build()


def _add(builder: WorkflowBuilder, link: Link, recipes: dict[str, Any]) -> None:
    sources = [recipes[name] for name in link.sources]
    targets = [recipes[name] for name in link.targets]
    if link.kind == "direct":
        builder.add_edge(sources[0], targets[0], condition=link.rules[0])
    elif link.kind == "fan-out":
        builder.add_fan_out_edges(sources[0], targets)
    elif link.kind == "fan-in":
        builder.add_fan_in_edges(sources, targets[0])
    elif link.kind == "switch":
        cases: list[Case | Default] = [
            Case(rule, target) if rule is not None else Default(target)
            for rule, target in zip(link.rules, targets, strict=True)
        ]
        builder.add_switch_case_edge_group(sources[0], cases)
    else:
        builder.add_multi_selection_edge_group(
            sources[0], targets, selection_func=lambda message, ids: link.selected(message)
        )


# -- what executors do -----------------------------------------------------------------------------


class Send(NamedTuple):
    value: object
    target: str | None


class Yield(NamedTuple):
    value: object


class Read(NamedTuple):
    """Answered with the value, None where there is none."""

    scope: str | None
    key: str


class Put(NamedTuple):
    scope: str | None
    key: str
    value: object


class Append(NamedTuple):
    scope: str | None
    key: str
    item: object


class Clear(NamedTuple):
    scope: str | None
    key: str


Action = Send | Yield | Read | Put | Append | Clear
Acting = Generator[Action, Any, object]


def act(node: Node, targets: Sequence[str], message: object) -> Acting:
    """What a node does for a message, action by action; returns what its handler returns."""
    code = code_of(message)
    salt, energy = divmod(code, LEVELS)
    if node.writes:
        count = yield Read(None, "count")
        yield Put(None, "count", (count or 0) + 1)
        yield Append(LOG, "all", [node.id, count, message])
        yield Put(TOTALS, f"k{salt % 2}", code)
        total = yield Read(TOTALS, f"k{salt % 2}")
        yield Put(None, "total", total)
        if salt == 3:
            yield Clear(None, "count")
    if node.yields:
        yield Yield([node.id, message])
    if energy == 0:
        return None
    for number in range(node.sends):
        child = ((salt * 3 + number + 1) % 5) * LEVELS + max(energy - 1 - number, 0)
        value: object = str(child) if node.texts and child % 3 == 0 else child
        if node.returns and number == node.sends - 1:
            return value
        aim = node.aimed and targets and child % 2
        yield Send(value, targets[child % len(targets)] if aim else None)
    return None


class _Acting(Executor):
    def __init__(self, id: str, node: Node, targets: list[str]) -> None:
        super().__init__(id)
        self.node, self.targets = node, targets

    async def perform(self, message: object, ctx: WorkflowContext) -> object:
        acting = act(self.node, self.targets, message)
        answer: Any = None
        while True:
            try:
                action = acting.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            match action:
                case Send(value, target):
                    await ctx.send_message(value, target)
                case Yield(value):
                    await ctx.yield_output(value)
                case Read(scope, key):
                    answer = await ctx.read_state(key, scope_name=scope)
                case Put(scope, key, value):
                    await ctx.queue_state_update(key, value, scope_name=scope)
                case Append(scope, key, item):
                    await ctx.append_state(key, item, scope_name=scope)
                case Clear(scope, key):
                    await ctx.clear_state(key, scope_name=scope)


class TakesInt(_Acting):
    @handler(input=int)
    async def integer(self, message: int, ctx: WorkflowContext) -> object:
        return await self.perform(message, ctx)


class TakesText(_Acting):
    @handler(input=str)
    async def text(self, message: str, ctx: WorkflowContext) -> object:
        return await self.perform(message, ctx)


class TakesScalar(_Acting):
    @handler(input=int | str)
    async def scalar(self, message: Any, ctx: WorkflowContext) -> object:
        return await self.perform(message, ctx)


class TakesIntAndList(TakesInt):
    @handler(input=list)
    async def items(self, message: Any, ctx: WorkflowContext) -> object:
        return await self.perform(message, ctx)


class TakesAll(_Acting):
    @handler(input=object)
    async def anything(self, message: object, ctx: WorkflowContext) -> object:
        return await self.perform(message, ctx)


_CLASSES: dict[frozenset[str], type[_Acting]] = {
    frozenset({"int"}): TakesInt,
    frozenset({"str"}): TakesText,
    frozenset({"int", "str"}): TakesScalar,
    frozenset({"int", "list"}): TakesIntAndList,
    frozenset({"int", "str", "list"}): TakesAll,
}
_TAKING_INT = sorted((takes for takes in _CLASSES if "int" in takes), key=sorted)
_ANY = sorted(_CLASSES, key=sorted)


# -- strategies ------------------------------------------------------------------------------------


@st.composite
def descriptions(draw: Callable[[Any], Any], most_nodes: int = 6) -> Description:
    """Workflows whose executors can all be reached, with loops and every kind of edge."""
    count = draw(st.integers(1, most_nodes))
    names = [f"n{number}" for number in range(count)]
    nodes = [draw(_nodes(name, _TAKING_INT if name == "n0" else _ANY)) for name in names]
    with_lists = [node.id for node in nodes if "list" in node.takes]
    links: list[Link] = []
    for position in range(1, count):  # a tree first, so that all can be reached
        source = names[draw(st.integers(0, position - 1))]
        links.append(draw(_links([source], names, with_lists, first_target=names[position])))
    for _ in range(draw(st.integers(0 if count > 1 else 1, 4))):
        links.append(draw(_links(names, names, with_lists)))
    return Description(tuple(nodes), tuple(_distinct(links)))


def inputs() -> st.SearchStrategy[int]:
    """Inputs of any salt with enough energy for several supersteps."""
    return st.builds(lambda salt, energy: salt * LEVELS + energy, st.integers(0, 4), st.integers(0, 5))


def _nodes(name: str, kinds: list[frozenset[str]]) -> st.SearchStrategy[Node]:
    flags = {flag: st.booleans() for flag in ("texts", "aimed", "yields", "writes", "returns")}
    return st.builds(Node, st.just(name), st.sampled_from(kinds), sends=st.integers(0, 3), **flags)


_RULES = st.one_of(
    st.none(), st.builds(Rule, st.just(2), st.integers(0, 1)), st.builds(Rule, st.just(3), st.just(1))
)


@st.composite
def _links(
    draw: Callable[[Any], Any],
    sources: list[str],
    names: list[str],
    with_lists: list[str],
    first_target: str | None = None,
) -> Link:
    kinds = ["direct", "direct", "fan-out", "switch", "multi-selection"]
    if first_target in with_lists or (first_target is None and with_lists):
        kinds.append("fan-in")
    kind = draw(st.sampled_from(kinds))
    source = draw(st.sampled_from(sources))
    if kind == "fan-in":
        target = first_target or draw(st.sampled_from(with_lists))
        others = draw(st.lists(st.sampled_from(names), max_size=2))
        return Link(kind, tuple(dict.fromkeys([source, *others])), (target,))
    first = first_target or draw(st.sampled_from(names))
    if kind == "direct":
        return Link(kind, (source,), (first,), (draw(_RULES),))
    targets = tuple(dict.fromkeys([first, *draw(st.lists(st.sampled_from(names), max_size=2))]))
    if kind == "switch":
        rules = [draw(_RULES.filter(lambda rule: rule is not None)) for _ in targets]
        if len(rules) > 1 and draw(st.booleans()):
            rules[-1] = None
        return Link(kind, (source,), targets, tuple(rules))
    return Link(kind, (source,), targets)


def _distinct(links: list[Link]) -> list[Link]:
    """Without those that the builder would refuse as added twice."""
    return list(dict.fromkeys(links))
