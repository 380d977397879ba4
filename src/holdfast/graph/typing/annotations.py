"""The signatures of handlers: the types that their annotations declare."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

from holdfast.errors import GraphError
from holdfast.graph.context import WorkflowContext
from holdfast.graph.typing.types import TypeForm, is_nothing, members, open_variable, substitute_variables

Function: TypeAlias = Callable[..., Any]


class DeclaredTypes(NamedTuple):
    """The types that a decorator declares in place of annotations; None means "read the annotation"."""

    accepts: TypeForm | None = None
    sends: TypeForm | None = None
    yields: TypeForm | None = None
    request: TypeForm | None = None


class HandlerSignature(NamedTuple):
    """The types that a handler accepts, sends and yields, by declaration or annotation.

    ``returns`` are the types of returned values: sent where there are outgoing edges, else yielded. A response
    handler has a ``request``, whose responses it ``accepts``.
    """

    accepts: TypeForm
    sends: tuple[TypeForm, ...]
    yields: tuple[TypeForm, ...]
    returns: tuple[TypeForm, ...]
    takes_context: bool
    is_async: bool
    request: TypeForm | None = None


def find_uncallable_signature(function: Function, count: int) -> str | None:
    """Return the signature of a function that cannot be called with ``count`` arguments, as text.

    None if it can be called so, and for the few whose signature cannot be read, like ``bool``.

    >>> find_uncallable_signature(lambda message, more: True, 1)
    '(message, more)'
    >>> find_uncallable_signature(lambda message, more=0: True, 1), find_uncallable_signature(bool, 1)
    (None, None)
    """
    try:
        found = signature(function)
    except (TypeError, ValueError):
        return None
    try:
        found.bind(*(None,) * count)
    except TypeError:
        return str(found)
    return None


def find_local_names(function: Function, depth: int) -> dict[str, Any]:
    """Return the local names of calling frames that string annotations of ``function`` may refer to.

    ``from __future__ import annotations`` leaves only text, and classes that are local to a function are
    reachable only from its frame: so they are looked up while that frame is still there, at decoration.
    """
    annotations = getattr(function, "__annotations__", {})  # functions in C have none
    texts = [text for text in annotations.values() if isinstance(text, str)]
    if not texts:
        return {}
    words = {word for text in texts for word in _find_words(text)}
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(depth)
    # Only the frames of what encloses the function in the source: "make.<locals>.Triage" in "make".
    while frame is not None and function.__qualname__.startswith(f"{frame.f_code.co_qualname}."):
        for word in words:
            if word in frame.f_locals:
                found.setdefault(word, frame.f_locals[word])
        frame = frame.f_back
    return found


def _find_words(text: str) -> set[str]:
    spaced = "".join(
        character if character.isidentifier() or character.isdigit() else " " for character in text
    )
    return set(spaced.split())


def read_signature(
    function: Function,
    place: str,
    declared: DeclaredTypes,
    locals_: dict[str, Any],
    *,
    answers: bool = False,
    variables: Mapping[Any, TypeForm] = MappingProxyType({}),
) -> HandlerSignature:
    """Read the types that the signature of ``function`` declares; ``place`` names it in errors.

    ``variables`` is what the type variables of its class stand for.
    """
    wanted = 2 if answers else 1
    parameters = _find_filled_parameters(function, wanted + 1)
    example = "request: str, response: bool" if answers else "message: str"
    shape = f"like (self, {example}, ctx: WorkflowContext[str]), but its signature is {signature(function)}"
    if not wanted <= len(parameters) <= wanted + 1 or any(p.kind in _VARIADIC for p in parameters):
        takes = "the request, the response" if answers else "a message"
        raise GraphError(f"{place} must take {takes} and optionally a context, {shape}")
    if isgeneratorfunction(function) or isasyncgenfunction(function):
        raise GraphError(
            f"{place} is a generator; give values out with ctx.send_message and ctx.yield_output instead of yield"
        )
    hints = _read_hints(function, place, locals_)
    if variables:
        hints = {name: substitute_variables(hint, variables) for name, hint in hints.items()}
        declared = DeclaredTypes(
            *(None if form is None else substitute_variables(form, variables) for form in declared)
        )
    for number, parameter in enumerate(parameters[:wanted], start=1):
        if _is_context(hints.get(parameter.name)):
            taken = "message" if not answers else "response" if number == wanted else "request"
            first = "the request and the response come" if answers else "the message comes"
            raise GraphError(f"{place} takes its context as its {taken}: {first} first, {shape}")
    said = _annotations_replaced(declared, parameters, wanted)
    for name in (*(parameter.name for parameter in parameters), "return"):
        if name in hints and name not in said:
            _check_no_variable(
                hints[name], "its result" if name == "return" else f"its parameter {name!r}", place
            )
    for keyword, form in zip(("input", "output", "workflow_output", "request"), declared, strict=True):
        _check_no_variable(form, f"{keyword}=", place)
    request = _declared_type(hints, parameters[0], place, declared.request, "request") if answers else None
    accepts = _declared_type(hints, parameters[wanted - 1], place, declared.accepts, "input")
    takes_context = len(parameters) > wanted
    is_async = iscoroutinefunction(function)
    sends: tuple[TypeForm, ...] = ()
    yields: tuple[TypeForm, ...] = ()
    if takes_context:
        context = parameters[wanted]
        sends, yields = _read_context_types(hints.get(context.name, WorkflowContext), context.name, place)
        if not is_async:
            raise GraphError(
                f"{place} is not async, so it cannot await its context: "
                f"write 'async def', or drop {context.name!r} and return the result"
            )
    return HandlerSignature(
        accepts=accepts,
        sends=sends if declared.sends is None else _drop_nothing(declared.sends),
        yields=yields if declared.yields is None else _drop_nothing(declared.yields),
        returns=_drop_nothing(hints.get("return", Any)),
        takes_context=takes_context,
        is_async=is_async,
        request=request,
    )


def _find_filled_parameters(function: Function, most: int) -> list[Parameter]:
    """Return the parameters of a handler that get an argument, without ``self``.

    What follows the context and has a default is left to that: the ``ct=None`` of programs that come from elsewhere.
    """
    parameters = [p for p in signature(function).parameters.values() if p.name != "self"]
    left = [p for p in parameters[most:] if p.default is Parameter.empty or p.kind in _STARRED]
    return [*parameters[:most], *left]


def _declared_type(
    hints: dict[str, Any], parameter: Parameter, place: str, declared: TypeForm | None, keyword: str
) -> TypeForm:
    """Return the type of a parameter, by declaration or annotation."""
    if declared is not None:
        return declared
    if parameter.name not in hints:
        raise GraphError(
            f"{place} does not say what it takes: annotate its parameter {parameter.name!r}, "
            f"like {parameter.name}: str, or declare it with {keyword}=str"
        )
    return hints[parameter.name]


_STARRED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_VARIADIC = (*_STARRED, Parameter.KEYWORD_ONLY)


def _read_hints(function: Function, place: str, locals_: dict[str, Any]) -> dict[str, Any]:
    closure = (
        dict(zip(function.__code__.co_freevars, _closure_contents(function), strict=True))
        if function.__closure__
        else {}
    )
    try:
        return get_type_hints(function, localns={**closure, **locals_})
    except NameError as error:
        raise GraphError(
            f"{place}: the annotation {error.name!r} cannot be resolved; define {error.name!r} before the handler, "
            f"import it outside TYPE_CHECKING, or declare types with input=, output= and workflow_output="
        ) from error
    except Exception as error:  # an annotation is an expression, so anything may come of it
        raise GraphError(
            f"{place}: its annotations cannot be evaluated: {error!r}; write types there"
        ) from error


def _closure_contents(function: Function) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            contents.append(None)
    return contents


def _read_context_types(
    hint: TypeForm, name: str, place: str
) -> tuple[tuple[TypeForm, ...], tuple[TypeForm, ...]]:
    if hint is Any or hint is WorkflowContext:
        return (Any,), (Any,)
    origin: Any = get_origin(hint)
    if origin is WorkflowContext:
        sends, yields = get_args(hint)
        return _drop_nothing(sends), _drop_nothing(yields)
    raise GraphError(
        f"{place}: its second parameter {name!r} is the context, annotate it as WorkflowContext "
        f"or WorkflowContext[what it sends, what it yields]"
    )


def _is_context(hint: TypeForm) -> bool:
    origin: Any = get_origin(hint)
    return WorkflowContext in (hint, origin)


def _annotations_replaced(declared: DeclaredTypes, parameters: list[Parameter], wanted: int) -> set[str]:
    """Return the names of annotations that the decorator's types replace."""
    said = {"return"} if declared.sends is not None or declared.yields is not None else set()
    if declared.accepts is not None:
        said.add(parameters[wanted - 1].name)
    if declared.request is not None:
        said.add(parameters[0].name)
    if declared.sends is not None and declared.yields is not None:
        said |= {parameter.name for parameter in parameters[wanted:]}
    return said


def _check_no_variable(hint: TypeForm, what: str, place: str) -> None:
    """Refuse a type variable that may be anything: edges and messages could not be checked against it."""
    variable = open_variable(hint)
    if variable is not None:
        letter = variable.__name__
        raise GraphError(
            f"{place}: {what} names the type variable {letter}, which stands for any type and so says nothing of the "
            f"messages; name the types, here or in the decorator, or give {letter} a bound; of a generic class, name "
            f"them in one that is derived from it, like class Orders(Box[Order])"
        )


def _drop_nothing(form: TypeForm) -> tuple[TypeForm, ...]:
    """Return the members of ``form`` but for None and Never, which mean nothing."""
    return tuple(member for member in members(form) if not is_nothing(member))
