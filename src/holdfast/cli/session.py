"""The session of a command: the store that it was given, opened to look or to change, and its output.

Sessions of agents, which hold conversations, are in ``agents/sessions/``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import CommandOutput

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.keyring import Keyring
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage

T = TypeVar("T")

CONFIG = "holdfast.toml"
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
        url = self.store_url or os.environ.get("HOLDFAST_STORE") or read_config().store
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


def run_with_storage(
    url: str,
    work: Callable[[CheckpointStorage], Awaitable[T]],
    *,
    read_only: bool,
    loop_factory: Callable[[], Any] | None = None,
    opened: Callable[[], CheckpointStorage] | None = None,
) -> T:
    """Open the storage of a URL, do some work with it, and close it.

    ``loop_factory`` makes the event loop; ``opened`` opens the storage, if it is not to have the usual keys.
    """
    import asyncio

    if url.startswith("memory:"):
        raise CommandError(
            f"{url!r}: a store in memory is seen only by its own process; name a file or a database",
            ExitCode.USAGE,
        )

    storage = open_with_keys(url, read_only=read_only) if opened is None else opened()
    path = getattr(storage.store, "path", None)
    if read_only and path is not None and not Path(path).exists():
        raise CommandError(f"there is no store at {str(path)!r}", ExitCode.NOT_FOUND)

    async def run() -> T:
        async with storage:
            return await work(storage)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


def has_keys() -> bool:
    """Return True if ``HOLDFAST_KEYS`` or ``holdfast.toml`` names keys."""
    return bool(os.environ.get("HOLDFAST_KEYS", "").strip() or read_config().keyring)


def open_with_keys(
    url: str, *, read_only: bool = False, keyring: str | None = None, keys: Keyring | None = None
) -> CheckpointStorage:
    """Open the storage of a URL, with its keys if there are any, and its anchor if ``holdfast.toml`` names one.

    Keys are those given, or in the file ``keyring``, else in ``HOLDFAST_KEYS``, else in the file that is named there.
    """
    from holdfast.stores.storage_url import open_storage

    config = read_config()
    if keys is None:
        keys = _find_keys(keyring, config)
    anchor = config.anchor
    if anchor is not None and (config.store is None or _place_of(url) != _place_of(config.store)):
        anchor = None
    return open_storage(url, read_only=read_only, keys=keys, anchor=anchor)


def _place_of(url: str) -> object:
    """Return where the store of a URL lies, however it is spelled."""
    from holdfast.stores.storage_url import open_storage

    path = getattr(open_storage(url, read_only=True).store, "path", None)
    return url if path is None else Path(path).resolve()


def _find_keys(keyring: str | None, config: CommandConfig) -> Keyring | None:
    from_environment = keyring is None and bool(os.environ.get("HOLDFAST_KEYS", "").strip())
    path = config.keyring if keyring is None and not from_environment else keyring
    if path is None and not from_environment:
        return None
    from holdfast.checkpoint.keys.keyring import Keyring

    return Keyring.from_env() if path is None else Keyring.from_file(path)


def check_store(url: str) -> None:
    """Raise unless a store is there: opening it to write would make one."""

    async def look(storage: CheckpointStorage) -> None:
        """Opening it is enough."""

    run_with_storage(url, look, read_only=True)


class CommandConfig(NamedTuple):
    """The settings in ``holdfast.toml``."""

    store: str | None = None
    keyring: str | None = None
    """The file with the keys of the store."""
    anchor: str | None = None
    """The file that remembers where the runs of the store stand."""
    workflows: Mapping[str, str] = {}
    """The places of workflows, as ``module:workflow``, by their names."""


def read_config() -> CommandConfig:
    """Return the settings in ``holdfast.toml`` of the current folder; none if there is no such file."""
    path = Path(CONFIG)
    if not path.is_file():
        return CommandConfig()
    import tomllib

    def refuse(problem: str) -> CommandError:
        return CommandError(f"{path.resolve()}{problem}", ExitCode.USAGE)

    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f" cannot be read: {error}") from error
    for name in settings:
        if name not in CommandConfig._fields:
            raise refuse(f" has the setting {name!r}; known are: {', '.join(CommandConfig._fields)}")
    for name in ("store", "keyring", "anchor"):
        if not isinstance(settings.get(name), str | None):
            raise refuse(f": {name!r} must be a text, not {settings[name]!r}")
    workflows = settings.get("workflows", {})
    if not isinstance(workflows, dict) or not all(isinstance(place, str) for place in workflows.values()):
        raise refuse(""": 'workflows' must have names and places, like: Shop = "shop:workflow\"""")
    return CommandConfig(settings.get("store"), settings.get("keyring"), settings.get("anchor"), workflows)


def resume_line(run: RunInfo) -> str:
    """Return the command that goes on with a run."""
    from holdfast.cli.output import printable

    place = "" if run.workflow_name in read_config().workflows else " MODULE:WORKFLOW"
    return f"holdfast runs resume {printable(run.run_id)}{place}"


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
        _json_option(),
    ]


def _json_option() -> click.Option:
    return click.Option(
        ["--json"], is_flag=True, expose_value=False, callback=_set_json, help="Write JSON to stdout."
    )


class StoreCommand(click.Command):
    """A command that works on a store."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += shared_options()


class JsonCommand(click.Command):
    """A command that works on no store, and has output for programs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_json_option())


class JsonGroup(click.Group):
    """Commands of one noun, which work on no store."""

    command_class = JsonCommand


class StoreGroup(click.Group):
    """Commands of one noun, which work on a store."""

    command_class = StoreCommand
