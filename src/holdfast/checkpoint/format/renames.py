"""Folds renamed executors and the changes of checkpoints into what a run holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, Phase
from holdfast.checkpoint.format.changes import Asked, Changes, Delivered, Renames
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.engine.snapshot import BufferKey
from holdfast.engine.state import Scope
from holdfast.errors import GraphChanged
from holdfast.graph.graph import path_of
from holdfast.ids import ExecutorId


class Namer(NamedTuple):
    """Translates addresses of executors, paths of nested workflows and names of fan-ins."""

    address: Callable[[str], str]
    path: Callable[[str], str]
    fan_in: Callable[[str, str], str]

    def named(self, name: str) -> str:
        """Translate an address, or a path."""
        return self.path(name) if not name or name.endswith("/") else self.address(name)


def renames_of(manifest: Manifest, namer: Namer) -> Renames | None:
    """Return the names in a manifest that are others now; None if there are none."""
    names = {name: namer.named(name) for name in _names(manifest)}
    changed = {old: new for old, new in names.items() if old != new}
    for old, new in changed.items():
        others = sorted(other for other, now in names.items() if now == new and other != old)
        if others:
            raise GraphChanged(
                f"{old!r} and {others[0]!r} would both be called {new!r} now, and what they hold would become one; "
                f"give each its own executor in with_alias, or go on from a checkpoint at which one holds nothing"
            )
    fan_ins = {
        (key.path, key.fan_in): namer.fan_in(key.path, key.fan_in)
        for key in (*manifest.buffers, *manifest.rounds)
        if namer.fan_in(key.path, key.fan_in) != key.fan_in
    }
    return Renames(changed, fan_ins) if changed or fan_ins else None


def _names(manifest: Manifest) -> Iterator[str]:
    for delivered in manifest.deliveries:
        yield from _names_of(delivered)
    for asked in manifest.requests.values():
        yield asked.executor_id
    for key, sources in (*manifest.buffers.items(), *manifest.rounds.items()):
        yield key.path
        # Sources stand there as the graph at that path calls them.
        yield from (key.path + source for source in sources)
    yield from (executor_id for executor_id, _ in manifest.outputs)
    for scope in manifest.state:
        yield scope.path
        if scope.owner is not None:
            yield scope.owner
    for host in manifest.instances:
        yield host
        yield path_of(host)


def _names_of(delivered: Delivered) -> Iterator[str]:
    yield delivered.target
    if delivered.source is not None:
        yield delivered.source
    if delivered.request is not None:
        yield delivered.request.executor_id


def rename(manifest: Manifest, renames: Renames) -> None:
    """Let a manifest have the new names."""

    def name(old: str) -> ExecutorId:
        return ExecutorId(renames.names.get(old, old))

    def asking(asked: Asked) -> Asked:
        return asked._replace(executor_id=name(asked.executor_id))

    manifest.deliveries = [
        delivered._replace(
            target=name(delivered.target),
            source=None if delivered.source is None else name(delivered.source),
            request=None if delivered.request is None else asking(delivered.request),
        )
        for delivered in manifest.deliveries
    ]
    manifest.requests = {key: asking(asked) for key, asked in manifest.requests.items()}
    manifest.outputs = [(name(executor_id), ref) for executor_id, ref in manifest.outputs]
    manifest.instances = {name(host): count for host, count in manifest.instances.items()}
    manifest.state = {
        Scope(None if scope.owner is None else name(scope.owner), scope.name, name(scope.path)): keys
        for scope, keys in manifest.state.items()
    }

    def joining(key: BufferKey) -> BufferKey:
        return BufferKey(name(key.path), renames.fan_ins.get((key.path, key.fan_in), key.fan_in))

    def source(key: BufferKey, old: str) -> ExecutorId:
        return ExecutorId(name(key.path + old)[len(name(key.path)) :])

    manifest.buffers = {
        joining(key): {source(key, old): refs for old, refs in buffer.items()}
        for key, buffer in manifest.buffers.items()
    }
    manifest.rounds = {
        joining(key): tuple(source(key, old) for old in sources) for key, sources in manifest.rounds.items()
    }


def fold_record(
    manifest: Manifest, changes: Changes, phase: Phase, cause: Cause, seq: int, time: int
) -> None:
    """Fold the changes of the checkpoint ``seq`` into what the run held before, as its header says."""
    if changes.renames is not None:
        rename(manifest, changes.renames)
    manifest.fold(changes, phase is Phase.END and cause is Cause.SUPERSTEP, seq, time)
    if cause is Cause.INPUT and changes.deliveries:
        manifest.keep_input(changes.deliveries[0].value)
    if cause is Cause.RESTORE or cause is Cause.FORK:
        manifest.ask_again(seq, time)
