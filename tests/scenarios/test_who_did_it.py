"""``by=``: who sent, answered, forked, tagged, went back or cancelled is kept and shown."""

from pathlib import Path

import pytest

from holdfast import (
    CheckpointStorage,
    Executor,
    InMemoryCheckpointStorage,
    InvalidArgument,
    RunStatus,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from tests.support.durable import Place, info_of_run
from tests.support.parts import Depth, RunId, info_from_dict, plain_form, unpack_changes


class Ask(Executor):
    """Asks two questions."""

    @handler
    async def ask(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.request_info(f"{text} one?", response_type=bool, request_id="one")
        await ctx.request_info(f"{text} two?", response_type=bool, request_id="two")

    @response_handler
    async def answered(self, question: str, yes: bool, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(f"{question} {yes}")


def asking(storage: CheckpointStorage) -> Workflow:
    return WorkflowBuilder(name="Ask").set_start_executor(Ask).with_checkpointing(storage).build()


async def makers(storage: CheckpointStorage, run_id: str) -> list[tuple[str, str | None]]:
    found = await storage.list_checkpoints(run_id=run_id)
    return [(str(one.cause), one.by) for one in found if one.cause != "superstep"]


async def test_those_who_start_and_answer(place: Place) -> None:
    workflow = asking(place.storage)
    await workflow.run("really", run_id="r", by="ada")
    await place.storage.respond("r", {"one": True}, by="kim")
    run = await workflow.resume(run_id="r")
    await run.wait_for_completion()
    await run.respond({"two": False}, by="lee")
    assert (await run.wait_for_completion()).status is RunStatus.COMPLETED
    await place.reopened()
    assert await makers(place.storage, "r") == [("input", "ada"), ("response", "kim"), ("response", "lee")]
    tree = await place.storage.draw_tree("r")
    assert "response, by kim" in tree
    assert "input, by ada" in tree


@pytest.mark.parametrize("how", ["respond", "resume"])
async def test_answers_of_several_people_in_one_checkpoint(place: Place, how: str) -> None:
    """The checkpoint names all of them, and each answer has its own."""
    workflow = asking(place.storage)
    await workflow.run("really", run_id="r")
    await place.storage.respond("r", {"one": True}, by="kim")
    if how == "respond":
        await place.storage.respond("r", {"two": True}, by="lee")
        run = await workflow.resume(run_id="r")
    else:
        run = await workflow.resume(run_id="r", responses={"two": True}, by="lee")
    await run.wait_for_completion()
    (made,) = [one for one in await place.storage.list_checkpoints(run_id="r") if one.cause == "response"]
    assert made.by == "kim, lee"
    (record,) = await place.storage.store.records(RunId("r"), made.seq, made.seq, Depth.CHANGES)
    answers = unpack_changes(plain_form(record.changes), None).answers
    assert [(request_id, by) for request_id, _, by in answers] == [("one", "kim"), ("two", "lee")]


async def test_those_who_fork_and_go_back(place: Place) -> None:
    workflow = asking(place.storage)
    run = await workflow.start("really", run_id="r")
    await run.wait_for_completion()
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    await run.restore_checkpoint(first, by="kim")
    await run.wait_for_completion()
    await run.close()
    await (await workflow.resume(first, by="lee")).wait_for_completion()
    await (await workflow.fork(first, edits={"note": "x"}, run_id="f", by="ada")).wait_for_completion()
    assert await makers(place.storage, "r") == [("input", None), ("restore", "kim"), ("restore", "lee")]
    assert await makers(place.storage, "f") == [("fork", "ada"), ("edit", "ada")]


@pytest.mark.parametrize("how", ["storage", "run"])
async def test_those_who_cancel(place: Place, how: str) -> None:
    workflow = asking(place.storage)
    run = await workflow.start("really", run_id="r")
    await run.wait_for_completion()
    if how == "storage":
        info = await place.storage.cancel("r", by="kim")
        assert info.by == "kim"
    else:
        await run.cancel(by="kim")
    await place.reopened()
    info = await info_of_run(place.storage, "r")
    assert (info.status, info.by) == (RunStatus.CANCELLED, "kim")
    again = await asking(place.storage).resume(run_id="r")
    await again.wait_for_completion()
    assert (await info_of_run(place.storage, "r")).by == ""


async def test_those_who_answer_one_request_after_the_other(place: Place) -> None:
    """The second answer comes while the run goes on with the first."""
    run = await asking(place.storage).start("really", run_id="r")
    await run.wait_for_completion()
    await run.respond({"one": True}, by="kim")
    await run.respond({"two": False}, by="lee")
    result = await run.wait_for_completion()
    assert sorted(result.outputs) == ["really one? True", "really two? False"]
    by = {one.by for one in await place.storage.list_checkpoints(run_id="r") if one.cause == "response"}
    assert by in ({"kim", "lee"}, {"kim, lee"})


async def test_those_who_tag(place: Place, tmp_path: Path) -> None:
    """Starts and ends alike, in lists, trees and copies; a tag that is there keeps who gave it first."""
    storage = place.storage
    await asking(storage).run("really", run_id="r")
    for number, one in enumerate(await storage.list_checkpoints(run_id="r")):
        await storage.tag(one, f"tag {number}", "start: all", by="kim")
        await storage.tag(one, f"tag {number}", "late", by="lee")
        await storage.tag(one, "nobody")
    await place.reopened()
    storage = place.storage
    for number, one in enumerate(await storage.list_checkpoints(run_id="r")):
        assert one.tags == (f"tag {number}", "start: all", "late", "nobody")
        given = {f"tag {number}": "kim", "start: all": "kim", "late": "lee"}
        assert one.tagged_by == one.info.tagged_by == one.to_dict()["tagged_by"] == given
        assert (await storage.load(one)).tagged_by == given
        assert info_from_dict(one.to_dict()).tagged_by == given
    tree = await storage.draw_tree("r")
    assert "tagged tag 0 by kim, tagged start: all by kim, tagged late by lee, tagged nobody" in tree
    assert (await storage.verify()).ok
    shown = [one.to_dict() for one in await storage.list_checkpoints(run_id="r")]

    await storage.export_run("r", tmp_path / "r.holdfast")
    for how in ("import", "copy"):
        other = InMemoryCheckpointStorage()
        if how == "import":
            await other.import_run(tmp_path / "r.holdfast")
        else:
            await storage.copy_to(other)
        assert [one.to_dict() for one in await other.list_checkpoints(run_id="r")] == shown
    await storage.tag((await storage.list_checkpoints(run_id="r"))[0], "new", by="mia")
    await storage.copy_to(other)
    assert (await other.list_checkpoints(run_id="r"))[0].tagged_by["new"] == "mia"


async def test_those_who_tag_are_not_searched(place: Place) -> None:
    await asking(place.storage).run("really", run_id="r")
    latest = await place.storage.get_latest(run_id="r")
    assert latest is not None
    await place.storage.tag(latest, "before deploy", by="kim")
    assert [run.run_id for run in await place.storage.list_runs(text="DEPLOY")] == ["r"]
    assert await place.storage.list_runs(text="kim") == []


async def test_a_tag_that_is_taken_and_given_again_names_the_new_giver(place: Place) -> None:
    await asking(place.storage).run("really", run_id="r")
    (first, *_) = await place.storage.list_checkpoints(run_id="r")
    await place.storage.tag(first, "gold", by="kim")
    await place.storage.untag(first, "gold")
    await place.storage.tag(first, "gold", by="lee")
    assert (await place.storage.load(first)).tagged_by == {"gold": "lee"}
    with pytest.raises(InvalidArgument, match="by="):
        await place.storage.tag(first, "gold", by=" ")


async def test_names_that_are_none(place: Place) -> None:
    workflow = asking(place.storage)
    run = await workflow.start("really", run_id="r")
    await run.wait_for_completion()
    first = (await place.storage.list_checkpoints(run_id="r"))[0]
    for call in (
        lambda: run.respond({"one": True}, by=""),
        lambda: run.cancel(by=" "),
        lambda: run.restore_checkpoint(first, by=5),  # type: ignore[arg-type]
        lambda: place.storage.respond("r", {"one": True}, by="x" * 201),
        lambda: place.storage.cancel("r", by=""),
        lambda: workflow.fork(first, by=""),
        lambda: workflow.resume(first, by=""),
        lambda: workflow.start("x", by=""),
        lambda: workflow.start("x", by="\ud800"),
        lambda: workflow.submit("x", by="\ud800"),
        lambda: workflow.fork(first, by="\ud800"),
        lambda: place.storage.respond("r", {"one": True}, by="\ud800"),
        lambda: place.storage.send("r", "x", by="\ud800"),
        lambda: place.storage.cancel("r", by="\ud800"),
        lambda: place.storage.tag(first, "gold", by="\ud800"),
    ):
        with pytest.raises(InvalidArgument, match=r"by=.*: must be a text of 1 to 200 characters"):
            await call()
    assert (await info_of_run(place.storage, "r")).status is RunStatus.WAITING
    assert len(run.pending_requests) == 2
    assert [one.run_id for one in await place.storage.list_runs()] == ["r"]
