"""A research team: agents look at two sources side by side, and a planner has the gaps filled and writes the report.

The side-by-side part is a workflow of its own, which the planner's team has as an agent. Functions stand for agents
here; agents of any library are given in their place.
"""

import asyncio

from holdfast import CheckpointStorage, InMemoryCheckpointStorage, Workflow
from holdfast.agents import (
    AgentReply,
    AgentRequest,
    PlanReview,
    ProgressLedger,
    as_agent,
    concurrent,
    function,
    planner,
)

INPUT = "What do kelp forests need?"


def read_papers(prompt: str) -> str:
    return "papers: kelp needs cold water"


def read_reports(prompt: str) -> str:
    return "reports: urchins eat kelp"


def join(replies: list[AgentReply]) -> str:
    return "; ".join(reply.text for reply in replies)


def check(prompt: str) -> str:
    return "checked: otters eat urchins"


def manage(request: AgentRequest) -> str | ProgressLedger:
    """Plan, say who is next, and sum up: the three tasks of a manager."""
    known = request.prompt
    if not request.output_types:
        if "Make" in known:
            return "1. sources: read. 2. checker: check what is missing."
        return "Kelp forests need cold water, and otters that eat the urchins."
    if "checked:" in known:
        return ProgressLedger(done=True, progressing=True)
    if "papers:" in known:
        return ProgressLedger(False, True, "checker", "What keeps the urchins away?")
    return ProgressLedger(False, True, "sources", "Read all sources.")


def make_workflow(storage: CheckpointStorage) -> Workflow:
    sources = concurrent(function.wrap(read_papers), function.wrap(read_reports), aggregate=join)
    team = [
        as_agent(sources, "sources", storage=storage),
        function.wrap(check, name="checker"),
    ]
    return planner(function.wrap(manage), team, review_plan=True, name="Research", storage=storage)


async def main() -> None:
    storage = InMemoryCheckpointStorage()
    workflow = make_workflow(storage)
    result = await workflow.run(INPUT, run_id="research")
    (request,) = result.pending_requests
    assert isinstance(request.data, PlanReview)
    print("the plan:", request.data.plan)
    result = await result.respond({request.request_id: True})
    for message in result.outputs[0].messages:
        print(f"{message.author or 'person'}: {message.text}")
    print("runs:", sorted(run.workflow_name for run in await storage.list_runs()))


if __name__ == "__main__":
    asyncio.run(main())

# Output:
# the plan: 1. sources: read. 2. checker: check what is missing.
# person: What do kelp forests need?
# sources: papers: kelp needs cold water; reports: urchins eat kelp
# checker: checked: otters eat urchins
# answer: Kelp forests need cold water, and otters that eat the urchins.
# runs: ['Concurrent', 'Research']
