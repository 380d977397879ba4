"""A switch: a report goes to the first case whose condition it meets, else to the default.

Conditions are plain functions of the message. Labels appear in drawings of the workflow and in error messages.
"""

from dataclasses import dataclass

from holdfast import Case, Default, Workflow, WorkflowBuilder, executor

INPUTS = ("checkout 4200", "search 37", "login 0")


@dataclass(frozen=True)
class Report:
    service: str
    errors_per_minute: int


@executor
def triage(line: str) -> Report:
    service, errors = line.split()
    return Report(service, int(errors))


@executor
def page(report: Report) -> str:
    return f"page on-call: {report.service} is down"


@executor
def open_ticket(report: Report) -> str:
    return f"ticket: look at {report.service}"


@executor
def file_away(report: Report) -> str:
    return f"noted: {report.service} is fine"


def make_workflow() -> Workflow:
    return (
        WorkflowBuilder(name="Escalate")
        .set_start_executor(triage)
        .add_switch_case_edge_group(
            triage,
            [
                Case(condition=lambda report: report.errors_per_minute >= 1000, target=page, label="P0"),
                Case(condition=lambda report: report.errors_per_minute >= 10, target=open_ticket, label="P2"),
                Default(target=file_away),
            ],
        )
        .build()
    )


if __name__ == "__main__":
    workflow = make_workflow()
    for line in INPUTS:
        print(*workflow.run_sync(line).outputs)

# Output:
# page on-call: checkout is down
# ticket: look at search
# noted: login is fine
