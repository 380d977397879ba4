"""The servers that are measured, each run by a Python of its own."""
