"""What the C# listings of the seeds use and do not show: the number game of the tutorial, in Python."""

from enum import Enum
from pathlib import Path
from typing import Any

from holdfast import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler
from tests.seeds.listing_runner import LISTINGS, run_listing


def names(seed: str) -> list[str]:
    """The C# listings of a seed that have a Python form, in order.

    >>> names("002")[0]
    'csharp/002_01_capturing'
    """
    paths = sorted((LISTINGS / "csharp").glob(f"{seed}_*.py.txt"))
    return [f"csharp/{path.name.removesuffix('.py.txt')}" for path in paths]


def check_all_are_run(seed: str, count: int, tests: Path) -> None:
    """Fail unless the listings are numbered from 1 to ``count`` and each is run by the tests of this file."""
    assert [name[:13] for name in names(seed)] == [f"csharp/{seed}_{n:02}" for n in range(1, count + 1)]
    source = tests.read_text(encoding="utf-8")
    assert [name for name in names(seed) if f'"{name}"' not in source] == []


class NumberSignal(Enum):
    """What the judge says of a guess."""

    INIT = "init"
    ABOVE = "above"
    BELOW = "below"


TARGET = 42
GUESSES = [50, 25, 37, 43, 40, 41, 42]
FOUND = "42 found in 7 tries"
SUPERSTEPS = 2 * len(GUESSES)


class JudgeExecutor(Executor):
    """Says whether a guess is too high or too low, and counts them."""

    checkpointed = ("tries",)

    def __init__(self, id: str = "Judge") -> None:
        super().__init__(id)
        self.tries = 0

    @handler
    async def judge(self, guess: int, ctx: WorkflowContext[NumberSignal, str]) -> None:
        self.tries += 1
        if guess == TARGET:
            await ctx.yield_output(f"{guess} found in {self.tries} tries")
        else:
            await ctx.send_message(NumberSignal.ABOVE if guess > TARGET else NumberSignal.BELOW)


class WorkflowHelper:
    """Builds the number game anew each time, with new instances and a new class, as a new process would."""

    @staticmethod
    async def get_workflow() -> Workflow:
        frame: dict[str, Any] = await run_listing("csharp/004_03_executor_state", NumberSignal=NumberSignal)
        guess = frame["GuessNumberExecutor"](1, 100)
        judge = JudgeExecutor()
        return (
            WorkflowBuilder(name="GuessNumber")
            .set_start_executor(guess)
            .add_edge(guess, judge)
            .add_edge(judge, guess)
            .build()
        )
