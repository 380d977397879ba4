"""What a service costs: harness-measured, each server in a process of its own."""

from __future__ import annotations

from bench.workloads.model import Workload

SERVE = Workload(
    id="serve",
    title="run-and-wait over HTTP",
    what=(
        "Clients on connections that stay open start a run of one superstep and wait for its output, one after the "
        "other. The value is the time from one reply to the next of the server, 1,000 divided by it the requests in a "
        "second; the client shares the machine. *peak* is what the server holds at the end."
    ),
    unit="ms",
    per="run-and-wait",
    params={"clients": 16, "requests": 480},
    value=lambda timed, _: timed.seconds,
    answer=None,
    quick={"requests": 160},
    rounds=5,
    quick_rounds=1,
)

WATCH = Workload(
    id="watch",
    title="watchers of a run that waits",
    what=(
        "Streams of server-sent events of one run, on which nothing happens. The value is the CPU time of the server "
        "in a second of it; then the run ends, which all of them are told. *peak* is what the server holds with them, "
        "less what it held before."
    ),
    unit="ms",
    per="second of all watchers",
    params={"watchers": 1_000, "seconds": 10},
    value=lambda timed, _: timed.seconds,
    answer=None,
    quick={"watchers": 100, "seconds": 3},
    rounds=5,
    quick_rounds=1,
)
