"""Executors: as classes, as recipes and as functions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from holdfast.errors import GraphError, InvalidArgument
from holdfast.graph.context import PassOn, WorkflowContext
from holdfast.graph.handler import Handler, Policy, handler, response_handler
from holdfast.graph.retry import RetryPolicy
from holdfast.graph.typing.annotations import DeclaredTypes, Function, find_local_names, read_signature
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import ExecutorId

if TYPE_CHECKING:
    from holdfast.graph.context import WorkflowContext

P = ParamSpec("P")
R = TypeVar("R")


class Executor:
    """Handles messages; subclass it and decorate methods with ``@handler``.

    Put the class itself in edges (each run creates its own executor), a recipe (``Triage.bind(id="eu",
    threshold=3)``) or an instance.

    >>> from holdfast import Executor, WorkflowBuilder, WorkflowContext, handler
    >>> class Greet(Executor):
    ...     @handler
    ...     async def greet(self, name: str, ctx: WorkflowContext[None, str]) -> None:
    ...         await ctx.yield_output(f"Hello, {name}")
    >>> WorkflowBuilder(name="Greeting").set_start_executor(Greet).build().run_sync("Ada").outputs
    ['Hello, Ada']
    """

    shareable: ClassVar[bool] = False
    """True if one instance may serve several runs at once: it keeps nothing between messages, nor in checkpoints."""

    checkpointed: ClassVar[tuple[str, ...]] = ()
    """The names of fields that belong to the run's state: they are kept at the end of each turn."""

    transient: ClassVar[tuple[str, ...]] = ()
    """The names of fields that need not be kept, because they can be made anew: clients, caches."""

    id: ExecutorId

    def __init__(self, id: str | None = None) -> None:
        self.id = ExecutorId(id if id is not None else default_id(type(self)))

    @classmethod
    def bind(cls, *args: Any, id: str | None = None, **kwargs: Any) -> Recipe:
        """Return a recipe for another executor of this class, created for each run with these arguments.

        >>> class Limit(Executor):
        ...     def __init__(self, id: str | None = None, most: int = 1) -> None:
        ...         super().__init__(id)
        ...         self.most = most
        >>> Limit.bind(id="eu", most=3).id
        'eu'
        """
        return Recipe.of(cls, ExecutorId(id) if id is not None else default_id(cls), args, kwargs)

    def own_handlers(self) -> tuple[Handler, ...] | None:
        """Return the handlers of this very object, where they depend on its arguments; None for those of its class."""
        return None

    async def on_checkpointing(self, ctx: WorkflowContext[Any, Any]) -> None:
        """Put those fields of this executor into state that checkpoints are to keep; called at the end of each turn."""

    async def on_checkpoint_restored(self, ctx: WorkflowContext[Any, Any]) -> None:
        """Read the fields back from state; called when the executor is set up from a checkpoint."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'id', '?')!r}>"


def default_id(cls: type[Executor]) -> ExecutorId:
    """Return the id for an executor of ``cls`` that was given none: the default of its ``id``, or its name."""
    parameter = signature(cls).parameters.get("id")
    if parameter is not None and isinstance(parameter.default, str):
        return ExecutorId(parameter.default)
    return ExecutorId(cls.__name__)


class Recipe(NamedTuple):
    """Creates one executor for each run; made by ``Executor.bind``.

    >>> class Echo(Executor):
    ...     pass
    >>> Echo.bind(id="again")
    Echo.bind(id='again')
    """

    executor_class: type[Executor]
    id: ExecutorId
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(
        cls, executor_class: type[Executor], id: ExecutorId, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recipe:
        """Return the recipe for an executor of ``executor_class`` with these arguments."""
        wanted = signature(executor_class)
        parameters = wanted.parameters
        takes_id = "id" in parameters or any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        arguments = {**kwargs, "id": id} if takes_id else kwargs
        try:
            wanted.bind(*args, **arguments)
        except TypeError as error:
            name = executor_class.__name__
            fix = (
                "pass its id as id=..."
                if "'id'" in str(error)
                else f"give its arguments with {name}.bind(...)"
            )
            raise GraphError(f"executor {id!r} cannot be created: {name}{wanted}: {error}; {fix}") from None
        return cls(executor_class, id, args, arguments)

    def create(self) -> Executor:
        """Create an executor."""
        executor = self.executor_class(*self.args, **self.kwargs)
        executor.id = self.id
        return executor

    def __repr__(self) -> str:
        parts = [repr(argument) for argument in self.args]
        parts += [f"{name}={value!r}" for name, value in {"id": self.id, **self.kwargs}.items()]
        return f"{self.executor_class.__name__}.bind({', '.join(parts)})"


class FunctionExecutor(Executor, Generic[P, R]):
    """An executor made of one function by ``@executor``; it can still be called as that function."""

    shareable = True

    def __init__(self, function: Callable[P, R], id: str, handler: Handler) -> None:
        super().__init__(id)
        self.function = function
        self.handler = handler
        self.__doc__ = function.__doc__

    def own_handlers(self) -> tuple[Handler, ...]:
        """Return the function as the only handler."""
        return (self.handler,)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<executor {self.id!r}>"


@overload
def executor(function: Callable[P, R], /) -> FunctionExecutor[P, R]: ...
@overload
def executor(
    *,
    id: str | None = None,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], FunctionExecutor[P, R]]: ...
def executor(
    function: Any = None,
    /,
    *,
    id: str | None = None,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a function an executor, sync or async; its id defaults to its name.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor(id="double")
    ... def twice(number: int) -> int:
    ...     return number * 2
    >>> WorkflowBuilder(name="Double").set_start_executor(twice).build().run_sync(21).outputs
    [42]
    """
    declared = DeclaredTypes(input, output, workflow_output)

    def make(wrapped: Function) -> FunctionExecutor[..., Any]:
        name = id if id is not None else wrapped.__name__
        place = f"executor {name!r}"
        signed = read_signature(wrapped, place, declared, find_local_names(wrapped, depth=depth))
        handler = Handler("function", signed, Policy(retry, timeout).check(place))
        return FunctionExecutor(wrapped, name, handler)

    depth = 2 if function is None else 3  # how far below the decorated function its frame is
    return make if function is None else make(function)


if TYPE_CHECKING:
    from holdfast.graph.graph import Graph


class Nestable(Protocol):
    """A workflow that can be nested: it has a name and a graph."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def graph(self) -> Graph:
        """Its graph."""
        ...


Lifetime: TypeAlias = Literal["message", "run"]


class WorkflowExecutor(Executor):
    """Nests a workflow: each message that it takes starts it anew, its outputs are sent on.

    Nesting is inlining: the nested executors run in the supersteps of the outer workflow, with addresses
    like ``review#1/draft`` and state of their own. Their questions surface with that address.

    With ``lifetime="run"`` it is started once: all messages go to the same start, which keeps its state and the
    fields of its executors for as long as the run, or the nested workflow around it, lives.

    >>> from holdfast import WorkflowBuilder, WorkflowExecutor, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> inner = WorkflowBuilder(name="Inner").set_start_executor(double).build()
    >>> outer = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="twice")).build()
    >>> outer.run_sync(21).outputs
    [42]
    """

    shareable = True

    def __init__(self, workflow: Nestable, id: str | None = None, lifetime: Lifetime = "message") -> None:
        super().__init__(id if id is not None else workflow.name)
        if lifetime not in ("message", "run"):
            raise InvalidArgument(
                f"WorkflowExecutor {self.id!r}: lifetime={lifetime!r} must be 'message', for a new start with each "
                f"message, or 'run', for one start that keeps its state"
            )
        self._workflow = workflow
        self._lifetime = lifetime

    @property
    def workflow(self) -> Nestable:
        """The workflow that is nested."""
        return self._workflow

    @property
    def lifetime(self) -> Lifetime:
        """``"message"`` if each message starts the workflow anew, ``"run"`` if one start keeps its state."""
        return self._lifetime


class Summarized(Protocol):
    """An object that can summarize itself: a checkpoint."""

    def summary(self) -> Any:
        """Return the summary."""
        ...


class RequestInfoExecutor(Executor):
    """Asks the outside about whatever it receives and sends the response on.

    >>> from holdfast import RequestInfoExecutor, WorkflowBuilder
    >>> ask = RequestInfoExecutor(id="ask", response_type=bool)
    >>> result = WorkflowBuilder(name="Ask").set_start_executor(ask).build().run_sync("Deploy?")
    >>> [(request.executor_id, request.data) for request in result.pending_requests]
    [('ask', 'Deploy?')]
    """

    shareable = True

    def __init__(self, id: str | None = None, response_type: TypeForm = object) -> None:
        super().__init__(id)
        self.response_type = response_type

    @handler
    async def ask(self, message: object, ctx: WorkflowContext[Any, Any]) -> None:
        """Ask about the message."""
        await ctx.request_info(message, response_type=self.response_type)

    @response_handler
    async def answered(self, request: object, response: object, ctx: WorkflowContext[Any, Any]) -> Any:
        """Send the response on."""
        return PassOn(response)

    @staticmethod
    def checkpoint_summary(checkpoint: Summarized) -> Any:
        """Return ``checkpoint.summary()``: the checkpoint in a few words."""
        return checkpoint.summary()
