"""The session of a command: the store that it was given, opened to look or to change, and its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from holdfast.checkpoint.storage import CheckpointStorage

T = TypeVar("T")

CONFIG = "holdfast.toml"
_SETTINGS = ("store",)
_NO_STORE = (
    "no store is named: give --store URL (like sqlite:///holdfast.db or file:///checkpoints), set HOLDFAST_STORE, "
    f'or write store = "URL" into {CONFIG} in this folder'
)


class CommandSession:
    """Opens the store for commands and writes their output; click hands one to each command."""

    def __init__(self) -> None:
        self.store_url: str | None = None
        self.is_json = False

    @property
    def output(self) -> CommandOutput:
        """The output in the form that was asked for."""
        return CommandOutput(self.is_json)

    def find_store_url(self) -> str:
        """Return the URL of the store: of the option, else of the environment, else of the file ``holdfast.toml``."""
        url = self.store_url or os.environ.get("HOLDFAST_STORE") or read_config().get("store")
        if not url:
            raise CommandError(_NO_STORE, ExitCode.USAGE)
        return url

    def look(self, work: Callable[[CheckpointStorage], Awaitable[T]]) -> T:
        """Open the store read-only and do some work with it."""
        return run_with_storage(self.find_store_url(), work, read_only=True)

    def change(self, work: Callable[[CheckpointStorage], Awaitable[T]], make: bool = False) -> T:
        """Open the store to change it, and do some work with it; only with ``make`` one is made if there is none."""
        url = self.find_store_url()
        if not make:
            check_store(url)
        return run_with_storage(url, work, read_only=False)

    def confirm(self, question: str, is_agreed: bool) -> None:
        """Ask before something is destroyed; raise unless a person agrees, or agreed before with ``--yes``."""
        if is_agreed:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise CommandError(
                f"{question} There is no terminal to ask at, so nothing was changed; give --yes to do it",
                ExitCode.USAGE,
            )
        if not click.confirm(question, err=True):
            raise CommandError("nothing was changed")


def run_with_storage(url: str, work: Callable[[CheckpointStorage], Awaitable[T]], *, read_only: bool) -> T:
    """Open the storage of a URL, do some work with it, and close it."""
    import asyncio

    from holdfast.stores.storage_url import open_storage

    if url.startswith("memory:"):
        raise CommandError(
            f"{url!r}: a store in memory is seen only by its own process; name a file or a database",
            ExitCode.USAGE,
        )

    storage = open_storage(url, read_only=read_only)
    path = getattr(storage.store, "path", None)
    if read_only and path is not None and not Path(path).exists():
        raise CommandError(f"there is no store at {str(path)!r}", ExitCode.NOT_FOUND)

    async def run() -> T:
        async with storage:
            return await work(storage)

    return asyncio.run(run())


def check_store(url: str) -> None:
    """Raise unless a store is there: opening it to write would make one."""

    async def look(storage: CheckpointStorage) -> None:
        """Opening it is enough."""

    run_with_storage(url, look, read_only=True)


def read_config() -> dict[str, Any]:
    """Return the settings in ``holdfast.toml`` of the current folder; none if there is no such file."""
    path = Path(CONFIG)
    if not path.is_file():
        return {}
    import tomllib

    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path.resolve()} cannot be read: {error}", ExitCode.USAGE) from error
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise CommandError(
                f"{path.resolve()} has the setting {name!r}; known are: {', '.join(_SETTINGS)}",
                ExitCode.USAGE,
            )
        if not isinstance(value, str):
            raise CommandError(f"{path.resolve()}: {name!r} must be a text, not {value!r}", ExitCode.USAGE)
    return settings


def _set_store(context: click.Context, _: click.Parameter, url: str | None) -> None:
    if url is not None:
        context.ensure_object(CommandSession).store_url = url


def _set_json(context: click.Context, _: click.Parameter, is_json: bool) -> None:
    if is_json:
        context.ensure_object(CommandSession).is_json = True


def shared_options() -> list[click.Parameter]:
    """Return the options that the command takes before and after the name of a subcommand."""
    return [
        click.Option(
            ["--store"],
            metavar="URL",
            expose_value=False,
            callback=_set_store,
            help="The store, like sqlite:///holdfast.db; else HOLDFAST_STORE, else 'store' in holdfast.toml.",
        ),
        click.Option(
            ["--json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            help="Write JSON to stdout.",
        ),
    ]


class StoreCommand(click.Command):
    """A command that works on a store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()


class StoreGroup(click.Group):
    """Commands of one noun, which work on a store."""

    command_class = StoreCommand
