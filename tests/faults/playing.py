"""What the programs of this folder have in common: where something is tried, and how it is said what came of it."""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from holdfast import CheckpointStorage
from tests.faults.planted import PLANTED, opened
from tests.support.durable import ON_DISK, storage_at
from tests.support.fault_processes import Child, Wrong, ask, warm_up


class Case(NamedTuple):
    """A store to try something on, and the bug that is planted there."""

    kind: str
    folder: Path
    planted: str = ""

    def opened(self) -> CheckpointStorage:
        """The storage, with the bug."""
        return opened(self.kind, self.folder, self.planted)

    def whole(self) -> CheckpointStorage:
        """The storage without the bug, to look at what is stored."""
        return storage_at(self.kind, self.folder)

    def child(self, doing: Callable[..., Any], *arguments: Any) -> Child:
        """A process that does this here."""
        return Child(lambda parent: doing(parent, self, *arguments))

    def ask(self, doing: Callable[..., Any], *arguments: Any) -> Any:
        """What a process answers that does this here and ends."""
        return ask(lambda parent: doing(parent, self, *arguments))


Scenario: TypeAlias = Callable[[Case], None]


def parser_for(description: str) -> argparse.ArgumentParser:
    """What every program understands."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--store", choices=ON_DISK, default="sqlite")
    parser.add_argument("--planted", choices=["", *PLANTED], default="")
    return parser


def tried(play: Scenario, kind: str, planted: str) -> str:
    """What is wrong, or nothing."""
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        try:
            play(Case(kind, Path(folder), planted))
        except Wrong as problem:
            return str(problem) or "it says not what"
    return ""


def told(wrong: str) -> int:
    """Say what is wrong; the exit code."""
    if wrong:
        print(f"WRONG: {wrong}")
    return 1 if wrong else 0


def play_scenarios(
    description: str, scenarios: Mapping[str, Scenario], arguments: Sequence[str] | None
) -> int:
    """Try scenarios from the command line, all unless some are named; 0 if nothing went wrong."""
    parser = parser_for(description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(scenarios)}")
    given = parser.parse_args(arguments)
    failed = False
    for name in given.names or scenarios:
        wrong = tried(scenarios[name], given.store, given.planted)
        failed = failed or bool(wrong)
        print(f"WRONG: {name}: {wrong}" if wrong else f"well: {name}", flush=True)
    return 1 if failed else 0
