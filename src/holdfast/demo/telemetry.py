"""Telemetry of the demo: the log of an incident, a search through it, and a directory of services.

All of it is the same each time for the same service, so the demo needs no network.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import TypedDict

SIZE = 50_000_000
MINUTES = 30
SERVICES = ("checkout", "payments", "catalog", "search", "login", "shipping")

_SECONDS = MINUTES * 60
_INCIDENT = range(12 * 60, 17 * 60)
_POOL = 2_000
_KNOWN_CAUSE = "pool exhausted"


def generate(service: str, calm: bool) -> Iterator[str]:
    """Give the log of half an hour, minute by minute; unless it is calm, ``service`` fails for five minutes."""
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
            lines.append(f"ERROR {service} {_request(rng)} {_KNOWN_CAUSE}, 0 of 64 connections free\n")
        else:
            lines.append(f"ERROR {rng.choice(others)} {_request(rng)} call to {service} failed with 503\n")
    return lines


def _request(rng: random.Random) -> str:
    return f"req={rng.getrandbits(48):012x} user={rng.randrange(100_000)}"


def pieces(log: str, count: int) -> Iterator[str]:
    """Give the log in about so many pieces, cut between lines."""
    begin = 0
    for number in range(1, count + 1):
        end = log.find("\n", len(log) * number // count - 1) + 1 or len(log)
        yield log[begin:end]
        begin = end


class SearchResult(TypedDict):
    """The lines of a log that have a text."""

    lines: int
    """The number of lines that were searched."""
    found: int
    by_service: dict[str, int]
    """Services with most lines first."""
    by_minute: dict[str, int]


class LogSearch:
    """Counts the lines that have a text, piece by piece.

    >>> search = LogSearch("ERROR")
    >>> search.read("2026-03-02T09:07:30Z ERROR login reset\\n2026-03-02T09:07:31Z INFO login fine\\n")
    >>> search.result()
    {'lines': 2, 'found': 1, 'by_service': {'login': 1}, 'by_minute': {'09:07': 1}}
    """

    def __init__(self, text: str) -> None:
        if not text or "\n" in text:
            raise ValueError("search for a text within one line")
        self._text = text
        self._by_service: Counter[str] = Counter()
        self._by_minute: Counter[str] = Counter()
        self._lines = 0

    def read(self, piece: str) -> None:
        """Search a further piece, which consists of whole lines."""
        at = piece.find(self._text)
        while at >= 0:
            begin, end = piece.rfind("\n", 0, at) + 1, piece.find("\n", at)
            stamp, _, service = piece[begin:end].split(" ", 3)[:3]
            self._by_service[service] += 1
            self._by_minute[stamp[11:16]] += 1
            at = piece.find(self._text, end)
        self._lines += piece.count("\n")

    def result(self) -> SearchResult:
        """Return the counts so far."""
        return {
            "lines": self._lines,
            "found": self._by_service.total(),
            "by_service": dict(self._by_service.most_common()),
            "by_minute": dict(sorted(self._by_minute.items())),
        }


def service_facts(name: str) -> dict[str, str]:
    """Return an entry of the directory of services.

    >>> service_facts("checkout")["owner"]
    'team checkout'
    """
    return {"service": name, "owner": f"team {name}", "known_cause": _KNOWN_CAUSE}
