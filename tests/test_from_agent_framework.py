"""The page for those who come from Microsoft Agent Framework: its names exist, and so do the tests that it names."""

import ast
import inspect
import re
from dataclasses import Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import agents, compat
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "from-agent-framework.md").read_text(encoding="utf-8")
MAPPINGS = ("C# names", "Python names", "Workflow stores of HPD-Agent")
TESTED = "Each of these has a test"

# What the listings of the framework's two tutorials and its overview use of it; each must have a row.
IN_CSHARP = """
Build Checkpoint CheckpointId CheckpointInfo CheckpointManager Checkpointed Checkpoints CommitCheckpointAsync
CompletionInfo ConfigureAwait CancellationToken CreateFileStorage CreateInMemory CreateJson Data Default Executor
ExecutorCompletedEvent ExecutorId ExternalResponse FileCheckpointStorage GetLatestCheckpointAsync HandleAsync
IMessageHandler IResettableExecutor IWorkflowContext InProcessExecution LatestCheckpoint LookupCheckpointAsync
OnCheckpointRestoredAsync OnCheckpointingAsync Parent QueueStateUpdateAsync ReadStateAsync ReflectingExecutor Request
RequestInfoEvent RestoreCheckpointAsync ResumeAsync ResumeStreamAsync ResumeStreamingAsync Run RunId RunStreamingAsync
SendMessageAsync SendResponseAsync StartInfo StateKey StepNumber StreamAsync StreamingRun SuperStepCompletedEvent
SuperStepStartInfo SuperStepStartedEvent WaitForCompletionAsync WatchStreamAsync Workflow WorkflowBuilder
WorkflowCompletedEvent WorkflowEvent WorkflowOutputEvent
"""
IN_BETA = """
Executor FileCheckpointStorage RequestInfoExecutor WorkflowBuilder WorkflowContext WorkflowOutputEvent add_edge build
checkpoint_id checkpoint_storage checkpoint_summary data executor_states get_outputs get_state handler iteration_count
list_checkpoints max_iterations messages responses run_from_checkpoint run_stream run_stream_from_checkpoint
send_message set_shared_state set_start_executor set_state shared_state status storage_path timestamp
with_checkpointing workflow_id
"""
# What agent-framework-core 1.23.0 has for workflows and their checkpoints, as read in the package.
IN_PYTHON = """
Case Default Executor FileCheckpointStorage InMemoryCheckpointStorage WorkflowBuilder WorkflowCheckpoint
WorkflowCheckpointException WorkflowContext WorkflowConvergenceException WorkflowEvent WorkflowExecutor
WorkflowRunResult WorkflowRunState WorkflowValidationError WorkflowViz add_chain add_edge add_event add_fan_in_edges
add_fan_out_edges add_multi_selection_edge_group add_switch_case_edge_group allowed_checkpoint_types build
checkpoint_id checkpoint_storage delete executor executor_completed executor_failed executor_invoked get_final_state
get_last_checkpoint_id get_latest get_outputs get_request_info_events get_state handler iteration_count
list_checkpoint_ids list_checkpoints load max_iterations messages name on_checkpoint_restore on_checkpoint_save output
output_from pending_request_info_events previous_checkpoint_id request_info response_handler responses run save
send_message set_state start_executor state status stream superstep_completed superstep_started timestamp to_digraph
to_mermaid warning workflow_name yield_output
"""

_SPAN = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"(?P<path>[A-Za-z_][\w.]*)(?:\((?P<arguments>.*)\))?")


def rows(section: str, page: str = PAGE) -> list[list[str]]:
    """The rows of the table in a section, as cells.

    >>> rows("One", "# Page\\n\\n## One\\n\\n| a | b |\\n|---|---|\\n| `x` | `y` |\\n\\n## Two\\n")
    [['`x`', '`y`']]
    """
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines, f"there is no table in the section {section!r}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def mapped() -> list[list[str]]:
    return [row for section in MAPPINGS for row in rows(section)]


def resolved(path: str) -> Any:
    """What a dotted name of the right column stands for; raises ``AttributeError`` if there is no such thing.

    >>> resolved("Run.run_id") is holdfast.Run.run_id
    True
    """
    first, *others = path.split(".")
    found: Any = {"agents": agents, "compat": compat}.get(first) or getattr(holdfast, first)
    for name in others:
        found = field(found, name) if is_field(found, name) else getattr(found, name)
    return found


def is_field(owner: Any, name: str) -> bool:
    """Whether it is a field of a dataclass, which need not be an attribute of the class."""
    return is_dataclass(owner) and name in {known.name for known in fields(owner)}


def field(owner: Any, name: str) -> Field[Any]:
    return next(known for known in fields(owner) if known.name == name)


def check(span: str) -> None:
    """Fail unless the name in the span exists, and takes the arguments that are named behind it."""
    found = _NAME.fullmatch(span)
    assert found is not None, f"{span!r} is no name"
    value = resolved(found["path"])
    for argument in re.findall(r"(\w+)=", found["arguments"] or ""):
        assert argument in inspect.signature(value).parameters, f"{found['path']} takes no {argument}="


def our_names(cell: str) -> list[str]:
    """The names in a cell of the right column; ``async def reset(self)`` is none, it is for the reader to define."""
    return [span for span in _SPAN.findall(cell) if " " not in span.partition("(")[0]]


@pytest.mark.parametrize("row", mapped(), ids=lambda row: row[0])
def test_what_a_row_names_exists_here(row: list[str]) -> None:
    *there, here = row
    assert _SPAN.search(" ".join(there))
    ours = our_names(here)
    assert ours or here == "nothing"
    for span in ours:
        check(span)


@pytest.mark.parametrize(
    "span",
    ["Run.no_such", "NoSuch", "compat.Run.no_such", "Workflow.start(no_such=)", "CheckpointInfo.no_such"],
)
def test_a_name_that_is_gone_is_noticed(span: str) -> None:
    with pytest.raises((AttributeError, AssertionError)):
        check(span)


@pytest.mark.parametrize(
    ("section", "column", "names"),
    [("C# names", 0, IN_CSHARP), ("Python names", 0, IN_PYTHON), ("Python names", slice(2), IN_BETA)],
    ids=["C#", "Python", "beta"],
)
def test_every_name_of_the_listings_has_a_row(section: str, column: int | slice, names: str) -> None:
    there = " ".join(span for row in rows(section) for span in _SPAN.findall(str(row[column])))
    words = set(re.findall(r"\w+", there))
    assert [name for name in names.split() if name not in words] == []


def test_every_name_of_compat_is_on_the_page() -> None:
    here = " ".join(row[-1] for row in mapped())
    assert [name for name in compat.__all__ if f"`compat.{name}" not in here] == []


@pytest.mark.parametrize("name", compat.__all__)
def test_every_name_of_compat_has_a_docstring_with_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(compat, name)) or "")


def test_compat_brings_nothing_into_programs_that_do_not_ask_for_it() -> None:
    assert not any(name in holdfast.__all__ for name in ("CheckpointManager", "InProcessExecution"))


# The tests that the page names


@cache
def collected(path: Path) -> frozenset[str]:
    """The functions of a test file that pytest runs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def exists(test: str) -> bool:
    """Whether there is such a test, as ``folder/file.py::test_name``."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in collected(ROOT / file)


@pytest.mark.parametrize("row", rows(TESTED), ids=lambda row: row[0])
def test_each_claim_has_a_test(row: list[str]) -> None:
    _, _, shown_by = row
    named = _SPAN.findall(shown_by)
    assert named
    assert [test for test in named if not exists(test)] == []


@pytest.mark.parametrize(
    "test",
    ["tests/test_api.py::test_nothing", "tests/test_nothing.py::test_x", "tests/test_api.py::own_docstring"],
)
def test_a_test_that_is_gone_is_noticed(test: str) -> None:
    assert not exists(test)


def test_there_are_as_many_claims_as_were_made() -> None:
    """A table that lost its rows would pass over none."""
    assert len(rows(TESTED)) >= 25
