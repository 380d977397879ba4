"""Stands in for the model behind the triage agent: reads a log piece by piece, answers in text, always the same."""

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median

# A literal prefix: the search runs at the speed of memory until there is an error.
_ERROR = re.compile(r"Z ERROR ([\w-]+)")


def pieces(log: str, count: int) -> Iterator[str]:
    """The log in about so many pieces, cut between lines."""
    begin = 0
    for number in range(1, count + 1):
        end = log.find("\n", len(log) * number // count - 1) + 1 or len(log)
        yield log[begin:end]
        begin = end


class Findings:
    """The findings so far."""

    def __init__(self) -> None:
        self._by_service: Counter[str] = Counter()
        self._by_minute: Counter[str] = Counter()
        self._lines = 0

    def read(self, piece: str) -> None:
        """Read on."""
        for error in _ERROR.finditer(piece):
            self._by_service[error[1]] += 1
            self._by_minute[piece[error.start() - 8 : error.start() - 3]] += 1
        self._lines += piece.count("\n")

    def answer(self, log_id: str) -> str:
        """Return the severity, in the form that the agent was told to use."""
        by_service, by_minute = self._by_service, self._by_minute
        usual = median(by_minute.values()) if by_minute else 0
        burst = sorted(minute for minute, errors in by_minute.items() if errors > 10 * usual)
        worst, _ = by_service.most_common(1)[0] if by_service else ("none", 0)
        ranking = ", ".join(f"{service} {errors}" for service, errors in by_service.most_common(3))
        return "\n".join(
            [
                f"PRIORITY: {'P0' if len(burst) >= 3 else 'P1' if burst else 'P3'}",
                f"SERVICE: {worst}",
                f"ERRORS: {by_service.total()} of {self._lines} lines; most in {ranking or 'none'}",
                f"BURST: {_told(burst, by_minute, usual)}",
                f"LOG: {log_id}",
            ]
        )


def _told(burst: list[str], by_minute: Counter[str], usual: float) -> str:
    if not burst:
        return f"none, about {usual:.0f} errors a minute throughout"
    peak = max(by_minute[minute] for minute in burst)
    return f"{burst[0]} to {burst[-1]}, up to {peak} errors a minute instead of {usual:.0f}"
