"""Helpers for tests of workflows and stores.

``FakeContext`` for single executors; ``assert_resumable`` and ``VirtualTime`` for workflows;
``StoreConformance`` and ``DurableStoreConformance``, which need pytest, for stores.
"""

from typing import TYPE_CHECKING, Any

from holdfast.testing.fake_context import FakeContext
from holdfast.testing.resumable import assert_resumable
from holdfast.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from holdfast.testing.conformance import DurableStoreConformance, StoreConformance

__all__ = ["DurableStoreConformance", "FakeContext", "StoreConformance", "VirtualTime", "assert_resumable"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.testing import conformance

    return getattr(conformance, name)
