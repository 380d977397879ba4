"""The tree of checkpoints: what is drawn can be read back, however the runs went."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Cause, CheckpointInfo, Phase, RunStatus
from holdfast.checkpoint.tree import draw_checkpoints, find_branches
from tests.support.parts import CheckpointId, Header, Marks, RunId

# -- runs, without any storage ---------------------------------------------------------------------


class Runs:
    """Checkpoints as runs would make them."""

    def __init__(self) -> None:
        self.made: list[CheckpointInfo] = []
        self.newest: dict[str, CheckpointInfo] = {}

    def add(self, run: str, parent: CheckpointInfo | None, cause: Cause, **other: Any) -> CheckpointInfo:
        """One more checkpoint: of a boundary further on, or where the run went back to."""
        again = cause in (Cause.RESTORE, Cause.FORK, Cause.EDIT)
        if parent is None:
            superstep, phase = 1, Phase.START
        elif again:
            superstep, phase = parent.superstep, parent.phase
        else:
            at_end = parent.phase is Phase.END
            superstep, phase = parent.superstep + at_end, Phase.START if at_end else Phase.END
        number = len(self.made) + 1
        header = Header(
            RunId(run),
            "W",
            self.newest[run].seq + 1 if run in self.newest else 1,
            superstep,
            phase,
            cause,
            None if parent is None else parent.checkpoint_id,
            number,
            RunStatus.RUNNING,
            message_count=1,
            request_count=0,
            replay_from=1,
            salt=b"",
        )
        tags = other.pop("tags", ())
        made = CheckpointInfo(CheckpointId(f"{number:064x}"), header._replace(**other), 1, Marks(tags))
        self.made.append(made)
        self.newest[run] = made
        return made

    def start(self, run: str) -> CheckpointInfo:
        return self.add(run, None, Cause.INPUT)

    def go_on(self, run: str, count: int) -> list[CheckpointInfo]:
        return [self.add(run, self.newest[run], Cause.SUPERSTEP) for _ in range(count)]

    def end(self, run: str) -> CheckpointInfo:
        return self.add(run, self.newest[run], Cause.SUPERSTEP, status=RunStatus.COMPLETED)

    def restore(self, target: CheckpointInfo) -> CheckpointInfo:
        return self.add(target.run_id, target, Cause.RESTORE)

    def fork(self, target: CheckpointInfo, run: str) -> CheckpointInfo:
        return self.add(run, target, Cause.FORK)

    def drawn(self, **options: Any) -> list[str]:
        return draw_checkpoints(self.made, **options).splitlines()


# -- reading a drawing -----------------------------------------------------------------------------

SHOWN = re.compile(
    r"(?P<lead>[ │├└─]*)(?P<mark>[●◉▸]) (?P<seq>\d+) (?P<phase>\w+) (?P<superstep>\d+)(?P<remarks>.*)"
)
FOLDED = re.compile(r"[ │]*┆ (\d+) to (\d+), supersteps? (\d+)(?: to (\d+))?, (\d+) checkpoints")

Key = tuple[str, int]
"""A checkpoint by its run and its seq."""


class Read(NamedTuple):
    """What a drawing says."""

    above: dict[Key, Key | None]
    """The shown checkpoint that each shown one follows, directly or behind folded ones."""
    heads: set[Key]
    folded: int
    """How many checkpoints are in folds."""


def read(lines: Sequence[str]) -> Read:
    """Read a drawing back, by where its marks stand."""
    above: dict[Key, Key | None] = {}
    heads: set[Key] = set()
    below: set[Key] = set()
    folded = 0
    columns: dict[int, Key | None] = {}
    for line in lines:
        if not line:
            columns = {}
        elif fold := FOLDED.fullmatch(line):
            folded += int(fold[5])
        else:
            shown = SHOWN.fullmatch(line)
            assert shown, line
            column = len(shown["lead"])
            begins = shown["lead"].endswith("─")
            beside = columns.get(column - 2 if begins else column)
            named = re.search(r", run (\S+?)(?=,|$)", shown["remarks"])
            run = named[1] if named else beside[0] if beside else "?"
            key = (run, int(shown["seq"]))
            if follows := re.search(r", follows (\d+)(?: of run (\S+))?$", shown["remarks"]):
                beside = (follows[2] or run, int(follows[1]))
                assert key in below
            if shown["mark"] == "▸":
                assert shown["remarks"].endswith(", drawn below")
                below.add(key)
                continue
            assert key not in above, f"{key} is drawn twice"
            above[key] = beside
            columns = {place: at for place, at in columns.items() if place < column} | {column: key}
            if shown["mark"] == "◉":
                assert ", head, " in shown["remarks"]
                heads.add(key)
    assert below <= set(above)
    return Read(above, heads, folded)


def key_of(made: CheckpointInfo) -> Key:
    return made.run_id, made.seq


def check(runs: Runs, lines: list[str] | None = None) -> Read:
    """What is drawn of runs is what they did."""
    by_id = {made.checkpoint_id: made for made in runs.made}
    by_key = {key_of(made): made for made in runs.made}
    seen = read(runs.drawn() if lines is None else lines)
    assert len(seen.above) + seen.folded == len(runs.made)
    assert seen.heads == {key_of(made) for made in runs.newest.values()}
    for key, above in seen.above.items():
        made = by_key[key]
        parent = by_id.get(made.parent_id) if made.parent_id else None
        while parent is not None and key_of(parent) not in seen.above:
            assert parent.cause is Cause.SUPERSTEP
            assert not parent.tags
            parent = by_id[parent.parent_id] if parent.parent_id else None
        assert above == (None if parent is None else key_of(parent))
    children = Counter(made.parent_id for made in runs.made if made.parent_id is not None)
    assert {key_of(by_id[parent]) for parent, count in children.items() if count > 1} <= set(seen.above)
    return seen


# -- any runs --------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go far", "end", "answer", "tag", "restore", "fork", "edit", "start"]),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
    ),
    max_size=40,
)


def happened(steps: Sequence[tuple[str, int, int]]) -> Runs:
    """The runs to which steps lead; numbers choose among what is there."""
    runs = Runs()
    runs.start("r0")
    for kind, one, other in steps:
        run = sorted(runs.newest)[one % len(runs.newest)]
        target = runs.made[other % len(runs.made)]
        match kind:
            case "go on" | "go far":
                runs.go_on(run, 1 + other % 4 if kind == "go on" else 50)
            case "end":
                runs.end(run)
            case "answer":
                runs.add(run, runs.newest[run], Cause.SUPERSTEP, status=RunStatus.WAITING)
                runs.add(run, runs.newest[run], Cause.RESPONSE)
            case "tag":
                runs.add(run, runs.newest[run], Cause.SUPERSTEP, tags=("good", "kept"))
                runs.go_on(run, 1)
            case "restore":
                runs.restore(target)
            case "fork" | "edit":
                made = runs.fork(target, f"r{len(runs.newest)}")
                if kind == "edit":
                    runs.add(made.run_id, made, Cause.EDIT)
            case "start":
                runs.start(f"r{len(runs.newest)}")
    return runs


@given(STEPS)
def test_any_runs_can_be_read_back_from_their_drawing(steps: list[tuple[str, int, int]]) -> None:
    check(happened(steps))


@given(STEPS)
def test_every_checkpoint_that_matters_is_shown(steps: list[tuple[str, int, int]]) -> None:
    runs = happened(steps)
    shown = set(read(runs.drawn()).above)
    by_id = {made.checkpoint_id: made for made in runs.made}
    for made in runs.made:
        if made.cause is not Cause.SUPERSTEP or made.tags or made.status is not RunStatus.RUNNING:
            assert key_of(made) in shown
        if made.parent_id and by_id[made.parent_id].run_id != made.run_id:
            assert key_of(by_id[made.parent_id]) in shown
    tagged = sum(bool(made.tags) for made in runs.made)
    assert sum(", tagged good, tagged kept" in line for line in runs.drawn()) == tagged


@given(STEPS, st.randoms(use_true_random=False))
def test_the_order_in_which_checkpoints_are_given_does_not_matter(
    steps: list[tuple[str, int, int]], chance: random.Random
) -> None:
    runs = happened(steps)
    mixed = chance.sample(runs.made, len(runs.made))
    assert draw_checkpoints([*mixed, *mixed[:3]]) == draw_checkpoints(runs.made)
    assert find_branches(mixed) == find_branches(runs.made)


@given(STEPS)
def test_ascii_says_the_same(steps: list[tuple[str, int, int]]) -> None:
    runs = happened(steps)
    pens = str.maketrans("●◉┆▸│├└─", "*@:>||`-")
    assert draw_checkpoints(runs.made, ascii=True) == draw_checkpoints(runs.made).translate(pens)
    assert draw_checkpoints(runs.made, ascii=True).isascii()


@given(STEPS)
def test_branches_are_lines_of_one_run_and_have_every_checkpoint_once(
    steps: list[tuple[str, int, int]],
) -> None:
    runs = happened(steps)
    found = find_branches(runs.made)
    by_id = {made.checkpoint_id: made for made in runs.made}
    listed = [made.checkpoint_id for branch in found for made in branch.checkpoints]
    assert sorted(listed) == sorted(by_id)
    assert len(listed) == len(runs.made)
    for branch in found:
        first = branch.checkpoints[0]
        assert {made.run_id for made in branch.checkpoints} == {branch.run_id}
        for made, following in zip(branch.checkpoints, branch.checkpoints[1:], strict=False):
            assert following.parent_id == made.checkpoint_id
        assert (branch.parent.checkpoint_id if branch.parent else None) == first.parent_id
    for run, newest in runs.newest.items():
        (trunk,) = [branch for branch in found if branch.checkpoints[0].seq == 1 and branch.run_id == run]
        assert trunk.checkpoints[-1] == newest  # straight down is where the run stands


# -- big ones --------------------------------------------------------------------------------------

MANY = 10_000


def straight() -> Runs:
    runs = Runs()
    runs.start("long")
    runs.go_on("long", MANY)
    runs.end("long")
    return runs


def forks_of_forks() -> Runs:
    runs = Runs()
    made = runs.start("r0")
    for number in range(1, MANY):
        made = runs.fork(made, f"r{number}")
    return runs


def further_and_further_back() -> Runs:
    runs = Runs()
    runs.start("r")
    for made in reversed(runs.go_on("r", MANY // 2)):
        runs.restore(made)
    return runs


def always_from_the_newest() -> Runs:
    runs = Runs()
    runs.start("r")
    for _ in range(MANY // 3):
        before = runs.newest["r"]
        runs.go_on("r", 2)
        runs.restore(before)
    return runs


def forks_of_one() -> Runs:
    runs = Runs()
    made = runs.start("r0")
    for number in range(1, MANY):
        runs.fork(made, f"r{number}")
    return runs


def restores_to_one() -> Runs:
    runs = Runs()
    made = runs.start("r")
    for _ in range(MANY):
        runs.restore(made)
    return runs


def test_a_long_run_takes_three_lines() -> None:
    assert straight().drawn() == [
        "● 1 start 1, input, run long",
        "┆ 2 to 10001, supersteps 1 to 5001, 10000 checkpoints",
        "◉ 10002 end 5001, head, completed",
    ]


@pytest.mark.parametrize(
    "made",
    [
        straight,
        forks_of_forks,
        further_and_further_back,
        always_from_the_newest,
        forks_of_one,
        restores_to_one,
    ],
)
def test_ten_thousand_however_they_hang_together(made: Callable[[], Runs]) -> None:
    runs = made()
    lines = runs.drawn()
    assert max(map(len, lines)) < 100
    assert len(lines) < 2 * len(runs.made)
    check(runs)


# -- single things ---------------------------------------------------------------------------------


def test_nothing() -> None:
    assert find_branches([]) == []
    assert draw_checkpoints([]) == ""


def test_branches_that_a_run_left_stand_above_where_it_went_on() -> None:
    runs = Runs()
    first = runs.start("a")
    runs.go_on("a", 2)
    left = runs.end("a")
    runs.restore(first)
    runs.go_on("a", 1)
    runs.restore(left)
    runs.fork(left, "b")
    assert runs.drawn() == [
        "● 1 start 1, input, run a",
        "├─● 5 start 1, restore",
        "│ ● 6 end 1",
        "● 2 end 1",
        "● 3 start 2",
        "● 4 end 2, completed",
        "├─◉ 1 end 2, fork, head, running, run b",
        "◉ 7 end 2, restore, head, running",
    ]


def test_a_fork_of_where_a_run_ended_hangs_from_it() -> None:
    runs = Runs()
    end = (runs.start("a"), runs.end("a"))[1]
    for run in ("b", "c"):
        runs.fork(end, run)
        runs.go_on(run, 1)
    assert runs.drawn(ascii=True) == [
        "* 1 start 1, input, run a",
        "@ 2 end 1, head, completed",
        "|-* 1 end 1, fork, run b",
        "| @ 2 start 2, head, running",
        "`-* 1 end 1, fork, run c",
        "  @ 2 start 2, head, running",
    ]


@pytest.mark.parametrize(("between", "lines"), [(3, 5), (4, 3)])
def test_a_few_checkpoints_are_not_folded(between: int, lines: int) -> None:
    runs = Runs()
    runs.start("a")
    runs.go_on("a", between)
    runs.end("a")
    assert len(runs.drawn()) == lines


def test_a_fold_within_one_superstep_says_so() -> None:
    runs = Runs()
    runs.start("a")
    for _ in range(4):
        runs.add("a", runs.newest["a"], Cause.SUPERSTEP, superstep=7)
    runs.end("a")
    assert runs.drawn()[1] == "┆ 2 to 5, superstep 7, 4 checkpoints"


def test_heads_say_how_runs_stand() -> None:
    runs = Runs()
    runs.start("a")
    (stands, _) = runs.go_on("a", 2)
    assert runs.drawn(heads={stands.checkpoint_id: RunStatus.FAILED}) == [
        "● 1 start 1, input, run a",
        "◉ 2 end 1, head, failed",
        "● 3 start 2",
    ]


def test_what_is_not_given_is_said_to_be_missing() -> None:
    runs = Runs()
    runs.start("a")
    runs.go_on("a", 3)
    assert draw_checkpoints(runs.made[2:]).splitlines() == [
        "● 3 start 2, run a, follows a checkpoint that is not here",
        "◉ 4 end 2, head, running",
    ]
    assert draw_checkpoints([runs.made[0], runs.made[3]]).splitlines() == [
        "● 1 start 1, input, run a",
        "",
        "◉ 4 end 2, head, running, run a, follows a checkpoint that is not here",
    ]


def test_names_stay_in_their_line() -> None:
    runs = Runs()
    runs.start("Zürich")
    runs.add("Zürich", runs.newest["Zürich"], Cause.SUPERSTEP, tags=("two\nlines",))
    assert runs.drawn() == [
        "● 1 start 1, input, run Zürich",
        r"◉ 2 end 1, head, running, tagged 'two\nlines'",
    ]
    assert runs.drawn(ascii=True)[0] == r"* 1 start 1, input, run Z\xfcrich"


def test_branches_too_deep_to_indent_are_drawn_below() -> None:
    lines = forks_of_forks().drawn()
    assert lines[17] == f"{' ' * 32}└─▸ 1 start 1, fork, head, running, run r17, drawn below"
    assert lines[18:20] == ["", "◉ 1 start 1, fork, head, running, run r17, follows 1 of run r16"]


def test_drawings_that_are_wrong_are_noticed() -> None:
    """The reader of these tests sees what is missing, twice there, or hung to another checkpoint."""
    runs = happened([("go on", 0, 3), ("fork", 0, 1), ("go on", 0, 3)])
    lines = runs.drawn()

    for wrong in (lines[:-1], [*lines, lines[-1]], [line.replace("├─", "") for line in lines]):
        with pytest.raises(AssertionError):
            check(runs, wrong)
    check(runs, lines)
