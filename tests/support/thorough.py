"""How much is tried: more with ``HYPOTHESIS_PROFILE=thorough``."""

import os

MORE = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 1
