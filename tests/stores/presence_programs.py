"""Programs for tests of Presence in other processes: ``python -m tests.stores.presence_programs NAME FOLDER ...``."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint.ownership import this_process
from holdfast.stores.common import presence
from holdfast.stores.common.presence import Presence

ROOT = Path(__file__).parents[2]


class Program:
    """A program that says a line and hears a line in turn."""

    def __init__(self, name: str, *arguments: object) -> None:
        command = [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.stores.presence_programs", name]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def hear(self) -> str:
        """The next line that it says; what it complains about fails the test."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith("\n"), self.process.communicate()
        return line[:-1]

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Let it stand still; it does when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def finish(self) -> str:
        """Let it end by itself, which it must do well; what it said last."""
        out, err = self.process.communicate(timeout=120)
        assert (self.process.returncode, err) == (0, "")
        return out


@contextmanager
def running(name: str, *arguments: object) -> Iterator[Program]:
    """A program that is over at the end, however that comes."""
    program = Program(name, *arguments)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


def stay(folder: str, renew_seconds: str = "10") -> None:
    """Join, say who it is, leave when it hears 'leave', end when it hears anything else."""
    presence.RENEW_SECONDS = float(renew_seconds)
    here = Presence(Path(folder))
    here.join()
    print(this_process(), flush=True)
    while sys.stdin.readline() == "leave\n":
        here.leave()
        print("left", flush=True)


def ask(folder: str) -> None:
    """Say of each process that it hears whether it lives."""
    here = Presence(Path(folder))
    for line in sys.stdin:
        print(here.lives(line[:-1]), flush=True)


def look(folder: str, process: str) -> None:
    """Look all the time whether a process lives, until there is nothing more to hear."""
    here = Presence(Path(folder))
    print("looking", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        here.lives(process)


def fork(folder: str) -> None:
    """Join, and fork: the child says what it sees before and after it joins, hears a line each time, and ends."""
    here = Presence(Path(folder))
    here.join()
    parent = this_process()
    print(parent, flush=True)
    if os.fork():
        os.wait()
        print(here.lives(parent), flush=True)
        sys.stdin.readline()
        return
    signal.alarm(120)
    here.leave()  # what it did not join
    print(this_process(), here.lives(parent), here.lives(this_process()), flush=True)
    sys.stdin.readline()
    here.join()
    print(here.lives(parent), here.lives(this_process()), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
