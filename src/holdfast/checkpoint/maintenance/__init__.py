"""Verifies, repairs, prunes and counts what a storage holds."""
