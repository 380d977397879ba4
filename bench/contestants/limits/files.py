"""A large text, compressed and written as a whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import zstandard

from bench import marks
from bench.contestants import Job, Outcome, Run
from bench.inputs import log_text
from bench.scripts import SCRIPTS, expected, summary


@asynccontextmanager
async def compressed(job: Job) -> AsyncIterator[Run]:
    """zstd-1, write and fsync of the text, once for each superstep."""
    job.folder.mkdir(parents=True, exist_ok=True)
    text = log_text(job.params["size"])

    async def run() -> Outcome:
        packer = zstandard.ZstdCompressor(level=1)
        for number in range(job.params["supersteps"]):
            marks.enter()
            file = os.open(job.folder / f"{number}.zst", os.O_CREAT | os.O_WRONLY, 0o600)
            data = packer.compress(text.encode())
            assert os.write(file, data) == len(data)
            os.fsync(file)
            os.close(file)
        return Outcome(None, job.params["supersteps"])

    yield run


async def checked(job: Job) -> Any:
    """Whether the last file holds the text."""
    last = job.folder / f"{job.params['supersteps'] - 1}.zst"
    if zstandard.decompress(last.read_bytes()).decode() != log_text(job.params["size"]):
        return "not the text"
    return summary(expected(SCRIPTS[job.workload](job.params)))
