"""Headers from a template: the same bytes as those that are packed field by field, and read as they were meant."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Cause, CheckpointInfo, Phase, RunStatus
from holdfast.checkpoint.format.record import Heading
from tests.support.parts import CheckpointId, Header, RunId, pack_header

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
    st.just(Phase.END),
    st.just(Cause.SUPERSTEP),
    st.binary(min_size=32, max_size=32).map(lambda parent: CheckpointId(parent.hex())),
    NUMBERS,
    st.just(RunStatus.RUNNING),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.binary(max_size=300),
    st.just(True),
)


@given(st.lists(HEADERS, min_size=1, max_size=4))
def test_the_same_bytes_one_after_the_other(headers: list[Header]) -> None:
    heading = Heading(headers[0].run_id, headers[0].workflow_name)
    for other in headers:
        header = other._replace(run_id=headers[0].run_id, workflow_name=headers[0].workflow_name)
        assert header.parent_id is not None
        standing = header.message_count, header.request_count, header.replay_from
        parent = bytes.fromhex(header.parent_id)

        packed = heading.packed(header.seq, header.superstep, parent, header.time, standing, header.salt)

        assert packed == pack_header(header)


@given(HEADERS)
def test_what_is_told_of_bytes_is_what_is_told_of_the_header(header: Header) -> None:
    checkpoint_id = CheckpointId("ba" * 32)
    told = CheckpointInfo(checkpoint_id, pack_header(header), 7)
    known = CheckpointInfo(checkpoint_id, header, 7)
    for name in vars(CheckpointInfo):
        if isinstance(getattr(CheckpointInfo, name), property):
            assert getattr(told, name) == getattr(known, name), name
    assert repr(told) == repr(known)
