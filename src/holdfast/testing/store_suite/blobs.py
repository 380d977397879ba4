"""Blobs: immutable bytes that belong to a family of runs."""

from __future__ import annotations

from holdfast.checkpoint.store import Blob, Store
from holdfast.ids import Digest, RunId
from holdfast.testing.store_suite.samples import EVERY_BYTE, LARGE, begin, move_on, sample_blob

FIVE_MB = EVERY_BYTE * (5 * 4096)


class Blobs:
    """What ``commit`` and ``blobs`` promise for blobs."""

    async def test_blobs_come_back_as_they_were_given(self, store: Store) -> None:
        contents = [b"", b"\x00", b"small", EVERY_BYTE, EVERY_BYTE * 20, LARGE, FIVE_MB]
        blobs = [sample_blob(content) for content in contents]
        await begin(store, "r", blobs)
        assert await store.blobs(RunId("r"), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_each_blob_can_be_asked_for_alone(self, store: Store) -> None:
        blobs = [sample_blob(b"%d" % number) for number in range(5)]
        await begin(store, "r", blobs)
        for blob in blobs:
            assert await store.blobs(RunId("r"), [blob.digest]) == {blob.digest: blob.data}
        assert await store.blobs(RunId("r"), [blobs[3].digest, blobs[1].digest, blobs[3].digest]) == {
            blobs[3].digest: b"3",
            blobs[1].digest: b"1",
        }

    async def test_blobs_that_are_not_there_are_left_out(self, store: Store) -> None:
        there, missing = sample_blob(b"there"), sample_blob(b"missing")
        assert await store.blobs(RunId("r"), [there.digest]) == {}
        await begin(store, "r", [there])
        assert await store.blobs(RunId("r"), [missing.digest, there.digest]) == {there.digest: b"there"}
        assert await store.blobs(RunId("r"), [missing.digest]) == {}
        assert await store.blobs(RunId("r"), []) == {}

    async def test_the_name_of_a_blob_is_given_not_computed(self, store: Store) -> None:
        named = [
            Blob(Digest(bytes(32)), b"zeros"),
            Blob(Digest(b"\xff" * 32), b"ones"),
            sample_blob(LARGE, "odd"),
        ]
        await begin(store, "r", named)
        assert await store.blobs(RunId("r"), [blob.digest for blob in named]) == dict(named)

    async def test_names_that_differ_in_one_byte_are_apart(self, store: Store) -> None:
        name = EVERY_BYTE[:32]
        alike = [name, b"\xff" + name[1:], name[:-1] + b"\xff", name[:8] + b"\xff" + name[9:]]
        for data in (b"small", LARGE):
            blobs = [Blob(Digest(one), data + b"%d" % number) for number, one in enumerate(alike)]
            run = f"with {len(data)} bytes"
            await begin(store, run, blobs)
            assert await store.blobs(RunId(run), [blob.digest for blob in blobs]) == dict(blobs)

    async def test_a_blob_that_is_there_is_left_as_it_is(self, store: Store) -> None:
        for data in (b"first", LARGE, b""):
            run = f"with {len(data)} bytes"
            first = await begin(store, run, [sample_blob(data, 1)])
            second = await move_on(store, first, [sample_blob(b"other", 1), sample_blob(b"new", 2)])
            await move_on(store, second, [sample_blob(LARGE + b"!", 1)])
            digests = [sample_blob(b"", number).digest for number in (1, 2)]
            assert await store.blobs(RunId(run), digests) == {digests[0]: data, digests[1]: b"new"}

    async def test_a_blob_may_be_given_twice_in_one_commit(self, store: Store) -> None:
        for data in (b"twice", LARGE):
            blob = sample_blob(data)
            run = f"with {len(data)} bytes"
            await begin(store, run, [blob, blob])
            assert await store.blobs(RunId(run), [blob.digest]) == {blob.digest: data}

    async def test_families_are_apart(self, store: Store) -> None:
        for number, data in enumerate((b"small", LARGE)):
            one, both = sample_blob(data + b"1", number, 1), sample_blob(data + b"2", number, 2)
            await begin(store, f"a{number}", [one, both])
            await begin(store, f"b{number}", [both._replace(data=data + b"3")])
            digests = [one.digest, both.digest]
            assert await store.blobs(RunId(f"a{number}"), digests) == dict([one, both])
            assert await store.blobs(RunId(f"b{number}"), digests) == {both.digest: data + b"3"}
            assert await store.blobs(RunId(f"c{number}"), digests) == {}

    async def test_a_fork_adds_to_the_blobs_of_its_family(self, store: Store) -> None:
        blobs = [sample_blob(b"of the first"), sample_blob(b"of the fork"), sample_blob(LARGE)]
        await begin(store, "first", blobs[:1])
        await begin(store, "fork", blobs[1:], family=RunId("first"))
        digests = [blob.digest for blob in blobs]
        assert await store.blobs(RunId("first"), digests) == dict(blobs)
        assert await store.blobs(RunId("fork"), digests) == {}

    async def test_a_family_need_not_be_a_run(self, store: Store) -> None:
        blob = sample_blob(b"orphan")
        await begin(store, "fork", [blob], family=RunId("gone"))
        assert await store.blobs(RunId("gone"), [blob.digest]) == {blob.digest: b"orphan"}
        assert await store.head(RunId("gone")) is None
