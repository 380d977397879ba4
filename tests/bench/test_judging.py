"""Verdicts, counts and scripts of the benchmark, on numbers that are made up."""

from pathlib import Path

from bench import marks, results
from bench.client import Sample
from bench.counting import Counted, syncs_between_marks
from bench.machine import is_busy
from bench.measure import BESIDE, Row, Table
from bench.report import show
from bench.scripts import SCRIPTS, expected, summary
from bench.verdicts import AF, AF_FILE, BUSY, ENOUGH_ROUNDS, FEW, HOP, LG, LG_SQLITE, ZSTD, verdicts
from bench.workloads import WORKLOADS, select
from bench.workloads.model import WITHOUT_COPY


def table(workload: str, rounds: int = ENOUGH_ROUNDS, **values: float) -> Table:
    """A table with one value for each side; an underscore in a name is a hyphen."""
    (found,) = [one for one in WORKLOADS if one.id == workload]
    rows = [
        Row(
            side.replace("_", "-"),
            [Sample(value, stored=1)],
            not side.startswith("holdfast"),
            stores="synced",
        )
        for side, value in values.items()
    ]
    return Table(found, found.params, rounds, rows)


def words(*tables: Table) -> dict[str, str]:
    return {one.target: one.word for one in verdicts(tables)}


def test_faster_by_the_factor_passes_and_a_little_less_does_not() -> None:
    found = words(table("W1", holdfast=10, agent_framework=100, langgraph=99, burr=11, llama_index=9))
    assert found[f"at least 10 times faster than {AF}"] == "PASS"
    assert found[f"at least 10 times faster than {LG}"] == "MISS"
    assert found["faster than every other peer that offers persistence"] == "MISS"


def test_what_was_not_measured_is_not_judged() -> None:
    assert words(table("W1", holdfast=10)) == {}
    assert words() == {}


def test_a_busy_machine_gives_no_verdict() -> None:
    measured = table("W1", holdfast=10, agent_framework=100, langgraph=99)
    assert {one.word for one in verdicts([measured], busy=True)} == {BUSY}


def test_few_rounds_give_no_verdict_also_those_of_a_variant() -> None:
    few = table("W1", ENOUGH_ROUNDS - 1, holdfast=10, agent_framework=100)
    assert set(words(few).values()) == {FEW}
    found = words(
        table("W7", holdfast_sqlite=1, holdfast_file=1),
        table("W7-few", holdfast_sqlite=1),
        table("W7-many", 1, holdfast_sqlite=1),
    )
    assert set(found.values()) == {FEW}


def test_comparisons_without_a_target_are_reported_all_the_same() -> None:
    measured = table("W5", holdfast_sqlite=10, agent_framework=100)
    assert [one.word for one in verdicts([measured], busy=True)] == [""]


def test_every_workload_has_the_rounds_that_a_verdict_needs() -> None:
    assert [one.id for one in WORKLOADS if one.rounds < ENOUGH_ROUNDS] == []


def test_the_report_of_a_busy_run_has_no_verdict_and_one_table_for_each_workload(tmp_path: Path) -> None:
    tables = [
        table("W1", holdfast=10, agent_framework=100, langgraph=200),
        table("W2", holdfast_sqlite=10, burr_sqlite=20),
    ]
    machine = {"load at start": "2.50"}
    path = tmp_path / "RESULTS.md"
    found = verdicts(tables, is_busy(machine))
    results.write(path, tables, found, [], machine, "python -m bench", [], {})
    report = path.read_text()
    assert "PASS" not in report
    assert report.count(f"| {BUSY} |") == len([one for one in found if one.word]) > 0
    before, _, appendix = report.partition("# Appendix\n")
    for measured in tables:
        section = before.partition(f"### {measured.workload.id}: ")[2].partition("\n### ")[0]
        assert section.count("\n| --- ") == section.count("\n| side |") == 1
    assert "| load at start | 2.50 |" in appendix


def test_a_quiet_machine_is_not_busy() -> None:
    assert not is_busy({"load at start": "0.40"})
    assert not is_busy({})


def test_limits_are_no_peers() -> None:
    rows = Row(HOP, [Sample(100)], stores="synced")
    ours = table("W2", holdfast_sqlite=149, burr_sqlite=150)
    found = words(Table(ours.workload, ours.params, ours.rounds, [*ours.rows, rows]))
    assert found["on SQLite FULL within 1.5 times the same rows through the same hop"] == "PASS"
    assert found["faster than every durable peer, also those that do not sync"] == "PASS"


def test_bytes_are_compared_after_the_first_superstep() -> None:
    def row(side: str, first: int, later: int) -> Row:
        counted = Counted(11, first + 10 * later, first, 11)
        return Row(side, [Sample(1.0, {"first": 2.0})], stores="synced", counted=counted)

    (workload,) = select("W3")
    rows = [row("holdfast-sqlite", 10**9, 10), row(AF_FILE, 10, 10_000), row(LG_SQLITE, 10, 9_999)]
    found = words(Table(workload, workload.params, ENOUGH_ROUNDS, rows))
    fewer = "after the first superstep at least 1,000 times fewer bytes than"
    assert (found[f"{fewer} {AF_FILE}"], found[f"{fewer} {LG_SQLITE}"]) == ("PASS", "MISS")
    assert "10 B" in show(Table(workload, workload.params, ENOUGH_ROUNDS, rows))


def test_other_workload_is_compared_as_it_ran_beside() -> None:
    (workload,) = select("W9")
    rows = [Row("holdfast-sqlite", [Sample(1.6, {BESIDE: 1.0})])]
    assert words(Table(workload, workload.params, ENOUGH_ROUNDS, rows)) == {
        "within 1.5 times W2 (run beside it)": "MISS"
    }


def test_what_the_handler_does_itself_is_not_judged() -> None:
    """W8-whole: ours adds 9 to a copy of 40, rewriting adds 190 to it; with the copy it is told, and not judged."""
    (workload,) = select("W8-whole")

    def row(side: str, value: float, added: float) -> Row:
        return Row(side, [Sample(value, {WITHOUT_COPY: added})], stores="synced")

    def judged(added: float) -> list[tuple[str, str]]:
        rows = [row("holdfast-sqlite", 40 + added, added), row(ZSTD, 230, 190)]
        found = verdicts([Table(workload, workload.params, ENOUGH_ROUNDS, rows)])
        return [(one.word, one.measured) for one in found]

    assert judged(9) == [("PASS", "0.047 times"), ("", "0.21 times")]
    assert judged(10)[0] == ("MISS", "0.053 times")


def test_own_work_is_timed_with_giving_its_memory_back() -> None:
    marks.begin()
    assert marks.grown("ab", "c") == "abc"
    ((made, size),) = marks.own
    assert size == 3
    assert marks.own_seconds() > made > 0
    marks.begin()
    assert marks.own_seconds() == 0


def test_syncs_are_counted_between_the_last_two_marks() -> None:
    trace = """
7 fdatasync(4) = 0
7 fsync(999999) = -1 EBADF (Bad file descriptor)
7 fdatasync(4 <unfinished ...>
8 fsync(5) = 0
7 <... fdatasync resumed>) = 0
7 fsync(999999) = -1 EBADF (Bad file descriptor)
7 fsync(6) = 0
"""
    assert syncs_between_marks(trace) == 2
    assert syncs_between_marks("7 fsync(999999) = -1") is None


def test_states_that_differ_have_different_summaries() -> None:
    params = {"supersteps": 4, "size": 500, "message": 20, "keys": 30, "rounds": 2, "result": 40}
    for name, script in SCRIPTS.items():
        played = script(params)
        assert summary(expected(played)) == summary(expected(script(params))), name
        assert summary(expected(played)) != summary(expected(played[:-1])), name
