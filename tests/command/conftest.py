import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.cli.entry import main
from tests.support import shop


class Done(NamedTuple):
    """What a command left: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Calls the command in this process, as a script without a terminal does."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture(params=["sqlite", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store with runs of the shop."""
    (tmp_path / "shop").mkdir()
    name = "runs.db" if request.param == "sqlite" else "runs"  # where ``damage_of`` looks for them
    url = f"{request.param}:///{tmp_path / 'shop' / name}"
    asyncio.run(shop.fill(url))
    return url


@pytest.fixture
def shopping(command: Command, url: str) -> Command:
    """The command with ``--store``."""
    return lambda *arguments: command("--store", url, *arguments)
