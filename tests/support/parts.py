"""Private classes and functions of holdfast that several tests need, in one place: a move changes this file alone."""

from holdfast.checkpoint.checkpoint_info import Header, pack_header
from holdfast.checkpoint.codec.reader import measure_nesting
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.derived_starts import expand, read_records
from holdfast.checkpoint.format.changes import Changes, Delivered, Grow, Part, Ref
from holdfast.checkpoint.format.document import pack_changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import read_header
from holdfast.checkpoint.format.stored_form import elsewhere, plain_form, stored_form
from holdfast.checkpoint.ownership import Claim
from holdfast.checkpoint.read.loader import BlobReader
from holdfast.checkpoint.read.snapshots import snapshot_of
from holdfast.checkpoint.store import (
    Commit,
    Depth,
    Expected,
    Head,
    Left,
    Letter,
    Note,
    Record,
    Removal,
    RunQuery,
)
from holdfast.checkpoint.threads import Threads
from holdfast.checkpoint.values import Encoder, restored
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.checkpoint.write.entry import Entry
from holdfast.checkpoint.write.log import RunLog
from holdfast.engine.copies import differs
from holdfast.engine.durability import Durability
from holdfast.engine.message import Delivery, Expiry, Output, Request, Sent
from holdfast.engine.persistent import GONE, Chain, Layered
from holdfast.engine.snapshot import BufferKey, Delta, Snapshot, advance
from holdfast.engine.state import Scope, StagedState
from holdfast.engine.superstep import Applied, Outcome, Turn, apply, begin, plan
from holdfast.engine.value import Copier, Value, capture
from holdfast.graph.describe.description import description_text
from holdfast.graph.describe.difference import describe_difference
from holdfast.graph.typing.types import type_name
from holdfast.ids import CheckpointId, Digest, ExecutorId, RequestId, RunId
from holdfast.runtime.config import RunConfig
from holdfast.runtime.durable.journal import Journal, StoredJournal
from holdfast.runtime.durable.recorder import Recorder
from holdfast.runtime.durable.stored_runs import MOST_TAKEOVERS
from holdfast.runtime.environment import Environment
from holdfast.runtime.events.event_log import EventLog
from holdfast.stores.common.disk import Disk
from holdfast.stores.file import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.resumable import MortalStore, select_durable_events

__all__ = [
    "GONE",
    "MOST_TAKEOVERS",
    "Applied",
    "BlobReader",
    "BufferKey",
    "Chain",
    "Changes",
    "CheckpointId",
    "Claim",
    "Commit",
    "Copier",
    "Delivered",
    "Delivery",
    "Delta",
    "Depth",
    "Digest",
    "Disk",
    "Durability",
    "Encoder",
    "Entry",
    "Environment",
    "EventLog",
    "ExecutorId",
    "Expected",
    "Expiry",
    "FileStore",
    "Grow",
    "Head",
    "Header",
    "Journal",
    "Layered",
    "Left",
    "Letter",
    "Manifest",
    "MemoryStore",
    "MortalStore",
    "Note",
    "Outcome",
    "Output",
    "Part",
    "Record",
    "Recorder",
    "Ref",
    "Removal",
    "Request",
    "RequestId",
    "RunConfig",
    "RunId",
    "RunLog",
    "RunQuery",
    "Scope",
    "Sent",
    "Snapshot",
    "SqliteStore",
    "StagedState",
    "StoredJournal",
    "Threads",
    "Turn",
    "TypeRegistry",
    "Value",
    "advance",
    "apply",
    "begin",
    "capture",
    "describe_difference",
    "description_text",
    "differs",
    "elsewhere",
    "expand",
    "measure_nesting",
    "pack_changes",
    "pack_header",
    "plain_form",
    "plan",
    "read_header",
    "read_records",
    "restored",
    "select_durable_events",
    "snapshot_of",
    "stored_form",
    "type_name",
    "unbundled",
]
