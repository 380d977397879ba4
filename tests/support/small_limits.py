"""Limits of the log that are so small that a few supersteps reach all of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.checkpoint import values
from holdfast.checkpoint.format import replay, stored_form
from holdfast.checkpoint.maintenance import prune as pruning
from holdfast.checkpoint.write import encode, prune_schedule
from holdfast.checkpoint.write import records as making


@contextmanager
def small_limits(
    inline: int = 24, keyframe: int = 300, largest_part: int = 600, compress: int = 64
) -> Iterator[None]:
    """Values become blobs, keyframes come often, room is made soon, and parts of compressed records lie elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (encode, values):
            patch.setattr(module, "INLINE", inline)
        patch.setattr(replay, "_KEYFRAME_BYTES", keyframe)
        patch.setattr(replay, "_RECORD_BYTES", 0)
        patch.setattr(prune_schedule, "_LEAST", 20 * keyframe)
        patch.setattr(prune_schedule, "_PER_RECORD", 0)
        for module in (making, pruning):
            patch.setattr(module, "LARGEST_PART", largest_part)
        patch.setattr(stored_form, "WORTH_COMPRESSING", compress)
        yield
