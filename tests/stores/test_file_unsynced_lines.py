"""A line of a file store that is not synced yet may be taken back: nobody who reads meanwhile keeps it in mind."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast import RunStatus
from holdfast.checkpoint.store import Head
from holdfast.ids import CheckpointId, RunId
from tests.support.parts import Disk
from tests.support.store_parts import LineDraft, LineFile, RunLock

RUN = RunId("r")


def lines_in(folder: Path) -> LineFile:
    return LineFile(folder / "runs" / "r.jsonl", RunLock(folder / "r.run"), Disk(folder / "temp"), "")


def draft(seq: int, updated: int) -> LineDraft:
    checkpoint_id = CheckpointId(f"{seq:064x}")
    head = Head(RUN, "W", RUN, checkpoint_id, seq, 1, RunStatus.RUNNING, created=1, updated=updated)
    return LineDraft("commit", head)


def append(folder: Path, line: LineDraft) -> None:
    writer = lines_in(folder)
    with writer.hold() as held:
        writer.append(held, line)


def test_another_line_in_the_place_of_one_that_was_taken_back(tmp_path: Path) -> None:
    append(tmp_path, draft(1, updated=1))
    reader = lines_in(tmp_path)
    state = reader.look()
    assert state.head is not None
    assert state.head.updated == 1
    # Another process writes a line, cannot sync it, takes it back, and writes one of the same length.
    durable = reader.path.read_bytes()
    line, _ = draft(2, updated=2).encode(state.file_id, len(durable))
    reader.path.write_bytes(durable + line)
    genuine = RunLock.acquire

    def acquire(self: RunLock, *arguments: Any) -> Any:
        with patch.object(RunLock, "acquire", genuine):
            reader.path.write_bytes(durable)
            append(tmp_path, draft(2, updated=3))
        return genuine(self, *arguments)

    with patch.object(RunLock, "acquire", acquire):
        state = reader.look()
    assert state.head is not None
    assert state.head.updated == 3


def test_a_line_that_comes_while_a_reader_looks(tmp_path: Path) -> None:
    """It is not synced when the reader, who knew how long the file was, begins to read."""
    append(tmp_path, draft(1, updated=1))
    reader = lines_in(tmp_path)
    genuine = LineFile._catch_up

    def catch_up(self: LineFile, *arguments: Any) -> None:
        if self.path.read_bytes().count(b"\n") == 2:
            content = self.path.read_bytes()
            file_id = json.loads(content.splitlines()[0])["file"]
            line, _ = draft(2, updated=2).encode(file_id, len(content))
            self.path.write_bytes(content + line)
        genuine(self, *arguments)

    with patch.object(LineFile, "_catch_up", catch_up):
        state = reader.look()
    assert state.head is not None
    assert state.head.updated == 1
