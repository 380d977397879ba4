"""``holdfast store``: looks after a store, and asks before it destroys."""

import asyncio
from pathlib import Path

import pytest

from holdfast import open_storage
from tests.command.conftest import Command
from tests.support.durable_damage import damage_of


def count(url: str) -> tuple[int, int]:
    async def read() -> tuple[int, int]:
        async with open_storage(url, read_only=True) as storage:
            return await storage.count_runs(), len(await storage.list_checkpoints())

    return asyncio.run(read())


def damage(url: str) -> None:
    """Change a bit of the second checkpoint of ``order-2``."""
    kind, _, place = url.partition(":///")
    damage_of(kind, Path(place).parent, "order-2").record(2, "header")


def test_stats_count_the_room(shopping: Command) -> None:
    assert "4 runs of 1 workflow" in shopping("store", "stats").out
    assert shopping("store", "stats", "--measure-blobs", "--json").json["total"]["stored_blob_bytes"] == 0


def test_verify_finds_nothing_in_a_sound_store(shopping: Command) -> None:
    assert shopping("store", "verify").out.startswith("all is well: 4 runs, ")
    assert shopping("store", "verify", "order-2").out.startswith("all is well: 1 runs, ")


def test_verify_finds_damage_and_ends_with_7(shopping: Command, url: str) -> None:
    damage(url)
    done = shopping("store", "verify")
    assert done.code == 7
    assert "run order-2" in done.out
    report = shopping("store", "verify", "--json")
    assert report.code == 7
    assert {one["run_id"] for one in report.json["problems"]} == {"order-2"}
    assert shopping("store", "verify", "order-3").code == 0


def test_one_damaged_run_does_not_hide_the_others(
    shopping: Command, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(url)
    assert len(shopping("runs", "ls", "--json").json["runs"]) == 4
    asked = shopping("requests", "ls", "--json")
    assert (asked.code, [one["run_id"] for one in asked.json["requests"]]) == (0, ["order-3"])
    assert "run 'order-2' is left out" in caplog.text
    done = shopping("store", "prune", "--latest-only", "--yes")
    assert (done.code, "not all could be read of order-2" in done.out) == (0, True)
    assert shopping("store", "prune", "--latest-only", "--dry-run", "--json").json["unreadable"] == [
        "order-2"
    ]
    assert shopping("store", "prune", "--latest-only", "--run", "order-2", "--yes").code == 7


def test_repair_asks_first_and_then_repairs(shopping: Command, url: str, tmp_path: Path) -> None:
    damage(url)
    tried = shopping("store", "repair", "--dry-run")
    assert "would be made" in tried.out
    assert shopping("store", "verify").code == 7
    refused = shopping("store", "repair")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert shopping("store", "verify").code == 7
    assert shopping("store", "repair", "--yes").code == 0
    assert shopping("store", "verify").code == 0


class TestPrune:
    """Removing checkpoints and runs."""

    def test_nothing_goes_without_agreement(self, shopping: Command, url: str) -> None:
        before = count(url)
        counted = shopping("store", "prune", "--latest-only", "--dry-run", "--json").json
        assert counted["checkpoints"] > 0
        assert counted["dry_run"] is True
        refused = shopping("store", "prune", "--latest-only")
        assert refused.code == 2
        assert "--yes" in refused.err
        assert count(url) == before

    def test_checkpoints_go_but_tagged_ones_stay(self, shopping: Command, url: str) -> None:
        runs, _ = count(url)
        shopping("checkpoint", "tag", "order-2@2", "good")
        assert shopping("store", "prune", "--latest-only", "--yes").code == 0
        assert count(url) == (runs, runs + 1)

    def test_of_one_run_only(self, shopping: Command, url: str) -> None:
        before = count(url)[1]
        gone = shopping("store", "prune", "--keep-last", "1", "--run", "order-2", "--yes", "--json").json[
            "checkpoints"
        ]
        assert 0 < gone < 4
        assert count(url)[1] == before - gone

    def test_whole_runs_that_are_over(self, shopping: Command, url: str) -> None:
        arguments = ["store", "prune", "--runs-older-than", "0s", "--status", "failed"]
        assert shopping(*arguments, "--dry-run", "--json").json["run_ids"] == ["broken-1"]
        assert shopping(*arguments, "--yes").code == 0
        assert shopping("runs", "show", "broken-1").code == 5
        assert count(url)[0] == 3
        assert "0 runs" in shopping("store", "prune", "--runs-older-than", "1d").out

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--keep-last", "1", "--latest-only"],
            ["--keep-for", "soon"],
            ["--status", "failed"],
            ["--runs-older-than", "1d", "--keep-last", "1"],
            ["--runs-older-than", "1d", "--status", "waiting"],
        ],
    )
    def test_options_that_make_no_sense(self, shopping: Command, url: str, arguments: list[str]) -> None:
        before = count(url)
        assert shopping("store", "prune", *arguments, "--yes").code == 2
        assert count(url) == before

    def test_by_age(self, shopping: Command, url: str) -> None:
        before = count(url)
        assert shopping("store", "prune", "--keep-for", "1h", "--yes").code == 0
        assert count(url) == before


def test_vacuum_gives_room_back(shopping: Command) -> None:
    shopping("runs", "rm", "order-1", "order-2", "--yes")
    report = shopping("store", "vacuum", "--json").json
    assert report["freed"] == max(0, report["before"] - report["after"])
    assert "were given back" in shopping("store", "vacuum").out


def test_copy_makes_another_store_and_brings_it_up_to_date(
    shopping: Command, url: str, tmp_path: Path
) -> None:
    target = f"{'file' if url.startswith('sqlite') else 'sqlite'}:///{tmp_path / 'copy'}"
    assert shopping("store", "copy", target, "--run", "order-2").out.startswith("1 runs copied")
    assert shopping("store", "copy", target).out.startswith(
        "3 runs copied, 0 brought up to date, 1 were there"
    )
    assert count(target) == count(url)
    assert shopping("store", "copy", "memory:").code == 2


def test_copy_leaves_runs_alone_that_moved_on_there(
    shopping: Command, command: Command, tmp_path: Path
) -> None:
    target = f"sqlite:///{tmp_path / 'copy'}"
    shopping("store", "copy", target)
    assert command("--store", target, "runs", "cancel", "order-2").code == 0
    done = shopping("store", "copy", target)
    assert done.code == 6
    assert "run 'order-2' was not copied: it moved on in the other storage" in done.out


def test_backup_is_a_store(shopping: Command, url: str, tmp_path: Path) -> None:
    done = shopping("store", "backup", str(tmp_path / "backup.db"))
    if url.startswith("file"):
        assert done.code == 2
        assert "holdfast store copy" in done.err
        return
    assert done.code == 0
    assert count(f"sqlite:///{tmp_path / 'backup.db'}") == count(url)
    assert shopping("store", "backup", str(tmp_path / "backup.db")).code == 1


def test_a_run_moves_in_a_file(shopping: Command, command: Command, tmp_path: Path) -> None:
    path, other = str(tmp_path / "order.run"), f"sqlite:///{tmp_path / 'other.db'}"
    assert shopping("store", "export", "order-2", path).code == 0
    assert command("--store", other, "store", "import", path).out == "brought in order-2, waiting\n"
    assert command("--store", other, "requests", "ls", "--json").json["requests"][0]["run_id"] == "order-2"
    assert shopping("store", "export", "order-3", path).code == 1  # nothing is overwritten
    (tmp_path / "broken.run").write_bytes((tmp_path / "order.run").read_bytes()[:-20])
    assert command("--store", other, "store", "import", str(tmp_path / "broken.run")).code == 7
    assert shopping("store", "import", str(tmp_path / "nothing.run")).code == 2
