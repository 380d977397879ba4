"""Processes beside that of a test. It takes ``os.fork``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any


class Line:
    """A line to another process: what one says, the other hears. It hears nothing once the other is gone."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def say(self, word: str) -> None:
        """Send a word without line breaks."""
        os.write(self._writing, word.encode() + b"\n")

    async def hear(self) -> str:
        """The next word; empty if none can come any more."""
        return await asyncio.to_thread(self._hear)

    def _hear(self) -> str:
        word = b""
        while (byte := os.read(self._reading, 1)) not in (b"", b"\n"):
            word += byte
        return word.decode()

    def close(self) -> None:
        """Hang up."""
        os.close(self._reading)
        os.close(self._writing)


class Process(Line):
    """A child of this process, seen from here; it is killed when its block ends.

    Make it before ``store`` is used: what it finds open it must not use, and not every driver survives a fork.
    """

    def __init__(self, work: Callable[[Line], Coroutine[Any, Any, None]]) -> None:
        (there, here_writing), (here_reading, there_writing) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            # Where there are threads it is warned of forks; the child uses nothing that they might hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._id = os.fork()
        if not self._id:
            os.close(here_writing)
            os.close(here_reading)
            _end(work(Line(there, there_writing)))
        os.close(there)
        os.close(there_writing)
        super().__init__(here_reading, here_writing)

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        self.close()

    def kill(self) -> None:
        """End it without any cleaning up."""
        if self._id:
            os.kill(self._id, signal.SIGKILL)
            os.waitpid(self._id, 0)
            self._id = 0


def _end(work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a child, and end the process: nothing of what it inherited may run in it."""
    try:
        asyncio.run(work)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)
