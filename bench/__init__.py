"""The benchmark of Holdfast beside its peers and the physical limit, in one interleaved run.

Run it with `make bench`, or `python -m bench --help` from the root of the repository.

| file | one sentence |
|---|---|
| `workloads.py` | what is measured: parameters, unit, right answer, target |
| `sides.py` | who is measured: pinned packages and the contestant file of each |
| `contestants/` | how each side does each workload, one file per side |
| `environments.py` | a virtual environment per peer under `.bench/` |
| `worker.py` | the process that runs one contestant, asked by JSON lines |
| `client.py` | the harness's end of a worker |
| `measure.py` | the interleaved rounds and their statistics |
| `imports.py` | what an import costs |
| `report.py` | tables on the terminal |
| `results.py` | `bench/RESULTS.md` |
| `profiling.py` | where our microseconds go |
"""
