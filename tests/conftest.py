"""What every test shares."""

import gc
import os

from hypothesis import settings

# No deadline: on a shared machine it reports the neighbours. Not derandomized: each run searches somewhere new,
# and the printed blob repeats a failure anywhere. This replaces hypothesis's own "ci" profile.
settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True, max_examples=20)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish() -> None:
    """Collecting garbage looks only at what tests make: not each time at the modules of all of them as well."""
    gc.collect()
    gc.freeze()
