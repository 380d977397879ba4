"""A team that is stopped after any commit, or killed in any call, goes on and comes to the same answer."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast import Retention
from holdfast.agents import AgentRequest, AgentWorkflow, WorkflowAgentCompletedEvent
from holdfast.testing import assert_resumable


def write(request: AgentRequest) -> str:
    return f"{request.prompt}!"


def review(prompt: str) -> str:
    return "good" if prompt.endswith("!!!") else prompt


def post_mortem() -> AgentWorkflow:
    """Return a team with a loop, a branch that is not taken, a join and an approval."""
    return (
        AgentWorkflow.create()
        .with_name("Stopped")
        .with_timeout(600)
        .add_agent("facts", lambda p: f"facts of {p}", output_key="facts")
        .add_agent("write", write, input_template="{{review.answer}}", context={"review.answer": "text"})
        .add_agent("review", review, input_key="write.answer")
        .add_agent("never", write)
        .add_agent("join", lambda p: p, lambda node: node.with_input_template("{{facts}}, {{write.answer}}"))
        .add_agent("publish", lambda p: f"published {p}", input_key="join.answer", requires_approval=True)
        .from_("START").to("write", "facts")
        .from_("write").to("review")
        .from_("review").to("write").when_not_equals("answer", "good")
        .from_("review").to("never").when_empty("answer")
        .from_("review").to("join").when_equals("answer", "good")
        .from_("facts", "never").to("join")
        .from_("join").to("publish")
        .build()
    )  # fmt: skip


def timeless(value: Any) -> Any:
    """Return a value without the times that differ from run to run."""
    if isinstance(value, float):
        return 0.0
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [timeless(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value) if one.name not in ("run_id", "timestamp")]
        return [type(value).__name__, *(timeless(getattr(value, name)) for name in names)]
    return value


async def test_a_team_is_stopped_after_every_commit() -> None:
    await assert_resumable(post_mortem, "kelp", answer=lambda request: True, normalize=timeless)


PROGRAM = """
import asyncio, json, os, signal, sys
from pathlib import Path
from holdfast import Retention
from holdfast.agents import AgentWorkflow

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])


def happens(what):
    with open(folder / "log", "a") as log:
        log.write(what + "\\n")
    if len((folder / "log").read_text().splitlines()) == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def agent(name, answer):
    def work(prompt):
        happens(f"begin {name} {prompt}")
        found = answer(prompt)
        happens(f"end {name} {prompt}")
        return found
    return work


workflow = (
    AgentWorkflow.create().with_name("Killed").with_json_workflow_store(folder / "store")
    .add_agent("write", agent("write", lambda p: p + "!"), input_template="{{review.answer}}",
               context={"review.answer": "text"})
    .add_agent("review", agent("review", lambda p: "good" if p.endswith("!!") else p), input_key="write.answer")
    .add_agent("publish", agent("publish", str.upper), input_key="write.answer")
    .from_("START").to("write").from_("write").to("review")
    .from_("review").to("write").when_not_equals("answer", "good")
    .from_("review").to("publish").as_default()
    .build()
)


async def main():
    result = await workflow.run("kelp", run_id="r", if_exists="attach")
    print(json.dumps([result.final_answer, result.outputs]))


asyncio.run(main())
"""


def live(folder: Path, kill_at: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(folder), str(kill_at)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_team_is_killed_in_and_after_calls(tmp_path: Path) -> None:
    """Latest only is the retention here: the newest checkpoint is never lost."""
    (tmp_path / "whole").mkdir()
    whole = live(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    expected = json.loads(whole.stdout)
    assert expected[0] == "TEXT!!"
    count = len((tmp_path / "whole" / "log").read_text().splitlines())
    assert count == 10
    for kill_at in range(1, count + 1, 4):
        folder = tmp_path / f"kill-{kill_at}"
        folder.mkdir()
        assert live(folder, kill_at).returncode == -9
        done = live(folder, 0)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == expected
        lines = (folder / "log").read_text().splitlines()
        # The call under way is repeated, and nothing else: one line more for a kill in a call, two for one at its end.
        assert len(lines) - count in (1, 2)


async def test_events_of_turns_that_were_over_are_marked(tmp_path: Path) -> None:
    """Of two agents side by side one fails: the other is done, and is not asked again."""
    down = [True]

    def flaky(prompt: str) -> str:
        if down[0]:
            raise ConnectionError("gone")
        return "back"

    def build() -> AgentWorkflow:
        return (
            AgentWorkflow.create()
            .with_name("Two")
            .with_json_workflow_store(tmp_path, Retention.latest_only())
            .add_agent("sound", write)
            .add_agent("flaky", flaky)
            .build()
        )

    assert not (await build().run("x", run_id="r")).success
    down[0] = False
    run = await build().resume(run_id="r")
    done = [event async for event in run.watch_stream() if isinstance(event, WorkflowAgentCompletedEvent)]
    assert {event.agent: event.replayed for event in done} == {"sound": True, "flaky": False}
    assert (await run.wait_for_completion()).outputs == ["x!\n\nback"]
