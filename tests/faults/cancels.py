"""Cancels that come from other processes, whatever became of the one that drives the run.

    python -m tests.faults.cancels --store sqlite

A run that is driven is left the wish, and its owner notices; any other is cancelled at once. Either way it can be
resumed afterwards, and is not cancelled again.
"""

import sys
from typing import Any

from tests.faults.letters import (
    ANSWER,
    BOTH,
    ONE,
    QUESTION,
    RUN,
    comes_to,
    go_on,
    inside,
    own,
    responds,
    waits,
)
from tests.faults.playing import Case, Scenario, play_scenarios
from tests.support.fault_processes import Parent, answer, expect


async def cancel(parent: Parent, case: Case, times: int = 1) -> None:
    """Cancel the run; answer what was said of it then."""
    async with case.opened() as storage:
        for _ in range(times):
            told = await storage.cancel(RUN)
        answer(parent, [told.status.value, told.interrupted])


async def stored(parent: Parent, case: Case) -> None:
    """Answer the status that is stored, and whether the run is interrupted."""
    async with case.whole() as storage:
        (run,) = await storage.list_runs()
        answer(parent, [run.status.value, run.interrupted])


def _cancels(case: Case, *expected: Any, times: int = 1) -> None:
    told = case.ask(cancel, times)
    expect(told == list(expected), f"the run that was cancelled is {told}, not {expected}")


# -- what is tried ---------------------------------------------------------------------------------


def cancelled_in_superstep(case: Case, times: int = 1) -> None:
    """The owner notices it without coming to the end of its superstep; the run can be resumed."""
    with inside(case) as owner:
        owner.stop()  # so that it sees none before all are there
        _cancels(case, "running", False, times=times)
        owner.go_on()
        rest = owner.until("rest")
        expect(rest.startswith("rest cancelled"), f"the owner came to {rest}")
        owner.finish()
    status, interrupted = case.ask(stored)
    expect((status, interrupted) == ("cancelled", False), f"the run that was cancelled is {status}")
    comes_to(case, BOTH, {QUESTION: ANSWER})


def cancelled_twice(case: Case) -> None:
    """Who goes on with the run afterwards is not cancelled by the second."""
    cancelled_in_superstep(case, times=2)


def cancelled_while_waiting(case: Case) -> None:
    """At once, though the owner still holds the run; it can do nothing more with it."""
    with waits(case) as owner:
        _cancels(case, "cancelled", False)
        owner.say("answer")
        rest = owner.until("rest")
        expect(rest.startswith("rest cancelled"), f"the owner of a run that was cancelled came to {rest}")
    status, _ = case.ask(stored)
    expect(status == "cancelled", f"the run that was cancelled is {status}")
    comes_to(case, ONE)  # the answer was acknowledged, so it is there


def cancelled_while_nobody_is_there(case: Case) -> None:
    """At once."""
    with waits(case) as owner:
        owner.say("end")
        owner.finish()
    _cancels(case, "cancelled", False)
    comes_to(case, ONE, {QUESTION: ANSWER})


def cancelled_after_a_kill(case: Case) -> None:
    """At once: the run is interrupted no longer."""
    with inside(case) as owner:
        owner.kill()
    status, interrupted = case.ask(stored)
    expect((status, interrupted) == ("running", True), f"the process is dead, but its run is {status}")
    _cancels(case, "cancelled", False)
    comes_to(case, BOTH, {QUESTION: ANSWER})


def cancelled_and_killed(case: Case) -> None:
    """The owner dies before it sees the cancel; whoever goes on sees it, once."""
    with inside(case) as owner:
        owner.stop()
        _cancels(case, "running", False)
        owner.kill()
    comes_to(case, ["cancelled", [], []])
    comes_to(case, BOTH, {QUESTION: ANSWER})


def cancelled_too_late(case: Case) -> None:
    """The cancel is there when the owner comes to the end of the run: it may count or not, but later it does not."""
    with case.child(own, True) as owner:
        owner.until("inside")
        responds(case, "running", False)
        owner.stop()
        _cancels(case, "running", False)
        owner.say("go")
        owner.go_on()
        rest = owner.until("rest")
        expect(rest.split()[1] in ("completed", "cancelled"), f"the owner came to {rest}")
        owner.finish()
    told = case.ask(go_on, None, RUN, True)
    expect(told[0] == "waiting", f"the run was taken back to its beginning, and is {told}")


SCENARIOS: dict[str, Scenario] = {
    play.__name__.replace("_", "-"): play
    for play in (
        cancelled_in_superstep,
        cancelled_twice,
        cancelled_while_waiting,
        cancelled_while_nobody_is_there,
        cancelled_after_a_kill,
        cancelled_and_killed,
        cancelled_too_late,
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Try them from the command line; 0 if nothing went wrong."""
    return play_scenarios("Cancel runs from other processes.", SCENARIOS, arguments)


if __name__ == "__main__":
    sys.exit(main())
