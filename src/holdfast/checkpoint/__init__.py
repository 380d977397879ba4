"""Checkpoints: storages, the port of stores, and the way of a run to bytes and back."""
