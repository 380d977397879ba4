"""Drives a run for a command: shows its events as they come, asks its questions in place, and says how it stands."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from holdfast.checkpoint.events.events import (
    ExecutorCompletedEvent,
    ExecutorFailedEvent,
    ExecutorInvokedEvent,
    OutputDeltaEvent,
    SuperStepStartedEvent,
    WorkflowStatusEvent,
)
from holdfast.cli.event_text import render_event, tokens_of
from holdfast.cli.exit_codes import ExitCode, exit_code_of_run
from holdfast.cli.form import AnswerForm, can_ask, forget_typed
from holdfast.cli.output import EVENT_INDENT, CommandOutput, age_of, cut, paint, printable, shorten, span_text
from holdfast.cli.session import CommandSession, resume_line
from holdfast.engine.status import RunStatus
from holdfast.errors import ExecutorFailed, InvalidResponse, RequestAlreadyAnswered, UnknownRequest

if TYPE_CHECKING:
    from holdfast.checkpoint.events.events import WorkflowEvent
    from holdfast.checkpoint.pending_requests import RequestRecord
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.runtime.run.run import Run

_LONGEST_OUTPUT = 10_000
_TICK_SECONDS = 0.25
# Question data is shown up to so many lines; 'holdfast requests show' has all of it.
_DATA_LINES = 20


def drive(
    session: CommandSession,
    begin: Callable[[CheckpointStorage], Awaitable[Run]],
    *,
    make: bool = False,
    stays: bool = True,
    by: str | None = None,
) -> ExitCode:
    """Drive a run until it rests: events go to stderr, outputs to stdout; the code says how it stands.

    At a terminal its questions are asked in place, by ``by``. A run that sleeps is waited for, unless ``stays`` is
    False: then it is left as soon as it waits for anything. Ctrl-C stops the run; it can be resumed.
    """
    output = session.output
    driver = RunDriver(output, stays, by)

    async def work(storage: CheckpointStorage) -> tuple[RunInfo, list[Any]]:
        run = await begin(storage)
        output.say(f"run {printable(run.run_id)}")
        try:
            await driver.follow(run, storage)
        except ExecutorFailed:
            pass  # the status of the run and its reason tell it
        except (asyncio.CancelledError, click.Abort):  # Ctrl-C, or the end of input at a question
            await run.close()
            left = await storage.get_run(run.run_id)
            output.say(paint(f"the run is {left.status.value}; go on with: {resume_line(left)}", "yellow"))
            raise
        finally:
            await run.close()
        info = await storage.get_run(run.run_id)
        return info, list((await storage.load(info.checkpoint_id, plain=True)).outputs)

    info, outputs = session.change(work, make)
    output.write_raw(
        {"run": info.to_dict(), "outputs": outputs},
        lambda: (shorten(one, _LONGEST_OUTPUT) for one in outputs),
    )
    code = exit_code_of_run(info)
    run_id = printable(info.run_id)
    if code is ExitCode.WAITING:
        output.say(paint(f"it waits for answers: holdfast requests ls --run {run_id}", "yellow"))
    elif code is ExitCode.RUN_FAILED:
        told = f"it failed: holdfast runs show {run_id} says where; try again with: {resume_line(info)}"
        output.say(paint(told, "yellow"))
    elif info.wake_at is not None:
        told = f"it goes on {age_of(info.wake_at)}, with: {resume_line(info)}"
        output.say(paint(told, "yellow"))
    return code


class RunDriver:
    """Follows a run that this process drives, and answers its questions with what a person types."""

    def __init__(self, output: CommandOutput, stays: bool, by: str | None) -> None:
        self._output, self._stays, self._by = output, stays, by
        self._asks = stays and not output.is_json and can_ask()

    async def follow(self, run: Run, storage: CheckpointStorage) -> None:
        """Show the run until it rests and nobody here answers it."""
        while True:
            with ProgressView(self._output) as view:
                await self._watch(run, view)
            if not (self._asks and run.status is RunStatus.WAITING):
                return
            asked = await storage.list_requests(run_id=run.run_id, limit=None)
            if not asked:
                return
            forget_typed()
            for request in asked:
                await self._answer(run, request)

    async def _watch(self, run: Run, view: ProgressView) -> None:
        async for event in run.watch_stream():
            view.show(event)
            if (
                not self._stays
                and isinstance(event, WorkflowStatusEvent)
                and event.status is RunStatus.WAITING
            ):
                return

    async def _answer(self, run: Run, request: RequestRecord) -> None:
        """Ask a person until the run takes the answer, or does not want one any more."""
        say = self._output.say
        say(paint(f"{request.executor_id} asks {printable(request.request_id)}:", "yellow"))
        lines = json.dumps(request.data, indent=2, ensure_ascii=False).splitlines()
        for line in lines[:_DATA_LINES]:
            say(f"  {printable(line)}")
        if len(lines) > _DATA_LINES:
            told = f"holdfast requests show {printable(run.run_id)} {printable(request.request_id)}"
            say(f"  ... {len(lines) - _DATA_LINES} more lines: {told}")
        while True:
            value = await AnswerForm(request.response_schema).fill()
            try:
                await run.send_response(request.request_id, value, by=self._by)
            except InvalidResponse as error:
                say(paint(printable(str(error)), "red"))
            except (
                RequestAlreadyAnswered,
                UnknownRequest,
            ) as error:  # someone else was faster, or it expired
                say(paint(printable(str(error)), "yellow"))
                await run.go_on()
                return
            else:
                return


class ProgressView:
    """Shows events as lines; at a terminal the last line is what goes on now, and is drawn anew all the time."""

    def __init__(self, output: CommandOutput) -> None:
        self._output = output
        self._is_live = not output.is_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._superstep = self._tokens = 0
        self._working: dict[str, float] = {}
        self._partial: dict[str, tuple[int, str]] = {}
        self._ticks: asyncio.Task[None] | None = None
        self._is_drawn = False

    def __enter__(self) -> Self:
        if self._is_live:
            self._ticks = asyncio.create_task(self._tick())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
        self._erase()

    def show(self, event: WorkflowEvent) -> None:
        """Show an event: a part of an output in the last line, everything else as a line of its own."""
        self._note(event)
        if not (self._is_live and isinstance(event, OutputDeltaEvent)):
            data = event.to_dict()
            self._tokens += tokens_of(data)
            text = render_event(data)
            if text:
                self._erase()
                self._output.say(text, EVENT_INDENT)
        if self._is_live:
            self._draw()

    def _note(self, event: WorkflowEvent) -> None:
        match event:
            case SuperStepStartedEvent():
                self._superstep = event.superstep
            case ExecutorInvokedEvent():
                self._working[event.executor_id] = time.monotonic()
            case ExecutorCompletedEvent() | ExecutorFailedEvent():
                self._working.pop(event.executor_id, None)
                self._partial.pop(event.executor_id, None)
            case OutputDeltaEvent():
                attempt, before = self._partial.get(event.executor_id, (event.attempt, ""))
                text = event.data if isinstance(event.data, str) else shorten(event.to_dict()["data"])
                kept = before if attempt == event.attempt else ""
                self._partial[event.executor_id] = event.attempt, (kept + text)[-1000:]

    async def _tick(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._draw()

    def _draw(self) -> None:
        self._erase()
        width = shutil.get_terminal_size().columns - 1
        text = self.text(time.monotonic(), width)
        if text:
            sys.stderr.write(cut(text, width).rstrip())
            sys.stderr.flush()
            self._is_drawn = True

    def text(self, now: float, width: int) -> str:
        """Return the last line: who works since when, the tokens of agents, and the end of what they say."""
        if not self._working:
            return ""
        working = ", ".join(
            f"{printable(name)} {span_text(int(now - since))}" for name, since in self._working.items()
        )
        text = f"superstep {self._superstep}: {working}" + (
            f", {self._tokens:,} tokens" if self._tokens else ""
        )
        said = " ".join(printable(part) for _, part in self._partial.values())
        room = width - len(text) - 3
        return f"{text} | {said[-room:]}" if said and room > 0 else text

    def _erase(self) -> None:
        if self._is_drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        self._is_drawn = False
