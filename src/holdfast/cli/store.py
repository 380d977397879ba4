"""``holdfast store``: looks after a store: counts, checks, repairs, cleans up, copies, and moves runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import ProgressLine, paint, printable
from holdfast.cli.session import CommandSession, StoreGroup, has_keys, open_with_keys, run_with_storage
from holdfast.cli.targets import find_run, optional_run_argument, read_age, run_argument, yes_option

if TYPE_CHECKING:
    from holdfast.checkpoint.maintenance.old_runs import PruneRunsReport
    from holdfast.checkpoint.maintenance.problems import Problem, VerifyReport
    from holdfast.checkpoint.maintenance.prune import PruneReport
    from holdfast.checkpoint.maintenance.repair import RepairReport
    from holdfast.checkpoint.maintenance.statistics import StorageStatistics
    from holdfast.checkpoint.maintenance.vacuum import VacuumReport
    from holdfast.checkpoint.retention import Retention
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.checkpoint.transfer.run_copy import CopyReport

_OVER = ("completed", "failed", "cancelled", "stopped")


@click.group(cls=StoreGroup)
def store() -> None:
    """Count, check, repair, clean up and copy a store, and move runs between stores.

    RUN is the id of a run, the beginning of it if no other begins so, or @latest.
    """


async def _id_of(storage: CheckpointStorage, run: str | None) -> str | None:
    return None if run is None else (await find_run(storage, run)).run_id


@store.command()
@click.option(
    "--measure-blobs", is_flag=True, help="Read large values, too, to say what they take as stored."
)
@click.pass_obj
def stats(session: CommandSession, measure_blobs: bool) -> None:
    """Count what takes the room: by workflow, by run, and by scope of the state."""

    async def work(storage: CheckpointStorage) -> StorageStatistics:
        with ProgressLine("counting", "checkpoints") as progress:
            return await storage.statistics(progress=progress, measure_blobs=measure_blobs)

    found = session.look(work)
    session.output.write_long(found.to_dict(), str(found).splitlines)


@store.command()
@optional_run_argument
@click.pass_obj
def verify(session: CommandSession, run: str | None) -> ExitCode:
    """Check that everything stored, or one run, is what was stored; nothing is changed.

    Ends with code 7 if it is not.
    """

    async def work(storage: CheckpointStorage) -> VerifyReport:
        run_id = await _id_of(storage, run)
        with ProgressLine("checking", "checkpoints") as progress:
            return await storage.verify(run_id, progress=progress)

    report = session.look(work)
    session.output.write({"ok": report.ok, **asdict(report)}, lambda: _draw_verified(report))
    return ExitCode.OK if report.ok else ExitCode.DAMAGED


def _draw_verified(report: VerifyReport) -> Iterator[str]:
    yield from (paint(_problem_text(problem), "red") for problem in report.problems)
    if report.problems:
        yield ""
    counts = f"{report.runs:,} runs, {report.checkpoints:,} checkpoints, {report.blobs:,} blobs"
    if report.ok:
        yield f"all is well: {counts}"
    else:
        yield f"{len(report.problems):,} problems in {counts}"
        yield "'holdfast store repair --dry-run' says what can be repaired"


def _problem_text(problem: Problem) -> str:
    run = "" if problem.run_id is None else f"run {problem.run_id}: "
    place = "" if problem.seq is None else f"checkpoint {problem.seq}: "
    return printable(f"{run}{place}{problem.what}")


@store.command()
@optional_run_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be repaired, and what not.")
@yes_option
@click.pass_obj
def repair(session: CommandSession, run: str | None, dry_run: bool, yes: bool) -> ExitCode:
    """Repair what can be repaired of the store, or of one run, and say what cannot.

    Make a copy of the store before. Ends with code 7 if something is left.
    """

    async def work(storage: CheckpointStorage, is_rehearsal: bool) -> RepairReport:
        run_id = await _id_of(storage, run)
        with ProgressLine("looking at" if is_rehearsal else "repairing", "runs") as progress:
            return await storage.repair(run_id, progress=progress, dry_run=is_rehearsal)

    if dry_run or not yes:
        report = session.change(lambda storage: work(storage, True))
    if not dry_run and not yes and report.repairs:
        losses = f", by which {len(report.losses)} things are lost for good" if report.losses else ""
        session.confirm(f"This makes {len(report.repairs):,} repairs{losses}.", yes)
    if not dry_run:
        report = session.change(lambda storage: work(storage, False))
    data = {"ok": report.ok, **asdict(report), "dry_run": dry_run}
    session.output.write(data, lambda: _draw_repairs(report, dry_run))
    return ExitCode.OK if report.ok else ExitCode.DAMAGED


def _draw_repairs(report: RepairReport, dry_run: bool) -> Iterator[str]:
    yield from (printable(str(one)) for one in report.repairs)
    yield from (paint(f"not repaired: {_problem_text(one)}", "red") for one in report.unrepaired)
    yield from (
        paint(f"left alone, it is driven now: run {printable(one)}", "yellow") for one in report.driven
    )
    done = "would be made" if dry_run else "were made"
    yield f"{report.runs:,} runs: {len(report.repairs):,} repairs {done}, {len(report.unrepaired):,} problems stay"


@store.command()
@click.option(
    "--keep-last", type=click.IntRange(min=1), metavar="N", help="Keep the last N supersteps of each run."
)
@click.option("--keep-for", metavar="AGE", help="Keep checkpoints that are not older, like 7d or 12h.")
@click.option("--latest-only", is_flag=True, help="Keep only the checkpoint on which a run stands.")
@click.option("--run", metavar="RUN", help="Prune the checkpoints of this run only.")
@click.option(
    "--runs-older-than", metavar="AGE", help="Remove whole runs that are over for so long, like 30d."
)
@click.option("--status", type=click.Choice(_OVER), help="Of these, only runs with this status.")
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@yes_option
@click.pass_obj
def prune(
    session: CommandSession,
    keep_last: int | None,
    keep_for: str | None,
    latest_only: bool,
    run: str | None,
    runs_older_than: str | None,
    status: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove checkpoints that need not be kept, or whole runs that are over, with values that nobody needs.

    Without an option each run has its own retention. Checkpoints with a tag stay, and so do runs that have some.
    """
    choice = _Choice.of(_retention_of(keep_last, keep_for, latest_only), run, runs_older_than, status)
    if dry_run or not yes:
        found = session.change(lambda storage: choice.prune(storage, True))
    if not dry_run and not yes and found.checkpoints:
        session.confirm(f"{printable(str(found))} for good.", yes)
    if not dry_run:
        found = session.change(lambda storage: choice.prune(storage, False))
    session.output.write({**asdict(found), "dry_run": dry_run}, lambda: [printable(str(found))])


def _retention_of(keep_last: int | None, keep_for: str | None, latest_only: bool) -> Retention | None:
    from holdfast.checkpoint.retention import Retention

    if sum((keep_last is not None, keep_for is not None, latest_only)) > 1:
        raise CommandError("give one of --keep-last, --keep-for and --latest-only", ExitCode.USAGE)
    if keep_last is not None:
        return Retention.keep_last(keep_last)
    if keep_for is not None:
        return Retention.keep_for(read_age(keep_for))
    return Retention.latest_only() if latest_only else None


class _Choice:
    """Chooses what goes: checkpoints of runs by a retention, or whole runs that are over."""

    def __init__(
        self, retention: Retention | None, run: str | None, older_than: timedelta | None, status: str | None
    ) -> None:
        self._retention, self._run = retention, run
        self._older_than, self._status = older_than, status

    @classmethod
    def of(cls, retention: Retention | None, run: str | None, age: str | None, status: str | None) -> _Choice:
        """Return the choice that the options make; raise if they contradict each other."""
        if age is not None and (retention is not None or run is not None):
            raise CommandError(
                "--runs-older-than removes whole runs; prune checkpoints in a call of its own", ExitCode.USAGE
            )
        if age is None and status is not None:
            raise CommandError("--status goes with --runs-older-than", ExitCode.USAGE)
        return cls(retention, run, None if age is None else read_age(age), status)

    async def prune(self, storage: CheckpointStorage, dry_run: bool) -> PruneReport | PruneRunsReport:
        """Remove what is chosen, or count it."""
        run_id = await _id_of(storage, self._run)
        with ProgressLine("counting" if dry_run else "removing", "runs") as progress:
            if self._older_than is not None:
                return await storage.prune_runs(self._older_than, self._status, dry_run, progress)
            return await storage.prune(self._retention, dry_run, run_id=run_id, progress=progress)


@store.command()
@click.pass_obj
def vacuum(session: CommandSession) -> None:
    """Give the room that is not used any more back to the file system; nothing is lost."""

    async def work(storage: CheckpointStorage) -> VacuumReport:
        with ProgressLine("writing anew", "bytes") as progress:
            return await storage.vacuum(progress)

    report = session.change(work)
    session.output.write({**asdict(report), "freed": report.freed}, lambda: [str(report)])


@store.command()
@click.argument("target", metavar="URL")
@click.option("--run", metavar="RUN", help="Copy this run only.")
@click.option(
    "--keyring",
    metavar="FILE",
    help="The keys of the target, in place of those of the source.",
)
@click.pass_obj
def copy(session: CommandSession, target: str, run: str | None, keyring: str | None) -> ExitCode:
    """Copy all runs, or one, to another store of any kind; it is made if it is not there.

    Called again it copies what is new. Ends with code 6 if runs that moved on there were left alone. With --keyring
    plain runs come under keys, or under others.
    """
    source = session.find_store_url()

    async def work(storage: CheckpointStorage) -> CopyReport:
        run_id = await _id_of(storage, run)
        with ProgressLine("copying", "runs") as progress:
            async with open_with_keys(target, keyring=keyring) as other:
                return await storage.copy_to(other, progress, run_id)

    if target.startswith("memory:"):
        raise CommandError(
            f"{target!r}: a copy in memory would be gone at once; name a file or a database", ExitCode.USAGE
        )
    report = run_with_storage(source, work, read_only=True)
    session.output.write(
        {"ok": report.ok, **asdict(report)},
        lambda: [*(printable(str(one)) for one in report.uncopied), str(report)],
    )
    return ExitCode.OK if report.ok else ExitCode.TAKEN


@store.command()
@click.argument("path", type=click.Path(exists=False))
@click.pass_obj
def backup(session: CommandSession, path: str) -> None:
    """Copy a SQLite store to a new file while runs go on; the copy is that of one moment."""

    async def work(storage: CheckpointStorage) -> None:
        from holdfast.stores.sqlite.storage import SqliteCheckpointStorage

        if not isinstance(storage, SqliteCheckpointStorage):
            raise CommandError(
                "only a SQLite store has a backup; 'holdfast store copy URL' copies any", ExitCode.USAGE
            )
        with ProgressLine("copying", "bytes") as progress:
            await storage.backup(path, progress)

    session.change(work)
    session.output.write({"path": path}, lambda: [f"copied to {printable(path)}"])


@store.command()
@run_argument
@click.argument("path", type=click.Path(exists=False))
@click.pass_obj
def export(session: CommandSession, run: str, path: str) -> None:
    """Write a run to one new file, with its whole history; the run may go on meanwhile."""

    async def work(storage: CheckpointStorage) -> RunInfo:
        found = await find_run(storage, run)
        with ProgressLine("writing", "parts") as progress:
            return await storage.export_run(found.run_id, path, progress)

    info = session.look(work)
    data: dict[str, Any] = {"run": info.to_dict(), "path": path}
    session.output.write(data, lambda: [f"wrote {printable(info.run_id)} to {printable(path)}"])


@store.command("import")
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
@click.pass_obj
def import_(session: CommandSession, path: str) -> None:
    """Bring in a run from a file that 'export' wrote: all of it or nothing; the store is made if it is not there."""

    async def work(storage: CheckpointStorage) -> RunInfo:
        with ProgressLine("reading", "parts") as progress:
            return await storage.import_run(path, progress=progress)

    info = session.change(work, make=True)
    session.output.write(
        {"run": info.to_dict()}, lambda: [f"brought in {printable(info.run_id)}, {info.status.value}"]
    )


@store.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Only check that the store opens, and say what would be done.")
@yes_option
@click.pass_obj
def rekey(session: CommandSession, path: str, dry_run: bool, yes: bool) -> None:
    """Lock a store with the newest key in a file, in one step, while runs go on.

    The store is opened with its keys as ever, or if none are named with those in the file. 'holdfast keys rotate' makes
    the file; all processes must have it before.
    """
    from holdfast.checkpoint.keys.keyring import Keyring
    from holdfast.cli.keys import spell

    url, given = session.find_store_url(), Keyring.from_file(path)
    newest = given.only_newest()

    def open_with(keys: Keyring | None, read_only: bool) -> CheckpointStorage:
        return open_with_keys(url, read_only=read_only, keys=keys)

    async def count(storage: CheckpointStorage) -> int:
        return await storage.count_runs()

    async def lock(storage: CheckpointStorage) -> None:
        await storage.rekey(given)

    current = None if has_keys() else given
    count_now = run_with_storage(url, count, read_only=True, opened=lambda: open_with(current, True))
    told = f"the store of {count_now:,} {'run' if count_now == 1 else 'runs'} with {spell(newest.key_ids)}"
    if not dry_run:
        session.confirm(f"This locks {told}: processes that do not have it cannot open the store.", yes)
        run_with_storage(url, lock, read_only=False, opened=lambda: open_with(current, False))
        run_with_storage(url, count, read_only=True, opened=lambda: open_with(newest, True))  # it opens
    data = {"runs": count_now, "key_ids": list(newest.key_ids), "dry_run": dry_run}
    session.output.write(data, lambda: [f"would lock {told}" if dry_run else f"locked {told}"])
    if not dry_run:
        session.output.say(
            f"when all stores under these keys are locked so: holdfast keys rotate {printable(path)} --drop-old"
        )
