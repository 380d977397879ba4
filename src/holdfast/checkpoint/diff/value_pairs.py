"""Pairs of values that stand at the same place in two checkpoints, section by section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.checkpoint.diff.node_text import in_line
from holdfast.checkpoint.diff.sequence_diff import gaps
from holdfast.checkpoint.format.changes import Ref
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.stored_content import name_of

# The private scopes of an executor that hold values of users, with their names for people.
_PRIVATE = {"": "private", "state": "state", "fields": "field"}


class Pair(NamedTuple):
    """The values of two checkpoints at one place; one of them may have none there."""

    section: str
    place: tuple[Any, ...]
    where: str
    old: Ref | None
    new: Ref | None
    forms: tuple[bytes, bytes] | None = None
    """The encoded types of the answers to a request, if they differ."""


class _Item(NamedTuple):
    """One of several values in order; a value counts as changed, not as another one, only if ``who`` is the same."""

    place: tuple[Any, ...]
    where: str
    who: tuple[str, ...]
    ref: Ref


_Groups: TypeAlias = Mapping[tuple[str, ...], Sequence[_Item]]
"""Order matters within a group, not between groups."""


def pairs_of(old: Manifest, new: Manifest) -> Iterator[Pair]:
    """Give all values of two checkpoints in pairs; of values in order only those that are not the same."""
    yield from _keyed("state", _shared(old), _shared(new))
    yield from _keyed("executor_states", _private(old), _private(new))
    yield from _in_order("messages", _messages(old), _messages(new))
    yield from _in_order("fan_ins", _buffers(old), _buffers(new))
    yield from _requests(old, new)
    yield from _in_order("outputs", _outputs(old), _outputs(new))


def _keyed(
    section: str, old: Mapping[tuple[str, ...], Ref], new: Mapping[tuple[str, ...], Ref]
) -> Iterator[Pair]:
    for place in sorted(old.keys() | new.keys()):
        yield Pair(section, place, _where(section, place), old.get(place), new.get(place))


def _shared(manifest: Manifest) -> dict[tuple[str, ...], Ref]:
    return {
        (scope.path + scope.name, key): ref
        for scope, keys in manifest.state.items()
        if scope.owner is None
        for key, ref in keys.items()
    }


def _private(manifest: Manifest) -> dict[tuple[str, ...], Ref]:
    return {
        (scope.owner, _PRIVATE[scope.name], key): ref
        for scope, keys in manifest.state.items()
        if scope.owner is not None and scope.name in _PRIVATE
        for key, ref in keys.items()
    }


def _where(section: str, place: tuple[str, ...]) -> str:
    name, *kind, key = place
    if section == "state" or kind == ["private"]:
        return f"{in_line(name)}[{key!r}]"
    return f"state of {in_line(name)}" if kind == ["state"] else f"{in_line(name)}.{in_line(key)}"


def _messages(manifest: Manifest) -> _Groups:
    found: dict[tuple[str, ...], list[_Item]] = {}
    for target, source, ref, asked in manifest.deliveries:
        request = None if asked is None else asked.request_id
        sender = "" if source is None else f"{in_line(source)} "
        if request is not None:
            sender = f"response to {request!r} "
        item = _Item(
            (target, source, request), f"{sender}-> {in_line(target)}", (source or "", request or ""), ref
        )
        found.setdefault((target,), []).append(item)
    return found


def _buffers(manifest: Manifest) -> _Groups:
    found: dict[tuple[str, ...], list[_Item]] = {}
    for key, buffer in manifest.buffers.items():
        name = key.path + key.fan_in
        for source, refs in buffer.items():
            where = f"{in_line(name)}, from {in_line(source)}"
            found[name, source] = [_Item((name, source), where, (), ref) for ref in refs]
    return found


def _outputs(manifest: Manifest) -> _Groups:
    return {
        (): [
            _Item((index, executor_id), f"[{index}] of {in_line(executor_id)}", (executor_id,), ref)
            for index, (executor_id, ref) in enumerate(manifest.outputs)
        ]
    }


def _requests(old: Manifest, new: Manifest) -> Iterator[Pair]:
    before = {(asked.request_id, asked.executor_id): asked for asked in old.requests.values()}
    after = {(asked.request_id, asked.executor_id): asked for asked in new.requests.values()}
    for place in sorted(before.keys() | after.keys()):
        one, other = before.get(place), after.get(place)
        forms = None
        if one is not None and other is not None and one.form != other.form:
            forms = one.form, other.form
        yield Pair(
            "pending_requests",
            place,
            f"{in_line(place[0])} of {in_line(place[1])}",
            None if one is None else one.data,
            None if other is None else other.data,
            forms,
        )


def _in_order(section: str, old: _Groups, new: _Groups) -> Iterator[Pair]:
    for group in sorted(old.keys() | new.keys()):
        for one, other in _matched(old.get(group, ()), new.get(group, ())):
            item = other or one
            assert item is not None
            yield Pair(section, item.place, item.where, one and one.ref, other and other.ref)


def _matched(old: Sequence[_Item], new: Sequence[_Item]) -> Iterator[tuple[_Item | None, _Item | None]]:
    """Give removed, changed and added values; two values are a changed one if they have the same sender."""
    for gap in gaps([_identity(item) for item in old], [_identity(item) for item in new]):
        before, after = old[gap.start : gap.stop], new[gap.other_start : gap.other_stop]
        yield from _by_sender(before, after)


def _by_sender(old: Sequence[_Item], new: Sequence[_Item]) -> Iterator[tuple[_Item | None, _Item | None]]:
    start = other_start = 0
    for gap in [*gaps([item.who for item in old], [item.who for item in new]), None]:
        stop, other_stop = (len(old), len(new)) if gap is None else (gap.start, gap.other_start)
        yield from zip(old[start:stop], new[other_start:other_stop], strict=True)
        if gap is not None:
            yield from ((item, None) for item in old[gap.start : gap.stop])
            yield from ((None, item) for item in new[gap.other_start : gap.other_stop])
            start, other_start = gap.stop, gap.other_stop


def _identity(item: _Item) -> tuple[Any, ...]:
    return (*item.who, name_of(item.ref))
