"""Kills processes that work on random teams, at random calls of agents, and lets others go on.

``python -m tests.agents.team_graph_kills [FOLDER] --teams 50 --kills 5`` prints one line of JSON for each kill that
went wrong, and how many there were.
"""

import argparse
import json
import random
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from holdfast import (
    CheckpointStorage,
    FileCheckpointStorage,
    GraphError,
    Retention,
    RunStatus,
    SqliteCheckpointStorage,
    WorkflowCompletedEvent,
)
from holdfast.agents import AgentCallEvent, AgentReply, AgentRequest
from holdfast.agents.workflow.team_messages import TeamJoin
from holdfast.runtime.step.context import TurnContext
from tests.agents.kills import in_child
from tests.agents.team_graphs import RandomTeam, answer_to, random_teams
from tests.agents.world import World

RUN = "killed"


class ToldTeam(RandomTeam):
    """A random team whose calls happen in a world."""

    world: World

    def reply(self, number: int, request: AgentRequest) -> AgentReply:
        self.world.happen(f"begin n{number}")
        try:
            return super().reply(number, request)
        finally:
            self.world.happen(f"end n{number}")


def open_store(folder: Path, keeps_all: bool) -> CheckpointStorage:
    """Return a store in a folder: one that keeps every checkpoint, or one of JSON files that keeps the newest."""
    if keeps_all:
        return SqliteCheckpointStorage(folder / "store.db")
    return FileCheckpointStorage(folder / "store", retention=Retention.latest_only())


async def live(team: RandomTeam, folder: Path, world: World) -> dict[str, Any]:
    """Begin the run, or go on with it, and return what it came to."""
    told = ToldTeam(team.nodes, team.forward, team.back)
    object.__setattr__(told, "world", world)
    async with open_store(folder, len(team.nodes) % 2 == 0) as storage:
        workflow = told.build(storage)
        run = await workflow.start("", run_id=RUN, if_exists="attach")
        while True:
            try:
                async for event in run.watch_stream():
                    if isinstance(event, AgentCallEvent) and not event.replayed and event.error is None:
                        world.happen(f"recorded {event.executor_id}")
            except Exception as error:  # a team may fail by its rules
                await run.close()
                return {"failed": type(error).__name__, "cause": type(error.__cause__).__name__}
            result = await workflow.result_of(run)
            if not result.pending_requests:
                break
            await run.respond({one.request_id: answer_to(one) for one in result.pending_requests})
        assert result.status is RunStatus.COMPLETED, result
        await run.close()
        ends = [event async for event in storage.watch(RUN) if isinstance(event, WorkflowCompletedEvent)]
        counts = [[event.succeeded, event.failed, event.skipped, event.success] for event in ends]
        return {"answer": result.final_answer, "outputs": result.outputs, "counts": counts}


def begun(lines: list[str]) -> int:
    return sum(line.startswith("begin ") for line in lines)


def complaints_of(whole: list[str], before: list[str], lines: list[str]) -> list[str]:
    """Say which calls were made too often in a run that was killed after the lines ``before``, and went on."""
    found = []
    under_way = begun(before) - sum(line.startswith("recorded ") for line in before)
    if begun(lines) > begun(whole) + under_way:
        found.append(f"{begun(lines)} calls were begun, not {begun(whole)} and {under_way} that were cut off")
    return found


class Campaign:
    """Kills runs of random teams in a folder."""

    def __init__(self, root: Path, kills: int) -> None:
        self._root = root
        self._kills = kills
        self._choose = random.Random(7)
        self.killed = 0
        self.wrong = 0
        self._teams = 0

    def kill(self, team: RandomTeam) -> None:
        """Run a team whole, then kill it at random lines of its world."""
        try:
            team.build()
        except GraphError as error:
            if "cross each other" not in str(error):
                raise
            return
        self._teams += 1
        root = self._root / f"team-{self._teams}"
        whole = root / "whole"
        whole.mkdir(parents=True)
        status, expected = in_child(partial(live, team), whole, None)
        assert (status, expected is None) == (0, False), f"the run without a kill ended with {status}"
        lines = World(whole).lines()
        for kill_at in sorted(self._choose.sample(range(1, len(lines) + 1), min(self._kills, len(lines)))):
            self._kill_at(team, root / f"kill-{kill_at}", kill_at, lines, expected)
        shutil.rmtree(root)

    def _kill_at(self, team: RandomTeam, folder: Path, kill_at: int, whole: list[str], expected: Any) -> None:
        folder.mkdir()
        killed, _ = in_child(partial(live, team), folder, kill_at)
        before = World(folder).lines()  # agents work side by side: there may be more than up to the kill
        ended, reply = in_child(partial(live, team), folder, None)
        found = complaints_of(whole, before, World(folder).lines())
        if reply != expected:
            found.append(f"it came to {reply}, not to {expected}")
        if killed != 9 or ended != 0:
            found.append(f"the processes ended with {killed} and {ended}, not with 9 and 0")
        self.killed += 1
        if found:
            self.wrong += 1
            print(json.dumps({"team": repr(team), "kill_at": kill_at, "wrong": found}))


def plant_join_in_memory(replace: Callable[[Any, str, Any], object] = setattr) -> None:
    """Plant a bug: the tokens that came to an agent are in the memory of the process, and not in the state."""
    read, update = TurnContext.read_state, TurnContext.queue_state_update
    joins: dict[tuple[str, str], Any] = {}

    async def read_memory(ctx: Any, key: Any, *more: Any, **options: Any) -> Any:
        found = await read(ctx, key, *more, **options)
        return deepcopy(joins.get((ctx.run_id, ctx.executor_id), found)) if key == "join" else found

    async def write_memory(ctx: Any, key: Any, value: Any, *more: Any, **options: Any) -> None:
        if key == "join":
            joins[ctx.run_id, ctx.executor_id] = deepcopy(value)
            value = TeamJoin()
        await update(ctx, key, value, *more, **options)

    replace(TurnContext, "read_state", read_memory)
    replace(TurnContext, "queue_state_update", write_memory)


def main() -> int:
    parser = argparse.ArgumentParser(description="kill random teams of agents")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--teams", type=int, default=50)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", choices=["join-in-memory"])
    given_arguments = parser.parse_args()
    if given_arguments.plant:
        plant_join_in_memory()
    with TemporaryDirectory() as temporary:
        campaign = Campaign(given_arguments.folder or Path(temporary), given_arguments.kills)
        run_campaign(campaign, given_arguments.teams, given_arguments.seed)
    print(json.dumps({"kills": campaign.killed, "wrong": campaign.wrong}))
    return 1 if campaign.wrong else 0


def run_campaign(campaign: Campaign, teams: int, number: int) -> None:
    """Let the campaign kill random teams, which the seed ``number`` chooses."""

    @seed(number)
    @settings(
        max_examples=teams,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random_teams())
    def kill(team: RandomTeam) -> None:
        campaign.kill(team)

    kill()


if __name__ == "__main__":
    sys.exit(main())
