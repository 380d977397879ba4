"""Executors: what they are, how handlers are declared, and the recipes that create them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import Parameter, signature
from typing import Any, ClassVar, Generic, NamedTuple, ParamSpec, TypeVar, overload

from holdfast.errors import GraphError
from holdfast.graph.annotations import Declared, Function, Signed, locals_named_by, read_signature
from holdfast.graph.context import WorkflowContext
from holdfast.graph.dispatch import Dispatch
from holdfast.graph.types import TypeForm, is_anything, is_nothing, type_name
from holdfast.ids import ExecutorId

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S")
M = TypeVar("M")
R = TypeVar("R")
C = TypeVar("C", bound=WorkflowContext[Any, Any])

_MARK = "__holdfast_handler__"


class _Mark(NamedTuple):
    """What ``@handler`` leaves on a method until the workflow is built."""

    declared: Declared
    locals: dict[str, Any]  # names that string annotations refer to


class Handler(NamedTuple):
    """A handler with its types resolved."""

    name: str
    signed: Signed


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
    """Whether one instance may serve several runs at once: it keeps nothing between messages."""

    id: ExecutorId

    def __init__(self, id: str | None = None) -> None:
        self.id = ExecutorId(id if id is not None else default_id(type(self)))

    @classmethod
    def bind(cls, *args: Any, id: str | None = None, **kwargs: Any) -> Recipe:
        """A recipe: another executor of this class, created for each run with these arguments.

        >>> class Limit(Executor):
        ...     def __init__(self, id: str | None = None, most: int = 1) -> None:
        ...         super().__init__(id)
        ...         self.most = most
        >>> Limit.bind(id="eu", most=3).id
        'eu'
        """
        return Recipe.of(cls, ExecutorId(id) if id is not None else default_id(cls), args, kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'id', '?')!r}>"


def default_id(cls: type[Executor]) -> ExecutorId:
    """The id of an executor of ``cls`` that was given none: the default of its ``id`` parameter, or its name."""
    parameter = signature(cls).parameters.get("id")
    if parameter is not None and isinstance(parameter.default, str):
        return ExecutorId(parameter.default)
    return ExecutorId(cls.__name__)


class Recipe(NamedTuple):
    """How to create one executor for each run; made by ``Executor.bind``.

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
        """The recipe for an executor of ``executor_class`` with these arguments."""
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
        """A new executor."""
        executor = self.executor_class(*self.args, **self.kwargs)
        executor.id = self.id
        return executor

    def __repr__(self) -> str:
        parts = [repr(argument) for argument in self.args]
        parts += [f"{name}={value!r}" for name, value in {"id": self.id, **self.kwargs}.items()]
        return f"{self.executor_class.__name__}.bind({', '.join(parts)})"


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
) -> Callable[[F], F]: ...
def handler(
    function: Any = None,
    /,
    *,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
) -> Any:
    """Mark a method as the handler for messages of the type of its message parameter.

    ``input``, ``output`` and ``workflow_output`` say it where annotations cannot.

    >>> class Count(Executor):
    ...     @handler
    ...     async def words(self, text: str, ctx: WorkflowContext[int]) -> None:
    ...         await ctx.send_message(len(text.split()))
    ...     @handler(input=int | float)
    ...     async def numbers(self, number, ctx):
    ...         await ctx.send_message(1)
    >>> [type_name(found.signed.accepts) for found in handlers_of(Count)]
    ['str', 'float | int']
    """
    declared = Declared(input, output, workflow_output)

    def mark(method: Function) -> Function:
        setattr(method, _MARK, _Mark(declared, locals_named_by(method, depth=2)))
        return method

    if function is None:
        return mark
    setattr(function, _MARK, _Mark(declared, locals_named_by(function, depth=2)))
    return function


def handlers_of(cls: type[Executor]) -> tuple[Handler, ...]:
    """The handlers of a class in order of definition, base classes first; an override keeps its role."""
    marks: dict[str, _Mark] = {}
    for base in reversed(cls.__mro__):
        for name, attribute in vars(base).items():
            mark = getattr(attribute, _MARK, None)
            if mark is not None:
                marks[name] = mark
    return tuple(_resolve(cls, name, mark) for name, mark in marks.items())


def _resolve(cls: type[Executor], name: str, mark: _Mark) -> Handler:
    place = f"handler {cls.__name__}.{name}"
    return Handler(name, read_signature(getattr(cls, name), place, mark.declared, mark.locals))


class FunctionExecutor(Executor, Generic[P, R]):
    """An executor made of one function by ``@executor``; it can still be called as that function."""

    shareable = True

    def __init__(self, function: Callable[P, R], id: str, handler: Handler) -> None:
        super().__init__(id)
        self.function = function
        self.handler = handler
        self.__doc__ = function.__doc__

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
) -> Callable[[Callable[P, R]], FunctionExecutor[P, R]]: ...
def executor(
    function: Any = None,
    /,
    *,
    id: str | None = None,
    input: TypeForm | None = None,
    output: TypeForm | None = None,
    workflow_output: TypeForm | None = None,
) -> Any:
    """Make a function an executor, sync or async; its id defaults to its name.

    >>> from holdfast import WorkflowBuilder, executor
    >>> @executor(id="double")
    ... def twice(number: int) -> int:
    ...     return number * 2
    >>> WorkflowBuilder(name="Double").set_start_executor(twice).build().run_sync(21).outputs
    [42]
    """
    declared = Declared(input, output, workflow_output)

    def make(wrapped: Function) -> FunctionExecutor[..., Any]:
        name = id if id is not None else wrapped.__name__
        signed = read_signature(
            wrapped, f"executor {name!r}", declared, locals_named_by(wrapped, depth=depth)
        )
        return FunctionExecutor(wrapped, name, Handler("function", signed))

    depth = 2 if function is None else 3  # how far below the decorated function its frame is
    return make if function is None else make(function)


class ExecutorSpec:
    """An executor's place in a graph: its id, its handlers and how a run gets hold of it."""

    __slots__ = ("create", "dispatch", "handlers", "id", "shared_instance")

    def __init__(
        self,
        id: ExecutorId,
        handlers: tuple[Handler, ...],
        create: Callable[[], Executor],
        shared_instance: Executor | None = None,
    ) -> None:
        self.id = id
        self.handlers = handlers
        self.create = create
        self.shared_instance = shared_instance
        try:
            self.dispatch = Dispatch([(handler.signed.accepts, handler) for handler in handlers])
        except TypeError as error:
            raise GraphError(f"executor {id!r}: {error}; annotate its message with a type") from error
        for form, first, second in self.dispatch.duplicates():
            raise GraphError(
                f"executor {id!r} has two handlers for {type_name(form)}: {first.name!r} and {second.name!r}; "
                f"remove one of them or narrow its type"
            )

    @property
    def accepts(self) -> tuple[TypeForm, ...]:
        """What its handlers take."""
        return tuple(handler.signed.accepts for handler in self.handlers)

    def sends(self) -> tuple[TypeForm, ...]:
        """What its handlers may send along edges, returned values included."""
        return _distinct([form for h in self.handlers for form in (*h.signed.sends, *h.signed.returns)])

    def yields(self) -> tuple[TypeForm, ...]:
        """What its handlers declare as workflow output."""
        return _distinct([form for h in self.handlers for form in h.signed.yields])


def _distinct(forms: Sequence[TypeForm]) -> tuple[TypeForm, ...]:
    if any(is_anything(form) for form in forms):
        return (Any,)
    seen = {type_name(form): form for form in forms if not is_nothing(form)}
    return tuple(seen.values())


def spec_of(placed: type[Executor] | Recipe | Executor, id: ExecutorId | None = None) -> ExecutorSpec:
    """The spec of a class, a recipe or an instance."""
    if isinstance(placed, type):
        placed = Recipe.of(placed, default_id(placed), (), {})
    if isinstance(placed, Recipe):
        spec = ExecutorSpec(id or placed.id, handlers_of(placed.executor_class), placed.create)
    else:
        instance = placed
        if getattr(instance, "id", None) is None:
            name = type(instance).__name__
            raise GraphError(f"an instance of {name} has no id; call super().__init__(id) in {name}.__init__")
        handlers = (
            (instance.handler,) if isinstance(instance, FunctionExecutor) else handlers_of(type(instance))
        )
        spec = ExecutorSpec(id or instance.id, handlers, lambda: instance, instance)
    if not spec.handlers:
        raise GraphError(
            f"executor {spec.id!r} has no handler; decorate a method with @handler, "
            f"like: @handler async def work(self, message: str, ctx: WorkflowContext[str])"
        )
    return spec
