"""The way from a snapshot to a commit."""
