"""All that a run holds, with refs in place of values.

The log of a run keeps one, and folds into it what each checkpoint changed. Loading a checkpoint folds the same
changes again: what is loaded is what was there when it was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.checkpoint.format.changes import (
    NOTHING,
    Asked,
    Changes,
    Delivered,
    Grow,
    Happened,
    Part,
    PutRef,
    Ref,
    Written,
    digests_of,
)
from holdfast.engine.message import Expiries, Expiry
from holdfast.engine.snapshot import ANSWERED_KEPT, BufferKey
from holdfast.engine.state import Scope
from holdfast.ids import Digest, ExecutorId, RequestId


class Manifest:
    """All that a run holds at one checkpoint. The log changes it in place; everyone else only reads."""

    __slots__ = (
        "answered",
        "asked_at",
        "buffers",
        "deliveries",
        "digests",
        "expiries",
        "fingerprint",
        "graph",
        "happened",
        "input",
        "instances",
        "outputs",
        "requests",
        "rounds",
        "schemas",
        "since_input",
        "state",
    )

    def __init__(self) -> None:
        self.deliveries: list[Delivered] = []
        self.state: dict[Scope, dict[str, Ref]] = {}
        self.buffers: dict[BufferKey, dict[ExecutorId, list[Ref]]] = {}
        self.outputs: list[tuple[ExecutorId, Ref]] = []
        self.requests: dict[RequestId, Asked] = {}
        self.answered: dict[RequestId, bool] = {}
        self.asked_at: dict[RequestId, int] = {}
        """The times at which the pending requests were asked; an old store may not tell all of them."""
        self.schemas: dict[bytes, str] = {}
        """The JSON Schemas of answers, by the encoded type; of types that name classes."""
        self.expiries = Expiries()
        """When the pending requests expire."""
        self.instances: dict[ExecutorId, int] = {}
        self.rounds: dict[BufferKey, Sequence[ExecutorId]] = {}
        self.since_input = 0
        self.fingerprint = ""
        self.graph: Ref | None = None
        self.input: Ref | None = None
        self.happened: list[Happened] = []
        self.digests: Counter[Digest] = Counter()
        """The number of times that each blob is named here: it may be named again without being stored again."""

    def fold(self, changes: Changes, is_end: bool, seq: int = 0, time: int = 0) -> None:
        """Take in what the checkpoint ``seq`` changed; one at the end of a superstep counts as a superstep.

        A keyframe has neither seq nor time.
        """
        self.since_input += is_end
        if changes is NOTHING:
            self.happened = []
            return
        # A thousand are folded at once, and most say little: what is not there should cost nothing.
        (
            _,
            writes,
            dropped,
            _,
            _,
            _,
            _,
            _,
            instances,
            since,
            fingerprint,
            happened,
            graph,
            _,
            rounds,
            given,
            renewed,
            schemas,
            asked_at,
            asked_again,
            request_edits,
        ) = changes
        if since is not None:
            self.since_input = since
        if fingerprint is not None:
            self.fingerprint = fingerprint
        if graph is not None:
            self._hold([graph])
            self._forget([self.graph] if self.graph is not None else ())
            self.graph = graph
        if given is not None:
            self.keep_input(given)
        self.happened = list(happened) if happened else []
        if renewed:
            self._renew()
        self._fold_messages(changes, seq, time)
        if schemas:
            self.schemas = {**self.schemas, **dict(schemas)}
        if asked_at:
            self.asked_at.update(asked_at)
        for request_id in asked_again:
            self.requests[request_id] = self.requests[request_id]._replace(seq=seq)
            self.asked_at[request_id] = time
        if request_edits:
            self._edit_requests(request_edits)
        if writes:
            self._fold_writes(writes)
        for scope in dropped:
            self._forget(self.state.pop(scope, {}).values())
        for host, count in instances:
            self.instances.pop(host, None)
            if count:
                self.instances[host] = count
        for join, sources in rounds:
            self.rounds.pop(join, None)
            if sources is not None:
                self.rounds[join] = sources

    def _renew(self) -> None:
        """Forget the outputs before a further input, and all but the newest ids of requests that were answered."""
        self._forget([ref for _, ref in self.outputs])
        self.outputs = []
        if len(self.answered) > ANSWERED_KEPT:
            self.answered = dict.fromkeys(list(self.answered)[-ANSWERED_KEPT:], True)

    def keep_input(self, ref: Ref) -> None:
        """Keep the input of the run, however long ago its delivery is."""
        self._hold([ref])
        self.input = ref

    def fold_plain(self, deliveries: list[Delivered], writes: Sequence[tuple[Scope, str, Written]]) -> None:
        """Fold the end of a superstep that only sent messages and wrote values, none of which is a blob."""
        self.since_input += 1
        self.happened = []
        if self.digests:
            self._forget(_refs_of(self.deliveries))
        self.deliveries = deliveries
        if writes:
            self._fold_writes(writes)

    def copy(self) -> Manifest:
        """Another one with the same names; values that grow would grow in both."""
        other = Manifest()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.expiries = Expiries(self.requests.values())
        return other

    def ask_again(self, seq: int, time: int) -> None:
        """The run stands here anew, by the checkpoint ``seq``: answers that were meant for earlier do not count."""
        self.requests = {
            key: asked._replace(seq=seq, expiry=_anew(asked.expiry, time))
            for key, asked in self.requests.items()
        }
        self.asked_at = dict.fromkeys(self.requests, time)
        self.expiries = Expiries(self.requests.values())

    def first_expiry(self) -> int | None:
        """When the time of the first pending request is over, if any has one."""
        return self.expiries.first(self.requests)

    def _fold_messages(self, changes: Changes, seq: int, time: int) -> None:
        deliveries, _, _, buffers, outputs, requests, answers, answered, *_ = changes
        for asked in requests:
            self.requests[asked.request_id] = asked._replace(seq=asked.seq or seq)
            if time:
                self.asked_at[asked.request_id] = time
            self._hold([asked.data])
        if requests:
            self.expiries.add(requests)
        if deliveries is not None:
            # Those that replace are held first, so that a blob named by both is never unknown in between.
            self._hold(_refs_of(deliveries))
            if self.digests:
                self._forget(_refs_of(self.deliveries))
            self.deliveries = list(deliveries)
        for request_id, ref, _by in answers:
            asked = self.requests.pop(request_id)
            self.asked_at.pop(request_id, None)
            self.deliveries.append(Delivered(asked.executor_id, None, ref, asked))
            self.answered[request_id] = True
            self._hold([ref])
        if answered:
            self.answered.update(dict.fromkeys(answered, True))
        for executor_id, ref in outputs:
            self.outputs.append((executor_id, ref))
            self._hold([ref])
        for key, extended in buffers:
            buffer = self.buffers.pop(key, {})
            if extended is None:
                self._forget(ref for refs in buffer.values() for ref in refs)
                continue
            for source, refs in extended:
                buffer.setdefault(source, []).extend(refs)
                self._hold(refs)
            self.buffers[key] = buffer

    def _edit_requests(self, edits: Sequence[tuple[RequestId, Ref | None]]) -> None:
        """Give pending requests other data in their places; drop those without any."""
        for request_id, ref in edits:
            asked = self.requests[request_id]
            if ref is not None:
                self._hold([ref])
                self.requests[request_id] = asked._replace(data=ref)
            else:
                del self.requests[request_id]
                self.asked_at.pop(request_id, None)
            self._forget([asked.data])

    def _fold_writes(self, writes: Sequence[tuple[Scope, str, Written]]) -> None:
        """Scopes and keys are in the order in which they were last written."""
        last: Scope | None = None
        keys: dict[str, Ref] = {}
        for scope, key, written in writes:
            if scope != last:
                if last is not None and keys:
                    self.state[last] = keys
                last, keys = scope, self.state.pop(scope, {})
            before = keys.pop(key, None)
            if isinstance(written, PutRef):
                ref = written.ref
                if ref.digest is not None or ref.parts is not None:
                    self._hold((ref,))
                    ref = ref.copy()  # it may grow in place
                keys[key] = ref
            elif isinstance(written, Grow):
                keys[key] = _grown(before, written)
                self._hold([part.ref for part in written.parts])
                continue
            if before is not None and self.digests:
                self._forget((before,))
        if last is not None and keys:
            self.state[last] = keys

    def exchange(self, keys: dict[str, Ref], key: str, ref: Ref) -> None:
        """Let another name stand for the same value of a key."""
        self._hold([ref])
        self._forget([keys[key]])
        keys[key] = ref

    def _hold(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            if ref.digest is None and ref.parts is None:  # as most are
                continue
            for digest in digests_of(ref):
                self.digests[digest] += 1

    def _forget(self, refs: Iterable[Ref]) -> None:
        for ref in refs:
            for digest in digests_of(ref):
                self.digests[digest] -= 1
                if not self.digests[digest]:
                    del self.digests[digest]

    def as_changes(self) -> Changes:
        """All of it, as changes since nothing was there: a keyframe."""
        return Changes(
            deliveries=self.deliveries,
            writes=[
                (scope, key, PutRef(ref)) for scope, keys in self.state.items() for key, ref in keys.items()
            ],
            buffers=[(key, list(buffer.items())) for key, buffer in self.buffers.items()],
            outputs=self.outputs,
            requests=list(self.requests.values()),
            answered=list(self.answered),
            instances=list(self.instances.items()),
            since_input=self.since_input,
            fingerprint=self.fingerprint,
            happened=self.happened,
            graph=self.graph,
            rounds=list(self.rounds.items()),
            input=self.input,
            schemas=list(self.schemas.items()),
            asked_at=list(self.asked_at.items()),
        )


def _refs_of(deliveries: Sequence[Delivered]) -> list[Ref]:
    refs: list[Ref] = []
    for _, _, value, request in deliveries:
        refs.append(value)
        if request is not None:
            refs.append(request.data)
    return refs


def _grown(before: Ref | None, written: Grow) -> Ref:
    """The value with more parts; one that has parts already grows in place, for it belongs to the manifest alone."""
    size = 0
    for part in written.parts:
        size += part.ref.size
    if before is None:
        return Ref(written.label, size, parts=list(written.parts))
    if before.parts is not None:
        before.parts.extend(written.parts)
        before.size += size
        return before
    return Ref(before.label, before.size + size, parts=[Part(False, before), *written.parts])


def _anew(expiry: Expiry | None, time: int) -> Expiry | None:
    return expiry if expiry is None or expiry.span is None else Expiry(time + expiry.span, expiry.span)
