"""The exact Mermaid and DOT texts of every kind of edge."""

import pytest

from holdfast import Case, Default, Executor, WorkflowBuilder, WorkflowContext, executor, handler


class Taker(Executor):
    @handler
    async def take(self, message: object, ctx: WorkflowContext) -> None: ...


def builder() -> WorkflowBuilder:
    return WorkflowBuilder(name="W").set_start_executor(Taker.bind(id="a"))


def true(message: object) -> bool:
    return True


def all_kinds() -> WorkflowBuilder:
    return (
        builder()
        .add_edge("a", Taker.bind(id="b"))
        .add_edge("b", "b", label="again")
        .add_edge("a", Taker.bind(id="c"), condition=true)
        .add_edge("c", "a", condition=true, label="back")
        .add_fan_out_edges("b", [Taker.bind(id="d"), Taker.bind(id="e")])
        .add_fan_in_edges(["d", "e"], Taker.bind(id="f"))
        .add_switch_case_edge_group("f", [Case(true, "a"), Case(true, "b", label="P0"), Default("c")])
        .add_switch_case_edge_group("e", [Case(true, "a"), Default("c", label="else")])
        .add_multi_selection_edge_group("f", ["d", "e"], selection_func=lambda message, ids: ids)
    )


def test_mermaid() -> None:
    assert all_kinds().build().to_mermaid() == (
        """\
flowchart TD
    n0(["a"])
    n1["b"]
    n2["c"]
    n3["d"]
    n4["e"]
    n5["f"]
    n6(("fan-in"))
    n0 --> n1
    n1 -->|"again"| n1
    n0 -.->|"conditional"| n2
    n2 -.->|"back"| n0
    n1 --> n3
    n1 --> n4
    n3 --> n6
    n4 --> n6
    n6 --> n5
    n5 -.->|"case 1"| n0
    n5 -.->|"P0"| n1
    n5 -.->|"default"| n2
    n4 -.->|"case 1"| n0
    n4 -.->|"else"| n2
    n5 -.->|"selected"| n3
    n5 -.->|"selected"| n4
"""
    )


def test_dot() -> None:
    assert all_kinds().build().to_dot() == (
        """\
digraph "W" {
    node [shape=box];
    "a" [shape=oval];
    "b";
    "c";
    "d";
    "e";
    "f";
    "fan-in//5" [shape=circle, label="fan-in"];
    "a" -> "b";
    "b" -> "b" [label="again"];
    "a" -> "c" [label="conditional", style=dashed];
    "c" -> "a" [label="back", style=dashed];
    "b" -> "d";
    "b" -> "e";
    "d" -> "fan-in//5";
    "e" -> "fan-in//5";
    "fan-in//5" -> "f";
    "f" -> "a" [label="case 1", style=dashed];
    "f" -> "b" [label="P0", style=dashed];
    "f" -> "c" [label="default", style=dashed];
    "e" -> "a" [label="case 1", style=dashed];
    "e" -> "c" [label="else", style=dashed];
    "f" -> "d" [label="selected", style=dashed];
    "f" -> "e" [label="selected", style=dashed];
}
"""
    )


NASTY = 'say "hi" <b> \\ end'


def test_escaping_in_mermaid() -> None:
    text = builder().add_edge("a", Taker.bind(id=NASTY), label="one\ntwo").build().to_mermaid()
    assert text == (
        "flowchart TD\n"
        '    n0(["a"])\n'
        '    n1["say #quot;hi#quot; #lt;b#gt; \\ end"]\n'
        '    n0 -->|"one<br>two"| n1\n'
    )


def test_escaping_in_dot() -> None:
    text = builder().add_edge("a", Taker.bind(id=NASTY), label="one\ntwo").build().to_dot()
    assert text == (
        'digraph "W" {\n'
        "    node [shape=box];\n"
        '    "a" [shape=oval];\n'
        '    "say \\"hi\\" <b> \\\\ end";\n'
        '    "a" -> "say \\"hi\\" <b> \\\\ end" [label="one\\ntwo"];\n'
        "}\n"
    )


@pytest.mark.parametrize("kind", ["mermaid", "dot"])
def test_different_labels_are_drawn_differently(kind: str) -> None:
    labels = ['"', "#quot;", "<", "#lt;", "\n", "<br>", "\\n", "n", "\\", '\\"', "&quot;", "&lt;"]
    drawn = set()
    for label in labels:
        workflow = builder().add_edge("a", Taker.bind(id="b"), label=label).build()
        drawn.add(workflow.to_mermaid() if kind == "mermaid" else workflow.to_dot())
    assert len(drawn) == len(labels)


def test_one_executor_alone() -> None:
    @executor
    def only(text: str) -> str:
        return text

    workflow = WorkflowBuilder(name="Alone").set_start_executor(only).build()
    assert workflow.to_mermaid() == 'flowchart TD\n    n0(["only"])\n'
    assert workflow.to_dot() == 'digraph "Alone" {\n    node [shape=box];\n    "only" [shape=oval];\n}\n'
