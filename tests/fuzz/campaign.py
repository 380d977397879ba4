"""Gives decoders and stores any bytes: by a coverage-guided fuzzer, or by chance where that is not installed.

    python -m tests.fuzz.campaign value --runs 100000
    python -m tests.fuzz.campaign --all --seconds 60
    python -m tests.fuzz.campaign cells --keep      puts what reaches new code into the corpus

With ``pip install atheris`` the fuzzer follows which lines the bytes reach; otherwise bytes of the corpus are changed
by chance. Each execution has bounds of time and memory.
"""

import argparse
import base64
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fuzz.guard import Forbidden, Guard

CORPUS = Path(__file__).resolve().parent / "corpus"
LONGEST = 8_192
SECONDS_OF_ONE = 20
MEMORY = 2 << 30
KEPT = 40
"""So many of the bytes that reached new code are kept for a target."""
_guard: list[Guard] = []


def read_corpus(name: str) -> list[bytes]:
    """Return the bytes that are kept for a target."""
    path = CORPUS / f"{name}.json"
    return [base64.b64decode(text) for text in json.loads(path.read_text())] if path.exists() else []


def run_one(name: str, data: bytes) -> None:
    """Give bytes to a target; raise what it must not raise."""
    try:
        _run_once(name, data)
    except Forbidden as forbidden:
        if not forbidden.may_be_others:
            raise
        _run_once(name, data)


def _run_once(name: str, data: bytes) -> None:
    from tests.fuzz.targets import TARGETS, folder

    target = TARGETS[name]
    if not _guard:
        _guard.append(Guard())
    with _guard[0].watch(str(folder())):
        try:
            target.call(data)
        except target.may_raise:
            pass
        except (MemoryError, RecursionError) as error:
            raise AssertionError(f"{error!r} for {len(data)} bytes") from error


@cache
def warm_up(name: str) -> list[bytes]:
    """Let a target import and make all that it needs; return the bytes to begin with."""
    from tests.fuzz.targets import TARGETS, all_seeds

    seeds = [*all_seeds(name), *read_corpus(name)]
    for data in seeds:
        try:
            TARGETS[name].call(data)
        except Exception:
            pass  # said when they are given again
    return seeds


def change(chance: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return other bytes: bits flipped, pieces removed, repeated, or taken from others."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << chance.randrange(8)
            case 1:
                changed[place:place] = chance.choice(
                    (
                        b"\x00",
                        b"\xff" * 4,
                        b"\xc1",
                        b"\xdd\xff\xff\xff\xff",
                        b'{"',
                        b"[" * 50,
                        b"-1",
                        b"1e999",
                    )
                )
            case 2:
                del changed[place : place + chance.choice((1, 2, 8, 64))]
            case 3:
                changed[place : place + chance.choice((0, 1, 4))] = chance.randbytes(chance.choice((1, 4)))
            case _:
                other = chance.choice(others)
                begin = chance.randrange(len(other) + 1)
                changed[place:place] = other[begin : begin + chance.choice((4, 16, 64))]
    return bytes(changed[:LONGEST])


def fuzz_by_chance(
    name: str, runs: int, seconds: float, seed: int = 0, run: Callable[[str, bytes], None] = run_one
) -> tuple[int, str]:
    """Give changed bytes to a target; return how many, and what went wrong."""
    seeds, chance = warm_up(name), random.Random(f"{name} {seed}")
    end, number = time.monotonic() + seconds, 0
    while number < runs and time.monotonic() < end:
        number += 1
        data = change(chance, chance.choice(seeds), seeds)
        try:
            run(name, data)
        except Exception as error:
            return number, f"{data!r}: {error!r}"
    return number, ""


def _fuzz_by_coverage(name: str, runs: int, seconds: int, keep: bool) -> tuple[int, str]:
    """Let a process fuzz a target with atheris; return how many executions it made, and what went wrong."""
    from tests.fuzz.targets import FOLDER, in_memory

    with (
        tempfile.TemporaryDirectory() as made,
        tempfile.TemporaryDirectory(prefix="holdfast-fuzz-", dir=in_memory()) as stores,
    ):
        corpus = Path(made) / "corpus"
        corpus.mkdir()
        command = [sys.executable, "-m", "tests.fuzz.campaign", name, "--inside", str(corpus)]
        limits = [f"-runs={runs}", f"-max_total_time={seconds}", f"-timeout={SECONDS_OF_ONE}"]
        limits += [f"-rss_limit_mb={MEMORY >> 20}", f"-max_len={LONGEST}", "-print_final_stats=1"]
        done = subprocess.run(
            [*command, *limits],
            cwd=made,
            env={**_environment(), FOLDER: stores},
            capture_output=True,
            check=False,
        )
        told = (done.stdout + done.stderr).decode("utf-8", "replace")
        found = re.search(r"number_of_executed_units: (\d+)", told)
        if done.returncode == 0 and keep:
            _keep(name, corpus)
        wrong = "" if done.returncode == 0 else f"exit code {done.returncode}: {told[-3_000:]}"
        for left in Path(made).glob("*-*"):
            wrong += f"\n{left.name}: {left.read_bytes()!r}"
        return int(found[1]) if found else 0, wrong


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path[1:]])}


def _keep(name: str, corpus: Path) -> None:
    found = sorted((path.read_bytes() for path in corpus.iterdir()), key=lambda data: (len(data), data))
    kept = sorted({*read_corpus(name), *(data for data in found if 0 < len(data) <= 512)})
    kept = random.Random(name).sample(kept, min(KEPT, len(kept)))
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.json").write_text(
        json.dumps([base64.b64encode(data).decode() for data in sorted(kept)], indent=0) + "\n"
    )


def _fuzz_inside(name: str, corpus: Path, arguments: Sequence[str]) -> None:
    """Be the process that atheris takes over."""
    atheris: Any = import_module("atheris")

    with atheris.instrument_imports(include=["holdfast"]):
        seeds = warm_up(name)
    for number, data in enumerate(seeds):
        (corpus / f"seed{number}").write_bytes(data)
    atheris.Setup([sys.argv[0], str(corpus), *arguments], lambda data: run_one(name, data))
    atheris.Fuzz()


def fuzz(name: str, runs: int, seconds: int, keep: bool) -> tuple[int, str]:
    """Fuzz a target in the best way that is installed."""
    if find_spec("atheris") is not None:
        return _fuzz_by_coverage(name, runs, seconds, keep)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    return fuzz_by_chance(name, runs, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing went wrong."""
    parser = argparse.ArgumentParser(description="Give decoders and stores any bytes.")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=600, help="at most so long for each target")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--inside", type=Path)
    given, further = parser.parse_known_args(arguments)
    if given.inside is not None:
        _fuzz_inside(given.names[0], given.inside, further)
        return 0
    from tests.fuzz.targets import TARGETS

    names: Iterable[str] = TARGETS if given.all else given.names
    total, failed = 0, False
    for name in names:
        executions, wrong = fuzz(name, given.runs, given.seconds, given.keep)
        total, failed = total + executions, failed or bool(wrong)
        print(f"{name}: {executions:,} executions" + (f"\nWRONG: {wrong}" if wrong else ""), flush=True)
    print(f"fuzz: {total:,} executions")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
