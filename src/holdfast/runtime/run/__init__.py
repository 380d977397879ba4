"""Runs as their callers hold them."""
