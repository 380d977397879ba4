"""Draws the lineage of checkpoints as a tree of text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.checkpoint.checkpoint_info import Cause, CheckpointInfo
from holdfast.checkpoint.views import size_text
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId

# A stretch of fewer checkpoints than this is not folded.
_FEWEST_FOLDED = 4
# Branches of branches are indented up to here; deeper ones are drawn below, so that lines stay short.
_DEEPEST = 16


class Branch(NamedTuple):
    """A line of checkpoints of one run, oldest first: each is the parent of the next."""

    checkpoints: tuple[CheckpointInfo, ...]
    parent: CheckpointInfo | None = None
    """The checkpoint that it branches off from, of the same run or of another; None if that was not given."""

    @property
    def run_id(self) -> RunId:
        """The run that its checkpoints belong to."""
        return self.checkpoints[0].run_id


def find_branches(checkpoints: Iterable[CheckpointInfo]) -> list[Branch]:
    """Return the checkpoints as branches, oldest first; each checkpoint is in one of them.

    Where a run went back, its branch continues with what it did last; what it abandoned is a branch of its own. The
    first checkpoint of a fork always begins one.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, executor
    >>> @executor
    ... def double(number: int) -> int:
    ...     return number * 2
    >>> storage = InMemoryCheckpointStorage()
    >>> workflow = WorkflowBuilder(name="Double").set_start_executor(double).with_checkpointing(storage).build()
    >>> async def main():
    ...     run = await workflow.start(21)
    ...     await run.wait_for_completion()
    ...     await run.restore_checkpoint(run.checkpoints[0])
    ...     await run.wait_for_completion()
    ...     for branch in find_branches(await storage.list_checkpoints()):
    ...         print([made.seq for made in branch.checkpoints], branch.parent)
    >>> asyncio.run(main())  # doctest: +ELLIPSIS
    [1, 3, 4] None
    [2] <Checkpoint ...: start of superstep 1, running>
    """
    known = {made.checkpoint_id: made for made in checkpoints}
    followers = _followers(known)
    found = []
    for made in known.values():
        parent = None if made.parent_id is None else known.get(made.parent_id)
        if parent is None or followers.get(parent.checkpoint_id) is not made:
            found.append(Branch(tuple(_line(made, followers)), parent))
    return sorted(found, key=_by_birth)


def draw_checkpoints(
    checkpoints: Iterable[CheckpointInfo],
    heads: Mapping[CheckpointId, RunStatus] | None = None,
    ascii: bool = False,
    sizes: bool = False,
) -> str:
    """Return checkpoints as a tree: of one run with its branches, or of runs with their forks.

    ``heads`` has the checkpoints and statuses of the runs; without it a run stands on its newest checkpoint. The branch
    that leads there goes straight down. Stretches in which nothing but supersteps happened are folded into one line.
    ``ascii`` draws without box characters, and writes other characters that are not ASCII as escapes. ``sizes`` tells
    the bytes that each checkpoint added to the storage.

    >>> import asyncio
    >>> from holdfast import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, executor
    >>> @executor
    ... async def count(number: int, ctx: WorkflowContext[int, int]) -> None:
    ...     await (ctx.send_message(number + 1) if number < 30 else ctx.yield_output(number))
    >>> storage = InMemoryCheckpointStorage()
    >>> builder = WorkflowBuilder(name="Count").set_start_executor(count).add_edge(count, count)
    >>> workflow = builder.with_checkpointing(storage).build()
    >>> async def main():
    ...     run = await workflow.start(1, run_id="counting")
    ...     await run.wait_for_completion()
    ...     await (await workflow.fork(run.checkpoints[57], run_id="fork")).wait_for_completion()
    ...     return await storage.list_checkpoints()
    >>> print(draw_checkpoints(asyncio.run(main())))
    ● 1 start 1, input, run counting
    ┆ 2 to 57, supersteps 1 to 29, 56 checkpoints
    ● 58 end 29
    ├─● 1 end 29, fork, run fork
    │ ● 2 start 30
    │ ◉ 3 end 30, head, completed
    ● 59 start 30
    ◉ 60 end 30, head, completed
    """
    known = list({made.checkpoint_id: made for made in checkpoints}.values())
    drawing = _Drawing(
        find_branches(known), _newest(known) if heads is None else heads, _ASCII if ascii else _BOX, sizes
    )
    text = "\n".join(drawing.lines())
    return text.encode("ascii", "backslashreplace").decode("ascii") if ascii else text


def find_superseded(
    checkpoints: Iterable[CheckpointInfo], head_id: CheckpointId
) -> dict[CheckpointId, CheckpointId]:
    """Return the checkpoints that a run left behind when it went back, each with the one by which it did.

    ``checkpoints`` are those of the run up to its head, as far as they were not removed. Where the parent of one was
    removed, the run came from the one before it. If it went back to a removed one, it cannot be known which earlier
    ones were left behind, and none is told.
    """
    known = sorted(checkpoints, key=lambda made: made.seq, reverse=True)
    ids = {made.checkpoint_id for made in known}
    found: dict[CheckpointId, CheckpointId] = {}
    line: CheckpointInfo | None = None
    for made in known:
        parent = head_id if line is None else line.parent_id
        if made.checkpoint_id == parent:
            line = made
        elif parent in ids:
            assert line is not None, "the head is the last of them"
            found[made.checkpoint_id] = line.checkpoint_id
        elif line is not None and line.cause is Cause.RESTORE:
            break
        else:
            line = made
    return found


def _followers(known: Mapping[CheckpointId, CheckpointInfo]) -> dict[CheckpointId, CheckpointInfo]:
    """Return the checkpoint with which a branch continues behind each one: the child with the newest descendant."""
    newest: dict[CheckpointId, int] = {}
    followers: dict[CheckpointId, CheckpointInfo] = {}
    # Newest first: a descendant of a checkpoint within its run has a greater seq.
    for made in sorted(known.values(), key=lambda made: made.seq, reverse=True):
        parent = None if made.parent_id is None else known.get(made.parent_id)
        if parent is not None and parent.run_id == made.run_id:
            reached = newest.get(made.checkpoint_id, made.seq)
            if reached > newest.get(parent.checkpoint_id, 0):
                newest[parent.checkpoint_id] = reached
                followers[parent.checkpoint_id] = made
    return followers


def _line(
    first: CheckpointInfo, followers: Mapping[CheckpointId, CheckpointInfo]
) -> Iterator[CheckpointInfo]:
    made: CheckpointInfo | None = first
    while made is not None:
        yield made
        made = followers.get(made.checkpoint_id)


def _by_birth(branch: Branch) -> tuple[object, ...]:
    first = branch.checkpoints[0]
    return first.timestamp, first.run_id, first.seq


def _newest(checkpoints: Iterable[CheckpointInfo]) -> dict[CheckpointId, RunStatus]:
    newest: dict[RunId, CheckpointInfo] = {}
    for made in checkpoints:
        if made.run_id not in newest or newest[made.run_id].seq < made.seq:
            newest[made.run_id] = made
    return {made.checkpoint_id: made.status for made in newest.values()}


class _Pen(NamedTuple):
    """The characters of a drawing."""

    made: str
    head: str
    folded: str
    below: str
    off: str
    last_off: str
    beside: str
    nothing: str = "  "


_BOX = _Pen("●", "◉", "┆", "▸", "├─", "└─", "│ ")
_ASCII = _Pen("*", "@", ":", ">", "|-", "`-", "| ")


class _Row(NamedTuple):
    """A line of text, and the checkpoint whose branches come beneath it."""

    text: str
    made: CheckpointInfo | None = None


class _Part(NamedTuple):
    """The rest of a branch that is still to be drawn, and the characters before its lines."""

    rows: Sequence[_Row]
    place: int
    lead: str
    """The characters before its first line."""
    indent: str
    """The characters before the other lines."""
    depth: int


class _Drawing:
    """Draws branches with a stack of its own, because they may be deeper than the call stack of Python."""

    def __init__(
        self, found: Sequence[Branch], heads: Mapping[CheckpointId, RunStatus], pen: _Pen, sizes: bool
    ) -> None:
        self._heads = heads
        self._pen = pen
        self._has_sizes = sizes
        self._trunks = deque(branch for branch in found if branch.parent is None)
        self._off: dict[CheckpointId, list[Branch]] = {}
        self._seqs = {made.checkpoint_id: made.seq for branch in found for made in branch.checkpoints}
        for branch in found:
            if branch.parent is not None:
                self._off.setdefault(branch.parent.checkpoint_id, []).append(branch)

    def lines(self) -> Iterator[str]:
        """Give the lines of the drawing."""
        gap: list[str] = []
        while self._trunks:
            yield from gap
            parts = [_Part(self._rows(self._trunks.popleft(), trunk=True), 0, "", "", 0)]
            while parts:
                yield from self._until_branches(parts.pop(), parts)
            gap = [""]

    def _until_branches(self, part: _Part, parts: list[_Part]) -> Iterator[str]:
        """Draw up to the next checkpoint with branches; put these and the rest on the stack."""
        for place in range(part.place, len(part.rows)):
            row = part.rows[place]
            yield (part.indent if place else part.lead) + row.text
            off = [] if row.made is None else self._off.get(row.made.checkpoint_id, [])
            if off:
                goes_on = place + 1 < len(part.rows)
                if goes_on:
                    parts.append(part._replace(place=place + 1))
                last = None if goes_on else off[-1]
                parts += [self._part(branch, part, branch is last) for branch in reversed(off)]
                self._trunks += [branch for branch in off if part.depth >= _DEEPEST]
                return

    def _part(self, branch: Branch, beside: _Part, last: bool) -> _Part:
        pen = self._pen
        lead = beside.indent + (pen.last_off if last else pen.off)
        indent = beside.indent + (pen.nothing if last else pen.beside)
        if beside.depth < _DEEPEST:
            return _Part(self._rows(branch), 0, lead, indent, beside.depth + 1)
        stub = _Row(f"{pen.below} {self._first(branch)}, drawn below")
        return _Part([stub], 0, lead, indent, 0)

    def _rows(self, branch: Branch, trunk: bool = False) -> list[_Row]:
        first, *others = branch.checkpoints
        rows = [_Row(f"{self._mark(first)} {self._first(branch, trunk)}", first)]
        folded: list[CheckpointInfo] = []
        for made in others:
            if made is others[-1] or self._matters(made):
                rows += self._stretch(folded)
                rows.append(_Row(f"{self._mark(made)} {_place(made)}{self._remarks(made)}", made))
                folded = []
            else:
                folded.append(made)
        return rows

    def _matters(self, made: CheckpointInfo) -> bool:
        return (
            made.cause is not Cause.SUPERSTEP
            or made.status is not RunStatus.RUNNING
            or bool(made.tags)
            or made.checkpoint_id in self._heads
            or made.checkpoint_id in self._off
        )

    def _stretch(self, folded: Sequence[CheckpointInfo]) -> list[_Row]:
        if len(folded) < _FEWEST_FOLDED:
            return [_Row(f"{self._pen.made} {_place(made)}{self._size((made,))}") for made in folded]
        first, last = folded[0], folded[-1]
        steps = (
            f"superstep {first.superstep}"
            if first.superstep == last.superstep
            else f"supersteps {first.superstep} to {last.superstep}"
        )
        counted = f"{len(folded)} checkpoints{self._size(folded)}"
        return [_Row(f"{self._pen.folded} {first.seq} to {last.seq}, {steps}, {counted}")]

    def _size(self, made: Sequence[CheckpointInfo]) -> str:
        """Return what checkpoints added to the storage as text; nothing if they added nothing."""
        added = sum(one.new_bytes for one in made) if self._has_sizes else 0
        return f", {size_text(added)}" if added else ""

    def _mark(self, made: CheckpointInfo) -> str:
        return self._pen.head if made.checkpoint_id in self._heads else self._pen.made

    def _first(self, branch: Branch, trunk: bool = False) -> str:
        """Return the text of the first checkpoint of a branch, with the run unless that is the run of its parent."""
        first, parent = branch.checkpoints[0], branch.parent
        remarks = self._remarks(first)
        if trunk or parent is None or parent.run_id != first.run_id:
            remarks += f", run {_in_line(first.run_id)}"
        if trunk:
            remarks += _follows(first, parent)
        if first.superseded_by is not None:
            remarks += f", superseded by {self._seqs.get(first.superseded_by, 'another')}"
        return _place(first) + remarks

    def _remarks(self, made: CheckpointInfo) -> str:
        """Return the unusual properties of a checkpoint as text."""
        words: list[str] = [] if made.cause is Cause.SUPERSTEP else [made.cause]
        status = self._heads.get(made.checkpoint_id, made.status)
        if made.checkpoint_id in self._heads:
            words.append("head")
        if made.checkpoint_id in self._heads or status is not RunStatus.RUNNING:
            waits = status is RunStatus.WAITING and made.waiting_for == ("messages",)
            words.append("waiting for messages" if waits else status)
        if made.by is not None:
            words.append(f"by {_in_line(made.by)}")
        words += [_tagged(tag, made.tagged_by) for tag in made.tags]
        return "".join(f", {word}" for word in words) + self._size((made,))


def _tagged(tag: str, tagged_by: Mapping[str, str]) -> str:
    by = f" by {_in_line(tagged_by[tag])}" if tag in tagged_by else ""
    return f"tagged {_in_line(tag)}{by}"


def _place(made: CheckpointInfo) -> str:
    return f"{made.seq} {made.phase} {made.superstep}"


def _follows(made: CheckpointInfo, parent: CheckpointInfo | None) -> str:
    """Return the text about the parent of a branch that is not drawn beside it."""
    if made.parent_id is None:
        return ""
    if parent is None:
        return ", follows a checkpoint that is not here"
    of_run = "" if parent.run_id == made.run_id else f" of run {_in_line(parent.run_id)}"
    return f", follows {parent.seq}{of_run}"


def _in_line(text: str) -> str:
    """Return a text of users so that it fits into one line."""
    return text if text.isprintable() else repr(text)
