"""The workflow: fetch telemetry, let an agent triage it, parse its answer, ask a person, escalate."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from holdfast import (
    Case,
    CheckpointStorage,
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
from holdfast.agents import Agent, AgentExecutor
from holdfast.demo.incident import DemoOptions
from holdfast.demo.telemetry import MINUTES, generate

SCOPE = "IncidentLogs"
INCIDENT, OTHERWISE = "incident", "otherwise"
"""The run, and the fork of it in which the other decision is taken."""


@dataclass
class WorkNote(WorkflowEvent):
    """The progress of an executor while it works; ``done`` is the part of its work that is behind it."""

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

    def __init__(self, id: str | None = None, calm: bool = False, noted_in: Path | None = None) -> None:
        super().__init__(id)
        self.calm = calm
        self.noted_in = noted_in

    @handler
    async def fetch(self, service: str, ctx: WorkflowContext[str]) -> None:
        self._note(service)
        minutes = generate(service, self.calm)
        fetched: list[str] = []
        # In a thread, as all that computes for long: the event loop stays free for others.
        while minute := await asyncio.to_thread(next, minutes, ""):
            fetched.append(minute)
            if len(fetched) % 3 == 0:
                size = sum(map(len, fetched)) / 1e6
                done = len(fetched) / MINUTES
                await ctx.add_event(WorkNote(self.id, f"{size:.1f} MB fetched", done, provisional=True))
        log_id = uuid4().hex
        await ctx.queue_state_update(log_id, "".join(fetched), scope_name=SCOPE)
        await ctx.send_message(log_id)

    def _note(self, service: str) -> None:
        """WorkNote the fetch at the telemetry service: an effect outside, which no checkpoint takes back."""
        if self.noted_in is not None:
            with self.noted_in.open("a") as notes:
                notes.write(f"process {os.getpid()} fetched the log of {service}\n")


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
    """Wake somebody up."""
    return f"PAGE on-call for {report.service}: {report.priority}, burst {report.burst}"


@executor(id="OpenTicket")
def open_ticket(report: Report) -> str:
    """Leave it for the morning."""
    return f"TICKET for {report.service}: {report.priority}, errors in {report.errors}"


def build(options: DemoOptions, storage: CheckpointStorage, agent: Agent) -> Workflow:
    """Return the workflow that ``holdfast demo`` runs."""
    fetch = FetchTelemetry.bind(calm=options.is_calm, noted_in=options.place.fetches)
    # Each call of the agent is recorded: who dies in its tool loop goes on there, and pays for nothing twice.
    triage = AgentExecutor(agent, id="TriageAgent", output_type=str)
    return (
        WorkflowBuilder(name="IncidentTriage")
        .set_start_executor(fetch)
        .add_chain([fetch, triage, parse])
        .add_switch_case_edge_group(
            parse,
            [
                Case(condition=lambda report: report.priority == "P0", target=Approve, label="P0"),
                Default(target=open_ticket, label="else"),
            ],
        )
        .add_edge(Approve, page_on_call, label="yes")
        .add_edge(Approve, open_ticket, label="no")
        .with_checkpointing(storage)
        .build()
    )
