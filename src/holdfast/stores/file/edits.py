"""Edits: what a commit changes in records that lie in earlier files.

They stand in a commit file of their own, and so they happen at once or not at all. They are carried out in the files
that hold the records some time later; until then whoever reads records looks at both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.store import Removal
from holdfast.stores.file.items import is_sound, keyframe_document, seal_of_record
from holdfast.stores.file.parts import text_document


def removal_document(removal: Removal, used: Iterable[str]) -> dict[str, Any]:
    """What the file of a removal says; ``used`` are the keys of all letters that were ever taken."""
    document: dict[str, Any] = {
        "removed": _ranges(sorted(set(removal.seqs))),
        "keyframes": [
            {"seq": seq, "keyframe": keyframe_document(keyframe)} for seq, keyframe in removal.keyframes
        ],
    }
    if removal.tags:
        document |= tags_document({seq: after for seq, _, after in removal.tags})
    keys = [text_document(key) for key in used]
    return {**document, "used": keys} if keys else document


def tags_document(given: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """Return what the file says that gives records tags, by their seqs."""
    return {
        "tags": [{"seq": seq, "tags": [text_document(tag) for tag in tags]} for seq, tags in given.items()]
    }


def _ranges(seqs: Sequence[int]) -> list[list[int]]:
    """Seqs as pairs of the first and last that follow each other.

    >>> _ranges([1, 2, 3, 7])
    [[1, 3], [7, 7]]
    """
    found: list[list[int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return found


class Overlay:
    """Edits that may not be carried out yet, later ones over earlier ones.

    >>> overlay = Overlay([{"removed": [[1, 2]]}, {"tags": [{"seq": 3, "tags": ["gold"]}]}])
    >>> [(record["seq"], record["tags"]) for record in overlay.applied([{"seq": 2}, {"seq": 3}])]
    [(3, ['gold'])]
    """

    def __init__(self, documents: Iterable[dict[str, Any]]) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Seqs of records that it changes or removes, from the first to the last."""
        self._removed: set[int] = set()
        self._changes: dict[int, dict[str, Any]] = {}
        for document in documents:
            self._add(document)

    def _add(self, document: dict[str, Any]) -> None:
        for first, last in document.get("removed", ()):
            self._removed.update(range(first, last + 1))
            self.ranges.append((first, last))
        for name, value in (("keyframes", "keyframe"), ("tags", "tags")):
            for change in document.get(name, ()):
                self._changes.setdefault(change["seq"], {})[value] = change[value]
                self.ranges.append((change["seq"], change["seq"]))

    def applied(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What is left of records, with what they got; the same list if nothing changes."""
        if not self.ranges:
            return records
        left = [self._changed(record) for record in records if record["seq"] not in self._removed]
        return records if left == records else left

    def _changed(self, record: dict[str, Any]) -> dict[str, Any]:
        changes = self._changes.get(record["seq"])
        if changes is None:
            return record
        changed = {name: value for name, value in {**record, **changes}.items() if name != "tags" or value}
        return {**changed, "seal": seal_of_record(changed)} if is_sound(record) else changed
