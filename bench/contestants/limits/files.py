"""A large text, compressed and written as a whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import zstandard

from bench import marks
from bench.contestants import Job, Outcome, Run, make
from bench.scripts import SCRIPTS, Again, Operation, Set, expected, summary

TEXTS = ("log", "text")


def played(operation: Operation, text: str) -> str:
    """The text after what a script does to it; all else is left out."""
    match operation:
        case Set(key, value) if key in TEXTS:
            return str(value)
        case Again(_, added):
            return marks.grown(text, added)
    return text


@asynccontextmanager
async def compressed(job: Job) -> AsyncIterator[Run]:
    """zstd-1, write and fsync of the text, once for each superstep."""
    make(job.folder)
    script = SCRIPTS[job.workload](job.params)

    async def run() -> Outcome:
        packer = zstandard.ZstdCompressor(level=1)
        text = ""
        for number, operations in enumerate(script):
            marks.enter()
            for operation in operations:
                text = played(operation, text)
            file = os.open(job.folder / f"{number}.zst", os.O_CREAT | os.O_WRONLY, 0o600)
            data = packer.compress(text.encode())
            assert os.write(file, data) == len(data)
            os.fsync(file)
            os.close(file)
        return Outcome(None, len(script))

    yield run


async def checked(job: Job) -> Any:
    """Whether the last file holds the text."""
    state = expected(SCRIPTS[job.workload](job.params))
    last = job.folder / f"{job.params['supersteps'] - 1}.zst"
    (text,) = (state[key] for key in TEXTS if key in state)
    return summary(state) if zstandard.decompress(last.read_bytes()).decode() == text else "not the text"
