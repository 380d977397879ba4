"""Digests made with hashers that were used before."""

import sys
import threading
from collections.abc import Iterator

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.format import record as hashing
from holdfast.checkpoint.format.record import hash_bytes


@given(st.lists(st.tuples(st.binary(max_size=3000), st.integers(1, 64)), max_size=10))
def test_what_was_hashed_before_does_not_matter(several: list[tuple[bytes, int]]) -> None:
    for data, length in several:
        assert hash_bytes(data, length) == blake3(data).digest(length)


def test_a_hasher_that_failed_is_not_used_again() -> None:
    hash_bytes(b"")
    before = list(hashing._spare)
    with pytest.raises(TypeError):
        hash_bytes("text")  # type: ignore[arg-type]
    assert len(hashing._spare) == len(before) - 1
    assert hash_bytes(b"a") == blake3(b"a").digest()


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that leave each other hardly any time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
def test_threads_do_not_disturb_each_other() -> None:
    wrong: list[bytes] = []

    def work(name: int) -> None:
        data = bytes([name]) * 5000
        right = blake3(data).digest()
        wrong.extend(data[:1] for _ in range(500) if hash_bytes(data) != right)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
