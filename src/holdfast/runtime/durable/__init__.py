"""Runs that are stored: begun, resumed, recorded."""
