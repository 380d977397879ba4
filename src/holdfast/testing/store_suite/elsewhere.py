"""What other processes leave, see, and leave behind when they die."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.ownership import this_process
from holdfast.checkpoint.store import Blob, Left, Letter, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.durable import Reopen
from holdfast.testing.store_suite.inbox import inbox, keys_of, leave
from holdfast.testing.store_suite.journal import journal
from holdfast.testing.store_suite.processes import Line, Process
from holdfast.testing.store_suite.removal import place_of, removal_of, run_of, seqs_of, tags_of
from holdfast.testing.store_suite.samples import (
    LARGE,
    NOON,
    all_of,
    begin,
    move_on,
    next_commit,
    sample_blob,
    sample_head,
    sample_keyframe,
    sample_notes,
    staying_commit,
)
from holdfast.testing.store_suite.sweeping import FAMILY, bring, discarded, sample_blobs, there
from holdfast.testing.store_suite.waking import due, waits


class Elsewhere:
    """The promises that take another process to check."""

    patience: float = 60
    """Seconds in which a store has to find out that a process died; a store that cannot look at it takes some."""

    async def test_another_process_lives_until_it_dies(self, store: Store, reopen: Reopen) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            await other.join()
            line.say(this_process())
            await line.hear()

        async with Process(work) as process:
            name = await process.hear()
            assert name != this_process()
            assert await store.lives(name)
            assert not await store.lives(this_process())
            process.kill()
            await self._is_gone(store, name)

    async def _is_gone(self, store: Store, name: str) -> None:
        try:
            async with asyncio.timeout(self.patience):
                while await store.lives(name):  # noqa: ASYNC110 - nobody tells when it is believed dead
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{name} died, but the store believes that it lives") from None

    async def test_another_process_lives_until_it_closes_the_store(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            line.say(this_process())
            await line.hear()
            await other.join()
            line.say("joined")
            await line.hear()
            await other.close()
            line.say("closed")
            await line.hear()

        async with Process(work) as process:
            name = await process.hear()
            assert not await store.lives(name)
            process.say("join")
            assert await process.hear() == "joined"
            assert await store.lives(name)
            process.say("close")
            assert await process.hear() == "closed"
            assert not await store.lives(name)

    async def test_what_another_process_notes_and_leaves_is_there_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            head = await begin(other, "r")
            await other.commit(staying_commit(head, sample_notes("b", "a")))
            await leave(other, "y", "x", "z")
            await other.commit(staying_commit(head, taken=["x"]))
            line.say("done")
            await line.hear()

        async with Process(work) as process:
            assert await process.hear() == "done"
            process.kill()
            assert await journal(store) == sample_notes("b", "a")
            assert await leave(store, "x") == Left(sample_head("r"), ("x",))
            assert keys_of(await store.commit(next_commit(sample_head("r")))) == ["y", "z"]
            assert await journal(store) == ()

    async def test_what_another_process_lets_wait_is_due_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            await waits(other, "r", NOON + 1)
            await waits(other, "s")
            line.say("done")
            await line.hear()
            await leave(other, "a", run="s")
            await move_on(other, sample_head("t", status=RunStatus.WAITING, owner=""), wake_at=NOON)
            line.say("done")
            await line.hear()

        async with Process(work) as process:
            assert await process.hear() == "done"
            assert (await due(store), await due(store, NOON + 1)) == ([], ["r"])
            await waits(store, "t")
            process.say("go on")
            assert await process.hear() == "done"
            process.kill()
            assert (await due(store), await due(store, NOON + 1)) == (["s", "t"], ["s", "t", "r"])

    async def test_the_next_commit_returns_what_another_process_left(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            while key := await line.hear():
                left = await leave(other, key)
                line.say("refused" if left.refused else "left")

        async with Process(work) as process:
            head = await begin(store, "r")
            for key in ("a", "b", "c"):
                process.say(key)
                assert await process.hear() == "left"
                commit = next_commit(head)
                assert keys_of(await store.commit(commit)) == [key]
                head = commit.head
                process.say(key)
                assert await process.hear() == "refused"
                await store.commit(staying_commit(head, taken=[key]))
                process.say(key)
                assert await process.hear() == "refused"
            assert await inbox(store) == ()

    async def test_of_processes_that_leave_the_same_key_one_wins(self, store: Store, reopen: Reopen) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            mine = this_process().encode()
            while key := await line.hear():
                left = await other.leave(RunId("r"), 1, [Letter(key, mine)])
                line.say("" if left.refused else this_process())

        async with Process(work) as one, Process(work) as two:
            await begin(store, "r")
            for number in range(10):
                one.say(f"key {number}")
                two.say(f"key {number}")
                winners = {await one.hear(), await two.hear()} - {""}
                assert len(winners) == 1
                letter = Letter(f"key {number}", winners.pop().encode())
                assert (await inbox(store))[number:] == (letter,)

    async def test_what_another_process_tags_and_removes_stays_so_after_its_death(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            head = await run_of(other, "r", 4)
            await other.tag(RunId("r"), 3, ["kept"])
            await other.remove(removal_of(head, [1, 2], [(3, sample_keyframe(3, cut=True))]))
            await other.remove_run(RunId("gone"), place_of(await begin(other, "gone")))
            line.say("done")
            await line.hear()

        async with Process(work) as process:
            assert await process.hear() == "done"
            process.kill()
            assert await seqs_of(store, "r") == [3, 4]
            assert await tags_of(store, "r") == {3: ("kept",)}
            assert (await all_of(store, "r"))[1][0].keyframe == sample_keyframe(3, cut=True)
            assert await store.head(RunId("gone")) is None

    async def test_what_another_process_brings_since_the_mark_stays(
        self, store: Store, reopen: Reopen
    ) -> None:
        again, new, unused = sample_blobs("again"), sample_blobs("new"), sample_blobs("unused")

        async def work(line: Line) -> None:
            other = await reopen()
            await line.hear()
            await bring(other, sample_head("r"), *again, *new)
            line.say("brought")
            await line.hear()

        async with Process(work) as process:
            await begin(store, "r", [*again, *unused])
            mark, _ = await store.mark(FAMILY)
            process.say("bring")
            assert await process.hear() == "brought"
            process.kill()
            await discarded(store, mark, [*again, *new, *unused])
            assert await there(store, [*again, *new, *unused]) == [True] * 6 + [False] * 3

    async def test_what_another_process_brings_while_this_one_sweeps_is_there(
        self, store: Store, reopen: Reopen
    ) -> None:
        async def work(line: Line) -> None:
            other = await reopen()
            head = await begin(other, "r")
            while number := await line.hear():
                head = await move_on(other, head, [_blob(int(number))])
                missing = not (await other.blobs(FAMILY, [_blob(int(number)).digest]))
                line.say("missing" if missing else "there")

        def _blob(number: int) -> Blob:
            return sample_blob(LARGE if number % 2 else b"small", number % 4)

        async with Process(work) as process:
            for number in range(1, 25):
                mark, _ = await store.mark(FAMILY)
                process.say(str(number))
                hearing = asyncio.ensure_future(process.hear())
                await asyncio.sleep(number % 6 / 2000)  # another moment each time
                while not hearing.done():
                    await store.discard(FAMILY, mark, [_blob(number).digest])
                    await asyncio.sleep(0)
                assert await hearing == "there"
