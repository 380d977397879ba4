"""Texts that workloads are made of: the same on every side and in every run, made before the clock starts."""

from __future__ import annotations

import random
from functools import lru_cache

WORDS = tuple(
    "pool error retry timeout request session cache token worker queue region replica latency deploy "  # noqa: SIM905
    "rollback metric shard batch index cursor ledger invoice customer payment gateway snapshot".split()
)


def words(seed: int, size: int) -> str:
    """A text of exactly this many characters, of words in an order that no other seed has."""
    source = random.Random(seed)
    text = " ".join(source.choices(WORDS, k=size // 4 + 1))
    return f"{seed} {text}"[:size].ljust(size, ".")


@lru_cache(maxsize=2)
def log_text(size: int) -> str:
    """A log of exactly this many characters: lines that all differ, and compress about as logs do."""
    lines: list[str] = []
    made = number = 0
    state = 88172645463325252
    levels = ("INFO", "INFO", "INFO", "WARN", "ERROR", "DEBUG", "INFO", "INFO")
    while made < size:
        state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
        line = (
            f"2026-03-01T12:{number // 60_000 % 60:02}:{number // 1000 % 60:02}.{number % 1000:03} "
            f"{levels[state & 7]} {WORDS[state >> 3 & 15]}-{state >> 8 & 63} "
            f"request {state >> 16 & 0xFFFFFFFF:08x} took {state >> 48 & 1023} ms\n"
        )
        lines.append(line)
        made += len(line)
        number += 1
    return "".join(lines)[:size]
