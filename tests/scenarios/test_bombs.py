"""Stored data that claims more than it holds: it is refused before memory is taken or anything is unpacked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ormsgpack
import pytest
import zstandard

from holdfast import (
    CheckpointCorrupt,
    CheckpointStorage,
    Codec,
    Counters,
    Executor,
    ExecutorFailed,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    checkpointable,
    handler,
)
from tests.support.modules import document, loader
from tests.support.parts import (
    COMPRESSED,
    RAW,
    Digest,
    Encoder,
    Part,
    ReadBlobs,
    Ref,
    plain_form,
    restored,
    stored_form,
)
from tests.support.small_limits import small_limits


def frame(size: int) -> bytes:
    """A compressed frame that holds so many zeros."""
    return COMPRESSED + zstandard.ZstdCompressor().compress(bytes(size))


# A frame of 13 bytes that says it holds 2 GiB: magic number, descriptor, size of the content, an empty last block.
CLAIMS = COMPRESSED + bytes.fromhex("28b52ffd") + b"\xa0" + (1 << 31).to_bytes(4, "little") + b"\x01\x00\x00"


class NoDecompressor:
    """Stands in for the one that unpacks."""

    def __init__(self) -> None:
        raise AssertionError("something is unpacked")


@pytest.fixture
def unpacking_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstandard, "ZstdDecompressor", NoDecompressor)


@pytest.mark.usefixtures("unpacking_nothing")
@pytest.mark.parametrize(
    ("stored", "size", "problem"),
    [
        (CLAIMS, None, "a compressed frame of 12 bytes claims 2147483648"),
        (CLAIMS, 1 << 31, "a compressed frame of 12 bytes claims 2147483648"),
        (frame(1 << 20), 1000, "a compressed frame claims 1048576 bytes, though it should have 1000"),
        (RAW + bytes(2000), 1000, "it has 2000 bytes, though it should have 1000"),
    ],
)
def test_what_cannot_be_true_is_not_unpacked(stored: bytes, size: int | None, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}$"):
        plain_form(stored, size)


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1 << 17, (1 << 17) + 1, 1 << 24])
def test_the_most_that_can_be_compressed_is_read(size: int) -> None:
    """Zeros are as small as anything can become."""
    for stored in (frame(size), stored_form(bytes(size))):
        assert plain_form(stored, size) == plain_form(stored) == bytes(size)


def test_a_frame_that_holds_more_than_it_claims_is_broken() -> None:
    honest = frame(1 << 20)
    lying = honest.replace((1 << 20).to_bytes(4, "little"), (1 << 19).to_bytes(4, "little"), 1)
    assert lying != honest
    with pytest.raises(ValueError, match="a compressed frame is broken"):
        plain_form(lying, 1 << 19)


# -- blobs that were exchanged -----------------------------------------------------------------------


class Keeps(Executor):
    @handler
    async def keep(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.queue_state_update("text", text * 10_000, scope_name="S")
        await ctx.append_state("list", text * 10_000, scope_name="S")
        await ctx.send_message(text)


class Tells(Executor):
    @handler
    async def tell(self, text: str, ctx: WorkflowContext[None, int]) -> None:
        found = await ctx.read_state("text", scope_name="S")
        await ctx.yield_output(len(found))


def workflow(storage: CheckpointStorage) -> Workflow:
    builder = WorkflowBuilder(name="Keeps").set_start_executor(Keeps).add_edge(Keeps, Tells)
    return builder.with_checkpointing(storage).build()


@pytest.fixture
async def exchanged(monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
    """A storage with a run, whose blobs were all exchanged for a bomb since."""
    storage = InMemoryCheckpointStorage()
    await workflow(storage).run("ab", run_id="mine")
    bomb = frame(1 << 24)

    async def blobs(_: Any, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return dict.fromkeys(digests, bomb)

    monkeypatch.setattr(storage.store, "blobs", blobs)
    return storage


Look = Callable[[CheckpointStorage], Any]


async def resume(storage: CheckpointStorage) -> Any:
    checkpoints = await storage.list_checkpoints(run_id="mine")
    return await workflow(storage).run_from_checkpoint(checkpoints[2].checkpoint_id)


async def load(storage: CheckpointStorage) -> Any:
    return await storage.load((await storage.list_checkpoints(run_id="mine"))[-1].checkpoint_id)


async def read(storage: CheckpointStorage) -> Any:
    latest = await storage.get_latest(run_id="mine")
    assert latest is not None
    return await latest.read_state("text", scope_name="S")


async def diff(storage: CheckpointStorage) -> Any:
    first, *_, last = await storage.list_checkpoints(run_id="mine")
    return await storage.diff(first.checkpoint_id, last.checkpoint_id)


@pytest.mark.usefixtures("unpacking_nothing")
@pytest.mark.parametrize("look", [resume, load, read, diff])
async def test_a_value_is_no_larger_than_is_said_of_it(look: Look, exchanged: CheckpointStorage) -> None:
    with pytest.raises(
        (CheckpointCorrupt, ExecutorFailed), match=r"claims 16777216 bytes, though it should have 200\d\d"
    ):
        await look(exchanged)


@pytest.mark.usefixtures("unpacking_nothing")
async def test_verify_tells_of_blobs_of_another_size(exchanged: CheckpointStorage) -> None:
    report = await exchanged.verify()
    assert any("claims 16777216 bytes" in problem.what for problem in report.problems)


class OnlyStreams:
    """Unpacks bit by bit, and never all at once."""

    stream_reader = staticmethod(zstandard.ZstdDecompressor().stream_reader)


async def test_a_part_of_a_record_is_hashed_before_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing tells its size but the frame itself."""
    storage = InMemoryCheckpointStorage()
    with small_limits(largest_part=100):
        await workflow(storage).run("ab", run_id="mine")
    genuine = storage.store.blobs

    async def blobs(family: Any, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        return dict.fromkeys(await genuine(family, digests), frame(1 << 20))

    monkeypatch.setattr(storage.store, "blobs", blobs)
    monkeypatch.setattr(loader, "_LARGE", 1 << 16)
    monkeypatch.setattr(zstandard, "ZstdDecompressor", OnlyStreams)
    with pytest.raises(CheckpointCorrupt, match="has other content than its name says"):
        await load(storage)


# -- tables whose entries name each other ------------------------------------------------------------


def laughs(count: int) -> list[list[Any]]:
    """Each entry consists of the one before, twice."""
    return [["str", 2], *(["str", 2, None, [[0, number], [0, number]]] for number in range(count))]


def tower(count: int) -> list[list[Any]]:
    """Each entry consists of the one before."""
    return [["str", 2], *(["str", 2, None, [[0, number]]] for number in range(count))]


@pytest.mark.parametrize("entries", [laughs(60), tower(5_000)], ids=["laughs", "tower"])
def test_a_value_does_not_grow_without_end(entries: list[list[Any]]) -> None:
    changes = {"outputs": [["a", len(entries) - 1]], "values": entries}
    with pytest.raises(ValueError, match=r"a value has .* parts, .* deep, in a table of"):
        document.unpack_changes(ormsgpack.packb(changes), ormsgpack.packb([b"\xa1a"]))


@checkpointable
class Called:
    def __init__(self) -> None:
        raise AssertionError("what is stored calls a class")

    def join(self, _: Any) -> None: ...


TEXT, LIST = Ref("str", 2, None, b"\xa1a"), Ref("list", 2, None, b"\x91\x01")
MISFITS = {
    "class": Ref("Called", 4, parts=[Part(False, TEXT)]),
    "dict": Ref("dict", 4, parts=[Part(False, TEXT)]),
    "text in a list": Ref("list", 4, parts=[Part(False, LIST), Part(False, TEXT)]),
    "list in a text": Ref("str", 4, parts=[Part(False, TEXT), Part(False, LIST)]),
    "item of a text": Ref("str", 4, parts=[Part(True, TEXT)]),
    "bytes that say they are text": Ref("str", 4, parts=[Part(False, Ref("str", 3, None, b"\xc4\x01a"))]),
}


@pytest.mark.parametrize("ref", [pytest.param(ref, id=name) for name, ref in MISFITS.items()])
def test_parts_that_do_not_fit_are_refused(ref: Ref) -> None:
    encoder = Encoder(Codec(), 1 << 20, Counters())
    with pytest.raises(CheckpointCorrupt, match=r"'await storage.verify\(\)' lists what is affected"):
        restored(ref, encoder, ReadBlobs({})).load()


def test_values_that_share_parts_are_read() -> None:
    entries = [["str", 2], ["str", 2, None, [[0, 0]]], ["str", 4, None, [[0, 1]]], ["str", 2, None, [[0, 0]]]]
    changes = {"outputs": [["a", 2], ["a", 3]], "values": entries}
    found = document.unpack_changes(ormsgpack.packb(changes), ormsgpack.packb([b"\xa1a"]))
    assert [ref.size for _, ref in found.outputs] == [4, 2]
