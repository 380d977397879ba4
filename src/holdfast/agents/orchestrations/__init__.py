"""Teams of agents in well-known forms, each as an ordinary ``Workflow`` that can be drawn and resumed."""

from holdfast.agents.orchestrations.group_chat import group_chat
from holdfast.agents.orchestrations.handoffs import handoff
from holdfast.agents.orchestrations.pipelines import concurrent, sequential
from holdfast.agents.orchestrations.planner import (
    PlanDecision,
    PlanReview,
    ProgressLedger,
    planner,
)
from holdfast.agents.orchestrations.team import TurnReview

__all__ = [
    "PlanDecision",
    "PlanReview",
    "ProgressLedger",
    "TurnReview",
    "concurrent",
    "group_chat",
    "handoff",
    "planner",
    "sequential",
]
