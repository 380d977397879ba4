"""What supersteps cost: counted in values, bytes and syncs, never in seconds.

Each program runs in a process of its own, because bytes passed to write() and memory are counted for a whole process.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support import durable_costs as programs
from tests.support.durable import ON_DISK, in_child
from tests.support.system_packages import find_program


def counted(program: Callable[..., None], *args: object, tracer: list[str] | None = None) -> Any:
    return json.loads(in_child(program, *args, tracer=tracer))


# -- a value of 50 MB that nobody touches ----------------------------------------------------------


def test_value_of_50_mb_costs_nothing_until_someone_reads_it(tmp_path: Path) -> None:
    held = counted(programs.hold, str(tmp_path), 30)
    new_bytes = held["new_bytes"]
    assert len(new_bytes) == 61  # two for each of 30 supersteps, and the start of the one that fails
    assert new_bytes[1] > programs.FIFTY_MB  # the value itself, once
    assert sum(new_bytes[2:]) < 64 * 1024
    first, *others = held["supersteps"]
    assert first["blobs_written"] == 1
    assert len(others) == 29
    for superstep in others:
        assert superstep["written"] < 20_000
        assert (superstep["commits"], superstep["blobs_written"], superstep["blobs_read"]) == (1, 0, 0)
        assert superstep["encoded"] <= 2

    outputs, counters, until_the_executor, at_most = counted(programs.go_on_holding, str(tmp_path))
    assert outputs == [0]
    assert counters["blobs_read"] == 0
    assert counters["decoded"] <= 1  # the message
    assert until_the_executor < 8_000_000
    assert at_most < 8_000_000


def test_planted_reader_of_the_value_is_noticed(tmp_path: Path) -> None:
    """The measure of memory is one: it sees a process that does read the value."""
    counted(programs.hold, str(tmp_path), 2)
    blobs_read, memory = counted(programs.read_what_is_held, str(tmp_path))
    assert blobs_read == 1
    assert memory > programs.FIFTY_MB


# -- a history that grows --------------------------------------------------------------------------


def check_steady(supersteps: Sequence[dict[str, int]]) -> None:
    """A superstep near the end costs what one near the start did; the median, for now and then one has a keyframe."""
    early, late = supersteps[10:110], supersteps[-101:-1]
    for name in ("new_bytes", "encoded", "decoded", "commits", "checkpoints", "written"):
        before, after = (median(superstep[name] for superstep in part) for part in (early, late))
        assert after <= 1.3 * before, name


def test_growing_history_costs_what_it_grows(tmp_path: Path) -> None:
    done = counted(programs.append, "sqlite", str(tmp_path), 500)
    checkpoints = len(done["new_bytes"])
    assert checkpoints == 1_000
    # 512 KB of history, 4 KB for two indexes of runs, and what each checkpoint takes.
    assert done["disk"] < (512 + 4) * 1024 + 1_024 * checkpoints
    check_steady(done["supersteps"])
    assert {superstep["encoded"] for superstep in done["supersteps"][:-1]} == {2}
    assert {superstep["decoded"] for superstep in done["supersteps"]} == {0}


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("program", [programs.append, programs.queue_again])
def test_stored_bytes_grow_with_what_is_new(tmp_path: Path, kind: str, program: Callable[..., None]) -> None:
    """Also where the whole list is queued again in each superstep: all of it would be 31 MB, then 125 MB.

    A keyframe may put together what was stored piece by piece, so each byte may be there twice.
    """
    half = counted(program, kind, str(tmp_path / "half"), 250)
    whole = counted(program, kind, str(tmp_path / "whole"), 500)
    assert half["disk"] < 2_500_000
    assert whole["disk"] < 2_500_000
    assert sum(whole["new_bytes"]) < 3.5 * sum(half["new_bytes"])
    assert sum(whole["new_bytes"]) < 500 * 3 * programs.KILOBYTE
    check_steady(whole["supersteps"])


# -- small state -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def strace() -> str:
    """Where strace is; it is installed if it is missing."""
    return find_program("strace")


def syncs(strace: str, folder: Path, program: Callable[..., None], kind: str, count: int) -> tuple[int, Any]:
    """How many syncs a program makes in all, and what it counted."""
    folder.mkdir()
    report = folder.with_suffix(".strace")
    tracer = [strace, "-f", "-c", "-e", "trace=fsync,fdatasync", "-o", str(report)]
    done = counted(program, kind, str(folder), count, tracer=tracer)
    # "100.00    0.003115          37        83           fdatasync"
    rows = [line.split() for line in report.read_text().splitlines()]
    return sum(int(row[3]) for row in rows if row and row[-1] in ("fsync", "fdatasync")), done


def syncs_of_each(
    strace: str, folder: Path, program: Callable[..., None], kind: str, few: int, many: int
) -> float:
    """How many syncs each superstep or round makes; opening and closing do not count."""
    less, _ = syncs(strace, folder / "few", program, kind, few)
    more, _ = syncs(strace, folder / "many", program, kind, many)
    return (more - less) / (many - few)


SYNCS_OF_A_COMMIT = {"sqlite": 1, "file": 1}


@pytest.mark.parametrize("kind", ON_DISK)
@pytest.mark.parametrize("program", [programs.small, programs.append])
def test_syncs_of_a_superstep(strace: str, tmp_path: Path, kind: str, program: Callable[..., None]) -> None:
    assert syncs_of_each(strace, tmp_path, program, kind, 20, 60) == SYNCS_OF_A_COMMIT[kind]


def test_syncs_beside_a_value_of_50_mb(strace: str, tmp_path: Path) -> None:
    assert syncs_of_each(strace, tmp_path, programs.hold_on, "sqlite", 2, 7) == SYNCS_OF_A_COMMIT["sqlite"]


@pytest.mark.parametrize("kind", ON_DISK)
def test_syncs_of_a_fan_out(strace: str, tmp_path: Path, kind: str) -> None:
    """A round of one, a hundred, one takes three supersteps."""
    each = syncs_of_each(strace, tmp_path, programs.fan_out, kind, 2, 6)
    assert each == 3 * SYNCS_OF_A_COMMIT[kind]


@pytest.mark.parametrize(("kind", "written"), [("sqlite", 16_000), ("file", 3_000)])
def test_superstep_with_small_state(tmp_path: Path, kind: str, written: int) -> None:
    done = counted(programs.small, kind, str(tmp_path), 50)
    supersteps = done["supersteps"][:-1]  # the last has no next start
    assert len(supersteps) == 49
    for superstep in supersteps:
        assert {name: superstep[name] for name in superstep if name not in ("new_bytes", "written")} == {
            "commits": 1,
            "checkpoints": 2,
            "encoded": 2,  # the message and the number in state
            "decoded": 0,
            "blobs_written": 0,
            "blobs_read": 0,
        }
        assert superstep["new_bytes"] <= 512
        assert superstep["written"] <= written


@pytest.mark.parametrize(("kind", "written"), [("sqlite", 32_000), ("file", 12_000)])
def test_fan_out_of_a_hundred(tmp_path: Path, kind: str, written: int) -> None:
    """Read before ``start`` and before ``join``: two supersteps, then one."""
    done = counted(programs.fan_out, kind, str(tmp_path), 6)
    readings = done["supersteps"][:-1]
    for out, back in zip(readings[::2], readings[1::2], strict=False):
        assert (out["commits"], out["checkpoints"], back["commits"], back["checkpoints"]) == (2, 4, 1, 2)
        assert (out["encoded"], back["encoded"]) == (
            101,
            1,
        )  # each worker's message, and those of the two others
        assert (out["decoded"], back["decoded"]) == (0, 0)
        assert out["new_bytes"] <= 2_048
        assert back["new_bytes"] <= 512
        assert out["written"] <= written
        assert back["written"] <= 16_000


# -- one of many keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ON_DISK)
def test_one_changed_key_of_ten_thousand(tmp_path: Path, kind: str) -> None:
    done = counted(programs.many, kind, str(tmp_path), 40)
    first, *others = done["supersteps"]
    assert first["encoded"] >= 10_000
    for superstep in others:
        assert superstep["new_bytes"] < 2_048
        assert superstep["encoded"] <= 2
        assert superstep["written"] < 20_000


# -- many runs -------------------------------------------------------------------------------------


def test_runs_side_by_side_share_transactions(tmp_path: Path) -> None:
    commits, transactions = counted(programs.side_by_side, str(tmp_path), 50, 20)
    assert commits == 50 * 21
    assert transactions < commits  # how many fewer depends on how fast the disk is
