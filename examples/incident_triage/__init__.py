"""The demo: an incident is triaged from a 50 MB log that never leaves shared state."""
