"""Kills processes inside supersteps of ten turns, and looks whether anything that was journaled is done again.

    python -m tests.faults.journal --store sqlite --kills 200

Each child goes on with a run and is killed at a random moment. Turns and effects write lines to a file, so it is
known which of them ran in which life. Right after a kill another child reads the journal: what is listed there, and
every effect whose result had been given to its turn, must not run again. Chance comes from a seed, which is printed;
the moments themselves are the machine's.
"""

import asyncio
import json
import random
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import (
    Executor,
    Phase,
    RunPoisoned,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
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
from tests.support.parts import MOST_TAKEOVERS, RunId, unbundled

TURNS = 10
ROUNDS = 2
LOG = "log"


# -- the workflow ----------------------------------------------------------------------------------


class _Here:
    """Where the turns of this process write what they do, and whom they tell."""

    log: Path
    parent: Parent


def _wrote(ctx: WorkflowContext, what: str, name: str = "", nonce: str = "") -> None:
    line = [what, ctx.superstep, str(ctx.executor_id), name, ctx.idempotency_key, nonce]
    append_line(_Here.log, json.dumps(line), sync=what == "effect")
    _Here.parent.tell(what)


def _effect(ctx: WorkflowContext, name: str) -> str:
    nonce = uuid.uuid4().hex
    _wrote(ctx, "effect", name, nonce)
    return nonce


async def _async_effect(ctx: WorkflowContext, name: str) -> str:
    return _effect(ctx, name)


async def _some_time() -> None:
    """Another time in each turn, so that kills find them in all positions."""
    await asyncio.sleep(random.uniform(0, 0.02))


@executor(id="start")
async def start(left: int, ctx: WorkflowContext[int]) -> int:
    await ctx.append_state("rounds", left, scope_name="Log")
    return left


class Work(Executor):
    checkpointed = ("total",)

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.total = 0

    @handler
    async def work(self, left: int, ctx: WorkflowContext[tuple[int, list[list[Any]]]]) -> None:
        _wrote(ctx, "turn")
        await _some_time()
        charged = await ctx.once("charge", _effect, ctx, "charge")
        _wrote(ctx, "given", "charge", charged)
        await _some_time()
        mailed = await ctx.once("mail", _async_effect, ctx, "mail")
        _wrote(ctx, "given", "mail", mailed)
        nonces = [
            [ctx.superstep, str(self.id), *effect] for effect in (("charge", charged), ("mail", mailed))
        ]
        self.total += left
        await ctx.queue_state_update(str(self.id), random.Random(left).randbytes(5_000), scope_name="Blobs")
        await ctx.append_state("totals", self.total, scope_name="Log")
        await ctx.send_message((self.total, nonces))


@executor(id="join")
async def join(done: list[tuple[int, list[list[Any]]]], ctx: WorkflowContext[int, list[Any]]) -> None:
    for total, nonces in done:
        await ctx.yield_output([total, nonces])
    rounds = await ctx.read_state("rounds", scope_name="Log")
    if rounds[-1] > 1:
        await ctx.send_message(rounds[-1] - 1)
    else:
        await ctx.yield_output(await ctx.read_state("totals", scope_name="Log"))


def ten_turns() -> Workflow:
    workers = [Work.bind(id=f"w{number}") for number in range(TURNS)]
    return (
        WorkflowBuilder(name="TenTurns", max_iterations=1_000)
        .set_start_executor(start)
        .add_fan_out_edges(start, workers)
        .add_fan_in_edges(workers, join)
        .add_edge(join, start)
        .build()
    )


# -- what children do ------------------------------------------------------------------------------


async def whole(parent: Parent, case: Case) -> None:
    """Answer what a run gives out that nobody disturbs."""
    _Here.parent, _Here.log = parent, case.folder / "whole"
    answer(parent, (await ten_turns().run(ROUNDS)).outputs)


async def go_on(parent: Parent, case: Case, run_id: str) -> None:
    """Start the run or go on with it, and tell what comes of it."""
    _Here.parent, _Here.log = parent, case.folder / f"{run_id}.{LOG}"
    async with case.opened() as storage:
        parent.tell("ready")
        try:
            if await storage.catalog.head_or_none(run_id) is None:
                run = await ten_turns().start(ROUNDS, run_id=run_id, storage=storage)
            else:
                run = await ten_turns().resume(run_id=run_id, storage=storage)
        except RunPoisoned:
            parent.tell("poisoned")
            return
        parent.tell("driving")
        outputs = (await run.wait_for_completion()).outputs
        parent.tell(f"done {json.dumps(outputs)}")


async def look(parent: Parent, case: Case, run_id: str) -> None:
    """Answer where the run stands: why it was given up, its committed supersteps, and what the journal lists."""
    async with case.whole() as storage:
        head = await storage.catalog.head_or_none(run_id)
        if head is None:
            answer(parent, None)
            return
        (run,) = [run for run in await storage.list_runs(limit=None) if run.run_id == run_id]
        well = run.interrupted or run.status is RunStatus.COMPLETED or run.reason.startswith("RunPoisoned")
        expect(well, f"{run} belongs to a process that is dead")
        report = await storage.verify()
        expect(report.ok, f"after a kill the storage has problems: {report.problems[:3]}")
        latest = await storage.get_latest(run_id=run_id)
        assert latest is not None
        committed = latest.superstep - (latest.phase is Phase.START)
        notes = await unbundled(await storage.store.notes(RunId(run_id)), storage.catalog.blobs(head.family))
        keys = [json.loads(note.key) for note in notes.notes]
        answer(parent, [run.reason, committed, keys])


# -- the campaign ----------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What may not happen again in one run, and all that happened in it."""

    run_id: str
    log: Path
    committed: int = 0
    turns: set[tuple[int, str]] = field(default_factory=set)
    effects: set[tuple[int, str, str]] = field(default_factory=set)
    given: dict[tuple[int, str, str], str] = field(default_factory=dict)
    """The results of effects that turns were given."""
    keys: dict[tuple[int, str, str], str] = field(default_factory=dict)
    last: dict[tuple[int, str, str], str] = field(default_factory=dict)
    """What each effect gave when it last happened."""
    repeated: int = 0
    """Effects that happened again, which they may before their results are journaled."""
    idle: int = 0
    """How many processes in a row took the run no further."""
    _read: int = 0

    def take_in(self) -> None:
        """What ran in the life of one more process."""
        lines = [json.loads(line) for line in lines_of(self.log)]
        for what, superstep, who, name, key, nonce in lines[self._read :]:
            self._check_again(what, superstep, who, name)
            effect = superstep, who, name
            if what == "effect":
                known = self.keys.setdefault(effect, key)
                expect(known == key, f"{effect} was repeated with another key: {known}, then {key}")
                self.repeated += effect in self.last
                self.last[effect] = nonce
            elif what == "given":
                expect(
                    self.given.setdefault(effect, nonce) == nonce,
                    f"{effect} gave {self.given[effect]}, and another time {nonce}",
                )
        self._read = len(lines)

    def _check_again(self, what: str, superstep: int, who: str, name: str) -> None:
        place = f"in superstep {superstep} of {self.run_id}"
        expect(superstep > self.committed, f"{what} of {who} ran again {place}, which was committed")
        expect(
            (superstep, who) not in self.turns, f"{what} of {who} ran again {place}: its turn was journaled"
        )
        if what == "effect":
            again = (superstep, who, name) in self.effects
            expect(not again, f"effect {name} of {who} was repeated {place}, though it was journaled")

    def stands(self, committed: int, notes: list[list[str]]) -> None:
        """What the store says after that life: from now on none of it may run again."""
        expect(committed >= self.committed, f"{self.run_id} went back from superstep {self.committed}")
        before = self.committed, len(self.turns), len(self.effects)
        self.committed = committed
        self.turns |= {(committed + 1, key[1]) for key in notes if key[0] == "turn"}
        self.effects |= {(committed + 1, key[1], key[2]) for key in notes if key[0] == "once"}
        moved = before != (committed, len(self.turns), len(self.effects))
        self.idle = 0 if moved else self.idle + 1
        for effect in self.given:
            kept = effect[0] <= committed or effect in self.effects or effect[:2] in self.turns
            expect(
                kept, f"{effect} was acknowledged to its turn, but after the kill it is not in the journal"
            )

    def ends_with(self, outputs: list[Any], whole: list[Any]) -> None:
        """What came of the run: the same as of one that nobody disturbed, and of the effects that counted."""
        for _, nonces in outputs[:-1]:
            for *effect, nonce in nonces:
                known = self.last.get(tuple(effect))
                expect(
                    known == nonce, f"{effect} gave {known} when it last happened, but the run has {nonce}"
                )
        expect(_plain(outputs) == _plain(whole), f"{self.run_id} gave out {outputs}, not {whole}")
        distinct = len(set(self.keys.values()))
        expect(distinct == TURNS * ROUNDS, f"{TURNS * ROUNDS} turns had {distinct} keys")


def _plain(outputs: list[Any]) -> list[Any]:
    """Outputs without what is another each time."""
    return [[total, [effect[:-1] for effect in nonces]] for total, nonces in outputs[:-1]] + outputs[-1:]


@dataclass
class Campaign:
    """Kills so many children, and says what went wrong."""

    case: Case
    kills: int
    seed: int
    killed: int = 0
    inside: int = 0
    """Kills that left something in the journal."""
    runs: int = 0
    kept: int = 0
    """Turns and effects that the journal kept from running again."""
    repeated: int = 0
    poisoned: int = 0

    def play(self) -> None:
        """Kill, look and go on; the last run goes on to its end. Raises ``Wrong``."""
        chance = random.Random(self.seed)
        undisturbed = self.case.ask(whole)
        while self.killed < self.kills:
            run_id = f"run{self.runs}"
            self.runs += 1
            ledger = Ledger(run_id, self.case.folder / f"{run_id}.{LOG}")
            ledger.ends_with(self._one_run(ledger, chance), undisturbed)
            self.kept += len(ledger.turns) + len(ledger.effects)
            self.repeated += ledger.repeated

    def _one_run(self, ledger: Ledger, chance: random.Random) -> list[Any]:
        while True:
            lines = self._one_life(ledger.run_id, None if self.killed >= self.kills else chance)
            ledger.take_in()
            stands = self.case.ask(look, ledger.run_id)
            if stands is not None:
                reason, committed, notes = stands
                ledger.stands(committed, notes)
                self.inside += bool(notes)
                self.poisoned += bool(reason)
                early = reason and ledger.idle <= MOST_TAKEOVERS
                expect(not early, f"{ledger.run_id} was given up after {ledger.idle} processes: {reason}")
            for line in lines:
                if line.startswith("done "):
                    outputs: list[Any] = json.loads(line[5:])
                    return outputs

    def _one_life(self, run_id: str, chance: random.Random | None) -> list[str]:
        """What a child told until it ended or was killed."""
        with self.case.child(go_on, run_id) as child:
            ended = self._ended(child, chance)
            child.kill()
        over = [line for line in child.told if line == "poisoned" or line.startswith("done ")]
        self.killed += not ended and not over
        expect(over or not ended, f"{run_id} ended by itself without a result: {child.told[-3:]}")
        return child.told

    def _ended(self, child: Child, chance: random.Random | None) -> bool:
        """Wait for the moment to kill a child; whether it ended before that."""
        if chance is None:
            child.finish()
            return True
        # After so many words of the child, so that it comes far enough on a busy machine too; then some time.
        word, most = chance.choices([("", 1), ("ready", 1), ("effect", 8), ("given", 8)], [1, 1, 4, 4])[0]
        if word and child.ended_before(word, chance.randint(1, most)):
            return True
        return child.ended_within(chance.expovariate(1 / 0.01))


def main(arguments: list[str] | None = None) -> int:
    """Play a campaign from the command line; 0 if nothing went wrong."""
    parser = parser_for("Kill processes inside supersteps of ten turns.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)

    def play(case: Case) -> None:
        campaign = Campaign(case, given.kills, seed)
        try:
            campaign.play()
        finally:
            print(
                f"{campaign.killed} kills, {campaign.inside} of them left a journal, {campaign.runs} runs, "
                f"{campaign.kept} turns and effects not run again, {campaign.repeated} effects repeated, "
                f"{campaign.poisoned} times poisoned"
            )

    return told(tried(play, given.store, given.planted))


if __name__ == "__main__":
    sys.exit(main())
