"""An executor in a graph: its handlers, and the way to get an instance of it for a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import GraphError
from holdfast.graph.context import SubWorkflowRequest
from holdfast.graph.executor import Executor, Recipe, WorkflowExecutor, default_id
from holdfast.graph.handler import Handler, handlers_of
from holdfast.graph.typing.annotations import find_uncallable_signature
from holdfast.graph.typing.dispatch import Dispatch
from holdfast.graph.typing.match import covers, matches
from holdfast.graph.typing.types import (
    TypeForm,
    class_of,
    is_anything,
    is_nothing,
    members,
    render_form,
    type_name,
)
from holdfast.ids import ExecutorId

if TYPE_CHECKING:
    from holdfast.graph.graph import Graph


class ExecutorSpec:
    """An executor's id, its handlers and the way to get an instance of it for a run.

    ``nested`` is the graph of a nested workflow: such an executor has no handlers, it takes what the start of
    that graph takes and sends what that graph gives out. It is ``lasting`` if it is started once for all messages.
    """

    __slots__ = (
        *("id", "handlers", "create", "shared_instance", "nested", "lasting", "dispatch", "answerers"),
        *("retries", "shareable", "hooked", "keeps", "watched", "takes_requests"),
    )

    def __init__(
        self,
        id: ExecutorId,
        handlers: tuple[Handler, ...],
        create: Callable[[], Executor],
        executor_class: type[Executor],
        shared_instance: Executor | None = None,
        nested: Graph | None = None,
    ) -> None:
        self.id = id
        self.handlers = handlers
        self.create = create
        self.shared_instance = shared_instance
        self.nested = nested
        self.lasting = False
        # True if turns of it are tried again, call its hook, keep fields, and are watched for changes of other fields.
        self.retries = any(handler.policy.retry is not None for handler in handlers)
        self.shareable = (shared_instance or executor_class).shareable
        self.hooked = executor_class.on_checkpointing is not Executor.on_checkpointing
        self.keeps = self.hooked or bool(executor_class.checkpointed)
        self.watched = not self.hooked and not self.shareable
        for name in ("checkpointed", "transient"):
            if isinstance(getattr(executor_class, name), str):
                raise GraphError(
                    f"executor {id!r}: {name} must be a tuple of names, like {name} = "
                    f"({getattr(executor_class, name)!r},), with the comma"
                )
        for name in _own_hooks(executor_class):
            found = find_uncallable_signature(
                getattr(executor_class, name), 2
            )  # the executor and the context
            if found is not None:
                raise GraphError(
                    f"executor {id!r}: {name} is called with a context, like (self, ctx: WorkflowContext), "
                    f"but its signature is {found}"
                )
        self.answerers = tuple(handler for handler in handlers if handler.signature.request is not None)
        takers = [handler for handler in handlers if handler.signature.request is None]
        # Those of nested workflows; a handler for anything is not meant for them.
        self.takes_requests = any(
            SubWorkflowRequest in members(handler.signature.accepts) for handler in takers
        )
        if nested is not None:
            self.dispatch: Dispatch[Handler] = nested.executors[nested.start].dispatch
            return
        try:
            self.dispatch = Dispatch([(handler.signature.accepts, handler) for handler in takers])
        except TypeError as error:
            raise GraphError(f"executor {id!r}: {error}; annotate its message with a type") from error
        for form, first, second in self.dispatch.duplicates():
            raise _two_handlers(id, type_name(form), first, second)
        self._check_answerers()

    def _check_answerers(self) -> None:
        seen: dict[tuple[str, str], Handler] = {}
        for handler in self.answerers:
            request, response = handler.signature.request, handler.signature.accepts
            other = seen.setdefault(
                (render_form(request, exact=True), render_form(response, exact=True)), handler
            )
            if other is not handler:
                pair = f"{type_name(response)} in response to {type_name(request)}"
                raise _two_handlers(self.id, pair, other, handler)

    def copy_with(
        self, id: ExecutorId, create: Callable[[], Executor], shared_instance: Executor | None
    ) -> ExecutorSpec:
        """Return the spec of another executor of the same class, without reading its handlers again."""
        spec = object.__new__(ExecutorSpec)
        for name in ExecutorSpec.__slots__:
            setattr(spec, name, getattr(self, name))
        spec.id, spec.create, spec.shared_instance = id, create, shared_instance
        if shared_instance is not None:
            spec.shareable = shared_instance.shareable
            spec.watched = not spec.hooked and not spec.shareable
        return spec

    def answerer(self, request: object, response_type: TypeForm) -> Handler | None:
        """Find the most specific response handler for such a request that takes all responses of that type.

        The request decides first, as for messages: by class, then by union member, then anything.
        """
        fitting = [
            handler
            for handler in self.answerers
            if matches(request, handler.signature.request)
            and covers(handler.signature.accepts, response_type)
        ]

        def rank(handler: Handler) -> tuple[int, int, bool, bool]:
            accepts = handler.signature.accepts
            same = type_name(accepts) == type_name(response_type)
            return *_closeness(type(request), handler.signature.request), not same, is_anything(accepts)

        return min(fitting, key=rank, default=None)

    @property
    def accepts(self) -> tuple[TypeForm, ...]:
        """The types that it takes as messages."""
        if self.nested is not None:
            return self.nested.executors[self.nested.start].accepts
        return tuple(
            handler.signature.accepts for handler in self.handlers if handler.signature.request is None
        )

    def sends(self) -> tuple[TypeForm, ...]:
        """Return the types that it may send along edges, returned values included."""
        if self.nested is not None:
            return distinct(self.nested.output_types())
        return distinct([form for h in self.handlers for form in (*h.signature.sends, *h.signature.returns)])

    def yields(self) -> tuple[TypeForm, ...]:
        """Return the types that it declares as workflow output."""
        return distinct([form for h in self.handlers for form in h.signature.yields])


def _closeness(kind: type, form: TypeForm) -> tuple[int, int]:
    """Return the distance of a form from a class; smaller is closer."""
    if is_anything(form):
        return 2, 0
    options = members(form)
    steps = [kind.__mro__.index(cls) for cls in map(class_of, options) if cls in kind.__mro__]
    return int(len(options) > 1), min(steps, default=len(kind.__mro__))


def _two_handlers(id: ExecutorId, what: str, first: Handler, second: Handler) -> GraphError:
    return GraphError(
        f"executor {id!r} has two handlers for {what}: {first.name!r} and {second.name!r}; "
        f"remove one of them or narrow its type"
    )


def distinct(forms: Sequence[TypeForm]) -> tuple[TypeForm, ...]:
    """Return the forms without doubles and without those that mean nothing; Any swallows all others."""
    if any(is_anything(form) for form in forms):
        return (Any,)
    # By more than their names: two modules may have a class of one name.
    seen = {(type_name(form), render_form(form, exact=True)): form for form in forms if not is_nothing(form)}
    return tuple(seen.values())


def spec_of(
    placed: type[Executor] | Recipe | Executor,
    id: ExecutorId | None = None,
    known: dict[type[Executor], ExecutorSpec] | None = None,
) -> ExecutorSpec:
    """Return the spec of a class, a recipe or an instance; ``known`` remembers those of classes that were read."""
    if isinstance(placed, type):
        placed = Recipe.of(placed, default_id(placed), (), {})
    if isinstance(placed, WorkflowExecutor):
        host = ExecutorSpec(id or placed.id, (), lambda: placed, type(placed), nested=placed.workflow.graph)
        host.lasting = placed.lifetime == "run"
        return host
    if isinstance(placed, Recipe):
        cls = placed.executor_class
        return _check_class(_spec_of_class(cls, id or placed.id, placed.create, None, known), cls)
    instance = placed
    if getattr(instance, "id", None) is None:
        name = type(instance).__name__
        raise GraphError(f"an instance of {name} has no id; call super().__init__(id) in {name}.__init__")
    own, create = id or instance.id, lambda: instance
    if (handlers := instance.own_handlers()) is not None:
        return _check_class(ExecutorSpec(own, handlers, create, type(instance), instance), type(instance))
    spec = _check_class(_spec_of_class(type(instance), own, create, instance, known), type(instance))
    if not spec.shareable:
        _check_reset(instance, own)
    return spec


def _spec_of_class(
    cls: type[Executor],
    id: ExecutorId,
    create: Callable[[], Executor],
    instance: Executor | None,
    known: dict[type[Executor], ExecutorSpec] | None,
) -> ExecutorSpec:
    if known is None or cls not in known:
        first = ExecutorSpec(id, handlers_of(cls), create, cls)
        if known is not None:
            known[cls] = first
    else:
        first = known[cls]
    return first.copy_with(id, create, instance)


def _own_hooks(cls: type[Executor]) -> list[str]:
    """Return the names of the hooks that a class defines itself."""
    hooks = ("on_checkpointing", "on_checkpoint_restored")
    return [name for name in hooks if getattr(cls, name) is not getattr(Executor, name)]


def _check_class(spec: ExecutorSpec, cls: type[Executor]) -> ExecutorSpec:
    """Return the spec; raise ``GraphError`` if its class has no handler, or keeps fields though it is shareable."""
    if not spec.accepts:
        raise GraphError(
            f"executor {spec.id!r} has no handler; decorate a method with @handler, "
            f"like: @handler async def work(self, message: str, ctx: WorkflowContext[str])"
        )
    if spec.shareable:
        kept = ["checkpointed"] if cls.checkpointed else []
        kept += _own_hooks(cls)
        if kept:
            raise GraphError(
                f"executor {spec.id!r} says 'shareable = True', so one object serves several runs at once and cannot "
                f"hold what belongs to one of them, but it has {kept[0]}; keep that in state, with "
                f"ctx.queue_state_update, or drop 'shareable' and put the class in the edges"
            )
    return spec


def _check_reset(instance: Executor, id: ExecutorId) -> None:
    """Refuse a ``reset`` that the runtime could not call, before a second run finds that out."""
    if not hasattr(instance, "reset"):
        return
    reset = instance.reset
    found = (
        find_uncallable_signature(reset, 0) if callable(reset) else f", which is a {type(reset).__name__},"
    )
    if found is not None:
        cls = type(instance).__name__
        raise GraphError(
            f"executor {id!r}: reset{found} is called without arguments before the instance serves another run; give "
            f"its parameters defaults, give it another name, or put the class {cls} or {cls}.bind(...) in the edges"
        )
