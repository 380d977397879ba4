"""The command as a process: exit codes, pipes, Ctrl-C, and a store that another process writes."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast
from tests.command.conftest import Command
from tests.support.shop import build

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))

DRIVER = """
import asyncio, sys
from holdfast import WorkflowBuilder, WorkflowContext, executor, open_storage

@executor
async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
    if number == 3:
        print("driving", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
    await (ctx.send_message(number + 1) if number < 6 else ctx.yield_output(number))

async def main():
    async with open_storage(sys.argv[1]) as storage:
        builder = WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count)
        await builder.with_checkpointing(storage).build().run(1, run_id="counting")

asyncio.run(main())
"""


def start(*arguments: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [HOLDFAST, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **options,  # type: ignore[call-overload]
    )


def test_the_command_ends_with_its_exit_code(url: str) -> None:
    process = start("--store", url, "runs", "show", "nobody")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "")
    assert err.startswith("holdfast: no run has the id 'nobody'")


def test_a_reader_that_leaves_is_no_error(url: str, tmp_path: Path) -> None:
    script = f"{HOLDFAST} --store {url} runs watch order-1 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    first, code = done.stdout.splitlines()
    assert first.endswith("run of Shop begins")
    # The pipe may still be open when the last event is written; then the code is that of the run.
    assert code in ("141", "0")
    assert done.stderr == ""


def test_a_closed_pipe_is_told_by_the_exit_code(url: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [HOLDFAST, "--store", url, "runs", "ls"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_leaves_a_watch(url: str) -> None:
    process = start("--store", url, "runs", "watch", "order-2", "--follow")
    assert process.stdout is not None
    for line in process.stdout:
        if "run is waiting" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_watch_follows_a_run_that_another_process_drives(url: str, tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "driving\n"
    watcher = start("--store", url, "runs", "watch", "counting")
    assert watcher.stdout is not None
    lines = []
    for line in watcher.stdout:
        lines.append(line)
        if "superstep 3 begins" in line:
            driver.communicate("\n", timeout=60)
    watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    assert sum("count begins" in line for line in lines) == 6
    assert "run is completed" in "".join(lines[-2:])


def test_without_click_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'click'\", name='click')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from holdfast.cli.entry import main; raise SystemExit(main(['--help']))"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'holdfast[cli]'" in done.stderr


def test_help_imports_neither_storages_nor_asyncio() -> None:
    program = """
import sys
from holdfast.cli.entry import main
main(["--help"])
heavy = [name for name in ("asyncio", "sqlite3", "rich", "holdfast.checkpoint.storage") if name in sys.modules]
sys.exit(repr(heavy) if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "requests" in done.stdout


def test_a_text_that_the_terminal_cannot_show_is_escaped(tmp_path: Path) -> None:
    import asyncio

    from holdfast import open_storage

    url = f"sqlite:///{tmp_path / 'shop.db'}"

    async def fill() -> None:
        async with open_storage(url) as storage:
            await build(storage).run("kombu", run_id="昆布-1")

    asyncio.run(fill())
    process = start(
        "--store", url, "runs", "ls", env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    )
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\\u6606\\u5e03-1" in out


class TestStores:
    """The store that is named, and what is wrong with it."""

    def test_a_store_that_is_not_there_is_not_made(self, command: Command, tmp_path: Path) -> None:
        for kind in ("sqlite", "file"):
            place = tmp_path / f"nothing-{kind}"
            for arguments in (["runs", "ls"], ["runs", "cancel", "r1"]):
                done = command("--store", f"{kind}:///{place}", *arguments)
                assert done.code == 5
                assert str(place) in done.err
                assert not place.exists()

    def test_something_else_is_no_store(self, command: Command, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("no database, only a text\n" * 100)
        done = command("--store", f"sqlite:///{tmp_path / 'text.db'}", "runs", "ls")
        assert done.code == 1
        assert "not a SQLite database" in done.err

    def test_memory_is_refused(self, command: Command) -> None:
        done = command("--store", "memory:", "runs", "ls")
        assert done.code == 2
        assert "only by its own process" in done.err

    def test_an_unknown_url_is_refused(self, command: Command) -> None:
        assert command("--store", "shop.db", "runs", "ls").code == 2

    def test_no_store_at_all_says_how_to_name_one(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        done = command("runs", "ls")
        assert done.code == 2
        assert all(word in done.err for word in ("--store", "HOLDFAST_STORE", "holdfast.toml"))

    def test_option_goes_before_environment_before_file(
        self, command: Command, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "holdfast.toml").write_text(f'store = "{url}"\n')
        assert command("runs", "show", "order-1").code == 0
        monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path / 'nothing.db'}")
        assert command("runs", "show", "order-1").code == 5
        assert command("runs", "show", "order-1", "--store", url).code == 0

    @pytest.mark.parametrize(
        "text",
        [
            "store = ",
            "stores = 'x'",
            "store = 5",
            "workflows = 5",
            "[workflows]\nShop = 5",
            f"store = {'[' * 100_000}",
        ],
    )
    def test_a_wrong_file_is_named(
        self, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "holdfast.toml").write_text(text)
        done = command("runs", "ls")
        assert done.code == 2
        assert str(tmp_path / "holdfast.toml") in done.err

    def test_looking_writes_nothing(self, url: str, command: Command, tmp_path: Path) -> None:
        def files() -> dict[str, bytes]:
            return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

        before = files()
        for arguments in (
            ["runs", "ls"],
            ["runs", "show", "order-1"],
            ["runs", "watch", "order-1"],
            ["requests", "ls"],
        ):
            assert command("--store", url, *arguments).code == 0
        assert files() == before

    def test_errors_are_json_where_the_output_is(self, shopping: Command) -> None:
        import json

        done = shopping("runs", "show", "nobody", "--json")
        error = json.loads(done.err)["error"]
        assert (error["type"], error["exit_code"], done.code, done.out) == ("RunNotFound", 5, 5, "")
        usage = json.loads(shopping("runs", "show", "--json").err)["error"]
        assert (usage["type"], usage["exit_code"]) == ("UsageError", 2)


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(holdfast.__version__)
