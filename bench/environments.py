"""A virtual environment per peer under `.bench/`, with pinned packages, made once."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.sides import ENVIRONMENTS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench"


class EnvironmentFailed(Exception):
    """An environment could not be made; the message says why and what to do."""


def folder() -> Path:
    """The `.bench/` folder, which git does not see."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    return FOLDER


def interpreter(environment: str | None, say: Callable[[str], None]) -> Path:
    """The Python of an environment, which is made first if it is not there yet; None is our own."""
    if environment is None:
        return Path(sys.executable)
    requirements = ENVIRONMENTS[environment]
    place = folder() / requirements[0].replace("==", "-")
    python = place / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    wanted = json.dumps({"python": sys.version, "requirements": requirements})
    mark = place / ".complete"
    if not (mark.exists() and mark.read_text() == wanted and python.exists()):
        say(f"making {place.relative_to(ROOT)} with {', '.join(requirements)} (once; a minute or so)")
        shutil.rmtree(place, ignore_errors=True)
        _create(place)
        _call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
        mark.write_text(wanted)
    return python


def _create(place: Path) -> None:
    if importlib.util.find_spec("ensurepip") is not None:
        _call([sys.executable, "-m", "venv", str(place)])
    elif importlib.util.find_spec("virtualenv") is not None:
        _call([sys.executable, "-m", "virtualenv", "--quiet", str(place)])
    elif (program := shutil.which("virtualenv")) is not None:
        _call([program, "--quiet", "--python", sys.executable, str(place)])
    else:
        raise EnvironmentFailed(
            "this Python has no ensurepip and there is no virtualenv: install the package python3-venv, "
            "or virtualenv (`pipx install virtualenv`), and run again"
        )


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise EnvironmentFailed(f"`{' '.join(command)}` failed with exit code {done.returncode}:\n{tail}")
