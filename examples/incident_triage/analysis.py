"""Stands in for the model behind the triage agent: reads a log, answers in text, always the same."""

import re
from collections import Counter
from statistics import median

# A literal prefix: the search runs at the speed of memory until there is an error.
_ERROR = re.compile(r"Z ERROR ([\w-]+)")


def analyse(log_id: str, log: str) -> str:
    """How bad it is, in the form that the agent was told to use."""
    by_service: Counter[str] = Counter()
    by_minute: Counter[str] = Counter()
    for error in _ERROR.finditer(log):
        by_service[error[1]] += 1
        by_minute[log[error.start() - 8 : error.start() - 3]] += 1

    usual = median(by_minute.values()) if by_minute else 0
    burst = sorted(minute for minute, errors in by_minute.items() if errors > 10 * usual)
    worst, _ = by_service.most_common(1)[0] if by_service else ("none", 0)
    ranking = ", ".join(f"{service} {errors}" for service, errors in by_service.most_common(3))
    return "\n".join(
        [
            f"PRIORITY: {'P0' if len(burst) >= 3 else 'P1' if burst else 'P3'}",
            f"SERVICE: {worst}",
            f"ERRORS: {by_service.total()} of {_lines(log)} lines; most in {ranking or 'none'}",
            f"BURST: {_told(burst, by_minute, usual)}",
            f"LOG: {log_id}",
        ]
    )


def _lines(log: str) -> int:
    return log.count("\n")


def _told(burst: list[str], by_minute: Counter[str], usual: float) -> str:
    if not burst:
        return f"none, about {usual:.0f} errors a minute throughout"
    peak = max(by_minute[minute] for minute in burst)
    return f"{burst[0]} to {burst[-1]}, up to {peak} errors a minute instead of {usual:.0f}"
