"""A snapshot from a manifest: values are not read before someone asks for them."""

from __future__ import annotations

from holdfast.checkpoint.format.changes import Asked, Delivered, Ref
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.values import BlobSource, Encoder, restored
from holdfast.engine.message import Delivery, Output, Request
from holdfast.engine.persistent import Chain, Layered
from holdfast.engine.snapshot import Snapshot
from holdfast.engine.value import Value


def snapshot_of(manifest: Manifest, superstep: int, encoder: Encoder, source: BlobSource) -> Snapshot:
    """The snapshot that a manifest describes; ``superstep`` is the last one that was taken."""

    def value(ref: Ref) -> Value:
        return restored(ref, encoder, source)

    def request(asked: Asked) -> Request:
        return request_of(asked, encoder, source)

    def delivery(delivered: Delivered) -> Delivery:
        target, sender, ref, asked = delivered
        return Delivery(target, value(ref), sender, None if asked is None else request(asked))

    return Snapshot(
        superstep=superstep,
        since_input=manifest.since_input,
        deliveries=tuple(delivery(delivered) for delivered in manifest.deliveries),
        state=Layered(
            {
                scope: Layered({key: value(ref) for key, ref in keys.items()})
                for scope, keys in manifest.state.items()
            }
        ),
        buffers=Layered(
            {
                key: {source: Chain.of([value(ref) for ref in refs]) for source, refs in buffer.items()}
                for key, buffer in manifest.buffers.items()
            }
        ),
        outputs=Chain.of([Output(executor_id, value(ref)) for executor_id, ref in manifest.outputs]),
        requests=Layered({key: request(asked) for key, asked in manifest.requests.items()}),
        answered=Layered(dict(manifest.answered)),
        instances=Layered(dict(manifest.instances)),
        rounds=Layered({key: tuple(sources) for key, sources in manifest.rounds.items()}),
    )


def request_of(asked: Asked, encoder: Encoder, source: BlobSource) -> Request:
    """A request; raises ``UnknownType`` where the type of its answer is not declared here."""
    form = encoder.codec.decode_form(asked.form)
    return Request(
        asked.request_id, asked.executor_id, restored(asked.data, encoder, source), form, asked.expiry
    )
