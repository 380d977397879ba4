"""The process that drives the demo's run; at its first start it kills itself inside the tool loop of the agent."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable, Mapping

from holdfast import (
    CheckpointStorage,
    HoldfastError,
    OutputDeltaEvent,
    RunStream,
    SqliteCheckpointStorage,
    WorkflowEvent,
)
from holdfast.demo.incident import KILL, DemoOptions
from holdfast.demo.other_decision import both_decisions
from holdfast.demo.progress import RunProgress
from holdfast.demo.view import DemoView, PlainView, say
from holdfast.demo.workflow import INCIDENT, WorkNote, build

# The codes of the command for the same things.
_FAILED, _WAITS, _INTERRUPTED = 1, 3, 130
# How long the live view stays at an event, so that one can follow it.
_PAUSE_SECONDS = 0.3
_PAUSES = {WorkNote: 0.12, OutputDeltaEvent: 0.04}
# How long a Ctrl-C may go unnoticed.
_WAKE_SECONDS = 0.5
# The search in which the process dies, and how far it is then.
_LAST_SEARCH, _HALF_WAY = 2, 0.5
_QUESTION = "Page on-call? [y/n] "
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}


class NobodyToAsk(Exception):
    """There is no terminal to ask at, and no option that answers."""


def main(arguments: list[str]) -> int:
    """Drive the run with options as JSON, as the supervisor gives them; return the exit code."""
    worker = DemoWorker(DemoOptions.from_json(arguments[0]))
    try:
        worker.work()
    except NobodyToAsk:
        return _leave(
            "there is no terminal to ask at, so the run waits; the same command with --yes or --no goes on",
            _WAITS,
        )
    except EOFError:
        return _leave("nobody answered, so nobody was paged; the same command asks again", _INTERRUPTED, "\n")
    except HoldfastError as error:
        return _leave(str(error), _FAILED)
    except KeyboardInterrupt:
        undecided = "" if worker.progress.outputs else " before a decision, so nobody was paged"
        return _leave(f"stopped{undecided}; the same command goes on", _INTERRUPTED, "\n")
    except BrokenPipeError:
        # Whoever read has seen enough, as in `holdfast demo | head`; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _leave(message: str, code: int, before: str = "") -> int:
    sys.stderr.write(before)
    say(f"holdfast demo: {message}", sys.stderr)
    return code


class DemoWorker:
    """Drives an incident from where it stands to its decision, then to the other one, and shows what happens."""

    def __init__(self, options: DemoOptions) -> None:
        # Here, because the openai SDK takes half a second, and nothing else needs it.
        from holdfast.demo.triage_agent import make_agent, open_client

        place = options.place
        self._options = options
        self._storage: CheckpointStorage = SqliteCheckpointStorage(place.database)
        self._client = open_client(options.model)
        agent = make_agent(self._client, options.model.name, self._hold)
        self.progress = RunProgress(build(options, self._storage, agent), place)
        live = _live_view(self.progress)
        self._view = live or PlainView(self.progress)
        self._watchable = live is not None and not options.is_fast
        self._approves: Callable[[], bool] = approval(options.answer)
        self._doomed = False
        self._last_words: str | None = None

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
                runner.run(self._client.close())
                runner.run(self._storage.close())

    async def _begun(self) -> RunStream:
        """Return the stream of a new run, or of the one that an earlier process left in the storage."""
        workflow = self.progress.workflow
        left = await self._storage.get_latest(run_id=INCIDENT)
        if left is None:
            self._doomed = self._options.is_killed
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
                if self._watchable:
                    # The run waits for its stream at the end of each superstep: a slow watcher slows it down.
                    await asyncio.sleep(_PAUSES.get(type(event), _PAUSE_SECONDS))

    async def _hold(self, search: int, note: WorkNote) -> None:
        """Let the agent go no further than half way through its second search, until all up to there is shown."""
        if self._doomed and search == _LAST_SEARCH and note.done == _HALF_WAY:
            self._last_words = note.text
            await asyncio.Event().wait()

    def _die_in(self, event: WorkflowEvent) -> None:
        """At the place where the agent is held, end without cleaning up."""
        if isinstance(event, WorkNote) and event.text == self._last_words:
            os.kill(os.getpid(), KILL)


def approval(given: bool | None) -> Callable[[], bool]:
    """Return the function that answers the question: the option if one was given, else the person at the terminal."""
    if given is not None:
        return lambda: _said(given)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return _nobody
    return _asked


def _said(answer: bool) -> bool:
    print(f"{_QUESTION}{'yes' if answer else 'no'} (by option)\n", flush=True)
    return answer


def _nobody() -> bool:
    raise NobodyToAsk


def _asked() -> bool:
    """Ask until the answer is one; ``EOFError`` and ``KeyboardInterrupt`` are for the caller."""
    _forget_typed()
    while True:
        try:
            answer = _read_line(_QUESTION).strip().lower()
        except UnicodeDecodeError:
            answer = ""
        if answer in _ANSWERS:
            print()
            return _ANSWERS[answer]
        print("Please answer y or n.")


def _read_line(question: str) -> str:
    print(question, end="", flush=True)
    if sys.platform != "win32":
        # Python runs the handler of a Ctrl-C that comes right before it begins to read only when it wakes.
        while not select.select([sys.stdin], [], [], _WAKE_SECONDS)[0]:
            pass
    return input()


def _forget_typed() -> None:
    """Drop keys that were typed before the question was shown: they are no answer to it."""
    try:
        import termios
    except ModuleNotFoundError:  # Windows
        import msvcrt

        while msvcrt.kbhit():  # type: ignore[attr-defined, unused-ignore]
            msvcrt.getch()  # type: ignore[attr-defined, unused-ignore]
        return
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _live_view(progress: RunProgress) -> DemoView | None:
    """Return the live view, or None where it cannot be shown."""
    if not sys.stdout.isatty():
        return None
    try:
        from holdfast.demo.live_view import LiveView, can_show
    except ModuleNotFoundError:
        print("For a live view: pip install 'holdfast[demo]'\n")
        return None
    return LiveView(progress) if can_show() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
