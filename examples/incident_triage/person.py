"""The approval that somebody is paged: by a person at the terminal, or an option that answers for one."""

import sys
from collections.abc import Callable

_QUESTION = "Page on-call? [y/n] "
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}


def approval(given: bool | None) -> Callable[[], bool]:
    """Return the function that answers the question: the option if one was given, else the person at the terminal."""
    if given is not None:
        return lambda: _said(given, "by option")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return lambda: _said(True, "no terminal to ask at, so --yes is taken as given")
    return _asked


def _said(answer: bool, why: str) -> bool:
    print(f"{_QUESTION}{'yes' if answer else 'no'} ({why})\n", flush=True)
    return answer


def _asked() -> bool:
    """Ask until the answer is one; ``EOFError`` and ``KeyboardInterrupt`` are for the caller."""
    while True:
        try:
            answer = input(_QUESTION).strip().lower()
        except UnicodeDecodeError:
            answer = ""
        if answer in _ANSWERS:
            print()
            return _ANSWERS[answer]
        print("Please answer y or n.")
