"""The conformance suite of stores: the promises of ``holdfast.checkpoint.store``, sentence by sentence, as tests.

A backend subclasses one of the two classes in a test file and gives the fixtures::

    class TestMyStore(DurableStoreConformance):
        @pytest_asyncio.fixture
        async def store(self, tmp_path):
            store = MyStore(tmp_path)
            yield store
            await store.close()

        @pytest_asyncio.fixture
        async def reopen(self, tmp_path):
            made = []

            async def reopen(namespace=""):
                made.append(MyStore(tmp_path, namespace))
                return made[-1]

            yield reopen
            for store in made:
                await store.close()

It needs pytest and pytest-asyncio, in either of its modes.
"""

from __future__ import annotations

import sys

import pytest

# So that a failing assert shows its values; a module that was imported before cannot be changed any more.
_PARTS = (
    *(
        "actions",
        "blob_rules",
        "claim_rules",
        "commit_rules",
        "durable_rules",
        "event_rules",
        "host_rules",
        "import_rules",
        "inbox_rules",
    ),
    *("journal_rules", "process_rules", "record_rules", "removal_rules", "repair_rules"),
    *("run_list_rules", "samples"),
)
_names = [f"holdfast.testing.store_suite.{part}" for part in _PARTS]
pytest.register_assert_rewrite(*(name for name in _names if name not in sys.modules))

from holdfast.testing.store_suite.actions import Reopen  # noqa: E402
from holdfast.testing.store_suite.blob_rules import (  # noqa: E402
    BlobRules,
    DurableNeedRules,
    NeededBlobRules,
    SweepRules,
)
from holdfast.testing.store_suite.claim_rules import ClaimRules, DurableClaimRules  # noqa: E402
from holdfast.testing.store_suite.commit_rules import CommitRules, ConcurrencyRules, HeadRules  # noqa: E402
from holdfast.testing.store_suite.durable_rules import DurableMailRules, ReopenRules  # noqa: E402
from holdfast.testing.store_suite.event_rules import DurableEventRules, EventRules  # noqa: E402
from holdfast.testing.store_suite.host_rules import DurableWakeRules, PresenceRules, WakeRules  # noqa: E402
from holdfast.testing.store_suite.import_rules import DurableImportRules, ImportRules  # noqa: E402
from holdfast.testing.store_suite.inbox_rules import ConcurrentLetterRules, InboxRules  # noqa: E402
from holdfast.testing.store_suite.journal_rules import JournalRules  # noqa: E402
from holdfast.testing.store_suite.record_rules import IdRules, RecordRules  # noqa: E402
from holdfast.testing.store_suite.removal_rules import DurableRemovalRules, RemovalRules  # noqa: E402
from holdfast.testing.store_suite.repair_rules import RepairRules  # noqa: E402
from holdfast.testing.store_suite.run_list_rules import RunListRules  # noqa: E402

if sys.platform != "win32":
    from holdfast.testing.store_suite.process_rules import OtherProcessRules
else:

    class OtherProcessRules:
        """No rules: without ``os.fork`` there is no other process that could use a store."""


__all__ = ["DurableStoreConformance", "Reopen", "StoreConformance"]


@pytest.mark.asyncio
class StoreConformance(
    CommitRules,
    HeadRules,
    RecordRules,
    BlobRules,
    RunListRules,
    IdRules,
    ConcurrencyRules,
    JournalRules,
    EventRules,
    InboxRules,
    ConcurrentLetterRules,
    PresenceRules,
    ImportRules,
    RemovalRules,
    SweepRules,
    WakeRules,
    ClaimRules,
    NeededBlobRules,
    RepairRules,
):
    """The rules of every store. Fixture ``store``: an empty store of namespace ''; the fixture closes it."""


@pytest.mark.asyncio
class DurableStoreConformance(
    StoreConformance,
    ReopenRules,
    DurableMailRules,
    DurableEventRules,
    DurableRemovalRules,
    OtherProcessRules,
    DurableImportRules,
    DurableNeedRules,
    DurableWakeRules,
    DurableClaimRules,
):
    """The rules of a store that outlives its process.

    Fixture ``reopen``: an async function that makes another object for the place of ``store``, for a namespace. It is
    also called in forked children of the test, where there is ``os.fork``. ``patience``: the seconds in which the store
    has to find out that a process died.
    """
