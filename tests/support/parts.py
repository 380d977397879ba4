"""Private classes and functions of holdfast that tests need, in one place: a move changes this file alone.

Those of stores are in ``store_parts``, and whole modules, of which tests replace something, in ``modules``.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from holdfast.checkpoint.checkpoint import ReadBlobs
from holdfast.checkpoint.checkpoint_info import (
    Header,
    Marks,
    end_id,
    info_from_dict,
    is_start_id,
    pack_header,
    start_id,
)
from holdfast.checkpoint.codec.plain import plain_of_bytes, plain_value, value_of_plain
from holdfast.checkpoint.codec.reader import measure_nesting
from holdfast.checkpoint.codec.registry import TypeRegistry
from holdfast.checkpoint.codec.value_tree import NotATree
from holdfast.checkpoint.derived_starts import collapse, expand, find_checkpoint, read_records
from holdfast.checkpoint.format.changes import (
    Asked,
    Changes,
    Delivered,
    DropRef,
    Grow,
    Happened,
    Part,
    PutRef,
    Ref,
)
from holdfast.checkpoint.format.document import pack_changes, unpack_changes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import digest_of, id_of, read_header
from holdfast.checkpoint.format.renames import fold_record
from holdfast.checkpoint.format.stored_form import COMPRESSED, RAW, elsewhere, plain_form, stored_form
from holdfast.checkpoint.inbox import cancel_letter
from holdfast.checkpoint.journal import result_draft, sizes_in_note
from holdfast.checkpoint.maintenance.prune import prune_run
from holdfast.checkpoint.ownership import Claim, is_gone, is_held, this_process, wait_for_release
from holdfast.checkpoint.read.loader import BlobReader, changes_of
from holdfast.checkpoint.read.pages import Page
from holdfast.checkpoint.read.snapshots import snapshot_of
from holdfast.checkpoint.store import (
    Blob,
    ClaimRequest,
    Commit,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    Note,
    Record,
    Removal,
    RunQuery,
    Store,
)
from holdfast.checkpoint.threads import Threads
from holdfast.checkpoint.transfer.export_file import MARK, ExportReader, ExportWriter
from holdfast.checkpoint.transfer.export_frames import FrameKind
from holdfast.checkpoint.values import BlobSource, Encoder, restored
from holdfast.checkpoint.write.bundles import unbundled
from holdfast.checkpoint.write.checkpoint_draft import CheckpointDraft
from holdfast.checkpoint.write.log import NoteDraft, RunLog
from holdfast.checkpoint.write.records import ClockAndSalt
from holdfast.engine._fast_superstep import pass_on
from holdfast.engine.copies import differs, is_immutable
from holdfast.engine.durability import Durability, check_durability
from holdfast.engine.message import Delivery, Expiry, Output, Request, Sent
from holdfast.engine.persistent import GONE, Chain, Layered
from holdfast.engine.snapshot import (
    BufferKey,
    Delta,
    Snapshot,
    advance,
    compute_delta,
    deliver_answers,
    with_expiries,
)
from holdfast.engine.state import EMPTY_STATE, Append, Scope, StagedState, State, Update, combine, read, write
from holdfast.engine.superstep import Applied, Outcome, Turn, apply, begin, plan
from holdfast.engine.value import CopiedValue, Copier, JoinedValue, Value, capture
from holdfast.graph.context import DEFAULT_SHARED_SCOPE
from holdfast.graph.describe.description import description_text
from holdfast.graph.describe.difference import describe_difference
from holdfast.graph.graph import ancestors, path_of
from holdfast.graph.typing.conversion import Unconvertible
from holdfast.graph.typing.json_check import check_json, plain_json
from holdfast.graph.typing.schema import json_schema
from holdfast.graph.typing.types import type_name
from holdfast.ids import CheckpointId, Digest, ExecutorId, RequestId, RunId
from holdfast.runtime._async import handler_threads
from holdfast.runtime.config import NO_RUN_CONTEXT, RunConfig
from holdfast.runtime.durable.checkpoint_trail import CheckpointTrail
from holdfast.runtime.durable.commit_queue import CommitQueue
from holdfast.runtime.durable.journal import Journal, StoredJournal, is_sleep
from holdfast.runtime.durable.recorder import Recorder
from holdfast.runtime.durable.run_owner import MOST_TAKEOVERS
from holdfast.runtime.environment import Environment, use
from holdfast.runtime.events.event_log import EventLog
from holdfast.runtime.events.notices import traceback_text
from holdfast.runtime.run.lifecycle import RunLifecycle
from holdfast.runtime.step.effects import Effects
from holdfast.runtime.step.executors import RunExecutors
from holdfast.runtime.step.questions import Questions
from holdfast.runtime.step.runner import Runner
from holdfast.runtime.times import as_time, in_microseconds
from holdfast.stores.common.disk import Disk
from holdfast.stores.common.read_only import ReadOnlyStore
from holdfast.stores.file import FileStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.resumable import MortalStore, select_durable_events
from holdfast.workflow import RunStart
