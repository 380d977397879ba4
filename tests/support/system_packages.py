"""Programs of the system that tests need: installed where they are missing, else the test fails and names them."""

import os
import shutil
import subprocess

# Several workers may install at the same time: each waits until the other is done.
_INSTALL = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends")


def find_program(*names: str) -> str:
    """Return the path of the first of these programs that is there; the package of the first has its name."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        _install(names[0])
        found = shutil.which(names[0])
    assert found is not None, f"this test needs a program of the system: install one of {', '.join(names)}"
    return found


def _install(package: str) -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*_INSTALL, package], env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:  # its lists of packages may be old, or not be there
        update = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "-qq", "update")
        subprocess.run(update, env=quiet, capture_output=True, check=False)
        done = subprocess.run([*_INSTALL, package], env=quiet, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{package} cannot be installed: {done.stderr}"
