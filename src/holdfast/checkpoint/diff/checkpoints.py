"""Two checkpoints become the difference between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.checkpoint.codec import Codec
from holdfast.checkpoint.diff.contents import content_of, pieces_of, sizes_of
from holdfast.checkpoint.diff.difference import CheckpointDiff, Difference
from holdfast.checkpoint.diff.pairs import pairs_of
from holdfast.checkpoint.diff.parts import Codecs
from holdfast.checkpoint.diff.plan import Job, batches, planned
from holdfast.checkpoint.diff.value_diff import told
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.info import CheckpointInfo
from holdfast.checkpoint.read.catalog import RunCatalog
from holdfast.checkpoint.read.loading import load
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.store import Depth
from holdfast.checkpoint.threads import reading_threads
from holdfast.checkpoint.values import BlobSource
from holdfast.graph.describe.difference import describe_difference
from holdfast.ids import CheckpointId, Digest, RunId

# More than this is compared in a thread.
_HEAVY = 1 << 20
# More differences of graphs than this are counted, not told.
_LISTED = 20


class _Side(NamedTuple):
    """One of two checkpoints, with its codec and its blobs."""

    info: CheckpointInfo
    manifest: Manifest
    codec: Codec
    family: RunId
    blobs: BlobSource


async def diff_checkpoints(catalog: RunCatalog, old: CheckpointId, new: CheckpointId) -> CheckpointDiff:
    """Return the difference between two checkpoints of any runs."""

    async def look() -> CheckpointDiff:
        return await _diff_sides(await _load_side(catalog, old), await _load_side(catalog, new))

    return await steadily(look)


async def _load_side(catalog: RunCatalog, checkpoint_id: CheckpointId) -> _Side:
    head, seq = await catalog.find(checkpoint_id)
    blobs = catalog.blobs(head.family)
    loaded = await load(catalog.store, blobs, head, seq, Depth.ALL)
    return _Side(loaded.info, loaded.manifest, catalog.codec_for(head.workflow_name), head.family, blobs)


async def _diff_sides(old: _Side, new: _Side) -> CheckpointDiff:
    """Compare two checkpoints; reads only values whose names do not tell whether they are the same."""
    codecs = Codecs(old.codec, new.codec)
    jobs = [job for pair in pairs_of(old.manifest, new.manifest) if (job := planned(pair)) is not None]
    sections: dict[str, list[Difference]] = {}
    for batch in batches(jobs):
        content = await _read(old, new, batch)
        heavy = sum(job.size for job in batch) > _HEAVY
        tell = partial(_told, batch, content, codecs)
        found = await reading_threads.call(tell) if heavy else tell()
        for section, entry in found:
            sections.setdefault(section, []).append(entry)
    found_in = {section: tuple(entries) for section, entries in sections.items()}
    return CheckpointDiff(old.info, new.info, graph=await _graph(old, new), **found_in)


def _told(
    batch: Sequence[Job], content: Mapping[Digest, bytes], codecs: Codecs
) -> list[tuple[str, Difference]]:
    found = [(job.pair.section, told(job, content, codecs)) for job in batch]
    return [(section, entry) for section, entry in found if entry is not None]


async def _read(old: _Side, new: _Side, batch: Sequence[Job]) -> dict[Digest, bytes]:
    """The blobs that are needed, each once: those of one name have the same content in every family."""
    before = {digest: size for job in batch for digest, size in job.old_sizes.items()}
    after = {digest: size for job in batch for digest, size in job.new_sizes.items() if digest not in before}
    if old.family == new.family:
        before, after = before | after, {}
    content: dict[Digest, bytes] = {}
    for side, sizes in ((old, before), (new, after)):
        if sizes:
            content.update(await side.blobs.read(sizes))
    return content


async def _graph(old: _Side, new: _Side) -> tuple[str, ...]:
    """How the graphs differ that made the checkpoints."""
    before, after = old.manifest.fingerprint, new.manifest.fingerprint
    if before == after:
        return ()
    if old.info.workflow_name != new.info.workflow_name:
        return (f"workflow {old.info.workflow_name!r} and workflow {new.info.workflow_name!r}",)
    one, other = await _described(old), await _described(new)
    lines = [] if one is None or other is None else describe_difference(one, other)
    more = [f"and {len(lines) - _LISTED:,} more differences"] if len(lines) > _LISTED else []
    return tuple(lines[:_LISTED] + more) or (f"fingerprint {before[:8]}, then {after[:8]}",)


async def _described(side: _Side) -> Any:
    """The description of the graph that made a checkpoint; None if there is none, or none that can be read."""
    ref = side.manifest.graph
    if ref is None:
        return None
    parts = pieces_of(ref)
    sizes = sizes_of(parts)
    content = await side.blobs.read(sizes) if sizes else {}
    try:
        return json.loads(side.codec.decode(content_of(ref.label, parts, content)))
    except ValueError:
        return None
