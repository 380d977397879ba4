"""Runs on their way between stores, as files."""
