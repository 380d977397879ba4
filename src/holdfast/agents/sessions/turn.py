"""One turn of an agent in a session: gives the conversation, and stages what the turn adds to it.

The entry of a turn is staged in the session store before the turn is committed, and the position of the run in the
thread is part of the commit. So the commit alone decides if the entry counts, and whoever comes after a crash can tell.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from inspect import isawaitable
from types import TracebackType
from typing import Any, NamedTuple

from holdfast.agents.activation import Activation, turn_of
from holdfast.agents.port import AgentMessage, AgentReply, AgentRequest
from holdfast.agents.sessions.entry import EntryAuthor, EntryContext, SessionEntry, check_session_id
from holdfast.agents.sessions.policy import (
    POSITIONS,
    GivenHistory,
    SessionPolicy,
    ThreadPosition,
    ThreadPositions,
    ThreadStanding,
    ThreadView,
    added_history,
    apply_context,
    history_of,
    is_mixed,
    position_name,
    publish_committed,
    settle_sessions,
    view_of,
)
from holdfast.agents.sessions.store import SessionStore
from holdfast.errors import HoldfastWarning, InvalidArgument, UnpublishedEntry, WrongType
from holdfast.graph.context import WorkflowContext
from holdfast.graph.state_key import StateKey
from holdfast.runtime.step.shared_objects import RunView


class ThreadPlace(NamedTuple):
    """The place for the next entry of a run."""

    thread: str
    after: str | None
    rewinds: bool = False


class RunThreads:
    """The threads that the agents of a run use while one process drives it: one agent at a time in each."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._latest: dict[str, tuple[int, ThreadPosition]] = {}
        self._staged: dict[str, tuple[SessionStore, str]] = {}
        self._places: dict[str, ThreadPlace] = {}

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of a thread."""
        return self._locks.setdefault(name, asyncio.Lock())

    def latest(self, name: str, superstep: int) -> ThreadPosition | None:
        """Return the position that another agent took in the superstep under way."""
        known = self._latest.get(name)
        return known[1] if known is not None and known[0] == superstep else None

    def place_of(self, entry_id: str) -> ThreadPlace | None:
        """Return the place of an entry that an attempt before staged: entries of other agents may come behind it."""
        return self._places.get(entry_id)

    def note_place(self, entry_id: str, place: ThreadPlace) -> None:
        """Note the place of an entry that is about to be staged."""
        self._places[entry_id] = place

    def note(self, name: str, superstep: int, position: ThreadPosition, store: SessionStore) -> None:
        """Note an entry that was staged in the superstep under way."""
        self._latest[name] = superstep, position
        self._staged[position.entry_id] = store, position.session_id

    def forget(self, entry_id: str) -> None:
        """Forget an entry that an attempt before this one staged."""
        self._staged.pop(entry_id, None)

    async def after_commit(self) -> list[HoldfastWarning]:
        """Publish what was staged, for it is durable that it counts."""
        staged, self._staged = self._staged, {}
        self._latest, self._places = {}, {}
        warnings: list[HoldfastWarning] = []
        for entry_id, (store, session_id) in staged.items():
            try:
                await store.publish(session_id, entry_id)
            except Exception as error:
                warnings.append(
                    UnpublishedEntry(
                        f"entry {entry_id!r} of session {session_id!r} is stored with its run, but could not be "
                        f"published: {error}; the next turn in the session does it, or settle_sessions(...)"
                    )
                )
        return warnings


async def _make_threads(run: RunView) -> RunThreads:
    return RunThreads()


class SessionTurn:
    """The work of one turn in its thread; the thread is kept from other agents of the run meanwhile."""

    def __init__(
        self, policy: SessionPolicy, agent: str, activation: Activation, ctx: WorkflowContext[Any, Any]
    ) -> None:
        self._policy = policy
        self._agent = agent
        self._activation = activation
        self._ctx = ctx
        self._turn = turn_of(ctx)
        self._session_id = ""
        self._name = ""

    async def __aenter__(self) -> SessionTurn:
        standing = self._activation.standing
        self._session_id = standing.session_id if standing is not None else await self._find_session()
        self._name = position_name(self._session_id, self._policy.thread)
        self._threads: RunThreads = await self._turn.share(_make_threads)
        self._lock = self._threads.lock(self._name)
        await self._lock.acquire()
        try:
            self._entry_id = self._make_entry_id()
            self._threads.forget(self._entry_id)
            await self._settle()
            if standing is None:
                self._activation.standing = await self._ctx.once("session", self._stand)
        except BaseException:
            self._lock.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    async def _find_session(self) -> str:
        request, chosen = self._activation.request, self._policy.session_id
        found: Any
        if request.session_id is not None:
            found = request.session_id
        elif isinstance(chosen, StateKey):
            found = await self._ctx.require_state(chosen)
        elif callable(chosen):
            found = chosen(request)
        elif chosen is not None:
            found = chosen
        else:
            lineage = self._turn.lineage
            found = self._ctx.run_id if lineage is None else lineage.family
        check_session_id(found)
        return str(found)

    def _make_entry_id(self) -> str:
        """Return the key of the entry: the same each time that this turn runs, another after a restore or in a fork."""
        return self._ctx.idempotency_key

    async def _settle(self) -> None:
        """Publish what counts already and a crash kept from being published, of this run and of others."""
        store, storage = self._policy.store, self._turn.storage
        staged = await store.staged(self._session_id)
        if not staged or storage is None:
            return
        await self._turn.start_is_durable()
        await publish_committed(store, staged, await self._committed())
        if any(entry.author.run_id != self._ctx.run_id for entry in staged):
            await settle_sessions(store, storage, self._session_id)

    async def _committed(self) -> ThreadPositions:
        return await self._turn.read_of_run(POSITIONS, ThreadPositions())

    # The place of the run in its thread.

    async def _position(self) -> ThreadPosition | None:
        latest = self._threads.latest(self._name, self._ctx.superstep)
        return latest or (await self._committed()).by_thread.get(self._name)

    async def _find_place(self) -> ThreadPlace:
        store, run_id = self._policy.store, self._ctx.run_id
        position = await self._position()
        if position is None:
            return await self._find_first_place()
        if position.run_id != run_id:  # this run is a fork
            return self._own_thread(position.entry_id)
        behind = await store.entries(self._session_id, upto=position.entry_id)
        line = await store.entries(self._session_id, position.thread)
        if position.entry_id not in {entry.entry_id for entry in line} and not self._is_published(
            position, await store.staged(self._session_id)
        ):
            return ThreadPlace(position.thread, position.entry_id)
        lineage = self._turn.lineage
        if lineage is None or lineage.restored == position.restored:
            return ThreadPlace(position.thread, line[-1].entry_id if line else position.entry_id)
        return self._place_behind(position.thread, line, behind)

    def _is_published(self, position: ThreadPosition, staged: list[SessionEntry]) -> bool:
        return all(entry.entry_id != position.entry_id for entry in staged)

    async def _find_first_place(self) -> ThreadPlace:
        """Return the place for the first entry of the run, or of one that was taken back to before that."""
        store, policy, lineage = self._policy.store, self._policy, self._turn.lineage
        line = await store.entries(self._session_id, policy.thread)
        if not line and policy.fork_of is not None:
            line = await store.entries(self._session_id, policy.fork_of)
        tip = line[-1].entry_id if line else None
        if lineage is None:
            return ThreadPlace(policy.thread, tip)
        if lineage.family != self._ctx.run_id:
            kin = [entry for entry in line if entry.author.family == lineage.family]
            return self._own_thread(kin[0].after if kin else tip)
        own = [entry for entry in line if entry.author.run_id == self._ctx.run_id]
        if lineage.restored and own:
            return self._place_behind(policy.thread, line, line[: line.index(own[0])])
        return ThreadPlace(policy.thread, tip)

    def _place_behind(self, thread: str, line: list[SessionEntry], behind: list[SessionEntry]) -> ThreadPlace:
        """Return the place in a thread for a run that was taken back to stand behind some of its entries."""
        after = behind[-1].entry_id if behind else None
        stays = {entry.entry_id for entry in behind}
        left = [entry for entry in line if entry.entry_id not in stays]
        own = [entry for entry in left if entry.author.run_id == self._ctx.run_id]
        if not own:
            return ThreadPlace(thread, line[-1].entry_id if line else after)
        if len(own) == len(left):
            return ThreadPlace(thread, after, rewinds=True)
        return self._own_thread(after)  # what other runs said stays

    def _own_thread(self, after: str | None) -> ThreadPlace:
        return ThreadPlace(f"{self._policy.thread}~{self._entry_id[:8]}", after)

    # The conversation.

    async def _stand(self) -> ThreadStanding:
        place = await self._find_place()
        compact = self._policy.compact
        standing = ThreadStanding(self._session_id, place.after)
        if compact is None or place.after is None:
            return standing
        view = await self._view(standing)
        shorter = compact(view)
        shorter = await shorter if isawaitable(shorter) else shorter
        return replace(standing, context=_check_shorter(view, shorter, place.after))

    async def _view(self, standing: ThreadStanding) -> ThreadView:
        if standing.entry_id is None:
            return ThreadView()
        line = await self._policy.store.entries(self._session_id, upto=standing.entry_id)
        if standing.context is not None:
            return apply_context(line, standing.context, len(line))
        return view_of(line)

    async def _given(self) -> GivenHistory:
        activation = self._activation
        assert activation.standing is not None
        request = activation.request
        if request.history is not None:
            return GivenHistory(request.messages, request.history)
        view = await self._view(activation.standing)
        if request.messages:  # they come behind the conversation, and only neutral messages can
            said = tuple(message for entry in view.entries for message in entry.messages)
            return GivenHistory(view.messages + said + request.messages, None, is_mixed(view, self._agent))
        return history_of(view, self._agent)

    async def request(self) -> AgentRequest:
        """Return the request of the activation with the conversation so far."""
        given = await self._given()
        return replace(self._activation.request, messages=given.messages, history=given.history)

    async def stage(self, reply: AgentReply) -> None:
        """Stage what the turn adds to the conversation, and let the commit of the turn say that it counts."""
        activation, ctx, lineage = self._activation, self._ctx, self._turn.lineage
        assert activation.standing is not None
        place = self._threads.place_of(self._entry_id) or await self._find_place()
        self._threads.note_place(self._entry_id, place)
        history, whole = reply.history, True
        if activation.request.history is None:
            history, whole = added_history(await self._given(), reply.history)
        family = ctx.run_id if lineage is None else lineage.family
        entry = SessionEntry(
            self._session_id,
            place.thread,
            self._entry_id,
            (*activation.said, *said_in(activation.request, reply)),
            place.after,
            history,
            whole,
            activation.standing.context,
            place.rewinds,
            EntryAuthor(ctx.run_id, family, ctx.executor_id, self._agent),
        )
        await self._turn.start_is_durable()
        await self._policy.store.stage(entry)
        before = await self._position()
        position = ThreadPosition(
            self._session_id,
            place.thread,
            self._entry_id,
            ctx.run_id,
            1 if before is None else before.number + 1,
            0 if lineage is None else lineage.restored,
        )
        self._turn.add_to_run(POSITIONS, ThreadPositions({self._name: position}))
        self._threads.note(self._name, ctx.superstep, position, self._policy.store)


def said_in(request: AgentRequest, reply: AgentReply) -> list[AgentMessage]:
    """Return what was said in a turn, in neutral messages."""
    said = list(request.messages) if request.history is None else []
    said.append(AgentMessage("user", request.prompt))
    if reply.text:
        said.append(AgentMessage("assistant", reply.text))
    return said


def _check_shorter(view: ThreadView, shorter: object, upto: str) -> EntryContext | None:
    """Return what is kept of a view that was shortened; None if it was not; raise if it is no part of the view."""
    if not isinstance(shorter, ThreadView):
        raise WrongType(
            f"SessionPolicy(compact=...): the function must return a ThreadView, like view.keep_last(10), not a "
            f"{type(shorter).__name__}"
        )
    if shorter == view:
        return None
    known = [entry.entry_id for entry in view.entries]
    kept = [entry.entry_id for entry in shorter.entries]
    if [one for one in known if one in set(kept)] != kept:
        raise InvalidArgument(
            "SessionPolicy(compact=...): the function must return entries of the view that it got, in their order; "
            "say what was left out in messages"
        )
    return EntryContext(tuple(shorter.messages), tuple(kept), upto)
