"""The contract of ``WorkflowContext``: all that a handler can do, stated once for every implementation."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, overload

if TYPE_CHECKING:
    import datetime
    from collections.abc import Awaitable, Callable, Mapping

    from typing_extensions import TypeVar

    from holdfast.graph.state_key import StateKey
    from holdfast.graph.typing.types import TypeForm
    from holdfast.ids import ExecutorId, RequestId, RunId

    TimeSpan: TypeAlias = float | datetime.timedelta

    T = TypeVar("T")
    T_Out = TypeVar("T_Out", contravariant=True, default=Any)
    T_Final = TypeVar("T_Final", contravariant=True, default=Any)
else:
    # The defaults of type variables are for type checkers only, so no backport is imported at run time.
    from typing import TypeVar

    T = TypeVar("T")
    T_Out = TypeVar("T_Out", contravariant=True)
    T_Final = TypeVar("T_Final", contravariant=True)

DEFAULT_SHARED_SCOPE = "shared"
"""The scope that ``get_shared_state`` and ``set_shared_state`` use."""


class PassOn(NamedTuple):
    """Wraps the value that a handler returns, so that it is passed on even if it is None."""

    value: Any


class WorkflowContext(Protocol[T_Out, T_Final]):
    """The second argument of a handler, beside its message: sends, asks, and reads and writes state.

    ``WorkflowContext[T_Out, T_Final]`` declares what the handler sends and what it yields as workflow
    output; both default to ``Any``, and ``None`` or ``Never`` means nothing.

    Nothing that a handler does through its context is seen by others before the superstep ends. Values are
    captured by the call: what happens to them later changes nothing, and every reader gets its own.

    >>> from holdfast import WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def shout(text: str, ctx: WorkflowContext[None, str]) -> None:
    ...     await ctx.queue_state_update("seen", text, scope_name="Audit")
    ...     await ctx.yield_output(text.upper())
    >>> WorkflowBuilder(name="Shout").set_start_executor(shout).build().run_sync("hello").outputs
    ['HELLO']
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> Any:
            """Let ``WorkflowContext[A]`` stand for ``WorkflowContext[A, Any]``."""
            if not isinstance(parameters, tuple):
                parameters = (parameters,)
            return super().__class_getitem__(parameters + (Any,) * (2 - len(parameters)))

    @property
    def run_id(self) -> RunId:
        """The run that this turn belongs to."""
        ...

    @property
    def executor_id(self) -> ExecutorId:
        """The executor whose turn this is."""
        ...

    @property
    def source_executor_id(self) -> ExecutorId | None:
        """The executor that sent the message which is handled; a nested workflow sends as its ``WorkflowExecutor``.

        None for a message from outside (an input, the response to a request), and for the list of a fan-in, which
        has several senders.
        """
        ...

    @property
    def superstep(self) -> int:
        """The number of this superstep, from 1."""
        ...

    @property
    def attempt(self) -> int:
        """The number of this attempt at the turn, from 1."""
        ...

    @property
    def idempotency_key(self) -> str:
        """A key for effects outside, the same each time that this message is handled after a crash or in a retry.

        It derives from the checkpoint at the start of the superstep, the executor and the message; after going back
        to a checkpoint, and in a fork, it is another. Give it to services that take one, with a name behind it where a
        message has several effects: ``f"{ctx.idempotency_key} refund"``.
        """
        ...

    @property
    def run_context(self) -> Mapping[str, Any]:
        """The values that the caller gave with ``run_context=``: clients, tokens and the like; read-only, never stored.

        Whoever goes on with a run gives its own: ``resume``, ``fork``, a ``Host``. Nested workflows see the same.
        A name that was not given raises ``RunContextMissing``.
        """
        ...

    @overload
    async def once(
        self, name: str, function: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any
    ) -> T: ...
    @overload
    async def once(self, name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def once(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that has an effect outside, and give what it gave; its result is journaled.

        When the turn runs again, after a crash, a failure or for a retry, the journaled result is given and the
        function is not called. A crash before the result is journaled repeats it with the same key. So does a process
        that stands still in the function, or right before it, while another takes its run over. So hand it
        ``idempotency_key`` where the service takes one. Raises ``RunTaken`` in place of the call if another process
        took the run by now. Names are unique for a message. Functions that are not async run in a thread.
        """
        ...

    async def sleep(self, delay: TimeSpan | None = None, *, until: datetime.datetime | None = None) -> None:
        """Sleep for some time, or until a time; with storage for days, and across restarts.

        With storage the handler ends here, and is called again with the same message when the time is over: what
        stands before the call runs twice, unless it is in ``once``, and this call returns at once. Meanwhile the run
        is WAITING, nobody drives it, and nothing of it stays in memory. Whoever hosts it wakes it: a ``Host``, the
        ``Run`` object if it is still held, or ``workflow.resume``. Without storage the handler simply waits.
        """
        ...

    async def send_message(self, value: T_Out, target_id: str | None = None) -> None:
        """Send ``value`` along the outgoing edges, or only along those that lead to ``target_id``."""
        ...

    async def yield_output(self, value: T_Final) -> None:
        """Give ``value`` out as an output of the workflow."""
        ...

    async def stream(self, delta: Any) -> None:
        """Show watchers a part of an output that is still being made, at once, as an ``OutputDeltaEvent``.

        The event is provisional: it is never stored, a resumed run does not show it again, and it is no output. So
        yield the whole value when it is there. What is shown is the value as it is at the call.
        """
        ...

    async def request_info(
        self,
        data: Any,
        response_type: TypeForm,
        request_id: str | None = None,
        expires: TimeSpan | datetime.datetime | None = None,
    ) -> RequestId:
        """Ask the outside; the answer goes to the executor's ``@response_handler`` for such data and responses.

        Returns the id of the request. What follows the call in the handler goes on at once: it does not wait. With
        ``expires``, a time span or a time, a question that nobody answered until then is answered by a
        ``RequestExpired``, for which the executor needs a ``@response_handler``. Answer or expiry: the first counts.
        """
        ...

    async def respond_to(self, request: SubWorkflowRequest, value: Any) -> None:
        """Answer a request of a nested workflow, which came to this executor as a message.

        The value is brought to the type that the request asks for. It is delivered in the next superstep, to the
        executor that asked. Raises ``RequestAlreadyAnswered`` if someone else was faster.
        """
        ...

    @overload
    async def read_state(self, key: StateKey[T], default: T, scope_name: str | None = None) -> T: ...
    @overload
    async def read_state(
        self, key: StateKey[T], default: None = None, scope_name: str | None = None
    ) -> T | None: ...
    @overload
    async def read_state(self, key: str, default: Any = None, scope_name: str | None = None) -> Any: ...
    async def read_state(self, key: Any, default: Any = None, scope_name: str | None = None) -> Any:
        """Return the value of ``key``: this turn's own write, else the committed one, else ``default``.

        Without ``scope_name`` the scope is private to the executor; a name makes it shared.
        """
        ...

    @overload
    async def require_state(self, key: StateKey[T], scope_name: str | None = None) -> T: ...
    @overload
    async def require_state(self, key: str, scope_name: str | None = None) -> Any: ...
    async def require_state(self, key: Any, scope_name: str | None = None) -> Any:
        """Return the value of ``key`` as ``read_state`` does; raise ``StateNotSet`` where nothing is set."""
        ...

    @overload
    async def queue_state_update(self, key: StateKey[T], value: T, scope_name: str | None = None) -> None: ...
    @overload
    async def queue_state_update(self, key: str, value: Any, scope_name: str | None = None) -> None: ...
    async def queue_state_update(self, key: Any, value: Any, scope_name: str | None = None) -> None:
        """Set ``key`` at the end of the superstep; where a merge is declared, merge ``value`` into it."""
        ...

    async def read_state_keys(self, scope_name: str | None = None) -> list[str]:
        """Return the keys of the scope, sorted, this turn's own writes included."""
        ...

    async def clear_state(
        self, key: str | StateKey[Any] | None = None, scope_name: str | None = None
    ) -> None:
        """Remove ``key``, or without a key every key that this turn sees in the scope."""
        ...

    async def append_state(self, key: str | StateKey[Any], item: Any, scope_name: str | None = None) -> None:
        """Append ``item`` to a list; a str is put behind a str, bytes behind bytes; absent gives a list.

        Costs what the item costs, however long the value is. Appends of several turns of one superstep are
        taken in graph order; an append and a set of one key conflict.
        """
        ...

    async def get_state(self) -> Any:
        """Return the executor's own state as one value, None when unset."""
        ...

    async def set_state(self, value: Any) -> None:
        """Set the executor's own state as one value."""
        ...

    @overload
    async def get_shared_state(self, key: StateKey[T], default: T) -> T: ...
    @overload
    async def get_shared_state(self, key: StateKey[T], default: None = None) -> T | None: ...
    @overload
    async def get_shared_state(self, key: str, default: Any = None) -> Any: ...
    async def get_shared_state(self, key: Any, default: Any = None) -> Any:
        """Call ``read_state`` in the default shared scope."""
        ...

    @overload
    async def set_shared_state(self, key: StateKey[T], value: T) -> None: ...
    @overload
    async def set_shared_state(self, key: str, value: Any) -> None: ...
    async def set_shared_state(self, key: Any, value: Any) -> None:
        """Call ``queue_state_update`` in the default shared scope."""
        ...

    async def add_event(self, event: Any) -> None:
        """Put an event of your own into the stream of the run's events."""
        ...


@dataclass(frozen=True)
class RequestExpired:
    """Goes to the ``@response_handler`` of an executor whose question nobody answered in time.

    >>> from holdfast import Executor, WorkflowContext, handler, response_handler
    >>> class Approve(Executor):
    ...     @handler
    ...     async def ask(self, plan: str, ctx: WorkflowContext) -> None:
    ...         await ctx.request_info(plan, response_type=bool, expires=3 * 86_400)
    ...
    ...     @response_handler
    ...     async def answered(self, plan: str, approved: bool, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output("go" if approved else "no")
    ...
    ...     @response_handler
    ...     async def late(self, plan: str, expired: RequestExpired, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output("nobody answered")
    """

    request_id: str
    expires: datetime.datetime
    """When its time was over, UTC."""


@dataclass(frozen=True)
class SubWorkflowRequest:
    """A request of a nested workflow, as a message to an executor of the workflow around it.

    It goes along the edges of the ``WorkflowExecutor`` to executors with a handler for it. One that is not answered
    by ``ctx.respond_to`` in that turn goes outside, as it does where no executor has such a handler.

    >>> from holdfast import Executor, SubWorkflowRequest, WorkflowContext, handler
    >>> class Policy(Executor):
    ...     @handler
    ...     async def decide(self, request: SubWorkflowRequest, ctx: WorkflowContext) -> None:
    ...         if request.data == "small":
    ...             await ctx.respond_to(request, True)
    """

    request_id: str
    executor_id: str
    """The executor that asks, with its path: ``legal#1/Review``."""
    data: Any
    response_type: TypeForm = object
    """The type of the answer; ``object`` in a request that was sent on or kept, and stored for that."""
