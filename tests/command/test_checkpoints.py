"""``holdfast checkpoint`` and ``holdfast state``: what runs held, without the code of the workflow."""

import asyncio
import json
import re

import pytest

from holdfast import CheckpointInfo, WorkflowBuilder, WorkflowContext, executor, open_storage
from tests.command.conftest import Command
from tests.support import shop


def checkpoints(url: str, run_id: str) -> list[CheckpointInfo]:
    async def read() -> list[CheckpointInfo]:
        async with open_storage(url, read_only=True) as storage:
            return [one.info for one in await storage.list_checkpoints(run_id=run_id)]

    return asyncio.run(read())


def go_back(url: str) -> None:
    """Let ``order-2`` go back to its first checkpoint and ask again, and fork it as ``other``."""

    async def work() -> None:
        async with open_storage(url) as storage:
            workflow = shop.build(storage)
            run = await workflow.resume(run_id="order-2")
            first = (await storage.list_checkpoints(run_id="order-2"))[0]
            await run.restore_checkpoint(first, by="kim")
            await run.wait_for_completion()
            fork = await workflow.fork(first, run_id="other")
            await fork.wait_for_completion()

    asyncio.run(work())


def test_ls_shows_them_oldest_first(shopping: Command, url: str) -> None:
    done = shopping("checkpoint", "ls", "order-2")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["SEQ", "ID", "STEP", "CAUSE", "STATUS", "ADDS", "MADE", "NOTE"]
    assert [line[0] for line in lines[1:]] == ["1", "2", "3", "4"]
    assert [line[1] for line in lines[1:]] == [one.checkpoint_id[:8] for one in checkpoints(url, "order-2")]


def test_ls_gives_pages(shopping: Command) -> None:
    first = shopping("checkpoint", "ls", "order-2", "--limit", "3", "--json").json
    rest = shopping("checkpoint", "ls", "order-2", "--limit", "3", "--json", "--after", first["next"]).json
    assert [one["seq"] for one in first["checkpoints"] + rest["checkpoints"]] == [1, 2, 3, 4]
    assert rest["next"] is None
    told = shopping("checkpoint", "ls", "order-2", "--limit", "3").err
    assert told == "there are more: --after order-2@3\n"
    assert [
        line.split()[0]
        for line in shopping("checkpoint", "ls", "order-2", "--after", "order-2@3").out.splitlines()
    ] == ["SEQ", "4"]


def test_the_tree_has_restores_and_forks(shopping: Command, url: str) -> None:
    go_back(url)
    for name in ("order-2", "other"):
        drawn = shopping("checkpoint", "tree", name).out
        assert "run order-2" in drawn
        assert "run other" in drawn
        assert "by kim" in drawn
        plain = shopping("checkpoint", "tree", name, "--ascii").out
        assert plain.isascii()
        data = shopping("checkpoint", "tree", name, "--json").json["checkpoints"]
        assert {one["run_id"] for one in data} == {"order-2", "other"}
        known = {one["checkpoint_id"] for one in data}
        assert [one["seq"] for one in data if one["parent_id"] not in known] == [1]


def test_ls_says_what_was_left_behind(shopping: Command, url: str) -> None:
    go_back(url)
    lines = shopping("checkpoint", "ls", "order-2").out.splitlines()
    assert [line.split()[0] for line in lines if "left behind by 5" in line] == ["2", "3", "4"]
    assert lines[5].endswith("  by kim")


def test_the_tree_has_sizes_and_fits_a_narrow_terminal(
    shopping: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_back(url)
    drawn = shopping("checkpoint", "tree", "order-2").out.splitlines()
    for one in checkpoints(url, "order-2"):
        added = f", {one.new_bytes} B" if one.new_bytes else ""
        assert any(f" {one.seq} {one.phase} {one.superstep}" in line and added in line for line in drawn)
    monkeypatch.setenv("COLUMNS", "30")
    narrow = shopping("checkpoint", "tree", "order-2").out.splitlines()
    assert max(map(len, narrow)) <= 30
    assert "".join(narrow).split("order")[0].count("●") > 0
    wrapped = [line for line in narrow if not re.match(r"[ │├└─]*[●◉┆]", line)]
    assert wrapped
    assert all(line.startswith(("│   ", "  ")) for line in wrapped)  # beside its branch, and below its words


def test_show_has_all_that_a_checkpoint_holds(shopping: Command) -> None:
    done = shopping("checkpoint", "show", "order-2")
    assert done.code == 0
    assert "state of scope Cart\n" in done.out
    assert '  item: "salt"\n' in done.out
    assert 'Approve.2.1 of Approve: {"$type": "Order", "item": "salt", "price": 40}' in done.out
    assert 'outside -> price: "salt"' in shopping("checkpoint", "show", "order-2@1").out
    assert '  1: "kelp: sent"' in shopping("checkpoint", "show", "order-1").out


def test_show_cuts_long_values_unless_asked(shopping: Command, url: str) -> None:
    async def add() -> None:
        async with open_storage(url) as storage:
            await shop.build(storage).run("nori" * 1000, run_id="long")

    asyncio.run(add())
    shown = shopping("checkpoint", "show", "long").out.splitlines()
    assert max(map(len, shown)) <= 200
    (line,) = [line for line in shown if "item" in line and "Cart" not in line and "$type" not in line]
    assert line.endswith("… 4.0 kB")
    assert "nori" * 1000 in shopping("checkpoint", "show", "long", "--full").out
    assert shopping("checkpoint", "show", "long", "--json").json["state"] == {"Cart": {"item": "nori" * 1000}}


def test_show_has_a_limit_for_many_values(shopping: Command, url: str) -> None:
    @executor
    async def many(count: int, ctx: WorkflowContext[None, str]) -> None:
        for number in range(count):
            await ctx.queue_state_update(f"key-{number:03}", number, scope_name="Many")
        await ctx.yield_output("done")

    async def add() -> None:
        async with open_storage(url) as storage:
            builder = WorkflowBuilder(name="Many").set_start_executor(many).with_checkpointing(storage)
            await builder.build().run(150, run_id="many")

    asyncio.run(add())
    shown = shopping("checkpoint", "show", "many").out
    assert "key-099: 99\n  50 more: --full shows them\n" in shown
    assert "key-149: 149" in shopping("checkpoint", "show", "many", "--full").out
    assert len(shopping("checkpoint", "show", "many", "--json").json["state"]["Many"]) == 150


def test_diff_compares_any_two(shopping: Command) -> None:
    done = shopping("checkpoint", "diff", "order-2", "order-3")
    assert done.code == 0
    assert "~ Cart['item']: 'salt' -> 'dulse'" in done.out
    data = shopping("checkpoint", "diff", "order-2@1", "order-2", "--json").json
    assert [one["where"] for one in data["state"]] == ["Cart['item']"]


def test_tag_names_a_checkpoint_and_takes_the_name_away(shopping: Command, url: str) -> None:
    assert (
        shopping("checkpoint", "tag", "order-2@2", "good", "kept", "--by", "kim").out
        == "order-2@2 has good, kept\n"
    )
    assert checkpoints(url, "order-2")[1].tagged_by == {"good": "kim", "kept": "kim"}
    assert "#good, #kept" in shopping("checkpoint", "ls", "order-2").out
    assert shopping("checkpoint", "tag", "order-2@2", "good", "--remove").out == "order-2@2 has kept\n"
    assert shopping("checkpoint", "tag", "order-2@2", "kept", "--remove").out == "order-2@2 has no tags\n"


class TestNames:
    """The ways to name a checkpoint."""

    def test_by_id_place_run_or_beginning(self, shopping: Command, url: str) -> None:
        whole = checkpoints(url, "order-2")
        last = whole[-1].checkpoint_id
        for name in (last, last[:10], "order-2@4", "order-2@latest", "order-2"):
            shown = shopping("checkpoint", "show", name, "--json").json["checkpoint"]
            assert shown["checkpoint_id"] == last, name

    def test_a_beginning_that_an_end_shares_with_its_start_means_the_end(
        self, shopping: Command, url: str
    ) -> None:
        end, start = checkpoints(url, "order-2")[1:3]
        assert end.checkpoint_id[:-1] == start.checkpoint_id[:-1]
        for name, wanted in (
            (end.checkpoint_id[:20], end),
            (start.checkpoint_id, start),
            ("order-2@3", start),
        ):
            shown = shopping("checkpoint", "show", name, "--json").json["checkpoint"]
            assert shown["seq"] == wanted.seq, name

    @pytest.mark.parametrize("name", ["order-2@9", "nobody", "nobody@1", "abcdef0123", "f" * 64])
    def test_one_that_is_not_there(self, shopping: Command, name: str) -> None:
        done = shopping("checkpoint", "show", name)
        assert (done.code, done.out) == (5, "")

    def test_the_latest(self, shopping: Command) -> None:
        assert shopping("checkpoint", "show", "@latest", "--json").json["checkpoint"]["run_id"] == "broken-1"


class TestState:
    """Values of the state."""

    def test_a_text_is_written_as_it_is(self, shopping: Command) -> None:
        assert shopping("state", "get", "order-2", "item", "--scope", "Cart") == (0, "salt\n", "")

    def test_with_json_it_has_its_place(self, shopping: Command) -> None:
        data = shopping("state", "get", "order-2@2", "item", "--scope", "Cart", "--json").json
        assert (data["key"], data["scope"], data["value"]) == ("item", "Cart", "salt")

    @pytest.mark.parametrize("where", [["order-2", "item"], ["order-2@1", "item", "--scope", "Cart"]])
    def test_a_key_that_is_not_set_is_not_found(self, shopping: Command, where: list[str]) -> None:
        done = shopping("state", "get", *where)
        assert (done.code, done.out) == (5, "")
        assert "'item'" in done.err

    def test_what_is_no_text_is_json(self, shopping: Command, url: str) -> None:
        async def add() -> None:
            async with open_storage(url) as storage:
                fork = await shop.build(storage).fork(
                    (await storage.list_checkpoints(run_id="order-2"))[-1],
                    run_id="edited",
                    edits={("Cart", "item"): {"a": [1, None]}},
                )
                await fork.close()

        asyncio.run(add())
        done = shopping("state", "get", "edited", "item", "--scope", "Cart")
        assert json.loads(done.out) == {"a": [1, None]}
