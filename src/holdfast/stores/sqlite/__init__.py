"""A store in one SQLite file, the embedded default; see ``SqliteStore``."""

from holdfast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
