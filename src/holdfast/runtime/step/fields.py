"""The fields of executor instances: copied, put back, and watched for changes that no checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from holdfast.engine.copies import deep_copy
from holdfast.errors import NotCheckpointable, UnkeptField
from holdfast.graph.executor import Executor
from holdfast.ids import ExecutorId

LEASE = "_holdfast_lease"
"""The attribute of an instance that has its lease; no field of the user's."""

Noted: TypeAlias = tuple[dict[str, Any], list[int]]
"""The fields of an executor at some moment, and the lengths of those that can grow in place."""

_NO_LENGTHS: list[int] = []
_GROWING = (list, dict, set, bytearray)


def fields_of(instance: Executor) -> dict[str, Any]:
    """Return the fields of an executor besides its id and those that it declares as transient."""
    aside = ("id", LEASE, *instance.transient)
    return {name: value for name, value in vars(instance).items() if name not in aside}


def copy_fields(instance: Executor) -> dict[str, Any]:
    """Return copies of the fields; a value that cannot be copied stays the same object."""
    return {name: _copy_if_possible(value) for name, value in fields_of(instance).items()}


def restore_fields(instance: Executor, fields: dict[str, Any]) -> None:
    """Give an executor the fields that it had before; ``fields`` can be used again later."""
    for name in fields_of(instance).keys() - fields.keys():
        delattr(instance, name)
    for name, value in fields.items():
        setattr(instance, name, _copy_if_possible(value))


def _copy_if_possible(value: object) -> Any:
    try:
        return deep_copy(value, "field")
    except NotCheckpointable:
        return value


class FieldWatch:
    """Notices when a handler changes a field that no checkpoint keeps; cheap enough for every turn.

    It sees fields that are bound anew, and lists, dicts and sets that grow or shrink.
    """

    __slots__ = ("_address", "_growing", "_instance", "_told")

    def __init__(self, instance: Executor, address: ExecutorId) -> None:
        self._instance = instance
        self._address = address
        self._growing: list[str] | None = None
        self._told: tuple[str, ...] = ()

    def note(self) -> Noted:
        """Return the fields with their values of now."""
        fields = self._instance.__dict__
        if self._growing is None:
            self._growing = [name for name, value in fields.items() if isinstance(value, _GROWING)]
        return fields.copy(), self._lengths(fields) if self._growing else _NO_LENGTHS

    def _lengths(self, fields: dict[str, Any]) -> list[int]:
        return [_length(fields[name]) for name in self._growing or () if name in fields]

    def changed_since(self, noted: Noted) -> bool:
        """Return True if any field changed, kept or not."""
        fields = self._instance.__dict__
        try:
            if fields != noted[0]:
                return True
        except Exception:  # of values that cannot be compared, none is what it was
            return True
        return bool(self._growing) and self._lengths(fields) != noted[1]

    def warnings_since(self, noted: Noted | None) -> Iterator[UnkeptField]:
        """Return a warning for each field that changed and that no checkpoint keeps, once for each field."""
        fields, lengths = noted if noted is not None else ({}, [])
        length_of = dict(zip((name for name in self._growing or () if name in fields), lengths, strict=True))
        cls = type(self._instance)
        for name, value in fields_of(self._instance).items():
            grown = name in length_of and _length(value) != length_of[name]
            same = name in fields and fields[name] is value and not grown
            if same or name in cls.checkpointed or name in self._told:
                continue
            self._told += (name,)
            yield UnkeptField(
                f"executor {self._address!r} changed its field {name!r}, which no checkpoint keeps: name it in "
                f"'checkpointed = (\"{name}\",)', save it in on_checkpointing, or, if it can be made anew, name "
                f"it in 'transient'"
            )


def _length(value: object) -> int:
    return len(value) if isinstance(value, _GROWING) else -1
