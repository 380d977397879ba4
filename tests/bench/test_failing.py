"""A side that fails is told in the table, and the others are measured."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench import __main__ as command
from bench import machine, plots, resuming
from bench import measure as measuring
from bench.client import Sample, WorkerFailed, WrongResult
from bench.counting import Counted
from bench.environments import EnvironmentFailed
from bench.failing import Failed, reason
from bench.measure import Table, count_all, measure
from bench.progress import Progress
from bench.report import show
from bench.sides import SIDES
from bench.verdicts import verdicts
from bench.workloads import Workload, select

OURS = next(side for side in SIDES if side.name == "holdfast-sqlite")
PEER = next(side for side in SIDES if side.name == "burr-sqlite")
OTHER = next(side for side in SIDES if side.name == "agent-framework-file")
TRACEBACK = "burr-sqlite raised:\nTraceback (most recent call last):\n  a | b\nKeyError: 'state'"


class Fake:
    """The harness's end of a worker that does not exist; ``fails`` says at which of its runs it raises."""

    def __init__(self, side: Any, fails: Callable[[int], Exception | None] = lambda _: None) -> None:
        self.side = side
        self.hello = {
            "resume": "goes on",
            "missing": {},
            "kill": "",
            "power": "",
            "python": "",
            "versions": {},
        }
        self.entries = {"W1": "", "W2": "", "W3": ""}
        self.closed = 0
        self._runs = 0
        self._fails = fails

    def run(self, *_: object) -> Sample:
        self._runs += 1
        error = self._fails(self._runs)
        if error is not None:
            raise error
        return Sample(float(self._runs))

    def close(self) -> None:
        self.closed += 1


def at(number: int, error: Exception) -> Callable[[int], Exception | None]:
    return lambda run: error if run == number else None


def measured(*clients: Fake, workload: str = "W2", rounds: int = 2) -> Table:
    (found,) = select(workload)
    return measure(found, found.params, list(clients), rounds, Progress(), quick=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("run", [1, 2, 3], ids=["warming up", "in the first round", "in the last round"])
@pytest.mark.parametrize(
    "error",
    [WorkerFailed(TRACEBACK), WrongResult("burr-sqlite, W2: result is 3, should be 4"), OSError(5, "gone")],
)
def test_the_others_are_measured(run: int, error: Exception) -> None:
    broken, ours = Fake(PEER, at(run, error)), Fake(OURS)
    table = measured(broken, ours)
    assert [(row.side, len(row.samples)) for row in table.rows] == [(OURS.name, 2)]
    assert table.failed == {PEER.name: reason(error)}
    assert (broken.closed, ours.closed) == (1, 0)  # the next workload begins with a new worker
    assert show(table).endswith(f"{PEER.name}  failed: {reason(error)}")
    assert verdicts([table]) == []  # no peer that could be compared with


def test_an_error_of_the_harness_ends_it() -> None:
    with pytest.raises(ZeroDivisionError):
        measured(Fake(PEER, at(1, ZeroDivisionError())), Fake(OURS))


def test_a_reason_is_one_line_of_a_table() -> None:
    assert reason(WorkerFailed(TRACEBACK)) == "burr-sqlite raised: KeyError: 'state'"
    assert reason(WrongResult("a|b")) == "a/b"
    assert len(reason(WrongResult("x" * 1000))) == 300
    assert reason(TimeoutError()) == "TimeoutError"


def test_all_of_it_is_said_at_once() -> None:
    said: list[str] = []
    failed = Failed(said.append)
    with failed.noted("burr", "counting: "):
        raise WorkerFailed(TRACEBACK)
    assert said == [f"bench: counting: {TRACEBACK}"]
    assert "burr" in failed
    assert "ours" not in failed


class Counting:
    """A traced worker; that of the peer ends when it should count W2."""

    made: ClassVar[list["Counting"]] = []

    def __init__(self, client: Fake) -> None:
        self.counts: list[str] = []
        self.closed = 0
        self._breaks = client.side is PEER
        Counting.made.append(self)

    def __enter__(self) -> "Counting":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed += 1

    def count(self, workload: Workload, _: object) -> Counted:
        self.counts.append(workload.id)
        if self._breaks and workload.id == "W2":
            raise WorkerFailed("it ended")
        return Counted(10, 1000, 100, 10)


def test_who_cannot_be_counted_keeps_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "counter", Counting)
    monkeypatch.setattr(Counting, "made", [])
    clients = [Fake(PEER), Fake(OURS)]
    tables = [measured(*clients), measured(*clients, workload="W3")]
    counted = count_all(tables, clients, {"W2": {}, "W3": {}}, Progress(), quick=False)  # type: ignore[arg-type]
    assert [[row.counted is not None for row in table.rows] for table in counted] == [
        [False, True],
        [True, True],
    ]
    assert [dict(table.failed) for table in counted] == [{PEER.name: "counting: it ended"}, {}]
    assert [(one.counts, one.closed) for one in Counting.made] == [(["W2", "W3"], 2), (["W2", "W3"], 1)]


def test_a_new_process_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W6: one side cannot build, another cannot go on in the second round."""

    class Fakes(resuming.Resumer):
        def build(self) -> None:
            if self.client.side is PEER:
                raise subprocess.TimeoutExpired("python", 300)

        def sample(self, scale: float) -> Sample:
            self.counts.add(10)
            sample: Sample = self.client.run()  # type: ignore[call-arg]
            return sample

    monkeypatch.setattr(resuming, "Resumer", Fakes)
    monkeypatch.setattr(resuming, "data_folder", lambda: tmp_path)
    (workload,) = select("W6")
    clients = [Fake(PEER), Fake(OTHER, at(2, WorkerFailed("no"))), Fake(OURS)]
    table = resuming.measure_resuming(workload, workload.params, clients, 3, Progress())  # type: ignore[arg-type]
    assert [(row.side, len(row.samples)) for row in table.rows] == [(OURS.name, 3)]
    assert {*table.failed} == {PEER.name, OTHER.name}
    assert "timed out" in table.failed[PEER.name]


def test_the_report_and_the_exit_code_tell_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One side cannot be installed, one does not start, one fails in a workload, one is measured."""
    fourth = next(side for side in SIDES if side.name == "langgraph-sqlite")

    class Started(Fake):
        def __init__(self, side: Any, _: object) -> None:
            super().__init__(side, at(2, WorkerFailed(TRACEBACK)) if side is PEER else lambda _: None)

        def start(self) -> None:
            if self.side is OTHER:
                raise WorkerFailed("the worker ended;\nModuleNotFoundError")

        def __enter__(self) -> "Started":
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

    def interpreter(environment: str | None, _: object) -> Path:
        if environment == fourth.environment:
            raise EnvironmentFailed("pip failed")
        return Path("python")

    monkeypatch.setattr(command, "Client", Started)
    monkeypatch.setattr(command, "interpreter", interpreter)
    monkeypatch.setattr(command, "data_folder", lambda: tmp_path / "data")
    monkeypatch.setattr(plots, "draw", lambda *_: [])
    monkeypatch.setattr(machine, "describe", dict)
    output = tmp_path / "RESULTS.md"
    names = ",".join(side.name for side in (OURS, PEER, OTHER, fourth))
    arguments = [
        "--workloads",
        "W1,W2",
        "--sides",
        names,
        "--no-count",
        "--rounds",
        "1",
        "--output",
        str(output),
    ]
    assert command.main(arguments) == 1
    assert (
        f"bench: failed: {', '.join(sorted([PEER.name, OTHER.name, fourth.name]))}" in capsys.readouterr().err
    )
    report = output.read_text()
    assert f"{OTHER.name} did not start: the worker ended; ModuleNotFoundError\n" in report
    assert f"{fourth.name} did not start: pip failed\n" in report
    assert f"| {PEER.name} | failed: burr-sqlite raised: KeyError: 'state' |" in report
    assert report.count(f"| {OURS.name} |") >= 2
    assert command.main([*arguments[:2], "--sides", OURS.name, *arguments[4:]]) == 0
