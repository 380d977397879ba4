"""The end of a superstep as most are: it sent messages and put small values into state, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import ormsgpack

from holdfast.checkpoint.format.changes import Delivered, Put
from holdfast.checkpoint.format.document import PUT, pack_scope
from holdfast.checkpoint.values import Encoded
from holdfast.engine import state
from holdfast.engine._fast import made
from holdfast.engine.snapshot import Delta
from holdfast.engine.state import Scope

Plain: TypeAlias = tuple[list[Delivered], Sequence[tuple[Scope, str, Put]], bytes, bytes]
"""What such a superstep changed, with names in place of values: messages, writes, and both documents."""


def plain(delta: Delta) -> Plain | None:
    """What ``Packer.changes`` and ``packed`` give for it, to the byte, in a third of the time; None for any other."""
    deliveries, writes, buffers, outputs, requests, instances, dropped, rounds = delta
    if buffers or outputs or requests or instances or dropped or rounds:
        return None
    numbers: dict[int, int] = {}  # of refs, by identity
    sizes: list[tuple[str, int]] = []
    content: list[bytes | None] = []
    delivered: list[Delivered] = []
    sent: list[tuple[str, str | None, int]] = []
    for target, value, source, request in deliveries:
        if request is not None or type(value) is not Encoded or (ref := value.inline()) is None:
            return None
        number = numbers.setdefault(id(ref), len(sizes))
        if number == len(sizes):
            sizes.append((ref.label, ref.size))
            content.append(ref.data)
        delivered.append(made(Delivered, (target, source, ref, None)))
        sent.append((target, source, number))
    document: dict[str, Any] = {"deliveries": sent}
    written: list[tuple[Scope, str, Put]] = []
    if writes:
        by_scope = document["writes"] = []
        last: Scope | None = None
        keys: list[tuple[str, int, int]] = []
        for (scope, key), change in writes.items():
            if type(change) is not state.Put or type(value := change[0]) is not Encoded:
                return None
            if (ref := value.inline()) is None:
                return None
            number = numbers.setdefault(id(ref), len(sizes))
            if number == len(sizes):
                sizes.append((ref.label, ref.size))
                content.append(ref.data)
            written.append((scope, key, made(Put, (ref,))))
            if scope != last:
                keys = []
                by_scope.append((pack_scope(scope), keys))
                last = scope
            keys.append((key, PUT, number))
    if not sizes:
        return delivered, written, ormsgpack.packb(document), b""
    document["values"] = sizes
    return delivered, written, ormsgpack.packb(document), ormsgpack.packb(content)
