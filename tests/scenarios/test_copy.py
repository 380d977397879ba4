"""All runs of a storage are copied to another of any kind, and copies are brought up to date."""

from collections.abc import AsyncIterator, Collection, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from holdfast import CheckpointStorage, Retention, RunStatus, SqliteCheckpointStorage
from holdfast.errors import RunNotFound, WrongType
from tests.support.durable import Wrapped, die_at_report, head_of, killed_by_itself, run_alone, wrapped
from tests.support.parts import Commit, Digest, Expected, Letter, RunId
from tests.support.runs import soon
from tests.support.transfer import (
    KINDS,
    SCENES,
    Storages,
    answer,
    asking,
    counting,
    go_on,
    listed,
    make_answered,
    make_completed,
    make_fork,
    make_waiting,
    noise,
)


@pytest_asyncio.fixture
async def storages(tmp_path: Path) -> AsyncIterator[Storages]:
    made = Storages(tmp_path)
    yield made
    await made.close()


async def ids(storage: CheckpointStorage) -> list[str]:
    return [run.run_id for run in await storage.list_runs(limit=None)]


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_a_copy_is_the_same_wherever_it_is(
    source: str, target: str, scene: str, storages: Storages
) -> None:
    make, further = SCENES[scene]
    here, there = storages(source), storages(target)
    await make(here)
    await here.tag((await here.list_checkpoints(run_id="r"))[0], "first")
    report = await here.copy_to(there)
    assert report.ok
    assert (report.copied, report.updated, report.skipped) == (len(await ids(here)), 0, 0)

    assert await there.list_runs() == await here.list_runs()
    for run_id in await ids(here):
        assert await listed(there, run_id) == await listed(here, run_id)
    assert await there.draw_tree("r") == await here.draw_tree("r")
    assert (await there.verify()).problems == []
    again = await here.copy_to(there)
    assert (again.copied, again.updated, again.skipped) == (0, 0, report.copied)
    assert (again.checkpoints, again.blobs, again.bytes) == (0, 0, 0)

    assert await further(there) == await further(here) != []
    assert (await there.verify()).problems == []


@pytest.mark.parametrize("target", KINDS)
async def test_blobs_that_forks_share_are_copied_once(target: str, storages: Storages) -> None:
    here, there = storages("memory"), storages(target)
    await make_fork(here)
    report = await here.copy_to(there)
    sizes = (await here.store.mark(RunId("origin"))).sizes
    assert report.blobs == len(sizes) > 0
    assert (await there.store.mark(RunId("origin"))).sizes.keys() == sizes.keys()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
async def test_a_run_that_went_on_is_brought_up_to_date(source: str, target: str, storages: Storages) -> None:
    here, there = storages(source), storages(target)
    await make_waiting(here)
    await here.copy_to(there)
    await here.tag((await here.list_checkpoints(run_id="r"))[0], "asked")
    assert (await here.copy_to(there)).updated == 1
    assert await listed(there) == await listed(here)

    await here.respond("r", {"q": True})
    assert (await here.copy_to(there)).updated == 1
    assert await there.store.inbox(RunId("r")) == await here.store.inbox(RunId("r"))

    outputs = (await soon((await asking(here).resume(run_id="r")).wait_for_completion())).outputs
    assert (await here.copy_to(there)).updated == 1
    assert await there.store.inbox(RunId("r")) == []
    assert (await here.copy_to(there)).skipped == 1
    assert await listed(there) == await listed(here)
    replayed = await asking(there).resume(run_id="r")
    assert (await soon(replayed.wait_for_completion())).outputs == outputs


@pytest.mark.parametrize("target", KINDS)
async def test_new_checkpoints_are_added_to_a_copy(target: str, storages: Storages) -> None:
    here, there = storages("sqlite"), storages(target)
    await make_waiting(here)
    first = await here.copy_to(there)
    await answer(here)
    second = await here.copy_to(there)
    assert (second.updated, second.ok) == (1, True)
    assert 0 < second.checkpoints < first.checkpoints + second.checkpoints
    assert await listed(there) == await listed(here)
    assert await there.list_runs() == await here.list_runs()
    assert (await there.verify()).problems == []


@pytest.mark.parametrize("target", KINDS)
async def test_a_restored_run_and_a_pruned_one_are_brought_up_to_date(
    target: str, storages: Storages
) -> None:
    here, there = storages("file"), storages(target)
    await make_completed(here)
    await here.copy_to(there)
    made = await here.list_checkpoints(run_id="r")
    run = await counting(here).resume(made[3])
    await soon(run.wait_for_completion())
    assert (await here.copy_to(there)).updated == 1
    assert await listed(there) == await listed(here)

    run = await counting(here).resume(made[5])
    await soon(run.wait_for_completion())
    await here.prune(Retention.latest_only())
    assert (await here.copy_to(there)).updated == 1
    assert await there.list_runs() == await here.list_runs()
    latest = await there.get_latest(run_id="r")
    assert latest is not None
    assert (await there.load(latest)).scopes["Shared"]["large"] == noise(300_000)
    assert (await there.verify()).problems == []


async def test_a_run_that_went_on_there_is_left_alone(storages: Storages) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_waiting(here)
    await here.copy_to(there)
    outputs = await answer(there)
    assert "it moved on in the other storage" in str((await here.copy_to(there)).uncopied[0])
    await answer(here)  # both went on: other checkpoints
    report = await here.copy_to(there)
    assert not report.ok
    assert (report.copied, report.updated, report.skipped) == (0, 0, 0)
    replayed = await asking(there).resume(run_id="r")
    assert (await soon(replayed.wait_for_completion())).outputs == outputs


async def test_a_run_that_is_driven_there_is_left_alone(storages: Storages) -> None:
    here, there = storages("memory"), storages("memory")
    await make_waiting(here)
    await here.copy_to(there)
    head = await head_of(there, "r")
    driven = head._replace(status=RunStatus.RUNNING, token=head.token + 1, owner="else#1")
    await there.store.commit(Commit(driven, Expected(head.checkpoint_id, head.token)))

    class Living(Wrapped):
        async def living(self, processes: Collection[str]) -> Set[str]:
            return {process for process in processes if process == "else"}

    report = await here.copy_to(wrapped(there, Living))
    assert "it is driven in the other storage" in str(report.uncopied[0])


async def test_what_was_removed_from_a_copy_and_is_needed_is_told(storages: Storages) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_completed(here)
    await here.copy_to(there)
    await there.prune(Retention.latest_only())
    run = await counting(here).resume((await here.list_checkpoints(run_id="r"))[3])
    await soon(run.wait_for_completion())
    report = await here.copy_to(there)
    assert "checkpoints were removed from it" in str(report.uncopied[0])
    assert (await there.verify()).problems == []


async def test_one_run_is_copied_and_others_are_not(storages: Storages) -> None:
    here, there = storages("memory"), storages("file")
    await make_fork(here)
    assert (await here.copy_to(there, run_id="r")).copied == 1
    assert await ids(there) == ["r"]
    assert await go_on(there) != []
    with pytest.raises(RunNotFound, match="'nobody'"):
        await here.copy_to(there, run_id="nobody")


async def test_damaged_runs_are_told_and_the_others_are_copied(storages: Storages) -> None:
    here, there = storages("memory"), storages("sqlite")
    await make_fork(here)
    await make_waiting_as(here, "whole")
    lost = next(iter((await here.store.mark(RunId("origin"))).sizes))

    class Losing(Wrapped):
        async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Any:
            found = dict(await self.inner.blobs(family, digests))
            if lost in found:
                found[lost] = found[lost][:-1] + bytes([found[lost][-1] ^ 1])
            return found

    report = await wrapped(here, Losing).copy_to(there)
    assert {told.run_id for told in report.uncopied} >= {"origin"}
    assert all("damaged" in told.reason for told in report.uncopied)
    assert "whole" in await ids(there)
    assert (await there.verify()).problems == []


async def make_waiting_as(storage: CheckpointStorage, run_id: str) -> None:
    await soon(asking(storage).run(7, run_id=run_id))


@pytest.mark.parametrize("target", KINDS)
async def test_an_interrupted_copy_goes_on(target: str, storages: Storages) -> None:
    here, there = storages("memory"), storages(target)
    for number in range(5):
        await make_waiting_as(here, f"r{number}")
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 2:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        await here.copy_to(there, progress=stop)
    assert seen == [(1, 5), (2, 5)]
    assert len(await ids(there)) == 2
    report = await here.copy_to(there)
    assert (report.copied, report.skipped) == (3, 2)
    assert (await there.verify()).problems == []


async def test_a_run_that_moves_while_it_is_copied_arrives_as_it_stood_at_one_moment(
    storages: Storages,
) -> None:
    here, there = storages("memory"), storages("sqlite")
    run = await counting(here).start(1, run_id="r")
    assert (await here.copy_to(there)).ok
    assert (await there.verify()).problems == []
    await soon(run.wait_for_completion())
    assert (await here.copy_to(there)).ok
    assert await listed(there) == await listed(here)


async def test_a_sweep_of_the_target_between_blobs_and_commit_is_made_up_for(storages: Storages) -> None:
    here, there = storages("memory"), storages("file")
    await make_completed(here)
    swept: list[int] = []

    class Sweeping(Wrapped):
        async def commit(self, commit: Commit) -> Sequence[Letter]:
            if not swept:
                mark, sizes = await self.inner.mark(RunId("r"))
                swept.append(await self.inner.discard(RunId("r"), mark, list(sizes)))
            return await self.inner.commit(commit)

    assert (await here.copy_to(wrapped(there, Sweeping))).copied == 1
    assert swept
    assert (await there.verify()).problems == []


def _copy_until_killed(folder: str) -> None:
    async def main() -> None:
        here = SqliteCheckpointStorage(f"{folder}/here.db")
        there = SqliteCheckpointStorage(f"{folder}/there.db")
        await here.copy_to(there, progress=die_at_report(2))

    run_alone(main())


async def test_a_killed_copy_goes_on(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "here.db") as here:
        await make_fork(here)
        await make_waiting_as(here, "w")
        killed_by_itself(_copy_until_killed, str(tmp_path))
        async with SqliteCheckpointStorage(tmp_path / "there.db") as there:
            assert len(await ids(there)) == 2
            report = await here.copy_to(there)
            assert (report.copied, report.skipped) == (1, 2)
            assert await there.list_runs() == await here.list_runs()
            assert (await there.verify()).problems == []


async def test_letters_that_were_left_only_there_are_not_lost(storages: Storages) -> None:
    here, there = storages("sqlite"), storages("file")
    await make_waiting(here)
    await here.copy_to(there)
    await there.send("r", 8)
    await here.send("r", 9)
    report = await here.copy_to(there)
    assert "1 letters wait for it in the other storage that were not left here" in str(report.uncopied[0])
    assert len(await there.store.inbox(RunId("r"))) == 1


async def test_answered_runs_arrive_with_their_letters(storages: Storages) -> None:
    here, there = storages("sqlite"), storages("file")
    await make_answered(here)
    await here.copy_to(there)
    run = await asking(there).resume(run_id="r")
    assert (await soon(run.wait_for_completion())).outputs == ["is 7 right? False 5000"]


@pytest.mark.parametrize("other", [None, "sqlite:///x.db"])
async def test_what_is_no_storage_is_refused(storages: Storages, other: Any) -> None:
    with pytest.raises(WrongType, match="give the storage to copy to"):
        await storages("memory").copy_to(other)
