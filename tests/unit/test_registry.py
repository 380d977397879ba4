"""Which classes are allowed: by declaration, through fields, by derivation, by decoration."""

import enum
import gc
import subprocess
import sys
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar

import msgspec
import pydantic
import pytest
import typing_extensions

from holdfast import (
    Codec,
    Executor,
    RequestInfoExecutor,
    StateKey,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    checkpointable,
    executor,
    handler,
    response_handler,
)
from holdfast.checkpoint.codec.registry import declared_forms
from holdfast.errors import GraphError, InvalidArgument, NotCheckpointable, UnknownType
from tests.support.parts import TypeRegistry

pytestmark = pytest.mark.usefixtures("own_marks")

T = TypeVar("T")


class Leaf(enum.Enum):
    A = 1


@dataclass
class Item:
    leaf: Leaf


@dataclass
class Bin:
    items: "list[Item]"


class Row(NamedTuple):
    item: Item | None


class Sheet(typing_extensions.TypedDict, total=False):
    rows: typing_extensions.Required[dict[str, tuple[Row, ...]]]


class Model(pydantic.BaseModel):
    sheet: Sheet


class Struct(msgspec.Struct):
    model: Model


@dataclass
class Crate(Generic[T]):
    content: T


@dataclass
class ItemCrate(Crate[Item]):
    pass


Bound = TypeVar("Bound", bound=Item)
ItemId = NewType("ItemId", Item)


class TypeAliasType:
    """As ``type Alias = list[Item] | list[Alias]`` makes one, which this version of Python may not have."""

    __type_params__ = ()

    @property
    def __value__(self) -> Any:
        return list[Item] | list[self]


@checkpointable
class Plain:
    item: Item


FORMS: dict[str, Any] = {
    "class": Item,
    "through fields": Bin,
    "named tuple": Row,
    "typed dict": Sheet,
    "pydantic": Model,
    "msgspec": Struct,
    "plain": Plain,
    "list": list[Item],
    "dict": dict[str, list[Item]],
    "tuple": tuple[int, *tuple[Item, ...]],
    "union": int | Item | None,
    "optional": typing.Optional[Item],  # noqa: UP045
    "annotated": Annotated[Item, ["a note that cannot be hashed"]],
    "new type": ItemId,
    "type variable": Bound,
    "alias": TypeAliasType(),
    "generic argument": Crate[Item],
    "generic base": ItemCrate,
    "callable": typing.Callable[[Item], None],
    "literal": Literal[Leaf.A],
    "type": type[Item],
}


@pytest.mark.parametrize("form", [pytest.param(form, id=name) for name, form in FORMS.items()])
def test_classes_are_found_in_forms_and_through_fields(form: Any) -> None:
    registry = TypeRegistry()
    assert registry.name_of(Leaf) is None
    for _ in range(2):
        registry.declare(form, "a test")
        assert registry.name_of(Leaf) == "Leaf"
        assert registry.class_of("Leaf") is Leaf


@pytest.mark.parametrize("form", [int, None, Any, object, list, "text", 5, ..., T, typing.Never], ids=repr)
def test_forms_without_classes_allow_nothing(form: Any) -> None:
    registry = TypeRegistry([("a test", form)])
    assert registry.class_of("int") is None
    assert registry.name_of(int) is registry.name_of(object) is None


def test_derived_classes_are_allowed() -> None:
    @dataclass
    class Child(Bin):
        more: int = 0

    registry = TypeRegistry([("a test", Bin)])
    name = "test_derived_classes_are_allowed.<locals>.Child"
    assert registry.class_of(name) is Child
    assert registry.name_of(Child) == name
    assert TypeRegistry().class_of(name) is None


@pytest.mark.parametrize(
    "base",
    [object, Exception, enum.Enum, tuple, pydantic.BaseModel, msgspec.Struct],
    ids=lambda cls: cls.__name__,
)
def test_what_is_derived_from_the_language_or_a_library_is_not_allowed(base: type) -> None:
    registry = TypeRegistry([("a test", base)])
    assert registry.name_of(Model) is registry.name_of(Struct) is registry.name_of(Leaf) is None
    assert registry.class_of("Model") is registry.class_of("Struct") is registry.class_of("Leaf") is None


def made(name: str, module: str) -> type:
    return dataclass(type(name, (), {"__module__": module, "__annotations__": {"x": int}}))


def test_two_classes_of_one_name_cannot_be_declared() -> None:
    registry = TypeRegistry([("executor 'a'", made("Report", "one"))])
    with pytest.raises(GraphError) as refused:
        registry.declare(list[made("Report", "two")], "executor 'b'")  # type: ignore[misc]
    assert str(refused.value) == (
        "executor 'b': two.Report and one.Report, declared by executor 'a', are two classes with one name in stored "
        "data, 'Report'; give one of them another: @checkpointable(name=...)"
    )
    registry.declare(checkpointable(name="Other")(made("Report", "three")), "executor 'c'")
    assert registry.class_of("Other") is not registry.class_of("Report")


# -- decoration --------------------------------------------------------------------------------------


def test_a_decorated_class_is_allowed_everywhere_while_it_lives() -> None:
    decorated = checkpointable(name="Shortlived")(made("Decorated", "one"))
    registry = TypeRegistry()
    assert registry.name_of(decorated) == "Shortlived"
    assert registry.class_of("Shortlived") is decorated
    del decorated
    gc.collect()
    assert registry.class_of("Shortlived") is None


def test_a_declared_class_wins_over_a_decorated_one_and_the_newest_of_those() -> None:
    first, second = (checkpointable(name="Twice")(made("Twice", module)) for module in ("one", "two"))
    assert TypeRegistry().class_of("Twice") is second
    assert TypeRegistry([("a test", first)]).class_of("Twice") is first


def test_what_would_be_read_as_another_class_is_not_written() -> None:
    first, second = (checkpointable(name="Taken")(made("Taken", module)) for module in ("one", "two"))
    assert Codec().decode(Codec().encode(second(1))) == second(1)
    with pytest.raises(NotCheckpointable) as refused:
        Codec().encode(first(1))
    assert str(refused.value) == (
        "value: Taken of one is called 'Taken' in stored data, as is that of two; give one of them another name: "
        "@checkpointable(name=...)"
    )


def test_derived_classes_of_one_name_are_not_written() -> None:
    """Whoever reads one of them, in another process, has nothing that says which of the two it was."""
    twins: list[Any] = [dataclass(type("Twin", (Bin,), {"__module__": name})) for name in ("one", "two")]
    codec = Codec(TypeRegistry([("a test", Bin)]))
    for twin, other in (twins, twins[::-1]):
        with pytest.raises(NotCheckpointable) as refused:
            codec.encode(twin([]))
        assert str(refused.value) == (
            f"value: Twin of {twin.__module__} is called 'Twin' in stored data, as is that of {other.__module__}; "
            "give one of them another name: @checkpointable(name=...)"
        )
    checkpointable(name="Other")(twins[1])
    for named in twins:
        assert type(codec.decode(Codec(TypeRegistry([("a test", Bin)])).encode(named([])))) is named


def test_a_derived_class_of_a_program_that_is_imported_too_has_no_twin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_as, imported = types.ModuleType("__main__"), types.ModuleType("derived_app")
    for module in (run_as, imported):
        module.__file__ = "/somewhere/derived_app.py"
        monkeypatch.setitem(sys.modules, module.__name__, module)
    once: list[Any] = [
        dataclass(type("RunAndImported", (Bin,), {"__module__": module.__name__}))
        for module in (run_as, imported)
    ]
    codec = Codec(TypeRegistry([("a test", Bin)]))
    assert isinstance(codec.decode(codec.encode(once[0]([]))), tuple(once))


def test_a_class_that_was_defined_again_reads_what_the_old_one_wrote() -> None:
    old, new = (checkpointable(made("Again", "notebook")) for _ in range(2))
    assert Codec().decode(Codec().encode(old(1))) == new(1)


def test_decorating_says_what_is_wrong() -> None:
    with pytest.raises(InvalidArgument, match=r"^@checkpointable is for classes, not for 5$"):
        checkpointable(5)  # type: ignore[call-overload]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": ""}, "name must be a text that is not empty, not ''"),
        ({"version": 0}, "version must be a whole number of at least 1, not 0"),
        ({"version": True}, "version must be a whole number of at least 1, not True"),
        ({"upgrade": 5}, "upgrade must be a function (version, fields), not 5"),
    ]
    for wrong, complaint in cases:
        with pytest.raises(InvalidArgument) as refused:
            checkpointable(**wrong)(Item)
        assert str(refused.value) == f"@checkpointable of Item: {complaint}"


def test_a_mark_is_not_inherited() -> None:
    parent: Any = checkpointable(name="Parent", version=3)(made("P", "one"))
    child: Any = dataclass(type("Child", (parent,), {"__module__": "one"}))
    assert TypeRegistry().name_of(child) == "Child"
    assert [TypeRegistry().class_of("Child")] == [child]
    back = Codec().decode(Codec().encode(child(1)))
    assert (type(back), back.x) == (child, 1)


# -- what a workflow declares ------------------------------------------------------------------------


class Asked(NamedTuple):
    x: int


class Answer(NamedTuple):
    x: int


class Sent(NamedTuple):
    x: int


class Yielded(NamedTuple):
    x: int


class InGlobals(NamedTuple):
    x: int


class InClosure(NamedTuple):
    x: int


class OnClass(NamedTuple):
    x: int


class InModule(NamedTuple):
    x: int


class InLambda(NamedTuple):
    x: int


class Wanted(NamedTuple):
    x: int


TOTAL = StateKey("total", InGlobals)
NESTED = StateKey("nested", InLambda)
keys = types.ModuleType("keys")
keys.SHARED = StateKey("shared", InModule)  # type: ignore[attr-defined]


def asking() -> type[Executor]:
    local = StateKey("local", list[InClosure])

    class Ask(Executor):
        own = StateKey("own", OnClass)

        @handler
        async def ask(self, message: str, ctx: WorkflowContext[Sent, Yielded]) -> None:
            await ctx.read_state(TOTAL)
            await self.helped(ctx)

        async def helped(self, ctx: WorkflowContext[Sent, Yielded]) -> None:
            await ctx.read_state(keys.SHARED)
            await (lambda: ctx.read_state(NESTED))()
            await ctx.read_state(local)

        @response_handler
        async def answered(self, request: Asked, response: Answer, ctx: WorkflowContext[Sent]) -> None: ...

    return Ask


@executor
async def count(message: Item, ctx: WorkflowContext[None, int]) -> None:
    await ctx.read_state(TOTAL)


def names_in(workflow: Any) -> dict[str, str]:
    return {form.__name__: where for where, form in declared_forms(workflow.graph) if isinstance(form, type)}


def test_a_workflow_declares_what_its_handlers_and_state_keys_say() -> None:
    found = names_in(WorkflowBuilder(name="W").set_start_executor(asking()).build())
    expected = {"Asked", "Answer", "Sent", "Yielded", "InGlobals", "OnClass", "InModule", "InLambda", "str"}
    assert expected <= set(found)
    assert set(found.values()) == {"executor 'Ask'"}
    registry = TypeRegistry(
        declared_forms(WorkflowBuilder(name="W").set_start_executor(asking()).build().graph)
    )
    assert registry.name_of(InClosure) == "InClosure"


@pytest.mark.parametrize("placed", ["class", "recipe", "instance"])
def test_however_an_executor_is_placed(placed: str) -> None:
    cls = asking()
    start: Any = {"class": cls, "recipe": cls.bind(id="x"), "instance": cls("x")}[placed]
    assert "OnClass" in names_in(WorkflowBuilder(name="W").set_start_executor(start).build())


def test_functions_and_nested_workflows_declare_too() -> None:
    inner = WorkflowBuilder(name="Inner").set_start_executor(count).build()
    outer = WorkflowBuilder(name="Outer").set_start_executor(WorkflowExecutor(inner, id="sub")).build()
    assert names_in(outer) == dict.fromkeys(("Item", "int", "InGlobals"), "executor 'sub/count'")


@pytest.mark.parametrize(
    "ask",
    [
        RequestInfoExecutor("ask", response_type=Wanted),
        RequestInfoExecutor.bind(id="ask", response_type=Wanted),
    ],
    ids=["instance", "recipe"],
)
def test_the_response_that_is_asked_for_is_declared(ask: Any) -> None:
    assert "Wanted" in names_in(WorkflowBuilder(name="W").set_start_executor(ask).build())


# -- the program and the module ------------------------------------------------------------------------

APP = """
import sys
from dataclasses import dataclass, field
from enum import Enum
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.registry import TypeRegistry

class Kind(Enum):
    GOOD = 1

@dataclass
class Report:
    title: str
    kinds: set[Kind] = field(default_factory=set)

codec = Codec(TypeRegistry([("app", Report)]))

def main(data=None):
    if data is None:
        sys.stdout.write(codec.encode(Report("Q3", {Kind.GOOD})).hex())
    else:
        report = codec.decode(bytes.fromhex(data))
        assert type(report) is Report, report
        assert report.kinds == {Kind.GOOD}, report
        sys.stdout.write(report.title)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def test_a_program_and_its_module_read_each_other(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    imported = "import sys, app; app.main(*sys.argv[1:])"
    assert run("-c", imported, run("app.py")) == "Q3"
    assert run("app.py", run("-c", imported)) == "Q3"
    assert run("app.py") == run("-c", imported)


def test_data_of_a_class_that_is_not_declared_is_refused() -> None:
    data = Codec(TypeRegistry([("a test", Item)])).encode(Item(Leaf.A))
    with pytest.raises(
        UnknownType, match=r"^state: the data has the type 'Leaf', which is not declared here; name it"
    ):
        Codec().decode(data, "state")
