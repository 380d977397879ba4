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

        entry = Entry(
            files.compressed,
            "zstd level 1, `write` and `fsync` of the whole text",
            files.checked,
        )
        return Contestant(("zstandard",), {"W3": entry, "W8-whole": entry}, SYNCED, SYNCED)
    from bench.contestants.limits import rows

    how = {
        "rows": (
            rows.through_the_hop(),
            "our W2's rows in the same tables, by a thread of our store's kind; no engine, no store, nothing read",
        ),
        "transaction": (
            rows.in_place(rows.transaction),
            "as many bytes as our commit has, one row in one transaction (WAL, synchronous=FULL), no thread",
        ),
        "append": (
            rows.in_place(rows.appended),
            "as many bytes as our commit has, appended to a file, `fdatasync`, no thread",
        ),
    }[variant]
    return Contestant((), {"W2": Entry(*how)}, SYNCED, SYNCED)
