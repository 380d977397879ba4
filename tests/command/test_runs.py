"""``holdfast runs``: on a store of any kind, without the code of the workflow."""

import asyncio
import json
import time
from pathlib import Path

import click
import pytest

from holdfast import ExecutorInvokedEvent, RunInfo, open_storage
from holdfast.agents import AgentCallEvent, AgentUsage
from holdfast.cli.driver import ProgressView
from holdfast.cli.event_text import render_event
from holdfast.cli.output import CommandOutput
from holdfast.ids import ExecutorId
from tests.command.conftest import Command
from tests.support import shop

FORMS = Path(__file__).parents[1] / "unit/json_forms"


def stored(url: str, run_id: str) -> RunInfo:
    async def read() -> RunInfo:
        async with open_storage(url, read_only=True) as storage:
            return await storage.get_run(run_id)

    return asyncio.run(read())


def test_ls_shows_the_last_changed_first(shopping: Command) -> None:
    done = shopping("runs", "ls")
    assert (done.code, done.err) == (0, "")
    title, *lines = done.out.splitlines()
    assert title.split() == ["RUN", "WORKFLOW", "STATUS", "CHANGED", "NOTE"]
    assert [line.split()[0] for line in lines] == ["broken-1", "order-3", "order-2", "order-1"]
    assert "there is no price of nothing" in lines[0]
    assert "for answers" in lines[1]


def test_ls_gives_pages(shopping: Command) -> None:
    first = shopping("runs", "ls", "--limit", "3", "--json")
    assert [run["run_id"] for run in first.json["runs"]] == ["broken-1", "order-3", "order-2"]
    rest = shopping("runs", "ls", "--limit", "3", "--json", "--after", first.json["next"])
    assert [run["run_id"] for run in rest.json["runs"]] == ["order-1"]
    assert rest.json["next"] is None
    told = shopping("runs", "ls", "--limit", "3")
    assert told.err == "there are more: --after order-2\n"
    assert len(told.out.splitlines()) == 4


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--status", "waiting"], ["order-3", "order-2"]),
        (["--workflow", "Other"], []),
        (["--text", "PRICE OF"], ["broken-1"]),
        (["--interrupted"], []),
        (["--status", "interrupted"], []),
    ],
)
def test_ls_filters(shopping: Command, filters: list[str], found: list[str]) -> None:
    done = shopping("runs", "ls", "--json", *filters)
    assert [run["run_id"] for run in done.json["runs"]] == found


def test_ls_of_nothing_says_so_beside_the_data(shopping: Command) -> None:
    done = shopping("runs", "ls", "--workflow", "Other")
    assert done == (0, "", "no runs\n")


def test_a_run_that_asks_shows_how_to_answer(shopping: Command) -> None:
    done = shopping("runs", "show", "order-2")
    assert done.code == 0
    assert '{"$type": "Order", "item": "salt", "price": 40}' in done.out
    assert "holdfast requests answer order-2 REQUEST --value JSON" in done.out


def test_a_run_that_failed_shows_where(shopping: Command) -> None:
    done = shopping("runs", "show", "broken-1")
    assert done.code == 0
    assert "ValueError: there is no price of nothing" in done.out
    assert f'File "{shop.__file__}"' in done.out


def test_it_says_what_goes_on_with_a_run(shopping: Command) -> None:
    line = "go on with: holdfast runs resume broken-1 MODULE:WORKFLOW\n"
    assert shopping("runs", "show", "broken-1").out.endswith(line)
    assert "go on with" not in shopping("runs", "show", "order-1").out


def test_a_verb_without_its_noun_names_the_nouns_that_have_it(shopping: Command) -> None:
    done = shopping("tree", "order-1")
    assert done.code == 2
    assert "Did you mean holdfast checkpoint tree?" in done.err
    assert "holdfast runs ls or holdfast requests ls or holdfast checkpoint ls" in shopping("ls").err
    assert "Did you mean" not in shopping("nonsense").err


def test_a_run_shows_its_forks(shopping: Command, url: str) -> None:
    async def fork() -> None:
        async with open_storage(url) as storage:
            (first, *_) = await storage.list_checkpoints(run_id="broken-1")
            run = await shop.build(storage).fork(first, run_id="second-try", edits={})
            await run.close()

    asyncio.run(fork())
    assert "second-try" in shopping("runs", "show", "broken-1").out
    assert shopping("runs", "show", "broken-1", "--json").json["forks"] == ["second-try"]
    origin = shopping("runs", "show", "second-try", "--json").json["run"]["forked_from"]
    assert origin["run_id"] == "broken-1"


@pytest.mark.parametrize("name", ["b", "broken", "broken-1", "@latest"])
def test_a_run_is_named_by_a_unique_beginning_or_as_the_latest(shopping: Command, name: str) -> None:
    assert shopping("runs", "show", name, "--json").json["run"]["run_id"] == "broken-1"


def test_an_ambiguous_beginning_names_what_it_could_mean(shopping: Command) -> None:
    done = shopping("runs", "show", "order")
    assert done.code == 2
    assert done.out == ""
    assert all(repr(f"order-{number}") in done.err for number in (1, 2, 3))


def test_a_whole_id_is_no_beginning_of_others(shopping: Command, url: str) -> None:
    async def add() -> None:
        async with open_storage(url) as storage:
            await shop.build(storage).run("nori", run_id="order-22")

    asyncio.run(add())
    assert shopping("runs", "show", "order-2", "--json").json["run"]["run_id"] == "order-2"


def test_cancel_ends_a_run_that_nobody_drives(shopping: Command, url: str) -> None:
    done = shopping("runs", "cancel", "order-2", "--by", "kim")
    assert done == (0, "order-2 is cancelled\n", "")
    assert (stored(url, "order-2").status.value, stored(url, "order-2").by) == ("cancelled", "kim")


def test_cancel_leaves_a_run_that_is_over(shopping: Command, url: str) -> None:
    assert shopping("runs", "cancel", "order-1").out == "order-1 is completed\n"
    assert stored(url, "order-1").status.value == "completed"


def test_a_message_reaches_the_run(shopping: Command, url: str, tmp_path: Path) -> None:
    assert shopping("runs", "send", "order-1", "--value", '"nori"', "--key", "m1").code == 0
    (tmp_path / "message.json").write_text('"nori"')
    again = ["--value-file", str(tmp_path / "message.json"), "--key", "m1"]
    assert shopping("runs", "send", "order-1", *again).code == 0

    async def go_on() -> list[str]:
        async with open_storage(url) as storage:
            run = await shop.build(storage).resume(run_id="order-1")
            result = await run.wait_for_completion()
            return [request.data.item for request in result.pending_requests]

    assert asyncio.run(go_on()) == ["nori"]


@pytest.mark.parametrize("value", ["nori", "{", "NaN", "", "[" * 100_000])
def test_a_value_that_is_no_json_is_refused(shopping: Command, url: str, value: str) -> None:
    before = stored(url, "order-1")
    done = shopping("runs", "send", "order-1", "--value", value)
    assert done.code == 2
    assert "--value is no JSON" in done.err
    assert stored(url, "order-1") == before


def test_rm_asks_first(shopping: Command, url: str) -> None:
    refused = shopping("runs", "rm", "order-2", "order-3")
    assert refused.code == 2
    assert "order-2 (waiting, 4 checkpoints), order-3 (waiting, 4 checkpoints)" in refused.err
    assert "--yes" in refused.err
    assert stored(url, "order-2").run_id == "order-2"


def test_rm_tries_before_it_removes(shopping: Command, url: str) -> None:
    tried = shopping("runs", "rm", "order-2", "--dry-run")
    assert tried == (0, "would remove order-2 (waiting, 4 checkpoints)\n", "")
    assert stored(url, "order-2").run_id == "order-2"
    assert shopping("runs", "rm", "order-2", "--yes").code == 0
    assert shopping("runs", "show", "order-2").code == 5


def test_rm_of_several_removes_none_if_one_is_not_there(shopping: Command, url: str) -> None:
    assert shopping("runs", "rm", "order-2", "nobody", "--yes").code == 5
    assert stored(url, "order-2").run_id == "order-2"


@pytest.mark.parametrize(
    ("run", "code", "last"),
    [
        ("order-1", 0, "run is completed"),
        ("order-2", 3, "run is waiting for answers"),
        ("broken-1", 4, "executor 'price' failed"),
    ],
)
def test_watch_tells_the_story_and_how_it_ended(shopping: Command, run: str, code: int, last: str) -> None:
    done = shopping("runs", "watch", run)
    assert done.code == code
    lines = done.out.splitlines()
    assert lines[0].endswith("run of Shop begins")
    assert any(last in line for line in lines[-2:])


def test_watch_goes_on_behind_an_event(shopping: Command) -> None:
    import json

    lines = shopping("runs", "watch", "order-2", "--json").out.splitlines()
    events = [json.loads(line) for line in lines]
    rest = shopping("runs", "watch", "order-2", "--json", "--after", events[4]["event_id"])
    assert rest.out.splitlines() == lines[5:]


def test_control_characters_of_stored_texts_do_not_reach_the_terminal(shopping: Command, url: str) -> None:
    async def add() -> None:
        async with open_storage(url) as storage:
            await shop.build(storage).run("\x1b[31mred\nline", run_id="order-4")
            await storage.cancel("order-3", by="\x1b[2Jkim")

    asyncio.run(add())
    for arguments in (["runs", "ls"], ["runs", "show", "order-4"], ["runs", "watch", "order-3"]):
        done = shopping(*arguments)
        assert "\x1b" not in done.out, arguments
    assert "\\x1b[2Jkim" in shopping("runs", "ls").out


@pytest.mark.parametrize("name", sorted(path.stem for path in FORMS.glob("*Event.json")))
def test_each_event_is_told_in_words(name: str) -> None:
    line = render_event(json.loads((FORMS / f"{name}.json").read_text(encoding="utf-8")))
    if name == "WorkflowEvent":  # the base, as any event of a user's own
        assert line == "12:00:00  WorkflowEvent {}"
    elif name == "CheckpointSavedEvent":
        assert line is None
    else:
        assert line is not None
        assert name not in line


class TestAgents:
    """Calls of agents among the events of a run, and in the last line while it is driven."""

    def calls(self) -> list[AgentCallEvent]:
        return [
            AgentCallEvent("triage", "model", "", "model 1", AgentUsage(1200, 40, 1)),
            AgentCallEvent("triage", "tool", "search", "tool 1.c1"),
            AgentCallEvent("triage", "model", "", "model 2", AgentUsage(1300, 10, 1), replayed=True),
            AgentCallEvent("triage", "tool", "page", "tool 2.c1", error="no \x1broute"),
        ]

    def test_they_are_told_in_words(self) -> None:
        assert [click.unstyle(render_event(call.to_dict()) or "").strip() for call in self.calls()] == [
            "triage called the model, 1,240 tokens",
            "triage called the tool search",
            "triage called the model, as recorded before",
            'triage called the tool page, which failed: "no \\u001broute"',
        ]

    def test_tokens_are_counted_once(self) -> None:
        view = ProgressView(CommandOutput(False))
        view.show(ExecutorInvokedEvent(executor_id=ExecutorId("triage")))
        now = time.monotonic()
        assert view.text(now, 80) == "superstep 0: triage 0s"
        for call in self.calls():
            view.show(call)
        assert view.text(now, 80) == "superstep 0: triage 0s, 1,240 tokens"
