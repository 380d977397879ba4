"""The features that a store needs, against those that whoever opens it understands."""

from __future__ import annotations

from collections.abc import Set

from holdfast.checkpoint.store import FEATURES, KEYS
from holdfast.errors import CheckpointUntrusted, StorageError


def new_features(keyed: bool) -> list[str]:
    """Return the features of a store that is made now."""
    return sorted(FEATURES | {KEYS} if keyed else FEATURES)


def check_features(name: str, features: Set[str], keyed: bool) -> None:
    """Raise ``StorageError`` if a store needs what this version does not know, or is under keys and none were given."""
    if unknown := sorted(features - FEATURES - {KEYS}, key=str):
        raise StorageError(
            f"{name} needs what this version of Holdfast does not know: {', '.join(map(str, unknown))}; "
            "nothing was changed. Use a newer version of Holdfast"
        )
    if KEYS in features and not keyed:
        raise CheckpointUntrusted(
            f"{name} is under keys, and none were given; open it with keys=Keyring.from_env(), or with the keyring "
            f"that it was made with"
        )
