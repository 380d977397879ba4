"""``holdfast requests``: lists the questions that runs ask, shows one with its schema, and answers it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import CommandOutput, Verbatim, age_of, printable, shorten
from holdfast.cli.runs import status_of
from holdfast.cli.session import CommandSession, StoreGroup, resume_line
from holdfast.cli.targets import (
    ambiguous,
    by_option,
    find_run,
    limit_option,
    read_value,
    request_argument,
    run_argument,
    value_options,
)
from holdfast.errors import UnknownRequest

if TYPE_CHECKING:
    from holdfast.checkpoint.pending_requests import RequestRecord
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage


@click.group(cls=StoreGroup)
def requests() -> None:
    """List the questions that wait for an answer, show and answer them.

    RUN is the id of a run, the beginning of it if no other begins so, or @latest. REQUEST is the id of a question of
    that run, or the beginning of it; it may be left out if the run asks one question.
    """


@requests.command()
@click.option("--workflow", metavar="NAME", help="Only those of this workflow.")
@click.option("--run", metavar="RUN", help="Only those of this run.")
@limit_option
@click.option("--after", metavar="CURSOR", help="Go on behind the page that gave this cursor as 'next'.")
@click.pass_obj
def ls(session: CommandSession, workflow: str | None, run: str | None, limit: int, after: str | None) -> None:
    """List the questions of all runs that wait for an answer, the oldest first."""

    async def work(storage: CheckpointStorage) -> list[RequestRecord]:
        run_id = None if run is None else (await find_run(storage, run)).run_id
        return await storage.list_requests(workflow, run_id, limit + 1, after)

    found = session.look(work)
    page, output = found[:limit], session.output
    following = page[-1].cursor if len(found) > limit else None
    output.write(
        {"requests": [one.to_dict() for one in page], "next": following}, lambda: _draw_requests(output, page)
    )
    if not page:
        output.say("no requests wait for an answer")
    if following is not None:
        output.say(f"there are more: --after '{following}'")


def _draw_requests(output: CommandOutput, page: Sequence[RequestRecord]) -> list[str]:
    rows = [
        (one.run_id, one.request_id, one.workflow_name, age_of(one.asked_at), shorten(one.data))
        for one in page
    ]
    return output.draw_table(("RUN", "REQUEST", "WORKFLOW", "ASKED", "DATA"), rows) if rows else []


async def find_request(storage: CheckpointStorage, run_id: str, name: str | None) -> RequestRecord | None:
    """Return the request of a run with this id, or the only one that begins so; None if none that waits does."""
    waiting = await storage.list_requests(run_id=run_id, limit=None)
    if name is None:
        if not waiting:
            raise UnknownRequest(f"run {run_id!r} asks nothing that waits for an answer")
        if len(waiting) > 1:
            told = ", ".join(one.request_id for one in waiting)
            raise CommandError(f"run {run_id!r} asks several questions, so name one: {told}", ExitCode.USAGE)
        return waiting[0]
    found = [one for one in waiting if one.request_id == name]
    found = found or [one for one in waiting if one.request_id.startswith(name)]
    if len(found) > 1:
        raise ambiguous("request", name, [one.request_id for one in found])
    return found[0] if found else None


@requests.command()
@run_argument
@request_argument
@click.pass_obj
def show(session: CommandSession, run: str, request: str | None) -> None:
    """Show a question with all its data, and the JSON Schema of its answer."""

    found = session.look(lambda storage: _find_waiting(storage, run, request))
    output = session.output
    output.write({"request": found.to_dict()}, lambda: _draw_request(output, found))


async def _find_waiting(storage: CheckpointStorage, run: str, request: str | None) -> RequestRecord:
    """Return a request that waits for an answer; raise if it does not."""
    run_id = (await find_run(storage, run)).run_id
    found = await find_request(storage, run_id, request)
    if found is None:
        raise UnknownRequest(
            f"run {run_id!r} has no request {request!r} that waits for an answer; 'holdfast requests ls' lists them"
        )
    return found


def _draw_request(output: CommandOutput, request: RequestRecord) -> Iterator[str]:
    yield from _draw_question(output, request)
    yield from _draw_json("schema of the answer", request.response_schema)


def _draw_question(output: CommandOutput, request: RequestRecord) -> Iterator[str]:
    yield from output.draw_fields(
        {
            "run": request.run_id,
            "request": request.request_id,
            "workflow": request.workflow_name,
            "from": request.executor_id,
            "asked": age_of(request.asked_at),
            "expires": "never" if request.expires_at is None else age_of(request.expires_at),
        }
    )
    yield from _draw_json("data", request.data)


def _draw_json(title: str, value: Any) -> Iterator[str]:
    yield ""
    yield title
    lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    yield from (Verbatim(printable(line)) for line in lines)


def _ask(session: CommandSession, run: str, request: str | None) -> Any:
    """Show a question and return what a person answers to it."""
    from holdfast.cli.form import AnswerForm, can_ask

    if session.is_json or not can_ask():
        raise CommandError(
            "give the answer with --value JSON or with --value-file PATH; a form asks for it at a terminal",
            ExitCode.USAGE,
        )
    import asyncio

    found = session.look(lambda storage: _find_waiting(storage, run, request))
    for line in _draw_question(session.output, found):
        session.output.say(line)
    return asyncio.run(AnswerForm(found.response_schema).fill())


@requests.command()
@run_argument
@request_argument
@value_options
@by_option
@click.pass_obj
def answer(
    session: CommandSession,
    run: str,
    request: str | None,
    value: str | None,
    path: str | None,
    by: str | None,
) -> None:
    """Answer a question with a value that fits its schema; the answer is durable when this returns.

    At a terminal a form asks for the value, unless it is given. Whoever drives the run takes it; if nobody does, it
    waits until the run is resumed.
    """
    response = _ask(session, run, request) if value is None and path is None else read_value(value, path)

    async def work(storage: CheckpointStorage) -> tuple[str, RunInfo]:
        run_id = (await find_run(storage, run)).run_id
        found = await find_request(storage, run_id, request)
        # One that does not wait any more: the storage knows whether it was answered.
        request_id = found.request_id if found is not None else request
        assert request_id is not None
        return request_id, await storage.respond(run_id, {request_id: response}, by=by)

    request_id, info = session.change(work)
    text = f"answered {printable(request_id)} of {printable(info.run_id)}, which is {status_of(info).text}"
    session.output.write({"run": info.to_dict(), "request_id": request_id}, lambda: [text])
    if info.status.value != "running" or info.interrupted:
        session.output.say(f"a host or a service goes on with it, or: {resume_line(info)}")
