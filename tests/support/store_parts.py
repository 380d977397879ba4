"""Private parts of the stores, and of the suite that tests stores, in one place: a move changes this file alone."""

# mypy: implicit-reexport
# ruff: noqa: F401

from holdfast.checkpoint.ownership import Claim
from holdfast.stores.common.blob_files import BlobFiles
from holdfast.stores.common.file_names import make_file_name
from holdfast.stores.common.head_check import TagChange, check_needs
from holdfast.stores.common.locks import Locks
from holdfast.stores.common.presence import Presence
from holdfast.stores.common.run_query import sort_due_runs
from holdfast.stores.common.seals import seal_head
from holdfast.stores.common.worker_thread import LoopIdle, WorkerThread, check_idle
from holdfast.stores.file.commit_threads import CommitThreads
from holdfast.stores.file.directory import Directory
from holdfast.stores.file.line import LineDraft, decode_body, decode_keyed, decode_line, decode_record
from holdfast.stores.file.line_file import LineFile, RunGlance
from holdfast.stores.file.run_file import RunFile
from holdfast.stores.file.run_lock import HeldLock, RunLock
from holdfast.stores.file.wake_signs import DRIVEN, WakeSign, WakeSigns
from holdfast.stores.sqlite.backup import back_up
from holdfast.stores.sqlite.connection import DatabaseConnection
from holdfast.stores.sqlite.database_file import DatabaseLocation
from holdfast.stores.sqlite.row_writer import MOST_TOGETHER
from holdfast.testing.store_suite.actions import (
    begin,
    begin_waiting,
    leave_letters,
    list_due,
    move_on,
    read_run,
)
from holdfast.testing.store_suite.claim_rules import claim_runs
from holdfast.testing.store_suite.process_rules import OtherProcessRules
from holdfast.testing.store_suite.samples import (
    ANYTHING,
    GREATEST,
    HOUR,
    LARGE,
    NOON,
    expect_head,
    first_commit,
    next_commit,
    sample_blob,
    sample_head,
    sample_id,
    sample_keyframe,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)
