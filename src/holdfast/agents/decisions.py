"""The questions that an agent has for people, and the decisions with which people answer them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.errors import InvalidArgument, WrongType

Json: TypeAlias = Any


@checkpointable(name="holdfast.ToolApprovalRequest")
@dataclass(frozen=True)
class ToolApprovalRequest:
    """Asks a person if an agent may call a tool; answered by a ``ToolDecision``, or by true or false.

    >>> ToolApprovalRequest("support", "refund", {"amount": 20}).tool
    'refund'
    """

    agent: str
    tool: str
    arguments: Json
    message: str = ""
    """Words for the person, from the rule that asks."""
    activation: str = ""
    """Names the task of the agent, for the executor that asks."""
    call: str = ""
    """Names the call in that task, for the executor that asks."""


@checkpointable(name="holdfast.ToolDecision")
@dataclass(frozen=True)
class ToolDecision:
    """The answer to a ``ToolApprovalRequest``; what a person changed or denied is told to the model.

    As JSON: ``{"action": "approve", "arguments": {"amount": 10}}``, ``{"action": "deny", "reason": "too much"}``,
    ``{"action": "answer", "result": "already refunded"}``.

    >>> ToolDecision.approve({"amount": 10})
    ToolDecision(action='approve', arguments={'amount': 10}, reason=None, result=None)
    >>> ToolDecision.deny("too much").reason
    'too much'
    """

    action: Literal["approve", "deny", "answer"]
    arguments: dict[str, Any] | None = None
    """The arguments with which the tool is called instead, for ``approve``."""
    reason: str | None = None
    """The reason, for ``deny``."""
    result: Any = None
    """The result that the model gets in place of a call, for ``answer``."""

    @classmethod
    def approve(cls, arguments: dict[str, Any] | None = None) -> ToolDecision:
        """Let the tool be called, with other arguments if they are given."""
        return cls("approve", arguments)

    @classmethod
    def deny(cls, reason: str | None = None) -> ToolDecision:
        """Do not let the tool be called."""
        return cls("deny", reason=reason)

    @classmethod
    def answer(cls, result: Any) -> ToolDecision:
        """Give a result in place of a call."""
        return cls("answer", result=result)


@checkpointable(name="holdfast.AgentQuestion")
@dataclass(frozen=True)
class AgentQuestion:
    """Asks a person a question that an agent has; answered by text.

    >>> AgentQuestion("support", "Which account?").question
    'Which account?'
    """

    agent: str
    question: str
    activation: str = ""
    call: str = ""


@checkpointable(name="holdfast.OutputApprovalRequest")
@dataclass(frozen=True)
class OutputApprovalRequest:
    """Asks a person if the reply of an agent may be passed on; answered by an ``OutputDecision``, or by true or false.

    >>> OutputApprovalRequest("draft", "Kelp is a seaweed.").text
    'Kelp is a seaweed.'
    """

    agent: str
    text: str
    value: Any = None
    message: str = ""
    activation: str = ""


@checkpointable(name="holdfast.OutputDecision")
@dataclass(frozen=True)
class OutputDecision:
    """The answer to an ``OutputApprovalRequest``.

    >>> OutputDecision.edit("Kelp is an alga.").text
    'Kelp is an alga.'
    >>> OutputDecision.revise("Say more about its forests.").reason
    'Say more about its forests.'
    """

    action: Literal["approve", "edit", "revise"]
    text: str | None = None
    """The text that is passed on instead, for ``edit``."""
    value: Any = None
    """The structured output that is passed on instead, for ``edit``."""
    reason: str | None = None
    """The words to the agent, for ``revise``: it writes another reply, about which is asked again."""

    @classmethod
    def approve(cls) -> OutputDecision:
        """Pass the reply on as it is."""
        return cls("approve")

    @classmethod
    def edit(cls, text: str | None = None, value: Any = None) -> OutputDecision:
        """Pass another text or another structured output on."""
        return cls("edit", text, value)

    @classmethod
    def revise(cls, reason: str) -> OutputDecision:
        """Let the agent write another reply."""
        return cls("revise", reason=reason)


ToolPredicate: TypeAlias = Callable[[str, Any], bool]
"""Returns True for a tool, by its name and arguments, that a person must approve."""


@dataclass(frozen=True)
class ToolApproval:
    """The rule by which a person must approve tool calls: all of them, those of some tools, or by a predicate.

    >>> ToolApproval(["refund"]).asks_about("refund", {"amount": 5})
    True
    >>> ToolApproval(lambda tool, arguments: arguments["amount"] > 10).asks_about("refund", {"amount": 5})
    False
    """

    tools: Collection[str] | ToolPredicate | None = None
    """Names of tools, or a predicate; None for every tool."""
    message: str = ""
    expires: float | datetime.timedelta | None = None
    """The time after which ``on_expiry`` is the decision; None waits as long as it takes."""
    on_expiry: ToolDecision = ToolDecision("deny", reason="nobody answered in time")

    def __post_init__(self) -> None:
        if isinstance(self.tools, str):
            raise InvalidArgument(
                f"ToolApproval({self.tools!r}): takes a list of names, ToolApproval([{self.tools!r}]), or a predicate"
            )

    def asks_about(self, tool: str, arguments: Json) -> bool:
        """Return True if a person must approve this call."""
        if self.tools is None:
            return True
        if callable(self.tools):
            return bool(self.tools(tool, arguments))
        return tool in self.tools


@dataclass(frozen=True)
class OutputApproval:
    """The rule by which a person must approve what an agent replies.

    >>> OutputApproval(message="Ready to send?").message
    'Ready to send?'
    """

    when: Callable[[str, Any], bool] | None = None
    """Returns True for a reply, by its text and value, that must be approved; None for every reply."""
    message: str = ""
    expires: float | datetime.timedelta | None = None
    on_expiry: OutputDecision = OutputDecision("approve")

    def asks_about(self, text: str, value: Any) -> bool:
        """Return True if a person must approve this reply."""
        return self.when is None or bool(self.when(text, value))


def tool_decision_of(answer: bool | ToolDecision) -> ToolDecision:
    """Return the decision that an answer means: true approves, false denies."""
    if isinstance(answer, ToolDecision):
        return answer
    return ToolDecision.approve() if answer else ToolDecision.deny()


def output_decision_of(answer: bool | OutputDecision) -> OutputDecision:
    """Return the decision that an answer means: true approves, false asks for another reply."""
    if isinstance(answer, OutputDecision):
        return answer
    return OutputDecision.approve() if answer else OutputDecision.revise("This was not accepted. Try again.")


def check_arguments(decision: ToolDecision, tool: str) -> None:
    """Raise unless the arguments of a decision can be those of a tool."""
    if decision.arguments is not None and not isinstance(decision.arguments, dict):
        raise WrongType(
            f"the arguments for tool {tool!r} must be an object like {{'amount': 10}}, not {decision.arguments!r}"
        )
