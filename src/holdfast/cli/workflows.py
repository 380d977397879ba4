"""``holdfast run`` and ``holdfast graph``: commands that need the code of a workflow, given as ``MODULE:WORKFLOW``."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import printable
from holdfast.cli.session import CommandSession, StoreCommand, StoreGroup, read_config
from holdfast.cli.targets import by_option, no_wait_option, read_value, value_options
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.upgrade import UpgradeReport
    from holdfast.runtime.run.run import Run
    from holdfast.workflow import Workflow


def complete_workflows(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """Return names of workflows in ``holdfast.toml`` that begin so, for a shell."""
    try:
        return sorted(name for name in read_config().workflows if name.startswith(begun))
    except CommandError:  # the command itself will tell
        return []


workflow_argument = click.argument(
    "workflow_name", metavar="[MODULE:WORKFLOW]", required=False, shell_complete=complete_workflows
)
graph_change_option = click.option(
    "--allow-graph-change", is_flag=True, help="Also if the graph changed, as far as the run fits it."
)


def load_workflow(name: str | None, stored_name: str | None = None) -> Workflow:
    """Return the workflow that ``module:name`` means, or a name in ``holdfast.toml``.

    If none is given it is that of a stored run, else the only one in ``holdfast.toml``.
    """
    if name is not None and ":" in name:
        return load_place(name)
    places = read_config().workflows
    if name is None and stored_name is None and len(places) == 1:
        (name,) = places
    name = name or stored_name
    if name is None:
        known = f"holdfast.toml names {', '.join(places)}" if places else "holdfast.toml names none"
        raise CommandError(
            f"which workflow? Give it as MODULE:WORKFLOW, like shop:workflow; {known}", ExitCode.USAGE
        )
    if name not in places:
        raise CommandError(
            f"where is the workflow {name!r}? Give it as MODULE:WORKFLOW, like shop:workflow, or name its place in "
            f'holdfast.toml, under [workflows]: "{name}" = "shop:workflow"',
            ExitCode.USAGE,
        )
    return load_configured(name, places[name])


def load_configured(name: str, place: str) -> Workflow:
    """Return the workflow that ``holdfast.toml`` names; raise if its own name is another one."""
    workflow = load_place(place)
    if workflow.name != name:
        raise CommandError(
            f"holdfast.toml calls {place!r} {name!r}, but the name of that workflow is {workflow.name!r}",
            ExitCode.USAGE,
        )
    return workflow


def load_place(name: str) -> Workflow:
    """Return the workflow that ``module:name`` means: a workflow, a builder of one, or a function that returns one."""
    from holdfast.builder import WorkflowBuilder
    from holdfast.workflow import Workflow

    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise CommandError(
            f"{name!r} names no workflow; write it as MODULE:WORKFLOW, like shop:workflow", ExitCode.USAGE
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as ``python -m`` does
    found = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CommandError(f"module {module_name!r} has no {attribute!r}", ExitCode.USAGE)
        found = getattr(found, part)
    if callable(found) and not isinstance(found, (Workflow, WorkflowBuilder)):
        found = _call(found, name)
    if isinstance(found, WorkflowBuilder):
        found = found.build()
    if not isinstance(found, Workflow):
        raise CommandError(
            f"{name!r} is a {type(found).__name__}, not a workflow, and returns none", ExitCode.USAGE
        )
    return found


def _call(function: Callable[[], Any], name: str) -> Any:
    """Call the function that makes a workflow."""
    try:
        return function()
    except HoldfastError:
        raise
    except Exception as error:
        raise CommandError(
            f"{name!r} was called without arguments, to make a workflow, and failed: {type(error).__name__}: {error}"
        ) from error


def _import(module_name: str) -> Any:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name + ".").startswith(error.name + "."):
            raise CommandError(
                f"there is no module {module_name!r}, neither in the current folder nor where Python finds modules",
                ExitCode.USAGE,
            ) from error
        raise CommandError(f"importing {module_name!r} failed: {error}") from error
    except Exception as error:
        import traceback

        place = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"importing {module_name!r} failed at {place.filename}:{place.lineno}: {type(error).__name__}: {error}"
        ) from error


def read_input(workflow: Workflow, value: Any) -> Any:
    """Return a JSON value as the input that the start executor of a workflow takes."""
    from holdfast.errors import WrongType

    try:
        return workflow.read_input(value)
    except WrongType as error:
        raise CommandError(
            f"{error}; 'holdfast graph show' with --json has its schema", ExitCode.USAGE
        ) from error


@click.command(cls=StoreCommand)
@workflow_argument
@value_options
@click.option("--run-id", metavar="ID", help="The id of the new run; else one is made.")
@no_wait_option
@by_option
@click.pass_obj
def run(
    session: CommandSession,
    workflow_name: str | None,
    value: str | None,
    path: str | None,
    run_id: str | None,
    no_wait: bool,
    by: str | None,
) -> ExitCode:
    """Start a run of a workflow and drive it until it completes, fails or waits for a person.

    At a terminal its questions are asked here. The store is made if it is not there. Ctrl-C stops the run; 'holdfast
    runs resume' goes on with it.
    """
    from holdfast.cli.driver import drive

    message = read_value(value, path)
    workflow = load_workflow(workflow_name)
    given = read_input(workflow, message)

    def begin(storage: CheckpointStorage) -> Awaitable[Run]:
        return workflow.start(given, run_id, storage, by=by)

    return drive(session, begin, make=True, stays=not no_wait, by=by)


@click.group(cls=StoreGroup)
def graph() -> None:
    """Draw the graph of a workflow, and check which stored runs it can go on with."""


@graph.command()
@workflow_argument
@click.option("--dot", is_flag=True, help="Draw for Graphviz instead of Mermaid.")
@click.pass_obj
def show(session: CommandSession, workflow_name: str | None, dot: bool) -> None:
    """Draw a workflow; with --json its executors, edges and the schemas of input and output."""
    workflow = load_workflow(workflow_name)
    drawn = workflow.to_dot() if dot else workflow.to_mermaid()
    session.output.write_raw(workflow.to_dict(), drawn.splitlines)


@graph.command()
@workflow_argument
@click.pass_obj
def check(session: CommandSession, workflow_name: str | None) -> ExitCode:
    """Say which stored runs this build of a workflow can go on with, which not and why; nothing is changed.

    Ends with code 8 if it cannot go on with all of them as they are.
    """
    workflow = load_workflow(workflow_name)

    async def work(storage: CheckpointStorage) -> UpgradeReport:
        return await storage.check_upgrade(workflow)

    report = session.look(work)
    data = {"ok": report.ok, "runs": [{**asdict(one), "status": one.status.value} for one in report.runs]}
    session.output.write(data, lambda: map(printable, str(report).splitlines()))
    return ExitCode.OK if report.ok else ExitCode.INCOMPATIBLE
