"""What happens when a handler fails: how often it is tried again, after how long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a turn is tried, and how long to wait in between.

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
        """Refuse what cannot be meant."""
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidArgument(
                f"RetryPolicy(attempts={self.attempts!r}): must be a whole number of at least 1"
            )
        for name in ("backoff", "longest"):
            if not getattr(self, name) >= 0:
                raise InvalidArgument(
                    f"RetryPolicy({name}={getattr(self, name)!r}): must be 0 or more seconds"
                )
        if not self.multiplier >= 1:
            raise InvalidArgument(f"RetryPolicy(multiplier={self.multiplier!r}): must be 1 or more")
        if not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"RetryPolicy(jitter={self.jitter!r}): must be between 0 and 1")

    def allows(self, attempt: int, error: Exception) -> bool:
        """Whether there is another attempt after ``attempt`` failed with ``error``."""
        if attempt >= self.attempts:
            return False
        if isinstance(self.retry_on, type | tuple):
            return isinstance(error, self.retry_on)
        return bool(self.retry_on(error))

    def wait_after(self, attempt: int, chance: float) -> float:
        """Seconds to wait after ``attempt``, the first being 1; ``chance`` is a number from 0 to 1."""
        wait = min(self.backoff * self.multiplier ** (attempt - 1), self.longest)
        return wait * (1 - self.jitter + 2 * self.jitter * chance)
