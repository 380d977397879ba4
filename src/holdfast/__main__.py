"""``python -m holdfast`` is the command ``holdfast``."""

import sys

from holdfast.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
