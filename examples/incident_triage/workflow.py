"""The workflow: fetch telemetry, triage it, parse the answer, ask a person, escalate."""

import asyncio
from dataclasses import dataclass
from uuid import uuid4

from examples.incident_triage.analysis import analyse
from examples.incident_triage.telemetry import MINUTES, generate
from holdfast import (
    Case,
    Default,
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowEvent,
    executor,
    handler,
    response_handler,
)

SCOPE = "IncidentLogs"


@dataclass
class Note(WorkflowEvent):
    """What an executor has to say while it works; ``done`` is the part of its work that is behind it."""

    executor_id: str
    text: str
    done: float | None = None


@dataclass(frozen=True)
class Report:
    """The answer of the agent, as the rest of the program wants it."""

    priority: str
    service: str
    errors: str
    burst: str
    log_id: str


class FetchTelemetry(Executor):
    """Puts the log into shared state and passes on only its id."""

    def __init__(self, id: str | None = None, calm: bool = False) -> None:
        super().__init__(id)
        self.calm = calm

    @handler
    async def fetch(self, service: str, ctx: WorkflowContext[str]) -> None:
        minutes = generate(service, self.calm)
        fetched: list[str] = []
        # In a thread, as all that computes for long: the event loop stays free for others.
        while minute := await asyncio.to_thread(next, minutes, ""):
            fetched.append(minute)
            if len(fetched) % 3 == 0:
                size = sum(map(len, fetched)) / 1e6
                done = len(fetched) / MINUTES
                await ctx.add_event(Note(self.id, f"{size:.1f} MB fetched", done, provisional=True))
        log_id = uuid4().hex
        await ctx.queue_state_update(log_id, "".join(fetched), scope_name=SCOPE)
        await ctx.send_message(log_id)


class TriageAgent(Executor):
    """Reads the log by its id and answers in text."""

    @handler
    async def triage(self, log_id: str, ctx: WorkflowContext[str]) -> None:
        log: str = await ctx.read_state(log_id, scope_name=SCOPE)
        answer = await asyncio.to_thread(analyse, log_id, log)
        for line in answer.splitlines():
            await ctx.add_event(Note(self.id, line, provisional=True))
        await ctx.send_message(answer)


@executor(id="Parse")
def parse(answer: str) -> Report:
    """Turn the text of the agent into a report; an answer in another form is an error."""
    fields = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    missing = [name for name in ("PRIORITY", "SERVICE", "ERRORS", "BURST", "LOG") if name not in fields]
    if missing:
        raise ValueError(f"the agent's answer has no {' and no '.join(missing)}: {answer!r}")
    return Report(fields["PRIORITY"], fields["SERVICE"], fields["ERRORS"], fields["BURST"], fields["LOG"])


class Approve(Executor):
    """Asks a person before anybody is woken up; the run waits for the answer."""

    @handler
    async def ask(self, report: Report, ctx: WorkflowContext) -> None:
        await ctx.request_info(report, response_type=bool)

    @response_handler
    async def answered(self, report: Report, approved: bool, ctx: WorkflowContext[Report]) -> None:
        await ctx.send_message(report, target_id="PageOnCall" if approved else "OpenTicket")


@executor(id="PageOnCall")
def page_on_call(report: Report) -> str:
    return f"PAGE on-call for {report.service}: {report.priority}, burst {report.burst}"


@executor(id="OpenTicket")
def open_ticket(report: Report) -> str:
    return f"TICKET for {report.service}: {report.priority}, errors in {report.errors}"


def build(calm: bool) -> Workflow:
    """The workflow that ``make demo`` runs."""
    fetch = FetchTelemetry.bind(calm=calm)
    return (
        WorkflowBuilder(name="IncidentTriage")
        .set_start_executor(fetch)
        .add_chain([fetch, TriageAgent, parse])
        .add_switch_case_edge_group(
            parse,
            [
                Case(condition=lambda report: report.priority == "P0", target=Approve, label="P0"),
                Default(target=open_ticket, label="else"),
            ],
        )
        .add_edge(Approve, page_on_call, label="yes")
        .add_edge(Approve, open_ticket, label="no")
        .build()
    )
