"""The public names: they exist, and each shows how it is used."""

import importlib
import inspect
import pkgutil
import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path

import pytest

import holdfast
from holdfast import agents, server

MODULES = ["holdfast", *(module.name for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."))]

# Python gives constants, NewTypes and aliases of types no place for a docstring.
DOCUMENTED = [
    name
    for name in holdfast.__all__
    if inspect.isclass(getattr(holdfast, name)) or inspect.isroutine(getattr(holdfast, name))
]
CLASSES = [name for name in DOCUMENTED if inspect.isclass(getattr(holdfast, name))]


def own_docstring(value: object) -> str:
    """The docstring that was written for this, not one that is inherited from ``str`` or ``Exception``."""
    return vars(value).get("__doc__") or ""


@pytest.mark.parametrize("module_name", MODULES)
def test_all_lists_names_that_exist(module_name: str) -> None:
    module = importlib.import_module(module_name)
    listed = getattr(module, "__all__", [])
    assert [name for name in listed if not hasattr(module, name)] == []
    assert len(set(listed)) == len(listed)


def test_a_module_is_not_taken_for_a_decorator() -> None:
    """``executor`` and ``handler`` are decorators, so ``workflow`` is looked for; it would be a module."""
    with pytest.raises(
        ImportError, match=r"^holdfast has no 'workflow': .*'WorkflowBuilder\(\.\.\.\)\.build\(\)'$"
    ):
        from holdfast import workflow  # noqa: F401
    from holdfast import Workflow

    assert Workflow is holdfast.Workflow
    assert "workflow" not in dir(holdfast)


@pytest.mark.parametrize(
    "name",
    [
        *DOCUMENTED,
        *(f"agents.{name}" for name in agents.__all__),
        *(f"server.{name}" for name in server.__all__),
    ],
)
def test_public_name_has_a_docstring_with_an_example(name: str) -> None:
    value = attrgetter(name)(holdfast)
    written = inspect.getdoc(value) if inspect.isroutine(value) else own_docstring(value)
    assert written, f"holdfast.{name} has no docstring"
    if inspect.isclass(value) and issubclass(value, Exception):
        # Errors may share: the example of a base class shows how those beneath it are met.
        written = "".join(
            own_docstring(base) for base in value.__mro__ if base.__module__.startswith("holdfast")
        )
    assert ">>>" in written, f"the docstring of holdfast.{name} shows no example (>>>)"


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_have_docstrings(name: str) -> None:
    cls = getattr(holdfast, name)
    bare = [
        attribute
        for part in cls.__mro__
        if part.__module__.startswith("holdfast")
        for attribute, value in vars(part).items()
        if not attribute.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property))
        and not inspect.getdoc(getattr(cls, attribute))
    ]
    assert bare == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_name_is_defined_in_holdfast(name: str) -> None:
    assert getattr(holdfast, name).__module__.partition(".")[0] == "holdfast"


def test_the_version_is_that_of_the_package() -> None:
    """One place says it: the metadata of the package, which are read when it is asked for."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert holdfast.__version__ == version("holdfast") == project["version"]
    assert "__version__" not in vars(holdfast)


def test_the_version_of_a_source_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", not_found)
    assert holdfast.__version__ == "0+unknown"


def documented_members(page: str, name: str) -> list[str]:
    """The members of a class that its page of the reference lists; all public ones of the class if it lists none."""
    text = (Path(__file__).parent.parent / "docs" / "reference" / "api" / page).read_text("utf-8")
    (section,) = re.findall(rf"^::: holdfast\.{name}\n((?:    .*\n)*)", text, re.MULTILINE)
    return re.findall(r"^        - (\w+)$", section, re.MULTILINE)


async def test_completion_shows_what_the_reference_has() -> None:
    """What is public for other parts of the library only is not offered to those who press the tab key."""
    storage = holdfast.InMemoryCheckpointStorage()

    @holdfast.executor
    def shout(text: str) -> str:
        return text.upper()

    workflow = holdfast.WorkflowBuilder(name="Shout").set_start_executor(shout).build()
    run = await workflow.start("x", storage=storage)
    result = await run.wait_for_completion()
    for thing, page, name in (
        (run, "runs.md", "Run"),
        (result, "runs.md", "RunResult"),
        (workflow, "workflows.md", "Workflow"),
        (storage, "storage.md", "CheckpointStorage"),
    ):
        offered = [member for member in dir(thing) if not member.startswith("_")]
        assert offered == documented_members(page, name), name
        assert "__class__" in dir(thing)
