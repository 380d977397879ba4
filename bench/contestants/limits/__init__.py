"""The limits: what any engine on this machine would have to pay."""

from __future__ import annotations

from bench.contestants import Contestant, Entry

SYNCED = "nothing that was synced"


def contestant(variant: str) -> Contestant:
    """One limit; each loads only what it needs."""
    if variant == "asyncio":
        from bench.contestants.limits import tasks

        return Contestant(
            (),
            {
                "W1": Entry(
                    tasks.repeated(tasks.task), "`await asyncio.create_task(one())` for each superstep"
                ),
                "L1": Entry(tasks.repeated(tasks.bare_await), "`await one()`"),
                "L2": Entry(tasks.repeated(tasks.task), "`await asyncio.create_task(one())`"),
                "L3": Entry(
                    tasks.repeated(tasks.gather), "`await asyncio.gather(*(one() for _ in range(100)))`"
                ),
            },
        )
    if variant == "zstd":
        from bench.contestants.limits import files

        how = "zstd level 1, `write` and `fsync` of the whole text"
        entries = {
            "W3": Entry(files.compressed, how, files.checked),
            "W8-whole": Entry(
                files.compressed, f"the longer copy that a handler makes, {how}", files.checked
            ),
        }
        return Contestant(("zstandard",), entries, SYNCED, SYNCED)
    from bench.contestants.limits import rows

    whole = "the bytes that our commit's rows hold"
    same = (
        "what our W2 executes to write, with the same bytes bound (seals too), on the same kind of connection and "
        "log, {}; all of it is made before the clock starts: no engine, no store, nothing read"
    )
    entry = {
        "hop": Entry(rows.same_rows(hop=True), same.format("by the same kind of thread")),
        "rows": Entry(rows.same_rows(hop=False), same.format("no thread")),
        "transaction": Entry(
            rows.in_place(rows.transaction),
            f"{whole}, one row in one transaction (WAL, synchronous=FULL), no thread; nobody makes room in the log",
        ),
        "append": Entry(rows.in_place(rows.appended), f"{whole}, appended to a file, `fdatasync`, no thread"),
    }[variant]
    entries = {"W2": entry}
    if variant == "rows":
        how = "the same for our W7, with what all runs commit at a time in one transaction, each statement once for all"
        entries["W7"] = Entry(rows.grouped_rows, how)
    return Contestant((), entries, SYNCED, SYNCED)
