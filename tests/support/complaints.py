"""What a process complains about in Python's development mode."""

import re

_SAYS_SO_OF_THE_MACHINE = re.compile(r"Executing <.* took [\d.]+ seconds")


def complaints(errors: str) -> list[str]:
    """The lines it wrote, but for those that say how long a step of its event loop took.

    >>> complaints("Executing <Task pending> took 0.102 seconds\\nResourceWarning: unclosed file\\n")
    ['ResourceWarning: unclosed file']
    """
    return [line for line in errors.splitlines() if not _SAYS_SO_OF_THE_MACHINE.fullmatch(line)]
