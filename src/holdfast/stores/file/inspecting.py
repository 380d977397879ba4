"""What is wrong with the commit files of a run, beyond what reading its records shows."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.checkpoint.store import Damage
from holdfast.errors import CheckpointCorrupt
from holdfast.ids import RunId
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.seals import MODULUS
from holdfast.stores.file import document
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.place import Misplaced, Names, Place, names_in
from holdfast.stores.file.row import Row, View

# How often a run is looked at that others change meanwhile.
_MOST_LOOKS = 20


def inspect(row: Row, hints: Hints) -> list[Damage]:
    """Read all files of a run, and say what is wrong with them; the lock of the row is held.

    Where files or hints came or went while they were read, what seems to be wrong need not be: it is looked at again.
    """
    found: list[Damage] = []
    for _ in range(_MOST_LOOKS):
        before = _stamp(row, hints)
        found = list(_inspected(row, hints))
        if not found or _stamp(row, hints) == before:
            break
    return found


def _stamp(row: Row, hints: Hints) -> tuple[list[str], Place | None]:
    """Note the names and the hint that change when others move a run on, remove something of it, or remove it."""
    try:
        names = sorted(os.listdir(row.path))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    return names, hints.how_far(row.path)


def _inspected(row: Row, hints: Hints) -> Iterator[Damage]:
    run_id = run_of(row)
    try:
        row.forget()
        row.catch_up()
    except (CheckpointCorrupt, Misplaced) as error:
        yield Damage(run_id, str(error))
        return
    reached, newest = hints.how_far(row.path), row.known.newest
    if reached is not None and (newest is None or newest < reached):
        left = "no commit is left" if newest is None else f"the newest is {newest.name}"
        yield Damage(run_id, f"{row.path / reached.name} was committed and is missing: {left}")
    if row.known.head is None:
        return
    content = 0
    try:
        view = row.view()
    except (CheckpointCorrupt, FileNotFoundError) as error:
        yield Damage(run_id, str(error))
        return
    for place in view.places:
        try:
            content += _sum_of(view, place)
        except (CheckpointCorrupt, FileNotFoundError) as error:
            yield Damage(run_id, str(error))
    try:
        journal = sum(note["seal"] for file in row.noted() for note in file.noted)
        if journal % MODULUS != row.known.journal:
            yield Damage(run_id, f"the journal of run {run_id!r} has not all notes that it had")
    except (CheckpointCorrupt, FileNotFoundError) as error:
        yield Damage(run_id, str(error))
    if content % MODULUS != row.known.content:
        yield Damage(run_id, f"run {run_id!r} has not all checkpoints that it had, or others beside them")


def _sum_of(view: View, place: Place) -> int:
    """The sum of the seals in a file; raises ``CheckpointCorrupt``."""
    path = view.paths[place]
    data = document.content_of(path)
    if not data and view.emptied(place):
        return 0
    file = document.parsed(path, data).trusted()
    return sum(
        seal for record in view.overlay.applied(file.records) if isinstance(seal := record.get("seal"), int)
    )


def run_of(row: Row) -> RunId | None:
    """The run to which a folder belongs, from any file of it that can be read, or from its name."""
    try:
        names = names_in(row.path)
    except Misplaced:
        names = Names([], [])
    paths = [row.path / place.name for place in reversed(names.row)]
    for path in [*paths, *(row.path / place.kept_name for place in names.kept)]:
        try:
            return document.parsed(path, document.content_of(path)).trusted().head.run_id
        except (CheckpointCorrupt, FileNotFoundError):
            continue
    return RunId(row.path.name) if make_file_name(row.path.name) == row.path.name else None
