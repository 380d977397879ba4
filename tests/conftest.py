"""What every test shares."""

import os

from hypothesis import settings

# No deadline: on a shared machine it reports the neighbours. Not derandomized: each run searches somewhere new,
# and the printed blob repeats a failure anywhere. This replaces hypothesis's own "ci" profile.
settings.register_profile("ci", deadline=None, derandomize=False, print_blob=True, max_examples=20)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
