"""What is wrong in a workflow, an input or a value is said in words that name the place and the fix."""

import asyncio
import functools
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast import (
    Case,
    ChangedAfterCapture,
    ConditionFailed,
    Default,
    Executor,
    ExecutorFailed,
    GraphError,
    InvalidArgument,
    LimitExceeded,
    Limits,
    NotCheckpointable,
    StateKey,
    SuperstepLimit,
    UnroutedMessage,
    WaitingFanIn,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WrongType,
    executor,
    handler,
    response_handler,
)
from tests.support.runs import cause_of_failure, soon, warnings_of

ANYTHING: Any = None
T = TypeVar("T")


@executor
def upper(text: str) -> str:
    return text.upper()


@executor
def lower(text: str) -> str:
    return text.lower()


@executor
def length(text: str) -> int:
    return len(text)


@executor
def double(number: int) -> int:
    return number * 2


@executor
async def silent(text: str, ctx: WorkflowContext[None]) -> None: ...


class Twice(Executor):
    @handler
    async def first(self, text: str, ctx: WorkflowContext) -> None: ...

    @handler
    async def second(self, words: str, ctx: WorkflowContext) -> None: ...


class Bare(Executor):
    @handler
    async def work(self, text, ctx: WorkflowContext) -> None: ...


class Blocking(Executor):
    @handler(input=str)
    def work(self, text: str, ctx: WorkflowContext) -> None: ...


class Idle(Executor):
    async def not_a_handler(self, text: str) -> None: ...


class Greedy(Executor):
    @handler(input=str)
    async def work(self, text: str, ctx: WorkflowContext, more: int) -> None: ...


class Strange(Executor):
    @handler(input=str)
    async def work(self, text: str, ctx: int) -> None: ...


class Undefined(Executor):
    @handler
    async def work(self, text: "Nowhere", ctx: WorkflowContext) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class Shared(Executor):
    shareable = True

    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...


class SharedField(Shared):
    checkpointed = ("count",)


class SharedSaving(Shared):
    async def on_checkpointing(self, ctx: WorkflowContext) -> None: ...


class SharedRestored(Shared):
    async def on_checkpoint_restored(self, ctx: WorkflowContext) -> None: ...


class OwnField(Executor):
    checkpointed = ("count",)

    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...


class Forgetful(Executor):
    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...

    async def reset(self, hard: bool) -> None: ...


class Flagged(Executor):
    def __init__(self) -> None:
        super().__init__()
        self.reset = True

    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...


class Saving(Executor):
    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...

    async def on_checkpointing(self) -> None: ...  # type: ignore[override]


class Unspecific(Executor):
    @handler
    async def work(self, items: list[T], ctx: WorkflowContext) -> None: ...


class Answered(Executor):
    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...

    @response_handler
    async def answered(self, plan: str, ctx: WorkflowContext) -> None: ...


class Needy(Executor):
    def __init__(self, threshold: int) -> None:
        super().__init__()
        self.threshold = threshold

    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None: ...


def started() -> WorkflowBuilder:
    return WorkflowBuilder(name="W").set_start_executor(upper)


def variable(message: T) -> T:
    return message


async def variable_out(message: str, ctx: WorkflowContext[T]) -> None: ...


async def context_only(ctx: WorkflowContext) -> None: ...


async def context_first(ctx: WorkflowContext[str], text: str) -> None: ...


async def ask(message: str) -> bool:
    return True


def plain(text: str) -> str:
    return text


def never(message: object) -> bool:
    return False


def of_two(message: object, more: object) -> bool:
    return True


def of_one(message: object) -> list[str]:
    return []


def own_sharing() -> OwnField:
    kept = OwnField()
    kept.shareable = True  # type: ignore[misc]
    return kept


def none_selected(message: object, targets: list[str]) -> list[str]:
    return []


FIX_UNKNOWN = (
    "which is not in the workflow; known are 'upper', 'lower'; "
    "add it with register_executor(..., name='nobody') or put the executor itself in the edge"
)

SHARED = (
    "says 'shareable = True', so one object serves several runs at once and cannot hold what belongs to one of them, "
    "but it has {}; keep that in state, with ctx.queue_state_update, or drop 'shareable' and put the class in the edges"
)
RESET = (
    "is called without arguments before the instance serves another run; give its parameters defaults, "
    "give it another name, or put the class {0} or {0}.bind(...) in the edges"
)
VARIABLE = (
    "names the type variable T, which stands for any type and so says nothing of the messages; "
    "name the types, here or in the decorator, or give T a bound; "
    "of a generic class, name them in one that is derived from it, like class Orders(Box[Order])"
)

BUILD_ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    "no start": (
        lambda: WorkflowBuilder().build(),
        "workflow '(unnamed)' has no start executor; call set_start_executor(...) before build()",
    ),
    "unknown start": (
        lambda: WorkflowBuilder().set_start_executor("nobody").build(),
        (
            "the start executor 'nobody' is not in the workflow; "
            "register it with register_executor(..., name='nobody') or pass the executor itself"
        ),
    ),
    "two starts": (
        lambda: started().set_start_executor(lower),
        "the start executor is 'upper' already, it cannot be 'lower' too",
    ),
    "unknown id in an edge": (
        lambda: started().add_edge(upper, lower).add_edge(lower, "nobody").build(),
        f"edge 'lower' -> 'nobody' names the executor 'nobody', {FIX_UNKNOWN}",
    ),
    "unknown id in a fan-out": (
        lambda: started().add_fan_out_edges(upper, [lower, "nobody"]).build(),
        f"fan-out 'upper' -> 'lower', 'nobody' names the executor 'nobody', {FIX_UNKNOWN}",
    ),
    "unknown id in a fan-in": (
        lambda: started().add_edge(upper, lower).add_fan_in_edges(["nobody"], lower).build(),
        f"fan-in 'nobody' -> 'lower' names the executor 'nobody', {FIX_UNKNOWN}",
    ),
    "unknown id in a switch": (
        lambda: started().add_switch_case_edge_group(upper, [Case(never, "nobody"), Default(lower)]).build(),
        f"switch 'upper' -> 'nobody', 'lower' names the executor 'nobody', {FIX_UNKNOWN}",
    ),
    "unknown id in a multi-selection": (
        lambda: (
            started().add_multi_selection_edge_group(upper, [lower, "nobody"], selection_func=none_selected)
        ).build(),
        f"multi-selection 'upper' -> 'lower', 'nobody' names the executor 'nobody', {FIX_UNKNOWN}",
    ),
    "unknown id in with_output_from": (
        lambda: started().with_output_from("nobody").build(),
        "with_output_from names 'nobody', which is not in the workflow; known are 'upper'",
    ),
    "unreachable": (
        lambda: started().add_edge(length, double).build(),
        "no path leads from the start executor 'upper' to 'length', 'double'; add an edge to it or remove it",
    ),
    "unreachable, registered only": (
        lambda: started().register_executor(lambda: lower, name="spare").build(),
        "no path leads from the start executor 'upper' to 'spare'; add an edge to it or remove it",
    ),
    "types that cannot match": (
        lambda: started().add_edge(upper, double, label="twice").build(),
        (
            "edge 'upper' -> 'double' [twice]: 'upper' sends str, but 'double' takes int; "
            "give 'double' a handler for it, or change what 'upper' sends"
        ),
    ),
    "types that cannot match in a fan-in": (
        lambda: started().add_edge(upper, length).add_fan_in_edges([length], double).build(),
        (
            "fan-in 'length' -> 'double': 'length' sends list[int] (a fan-in delivers a list), but 'double' takes int; "
            "give 'double' a handler for it, or change what 'length' sends"
        ),
    ),
    "an edge from an executor that sends nothing": (
        lambda: WorkflowBuilder().set_start_executor(silent).add_edge(silent, upper).build(),
        (
            "edge 'silent' -> 'upper': executor 'silent' declares that it sends nothing; annotate its context "
            "as WorkflowContext[what it sends], give its handler a return type, or remove the edge"
        ),
    ),
    "duplicate edge": (
        lambda: started().add_edge(upper, lower).add_edge(upper, lower).build(),
        "edge 'upper' -> 'lower' was added twice; remove one, or give them different conditions",
    ),
    "duplicate edge with one condition": (
        lambda: started().add_edge(upper, lower, condition=never).add_edge(upper, lower, never).build(),
        "edge 'upper' -> 'lower' was added twice; remove one, or give them different conditions",
    ),
    "duplicate fan-in": (
        lambda: (
            started()
            .add_edge(upper, length)
            .add_fan_in_edges([length], "sum")
            .add_fan_in_edges([length], "sum")
            .register_executor(lambda: Joiner(), name="sum")
            .build()
        ),
        "fan-in 'length' -> 'sum' was added twice; remove one, or give them different conditions",
    ),
    "a target twice in one edge": (
        lambda: started().add_fan_out_edges(upper, [lower, lower]).build(),
        "fan-out 'upper' -> 'lower', 'lower' names 'lower' twice; name it once",
    ),
    "two handlers for one type": (
        lambda: WorkflowBuilder().set_start_executor(Twice),
        "executor 'Twice' has two handlers for str: 'first' and 'second'; remove one of them or narrow its type",
    ),
    "no handler": (
        lambda: WorkflowBuilder().set_start_executor(Idle),
        (
            "executor 'Idle' has no handler; decorate a method with @handler, "
            "like: @handler async def work(self, message: str, ctx: WorkflowContext[str])"
        ),
    ),
    "shareable instance with a checkpointed field": (
        lambda: WorkflowBuilder().set_start_executor(SharedField()),
        f"executor 'SharedField' {SHARED.format('checkpointed')}",
    ),
    "shareable class with a checkpointed field": (
        lambda: WorkflowBuilder().set_start_executor(SharedField),
        f"executor 'SharedField' {SHARED.format('checkpointed')}",
    ),
    "shareable executor of a factory with a checkpointed field": (
        lambda: WorkflowBuilder().register_executor(SharedField, name="kept"),
        f"executor 'kept' {SHARED.format('checkpointed')}",
    ),
    "instance that says itself that it is shareable, with a checkpointed field": (
        lambda: WorkflowBuilder().set_start_executor(own_sharing()),
        f"executor 'OwnField' {SHARED.format('checkpointed')}",
    ),
    "shareable instance that saves": (
        lambda: WorkflowBuilder().set_start_executor(SharedSaving()),
        f"executor 'SharedSaving' {SHARED.format('on_checkpointing')}",
    ),
    "shareable instance that is restored": (
        lambda: WorkflowBuilder().set_start_executor(SharedRestored()),
        f"executor 'SharedRestored' {SHARED.format('on_checkpoint_restored')}",
    ),
    "reset that needs an argument": (
        lambda: WorkflowBuilder().set_start_executor(Forgetful()),
        f"executor 'Forgetful': reset(hard: bool) -> None {RESET.format('Forgetful')}",
    ),
    "reset that is no method": (
        lambda: WorkflowBuilder().set_start_executor(Flagged()),
        f"executor 'Flagged': reset, which is a bool, {RESET.format('Flagged')}",
    ),
    "hook without a context": (
        lambda: WorkflowBuilder().set_start_executor(Saving),
        (
            "executor 'Saving': on_checkpointing is called with a context, like (self, ctx: WorkflowContext), "
            "but its signature is (self) -> None"
        ),
    ),
    "handler of a type variable": (
        lambda: executor(variable),
        f"executor 'variable': its parameter 'message' {VARIABLE}",
    ),
    "handler of something with a type variable in it": (
        lambda: WorkflowBuilder().set_start_executor(Unspecific),
        f"handler Unspecific.work: its parameter 'items' {VARIABLE}",
    ),
    "context of a type variable": (
        lambda: executor(variable_out),
        f"executor 'variable_out': its parameter 'ctx' {VARIABLE}",
    ),
    "only a context": (
        lambda: executor(context_only),
        (
            "executor 'context_only' takes its context as its message: the message comes first, "
            "like (self, message: str, ctx: WorkflowContext[str]), but its signature is "
            "(ctx: holdfast.graph.context.WorkflowContext) -> None"
        ),
    ),
    "context before the message": (
        lambda: executor(context_first),
        (
            "executor 'context_first' takes its context as its message: the message comes first, "
            "like (self, message: str, ctx: WorkflowContext[str]), but its signature is "
            "(ctx: holdfast.graph.context.WorkflowContext[str, typing.Any], text: str) -> None"
        ),
    ),
    "response handler without a response": (
        lambda: WorkflowBuilder().set_start_executor(Answered),
        (
            "response handler Answered.answered takes its context as its response: the request and the response come "
            "first, like (self, request: str, response: bool, ctx: WorkflowContext[str]), but its signature is "
            "(self, plan: str, ctx: holdfast.graph.context.WorkflowContext) -> None"
        ),
    ),
    "condition of two parameters": (
        lambda: started().add_edge(upper, lower, condition=ANYTHING or of_two).build(),  # type: ignore[arg-type]
        (
            "edge 'upper' -> 'lower': its condition is called with the message, but its signature is "
            "(message: object, more: object) -> bool"
        ),
    ),
    "condition of two parameters in a switch": (
        lambda: started().add_switch_case_edge_group(upper, [Case(ANYTHING or of_two, lower)]).build(),  # type: ignore[arg-type]
        (
            "switch 'upper' -> 'lower': its condition is called with the message, but its signature is "
            "(message: object, more: object) -> bool"
        ),
    ),
    "selection of one parameter": (
        lambda: started().add_multi_selection_edge_group(upper, [lower], ANYTHING or of_one).build(),  # type: ignore[arg-type]
        (
            "multi-selection 'upper' -> 'lower': its selection_func is called with the message and the target ids, but "
            "its signature is (message: object) -> list[str]"
        ),
    ),
    "merge of one parameter": (
        lambda: started().with_state_merge("Totals", None, ANYTHING or of_one),  # type: ignore[arg-type]
        (
            "with_state_merge('Totals', None): a merge is called with the value that is there and the update, but its "
            "signature is (message: object) -> list[str]"
        ),
    ),
    "outputs from nobody": (
        lambda: started().with_output_from(),
        "with_output_from() names no executor, so the workflow would give nothing out; name one, or leave it out",
    ),
    "outputs from one that gives nothing out": (
        lambda: started().add_edge(upper, lower).with_output_from(upper).build(),
        (
            "with_output_from names 'upper', which gives nothing out: it declares that it yields nothing, and what it "
            "returns goes along its edges, to 'lower'; let it call ctx.yield_output, declared as WorkflowContext[what "
            "it sends, what it yields], or leave it out of with_output_from"
        ),
    ),
    "outputs from two of which one gives nothing out": (
        lambda: started().add_edge(upper, lower).with_output_from(lower, upper).build(),
        (
            "with_output_from names 'upper', which gives nothing out: it declares that it yields nothing, and what it "
            "returns goes along its edges, to 'lower'; let it call ctx.yield_output, declared as WorkflowContext[what "
            "it sends, what it yields], or leave it out of with_output_from"
        ),
    ),
    "intermediate outputs from nobody": (
        lambda: started().with_intermediate_output_from(),
        "with_intermediate_output_from() names no executor, so it changes nothing; name one, or leave it out",
    ),
    "unknown id in with_intermediate_output_from": (
        lambda: started().with_intermediate_output_from("nobody").build(),
        "with_intermediate_output_from names 'nobody', which is not in the workflow; known are 'upper'",
    ),
    "intermediate outputs from a nested workflow whose outputs are sent": (
        lambda: (
            WorkflowBuilder(name="Outer")
            .set_start_executor(WorkflowExecutor(started().build(), id="in"))
            .add_edge("in", lower)
            .with_intermediate_output_from("in")
            .build()
        ),
        (
            "with_intermediate_output_from names 'in', which gives nothing out: the outputs of the workflow that it "
            "nests go along its edges, to 'lower'; leave it out of with_intermediate_output_from"
        ),
    ),
    "outputs that are both final and intermediate": (
        lambda: started().with_output_from(upper).with_intermediate_output_from(upper).build(),
        (
            "with_output_from and with_intermediate_output_from both name 'upper'; an output is one or the other: name "
            "each executor in one of them"
        ),
    ),
    "handler without annotation": (
        lambda: WorkflowBuilder().set_start_executor(Bare),
        (
            "handler Bare.work does not say what it takes: annotate its parameter 'text', "
            "like text: str, or declare it with input=str"
        ),
    ),
    "function without annotation": (
        lambda: executor(lambda message: message),
        (
            "executor '<lambda>' does not say what it takes: annotate its parameter 'message', "
            "like message: str, or declare it with input=str"
        ),
    ),
    "sync handler with a context": (
        lambda: WorkflowBuilder().set_start_executor(Blocking),
        (
            "handler Blocking.work is not async, so it cannot await its context: "
            "write 'async def', or drop 'ctx' and return the result"
        ),
    ),
    "handler with three parameters": (
        lambda: WorkflowBuilder().set_start_executor(Greedy),
        (
            "handler Greedy.work must take a message and optionally a context, "
            "like (self, message: str, ctx: WorkflowContext[str]), but its signature is "
            "(self, text: str, ctx: holdfast.graph.context.WorkflowContext, more: int) -> None"
        ),
    ),
    "context annotated as something else": (
        lambda: WorkflowBuilder().set_start_executor(Strange),
        (
            "handler Strange.work: its second parameter 'ctx' is the context, annotate it as WorkflowContext "
            "or WorkflowContext[what it sends, what it yields]"
        ),
    ),
    "annotation that cannot be resolved": (
        lambda: WorkflowBuilder().set_start_executor(Undefined),
        (
            "handler Undefined.work: the annotation 'Nowhere' cannot be resolved; define 'Nowhere' before the handler, "
            "import it outside TYPE_CHECKING, or declare types with input=, output= and workflow_output="
        ),
    ),
    "async condition": (
        lambda: started().add_edge(upper, lower, condition=ask).build(),
        (
            "edge 'upper' -> 'lower': its condition is async, but routing is a pure function of the message; "
            "do the awaiting in the executor 'upper' and put the result in the message"
        ),
    ),
    "async condition in a switch": (
        lambda: started().add_switch_case_edge_group(upper, [Case(ask, lower)]).build(),
        (
            "switch 'upper' -> 'lower': its condition is async, but routing is a pure function of the message; "
            "do the awaiting in the executor 'upper' and put the result in the message"
        ),
    ),
    "condition that is no function": (
        lambda: started().add_edge(upper, lower, condition=ANYTHING or "P0").build(),  # type: ignore[arg-type]
        "edge 'upper' -> 'lower': its condition must be a function, but it is a str",
    ),
    "plain function in an edge": (
        lambda: started().add_edge(upper, plain),  # type: ignore[arg-type]
        "function 'plain' is not an executor; decorate it with @executor",
    ),
    "class that is no executor": (
        lambda: started().add_edge(upper, dict),  # type: ignore[arg-type]
        "class dict is not an Executor; derive it from Executor",
    ),
    "number in an edge": (
        lambda: started().add_edge(upper, 5),  # type: ignore[arg-type]
        (
            "5 cannot stand in an edge; use an Executor class, Class.bind(...), an instance, "
            "a function decorated with @executor, or an id"
        ),
    ),
    "empty id": (
        lambda: started().add_edge(upper, ""),
        "executor id '' is empty",
    ),
    "id with a reserved character": (
        lambda: started().add_edge(upper, "a/b"),
        "executor id 'a/b' contains '/', which is kept for the paths of nested workflows",
    ),
    "id with a line break": (
        lambda: started().add_edge(upper, "a\nb"),
        "executor id 'a\\nb' contains the unprintable character '\\n'",
    ),
    "id that is too long": (
        lambda: started().add_edge(upper, "a" * 201),
        f"executor id {'a' * 201!r} has 201 characters, more than 200",
    ),
    "workflow name that is no text": (
        lambda: WorkflowBuilder(name=ANYTHING or 7),  # type: ignore[arg-type]
        "workflow name 7 is a int, not a str",
    ),
    "factory that gives no executor": (
        lambda: WorkflowBuilder().register_executor(lambda: ANYTHING, name="a"),
        "register_executor(name='a'): the factory must return an Executor, not None",
    ),
    "bad merge name": (
        lambda: started().with_state_merge("Totals", None, "sum"),
        (
            "with_state_merge('Totals', None): 'sum' is no merge; "
            "use a function or one of: last_write, append, add, union"
        ),
    ),
    "merge that is no function": (
        lambda: started().with_state_merge("Totals", None, 5),  # type: ignore[arg-type]
        "with_state_merge('Totals', None): a merge is a Merge or a function (current, update), not 5",
    ),
    "max_iterations of zero": (
        lambda: WorkflowBuilder(max_iterations=0),
        "max_iterations=0: must be a whole number of at least 1",
    ),
    "max_iterations that is true": (
        lambda: WorkflowBuilder(max_iterations=True),
        "max_iterations=True: must be a whole number of at least 1",
    ),
    "max_iterations with a fraction": (
        lambda: WorkflowBuilder(max_iterations=1.5),  # type: ignore[arg-type]
        "max_iterations=1.5: must be a whole number of at least 1",
    ),
    "chain of one": (
        lambda: started().add_chain([upper]),
        "add_chain needs at least two executors",
    ),
    "fan-out to nobody": (
        lambda: started().add_fan_out_edges(upper, []),
        "add_fan_out_edges: targets must be a list of at least one executor, not []",
    ),
    "fan-out to one that is not in a list": (
        lambda: started().add_fan_out_edges(upper, "lower"),
        "add_fan_out_edges: targets must be a list of at least one executor, not 'lower'",
    ),
    "fan-in from nobody": (
        lambda: started().add_fan_in_edges([], lower),
        "add_fan_in_edges: sources must be a list of at least one executor, not []",
    ),
    "switch without a case": (
        lambda: started().add_switch_case_edge_group(upper, []),
        "switch of 'upper': give at least one Case, and at most one Default as the last of all",
    ),
    "default before a case": (
        lambda: started().add_switch_case_edge_group(upper, [Default(lower), Case(never, length)]),
        "switch of 'upper': give at least one Case, and at most one Default as the last of all",
    ),
}


class Joiner(Executor):
    @handler
    async def join(self, parts: list, ctx: WorkflowContext) -> list[Any]:
        return parts


@pytest.mark.parametrize("case", BUILD_ERRORS)
def test_building_says_what_is_wrong(case: str) -> None:
    build, message = BUILD_ERRORS[case]
    with pytest.raises(GraphError) as caught:
        build()
    assert str(caught.value) == message


def test_duplicate_id_names_both_executors() -> None:
    with pytest.raises(GraphError) as caught:
        WorkflowBuilder().set_start_executor(Joiner).add_edge(Joiner, Needy.bind(id="Joiner", threshold=2))
    assert str(caught.value) == (
        f"two executors have the id 'Joiner': {Joiner!r} and Needy.bind(id='Joiner', threshold=2); "
        "give one of them another id, like Needy.bind(id='...')"
    )


def test_name_registered_twice() -> None:
    builder = WorkflowBuilder().register_executor(Joiner, name="join")
    with pytest.raises(GraphError, match=r"^executor 'join' is registered twice; give each its own name$"):
        builder.register_executor(Joiner, name="join")


def test_class_whose_arguments_are_missing() -> None:
    with pytest.raises(
        GraphError,
        match=r"^executor 'Needy' cannot be created: Needy\(threshold: int\).*: missing a required argument: "
        r"'threshold'; give its arguments with Needy\.bind\(\.\.\.\)$",
    ):
        WorkflowBuilder().set_start_executor(Needy)


@pytest.mark.parametrize(
    "annotation",
    ["int int", "int.missing", "int | 'x' | 1", "5"],
    ids=["syntax", "attribute", "type", "value"],
)
def test_annotation_that_is_no_type(annotation: str) -> None:
    async def work(message, ctx: WorkflowContext) -> None: ...

    work.__annotations__["message"] = annotation
    with pytest.raises(GraphError, match=r"^executor 'work'.*"):
        WorkflowBuilder().set_start_executor(executor(work))


def test_functions_that_can_be_called_are_accepted() -> None:
    """Also those whose signature nobody can read, with defaults, or for any number of arguments."""
    bound = TypeVar("bound", bound=str)

    def relaxed(message: object, more: int = 1) -> bool:
        return bool(message)

    def any_number(*messages: object) -> bool:
        return bool(messages)

    class Answering:
        def __call__(self, message: object) -> bool:
            return True

    async def bounded(message, ctx: WorkflowContext) -> None: ...

    bounded.__annotations__["message"] = bound
    executor(input=int, output=int)(variable)
    conditions: list[Any] = [bool, relaxed, any_number, Answering(), functools.partial(of_two, "P0")]
    builder = WorkflowBuilder(name="W").set_start_executor(executor(bounded))
    for condition in conditions:
        builder.add_edge("bounded", "bounded", condition=condition)
    builder.with_state_merge("Totals", None, max).with_state_merge("Names", None, any_number).build()


def test_condition_without_hash_is_accepted() -> None:
    @dataclass
    class AtLeast:
        size: int

        def __call__(self, message: str) -> bool:
            return len(message) >= self.size

    workflow = started().add_edge(upper, lower, condition=AtLeast(3)).build()
    assert workflow.run_sync("long").outputs == ["long"]


def test_bad_merge_name_in_a_state_key() -> None:
    with pytest.raises(GraphError) as caught:
        StateKey("total", int, merge="sum")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "StateKey('total'): 'sum' is no merge; use a function or one of: last_write, append, add, union"
    )


@pytest.mark.parametrize("name", ["max_deliveries", "max_concurrent_turns", "max_value_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "many", None, True])
def test_bad_limits(name: str, value: Any) -> None:
    with pytest.raises(
        InvalidArgument, match=re.escape(f"Limits({name}={value!r}): must be a whole number of at least 1")
    ):
        Limits(**{name: value})


# -- running ---------------------------------------------------------------------------------------


async def test_wrong_input_type() -> None:
    with pytest.raises(WrongType) as caught:
        await started().build().run(5)
    assert str(caught.value) == "workflow 'W' starts at 'upper', which takes str, but its input is a int: 5"


def test_wrong_input_type_says_so_before_the_run_begins() -> None:
    with pytest.raises(WrongType, match="which takes str, but its input is a list"):
        started().build().run_stream([1])


def test_long_wrong_input_is_shown_shortened() -> None:
    with pytest.raises(WrongType) as caught:
        started().build().run_sync(list(range(10_000)))
    assert len(str(caught.value)) < 300
    assert str(caught.value).endswith("...")


async def test_run_sync_inside_a_loop() -> None:
    with pytest.raises(RuntimeError) as caught:
        started().build().run_sync("text")
    assert (
        str(caught.value)
        == "run_sync was called inside a running event loop; use 'await workflow.run(...)' there"
    )


def sender(*messages: object, target_id: str | None = None) -> Any:
    @executor
    async def send(text: str, ctx: WorkflowContext) -> None:
        for message in messages:
            await ctx.send_message(message, target_id)

    return send


async def test_unroutable_message_is_warned_of_with_the_edges_that_refused_it() -> None:
    send = sender(5, "fine", 2.5)
    workflow = WorkflowBuilder().set_start_executor(send).add_edge(send, upper).add_edge(send, lower).build()
    warnings = await warnings_of(workflow, "go")
    assert [type(event.warning) for event in warnings] == [UnroutedMessage, UnroutedMessage]
    assert [event.message for event in warnings] == [
        f"executor 'send' sent {shown}, which reaches nobody: none of its edges (to 'upper', 'lower') took it; "
        "add an edge to an executor that takes it, or yield_output it"
        for shown in ("5 (int)", "2.5 (float)")
    ]
    assert [event.executor_id for event in warnings] == ["send", "send"]
    assert [event.superstep for event in warnings] == [1, 1]


async def test_message_without_any_edge() -> None:
    (warning,) = await warnings_of(WorkflowBuilder().set_start_executor(sender("lost")).build(), "go")
    assert warning.message == (
        "executor 'send' sent 'lost' (str), which reaches nobody: it has no outgoing edges; "
        "add an edge to an executor that takes it, or yield_output it"
    )


async def test_value_that_changes_after_it_was_sent() -> None:
    @executor
    async def careless(text: str, ctx: WorkflowContext) -> None:
        rows = [text]
        kept = {"rows": 1}
        yielded = [1]
        await ctx.send_message(rows)
        await ctx.queue_state_update("kept", kept)
        await ctx.yield_output(yielded)
        rows.append("late")
        kept["late"] = 2
        yielded.clear()

    join = Joiner(id="join")
    workflow = WorkflowBuilder().set_start_executor(careless).add_edge(careless, join).build()
    warnings = await warnings_of(workflow, "go")
    assert [type(event.warning) for event in warnings] == [ChangedAfterCapture] * 3
    assert [event.message for event in warnings] == [
        f"executor 'careless' changed a {kind} after the call that took it ({what}); "
        "others see it as it was at that call: make the change before, or send or queue it again"
        for kind, what in (("list", "message"), ("dict", "state 'kept'"), ("list", "output"))
    ]
    assert {event.executor_id for event in warnings} == {"careless"}
    assert (await workflow.run("go")).outputs == [[1], ["go"]]


async def test_value_that_does_not_change_is_not_warned_of() -> None:
    class Opaque:
        def __init__(self) -> None:
            self.rows = [float("nan"), 1, True]

    @executor
    async def careful(text: str, ctx: WorkflowContext) -> None:
        for value in ([float("nan")], {"a": [1]}, {1, 2}, Opaque(), bytearray(b"x"), [Opaque()]):
            await ctx.send_message(value)

    @executor
    async def take(value: object, ctx: WorkflowContext) -> None: ...

    workflow = WorkflowBuilder().set_start_executor(careful).add_edge(careful, take).build()
    assert await warnings_of(workflow, "go") == []


async def test_value_whose_comparison_raises_does_not_fail_the_run() -> None:
    class Touchy:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not comparable")

        __hash__ = None  # type: ignore[assignment]

    @executor
    async def send(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message([Touchy()])

    join = Joiner(id="join")
    workflow = WorkflowBuilder().set_start_executor(send).add_edge(send, join).build()
    assert len((await workflow.run("go")).outputs) == 1


async def test_fan_in_that_is_never_complete() -> None:
    join = Joiner(id="join")
    workflow = (
        started()
        .add_edge(upper, lower)
        .add_edge(upper, length, condition=never)
        .add_edge(upper, silent, condition=never)
        .add_fan_in_edges([length, lower, upper], join)
        .build()
    )
    (warning,) = await warnings_of(workflow, "text")
    assert isinstance(warning.warning, WaitingFanIn)
    assert warning.message == (
        "the run waits for messages: fan-in 'length', 'lower', 'upper' -> 'join' holds some and still needs one of "
        "'length', but nothing is left to do that could send it; a fan-in delivers once each of its sources has sent "
        "something"
    )
    assert warning.executor_id is None


# -- edges -----------------------------------------------------------------------------------------


def raising(message: str) -> bool:
    raise KeyError(message)


def raising_selection(message: str, targets: list[str]) -> list[str]:
    raise KeyError(message)


RULE = "it must give an answer for every message of the types that the target takes"


@pytest.mark.parametrize(
    ("build", "place"),
    [
        (
            lambda b: b.add_edge(upper, lower, raising, label="P0"),
            "edge 'upper' -> 'lower' [P0]: its condition",
        ),
        (
            lambda b: b.add_switch_case_edge_group(upper, [Case(never, length), Case(raising, lower)]),
            "switch 'upper' -> 'length', 'lower': its condition for target 'lower'",
        ),
        (
            lambda b: b.add_multi_selection_edge_group(upper, [lower, length], raising_selection),
            "multi-selection 'upper' -> 'lower', 'length': its selection",
        ),
    ],
    ids=["direct", "switch", "multi-selection"],
)
async def test_raising_condition(build: Callable[[WorkflowBuilder], WorkflowBuilder], place: str) -> None:
    with pytest.raises(ConditionFailed) as caught:
        await build(started()).build().run("text")
    assert str(caught.value) == f"{place} raised KeyError('TEXT') for the message 'TEXT' (str); {RULE}"
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.executor_id == "upper"


async def test_raising_condition_tells_the_run_and_the_superstep() -> None:
    run = await started().add_edge(upper, lower, condition=raising).build().start("text")
    with pytest.raises(ExecutorFailed) as caught:
        await run.wait_for_completion()
    assert (caught.value.run_id, caught.value.superstep) == (run.run_id, 1)


async def test_condition_is_not_asked_about_messages_for_another_target() -> None:
    send = sender("text", target_id="lower")
    builder = WorkflowBuilder().set_start_executor(send).add_edge(send, lower)
    workflow = builder.add_edge(send, upper, condition=raising).build()
    assert (await workflow.run("go")).outputs == ["text"]


async def test_condition_whose_answer_has_no_truth() -> None:
    class Vague:
        def __bool__(self) -> bool:
            raise ValueError("the truth of an array is ambiguous")

    workflow = started().add_edge(upper, lower, condition=lambda message: Vague()).build()
    with pytest.raises(
        ConditionFailed, match=r"^edge 'upper' -> 'lower': .*the truth of an array is ambiguous"
    ):
        await workflow.run("text")


def selecting(chosen: Any) -> Workflow:
    return started().add_multi_selection_edge_group(upper, [lower, length], lambda m, ids: chosen).build()


async def test_selection_that_chooses_a_foreign_target() -> None:
    with pytest.raises(ConditionFailed) as caught:
        await selecting(["lower", "upper"]).run("text")
    assert str(caught.value) == (
        "multi-selection 'upper' -> 'lower', 'length': its selection must return a list of ids "
        "out of ['lower', 'length'], but it returned ['lower', 'upper']"
    )


@pytest.mark.parametrize("chosen", [None, 5, "lower"])
async def test_selection_that_is_no_list(chosen: Any) -> None:
    with pytest.raises(ConditionFailed, match=r"^multi-selection 'upper' -> 'lower', 'length': "):
        await selecting(chosen).run("text")


@pytest.mark.parametrize("make", [list, tuple, set, iter], ids=["list", "tuple", "set", "iterator"])
async def test_selection_may_be_any_collection_of_ids(make: Callable[[Sequence[str]], Any]) -> None:
    result = await selecting(make(["length", "lower"])).run("text")
    assert result.outputs == ["text", 4]


@pytest.mark.parametrize(
    ("target_id", "reason"),
    [("nobody", "there is no such executor"), ("length", "no edge leads there")],
)
async def test_target_that_cannot_be_reached(target_id: str, reason: str) -> None:
    send = sender("text", target_id=target_id)
    workflow = (
        WorkflowBuilder()
        .set_start_executor(send)
        .add_edge(send, upper)
        .add_edge(send, lower)
        .add_edge(lower, length)
        .build()
    )
    cause = await cause_of_failure(workflow, "go", GraphError)
    assert str(cause) == (
        f"executor 'send' sent a message to '{target_id}', but {reason}; from 'send' edges lead to: 'upper', 'lower'"
    )


# -- values ----------------------------------------------------------------------------------------


@dataclass
class Row:
    handle: Any


@dataclass
class Table:
    rows: list[Row] = field(default_factory=list)


class Plain:
    def __init__(self, handle: object) -> None:
        self.handle = handle


def numbers() -> Any:
    yield 1


async def failing_capture(value: object) -> str:
    @executor
    async def send(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message(value)

    @executor
    async def take(value: object, ctx: WorkflowContext) -> None: ...

    workflow = WorkflowBuilder().set_start_executor(send).add_edge(send, take).build()
    return str(await cause_of_failure(workflow, "go", NotCheckpointable))


ADVICE = "send plain data, and open such things where they are used"


async def test_path_of_what_cannot_be_kept() -> None:
    lock = threading.Lock()
    places = {
        "message": lock,
        "message[1]": [1, lock],
        "message['a'][0]": {"a": (lock,)},
        "message.rows[3].handle": Table([Row(1), Row("x"), Row(None), Row(lock)]),
        "message.handle": Plain(lock),
        "message.handle[0].handle": Plain([Row(lock)]),
    }
    for place, value in places.items():
        assert await failing_capture(value) == f"{place}: lock is not checkpointable; {ADVICE}"


async def test_things_that_cannot_be_kept(tmp_path: Path) -> None:
    with (
        socket.socket() as connection,
        (tmp_path / "log").open("w", encoding="utf-8") as file,
        (tmp_path / "raw").open("wb") as raw,
    ):
        things = {
            "socket": connection,
            "TextIOWrapper": file,
            "BufferedWriter": raw,
            "generator": numbers(),
            "lock": threading.Lock(),
            "RLock": threading.RLock(),
            "module": re,
        }
        for kind, thing in things.items():
            message = await failing_capture([thing])
            assert message == f"message[0]: {kind} is not checkpointable; {ADVICE}"


async def test_state_and_output_that_cannot_be_kept() -> None:
    @executor
    async def work(what: str, ctx: WorkflowContext) -> None:
        lock = threading.Lock()
        if what == "state":
            await ctx.queue_state_update("key", [lock])
        elif what == "append":
            await ctx.append_state("key", lock)
        elif what == "own":
            await ctx.set_state({"a": lock})
        else:
            await ctx.yield_output({"a": lock})

    workflow = WorkflowBuilder().set_start_executor(work).build()
    places = {
        "state": "state 'key'[0]",
        "append": "state 'key'",
        "own": "state['a']",
        "output": "output['a']",
    }
    for what, place in places.items():
        cause = await cause_of_failure(workflow, what, NotCheckpointable)
        assert str(cause).startswith(f"{place}: lock is not checkpointable")


def test_input_that_cannot_be_kept() -> None:
    @executor
    async def take(value: object, ctx: WorkflowContext) -> None: ...

    with pytest.raises(NotCheckpointable, match=r"^input\['lock'\]: lock is not checkpointable"):
        WorkflowBuilder().set_start_executor(take).build().run_sync({"lock": threading.Lock()})


def cyclic_list() -> object:
    rows: list[object] = []
    rows.append(rows)
    return rows


def cyclic_dict() -> object:
    rows: dict[str, object] = {}
    rows["self"] = [rows]
    return rows


def cyclic_dataclass() -> object:
    row = Row(None)
    row.handle = row
    return row


@dataclass(frozen=True)
class Frozen:
    other: Any


def cyclic_frozen() -> object:
    frozen = Frozen(None)
    object.__setattr__(frozen, "other", frozen)
    return frozen


def deep(make: Callable[[Any], object]) -> object:
    value: object = None
    for _ in range(20_000):
        value = make(value)
    return value


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("list", cyclic_list),
        ("dict", cyclic_dict),
        ("Row", cyclic_dataclass),
        ("Frozen", cyclic_frozen),
        ("list", functools.partial(deep, lambda inner: [inner])),
        ("tuple", functools.partial(deep, lambda inner: (inner,))),
    ],
    ids=["list", "dict", "dataclass", "frozen dataclass", "deep list", "deep tuple"],
)
async def test_value_without_end(kind: str, make: Callable[[], object]) -> None:
    assert await failing_capture(make()) == f"message: {kind} contains itself or is nested too deeply"


# -- limits ----------------------------------------------------------------------------------------


async def test_superstep_limit() -> None:
    @executor
    async def again(number: int) -> int:
        return number + 1

    workflow = WorkflowBuilder(max_iterations=7).set_start_executor(again).add_edge(again, again).build()
    with pytest.raises(SuperstepLimit) as caught:
        await soon(workflow.run(0))
    assert str(caught.value) == (
        "the run took 7 supersteps since its last input and still has messages for 'again'; "
        "if this is no endless loop, allow more with WorkflowBuilder(max_iterations=...)"
    )
    assert (caught.value.limit, caught.value.allowed) == ("max_iterations", 7)


async def test_too_many_deliveries() -> None:
    send = sender(*["x"] * 4)
    builder = WorkflowBuilder(limits=Limits(max_deliveries=7)).set_start_executor(send)
    workflow = builder.add_fan_out_edges(send, [upper, lower]).build()
    with pytest.raises(LimitExceeded) as caught:
        await workflow.run("go")
    assert str(caught.value) == (
        "superstep 1 makes 8 deliveries, more than the 7 allowed; "
        "send fewer messages, or allow more with Limits(max_deliveries=...)"
    )
    assert caught.value.limit == "max_deliveries"


@pytest.mark.parametrize("value", ["x" * 11, ["x" * 6, {"k": b"y" * 5}], Row("x" * 11), "€" * 4], ids=str)
async def test_value_that_is_too_large(value: object) -> None:
    send = sender(value)
    workflow = WorkflowBuilder(limits=Limits(max_value_size=10)).set_start_executor(send).build()
    cause = await cause_of_failure(workflow, "go", LimitExceeded)
    assert str(cause) == (
        f"message: a {type(value).__name__} of more than 10 bytes; keep it outside and "
        "pass a reference, or allow more with Limits(max_value_size=...)"
    )


async def test_bad_state_keys() -> None:
    @executor
    async def work(what: str, ctx: WorkflowContext) -> None:
        if what == "number":
            await ctx.read_state(5)  # type: ignore[call-overload]
        elif what == "type":
            await ctx.queue_state_update(StateKey("raw", str, "Logs"), 5)  # type: ignore[misc]
        elif what == "nameless":
            await ctx.read_state_keys("")
        else:
            await ctx.read_state(StateKey("raw", str, "Logs"), scope_name="Other")

    workflow = WorkflowBuilder().set_start_executor(work).build()
    assert (
        str(await cause_of_failure(workflow, "number", WrongType))
        == "a state key is a str or a StateKey, not a int: 5"
    )
    assert (
        str(await cause_of_failure(workflow, "type", WrongType))
        == "state key 'raw' of scope 'Logs' is declared as str, "
        "but a value was queued that does not fit: a int, not str: 5"
    )
    assert str(await cause_of_failure(workflow, "nameless", InvalidArgument)) == (
        "scope_name='': a shared scope has a name; leave it out for the private scope"
    )
    assert str(await cause_of_failure(workflow, "scope", InvalidArgument)) == (
        "state key 'raw' belongs to scope 'Logs', but was used with scope_name='Other'; leave scope_name out"
    )


async def test_fan_in_list_that_its_target_does_not_take() -> None:
    @executor
    async def send(text: str, ctx: WorkflowContext) -> None:
        await ctx.send_message(text)

    workflow = WorkflowBuilder().set_start_executor(send).add_fan_in_edges([send], double).build()
    cause = await cause_of_failure(workflow, "go", WrongType)
    assert (
        str(cause)
        == "executor 'double' takes int, but got the message ['go'] (list); a fan-in delivers a list"
    )


async def test_sync_function_that_raises_stop_iteration_fails_instead_of_hanging() -> None:
    @executor
    def first(items: list) -> object:
        return next(iter(items))

    workflow = WorkflowBuilder().set_start_executor(first).build()
    with pytest.raises(ExecutorFailed, match="executor 'first' failed"):
        await asyncio.wait_for(workflow.run([]), timeout=5)


async def test_condition_that_returns_a_coroutine() -> None:
    async def later(message: str) -> bool:
        return True

    workflow = started().add_edge(upper, lower, condition=lambda message: later(message)).build()
    with pytest.raises(ConditionFailed, match="it returned a coroutine, but routing awaits nothing"):
        await workflow.run("text")


def test_a_method_written_in_c_is_refused_with_its_signature() -> None:
    with pytest.raises(
        GraphError, match=r"executor 'upper' must take a message .* its signature is \(self, /\)"
    ):
        executor(input=str)(str.upper)
