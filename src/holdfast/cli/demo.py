"""``holdfast demo``: plays the incident triage that is killed half way and goes on."""

from __future__ import annotations

import os
import re
import sys

import click

from holdfast.cli.session import CommandSession, JsonCommand


def _check_service(_: click.Context, __: click.Parameter, name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
        raise click.BadParameter(
            f"{name!r} is no service name: use at most 30 of a-z, 0-9 and '-', beginning with a letter"
        )
    return name


def _real_model(name: str | None) -> tuple[str, str] | None:
    """Return the name and the URL of the real model that the environment asks for; None if it asks for none."""
    url, key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    if not (url and key):
        if name is not None:
            raise click.UsageError("--model needs OPENAI_BASE_URL and OPENAI_API_KEY in the environment")
        return None
    name = name or os.environ.get("OPENAI_MODEL")
    if not name:
        raise click.UsageError(f"say which model of {url} to use: --model NAME, or OPENAI_MODEL")
    return name, url


@click.command(cls=JsonCommand)
@click.option(
    "--service",
    default="checkout",
    show_default=True,
    metavar="NAME",
    callback=_check_service,
    help="What fails.",
)
@click.option("--calm", is_flag=True, help="Nothing fails, so a ticket is opened.")
@click.option("--yes/--no", "answer", default=None, help="Approve or decline the page without asking.")
@click.option(
    "--all",
    "goes_on",
    is_flag=True,
    help="Start again by itself after the kill; so it does without a terminal.",
)
@click.option("--no-kill", is_flag=True, help="Go through without being killed.")
@click.option("--fresh", is_flag=True, help="Begin anew, whatever an earlier start left.")
@click.option("--fast", is_flag=True, help="Make no pauses that let you watch.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    default=".demo",
    show_default=True,
    help="Keeps the checkpoints.",
)
@click.option("--model", metavar="NAME", help="Model at OPENAI_BASE_URL, by default OPENAI_MODEL.")
@click.pass_obj
def demo(
    session: CommandSession,
    service: str,
    calm: bool,
    answer: bool | None,
    goes_on: bool,
    no_kill: bool,
    fresh: bool,
    fast: bool,
    folder: str,
    model: str | None,
) -> int:
    """Let an agent triage an incident from a 50 MB log that never leaves shared state; no network, no key.

    At its first start it kills itself inside the tool loop of the agent; the same command goes on from there, and pays
    for no model call twice. The model is a small server that comes with the demo; OPENAI_BASE_URL and OPENAI_API_KEY
    use a real one instead. What a person decided is then decided otherwise, in a fork from the checkpoint before it.
    """
    from holdfast.demo.incident import DemoModel, DemoOptions
    from holdfast.demo.supervisor import describe, play

    chosen = _real_model(model)
    used = DemoModel() if chosen is None else DemoModel(*chosen, is_local=False)
    options = DemoOptions(service, calm, answer, not no_kill, fast, folder, used)
    is_alone = not (sys.stdin.isatty() and sys.stdout.isatty())
    out = sys.stderr if session.is_json else sys.stdout
    code = play(options, out, is_fresh=fresh, goes_on=goes_on or is_alone)
    if session.is_json:
        session.output.write(describe(options.place), list)
    return code
