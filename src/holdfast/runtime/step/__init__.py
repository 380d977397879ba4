"""Supersteps and turns as they are driven."""
