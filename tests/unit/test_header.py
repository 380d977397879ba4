"""Headers are read as they were packed, also when they are read late, and shown with all their fields."""

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.checkpoint_info import (
    Cause,
    CheckpointInfo,
    Header,
    Marks,
    Phase,
    info_from_dict,
    pack_header,
    unpack_header,
)
from holdfast.checkpoint.write._fast import HeaderTemplate
from holdfast.engine.status import RunStatus
from holdfast.ids import CheckpointId, RunId

# Around those where the form of a number changes.
NUMBERS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.builds(int.__add__, st.sampled_from([127, 255, 1023, 2**16 - 1, 2**32 - 1]), st.integers(-1, 2)),
)
HEADERS = st.builds(
    Header,
    st.text().map(RunId),
    st.text(),
    NUMBERS,
    NUMBERS,
    st.sampled_from(Phase),
    st.sampled_from(Cause),
    st.binary(min_size=32, max_size=32).map(lambda parent: CheckpointId(parent.hex())),
    NUMBERS,
    st.sampled_from(RunStatus),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.binary(max_size=300),
    st.none() | st.text(),
    st.booleans(),
)


@given(HEADERS)
def test_a_header_is_unpacked_as_it_was(header: Header) -> None:
    packed = pack_header(header)
    assert unpack_header(packed) == header
    assert packed[-1:] == (b"\xc3" if header.has_start else b"\xc2")  # by which records are told apart


@given(HEADERS)
def test_what_is_told_of_bytes_is_what_is_told_of_the_header(header: Header) -> None:
    checkpoint_id = CheckpointId("ba" * 32)
    told = CheckpointInfo(checkpoint_id, pack_header(header), 7)
    known = CheckpointInfo(checkpoint_id, header, 7)
    for name in vars(CheckpointInfo):
        if isinstance(getattr(CheckpointInfo, name), property):
            assert getattr(told, name) == getattr(known, name), name
    assert repr(told) == repr(known)


@given(HEADERS)
def test_all_that_an_info_shows_is_read_back(header: Header) -> None:
    marks = Marks(("before",), {"before": "kim"}, CheckpointId("ab" * 32))
    info = CheckpointInfo(CheckpointId("ba" * 32), header, 7, marks)
    shown = info.to_dict()
    assert info_from_dict(json.loads(json.dumps(shown))).to_dict() == shown
    other_names = {"iteration_count", "step_number", "parent"}
    public = {
        name for name, value in vars(CheckpointInfo).items() if isinstance(value, property) and name[0] != "_"
    }
    assert shown.keys() == public - other_names


@given(st.lists(HEADERS, min_size=1, max_size=4))
def test_a_template_packs_the_same_bytes_one_after_the_other(headers: list[Header]) -> None:
    template = HeaderTemplate(headers[0].run_id, headers[0].workflow_name)
    for other in headers:
        header = other._replace(
            run_id=headers[0].run_id,
            workflow_name=headers[0].workflow_name,
            phase=Phase.END,
            cause=Cause.SUPERSTEP,
            status=RunStatus.RUNNING,
            by=None,
            has_start=True,
        )
        assert header.parent_id is not None
        standing = header.message_count, header.request_count, header.replay_from
        parent = bytes.fromhex(header.parent_id)

        packed = template.pack(header.seq, header.superstep, parent, header.time, standing, header.salt)

        assert packed == pack_header(header)
