"""What is shipped: a wheel that works alone, and an import that costs little."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.programs import ROOT, programs, run_program

# Modules of the standard library that cost tens of milliseconds or open doors that a workflow engine does not need.
HEAVY = {
    "ctypes",
    "curses",
    "email",
    "http",
    "multiprocessing",
    "sqlite3",
    "tkinter",
    "unittest",
    "urllib.request",
    "xml",
}

# Prints which modules an import brings in. -S and -I keep out site-packages, hence the explicit path.
NEW_MODULES = """
import sys
bare = set(sys.modules)
sys.path.insert(0, {source!r})
import {module}
new = set(sys.modules) - bare
import json
print(json.dumps(sorted(new)))
"""

INSTALLED = """
from importlib.metadata import distributions
print(*sorted(distribution.metadata["Name"] for distribution in distributions()))
"""


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (built,) = folder.glob("holdfast-*.whl")
    return built


def modules_that_an_import_brings(module: str, source: Path) -> set[str]:
    program = NEW_MODULES.format(source=str(source), module=module)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", program],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def unwelcome(modules: set[str]) -> set[str]:
    """Those that are neither Holdfast nor standard library, or that are on the list of heavy ones."""
    return {
        name
        for name in modules
        if name.partition(".")[0] not in sys.stdlib_module_names | {"holdfast"}
        or any(name == heavy or name.startswith(f"{heavy}.") for heavy in HEAVY)
    }


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {name for name in names if ".dist-info/" not in name}
    source = ROOT / "src"
    assert shipped == {
        path.relative_to(source).as_posix()
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "holdfast/py.typed" in shipped
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_brings_what_its_format_needs_and_runs_the_readme_and_the_demo(
    wheel: Path, tmp_path: Path
) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    pip("--python", python, "install", "--quiet", str(wheel))
    listed = subprocess.run([python, "-c", INSTALLED], capture_output=True, encoding="utf-8", check=True)
    assert listed.stdout.split() == ["blake3", "holdfast", "ormsgpack", "typing_extensions", "zstandard"]
    shown = programs(ROOT / "README.md")
    assert shown[0].output, "README.md shows no ```text block right after its first program"
    for number, program in enumerate(shown):
        place = tmp_path / str(number)
        place.mkdir()
        run_program(program, place, python=python)

    pip("--python", python, "install", "--quiet", f"{wheel}[demo]")
    done = subprocess.run(
        [home / "bin" / "holdfast", "demo", "--no-kill", "--yes", "--json"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout)["run"]["status"] == "completed"


def test_import_is_lean() -> None:
    modules = modules_that_an_import_brings("holdfast", ROOT / "src")
    assert "holdfast" in modules
    assert unwelcome(modules) == set()


@pytest.mark.parametrize("statement", ["import sqlite3", "import importlib.metadata", "import neighbour"])
def test_an_import_that_is_not_lean_is_noticed(statement: str, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "holdfast.py").write_text(f"{statement}\n")
    assert unwelcome(modules_that_an_import_brings("holdfast", tmp_path))
