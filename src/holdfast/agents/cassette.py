"""Cassettes: the recorded calls of a run, which answer in place of models and tools when its code runs again."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.agents.budget import USAGE_SCOPE
from holdfast.agents.call_tape import (
    AskedCall,
    CallPlace,
    CassetteReplay,
    Json,
    RecordedCall,
    is_recording,
    use_replay,
)
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.codec.plain import plain_value
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.storage import CheckpointStorage
from holdfast.errors import AgentError, InvalidArgument, ReplayDiffers
from holdfast.graph.typing.types import TypeForm

_FORMAT = 1


class Cassette:
    """The recorded calls of a run, for tests without a model.

    Agents record with ``AgentSettings(record=True)``. Inside of ``replay()`` the same code gets the recorded outcomes,
    and nothing is called; code that asks something else gets ``ReplayDiffers``.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder
    >>> from holdfast.agents import AgentExecutor, AgentSettings
    >>> def build(agent):
    ...     executor = AgentExecutor(agent, id="a", output_type=str, settings=AgentSettings(record=True))
    ...     return WorkflowBuilder(name="Recorded").set_start_executor(executor).build()
    >>> def model(prompt: str) -> str:
    ...     return prompt.upper()
    >>> def no_model(prompt: str) -> str:
    ...     raise AssertionError("a model was asked")
    >>> async def main():
    ...     storage = InMemoryCheckpointStorage()
    ...     await build(model).run("hello", run_id="r1", storage=storage)
    ...     cassette = await Cassette.from_run(storage, "r1")
    ...     with cassette.replay():
    ...         print((await build(no_model).run("hello")).outputs)
    >>> asyncio.run(main())
    ['HELLO']
    """

    def __init__(self, calls: Iterable[RecordedCall], codec: Codec | None = None) -> None:
        self.calls = tuple(calls)
        """The calls, by executor and activation, in the order in which their outcomes came."""
        self._codec = Codec() if codec is None else codec

    @classmethod
    async def from_run(cls, storage: CheckpointStorage, run_id: str) -> Cassette:
        """Return the calls that a run recorded, up to the checkpoint that it stands on.

        Only what agents recorded is read, so other classes of the workflow need not be here.
        """
        info = await storage.get_run(run_id)
        latest = await storage.get_latest(run_id=info.run_id)
        calls: list[RecordedCall] = []
        if latest is not None:
            checkpoint = await storage.load(latest.checkpoint_id, values=False)
            keys = [key for key in checkpoint.scopes.get(USAGE_SCOPE, ()) if is_recording(key)]
            for key in keys:
                calls += await checkpoint.read_state(key, (), USAGE_SCOPE)
        calls.sort(key=lambda call: (call.executor_id, [int(part) for part in call.activation.split(".")]))
        if not calls:
            raise AgentError(
                f"run {run_id!r} has no recorded calls: give its agents AgentSettings(record=True) before they work; "
                f"the calls of a turn are recorded when it ends without an error"
            )
        return cls(calls, storage.catalog.codec_for(info.workflow_name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cassette) and self._by_place() == other._by_place()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Cassette with {len(self.calls)} calls>"

    def _by_place(self) -> dict[CallPlace, RecordedCall]:
        return {call.place: call for call in self.calls}

    @contextlib.contextmanager
    def replay(self, *, call_tools: bool = False, partial: bool = False) -> Iterator[CassetteReplay]:
        """Let runs that are started or resumed inside get the recorded outcomes in place of calls.

        With ``call_tools`` tools are called, and only models are replayed. At the end ``ReplayDiffers`` tells of calls
        that nobody asked for; with ``partial`` it does not.
        """
        replay = CassetteReplay(self._by_place(), call_tools)
        with use_replay(replay):
            yield replay
        if not partial and (left := replay.unused()):
            raise ReplayDiffers(
                f"the code asked for less than was recorded: nobody asked for {left[0]}"
                f"{f' and {len(left) - 1} more' if left[1:] else ''}; record the run again, or replay(partial=True)"
            )

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the calls to a file of JSON that people can read, to be kept beside a test."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False)
        Path(path).write_text(text + "\n", encoding="utf-8", errors="surrogatepass")

    @classmethod
    def load(cls, path: str | os.PathLike[str], types: Iterable[TypeForm] = ()) -> Cassette:
        """Read a file that ``save`` wrote; ``types`` are classes of results, unless they are ``@checkpointable``."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8", errors="surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{os.fspath(path)} is no cassette: {error}; record it again") from error
        return cls.from_dict(document, types, os.fspath(path))

    def to_dict(self) -> dict[str, Json]:
        """Return the calls as JSON."""
        return {"holdfast_cassette": _FORMAT, "calls": [self._call_to_dict(call) for call in self.calls]}

    def _call_to_dict(self, call: RecordedCall) -> dict[str, Json]:
        asked = call.asked
        form: dict[str, Json] = {
            "executor": call.executor_id,
            "activation": call.activation,
            "call": call.name,
            "of": asked.target,
            "request": asked.request,
        }
        if asked.decision is not None:
            form["decision"] = asked.decision
        if call.error is not None:
            form["error"] = list(call.error)
        elif _is_json(call.result):
            form["result"] = call.result
        else:
            form["shown"] = plain_value(call.result)
            form["encoded"] = base64.b64encode(self._codec.encode(call.result, call.name)).decode()
        return form

    @classmethod
    def from_dict(
        cls, document: Json, types: Iterable[TypeForm] = (), source: str = "the document"
    ) -> Cassette:
        """Return the cassette of what ``to_dict`` made."""
        if not isinstance(document, dict) or document.get("holdfast_cassette") != _FORMAT:
            raise InvalidArgument(
                f"{source} is no cassette of format {_FORMAT}: record it again with this version of Holdfast"
            )
        codec = Codec(TypeRegistry([("types", form) for form in types]))
        try:
            return cls([_call_of_dict(form, codec) for form in document["calls"]], codec)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{source} has a call that cannot be read: {error!r}; record it again"
            ) from error


def _call_of_dict(form: Json, codec: Codec) -> RecordedCall:
    asked = AskedCall(form["of"], form["request"], form.get("decision"))
    error = form.get("error")
    if "encoded" in form:
        result = codec.decode(base64.b64decode(form["encoded"]), form["call"])
    else:
        result = form.get("result") if error is not None else form["result"]
    told = None if error is None else (str(error[0]), str(error[1]))
    return RecordedCall(form["executor"], form["activation"], form["call"], asked, result, told)


def _is_json(value: object) -> bool:
    """Return True if a value is the same after it was written as JSON."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(_is_json, value.values()))
    return value is None or (type(value) in (str, int, float, bool) and value == value)
