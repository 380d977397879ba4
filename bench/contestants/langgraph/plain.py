"""W1, W2 and W5: a `StateGraph` with typed state.

Chosen among what its API offers after a short trial of each (8 runs, not interleaved): static edges in a chain (a
loop needs a conditional edge, which nearly doubled the cost of a step); `Send` for the fan (static edges took about a
sixth longer). The `Topic` channel took as long as an `operator.add` reducer, and holds one round's answers only.
"""

# Its packages are only in its own environment, so its types are unknown where this file is checked.
# mypy: disable-error-code="import-not-found, misc, untyped-decorator"

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langgraph.channels import Topic
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from bench.rounds import number_of
from bench.scripts import Params


class Number(TypedDict):
    """The state of the chain."""

    number: int


class Fan(TypedDict, total=False):
    """The state of the fan; `answers` holds those of the last superstep only."""

    number: int
    answers: Annotated[list[int], Topic(int)]
    total: int


class Job(TypedDict):
    """What one worker gets."""

    number: int
    index: int


async def step(state: Number) -> Number:
    """One superstep of the chain."""
    return {"number": state["number"] + 1}


def chain(params: Params) -> Any:
    """W1 and W2."""
    builder = StateGraph(Number)
    names = [f"step-{index}" for index in range(params["supersteps"])]
    for name in names:
        builder.add_node(name, step)
    for source, target in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(source, target)
    return builder


def loop(params: Params) -> Any:
    """W2 with a checkpointer: the same superstep, from one node."""
    count = params["supersteps"]
    builder = StateGraph(Number)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: "step" if state["number"] < count else END, ["step", END]
    )
    return builder


async def work(job: Job) -> dict[str, int]:
    """One of the fan's many."""
    return {"answers": job["number"] + job["index"]}


def fan(params: Params) -> Any:
    """W5."""
    width, rounds = params["width"], params["rounds"]

    async def hub(state: Fan) -> Fan:
        """Checks a round and starts the next one."""
        answers = state.get("answers")
        if not answers:
            return {"number": 0}
        return {"number": number_of(answers, width) + 1, "total": sum(answers)}

    def spread(state: Fan) -> list[Any] | Any:
        """Sends the round out."""
        number = state["number"]
        return (
            [Send("work", {"number": number, "index": index}) for index in range(width)]
            if number < rounds
            else END
        )

    builder = StateGraph(Fan)
    builder.add_node("hub", hub)
    builder.add_node("work", work)
    builder.add_edge(START, "hub")
    builder.add_conditional_edges("hub", spread, ["work", END])
    builder.add_edge("work", "hub")
    return builder
