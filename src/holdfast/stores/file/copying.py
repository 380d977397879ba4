"""A copy of a file store to try something on, made of hard links where there are any."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from holdfast.stores.disk import Irregular, read_regular
from holdfast.stores.file import marker


def copy_store(root: Path, copy: Path, base: Path) -> None:
    """Copy the commits of a namespace, which lies in ``base``, and what leads to them.

    Files of a store are never changed, only replaced, so links to them stay as they are. What leads to commits is
    copied first: it may lead to fewer than there are, but not to more.
    """
    _link(str(root / marker.NAME), str(copy / marker.NAME))
    for name in ("ids", "runs"):
        if (root / base / name).is_dir():
            shutil.copytree(root / base / name, copy / base / name, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:  # nobody needs it any more
        pass
    except OSError:  # there are no hard links here
        with suppress(Irregular):  # whoever reads the copy finds that it is missing
            Path(target).write_bytes(read_regular(source))
