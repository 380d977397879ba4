"""Damage in the file of a run: what is wrong with it, and a head that can be read again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.checkpoint.checkpoint_info import Header
from holdfast.checkpoint.derived_starts import expand
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.maintenance.problems import briefly
from holdfast.checkpoint.store import Damage, Depth, Head, Mended, SealedForms
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import CheckpointId, RunId
from holdfast.stores.common.disk import is_regular
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.lost_head import WHAT_IS_LOST, rebuild_head
from holdfast.stores.file.line_file import LineFile
from holdfast.stores.file.run_file import RunFile, copy_aside
from holdfast.stores.file.run_lock import HeldLock


class RunRepair:
    """Looks at the file of one run, and puts it right."""

    def __init__(self, lines: LineFile, file: RunFile) -> None:
        self._lines = lines
        self._file = file

    def run_id(self) -> RunId | None:
        """Return the run whose place the file has, as far as that can be told: another may lie there."""
        name, run_id = self._lines.path.stem, self._lines.state.run_id
        if make_file_name(name) == name:
            return RunId(name)
        return run_id if run_id is not None and make_file_name(run_id) == name else None

    def inspect(self) -> list[Damage]:
        """Read the whole file, and return what is wrong with it."""
        try:
            missing = self._lines.missing()
            state = self._lines.look()
            found = [self._damage(str(self._lines.damage(bad))) for bad in state.bad]
            if missing:
                found.append(self._damage(missing))
            self._lines.check_readable()
        except CheckpointCorrupt as error:
            return [self._damage(str(error))]
        return found

    def _damage(self, what: str) -> Damage:
        return Damage(self.run_id(), what)

    def mend(self, aside: Path, forms: SealedForms | None) -> Iterator[Mended]:
        """Let the run have a head that can be read; a file that has none goes to ``aside``."""
        path = self._lines.path
        if os.path.lexists(path) and not is_regular(path):
            _move_aside(path, aside)
            with self._lines.hold() as held:
                held.clear_mark()
            yield Mended(self.run_id(), f"{path.name} is no regular file and was put aside", "the whole run")
            return
        with self._lines.hold() as held:
            missing = self._lines.missing()
            try:
                self._lines.check_readable()
                if forms is not None and self._lines.state.head is not None:
                    forms.open_head(self._lines.state.head)
            except CheckpointCorrupt as error:
                yield self._rebuild(held, aside, error, forms)
                return
            if missing:
                yield self._accept(held, missing)

    def _accept(self, held: HeldLock, missing: str) -> Mended:
        state = self._lines.state
        if state.end:
            held.write_mark(state.file_id, state.end)
            return Mended(self.run_id(), missing, "all that it did since")
        held.clear_mark()
        return Mended(self.run_id(), missing, "the whole run")

    def _rebuild(
        self, held: HeldLock, aside: Path, error: CheckpointCorrupt, forms: SealedForms | None
    ) -> Mended:
        name, run_id = self._lines.path.name, self.run_id()
        head = self._new_head(forms) if self._lines.read_all() else None
        if head is None:
            _move_aside(self._lines.path, aside)
            held.clear_mark()
            return Mended(run_id, f"{name} was put aside: {briefly(error)}", "the whole run")
        copy_aside(self._lines.path, aside)
        self._file.rewrite_salvaged(held, head if forms is None else forms.close_head(head))
        return Mended(run_id, f"the head in {name} was made anew: {briefly(error)}", WHAT_IS_LOST)

    def _new_head(self, forms: SealedForms | None) -> Head | None:
        """Return a head on the newest checkpoint that can be read."""
        state = self._lines.state
        for seq in reversed(state.seqs):
            found = self._newest_in(seq, forms)
            if found is not None:
                checkpoint_id, header = found
                before = state.head
                head = rebuild_head(
                    checkpoint_id,
                    header,
                    header.run_id if before is None else before.family,
                    header.time if before is None else before.created,
                    0 if before is None else before.token,
                    "" if before is None else before.origin,
                )
                return head if before is None else head._replace(restored=before.restored)
        return None

    def _newest_in(self, seq: int, forms: SealedForms | None) -> tuple[CheckpointId, Header] | None:
        """Return the last checkpoint of a record, which may be a derived start; None if it cannot be read."""
        try:
            (record,) = self._file.read_record(seq, Depth.HEADERS)
            if forms is not None:
                record = forms.open_record(record._replace(tags=()))
            newest = expand([record._replace(tags=())])[-1]
            header = read_header(newest)
        except (CheckpointCorrupt, ValueError):
            return None
        is_ours = make_file_name(header.run_id) == self._lines.path.stem
        return (newest.checkpoint_id, header) if header.seq == newest.seq and is_ours else None


def _move_aside(path: Path, aside: Path) -> None:
    """Put a thing that cannot be used where nobody reads it."""
    aside.parent.mkdir(0o700, exist_ok=True)
    os.rename(path, aside)
