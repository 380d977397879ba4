"""The demo: an incident is triaged from a 50 MB log, by a process that is killed in the middle of it.

What it prints is worded in ``view`` (events and summary), ``storage_report`` (checkpoints), ``person`` (the question)
and ``__main__`` (the rest); ``plain_view`` and ``live_view`` lay it out.
"""
