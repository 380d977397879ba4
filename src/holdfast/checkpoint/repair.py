"""Repairing a storage: what can be saved is saved, and what cannot is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RepairReport:
    """x."""


async def repaired(*args: object) -> RepairReport:
    """x."""
    return RepairReport()
