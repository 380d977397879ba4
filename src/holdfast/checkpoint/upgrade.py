"""Reports of which stored runs a build of a workflow can go on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.store import Head, RunQuery, Store
from holdfast.engine.status import RunStatus
from holdfast.errors import WrongType

UpgradeVerdict: TypeAlias = Literal["goes on", "with a graph change", "cannot go on"]
"""Says if a build can go on with a run: as it is, with ``allow_graph_change=True``, or not at all."""


@dataclass(frozen=True)
class UpgradeCheck:
    """A stored run, and if a build of its workflow can go on with it.

    >>> UpgradeCheck("r1", RunStatus.WAITING, "goes on").verdict
    'goes on'
    """

    run_id: str
    status: RunStatus
    verdict: UpgradeVerdict
    reason: str = ""
    """Why it cannot go on, or only with a graph change."""


@dataclass(frozen=True)
class UpgradeReport:
    """The result of ``storage.check_upgrade``.

    >>> report = UpgradeReport([UpgradeCheck("r1", RunStatus.WAITING, "cannot go on", "'review' is gone")])
    >>> print(report)
    1 run: 0 go on, 0 with a graph change, 1 cannot go on
    r1 (waiting) cannot go on: 'review' is gone
    """

    runs: list[UpgradeCheck]

    @property
    def ok(self) -> bool:
        """True if the build goes on with all runs as they are."""
        return all(run.verdict == "goes on" for run in self.runs)

    def __str__(self) -> str:
        counts = {"goes on": 0, "with a graph change": 0, "cannot go on": 0}
        for run in self.runs:
            counts[run.verdict] += 1
        go_on, changed, cannot = counts.values()
        noun = "run" if len(self.runs) == 1 else "runs"
        lines = [
            f"{len(self.runs):,} {noun}: {go_on:,} go on, {changed:,} with a graph change, {cannot:,} cannot go on"
        ]
        lines += [
            f"{run.run_id} ({run.status}) {run.verdict}: {run.reason}"
            for run in self.runs
            if run.verdict != "goes on"
        ]
        return "\n".join(lines)


class WorkflowBuild(Protocol):
    """A build of a workflow, which knows what it can go on with."""

    @property
    def name(self) -> str:
        """The name of the workflow."""
        ...

    async def check_stored(self, storage: Any, head: Head) -> UpgradeCheck:
        """Return if and how this build can go on with a stored run."""
        ...


async def check_upgrade(
    storage: Any, store: Store, build: WorkflowBuild, progress: Progress | None
) -> UpgradeReport:
    """Check all runs of a workflow that may still go on, but for those that are completed."""
    if not hasattr(build, "check_stored"):
        raise WrongType(f"check_upgrade takes a workflow, not a {type(build).__name__}: {build!r}")
    statuses = frozenset(RunStatus) - {RunStatus.COMPLETED}
    heads = await store.runs(RunQuery(build.name, statuses))
    checks = []
    for number, head in enumerate(heads, 1):
        checks.append(await build.check_stored(storage, head))
        if progress is not None:
            progress(number, len(heads))
    return UpgradeReport(checks)
