"""Handlers: their decorators, and the types and policies that they declare."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, overload

from holdfast.errors import GraphError
from holdfast.graph.context import WorkflowContext
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.typing.annotations import (
    DeclaredTypes,
    Function,
    HandlerSignature,
    find_local_names,
    read_signature,
)
from holdfast.graph.typing.types import TypeForm, variables_of

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")
M = TypeVar("M")
Q = TypeVar("Q")
R = TypeVar("R")
C = TypeVar("C", bound=WorkflowContext[Any, Any])

_MARK = "__holdfast_handler__"


class Policy(NamedTuple):
    """The retries and the timeout of a handler; ``timeout`` is in seconds."""

    retry: RetryPolicy | None = None
    timeout: float | None = None

    def check(self, place: str) -> Policy:
        """Return this policy; raise ``GraphError`` if it makes no sense."""
        if type(self.retry) not in (RetryPolicy, type(None)):
            raise GraphError(f"{place}: retry must be a RetryPolicy, not {self.retry!r}")
        if self.timeout is not None and not (type(self.timeout) in (int, float) and self.timeout > 0):
            raise GraphError(f"{place}: timeout must be a number of seconds above 0, not {self.timeout!r}")
        return self


class _Mark(NamedTuple):
    """The mark that decorators leave on a method until the workflow is built."""

    declared: DeclaredTypes
    policy: Policy
    answers: bool
    locals: dict[str, Any]  # names that string annotations refer to


class Handler(NamedTuple):
    """A handler with its types resolved."""

    name: str
    signature: HandlerSignature
    policy: Policy = Policy()


@overload
def handler(function: Callable[[S, M, C], Awaitable[R]], /) -> Callable[[S, M, C], Awaitable[R]]: ...
@overload
def handler(function: Callable[[S, M], R], /) -> Callable[[S, M], R]: ...
@overload
def handler(
    *,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def handler(
    function: Any = None,
    /,
    *,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Any:
    """Mark a method as the handler for messages of the type of its message parameter.

    ``input``, ``output`` and ``workflow_output`` say it where annotations cannot. ``timeout`` is in seconds for
    one message; ``retry`` says when the turn is tried again.

    >>> from holdfast import Executor, RetryPolicy, WorkflowContext, handler
    >>> class Count(Executor):
    ...     @handler
    ...     async def words(self, text: str, ctx: WorkflowContext[int]) -> None:
    ...         await ctx.send_message(len(text.split()))
    ...     @handler(input=int | float, retry=RetryPolicy(attempts=3), timeout=30)
    ...     async def numbers(self, number, ctx):
    ...         await ctx.send_message(1)
    >>> [found.name for found in handlers_of(Count)]
    ['words', 'numbers']
    """
    return _mark_handler(
        function, DeclaredTypes(input, output, workflow_output), Policy(retry, timeout), answers=False
    )


@overload
def response_handler(
    function: Callable[[S, Q, M, C], Awaitable[R]], /
) -> Callable[[S, Q, M, C], Awaitable[R]]: ...
@overload
def response_handler(function: Callable[[S, Q, M], R], /) -> Callable[[S, Q, M], R]: ...
@overload
def response_handler(
    *,
    request: TypeForm | None = None,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def response_handler(
    function: Any = None,
    /,
    *,
    request: TypeForm | None = None,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Any:
    """Mark a method as the handler for responses: it is given the request, the response and the context.

    >>> from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler
    >>> class Approve(Executor):
    ...     @handler
    ...     async def ask(self, plan: str, ctx: WorkflowContext) -> None:
    ...         await ctx.request_info(plan, response_type=bool)
    ...     @response_handler
    ...     async def answered(self, plan: str, approved: bool, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output(f"{plan}: {'yes' if approved else 'no'}")
    >>> result = WorkflowBuilder(name="Approval").set_start_executor(Approve).build().run_sync("deploy")
    >>> result.pending_requests[0].data
    'deploy'
    """
    declared = DeclaredTypes(input, output, workflow_output, request)
    return _mark_handler(function, declared, Policy(retry, timeout), answers=True)


def _mark_handler(function: Any, declared: DeclaredTypes, policy: Policy, *, answers: bool) -> Any:
    """Mark the function, or return the decorator that does; only for the decorators, because it counts frames."""

    def mark(method: Function) -> Function:
        _refuse_second(method, answers, depth=2)
        setattr(method, _MARK, _Mark(declared, policy, answers, find_local_names(method, depth=2)))
        return method

    if function is None:
        return mark
    _refuse_second(function, answers, depth=3)
    setattr(function, _MARK, _Mark(declared, policy, answers, find_local_names(function, depth=3)))
    return function


def _refuse_second(function: Function, answers: bool, depth: int) -> None:
    """Raise ``GraphError`` if the class body that defines ``function`` has a handler of that name already.

    The second would replace the first, and only messages that nobody takes would show that.
    """
    body = sys._getframe(depth).f_locals
    if "__qualname__" in body and hasattr(body.get(function.__name__), _MARK):
        raise GraphError(
            f"{'response handler' if answers else 'handler'} {function.__qualname__} is defined twice in one class, of "
            f"which Python keeps only the last; give each a name of its own: what a handler takes is said by its "
            f"annotation"
        )


def handlers_of(cls: type) -> tuple[Handler, ...]:
    """Return the handlers of a class in order of definition, base classes first; an override keeps its role."""
    marks: dict[str, _Mark] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            mark = getattr(attribute, _MARK, None)
            if mark is not None:
                marks[name] = mark
    return tuple(_resolve(cls, name, mark) for name, mark in marks.items())


def _resolve(cls: type, name: str, mark: _Mark) -> Handler:
    place = f"{'response handler' if mark.answers else 'handler'} {cls.__name__}.{name}"
    owner = next(base for base in cls.__mro__ if name in vars(base))
    variables = variables_of(cls, owner)
    signed = read_signature(
        getattr(cls, name), place, mark.declared, mark.locals, answers=mark.answers, variables=variables
    )
    return Handler(name, signed, mark.policy.check(place))
