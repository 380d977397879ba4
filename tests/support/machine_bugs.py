"""Bugs that the machine has to find, each planted by exchanging one small part of Holdfast."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.checkpoint.journal import Contents
from holdfast.checkpoint.run_logs import RunLogs
from holdfast.runtime.durable import fork_edits, run_owner
from holdfast.stores import memory
from holdfast.stores.common import head_check
from tests.support.parts import (
    Commit,
    Expected,
    Head,
    LeaveResult,
    Letter,
    Manifest,
    MemoryStore,
    Recorder,
    RunId,
    RunLog,
    StoredJournal,
)

Patch = pytest.MonkeyPatch


def _token_is_not_compared(patch: Patch) -> None:
    straight = head_check.check_head

    def check_head(commit: Commit, there: Expected | None) -> None:
        same = there is not None and commit.expected is not None
        straight(commit, there._replace(token=commit.expected.token) if same else there)  # type: ignore[union-attr]

    patch.setattr(memory, "check_head", check_head)


def _restore_follows_the_head(patch: Patch) -> None:
    straight = RunLog.stand_on
    patch.setattr(RunLog, "stand_on", lambda self, target: None if self.head.seq else straight(self, target))


def _restore_overwrites(patch: Patch) -> None:
    straight = RunLogs.load_log

    async def load_log(self: RunLogs, head: Head, encoder: Any, outside: Any, seq: int, kept: Any) -> Any:
        log, *rest = await straight(self, head, encoder, outside, seq, kept)
        log.head = log.head._replace(seq=seq)
        return log, *rest

    patch.setattr(RunLogs, "load_log", load_log)


def _forks_share_an_inbox(patch: Patch) -> None:
    straight = MemoryStore.leave

    async def leave(self: MemoryStore, run_id: RunId, since: int, letters: Sequence[Letter]) -> LeaveResult:
        left = await straight(self, run_id, since, letters)
        for other in self._heads.values():
            if left.head is not None and other.family == left.head.family and other.run_id != run_id:
                await straight(self, other.run_id, since, letters)
        return left

    patch.setattr(MemoryStore, "leave", leave)


def _committing(patch: Patch, bent: Callable[[MemoryStore, Commit, Any], Any]) -> None:
    straight = MemoryStore.commit
    patch.setattr(MemoryStore, "commit", lambda self, commit: bent(self, commit, straight))


def _letters_are_not_taken(patch: Patch) -> None:
    _committing(patch, lambda self, commit, straight: straight(self, commit._replace(taken=())))


def _journal_outlives_its_checkpoint(patch: Patch) -> None:
    async def commit(self: MemoryStore, commit: Commit, straight: Any) -> Any:
        before = self._notes.get(commit.head.run_id, {})
        waiting = await straight(self, commit)
        self._notes[commit.head.run_id] = before | self._notes.get(commit.head.run_id, {})
        return waiting

    _committing(patch, commit)


def _resumptions(patch: Patch, **bent: Any) -> None:
    straight = Recorder.__init__

    def make(self: Recorder, *args: Any, **kwargs: Any) -> None:
        straight(self, *args, **kwargs)
        if self._resumption is not None:
            self._resumption = self._resumption._replace(**bent)

    patch.setattr(Recorder, "__init__", make)


async def _empty_journal() -> Contents:
    return Contents({}, {}, frozenset())


def _wish_to_cancel_is_ignored(patch: Patch) -> None:
    straight = Recorder.open_letters
    patch.setattr(Recorder, "open_letters", lambda self: (straight(self)[0], False))


def _payments_are_repeated(patch: Patch) -> None:
    straight = StoredJournal.found
    patch.setattr(
        StoredJournal,
        "found",
        lambda self, superstep, contents: straight(self, superstep, contents._replace(results={})),
    )


async def _nobody(*_: object) -> bool:
    return False


async def _raise(self: RunLog, head: Head, error: Exception, *_: object) -> None:
    raise error


BUGS: dict[str, Callable[[Patch], Any]] = {
    "the token is not compared": _token_is_not_compared,
    "who drives a run is not asked": lambda patch: patch.setattr(run_owner, "is_driven", _nobody),
    "processes may die with a run for ever": lambda patch: patch.setattr(run_owner, "MOST_TAKEOVERS", 99),
    "a restored checkpoint follows the head": _restore_follows_the_head,
    "a restore overwrites what followed": _restore_overwrites,
    "edits are stored but not seen": lambda patch: patch.setattr(fork_edits, "write", lambda state, _: state),
    "forks share an inbox": _forks_share_an_inbox,
    "letters are not taken": _letters_are_not_taken,
    "old answers count when a question is asked again": lambda patch: patch.setattr(
        Manifest, "ask_again", lambda self, seq: None
    ),
    "the wish to cancel is ignored": _wish_to_cancel_is_ignored,
    "what was committed is forgotten by a cancel": lambda patch: patch.setattr(
        Recorder, "_resting_status", lambda self, status: status
    ),
    "a commit that may have happened has not": lambda patch: patch.setattr(RunLog, "_reread", _raise),
    "the journal outlives its checkpoint": _journal_outlives_its_checkpoint,
    "a restore keeps the journal": lambda patch: _resumptions(patch, keeps_journal=True),
    "a resume forgets the journal": lambda patch: _resumptions(patch, read_journal=_empty_journal),
    "payments are repeated": _payments_are_repeated,
}
