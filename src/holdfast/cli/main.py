"""The command itself: its nouns, and the options that all of them share."""

from __future__ import annotations

from importlib import import_module

import click

from holdfast.cli.session import CommandSession, shared_options

# The modules in which the groups of these names are, imported when one is called or helped with.
_MODULES = {
    "run": "workflows",
    "runs": "runs",
    "requests": "requests",
    "checkpoint": "checkpoints",
    "state": "checkpoints",
    "store": "store",
    "keys": "keys",
    "graph": "workflows",
    "serve": "serve",
    "doctor": "doctor",
    "completion": "completion",
    "demo": "demo",
}


class _Nouns(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            found = [f"holdfast {noun} {args[0]}" for noun in self._nouns_with(ctx, args[0])]
            if not found or ctx.resilient_parsing:
                raise
            raise click.UsageError(
                f"{error.format_message()} Did you mean {' or '.join(found)}?", ctx
            ) from None

    def _nouns_with(self, ctx: click.Context, verb: str) -> list[str]:
        """Return the groups that have a command of this name."""
        groups = ((name, self.get_command(ctx, name)) for name in _MODULES)
        return [name for name, group in groups if isinstance(group, click.Group) and verb in group.commands]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command = getattr(import_module(f"holdfast.cli.{_MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


def _show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        import holdfast as package

        click.echo(f"holdfast {package.__version__}")
        context.exit()


@click.group(cls=_Nouns, params=shared_options(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show it."
)
@click.pass_context
def holdfast(context: click.Context) -> None:
    """Look at the runs of a store, answer their questions, and look after it.

    Exit codes: 0 ok, 1 failed, 2 usage, 3 the run waits for a person, 4 the run failed, 5 not found,
    6 taken or moved by someone else, 7 damaged, 8 incompatible graph.
    """
    context.ensure_object(CommandSession)
