"""Turns stored fields into the fields that a class has today."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from holdfast.checkpoint.codec.refusals import Unknown
from holdfast.checkpoint.codec.registry import Mark, excluded_fields, mark_of


class Evolution(NamedTuple):
    """The name, mark and fields of a class, which decide how stored fields are upgraded."""

    name: str
    mark: Mark
    fields: frozenset[str]
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, kept: type, fields: Iterable[str]) -> Evolution:
        """Return the evolution of a class, with the settings of ``@checkpointable``."""
        return cls(name, mark_of(kept) or Mark(name), frozenset(fields), excluded_fields(kept))

    def renew(self, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the stored fields after ``upgrade``, if needed; raise for fields that the class does not have."""
        fields = self._without_excluded(fields)
        fields = self._without_excluded(
            self.upgrade(version, fields, strange=not fields.keys() <= self.fields)
        )
        for name in fields:
            if name not in self.fields:
                raise Unknown(
                    f"{self.name} has no field {name!r}, which the data has (version {version}); "
                    f"give the class @checkpointable(upgrade=...) that drops or renames it"
                )
        return fields

    def _without_excluded(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields without those that are excluded by now, but were stored before."""
        if self.excluded.isdisjoint(fields):
            return fields
        return {name: part for name, part in fields.items() if name not in self.excluded}

    def complete(
        self, version: int, fields: dict[str, Any], unset: Collection[str], default: Callable[[str], Any]
    ) -> dict[str, Any]:
        """Return the fields with defaults for missing ones, except those that were not set when stored.

        ``default`` gives one or raises ``LookupError``.
        """
        missing = self.fields - fields.keys() - {*unset}
        if not missing:
            return fields
        completed = dict(fields)
        for name in sorted(missing):
            try:
                completed[name] = default(name)
            except LookupError:
                raise Unknown(
                    f"{self.name} needs the field {name!r}, which the data does not have (version {version}); "
                    f"give the field a default, or the class @checkpointable(upgrade=...)"
                ) from None
        return completed

    def upgrade(self, version: int, fields: dict[str, Any], *, strange: bool = False) -> dict[str, Any]:
        """Return the fields after ``upgrade``, which is called for an older version and for ``strange`` fields."""
        mark = self.mark
        if version > mark.version:
            raise Unknown(
                f"the data has version {version} of {self.name}, but the class here has version {mark.version}; "
                f"run the newer code"
            )
        if mark.upgrade is None or not (strange or version < mark.version):
            return fields
        try:
            upgraded = mark.upgrade(version, fields)
        except Exception as error:  # whatever the user's function raises
            raise Unknown(f"the upgrade of {self.name} from version {version} failed: {error!r}") from error
        if type(upgraded) is not dict:
            raise Unknown(f"the upgrade of {self.name} must return a dict of fields, not {upgraded!r}")
        return dict(upgraded)  # a copy, which the instance will own
