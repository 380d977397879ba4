"""The agent that triages: a model behind the ``openai`` SDK, with two tools."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from holdfast.agents import current_tool_call, openai
from holdfast.agents.openai import OpenAIAgent
from holdfast.demo.incident import DemoModel
from holdfast.demo.telemetry import LogSearch, SearchResult, pieces, service_facts
from holdfast.demo.workflow import SCOPE, WorkNote

INSTRUCTIONS = """\
You triage incidents. You are given the id of a log of half an hour. Search the log for ERROR, look up the service
that has most errors, and search the log for the cause that is known for it. Then answer with these five lines:
PRIORITY: P0 if errors burst for three minutes or more, P1 if shorter, P3 if there is no burst
SERVICE: the service
ERRORS: so many of so many lines; most in these services
BURST: from when to when, and how many errors a minute instead of how many usually
LOG: the id of the log"""

SearchWatcher: TypeAlias = Callable[[int, WorkNote], Awaitable[None]]
"""Is told the number of a search and how far it is."""

_PIECES = 10


def open_client(model: DemoModel) -> AsyncOpenAI:
    """Return a client of the ``openai`` SDK; that of a real model takes its key from ``OPENAI_API_KEY``."""
    if not model.is_local:
        return AsyncOpenAI(base_url=model.url)
    return AsyncOpenAI(
        api_key="none",
        base_url=model.url,
        default_headers={"X-Asked-By": f"process {os.getpid()}"},  # for the bill
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # no proxy leads to this machine
    )


def make_agent(client: AsyncOpenAI, model_name: str, on_search: SearchWatcher | None = None) -> OpenAIAgent:
    """Return the agent; ``on_search`` is told how far its searches are."""
    tools = TriageTools(on_search)
    return openai.wrap(
        client,
        model=model_name,
        name="TriageAgent",
        instructions=INSTRUCTIONS,
        tools=[tools.search_log, tools.look_up_service],
    )


class TriageTools:
    """The tools that the model may call."""

    def __init__(self, on_search: SearchWatcher | None = None) -> None:
        self._on_search = on_search
        self._searches = 0

    async def search_log(self, log_id: str, text: str) -> SearchResult:
        """Count the lines of a log that have a text, by service and by minute."""
        self._searches += 1
        number, call = self._searches, current_tool_call()
        log = await call.read_state(log_id, scope_name=SCOPE)
        if log is None:
            raise ValueError(f"there is no log {log_id!r}")
        search = LogSearch(text)
        for count, piece in enumerate(pieces(log, _PIECES), 1):
            # In a thread, as all that computes for long: the event loop stays free for others.
            await asyncio.to_thread(search.read, piece)
            done = count / _PIECES
            note = WorkNote("TriageAgent", f"{done:.0%} of the log searched for {text!r}", done)
            await call.show(note)
            if self._on_search is not None:
                await self._on_search(number, note)
        return search.result()

    async def look_up_service(self, name: str) -> dict[str, str]:
        """Tell who owns a service, and which cause of failures is known for it."""
        return service_facts(name)
