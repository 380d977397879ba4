"""Agents of any library in workflows, with every model call and every tool call durable.

The adapters are modules: ``function``, ``openai``, ``openai_agents``, ``pydantic_ai``, ``agent_framework`` and
``langchain``, each with ``wrap``. Each imports its library when it is imported, and nothing else does. What a new
adapter needs is told in ``port``.
"""

from holdfast.agents.activation import AgentCallEvent
from holdfast.agents.budget import Budget, Price, RunUsage, usage_key
from holdfast.agents.call_tape import AskedCall, CassetteReplay, RecordedCall
from holdfast.agents.calls import ToolCall, ask_person, current_calls, current_tool_call
from holdfast.agents.cassette import Cassette
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
from holdfast.agents.orchestrations import (
    PlanDecision,
    PlanReview,
    ProgressLedger,
    TurnReview,
    concurrent,
    group_chat,
    handoff,
    planner,
    sequential,
)
from holdfast.agents.port import (
    Agent,
    AgentHistory,
    AgentMessage,
    AgentReply,
    AgentRequest,
    AgentUsage,
    Calls,
    Handoff,
    Transcript,
)
from holdfast.agents.rate_limits import RateLimitEvent
from holdfast.agents.sessions.entry import EntryAuthor, EntryContext, SessionEntry, ThreadInfo
from holdfast.agents.sessions.json_files import JsonSessionStore
from holdfast.agents.sessions.memory import InMemorySessionStore
from holdfast.agents.sessions.policy import SessionPolicy, ThreadView, settle_sessions
from holdfast.agents.sessions.sqlite import SqliteSessionStore
from holdfast.agents.sessions.store import SessionStore, append_messages, read_messages
from holdfast.agents.settings import AgentSettings
from holdfast.agents.workflow.conditions import EdgeCondition
from holdfast.agents.workflow.conversation import Conversation
from holdfast.agents.workflow.definition import AgentRegistry, save_config
from holdfast.agents.workflow.definition_reader import definition_schema
from holdfast.agents.workflow.node_options import (
    ApprovalDecision,
    NodeApproval,
    NodeApprovalRequest,
    NodeBuilder,
    NodeOptions,
)
from holdfast.agents.workflow.team import AgentRunResult, AgentWorkflow
from holdfast.agents.workflow.team_builder import AgentWorkflowBuilder
from holdfast.agents.workflow.team_events import (
    WorkflowAgentCompletedEvent,
    WorkflowAgentSkippedEvent,
    WorkflowAgentStartedEvent,
    WorkflowDiagnosticEvent,
    WorkflowEdgeTraversedEvent,
    WorkflowLayerCompletedEvent,
    WorkflowLayerStartedEvent,
)
from holdfast.agents.workflow_agent import WorkflowAgent, as_agent
from holdfast.checkpoint.events.events import WorkflowCompletedEvent as WorkflowCompletedEvent
from holdfast.checkpoint.events.events import WorkflowStartedEvent as WorkflowStartedEvent
from holdfast.checkpoint.retention import MultiAgentCheckpointRetention
from holdfast.errors import (
    AgentError,
    AgentLoop,
    BudgetExceeded,
    ChangedRequest,
    DefinitionError,
    HistoryUnreadable,
    ModelUnavailable,
    RateLimited,
    RecordedError,
    ReplayDiffers,
    SessionNotFound,
    TeamTimeout,
    ToolFailed,
    UnpublishedEntry,
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
    "AgentRegistry",
    "AgentReply",
    "AgentRequest",
    "AgentRunResult",
    "AgentSettings",
    "AgentUsage",
    "AgentWorkflow",
    "AgentWorkflowBuilder",
    "ApprovalDecision",
    "AskedCall",
    "Budget",
    "BudgetExceeded",
    "Calls",
    "Cassette",
    "CassetteReplay",
    "ChangedRequest",
    "Conversation",
    "DefinitionError",
    "EdgeCondition",
    "EntryAuthor",
    "EntryContext",
    "Handoff",
    "HistoryUnreadable",
    "InMemorySessionStore",
    "JsonSessionStore",
    "ModelUnavailable",
    "MultiAgentCheckpointRetention",
    "NodeApproval",
    "NodeApprovalRequest",
    "NodeBuilder",
    "NodeOptions",
    "OutputApproval",
    "OutputApprovalRequest",
    "OutputDecision",
    "PlanDecision",
    "PlanReview",
    "Price",
    "ProgressLedger",
    "RateLimitEvent",
    "RateLimited",
    "RecordedCall",
    "RecordedError",
    "ReplayDiffers",
    "RunUsage",
    "SessionEntry",
    "SessionNotFound",
    "SessionPolicy",
    "SessionStore",
    "SqliteSessionStore",
    "TeamTimeout",
    "ThreadInfo",
    "ThreadView",
    "ToolApproval",
    "ToolApprovalRequest",
    "ToolCall",
    "ToolDecision",
    "ToolFailed",
    "Transcript",
    "TurnReview",
    "UnpublishedEntry",
    "UnrecordedCalls",
    "WorkflowAgent",
    "WorkflowAgentCompletedEvent",
    "WorkflowAgentSkippedEvent",
    "WorkflowAgentStartedEvent",
    "WorkflowDiagnosticEvent",
    "WorkflowEdgeTraversedEvent",
    "WorkflowLayerCompletedEvent",
    "WorkflowLayerStartedEvent",
    "append_messages",
    "as_agent",
    "ask_person",
    "concurrent",
    "current_calls",
    "current_tool_call",
    "definition_schema",
    "group_chat",
    "handoff",
    "planner",
    "read_messages",
    "save_config",
    "sequential",
    "settle_sessions",
    "usage_key",
]
