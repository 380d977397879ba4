"""The options of the command line."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from examples.incident_triage.place import DEFAULT_ROOT, Place


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ends the program where they cannot be meant."""
    parser = argparse.ArgumentParser(
        prog="incident_triage",
        description="Triages an incident from a 50 MB log that never leaves shared state. At its first start it "
        "kills itself in the middle of triage; started again by the same command it goes on from there. What a "
        "person decided is then decided otherwise, in a fork from the checkpoint before the decision.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--service",
        type=_service,
        default="checkout",
        metavar="NAME",
        help="what fails (default: %(default)s)",
    )
    parser.add_argument("--calm", action="store_true", help="nothing fails, so a ticket is opened")
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument(
        "--yes", dest="approved", action="store_true", default=None, help="approve the page without asking"
    )
    answer.add_argument(
        "--no", dest="approved", action="store_false", default=None, help="decline it: a ticket is opened"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="start again by itself after the kill; so it does without a terminal",
    )
    parser.add_argument("--no-kill", action="store_true", help="go through without being killed")
    parser.add_argument("--fresh", action="store_true", help="begin anew, whatever an earlier start left")
    parser.add_argument("--fast", action="store_true", help="make no pauses that let you watch")
    parser.add_argument(
        "--folder",
        type=Path,
        default=DEFAULT_ROOT,
        help="where checkpoints are kept meanwhile (default: .demo here)",
    )
    return parser.parse_args(arguments)


def place_of(options: argparse.Namespace) -> Place:
    """Return the place of the incident that the options name."""
    return Place(options.folder, f"{options.service}-calm" if options.calm else options.service)


def _service(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no service name: use at most 30 of a-z, 0-9 and '-', beginning with a letter"
        )
    return name
