"""Anything may happen to stored runs, in any order, by any number of processes: a simple model says what comes of it.

The model, ``tests/support/model.py``, is the specification. ``machine_rules`` does the same to Holdfast and to the
model: commits, crashes, resumes, restores, forks, edits, answers, cancels, several writers of one run. After each step
it compares what the storage shows, and what those who drive runs see. At the end every checkpoint that was ever made
must still be there, and a run must come to its end.
"""

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast import RunStatus
from holdfast.errors import HoldfastError
from tests.support.machine import has_lost, held, moving
from tests.support.machine_bugs import BUGS
from tests.support.machine_rules import Anything
from tests.support.machine_stored import StoredRun
from tests.support.machine_writer import Writer
from tests.support.parts import FileStore, MemoryStore, SqliteStore


class InMemory(Anything):
    make_store = staticmethod(lambda folder: MemoryStore())


class InFiles(Anything):
    make_store = staticmethod(lambda folder: FileStore(folder / "files"))


class InSqlite(Anything):
    make_store = staticmethod(lambda folder: SqliteStore(folder / "runs.db"))


# Without shrinking: that takes minutes, and what fails is printed as a program that can be cut by hand.
SEARCH = [Phase.explicit, Phase.reuse, Phase.generate]


@pytest.mark.parametrize(("machine", "percent"), [(InMemory, 200), (InFiles, 50), (InSqlite, 60)])
def test_runs_do_what_the_model_says(machine: type[Anything], percent: int) -> None:
    examples = max(settings().max_examples * percent // 100, 1)
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=30, phases=SEARCH),
    )


# -- the machine would notice ----------------------------------------------------------------------

PLANTED = settings(
    max_examples=1000,
    stateful_step_count=40,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    print_blob=False,
)


@seed(5)  # others find them too, but some later
class Planted(InMemory):
    pass


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        BUGS[bug](patch)
        with pytest.raises((AssertionError, HoldfastError, KeyError)):
            run_state_machine_as_test(Planted, settings=PLANTED)


def test_all_that_is_claimed_happens() -> None:
    """A machine that does nothing of interest would find nothing; this one does all of it."""
    missing = set(CLAIMED)

    class Watched(InMemory):
        def same(self, error: BaseException | None, expected: BaseException | None) -> None:
            super().same(error, expected)
            missing.discard(type(error).__name__)

        def look_on(self) -> None:
            for run in self.model.runs.values():
                missing.difference_update(_happened_to(run))
            for writer in self.model.writers:
                missing.difference_update(_happened_by(writer))

    for number in range(50):
        if missing:
            run_state_machine_as_test(seed(number)(Watched), settings=settings(PLANTED, max_examples=20))
    assert not missing


CLAIMED = {
    *("RunExists", "RunTaken", "RunPoisoned", "RunEnded", "InvalidArgument", "NotDone"),
    *("UnknownRequest", "InvalidResponse", "RequestAlreadyAnswered"),
    *(f"status {status}" for status in RunStatus),
    *(f"cause {cause}" for cause in ("input", "superstep", "response", "restore", "fork", "edit")),
    *("interrupted", "taken over twice", "letters", "wish to cancel", "journal", "ticket"),
    *("a question asked twice", "two branches", "fork of a fork", "messages and answers together"),
    *("failed with ExecutorFailed", "failed with RunTaken", "failed with StorageError"),
    *("turns not run again", "lost the run", "held", "left while held"),
}


def _happened_to(run: StoredRun) -> set[str]:
    parents = [made.parent for made in run.made]
    return {
        f"status {run.status}",
        *(f"cause {made.cause}" for made in run.made),
        *(
            what
            for what, is_so in {
                "interrupted": run.status is RunStatus.RUNNING and not run.driven,
                "taken over twice": run.takeovers > 1,
                "letters": any(not letter.cancels for letter in run.letters.values()),
                "wish to cancel": any(letter.cancels for letter in run.letters.values()),
                "journal": bool(run.journal),
                "ticket": bool(run.ticket),
                "a question asked twice": any(made.held.answered & set(made.held.asked) for made in run.made),
                "two branches": len(parents) > len(set(parents)),
                "fork of a fork": bool(
                    parents[0] and parents[0][0] != "run-0" and run.made[0].cause == "fork"
                ),
                "messages and answers together": any(
                    len(made.held.messages) > 1 and any(m.question for m in made.held.messages)
                    for made in run.made
                ),
            }.items()
            if is_so
        ),
    }


def _happened_by(writer: Writer) -> set[str]:
    return {
        what
        for what, is_so in {
            f"failed with {writer.error and writer.error.__name__}": True,
            "turns not run again": moving(writer) and len(writer.turns) < len(writer.held.turns),
            "lost the run": has_lost(writer),
            "held": held(writer),
            "left while held": held(writer) and writer.leaving is not None,
        }.items()
        if is_so
    }
