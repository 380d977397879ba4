"""``holdfast run`` and ``holdfast graph``: commands that need the code of a workflow, given as ``MODULE:WORKFLOW``."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode, exit_code_of_run
from holdfast.cli.output import paint, printable, shorten
from holdfast.cli.session import CommandSession, StoreCommand, StoreGroup
from holdfast.cli.targets import by_option, read_value, value_options

if TYPE_CHECKING:
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.upgrade import UpgradeReport
    from holdfast.runtime.run.run import Run
    from holdfast.workflow import Workflow

workflow_argument = click.argument("workflow_name", metavar="MODULE:WORKFLOW")
graph_change_option = click.option(
    "--allow-graph-change", is_flag=True, help="Also if the graph changed, as far as the run fits it."
)


def load_workflow(name: str) -> Workflow:
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
        found = found()
    if isinstance(found, WorkflowBuilder):
        found = found.build()
    if not isinstance(found, Workflow):
        raise CommandError(
            f"{name!r} is a {type(found).__name__}, not a workflow, and returns none", ExitCode.USAGE
        )
    return found


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
    from holdfast.graph.typing.conversion import Unconvertible, convert

    graph = workflow.graph
    reasons = []
    for form in graph.executors[graph.start].accepts:
        try:
            return convert(value, form, "--value")
        except Unconvertible as reason:
            reasons.append(str(reason))
    raise CommandError(
        f"workflow {workflow.name!r} does not take this input: {'; '.join(reasons)}; 'holdfast graph show' "
        f"with --json has its schema",
        ExitCode.USAGE,
    )


def drive(
    session: CommandSession, begin: Callable[[CheckpointStorage], Awaitable[Run]], make: bool = False
) -> ExitCode:
    """Drive a run until it rests: events go to stderr, outputs to stdout; the code says how it stands.

    Ctrl-C stops the run; it can be resumed.
    """
    from holdfast.cli.event_text import render_event
    from holdfast.errors import ExecutorFailed

    output = session.output

    async def work(storage: CheckpointStorage) -> tuple[RunInfo, list[Any]]:
        run = await begin(storage)
        output.say(f"run {printable(run.run_id)}")
        try:
            async for event in run.watch_stream():
                if text := render_event(event.to_dict()):
                    output.say(text)
        except ExecutorFailed:
            pass  # the status of the run and its reason tell it
        finally:
            await run.close()
        info = await storage.get_run(run.run_id)
        return info, list((await storage.load(info.checkpoint_id, plain=True)).outputs)

    info, outputs = session.change(work, make)
    code = exit_code_of_run(info)
    output.write(
        {"run": info.to_dict(), "outputs": outputs}, lambda: (shorten(one, 10_000) for one in outputs)
    )
    if code is ExitCode.WAITING:
        output.say(
            paint(f"it waits for answers: holdfast requests ls --run {printable(info.run_id)}", "yellow")
        )
    return code


@click.command(cls=StoreCommand)
@workflow_argument
@value_options
@click.option("--run-id", metavar="ID", help="The id of the new run; else one is made.")
@by_option
@click.pass_obj
def run(
    session: CommandSession,
    workflow_name: str,
    value: str | None,
    path: str | None,
    run_id: str | None,
    by: str | None,
) -> ExitCode:
    """Start a run of a workflow and drive it until it completes, fails or waits for a person.

    The store is made if it is not there. Ctrl-C stops the run; 'holdfast runs resume' goes on with it.
    """
    message = read_value(value, path)
    workflow = load_workflow(workflow_name)
    given = read_input(workflow, message)
    return drive(session, lambda storage: workflow.start(given, run_id, storage, by=by), make=True)


@click.group(cls=StoreGroup)
def graph() -> None:
    """Draw the graph of a workflow, and check which stored runs it can go on with."""


@graph.command()
@workflow_argument
@click.option("--dot", is_flag=True, help="Draw for Graphviz instead of Mermaid.")
@click.pass_obj
def show(session: CommandSession, workflow_name: str, dot: bool) -> None:
    """Draw a workflow; with --json its executors, edges and the schemas of input and output."""
    workflow = load_workflow(workflow_name)
    drawn = workflow.to_dot() if dot else workflow.to_mermaid()
    session.output.write(workflow.to_dict(), drawn.splitlines)


@graph.command()
@workflow_argument
@click.pass_obj
def check(session: CommandSession, workflow_name: str) -> ExitCode:
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
