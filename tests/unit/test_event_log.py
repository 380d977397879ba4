"""The log of a run's events: every watcher reads at its own pace, one may hold the run."""

import asyncio
from typing import Any

import pytest

from holdfast import MissedEvents, SuperStepStartedEvent, WorkflowWarningEvent
from holdfast.runtime.events import event_log
from tests.support.parts import EventLog


def events(first: int, last: int) -> list[SuperStepStartedEvent]:
    return [SuperStepStartedEvent(superstep=number) for number in range(first, last + 1)]


async def test_each_watcher_takes_everything_once() -> None:
    log = EventLog()
    one, other = log.watch(), log.watch()
    log.emit(events(1, 2))
    assert await log.take(one) == events(1, 2)
    log.emit(events(3, 3))
    assert await log.take(one) == events(3, 3)
    assert await log.take(other) == events(1, 3)
    log.close()
    assert await log.take(one) == []
    assert await log.take(other) == []
    assert await log.take(log.watch()) == events(1, 3)


async def test_watcher_waits_for_the_next_event() -> None:
    log = EventLog()
    waiting = [asyncio.ensure_future(log.take(log.watch())) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    log.emit(events(1, 1))
    assert await asyncio.gather(*waiting) == [events(1, 1)] * 3


async def test_waiting_watcher_is_told_of_the_end() -> None:
    log = EventLog()
    waiting = asyncio.ensure_future(log.take(log.watch()))
    await asyncio.sleep(0)
    log.close()
    assert await waiting == []


async def test_watcher_that_gave_up_waiting_disturbs_nobody() -> None:
    log = EventLog()
    one, other = log.watch(), log.watch()
    gone = asyncio.ensure_future(log.take(one))
    staying = asyncio.ensure_future(log.take(other))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    log.emit(events(1, 1))
    assert await staying == events(1, 1)
    assert await log.take(one) == events(1, 1)


async def test_oldest_events_go_and_a_late_watcher_is_told() -> None:
    log = EventLog(retained=10)
    early = log.watch()
    for number in range(1, 101):
        log.emit(events(number, number))
        assert await log.take(early) == events(number, number)
    missed, *rest = await log.take(log.watch())
    assert isinstance(missed, WorkflowWarningEvent)
    assert 10 <= len(rest) <= 20
    assert rest == events(101 - len(rest), 100)
    assert f"{100 - len(rest)} events are missing" in missed.message
    assert missed.provisional


async def test_what_the_holder_has_not_taken_never_goes() -> None:
    log = EventLog(retained=10)
    holder = log.watch()
    log.hold(holder)
    for number in range(1, 101):
        log.emit(events(number, number))
    assert await log.take(holder) == events(1, 100)


async def test_log_is_held_until_its_holder_asks_for_more_than_there_is() -> None:
    log = EventLog()
    assert not log.held
    holder = log.watch()
    log.hold(holder)
    assert log.held
    log.emit(events(1, 1))
    assert await log.take(holder) == events(1, 1)
    assert log.held
    released = asyncio.ensure_future(log.released())
    await asyncio.sleep(0)
    assert not released.done()
    more = asyncio.ensure_future(log.take(holder))
    await released
    assert not log.held
    log.emit(events(2, 2))
    assert log.held
    assert await more == events(2, 2)


async def test_leaving_holder_lets_go() -> None:
    log = EventLog()
    holder, other = log.watch(), log.watch()
    log.hold(holder)
    log.emit(events(1, 1))
    released = asyncio.ensure_future(log.released())
    await asyncio.sleep(0)
    log.leave(other)
    await asyncio.sleep(0)
    assert not released.done()
    log.leave(holder)
    await released
    assert not log.held


async def alternate(log: EventLog, supersteps: int, told: list[str]) -> None:
    """A run, and the watcher that holds it; a third task beside them tells when it has its turn."""

    async def run() -> None:
        for number in range(1, supersteps + 1):
            told.append(f"run {number}")
            log.emit(events(number, number))
            await log.released()
        log.close()

    async def beside() -> None:
        while not log.closed:
            told.append("beside")
            await asyncio.sleep(0)

    holder = log.watch()
    log.hold(holder)
    tasks = [asyncio.create_task(run()), asyncio.create_task(beside())]
    while taken := await log.take(holder):
        told.extend(f"reader {event.superstep}" for event in taken)
    await asyncio.gather(*tasks)


async def test_run_and_holder_go_on_in_turn() -> None:
    log, told = EventLog(), list[str]()
    await alternate(log, 100, told)
    in_turn = [name for name in told if name != "beside"]
    assert in_turn == [f"{who} {number}" for number in range(1, 101) for who in ("run", "reader")]


async def test_run_and_holder_leave_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "LONGEST_STRETCH_SECONDS", -1)  # as if each superstep took long
    log, told = EventLog(), list[str]()
    await alternate(log, 100, told)
    assert told.count("beside") >= 100


async def test_run_is_cancelled_while_it_waits_for_its_holder() -> None:
    log = EventLog()
    holder = log.watch()
    log.hold(holder)
    log.emit(events(1, 1))
    run = asyncio.ensure_future(log.released())
    await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert await log.take(holder) == events(1, 1)


async def test_holder_that_several_tasks_read_gives_each_event_to_one() -> None:
    log, taken = EventLog(), list[Any]()
    holder = log.watch()
    log.hold(holder)

    async def read() -> None:
        while new := await log.take(holder):
            taken.extend(new)
            await asyncio.sleep(0)

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for number in range(1, 51):
        log.emit(events(number, number))
        await log.released()
    readers[0].cancel()
    await asyncio.wait(readers[:1])
    log.emit(events(51, 51))
    log.leave(holder)
    log.close()
    await asyncio.wait_for(asyncio.gather(*readers[1:]), 10)
    assert taken == events(1, 51)


async def test_another_watcher_takes_over_the_hold() -> None:
    log = EventLog()
    first, second = log.watch(), log.watch()
    log.hold(first)
    waiting = asyncio.ensure_future(log.take(first))
    await asyncio.sleep(0)
    log.hold(second)
    log.emit(events(1, 1))
    assert await waiting == events(1, 1)
    assert log.held
    log.leave(first)
    assert log.held
    log.leave(second)
    assert not log.held


async def test_log_stays_bounded_whoever_watches() -> None:
    log = EventLog(retained=10)
    never_reads, left = log.watch(), log.watch()
    log.hold(left)
    log.leave(left)
    for number in range(1, 1001):
        log.emit(events(number, number))
        missed_or_first, *kept = await log.take(log.watch())
        assert len(kept) <= 20
        assert (number <= 20) == isinstance(missed_or_first, SuperStepStartedEvent)
    missed, *rest = await log.take(never_reads)
    assert isinstance(missed, WorkflowWarningEvent)
    assert isinstance(missed.warning, MissedEvents)
    assert str(missed.warning) == (
        f"{1000 - len(rest)} events are missing here: this watcher came too late or was too slow, and they are no "
        f"longer kept; watch from the start, or take events faster"
    )


async def test_watcher_that_falls_behind_is_told_each_time_and_goes_on() -> None:
    log = EventLog(retained=10)
    slow = log.watch()
    log.emit(events(1, 5))
    assert await log.take(slow) == events(1, 5)
    log.emit(events(6, 100))
    missed, *rest = await log.take(slow)
    assert isinstance(missed, WorkflowWarningEvent)
    assert rest == events(91, 100)
    assert missed.message.startswith("85 events are missing here")
    log.emit(events(101, 101))
    assert await log.take(slow) == events(101, 101)


async def test_who_comes_after_the_log_was_opened_again_sees_what_came_since() -> None:
    log = EventLog()
    stays = log.watch()
    log.emit(events(1, 2))
    log.close()
    assert await log.take(stays) == events(1, 2)
    assert await log.take(stays) == []
    log.reopen()
    new = log.watch()
    waiting = asyncio.ensure_future(log.take(new))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.emit(events(3, 3))
    assert await waiting == await log.take(stays) == events(3, 3)
    log.close()
    assert await log.take(log.watch()) == events(3, 3)
