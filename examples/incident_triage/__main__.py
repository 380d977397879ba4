"""Runs the demo: ``python -m examples.incident_triage``."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from examples.incident_triage.options import parsed, place_of
from examples.incident_triage.place import Place
from examples.incident_triage.storage_report import is_interrupted, print_checkpoints, print_tree
from examples.incident_triage.worker import KILL

_SHOW_CURSOR = "\x1b[?25h"  # the live view hid it, and was killed before it could show it again


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsed(arguments)
    place = place_of(options)
    if options.fresh:
        place.clear()
        arguments = [argument for argument in arguments if argument != "--fresh"]
    place.folder.mkdir(parents=True, exist_ok=True)
    alone = options.all or not (sys.stdin.isatty() and sys.stdout.isatty())
    try:
        ended = _worked(arguments)
        if ended == -KILL and asyncio.run(is_interrupted(place.database)):
            _tell_of_kill(place)
            if not alone:
                print("\nNow run the same command again: it goes on from there.")
                return 0
            print("\nThe same command, again:\n", flush=True)
            ended = _worked(arguments)
        if ended == 0:
            _tell_of_end(place)
    except BrokenPipeError:
        # Whoever read has seen enough, as in `make demo | head`; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        ended = 0
    return ended


def _worked(arguments: Sequence[str]) -> int:
    """Let a process of its own work, with this terminal; how it ended, as ``subprocess`` says it."""
    flags = [f"-W{option}" for option in sys.warnoptions] + (["-X", "utf8"] if sys.flags.utf8_mode else [])
    sys.stdout.flush()
    # Ctrl-C is for the worker, which gets it as well; this process waits for what comes of it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        command = [sys.executable, *flags, "-m", "examples.incident_triage.worker", *arguments]
        return subprocess.run(command, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _tell_of_kill(place: Place) -> None:
    if sys.stdout.isatty():
        print(_SHOW_CURSOR)
    print("\nThe process is gone: it was killed (SIGKILL) in the middle of triage. What it left:\n")
    asyncio.run(print_checkpoints(place.database))


def _tell_of_end(place: Place) -> None:
    print()
    asyncio.run(print_checkpoints(place.database))
    print()
    asyncio.run(print_tree(place.database))
    sys.stdout.flush()
    place.clear()


if __name__ == "__main__":
    sys.exit(main())
