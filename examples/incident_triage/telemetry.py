"""Generates the log of an incident: the same for the same service, and fast."""

import random
from collections.abc import Iterator

SIZE = 50_000_000
MINUTES = 30
SERVICES = ("checkout", "payments", "catalog", "search", "login", "shipping")

_SECONDS = MINUTES * 60
_INCIDENT = range(12 * 60, 17 * 60)
_POOL = 2_000


def generate(service: str, calm: bool) -> Iterator[str]:
    """The log of half an hour, minute by minute; unless it is calm, ``service`` fails for five minutes."""
    rng = random.Random(f"{service} {calm}")
    others = [other for other in SERVICES if other != service]
    routine = _routine_lines(rng, service, others)
    failing = _failing_lines(rng, service, others)
    line_length = len(_stamp(0)) + sum(map(len, routine)) / len(routine)
    remaining = SIZE
    for minute in range(MINUTES):
        blocks = []
        for second in range(minute * 60, minute * 60 + 60):
            count = round(remaining / (_SECONDS - second) / line_length)
            failed = count // 4 if second in _INCIDENT and not calm else 0
            lines = rng.choices(routine, k=count - failed) + rng.choices(failing, k=failed)
            # One join puts the time before every line: far cheaper than formatting half a million of them.
            blocks.append(_stamp(second).join(["", *lines]))
            remaining -= len(blocks[-1])
        yield "".join(blocks)


def _stamp(second: int) -> str:
    return f"2026-03-02T09:{second // 60:02}:{second % 60:02}Z "


def _routine_lines(rng: random.Random, service: str, others: list[str]) -> list[str]:
    lines = []
    for _ in range(_POOL):
        name, took = rng.choice([service, *others]), rng.randrange(5, 400)
        if rng.random() < 0.03:
            lines.append(f"WARN {name} {_request(rng)} slow answer, {took + 900} ms, going on\n")
        else:
            lines.append(f"INFO {name} {_request(rng)} GET /{name}/{rng.randrange(9999)} 200 {took} ms\n")
    # Thrice the service itself, so that a calm log too has one that complains most.
    for name in [service] * 3 + others:
        lines.append(f"ERROR {name} {_request(rng)} connection reset by peer\n")
    return lines


def _failing_lines(rng: random.Random, service: str, others: list[str]) -> list[str]:
    lines = []
    for _ in range(_POOL):
        if rng.random() < 0.8:
            lines.append(f"ERROR {service} {_request(rng)} pool exhausted, 0 of 64 connections free\n")
        else:
            lines.append(f"ERROR {rng.choice(others)} {_request(rng)} call to {service} failed with 503\n")
    return lines


def _request(rng: random.Random) -> str:
    return f"req={rng.getrandbits(48):012x} user={rng.randrange(100_000)}"
