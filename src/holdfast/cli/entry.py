"""The entry point of the command: turns every error into a message and an exit code.

It imports click itself, so that it can say what to install where click is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from holdfast.cli.exit_codes import ExitCode, exit_code_of
from holdfast.errors import CheckpointUntrusted, HoldfastError

_MISSING = (
    "holdfast: the command needs the package {name!r}; install it with: pip install 'holdfast[cli]'\n"
    "The library works without it.\n"
)
_KEYS_HINT = (
    "\nThe command takes keys from HOLDFAST_KEYS, else from the file that 'keyring' in holdfast.toml names."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; data goes to stdout, everything else to stderr.

    >>> main(["runs", "show"])
    2
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a text that the terminal cannot show is no reason to fail
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(_run(given))
    except BrokenPipeError:
        return _leave_closed_pipe()
    except KeyboardInterrupt:
        sys.stderr.write("\nholdfast: interrupted\n")
        return ExitCode.INTERRUPTED


def _replace_closed_streams() -> None:
    """Give streams that are closed, as with ``>&-``, a place that keeps nothing.

    Else the next file that is opened takes their number, and whatever writes to stderr would write into the store.
    """
    for name in ("stdin", "stdout", "stderr"):  # in this order, so that each gets its own number
        if getattr(sys, name) is not None:
            continue
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _run(arguments: list[str]) -> int:
    try:
        import click

        from holdfast.cli.main import holdfast
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(_MISSING.format(name=error.name))
        return ExitCode.FAILED
    if os.environ.get("_HOLDFAST_COMPLETE"):  # a shell asks what could stand here
        from holdfast.cli.completion import complete

        return complete(holdfast)
    try:
        with holdfast.make_context("holdfast", list(arguments)) as context:
            code = holdfast.invoke(context)
            return ExitCode.OK if code is None else int(code)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.UsageError as error:
        hint = f"\nTry 'holdfast{_path_of(error.ctx)} --help'." if error.ctx is not None else ""
        return _report(arguments, "UsageError", error.format_message() + hint, ExitCode.USAGE)
    except click.Abort:  # an end of input, or Ctrl-C, where a question was asked
        sys.stderr.write("\nholdfast: left without an answer, by which nothing was changed\n")
        return ExitCode.INTERRUPTED
    except HoldfastError as error:
        hint = _KEYS_HINT if isinstance(error, CheckpointUntrusted) else ""
        return _report(arguments, type(error).__name__, f"{error}{hint}", exit_code_of(error))
    except BrokenPipeError:
        raise
    except OSError as error:  # a file that was named and cannot be read or written
        return _report(arguments, type(error).__name__, str(error), ExitCode.FAILED)


def _path_of(context: object) -> str:
    path = getattr(context, "command_path", "holdfast")
    return str(path).removeprefix("holdfast")


def _report(arguments: list[str], kind: str, message: str, code: ExitCode) -> int:
    """Tell an error on stderr, as JSON if the command was asked for JSON."""
    text = f"holdfast: {message}"
    if "--json" not in arguments:
        if sys.stderr.isatty():
            text = "\n".join(_wrapped(text))
    else:
        import json

        text = json.dumps({"error": {"type": kind, "message": message, "exit_code": int(code)}})
    with suppress(OSError):  # stderr is full or left: the code still tells
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    return code


def _wrapped(text: str) -> list[str]:
    from shutil import get_terminal_size

    from holdfast.cli.output import wrap_line

    width = get_terminal_size().columns
    return [part for line in text.split("\n") for part in wrap_line(line, width)]


def _leave_closed_pipe() -> int:
    """End quietly after the reader of stdout left; Python would complain again when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no file of the system
        pass
    return ExitCode.CLOSED_PIPE
