"""Runs the demo: ``python -m examples.incident_triage``."""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from examples.incident_triage.person import approval
from examples.incident_triage.plain import PlainView
from examples.incident_triage.progress import Progress
from examples.incident_triage.view import View
from examples.incident_triage.workflow import Note, build
from holdfast import HoldfastError, RunStream

# How long the live view stays at an event, so that one can follow it.
_PAUSE_SECONDS = 0.3
_PAUSE_AFTER_NOTE_SECONDS = 0.12


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    progress = Progress(build(options.calm))
    view = _live_view(progress)
    watchable = view is not None and not options.fast
    try:
        _drive(options.service, progress, view or PlainView(progress), watchable, approval(options.approved))
    except EOFError:
        print("\nincident_triage: nobody answered, so nobody was paged", file=sys.stderr)
        return 1
    except HoldfastError as error:
        print(f"incident_triage: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        undecided = "" if progress.outputs else " before a decision, so nobody was paged"
        print(f"\nincident_triage: stopped{undecided}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough, as in `make demo | head`; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="incident_triage",
        description="Triages an incident from a 50 MB log that never leaves shared state.",
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
    parser.add_argument("--fast", action="store_true", help="make no pauses that let you watch")
    return parser.parse_args(arguments)


def _service(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
        raise argparse.ArgumentTypeError(
            f"{name!r} is no service name: use at most 30 of a-z, 0-9 and '-', beginning with a letter"
        )
    return name


def _live_view(progress: Progress) -> View | None:
    """The live view, or None where it cannot be shown."""
    if not sys.stdout.isatty():
        return None
    try:
        from examples.incident_triage.live import LiveView, can_show
    except ModuleNotFoundError:
        print("For a live view: pip install 'holdfast[demo]'\n")
        return None
    return LiveView(progress) if can_show() else None


def _drive(
    service: str, progress: Progress, view: View, watchable: bool, approves: Callable[[], bool]
) -> None:
    """Watch the run until it waits for a person, ask, and go on."""
    stream = progress.workflow.run_stream(service)
    progress.measure(stream.run)
    # Between two calls of the runner no event loop runs: the prompt may block, and Ctrl-C reaches it.
    with asyncio.Runner() as runner:
        runner.run(_watch(stream, {}, progress, view, watchable))
        while requests := stream.run.pending_requests:
            answers: dict[str, bool] = {}
            for request in requests:
                view.present(request.data)
                answers[request.request_id] = approves()
            runner.run(_watch(stream, answers, progress, view, watchable))
    view.conclude()


async def _watch(
    stream: RunStream, answers: Mapping[str, bool], progress: Progress, view: View, watchable: bool
) -> None:
    """Give the answers and show what the run does, until it waits or is over."""
    for request_id, answer in answers.items():
        await stream.run.send_response(request_id, answer)
    with view:
        async for event in stream:
            progress.take(event, stream.run)
            view.show(event)
            if watchable:
                # The run waits for its stream at the end of each superstep: a slow watcher slows it down.
                await asyncio.sleep(_PAUSE_AFTER_NOTE_SECONDS if isinstance(event, Note) else _PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
