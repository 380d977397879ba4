"""Rules of stores that several processes use, also processes that die. They need ``os.fork``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Blob, LeaveResult, Letter, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    Reopen,
    begin,
    begin_waiting,
    begin_with_records,
    commit_blobs,
    discard_blobs,
    find_blobs,
    get_keys,
    leave_letters,
    list_due,
    lives,
    move_on,
    read_inbox,
    read_journal,
    read_run,
    read_seqs,
    read_tags,
)
from holdfast.testing.store_suite.claim_rules import claim_runs
from holdfast.testing.store_suite.samples import (
    FAMILY,
    LARGE,
    NOON,
    expect_head,
    make_removal,
    next_commit,
    sample_blob,
    sample_blobs,
    sample_head,
    sample_keyframe,
    sample_notes,
    staying_commit,
)


class ProcessLine:
    """A pipe of words to another process and back."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing

    def say(self, word: str) -> None:
        """Send a word without line breaks."""
        os.write(self._writing, word.encode() + b"\n")

    async def hear(self) -> str:
        """Return the next word; an empty one if the other process is gone."""
        return await asyncio.to_thread(self._hear)

    def _hear(self) -> str:
        word = b""
        while (byte := os.read(self._reading, 1)) not in (b"", b"\n"):
            word += byte
        return word.decode()

    def close(self) -> None:
        """Close both pipes."""
        os.close(self._reading)
        os.close(self._writing)


class ChildProcess(ProcessLine):
    """A forked child of this process, which is killed when its ``async with`` block ends.

    Make it before ``store`` is used: not every driver survives a fork.
    """

    def __init__(self, work: Callable[[ProcessLine], Coroutine[Any, Any, None]]) -> None:
        (there, here_writing), (here_reading, there_writing) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            # Python warns of forks in a process with threads; the child uses nothing that they might hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._id = os.fork()
        if not self._id:
            os.close(here_writing)
            os.close(here_reading)
            _run_child(work(ProcessLine(there, there_writing)))
        os.close(there)
        os.close(there_writing)
        super().__init__(here_reading, here_writing)

    async def __aenter__(self) -> ChildProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        self.close()

    def kill(self) -> None:
        """Kill the child with SIGKILL."""
        if self._id:
            os.kill(self._id, signal.SIGKILL)
            os.waitpid(self._id, 0)
            self._id = 0


def _run_child(work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a child, then end the process at once: no inherited exit handler may run."""
    try:
        asyncio.run(work)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(0)


class OtherProcessRules:
    """The rules that need another process to check."""

    patience: float = 60
    """The seconds in which a store has to find out that a process died."""

    async def test_another_process_lives_until_it_dies(self, store: Store, reopen: Reopen) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            await other.join()
            line.say(this_process())
            await line.hear()

        async with ChildProcess(work) as process:
            name = await process.hear()
            assert name != this_process()
            assert await lives(store, name)
            assert not await lives(store, this_process())
            process.kill()
            await self._is_gone(store, name)

    async def _is_gone(self, store: Store, name: str) -> None:
        try:
            async with asyncio.timeout(self.patience):
                while await lives(store, name):  # noqa: ASYNC110 - nobody tells when it is believed dead
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{name} died, but the store believes that it lives") from None

    async def test_another_process_lives_until_it_closes_the_store(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            line.say(this_process())
            await line.hear()
            await other.join()
            line.say("joined")
            await line.hear()
            await other.close()
            line.say("closed")
            await line.hear()

        async with ChildProcess(work) as process:
            name = await process.hear()
            assert not await lives(store, name)
            process.say("join")
            assert await process.hear() == "joined"
            assert await lives(store, name)
            process.say("close")
            assert await process.hear() == "closed"
            assert not await lives(store, name)

    async def test_another_process_keeps_what_it_claimed_until_it_dies(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            await other.join()
            await begin(other, "driven", owner=f"{this_process()}#1")
            line.say(" ".join(await claim_runs(other, limit=2)))
            line.say(this_process())
            await line.hear()

        await store.join()
        for number in range(3):
            await begin_waiting(store, f"r{number}", NOON)
        async with ChildProcess(work) as process:
            assert await process.hear() == "r0 r1"
            name = await process.hear()
            assert await claim_runs(store) == ["r2"]
            assert await claim_runs(store) == []
            process.kill()
            await self._is_gone(store, name)
            assert await claim_runs(store) == ["r0", "r1", "driven"]

    async def test_no_two_processes_claim_the_same_run(self, store: Store, reopen: Reopen) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            await other.join()
            line.say("ready")
            await line.hear()
            claimed: list[str] = []
            while some := await claim_runs(other, limit=3):
                claimed += some
            line.say(" ".join(claimed))
            await line.hear()

        await store.join()
        names = {f"r{number}" for number in range(60)}
        for name in names:
            await begin_waiting(store, name, NOON)
        async with ChildProcess(work) as one, ChildProcess(work) as two:
            for process in (one, two):
                assert await process.hear() == "ready"
            for process in (one, two):
                process.say("go")
            claimed: list[str] = []
            while some := await claim_runs(store, limit=3):
                claimed += some
            claimed += [*(await one.hear()).split(), *(await two.hear()).split()]
            # A store may leave out runs that others write right now: nobody has those yet.
            claimed += await claim_runs(store)
            assert sorted(claimed) == sorted(names)

    async def test_what_another_process_notes_and_leaves_is_there_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            head = await begin(other, "r")
            await other.commit(staying_commit(head, sample_notes("b", "a")))
            await leave_letters(other, "y", "x", "z")
            await other.commit(staying_commit(head, taken=["x"]))
            line.say("done")
            await line.hear()

        async with ChildProcess(work) as process:
            assert await process.hear() == "done"
            process.kill()
            assert await read_journal(store) == sample_notes("b", "a")
            assert await leave_letters(store, "x") == LeaveResult(sample_head("r"), ("x",))
            assert get_keys(await store.commit(next_commit(sample_head("r")))) == ["y", "z"]
            assert await read_journal(store) == ()

    async def test_what_another_process_lets_wait_is_due_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            await begin_waiting(other, "r", NOON + 1)
            await begin_waiting(other, "s")
            line.say("done")
            await line.hear()
            await leave_letters(other, "a", run="s")
            await move_on(other, sample_head("t", status=RunStatus.WAITING, owner=""), wake_at=NOON)
            line.say("done")
            await line.hear()

        async with ChildProcess(work) as process:
            assert await process.hear() == "done"
            assert (await list_due(store), await list_due(store, NOON + 1)) == ([], ["r"])
            await begin_waiting(store, "t")
            process.say("go on")
            assert await process.hear() == "done"
            process.kill()
            assert (await list_due(store), await list_due(store, NOON + 1)) == (["s", "t"], ["s", "t", "r"])

    async def test_the_next_commit_returns_what_another_process_left(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            while key := await line.hear():
                left = await leave_letters(other, key)
                line.say("refused" if left.refused else "left")

        async with ChildProcess(work) as process:
            head = await begin(store, "r")
            for key in ("a", "b", "c"):
                process.say(key)
                assert await process.hear() == "left"
                commit = next_commit(head)
                assert get_keys(await store.commit(commit)) == [key]
                head = commit.head
                process.say(key)
                assert await process.hear() == "refused"
                await store.commit(staying_commit(head, taken=[key]))
                process.say(key)
                assert await process.hear() == "refused"
            assert await read_inbox(store) == ()

    async def test_of_processes_that_leave_the_same_key_one_wins(self, store: Store, reopen: Reopen) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            mine = this_process().encode()
            while key := await line.hear():
                left = await other.leave(RunId("r"), 1, [Letter(key, mine)])
                line.say("" if left.refused else this_process())

        async with ChildProcess(work) as one, ChildProcess(work) as two:
            await begin(store, "r")
            for number in range(10):
                one.say(f"key {number}")
                two.say(f"key {number}")
                winners = {await one.hear(), await two.hear()} - {""}
                assert len(winners) == 1
                letter = Letter(f"key {number}", winners.pop().encode())
                assert (await read_inbox(store))[number:] == (letter,)

    async def test_what_another_process_tags_and_removes_stays_so_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            head = await begin_with_records(other, "r", 4)
            await other.tag(RunId("r"), 3, ["kept"])
            await other.remove(make_removal(head, [1, 2], [(3, sample_keyframe(3, cut=True))]))
            await other.remove_run(RunId("gone"), expect_head(await begin(other, "gone")))
            line.say("done")
            await line.hear()

        async with ChildProcess(work) as process:
            assert await process.hear() == "done"
            process.kill()
            assert await read_seqs(store, "r") == [3, 4]
            assert await read_tags(store, "r") == {3: ("kept",)}
            assert (await read_run(store, "r"))[1][0].keyframe == sample_keyframe(3, cut=True)
            assert await store.head(RunId("gone")) is None

    async def test_what_another_process_brings_since_the_mark_stays(
        self, store: Store, reopen: Reopen
    ) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")

        async def work(line: ProcessLine) -> None:
            other = await reopen()
            await line.hear()
            await commit_blobs(other, sample_head("r"), *again, *new)
            line.say("brought")
            await line.hear()

        async with ChildProcess(work) as process:
            await begin(store, "r", [*again, *unused])
            mark, _ = await store.mark(FAMILY)
            process.say("bring")
            assert await process.hear() == "brought"
            process.kill()
            await discard_blobs(store, mark, [*again, *new, *unused])
            assert await find_blobs(store, [*again, *new, *unused]) == [True] * 6 + [False] * 3

    async def test_what_another_process_brings_while_this_one_sweeps_is_there(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: ProcessLine) -> None:
            other = await reopen()
            head = await begin(other, "r")
            while number := await line.hear():
                head = await move_on(other, head, [_blob(int(number))])
                missing = not (await other.blobs(FAMILY, [_blob(int(number)).digest]))
                line.say("missing" if missing else "there")

        def _blob(number: int) -> Blob:
            return sample_blob(LARGE if number % 2 else b"small", number % 4)

        async with ChildProcess(work) as process:
            for number in range(1, 25):
                mark, _ = await store.mark(FAMILY)
                process.say(str(number))
                hearing = asyncio.ensure_future(process.hear())
                await asyncio.sleep(number % 6 / 2000)  # another moment each time
                while not hearing.done():
                    await store.discard(FAMILY, mark, [_blob(number).digest])
                    await asyncio.sleep(0)
                assert await hearing == "there"
