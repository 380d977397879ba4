"""Visualisation: a workflow draws itself, as Mermaid for Markdown pages and as DOT for Graphviz.

The start is rounded, the routes that only some messages take are dotted, and labels say when they are taken.
"""

from holdfast import Case, Default, Workflow, WorkflowBuilder, executor


@executor
def fetch(service: str) -> str:
    return f"log of {service}"


@executor
def read_errors(log: str) -> str:
    return f"errors in {log}"


@executor
def read_deploys(log: str) -> str:
    return f"deploys around {log}"


@executor
def triage(findings: list[str]) -> str:
    return "P0"


@executor
def page(priority: str) -> str:
    return "paged"


@executor
def ticket(priority: str) -> str:
    return "filed"


def make_workflow() -> Workflow:
    urgent = Case(condition=lambda priority: priority == "P0", target=page, label="P0")
    return (
        WorkflowBuilder(name="Triage")
        .set_start_executor(fetch)
        .add_fan_out_edges(fetch, [read_errors, read_deploys])
        .add_fan_in_edges([read_errors, read_deploys], triage)
        .add_switch_case_edge_group(triage, [urgent, Default(target=ticket)])
        .build()
    )


if __name__ == "__main__":
    print(make_workflow().to_mermaid(), end="")

# Output:
# flowchart TD
#     n0(["fetch"])
#     n1["read_errors"]
#     n2["read_deploys"]
#     n3["triage"]
#     n4["page"]
#     n5["ticket"]
#     n6(("fan-in"))
#     n0 --> n1
#     n0 --> n2
#     n1 --> n6
#     n2 --> n6
#     n6 --> n3
#     n3 -.->|"P0"| n4
#     n3 -.->|"default"| n5
