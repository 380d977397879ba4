"""Further input of a run, until it is delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.inbox import Message
from holdfast.engine.router import route_input
from holdfast.engine.snapshot import FurtherInput, take_input
from holdfast.engine.status import RunStatus
from holdfast.engine.superstep import find_target
from holdfast.engine.value import Captor
from holdfast.errors import DeadLetter, HoldfastError
from holdfast.ids import ExecutorId
from holdfast.runtime.config import WorkflowDefinition
from holdfast.runtime.events.emitter import EventEmitter
from holdfast.runtime.step.position import Position

if TYPE_CHECKING:
    from holdfast.runtime.durable.recorder import Recorder


class FurtherInputs:
    """Takes messages that come to a run after its input, from whoever sends them, and delivers them at a barrier."""

    def __init__(
        self,
        workflow: WorkflowDefinition,
        at: Position,
        capture: Captor,
        emitter: EventEmitter,
        recorder: Recorder | None,
    ) -> None:
        self._workflow = workflow
        self._at = at
        self._capture = capture
        self._emitter = emitter
        self._recorder = recorder
        self._pending: dict[str, Message] = {}
        """Messages that are to be delivered, by the keys of their letters."""
        self._dead: set[str] = set()
        """The letters that nobody can act on, which the next commit takes."""
        self._count = 0

    @property
    def waiting(self) -> bool:
        """True if messages are to be delivered."""
        return bool(self._pending)

    def check(self, message: object, target_id: str | None) -> ExecutorId:
        """Return the executor that takes a message; raise ``WrongType`` or ``InvalidArgument`` if none does."""
        return find_target(self._workflow.graph, self._workflow.name, message, target_id)

    async def send(self, message: Any, target_id: str | None, key: str | None, by: str | None) -> bool:
        """Take a message; that of a stored run is durable in its inbox when this returns.

        Return False if the run may not see it any more before it rests: what is stored of it rests already.
        """
        target = self.check(message, target_id)
        value = self._capture(message, "message")
        if self._recorder is None:
            self._count += 1
            self._pending.setdefault(
                str(self._count) if key is None else f"={key}", Message(target, value, by)
            )
            return True
        # Its encoder captured the value.
        head = await self._recorder.send(value, target_id, key, by)  # type: ignore[arg-type]
        return head.status is RunStatus.RUNNING

    def take(self, messages: Mapping[str, Message]) -> bool:
        """Take the messages in the inbox that can be used; tell of the others. Return True if there are any."""
        for key, message in messages.items():
            if key in self._pending or key in self._dead:
                continue
            usable = self._read(key, message)
            if usable is not None:
                self._pending[key] = usable
        return bool(self._pending)

    def _read(self, key: str, message: Message) -> Message | None:
        try:
            target = self.check(message.value.peek(), message.target)
        except HoldfastError as error:
            assert self._recorder is not None
            self._recorder.drop_letter(key)
            self._dead.add(key)
            sender = "" if message.by is None else f" by {message.by!r}"
            warning = DeadLetter(
                f"a message that was sent{sender} cannot be delivered, and is dropped: {error}"
            )
            self._emitter.emit([self._emitter.warning(warning, message.target)])
            return None
        return message._replace(target=target)

    async def deliver_all(self) -> None:
        """Deliver the messages that came; with storage each is a checkpoint."""
        pending, snapshot = dict(self._pending), self._at.snapshot
        inputs: list[tuple[FurtherInput, str | None]] = []
        for target, value, by in pending.values():
            assert target is not None, "it is named where the message is taken"
            further = route_input(self._workflow.graph, snapshot, target, value)
            snapshot = take_input(snapshot, further)
            inputs.append((further, by))
        if self._recorder is not None:
            await self._recorder.given(inputs, snapshot.superstep + 1, list(pending))
        self._at.snapshot = snapshot
        self._pending = {key: message for key, message in self._pending.items() if key not in pending}
