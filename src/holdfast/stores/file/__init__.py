"""A store in a directory that a person can read."""

from holdfast.stores.file.store import FileStore

__all__ = ["FileStore"]
