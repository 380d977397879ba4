"""The process that starts the demo's model and its worker, tells of the worker's death, and lists what the storage has.

It never drives the run: all that it tells it reads from the storage.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from holdfast import CheckpointStorage, SqliteCheckpointStorage
from holdfast.demo.incident import KILL, DemoOptions, IncidentFolder
from holdfast.demo.other_decision import state_size
from holdfast.demo.view import say, size
from holdfast.demo.workflow import INCIDENT, OTHERWISE

_SHOW_CURSOR = "\x1b[?25h"  # the live view hid it, and was killed before it could show it again
_WIDE = 79
_COLUMNS = "{run:<9}  {seq:>4}  {superstep:>9}  {phase:<5}  {cause:<9}  {status:<9}  {added:>9}  {state:>9}"
_NARROW_COLUMNS = "{run:<9}  {seq:>3}  {status:<9}  {added:>8}"


def play(options: DemoOptions, out: TextIO, *, is_fresh: bool, goes_on: bool) -> int:
    """Play the demo up to its next end and return the exit code of the worker; ``goes_on`` also after the kill."""
    if find_spec("openai") is None:
        say("holdfast demo: its agent needs the openai SDK: pip install 'holdfast[demo]'", sys.stderr)
        return 1
    options.place.begin(is_fresh)
    with open_model(options) as ready:
        return _play(ready, out, goes_on)


@contextmanager
def open_model(options: DemoOptions) -> Iterator[DemoOptions]:
    """Start the local model as a process of its own, unless the options name a real one; give options with its URL."""
    if not options.model.is_local:
        yield options
        return
    command = [sys.executable, *_flags(), "-m", "holdfast.demo.model_server", str(options.place.bill)]
    # Its input is closed at the end, or by the death of this process: then it ends.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield replace(options, model=replace(options.model, url=server.stdout.readline().strip()))


def _play(options: DemoOptions, out: TextIO, goes_on: bool) -> int:
    place = options.place
    ended = _run_worker(options, out)
    if ended == -KILL and asyncio.run(_is_interrupted(place)):
        _tell_of_kill(place, out)
        if not goes_on:
            print(file=out)
            say("Now run the same command again: it goes on from there.", out)
            return 0
        print("\nThe same command, again:\n", file=out)
        ended = _run_worker(options, out)
    if ended == 0:
        _tell_of_end(place, out)
        place.end()
    return ended


def describe(place: IncidentFolder) -> dict[str, Any]:
    """Return where the incident is kept, and how its run and the fork stand, for programs."""

    async def read() -> dict[str, Any]:
        async with SqliteCheckpointStorage(place.database, read_only=True) as storage:
            found = {run.run_id: run.to_dict() for run in await storage.list_runs()}
        return {"run": found.get(INCIDENT), "otherwise": found.get(OTHERWISE)}

    bill = place.read_bill()
    calls = {"count": bill.calls, "repeated": bill.repeated} if bill.calls else None
    return {"store": url_of(place), **asyncio.run(read()), "model_calls": calls}


def url_of(place: IncidentFolder) -> str:
    """Return the URL of the storage, for other commands."""
    return f"sqlite:///{quote(_shown(place.database))}"


def _run_worker(options: DemoOptions, out: TextIO) -> int:
    """Let a process of its own work, with this terminal, and return its code as ``subprocess`` gives it."""
    out.flush()
    # Ctrl-C is for the worker, which gets it as well; this process waits for what comes of it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    mode = _terminal_mode()
    try:
        command = [sys.executable, *_flags(), "-m", "holdfast.demo.worker", options.to_json()]
        return subprocess.run(command, stdout=out, check=False).returncode
    finally:
        _set_terminal_mode(mode)
        signal.signal(signal.SIGINT, before)


def _flags() -> list[str]:
    """Return the options of this interpreter that others should have as well."""
    return [f"-W{option}" for option in sys.warnoptions] + (["-X", "utf8"] if sys.flags.utf8_mode else [])


def _terminal_mode() -> list[Any] | None:
    """Return the mode of the terminal, which a killed worker cannot set back; None if there is none."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return None
    import termios

    return termios.tcgetattr(sys.stdin)


def _set_terminal_mode(mode: list[Any] | None) -> None:
    if mode is not None:
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)


def _tell_of_kill(place: IncidentFolder, out: TextIO) -> None:
    if out.isatty():
        print(_SHOW_CURSOR, file=out)
    print(file=out)
    bill = place.read_bill()
    paid = f" The model was paid for {bill.calls} calls by then." if bill.calls else ""
    say(
        f"The process is gone: it was killed (SIGKILL) inside the tool loop of the agent.{paid} What it left:",
        out,
    )
    print(file=out)
    asyncio.run(_print_checkpoints(place, out))


def _tell_of_end(place: IncidentFolder, out: TextIO) -> None:
    print(file=out)
    asyncio.run(_print_checkpoints(place, out))
    print(file=out)
    asyncio.run(_print_tree(place, out))
    print(file=out)
    say("All of it stays until the demo begins anew. Look at it:", out)
    print(f"  holdfast --store {url_of(place)} runs ls", file=out, flush=True)


def _looked_at(place: IncidentFolder) -> CheckpointStorage:
    return SqliteCheckpointStorage(place.database, read_only=True)


async def _print_checkpoints(place: IncidentFolder, out: TextIO) -> None:
    """Print the checkpoints of the incident: what each added to the storage, and how much state it gives back."""
    async with _looked_at(place) as storage:
        checkpoints = await storage.list_checkpoints()
    is_narrow = out.isatty() and shutil.get_terminal_size().columns < _WIDE
    columns = _NARROW_COLUMNS if is_narrow else _COLUMNS
    titles = {
        name: name for name in ("run", "seq", "superstep", "phase", "cause", "status", "added", "state")
    }
    print(columns.format(**titles).rstrip(), file=out)
    for made in checkpoints:
        row = {name: getattr(made, name) for name in ("seq", "superstep", "phase", "cause", "status")}
        sizes = {"added": size(made.new_bytes), "state": size(state_size(made))}
        print(columns.format(run=made.run_id, **row, **sizes), file=out)
    added = size(sum(made.new_bytes for made in checkpoints))
    held = size(sum(map(state_size, checkpoints)))
    say(f"{len(checkpoints)} checkpoints added {added} to {_shown(place.database)}", out)
    say(f"written whole, their state is {held}", out)


async def _print_tree(place: IncidentFolder, out: TextIO) -> None:
    """Print these checkpoints as a tree, with the heads of the runs."""
    async with _looked_at(place) as storage:
        print(await storage.draw_tree(INCIDENT, ascii="utf" not in (out.encoding or "").lower()), file=out)


async def _is_interrupted(place: IncidentFolder) -> bool:
    """Return True if the process of a stored run died."""
    async with _looked_at(place) as storage:
        return bool(await storage.list_runs(interrupted=True))


def _shown(path: Path) -> str:
    """Return a path as it is shortest, from the current folder where it lies below that."""
    short = os.path.relpath(path)
    return str(path.resolve()) if short.startswith("..") else short
