"""Places of tests: where their files lie, and folders that nobody can write."""

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")
# Many times what tests hold at any time; containers often give 64 MB, which one test can fill.
_ROOM_BYTES = 2 * 2**30


def quick_place() -> str | None:
    """A folder in memory, if there is one with room where programs may lie; none if ``TMPDIR`` says where files go.

    Stores sync each commit, and on a disk tests wait as long for that as for much else. What a process had written
    that is killed is there in memory, too; only a power cut could tell the difference, and what is synced before what
    is held by tests that look at the calls.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return None
    status = os.statvfs(_MEMORY)
    roomy = status.f_bavail * status.f_frsize >= _ROOM_BYTES
    runs_programs = not status.f_flag & getattr(os, "ST_NOEXEC", 0)
    return str(_MEMORY) if roomy and runs_programs else None


def forbid_writing(folder: Path) -> None:
    """Take the right to write from everyone, for a folder and all that is in it."""
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
