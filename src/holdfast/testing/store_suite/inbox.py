"""Inboxes: what others leave for whoever drives a run."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.checkpoint.store import Commit, Expected, Left, Letter, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.samples import (
    EVERY_BYTE,
    LARGE,
    ODD_KEYS,
    all_of,
    begin,
    first_commit,
    move_on,
    names_of_runs,
    next_commit,
    refusal,
    rival_commit,
    sample_head,
    sample_letters,
    sample_notes,
    staying_commit,
)


async def inbox(store: Store, run: str = "r") -> tuple[Letter, ...]:
    """What waits for a run."""
    return tuple(await store.inbox(RunId(run)))


async def leave(store: Store, *keys: str, run: str = "r", since: int = 1) -> Left:
    """Leave a letter for each key."""
    return await store.leave(RunId(run), since, sample_letters(*keys))


def keys_of(letters: Iterable[Letter]) -> list[str]:
    """The keys of letters that must be those of ``sample_letters``."""
    keys = [letter.key for letter in letters]
    assert tuple(letters) == sample_letters(*keys)
    return keys


class Inbox:
    """What ``leave``, ``inbox`` and ``commit`` promise for letters."""

    async def test_a_run_for_which_nothing_was_left_has_an_empty_inbox(self, store: Store) -> None:
        assert await inbox(store, "nobody") == ()
        assert list(await store.commit(first_commit("r"))) == []
        assert await inbox(store) == ()
        head = sample_head("r")
        assert list(await store.commit(staying_commit(head))) == []
        assert list(await store.commit(next_commit(head))) == []
        assert await inbox(store) == ()
        assert await inbox(store, "nobody") == ()

    async def test_letters_are_kept_in_the_order_in_which_they_were_left(self, store: Store) -> None:
        await begin(store, "r")
        await leave(store, "d", "b", "c")
        for number in range(12):
            await leave(store, f"{-number}")
        await leave(store, "a", "Z")
        assert keys_of(await inbox(store)) == ["d", "b", "c", *(f"{-n}" for n in range(12)), "a", "Z"]

    async def test_leaving_says_where_the_run_stood(self, store: Store) -> None:
        first = await begin(store, "r", owner="host:1")
        assert await leave(store, "a") == Left(first)
        waiting = first._replace(status=RunStatus.WAITING, token=2, owner="", wake_at=0)
        await store.commit(staying_commit(first, status=RunStatus.WAITING, token=2, owner="", wake_at=0))
        assert await leave(store, "b") == Left(waiting)
        third = await move_on(store, await move_on(store, waiting), reason="\x00 \udc80 why")
        assert await leave(store, "c") == Left(third)
        assert await leave(store, "c") == Left(third, ("c",))
        left = await leave(store)
        assert left == Left(third)
        assert left.head is not None
        assert type(left.head.status) is RunStatus

    async def test_nothing_can_be_left_for_a_run_that_is_not_there(self, store: Store) -> None:
        assert await leave(store, "a", "b") == Left(None)
        assert await leave(store, "a") == Left(None)
        assert await inbox(store) == ()
        await begin(store, "other")
        assert await leave(store, "a", since=0) == Left(None)
        assert list(await store.commit(first_commit("r"))) == []
        assert await inbox(store) == ()
        assert await leave(store, "a") == Left(sample_head("r"))
        assert keys_of(await inbox(store)) == ["a"]

    async def test_leaving_moves_no_head(self, store: Store) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes("a")))
        await begin(store, "newer", updated=head.updated + 1)
        before = await all_of(store, "r")
        await leave(store, "a")
        await leave(store, "a", "b")
        assert await all_of(store, "r") == before
        assert await names_of_runs(store, RunQuery(newest=True)) == ["newer", "r"]
        assert tuple(await store.notes(RunId("r"))) == sample_notes("a")

    async def test_a_writer_goes_on_although_letters_were_left(self, store: Store) -> None:
        head = await begin(store, "r")
        for number in range(3):
            await leave(store, f"{number}")
            commit = next_commit(head)
            await store.commit(commit)
            await leave(store, f"{number} again")
            await store.commit(staying_commit(commit.head))
            head = commit.head
        assert await store.head(RunId("r")) == sample_head("r", 4)

    async def test_letters_can_be_left_for_a_run_of_any_status(self, store: Store) -> None:
        for status in RunStatus:
            head = await begin(store, status.value, status=status)
            assert await leave(store, "a", run=status.value) == Left(head)
            assert keys_of(await inbox(store, status.value)) == ["a"]

    async def test_every_commit_returns_the_letters_that_wait(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "b", "a")
        for commit in (staying_commit(head), staying_commit(head, sample_notes("x")), next_commit(head)):
            assert keys_of(await store.commit(commit)) == ["b", "a"]
        head = sample_head("r", 2)
        await leave(store, "c")
        assert keys_of(await store.commit(staying_commit(head, token=2))) == ["b", "a", "c"]
        await leave(store, "0")
        commit = next_commit(head._replace(token=2))
        assert keys_of(await store.commit(commit)) == ["b", "a", "c", "0"]
        assert keys_of(await inbox(store)) == ["b", "a", "c", "0"]

    async def test_a_letter_that_was_taken_waits_no_longer(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "a", "b", "c", "d", "e")
        assert keys_of(await store.commit(staying_commit(head, taken=["b"]))) == ["a", "c", "d", "e"]
        assert keys_of(await inbox(store)) == ["a", "c", "d", "e"]
        moving = next_commit(head)._replace(taken=("e", "a"))
        assert keys_of(await store.commit(moving)) == ["c", "d"]
        await leave(store, "f")
        assert keys_of(await store.commit(staying_commit(moving.head))) == ["c", "d", "f"]
        last = next_commit(moving.head)._replace(taken=("c", "d", "f"))
        assert list(await store.commit(last)) == []
        assert list(await store.commit(staying_commit(last.head))) == []
        assert await inbox(store) == ()

    async def test_taking_what_does_not_wait_is_no_error(self, store: Store) -> None:
        head = await begin(store, "r")
        assert list(await store.commit(staying_commit(head, taken=["never left"]))) == []
        await leave(store, "a", "b")
        assert keys_of(await store.commit(staying_commit(head, taken=["a", "never left"]))) == ["b"]
        assert keys_of(await store.commit(staying_commit(head, taken=["a", "a"]))) == ["b"]
        assert keys_of(await inbox(store)) == ["b"]

    async def test_a_refused_commit_takes_no_letter(self, store: Store) -> None:
        first = await begin(store, "r", token=5)
        second = await move_on(store, first)
        await leave(store, "a", "b")
        stale = Expected(second.checkpoint_id, 4)
        for late in (
            rival_commit(first, "late"),
            Commit(second, Expected(first.checkpoint_id, 5)),
            Commit(second, stale),
            next_commit(second)._replace(expected=stale),
            Commit(second, None),
        ):
            await refusal(store.commit(late._replace(taken=("a", "b"))))
            assert keys_of(await inbox(store)) == ["a", "b"], late
        assert keys_of(await store.commit(staying_commit(second, taken=["a"]))) == ["b"]

    async def test_a_key_that_waits_cannot_be_left_again(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "a")
        other = [Letter("a", b"other")]
        assert await store.leave(RunId("r"), 1, other) == Left(head, ("a",))
        for _ in range(3):
            head = await move_on(store, head)
        for since in (0, 1, 3, 4):
            assert await store.leave(RunId("r"), since, other) == Left(head, ("a",))
            assert keys_of(await inbox(store)) == ["a"]

    async def test_letters_are_left_all_or_none(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave(store, "b", "d")
        assert await leave(store, "a", "b", "c") == Left(head, ("b",))
        assert keys_of(await inbox(store)) == ["b", "d"]
        left = await leave(store, "d", "a", "b")
        assert sorted(left.refused) == ["b", "d"]
        assert keys_of(await store.commit(staying_commit(head, taken=["d"]))) == ["b"]
        left = await leave(store, "d", "a", "b")
        assert sorted(left.refused) == ["b", "d"]
        # What was refused with others was not left, so it can be left now.
        assert await leave(store, "c", "a") == Left(head)
        assert keys_of(await inbox(store)) == ["b", "c", "a"]

    async def test_a_key_that_was_taken_cannot_be_left_again(self, store: Store) -> None:
        """It was unused when the run stood on checkpoint 2 or earlier; it was taken there, or on the way to 3."""
        head = await move_on(store, await begin(store, "r"))
        await leave(store, "staying", "moving", "kept", since=2)
        await store.commit(staying_commit(head, taken=["staying"]))
        commit = next_commit(head)._replace(taken=("moving",))
        await store.commit(commit)
        head = commit.head
        for _ in range(4):
            for since in (0, 1, 2):
                for key in ("staying", "moving"):
                    assert await leave(store, key, since=since) == Left(head, (key,))
                    assert await leave(store, "new", key, since=since) == Left(head, (key,))
            assert keys_of(await inbox(store)) == ["kept"]
            head = await move_on(store, head)

    async def test_a_key_that_was_taken_before_is_refused_or_left(self, store: Store) -> None:
        """A store need not look at what was taken before ``since``: either answer is good, if it is what happened."""
        head = await begin(store, "r")
        await leave(store, "a")
        await store.commit(staying_commit(head, taken=["a"]))
        head = await move_on(store, await move_on(store, head))
        left = await leave(store, "b", "a", since=3)
        assert left.head == head
        assert left.refused in ((), ("a",))
        assert keys_of(await inbox(store)) == ([] if left.refused else ["b", "a"])

    async def test_inboxes_of_other_runs_are_left_alone(self, store: Store) -> None:
        heads = {run: await begin(store, run, family=RunId("r")) for run in ("r", "rr", "R")}
        for run, head in heads.items():
            letters = [Letter("a", run.encode()), Letter(run, b"")]
            assert await store.leave(RunId(run), 1, letters) == Left(head)
        assert list(await store.commit(next_commit(heads["r"])._replace(taken=("a", "rr")))) == [
            Letter("r", b"")
        ]
        assert await inbox(store, "r") == (Letter("r", b""),)
        assert await inbox(store, "rr") == (Letter("a", b"rr"), Letter("rr", b""))
        assert list(await store.commit(staying_commit(heads["R"]))) == [Letter("a", b"R"), Letter("R", b"")]
        # What was taken from one run was not taken from the others.
        assert await leave(store, "b", "r", run="rr") == Left(heads["rr"])

    async def test_data_of_letters_comes_back_as_it_was_given(self, store: Store) -> None:
        data = [b"", b"\x00", EVERY_BYTE, b"\n", b"{}\r\n", EVERY_BYTE * 40, LARGE, b"\xff", b""]
        letters = [Letter(str(number), one) for number, one in enumerate(data)]
        head = await begin(store, "r")
        await store.leave(RunId("r"), 1, letters)
        # Not compared in the assertions, which would show hundreds of kilobytes that differ.
        same = list(await inbox(store)) == letters
        assert same, "a letter did not come back from the inbox as it was"
        same = list(await store.commit(staying_commit(head))) == letters
        assert same, "a letter did not come back from a commit as it was"

    async def test_keys_of_letters_are_any_text_and_are_apart(self, store: Store) -> None:
        head = await begin(store, "r")
        assert await leave(store, *ODD_KEYS) == Left(head)
        assert keys_of(await inbox(store)) == ODD_KEYS
        left = await leave(store, *ODD_KEYS)
        assert sorted(left.refused) == sorted(ODD_KEYS)
        taken = ODD_KEYS[::2]
        assert keys_of(await store.commit(staying_commit(head, taken=taken))) == ODD_KEYS[1::2]
        assert keys_of(await inbox(store)) == ODD_KEYS[1::2]
        left = await leave(store, *ODD_KEYS)
        assert sorted(left.refused) == sorted(ODD_KEYS)

    async def test_many_letters_keep_their_order(self, store: Store) -> None:
        keys = [str(number * 7 % 200) for number in range(200)]
        head = await begin(store, "r")
        await leave(store, *keys)
        assert keys_of(await inbox(store)) == keys
        taken = keys[::3]
        rest = [key for key in keys if key not in taken]
        assert keys_of(await store.commit(staying_commit(head, taken=taken))) == rest
        await leave(store, "late")
        assert keys_of(await store.commit(next_commit(head))) == [*rest, "late"]

    async def test_taking_many_letters_does_not_compare_each_with_all(self, store: Store) -> None:
        """All answers to thousands of questions may be taken by one commit."""
        keys = [_Compared(number) for number in range(500)]
        head = await begin(store, "r")
        await leave(store, *map(str, keys), "rest")
        _Compared.times = 0
        assert keys_of(await store.commit(staying_commit(head, taken=keys))) == ["rest"]
        assert _Compared.times <= 20 * len(keys)


class _Compared(str):
    """A key that counts how often it and others are compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        _Compared.times += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)
