"""Rules of inboxes: the letters that others leave for a run."""

from __future__ import annotations

import asyncio

from holdfast.checkpoint.store import Commit, Expected, LeaveResult, Letter, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.ids import RunId
from holdfast.testing.store_suite.actions import (
    begin,
    begin_waiting,
    catch_refusal,
    get_keys,
    leave_letters,
    list_due,
    list_run_ids,
    move_on,
    read_inbox,
    read_run,
    try_commit,
)
from holdfast.testing.store_suite.samples import (
    EVERY_BYTE,
    LARGE,
    ODD_KEYS,
    expect_head,
    first_commit,
    next_commit,
    rival_commit,
    sample_head,
    sample_letters,
    sample_notes,
    sample_record,
    staying_commit,
)


class InboxRules:
    """The rules of ``leave`` and ``inbox``, and of ``commit`` for letters."""

    async def test_a_run_for_which_nothing_was_left_has_an_empty_inbox(self, store: Store) -> None:
        assert await read_inbox(store, "nobody") == ()
        assert list(await store.commit(first_commit("r"))) == []
        assert await read_inbox(store) == ()
        head = sample_head("r")
        assert list(await store.commit(staying_commit(head))) == []
        assert list(await store.commit(next_commit(head))) == []
        assert await read_inbox(store) == ()
        assert await read_inbox(store, "nobody") == ()

    async def test_no_more_letters_wait_than_the_sender_allows(self, store: Store) -> None:
        head = await begin(store, "r")
        await begin(store, "other")
        await leave_letters(store, "elsewhere", run="other")
        run = RunId("r")
        assert not (await store.leave(run, 1, sample_letters("a", "b"), 3)).is_full
        assert await store.leave(run, 1, sample_letters("c", "d"), 3) == LeaveResult(head, is_full=True)
        assert get_keys(await read_inbox(store)) == ["a", "b"]
        # Keys that did not get in are unused, and one that was used is refused first.
        assert await store.leave(run, 1, sample_letters("b"), 2) == LeaveResult(head, ("b",))
        assert await store.leave(run, 1, sample_letters("c"), 3) == LeaveResult(head)
        assert (await store.leave(run, 1, sample_letters("d"), 3)).is_full
        # Others may leave more, and those that were taken make room.
        assert await store.leave(run, 1, sample_letters("d")) == LeaveResult(head)
        await store.commit(staying_commit(head, taken=["a", "b"]))
        assert not (await store.leave(run, 1, sample_letters("e"), 3)).is_full
        assert (await store.leave(run, 1, sample_letters("f"), 3)).is_full
        assert get_keys(await read_inbox(store)) == ["c", "d", "e"]

    async def test_keys_of_letters_that_were_taken_are_told(self, store: Store) -> None:
        assert list(await store.taken(RunId("r"), ["a"])) == []
        head = await begin(store, "r")
        await leave_letters(store, "waits", *ODD_KEYS)
        asked = ["waits", "unknown", *ODD_KEYS]
        assert list(await store.taken(RunId("r"), asked)) == []
        await store.commit(staying_commit(head, taken=ODD_KEYS))
        same = set(await store.taken(RunId("r"), asked)) == set(ODD_KEYS)
        assert same, "a key was lost, changed or added"

    async def test_letters_are_kept_in_the_order_in_which_they_were_left(self, store: Store) -> None:
        await begin(store, "r")
        await leave_letters(store, "d", "b", "c")
        for number in range(12):
            await leave_letters(store, f"{-number}")
        await leave_letters(store, "a", "Z")
        assert get_keys(await read_inbox(store)) == ["d", "b", "c", *(f"{-n}" for n in range(12)), "a", "Z"]

    async def test_leaving_says_where_the_run_stood(self, store: Store) -> None:
        first = await begin(store, "r", owner="host:1")
        assert await leave_letters(store, "a") == LeaveResult(first)
        waiting = first._replace(status=RunStatus.WAITING, token=2, owner="", wake_at=0)
        await store.commit(staying_commit(first, status=RunStatus.WAITING, token=2, owner="", wake_at=0))
        assert await leave_letters(store, "b") == LeaveResult(waiting)
        third = await move_on(store, await move_on(store, waiting), reason="\x00 \udc80 why")
        assert await leave_letters(store, "c") == LeaveResult(third)
        assert await leave_letters(store, "c") == LeaveResult(third, ("c",))
        left = await leave_letters(store)
        assert left == LeaveResult(third)
        assert left.head is not None
        assert type(left.head.status) is RunStatus

    async def test_nothing_can_be_left_for_a_run_that_is_not_there(self, store: Store) -> None:
        assert await leave_letters(store, "a", "b") == LeaveResult(None)
        assert await leave_letters(store, "a") == LeaveResult(None)
        assert await read_inbox(store) == ()
        await begin(store, "other")
        assert await leave_letters(store, "a", since=0) == LeaveResult(None)
        assert list(await store.commit(first_commit("r"))) == []
        assert await read_inbox(store) == ()
        assert await leave_letters(store, "a") == LeaveResult(sample_head("r"))
        assert get_keys(await read_inbox(store)) == ["a"]

    async def test_leaving_moves_no_head(self, store: Store) -> None:
        head = await begin(store, "r")
        await store.commit(staying_commit(head, sample_notes("a")))
        await begin(store, "newer", updated=head.updated + 1)
        before = await read_run(store, "r")
        await leave_letters(store, "a")
        await leave_letters(store, "a", "b")
        assert await read_run(store, "r") == before
        assert await list_run_ids(store, RunQuery(newest=True)) == ["newer", "r"]
        assert tuple(await store.notes(RunId("r"))) == sample_notes("a")

    async def test_a_writer_goes_on_although_letters_were_left(self, store: Store) -> None:
        head = await begin(store, "r")
        for number in range(3):
            await leave_letters(store, f"{number}")
            commit = next_commit(head)
            await store.commit(commit)
            await leave_letters(store, f"{number} again")
            await store.commit(staying_commit(commit.head))
            head = commit.head
        assert await store.head(RunId("r")) == sample_head("r", 4)

    async def test_letters_can_be_left_for_a_run_of_any_status(self, store: Store) -> None:
        for status in RunStatus:
            head = await begin(store, status.value, status=status)
            assert await leave_letters(store, "a", run=status.value) == LeaveResult(head)
            assert get_keys(await read_inbox(store, status.value)) == ["a"]

    async def test_every_commit_returns_the_letters_that_wait(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "b", "a")
        for commit in (staying_commit(head), staying_commit(head, sample_notes("x")), next_commit(head)):
            assert get_keys(await store.commit(commit)) == ["b", "a"]
        head = sample_head("r", 2)
        await leave_letters(store, "c")
        assert get_keys(await store.commit(staying_commit(head, token=2))) == ["b", "a", "c"]
        await leave_letters(store, "0")
        commit = next_commit(head._replace(token=2))
        assert get_keys(await store.commit(commit)) == ["b", "a", "c", "0"]
        assert get_keys(await read_inbox(store)) == ["b", "a", "c", "0"]

    async def test_a_letter_that_was_taken_waits_no_longer(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "a", "b", "c", "d", "e")
        assert get_keys(await store.commit(staying_commit(head, taken=["b"]))) == ["a", "c", "d", "e"]
        assert get_keys(await read_inbox(store)) == ["a", "c", "d", "e"]
        moving = next_commit(head)._replace(taken=("e", "a"))
        assert get_keys(await store.commit(moving)) == ["c", "d"]
        await leave_letters(store, "f")
        assert get_keys(await store.commit(staying_commit(moving.head))) == ["c", "d", "f"]
        last = next_commit(moving.head)._replace(taken=("c", "d", "f"))
        assert list(await store.commit(last)) == []
        assert list(await store.commit(staying_commit(last.head))) == []
        assert await read_inbox(store) == ()

    async def test_taking_what_does_not_wait_is_no_error(self, store: Store) -> None:
        head = await begin(store, "r")
        assert list(await store.commit(staying_commit(head, taken=["never left"]))) == []
        await leave_letters(store, "a", "b")
        assert get_keys(await store.commit(staying_commit(head, taken=["a", "never left"]))) == ["b"]
        assert get_keys(await store.commit(staying_commit(head, taken=["a", "a"]))) == ["b"]
        assert get_keys(await read_inbox(store)) == ["b"]

    async def test_a_refused_commit_takes_no_letter(self, store: Store) -> None:
        first = await begin(store, "r", token=5)
        second = await move_on(store, first)
        await leave_letters(store, "a", "b")
        stale = Expected(second.checkpoint_id, 4)
        for late in (
            rival_commit(first, "late"),
            Commit(second, Expected(first.checkpoint_id, 5)),
            Commit(second, stale),
            next_commit(second)._replace(expected=stale),
            Commit(second, None),
        ):
            await catch_refusal(store.commit(late._replace(taken=("a", "b"))))
            assert get_keys(await read_inbox(store)) == ["a", "b"], late
        assert get_keys(await store.commit(staying_commit(second, taken=["a"]))) == ["b"]

    async def test_a_key_that_waits_cannot_be_left_again(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "a")
        other = [Letter("a", b"other")]
        assert await store.leave(RunId("r"), 1, other) == LeaveResult(head, ("a",))
        for _ in range(3):
            head = await move_on(store, head)
        for since in (0, 1, 3, 4):
            assert await store.leave(RunId("r"), since, other) == LeaveResult(head, ("a",))
            assert get_keys(await read_inbox(store)) == ["a"]

    async def test_letters_are_left_all_or_none(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "b", "d")
        assert await leave_letters(store, "a", "b", "c") == LeaveResult(head, ("b",))
        assert get_keys(await read_inbox(store)) == ["b", "d"]
        left = await leave_letters(store, "d", "a", "b")
        assert sorted(left.refused) == ["b", "d"]
        assert get_keys(await store.commit(staying_commit(head, taken=["d"]))) == ["b"]
        left = await leave_letters(store, "d", "a", "b")
        assert sorted(left.refused) == ["b", "d"]
        # A letter that was refused with others was not left, so it can be left now.
        assert await leave_letters(store, "c", "a") == LeaveResult(head)
        assert get_keys(await read_inbox(store)) == ["b", "c", "a"]

    async def test_a_key_that_was_taken_cannot_be_left_again(self, store: Store) -> None:
        """The key was unused up to checkpoint 2; the letter was taken there, or on the way to 3."""
        head = await move_on(store, await begin(store, "r"))
        await leave_letters(store, "staying", "moving", "kept", since=2)
        await store.commit(staying_commit(head, taken=["staying"]))
        commit = next_commit(head)._replace(taken=("moving",))
        await store.commit(commit)
        head = commit.head
        for _ in range(4):
            for since in (0, 1, 2):
                for key in ("staying", "moving"):
                    assert await leave_letters(store, key, since=since) == LeaveResult(head, (key,))
                    assert await leave_letters(store, "new", key, since=since) == LeaveResult(head, (key,))
            assert get_keys(await read_inbox(store)) == ["kept"]
            head = await move_on(store, head)

    async def test_a_key_that_was_taken_before_is_refused_or_left(self, store: Store) -> None:
        """A store need not look at letters that were taken before ``since``: it may leave or refuse the letter."""
        head = await begin(store, "r")
        await leave_letters(store, "a")
        await store.commit(staying_commit(head, taken=["a"]))
        head = await move_on(store, await move_on(store, head))
        left = await leave_letters(store, "b", "a", since=3)
        assert left.head == head
        assert left.refused in ((), ("a",))
        assert get_keys(await read_inbox(store)) == ([] if left.refused else ["b", "a"])

    async def test_keys_are_used_up_without_letters(self, store: Store) -> None:
        run = RunId("r")
        assert await store.use_up(run, ["a"]) == LeaveResult(None)
        head = await begin_waiting(store, "r")
        await store.commit(staying_commit(head, sample_notes("n")))
        await leave_letters(store, "waits")
        await store.commit(staying_commit(head, letters_known=1))
        before = await read_run(store, "r")
        assert before[0] is not None
        assert await store.use_up(run, ODD_KEYS) == LeaveResult(before[0])
        same = set(await store.taken(run, ["waits", "unknown", *ODD_KEYS])) == set(ODD_KEYS)
        assert same, "a key was lost, changed or added"
        assert await leave_letters(store, "new", ODD_KEYS[0]) == LeaveResult(before[0], (ODD_KEYS[0],))
        # The run stands as it did, with the letters that it had, and nobody is to look at it.
        assert await read_run(store, "r") == before
        assert tuple(await store.notes(run)) == sample_notes("n")
        assert get_keys(await read_inbox(store)) == ["waits"]
        assert await list_due(store) == []
        assert get_keys(await store.commit(next_commit(before[0]))) == ["waits"]
        assert list(await store.taken(run, [ODD_KEYS[0]])) == [ODD_KEYS[0]]

    async def test_keys_are_used_up_all_or_none(self, store: Store) -> None:
        run = RunId("r")
        head = await begin(store, "r")
        await leave_letters(store, "waits", "taken")
        await store.commit(staying_commit(head, taken=["taken"]))
        assert await store.use_up(run, ["a", "waits", "b", "taken"]) == LeaveResult(head, ("waits", "taken"))
        assert list(await store.taken(run, ["a", "b"])) == []
        assert get_keys(await read_inbox(store)) == ["waits"]
        assert await store.use_up(run, ["a"]) == LeaveResult(head)
        assert await store.use_up(run, ["b", "a"]) == LeaveResult(head, ("a",))
        assert await store.use_up(run, []) == LeaveResult(head)
        assert await leave_letters(store, "b") == LeaveResult(head)

    async def test_a_commit_uses_up_keys_that_nobody_left(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "waits")
        using = staying_commit(head, taken=["a", "b"])._replace(letters=sample_letters("a", "b"))
        refused = using._replace(expected=Expected(head.checkpoint_id, head.token + 7))
        await catch_refusal(store.commit(refused))
        assert list(await store.taken(RunId("r"), ["a", "b"])) == []
        assert get_keys(await store.commit(using)) == ["waits"]
        assert list(await store.taken(RunId("r"), ["a", "waits", "b"])) == ["a", "b"]
        assert await leave_letters(store, "b", "c") == LeaveResult(head, ("b",))
        moving = next_commit(head)._replace(letters=sample_letters("c", "d"), taken=("d",))
        assert get_keys(await store.commit(moving)) == ["waits", "c"]
        assert list(await store.taken(RunId("r"), ["c", "d"])) == ["d"]

    async def test_a_commit_that_is_written_whole_uses_up_its_keys(self, store: Store) -> None:
        """The first commit of a run with many records, and one that replaces a run."""
        records = tuple(sample_record("r", seq) for seq in range(1, 31))
        head, using = sample_head("r", 30), sample_letters("waits", "used")
        first = Commit(head, None, records, letters=using, taken=("used",))
        assert get_keys(await store.commit(first)) == ["waits"]
        assert list(await store.taken(RunId("r"), ["waits", "used"])) == ["used"]
        again = Commit(head._replace(token=head.token + 1), expect_head(head), records)
        await store.replace(again._replace(letters=sample_letters("waits", "other"), taken=("other",)))
        assert get_keys(await read_inbox(store)) == ["waits"]
        assert list(await store.taken(RunId("r"), ["waits", "used", "other"])) == ["other"]

    async def test_a_commit_leaves_no_letter_whose_key_was_used(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "waits", "taken")
        await store.commit(staying_commit(head, taken=["taken"]))
        others = (Letter("waits", b"other"), Letter("taken", b"other"), Letter("new", b"new"))
        waiting = list(await store.commit(staying_commit(head)._replace(letters=others)))
        assert waiting == [*sample_letters("waits"), Letter("new", b"new")]
        assert list(await read_inbox(store)) == waiting

    async def test_inboxes_of_other_runs_are_left_alone(self, store: Store) -> None:
        heads = {run: await begin(store, run, family=RunId("r")) for run in ("r", "rr", "R")}
        for run, head in heads.items():
            letters = [Letter("a", run.encode()), Letter(run, b"")]
            assert await store.leave(RunId(run), 1, letters) == LeaveResult(head)
        assert list(await store.commit(next_commit(heads["r"])._replace(taken=("a", "rr")))) == [
            Letter("r", b"")
        ]
        assert await read_inbox(store, "r") == (Letter("r", b""),)
        assert await read_inbox(store, "rr") == (Letter("a", b"rr"), Letter("rr", b""))
        assert list(await store.commit(staying_commit(heads["R"]))) == [Letter("a", b"R"), Letter("R", b"")]
        # A letter that was taken from one run still waits for the others.
        assert await leave_letters(store, "b", "r", run="rr") == LeaveResult(heads["rr"])

    async def test_data_of_letters_comes_back_as_it_was_given(self, store: Store) -> None:
        data = [b"", b"\x00", EVERY_BYTE, b"\n", b"{}\r\n", EVERY_BYTE * 40, LARGE, b"\xff", b""]
        letters = [Letter(str(number), one) for number, one in enumerate(data)]
        head = await begin(store, "r")
        await store.leave(RunId("r"), 1, letters)
        # Not compared in the assertions, which would show hundreds of kilobytes that differ.
        same = list(await read_inbox(store)) == letters
        assert same, "a letter did not come back from the inbox as it was"
        same = list(await store.commit(staying_commit(head))) == letters
        assert same, "a letter did not come back from a commit as it was"

    async def test_keys_of_letters_are_any_text_and_are_apart(self, store: Store) -> None:
        head = await begin(store, "r")
        assert await leave_letters(store, *ODD_KEYS) == LeaveResult(head)
        assert get_keys(await read_inbox(store)) == ODD_KEYS
        left = await leave_letters(store, *ODD_KEYS)
        assert sorted(left.refused) == sorted(ODD_KEYS)
        taken = ODD_KEYS[::2]
        assert get_keys(await store.commit(staying_commit(head, taken=taken))) == ODD_KEYS[1::2]
        assert get_keys(await read_inbox(store)) == ODD_KEYS[1::2]
        left = await leave_letters(store, *ODD_KEYS)
        assert sorted(left.refused) == sorted(ODD_KEYS)

    async def test_many_letters_keep_their_order(self, store: Store) -> None:
        keys = [str(number * 7 % 200) for number in range(200)]
        head = await begin(store, "r")
        await leave_letters(store, *keys)
        assert get_keys(await read_inbox(store)) == keys
        taken = keys[::3]
        rest = [key for key in keys if key not in taken]
        assert get_keys(await store.commit(staying_commit(head, taken=taken))) == rest
        await leave_letters(store, "late")
        assert get_keys(await store.commit(next_commit(head))) == [*rest, "late"]

    async def test_taking_many_letters_does_not_compare_each_with_all(self, store: Store) -> None:
        """One commit may take the answers to thousands of requests."""
        keys = [_CountedKey(number) for number in range(500)]
        head = await begin(store, "r")
        await leave_letters(store, *map(str, keys), "rest")
        _CountedKey.times = 0
        assert get_keys(await store.commit(staying_commit(head, taken=keys))) == ["rest"]
        assert _CountedKey.times <= 20 * len(keys)


class _CountedKey(str):
    """A key that counts how often it and others are compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        _CountedKey.times += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


class ConcurrentLetterRules:
    """The rules for letters that are left while others leave some, and while the run goes on."""

    async def test_one_of_twenty_who_leave_the_same_key_wins(self, store: Store) -> None:
        head = await begin(store, "r")
        letters = [Letter("a", b"%d" % sender) for sender in range(20)]
        results = await asyncio.gather(*(store.leave(RunId("r"), 1, [letter]) for letter in letters))
        assert sorted(results, key=lambda left: left.refused) == [
            LeaveResult(head),
            *[LeaveResult(head, ("a",))] * 19,
        ]
        assert await read_inbox(store) == (letters[results.index(LeaveResult(head))],)

    async def test_letters_that_many_leave_at_the_same_time_are_all_there(self, store: Store) -> None:
        head = await begin(store, "r")
        keys = [f"{sender}" for sender in range(20)]
        results = await asyncio.gather(*(leave_letters(store, key, f"{key} too") for key in keys))
        assert results == [LeaveResult(head)] * 20
        found = get_keys(await read_inbox(store))
        # In any order, but letters that were left together stay together.
        assert found == [name for key in found[::2] for name in (key, f"{key} too")]
        assert sorted(found[::2]) == sorted(keys)

    async def test_letters_that_are_left_together_are_seen_together(self, store: Store) -> None:
        await begin(store, "r")
        done = False

        async def write() -> None:
            nonlocal done
            try:
                for number in range(10):
                    await leave_letters(store, f"{number}a", f"{number}b", f"{number}c")
            finally:
                done = True

        async def read() -> None:
            while not done:
                assert len(await read_inbox(store)) % 3 == 0
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())

    async def test_no_letter_is_lost_or_taken_twice_while_the_run_goes_on(self, store: Store) -> None:
        """A commit returns each letter that was left before it began, unless the letter was taken."""
        head = await begin(store, "r")
        left: list[str] = []
        taken: list[str] = []

        async def send(sender: str) -> None:
            for number in range(6):
                key = f"{sender}{number}"
                assert (await leave_letters(store, key)).refused == ()
                left.append(key)
                await asyncio.sleep(0)

        async def drive(*senders: asyncio.Task[None]) -> None:
            waiting: list[str] = []
            commit = staying_commit(head)
            while waiting or not all(sender.done() for sender in senders):
                taking, before = waiting[:3], set(left)
                waiting = get_keys(await store.commit(commit._replace(taken=tuple(taking))))
                taken.extend(taking)
                assert before - set(taken) <= set(waiting)
                assert not set(taken) & set(waiting)
                stays = len(taken) % 2
                commit = staying_commit(commit.head) if stays else next_commit(commit.head)
                await asyncio.sleep(0)

        senders = [asyncio.ensure_future(send(sender)) for sender in "abcd"]
        await asyncio.gather(drive(*senders), *senders)
        await self._all_came(store, left, taken)

    async def _all_came(self, store: Store, left: list[str], taken: list[str]) -> None:
        rest = get_keys(await read_inbox(store))
        assert sorted(taken + rest) == sorted(left)
        for sender in "abcd":
            mine = [key for key in taken + rest if key[0] == sender]
            assert mine == sorted(mine)

    async def test_a_cancelled_caller_leaves_all_letters_or_none(self, store: Store) -> None:
        for patience in range(8):
            name = f"r{patience}"
            head = await begin(store, name)
            task = asyncio.ensure_future(leave_letters(store, "a", "b", "c", run=name))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # A second try finds it done, or does it.
            again = await leave_letters(store, "a", "b", "c", run=name)
            assert again.head == head
            assert sorted(again.refused) in ([], ["a", "b", "c"])
            assert await read_inbox(store, name) == sample_letters("a", "b", "c")

    async def test_a_cancelled_commit_takes_its_letters_or_not(self, store: Store) -> None:
        for patience in range(8):
            name = f"r{patience}"
            head = await begin(store, name)
            await leave_letters(store, "a", "b", "c", run=name)
            commit = next_commit(head)._replace(taken=("a", "c"))
            task = asyncio.ensure_future(store.commit(commit))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await try_commit(store, commit)  # a second try finds it done, or does it
            assert await store.head(RunId(name)) == commit.head
            assert get_keys(await read_inbox(store, name)) == ["b"]

    async def test_one_event_loop_after_another_may_use_an_inbox(self, store: Store) -> None:
        head = await begin(store, "r")
        await leave_letters(store, "here")
        await store.notes(RunId("r"))

        async def elsewhere() -> None:
            assert await leave_letters(store, "there", "here") == LeaveResult(head, ("here",))
            assert await leave_letters(store, "there") == LeaveResult(head)
            assert get_keys(await read_inbox(store)) == ["here", "there"]
            assert list(await store.notes(RunId("r"))) == []
            await move_on(store, head)

        await asyncio.to_thread(asyncio.run, elsewhere())
        await leave_letters(store, "here again")
        assert get_keys(await read_inbox(store)) == ["here", "there", "here again"]
