"""Aliases: what they may be, and how they lead from the names in a checkpoint to those of the graph."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import (
    Executor,
    GraphError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from holdfast.graph.alias import resolve_address, resolve_buffer_key, resolve_path, resolve_source
from holdfast.graph.graph import Graph
from holdfast.ids import complaint_about_id


class Triage(Executor):
    @handler
    async def work(self, message: object, ctx: WorkflowContext[Any, Any]) -> None: ...


def placed(name: str) -> Any:
    return Triage.bind(id=name)


def joined(*sources: str, target: str) -> WorkflowBuilder:
    """One that sends to all sources, which a fan-in joins."""
    ways = [placed(name) for name in sources]
    builder = WorkflowBuilder(name="Joined").set_start_executor(placed("start"))
    return builder.add_fan_out_edges(placed("start"), ways).add_fan_in_edges(ways, placed(target))


# -- the builder -----------------------------------------------------------------------------------


@executor
def triage(text: str) -> str:
    return text


INSTANCE = Triage(id="Triage")


@pytest.mark.parametrize(
    ("start", "named"),
    [
        (Triage, Triage),
        (Triage, "Triage"),
        (Triage.bind(id="Triage"), Triage.bind(id="Triage")),
        (Triage.bind(id="Triage"), Triage),
        (INSTANCE, INSTANCE),
        (INSTANCE, "Triage"),
    ],
    ids=["class", "id of a class", "recipe", "class of a recipe", "instance", "id of an instance"],
)
def test_the_executor_is_named_as_anywhere(start: Any, named: Any) -> None:
    graph = WorkflowBuilder().set_start_executor(start).with_alias("Old", named).build().graph
    assert graph.aliases == {"Old": "Triage"}


def test_a_function_and_a_registered_factory_can_be_named() -> None:
    builder = WorkflowBuilder().set_start_executor(triage).register_executor(Triage, name="next")
    graph = builder.add_edge(triage, "next").with_alias("a", triage).with_alias("b", "next").build().graph
    assert graph.aliases == {"a": "triage", "b": "next"}


def test_it_may_be_said_before_the_executor_is_placed() -> None:
    builder = WorkflowBuilder().with_alias("Old", "Triage").with_alias("Older", Triage)
    assert builder.set_start_executor(Triage).build().graph.aliases == {"Old": "Triage", "Older": "Triage"}


def test_an_alias_does_not_place_the_executor_nor_change_the_order() -> None:
    a, b, c = (placed(name) for name in "abc")
    plain = WorkflowBuilder().set_start_executor(a).add_edge(a, b).add_edge(b, c).build()
    builder = WorkflowBuilder().with_alias("z", c).set_start_executor(a).add_edge(a, b).add_edge(b, c)
    aliased = builder.with_alias("y", b).build()
    assert list(aliased.graph.executors) == ["a", "b", "c"]
    assert aliased.fingerprint == plain.fingerprint
    assert aliased.name == plain.name
    assert aliased.graph.description == plain.graph.description


def test_an_alias_is_not_an_id() -> None:
    builder = WorkflowBuilder().set_start_executor("a").register_executor(Triage, name="a")
    with pytest.raises(GraphError, match=r"edge 'a' -> 'old' names the executor 'old', which is not"):
        builder.with_alias("old", "a").add_edge("a", "old").build()


def refused(alias: Any, named: Any = "Triage") -> str:
    builder = WorkflowBuilder(name="Aliased").set_start_executor(Triage).add_edge(Triage, placed("next"))
    with pytest.raises(GraphError) as caught:
        builder.with_alias(alias, named).build()
    return str(caught.value)


@pytest.mark.parametrize(
    ("named", "called"), [("Gone", "Gone"), (placed("Gone"), "Gone"), (triage, "triage")], ids=str
)
def test_an_executor_that_is_not_in_the_graph_is_refused(named: Any, called: str) -> None:
    assert refused("Old", named) == (
        f"with_alias('Old', ...) names the executor {called!r}, which is not in the workflow; "
        f"known are 'Triage', 'next'"
    )


@pytest.mark.parametrize("taken", ["next", "Triage"])
def test_the_id_of_an_executor_is_refused(taken: str) -> None:
    said = refused(taken)
    assert said.startswith(f"with_alias({taken!r}, ...): {taken!r} is an executor of the workflow")


@pytest.mark.parametrize("again", ["Triage", "next"])
def test_an_old_id_is_refused_twice(again: str) -> None:
    builder = WorkflowBuilder().set_start_executor(Triage).with_alias("Old", Triage)
    with pytest.raises(
        GraphError, match=rf"with_alias\('Old', ...\) was said twice, for 'Triage' and for '{again}'"
    ):
        builder.with_alias("Old", again)


@pytest.mark.parametrize("bad", ["", "a/b", "a#1", "a\nb", 7, None, Triage, "x" * 201], ids=repr)
def test_what_is_no_id_is_refused(bad: Any) -> None:
    assert str(complaint_about_id(bad)) in refused(bad)


@pytest.mark.parametrize("bad", [7, None, len, int, "a/b"], ids=repr)
def test_what_is_no_executor_is_refused(bad: Any) -> None:
    assert refused("Old", bad)


# -- addresses -------------------------------------------------------------------------------------


def nested() -> Graph:
    """``host`` (was ``Host``) nests ``mid`` (was ``Mid``), which nests ``inner`` (was ``Inner``)."""
    innermost = (
        WorkflowBuilder(name="I").set_start_executor(placed("inner")).with_alias("Inner", "inner").build()
    )
    mid = WorkflowExecutor(innermost, id="mid")
    middle = WorkflowBuilder(name="M").set_start_executor(mid).with_alias("Mid", mid).build()
    host = WorkflowExecutor(middle, id="host")
    builder = WorkflowBuilder(name="H").set_start_executor(host).add_edge(host, placed("next"))
    return builder.with_alias("Host", host).with_alias("Next", "next").build().graph


@pytest.mark.parametrize(
    ("address", "now"),
    [
        ("Next", "next"),
        ("next", "next"),
        ("Host", "host"),
        ("host#1/Mid#2/Inner", "host#1/mid#2/inner"),
        ("Host#1/mid#2/inner", "host#1/mid#2/inner"),
        ("Host#12/Mid#34/Inner", "host#12/mid#34/inner"),
        ("Host#1/Mid", "host#1/mid"),
        # An alias is one only where it was declared.
        ("Inner", "Inner"),
        ("Host#1/Inner", "host#1/Inner"),
        ("Host#1/Next", "host#1/Next"),
        # Unknown: also what stands behind it.
        ("Gone", "Gone"),
        ("Gone#1/Mid", "Gone#1/Mid"),
        ("Next#1/Mid", "next#1/Mid"),
        ("", ""),
        ("#/#//", "#/#//"),
    ],
)
def test_addresses(address: str, now: str) -> None:
    graph = nested()
    assert resolve_address(graph, address) == now
    assert resolve_address(graph, now) == now


@pytest.mark.parametrize(
    ("path", "now"),
    [
        ("", ""),
        ("Host#1/", "host#1/"),
        ("Host#1/Mid#2/", "host#1/mid#2/"),
        ("Gone#1/Mid#1/", "Gone#1/Mid#1/"),
    ],
)
def test_paths(path: str, now: str) -> None:
    assert resolve_path(nested(), path) == now


def test_whether_there_are_any_is_known_through_all_levels() -> None:
    plain = WorkflowBuilder(name="P").set_start_executor(placed("a")).build()
    host = WorkflowExecutor(plain, id="host")
    assert not WorkflowBuilder(name="Q").set_start_executor(host).build().graph.has_aliases
    inner = WorkflowBuilder(name="I").set_start_executor(placed("a")).with_alias("b", "a").build()
    host = WorkflowExecutor(inner, id="host")
    assert WorkflowBuilder(name="Q").set_start_executor(host).build().graph.has_aliases


# -- buffers of fan-ins ----------------------------------------------------------------------------


def buffer_key(graph: Graph) -> str:
    (edge,) = graph.fan_ins
    return edge.buffer_key


AWKWARD = ["it's", '"', "' -> '", "', '", "\\", "\\'", "'a'", "a, b", "x' \"y\\", "ü", " "]


@pytest.mark.parametrize("old", AWKWARD)
def test_keys_of_buffers_are_translated_whatever_ids_look_like(old: str) -> None:
    before = joined("a", old, "b", target="end").build().graph
    after = joined("a", "new", "b", target="end").with_alias(old, "new").build().graph
    assert resolve_buffer_key(after, "", buffer_key(before)) == buffer_key(after)
    assert resolve_source(after, "", old) == "new"
    before = joined("a", "b", target=old).build().graph
    after = joined("a", "b", target=f"{old}2").with_alias(old, f"{old}2").build().graph
    assert resolve_buffer_key(after, "", buffer_key(before)) == buffer_key(after)


def test_a_part_of_an_id_is_not_an_alias() -> None:
    after = joined("ab", "b", target="end").with_alias("a", "b").build().graph
    assert resolve_buffer_key(after, "", buffer_key(after)) == buffer_key(after)
    assert resolve_source(after, "", "ab") == "ab"


def test_keys_of_buffers_in_nested_workflows() -> None:
    before = joined("a", "b", target="end").build().graph
    inner = joined("a", "c", target="end").with_alias("b", "c").build()
    host = WorkflowExecutor(inner, id="host")
    builder = WorkflowBuilder(name="Outer").set_start_executor(host).with_alias("Host", host)
    graph = builder.with_alias("a", host).build().graph
    key = buffer_key(before)
    for path in ("Host#3/", "host#3/"):
        assert resolve_buffer_key(graph, path, key) == buffer_key(inner.graph)
        assert resolve_source(graph, path, "b") == "c"
    assert resolve_buffer_key(graph, "", "'b' -> 'a'") == "'b' -> 'host'"
    for unknown in ("gone#1/", "host#1/a#1/", "host#1/gone#1/"):
        assert resolve_buffer_key(graph, unknown, key) == key
        assert resolve_source(graph, unknown, "b") == "b"


@pytest.mark.parametrize("key", ["", "'", "no key at all", "'a", "\\'b\\'", "'b' -> "])
def test_what_is_no_key_of_a_buffer_does_no_harm(key: str) -> None:
    graph = joined("c", target="end").with_alias("a", "c").build().graph
    assert resolve_buffer_key(graph, "", key) == key


# -- any workflows ---------------------------------------------------------------------------------


class Level(NamedTuple):
    """A workflow: its executors, and what some of them nest; a fan-in joins them all."""

    names: tuple[str, ...]
    inside: tuple[tuple[str, "Level"], ...] = ()

    def build(self, name: Callable[[str], str], aliases: bool = False) -> Workflow:
        """The workflow with its executors called by ``name``, and if wanted with aliases for all that changed."""
        inner = {host: level.build(name, aliases) for host, level in self.inside}
        executors = [
            WorkflowExecutor(inner[old], id=name(old)) if old in inner else placed(name(old))
            for old in self.names
        ]
        builder = WorkflowBuilder().set_start_executor(executors[0])
        if len(executors) > 1:
            builder.add_fan_out_edges(executors[0], executors[1:])
        builder.add_fan_in_edges(executors, placed("the end"))
        for old in self.names:
            if aliases and name(old) != old:
                builder.with_alias(old, name(old))
        return builder.build()

    def addresses(self, path: str = "") -> Iterator[str]:
        """Addresses of all executors, each nested workflow in its second instance."""
        inside = dict(self.inside)
        for old in self.names:
            yield path + old
            if old in inside:
                yield from inside[old].addresses(f"{path}{old}#2/")


IDS = st.text(min_size=1, max_size=4).filter(lambda text: complaint_about_id(text) is None) | st.sampled_from(
    AWKWARD
)


@st.composite
def levels(draw: Callable[[Any], Any], depth: int = 3) -> Level:
    names = draw(st.lists(IDS, min_size=1, max_size=3, unique=True))
    hosts = draw(st.lists(st.sampled_from(names), max_size=2, unique=True)) if depth > 1 else []
    return Level(tuple(names), tuple((host, draw(levels(depth - 1))) for host in hosts))


def old_names(name: str) -> str:
    return name


def new_names(name: str) -> str:
    """Longer than any old name, so that none is taken."""
    return f"{name}, renamed"


@given(levels(), st.text("aA'#/1", max_size=12))
def test_without_aliases_nothing_is_renamed(level: Level, junk: str) -> None:
    graph = level.build(old_names).graph
    for address in [*level.addresses(), junk]:
        assert resolve_address(graph, address) == address
        assert resolve_path(graph, f"{address}#1/") == f"{address}#1/"
        assert resolve_buffer_key(graph, f"{address}#1/", junk) == junk
        assert resolve_source(graph, f"{address}#1/", junk) == junk


@given(levels(), st.sets(st.integers(0, 3)))
def test_all_that_was_there_is_found_under_its_new_name(level: Level, spared: set[int]) -> None:
    def name(old: str) -> str:
        return old if len(old) in spared else new_names(old)

    before, after = level.build(name=old_names).graph, level.build(name, aliases=True).graph
    for address in level.addresses():
        now = resolve_address(after, address)
        then, found = before.locate(address), after.locate(now)
        assert found.spec.id == name(then.spec.id)
        assert found.path == resolve_path(after, then.path)
        assert resolve_address(after, now) == now
        for was, edge in zip(then.graph.fan_ins, found.graph.fan_ins, strict=True):
            key = resolve_buffer_key(after, then.path, was.buffer_key)
            assert key == edge.buffer_key
            assert resolve_buffer_key(after, found.path, key) == key
            assert [resolve_source(after, then.path, source) for source in was.sources] == [*edge.sources]


@given(levels(), st.text("aA'#/1", max_size=12))
def test_renaming_twice_is_renaming_once(level: Level, junk: str) -> None:
    graph = level.build(new_names, aliases=True).graph
    for address in (junk, *(f"{address}#1/{junk}" for address in level.addresses())):
        once = resolve_address(graph, address)
        assert resolve_address(graph, once) == once
