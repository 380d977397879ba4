"""Verify, repair, prune and count what a storage holds."""
