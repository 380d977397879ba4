"""A store under keys: it wraps a store, and seals all that it gives to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.checkpoint.keys.cipher import NotSealed, RunCipher, StoreCipher, UnknownEpoch
from holdfast.checkpoint.keys.keyring import Keyring, check_keys
from holdfast.checkpoint.keys.sealed_heads import SealedHeads
from holdfast.checkpoint.keys.sealed_items import (
    OpenedHead,
    SealedPosition,
    blind_letter,
    codes_of,
    digest_journal,
    is_refused,
    new_incarnation,
    open_event,
    open_head,
    open_letter,
    open_note,
    open_record,
    open_tag,
    read_incarnation,
    seal_event,
    seal_giver,
    seal_head,
    seal_keyframe,
    seal_letter,
    seal_note,
    seal_record,
    seal_tags,
    untrusted,
)
from holdfast.checkpoint.keys.store_lock import StoreLock
from holdfast.checkpoint.store import (
    KEYS,
    Blob,
    ClaimRequest,
    Commit,
    Damage,
    Depth,
    EventRow,
    Expected,
    Head,
    KnownMarks,
    LeaveResult,
    Letter,
    MarkedBlobs,
    Mended,
    Note,
    Record,
    Rehearsal,
    Removal,
    Retag,
    RunQuery,
    SealedForms,
    Store,
    StoreInfo,
)
from holdfast.checkpoint.threads import Threads
from holdfast.errors import CheckpointCorrupt, CheckpointUntrusted, HeadMoved
from holdfast.ids import CheckpointId, Digest, RunId

if TYPE_CHECKING:
    from holdfast.checkpoint.keys.anchor import Anchor, AnchorCheck

_T = TypeVar("_T")
_threads = Threads("holdfast-sealing", 4)
"""Seal and open large blobs."""
_LARGE = 1 << 20
_PAGE = 500
_LAST_SEQ = 1 << 62


class _OldPosition(Exception):
    """Raised if a run moved on while a commit was prepared."""


class SealedStore:
    """A store that seals what it gives to another, and opens what that returns.

    The other store keeps the columns by which it finds and orders runs, and otherwise bytes that it cannot read. What
    was not sealed with the keys of the store, for exactly its place, raises ``CheckpointUntrusted``, or is left out
    where a list of others would be lost with it. ``inspect`` and ``damaged`` name it.
    """

    in_any_task = False
    """Explained where ``Store`` is defined; that of the store inside."""

    def __init__(self, inner: Store, keys: Keyring, anchor: AnchorCheck | None = None) -> None:
        self.inner = inner
        self._lock = StoreLock(inner, keys, None if anchor is None else anchor.bind)
        self._heads = SealedHeads(inner, self._lock, anchor)
        self.in_any_task = bool(getattr(inner, "in_any_task", False))

    def __getattr__(self, name: str) -> Any:
        """Give what a store may have besides the port: ``wakeups``, ``vacuum``, ``backup``, ``path``."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    # Keys.

    @property
    def keyring(self) -> Keyring:
        """The keys that the store is opened with."""
        return self._lock.keyring

    async def rekey(self, keys: Keyring) -> None:
        """Lock the store with another keyring from now on."""
        await self._lock.rekey(keys)

    async def open(self) -> StoreInfo:
        await self._lock.unlock()
        info = await self.inner.open()
        return info._replace(features=info.features - {KEYS})

    # Heads.

    async def head(self, run_id: RunId) -> Head | None:
        opened = await self._heads.read(run_id)
        return None if opened is None else opened.head

    async def runs(self, query: RunQuery) -> Sequence[Head]:
        found: list[Head] = []
        async for head in self._each_head(query):
            if len(found) == query.limit:
                break
            found.append(head)
        return found

    async def count_runs(self, query: RunQuery) -> int:
        if query.text is None:
            if self._lock.cipher is None:
                await self._lock.unlock()
            return await self.inner.count_runs(query)
        return len([head async for head in self._each_head(query._replace(limit=None, after=None))])

    async def _each_head(self, query: RunQuery) -> AsyncIterator[Head]:
        """Yield the heads that a query selects, page by page, without those that are refused."""
        if self._lock.cipher is None:
            await self._lock.unlock()
        size = query.limit if query.text is None else _PAGE
        page = query._replace(text=None, limit=size)
        while True:
            stored = await self.inner.runs(page)
            for opened in (await self._heads.open_all(stored)).opened:
                if query.text is None or await self._has_text(opened, query.text.casefold()):
                    yield opened.head
            if not stored or size is None or len(stored) < size:
                return
            page = page._replace(after=query.position_of(stored[-1]))

    async def _has_text(self, opened: OpenedHead, folded: str) -> bool:
        head, incarnation = opened.head, opened.position.incarnation
        if any(folded in text.casefold() for text in (head.run_id, head.workflow_name, head.reason)):
            return True
        try:
            records = await self.inner.records(head.run_id, 0, _LAST_SEQ, Depth.HEADERS)
        except CheckpointCorrupt:  # its tags cannot be read; other runs are found by theirs
            return False
        tagged = [record for record in records if record.tags]
        cipher = self._lock.cipher or await self._lock.unlock()
        of_run = cipher.run(head.run_id)
        return any(
            folded in open_tag(of_run, incarnation, record.seq, tag).casefold()
            for record in tagged
            for tag in record.tags
        )

    async def claim(self, request: ClaimRequest) -> Sequence[Head]:
        opened = (await self._heads.open_all(await self.inner.claim(request))).opened
        return [one.head for one in opened]

    # Commits.

    async def commit(self, commit: Commit) -> Sequence[Letter]:
        run_id = commit.head.run_id
        stored, incarnation = await self._change(commit, self.inner.commit)
        return await self._open_letters(run_id, incarnation, stored) if stored else stored

    async def replace(self, commit: Commit) -> None:
        letters = tuple(letter for letter in commit.letters if not is_refused(letter))
        await self._change(commit._replace(letters=letters), self.inner.replace, replaces=True)

    async def _change(
        self, commit: Commit, make: Callable[[Commit], Any], replaces: bool = False
    ) -> tuple[Any, bytes]:
        """Make a commit of the sealed items; again if the head changed in a way that its writer need not know of.

        Return its result, and the incarnation of the run.
        """
        run_id = commit.head.run_id
        known = await self._heads.find_position(run_id, commit.expected)
        while True:
            cipher = self._lock.cipher or await self._lock.unlock()
            try:
                sealed, position = await self._seal_commit(cipher, commit, known, replaces)
                result = await make(sealed)
            except _OldPosition:
                known = await self._heads.find_position(run_id, commit.expected, anew=True)
                continue
            except HeadMoved:
                if known is None:
                    raise
                before, known = known, await self._heads.find_position(run_id, commit.expected, anew=True)
                if known is None or known.version == before.version:
                    raise
                await self._lock.unlock()  # perhaps the store was rekeyed
                continue
            except BaseException:
                self._heads.forget(run_id)
                raise
            self._heads.moved(run_id, position)
            return result, position.incarnation

    async def _seal_commit(
        self, cipher: StoreCipher, commit: Commit, known: SealedPosition | None, replaces: bool
    ) -> tuple[Commit, SealedPosition]:
        head, of_run = commit.head, cipher.run(commit.head.run_id)
        stays = known is not None and not replaces and known.checkpoint_id == head.checkpoint_id
        notes = tuple([seal_note(of_run, head.checkpoint_id, note) for note in commit.notes])
        codes: Mapping[str, bytes] | None = None
        if not stays:
            codes = codes_of(notes)
        elif notes:
            assert known is not None
            codes = {**await self._read_codes(head.run_id, known), **codes_of(notes)}
        journal = digest_journal(codes) if codes is not None else known.journal  # type: ignore[union-attr]
        if known is None:
            version, incarnation = self._heads.first_version(head.run_id), new_incarnation()
        else:
            version, incarnation = known.version + 1, known.incarnation
        blobs = commit.blobs and await self._seal_blobs(cipher, head.family, commit.blobs)
        names = commit.needs and tuple(map(Digest, map(cipher.family(head.family).name, commit.needs)))
        sealed = Commit(
            seal_head(of_run, head, version, incarnation, journal),
            None if known is None else Expected(known.checkpoint_id, known.version),
            tuple([seal_record(of_run, incarnation, record) for record in commit.records]),
            tuple(blobs),
            notes,
            tuple([blind_letter(of_run, incarnation, key) for key in commit.taken]),
            tuple([seal_letter(of_run, incarnation, letter) for letter in commit.letters]),
            names,
            tuple([seal_event(of_run, incarnation, row) for row in commit.events]),
            commit.events_from,
        )
        position = SealedPosition(head.checkpoint_id, head.token, version, incarnation, journal, codes)
        return sealed, position

    async def _read_codes(self, run_id: RunId, known: SealedPosition) -> Mapping[str, bytes]:
        """Return the codes of the notes that a run had at a position; raise ``_OldPosition`` if it is elsewhere now."""
        if known.notes is not None:
            return known.notes
        if not known.journal:
            return {}
        journal = await self._heads.read_journal(run_id)
        if journal is None or journal.opened.position.version != known.version:
            raise _OldPosition
        return codes_of(journal.notes)

    # Records.

    async def find(self, checkpoint_id: CheckpointId) -> tuple[RunId, int] | None:
        if self._lock.cipher is None:
            await self._lock.unlock()
        return await self.inner.find(checkpoint_id)

    async def records(self, run_id: RunId, first: int, last: int, depth: Depth) -> Sequence[Record]:
        while stored := await self.inner.records(run_id, first, last, depth):
            incarnation = await self._heads.find_incarnation(run_id)
            if incarnation is None:
                break
            try:
                return await self._open_records(run_id, incarnation, stored, depth)
            except CheckpointUntrusted:
                opened = await self._heads.read(run_id)
                if opened is None or opened.position.incarnation == incarnation:
                    raise
        return []

    async def _open_records(
        self, run_id: RunId, incarnation: bytes, stored: Sequence[Record], depth: Depth
    ) -> Sequence[Record]:
        def read(cipher: StoreCipher) -> list[Record]:
            of_run = cipher.run(run_id)
            return [open_record(of_run, incarnation, record, depth) for record in stored]

        return await self._lock.open_items(f"a checkpoint of run {run_id!r}", read)

    async def tag(
        self, run_id: RunId, seq: int, tags: Sequence[str], drop: Sequence[str] | None = None, by: str = ""
    ) -> bool:
        opened = await self._heads.read(run_id)
        if opened is None:
            return False
        of_run = (self._lock.cipher or await self._lock.unlock()).run(run_id)
        incarnation = opened.position.incarnation
        dropped = None if drop is None else seal_tags(of_run, incarnation, seq, drop)
        added, giver = seal_tags(of_run, incarnation, seq, tags), seal_giver(of_run, incarnation, seq, by)
        return await self.inner.tag(run_id, seq, added, dropped, giver)

    async def remove(self, removal: Removal) -> bool:
        run_id = removal.run_id
        while True:
            position = await self._heads.find_position(run_id, removal.expected)
            assert position is not None
            sealed = await self._seal_removal(removal, position)
            try:
                return await self.inner.remove(sealed)
            except HeadMoved:
                again = await self._heads.find_position(run_id, removal.expected, anew=True)
                if again is None or again.version == position.version:
                    raise

    async def _seal_removal(self, removal: Removal, position: SealedPosition) -> Removal:
        cipher = self._lock.cipher or await self._lock.unlock()
        of_run, incarnation = cipher.run(removal.run_id), position.incarnation
        blobs: Sequence[Blob] = ()
        if removal.blobs:
            opened = await self._heads.read(removal.run_id)
            family = removal.run_id if opened is None else opened.head.family
            blobs = await self._seal_blobs(cipher, family, removal.blobs)
        return removal._replace(
            expected=Expected(position.checkpoint_id, position.version),
            keyframes=tuple(
                (seq, seal_keyframe(of_run, incarnation, seq, frame)) for seq, frame in removal.keyframes
            ),
            blobs=tuple(blobs),
            tags=tuple(
                Retag(
                    seq,
                    seal_tags(of_run, incarnation, seq, before),
                    seal_tags(of_run, incarnation, seq, after),
                )
                for seq, before, after in removal.tags
            ),
        )

    async def remove_run(self, run_id: RunId, expected: Expected, known: KnownMarks | None = None) -> bool:
        of_run = (self._lock.cipher or await self._lock.unlock()).run(run_id)
        while True:
            position = await self._heads.find_position(run_id, expected)
            assert position is not None
            sealed = known
            if known is not None:
                tags = known.tags.items()
                marks = {seq: seal_tags(of_run, position.incarnation, seq, given) for seq, given in tags}
                sealed = known._replace(tags=marks)
            try:
                return await self._remove_run(run_id, position, sealed)
            except HeadMoved:
                again = await self._heads.find_position(run_id, expected, anew=True)
                if again is None or again.version == position.version:
                    raise

    async def _remove_run(self, run_id: RunId, position: SealedPosition, known: KnownMarks | None) -> bool:
        """Remove a run that stands there; the anchor knows before that it may go, so that nobody else misses it."""
        self._heads.may_go(run_id, position.version)
        expected = Expected(position.checkpoint_id, position.version)
        done = await self.inner.remove_run(run_id, expected, known)
        if done:
            self._heads.gone(run_id, position.version)
        return done

    # Blobs.

    async def add_blobs(self, family: RunId, blobs: Sequence[Blob]) -> None:
        cipher = self._lock.cipher or await self._lock.unlock()
        await self.inner.add_blobs(family, await self._seal_blobs(cipher, family, blobs))

    async def _seal_blobs(self, cipher: StoreCipher, family: RunId, blobs: Sequence[Blob]) -> Sequence[Blob]:
        of_family = cipher.family(family)

        def seal() -> list[Blob]:
            names = [of_family.name(blob.digest) for blob in blobs]
            return [
                Blob(Digest(name), of_family.seal(name, blob.data))
                for name, blob in zip(names, blobs, strict=True)
            ]

        return await _in_thread(seal, sum(len(blob.data) for blob in blobs))

    async def blobs(self, family: RunId, digests: Sequence[Digest]) -> Mapping[Digest, bytes]:
        of_family = (self._lock.cipher or await self._lock.unlock()).family(family)
        names = {Digest(of_family.name(digest)): digest for digest in digests}
        stored = await self.inner.blobs(family, list(names))

        def read(cipher: StoreCipher) -> dict[Digest, bytes]:
            now = cipher.family(family)
            return {names[name]: _open_blob(now.open, name, data, family) for name, data in stored.items()}

        async def read_all() -> dict[Digest, bytes]:
            return await self._lock.open_items(f"a blob of run {family!r}", read)

        size = sum(map(len, stored.values()))
        if size < _LARGE:
            return await read_all()
        cipher = self._lock.cipher or await self._lock.unlock()
        try:
            return await _in_thread(partial(read, cipher), size)
        except NotSealed:
            return await read_all()

    async def mark(self, family: RunId) -> MarkedBlobs:
        marked = await self.inner.mark(family)
        of_family = (self._lock.cipher or await self._lock.unlock()).family(family)
        return marked._replace(
            sizes={Digest(of_family.digest(name)): size for name, size in marked.sizes.items()}
        )

    async def discard(self, family: RunId, mark: int, digests: Sequence[Digest]) -> int:
        of_family = (self._lock.cipher or await self._lock.unlock()).family(family)
        return await self.inner.discard(family, mark, [Digest(of_family.name(digest)) for digest in digests])

    # The journal, the inbox and events.

    async def notes(self, run_id: RunId) -> Sequence[Note]:
        journal = await self._heads.read_journal(run_id)
        if journal is None:
            return ()
        (head, _), stored = journal

        def read(cipher: StoreCipher) -> list[Note]:
            of_run = cipher.run(run_id)
            return [open_note(of_run, head.checkpoint_id, note) for note in stored]

        return await self._lock.open_items(f"a note in the journal of run {run_id!r}", read)

    async def leave(
        self, run_id: RunId, since: int, letters: Sequence[Letter], most: int | None = None
    ) -> LeaveResult:
        def leave(of_run: RunCipher, incarnation: bytes) -> Awaitable[LeaveResult]:
            sealed = [seal_letter(of_run, incarnation, letter) for letter in letters]
            return self.inner.leave(run_id, since, sealed, most)

        return await self._leave(run_id, [letter.key for letter in letters], leave)

    async def use_up(self, run_id: RunId, keys: Sequence[str]) -> LeaveResult:
        def use_up(of_run: RunCipher, incarnation: bytes) -> Awaitable[LeaveResult]:
            return self.inner.use_up(run_id, [blind_letter(of_run, incarnation, key) for key in keys])

        return await self._leave(run_id, keys, use_up)

    async def _leave(
        self,
        run_id: RunId,
        keys: Sequence[str],
        leave: Callable[[RunCipher, bytes], Awaitable[LeaveResult]],
    ) -> LeaveResult:
        """Leave something for a run; again if another one began under its id before that was there."""
        incarnation = await self._heads.find_incarnation(run_id)
        while incarnation is not None:
            of_run = (self._lock.cipher or await self._lock.unlock()).run(run_id)
            left = await leave(of_run, incarnation)
            if left.head is None:
                break
            opened, meant = await self._heads.open(left.head), incarnation
            incarnation = opened.position.incarnation
            if incarnation == meant:
                names = {blind_letter(of_run, incarnation, key): key for key in keys}
                return LeaveResult(opened.head, tuple(names[name] for name in left.refused), left.is_full)
        return LeaveResult(None)

    async def inbox(self, run_id: RunId) -> Sequence[Letter]:
        return await self._read_entries(
            run_id, "a letter", lambda: self.inner.inbox(run_id), open_letter, is_refused
        )

    async def _open_letters(
        self, run_id: RunId, incarnation: bytes, stored: Sequence[Letter]
    ) -> Sequence[Letter]:
        def read(cipher: StoreCipher) -> list[Letter]:
            of_run = cipher.run(run_id)
            return [open_letter(of_run, incarnation, letter) for letter in stored]

        return await self._lock.open_items(f"a letter of run {run_id!r}", read)

    async def taken(self, run_id: RunId, keys: Sequence[str]) -> Sequence[str]:
        opened = await self._heads.read(run_id)
        if opened is None:
            return ()
        of_run = (self._lock.cipher or await self._lock.unlock()).run(run_id)
        names = {blind_letter(of_run, opened.position.incarnation, key): key for key in keys}
        return [names[name] for name in await self.inner.taken(run_id, list(names))]

    async def events(self, run_id: RunId, first: int, limit: int) -> Sequence[EventRow]:
        return await self._read_entries(
            run_id,
            "an event",
            lambda: self.inner.events(run_id, first, limit),
            open_event,
            lambda row: not row.sound,
        )

    async def _read_entries(
        self,
        run_id: RunId,
        what: str,
        read: Callable[[], Awaitable[Sequence[_T]]],
        open_one: Callable[[RunCipher, bytes, _T], _T],
        refuses: Callable[[_T], bool],
    ) -> Sequence[_T]:
        """Return letters or events of the run that is there now; those of an earlier one of its id are refused.

        If some are, they are read again, unless the same run is still there: another one may have begun meanwhile.
        """
        meant: bytes | None = None
        while stored := await read():
            opened = await self._heads.read(run_id)
            if opened is None:
                return []
            incarnation = opened.position.incarnation

            def open_all(
                cipher: StoreCipher, stored: Sequence[_T] = stored, incarnation: bytes = incarnation
            ) -> list[_T]:
                of_run = cipher.run(run_id)
                return [open_one(of_run, incarnation, one) for one in stored]

            entries = await self._lock.open_items(f"{what} of run {run_id!r}", open_all)
            if incarnation == meant or not any(map(refuses, entries)):
                return entries
            meant = incarnation
        return []

    # Damage.

    async def damaged(self) -> Sequence[Damage]:
        await self._lock.unlock()
        found = list(await self.inner.damaged())
        return [*found, *(await self._heads.open_all(await self.inner.runs(RunQuery()))).refused]

    async def inspect(self, run_id: RunId | None = None) -> Sequence[Damage]:
        await self._lock.unlock()
        found = list(await self.inner.inspect(run_id))
        known = {damage.run_id for damage in found}
        if run_id is None:
            heads = list(await self.inner.runs(RunQuery()))
            found += await self._heads.find_lost_runs({head.run_id for head in heads} | known)
        else:
            heads = [head for head in [await self._stored_head(run_id)] if head is not None]
        for head in heads:
            refused = (await self._heads.open_all([head])).refused
            found += refused
            if not refused and head.run_id not in known:
                found += await self._refused_entries(head.run_id)
        return found

    async def _stored_head(self, run_id: RunId) -> Head | None:
        try:
            return await self.inner.head(run_id)
        except CheckpointCorrupt:  # which the store inspects itself
            return None

    async def _refused_entries(self, run_id: RunId) -> list[Damage]:
        """Return the notes and letters of a run that are refused."""
        found: list[Damage] = []
        try:
            await self.notes(run_id)
        except CheckpointCorrupt as error:
            found.append(Damage(run_id, str(error)))
        try:
            refused = sum(map(is_refused, await self.inbox(run_id)))
        except CheckpointCorrupt as error:
            found.append(Damage(run_id, str(error)))
        else:
            if refused:
                what = untrusted(f"{refused} letters of run {run_id!r}", NotSealed("none was sealed for it"))
                found.append(Damage(run_id, str(what)))
        return found

    async def mend(self, run_id: RunId | None, forms: SealedForms | None = None) -> Sequence[Mended]:
        cipher = await self._lock.unlock()
        latest = StoreCipher(cipher.keys, cipher.store_id, cipher.namespace, is_latest=True)
        done = await self.inner.mend(run_id, _forms_of(latest))
        self._heads.forget()
        return done

    @asynccontextmanager
    async def rehearsal(self, run_id: RunId | None = None) -> AsyncIterator[Rehearsal]:
        cipher = await self._lock.unlock()
        async with self.inner.rehearsal(run_id) as rehearsal:
            copy = SealedStore(rehearsal.store, self.keyring)
            copy._lock.cipher = cipher
            yield rehearsal._replace(store=copy)

    # What has nothing to do with keys.

    async def key_box(self) -> str:
        return await self.inner.key_box()

    async def set_key_box(self, box: str, expected: str) -> bool:
        return await self.inner.set_key_box(box, expected)

    async def join(self) -> None:
        await self.inner.join()

    async def living(self, processes: Collection[str]) -> Set[str]:
        return await self.inner.living(processes)

    async def close(self) -> None:
        await self.inner.close()


def seal_store(store: Store, keys: Keyring, anchor: Anchor | str | os.PathLike[str] | None) -> SealedStore:
    """Put a store under keys that a user gives, with an anchor if one is given."""
    if anchor is None:
        return SealedStore(store, check_keys(keys))
    from holdfast.checkpoint.keys.anchor import AnchorCheck, check_anchor

    check = AnchorCheck(check_anchor(anchor), getattr(store, "namespace", ""))
    return SealedStore(store, check_keys(keys), check)


def _open_blob(opener: Callable[[bytes, bytes], bytes], name: Digest, data: bytes, family: RunId) -> bytes:
    try:
        return opener(name, data)
    except UnknownEpoch:
        raise
    except NotSealed as error:
        raise untrusted(f"a blob of run {family!r}, stored as {name.hex()},", error) from error


async def _in_thread(work: Callable[[], _T], size: int) -> _T:
    return work() if size < _LARGE else await _threads.call(work)


def _forms_of(cipher: StoreCipher) -> SealedForms:
    """Return what makes heads anew; each stays bound to the incarnation of the records that were opened for it."""
    incarnations: dict[RunId, bytes] = {}

    def open_header(record: Record) -> Record:
        of_run = cipher.run(record.run_id)
        opened = open_record(of_run, None, record, Depth.HEADERS)
        incarnations[record.run_id] = read_incarnation(of_run, record)
        return opened

    def close_head(head: Head) -> Head:
        incarnation = incarnations.get(head.run_id) or new_incarnation()
        return seal_head(cipher.run(head.run_id), head, head.token, incarnation, b"")

    return SealedForms(open_header, lambda head: open_head(cipher.run(head.run_id), head).head, close_head)
