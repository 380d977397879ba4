"""The demo: an incident is triaged from a 50 MB log, by a process that is killed in the middle of it."""
