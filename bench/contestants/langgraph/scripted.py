"""Scripts that change state: channels with reducers, or delta channels where a value grows."""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph

from bench import marks
from bench.scripts import Again, AppendItem, AppendText, Put, Script, Set


def merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """One mapping over another."""
    return {**old, **new}


def extended(items: list[str], writes: Sequence[list[str]]) -> list[str]:
    """A list and what was written to it."""
    return [*items, *(item for write in writes for item in write)]


def joined(text: str, writes: Sequence[str]) -> str:
    """A text and what was written to it."""
    return "".join([text, *writes])


def folded(entries: dict[str, str], writes: Sequence[dict[str, str]]) -> dict[str, str]:
    """A mapping and what was written to it."""
    found = dict(entries)
    for write in writes:
        found.update(write)
    return found


class State(TypedDict, total=False):
    """Channels of which each checkpoint holds all."""

    index: int
    counter: int
    log: str
    history: Annotated[list[str], operator.add]
    text: Annotated[str, operator.add]
    keys: Annotated[dict[str, str], merged]


class DeltaState(TypedDict, total=False):
    """Channels of which checkpoints hold what was written, and all of it now and then."""

    index: int
    counter: int
    log: str
    history: Annotated[list[str], DeltaChannel(extended)]
    text: Annotated[str, DeltaChannel(joined)]
    keys: Annotated[dict[str, str], DeltaChannel(folded)]


def scripted(script: Script, roles: int = 1, delta: bool = False) -> Any:
    """So many nodes in a ring play a script, one superstep each."""

    async def step(state: Any) -> dict[str, Any]:  # of either kind: an annotation would choose one
        marks.enter()
        index = state["index"]
        update: dict[str, Any] = {"index": index + 1}
        for operation in script[index]:
            match operation:
                case Set("text", value):
                    update["text"] = value
                case Set(key, value):
                    update[key] = value
                case AppendItem(key, item):
                    update[key] = [item]
                case AppendText(key, text) | Again(key, text):
                    update[key] = text
                case Put(entries):
                    update["keys"] = entries
        return update

    builder = StateGraph(DeltaState if delta else State)
    names = [f"role-{number}" for number in range(roles)]
    count = len(script)
    for number, name in enumerate(names):
        target = names[(number + 1) % roles]
        builder.add_node(name, step)

        def route(state: Any, target: str = target) -> Any:
            return target if state["index"] < count else END

        builder.add_conditional_edges(name, route, [target, END])
    builder.add_edge(START, names[0])
    return builder
