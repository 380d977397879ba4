"""Kills a host again and again while many runs sleep: none is lost, none is woken twice, and they cost no memory.

    python -m tests.faults.sleepers --store sqlite --runs 10000 --kills 10

Each child starts the runs that are not there yet, hosts all of them, and is killed at a random moment. Handlers write
lines to a file, so it is known which went on behind its sleep in which life. A run may do so again only in a later
life, and only if it was under way when the host was killed. With ``--memory`` a child counts what each sleeping run
costs the process that started it and hosts it. Chance comes from a seed, which is printed; the moments themselves are
the machine's.
"""

import asyncio
import gc
import itertools
import json
import os
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import (
    CheckpointStorage,
    Executor,
    Host,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from holdfast import host as host_module
from tests.faults.playing import Case, parser_for, told, tried
from tests.support.fault_processes import Child, Parent, Wrong, answer, append_line, expect, lines_of
from tests.support.parts import Head, RunQuery

LOG = "log"
AT_THE_SAME_TIME = 50
LEAST_SLEEP_SECONDS = 0.2
HOURS_SECONDS = 36_000.0
MOST_BYTES = 1_024
"""What a sleeping run may cost in the memory of its host."""
_NOISE_BYTES = 200_000
"""What else the host may take at one look more than at another; 60,000 were seen."""
# After so many looks that found nothing, whoever is overdue is forgotten.
_IDLE_LOOKS = 5
_LIFE_SECONDS = 1_800.0
# A host is killed so long after it started its runs at the latest: with long sleeps most are asleep then.
_LONGEST_LIFE_SECONDS = 10.0


# -- the workflow ----------------------------------------------------------------------------------


class _Here:
    """Where the handlers of this process write what they do, and in which life."""

    log: Path
    life: int
    ended = 0


def _wrote(ctx: WorkflowContext[Any, Any], what: str) -> None:
    line = [_Here.life, what, str(ctx.run_id), ctx.idempotency_key]
    append_line(_Here.log, json.dumps(line), sync=False)


class Sleep(Executor):
    @handler
    async def sleep(self, seconds: float, ctx: WorkflowContext[float]) -> None:
        await ctx.once("before", _wrote, ctx, "before")
        await ctx.sleep(seconds)
        _wrote(ctx, "woken")
        await ctx.once("effect", _wrote, ctx, "effect")
        await ctx.send_message(seconds)


@executor(id="end")
async def end(seconds: float, ctx: WorkflowContext[float, str]) -> str:
    _wrote(ctx, "end")
    _Here.ended += 1
    return "done"


def sleepers() -> Workflow:
    sleep = Sleep.bind(id="sleep")
    return WorkflowBuilder(name="Sleepers").set_start_executor(sleep).add_edge(sleep, end).build()


# -- what children do ------------------------------------------------------------------------------


async def _start(
    storage: CheckpointStorage, wanted: list[tuple[str, float]], tell: Callable[[], None]
) -> None:
    """Start runs and leave them to whoever hosts them."""
    workflow = sleepers()

    async def start_some(runs: list[tuple[str, float]]) -> None:
        for run_id, seconds in runs:
            run = await workflow.start(seconds, run_id=run_id, storage=storage)
            await run.driven()
            tell()

    parts = [wanted[number::AT_THE_SAME_TIME] for number in range(AT_THE_SAME_TIME)]
    await asyncio.gather(*(start_some(part) for part in parts))


class CountingHost(Host):
    """Counts how often in a row it found nothing to do, and has nothing under way."""

    idle = 0

    async def _look(self) -> int:
        started = await super()._look()
        self.idle = 0 if started or self.active else self.idle + 1
        return started


async def host(parent: Parent, case: Case, life: int, runs: int, spread: float, seed: int) -> None:
    """Start the runs that are missing, and host all of them until they are over."""
    _Here.log, _Here.life = case.folder / LOG, life
    host_module._RESCUE_SECONDS = 0.2
    chance = random.Random(f"{seed} {life}")
    started = 0

    def tell() -> None:
        nonlocal started
        started += 1
        parent.tell("started")

    async with case.opened() as storage:
        known = {head.run_id for head in await storage.store.runs(RunQuery())}
        names = [f"s{number}" for number in range(runs)]
        wanted = [(name, chance.uniform(LEAST_SLEEP_SECONDS, spread)) for name in names if name not in known]
        async with CountingHost(storage, sleepers(), poll=0.02) as hosting:
            parent.tell("hosting")
            await _start(storage, wanted, tell)
            parent.tell("all")
            await _until_over(storage, hosting)
            expect(not hosting.problems, f"runs could not be woken: {list(hosting.problems.items())[:3]}")
    parent.tell(f"over {started}")


async def _until_over(storage: CheckpointStorage, hosting: CountingHost) -> None:
    while True:
        await asyncio.sleep(0.1)
        if hosting.idle < _IDLE_LOOKS:
            continue
        left = await storage.store.runs(RunQuery(statuses=frozenset([RunStatus.WAITING, RunStatus.RUNNING])))
        if not left:
            return
        now = int(hosting._now().timestamp() * 1_000_000)
        overdue = [head for head in left if head.wake_at is not None and head.wake_at <= now]
        hosting.idle = 0
        while hosting.idle < _IDLE_LOOKS:  # noqa: ASYNC110 - as often as it looks
            await asyncio.sleep(0.01)
        still = [head.run_id for head in overdue if await storage.store.head(head.run_id) == head]
        expect(not still, f"{len(still)} runs are overdue, but the host does not wake them: {still[:3]}")


async def look(parent: Parent, case: Case) -> None:
    """Answer which runs there are, and how they stand."""
    async with case.whole() as storage:
        runs = await storage.list_runs(limit=None)
        for run in runs:
            expect(run.status is not RunStatus.RUNNING or run.interrupted, f"{run}: its process is dead")
        answer(parent, {run.run_id: run.status.value for run in runs})


def _ended_by_itself(child: Child) -> None:
    """Wait for a child that may take long; it must come to its end."""
    ended = child.ended_within(_LIFE_SECONDS)
    child.kill()
    problems = [line[6:] for line in child.told if line.startswith("wrong ")]
    expect(not problems, f"a child failed: {problems}")
    expect(ended, f"a child did not end; it told {child.told[-3:]}")


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """Kills so many hosts, and says what went wrong."""

    case: Case
    runs: int
    kills: int
    spread: float
    seed: int
    killed: int = 0
    under_way: list[set[str]] = field(default_factory=list)
    """By life, the runs that were under way when it ended."""
    waiting: list[int] = field(default_factory=list)
    known: int = 0
    """Runs that were started."""
    again: int = 0
    """Runs that went on behind their sleep in more than one life."""

    def play(self) -> None:
        """Host, kill, look; the last host brings all runs to their end. Raises ``Wrong``."""
        chance = random.Random(self.seed)
        for life in range(self.kills + 1):
            last = life == self.kills
            try:
                self._one_life(life, None if last else chance)
            except Wrong:
                self._check_lines()  # what happened twice says more than the runs that failed of it
                raise
            stands = self.case.ask(look)
            self.known = len(stands)
            self.under_way.append({run for run, status in stands.items() if status == "running"})
            self.waiting.append(sum(status == "waiting" for status in stands.values()))
            self._check_lines()
            if last:
                wrong = {run: status for run, status in stands.items() if status != "completed"}
                expect(not wrong, f"runs did not complete: {list(wrong.items())[:3]}")
                expect(len(stands) == self.runs, f"{self.runs} runs were started, {len(stands)} are there")
                self._check_all()

    def _one_life(self, life: int, chance: random.Random | None) -> None:
        there = self.runs * (life + 1) // (self.kills + 1)  # each life starts some
        with self.case.child(host, life, there, self.spread, self.seed) as child:
            if chance is None:
                _ended_by_itself(child)
                return
            # After some runs were started, or after all were; then some time.
            starts = there - self.known  # the others were started in earlier lives
            word, most = chance.choice([("hosting", 1), ("started", starts // 2), ("all", 1), ("all", 1)])
            ended = child.ended_before(word, chance.randint(1, max(most, 1)))
            ended = ended or child.ended_within(chance.uniform(0, min(self.spread, _LONGEST_LIFE_SECONDS)))
            child.kill()
        problems = [line for line in child.told if line.startswith("wrong ")]
        expect(not problems, f"a host failed: {problems}")
        self.killed += not ended

    def _lines(self) -> list[tuple[int, str, str, str]]:
        return [tuple(json.loads(line)) for line in lines_of(self.case.folder / LOG)]

    def _check_lines(self) -> None:
        """Whether nothing happened twice but in runs that were under way when their host was killed."""
        last: dict[tuple[str, str], int] = {}
        keys: dict[tuple[str, str], str] = {}
        for life, what, run, key in self._lines():
            before = last.get((what, run))
            expect(before != life, f"{run} came to {what!r} twice in one life of its host")
            if before is not None:
                under_way = any(run in self.under_way[between] for between in range(before, life))
                expect(under_way, f"{run} came to {what!r} again, though nobody was killed over it")
                same = what != "effect" or keys[what, run] == key
                expect(same, f"the effect of {run} was repeated with another key")
            last[what, run], keys[what, run] = life, key

    def _check_all(self) -> None:
        lines = self._lines()
        for what in ("before", "woken", "effect", "end"):
            came = {run for _, did, run, _ in lines if did == what}
            expect(len(came) == self.runs, f"{len(came)} of {self.runs} runs came to {what!r}")
        times = Counter(run for _, what, run, _ in lines if what == "woken")
        self.again = sum(count > 1 for count in times.values())


# -- memory ----------------------------------------------------------------------------------------


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def weigh(parent: Parent, case: Case, few: int, many: int, traced: bool) -> None:
    """Answer how many bytes a sleeping run costs its host, between so few and so many of them."""
    _Here.log, _Here.life = case.folder / "weighed", 0
    counts = [0, few, many]
    weights = []
    if traced:
        tracemalloc.start()
    async with case.opened() as storage, Host(storage, sleepers(), poll=0.02):
        for before, count in itertools.pairwise(counts):
            names = [f"{traced} {number}" for number in range(before, count)]
            await _start(storage, [(name, HOURS_SECONDS) for name in names], lambda: None)
            gc.collect()
            weights.append(tracemalloc.get_traced_memory()[0] if traced else _resident())
        waiting = await storage.store.runs(RunQuery(statuses=frozenset([RunStatus.WAITING])))
    asleep = sum(_is_asleep(head) for head in waiting)
    expect(asleep >= many, f"{many} runs were started, but {asleep} sleep")
    answer(parent, (weights[1] - weights[0]) / (many - few))


def _is_asleep(head: Head) -> bool:
    return head.wake_at is not None


def weighed(case: Case, few: int, many: int, only_allocated: bool) -> None:
    """The bytes for each sleeping run, as Python and as the system count them; the latter takes many to tell."""
    for name, traced in (("allocated", True), ("resident", False)):
        if not traced and (only_allocated or not Path("/proc/self/statm").exists()):
            continue
        with case.child(weigh, few, many, traced) as child:
            _ended_by_itself(child)
        (said,) = [line[7:] for line in child.told if line.startswith("answer ")]
        weight: float = json.loads(said)
        print(f"{name}: {weight:,.0f} bytes for each sleeping run", flush=True)
        allowed = MOST_BYTES + _NOISE_BYTES / (many - few)
        expect(weight < allowed, f"a sleeping run costs {weight:,.0f} bytes ({name})")


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line; 0 if nothing went wrong."""
    parser = parser_for("Kill a host while many runs sleep.")
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--spread", type=float, default=5.0, help="the longest sleep, in seconds")
    parser.add_argument(
        "--memory", type=int, nargs=2, metavar=("FEW", "MANY"), help="weigh sleeping runs instead"
    )
    parser.add_argument("--allocated", action="store_true", help="weigh only what Python allocates")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)

    def play(case: Case) -> None:
        if given.memory:
            few, many = given.memory
            weighed(case, few, many, given.allocated)
            return
        campaign = Campaign(case, given.runs, given.kills, given.spread, seed)
        try:
            campaign.play()
        finally:
            under_way = [len(runs) for runs in campaign.under_way]
            print(
                f"{campaign.killed} kills, {given.runs} runs; asleep at the end of each life: {campaign.waiting}, "
                f"under way: {under_way}; woken in more than one life: {campaign.again}"
            )

    return told(tried(play, given.store, given.planted))


if __name__ == "__main__":
    sys.exit(main())
