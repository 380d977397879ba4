"""``holdfast runs``: lists, shows, watches, cancels and removes runs; with their code it resumes and forks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode, exit_code_of_run
from holdfast.cli.output import Cell, CommandOutput, Verbatim, age_of, paint, printable, shorten, status_cell
from holdfast.cli.session import CommandSession, StoreGroup, resume_line
from holdfast.cli.targets import (
    by_option,
    checkpoint_argument,
    complete_runs,
    find_checkpoint,
    find_run,
    limit_option,
    no_wait_option,
    read_value,
    run_argument,
    value_options,
    yes_option,
)
from holdfast.cli.workflows import load_workflow, workflow_argument

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.pending_requests import RequestRecord
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.runtime.run.run import Run

_INTERRUPTED = "interrupted"
_STATUSES = ("running", _INTERRUPTED, "waiting", "completed", "failed", "cancelled", "stopped")


@click.group(cls=StoreGroup)
def runs() -> None:
    """List runs, show and watch them, go on with and fork them, cancel, send to and remove them.

    RUN is the id of a run, the beginning of it if no other begins so, or @latest.
    """


@runs.command()
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only runs with this status, as lists show it.")
@click.option("--interrupted", is_flag=True, help="Only runs whose process died.")
@click.option("--text", metavar="TEXT", help="Only runs with this text in id, workflow, tags or reason.")
@limit_option
@click.option("--after", metavar="RUN", help="Go on behind this run, the last of the page before.")
@click.pass_obj
def ls(
    session: CommandSession,
    workflow: str | None,
    status: str | None,
    interrupted: bool,
    text: str | None,
    limit: int,
    after: str | None,
) -> None:
    """List runs, the last changed first."""

    if status == _INTERRUPTED:
        status, interrupted = None, True

    async def work(storage: CheckpointStorage) -> list[RunInfo]:
        begin = None if after is None else await find_run(storage, after)
        return await storage.list_runs(
            workflow, status, interrupted or None, limit + 1, begin, newest_first=True, text=text
        )

    found = session.look(work)
    page, output = found[:limit], session.output
    following = page[-1].run_id if len(found) > limit else None
    output.write(
        {"runs": [run.to_dict() for run in page], "next": following}, lambda: _draw_runs(output, page)
    )
    if not page:
        output.say("no runs")
    if following is not None:
        output.say(f"there are more: --after {printable(following)}")


def _draw_runs(output: CommandOutput, page: Sequence[RunInfo]) -> list[str]:
    rows = [
        (run.run_id, run.workflow_name, status_of(run), age_of(run.updated), _note_of(run)) for run in page
    ]
    return output.draw_table(("RUN", "WORKFLOW", "STATUS", "CHANGED", "NOTE"), rows) if rows else []


def status_of(run: RunInfo) -> Cell:
    """Return the status of a run for people: one whose process died is interrupted."""
    return status_cell(_INTERRUPTED if run.interrupted else run.status.value)


def _note_of(run: RunInfo) -> str:
    """Return the one thing that a person wants to know next."""
    if run.reason:
        return run.reason.partition("\n")[0]
    if run.waiting_for:
        until = "" if run.wake_at is None else f", {age_of(run.wake_at)}"
        return f"for {' and '.join(run.waiting_for)}{until}"
    return f"by {run.by}" if run.by else ""


@runs.command()
@run_argument
@click.pass_obj
def show(session: CommandSession, run: str) -> None:
    """Show how a run stands, why it failed, what it asks, and its forks."""

    async def work(storage: CheckpointStorage) -> tuple[RunInfo, list[RequestRecord], list[RunInfo]]:
        info = await find_run(storage, run)
        asked = await storage.list_requests(run_id=info.run_id, limit=None)
        return info, asked, await storage.list_runs(forked_from=info.run_id, limit=None)

    info, asked, forks = session.look(work)
    data = {
        "run": info.to_dict(),
        "requests": [request.to_dict() for request in asked],
        "forks": [fork.run_id for fork in forks],
    }
    output = session.output
    output.write(data, lambda: _draw_run(output, info, asked, forks))


def _draw_run(
    output: CommandOutput, run: RunInfo, asked: Sequence[RequestRecord], forks: Sequence[RunInfo]
) -> Iterator[str]:
    yield from output.draw_fields(_fields_of(run))
    if run.traceback:
        yield ""
        yield from (Verbatim(printable(line)) for line in run.traceback.splitlines())
    if run.interrupted or run.status.value in ("failed", "stopped"):
        yield ""
        yield paint(f"go on with: {resume_line(run)}", "cyan")
    if asked:
        yield ""
        yield from output.draw_table(
            ("REQUEST", "FROM", "ASKED", "DATA"),
            [(one.request_id, one.executor_id, age_of(one.asked_at), shorten(one.data)) for one in asked],
        )
        yield paint(
            f"answer with: holdfast requests answer {printable(run.run_id)} REQUEST --value JSON", "cyan"
        )
    if forks:
        yield ""
        yield from output.draw_table(
            ("FORK", "STATUS", "CHANGED"),
            [(one.run_id, status_of(one), age_of(one.updated)) for one in forks],
        )


def _fields_of(run: RunInfo) -> Mapping[str, Cell | str]:
    fields: dict[str, Cell | str] = {
        "run": run.run_id,
        "workflow": run.workflow_name,
        "status": status_of(run),
        "waiting for": " and ".join(run.waiting_for),
        "goes on": "" if run.wake_at is None else _time(run.wake_at),
        "reason": run.reason,
        "by": run.by,
        "checkpoint": f"{run.checkpoint_id} ({run.run_id}@{run.seq})",
        "created": _time(run.created),
        "changed": _time(run.updated),
        "went back": "" if run.restored_at is None else f"with checkpoint {run.restored_at}",
        "forked from": ""
        if run.forked_from is None
        else f"{run.forked_from.run_id}, checkpoint {run.forked_from.checkpoint_id}",
    }
    return {
        name: value for name, value in fields.items() if (value if isinstance(value, str) else value.text)
    }


def _time(time: Any) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC ({age_of(time)})"


@runs.command()
@run_argument
@click.option("--after", metavar="EVENT", help="Go on behind the event with this event_id, like 12.3.")
@click.option("--follow", is_flag=True, help="Stay when the run rests, until Ctrl-C.")
@click.pass_obj
def watch(session: CommandSession, run: str, after: str | None, follow: bool) -> ExitCode:
    """Show the events of a run, also one that another process drives, until it rests.

    The exit code says how it stands then: 0 completed, 3 it waits for a person, 4 it failed, 1 cancelled or stopped.
    With --json each event is a line.
    """
    from holdfast.cli.event_text import render_event

    output = session.output

    async def work(storage: CheckpointStorage) -> RunInfo:
        run_id = (await find_run(storage, run)).run_id
        async for event in storage.watch(run_id, after, follow=follow):
            data = event.to_dict()
            text = render_event(data)
            if output.is_json or text is not None:
                output.write_record(data, text or "")
        return await storage.get_run(run_id)

    return exit_code_of_run(session.look(work))


@runs.command()
@run_argument
@by_option
@click.pass_obj
def cancel(session: CommandSession, run: str, by: str | None) -> None:
    """Cancel a run: at once if nobody drives it, else whoever does ends it soon."""

    async def work(storage: CheckpointStorage) -> RunInfo:
        return await storage.cancel((await find_run(storage, run)).run_id, by=by)

    _write_run(session, session.change(work), "cancelled", "is being cancelled by the process that drives it")


@runs.command()
@run_argument
@value_options
@click.option("--target", metavar="EXECUTOR", help="The executor that gets it; else the start executor.")
@click.option("--key", metavar="KEY", help="Makes it once: a message with this key is not sent again.")
@by_option
@click.pass_obj
def send(
    session: CommandSession,
    run: str,
    value: str | None,
    path: str | None,
    target: str | None,
    key: str | None,
    by: str | None,
) -> None:
    """Send a further message into a run; it waits there if nobody drives the run.

    The message is plain JSON: an executor that takes a class of its own does not take it.
    """
    message = read_value(value, path)

    async def work(storage: CheckpointStorage) -> RunInfo:
        found = await find_run(storage, run)
        return await storage.send(found.run_id, message, target, key=key, by=by)

    info = session.change(work)
    _write_run(session, info, None, "")
    if info.status.value != "running" or info.interrupted:
        session.output.say(f"a host or a service goes on with it, or: {resume_line(info)}")


def _write_run(session: CommandSession, run: RunInfo, wanted: str | None, otherwise: str) -> None:
    """Write how a run stands after a change; ``wanted`` is the status that it should have."""
    status = run.status.value
    if wanted is None:
        text = f"sent to {printable(run.run_id)}, which is {status_of(run).text}"
    elif status == "running" and not run.interrupted:
        text = f"{printable(run.run_id)} {otherwise}"
    else:
        text = f"{printable(run.run_id)} is {status}"
    session.output.write({"run": run.to_dict()}, lambda: [text])


@runs.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@yes_option
@click.pass_obj
def rm(session: CommandSession, names: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Remove runs with all their checkpoints; forks of them stay."""

    async def find(storage: CheckpointStorage) -> list[RunInfo]:
        return list({run.run_id: run for run in [await find_run(storage, name) for name in names]}.values())

    found = session.look(find)
    told = ", ".join(
        f"{printable(run.run_id)} ({status_of(run).text}, {run.seq} checkpoints)" for run in found
    )
    if len(found) > 1:
        told = f"{len(found):,} runs: {told}"
    if not dry_run:
        session.confirm(f"This removes {told} for good.", yes)

        async def remove(storage: CheckpointStorage) -> None:
            for run in found:
                await storage.delete_run(run.run_id)

        session.change(remove)
    data: dict[str, Any] = {"runs": [run.to_dict() for run in found], "dry_run": dry_run}
    session.output.write(data, lambda: [f"would remove {told}" if dry_run else f"removed {told}"])


def _name_of_run(session: CommandSession, given: str | None, run: str) -> str | None:
    """Return the name of the workflow of a stored run, if none was given."""
    return None if given is not None else session.look(lambda storage: find_run(storage, run)).workflow_name


@runs.command()
@run_argument
@workflow_argument
@click.option(
    "--from", "checkpoint", metavar="CHECKPOINT", help="Go back to this checkpoint of the run first."
)
@click.option("--take-over", is_flag=True, help="Also if another process seems to drive it.")
@click.option(
    "--allow-graph-change", is_flag=True, help="Also if the graph changed, as far as the run fits it."
)
@no_wait_option
@by_option
@click.pass_obj
def resume(
    session: CommandSession,
    run: str,
    workflow_name: str | None,
    checkpoint: str | None,
    take_over: bool,
    allow_graph_change: bool,
    no_wait: bool,
    by: str | None,
) -> ExitCode:
    """Go on with a run: one that failed, was stopped or interrupted, or got an answer. This is how to try again."""
    from holdfast.cli.driver import drive

    workflow = load_workflow(workflow_name, _name_of_run(session, workflow_name, run))

    async def begin(storage: CheckpointStorage) -> Run:
        run_id = (await find_run(storage, run)).run_id
        if checkpoint is None:
            return await workflow.resume(
                run_id=run_id,
                storage=storage,
                allow_graph_change=allow_graph_change,
                take_over=take_over,
                by=by,
            )
        place = await find_checkpoint(storage, checkpoint)
        if place.run_id != run_id:
            raise CommandError(
                f"checkpoint {checkpoint!r} is one of run {place.run_id!r}, not of {run_id!r}; 'holdfast runs fork' "
                f"begins a new run there",
                ExitCode.USAGE,
            )
        return await workflow.resume(
            place, storage=storage, allow_graph_change=allow_graph_change, take_over=take_over, by=by
        )

    return drive(session, begin, stays=not no_wait, by=by)


@runs.command()
@checkpoint_argument
@workflow_argument
@click.option(
    "--edit",
    "edits",
    nargs=3,
    multiple=True,
    metavar="SCOPE KEY JSON",
    help="Change a value of the state first.",
)
@click.option("--run-id", metavar="ID", help="The id of the new run; else one is made.")
@click.option(
    "--allow-graph-change", is_flag=True, help="Also if the graph changed, as far as the run fits it."
)
@no_wait_option
@by_option
@click.pass_obj
def fork(
    session: CommandSession,
    checkpoint: str,
    workflow_name: str | None,
    edits: tuple[tuple[str, str, str], ...],
    run_id: str | None,
    allow_graph_change: bool,
    no_wait: bool,
    by: str | None,
) -> ExitCode:
    """Begin a new run at a checkpoint of another, which stays as it is, and drive it."""
    from holdfast.cli.driver import drive

    changes = {(scope, key): read_value(value, None) for scope, key, value in edits}
    stored = None
    if workflow_name is None:

        async def find(storage: CheckpointStorage) -> CheckpointInfo:
            return await find_checkpoint(storage, checkpoint)

        stored = session.look(find).workflow_name
    workflow = load_workflow(workflow_name, stored)

    async def begin(storage: CheckpointStorage) -> Run:
        place = await find_checkpoint(storage, checkpoint)
        return await workflow.fork(
            place, changes or None, run_id, storage, allow_graph_change=allow_graph_change, by=by
        )

    return drive(session, begin, stays=not no_wait, by=by)
