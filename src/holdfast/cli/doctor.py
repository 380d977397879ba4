"""``holdfast doctor``: looks for what keeps runs from being durable or from going on, and says what to do about it.

``holdfast --help`` imports it for its first line, so what it needs is imported in its functions.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import Cell, CommandOutput, ProgressLine, age_of, paint, printable
from holdfast.cli.session import CONFIG, CommandSession, StoreCommand, read_config
from holdfast.cli.workflows import load_configured, load_workflow
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.workflow import Workflow

_LEVELS = {"ok": "green", "note": "yellow", "problem": "red"}
_PACKAGES = ("blake3", "ormsgpack", "zstandard", "click")
# File systems of other machines: their locks and syncs are only as good as the server and the mount.
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre", "afs")
_IN_MEMORY = ("tmpfs", "ramfs")
_LITTLE_ROOM = 100_000_000
_SLOW_SYNC_SECONDS = 0.1
_SYNCS = 5
_HEADER_BYTES = 100  # of a SQLite database
# A run that should have been woken is late after this time: hosts look every few seconds.
_LATE = timedelta(minutes=1)
_TOLD = 5
_PAGE = 1000

# Tries to lock a file that another process holds; ends with 0 if it could.
_RIVAL = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(1)
"""


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor looked at, with what to do about it if it is not well."""

    check: str
    level: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""


@click.command(cls=StoreCommand)
@click.argument("builds", metavar="[MODULE:WORKFLOW]...", nargs=-1)
@click.option("--quick", is_flag=True, help="Do not read the whole store to check it.")
@click.pass_obj
def doctor(session: CommandSession, builds: tuple[str, ...], quick: bool) -> ExitCode:
    """Check Python, SQLite, the file system and the store, and look for runs that nobody drives.

    With the workflows of a build, given here or in holdfast.toml, it also says which runs that build cannot go on with.
    A small file is written beside the store, to see if syncs and locks work there, and removed again. Without a store
    only this machine is checked.
    """
    workflows = [load_workflow(name) for name in builds]
    findings = [_check_python(), *_check_packages(), _check_sqlite()]
    for name, place in {} if builds else read_config().workflows.items():
        try:
            workflows.append(load_configured(name, place))
        except HoldfastError as error:
            advice = f"mend it, or its place in {CONFIG}"
            findings.append(Finding("builds", "problem", printable(str(error)), advice))
    code = ExitCode.OK
    try:
        url = session.find_store_url()
    except CommandError as error:
        findings.append(Finding("store", "note", "no store is named, so none was looked at", str(error)))
    else:
        found, code = _check_store(session, url, workflows, quick)
        findings += found
    if code is ExitCode.OK and any(one.level == "problem" for one in findings):
        code = ExitCode.FAILED
    output = session.output
    data = {"ok": code is ExitCode.OK, "findings": [asdict(one) for one in findings]}
    output.write(data, lambda: _draw(output, findings))
    return code


def _draw(output: CommandOutput, findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        yield from output.draw_fields(
            {one.check.ljust(11): Cell(f"{one.level}: {one.text}", _LEVELS[one.level])}
        )
        if one.advice:
            yield from output.draw_fields({" " * 11: f"-> {one.advice}"})
    counts = {level: sum(one.level == level for one in findings) for level in _LEVELS}
    yield paint(
        f"{counts['ok']} ok, {counts['note']} to note, {counts['problem']} problems",
        "red" if counts["problem"] else None,
    )


# -- this machine ----------------------------------------------------------------------------------


def _check_python() -> Finding:
    import platform

    text = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.flags.optimize:
        return Finding(
            "python", "note", text, "it runs with -O, which leaves out checks of Holdfast's own state"
        )
    return Finding("python", "ok", text)


def _check_packages() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    import holdfast

    found = [f"holdfast {holdfast.__version__}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("packages", "problem", f"{name} is missing", f"pip install {name}")
    yield Finding("packages", "ok", ", ".join(found))


def _check_sqlite() -> Finding:
    import sqlite3

    options = {row[0] for row in sqlite3.connect(":memory:").execute("PRAGMA compile_options")}
    threads = next((one for one in options if one.startswith("THREADSAFE=")), "THREADSAFE=?")
    text = f"SQLite {sqlite3.sqlite_version}, {threads}"
    if threads == "THREADSAFE=0":
        return Finding("sqlite", "problem", text, "use a Python whose SQLite was built to be used by threads")
    return Finding("sqlite", "ok", text)


# -- the store -------------------------------------------------------------------------------------


def _check_store(
    session: CommandSession, url: str, workflows: Sequence[Workflow], quick: bool
) -> tuple[list[Finding], ExitCode]:
    """Return what was found, and the code for the worst of it."""
    found: list[Finding] = []
    codes = [ExitCode.OK]

    async def work(storage: CheckpointStorage) -> None:
        path = Path(storage.store.path)  # type: ignore[attr-defined]
        found.extend(_check_place(path))
        found.extend(_check_settings(path))
        if not quick:
            found.append(await _check_health(storage))
            codes.append(ExitCode.DAMAGED if found[-1].level == "problem" else ExitCode.OK)
        found.extend(await _check_driven(storage))
        fits = await _check_builds(storage, workflows)
        codes.append(ExitCode.INCOMPATIBLE if any(one.level == "problem" for one in fits) else ExitCode.OK)
        found.extend(fits)

    try:
        session.look(work)
    except CommandError:
        raise
    except HoldfastError as error:
        advice = (
            "make a copy of it; then 'holdfast store verify' and 'holdfast store repair --dry-run' say more"
        )
        found.append(Finding("store", "problem", f"{url} cannot be read: {printable(str(error))}", advice))
        codes.append(ExitCode.DAMAGED)
    return found, next((code for code in codes if code is not ExitCode.OK), ExitCode.OK)


def _check_place(path: Path) -> Iterator[Finding]:
    """Check the file system on which a store lies: its kind, its room, its syncs and its locks."""
    import tempfile

    folder = path if path.is_dir() else path.resolve().parent
    kind = _file_system_of(folder)
    remote = next((name for name in _REMOTE if kind.startswith(name)), None)
    if remote is not None:
        advice = "keep the store on a disk of this machine, unless you know that locks and syncs of that server hold"
        yield Finding(
            "file system", "note", f"{folder} is on {kind}, a file system of another machine", advice
        )
    elif kind in _IN_MEMORY:
        advice = "move the store to a disk: 'holdfast store copy URL'"
        yield Finding(
            "file system", "note", f"{folder} is on {kind}: it is lost when the machine stops", advice
        )
    else:
        yield Finding("file system", "ok", f"{folder} is on {kind}")
    free = shutil.disk_usage(folder).free
    if free < _LITTLE_ROOM:
        advice = "make room, or 'holdfast store prune' and 'holdfast store vacuum'"
        yield Finding("room", "problem", f"{free:,} bytes are free", advice)
    else:
        yield Finding("room", "ok", f"{free / 1e9:,.1f} GB are free")
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".holdfast-doctor-") as probe:
            yield _check_sync(probe.fileno())
            yield _check_locks(Path(probe.name), probe.fileno())
    except OSError as error:
        advice = "runs cannot be driven there; give this user the right to write, or make room"
        yield Finding("writing", "problem", f"{folder} cannot be written: {error}", advice)


def _file_system_of(folder: Path) -> str:
    """Return the kind of the file system of a folder, as Linux calls it; 'an unknown file system' elsewhere."""
    best, kind = -1, "an unknown file system"
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return kind
    for _, place, name, *_ in (line.split(" ") for line in mounts):
        place = place.replace("\\040", " ")
        if len(place) >= best and folder.resolve().is_relative_to(place):
            best, kind = len(place), name
    return kind


def _check_sync(handle: int) -> Finding:
    times = []
    for _ in range(_SYNCS):
        os.write(handle, b"0" * 4096)
        began = time.perf_counter()
        os.fsync(handle)
        times.append(time.perf_counter() - began)
    usual = sorted(times)[_SYNCS // 2]
    text = f"a sync takes {1000 * usual:.2f} ms"
    if usual > _SLOW_SYNC_SECONDS:
        advice = "each superstep waits for one: use a faster disk, or durability 'async' or 'exit'"
        return Finding("syncs", "note", text, advice)
    return Finding("syncs", "ok", text)


def _check_locks(path: Path, handle: int) -> Finding:
    """Check that locks keep other processes out, of both kinds that stores use."""
    if sys.platform == "win32":
        return Finding("locks", "note", "not checked on Windows")
    import fcntl
    import subprocess

    for name in ("flock", "lockf"):
        try:
            getattr(fcntl, name)(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Finding(
                "locks", "problem", f"{name} fails: {error}", "keep the store on another file system"
            )
        rival = subprocess.run([sys.executable, "-I", "-S", "-c", _RIVAL, path, name], check=False)
        if rival.returncode == 0:
            text = f"{name} does not keep other processes out"
            return Finding(
                "locks", "problem", text, "keep the store on another file system, or it will be damaged"
            )
    return Finding("locks", "ok", "locks keep other processes out")


def _check_settings(path: Path) -> Iterator[Finding]:
    """Check the settings of a SQLite database that stand in its header; a connection would leave files beside it."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        yield Finding(
            "settings", "problem", f"{path} has only {len(header)} bytes", "bring back a backup of it"
        )
        return
    page, is_wal = int.from_bytes(header[16:18]), header[18] == header[19] == 2
    page = 65_536 if page == 1 else page
    pages, free = int.from_bytes(header[28:32]), int.from_bytes(header[36:40])
    text = f"{pages * page / 1e6:,.1f} MB in pages of {page:,} bytes, {free:,} of {pages:,} free"
    text = f"journal {'wal' if is_wal else 'not wal'}, {text}"
    if not is_wal:
        yield Finding(
            "settings", "note", text, "the next process that writes there sets the journal mode wal"
        )
    elif free > pages / 2 and free * page > _LITTLE_ROOM:
        yield Finding("settings", "note", text, "'holdfast store vacuum' gives the room back")
    else:
        yield Finding("settings", "ok", text)


async def _check_health(storage: CheckpointStorage) -> Finding:
    with ProgressLine("checking", "checkpoints") as progress:
        report = await storage.verify(progress=progress)
    counts = f"{report.runs:,} runs, {report.checkpoints:,} checkpoints, {report.blobs:,} blobs"
    if report.ok:
        return Finding("store", "ok", f"all is well: {counts}")
    advice = "'holdfast store verify' lists them, 'holdfast store repair --dry-run' says what can be repaired"
    return Finding("store", "problem", f"{len(report.problems):,} problems in {counts}", advice)


# -- runs ------------------------------------------------------------------------------------------


async def _check_driven(storage: CheckpointStorage) -> list[Finding]:
    """Look for runs that should be driven by someone, and are not."""
    dead = await storage.list_runs(interrupted=True, limit=_PAGE)
    now, late = datetime.now(UTC), []
    async for run in _runs_with(storage, "waiting"):
        if run.wake_at is not None and now - run.wake_at > _LATE:
            late.append(run)
    found = []
    if dead:
        advice = "'holdfast runs resume RUN MODULE:WORKFLOW' goes on with one, a Host with all of them"
        found.append(Finding("driven", "note", f"{_told(dead)}: their process died", advice))
    if late:
        advice = "start a Host for their workflows, or 'holdfast runs resume RUN MODULE:WORKFLOW'"
        first = min(run.wake_at for run in late if run.wake_at is not None)
        text = f"{_told(late)}: they were to go on since {age_of(first)}, and nobody wakes them"
        found.append(Finding("driven", "note", text, advice))
    return found or [Finding("driven", "ok", "no run waits for a process to drive it")]


async def _runs_with(storage: CheckpointStorage, status: str) -> AsyncIterator[RunInfo]:
    after: RunInfo | None = None
    while True:
        page = await storage.list_runs(status=status, limit=_PAGE, after=after)
        for run in page:
            yield run
        if len(page) < _PAGE:
            return
        after = page[-1]


async def _check_builds(storage: CheckpointStorage, workflows: Sequence[Workflow]) -> list[Finding]:
    """Look for runs that none of the given builds can go on with, as they are."""
    if not workflows:
        return []
    reasons: dict[str, str] = {}
    fitting: set[str] = set()
    for workflow in workflows:
        for run in (await storage.check_upgrade(workflow)).runs:
            if run.verdict == "goes on":
                fitting.add(run.run_id)
            else:
                reasons.setdefault(run.run_id, f"{run.verdict}: {run.reason}")
    stuck = {run_id: why for run_id, why in reasons.items() if run_id not in fitting}
    found = []
    for run_id, why in list(stuck.items())[:_TOLD]:
        advice = "keep a build with its graph for it, or 'holdfast runs resume --allow-graph-change' where that fits"
        found.append(Finding("builds", "problem", f"run {printable(run_id)} {printable(why)}", advice))
    if len(stuck) > _TOLD:
        found.append(
            Finding("builds", "problem", f"{len(stuck) - _TOLD:,} more", "'holdfast graph check' lists them")
        )
    given = {workflow.name for workflow in workflows}
    for name, count in (await _count_others(storage, given)).items():
        text = f"{count:,} runs of {printable(name)} are not over, and no build of it was given"
        found.append(Finding("builds", "note", text, "name its MODULE:WORKFLOW, too"))
    return found or [Finding("builds", "ok", f"all {len(fitting):,} runs that are not over can go on")]


async def _count_others(storage: CheckpointStorage, given: Collection[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for status in ("running", "waiting", "failed", "stopped"):
        async for run in _runs_with(storage, status):
            if run.workflow_name not in given:
                counts[run.workflow_name] = counts.get(run.workflow_name, 0) + 1
    return counts


def _told(runs: Sequence[RunInfo]) -> str:
    names = ", ".join(printable(run.run_id) for run in runs[:_TOLD])
    more = f" and {len(runs) - _TOLD:,} more" if len(runs) > _TOLD else ""
    return f"{len(runs):,} {'run' if len(runs) == 1 else 'runs'} ({names}{more})"
