"""What a superstep may cost on SQLite, as tight as it is now: transactions, bytes, values, memory. No clocks.

`bench/` measures the same shapes by the clock: W2 (small), W3 (hold), W4 (append), W5 (fan_out). Whoever makes one of
these numbers larger has to say why here. Syncs are counted in `test_durable_costs`, which has the other stores, too.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from tests.support.costs_guard import guarded, leaking
from tests.support.durable import in_child

PAGE = 2048 + 24
"""A page in the write-ahead log of SQLite, with its header there."""

# What is kept: the events of the superstep, which the result of the run holds, and this test's own reading.
KEPT_BLOCKS = 36
# What is in use at a time: two records with headers and events, what SQLite is given of them, and the turn itself.
PEAK = 27_000


def supersteps(
    program: str, *args: object, run: Callable[..., None] = guarded
) -> tuple[dict[str, int], list[dict[str, int]]]:
    """What the first superstep did, and what the others did but the last, which has no next start."""
    first, *others = json.loads(in_child(run, program, *args))["supersteps"]
    assert len(others) > 8
    return first, others[:-1]


def middle(done: Sequence[dict[str, int]], name: str) -> float:
    return median(one[name] for one in done)


def check_peak(done: Sequence[dict[str, int]], usual: int) -> None:
    """What most supersteps need at a time, with a tenth of room: when threads take turns is chance, and moves it."""
    assert middle(done, "peak") <= 1.1 * usual


def check_one_transaction(done: Sequence[dict[str, int]], encoded: int, new_bytes: int) -> None:
    """The end of a superstep and the start of the next are one commit, and one transaction."""
    for one in done:
        assert (one["commits"], one["transactions"], one["checkpoints"]) == (1, 1, 2)
        assert (one["blobs_written"], one["blobs_read"], one["decoded"]) == (0, 0, 0)
        assert one["encoded"] == encoded
        assert one["new_bytes"] <= new_bytes


def test_small_state(tmp_path: Path) -> None:
    """W2. Encoded: the message and the number. Pages: the run, the checkpoints, two indexes; at times a new one."""
    _, done = supersteps("small", "sqlite", str(tmp_path), 50)
    check_one_transaction(done, encoded=2, new_bytes=480)
    assert middle(done, "written") <= 4 * PAGE
    assert max(one["written"] for one in done) <= 7 * PAGE
    assert middle(done, "blocks") <= KEPT_BLOCKS
    check_peak(done, PEAK)


def test_value_of_50_mb(tmp_path: Path) -> None:
    """W3. From the second superstep on all is as with small state; the first needs the value a few times."""
    first, done = supersteps("hold", str(tmp_path), 12)
    check_one_transaction(done, encoded=2, new_bytes=480)
    assert middle(done, "written") <= 4 * PAGE
    assert middle(done, "blocks") <= KEPT_BLOCKS
    check_peak(done, PEAK)
    assert (first["encoded"], first["blobs_written"], first["transactions"]) == (3, 1, 1)
    # The handler's own bytes, and at most three more as large at a time: encoded, compressed (they are random, so
    # that this saves nothing), and the compressor's room for them.
    assert first["peak"] <= 4.1 * 50_000_000


def test_growing_history(tmp_path: Path) -> None:
    """W4. A message of 1,000 bytes takes half a page more for each superstep, in the record and nowhere else."""
    _, done = supersteps("append", "sqlite", str(tmp_path), 100)
    check_one_transaction(done, encoded=2, new_bytes=1_500)
    assert middle(done, "written") <= 6 * PAGE
    for part in (done[:40], done[-40:]):  # as much at the end as at the beginning
        assert middle(part, "blocks") <= KEPT_BLOCKS + 6
        check_peak(part, PEAK + 3_000)
        # On which page of the index an id falls is chance: of 40, half may take one more.
        assert middle(part, "written") <= 7 * PAGE


def test_fan_out_of_a_hundred(tmp_path: Path) -> None:
    """W5. One superstep with a turn and one with a hundred, then one with the join, which is read apart."""
    _, done = supersteps("fan_out", "sqlite", str(tmp_path), 8)
    out = [one for one in done if one["commits"] == 2]
    back = [one for one in done if one["commits"] == 1]
    assert len(out) + len(back) == len(done)
    assert min(len(out), len(back)) >= 5
    check_one_transaction(back, encoded=1, new_bytes=440)
    for one in out:
        assert (one["transactions"], one["checkpoints"], one["encoded"]) == (2, 4, 101)
        assert one["new_bytes"] <= 1_900
        assert one["written"] <= 14 * PAGE
    assert middle(out, "blocks") <= 400  # two events for each turn
    check_peak(out, 210_000)  # a task, a context, fields of log records and an outcome for each turn


def test_planted_waste_is_noticed(tmp_path: Path) -> None:
    """A list of a hundred that is kept in each superstep, and 256 KB that are copied in each."""
    _, done = supersteps("small", "sqlite", str(tmp_path), 20, run=leaking)
    assert middle(done, "blocks") > KEPT_BLOCKS
    assert middle(done, "peak") > 1.1 * PEAK
