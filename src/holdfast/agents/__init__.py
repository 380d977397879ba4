"""Agents of any library in workflows, with every model call and every tool call durable.

The adapters are modules: ``function``, ``openai``, ``openai_agents``, ``pydantic_ai``, ``agent_framework`` and
``langchain``, each with ``wrap``. Each imports its library when it is imported, and nothing else does.
"""

from holdfast.agents.calls import (
    AgentCallEvent,
    RateLimitEvent,
    ToolCall,
    ask_person,
    current_calls,
    current_tool_call,
)
from holdfast.agents.decisions import (
    AgentQuestion,
    OutputApproval,
    OutputApprovalRequest,
    OutputDecision,
    ToolApproval,
    ToolApprovalRequest,
    ToolDecision,
)
from holdfast.agents.executor import AgentExecutor
from holdfast.agents.port import (
    Agent,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Calls,
    Handoff,
)
from holdfast.agents.settings import AgentSettings
from holdfast.errors import (
    AgentError,
    AgentLoop,
    ChangedRequest,
    HistoryUnreadable,
    ModelUnavailable,
    RateLimited,
    RecordedError,
    ReplayDiffers,
    ToolFailed,
    UnrecordedCalls,
)

__all__ = [
    "Agent",
    "AgentCallEvent",
    "AgentError",
    "AgentExecutor",
    "AgentHistory",
    "AgentLoop",
    "AgentMessage",
    "AgentQuestion",
    "AgentReply",
    "AgentRequest",
    "AgentSettings",
    "AgentUsage",
    "Calls",
    "ChangedRequest",
    "Handoff",
    "HistoryUnreadable",
    "ModelUnavailable",
    "OutputApproval",
    "OutputApprovalRequest",
    "OutputDecision",
    "RateLimitEvent",
    "RateLimited",
    "RecordedError",
    "ReplayDiffers",
    "ToolApproval",
    "ToolApprovalRequest",
    "ToolCall",
    "ToolDecision",
    "ToolFailed",
    "UnrecordedCalls",
    "ask_person",
    "current_calls",
    "current_tool_call",
]
