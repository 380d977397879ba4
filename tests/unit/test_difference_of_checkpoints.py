"""The difference of two values: sequences, texts, trees, and that it leads from the one to the other."""

import enum
import math
import pathlib
from collections import Counter, deque
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Codec, Difference, DiffValue, checkpointable
from holdfast.checkpoint.codec.value_tree import NotATree, bytes_of, same, tree_of
from holdfast.checkpoint.diff import sequence_diff as alignment
from holdfast.checkpoint.diff.comparison import describe_pair, plan_pair
from holdfast.checkpoint.diff.node_text import short, short_pair, type_of
from holdfast.checkpoint.diff.render import render_difference
from holdfast.checkpoint.diff.sequence_diff import LONGEST, WIDEST, gaps, unified
from holdfast.checkpoint.diff.tree_diff import MOST, WHOLE, Codecs, compare_trees
from holdfast.checkpoint.diff.value_pairs import Pair
from holdfast.checkpoint.format.stored_content import Verdict, compare_pieces, content_of, pieces_of
from holdfast.errors import CheckpointCorrupt
from tests.properties.test_codec import CODEC, VALUES
from tests.support.parts import Part, Ref, TypeRegistry
from tests.unit.test_codec_exact import exact

# -- sequences -------------------------------------------------------------------------------------

LETTERS = st.text("abcdef", max_size=30)


def led_from_the_one_to_the_other(one: str, other: str) -> str:
    made, place = "", 0
    for gap in gaps(one, other):
        made += one[place : gap.start] + other[gap.other_start : gap.other_stop]
        place = gap.stop
    return made + one[place:]


@pytest.mark.parametrize(("every_pair", "rare_pairs"), [(40_000, 1_000_000), (4, 100), (4, 4)])
def test_gaps_lead_from_one_sequence_to_the_other(
    every_pair: int, rare_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small bounds the longer ways are gone too: by elements that stand once, and by none at all."""
    monkeypatch.setattr(alignment, "_EVERY_PAIR", every_pair)
    monkeypatch.setattr(alignment, "_RARE_PAIRS", rare_pairs)

    @given(LETTERS, LETTERS)
    @settings(max_examples=100)
    def check(one: str, other: str) -> None:
        assert led_from_the_one_to_the_other(one, other) == other
        assert [gap.swapped() for gap in gaps(one, other)] == gaps(other, one)
        assert gaps(one, one) == []

    check()


def test_a_long_sequence_is_compared_around_what_stands_in_it_once() -> None:
    one = [f"line {number}" for number in range(50_000)]
    other = ["new", *one[:10_000], *one[10_001:40_000], "inserted", *one[40_000:-1]]
    assert [tuple(gap) for gap in gaps(one, other)] == [
        (0, 0, 0, 1),
        (10_000, 10_001, 10_001, 10_001),
        (40_000, 40_000, 40_000, 40_001),
        (49_999, 50_000, 50_000, 50_000),
    ]


def test_a_long_sequence_of_few_elements_is_given_up_on() -> None:
    one, other = ["a", "b"] * 5_000, ["b", "c"] * 5_000
    assert [tuple(gap) for gap in gaps(one, other)] == [(0, 10_000, 0, 10_000)]


# -- texts -----------------------------------------------------------------------------------------


def patched(text: str, lines: tuple[str, ...]) -> str:
    """The text with a unified diff applied."""
    *whole, rest = text.split("\n")
    old = [f"{line}\n" for line in whole] + ([rest] if rest else [])
    made: list[str] = []
    place = 0
    for number, line in enumerate(lines):
        if line.startswith("@@"):
            start, _, length = line.split()[1][1:].partition(",")
            first = int(start) - (length != "0")
            made += old[place:first]
            place = first
        elif line.startswith("\\"):
            continue
        else:
            ended = number + 1 < len(lines) and lines[number + 1].startswith("\\")
            content = line[1:] if ended else f"{line[1:]}\n"
            if line[0] in " -":
                assert old[place] == content
                place += 1
            if line[0] in " +":
                made.append(content)
    return "".join(made + old[place:])


@given(st.text("ab\n", max_size=40), st.text("ab\n", max_size=40))
def test_a_unified_diff_leads_from_one_text_to_the_other(one: str, other: str) -> None:
    found = unified(one, other)
    assert found.complete
    assert patched(one, found.lines) == other
    assert bool(found.lines) == (one != other)


def test_a_text_is_split_at_newlines_and_nowhere_else() -> None:
    assert unified("a\x0bb\u2028c\r\n", "a\x0bb\u2028d\r\n").lines == (
        "@@ -1 +1 @@",
        "-a\x0bb\u2028c\r",
        "+a\x0bb\u2028d\r",
    )


def test_lines_that_are_far_from_each_other_have_hunks_of_their_own() -> None:
    lines = [f"{number}\n" for number in range(30)]
    changed = [*lines[:3], "x\n", *lines[4:11], "y\n", *lines[12:25], "z\n", *lines[26:]]
    found = unified("".join(lines), "".join(changed)).lines
    assert [line for line in found if line[0] != " "] == [
        "@@ -1,7 +1,7 @@", "-3", "+x",
        "@@ -9,7 +9,7 @@", "-11", "+y",
        "@@ -23,7 +23,7 @@", "-25", "+z",
    ]  # fmt: skip
    nearer = [*lines[:3], "x\n", *lines[4:10], "y\n", *lines[11:]]
    assert unified("".join(lines), "".join(nearer)).lines[0] == "@@ -1,14 +1,14 @@"


def test_a_unified_diff_is_bounded() -> None:
    found = unified("x\n" * 1000, "y" * 10_000 + "\n" + "y\n" * 1000)
    assert not found.complete
    assert len(found.lines) == LONGEST
    assert max(map(len, unified("a\n", "b" * 10_000).lines)) < WIDEST + 40


# -- trees -----------------------------------------------------------------------------------------


@given(VALUES)
def test_a_tree_has_the_bytes_of_its_value(value: Any) -> None:
    data = CODEC.encode(value)
    assert bytes_of(tree_of(data)) == data
    assert same(tree_of(data), tree_of(data))


@given(VALUES, VALUES)
def test_trees_are_the_same_where_the_bytes_are(one: Any, other: Any) -> None:
    left, right = CODEC.encode(one), CODEC.encode(other)
    assert same(tree_of(left), tree_of(right)) == (left == right)


def test_the_order_of_keys_is_part_of_a_tree() -> None:
    assert not same({"a": 1, "b": 1}, {"b": 1, "a": 1})


@given(st.binary(max_size=40))
def test_broken_bytes_are_no_tree_or_one_that_can_be_told(data: bytes) -> None:
    try:
        node = tree_of(data)
    except NotATree:
        return
    assert short(node)
    assert type_of(node)


def test_what_is_nested_too_deeply_is_no_tree() -> None:
    with pytest.raises(NotATree):
        tree_of(b"\x91" * 5000 + b"\xc0")


@given(VALUES, VALUES)
def test_every_value_can_be_told_in_a_few_words(one: Any, other: Any) -> None:
    old, new = tree_of(CODEC.encode(one)), tree_of(CODEC.encode(other))
    for text in (short(old), short(old, 10), *short_pair(old, new)):
        assert 0 < len(text) < 1000
        assert text.isprintable(), "it stands in one line"


@dataclass
class Report:
    title: str
    rows: list[Any]


TELLING = Codec(TypeRegistry([("the tests", Report)]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Report("Q", [(1,), {2}, set(), frozenset({3})]), "Report(title='Q', rows=[(1,), {2}, set(), frozenset({3})])"),
        (ValueError("no", 1), "ValueError('no', 1)"),
        ({1: True, (2,): None}, "{1: True, (2,): None}"),
        ([-0.0, math.inf, 2**70], "[-0.0, inf, 1180591620717411303424]"),
        (2**4000, "<int, 505 B>"),
        ("\x1b[2J\ud800", "'\\x1b[2J\\ud800'"),
        (b"abc", "b'abc'"),
    ],
)  # fmt: skip
def test_a_value_in_a_few_words(value: Any, text: str) -> None:
    assert short(tree_of(TELLING.encode(value))) == text


class Colour(enum.Enum):
    RED = 1


class Rights(enum.Flag):
    READ = 1
    RUN = 4


class Model(pydantic.BaseModel):
    name: str
    size: int = 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, "Colour.RED"),
        (Rights.READ | Rights.RUN, "Rights(5)"),
        (Model(name="a"), "Model(name='a', size=0)"),
        (pathlib.PurePosixPath("/a"), "PurePosixPath('/a')"),
        (numpy.zeros(3), "<ndarray of <f8, 35 B>"),
        (deque([1], 2), "deque([1])"),
        (Counter("aab"), "Counter({'a': 2, 'b': 1})"),
        (Decimal("1.50"), "Decimal('1.50')"),
        (range(3), "range(0, 3)"),
    ],
)
def test_a_value_of_a_library_in_a_few_words(value: Any, text: str) -> None:
    """Whoever tells it knows none of the classes."""
    codec = Codec(TypeRegistry([("the tests", form) for form in (Colour, Rights, Model)]))
    node = tree_of(codec.encode(value))
    assert short(node) == text
    assert type_of(node) == type(value).__name__


def test_long_texts_are_told_around_their_first_difference() -> None:
    one, other = "a" * 1_000_000 + "b" + "c" * 100, "a" * 1_000_000 + "x" + "c" * 100
    told = short_pair(one, other)
    assert [text.count("b") for text in told] == [1, 0]
    assert all(text.startswith("'…a") and text.endswith("c…'") and len(text) < 80 for text in told)


# -- the parts of values ---------------------------------------------------------------------------

KEYS = st.one_of(
    st.integers(-2, 2), st.booleans(), st.sampled_from("abc"), st.sampled_from([0.0, -0.0, (1, "a")])
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, math.nan, "", "a", "a\nb", "a\nc\n", b"", b"a", 2**80]),
)


def containers(inner: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Any]]:
    return [
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3),
        st.sets(KEYS, max_size=4),
        st.builds(Report, st.sampled_from(["x", "y\nz"]), st.lists(inner, max_size=3)),
    ]


PLAIN = st.recursive(LEAVES, lambda inner: st.one_of(containers(inner)), max_leaves=12)
PAIRS = st.one_of([st.tuples(kind, kind) for kind in containers(PLAIN)])
"""Two values of one type, so that they have parts to compare."""


def applied(old: Any, parts: list[Difference], depth: int = 0) -> Any:
    """The old value with all that is different put in: what the places of parts mean."""
    here = [part for part in parts if len(part.place) == depth]
    for part in here:
        if part.kind == "changed":
            return part.new
    inside = [part for part in parts if len(part.place) > depth]
    gone = [part for part in inside if part.kind == "removed" and len(part.place) == depth + 1]
    came = [part for part in inside if part.kind == "added" and len(part.place) == depth + 1]
    rest = [part for part in inside if part.kind not in ("added", "removed") or len(part.place) > depth + 1]
    if isinstance(old, set):
        assert not rest
        return (old - {part.place[-1] for part in gone}) | {part.place[-1] for part in came}
    if isinstance(old, list | tuple):
        items = [item for index, item in enumerate(old) if index not in {part.place[-1] for part in gone}]
        for part in came:
            items.insert(part.place[-1], part.new)
        for index in {part.place[depth] for part in rest}:
            own = [part for part in rest if part.place[depth] == index]
            items[index] = applied(items[index], own, depth + 1)
        return type(old)(items)
    made = dict(old if isinstance(old, dict) else vars(old))
    for part in gone:
        del made[part.place[-1]]
    for part in came:
        made[part.place[-1]] = part.new
    for key in list(made):
        own = [part for part in rest if part.place[depth] == key]
        if own:
            made[key] = applied(made[key], own, depth + 1)
    for part in here:
        assert part.kind == "reordered"
        made = {key: made[key] for key in part.new}
    return made if isinstance(old, dict) else Report(**made)


def in_order(value: Any) -> Any:
    """The value with the keys of all dicts in order: where a new key stands among them is not told."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return type(value)(map(in_order, value))
    return Report(value.title, in_order(value.rows)) if isinstance(value, Report) else value


@given(PAIRS)
@settings(max_examples=150)
def test_the_parts_lead_from_one_value_to_the_other(pair: tuple[Any, Any]) -> None:
    one, other = pair
    old, new = (tree_of(TELLING.encode(value)) for value in pair)
    found = compare_trees(old, new, Codecs(TELLING, TELLING))
    assert found.complete
    assert bool(found.parts) is not same(old, new)
    assert exact(in_order(applied(one, list(found.parts)))) == exact(in_order(other))
    assert all(render_difference(part) for part in found.parts)


@given(PAIRS)
def test_the_same_is_different_from_either_side(pair: tuple[Any, Any]) -> None:
    old, new = (tree_of(TELLING.encode(value)) for value in pair)
    there = compare_trees(old, new, Codecs(TELLING, TELLING))
    back = compare_trees(new, old, Codecs(TELLING, TELLING))
    mirrored = {"added": "removed", "removed": "added"}

    def told(parts: tuple[Difference, ...], swap: bool) -> list[str]:
        told = []
        for part in parts:
            sides = (part.before, part.after)[:: -1 if swap else 1]
            texts = [side and side.text for side in sides]
            told.append(f"{mirrored.get(part.kind, part.kind) if swap else part.kind} {texts}")
        return sorted(told)

    assert told(there.parts, False) == told(back.parts, True)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, ["~ ['a']['b'][1]['c']: 2 -> 3"]),
        ([1, 2, 3, 4], [1, 3, 4, 5], ["- [1]: 2", "+ [3]: 5"]),
        ([1], [True], ["~ [0]: 1 -> True"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["~ keys: in another order, ['a', 'b'] -> ['b', 'a']"]),
        ({"a": 1, "b": 2}, {"c": 3, "a": 1, "b": 2}, ["+ ['c']: 3"]),
        (Report("a", [1]), Report("b", [1]), ["~ .title: 'a' -> 'b'"]),
        ({1: "a"}, {2: "a"}, ["- [1]: 'a'", "+ [2]: 'a'"]),
        ({(1, 2): [0.0]}, {(1, 2): [-0.0]}, ["~ [(1, 2)][0]: 0.0 -> -0.0"]),
        ([{1, 2}], [{2, 3}], ["- [0]{}: 1", "+ [0]{}: 3"]),
        (["a\nb\n"], ["a\nc\n"], ["~ [0]: str, 5 B -> 5 B\n  @@ -1,2 +1,2 @@\n   a\n  -b\n  +c"]),
        ([[1], (1,)], [(1,), (1,)], ["~ [0]: [1] -> (1,)"]),
    ],
)  # fmt: skip
def test_where_values_differ(one: Any, other: Any, told: list[str]) -> None:
    """Also of a class that nobody declared: what is different is told without it."""
    old, new = tree_of(TELLING.encode(one)), tree_of(TELLING.encode(other))
    for codec in (TELLING, Codec()):
        assert list(map(str, compare_trees(old, new, Codecs(codec, codec)).parts)) == told


@pytest.mark.usefixtures("own_marks")
def test_fields_that_a_class_has_no_more_or_only_now_are_told() -> None:
    def stored(fields: dict[str, Any], version: int = 1) -> Any:
        cls = make_dataclass("Report", list(fields))
        marked = checkpointable(name="Report", version=version)(cls)
        return tree_of(Codec().encode(marked(**fields)))

    found = compare_trees(stored({"a": 1, "b": 2}), stored({"b": 2, "c": 3}, 2), Codecs(Codec(), Codec()))
    assert list(map(str, found.parts)) == ["- .a: 1", "~ .(version): 1 -> 2", "+ .c: 3"]


def test_models_differ_in_which_fields_were_set() -> None:
    codec = Codec(TypeRegistry([("the tests", Model)]))
    one, other = (tree_of(codec.encode(model)) for model in (Model(name="a"), Model(name="a", size=0)))
    (part,) = compare_trees(one, other, Codecs(codec, codec)).parts
    assert str(part) == "+ .(fields that were set)[1]: 'size'"


def test_values_that_cannot_be_read_are_compared_by_their_bytes() -> None:
    """They are no encoding of anything, but two of them may still be the same, or not."""
    one, other = (Ref("Report", 2, data=data) for data in (b"\xc1\x01", b"\xc1\x02"))
    codecs = Codecs(Codec(), Codec())
    assert plan_pair(Pair("state", ("S", "x"), "S['x']", one, one)) is None
    for pair, text in [
        (Pair("state", ("S", "x"), "x", one, other), "~ x: <Report, 2 B> -> <Report, 2 B> (not the same)"),
        (Pair("state", ("S", "x"), "x", None, other), "+ x: <Report, 2 B>"),
        (Pair("state", ("S", "x"), "x", one, None), "- x: <Report, 2 B>"),
    ]:
        job = plan_pair(pair)
        assert job is not None
        assert str(describe_pair(job, {}, codecs)) == text


def test_a_part_of_a_class_that_is_not_declared_stands_for_itself() -> None:
    old, new = tree_of(TELLING.encode([])), tree_of(TELLING.encode([Report("a", [])]))
    (part,) = compare_trees(old, new, Codecs(TELLING, TELLING)).parts
    assert part.new == Report("a", [])
    (part,) = compare_trees(old, new, Codecs(Codec(), Codec())).parts
    assert part.after is not None
    assert not part.after.is_read
    assert repr(part.new) == f"<Report, {part.after.size} B>"
    assert part.after.text == "Report(title='a', rows=[])"


def test_the_parts_are_bounded() -> None:
    old, new = list(range(10_000)), list(range(10_000, 20_000))
    found = compare_trees(old, new, Codecs(Codec(), Codec()))
    assert len(found.parts) == MOST
    assert not found.complete
    deep: Any = 1
    other: Any = 2
    for _ in range(200):
        deep, other = [deep], [other]
    (part,) = compare_trees(deep, other, Codecs(Codec(), Codec())).parts
    assert len(part.place) == 32


def test_a_part_that_is_big_is_not_given() -> None:
    (part,) = compare_trees(["a" * WHOLE], ["b" * WHOLE], Codecs(Codec(), Codec())).parts
    assert repr(part.old) == "<str, 1.0 MB>"
    assert repr(part.new) == "<str, 1.0 MB>"
    assert len(str(part)) < 200


def test_bytes_that_are_not_the_same_are_said_to_differ_even_where_they_look_alike() -> None:
    one, other = (DiffValue("float", 9, math.nan, "nan") for _ in range(2))
    assert str(Difference("changed", ("x",), "x", one, other)) == "~ x: nan -> nan (not the same)"


# -- values in pieces ------------------------------------------------------------------------------

PLAIN_CODEC = Codec()
CUT = st.one_of(
    st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4),
    st.lists(st.text("ab\ud800", max_size=3), max_size=4),
    st.lists(st.binary(max_size=3), max_size=4),
)


def stored(slices: list[Any], kind: Any) -> Ref:
    """A value as it is stored after it grew slice by slice."""
    refs = [Ref(kind.__name__, 1, data=PLAIN_CODEC.encode(one)) for one in slices]
    return Ref(kind.__name__, len(refs), parts=[Part(False, ref) for ref in refs])


def joined(slices: list[Any], kind: Any) -> Any:
    return list(chain(*slices)) if kind is list else kind().join(slices)


@given(CUT, CUT)
@settings(max_examples=200)
def test_how_a_value_is_cut_makes_no_difference(one: list[Any], other: list[Any]) -> None:
    kinds = {type(part) for part in [*one, *other]}
    if len(kinds) != 1:
        return
    (kind,) = kinds
    old, new = stored(one, kind), stored(other, kind)
    data = [content_of(kind.__name__, pieces_of(ref), {}) for ref in (old, new)]
    assert data == [PLAIN_CODEC.encode(joined(parts, kind)) for parts in (one, other)]
    verdict = compare_pieces(old, new).verdict
    if verdict is not Verdict.UNSURE:
        assert (verdict is Verdict.SAME) == (data[0] == data[1])
    whole = Ref(kind.__name__, len(data[0]), data=data[0])
    assert compare_pieces(whole, old).verdict is not Verdict.DIFFERENT


def test_what_is_empty_is_not_the_same_in_every_type() -> None:
    empty = [Ref(label, 1, data=data) for label, data in (("list", b"\x90"), ("str", b"\xa0"))]
    assert compare_pieces(*empty).verdict is Verdict.DIFFERENT
    assert compare_pieces(empty[0], Ref("list", 0, parts=[])).verdict is Verdict.SAME


def test_an_item_that_is_a_list_is_no_slice() -> None:
    """``[[1]]`` and ``[1]``, both stored in one piece each."""
    one = Ref("list", 2, data=PLAIN_CODEC.encode([1]))
    item, piece = Ref("list", 2, parts=[Part(True, one)]), Ref("list", 2, parts=[Part(False, one)])
    assert compare_pieces(item, piece).verdict is not Verdict.SAME
    assert [content_of("list", pieces_of(ref), {}) for ref in (item, piece)] == [b"\x91\x91\x01", b"\x91\x01"]


def test_pieces_that_do_not_fit_together_are_damage() -> None:
    parts = [Part(False, Ref("str", 2, data=b"\xa1a")), Part(False, Ref("int", 1, data=b"\x01"))]
    for label in ("str", "list", "Report"):
        with pytest.raises(CheckpointCorrupt, match="2 pieces that do not fit together"):
            content_of(label, parts, {})
