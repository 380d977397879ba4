"""Derived starts: records that carry two checkpoints, shown as two and put together again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Cause, Phase, RunStatus
from holdfast.checkpoint.store import Keyframe, Record
from holdfast.ids import CheckpointId, RunId
from tests.support.parts import Header, collapse, end_id, expand, is_start_id, pack_header, start_id

IDS = st.binary(min_size=32, max_size=32).map(lambda data: end_id(data.hex()))
TAGS = st.lists(
    st.one_of(st.text(min_size=1), st.sampled_from(["start:", "end:a", "removed:end", "removed:start"])),
    max_size=3,
    unique=True,
).map(tuple)


def _record(seq: int, name: CheckpointId, has_start: bool, tags: tuple[str, ...]) -> Record:
    header = Header(
        RunId("r"), "W", seq, seq // 2, Phase.END, Cause.SUPERSTEP, None, seq, RunStatus.RUNNING, 1, 0, 1,
        b"", None, has_start,
    )  # fmt: skip
    return Record(name, RunId("r"), seq, pack_header(header), b"c", b"v", 9, Keyframe(b"k", b"v"), tags)


CARRIERS = st.lists(
    st.tuples(IDS, st.booleans(), TAGS, TAGS, st.integers(0, 2)), max_size=6, unique_by=lambda one: one[0]
)


@given(CARRIERS)
def test_what_is_shown_comes_from_the_records_that_carry_it(carriers: list[tuple]) -> None:
    shown: list[Record] = []
    for place, (name, has_start, tags, of_start, gone) in enumerate(carriers):
        both = expand([_record(2 * place + 2, name, has_start, ())])
        if not has_start:
            shown.append(both[0]._replace(tags=tags))
        elif gone == 2:  # the end
            shown += expand([_record(2 * place + 2, name, True, ("removed:end",))])
            shown[-1] = shown[-1]._replace(tags=of_start)
        else:
            shown += [both[0]._replace(tags=tags), both[1]._replace(tags=of_start)][: 2 - gone]
    stored = collapse(shown)
    assert [one.seq for one in stored] == [2 * place + 2 for place in range(len(carriers))]
    assert not any(is_start_id(one.checkpoint_id) for one in stored)
    assert expand(stored) == shown
    assert collapse(expand(stored)) == stored


@given(IDS)
def test_ids_of_ends_and_starts_lead_to_each_other(name: CheckpointId) -> None:
    assert end_id(start_id(name)) == end_id(name) == name
    assert start_id(start_id(name)) == start_id(name) != name
    assert (is_start_id(name), is_start_id(start_id(name))) == (False, True)
