"""The world outside of an agent: counts what is asked of models and tools, and kills its process where told to.

Lines go to a file that outlives the process. What was begun, what ended and what was recorded is told apart, so that a
judge can say which calls must not come again.
"""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple


class WantedTool(NamedTuple):
    call_id: str
    name: str
    arguments: dict[str, object] | str
    """Text stands for what a model wrote, JSON or not."""

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class Step(NamedTuple):
    """What the model says in one round: tools that it wants, or text."""

    tools: tuple[WantedTool, ...] = ()
    text: str = ""


SCRIPT = (
    Step((WantedTool("c1", "charge", {"amount": 5}), WantedTool("c2", "mail", {"to": "bo"}))),
    # The same id in another round, as some providers give them.
    Step((WantedTool("c1", "charge", {"amount": 7}), WantedTool("c3", "fail", {"why": "closed"}))),
    Step(text="all done"),
)
INPUT = "pay and tell"


class World:
    """Counts in ``folder``; kills this process at its ``kill_at``-th line, if that is given."""

    def __init__(self, folder: Path, kill_at: int | None = None) -> None:
        self._file = folder / "happened.txt"
        self._kill_at = kill_at
        self._count = 0

    def happen(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")
        self._count += 1
        if self._count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def lines(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []

    def ask(self, answered: int) -> Step:
        """Ask the model; ``answered`` is how many of its messages the conversation has already."""
        self.happen(f"begin model {answered + 1}")
        step = SCRIPT[answered]
        self.happen(f"end model {answered + 1}")
        return step

    async def charge(self, amount: int) -> str:
        """Charge an amount."""
        self.happen(f"begin charge {amount}")
        self.happen(f"end charge {amount}")
        return f"charged {amount}"

    async def mail(self, to: str) -> str:
        """Send a mail."""
        self.happen(f"begin mail {to}")
        await asyncio.sleep(0.02)  # so that the other tool of this round is recorded before
        self.happen(f"end mail {to}")
        return f"sent to {to}"

    async def fail(self, why: str) -> str:
        """Fail always."""
        self.happen(f"begin fail {why}")
        raise ValueError(f"it failed: {why}")
