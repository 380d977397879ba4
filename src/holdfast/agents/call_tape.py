"""The recording of an agent's calls in the state of its run, and the use of a recording in place of calls."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.agents.budget import USAGE_SCOPE
from holdfast.agents.decisions import (
    AgentQuestion,
    OutputApprovalRequest,
    OutputDecision,
    ToolApprovalRequest,
    ToolDecision,
)
from holdfast.checkpoint.codec.registry import checkpointable
from holdfast.checkpoint.events.events import PendingRequest
from holdfast.errors import ReplayDiffers

if TYPE_CHECKING:
    from holdfast.agents.activation import Activation
    from holdfast.runtime.step.context import TurnContext

Json: TypeAlias = Any

REVIEW = "review"
"""The name under which the decision of a person about a reply is recorded."""
_KEY = "calls of "
_SHOWN = 200
"""So many characters of a value are shown in messages."""
_BEFORE = 40
"""So many characters are shown before the place where two texts differ."""


@checkpointable(name="holdfast.AskedCall")
@dataclass(frozen=True)
class AskedCall:
    """The request of a call, as far as it decides what a model or a tool gives back.

    >>> AskedCall.of("charge", {"amount": 5}).decided(ToolDecision.approve({"amount": 4})).decision
    {'action': 'approve', 'arguments': {'amount': 4}}
    """

    target: str
    """The name of the model or the tool; empty for a question to a person."""
    request: Json
    """The request to the model, the arguments of the tool, or the question."""
    decision: Json = None
    """The decision of a person about a tool call, if one was asked."""

    @classmethod
    def of(cls, target: str, request: Json) -> AskedCall:
        """Return a call as it is recorded: as JSON, with the names of types in place of what JSON lacks."""
        return cls(target, _as_json(request))

    def decided(self, decision: object) -> AskedCall:
        """Return the call with the decision of a person about it, if there is one."""
        if not isinstance(decision, ToolDecision):
            return self
        told = {name: value for name, value in asdict(decision).items() if value is not None}
        return AskedCall(self.target, self.request, _as_json(told))

    def difference_to(self, asked: AskedCall) -> str | None:
        """Return in words where another call asks something else; None if it asks the same."""
        for name in ("target", "request", "decision"):
            found = _difference(getattr(self, name), getattr(asked, name), name)
            if found is not None:
                return found
        return None


@checkpointable(name="holdfast.RecordedCall")
@dataclass(frozen=True)
class RecordedCall:
    """A call of an agent with its outcome, as a cassette has it.

    >>> RecordedCall("triage", "1", "tool 1.c1", AskedCall("charge", {"amount": 5}), "charged 5").result
    'charged 5'
    """

    executor_id: str
    activation: str
    """The number of the message among those that the executor took; ``"1.2"`` is a revision of the first reply."""
    name: str
    """The name of the call in its activation: ``"model 2"``, ``"tool 1.c1"``, ``"question 1"``, ``"review"``."""
    asked: AskedCall
    result: Any = None
    error: tuple[str, str] | None = None
    """The name and the text of the error, if a tool failed and the model was told."""

    @property
    def place(self) -> CallPlace:
        """The place of the call in its run."""
        return CallPlace(self.executor_id, self.activation, self.name)


class CallPlace(NamedTuple):
    """The place of a call in its run."""

    executor_id: str
    activation: str
    name: str

    def __str__(self) -> str:
        return f"{self.name!r} in activation {self.activation or '?'} of executor {self.executor_id!r}"


def recording_key(executor_id: str, activation: str) -> str:
    """Return the key of shared state under which the calls of an activation are recorded.

    >>> recording_key("triage", "2")
    'calls of triage 2'
    """
    return f"{_KEY}{executor_id} {activation}"


def is_recording(key: str) -> bool:
    """Return True for a key under which calls are recorded.

    >>> is_recording(recording_key("triage", "2"))
    True
    """
    return key.startswith(_KEY)


class CassetteReplay:
    """The use of a cassette: gives recorded outcomes, and knows which were asked for.

    >>> from holdfast.agents import Cassette
    >>> with Cassette([]).replay() as replay:
    ...     replay.unused()
    []
    """

    def __init__(self, calls: dict[CallPlace, RecordedCall], call_tools: bool) -> None:
        self._calls = calls
        self._call_tools = call_tools
        self._used: set[CallPlace] = set()
        self._numbers: dict[tuple[str, str], str] = {}

    def begin(self, executor_id: str, key: str, number: str) -> None:
        """Note the number of an activation that is about to work, by its key, which differs in each run."""
        self._numbers[executor_id, key] = number

    def answers_for(self, name: str) -> bool:
        """Return True if a call with this name is replayed; False if it is made."""
        return not self._call_tools or _is_model(name)

    def find(self, place: CallPlace, asked: AskedCall, agent: str) -> RecordedCall:
        """Return the recorded call; raise ``ReplayDiffers`` if there is none, or one that asked something else."""
        recorded = self._calls.get(place)
        if recorded is None:
            raise ReplayDiffers(
                f"agent {agent!r} asks for a call that was never recorded: {place}, "
                f"{_shown(asked.target)} with {_shown(asked.request)}; {self._hint(place)}"
            )
        difference = recorded.asked.difference_to(asked)
        if difference is not None:
            raise ReplayDiffers(
                f"agent {agent!r} asks something else than was recorded in {place}: {difference}; correct the code, "
                f"or record the run again if this is meant"
            )
        self._used.add(place)
        return recorded

    def _hint(self, wanted: CallPlace) -> str:
        known = [place.name for place in self._calls if place[:2] == wanted[:2]]
        if known:
            return f"recorded there: {', '.join(known)}"
        if any(place.executor_id == wanted.executor_id for place in self._calls):
            return "its executor took fewer messages when it was recorded"
        executors = ", ".join(sorted({repr(place.executor_id) for place in self._calls}))
        return f"the cassette has calls of {executors or 'nobody'}: give this one AgentSettings(record=True), too"

    def unused(self) -> list[CallPlace]:
        """Return the calls of models and tools that were recorded and not asked for."""
        return [place for place in self._calls if self._should_be_used(place) and place not in self._used]

    def _should_be_used(self, place: CallPlace) -> bool:
        if self._call_tools:
            return _is_model(place.name)
        # The calls inside of a tool are asked for only where the tool is called.
        parts = place.name.split(" > ")
        return parts[-1].startswith(("model ", "tool ")) and not any(
            part.startswith("tool ") for part in parts[:-1]
        )

    def answers_to(self, requests: Sequence[PendingRequest]) -> dict[str, Any]:
        """Return the recorded answers of people to questions of agents, by the ids of the requests.

        Questions of other executors are left out: a test answers those itself.
        """
        found: dict[str, Any] = {}
        for request in requests:
            data = request.data
            if isinstance(data, ToolApprovalRequest | AgentQuestion | OutputApprovalRequest):
                found[request.request_id] = self._answer_to(request.executor_id, data)
        return found

    def _answer_to(
        self, executor_id: str, data: ToolApprovalRequest | AgentQuestion | OutputApprovalRequest
    ) -> Any:
        name = REVIEW if isinstance(data, OutputApprovalRequest) else data.call
        place = CallPlace(executor_id, self._numbers.get((executor_id, data.activation), ""), name)
        recorded = self._calls.get(place)
        if isinstance(data, ToolApprovalRequest):
            if recorded is not None and recorded.asked.decision is not None:
                return ToolDecision(**recorded.asked.decision)
        elif recorded is not None:
            return recorded.result
        raise ReplayDiffers(
            f"agent {data.agent!r} asks a person about {place}, but no answer was recorded; answer it in the test, or "
            f"record the run again"
        )


_REPLAY: ContextVar[CassetteReplay | None] = ContextVar("holdfast_replay", default=None)


@contextlib.contextmanager
def use_replay(replay: CassetteReplay) -> Iterator[None]:
    """Let runs that are started or resumed inside find the replay by ``current_replay``."""
    token = _REPLAY.set(replay)
    try:
        yield
    finally:
        _REPLAY.reset(token)


def current_replay() -> CassetteReplay | None:
    """Return the cassette in use here, if there is one.

    >>> current_replay() is None
    True
    """
    return _REPLAY.get()


class CallTape:
    """Records the calls of one activation during one turn, and gives those of a cassette in their place."""

    def __init__(self, ctx: TurnContext, activation: Activation, agent: str, records: bool) -> None:
        self._ctx = ctx
        self._activation = activation
        self._agent = agent
        self._records = records and bool(activation.number)
        self._asked: dict[str, AskedCall] = {}
        self._replay = current_replay()
        if self._replay is not None:
            self._replay.begin(ctx.executor_id, activation.key, activation.number)

    @property
    def replays(self) -> bool:
        """True if models are not asked."""
        return self._replay is not None

    def answers_for(self, name: str) -> bool:
        """Return True if the outcome of a call comes from a cassette."""
        return self._replay is not None and self._replay.answers_for(name)

    def note_asked(self, name: str, target: str, request: Json) -> None:
        """Note what a call asks for, while that is recorded or replayed."""
        if self._records or self._replay is not None:
            self._asked[name] = AskedCall.of(target, request)

    def find(self, name: str) -> RecordedCall:
        """Return a call of the cassette; raise ``ReplayDiffers`` if it has none, or one that asked something else."""
        assert self._replay is not None
        asked = self._asked[name].decided(self._activation.decisions.get(name))
        return self._replay.find(self._place(name), asked, self._agent)

    async def response(self, name: str) -> Json:
        """Return what the cassette has in place of a model's response."""
        return self.find(name).result

    def _place(self, name: str) -> CallPlace:
        return CallPlace(self._ctx.executor_id, self._activation.number, name)

    def keep(self, known: Collection[str]) -> None:
        """Add the calls and answered questions of this turn to the recording of the run, but not those ``known``."""
        for name, asked in self._asked.items() if self._records else ():
            outcome, decision = self._activation.outcomes.get(name), self._activation.decisions.get(name)
            if name in known:
                continue
            if outcome is not None:
                self._add(name, asked.decided(decision), outcome.ok, outcome.error)
            elif isinstance(decision, str):  # the answer of a person to a question
                self._add(name, asked, decision)

    def keep_review(self, text: str, decision: OutputDecision) -> None:
        """Add the decision of a person about the reply to the recording of the run."""
        if self._records:
            self._add(REVIEW, AskedCall.of("", text), decision)

    def _add(self, name: str, asked: AskedCall, result: Any, error: tuple[str, str] | None = None) -> None:
        call = RecordedCall(*self._place(name), asked, result, error)
        key = recording_key(call.executor_id, call.activation)
        self._ctx.append_to_run(key, call, USAGE_SCOPE)


def _is_model(name: str) -> bool:
    return name.rpartition(" > ")[2].startswith("model ")


def _as_json(value: Json) -> Json:
    return json.loads(json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__))


def _difference(recorded: Json, asked: Json, path: str) -> str | None:
    """Return in words the first place where two values of JSON differ."""
    if type(recorded) is type(asked) is dict:
        for key in dict.fromkeys((*recorded, *asked)):
            where = f"{path}[{key!r}]"
            if key not in asked:
                return f"{where} is missing, recorded was {_shown(recorded[key])}"
            if key not in recorded:
                return f"{where} is new: {_shown(asked[key])}"
            if (found := _difference(recorded[key], asked[key], where)) is not None:
                return found
        return None
    if type(recorded) is type(asked) is list:
        for index, (one, other) in enumerate(zip(recorded, asked, strict=False)):
            if (found := _difference(one, other, f"{path}[{index}]")) is not None:
                return found
        if len(recorded) != len(asked):
            return f"{path} has {len(asked)} items, recorded were {len(recorded)}"
        return None
    if type(recorded) is type(asked) and recorded == asked:
        return None
    if type(recorded) is type(asked) is str:
        pairs = enumerate(zip(recorded, asked, strict=False))
        shortest = min(len(recorded), len(asked))
        start = max(0, next((index for index, (one, other) in pairs if one != other), shortest) - _BEFORE)
        if start:
            recorded, asked, path = recorded[start:], asked[start:], f"{path} from character {start}"
    return f"{path} is {_shown(asked)}, recorded was {_shown(recorded)}"


def _shown(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
