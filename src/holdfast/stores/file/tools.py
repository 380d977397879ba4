"""What the folders of all runs work with."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.stores.common.disk import Disk
from holdfast.stores.common.locks import Locks
from holdfast.stores.file.blobs import Blobs
from holdfast.stores.file.hints import Hints
from holdfast.stores.file.waking import Waking


class Tools(NamedTuple):
    """What the folders of all runs work with."""

    disk: Disk
    locks: Locks
    blobs: Blobs
    hints: Hints
    waking: Waking
