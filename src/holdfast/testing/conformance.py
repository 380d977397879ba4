"""The conformance suite of stores: what ``holdfast.checkpoint.store`` says, sentence by sentence, as tests.

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

# So that a failing assert shows its values; whoever was imported before cannot be helped any more.
_PARTS = (
    *("arrivals", "blobs", "commits", "concurrency", "durable", "elsewhere", "heads", "inbox", "journal"),
    *("lasting", "letters", "names", "needs", "presence", "processes", "records", "removal", "repairing"),
    *("runs", "samples", "shared", "sweeping", "waking"),
)
_names = [f"holdfast.testing.store_suite.{part}" for part in _PARTS]
pytest.register_assert_rewrite(*(name for name in _names if name not in sys.modules))

from holdfast.testing.store_suite.arrivals import Arrivals, KeptArrivals  # noqa: E402
from holdfast.testing.store_suite.blobs import Blobs  # noqa: E402
from holdfast.testing.store_suite.commits import Commits  # noqa: E402
from holdfast.testing.store_suite.concurrency import Concurrency  # noqa: E402
from holdfast.testing.store_suite.durable import Durable, Reopen  # noqa: E402
from holdfast.testing.store_suite.heads import Heads  # noqa: E402
from holdfast.testing.store_suite.inbox import Inbox  # noqa: E402
from holdfast.testing.store_suite.journal import Journal  # noqa: E402
from holdfast.testing.store_suite.lasting import Lasting  # noqa: E402
from holdfast.testing.store_suite.letters import Letters  # noqa: E402
from holdfast.testing.store_suite.names import Names  # noqa: E402
from holdfast.testing.store_suite.needs import KeptNeeds, Needs  # noqa: E402
from holdfast.testing.store_suite.presence import Presence  # noqa: E402
from holdfast.testing.store_suite.records import Records  # noqa: E402
from holdfast.testing.store_suite.removal import Removals  # noqa: E402
from holdfast.testing.store_suite.repairing import Repairing  # noqa: E402
from holdfast.testing.store_suite.runs import Runs  # noqa: E402
from holdfast.testing.store_suite.shared import Shared  # noqa: E402
from holdfast.testing.store_suite.sweeping import Sweeping  # noqa: E402
from holdfast.testing.store_suite.waking import KeptWaking, Waking  # noqa: E402

if sys.platform != "win32":
    from holdfast.testing.store_suite.elsewhere import Elsewhere
else:

    class Elsewhere:
        """Without ``os.fork`` there is no other process to see a store from."""


__all__ = ["DurableStoreConformance", "Reopen", "StoreConformance"]


@pytest.mark.asyncio
class StoreConformance(
    Commits,
    Heads,
    Records,
    Blobs,
    Runs,
    Names,
    Concurrency,
    Journal,
    Inbox,
    Letters,
    Presence,
    Arrivals,
    Removals,
    Sweeping,
    Waking,
    Needs,
    Repairing,
):
    """What every store promises. Fixture ``store``: an empty one of namespace ''; the fixture closes it."""


@pytest.mark.asyncio
class DurableStoreConformance(
    StoreConformance, Durable, Shared, Lasting, Elsewhere, KeptArrivals, KeptNeeds, KeptWaking
):
    """What a store promises that does not live in memory.

    Fixture ``reopen``: an async function that makes another object for the place of ``store``, for a namespace. It is
    also called in forked children of the test, where there is ``os.fork``. ``patience``: the seconds in which the store
    has to find out that a process died.
    """
