"""A store that is looked at and never changed: what would write is refused, and everything else is passed on."""

from __future__ import annotations

from typing import Any, NoReturn

from holdfast.errors import StorageError

_DRIVING = "a run, resume or fork of a workflow"
# The methods of a store that write, with what their callers asked for.
_WRITING = {
    "commit": _DRIVING,
    "join": _DRIVING,
    "add_blobs": "'import_run'",
    "leave": "an answer to a run",
    "use_up": "a call with a key",
    "set_key_box": "a change of its keys",
    "mend": "'repair'",
    "rehearsal": "'repair'",
    "replace": "'repair'",
    "tag": "'tag'",
    "remove": "'delete' or 'prune'",
    "remove_run": "'delete_run'",
    "mark": "'prune'",
    "discard": "'prune'",
    "claim": "a host",
    "vacuum": "'vacuum'",
    "backup": "'backup'",
}


class ReadOnlyStore:
    """Passes reads on to a store, and refuses the rest with a ``StorageError`` that says what was asked for.

    >>> from holdfast.stores.memory import MemoryStore
    >>> ReadOnlyStore(MemoryStore(), "the store 'x.db'").tag
    Traceback (most recent call last):
    ...
    holdfast.errors.StorageError: the store 'x.db' is opened with read_only=True, so 'tag' is refused; ...
    """

    read_only = True

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _WRITING:
            self.refuse(_WRITING[attribute])
        return getattr(self._inner, attribute)

    def refuse(self, verb: str) -> NoReturn:
        """Raise the error for something that would write."""
        raise StorageError(
            f"{self._name} is opened with read_only=True, so {verb} is refused; nothing was changed: open it without "
            f"read_only to change it"
        )
