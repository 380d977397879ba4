"""The options of an agent in a team, and the builder that sets them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_origin

from holdfast.agents.budget import Budget
from holdfast.agents.decisions import ToolApproval, ToolPredicate
from holdfast.agents.port import Handoff
from holdfast.agents.workflow.conditions import HANDOFF_KEY, TYPE_KEY, EdgeCondition, Predicate
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.errors import GraphError, ModelUnavailable, RateLimited
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.typing.types import TypeForm, is_alias

OutputMode: TypeAlias = Literal["string", "structured", "union", "handoff"]
OnError: TypeAlias = Literal["stop", "skip", "isolate", "fallback"]
OnTimeout: TypeAlias = Literal["deny", "approve", "wait"]

TEMPLATE_FIELD = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
"""A name in a template, like ``{{draft}}``."""

DEFAULT_KEY = "answer"
"""The key of an agent's output that has none of its own."""

TRANSIENT = (ModelUnavailable, RateLimited, ConnectionError, TimeoutError)
"""The errors that pass by themselves, for ``with_retry(transient_only=True)``."""


@checkpointable(name="holdfast.NodeApprovalRequest")
@dataclass(frozen=True)
class NodeApprovalRequest:
    """Asks a person if the outputs of an agent may be passed on; answered by an ``ApprovalDecision``, true or false.

    >>> NodeApprovalRequest("refund", "Refund 20 euros", {"amount": 20}).outputs["amount"]
    20
    """

    agent: str
    text: str
    outputs: dict[str, Any] = field(default_factory=dict)
    message: str = ""


@checkpointable(name="holdfast.ApprovalDecision")
@dataclass(frozen=True)
class ApprovalDecision:
    """The answer to a ``NodeApprovalRequest``.

    >>> ApprovalDecision.deny("too much").reason
    'too much'
    """

    action: Literal["approve", "deny"]
    reason: str | None = None

    @classmethod
    def approve(cls) -> ApprovalDecision:
        """Pass the outputs on."""
        return cls("approve")

    @classmethod
    def deny(cls, reason: str | None = None) -> ApprovalDecision:
        """Do not pass them on: the agent counts as failed."""
        return cls("deny", reason)


ALWAYS = EdgeCondition.always()


@dataclass(frozen=True)
class NodeApproval:
    """The rule by which a person must approve the outputs of an agent.

    >>> rule = NodeApproval(EdgeCondition.test("equals", "action", "delete"))
    >>> rule.asks_about({"action": "delete"}), rule.asks_about({"action": "read"})
    (True, False)
    """

    when: EdgeCondition = ALWAYS
    message: str = ""
    timeout: float | None = None
    """Seconds until ``on_timeout`` decides; None waits as long as it takes."""
    on_timeout: OnTimeout = "deny"

    def asks_about(self, outputs: Mapping[str, Any]) -> bool:
        """Return True if a person must approve these outputs."""
        return self.when.holds(outputs)


@dataclass(frozen=True)
class NodeOptions:
    """The options of an agent in a team.

    >>> NodeOptions(output_key="draft").answer_key
    'draft'
    """

    input_key: str | None = None
    output_key: str | None = None
    input_template: str | None = None
    instructions: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    output_types: tuple[TypeForm, ...] = ()
    handoffs: tuple[Handoff, ...] = ()
    default_handoff: str | None = None
    timeout: float | None = None
    retry: RetryPolicy | None = None
    on_error: OnError = "stop"
    fallback: str | None = None
    max_concurrent: int | None = None
    approval: NodeApproval | None = None
    tool_approval: ToolApproval | None = None
    budgets: tuple[Budget, ...] = ()

    @property
    def answer_key(self) -> str:
        """The key of the text, or of the structured output as a whole."""
        return self.output_key or DEFAULT_KEY

    @property
    def output_mode(self) -> OutputMode:
        """The kind of output."""
        if self.handoffs:
            return "handoff"
        if not self.output_types:
            return "string"
        return "structured" if len(self.output_types) == 1 else "union"

    @property
    def wanted_keys(self) -> tuple[str, tuple[str, ...]]:
        """The option that says what the agent is asked, and the outputs that it names."""
        if self.input_template is not None:
            return "with_input_template", tuple(TEMPLATE_FIELD.findall(self.input_template))
        return "with_input_key", () if self.input_key is None else (self.input_key,)


def output_keys(options: NodeOptions) -> frozenset[str] | None:
    """Return the keys of what an agent gives out; None if only its replies tell.

    >>> sorted(output_keys(NodeOptions(output_key="draft")))
    ['draft']
    """
    keys = {options.answer_key}
    if options.output_mode == "handoff":
        return frozenset({*keys, HANDOFF_KEY})
    if options.output_types:
        keys.add(TYPE_KEY)
    for form in options.output_types:
        names = getattr(form, "__dataclass_fields__", None) or getattr(form, "model_fields", None)
        if not names:
            return None
        keys |= set(names)
    return frozenset(keys)


class NodeBuilder:
    """Sets the options of an agent; given to the function that ``add_agent`` takes.

    >>> NodeBuilder("review").with_input_key("draft").with_retry(3).options.input_key
    'draft'
    """

    def __init__(self, node_id: str, options: NodeOptions | None = None) -> None:
        self.node_id = node_id
        self.options = options or NodeOptions()

    def _set(self, **changes: Any) -> NodeBuilder:
        self.options = replace(self.options, **changes)
        return self

    def _wrong(self, option: str, given: object, wanted: str) -> GraphError:
        return GraphError(f"agent {self.node_id!r}: {option}({given!r}) must be {wanted}")

    def _text(self, option: str, given: object) -> str:
        if not isinstance(given, str) or not given:
            raise self._wrong(option, given, "a text that is not empty")
        return given

    def _seconds(self, option: str, given: object) -> float:
        if isinstance(given, datetime.timedelta):
            given = given.total_seconds()
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
            raise self._wrong(option, given, "a number of seconds above 0, or a timedelta")
        return float(given)

    def _type(self, option: str, given: TypeForm) -> TypeForm:
        if not isinstance(given, type) and get_origin(given) is None and not is_alias(given):
            raise self._wrong(option, given, "a type, like a dataclass or list[str]")
        return given

    def with_input_key(self, key: str) -> NodeBuilder:
        """Give the agent the output of this key, of an agent before it; ``"node.key"`` names one of a certain agent."""
        return self._set(input_key=self._text("with_input_key", key))

    def with_output_key(self, key: str) -> NodeBuilder:
        """Give the agent's answer this key."""
        return self._set(output_key=self._text("with_output_key", key))

    def with_input_template(self, template: str) -> NodeBuilder:
        """Give the agent this text, in which ``{{key}}`` stands for outputs, and ``{{request}}`` for the request."""
        return self._set(input_template=self._text("with_input_template", template))

    def with_instructions(self, instructions: str) -> NodeBuilder:
        """Give the agent instructions besides its own."""
        return self._set(instructions=self._text("with_instructions", instructions))

    def with_context(self, context: Mapping[str, Any]) -> NodeBuilder:
        """Give the agent facts, which are added to its instructions and to what templates may name."""
        given: object = context
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in context):
            raise self._wrong("with_context", context, "a dict of names and values")
        return self._set(context=dict(context))

    def structured_output(self, output_type: TypeForm) -> NodeBuilder:
        """Let the agent give out an object of this type; each of its fields is an output."""
        return self._set(output_types=(self._type("structured_output", output_type),))

    def union_output(self, *output_types: TypeForm) -> NodeBuilder:
        """Let the agent give out an object of one of these types; ``matched_type`` is the name of its class."""
        if len(output_types) < 2:
            raise GraphError(
                f"agent {self.node_id!r}: union_output takes two types or more; for one there is structured_output(T)"
            )
        return self._set(output_types=tuple(self._type("union_output", one) for one in output_types))

    def with_timeout(self, seconds: float | datetime.timedelta) -> NodeBuilder:
        """Let a turn of the agent take no longer than this."""
        return self._set(timeout=self._seconds("with_timeout", seconds))

    def with_retry(
        self, attempts: int | None = None, policy: RetryPolicy | None = None, *, transient_only: bool = False
    ) -> NodeBuilder:
        """Try again after errors: so many attempts, or by a policy; ``transient_only`` for those that pass."""
        if (attempts is None) == (policy is None):
            raise GraphError(
                f"agent {self.node_id!r}: with_retry takes a number of attempts or policy=RetryPolicy(...)"
            )
        if policy is None:
            if type(attempts) is not int or attempts < 1:
                raise self._wrong("with_retry", attempts, "a whole number of at least 1")
            policy = RetryPolicy(attempts=attempts)
        if not isinstance(policy, RetryPolicy):
            raise self._wrong("with_retry", policy, "a RetryPolicy")
        return self._set(retry=replace(policy, retry_on=TRANSIENT) if transient_only else policy)

    def on_error_stop(self) -> NodeBuilder:
        """Let the run fail with the agent: the default; ``resume`` tries it again."""
        return self._set(on_error="stop", fallback=None)

    def on_error_skip(self) -> NodeBuilder:
        """Take no edge from the agent if it fails; joins behind it go on with what others give."""
        return self._set(on_error="skip", fallback=None)

    def on_error_isolate(self) -> NodeBuilder:
        """Go on behind the agent if it fails; its only output is ``error``, the message."""
        return self._set(on_error="isolate", fallback=None)

    def on_error_fallback(self, node_id: str) -> NodeBuilder:
        """Let another agent work in its place if it fails."""
        return self._set(on_error="fallback", fallback=self._text("on_error_fallback", node_id))

    def with_max_concurrent(self, count: int) -> NodeBuilder:
        """Let the agent work for so many runs of this process at a time."""
        if type(count) is not int or count < 1:
            raise self._wrong("with_max_concurrent", count, "a whole number of at least 1")
        return self._set(max_concurrent=count)

    def requires_approval(
        self,
        when: EdgeCondition | Predicate | None = None,
        *,
        field: str | None = None,
        equals: Any = None,
        message: str = "",
        timeout: float | datetime.timedelta | None = None,
        on_timeout: OnTimeout = "deny",
    ) -> NodeBuilder:
        """Ask a person before the outputs are passed on: always, when a condition holds, or by a field.

        ``field="action", equals="delete"`` asks when the output has that value, ``field="amount"`` when it exists.
        """
        if when is not None and field is not None:
            raise GraphError(
                f"agent {self.node_id!r}: requires_approval takes a condition or field=..., not both"
            )
        if on_timeout not in ("deny", "approve", "wait"):
            raise self._wrong("requires_approval: on_timeout", on_timeout, "'deny', 'approve' or 'wait'")
        condition = EdgeCondition.always() if when is None else EdgeCondition.of(when)
        if field is not None:
            test = "exists" if equals is None else "equals"
            condition = EdgeCondition.test(test, field, equals)
        seconds = None if timeout is None else self._seconds("requires_approval: timeout", timeout)
        return self._set(approval=NodeApproval(condition, message, seconds, on_timeout))

    def requires_tool_approval(
        self,
        tools: Collection[str] | ToolPredicate | ToolApproval | None = None,
        *,
        message: str = "",
        timeout: float | datetime.timedelta | None = None,
    ) -> NodeBuilder:
        """Ask a person before tools are called: all of them, those with these names, or by a predicate."""
        if isinstance(tools, ToolApproval):
            return self._set(tool_approval=tools)
        if (
            tools is not None
            and not callable(tools)
            and not isinstance(tools, list | tuple | set | frozenset)
        ):
            raise self._wrong(
                "requires_tool_approval", tools, "a list of names, a function of name and arguments, or None"
            )
        seconds = None if timeout is None else self._seconds("requires_tool_approval: timeout", timeout)
        return self._set(tool_approval=ToolApproval(tools, message, seconds))

    def with_budget(self, budget: Budget) -> NodeBuilder:
        """Limit what this agent uses, in all its turns of a run."""
        if not isinstance(budget, Budget):
            raise self._wrong("with_budget", budget, "a Budget, like Budget(tokens=1000, name='review')")
        return self._set(budgets=(*self.options.budgets, budget))
