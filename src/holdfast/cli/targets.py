"""Names that users give to commands: runs and checkpoints by id, unique prefix or ``@latest``; values as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.errors import RunNotFound

if TYPE_CHECKING:
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage

LATEST = "@latest"
_PAGE = 1000
# A message about an ambiguous prefix names so many of those that it could mean.
_TOLD = 5


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
    if path is not None:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        source = "stdin" if path == "-" else path
    else:
        text, source = value or "", "--value"
    try:
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
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The length of a page."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
