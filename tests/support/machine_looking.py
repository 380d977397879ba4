"""Whether a storage shows what the model says: runs, checkpoints, inboxes."""

import json
import re
from collections import Counter
from typing import Any

from holdfast import Checkpoint as Loaded
from holdfast import CheckpointStorage
from tests.support.machine_held import Held
from tests.support.machine_stored import Checkpoint, StoredRun
from tests.support.model import Model
from tests.support.parts import RunId


def agree(seen: Any, said: Any, what: str) -> None:
    """Raise unless what is seen is what the model says."""
    if seen != said:
        raise AssertionError(f"{what}: seen is\n    {seen}\nbut the model says\n    {said}")


class Looking:
    """Looks at a storage again and again; it remembers the ids of checkpoints, which must stay."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ids: dict[tuple[str, int], str] = {}

    def id_of(self, made: Checkpoint) -> str:
        """The id of a checkpoint that was looked at."""
        return self._ids[made.run_id, made.seq]

    async def at_news(self, storage: CheckpointStorage) -> None:
        """What can be different since the last look: heads, inboxes, and checkpoints that were not there."""
        await self._runs(storage)
        for run in self._model.runs.values():
            await self._inbox(storage, run)
            if (run.run_id, len(run.made)) not in self._ids:
                known = sum(run_id == run.run_id for run_id, _ in self._ids)
                await self._listed(storage, run)
                for made in run.made[known:]:
                    await self._loaded(storage, made)

    async def at_all(self, storage: CheckpointStorage) -> None:
        """Every checkpoint that was ever made, and what is said of all of them together."""
        await self._runs(storage)
        for run in self._model.runs.values():
            await self._listed(storage, run)
            for made in run.made:
                await self._loaded(storage, made)
            latest = await storage.get_latest(run_id=run.run_id)
            agree(latest and latest.checkpoint_id, self.id_of(run.head), f"the head of {run.run_id}")
            family = re.findall(r"run (run-\d+)", await storage.draw_tree(run.run_id))
            agree(sorted(set(family)), self._family(run), f"the tree of {run.run_id}")
        agree((await storage.verify()).problems, [], "problems")

    def at_payments(self, keys: list[str]) -> None:
        """One key for what a crash may repeat, another for everything else."""
        agree(len(keys), len(self._model.paid), "payments")
        places = dict(zip(keys, self._model.paid, strict=True))
        agree([places[key] for key in keys], self._model.paid, "what was paid by one key")
        agree(len(places), len(set(self._model.paid)), "keys")

    def _family(self, run: StoredRun) -> list[str]:
        """The runs that were forked from one another, this one among them."""

        def root(run: StoredRun) -> str:
            parent = run.made[0].parent
            return run.run_id if parent is None else root(self._model.runs[parent[0]])

        return sorted(other.run_id for other in self._model.runs.values() if root(other) == root(run))

    async def _runs(self, storage: CheckpointStorage) -> None:
        listed = [
            (run.run_id, run.status, run.seq, run.interrupted, bool(run.reason))
            for run in await storage.list_runs()
        ]
        said = [
            (
                run.run_id,
                run.status,
                len(run.made),
                run.status == "running" and not run.driven,
                run.has_reason,
            )
            for run in self._model.runs.values()
        ]
        agree(listed, said, "the runs")

    async def _inbox(self, storage: CheckpointStorage, run: StoredRun) -> None:
        keys = [json.loads(letter.key) for letter in await storage.store.inbox(RunId(run.run_id))]
        left = Counter("cancel" if key[0] == "cancel" else (key[1], key[2]) for key in keys)
        said = Counter("cancel" if letter.cancels else letter.key for letter in run.letters.values())
        agree(left, said, f"the inbox of {run.run_id}")

    async def _listed(self, storage: CheckpointStorage, run: StoredRun) -> None:
        listed = await storage.list_checkpoints(run_id=run.run_id)
        agree(
            [info.seq for info in listed], [made.seq for made in run.made], f"the checkpoints of {run.run_id}"
        )
        for info, made in zip(listed, run.made, strict=True):
            known = self._ids.setdefault((made.run_id, made.seq), info.checkpoint_id)
            parent = None if made.parent is None else self._ids[made.parent]
            agree(
                (info.checkpoint_id, info.phase, info.superstep, info.cause, info.status, info.parent_id),
                (known, made.phase, made.superstep, made.cause, made.status, parent),
                f"checkpoint {made.seq} of {made.run_id}",
            )
            agree(
                (info.message_count, info.request_count),
                (len(made.held.messages), len(made.held.asked)),
                f"what checkpoint {made.seq} of {made.run_id} counts",
            )

    async def _loaded(self, storage: CheckpointStorage, made: Checkpoint) -> None:
        loaded = await storage.load(self.id_of(made))
        agree(_shown(loaded), _said(made.held), f"what checkpoint {made.seq} of {made.run_id} holds")


def _shown(loaded: Loaded) -> dict[str, Any]:
    """What a checkpoint shows to people."""
    return {
        "messages": [(m.target_id, m.source_id, m.data) for m in loaded.messages],
        "shared": {name: dict(scope) for name, scope in loaded.scopes.items()},
        "private": {name: dict(kept) for name, kept in loaded.executor_states.items()},
        "outputs": list(loaded.outputs),
        "asked": [(r.request_id, r.executor_id, r.data, r.response_type) for r in loaded.pending_requests],
    }


def _said(held: Held) -> dict[str, Any]:
    """The same, as the model says it."""
    return {
        "messages": [message[:3] for message in held.messages],
        "shared": held.shared,
        "private": held.private,
        "outputs": held.outputs,
        "asked": [question[:4] for question in held.asked.values()],
    }
