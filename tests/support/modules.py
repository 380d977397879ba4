"""Private modules of which tests replace a constant or a function, in one place: a move changes this file alone."""

# mypy: implicit-reexport
# ruff: noqa: F401

from holdfast.checkpoint import run_logs, storage, threads, values
from holdfast.checkpoint.diff import comparison, tree_diff
from holdfast.checkpoint.format import document, manifest, refs, slices, stored_form
from holdfast.checkpoint.keys import cipher as sealing_cipher
from holdfast.checkpoint.keys import key_box, sealed_heads, sealed_items, sealed_store
from holdfast.checkpoint.maintenance import old_runs, prune, statistics, verify
from holdfast.checkpoint.read import browser, catalog, loader, pages
from holdfast.checkpoint.transfer import run_transfer
from holdfast.checkpoint.write import encode, log, prune_schedule
from holdfast.engine import state
from holdfast.graph.describe import description
from holdfast.runtime import _async
from holdfast.runtime.durable import (
    checkpoint_drafts,
    checkpoint_writer,
    commit_queue,
    recorder,
    resume_point,
    run_owner,
    stored_runs,
)
from holdfast.runtime.events import event_log, notices
from holdfast.runtime.run import lifecycle
from holdfast.runtime.step import executors, runner, turn
from holdfast.stores.common import locks
from holdfast.stores.file import blobs, line, line_file, marker, run_file, run_index, run_lock
from holdfast.stores.sqlite import (
    backup,
    connection,
    database_file,
    notes_and_letters,
    row_writer,
    schema,
    session,
    transaction,
)
from holdfast.stores.sqlite import vacuum as sqlite_vacuum
