"""What every test shares."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.checkpoint.codec import registry
from holdfast.runtime.durable import recorder
from tests.support.places import quick_place

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

# Handlers of tests take no time, but runs with durability "async" should be ahead of their commits in all of them.
recorder.BACKGROUND_SECONDS = -1.0

# A shell without job control has what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where ``tmp_path`` lies; said here, before the first test asks for it and before workers are started.
if quick := quick_place():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", quick)


@pytest.fixture(autouse=True, scope="module")
def cheap_collection() -> None:
    """Collecting garbage looks only at what the tests of a module make, not at all modules and what others left."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder where the system keeps temporary files: for what differs from one file system to another.

    That is the room that files and folders take, reading a folder while others remove from it, and what a sync does.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, which ``tmp_path`` is not; tests may take rights away in it."""
    folder = Path(tempfile.mkdtemp(dir=quick_place()))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def own_marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test marks ``@checkpointable`` is known to that test alone, not to all that the process runs after it."""
    monkeypatch.setattr(registry, "_decorated", dict(registry._decorated))
    before = dict(registry.marks_of_others)
    yield
    registry.marks_of_others.clear()
    registry.marks_of_others.update(before)
