"""Helpers for tests of workflows and stores.

``FakeContext`` for single executors; ``assert_resumable`` and ``VirtualTime`` for workflows;
``StoreConformance``, ``DurableStoreConformance`` and ``SessionStoreConformance``, which need pytest, for stores.
"""

from typing import TYPE_CHECKING, Any

from holdfast.testing.fake_context import FakeContext
from holdfast.testing.resumable import assert_resumable
from holdfast.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from holdfast.testing.conformance import DurableStoreConformance, StoreConformance
    from holdfast.testing.session_suite import SessionStoreConformance

__all__ = [
    "DurableStoreConformance",
    "FakeContext",
    "SessionStoreConformance",
    "StoreConformance",
    "VirtualTime",
    "assert_resumable",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "SessionStoreConformance":
        import sys

        import pytest

        # So that a failing assert shows its values; a module that was imported before cannot be changed any more.
        if "holdfast.testing.session_suite" not in sys.modules:
            pytest.register_assert_rewrite("holdfast.testing.session_suite")
        from holdfast.testing.session_suite import SessionStoreConformance

        return SessionStoreConformance
    from holdfast.testing import conformance

    return getattr(conformance, name)
