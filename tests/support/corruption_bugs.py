"""Bugs of verify and repair that a corruption campaign must find."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import ormsgpack

from holdfast.checkpoint.maintenance import repair, verify
from holdfast.checkpoint.read import loader
from holdfast.stores.file import line, line_file, run_state
from holdfast.stores.file.line_file import LineFile
from holdfast.stores.file.run_repair import RunRepair
from holdfast.stores.sqlite import damage, row_reader
from tests.support.parts import Record


async def _nothing(*_: Any) -> None:
    return None


async def _not_lost(*_: Any) -> bool:
    return False


def _unchecked_seal(_: Any, stored: bytes, values: bytes | None) -> bytes:
    return bytes(ormsgpack.unpackb(stored)[2])


def _unchecked_head(namespace: str, row: tuple[Any, ...]) -> Any:
    return row_reader._make_head(tuple(row[:-2]))


def _forgetful(self: repair.Salvage, record: Record, *rest: Any) -> None:
    """Keeps a record without the keyframe that it needs now."""
    _KEEP(self, record, *rest)
    kept = self._kept[record.checkpoint_id]
    self._kept[record.checkpoint_id] = kept._replace(keyframe=record.keyframe)


def _nothing_to_do(self: repair.RepairReport, _: Any) -> repair.RepairReport:
    """What a dry run told that did not look."""
    return repair.RepairReport(self.runs, dry_run=True)


def _believed_line(file_id: str, offset: int, content: bytes) -> line.Line:
    """Believes what can be read."""
    found = line.decode_line(file_id, offset, content)
    return found._replace(place=found.place._replace(is_sound=True))


_KEEP = repair.Salvage._keep

Patches = list[tuple[Any, str, Any]]
PLANTED: dict[str, tuple[str, str, Patches]] = {
    "skips-blobs": (
        "sqlite",
        "blob",
        [(verify.RunCheck, "_check_named", _nothing)],
    ),
    "forgets-what-is-held": (
        "sqlite",
        "blob",
        [(verify.RunCheck, "_check_held", lambda *_: None)],
    ),
    "skips-the-keyframe-seal": (
        "sqlite",
        "keyframe",
        [(loader, "unseal_keyframe", _unchecked_seal), (verify, "_same", lambda *_: True)],
    ),
    "skips-the-index": ("sqlite", "find", [(verify.RunCheck, "_is_lost", _not_lost)]),
    "ignores-heads": (
        "sqlite",
        "row",
        [(module, "check_head_row", _unchecked_head) for module in (row_reader, damage)],
    ),
    "ignores-seals-of-records": ("sqlite", "tag", [(row_reader, "_is_sealed", lambda *_: True)]),
    "ignores-checksums-of-lines": (
        "file",
        "head",
        [(module, "decode_line", _believed_line) for module in (run_state, line_file)],
    ),
    "takes-damage-for-a-torn-line": ("file", "head", [(LineFile, "_is_torn", lambda *_: True)]),
    "ignores-marks": ("file", "lines", [(LineFile, "missing", lambda _: "")]),
    "ignores-names-of-files": ("file", "name", [(LineFile, "_check_name", lambda _: None)]),
    "ignores-letters": ("sqlite", "mail", [(damage, "_is_sealed_entry", lambda *_: True)]),
    "counts-nothing": (
        "sqlite",
        "mail",
        [(damage, "_check_seals", lambda *_: [])],
    ),
    "does-not-inspect-files": ("file", "lines", [(RunRepair, "inspect", lambda _: [])]),
    "promises-nothing": ("sqlite", "row", [(repair.RepairReport, "as_dry_run", _nothing_to_do)]),
    "trusts-the-types-of-columns": (
        "sqlite",
        "blob type",
        [(row_reader, "_read_from_row", lambda _, data: data)],
    ),
    "repairs-without-keyframes": ("sqlite", "keyframe", [(repair.Salvage, "_keep", _forgetful)]),
}
"""By name: the kind of store and of damage with which each shows, and what it puts in place of what."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug; none without a name."""
    with ExitStack() as stack:
        for where, what, instead in PLANTED[name][2] if name else ():
            stack.enter_context(patch.object(where, what, instead))
        yield
