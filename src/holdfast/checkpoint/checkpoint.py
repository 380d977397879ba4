"""Checkpoint: a committed snapshot that people can look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from holdfast.checkpoint.checkpoint_info import CheckpointInfo, Header, Marks
from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.format.changes import Changes, Ref, sizes_in
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.refs import RunPlace, placed_in
from holdfast.checkpoint.format.stored_content import content_of, pieces_of
from holdfast.checkpoint.values import BlobSource, Encoder, Wanted, restored
from holdfast.checkpoint.views import (
    CheckpointSummary,
    ListView,
    MessageView,
    Read,
    RequestView,
    StateView,
    Unread,
    not_loaded,
)
from holdfast.engine.state import Scope
from holdfast.engine.value import NotAtHand, Value
from holdfast.errors import CheckpointCorrupt, NotLoaded, UnknownType
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.state_key import StateKey
from holdfast.graph.typing.types import TypeForm
from holdfast.ids import CheckpointId, Digest, ExecutorId

# Kinds of values that a checkpoint holds and does not show.
_UNSEEN = ("graph", "input", "event")
# The private scopes of an executor that hold values of users.
_SHOWN = ("", "state", "fields")


class CheckpointContent(Protocol):
    """Gives checkpoints their manifests, made when first asked for, and their values."""

    @property
    def values(self) -> ReadBlobs | None:
        """The blobs that were read; None if no values were."""
        ...

    @property
    def encoder(self) -> Encoder:
        """The encoder that decodes values."""
        ...

    @property
    def plain(self) -> bool:
        """True if values are shown as plain JSON, which needs no classes."""
        ...

    def source(self, checkpoint_id: CheckpointId) -> BlobSource:
        """Return the source of the blobs of a checkpoint."""
        ...

    def manifest(self, checkpoint_id: CheckpointId) -> Manifest:
        """Return the manifest of a checkpoint."""
        ...

    async def full(self, checkpoint_id: CheckpointId) -> Manifest:
        """Return the manifest with the content of small values, read now if it was not."""
        ...


class ReadBlobs(NamedTuple):
    """Blobs that were read already, so that values can be decoded at once."""

    content: Mapping[Digest, bytes]

    async def read(self, wanted: Wanted) -> Mapping[Digest, bytes]:
        return {digest: self.content[digest] for digest in wanted}


class LoadedContent(NamedTuple):
    """The content of one checkpoint that was read completely."""

    read: Manifest
    encoder: Encoder
    values: ReadBlobs
    plain: bool = False

    def source(self, _: CheckpointId) -> BlobSource:
        return self.values

    def manifest(self, _: CheckpointId) -> Manifest:
        return self.read

    async def full(self, _: CheckpointId) -> Manifest:
        return self.read


class Checkpoint(CheckpointInfo):
    """A committed snapshot: all of ``CheckpointInfo``, and the state, messages, requests and outputs.

    One that was listed shows keys, sizes and counts; ``storage.load`` gives one with values, and
    ``storage.list_checkpoints(values=True)`` gives all with theirs.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def note(text: str, ctx: WorkflowContext) -> None:
    ...     await ctx.set_shared_state("note", text)
    >>> storage = InMemoryCheckpointStorage()
    >>> workflow = WorkflowBuilder(name="Note").set_start_executor(note).with_checkpointing(storage).build()
    >>> async def main():
    ...     await workflow.run("hello")
    ...     *_, last = await storage.list_checkpoints()
    ...     print(last.shared_state)
    ...     print((await storage.load(last.checkpoint_id)).shared_state["note"])
    >>> asyncio.run(main())
    {'note': <str, 6 B>}
    hello
    """

    __slots__ = ("content",)

    # A list may have thousands of checkpoints: calling the constructor of CheckpointInfo would take longer.
    def __init__(
        self,
        checkpoint_id: CheckpointId,
        header: Header,
        new_bytes: int,
        marks: Marks,
        content: CheckpointContent,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._header = header
        self._new_bytes = new_bytes
        self._marks = marks
        self.content: Final = content

    @property
    def info(self) -> CheckpointInfo:
        """The info of the checkpoint, which needs no values."""
        return CheckpointInfo(self._checkpoint_id, self._header, self._new_bytes, self._marks)

    @property
    def messages(self) -> list[MessageView]:
        """The messages on their way to their next turns."""
        return [MessageView(delivered, self._read) for delivered in self._manifest.deliveries]

    @property
    def shared_state(self) -> StateView:
        """The default shared scope."""
        return self._scope(Scope(None, DEFAULT_SHARED_SCOPE), "shared_state")

    @property
    def scopes(self) -> dict[str, StateView]:
        """The shared scopes by name; those of nested workflows under their path."""
        shared = [scope for scope in self._manifest.state if scope.owner is None]
        return {
            scope.path + scope.name: self._scope(scope, f"scopes[{scope.path + scope.name!r}]")
            for scope in shared
        }

    @property
    def executor_states(self) -> Mapping[str, Any]:
        """The state of each executor: the value that it set with ``set_state``, or its private keys and fields."""
        by_owner: dict[ExecutorId, dict[str, dict[str, Ref]]] = {}
        for scope, keys in self._manifest.state.items():
            if scope.owner is not None and scope.name in _SHOWN:
                by_owner.setdefault(scope.owner, {})[scope.name] = {
                    key: ref.copy() for key, ref in keys.items()
                }
        return _ExecutorStates(by_owner, self._read)

    @property
    def pending_requests(self) -> list[RequestView]:
        """The requests that wait for their answers."""
        form = self._describe if self.content.plain else self._codec.decode_form
        return [RequestView(asked, self._read, form) for asked in self._manifest.requests.values()]

    @property
    def outputs(self) -> ListView:
        """The outputs of the workflow so far."""
        return ListView([ref for _, ref in self._manifest.outputs], self._read, "outputs")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the workflow that made the checkpoint."""
        return self._manifest.fingerprint

    def summary(self) -> CheckpointSummary:
        """Return the checkpoint in a few words."""
        manifest = self._manifest
        return CheckpointSummary(
            self.checkpoint_id,
            self.superstep,
            self.timestamp,
            self.status,
            list(dict.fromkeys(str(delivered.target) for delivered in manifest.deliveries)),
            list(self.executor_states),
            self.pending_requests,
        )

    async def read_state(
        self, key: str | StateKey[Any], default: Any = None, scope_name: str | None = None
    ) -> Any:
        """Return one value of a shared scope; reads it if it was not read before."""
        if isinstance(key, StateKey):
            self._codec.types.declare(key.type, f"state key {key.name!r}")
            scope_name, key = scope_name or key.scope_name, key.name
        scope = Scope(None, scope_name or DEFAULT_SHARED_SCOPE)
        ref = (await self.content.full(self._checkpoint_id)).state.get(scope, {}).get(key)
        return default if ref is None else (await self._fetch([ref], f"state {key!r}"))[0]

    async def read_outputs(self) -> list[Any]:
        """Return the outputs of the workflow so far; reads them, and nothing else, if they were not read before."""
        refs = [ref for _, ref in (await self.content.full(self._checkpoint_id)).outputs]
        return await self._fetch(refs, "outputs")

    async def _fetch(self, refs: Sequence[Ref], place: str) -> list[Any]:
        """Return values, which are read now if they were not before."""
        if self.content.plain:
            wanted = sizes_in(refs)
            read = await self.content.source(self._checkpoint_id).read(wanted) if wanted else {}
            return [self._read_plain(ref, place, read) for ref in refs]
        found = []
        for value in map(self._restored, refs):
            while True:
                try:
                    found.append(value.load())
                    break
                except NotAtHand as absent:
                    await absent.fetch()
        return found

    @property
    def _codec(self) -> Codec:
        return self.content.encoder.codec

    @property
    def _manifest(self) -> Manifest:
        return self.content.manifest(self._checkpoint_id)

    def _restored(self, ref: Ref) -> Value:
        return restored(ref, self.content.encoder, self.content.source(self._checkpoint_id))

    def _scope(self, scope: Scope, what: str) -> StateView:
        return StateView(self._manifest.state.get(scope, {}), self._read, what)

    def _read(self, ref: Ref, place: str) -> Any:
        values = self.content.values
        if values is None:
            raise not_loaded(place, ref, self.checkpoint_id)
        if self.content.plain:
            return self._read_plain(ref, place, values.content)
        value = self._restored(ref)
        for absent in value.missing():
            absent.bring(values.content)  # type: ignore[attr-defined]
        try:
            return value.load()
        except UnknownType as error:
            raise UnknownType(
                f"{place} of checkpoint {self.checkpoint_id[:12]}...: {error}; the types of workflow "
                f"{self.workflow_name!r} are known once it is built here with .with_checkpointing(storage)"
            ) from error

    def _describe(self, form: bytes) -> TypeForm:
        from holdfast.checkpoint.codec.plain import described_type

        return described_type(form, self._manifest.schemas.get(form))

    def _read_plain(self, ref: Ref, place: str, blobs: Mapping[Digest, bytes]) -> Any:
        """Return a value as plain JSON."""
        from holdfast.checkpoint.codec.plain import plain_of_bytes
        from holdfast.checkpoint.codec.value_tree import NotATree

        try:
            return plain_of_bytes(content_of(ref.label, pieces_of(ref), blobs))
        except NotATree as error:
            raise CheckpointCorrupt(
                f"{place} of checkpoint {self.checkpoint_id[:12]}... cannot be read: {error}; "
                f"'await storage.verify()' lists what is affected"
            ) from error


class _ExecutorStates(Mapping[str, Any]):
    """The states of executors, from their private scope, that of ``set_state`` and that of their fields."""

    def __init__(self, by_owner: Mapping[ExecutorId, Mapping[str, Mapping[str, Ref]]], read: Read) -> None:
        self._by_owner = by_owner
        self._read = read

    def __getitem__(self, executor_id: str) -> Any:
        scopes = self._by_owner[ExecutorId(executor_id)]
        what = f"executor_states[{executor_id!r}]"
        if list(scopes) == ["state"]:
            return self._read(scopes["state"]["state"], what)
        refs: dict[str, Ref] = {}
        for name, keys in scopes.items():
            for key, ref in keys.items():
                refs[key if key not in refs else f"{key} ({name or 'private'})"] = ref
        return StateView(refs, self._read, what)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_owner)

    def __len__(self) -> int:
        return len(self._by_owner)

    def __repr__(self) -> str:
        return repr({str(executor_id): self._shown(executor_id) for executor_id in self._by_owner})

    def _shown(self, executor_id: ExecutorId) -> object:
        try:
            return self[executor_id]
        except NotLoaded:
            return Unread(self._by_owner[executor_id]["state"]["state"])


async def read_shown_blobs(changes: Iterable[Changes], source: BlobSource) -> ReadBlobs:
    """Read the blobs of all values in these changes that checkpoints show."""
    wanted = sizes_in(
        ref
        for part in changes
        for place, ref in placed_in(part)
        if not isinstance(place, RunPlace) or place.kind not in _UNSEEN
    )
    return ReadBlobs(await source.read(wanted) if wanted else {})
