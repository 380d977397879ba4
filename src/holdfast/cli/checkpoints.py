"""``holdfast checkpoint`` and ``holdfast state``: what runs held at their checkpoints, without the workflow's code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exit_codes import CommandError, ExitCode
from holdfast.cli.output import CommandOutput, Verbatim, age_of, cut, paint, printable, status_cell
from holdfast.cli.session import CommandSession, StoreGroup
from holdfast.cli.targets import (
    by_option,
    complete_checkpoints,
    find_checkpoint,
    find_run,
    limit_option,
    no_wait_option,
    run_argument,
)
from holdfast.errors import CheckpointNotFound, RunNotFound

if TYPE_CHECKING:
    from holdfast.checkpoint.checkpoint import Checkpoint
    from holdfast.checkpoint.checkpoint_info import CheckpointInfo
    from holdfast.checkpoint.diff.difference import CheckpointDiff
    from holdfast.checkpoint.run_info import RunInfo
    from holdfast.checkpoint.storage import CheckpointStorage
    from holdfast.ids import CheckpointId
    from holdfast.runtime.run.run import Run
    from holdfast.workflow import Workflow

_SHORT_ID = 8
_LONGEST_VALUE, _SHORTEST_VALUE = 200, 16
# A section of a checkpoint shows so many values.
_MOST_VALUES = 100
_TREE_LINE = re.compile(r"([ │├└─|`-]*)([●◉┆▸*@:>]?)(.*)", re.DOTALL)
_HEAD = re.compile(r", head, (\w+)")
# The line of a branch beside a line that was wrapped.
_BESIDE = str.maketrans({"├": "│", "└": " ", "─": " ", "`": " ", "-": " "})
_MARK_COLOURS = {"+": "green", "-": "red", "~": "yellow"}


@click.group(cls=StoreGroup)
def checkpoint() -> None:
    """List checkpoints, draw their tree, show, compare, tag and pick them.

    CHECKPOINT is the id of a checkpoint or the beginning of it, RUN@SEQ, or RUN for the one on which a run stands. RUN
    is the id of a run, the beginning of it if no other begins so, or @latest.
    """


@checkpoint.command()
@run_argument
@limit_option
@click.option("--after", metavar="CHECKPOINT", help="Go on behind this one, the last of the page before.")
@click.pass_obj
def ls(session: CommandSession, run: str, limit: int, after: str | None) -> None:
    """List the checkpoints of a run, the oldest first."""

    async def work(storage: CheckpointStorage) -> Sequence[CheckpointInfo]:
        run_id = (await find_run(storage, run)).run_id
        begin = None if after is None else await find_checkpoint(storage, after)
        return await storage.list_checkpoints(run_id=run_id, limit=limit + 1, after=begin)

    found = session.look(work)
    page, output = found[:limit], session.output
    following = page[-1] if len(found) > limit else None
    data = {
        "checkpoints": [one.to_dict() for one in page],
        "next": None if following is None else following.checkpoint_id,
    }
    output.write(data, lambda: _draw_checkpoints(output, page))
    if following is not None:
        output.say(f"there are more: --after {printable(following.run_id)}@{following.seq}")


def _draw_checkpoints(
    output: CommandOutput, page: Sequence[CheckpointInfo], has_ids: bool = True
) -> list[str]:
    seqs = {one.checkpoint_id: one.seq for one in page}
    rows = [
        (
            str(one.seq),
            one.checkpoint_id[:_SHORT_ID],
            f"{one.phase} {one.superstep}",
            one.cause.value,
            status_cell(one.status.value),
            _size(one.new_bytes),
            age_of(one.timestamp),
            ", ".join(filter(None, (f"by {one.by}" if one.by else "", _note_of(one, seqs)))),
        )
        for one in page
    ]
    titles: tuple[str, ...] = ("SEQ", "ID", "STEP", "CAUSE", "STATUS", "ADDS", "MADE", "NOTE")
    if has_ids:
        return output.draw_table(titles, rows)
    return output.draw_table(titles[:1] + titles[2:], [row[:1] + row[2:] for row in rows], is_cut=False)


def _note_of(one: CheckpointInfo, seqs: Mapping[CheckpointId, int]) -> str:
    """Return the tags of a checkpoint, and by which one it was left behind: by its number if ``seqs`` has that."""
    notes = [f"#{tag}" for tag in one.tags]
    if one.superseded_by is not None:
        notes.append(f"left behind by {seqs.get(one.superseded_by) or one.superseded_by[:_SHORT_ID]}")
    return ", ".join(notes)


def _size(size: int) -> str:
    from holdfast.checkpoint.views import size_text

    return size_text(size)


@checkpoint.command()
@run_argument
@click.option("--ascii", "is_ascii", is_flag=True, help="Draw without box characters.")
@click.pass_obj
def tree(session: CommandSession, run: str, is_ascii: bool) -> None:
    """Draw the checkpoints of a run and of its forks as a tree, with the places where it went back."""
    output = session.output

    async def work(storage: CheckpointStorage) -> tuple[str, list[dict[str, Any]]]:
        info = await find_run(storage, run)
        if not output.is_json:
            return await storage.draw_tree(info.run_id, is_ascii or not output.draws_boxes, sizes=True), []
        family = await _find_family(storage, info)
        made = [one for member in family for one in await storage.list_checkpoints(run_id=member.run_id)]
        return "", [one.to_dict() for one in made]

    text, made = session.look(work)
    output.write_long({"checkpoints": made}, lambda: _draw_tree(output, text))


def _draw_tree(output: CommandOutput, text: str) -> Iterator[str]:
    """Give the lines of a tree: heads in the colour of their run, and long lines wrapped beside their branch."""
    for line in text.splitlines():
        branch, mark, _ = _TREE_LINE.fullmatch(line).groups("")  # type: ignore[union-attr]
        head = _HEAD.search(line)
        beside = branch.translate(_BESIDE) + "  " * bool(mark)
        colour = None if head is None else status_cell(head[1]).colour
        yield from (paint(part, colour) for part in output.wrap(line, beside))


async def _find_family(storage: CheckpointStorage, run: RunInfo) -> list[RunInfo]:
    """Return the run that a run descends from, and all forks of that, as far as they are there."""
    first = run
    while first.forked_from is not None:
        try:
            first = await storage.get_run(first.forked_from.run_id)
        except RunNotFound:  # it was removed, and its forks stayed
            break
    family = [first]
    for member in family:  # grows
        family += await storage.list_runs(forked_from=member.run_id, limit=None)
    return family


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", shell_complete=complete_checkpoints)
@click.option("--full", is_flag=True, help="Show values in full, not the first line of each.")
@click.pass_obj
def show(session: CommandSession, name: str, full: bool) -> None:
    """Show a checkpoint with its state, messages, requests and outputs."""

    async def work(storage: CheckpointStorage) -> Checkpoint:
        return await storage.load(await find_checkpoint(storage, name), plain=True)

    found = session.look(work)
    output, content = session.output, content_of(found)
    output.write_long(
        {"checkpoint": found.to_dict(), **content}, lambda: _draw_checkpoint(output, found, content, full)
    )


def content_of(found: Checkpoint) -> dict[str, Any]:
    """Return all values of a checkpoint that was loaded as plain JSON."""
    return {
        "state": {name: dict(values) for name, values in found.scopes.items()},
        "executor_states": {
            executor_id: dict(kept) if isinstance(kept, Mapping) else kept
            for executor_id, kept in found.executor_states.items()
        },
        "messages": [
            {"source_id": one.source_id, "target_id": one.target_id, "data": one.data}
            for one in found.messages
        ],
        "requests": [
            {
                "request_id": one.request_id,
                "executor_id": one.executor_id,
                "data": one.data,
                "response_schema": one.response_schema,
                "expires": None if one.expires is None else one.expires.isoformat(),
            }
            for one in found.pending_requests
        ],
        "outputs": list(found.outputs),
    }


def _draw_checkpoint(
    output: CommandOutput, found: Checkpoint, content: Mapping[str, Any], full: bool
) -> Iterator[str]:
    fields = {
        "checkpoint": str(found.checkpoint_id),
        "run": f"{found.run_id} of {found.workflow_name}",
        "place": f"{found.run_id}@{found.seq}, {found.phase} of superstep {found.superstep}",
        "cause": found.cause.value + (f" by {found.by}" if found.by else ""),
        "made": f"{found.timestamp:%Y-%m-%d %H:%M:%S} UTC ({age_of(found.timestamp)})",
    }
    yield from output.draw_fields({**fields, "status": status_cell(found.status.value)})
    if note := _note_of(found, {}):
        yield from output.draw_fields({"note": note})
    for title, values in _sections(content):
        yield ""
        yield paint(title, "cyan")
        for place, value in values if full else values[:_MOST_VALUES]:
            yield from _draw_value(output, place, value, full)
        if not full and len(values) > _MOST_VALUES:
            yield f"  {len(values) - _MOST_VALUES:,} more: --full shows them"


def _sections(content: Mapping[str, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Give the sections that have something, with places for people."""
    for scope, values in content["state"].items():
        yield f"state of scope {printable(scope)}", list(values.items())
    if content["executor_states"]:
        yield "state of executors", list(content["executor_states"].items())
    if content["messages"]:
        yield (
            "messages",
            [(f"{m['source_id'] or 'outside'} -> {m['target_id']}", m["data"]) for m in content["messages"]],
        )
    if content["requests"]:
        yield (
            "requests",
            [(f"{r['request_id']} of {r['executor_id']}", r["data"]) for r in content["requests"]],
        )
    if content["outputs"]:
        yield "outputs", [(str(number), value) for number, value in enumerate(content["outputs"], 1)]


def _draw_value(output: CommandOutput, place: str, value: Any, full: bool) -> Iterator[str]:
    if full:
        first, *more = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
        yield Verbatim(f"  {printable(place)}: {printable(first)}")
        yield from (Verbatim(f"  {printable(line)}") for line in more)
        return
    name, whole = printable(place), json.dumps(value, ensure_ascii=False)
    room = output.room(_LONGEST_VALUE) - len(name) - 4
    if len(whole) > room:  # say how much there is
        size = f" {_size(len(whole.encode()))}"
        yield f"  {name}: {cut(printable(whole[:_LONGEST_VALUE]), max(_SHORTEST_VALUE, room - len(size)))}{size}"
    else:
        yield f"  {name}: {printable(whole)}"


@checkpoint.command()
@click.argument("one", metavar="CHECKPOINT", shell_complete=complete_checkpoints)
@click.argument("other", metavar="CHECKPOINT", shell_complete=complete_checkpoints)
@click.pass_obj
def diff(session: CommandSession, one: str, other: str) -> None:
    """Compare two checkpoints, of any runs: state, messages, requests, outputs, long texts by lines."""

    async def work(storage: CheckpointStorage) -> CheckpointDiff:
        return await storage.diff(await find_checkpoint(storage, one), await find_checkpoint(storage, other))

    found = session.look(work)
    session.output.write_long(found.to_dict(), lambda: map(_paint_line, str(found).splitlines()))


def _paint_line(line: str) -> str:
    return paint(line, _MARK_COLOURS.get(line.lstrip()[:1]))


@checkpoint.command()
@click.argument("name", metavar="CHECKPOINT", shell_complete=complete_checkpoints)
@click.argument("tags", metavar="TAG...", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take the tags away instead.")
@by_option
@click.pass_obj
def tag(session: CommandSession, name: str, tags: tuple[str, ...], remove: bool, by: str | None) -> None:
    """Give a checkpoint tags; one with a tag is kept, whatever the retention says."""

    async def work(storage: CheckpointStorage) -> CheckpointInfo:
        found = await find_checkpoint(storage, name)
        if remove:
            await storage.untag(found, *tags)
        else:
            await storage.tag(found, *tags, by=by)
        return await storage.load(found, values=False)

    found = session.change(work)
    told = ", ".join(map(printable, found.tags)) or "no tags"
    place = f"{printable(found.run_id)}@{found.seq}"
    session.output.write({"checkpoint": found.to_dict()}, lambda: [f"{place} has {told}"])


@checkpoint.command()
@run_argument
@click.option(
    "--limit", type=click.IntRange(min=1), default=500, show_default=True, help="List the newest so many."
)
@click.option(
    "--fork",
    "fork_with",
    metavar="[MODULE:WORKFLOW]",
    is_flag=False,
    flag_value="",
    help="Begin a new run there, and drive it.",
)
@click.option(
    "--resume",
    "resume_with",
    metavar="[MODULE:WORKFLOW]",
    is_flag=False,
    flag_value="",
    help="Let the run go back there, and drive it.",
)
@no_wait_option
@by_option
@click.pass_obj
def pick(
    session: CommandSession,
    run: str,
    limit: int,
    fork_with: str | None,
    resume_with: str | None,
    no_wait: bool,
    by: str | None,
) -> ExitCode:
    """Let a person choose a checkpoint of a run, with arrow keys or by its number.

    Writes its id to stdout, for other commands, unless --fork or --resume says what to do with it.
    """
    from holdfast.cli.picker import Picker

    if fork_with is not None and resume_with is not None:
        raise CommandError("give one of --fork and --resume", ExitCode.USAGE)
    output = session.output

    async def work(storage: CheckpointStorage) -> Sequence[CheckpointInfo]:
        info = await find_run(storage, run)
        before = None
        if info.seq > limit:
            with suppress(CheckpointNotFound):  # it was pruned, so there are not so many
                before = await find_checkpoint(storage, f"{info.run_id}@{info.seq - limit}")
        return await storage.list_checkpoints(run_id=info.run_id, after=before)

    found = session.look(work)
    if found[0].seq > 1:
        output.say(f"the last ones, from {found[0].seq}; --limit lists more")
    workflow: Workflow | None = None
    if fork_with is not None or resume_with is not None:
        from holdfast.cli.workflows import load_workflow

        workflow = load_workflow(fork_with or resume_with or None, found[0].workflow_name)
    title, *lines = _draw_checkpoints(output, found, has_ids=False)
    chosen = found[Picker(title, [click.unstyle(line) for line in lines], [one.seq for one in found]).pick()]
    if workflow is None:
        output.write_raw({"checkpoint": chosen.to_dict()}, lambda: [str(chosen.checkpoint_id)])
        return ExitCode.OK
    from holdfast.cli.driver import drive

    async def begin(storage: CheckpointStorage) -> Run:
        if fork_with is not None:
            return await workflow.fork(chosen, storage=storage, by=by)
        return await workflow.resume(chosen, storage=storage, by=by)

    return drive(session, begin, stays=not no_wait, by=by)


@click.group(cls=StoreGroup)
def state() -> None:
    """Read values of the state.

    CHECKPOINT is the id of a checkpoint or the beginning of it, RUN@SEQ, or RUN for the one on which a run stands.
    """


_NOT_SET = object()


@state.command()
@click.argument("name", metavar="CHECKPOINT", shell_complete=complete_checkpoints)
@click.argument("key")
@click.option("--scope", metavar="NAME", help="The shared scope; else the default one.")
@click.pass_obj
def get(session: CommandSession, name: str, key: str, scope: str | None) -> None:
    """Write one value of the shared state to stdout: a text as it is, everything else as JSON."""

    async def work(storage: CheckpointStorage) -> tuple[CheckpointInfo, Any]:
        found = await storage.load(await find_checkpoint(storage, name), values=False, plain=True)
        value = await found.read_state(key, _NOT_SET, scope)
        if value is _NOT_SET:
            scopes = (
                ", ".join(f"{known}: {', '.join(keys)}" for known, keys in found.scopes.items()) or "nothing"
            )
            where = "the default scope" if scope is None else f"scope {scope!r}"
            raise CheckpointNotFound(
                f"{where} has no {key!r} at {found.run_id}@{found.seq}; its shared state has {printable(scopes)}"
            )
        return found, value

    found, value = session.look(work)
    data = {"checkpoint_id": found.checkpoint_id, "scope": scope, "key": key, "value": value}
    session.output.write_value(data, value)
