"""Heads and what a store says of itself."""

from __future__ import annotations

import re

from holdfast.checkpoint.store import Commit, Expected, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import GREATEST, begin, first_commit, sample_head, sample_id


class Heads:
    """What ``open`` and ``head`` promise."""

    async def test_a_store_says_its_id_and_its_format(self, store: Store) -> None:
        info = await store.open()
        assert re.fullmatch("[0-9a-f]{32}", info.store_id)
        assert (type(info.major), type(info.minor), type(info.features)) == (int, int, frozenset)
        assert info.major >= 1

    async def test_a_store_may_be_opened_twice(self, store: Store) -> None:
        info = await store.open()
        await begin(store, "r")
        assert await store.open() == info

    async def test_a_store_may_be_closed_twice(self, store: Store) -> None:
        await store.close()
        await store.close()

    async def test_an_unknown_run_has_no_head(self, store: Store) -> None:
        assert await store.head(RunId("nobody")) is None
        await begin(store, "somebody")
        assert await store.head(RunId("nobody")) is None

    async def test_every_field_of_a_head_comes_back(self, store: Store) -> None:
        heads = [
            sample_head("plain"),
            sample_head("fork", family=RunId("another")),
            sample_head("numbers", GREATEST, token=GREATEST - 1, created=GREATEST - 2, updated=GREATEST - 3),
            sample_head("more", wake_at=GREATEST, takeovers=GREATEST),
            sample_head("zero", seq=0, token=0, created=0, updated=0, takeovers=0),
            sample_head("wake", wake_at=0),
            sample_head(
                "words", workflow_name="Größe 😀", owner="häst:1:'x'", reason="ValueError: 'ß'\n\tat 5% \\"
            ),
            sample_head("odd", reason="\x00 \x1b \u2028 \udc80 \ud83d", owner="", workflow_name=""),
            sample_head("kept", retention="keep_last:3"),
            sample_head("waits", status=RunStatus.WAITING, waiting_for="answers time"),
            sample_head("long", retention="r" * 200, reason="why " * 20_000, owner="o" * 2000),
            *(sample_head(f"is-{status.value}", status=status) for status in RunStatus),
        ]
        for head in heads:
            await store.commit(Commit(head, None))
        for head in heads:
            there = await store.head(head.run_id)
            assert there == head
            assert there is not None
            assert type(there.status) is RunStatus

    async def test_every_field_of_a_head_can_change(self, store: Store) -> None:
        before = await begin(store, "r", wake_at=5, reason="why", owner="one", takeovers=3)
        changes: list[dict[str, object]] = [
            {"wake_at": None},
            {"wake_at": 0},
            {"wake_at": None, "reason": "", "owner": "", "takeovers": 0},
            {"retention": "latest_only"},
            {"status": RunStatus.FAILED, "reason": "boom"},
            {"retention": ""},
            {"status": RunStatus.WAITING, "waiting_for": "messages"},
            {"status": RunStatus.STOPPED, "waiting_for": ""},
            {"status": RunStatus.RUNNING, "token": 9, "updated": 1},
            {"workflow_name": "Renamed", "family": RunId("other"), "created": 7},
            {"checkpoint_id": sample_id("elsewhere"), "seq": 12},
        ]
        for change in changes:
            after = before._replace(**change)  # type: ignore[arg-type]
            await store.commit(Commit(after, Expected(before.checkpoint_id, before.token)))
            assert await store.head(RunId("r")) == after
            before = after

    async def test_a_head_is_seen_as_soon_as_commit_returns(self, store: Store) -> None:
        for number in range(20):
            commit = first_commit(f"r{number}")
            await store.commit(commit)
            assert await store.head(commit.head.run_id) == commit.head
