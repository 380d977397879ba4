"""The result of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.events.events import PendingRequest
from holdfast.engine.status import RunStatus, WaitingFor
from holdfast.errors import HoldfastWarning, RunEnded
from holdfast.ids import RequestId, RunId

if TYPE_CHECKING:
    from holdfast.runtime.run.run import Run


@dataclass(slots=True)
class RunResult:
    """The result of a run, so far if it waits.

    >>> RunResult(RunId("r1"), RunStatus.COMPLETED, ["done"]).get_outputs()
    ['done']
    """

    run_id: RunId
    status: RunStatus
    outputs: list[Any] = field(default_factory=list)
    pending_requests: list[PendingRequest] = field(default_factory=list)
    warnings: list[HoldfastWarning] = field(default_factory=list)
    """The warnings of the run, the last thousand at most."""
    waiting_for: tuple[WaitingFor, ...] = ()
    """For a run that is WAITING: ``"answers"``, ``"time"`` (a sleep) or ``"messages"`` (of fan-ins); else empty."""
    _run: Run | None = field(default=None, repr=False, compare=False)
    _pending: Callable[[], list[PendingRequest]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __dir__(self) -> list[str]:
        """Return the names without ``ask_later``, which is for ``Run``."""
        return sorted({*object.__dir__(self), "pending_requests"} - {"ask_later"})

    def ask_later(self, pending: Callable[[], list[PendingRequest]]) -> None:
        """Read the pending requests when somebody looks at them: there may be thousands."""
        self._pending = pending
        del self.pending_requests

    def __getattr__(self, name: str) -> Any:
        if name != "pending_requests" or self._pending is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self.pending_requests = self._pending()
        self._pending = None
        return self.pending_requests

    def get_outputs(self) -> list[Any]:
        """Return the outputs, in order."""
        return self.outputs

    async def respond(
        self, responses: Mapping[RequestId, Any] | Mapping[str, Any], *, by: str | None = None
    ) -> RunResult:
        """Answer pending requests, all or none of those given, and go on to the next result.

        >>> import asyncio
        >>> from holdfast import RequestInfoExecutor, WorkflowBuilder
        >>> ask = RequestInfoExecutor(id="ask", response_type=bool)
        >>> workflow = WorkflowBuilder(name="Ask").set_start_executor(ask).build()
        >>> async def main():
        ...     result = await workflow.run("Deploy?")
        ...     while result.pending_requests:
        ...         result = await result.respond({r.request_id: True for r in result.pending_requests})
        ...     return result.outputs
        >>> asyncio.run(main())
        [True]
        """
        if self._run is None:
            raise RunEnded(f"this result of run {self.run_id} belongs to no run that can go on")
        await self._run.respond(responses, by=by)
        try:
            return await self._run.wait_for_completion()
        finally:
            await self._run.close()
