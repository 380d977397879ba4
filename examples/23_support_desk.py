"""A support desk: a router, an approval for large refunds, an error that is contained, and a session that remembers."""

import asyncio
from dataclasses import dataclass

from holdfast.agents import (
    AgentReply,
    AgentRequest,
    AgentWorkflow,
    Conversation,
    EdgeCondition,
    WorkflowAgentSkippedEvent,
    WorkflowEdgeTraversedEvent,
)


@dataclass
class Refund:
    amount: int


def triage(request: AgentRequest) -> AgentReply:  # a model chooses one of the handoffs
    return AgentReply("triaged", handoff="refund" if "euros" in request.prompt else None)


def refund(request: AgentRequest) -> Refund:
    return Refund(int("".join(filter(str.isdigit, request.prompt))))


def search(prompt: str) -> str:
    raise ConnectionError("the index is down")


def reply(request: AgentRequest) -> str:
    earlier = len(request.messages) + (len(request.history.messages) if request.history else 0)
    return f"{request.prompt} (after {earlier} messages)"


workflow = (
    AgentWorkflow.create()
    .with_name("Support desk")
    .with_in_memory_workflow_store()
    .with_in_memory_session_store()
    .with_conversation(Conversation.thread_per_agent())
    .add_router_agent(
        "triage", triage, {"refund": "wants money back", "search": "all else"}, default="search"
    )
    .add_agent(
        "refund",
        refund,
        lambda node: node.structured_output(Refund).requires_approval(
            EdgeCondition.test("greater_than", "amount", 100), message="A large refund"
        ),
    )
    .add_agent("search", search, on_error="isolate")
    .add_agent("reply", reply, input_template="We paid {{amount}} euros")
    .add_agent("sorry", reply, input_template="We look into it: {{request}}")
    .from_("refund")
    .to("reply")
    .from_("search")
    .to("sorry")
    .build()
)


async def main() -> None:
    print(workflow.to_mermaid())
    for text in ("20 euros back", "500 euros back", "It broke"):
        result = await workflow.run(AgentRequest(text, session_id="kim"))
        for request in result.pending_requests:
            print(f"{request.data.message}: {request.data.outputs['amount']}")
            result = await result.respond({request.request_id: True})
        print(result.final_answer)
    async for event in workflow.run_stream("20 euros"):
        if isinstance(event, WorkflowEdgeTraversedEvent):
            print(f"{event.source} -> {event.target}: {event.condition or 'always'}")
        if isinstance(event, WorkflowAgentSkippedEvent):
            print(f"{event.agent} skipped: {event.reason}")


asyncio.run(main())

# Output:
# flowchart TD
#     n0(["START"])
#     n1["triage"]
#     n2["refund"]
#     n3["search"]
#     n4["reply"]
#     n5["sorry"]
#     n6(["END"])
#     n0 --> n1
#     n1 -.->|"handoff is 'refund'"| n2
#     n1 -.->|"handoff is 'search'"| n3
#     n2 --> n4
#     n3 --> n5
#     n4 --> n6
#     n5 --> n6
#
# We paid 20 euros (after 0 messages)
# A large refund: 500
# We paid 500 euros (after 2 messages)
# We look into it: It broke (after 0 messages)
# START -> triage: always
# triage -> refund: handoff is 'refund'
# search skipped: edge 'triage' -> 'search' was refused: handoff is 'search'
# refund -> reply: always
# sorry skipped: agent 'search' was skipped
# reply -> END: always
