"""``holdfast keys``: makes and rotates the keys under which stores are kept."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.exit_codes import CommandError
from holdfast.cli.output import printable
from holdfast.cli.session import CommandSession, JsonGroup
from holdfast.cli.targets import yes_option

STDOUT = "-"


@click.group(cls=JsonGroup)
def keys() -> None:
    """Make and rotate the keys under which stores are kept.

    Commands take the keys of a store from HOLDFAST_KEYS, else from the file that 'keyring' in holdfast.toml names.
    """


@keys.command()
@click.argument("path")
@click.pass_obj
def new(session: CommandSession, path: str) -> None:
    """Write a new key to a file that only its owner can read; '-' writes it to stdout.

    Keep a copy where the store and its backups are not: without it nothing in the store can be read again.
    """
    from holdfast.checkpoint.keys.keyring import Keyring

    made = Keyring.generate()
    data = {"path": None if path == STDOUT else path, "key_ids": list(made.key_ids)}
    if path == STDOUT:
        session.output.write_raw({**data, "keys": made.to_text()}, made.to_text().splitlines)
        return
    if Path(path).exists():
        raise CommandError(
            f"{path} is there, and may be all that opens a store; 'holdfast keys rotate' adds a key to it"
        )
    made.to_file(path)
    session.output.write(data, lambda: [f"wrote key {made.key_ids[0]} to {printable(path)}"])
    session.output.say(
        "keep a copy of it elsewhere; a store is made under it with HOLDFAST_KEYS or holdfast.toml"
    )


@keys.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
@click.option("--drop-old", is_flag=True, help="Keep the newest key only, after all stores were rekeyed.")
@yes_option
@click.pass_obj
def rotate(session: CommandSession, path: str, drop_old: bool, yes: bool) -> None:
    """Put a new key before those in a file; stores open with the old ones until 'store rekey'.

    With --drop-old no key is made, and all but the newest go.
    """
    from holdfast.checkpoint.keys.keyring import Keyring

    before = Keyring.from_file(path)
    after = before.only_newest() if drop_old else before.rotate()
    gone = [name for name in before.key_ids if name not in after.key_ids]
    if gone:
        session.confirm(
            f"This removes {spell(gone)} from {printable(path)}: a store, backup or export that needs one of them "
            f"cannot be read again.",
            yes,
        )
    after.to_file(path, replace=drop_old)
    data = {"path": path, "key_ids": list(after.key_ids)}
    session.output.write(data, lambda: [f"{printable(path)} has {spell(after.key_ids)}, the newest first"])
    if not drop_old:
        session.output.say(f"give it to all processes, then: holdfast store rekey {printable(path)}")


def spell(key_ids: list[str] | tuple[str, ...]) -> str:
    """Return the names of keys as text."""
    return f"{'key' if len(key_ids) == 1 else 'keys'} {', '.join(key_ids)}"
