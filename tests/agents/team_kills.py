"""Kills a process at every model call of a team of agents, and lets another one go on.

``python -m tests.agents.team_kills TEAM FOLDER`` prints as ``tests.agents.kills`` does.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import CheckpointStorage, RunStatus, SqliteCheckpointStorage, Workflow
from holdfast.agents import AgentCallEvent, AgentReply, AgentRequest, AgentWorkflow, function
from holdfast.agents.activation import ActivationLog, digest_of
from holdfast.agents.orchestrations import (
    ProgressLedger,
    TurnReview,
    concurrent,
    group_chat,
    handoff,
    planner,
    sequential,
)
from tests.agents.kills import campaign
from tests.agents.world import World

RUN = "killed"


class Cast:
    """Makes agents whose calls happen in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.begun: dict[str, str] = {}
        """The last call of each executor."""

    def agent(self, name: str, answer: Callable[[AgentRequest], Any]) -> function.FunctionAgent:
        def act(request: AgentRequest) -> Any:
            self.begun[name] = f"{name} {digest_of([request.prompt, request.output_types != ()])}"
            self.world.happen(f"begin {self.begun[name]}")
            said = answer(request)
            self.world.happen(f"end {self.begun[name]}")
            return said

        return function.wrap(act, name=name)


def make_sequential(cast: Cast, storage: CheckpointStorage) -> Workflow:
    agents = [cast.agent(name, lambda request: f"{request.prompt}+") for name in ("a", "b", "c")]
    return sequential(*agents, storage=storage, ask_after=["b"])


def make_concurrent(cast: Cast, storage: CheckpointStorage) -> Workflow:
    agents = [cast.agent(name, lambda request: f"{request.prompt}+") for name in ("a", "b", "c")]
    total = cast.agent("sum", lambda request: request.prompt)
    return concurrent(*agents, storage=storage, aggregate=total, ask_after=["b"])


def make_group_chat(cast: Cast, storage: CheckpointStorage) -> Workflow:
    choices = {"": "a", "a": "b", "b": "c", "c": "end"}
    last = lambda request: request.prompt.rpartition(": ")[0].rpartition("\n")[2]  # noqa: E731
    boss = cast.agent("boss", lambda request: AgentReply("", handoff=choices[last(request)]))
    agents = [cast.agent(name, lambda request: f"heard {len(request.prompt)}") for name in ("a", "b", "c")]
    return group_chat(agents, select=boss, storage=storage)


def make_handoff(cast: Cast, storage: CheckpointStorage) -> Workflow:
    first = cast.agent("a", lambda request: AgentReply("to b", handoff="b"))
    second = cast.agent(
        "b", lambda request: AgentReply("", handoff="c") if "more" in request.prompt else "fine"
    )
    third = cast.agent("c", lambda request: "the end")
    return handoff(
        first,
        {"a": [second], "b": [third]},
        asks_user=True,
        until=lambda talk: talk.author == "c",
        storage=storage,
    )


def make_planner(cast: Cast, storage: CheckpointStorage) -> Workflow:
    def manage(request: AgentRequest) -> Any:
        if request.output_types:
            done = "a: did" in request.prompt and "b: did" in request.prompt
            return ProgressLedger(done, True, "b" if "a: did" in request.prompt else "a", "do it")
        return f"a text of {len(request.prompt)}"

    agents = [cast.agent(name, lambda request: f"did {len(request.prompt)}") for name in ("a", "b")]
    return planner(cast.agent("boss", manage), agents, storage=storage, review_plan=True, ask_after=["a"])


def make_agent_workflow(cast: Cast, storage: CheckpointStorage) -> Workflow:
    """Return a team with a router, a join behind a branch that is not taken, a loop and an approval."""
    route = cast.agent("route", lambda request: AgentReply("", handoff="write"))
    write = cast.agent("write", lambda request: f"{request.prompt}+")
    never = cast.agent("never", lambda request: "never")
    review = cast.agent("review", lambda request: "good" if request.prompt.endswith("++") else request.prompt)
    join = cast.agent("join", lambda request: request.prompt)
    return (
        AgentWorkflow.create()
        .with_name("Killed")
        .with_checkpointing(storage)
        .add_router_agent("route", route, {"write": "", "never": ""})
        .add_agent("facts", cast.agent("facts", lambda request: "facts"))
        .add_agent("write", write, input_template="{{review.answer}}", context={"review.answer": "task"})
        .add_agent("never", never)
        .add_agent("review", review, input_key="write.answer")
        .add_agent("join", join, input_template="{{facts.answer}} {{write.answer}}", requires_approval=True)
        .from_("write").to("review")
        .from_("review").to("write").when_not_equals("answer", "good")
        .from_("review").to("join").when_equals("answer", "good")
        .from_("facts", "never").to("join")
        .build()
    )  # fmt: skip


TEAMS = {
    "agent_workflow": make_agent_workflow,
    "concurrent": make_concurrent,
    "group_chat": make_group_chat,
    "handoff": make_handoff,
    "planner": make_planner,
    "sequential": make_sequential,
}


async def live(team: str, folder: Path, world: World) -> dict[str, Any]:
    cast = Cast(world)
    async with SqliteCheckpointStorage(folder / "store.db") as storage:
        workflow = TEAMS[team](cast, storage)
        known = any(run.run_id == RUN for run in await storage.list_runs())
        run = await (workflow.resume(run_id=RUN) if known else workflow.start("task", run_id=RUN))
        while True:
            async for event in run.watch_stream():
                if isinstance(event, AgentCallEvent) and not event.replayed:
                    name = "boss" if event.executor_id in ("plan", "ledger", "answer") else event.executor_id
                    world.happen(f"recorded {cast.begun[name]}")
            result = await run.wait_for_completion()
            if not result.pending_requests:
                break
            for request in result.pending_requests:
                await run.send_response(request.request_id, answer_to(request.data))
        assert result.status is RunStatus.COMPLETED, result
        (output,) = result.outputs
        said = output if isinstance(output, str) else [[one.author, one.text] for one in output.messages]
        return {"said": said}


def answer_to(data: Any) -> bool | str:
    if isinstance(data, TurnReview) and data.author == "b" and data.text == "task+":
        return "again"
    return "more" if isinstance(data, TurnReview) and data.author != "a" and data.text != "again+" else True


def repeated(lines: list[str]) -> list[str]:
    """Return calls that were begun again though their outcome was recorded."""
    wrong = []
    for number, line in enumerate(lines):
        if line.startswith("recorded "):
            begin = line.replace("recorded ", "begin ")
            wrong += [begin] if begin in lines[number:] else []
    return wrong


def plant_nothing_recorded() -> None:
    """Plant a bug: calls are made anew whenever a turn runs again."""

    async def outcome_of(log: Any, name: str, digest: str, perform: Any) -> Any:
        log.activation.outcomes[name] = await perform()
        return log.activation.outcomes[name], False

    setattr(ActivationLog, "outcome_of", outcome_of)  # noqa: B010


def main(team: str, root: Path, plant: str = "") -> int:
    if plant:
        {"nothing-recorded": plant_nothing_recorded}[plant]()
    return campaign(root, partial(live, team), repeated)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
