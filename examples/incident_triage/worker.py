"""The process that runs the workflow; at its first start it kills itself in the middle of triage."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from examples.incident_triage.options import parsed, place_of
from examples.incident_triage.other_decision import both_decisions
from examples.incident_triage.person import approval
from examples.incident_triage.plain_view import PlainView
from examples.incident_triage.progress import Progress
from examples.incident_triage.view import View
from examples.incident_triage.workflow import INCIDENT, Note, build
from holdfast import CheckpointStorage, HoldfastError, RunStream, SqliteCheckpointStorage, WorkflowEvent

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows SIGTERM ends a process as roughly

# How long the live view stays at an event, so that one can follow it.
_PAUSE_SECONDS = 0.3
_PAUSE_AFTER_NOTE_SECONDS = 0.12


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    worker = Worker(options)
    try:
        worker.work()
    except EOFError:
        print(
            "\nincident_triage: nobody answered, so nobody was paged; the same command asks again",
            file=sys.stderr,
        )
        return 1
    except HoldfastError as error:
        print(f"incident_triage: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        undecided = "" if worker.progress.outputs else " before a decision, so nobody was paged"
        print(f"\nincident_triage: stopped{undecided}; the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough, as in `make demo | head`; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class Worker:
    """Runs an incident from where it stands to its decision, then to the other one, and shows what happens."""

    def __init__(self, options: argparse.Namespace) -> None:
        place = place_of(options)
        self._options = options
        self._storage: CheckpointStorage = SqliteCheckpointStorage(place.database)
        self.progress = Progress(build(options.calm, self._storage, place.fetches), place)
        live = _live_view(self.progress)
        self._view = live or PlainView(self.progress)
        self._watchable = live is not None and not options.fast
        self._approves: Callable[[], bool] = approval(options.approved)
        self._doomed = False

    def work(self) -> None:
        """Watch the run until it waits for a person, ask, and go on; then see what the other answer leads to."""
        # Between two calls of the runner no event loop runs: the prompt may block, and Ctrl-C reaches it.
        with asyncio.Runner() as runner:
            try:
                stream = runner.run(self._begun())
                runner.run(self._watch(stream, {}))
                while requests := stream.run.pending_requests:
                    answers: dict[str, bool] = {}
                    for request in requests:
                        self._view.present(request.data)
                        answers[request.request_id] = self._approves()
                    runner.run(self._watch(stream, answers))
                self._view.conclude()
                outcomes = runner.run(both_decisions(self.progress.workflow, self._storage, stream.run))
                if outcomes is not None:
                    self._view.compare(outcomes)
            finally:
                runner.run(self._storage.close())

    async def _begun(self) -> RunStream:
        """A new run, or the one that an earlier process left in the storage."""
        workflow = self.progress.workflow
        left = await self._storage.get_latest(run_id=INCIDENT)
        if left is None:
            self._doomed = not self._options.no_kill
            return workflow.run_stream(self._options.service, run_id=INCIDENT)
        self._view.announce(f"Going on from the {left.phase} of superstep {left.superstep}")
        self.progress.went_before(left)
        return workflow.run_stream_from_checkpoint(left.checkpoint_id)

    async def _watch(self, stream: RunStream, answers: Mapping[str, bool]) -> None:
        """Give the answers and show what the run does, until it waits or is over."""
        for request_id, answer in answers.items():
            await stream.run.send_response(request_id, answer)
        with self._view:
            async for event in stream:
                await self.progress.take(event, stream.run, self._storage)
                self._view.show(event)
                self._die_in(event)
                if self._watchable and not (self._doomed and event.superstep > 1):
                    # The run waits for its stream at the end of each superstep: a slow watcher slows it down.
                    await asyncio.sleep(
                        _PAUSE_AFTER_NOTE_SECONDS if isinstance(event, Note) else _PAUSE_SECONDS
                    )

    def _die_in(self, event: WorkflowEvent) -> None:
        """In the middle of triage, end without cleaning up and without a last word."""
        match event:
            case Note(executor_id="TriageAgent", done=0.5) if self._doomed:
                os.kill(os.getpid(), KILL)


def _live_view(progress: Progress) -> View | None:
    """The live view, or None where it cannot be shown."""
    if not sys.stdout.isatty():
        return None
    try:
        from examples.incident_triage.live_view import LiveView, can_show
    except ModuleNotFoundError:
        print("For a live view: pip install 'holdfast[demo]'\n")
        return None
    return LiveView(progress) if can_show() else None


if __name__ == "__main__":
    sys.exit(main())
