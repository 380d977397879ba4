"""Teams whose agents ask a model on loopback: a router's tools, structured outputs, what each agent is told."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.agents import AgentWorkflow, WorkflowDiagnosticEvent
from tests.agents.local_model import LocalModel, serve_model
from tests.agents.world import Step, WantedTool


@dataclass
class Refund:
    amount: int


@dataclass
class Complaint:
    about: str


def reply(instructions: str, said: str) -> str | Step:
    match instructions.partition("\n")[0]:
        case "Route." if "money" in said:
            return Step((WantedTool("c1", "hand_over_to_judge", {}),))
        case "Route.":
            return "I do not know."
        case "Judge.":
            return '{"result": {"amount": 20}}' if "20" in said else '{"result": {"about": "noise"}}'
    return f"{instructions}|{said}"


@pytest.fixture
def model() -> Iterator[LocalModel]:
    with serve_model(reply) as server:
        yield server


def desk(model: LocalModel) -> AgentWorkflow:
    return (
        AgentWorkflow.create()
        .with_name("Desk")
        .add_router_agent(
            "route",
            model.agent("router", "Route."),
            {"judge": "wants money back", "help": "all else"},
            lambda node: node.with_instructions("Be quick."),
            default="help",
        )
        .add_agent("judge", model.agent("judge", "Judge."), lambda node: node.union_output(Refund, Complaint))
        .add_agent("help", model.agent("help", "Help."), context={"tone": "friendly"})
        .add_agent("pay", model.agent("pay", "Pay."), input_template="{{judge.amount}} euros")
        .add_agent("sorry", model.agent("sorry", "Sorry."), input_key="about")
        .from_("judge").route_by_type().when(Refund, "pay").when(Complaint, "sorry").no_default()
        .build()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "answer", "handoff"),
    [
        ("20 of my money", "Pay.|20 euros ", "judge"),
        ("my money, such noise", "Sorry.|noise ", "judge"),
        ("It broke", "Help. tone: friendly|It broke ", "help"),
    ],
)
async def test_models_route_judge_and_answer(
    model: LocalModel, request_: str, answer: str, handoff: str
) -> None:
    events: list[Any] = []
    run = await desk(model).start(request_)
    async for event in run.watch_stream():
        events.append(event)
    result = await desk(model).result_of(run)
    assert (" ".join(str(result.final_answer).split()) + " ", result.error) == (answer, None)
    assert result.outputs["route.handoff"] == handoff
    first = model.bodies[0]
    assert [tool["function"]["name"] for tool in first["tools"]] == [
        "hand_over_to_judge",
        "hand_over_to_help",
    ]
    assert first["tool_choice"] == "required"
    assert first["messages"][0] == {"role": "system", "content": "Route.\n\nBe quick."}
    told = [event for event in events if isinstance(event, WorkflowDiagnosticEvent)]
    assert bool(told) is (handoff == "help")
    if handoff == "judge":
        assert model.bodies[1]["response_format"]["type"] == "json_schema"
