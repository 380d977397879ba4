"""What a run takes from the world: salt that nobody gets twice, and one clock."""

import datetime
import os

from tests.support.parts import Environment


def test_salts_are_long_and_different() -> None:
    salts = [Environment().salt() for _ in range(1_000)]
    assert {len(salt) for salt in salts} == {16}
    assert len(set(salts)) == len(salts)


def test_child_gets_other_salts_than_its_parent() -> None:
    """Some are drawn in advance, which a child would have, too."""
    salt = Environment().salt
    salt()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, b"".join(salt() for _ in range(100)))
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    theirs = {drawn[at : at + 16] for at in range(0, len(drawn), 16)}
    assert len(theirs) == 100
    assert not theirs & {salt() for _ in range(100)}


def test_microseconds_are_those_of_the_clock() -> None:
    environment = Environment()
    before = environment.now()
    between = environment.microseconds()()
    after = environment.now()
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    tolerance = datetime.timedelta(milliseconds=1)  # the two are read in different ways
    assert before - tolerance <= epoch + datetime.timedelta(microseconds=between) <= after + tolerance


def test_microseconds_of_a_clock_that_was_given() -> None:
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    environment = Environment(now=lambda: noon)
    assert environment.microseconds()() == int(noon.timestamp()) * 1_000_000
