"""Two processes answer one question at the same moment: one answer counts, once.

    python -m tests.faults.answers --store sqlite --rounds 100

Each of the two answers with ``storage.respond``, which leaves the answer for whoever goes on with the run, or with
``workflow.resume(responses=...)``, which goes on with it.
"""

import asyncio
import itertools
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import (
    Executor,
    RequestAlreadyAnswered,
    RunStatus,
    RunTaken,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.faults.playing import Case, parser_for, told, tried
from tests.support.fault_processes import (
    Parent,
    answer,
    append_line,
    expect,
    lines_of,
)
from tests.support.parts import RunId

QUESTION = "question"
WAYS = list(itertools.product(["respond", "resume"], repeat=2))


class _Here:
    """What the handlers of this process need to know."""

    consumed: Path
    going_on = asyncio.Event()


class Ask(Executor):
    @handler
    async def ask(self, text: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(text, str, request_id=QUESTION)

    @response_handler
    async def take(self, asked: str, given: str, ctx: WorkflowContext[Any, str]) -> None:
        append_line(_Here.consumed, f"{ctx.run_id} {given}")
        await _Here.going_on.wait()  # so that the other one still finds the run at work
        await ctx.yield_output(given)


def question() -> Workflow:
    return WorkflowBuilder(name="Question").set_start_executor(Ask.bind(id="ask")).build()


# -- what children do ------------------------------------------------------------------------------


async def pose(parent: Parent, case: Case, run_id: str) -> None:
    """Let a run wait for an answer."""
    async with case.opened() as storage:
        run = await question().start("who?", run_id=run_id, storage=storage)
        answer(parent, (await run.wait_for_completion()).status.value)


async def respond(parent: Parent, case: Case, run_id: str, name: str, way: str) -> None:
    """Answer with the name of this process; tell whether that was taken."""
    _Here.consumed = case.folder / "consumed"
    async with case.opened() as storage:
        workflow = question()
        parent.tell("ready")
        await parent.hear()
        try:
            if way == "respond":
                await storage.respond(run_id, {QUESTION: name})
                parent.tell("won")
                return
            run = await workflow.resume(run_id=run_id, responses={QUESTION: name}, storage=storage)
        except (RequestAlreadyAnswered, RunTaken) as error:
            parent.tell(f"lost {type(error).__name__}")
            return
        parent.tell("won")
        await parent.hear()
        _Here.going_on.set()
        await run.wait_for_completion()


async def finish(parent: Parent, case: Case, run_id: str) -> None:
    """Go on with a run that was answered; answer what it gave out."""
    _Here.consumed = case.folder / "consumed"
    _Here.going_on.set()
    async with case.opened() as storage:
        run = await question().resume(run_id=run_id, storage=storage)
        result = await run.wait_for_completion()
        expect(result.status is RunStatus.COMPLETED, f"run {run_id} was answered, but is {result.status}")
        letters = await storage.store.inbox(RunId(run_id))
        expect(not letters, f"run {run_id} has taken its answer, but finds it in its inbox again: {letters}")
        expect((await storage.verify(run_id)).ok, f"run {run_id} is damaged")
        answer(parent, result.outputs)


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Asks so many questions, and says what went wrong."""

    case: Case
    rounds: int
    lost: Counter[str] = field(default_factory=Counter)
    first: int = 0
    """How often the one won that was told first to answer."""

    def play(self) -> None:
        """Ask and answer; raises ``Wrong``."""
        for number in range(self.rounds):
            self._one_round(f"run{number}", *WAYS[number % len(WAYS)])
        consumed = [line.split()[0] for line in lines_of(self.case.folder / "consumed")]
        twice = [run_id for run_id, times in Counter(consumed).items() if times > 1]
        expect(not twice, f"the answers of {twice} were consumed more than once")

    def _one_round(self, run_id: str, *ways: str) -> None:
        with self.case.child(pose, run_id) as asking:
            expect(json.loads(asking.until("answer")[7:]) == "waiting", f"{run_id} does not wait")
            asking.finish()
        names = ["one", "two"]
        with (
            self.case.child(respond, run_id, names[0], ways[0]) as one,
            self.case.child(respond, run_id, names[1], ways[1]) as two,
        ):
            both = dict(zip(names, (one, two), strict=True))
            for child in both.values():
                child.until("ready")
            for child in both.values():
                child.say("answer")
            came = {name: child.until("won", "lost") for name, child in both.items()}
            won = [name for name, line in came.items() if line == "won"]
            expect(len(won) == 1, f"{len(won)} answers were taken of {run_id}, by {ways}: {came}")
            self.first += won == names[:1]
            self.lost.update(line.split()[1] for line in came.values() if line != "won")
            both[won[0]].say("go on")
            for child in both.values():
                problems = [line for line in child.finish() if line.startswith("wrong ")]
                expect(not problems, f"a child failed: {problems}")
        outputs = self.case.ask(finish, run_id)
        expect(outputs == won, f"{run_id} was answered by {won[0]}, but gave out {outputs}; {ways}")


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line; 0 if nothing went wrong."""
    parser = parser_for("Let two processes answer one question.")
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args(arguments)

    def play(case: Case) -> None:
        campaign = Campaign(case, given.rounds)
        try:
            campaign.play()
        finally:
            print(
                f"{given.rounds} questions, the first of two won {campaign.first} times; losers: {dict(campaign.lost)}"
            )

    return told(tried(play, given.store, given.planted))


if __name__ == "__main__":
    sys.exit(main())
