"""Watches what the interpreter does while bytes are decoded: nothing that they name is imported, run or opened."""

import importlib.readers
import json
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FORBIDDEN = (
    "exec",
    "compile",
    "os.system",
    "subprocess.",
    "ctypes.",
    "pickle.",
    "marshal.",
    "socket.connect",
)


class Forbidden(AssertionError):
    """Raised if something forbidden happened while bytes were decoded."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__(f"the bytes made the interpreter do this: {seen[:3]}")
        self.may_be_others = all(one.startswith(("open", "os.")) for one in seen)
        """True if threads that other tests left behind may have done it: then it does not happen twice."""


class Guard:
    """Notes what is forbidden while it is on; a hook of the interpreter can never be taken away."""

    def __init__(self) -> None:
        self.is_on = False
        self.folder = ""
        self.seen: list[str] = []
        # What the standard library imports for some data: zones of times by their names, and encodings of JSON.
        zones = importlib.import_module("tzdata").__path__
        for module in pkgutil.walk_packages(zones, "tzdata."):
            importlib.import_module(module.name)
        for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16", "utf-32", "utf-8-sig"):
            json.loads("[]".encode(encoding))
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        is_import = event == "import" and not str(given[0]).startswith("tzdata.zoneinfo.")
        if event.startswith(_FORBIDDEN) or is_import:
            self.seen.append(f"{event} {given[:1]!r:.200}")
        elif event in ("open", "os.remove", "os.rename", "os.mkdir") and isinstance(given[0], str | bytes):
            allowed = (self.folder, "/proc/", "/dev/null")
            path = given[0].decode("utf-8", "replace") if isinstance(given[0], bytes) else given[0]
            if path.startswith("/") and "/zoneinfo" not in path and not path.startswith(allowed):
                self.seen.append(f"{event} {path:.200}")

    @contextmanager
    def watch(self, folder: str) -> Iterator[None]:
        """Raise ``Forbidden`` if something forbidden happens; files below a folder may be opened."""
        self.folder, self.is_on, self.seen = folder, True, []
        try:
            yield
        finally:
            self.is_on = False
        if self.seen:
            raise Forbidden(self.seen)
