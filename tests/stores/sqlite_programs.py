"""Programs for tests of SqliteStore in other processes: ``python -m tests.stores.sqlite_programs NAME PATH ...``."""

import asyncio
import gc
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.checkpoint.ownership import this_process
from holdfast.errors import StorageError
from holdfast.ids import RunId
from holdfast.stores.sqlite import SqliteStore, connection, transaction
from holdfast.testing.store_suite.actions import begin, move_on
from holdfast.testing.store_suite.samples import LARGE, sample_blob
from tests.support.complaints import complaints

ROOT = Path(__file__).parents[2]
KEPT: list[SqliteStore] = []


def start(name: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a program; a warning ends it."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.stores.sqlite_programs", name]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finish(process: "subprocess.Popen[str]") -> str:
    """Return what a program printed; it must end well and without warnings."""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, complaints(err)) == (0, [])
    return out


def execute(path: Path, *statements: str) -> list[Any]:
    """Execute statements on a connection of another program; return the rows of the last."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return [connection.execute(statement).fetchall() for statement in statements][-1]
    finally:
        connection.close()


async def write_runs(path: str, name: str, runs: int, steps: int) -> None:
    """Write runs of its own at the same time, step by step, some with large values."""
    store = SqliteStore(path)

    async def run(number: int) -> None:
        head = await begin(store, f"{name}-{number}", [sample_blob(LARGE, name)])
        for _ in range(steps - 1):
            head = await move_on(store, head)

    await asyncio.gather(*(run(number) for number in range(runs)))
    await store.close()


async def write_until_killed(path: str, run: str) -> None:
    """Write one run forever; print each seq when it is committed."""
    store = SqliteStore(path)
    head = await store.head(RunId(run)) or await begin(store, run)
    while True:
        print(head.seq, flush=True)
        blob = sample_blob(LARGE, head.seq) if head.seq % 5 == 0 else sample_blob(b"small", head.seq)
        head = await move_on(store, head, [blob])


async def leave_open(path: str) -> None:
    """End without closing the store, which lives to the very end."""
    store = SqliteStore(path)
    KEPT.append(store)
    await store.join()
    await begin(store, "r", [sample_blob(LARGE)])
    print(await store.head(RunId("r")) is not None)


async def drop(path: str) -> None:
    """Drop a store without closing it: its threads and connections go with it."""
    store = SqliteStore(path)
    await begin(store, "r", [sample_blob(LARGE)])
    print(threading.active_count())
    del store
    gc.collect()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(60)
    print(sorted(file.name for file in Path(path).parent.iterdir() if file.is_file()))


async def refused(path: str) -> None:
    """Print why this user cannot use the store."""
    if os.geteuid() == 0:  # may do anything, so become someone who may not
        os.setgid(65534)
        os.setuid(65534)
    store = SqliteStore(path)
    try:
        await begin(store, "r")
    except StorageError as error:
        print(error)
    await store.close()


def fork(path: str) -> None:
    """Use one store object before a fork, and after it in parent and child; many times at the same time."""
    store = SqliteStore(path)

    async def some(name: str, count: int) -> None:
        await asyncio.gather(
            *(begin(store, f"{name}-{number}", [sample_blob(LARGE)]) for number in range(count))
        )

    asyncio.run(some("before", 3))
    for round_number in range(3):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                asyncio.run(some(f"child{round_number}", 20))
                asyncio.run(store.close())
                status = 0
            finally:
                os._exit(status)
        asyncio.run(some(f"parent{round_number}", 20))
        print(os.waitpid(child, 0)[1])
    asyncio.run(store.close())


def fork_and_join(path: str) -> None:
    """Join before a fork; print which of the two lives, before and after the child joins and when it is over."""
    store = SqliteStore(path)
    parent = this_process()

    async def lives(*names: str) -> None:
        print(*[name in await store.living(names) for name in names], flush=True)

    asyncio.run(store.join())
    hears, tells = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(60)
            os.write(tells, this_process().encode())
            asyncio.run(lives(parent, this_process()))
            asyncio.run(store.join())
            asyncio.run(lives(parent, this_process()))
            asyncio.run(store.close())
            status = 0
        finally:
            os._exit(status)
    print(os.waitpid(child, 0)[1])
    asyncio.run(lives(parent, os.read(hears, 1000).decode()))
    asyncio.run(store.close())


def fork_while_busy(path: str) -> None:
    """Fork in the middle of commits of many runs."""
    store = SqliteStore(path)

    async def run(name: str) -> None:
        head = await begin(store, name)
        for _ in range(19):
            head = await move_on(store, head)

    async def main() -> int:
        runs = asyncio.gather(*(run(f"parent-{number}") for number in range(20)))
        await asyncio.sleep(0.01)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                asyncio.events._set_running_loop(None)
                asyncio.run(run("child"))
                asyncio.run(store.close())
                status = 0
            finally:
                os._exit(status)
        await runs
        return child

    print(os.waitpid(asyncio.run(main()), 0)[1])
    asyncio.run(store.close())


class Signalled(sqlite3.Connection):
    """Raises a signal around a statement that the main thread executes, when it has counted ``left`` down to it."""

    left = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        Signalled.count()
        result = super().execute(*arguments)
        Signalled.count()
        return result

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        Signalled.count()
        result = super().executemany(*arguments)
        Signalled.count()
        return result

    @classmethod
    def count(cls) -> None:
        if cls.left and threading.current_thread() is threading.main_thread():
            cls.left -= 1
            if not cls.left:
                signal.raise_signal(signal.SIGUSR1)


def fork_amid_commits(path: str) -> None:
    """Fork in the handler of a signal, at each moment of a commit that is made in the thread of the event loop."""
    transaction._LONG_SECONDS = 30.0
    connection.CONNECTION_CLASS = Signalled
    store = SqliteStore(path)
    children: list[int] = []

    def look(_: int, frame: object) -> None:
        child = os.fork()
        if child:
            children.append(os.waitpid(child, 0)[1])
            return
        status = 1
        try:
            signal.alarm(60)
            asyncio.events._set_running_loop(None)
            if len(children) % 3 or asyncio.run(store.head(RunId("r"))) is not None:
                status = 0
        finally:
            os._exit(status)

    async def main() -> None:
        head = await begin(store, "r")
        for moment in itertools.count(1):
            head = await move_on(store, head)  # opens the connection
            Signalled.left = moment
            head = await move_on(store, head)
            if Signalled.left:  # the commit was over before
                break
        assert await store.head(RunId("r")) == head
        print(len(children) > 5, set(children), head.seq == 2 * moment + 1)
        await store.close()

    signal.signal(signal.SIGUSR1, look)
    asyncio.run(main())


if __name__ == "__main__":
    program, arguments = sys.argv[1], sys.argv[2:]
    if program == "write_runs":
        asyncio.run(write_runs(arguments[0], arguments[1], int(arguments[2]), int(arguments[3])))
    elif program in ("fork", "fork_and_join", "fork_while_busy", "fork_amid_commits"):
        globals()[program](*arguments)
    else:
        asyncio.run(globals()[program](*arguments))
