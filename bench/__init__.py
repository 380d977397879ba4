"""The benchmark of Holdfast beside its peers and the physical limit, in one interleaved run.

Run it with `make bench`, or `python -m bench --help` from the root of the repository.

| file | one sentence |
|---|---|
| `workloads/` | what is measured: parameters, unit, right answer |
| `scripts.py`, `inputs.py` | what supersteps do to state, as data that every side plays |
| `rounds.py` | what a hub makes of the answers in W5, on every side |
| `sides.py` | who is measured: pinned packages, contestant and configuration of each |
| `contestants/` | how each side does each workload, one package per side, and the limits |
| `environments.py` | a virtual environment per peer under `.bench/` |
| `worker.py`, `marks.py`, `meters.py` | the process that runs one contestant, and what it measures of itself |
| `client.py` | the harness's end of a worker |
| `measure.py` | the interleaved rounds and their statistics |
| `counting.py` | bytes and syncs, in runs of their own |
| `resuming.py`, `resumer.py` | W6: new processes that go on |
| `imports.py` | what an import costs |
| `verdicts.py` | what has to be shown, and whether one run shows it |
| `report.py` | tables on the terminal |
| `results.py`, `plots.py` | `bench/RESULTS.md` and its images |
| `profiling.py` | where our microseconds go |
"""
