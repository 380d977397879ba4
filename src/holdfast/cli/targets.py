"""Names that users give to commands: runs and checkpoints by id, unique prefix or ``@latest``; values as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.session import CommandSession
from holdfast.errors import CheckpointNotFound, RunNotFound

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage

LATEST = "@latest"
_PAGE = 1000
# A shell is given so many names to choose from.
_COMPLETED = 100
# A message about an ambiguous prefix names so many of those that it could mean.
_TOLD = 5
_WHOLE_ID = re.compile(r"[0-9a-f]{64}")
_PART_OF_ID = re.compile(r"[0-9a-f]{4,63}")
_AGE = re.compile(r"(\d{1,9})([dhms])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


async def find_run(storage: CheckpointStorage, name: str) -> RunInfo:
    """Return the run with an id, the only one whose id begins so, or with ``@latest`` the one that moved last."""
    if name == LATEST:
        newest = await storage.list_runs(newest_first=True, limit=1)
        if not newest:
            raise RunNotFound("the store has no runs, so there is no latest one")
        return newest[0]
    try:
        return await storage.get_run(name)
    except RunNotFound:
        found = await _find_by_prefix(storage, name)
    if not found:
        raise RunNotFound(
            f"no run has the id {name!r}, and none has one that begins so; 'holdfast runs ls' lists them"
        )
    if len(found) > 1:
        raise ambiguous("run", name, [run.run_id for run in found])
    return found[0]


async def _find_by_prefix(storage: CheckpointStorage, prefix: str) -> list[RunInfo]:
    """Return runs whose ids begin with a prefix; a few of them are enough to say that it is ambiguous."""
    found: list[RunInfo] = []
    after: RunInfo | None = None
    while prefix and len(found) <= _TOLD:
        page = await storage.list_runs(text=prefix, limit=_PAGE, after=after, newest_first=True)
        found += [run for run in page if run.run_id.startswith(prefix)]
        if len(page) < _PAGE:
            break
        after = page[-1]
    return found


def ambiguous(kind: str, prefix: str, names: list[str]) -> CommandError:
    """Return the error for a prefix that could mean several things."""
    more = ", ..." if len(names) > _TOLD else ""
    told = ", ".join(repr(name) for name in names[:_TOLD])
    return CommandError(
        f"several {kind}s begin with {prefix!r}: {told}{more}; write more of the id", ExitCode.USAGE
    )


def read_value(value: str | None, path: str | None) -> Any:
    """Return the JSON value that was given with ``--value``, or that stands in a file, ``-`` for stdin."""
    if (value is None) == (path is None):
        raise CommandError("give the value with --value JSON or with --value-file PATH", ExitCode.USAGE)
    source = "--value" if path is None else "stdin" if path == "-" else path
    try:
        if path is None:
            text = value or ""
        else:
            text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CommandError(
            f"{source} is no JSON: {error}; a text needs quotes of its own, like --value '\"yes\"'",
            ExitCode.USAGE,
        ) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not part of JSON")


def value_options(command: Any) -> Any:
    """Add the options that give a value."""
    command = click.option(
        "--value-file", "path", metavar="PATH", help="A file with the JSON; '-' reads stdin."
    )(command)
    return click.option("--value", metavar="JSON", help="""The value as JSON, like true, 5 or '"a text"'.""")(
        command
    )


by_option = click.option("--by", metavar="NAME", help="Who does it; kept with the run.")
no_wait_option = click.option(
    "--no-wait", is_flag=True, help="Leave the run when it waits, for a person or a time, and ask nothing."
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The length of a page."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def complete_runs(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Return ids of runs that begin so, for a shell; none if the store cannot be read."""

    async def work(storage: CheckpointStorage) -> list[str]:
        found = await storage.list_runs(text=begun or None, limit=_COMPLETED, newest_first=True)
        return [run.run_id for run in found if run.run_id.startswith(begun)]

    return [*_completed(context, work), *([LATEST] if LATEST.startswith(begun) else [])]


def complete_checkpoints(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return names of checkpoints that begin so, for a shell: runs, and behind an ``@`` the numbers of one."""
    run_name, at, number = begun.rpartition("@")
    if not (at and run_name):
        return complete_runs(context, parameter, begun)

    async def work(storage: CheckpointStorage) -> list[str]:
        last = (await find_run(storage, run_name)).seq
        return [f"{run_name}@{seq}" for seq in range(last, 0, -1) if str(seq).startswith(number)][:_COMPLETED]

    return _completed(context, work)


def complete_requests(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Return ids of requests of the run on the line that begin so, for a shell."""

    async def work(storage: CheckpointStorage) -> list[str]:
        run_id = (await find_run(storage, context.params["run"])).run_id
        asked = await storage.list_requests(run_id=run_id, limit=_COMPLETED)
        return [one.request_id for one in asked if one.request_id.startswith(begun)]

    return _completed(context, work)


def _completed(
    context: click.Context, work: Callable[[CheckpointStorage], Awaitable[list[str]]]
) -> list[str]:
    session = context.find_object(CommandSession) or CommandSession()
    try:
        return session.look(work)
    except Exception:  # whatever is wrong: a shell shows nothing, and the command itself will tell
        return []


run_argument = click.argument("run", shell_complete=complete_runs)
optional_run_argument = click.argument("run", required=False, shell_complete=complete_runs)
checkpoint_argument = click.argument("checkpoint", shell_complete=complete_checkpoints)
request_argument = click.argument("request", required=False, shell_complete=complete_requests)


async def find_checkpoint(storage: CheckpointStorage, name: str) -> CheckpointInfo:
    """Return the checkpoint that a name means.

    Its id or the beginning of it; ``RUN@SEQ``; ``RUN@latest`` or ``RUN``, for the one on which a run stands.
    """
    run_name, _, place = name.rpartition("@")
    if run_name and (place.isdecimal() or place == "latest"):
        run = await find_run(storage, run_name)
        return await (_latest_of(storage, run) if place == "latest" else _at_seq(storage, run, int(place)))
    if _WHOLE_ID.fullmatch(name):
        return await storage.load(name, values=False)
    try:
        return await _latest_of(storage, await find_run(storage, name))
    except RunNotFound:
        found = await _find_checkpoints(storage, name) if _PART_OF_ID.fullmatch(name) else []
    if not found:
        raise CheckpointNotFound(
            f"no run and no checkpoint has an id that begins with {name!r}; name one by its id, by RUN for the last "
            f"of a run, or by RUN@SEQ, as 'holdfast checkpoint ls RUN' lists them"
        )
    if len(found) > 1:
        raise ambiguous("checkpoint", name, [one.checkpoint_id for one in found])
    return found[0]


async def _latest_of(storage: CheckpointStorage, run: RunInfo) -> CheckpointInfo:
    return await storage.load(run.checkpoint_id, values=False)


async def _at_seq(storage: CheckpointStorage, run: RunInfo, seq: int) -> CheckpointInfo:
    """Return a checkpoint by its number; reads its record only."""
    from holdfast.checkpoint.derived_starts import read_records
    from holdfast.checkpoint.format.record import info_of
    from holdfast.checkpoint.store import Depth

    head = await storage.catalog.head(run.run_id)
    records = (
        await read_records(storage.store, head.run_id, seq, seq, Depth.HEADERS) if seq <= head.seq else ()
    )
    if records and await storage.catalog.keeps(head, seq):
        return info_of(records[0])
    raise CheckpointNotFound(
        f"run {run.run_id!r} has no checkpoint {seq}; 'holdfast checkpoint ls {run.run_id}' lists them"
    )


async def _find_checkpoints(storage: CheckpointStorage, prefix: str) -> list[CheckpointInfo]:
    """Return checkpoints of all runs whose ids begin so.

    The id of a start that follows an end at once differs from that of the end in the last digit only, so a prefix that
    fits both means the end.
    """
    found: list[CheckpointInfo] = []
    after: CheckpointInfo | None = None
    while len(found) <= _TOLD:
        page = await storage.list_checkpoints(limit=_PAGE, after=after)
        found += [one for one in page if one.checkpoint_id.startswith(prefix)]
        if len(page) < _PAGE:
            break
        after = page[-1]
    ends = {one.checkpoint_id[:-1] for one in found if one.phase == "end"}
    return [one for one in found if one.phase == "end" or one.checkpoint_id[:-1] not in ends]


def read_age(text: str) -> timedelta:
    """Return the time span that a text like ``30d``, ``12h``, ``90m`` or ``45s`` says.

    >>> read_age("36h")
    datetime.timedelta(days=1, seconds=43200)
    """
    found = _AGE.fullmatch(text)
    if found is None:
        raise CommandError(f"{text!r} is no time span; write it like 30d, 12h, 90m or 45s", ExitCode.USAGE)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
