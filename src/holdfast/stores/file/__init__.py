"""A store in a directory that a person can read: one file of JSON lines for each run."""

from holdfast.stores.file.store import FileStore

__all__ = ["FileStore"]
