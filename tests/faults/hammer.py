"""Many processes use one store, and two of them want the same run.

    python -m tests.faults.hammer --store sqlite --rounds 50

Eight processes do runs of their own, as fast as they can. Meanwhile two at a time fight for one run whose owner is
dead: at the same moment or one after the other, without and with ``take_over``. Whoever gets it takes it one
superstep further, and is killed. So each round has one winner, and the run knows who they were.
"""

import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import (
    RunStatus,
    RunTaken,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
)
from tests.faults.playing import Case, parser_for, told, tried
from tests.support.fault_processes import (
    Child,
    Parent,
    answer,
    append_line,
    expect,
    lines_of,
)

PROCESSES = 8
CONTESTED = "contested"
ENDLESS = 1_000_000
MODES = ["at the same moment", "one later", "take over at the same moment", "take over later"]


class _Here:
    """What the handlers of this process need to know."""

    parent: Parent
    name: str


# -- runs of one's own -----------------------------------------------------------------------------


@executor(id="begin")
async def begin(left: int, ctx: WorkflowContext[int]) -> int:
    await ctx.append_state("seen", left, scope_name="Log")
    return left


@executor(id="left")
async def left_hand(left: int, ctx: WorkflowContext[int]) -> int:
    return await ctx.once("double", lambda: left * 2)


@executor(id="right")
async def right_hand(left: int, ctx: WorkflowContext[int]) -> int:
    await ctx.queue_state_update("bytes", random.Random(left).randbytes(6_000), scope_name="Blobs")
    return left


@executor(id="end")
async def end(numbers: list[int], ctx: WorkflowContext[int, int]) -> None:
    await ctx.yield_output(sum(numbers))
    if numbers[1] > 1:
        await ctx.send_message(numbers[1] - 1)


def small() -> Workflow:
    return (
        WorkflowBuilder(name="Small")
        .set_start_executor(begin)
        .add_fan_out_edges(begin, [left_hand, right_hand])
        .add_fan_in_edges([left_hand, right_hand], end)
        .add_edge(end, begin)
        .build()
    )


async def hammer(parent: Parent, case: Case, name: str) -> None:
    """Do one run after the other until the parent says something; write down what was acknowledged."""
    async with case.opened() as storage:
        stopping = asyncio.ensure_future(parent.hear())
        parent.tell("ready")
        number = 0
        while not stopping.done() or not number:
            run = await small().start(3, run_id=f"{name}-{number}", storage=storage)
            outputs = (await run.wait_for_completion()).outputs
            expect(outputs == [9, 6, 3], f"run {name}-{number} gave out {outputs}")
            acknowledged = [info.checkpoint_id for info in run.checkpoints]
            append_line(case.folder / f"{name}.log", json.dumps([run.run_id, acknowledged]), sync=False)
            number += 1
        answer(parent, number)


# -- the run that two want -------------------------------------------------------------------------


@executor(id="claim")
async def claim(left: int, ctx: WorkflowContext[int]) -> int:
    """Be inside until the parent lets the superstep end."""
    await ctx.append_state("winners", _Here.name, scope_name="Log")
    _Here.parent.tell(f"inside {ctx.superstep}")
    await _Here.parent.hear()
    return left - 1


def contested() -> Workflow:
    return (
        WorkflowBuilder(name="Contested", max_iterations=ENDLESS)
        .set_start_executor(claim)
        .add_edge(claim, claim)
        .build()
    )


async def fight(parent: Parent, case: Case, name: str, take_over: bool) -> None:
    """Go on with the contested run if this is the one who may; tell where it was lost."""
    _Here.parent, _Here.name = parent, name
    async with case.opened() as storage:
        await storage.catalog.head_or_none(CONTESTED)
        parent.tell("ready")
        await parent.hear()
        try:
            run = await contested().resume(run_id=CONTESTED, storage=storage, take_over=take_over)
        except RunTaken:
            parent.tell("lost")
            return
        try:
            await run.wait_for_completion()
        except RunTaken:
            parent.tell("taken")


async def prepare(parent: Parent, case: Case) -> None:
    """Start the run that will be contested."""
    _Here.parent, _Here.name = parent, "first"
    async with case.opened() as storage:
        run = await contested().start(ENDLESS, run_id=CONTESTED, storage=storage)
        await run.wait_for_completion()


async def look(parent: Parent, case: Case) -> None:
    """Check what was acknowledged; answer who won the contested run, in order."""
    async with case.whole() as storage:
        report = await storage.verify()
        expect(report.ok, f"the storage has problems: {report.problems[:3]}")
        checkpoints: dict[str, set[str]] = {}
        for checkpoint in await storage.list_checkpoints():
            checkpoints.setdefault(checkpoint.run_id, set()).add(checkpoint.checkpoint_id)
        runs = {run.run_id: run for run in await storage.list_runs(limit=None)}
        for run_id, acknowledged in _acknowledged(case.folder):
            expect(run_id in runs, f"run {run_id} is lost")
            expect(runs[run_id].status is RunStatus.COMPLETED, f"run {run_id} is {runs[run_id].status}")
            lost = set(acknowledged) - checkpoints[run_id]
            expect(not lost, f"run {run_id} lost {len(lost)} checkpoints that were acknowledged")
        expect(runs[CONTESTED].interrupted, f"the contested run is {runs[CONTESTED]}")
        latest = await storage.get_latest(run_id=CONTESTED)
        assert latest is not None
        answer(parent, await latest.read_state("winners", scope_name="Log"))


def _acknowledged(folder: Path) -> list[tuple[str, list[str]]]:
    return [json.loads(line) for log in sorted(folder.glob("*.log")) for line in lines_of(log)]


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Lets processes fight, and says what went wrong."""

    case: Case
    rounds: int
    processes: int
    winners: list[str] = field(default_factory=list)
    doubles: int = 0
    """How often two drove the run at the same time, though nobody took it over."""
    runs: int = 0

    def play(self) -> None:
        """Let all of them go; raises ``Wrong``."""
        hammers = [self.case.child(hammer, f"h{number}") for number in range(self.processes)]
        try:
            for child in hammers:
                child.until("ready")
            with self.case.child(prepare) as first:
                first.until("inside")
                first.say("go")
                first.until("inside")
                self.winners.append("first")
            for number in range(self.rounds):
                self._fight(number, MODES[number % len(MODES)])
            for child in hammers:
                child.say("stop")
            for child in hammers:
                self.runs += json.loads(child.until("answer")[7:])
        finally:
            for child in hammers:
                child.kill()
        stored = self.case.ask(look)
        expect(stored == self.winners, f"the winners were {self.winners}, but the run has {stored}")

    def _fight(self, number: int, mode: str) -> None:
        names = [f"{number}a", f"{number}b"]
        take_over = mode.startswith("take over")
        with (
            self.case.child(fight, names[0], take_over) as one,
            self.case.child(fight, names[1], take_over) as two,
        ):
            fighters = dict(zip(names, (one, two), strict=True))
            for child in fighters.values():
                child.until("ready")
            stand = self._stands(fighters, mode)
            inside = [name for name, line in stand.items() if line != "lost"]
            expect(inside, f"nobody got the run, {mode}")
            if not take_over and len(inside) > 1:
                self.doubles += 1
                expect(
                    self.case.planted == "nobody-lives",
                    f"two drive the run at the same time: {stand}, {mode}",
                )
            ends = {}
            for name in inside:
                fighters[name].say("go")
                if mode.endswith("later"):  # the one that lost it tries first, with the same checkpoint
                    ends[name] = fighters[name].until("inside", "taken")
            ends |= {name: fighters[name].until("inside", "taken") for name in inside if name not in ends}
            won = [name for name, line in ends.items() if line != "taken"]
            expect(len(won) == 1, f"{len(won)} committed the same superstep: {ends}, {mode}")
            self.winners += won

    def _stands(self, fighters: dict[str, Child], mode: str) -> dict[str, str]:
        """Where the fighters are, once each of them tried."""
        stand = {}
        if mode.endswith("later"):
            for name, child in fighters.items():
                child.say("fight")
                stand[name] = child.until("inside", "lost")
            return stand
        for child in fighters.values():
            child.say("fight")
        return {name: child.until("inside", "lost") for name, child in fighters.items()}


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line; 0 if nothing went wrong."""
    parser = parser_for("Let processes hammer one store and fight for one run.")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    given = parser.parse_args(arguments)

    def play(case: Case) -> None:
        campaign = Campaign(case, given.rounds, given.processes)
        try:
            campaign.play()
        finally:
            print(
                f"{len(campaign.winners)} winners, {campaign.doubles} times two at the same time, "
                f"beside {campaign.runs} runs of {given.processes} processes"
            )

    return told(tried(play, given.store, given.planted))


if __name__ == "__main__":
    sys.exit(main())
