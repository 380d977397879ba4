"""Plays all campaigns of faults, and prints one table at the end: ``python -m tests.faults``, or ``make faults``.

    python -m tests.faults --only tampering     those with this in their command
    python -m tests.faults --jobs 1             one after the other, where another job would disturb
    python -m tests.faults --list               what would be played
    python -m tests.faults --results FILE       goes on where an earlier call with this file ended

The table has a row for each level of faults: how many cases there were, how many went wrong, and how many of the bugs
that are planted for it were caught.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as Xml
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

STORES = ("sqlite", "file")
OF_BOTH_STORES = (
    "corruption --count 300",
    "repairs --kills 200",
    "hammer --rounds 100",
    "answers --rounds 100",
    "zombies",
    "poison",
    "letters",
    "cancels",
    "retention --kills 200 killed-writers killed-sweeps beside-writers",
    "retention --kills 100 --steps 10000 room",
    "power_loss",
    "errors --count 500",
    "call_kills --count 1000",
    "soak --supersteps 200000",
)


def list_campaigns() -> Iterator[str]:
    """Yield the commands of all campaigns."""
    yield from (f"sigkill --store {store} --kills 500" for store in STORES)
    yield from (f"sigkill --store {store} --kills 200 --durability async" for store in (*STORES, "late"))
    yield "sigkill --store sqlite --kills 200 --durability exit"
    yield from (f"journal --store {store} --kills 200" for store in STORES)
    yield "sleepers --store sqlite --runs 10000 --kills 10 --spread 120"
    yield "sleepers --store file --runs 1000 --kills 10 --spread 20"
    yield "sleepers --store sqlite --memory 2000 10000"
    # Between other numbers the table of names that Python keeps grows to twice its size, at once.
    yield "sleepers --store file --memory 1000 2500 --allocated"
    for store, campaign in product(STORES, OF_BOTH_STORES):
        name, *given = campaign.split()
        yield " ".join((name, "--store", store, *given))
    yield "machine --store memory --stories 5000"
    yield from (f"machine --store {store} --stories 1000" for store in STORES)
    yield "interleavings --count 2000"
    yield "team_properties --teams 200 --kills 5"
    yield "fuzz --all --runs 100000 --seconds 150"
    for store, what, plain in product(STORES, ("flips", "cuts"), ("", " --plain")):
        yield f"tampering {what} --store {store}{plain}"
    yield from (f"tampering {what}" for what in ("swaps", "removals", "replays"))
    yield "service --clients 200 --seconds 60 --kills 0"
    yield "service --clients 200 --seconds 60 --kills 5"
    yield "service --stopped"


MODULES = {
    "fuzz": "tests.fuzz.campaign",
    "machine": "tests.faults.simulation",
    "team_properties": "tests.agents.team_graph_kills",
}
BUGS = (
    "tests/faults",
    "tests/fuzz",
    "tests/scenarios/test_corruption.py",
    "tests/agents/test_team_properties.py",
    "tests/properties/test_machine.py",
)
_CASES = re.compile(
    r"([\d,]+) (?:kills|cases|winners|questions|supersteps)\b|fuzz: ([\d,]+) executions|of ([\d,]+) were noticed"
    r"|([\d,]+) of \d+ (?:faults|repairs)\b|([\d,]+) runs accepted|\"kills\": (\d+)"
)
_BUG = re.compile(r"planted|_bug|_(?:is|are)_(?:found|caught)\b")


class Outcome(NamedTuple):
    """What came of one campaign."""

    name: str
    cases: int
    violations: int
    seconds: float = 0.0


def play(campaign: str) -> Outcome:
    """Play a campaign in a process of its own, and show what it says."""
    name, *given = campaign.split()
    label = campaign.replace(" --store", "")
    print(f"[{label}] begins", flush=True)
    begun, said = time.monotonic(), []
    module = MODULES.get(name, f"tests.faults.{name}")
    with subprocess.Popen(
        [sys.executable, "-m", module, *given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"[{label}] {line}", end="", flush=True)
            said.append(line)
    wrong = sum(line.startswith("WRONG") for line in said)
    if process.returncode and not wrong:
        wrong = 1
    seconds = time.monotonic() - begun
    print(f"[{label}] {'WRONG' if wrong else 'well'} after {seconds:.0f} s", flush=True)
    return Outcome(name, count_cases(said), wrong, seconds)


class Results:
    """A file with what came of campaigns, so that hours of them can be played in parts.

    A campaign that went well with the same ``src`` and ``tests`` is not played again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._trees = "" if path is None else _find_trees()

    def known(self) -> dict[str, Outcome]:
        """Return what came of campaigns that went well, by their commands."""
        if self._path is None or not self._path.exists():
            return {}
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        found = {
            line["campaign"]: Outcome(*line["outcome"]) for line in lines if line["trees"] == self._trees
        }
        return {campaign: outcome for campaign, outcome in found.items() if not outcome.violations}

    def play(self, campaign: str) -> Outcome:
        """Play a campaign and keep what came of it; or return what is known."""
        if known := self.known().get(campaign):
            print(f"[{campaign.replace(' --store', '')}] went well before", flush=True)
            return known
        outcome = play(campaign)
        if self._path is not None:
            with open(self._path, "a") as file:
                print(json.dumps({"trees": self._trees, "campaign": campaign, "outcome": outcome}), file=file)
        return outcome


def _find_trees() -> str:
    """Return the names that git gives to what is played, which has to be committed."""
    if _ask_git("status", "--porcelain", "src", "tests"):
        raise SystemExit(
            "--results: commit the changes of src and tests first: results belong to what was played"
        )
    return _ask_git("rev-parse", "HEAD:src", "HEAD:tests").replace("\n", " ")


def _ask_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def count_cases(said: Sequence[str]) -> int:
    """Return how many cases a campaign says that it had: a number in its last lines, or one for each that went well."""
    well = sum(line.startswith(("well: ", "WRONG: ")) for line in said)
    for line in reversed(said):
        if found := _CASES.search(line):
            return max(well, *(int(number.replace(",", "")) for number in found.groups() if number))
    return max(well, 1)


def catch_bugs(names: set[str]) -> dict[str, tuple[int, int]]:
    """Run the tests that plant bugs; return how many were caught, and of how many, by the names of campaigns."""
    found: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            f"--junitxml={report}",
            "-k",
            _spell_bugs(),
        ]
        chosen = [str(file) for path in BUGS for file in _files(path) if _name_of(file) in names]
        if chosen:
            subprocess.run([*command, *chosen], check=False)
        for case in Xml.parse(report).iter("testcase") if report.exists() else ():
            name = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
            if name in names and _BUG.search(case.get("name", "")):
                caught, number = found.get(name, (0, 0))
                failed = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
                found[name] = caught + (not failed), number + 1
    return found


def _spell_bugs() -> str:
    return "planted or bug or found or caught"


def _files(path: str) -> list[Path]:
    place = Path(path)
    return [place] if place.is_file() else sorted(place.glob("test_*.py"))


def _name_of(file: Path) -> str:
    return file.stem.removeprefix("test_")


def print_table(outcomes: Iterable[Outcome], bugs: dict[str, tuple[int, int]]) -> bool:
    """Print a row for each level; return True if nothing went wrong and all bugs were caught."""
    rows: dict[str, Outcome] = {}
    for one in outcomes:
        known = rows.get(one.name, Outcome(one.name, 0, 0))
        rows[one.name] = Outcome(
            one.name,
            known.cases + one.cases,
            known.violations + one.violations,
            known.seconds + one.seconds,
        )
    print(f"\n{'campaign':<16} {'cases':>12} {'violations':>11} {'planted bugs caught':>20} {'minutes':>8}")
    for name, row in rows.items():
        caught, number = bugs.get(name, (0, 0))
        minutes = row.seconds / 60
        print(
            f"{name:<16} {row.cases:>12,} {row.violations:>11} {f'{caught} of {number}':>20} {minutes:>8.1f}"
        )
    cases = sum(row.cases for row in rows.values())
    violations = sum(row.violations for row in rows.values())
    caught, number = sum(caught for caught, _ in bugs.values()), sum(number for _, number in bugs.values())
    print(f"{'all':<16} {cases:>12,} {violations:>11} {f'{caught} of {number}':>20}", flush=True)
    return not violations and caught == number and all(bugs.get(name, (0, 0))[1] for name in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong, and all bugs were caught."""
    parser = argparse.ArgumentParser(description="Play all campaigns of faults.")
    parser.add_argument("--only", default="", help="campaigns with this in their command")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="campaigns at a time")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep results here, and go on behind them"
    )
    given = parser.parse_args(arguments)
    campaigns = [campaign for campaign in list_campaigns() if given.only in campaign]
    if given.list:
        print("\n".join(campaigns))
        return 0
    results = Results(given.results)
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(results.play, campaigns))
    return 0 if print_table(outcomes, catch_bugs({one.name for one in outcomes})) else 1


if __name__ == "__main__":
    sys.exit(main())
