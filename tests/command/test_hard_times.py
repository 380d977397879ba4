"""A locked store, a full disk, huge and invalid input: a message, an exit code, and nothing lost."""

import asyncio
import json
import os
import resource
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_storage
from holdfast.cli.output import ProgressLine
from holdfast.stores.sqlite.store import SqliteStore
from tests.command.conftest import Command
from tests.command.test_reference import CALLS
from tests.programs import ROOT
from tests.support import shop
from tests.support.parts import Commit, RunId

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SHOP = "tests.support.shop:build"


def with_little_room(limit: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call the command where no file may become larger than ``limit``, as on a disk that is full."""
    return subprocess.run(
        [HOLDFAST, *arguments],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "line",
    [
        ["run", SHOP, "--value", '"nori"', "--run-id", "large"],
        ["requests", "answer", "order-2", "--value", "true"],
        ["store", "copy", "sqlite:///{folder}/copy.db"],
    ],
    ids=["run", "answer", "copy"],
)
def test_a_full_disk_is_told_and_nothing_is_lost(url: str, line: list[str], tmp_path: Path) -> None:
    before = subprocess.run(
        [HOLDFAST, "--store", url, "runs", "ls", "--json"], capture_output=True, check=True
    )
    arguments = [word.replace("{folder}", str(tmp_path)) for word in line]
    done = with_little_room(16, "--store", url, *arguments)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("holdfast: ") or "\nholdfast: " in done.stderr
    after = subprocess.run(
        [HOLDFAST, "--store", url, "runs", "ls", "--json"], capture_output=True, check=True
    )
    kept = {run["run_id"]: run for run in json.loads(after.stdout)["runs"]}
    for run in json.loads(before.stdout)["runs"]:
        assert kept[run["run_id"]] == run
    assert subprocess.run([HOLDFAST, "--store", url, "store", "verify"], capture_output=True).returncode == 0
    again = subprocess.run(
        [HOLDFAST, "--store", url, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert again.returncode in (0, 3), again.stderr  # with room it goes through


def test_a_locked_store_is_told_after_a_while(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    asyncio.run(shop.fill(url))
    answer = ["--store", url, "requests", "answer", "order-2", "--value", "true"]
    given = SqliteStore.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(
        SqliteStore.__init__, "__kwdefaults__", {**given, "busy_seconds": 0.2}
    )  # it is a minute
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert command("--store", url, "runs", "ls").code == 0  # readers do not wait for writers
        done = command(*answer)
        assert done.code == 1
        assert "another process has held it locked for more than 0.2 s" in done.err
        other.execute("ROLLBACK")
    assert command(*answer).code == 0


def test_a_store_that_is_broken_as_a_whole_ends_every_command_with_7(
    shopping: Command, url: str, tmp_path: Path
) -> None:
    place = tmp_path / "shop" / ("runs.db" if url.startswith("sqlite") else "runs/store.json")
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2])
    for name, arguments in CALLS.items():
        if name in ("completion", "graph show", "store import"):  # they need no store, or a file
            continue
        done = shopping(*name.split(), *(part.replace("FOLDER", str(tmp_path)) for part in arguments))
        assert (done.code, done.out) == (7, ""), name
        assert str(place) in done.err or str(place.parent) in done.err
        assert "Traceback" not in done.err
    assert place.read_bytes() == whole[: len(whole) // 2]
    assert not list(tmp_path.glob("copy*"))


@pytest.mark.parametrize(
    ("line", "streams", "code", "told"),
    [
        (["run", SHOP, "--value", '"nori"', "--run-id", "new"], ">&-", 3, "it waits for answers"),
        (["run", SHOP, "--value", '"nori"', "--run-id", "new"], "2>/dev/full", 3, ""),
        (["run", SHOP, "--value", '"nori"', "--run-id", "new"], "<&- >&- 2>&-", 3, ""),
        (["store", "verify"], "2>&-", 0, ""),
        (["runs", "show", "nobody"], "2>/dev/full", 5, ""),
        (["runs", "rm", "order-1", "--yes"], ">/dev/full", 1, "what the command changed stays changed"),
    ],
)
def test_streams_that_are_closed_or_full_do_not_stop_what_is_done(
    tmp_path: Path, line: list[str], streams: str, code: int, told: str
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    asyncio.run(shop.fill(url))
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join([HOLDFAST, '--store', url, *line])} {streams}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (code, True, False)
    listed = subprocess.run(
        [HOLDFAST, "--store", url, "runs", "ls", "--json"], capture_output=True, check=True
    )
    runs = {run["run_id"]: run["status"] for run in json.loads(listed.stdout)["runs"]}
    assert (runs.get("new") == "waiting") is ("new" in line)
    assert ("order-1" in runs) is ("rm" not in line)
    assert subprocess.run([HOLDFAST, "--store", url, "store", "verify"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        ["stats"],
        ["verify"],
        ["repair", "--yes"],
        ["prune", "--latest-only", "--yes"],
        ["prune", "--runs-older-than", "0s", "--yes"],
        ["vacuum"],
        ["copy", "sqlite:///{folder}/copy.db"],
        ["backup", "{folder}/backup.db"],
        ["export", "order-1", "{folder}/order.run"],
        ["import", "{folder}/given.run"],
    ],
    ids=lambda line: " ".join(line[:2]),
)
def test_ctrl_c_in_long_work_leaves_a_sound_store_and_the_work_can_be_done_again(
    shopping: Command, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    if line[0] == ("backup" if url.startswith("file") else "vacuum"):  # it has none; one statement of SQLite
        return
    shopping("store", "export", "order-2", str(tmp_path / "given.run"))
    shopping("runs", "rm", "order-2", "--yes")
    arguments = ["store", *(word.replace("{folder}", str(tmp_path)) for word in line)]
    told: list[int] = []

    def interrupt(self: ProgressLine, done: int, total: int) -> None:
        told.append(done)
        if len(told) == 1:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(ProgressLine, "__call__", interrupt)
        done = shopping(*arguments)
    assert told, "it tells no progress, so nothing was interrupted"
    assert done.code in (0, 130)  # the last step may be done before anyone listens
    assert "Traceback" not in done.err
    assert shopping("store", "verify").code == 0
    assert len(shopping("runs", "ls", "--json").json["runs"]) > 0
    again = shopping(*arguments)
    if again.code:  # all was done before anyone listened, and nothing is written over
        kept = {"backup": "sqlite:///{folder}/backup.db", "import": url}[line[0]].replace(
            "{folder}", str(tmp_path)
        )
        assert shopping("--store", kept, "store", "verify").out.startswith("all is well")
    assert shopping("store", "verify").code == 0


def test_huge_input_is_refused_before_anything_begins(shopping: Command, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000 + "]" * 200_000)
    done = shopping("run", SHOP, "--value-file", str(tmp_path / "deep.json"))
    assert done.code == 2
    assert "is no JSON" in done.err
    (tmp_path / "long.json").write_text(json.dumps("x" * 5_000_000))
    assert shopping("run", SHOP, "--value-file", str(tmp_path / "long.json"), "--run-id", "long").code == 3
    wide = shopping("runs", "show", "long")
    assert wide.code == 0
    assert max(map(len, wide.out.splitlines())) < 1000


@pytest.mark.parametrize("value", ["{", "'yes'", "NaN", "", "1 2", "\udcff"])
def test_invalid_json_is_refused(shopping: Command, value: str) -> None:
    for line in (["run", SHOP], ["requests", "answer", "order-2"], ["runs", "send", "order-2"]):
        done = shopping(*line, "--value", value)
        assert done.code == 2
        assert "Traceback" not in done.err
    assert len(shopping("runs", "ls", "--json").json["runs"]) == 4


def test_a_file_that_is_no_text_is_refused(shopping: Command, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "bytes", tmp_path / "nothing", tmp_path):
        done = shopping("run", SHOP, "--value-file", str(path))
        assert done.code in (1, 2)
        assert "Traceback" not in done.err


class Counted(sqlite3.Connection):
    """A connection that counts the steps of SQLite's machine: they grow with the rows that are visited."""

    steps = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_progress_handler(self._count, 1)

    def _count(self) -> None:
        Counted.steps += 1


async def add_runs(url: str, first: int, last: int) -> None:
    """Add runs as rows of the store: those of whole workflows would take minutes."""
    async with open_storage(url) as storage:
        head = await storage.store.head(RunId("order-1"))
        assert head is not None
        for base in range(first, last, 1000):
            commits = (
                Commit(
                    head._replace(
                        run_id=RunId(f"run-{n}"), family=RunId(f"run-{n}"), updated=head.updated + n
                    ),
                    None,
                )
                for n in range(base, min(base + 1000, last))
            )
            await asyncio.gather(*map(storage.store.commit, commits))


def test_runs_ls_reads_one_page_of_100_000_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'many.db'}"
    asyncio.run(shop.fill(url))
    connect = sqlite3.connect

    def steps(*arguments: str) -> int:
        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "factory": Counted}))
            Counted.steps = 0
            done = command("--store", url, "runs", "ls", "--json", *arguments)
        assert done.code == 0
        assert len(done.json["runs"]) == 50
        return Counted.steps

    asyncio.run(add_runs(url, 0, 1000))
    few = steps()
    asyncio.run(add_runs(url, 1000, 100_000))
    assert few > 50  # it counts
    assert steps() <= few * 1.2
    assert steps("--after", "run-50000") <= few * 2
    assert steps("--text", "run-5") > few * 2, "a search reads more than a page, so what is counted can grow"
