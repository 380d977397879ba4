"""The retries of a handler that failed: their number and the waits between them.

A new field of ``RetryPolicy`` is also a property of the schema in ``agents/workflow/definition_reader.py``; a test asks
for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import InvalidArgument
from holdfast.graph.typing.annotations import find_uncallable_signature

_NO_END = float("inf")
_BOUNDS = (("backoff", 0, _NO_END), ("longest", 0, _NO_END), ("multiplier", 1, _NO_END), ("jitter", 0, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts at a turn, and the waits between them.

    The wait before the second attempt is ``backoff`` seconds, then ``multiplier`` times the last, at most
    ``longest``; ``jitter`` is the fraction of it that is left to chance, so that many runs do not return at once.
    ``retry_on`` names the exceptions worth another attempt: classes, or a function that is given the exception.

    >>> policy = RetryPolicy(attempts=4, backoff=1.0, multiplier=3.0, jitter=0.0)
    >>> [policy.wait_after(attempt, chance=0.5) for attempt in (1, 2, 3)]
    [1.0, 3.0, 9.0]
    >>> policy.allows(1, ConnectionError()), policy.allows(4, ConnectionError())
    (True, False)
    """

    attempts: int = 3
    backoff: float = 0.5
    multiplier: float = 2.0
    longest: float = 60.0
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] | type[BaseException] | Callable[[Exception], bool] = Exception

    def __post_init__(self) -> None:
        """Raise ``InvalidArgument`` for a field that makes no sense."""
        if type(self.attempts) is not int or self.attempts < 1:
            raise self._wrong("attempts", "a whole number of at least 1")
        for name, least, most in _BOUNDS:
            value = getattr(self, name)
            if type(value) not in (int, float) or not least <= value <= most:
                limits = f"from {least} to {most}" if most < _NO_END else f"of at least {least}"
                raise self._wrong(name, f"a number {limits}")
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on,)
        if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            return
        function = None if isinstance(self.retry_on, type | tuple) else self.retry_on
        if not callable(function) or find_uncallable_signature(function, 1) is not None:
            raise self._wrong(
                "retry_on", "an exception class, a tuple of them, or a function of the exception"
            )

    def _wrong(self, name: str, wanted: str) -> InvalidArgument:
        return InvalidArgument(f"RetryPolicy({name}={getattr(self, name)!r}): must be {wanted}")

    def allows(self, attempt: int, error: Exception) -> bool:
        """Return True if there is another attempt after ``attempt`` failed with ``error``."""
        if attempt >= self.attempts:
            return False
        if isinstance(self.retry_on, type | tuple):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))

    def wait_after(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait after ``attempt``, the first being 1; ``chance`` is a number from 0 to 1."""
        if not self.backoff:
            return 0.0
        try:
            wait = min(self.backoff * self.multiplier ** (attempt - 1), self.longest)
        except OverflowError:
            wait = self.longest
        return wait * (1 - self.jitter + 2 * self.jitter * chance)
