"""When a keyframe is due, and that replay stays short whatever records there are."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.format.replay import Replay

KEYFRAME = 64 * 1024


def after(*records: int) -> Replay:
    replay = Replay()
    for changes in records:
        replay.add(changes, 0)
    return replay


def test_small_records_add_up() -> None:
    assert not after(*[1_000] * 43).is_long
    assert after(*[1_000] * 44).is_long


def test_there_are_never_many_records_however_little_they_changed() -> None:
    assert not after(*[0] * 127).is_long
    assert after(*[0] * 128).is_long


def test_more_records_are_replayed_where_a_keyframe_is_big() -> None:
    replay = Replay(keyframe=1_000_000)
    for _ in range(1_953):
        replay.add(0, 0)
    assert not replay.is_long
    replay.add(0, 0)
    assert replay.is_long


def test_a_record_that_holds_nearly_all_stands_for_a_keyframe() -> None:
    """What follows it has to weigh as much before replay begins anew; what came before weighs as it did."""
    assert not after(500, 200_000, 100_000).is_long
    assert after(500, 200_000, 100_000, 100_000).is_long


def test_one_that_is_written_again_and_again_does_not() -> None:
    assert not after(200_000).is_long
    assert after(200_000, 200_000).is_long


def test_values_weigh_little() -> None:
    replay = Replay()
    replay.add(100, KEYFRAME)
    replay.add(100, KEYFRAME)
    assert not replay.is_long
    replay.add(60_000, 0)
    replay.add(5_000, KEYFRAME)
    assert replay.is_long


@given(st.lists(st.integers(0, 2_000_000), min_size=1), st.integers(0, 100_000))
def test_what_is_replayed_is_bounded_by_the_biggest_of_it(records: list[int], keyframe: int) -> None:
    replay, replayed, biggest = Replay(keyframe=keyframe), keyframe, max(KEYFRAME, keyframe)
    for changes in records:
        replay.add(changes, 0)
        replayed += changes
        biggest = max(biggest, changes)
        assert replayed <= 4 * biggest
        if replay.is_long:
            replay, replayed, biggest = Replay(keyframe=keyframe), keyframe, max(KEYFRAME, keyframe)
