"""Processes that tests of faults start, talk to, stop, and kill.

They are forked, which is quick, but only a process without threads may do that: so the program that starts them runs
in a process of its own, never opens a storage itself, and lets a child look at what is stored.
"""

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, Self

from tests.support.durable import ROOT

# A child that does not do within this time what is waited for hangs.
PATIENCE_SECONDS = 100.0
# Below what pytest lets one test take; a campaign of many faults is not started by pytest.
_PLAY_SECONDS = 170.0


class Wrong(AssertionError):
    """Something is not as it was promised."""


def expect(condition: object, what: str) -> None:
    """Say what is wrong unless the condition holds."""
    if not condition:
        raise Wrong(what)


class Parent:
    """What a child sees of the process that started it."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._heard = b""

    def tell(self, line: str) -> None:
        """Tell the parent a line; once this returns it is told, also if the child is killed."""
        data = f"{line}\n".encode()
        while data:
            data = data[os.write(self._writer, data) :]

    async def hear(self) -> str:
        """The next line that the parent says; waits for it without holding the event loop."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._heard:
            ready = asyncio.Event()
            loop.add_reader(self._reader, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self._reader)
            chunk = os.read(self._reader, 65_536)
            if not chunk:  # the parent is gone, so nobody needs this process any more
                os._exit(3)
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()


class Progress:
    """Says now and then how far a campaign is, to whoever waits for it."""

    def __init__(self, pause: float = 15.0) -> None:
        self._pause = pause
        self._began = self._said = time.monotonic()
        self._count = 0

    def __call__(self) -> None:
        """One more process was started."""
        self._count += 1
        now = time.monotonic()
        if now - self._said >= self._pause:
            self._said = now
            print(f"  {self._count} processes in {now - self._began:,.0f} s", file=sys.stderr, flush=True)


_progress = Progress()

Doing = Callable[[Parent], Coroutine[Any, Any, Any]]
_open: "set[Child]" = set()


class Child:
    """A process that this one started; leaving it as a context ends it, however it is."""

    def __init__(self, doing: Doing) -> None:
        self.told: list[str] = []
        self._text = b""
        self._alive = True
        self._seen = 0
        above_reader, below_writer = os.pipe()
        below_reader, above_writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for other in _open:
                other.close()
            os.close(above_reader)
            os.close(above_writer)
            _be_child(doing, Parent(below_reader, below_writer))
        os.close(below_reader)
        os.close(below_writer)
        self.reader, self._writer = above_reader, above_writer
        _open.add(self)
        _progress()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def close(self) -> None:
        """Close this end of the pipes."""
        for end in (self.reader, self._writer):
            os.close(end)

    def say(self, line: str) -> None:
        """Say a line, which the child hears if it has not ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, f"{line}\n".encode())

    def read(self, seconds: float) -> bool:
        """Take in what the child tells, waiting so long for something; false if it ended."""
        if not select.select([self.reader], [], [], max(seconds, 0))[0]:
            return True
        chunk = os.read(self.reader, 65_536)
        *lines, self._text = (self._text + chunk).split(b"\n")
        self.told += [line.decode() for line in lines]
        return bool(chunk)

    def until(self, *words: str) -> str:
        """The next line that begins with one of the words; what was told before it is passed over."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            while self._seen < len(self.told):
                line = self.told[self._seen]
                self._seen += 1
                if line.split(" ")[0] in words:
                    return line
                expect(not line.startswith("wrong "), f"a child failed: {line[6:]}")
            left = deadline - time.monotonic()
            expect(left > 0, f"a child did not tell any of {words}; it told {self.told[-5:]}")
            if not self.read(left) and self._seen == len(self.told):
                raise Wrong(f"a child ended and did not tell any of {words}; it told {self.told[-5:]}")

    def ended_before(self, word: str, times: int = 1) -> bool:
        """Wait until the child told so many lines that begin with the word; true if it ends without that."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(line.startswith(word) for line in self.told) < times:
            left = deadline - time.monotonic()
            expect(left > 0, f"a child did not tell {word!r}; it told {self.told[-5:]}")
            if not self.read(left):
                return True
        return False

    def ended_within(self, seconds: float) -> bool:
        """Whether the child ends by itself in that time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.read(left):
                return True
        return False

    def finish(self) -> list[str]:
        """All that the child told, once it ended by itself."""
        expect(self.ended_within(PATIENCE_SECONDS), f"a child did not end; it told {self.told[-5:]}")
        self.kill()
        return self.told

    def stop(self) -> None:
        """Let the child stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def go_on(self) -> None:
        """Let the child go on after it stood still."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the child at once if it did not end, and take in what it had told."""
        if not self._alive:
            return
        self._alive = False
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        while self.read(0):
            pass
        _open.discard(self)
        self.close()


def ask(doing: Doing) -> Any:
    """What a child that ends by itself tells with ``answer``."""
    with Child(doing) as child:
        child.finish()
        problems = [line[6:] for line in child.told if line.startswith("wrong ")]
        expect(not problems, f"a child failed: {problems}")
        answers = [line[7:] for line in child.told if line.startswith("answer ")]
        expect(len(answers) == 1, f"a child did not answer; it told {child.told[-5:]}")
        return json.loads(answers[0])


def answer(parent: Parent, data: Any) -> None:
    """Answer what a parent asked for."""
    parent.tell(f"answer {json.dumps(data)}")


def _be_child(doing: Doing, parent: Parent) -> NoReturn:
    try:
        _die_with_parent()
        asyncio.run(doing(parent))
    except Wrong as wrong:
        parent.tell(f"wrong {' | '.join(str(wrong).splitlines())}"[:4_000])
    except BaseException:
        last = traceback.format_exc().strip().splitlines()
        parent.tell(f"wrong {' | '.join(last[-8:])}"[:4_000])
    finally:
        os._exit(0)


def _die_with_parent() -> None:
    """Leave nothing behind if the parent is killed; on Linux a child that stands still ends then, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def warm_up() -> None:
    """Import here what children need, so that each of them has it when it is born."""
    for module in (
        "runtime.durable.stored_runs",
        "stores.sqlite",
        "stores.file",
        "checkpoint.maintenance.verify",
        "workflow",
    ):
        importlib.import_module(f"holdfast.{module}")


_END = "\N{PILCROW SIGN}"
"""The end of a whole line."""


def append_line(path: Path, line: str, sync: bool = True) -> None:
    """Add a line to a file that several processes write; whoever is killed after this has written it.

    Whoever is killed within it may have written a part, for the system writes page by page: the next line begins anew.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, f"\n{line}{_END}\n".encode())
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def lines_of(path: Path) -> list[str]:
    """The whole lines of such a file."""
    said = path.read_text(errors="replace").splitlines() if path.exists() else []
    return [line.removesuffix(_END) for line in said if line.endswith(_END)]


def play(folder: Path, program: str, *arguments: object) -> tuple[int, str]:
    """Run a program of ``tests.faults`` in a process of its own; gives its exit code and what it said."""
    command = [sys.executable, "-W", "error", "-m", f"tests.faults.{program}", *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=_PLAY_SECONDS)
        except BaseException:
            process.kill()
            raise
    return process.returncode, said
