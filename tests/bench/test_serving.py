"""The bench of servers, with few requests and watchers: the client understands what the servers reply."""

import pytest

from bench.serving import OURS_SERVED, ServerSide, fan_out, own_sides, run_and_wait


@pytest.mark.parametrize("side", own_sides(), ids=lambda side: side.name)
async def test_a_server_is_measured(side: ServerSide) -> None:
    answered = await run_and_wait(side, {"clients": 2, "requests": 10})
    assert answered.value > 0
    assert answered.figures["latency, median"] <= answered.figures["latency, 99 %"]
    watched = await fan_out(side, {"watchers": 20, "seconds": 1})
    assert watched.figures["first to last watcher"] >= 0
    assert min(answered.peak, watched.value + 1) > 0


async def test_a_wrong_reply_is_no_measurement() -> None:
    ours = next(side for side in own_sides() if side.name == OURS_SERVED)
    path, _, headers = ours.run
    wrong = ServerSide(**{**vars(ours), "run": (path, {"input": 5}, headers)})
    with pytest.raises(RuntimeError, match="replied 422"):
        await run_and_wait(wrong, {"clients": 1, "requests": 1})
