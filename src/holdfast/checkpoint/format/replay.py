"""Replay: how much is folded to load a checkpoint, which decides when a record gets a keyframe."""

from __future__ import annotations

# Deltas are replayed at each load: a keyframe bounds how many. Values that stand in records only have to be
# read again, not replayed, so a byte of them weighs less. A record has to be read and checked however little it
# changed, together with the start of the next superstep, which changes nothing: that takes as long as so many bytes.
_KEYFRAME_BYTES = 64 * 1024
_VALUE_WEIGHT = 64
_RECORD_BYTES = 512


class Replay:
    """The seq at which replay of the newest record begins, and the size of all that is replayed from there.

    ``keyframe`` is the plain size of the keyframe that replay begins with, or of a record that is as good as one.
    """

    __slots__ = ("_keyframe", "_weight", "first", "is_long")

    def __init__(self, first: int = 1, keyframe: float = 0) -> None:
        self.first = first
        self.is_long = False
        """True when the next record should get a keyframe."""
        self._weight: float = 0
        self._keyframe = keyframe

    def add(self, changes: int, values: int) -> None:
        """Count one more record.

        A record that is far bigger than all before it holds nearly everything: a keyframe would only repeat it.
        """
        own = _RECORD_BYTES + changes + values / _VALUE_WEIGHT
        if own >= _KEYFRAME_BYTES and own >= 2 * (self._weight + self._keyframe):
            self._keyframe = own
        else:
            self._weight += own
        self.is_long = self._weight >= _KEYFRAME_BYTES and self._weight >= self._keyframe
