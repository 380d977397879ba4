"""The log of a run's events: every watcher reads at its own pace, one may hold the run."""

import asyncio

from holdfast import SuperStepStartedEvent, WorkflowWarningEvent
from holdfast.runtime.event_log import EventLog


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
    waiting = [asyncio.create_task(log.take(log.watch())) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    log.emit(events(1, 1))
    assert await asyncio.gather(*waiting) == [events(1, 1)] * 3


async def test_waiting_watcher_is_told_of_the_end() -> None:
    log = EventLog()
    waiting = asyncio.create_task(log.take(log.watch()))
    await asyncio.sleep(0)
    log.close()
    assert await waiting == []


async def test_watcher_that_gave_up_waiting_disturbs_nobody() -> None:
    log = EventLog()
    one, other = log.watch(), log.watch()
    gone = asyncio.create_task(log.take(one))
    staying = asyncio.create_task(log.take(other))
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
    holder = log.watch(holding=True)
    for number in range(1, 101):
        log.emit(events(number, number))
    assert await log.take(holder) == events(1, 100)


async def test_log_is_held_until_its_holder_asks_for_more_than_there_is() -> None:
    log = EventLog()
    assert not log.held
    holder = log.watch(holding=True)
    assert log.held
    log.emit(events(1, 1))
    assert await log.take(holder) == events(1, 1)
    assert log.held
    released = asyncio.create_task(log.released())
    await asyncio.sleep(0)
    assert not released.done()
    more = asyncio.create_task(log.take(holder))
    await released
    assert not log.held
    log.emit(events(2, 2))
    assert log.held
    assert await more == events(2, 2)


async def test_leaving_holder_lets_go() -> None:
    log = EventLog()
    holder, other = log.watch(holding=True), log.watch()
    log.emit(events(1, 1))
    released = asyncio.create_task(log.released())
    await asyncio.sleep(0)
    log.leave(other)
    await asyncio.sleep(0)
    assert not released.done()
    log.leave(holder)
    await released
    assert not log.held
