"""CheckpointStorage: what users hold of a store."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from holdfast.checkpoint.browsing import Browsing
from holdfast.checkpoint.inbox import cancel_run, leave_answers
from holdfast.checkpoint.read.retry import steadily
from holdfast.checkpoint.run_info import RunInfo, run_info
from holdfast.checkpoint.store import Head
from holdfast.checkpoint.upkeep import Upkeep
from holdfast.errors import InvalidArgument, WrongType


class CheckpointStorage(Browsing, Upkeep):
    """What users hold of a store: checkpoints can be listed, loaded, checked and resumed.

    Made as ``InMemoryCheckpointStorage``, ``FileCheckpointStorage``, ``SqliteCheckpointStorage``, by ``open_storage``,
    or for a store of your own as ``CheckpointStorage(store)``.

    >>> import asyncio
    >>> from holdfast import open_storage
    >>> async def main():
    ...     async with open_storage("memory:") as storage:
    ...         return await storage.list_checkpoints()
    >>> asyncio.run(main())
    []
    """

    async def open(self) -> None:
        """Make sure that the store is there and can be used; anything else does so by itself."""
        await self._store.open()

    # What those who do not drive a run ask of it.

    async def respond(self, run_id: str, responses: Mapping[str, Any]) -> RunInfo:
        """Answer pending requests of a run, all or none, from any process; they are durable when this returns.

        Whoever drives the run takes the answers at its next checkpoint. If nobody does, they wait until the run is
        resumed: what this returns says how it stands. Raises ``RequestAlreadyAnswered`` if someone was faster.
        """
        if not isinstance(responses, Mapping):
            raise WrongType(
                f"responses are a dict of request ids and answers, not a {type(responses).__name__}"
            )
        if not responses:
            raise InvalidArgument(f"no response was given to run {run_id}; pass {{request_id: answer}}")

        async def leave() -> Head:
            head = await self.head(run_id)
            encoder = self.encoder_for(head.workflow_name)
            blobs = self.blobs(head.family)
            return await leave_answers(self._store, head, blobs, encoder, responses, self._latest)

        return await run_info(self._store, await steadily(leave))

    async def cancel(self, run_id: str) -> RunInfo:
        """Cancel a run from any process: at once if nobody drives it, else whoever does ends it soon.

        A run that is over stays as it is.
        """
        return await run_info(self._store, await cancel_run(self._store, await self.head(run_id)))

    async def close(self) -> None:
        """Let go of files and threads; what was committed stays."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
