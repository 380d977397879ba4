"""What every test shares."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

from holdfast.checkpoint.codec import registry

# No deadline, and drawing may be slow: on a shared machine both report the neighbours. Not derandomized: each run
# searches somewhere new, and the printed blob repeats a failure anywhere. This replaces hypothesis's own "ci" profile.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="module")
def cheap_collection() -> None:
    """Collecting garbage looks only at what the tests of a module make, not at all modules and what others left."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def own_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test marks ``@checkpointable`` is known to that test alone, not to all that the process runs after it."""
    monkeypatch.setattr(registry, "_decorated", dict(registry._decorated))
