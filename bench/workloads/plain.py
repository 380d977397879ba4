"""W1, W2 and W5: topologies without state; W2 is stored at each superstep."""

from __future__ import annotations

from bench.rounds import last_sum
from bench.workloads.model import Workload, supersteps_of, whole

CHAIN = (
    "A chain of distinct async executors; each takes an int, adds 1 and passes it on, the last one yields it. "
    "One superstep per executor. All events on, consumed as a stream"
)

W1 = Workload(
    id="W1",
    title="chain of trivial supersteps, no storage",
    what=(
        f"{CHAIN}; nothing is stored. A chain and not a loop, because most sides express it with static edges only; "
        "llama-index has no such edges and loops."
    ),
    unit="us",
    per="superstep",
    params={"supersteps": 200},
    value=whole(supersteps_of),
    answer=supersteps_of,
    supersteps=supersteps_of,
    rounds=20,
    quick_rounds=5,
)

W2 = Workload(
    id="W2",
    title="the same chain with a checkpoint at each superstep",
    what=(
        f"{CHAIN}. Each superstep is stored before or while the next one runs, as each side does it. agent-framework, "
        "langgraph and llama-index pass the number round one executor instead, which is cheaper for them: their "
        "checkpoints name all that there is in the graph."
    ),
    unit="us",
    per="superstep",
    params={"supersteps": 200},
    value=whole(supersteps_of),
    answer=supersteps_of,
    supersteps=supersteps_of,
    fresh=True,
    counted=True,
    rounds=10,
    quick_rounds=2,
    quick={"supersteps": 100},
    warming={"supersteps": 20},
)

W5 = Workload(
    id="W5",
    title="fan-out of 1 to 100 and back to 1, ten rounds",
    what=(
        "A hub sends the round number to 100 workers; each adds its own index; the hub gets all 100 answers, "
        "checks their count and sum, and starts the next round. Two supersteps per round (the hub is both ends "
        "of the fan, which spares every side a superstep). All events on, consumed as a stream. Sides without a store "
        "beside sides with one; a journal of single turns where a side has one."
    ),
    unit="ms",
    per="round",
    params={"width": 100, "rounds": 10},
    value=whole(lambda params: params["rounds"]),
    answer=last_sum,
    supersteps=lambda params: 2 * params["rounds"] + 1,
    fresh=True,
    counted=True,
    rounds=5,
    quick_rounds=2,
    quick={"rounds": 3},
    warming={"rounds": 1},
)
