"""Answers that come from other processes, whatever became of the one that drives the run.

    python -m tests.faults.letters --store sqlite

They come in the middle of a long superstep, while the run waits, while nobody goes on with it, and after its process
was killed. They survive whoever left them, and each counts once.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast import (
    Executor,
    RequestAlreadyAnswered,
    Run,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from tests.faults.playing import Case, Scenario, play_scenarios
from tests.support.fault_processes import (
    Child,
    Parent,
    answer,
    append_line,
    expect,
    lines_of,
)
from tests.support.parts import RunId

RUN = RunId("run")
QUESTION = "question"
ANSWER = "kelp"
LEAVERS = 5


class _Here:
    """What the handlers of this process need to know."""

    parent: Parent
    folder: Path
    busy: bool


# -- the workflow ----------------------------------------------------------------------------------


@executor(id="start")
async def start(busy: bool, ctx: WorkflowContext[bool]) -> None:
    await ctx.send_message(busy, "ask")
    if busy:
        await ctx.send_message(busy, "pass_on")


class Ask(Executor):
    @handler
    async def ask(self, busy: bool, ctx: WorkflowContext) -> None:
        await ctx.request_info("what?", str, request_id=QUESTION)

    @response_handler
    async def take(self, asked: str, given: str, ctx: WorkflowContext[Any, str]) -> None:
        append_line(_Here.folder / f"{ctx.run_id}.consumed", given)
        await ctx.yield_output(given)


@executor(id="pass_on")
def pass_on(busy: bool) -> bool:
    return busy


@executor(id="busy")
async def busy(busy: bool, ctx: WorkflowContext[Any, str]) -> None:
    """A long superstep, in which the question is pending already."""
    if _Here.busy:
        _Here.parent.tell("inside")
        await _Here.parent.hear()
    await ctx.yield_output("busy")


def mail() -> Workflow:
    asking = Ask.bind(id="ask")
    return (
        WorkflowBuilder(name="Mail")
        .set_start_executor(start)
        .add_edge(start, asking)
        .add_edge(start, pass_on)
        .add_edge(pass_on, busy)
        .build()
    )


# -- what children do ------------------------------------------------------------------------------


async def own(parent: Parent, case: Case, is_busy: bool, run_id: str = RUN) -> None:
    """Drive a run until it waits or is over; then look again or answer, if the parent says so."""
    _Here.parent, _Here.folder, _Here.busy = parent, case.folder, True
    async with case.opened() as storage:
        run = await mail().start(is_busy, run_id=run_id, storage=storage)
        while await _told(parent, run) == RunStatus.WAITING:
            wish = await parent.hear()
            if wish == "answer":
                await run.respond({QUESTION: ANSWER})
            elif wish != "look":
                return


async def _told(parent: Parent, run: Run) -> str:
    """Tell where the run stands when it has come to rest."""
    try:
        result = await run.wait_for_completion()
    except Exception as error:
        parent.tell(f"rest {type(error).__name__}")
        return ""
    parent.tell(f"rest {result.status.value} {json.dumps(result.outputs)}")
    return result.status


async def respond(parent: Parent, case: Case) -> None:
    """Answer the question; answer what was said of the run then, and that nobody else can."""
    async with case.opened() as storage:
        mail()
        told = await storage.respond(RUN, {QUESTION: ANSWER})
        try:
            await storage.respond(RUN, {QUESTION: "another"})
            expect(False, "a question was answered twice")
        except RequestAlreadyAnswered:
            pass
        answer(parent, [told.status.value, told.interrupted])


async def respond_and_die(parent: Parent, case: Case, run_id: str) -> None:
    """Answer the question, and be dead at once."""
    async with case.opened() as storage:
        await storage.respond(run_id, {QUESTION: ANSWER})
        os.kill(os.getpid(), signal.SIGKILL)


async def go_on(
    parent: Parent, case: Case, responses: dict[str, str] | None = None, run_id: str = RUN, back: bool = False
) -> None:
    """Go on with a run whose process does not; answer where that led, and what is left in its inbox."""
    _Here.folder, _Here.busy = case.folder, False
    async with case.opened() as storage:
        first = (await storage.list_checkpoints(run_id=run_id))[0].checkpoint_id if back else None
        which: dict[str, Any] = {"checkpoint": first} if back else {"run_id": run_id}
        run = await mail().resume(**which, responses=responses, storage=storage)
        result = await run.wait_for_completion()
        left = [letter.key for letter in await storage.store.inbox(RunId(run_id))]
        expect((await storage.verify()).ok, "the storage is damaged")
        answer(parent, [result.status.value, sorted(result.outputs), left])


def inside(case: Case) -> Child:
    owner = case.child(own, True)
    owner.until("inside")
    return owner


def waits(case: Case) -> Child:
    owner = case.child(own, False)
    expect(owner.until("rest") == "rest waiting []", f"the run does not wait: {owner.told}")
    return owner


def responds(case: Case, *expected: Any) -> None:
    told = case.ask(respond)
    expect(told == list(expected), f"the answer was left to a run that is {told}, not {expected}")


def comes_to(case: Case, expected: list[Any], *how: Any) -> None:
    told = case.ask(go_on, *how)
    expect(told == expected, f"the run came to {told}, not {expected}")


def _consumed_once(case: Case, run_id: str = RUN) -> None:
    consumed = lines_of(case.folder / f"{run_id}.consumed")
    expect(consumed == [ANSWER], f"the answers that reached the handler are {consumed}")


BOTH = ["completed", ["busy", ANSWER], []]
ONE = ["completed", [ANSWER], []]


# -- what is tried ---------------------------------------------------------------------------------------


def answered_in_superstep(case: Case) -> None:
    """The owner takes it at the end of the superstep."""
    with inside(case) as owner:
        responds(case, "running", False)
        owner.say("go")
        rest = owner.until("rest")
        expect(rest == f'rest completed ["busy", "{ANSWER}"]', f"the owner came to {rest}")
        owner.finish()
    comes_to(case, BOTH)
    _consumed_once(case)


def answered_while_waiting(case: Case) -> None:
    """The owner finds it when it looks again."""
    with waits(case) as owner:
        responds(case, "waiting", False)
        owner.say("look")
        rest = owner.until("rest")
        expect(rest == f'rest completed ["{ANSWER}"]', f"the owner came to {rest}")
        owner.finish()
    comes_to(case, ONE)
    _consumed_once(case)


def answered_while_nobody_is_there(case: Case) -> None:
    """It waits for whoever goes on."""
    with waits(case) as owner:
        owner.say("end")
        owner.finish()
    responds(case, "waiting", False)
    comes_to(case, ONE)
    _consumed_once(case)


def answered_after_a_kill(case: Case) -> None:
    """Whoever goes on with the superstep takes it at its end."""
    with inside(case) as owner:
        owner.kill()
    responds(case, "running", True)
    comes_to(case, BOTH)
    _consumed_once(case)


def answered_and_killed(case: Case) -> None:
    """Here the owner is killed after the answer was left, and before it could take it."""
    with inside(case) as owner:
        responds(case, "running", False)
        owner.kill()
    comes_to(case, BOTH)
    _consumed_once(case)


def answered_by_one_who_dies(case: Case) -> None:
    """An answer that was acknowledged survives whoever left it."""
    for number in range(LEAVERS):
        run_id = f"run{number}"
        with case.child(own, False, run_id) as owner:
            owner.until("rest")
            owner.say("end")
            owner.finish()
        with case.child(respond_and_die, run_id) as leaver:
            told = leaver.finish()
            expect(not told, f"the one who answered should have died, but told {told}")
        comes_to(case, ONE, None, run_id)
        _consumed_once(case, run_id)


SCENARIOS: dict[str, Scenario] = {
    play.__name__.replace("_", "-"): play
    for play in (
        answered_in_superstep,
        answered_while_waiting,
        answered_while_nobody_is_there,
        answered_after_a_kill,
        answered_and_killed,
        answered_by_one_who_dies,
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Try them from the command line; 0 if nothing went wrong."""
    return play_scenarios("Leave answers from other processes.", SCENARIOS, arguments)


if __name__ == "__main__":
    sys.exit(main())
