"""The journal of the superstep under way: finished turns and results of ``once`` that are not done again."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.engine.value import Value
from holdfast.errors import RunTaken
from holdfast.ids import ExecutorId

if TYPE_CHECKING:
    from holdfast.checkpoint.journal import Contents, Journaled
    from holdfast.checkpoint.write.log import NoteDraft
    from holdfast.runtime.step.turn import FinishedTurn

# Outcomes wait so long for others before they are made durable: most supersteps are over by then.
_LAZY_SECONDS = 0.005
# A note that could not be written is tried again after so long.
_AGAIN_SECONDS = 1.0


class Journal:
    """The results of ``once`` in the superstep under way; without storage they last as long as the run."""

    def __init__(self) -> None:
        self._superstep = 0
        self._results: dict[tuple[ExecutorId, str], Value] = {}

    @property
    def results(self) -> Iterable[tuple[tuple[ExecutorId, str], Value]]:
        """The results of ``once`` in this superstep, by executor and name."""
        return self._results.items()

    def result(self, superstep: int, executor_id: ExecutorId, name: str) -> Value | None:
        """Return the result that was kept in this superstep under this name, or None."""
        return self._results.get((executor_id, name)) if superstep == self._superstep else None

    async def keep(self, superstep: int, executor_id: ExecutorId, name: str, result: Value) -> None:
        """Keep a result; in a stored run it is durable when this returns."""
        if superstep != self._superstep:
            self._superstep, self._results = superstep, {}
        self._results[executor_id, name] = result

    async def settled(self) -> None:
        """Wait until kept results are durable, in a stored run; raise if they cannot be."""

    async def ready(self) -> None:
        """Wait until an effect may happen: the start of its turn is durable, and this process still drives the run."""


class NoteWriter(Protocol):
    """Makes notes durable; the recorder of a run does."""

    async def note(self, drafts: Sequence[NoteDraft], count: Callable[[], bool]) -> None:
        """Make notes durable, if they still count when no other commit is under way."""
        ...

    def draft_turn(self, turn: FinishedTurn) -> NoteDraft:
        """Return the note of a turn that is over."""
        ...

    def draft_result(self, executor_id: ExecutorId, name: str, result: Value) -> NoteDraft:
        """Return the note of a result of ``once``."""
        ...

    async def caught_up(self) -> None:
        """Wait until what came before is durable."""
        ...

    async def check_owned(self) -> None:
        """Read from the store who drives the run; raise ``RunTaken`` if another process does by now."""
        ...


class StoredJournal(Journal):
    """The journal of a stored run.

    Outcomes are noted some milliseconds later, or with the next result that has to be durable at once. The journal has
    only a weak reference to its ``note_writer``, which holds it: a run that nobody holds should be gone at once, not
    when the garbage collector comes.
    """

    def __init__(self, note_writer: NoteWriter) -> None:
        super().__init__()
        self._note_writer = weakref.ref(note_writer)
        self.turns: Mapping[ExecutorId, Journaled] = {}
        """Turns of the next superstep that are over already, as a resumed run finds them."""
        self.patient = False
        """True if outcomes wait for something else that has to be durable, however long that takes."""
        self._pending: list[Callable[[], NoteDraft]] = []
        """Makes the drafts of notes, when they are written."""
        self._cleared = 0
        self._timer: asyncio.TimerHandle | None = None
        self.writing: asyncio.Task[None] | None = None
        """The task that makes notes durable, if there is one."""
        self.over = False
        """True if the run came to rest: nothing more is noted of it."""
        self.lost: Callable[[RunTaken], None] = lambda error: None
        """Called when a note is refused because another process took the run."""

    @property
    def _by(self) -> NoteWriter:
        note_writer = self._note_writer()
        assert note_writer is not None, (
            "whoever has anything to note drives the run, and so has what makes it durable"
        )
        return note_writer

    def found(self, superstep: int, contents: Contents) -> None:
        """Take over the contents of the journal in the store."""
        self.turns = contents.turns
        self._superstep, self._results = superstep, dict(contents.results)

    def add(self, turn: FinishedTurn) -> None:
        """Note a turn that is over; the note is durable soon, unless the superstep ends before that."""
        self._pending.append(partial(self._by.draft_turn, turn))
        if self._timer is None and not self.over and not self.patient:
            self._timer = asyncio.get_running_loop().call_later(_LAZY_SECONDS, self._write)

    async def keep(self, superstep: int, executor_id: ExecutorId, name: str, result: Value) -> None:
        await super().keep(superstep, executor_id, name, result)
        self._pending.append(partial(self._by.draft_result, executor_id, name, result))
        await asyncio.shield(self._write())

    async def ready(self) -> None:
        note_writer = self._by
        try:
            await note_writer.caught_up()
            await note_writer.check_owned()
        except RunTaken as error:
            # Soon: where this is raised in the task that drives the run, nobody has to cancel it any more.
            asyncio.get_running_loop().call_soon(self.lost, error)
            raise

    async def settled(self) -> None:
        if self._pending or (self.writing is not None and not self.writing.done()):
            await asyncio.shield(self._write())

    def _write(self) -> asyncio.Task[None]:
        self._stop_timer()
        if self.writing is None or self.writing.done():
            self.writing = asyncio.ensure_future(self._write_pending())
            self.writing.add_done_callback(_retrieve_exception)
        return self.writing

    async def _write_pending(self) -> None:
        while self._pending:
            taken, self._pending = self._pending, []
            cleared = self._cleared

            def count() -> bool:
                return self._cleared == cleared  # noqa: B023

            try:
                await self._by.note([draft() for draft in taken], count)
            except BaseException as error:
                self._pending = taken + self._pending if count() else self._pending
                if isinstance(error, RunTaken):
                    self.lost(error)
                elif self.over:
                    self._pending = []
                elif self._pending and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._write)
                raise

    def take_pending(self) -> list[Callable[[], NoteDraft]]:
        """Return the drafts that are not durable yet, for a commit that is made anyway; write no more notes."""
        self._stop_timer()
        self.over = True
        taken, self._pending = self._pending, []
        return taken

    def clear(self) -> None:
        """Forget the superstep, which is about to be durable as a whole."""
        self._cleared += 1
        # Most supersteps have none of these, and nothing should be made for them.
        if self._timer is not None:
            self._stop_timer()
        if self._pending:
            self._pending = []
        if self.turns:
            self.turns = {}
        if self._results:
            self._results = {}

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def sleepers(results: Iterable[tuple[tuple[ExecutorId, str], Value]], now: int) -> dict[ExecutorId, int]:
    """Return the executors whose turns sleep, and until when: a turn sleeps as long as its last sleep lasts."""
    asleep: dict[ExecutorId, int] = {}
    for (executor_id, name), until in results:
        if is_sleep(name):
            asleep[executor_id] = max(until.load(), asleep.get(executor_id, 0))
    return {executor_id: until for executor_id, until in asleep.items() if until > now}


_SLEEP = "\x1fsleep"


def sleep_name(message_number: int, before: int) -> str:
    """Return the name under which the end of a sleep is kept; no effect can have it."""
    return f"{_SLEEP}\x1f{message_number}\x1f{before}"


def is_sleep(name: str) -> bool:
    """Return True if the end of a sleep is kept under a name."""
    return name.startswith(_SLEEP)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio from logging an error: those who waited have it, else the next commit raises it."""
    if not task.cancelled():
        task.exception()
